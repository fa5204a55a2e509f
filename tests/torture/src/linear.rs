//! A linearizability checker for histories of names.
//!
//! Does: searches for an order of operations that explains all outcomes, with Wing and Gong's
//! algorithm in Lowe's form: takes operations that no completed one precedes, backtracks, and skips
//! states seen before.
//! Does not: record the history.
//! Contract: an operation with unknown outcome may have run at any time after its call, or never.
//! Exponential in the number of clients in the worst case; undecided after [`STEPS_MAX`] steps.
//! Truth: Herlihy and Wing, "Linearizability"; Lowe, "Testing for linearizability" (2017).

use std::collections::HashSet;

/// Number of names.
pub const NAMES: usize = 5;
/// Maximum steps of the search.
pub const STEPS_MAX: u64 = 30_000_000;

/// Node of each name: a number that only one creation used.
pub type NameState = [Option<u16>; NAMES];

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Creates a node with this number under a free name.
    Make(usize, u16),
    /// Removes an existing name.
    Remove(usize),
    /// Renames; an existing target is replaced.
    Replace(usize, usize),
    /// Renames; the target must be free.
    Move(usize, usize),
    /// Exchanges two existing names.
    Exchange(usize, usize),
    /// Looks a name up.
    Look(usize),
    /// Looks all names up.
    List,
}

/// The observed result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationResult {
    /// The operation succeeded.
    Done,
    /// The name does not exist.
    Missing,
    /// The name exists.
    Taken,
    /// Node of the name.
    Found(u16),
    /// Nodes of all names.
    Listed(NameState),
    /// No answer.
    Unknown,
}

/// One operation of one client.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Number of the client.
    pub client: usize,
    /// The request.
    pub operation: Operation,
    /// The observed result.
    pub outcome: OperationResult,
    /// Time of the call: any increasing number.
    pub called: u64,
    /// Time of the return.
    pub returned: u64,
}

/// Result of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// An order explains all results.
    Linearizable,
    /// No order does; the longest explained prefix has this many operations.
    Violation(usize),
    /// The search exceeded its limit.
    Undecided,
}

/// Returns the state after an operation with this outcome, if it is possible.
#[must_use]
pub fn step(mut state: NameState, operation: Operation, outcome: OperationResult) -> Option<NameState> {
    use Operation::{Exchange, List, Look, Make, Move, Remove, Replace};
    use OperationResult::{Done, Found, Listed, Missing, Taken, Unknown};
    match (operation, outcome) {
        (Make(name, number), Done | Unknown) if state[name].is_none() => state[name] = Some(number),
        (Make(name, _), Taken) if state[name].is_some() => {}
        (Remove(name), Done | Unknown) if state[name].is_some() => state[name] = None,
        (Remove(name) | Look(name), Missing) if state[name].is_none() => {}
        (Replace(from, to), Done | Unknown) if state[from].is_some() => {
            let moved = state[from].take();
            state[to] = moved;
        }
        (Move(from, to), Done | Unknown) if state[from].is_some() && (state[to].is_none() || from == to) => {
            let moved = state[from].take();
            state[to] = moved;
        }
        (Replace(from, _) | Move(from, _), Missing) if state[from].is_none() => {}
        (Move(_, to), Taken) if state[to].is_some() => {}
        (Exchange(one, other), Done | Unknown) if state[one].is_some() && state[other].is_some() => {
            state.swap(one, other);
        }
        (Exchange(one, other), Missing) if state[one].is_none() || state[other].is_none() => {}
        (Look(name), Found(number)) if state[name] == Some(number) => {}
        (List, Listed(listed)) if listed == state => {}
        // It had no visible effect.
        (Look(_) | List, Unknown) => {}
        _ => return None,
    }
    Some(state)
}

/// A call or return, in a linked list from which operations are removed and restored.
#[derive(Clone, Copy)]
struct HistoryEntry {
    event: usize,
    is_call: bool,
    before: usize,
    after: usize,
}

/// The list of calls and returns; the first entry is a sentinel.
struct HistoryList {
    all: Vec<HistoryEntry>,
    /// Index of an event's return; `None` if it never returned.
    returns: Vec<Option<usize>>,
}

const HEAD: usize = 0;

impl HistoryList {
    fn of(history: &[Event]) -> Self {
        let mut order: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * history.len());
        for (index, event) in history.iter().enumerate() {
            order.push((event.called, true, index));
            if event.outcome != OperationResult::Unknown {
                order.push((event.returned, false, index));
            }
        }
        order.sort_unstable();
        let count = order.len() + 1;
        let mut all = vec![HistoryEntry { event: 0, is_call: false, before: count - 1, after: 1 % count }];
        let mut returns = vec![None; history.len()];
        for (index, (_, is_call, event)) in order.into_iter().enumerate() {
            let at = index + 1;
            all.push(HistoryEntry { event, is_call, before: at - 1, after: (at + 1) % count });
            if !is_call {
                returns[event] = Some(at);
            }
        }
        Self { all, returns }
    }

    fn unlink(&mut self, at: usize) {
        let HistoryEntry { before, after, .. } = self.all[at];
        self.all[before].after = after;
        self.all[after].before = before;
    }

    fn relink(&mut self, at: usize) {
        let HistoryEntry { before, after, .. } = self.all[at];
        self.all[before].after = at;
        self.all[after].before = at;
    }

    /// Removes an event.
    fn lift(&mut self, call: usize) {
        self.unlink(call);
        if let Some(at) = self.returns[self.all[call].event] {
            self.unlink(at);
        }
    }

    /// Restores an event; in reverse order of removal.
    fn unlift(&mut self, call: usize) {
        if let Some(at) = self.returns[self.all[call].event] {
            self.relink(at);
        }
        self.relink(call);
    }
}

/// Searches for an order, starting with no names.
#[must_use]
pub fn check(history: &[Event]) -> Verdict {
    let mut moments = HistoryList::of(history);
    let mut left = history.iter().filter(|event| event.outcome != OperationResult::Unknown).count();
    let mut state: NameState = [None; NAMES];
    let mut done = vec![0_u64; history.len().div_ceil(64).max(1)];
    let mut seen: HashSet<(Vec<u64>, NameState)> = HashSet::new();
    let mut taken: Vec<(usize, NameState)> = Vec::new();
    let (mut longest, mut steps) = (0, 0);
    let mut at = moments.all[HEAD].after;
    while left > 0 {
        steps += 1;
        if steps > STEPS_MAX {
            return Verdict::Undecided;
        }
        let moment = moments.all[at];
        let event = &history[moment.event];
        if at != HEAD && moment.is_call {
            let (word, bit) = (moment.event / 64, 1 << (moment.event % 64));
            let next = step(state, event.operation, event.outcome).filter(|next| {
                let mut after = done.clone();
                after[word] |= bit;
                seen.insert((after, *next))
            });
            match next {
                Some(next) => {
                    taken.push((at, state));
                    longest = longest.max(taken.len());
                    state = next;
                    done[word] |= bit;
                    left -= usize::from(event.outcome != OperationResult::Unknown);
                    moments.lift(at);
                    at = moments.all[HEAD].after;
                }
                None => at = moment.after,
            }
            continue;
        }
        // A return before its call was taken: backtrack.
        let Some((call, before)) = taken.pop() else { return Verdict::Violation(longest) };
        state = before;
        let index = moments.all[call].event;
        done[index / 64] &= !(1 << (index % 64));
        left += usize::from(history[index].outcome != OperationResult::Unknown);
        moments.unlift(call);
        at = moments.all[call].after;
    }
    Verdict::Linearizable
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    fn event(
        client: usize,
        operation: Operation,
        outcome: OperationResult,
        called: u64,
        returned: u64,
    ) -> Event {
        Event { client, operation, outcome, called, returned }
    }

    #[test]
    fn histories_with_a_valid_order_are_linearizable() {
        use Operation::{Look, Make, Remove};
        use OperationResult::{Done, Found, Missing};
        let made = event(0, Make(0, 7), Done, 1, 4);
        assert_eq!(check(&[made, event(1, Look(0), Missing, 2, 3)]), Verdict::Linearizable);
        assert_eq!(check(&[made, event(1, Look(0), Found(7), 2, 3)]), Verdict::Linearizable);
        assert_eq!(check(&[made, event(1, Look(0), Found(7), 5, 6)]), Verdict::Linearizable);
        assert_eq!(check(&[made, event(1, Look(0), Missing, 5, 6)]), Verdict::Violation(1));
        assert_eq!(check(&[made, event(1, Look(0), Found(8), 2, 3)]), Verdict::Violation(1));
        // Two clients removed a node that was created once.
        let twice = [made, event(1, Remove(0), Done, 5, 9), event(2, Remove(0), Done, 6, 8)];
        assert_eq!(check(&twice), Verdict::Violation(2));
        // The node existed, and then had never existed.
        let back = [made, event(1, Look(0), Found(7), 2, 3), event(2, Look(0), Missing, 5, 6)];
        assert!(matches!(check(&back), Verdict::Violation(_)));
    }

    #[test]
    fn unknown_outcomes_take_effect_anytime_or_never() {
        use Operation::{Look, Make, Remove};
        use OperationResult::{Done, Found, Missing, Unknown};
        let perhaps = event(0, Make(0, 7), Unknown, 1, 2);
        let looks =
            |first, second| [perhaps, event(1, Look(0), first, 5, 6), event(1, Look(0), second, 7, 8)];
        assert_eq!(check(&looks(Missing, Missing)), Verdict::Linearizable);
        assert_eq!(check(&looks(Missing, Found(7))), Verdict::Linearizable);
        assert_eq!(check(&looks(Found(7), Found(7))), Verdict::Linearizable);
        assert!(matches!(check(&looks(Found(7), Missing)), Verdict::Violation(_)));
        let early = [event(1, Remove(0), Done, 1, 2), event(0, Make(0, 7), Unknown, 3, 4)];
        assert!(matches!(check(&early), Verdict::Violation(_)), "it was not asked for then");
    }

    fn random(random: &mut StdRng, number: u16) -> Operation {
        let (one, other) = (random.gen_range(0..NAMES), random.gen_range(0..NAMES));
        match random.gen_range(0..7) {
            0 | 1 => Operation::Make(one, number),
            2 => Operation::Remove(one),
            3 => Operation::Replace(one, other),
            4 => Operation::Move(one, other),
            5 => Operation::Look(one),
            _ => Operation::List,
        }
    }

    /// Returns the outcome of an atomic execution.
    fn execute_atomically(state: &NameState, operation: Operation) -> OperationResult {
        let outcomes = [
            OperationResult::Done,
            OperationResult::Missing,
            OperationResult::Taken,
            OperationResult::Listed(*state),
        ];
        let found = match operation {
            Operation::Look(name) => state[name].map(OperationResult::Found),
            _ => None,
        };
        let all = found.into_iter().chain(outcomes);
        all.into_iter().find(|outcome| step(*state, operation, *outcome).is_some()).unwrap()
    }

    #[test]
    fn generated_histories_pass_and_altered_ones_fail() {
        let (mut violations, mut total) = (0, 0);
        for seed in 0..60 {
            let rng = &mut StdRng::seed_from_u64(seed);
            let mut state: NameState = [None; NAMES];
            let mut history = Vec::new();
            // Eight clients whose operations last for a while around their point of execution.
            let mut busy_until = [0_u64; 8];
            for number in 1..=120_u16 {
                let moment = u64::from(number) * 100;
                let client = rng.gen_range(0..8);
                if busy_until[client] + 1 >= moment {
                    continue;
                }
                let called = rng.gen_range(busy_until[client].max(moment.saturating_sub(500)) + 1..=moment);
                let returned = moment + rng.gen_range(1..500);
                busy_until[client] = returned;
                let operation = random(rng, number);
                let mut outcome = execute_atomically(&state, operation);
                state = step(state, operation, outcome).unwrap();
                if rng.gen_bool(0.03) {
                    outcome = OperationResult::Unknown;
                }
                history.push(event(client, operation, outcome, called, returned));
            }
            assert_eq!(check(&history), Verdict::Linearizable, "seed {seed}");
            let wrong = history.iter().rposition(|event| matches!(event.outcome, OperationResult::Listed(_)));
            if let Some(index) = wrong {
                history[index].outcome = OperationResult::Listed([Some(9999), None, None, None, None]);
                total += 1;
                violations += usize::from(matches!(check(&history), Verdict::Violation(_)));
            }
        }
        assert_eq!(violations, total);
        assert!(total > 30);
    }
}
