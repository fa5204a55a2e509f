//! Records about whoever has proven nothing: put together, so that a flood from outside does not fill the disk.
//!
//! Does: a few lines at once for each kind (where from, what, how it ended), the rest of the same kind in one more, later.
//! Does not: format lines, or know clocks; `audit_log` does.
//! Contract: however many records come, there are at most [`LINES_AT_ONCE`] lines and then one a second, besides
//! [`OTHERS_MAX`] a minute about all that there was no room for; and each record is in the `count` of one line. Memory
//! is bounded by [`KINDS_MAX`] and [`OTHERS_MAX`].

use std::collections::HashMap;
use std::mem;

/// Milliseconds from one line about a kind to the next.
const EVERY_MS: u64 = 10_000;
/// Lines of a kind that are written at once: who mistypes, or tries this and that, is seen as it was.
const WHOLE_MAX: u32 = 4;
/// Kinds that are kept apart.
const KINDS_MAX: usize = 1024;
/// Lines that may be written at once.
const LINES_AT_ONCE: u64 = 256;
/// Milliseconds in which one of them comes back.
const LINE_EVERY_MS: u64 = 1_000;
/// Milliseconds from one line about others to the next.
const OTHERS_EVERY_MS: u64 = 60_000;
/// What there was no room for is told apart in so many ways at most.
const OTHERS_MAX: usize = 64;

/// What is the same about records that are told together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    /// Where they came from, or who they said to be.
    pub(crate) source: String,
    /// What was tried.
    pub(crate) action: String,
    /// How it ended.
    pub(crate) verdict: String,
}

struct Pending {
    since_ms: u64,
    /// Lines that were written at once.
    whole: u32,
    /// Records since.
    count: u64,
    /// The last one.
    line: Vec<u8>,
}

/// Several kinds that there was no room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Others {
    /// What was tried; empty if that is different, too.
    pub(crate) action: String,
    /// How it ended; empty if that is different, too.
    pub(crate) verdict: String,
    /// Records.
    pub(crate) count: u64,
}

/// What is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The last record of a kind, and how many it stands for.
    Last(Vec<u8>, u64),
    /// What there was no room for.
    Others(Others),
}

/// Records on their way to the log.
pub(crate) struct Strangers {
    kinds: HashMap<Kind, Pending>,
    others: HashMap<(String, String), (u64, u64)>,
    lines: u64,
    refilled_ms: u64,
}

impl Default for Strangers {
    fn default() -> Self {
        Self { kinds: HashMap::new(), others: HashMap::new(), lines: LINES_AT_ONCE, refilled_ms: 0 }
    }
}

impl Strangers {
    /// Takes `count` records of a kind, of which `line` is the last. What it gives is to be written at once.
    pub(crate) fn add(&mut self, kind: Kind, line: Vec<u8>, count: u64, now_ms: u64) -> Option<Told> {
        let at_once = match self.kinds.get(&kind) {
            Some(known) => known.whole < WHOLE_MAX && known.count == 0,
            None => self.kinds.len() < KINDS_MAX,
        };
        if at_once && self.take_line(now_ms) {
            let new = || Pending { since_ms: now_ms, whole: 0, count: 0, line: Vec::new() };
            self.kinds.entry(kind).or_insert_with(new).whole += 1;
            return Some(Told::Last(line, count));
        }
        match self.kinds.get_mut(&kind) {
            Some(known) => {
                known.count = known.count.saturating_add(count);
                known.line = line;
            }
            None => self.fold(kind.action, kind.verdict, count, now_ms),
        }
        None
    }

    /// What has come together; with `all` also what is too young: the log ends.
    pub(crate) fn flush(&mut self, all: bool, now_ms: u64) -> Vec<Told> {
        let is_due = |since_ms: u64, every_ms: u64| all || now_ms.saturating_sub(since_ms) >= every_ms;
        let mut told = Vec::new();
        let mut kinds = mem::take(&mut self.kinds);
        kinds.retain(|kind, pending| {
            if !is_due(pending.since_ms, EVERY_MS) {
                return true;
            }
            let (count, line) = (mem::take(&mut pending.count), mem::take(&mut pending.line));
            if count == 0 {
                return false;
            }
            if self.take_line(now_ms) {
                told.push(Told::Last(line, count));
            } else {
                self.fold(kind.action.clone(), kind.verdict.clone(), count, now_ms);
            }
            // Whoever goes on is told again only after as long.
            (pending.since_ms, pending.whole) = (now_ms, WHOLE_MAX);
            !all
        });
        self.kinds = kinds;
        self.others.retain(|(action, verdict), (since_ms, count)| {
            let due = is_due(*since_ms, OTHERS_EVERY_MS);
            if due {
                let (action, verdict) = (action.clone(), verdict.clone());
                told.push(Told::Others(Others { action, verdict, count: *count }));
            }
            !due
        });
        told
    }

    fn fold(&mut self, action: String, verdict: String, count: u64, now_ms: u64) {
        let mut what = (action, verdict);
        // One place is left for all that is different still.
        if self.others.len() + 1 >= OTHERS_MAX && !self.others.contains_key(&what) {
            what = Default::default();
        }
        let (_, known) = self.others.entry(what).or_insert((now_ms, 0));
        *known = known.saturating_add(count);
    }

    fn take_line(&mut self, now_ms: u64) -> bool {
        let back = now_ms.saturating_sub(self.refilled_ms) / LINE_EVERY_MS;
        self.lines = self.lines.saturating_add(back).min(LINES_AT_ONCE);
        self.refilled_ms = self.refilled_ms.saturating_add(back.saturating_mul(LINE_EVERY_MS));
        match self.lines.checked_sub(1) {
            Some(left) => {
                self.lines = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(source: &str, verdict: &str) -> Kind {
        Kind { source: source.to_owned(), action: "login".to_owned(), verdict: verdict.to_owned() }
    }

    fn count(told: &[Told]) -> u64 {
        told.iter()
            .map(|one| match one {
                Told::Last(_, count) | Told::Others(Others { count, .. }) => *count,
            })
            .sum()
    }

    #[test]
    fn the_first_of_a_kind_are_told_at_once_and_the_rest_together() {
        let mut strangers = Strangers::default();
        for n in 1..=WHOLE_MAX as u8 {
            let told = strangers.add(kind("a", "refused"), vec![n], 1, 0);
            assert_eq!(told, Some(Told::Last(vec![n], 1)));
        }
        assert!(strangers.add(kind("a", "abandoned"), b"x".to_vec(), 1, 0).is_some(), "another kind");
        for n in 2..=9u8 {
            assert_eq!(strangers.add(kind("a", "refused"), vec![n], 1, 5), None);
        }
        assert_eq!(strangers.flush(false, EVERY_MS - 1), []);
        assert_eq!(strangers.flush(false, EVERY_MS), [Told::Last(vec![9], 8)]);
        assert_eq!(strangers.add(kind("a", "refused"), vec![7], 1, EVERY_MS), None, "who goes on waits");
        assert_eq!(strangers.flush(false, 2 * EVERY_MS), [Told::Last(vec![7], 1)]);
        assert_eq!(strangers.flush(false, 3 * EVERY_MS), [], "nothing came");
        assert!(strangers.kinds.is_empty(), "and it is forgotten");
        assert!(strangers.add(kind("a", "refused"), b"2".to_vec(), 1, 3 * EVERY_MS).is_some());
    }

    /// Records from as many sources, all day long: as many lines as the contract says, and none is left out.
    #[test]
    fn a_flood_makes_few_lines_and_every_record_is_counted_once() {
        let (mut strangers, mut told, mut lines) = (Strangers::default(), 0, 0u64);
        let day_ms = 86_400_000u64;
        let records = 200_000u64;
        for n in 0..records {
            let now_ms = n * day_ms / records;
            let verdict = ["refused", "abandoned", "malformed"][(n % 3) as usize];
            let now = strangers.add(kind(&n.to_string(), verdict), vec![0; 100], 1, now_ms);
            lines += u64::from(now.is_some());
            told += now.map_or(0, |one| count(&[one]));
            if n % 3 == 0 {
                let flushed = strangers.flush(false, now_ms);
                lines += flushed.len() as u64;
                told += count(&flushed);
            }
            assert!(strangers.kinds.len() <= KINDS_MAX && strangers.others.len() <= OTHERS_MAX);
        }
        let last = strangers.flush(true, day_ms);
        lines += last.len() as u64;
        told += count(&last);
        assert_eq!(told, records);
        let most =
            LINES_AT_ONCE + day_ms / LINE_EVERY_MS + OTHERS_MAX as u64 * (day_ms / OTHERS_EVERY_MS + 1);
        assert!(lines <= most, "{lines} lines, at most {most}");
    }

    #[test]
    fn one_more_kind_than_are_kept_apart_is_among_the_others() {
        let mut strangers = Strangers::default();
        let mut now_ms = 0;
        for n in 0..KINDS_MAX {
            now_ms += LINE_EVERY_MS;
            assert!(strangers.add(kind(&n.to_string(), "refused"), Vec::new(), 1, now_ms).is_some());
        }
        assert_eq!(strangers.add(kind("one more", "refused"), Vec::new(), 3, now_ms), None);
        let others = Others { action: "login".to_owned(), verdict: "refused".to_owned(), count: 3 };
        assert!(strangers.flush(true, now_ms).contains(&Told::Others(others)));
    }

    #[test]
    fn one_more_line_than_may_be_written_at_once_waits() {
        let mut strangers = Strangers::default();
        let told = |n: u64| kind(&n.to_string(), "refused");
        for n in 0..LINES_AT_ONCE {
            assert!(strangers.add(told(n), Vec::new(), 1, 0).is_some());
        }
        assert_eq!(strangers.add(told(LINES_AT_ONCE), Vec::new(), 1, 0), None);
        assert!(strangers.add(told(LINES_AT_ONCE + 1), Vec::new(), 1, LINE_EVERY_MS).is_some());
        assert_eq!(strangers.flush(false, OTHERS_EVERY_MS).len(), 1, "the one that waited, among the others");
    }

    #[test]
    fn what_is_told_apart_among_others_is_bounded() {
        let mut strangers = Strangers { lines: 0, ..Strangers::default() };
        for n in 0..3 * OTHERS_MAX {
            strangers.add(kind("a", &n.to_string()), Vec::new(), 1, 0);
        }
        let told = strangers.flush(true, 0);
        assert_eq!((told.len(), count(&told)), (OTHERS_MAX, 3 * OTHERS_MAX as u64));
        let rest = told
            .iter()
            .any(|one| matches!(one, Told::Others(one) if one.verdict.is_empty() && one.count > 1));
        assert!(rest, "{told:?}");
    }
}
