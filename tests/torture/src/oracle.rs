//! What the objects of one worker may be after a crash.
//!
//! Does: keep the state that is durable for certain, and every step after it; compare what came back with each moment
//! since. Does not: talk to anybody.
//! Contract: a worker sends a command when the one before was answered, so that its steps have an order. A device brings
//! back the state at one moment for all objects of a worker: not before the last step known as durable, not after the
//! last one sent; a command is in it as a whole or not at all.

use std::collections::BTreeMap;

use sealstone_osd::ObjectId;

/// One object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// Its bytes.
    pub content: Vec<u8>,
    /// Attributes of the one application page that workers use, by number; none is empty.
    pub attributes: BTreeMap<u32, Vec<u8>>,
}

/// All objects of a worker.
pub type State = BTreeMap<ObjectId, Object>;

/// A step that changes one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// An object of these bytes, which was not there.
    Create(ObjectId, Vec<u8>),
    /// Bytes at an offset; zeros between them and an end before it.
    Write(ObjectId, u64, Vec<u8>),
    /// Bytes at the end.
    Append(ObjectId, Vec<u8>),
    /// Zeros at an offset, so many.
    Clear(ObjectId, u64, u64),
    /// Bytes taken out.
    Punch(ObjectId, u64, u64),
    /// A new length.
    Resize(ObjectId, u64),
    /// An attribute; empty takes it away.
    Attribute(ObjectId, u32, Vec<u8>),
    /// A second object with the bytes of the first.
    Copy(ObjectId, ObjectId),
    /// The object is gone.
    Remove(ObjectId),
}

impl Step {
    /// The object that it changes.
    #[must_use]
    pub const fn object(&self) -> ObjectId {
        match self {
            Self::Create(id, _)
            | Self::Write(id, ..)
            | Self::Append(id, _)
            | Self::Clear(id, ..)
            | Self::Punch(id, ..)
            | Self::Resize(id, _)
            | Self::Attribute(id, ..)
            | Self::Copy(_, id)
            | Self::Remove(id) => *id,
        }
    }

    /// Does it.
    pub fn apply(&self, state: &mut State) {
        let place = |at: u64| usize::try_from(at).expect("objects are small here");
        match self {
            Self::Create(id, content) => {
                let object = Object { content: content.clone(), ..Object::default() };
                state.insert(*id, object);
            }
            Self::Copy(from, to) => {
                let content = state.get(from).map(|object| object.content.clone()).unwrap_or_default();
                state.insert(*to, Object { content, ..Object::default() });
            }
            Self::Remove(id) => drop(state.remove(id)),
            _ => {
                let object = state.entry(self.object()).or_default();
                let content = &mut object.content;
                match self {
                    Self::Write(_, at, data) => {
                        let (from, to) = (place(*at), place(*at) + data.len());
                        content.resize(content.len().max(to), 0);
                        content[from..to].copy_from_slice(data);
                    }
                    Self::Append(_, data) => content.extend_from_slice(data),
                    Self::Clear(_, at, length) => {
                        let (from, to) = (place(*at), place(at + length));
                        content.resize(content.len().max(to), 0);
                        content[from..to].fill(0);
                    }
                    Self::Punch(_, at, length) => {
                        let to = place(at + length).min(content.len());
                        drop(content.drain(place(*at).min(to)..to));
                    }
                    Self::Resize(_, length) => content.resize(place(*length), 0),
                    Self::Attribute(_, number, value) if value.is_empty() => {
                        drop(object.attributes.remove(number));
                    }
                    Self::Attribute(_, number, value) => {
                        drop(object.attributes.insert(*number, value.clone()));
                    }
                    Self::Create(..) | Self::Copy(..) | Self::Remove(_) => {}
                }
            }
        }
    }
}

/// The steps of a worker since what is durable for certain.
#[derive(Clone, Debug, Default)]
pub struct History {
    base: State,
    /// The number of the step after the base.
    first: u64,
    steps: Vec<Step>,
    /// After all steps that were answered.
    now: State,
    /// Sent, and not answered.
    under_way: Option<Step>,
}

impl History {
    /// What every object is now.
    #[must_use]
    pub const fn now(&self) -> &State {
        &self.now
    }

    /// Steps that were answered, ever.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.first + self.steps.len() as u64
    }

    /// A step is sent.
    pub fn send(&mut self, step: Step) {
        self.under_way = Some(step);
    }

    /// It was done.
    pub fn done(&mut self) {
        if let Some(step) = self.under_way.take() {
            step.apply(&mut self.now);
            self.steps.push(step);
        }
    }

    /// It was refused, and nothing was changed.
    pub fn refused(&mut self) {
        self.under_way = None;
    }

    /// So many steps, counted from the very first, are durable.
    pub fn durable(&mut self, steps: u64) {
        let count = usize::try_from(steps.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let count = count.min(self.steps.len());
        self.steps.drain(..count).for_each(|step| step.apply(&mut self.base));
        self.first += count as u64;
    }

    /// Is `found` the state of a moment since what is durable? Then it is where life goes on, and the answer is how many
    /// of the steps after that are lost. Otherwise the answer is what is nearest to it, in words.
    ///
    /// # Errors
    /// It is of no such moment.
    pub fn settle(&mut self, found: State) -> Result<usize, String> {
        let mut state = self.base.clone();
        let differs = |state: &State, id: &ObjectId| state.get(id) != found.get(id);
        let ids = |state: &State| state.keys().chain(found.keys()).copied().collect::<Vec<_>>();
        let mut wrong: Vec<ObjectId> = ids(&state).into_iter().filter(|id| differs(&state, id)).collect();
        wrong.sort_unstable();
        wrong.dedup();
        let all = self.steps.len() + usize::from(self.under_way.is_some());
        let mut nearest = (wrong.len(), 0, wrong.clone());
        let mut fits = wrong.is_empty().then_some(0);
        for (index, step) in self.steps.iter().chain(&self.under_way).enumerate() {
            step.apply(&mut state);
            let id = step.object();
            wrong.retain(|other| *other != id);
            if differs(&state, &id) {
                wrong.push(id);
            }
            if wrong.is_empty() {
                fits = Some(index + 1);
            }
            if wrong.len() < nearest.0 {
                nearest = (wrong.len(), index + 1, wrong.clone());
            }
        }
        let Some(kept) = fits else {
            return Err(self.explain(nearest.1, &nearest.2, &found));
        };
        let lost = self.steps.len().saturating_sub(kept);
        *self = Self {
            base: found.clone(),
            now: found,
            first: self.first + all as u64,
            steps: Vec::new(),
            under_way: None,
        };
        Ok(lost)
    }

    fn explain(&self, kept: usize, wrong: &[ObjectId], found: &State) -> String {
        let mut state = self.base.clone();
        self.steps.iter().chain(&self.under_way).take(kept).for_each(|step| step.apply(&mut state));
        let parts: Vec<String> = wrong
            .iter()
            .map(|id| match (state.get(id), found.get(id)) {
                (Some(wanted), Some(found)) => format!("{id} {}", difference(wanted, found)),
                (Some(_), None) => format!("{id} is not there"),
                (None, _) => format!("{id} is there and should not be"),
            })
            .collect();
        format!(
            "no moment since what is durable is what came back; nearest is {kept} of {} steps{}, but {}",
            self.steps.len(),
            if self.under_way.is_some() { " and one under way" } else { "" },
            parts.join("; ")
        )
    }
}

fn difference(wanted: &Object, found: &Object) -> String {
    if wanted.content.len() != found.content.len() {
        return format!("has {} bytes, not {}", found.content.len(), wanted.content.len());
    }
    let at = wanted.content.iter().zip(&found.content).position(|(wanted, found)| wanted != found);
    let last = wanted.content.iter().zip(&found.content).rposition(|(wanted, found)| wanted != found);
    match (at, last) {
        (Some(at), Some(last)) => format!("differs in bytes {at} to {last}"),
        _ => "has other attributes".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> ObjectId {
        ObjectId::new(0x10000, 0x10000 + number)
    }

    fn run(history: &mut History, steps: &[Step]) -> Vec<State> {
        let mut states = vec![history.now().clone()];
        for step in steps {
            history.send(step.clone());
            history.done();
            states.push(history.now().clone());
        }
        states
    }

    fn steps() -> Vec<Step> {
        vec![
            Step::Create(id(1), b"abcdef".to_vec()),
            Step::Write(id(1), 4, b"XYZ".to_vec()),
            Step::Copy(id(1), id(2)),
            Step::Append(id(1), b"!".to_vec()),
            Step::Attribute(id(2), 7, b"value".to_vec()),
            Step::Punch(id(1), 1, 2),
            Step::Clear(id(2), 3, 9),
            Step::Remove(id(1)),
            Step::Resize(id(2), 2),
        ]
    }

    #[test]
    fn every_moment_since_the_durable_one_is_taken_and_no_other() {
        let mut history = History::default();
        let states = run(&mut history, &steps());
        history.durable(3);
        for (moment, state) in states.iter().enumerate() {
            let mut one = history.clone();
            let lost = one.settle(state.clone());
            match moment {
                0..3 => assert!(lost.is_err(), "{moment} was durable"),
                _ => assert_eq!(lost, Ok(states.len() - 1 - moment), "{moment}"),
            }
            if moment >= 3 {
                assert_eq!(one.now(), state);
            }
        }
    }

    /// Two objects that are each right at some moment, and never together, are wrong.
    #[test]
    fn a_mix_of_two_moments_is_refused() {
        let mut history = History::default();
        run(&mut history, &[Step::Create(id(1), vec![1]), Step::Create(id(2), vec![2])]);
        history.durable(2);
        let states = run(&mut history, &[Step::Append(id(1), vec![9]), Step::Append(id(2), vec![9])]);
        let mut mix = states[0].clone();
        mix.insert(id(2), states[2][&id(2)].clone());
        let said = history.settle(mix).unwrap_err();
        assert!(said.contains(&id(1).to_string()) || said.contains(&id(2).to_string()), "{said}");
    }

    #[test]
    fn a_step_under_way_may_have_been_done_and_a_refused_one_not() {
        let mut history = History::default();
        let states = run(&mut history, &[Step::Create(id(1), vec![1])]);
        history.send(Step::Append(id(1), vec![2]));
        let mut after = states[1].clone();
        Step::Append(id(1), vec![2]).apply(&mut after);
        assert_eq!(history.clone().settle(states[1].clone()), Ok(0));
        assert_eq!(history.clone().settle(after.clone()), Ok(0));
        history.refused();
        assert!(history.settle(after).is_err());
    }
}
