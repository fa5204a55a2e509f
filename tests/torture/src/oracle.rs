//! Possible states of one worker's objects after a crash.
//!
//! Does: keeps the state after every acknowledged step, and the unanswered step; compares a
//! restarted device with them.
//! Does not: send commands.
//! Contract: a worker sends a command after the answer to the previous one, so its steps are
//! ordered. After the death of its process a device has every acknowledged step, flushed or not,
//! and the unanswered one completely or not at all. Power loss is tested by the store's crash
//! simulator.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use sealstone_osd::ObjectId;

/// One user object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// Its bytes.
    pub content: Vec<u8>,
    /// Attributes of the application page that workers use, by number; none is empty.
    pub attributes: BTreeMap<u32, Vec<u8>>,
    /// Its collections, by the number of the attribute that names each.
    pub memberships: BTreeMap<u32, u64>,
}

/// An object, collection or partition copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A user object.
    User(Object),
    /// A collection; its members record their membership.
    Collection,
    /// A snapshot or clone of a partition, under its own partition id.
    Duplicate {
        /// Source partition.
        source: u64,
        /// Whether it is a clone.
        clone: bool,
    },
}

/// All objects of a worker.
pub type ObjectStates = BTreeMap<ObjectId, Entry>;

/// Returns the user object of an id.
#[must_use]
pub fn user(state: &ObjectStates, id: ObjectId) -> Option<&Object> {
    match state.get(&id) {
        Some(Entry::User(object)) => Some(object),
        _ => None,
    }
}

/// Returns all ids of a partition, its own included.
#[must_use]
pub const fn all_of(partition: u64) -> RangeInclusive<ObjectId> {
    ObjectId::of_partition(partition)..=ObjectId::new(partition, u64::MAX)
}

/// One operation of a REWRITE on its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RewriteChange {
    /// Replaces bytes at this offset.
    Replace(usize, Vec<u8>),
    /// Applies exclusive or at this offset.
    Xor(usize, Vec<u8>),
    /// Fills this many bytes at this offset.
    Fill(usize, usize, u8),
}

/// A step that changes something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerStep {
    /// Creates an object with these bytes.
    Create(ObjectId, Vec<u8>),
    /// Writes bytes at an offset; a gap after the old end reads as zeros.
    Write(ObjectId, u64, Vec<u8>),
    /// Appends bytes.
    Append(ObjectId, Vec<u8>),
    /// Writes this many zeros at an offset.
    Clear(ObjectId, u64, u64),
    /// Removes bytes; later ones move.
    Punch(ObjectId, u64, u64),
    /// Sets the length.
    Resize(ObjectId, u64),
    /// Changes a range in order, and attributes with it; the object may grow.
    Rewrite(ObjectId, u64, u32, Vec<RewriteChange>, Vec<(u32, Vec<u8>)>),
    /// Sets attributes; an empty one is removed.
    Attributes(ObjectId, Vec<(u32, Vec<u8>)>),
    /// Copies an object, with its attributes if set.
    Copy(ObjectId, ObjectId, bool),
    /// Removes an object.
    Remove(ObjectId),
    /// Creates an empty collection.
    CreateCollection(ObjectId),
    /// Removes a collection; its members stay.
    RemoveCollection(ObjectId),
    /// Sets the object's attribute of this number to a collection, or with 0 removes the
    /// membership.
    Join(ObjectId, u32, u64),
    /// Copies a partition to a clone or snapshot.
    Duplicate {
        /// Source partition.
        source: u64,
        /// Id of the copy.
        target: u64,
        /// Whether it is a clone.
        clone: bool,
    },
    /// Refreshes a snapshot or clone from its source.
    Refresh(u64),
    /// Restores a partition from its snapshot.
    Restore(u64, u64),
    /// Removes a partition with its content: objects first, one by one, then collections.
    RemovePartition(u64),
}

impl WorkerStep {
    /// Returns the object or partition that it changes.
    #[must_use]
    pub const fn object(&self) -> ObjectId {
        match self {
            Self::Create(id, _)
            | Self::Write(id, ..)
            | Self::Append(id, _)
            | Self::Clear(id, ..)
            | Self::Punch(id, ..)
            | Self::Resize(id, _)
            | Self::Rewrite(id, ..)
            | Self::Attributes(id, _)
            | Self::Copy(_, id, _)
            | Self::Remove(id)
            | Self::CreateCollection(id)
            | Self::RemoveCollection(id)
            | Self::Join(id, ..) => *id,
            Self::Duplicate { target: partition, .. }
            | Self::Refresh(partition)
            | Self::Restore(partition, _)
            | Self::RemovePartition(partition) => ObjectId::of_partition(*partition),
        }
    }

    /// Returns a description without data.
    #[must_use]
    pub fn summary(&self) -> String {
        let kind = match self {
            Self::Create(..) => "CREATE AND WRITE",
            Self::Write(..) => "WRITE",
            Self::Append(..) => "APPEND",
            Self::Clear(..) => "CLEAR",
            Self::Punch(..) => "PUNCH",
            Self::Resize(..) => "a new length",
            Self::Rewrite(..) => "REWRITE",
            Self::Attributes(..) => "SET ATTRIBUTES",
            Self::Copy(..) => "COPY USER OBJECTS",
            Self::Remove(_) => "REMOVE",
            Self::CreateCollection(_) => "CREATE COLLECTION",
            Self::RemoveCollection(_) => "REMOVE COLLECTION",
            Self::Join(_, _, 0) => "the end of a membership",
            Self::Join(..) => "a membership",
            Self::Duplicate { clone: true, .. } => "CREATE CLONE",
            Self::Duplicate { clone: false, .. } => "CREATE SNAPSHOT",
            Self::Refresh(_) => "REFRESH SNAPSHOT OR CLONE",
            Self::Restore(..) => "RESTORE PARTITION FROM SNAPSHOT",
            Self::RemovePartition(_) => "REMOVE PARTITION",
        };
        format!("{kind} of {}", self.object())
    }

    /// Returns the partial effects that a full disk permits: the bytes, and leading attributes of
    /// the list.
    #[must_use]
    pub fn begun(&self) -> Vec<Self> {
        match self {
            Self::Attributes(id, values) => {
                (1..values.len()).map(|count| Self::Attributes(*id, values[..count].to_vec())).collect()
            }
            Self::Rewrite(id, at, length, changes, values) => {
                let upto =
                    |count| Self::Rewrite(*id, *at, *length, changes.clone(), values[..count].to_vec());
                (0..values.len()).map(upto).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Whether the device completes it later if it fails midway.
    #[must_use]
    pub const fn is_done_later(&self) -> bool {
        matches!(self, Self::Refresh(_) | Self::Restore(..))
    }

    /// Returns its parts, between which a crash may happen.
    fn parts(&self, state: &ObjectStates) -> Vec<Self> {
        if let Self::RemoveCollection(collection) = self {
            let mut parts = leave_all(state, *collection);
            parts.push(self.clone());
            return parts;
        }
        let Self::RemovePartition(partition) = *self else { return vec![self.clone()] };
        let inside = || state.range(all_of(partition));
        let objects = inside().filter(|(_, entry)| matches!(entry, Entry::User(_)));
        let collections = inside().filter(|(_, entry)| matches!(entry, Entry::Collection));
        let mut parts: Vec<Self> = objects.map(|(id, _)| Self::Remove(*id)).collect();
        parts.extend(collections.map(|(id, _)| Self::RemoveCollection(*id)));
        parts.push(self.clone());
        parts
    }

    /// Applies it, and returns the ids that may have changed.
    pub fn apply(&self, state: &mut ObjectStates) -> Vec<ObjectId> {
        match self {
            Self::Create(id, content) => {
                let object = Object { content: content.clone(), ..Object::default() };
                state.insert(*id, Entry::User(object));
            }
            Self::Copy(from, to, attributes) => {
                let source = user(state, *from).cloned().unwrap_or_default();
                let attributes = if *attributes { source.attributes } else { BTreeMap::new() };
                let object = Object { content: source.content, attributes, ..Object::default() };
                state.insert(*to, Entry::User(object));
            }
            Self::Remove(id) => drop(state.remove(id)),
            Self::CreateCollection(id) => drop(state.insert(*id, Entry::Collection)),
            Self::RemoveCollection(id) => {
                state.remove(id);
                let mut touched = vec![*id];
                for (member, entry) in state.range_mut(all_of(id.partition)) {
                    if let Entry::User(object) = entry
                        && object.memberships.values().any(|collection| *collection == id.object)
                    {
                        object.memberships.retain(|_, collection| *collection != id.object);
                        touched.push(*member);
                    }
                }
                return touched;
            }
            Self::Duplicate { source, target, clone } => {
                let made = Entry::Duplicate { source: *source, clone: *clone };
                state.insert(ObjectId::of_partition(*target), made);
                return replace(state, *source, *target);
            }
            Self::Refresh(target) => {
                let source = match state.get(&ObjectId::of_partition(*target)) {
                    Some(Entry::Duplicate { source, .. }) => *source,
                    _ => return Vec::new(),
                };
                return replace(state, source, *target);
            }
            Self::Restore(partition, snapshot) => return replace(state, *snapshot, *partition),
            Self::RemovePartition(partition) => {
                let removed: Vec<ObjectId> = state.range(all_of(*partition)).map(|(id, _)| *id).collect();
                removed.iter().for_each(|id| drop(state.remove(id)));
                return removed;
            }
            _ => {
                let entry = state.entry(self.object()).or_insert_with(|| Entry::User(Object::default()));
                if let Entry::User(object) = entry {
                    self.change(object);
                }
            }
        }
        vec![self.object()]
    }

    fn change(&self, object: &mut Object) {
        let place = |at: u64| usize::try_from(at).expect("objects are small here");
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
            Self::Rewrite(_, at, length, changes, values) => {
                let (from, to) = (place(*at), place(*at) + *length as usize);
                content.resize(content.len().max(to), 0);
                let range = &mut content[from..to];
                for change in changes {
                    match change {
                        RewriteChange::Replace(at, data) => range[*at..][..data.len()].copy_from_slice(data),
                        RewriteChange::Xor(at, data) => {
                            range[*at..].iter_mut().zip(data).for_each(|(byte, other)| *byte ^= other);
                        }
                        RewriteChange::Fill(at, length, byte) => range[*at..][..*length].fill(*byte),
                    }
                }
                set_all(object, values);
            }
            Self::Attributes(_, values) => set_all(object, values),
            Self::Join(_, number, 0) => drop(object.memberships.remove(number)),
            Self::Join(_, number, collection) => drop(object.memberships.insert(*number, *collection)),
            _ => {}
        }
    }
}

fn set_all(object: &mut Object, values: &[(u32, Vec<u8>)]) {
    for (number, value) in values {
        match value.is_empty() {
            true => drop(object.attributes.remove(number)),
            false => drop(object.attributes.insert(*number, value.clone())),
        }
    }
}

/// Removes the members of a collection in their order.
fn leave_all(state: &ObjectStates, collection: ObjectId) -> Vec<WorkerStep> {
    let mut parts = Vec::new();
    for (id, entry) in state.range(all_of(collection.partition)) {
        let Entry::User(object) = entry else { continue };
        let named = object.memberships.iter().filter(|(_, of)| **of == collection.object);
        parts.extend(named.map(|(number, _)| WorkerStep::Join(*id, *number, 0)));
    }
    parts
}

/// Replaces the content of a partition by that of another one.
fn replace(state: &mut ObjectStates, source: u64, target: u64) -> Vec<ObjectId> {
    let inside = |partition| ObjectId::new(partition, 1)..=ObjectId::new(partition, u64::MAX);
    let mut touched: Vec<ObjectId> = state.range(inside(target)).map(|(id, _)| *id).collect();
    touched.iter().for_each(|id| drop(state.remove(id)));
    let copies: Vec<_> = state
        .range(inside(source))
        .map(|(id, entry)| (ObjectId::new(target, id.object), entry.clone()))
        .collect();
    touched.extend(copies.iter().map(|(id, _)| *id));
    touched.push(ObjectId::of_partition(target));
    state.extend(copies);
    touched
}

/// Acknowledged state of a worker's device, and the unanswered step.
#[derive(Clone, Debug, Default)]
pub struct WorkerHistory {
    /// Number of acknowledged steps.
    acknowledged: u64,
    /// State after all of them.
    now: ObjectStates,
    /// Step that was sent but not answered.
    under_way: Option<WorkerStep>,
}

impl WorkerHistory {
    /// Returns the current state.
    #[must_use]
    pub const fn now(&self) -> &ObjectStates {
        &self.now
    }

    /// Returns the number of acknowledged steps.
    #[must_use]
    pub const fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Records a sent step.
    pub fn send(&mut self, step: WorkerStep) {
        self.under_way = Some(step);
    }

    /// Records its acknowledgement.
    pub fn done(&mut self) {
        if let Some(step) = self.under_way.take() {
            drop(step.apply(&mut self.now));
            self.acknowledged += 1;
        }
    }

    /// Whether the device completes the unanswered step later.
    #[must_use]
    pub fn is_done_later(&self) -> bool {
        self.under_way.as_ref().is_some_and(WorkerStep::is_done_later)
    }

    /// Records a refusal without effect.
    pub fn refused(&mut self) {
        self.under_way = None;
    }

    /// Checks a restarted device, and continues from its state. It must have every acknowledged
    /// step, and of the unanswered one nothing, all, or its first parts.
    ///
    /// # Errors
    /// The difference to the nearest such state, in words.
    pub fn settle(&mut self, found: ObjectStates) -> Result<(), String> {
        let parts = self.under_way.as_ref().map_or_else(Vec::new, |step| step.parts(&self.now));
        let count = |state: &ObjectStates| {
            let ids: BTreeSet<&ObjectId> = state.keys().chain(found.keys()).collect();
            ids.into_iter().filter(|id| state.get(id) != found.get(id)).count()
        };
        let mut state = self.now.clone();
        let mut nearest = (count(&state), 0, state.clone());
        for (done, part) in parts.iter().enumerate() {
            drop(part.apply(&mut state));
            let wrong = count(&state);
            if wrong < nearest.0 {
                nearest = (wrong, done + 1, state.clone());
            }
        }
        let (wrong, done, wanted) = nearest;
        if wrong > 0 {
            let under_way = self.under_way.as_ref().map_or_else(
                || "none under way".to_owned(),
                |step| format!("{done} of {} parts of {}", parts.len(), step.summary()),
            );
            return Err(format!(
                "after {} acknowledged steps, and {under_way}, {}",
                self.acknowledged,
                differences(&wanted, &found)
            ));
        }
        *self = Self { acknowledged: self.acknowledged, now: found, under_way: None };
        Ok(())
    }
}

fn describe_differences<'a>(
    wanted: &ObjectStates,
    found: &ObjectStates,
    ids: impl Iterator<Item = &'a ObjectId>,
) -> String {
    let parts = ids.map(|id| match (wanted.get(id), found.get(id)) {
        (Some(wanted), Some(found)) => format!("{id} {}", difference(wanted, found)),
        (Some(_), None) => format!("{id} is not there"),
        (None, _) => format!("{id} is there and should not be"),
    });
    parts.collect::<Vec<_>>().join("; ")
}

/// Describes the differences.
#[must_use]
pub fn differences(wanted: &ObjectStates, found: &ObjectStates) -> String {
    let mut ids: Vec<&ObjectId> = wanted.keys().chain(found.keys()).collect();
    ids.sort_unstable();
    ids.dedup();
    describe_differences(wanted, found, ids.into_iter().filter(|id| wanted.get(id) != found.get(id)))
}

fn difference(wanted: &Entry, found: &Entry) -> String {
    let (Entry::User(wanted), Entry::User(found)) = (wanted, found) else {
        return format!("is {}, not {}", name(found), name(wanted));
    };
    if wanted.content.len() != found.content.len() {
        return format!("has {} bytes, not {}", found.content.len(), wanted.content.len());
    }
    let at = wanted.content.iter().zip(&found.content).position(|(wanted, found)| wanted != found);
    let last = wanted.content.iter().zip(&found.content).rposition(|(wanted, found)| wanted != found);
    match (at, last) {
        (Some(at), Some(last)) => format!("differs in bytes {at} to {last}"),
        _ if wanted.memberships != found.memberships => {
            format!("is a member of {:x?}, not {:x?}", found.memberships, wanted.memberships)
        }
        _ => {
            let lengths = |object: &Object| -> Vec<(u32, usize)> {
                object.attributes.iter().map(|(number, value)| (*number, value.len())).collect()
            };
            format!("has attributes of {:?} bytes, not {:?}, or others", lengths(found), lengths(wanted))
        }
    }
}

const fn name(entry: &Entry) -> &'static str {
    match entry {
        Entry::User(_) => "an object",
        Entry::Collection => "a collection",
        Entry::Duplicate { clone: true, .. } => "a clone",
        Entry::Duplicate { clone: false, .. } => "a snapshot",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> ObjectId {
        ObjectId::new(0x10000, 0x10000 + number)
    }

    fn run(history: &mut WorkerHistory, steps: &[WorkerStep]) -> Vec<ObjectStates> {
        let mut states = vec![history.now().clone()];
        for step in steps {
            history.send(step.clone());
            history.done();
            states.push(history.now().clone());
        }
        states
    }

    fn steps() -> Vec<WorkerStep> {
        vec![
            WorkerStep::Create(id(1), b"abcdef".to_vec()),
            WorkerStep::Write(id(1), 4, b"XYZ".to_vec()),
            WorkerStep::Copy(id(1), id(2), false),
            WorkerStep::Append(id(1), b"!".to_vec()),
            WorkerStep::Attributes(id(2), vec![(7, b"value".to_vec())]),
            WorkerStep::CreateCollection(id(9)),
            WorkerStep::Join(id(2), 1, id(9).object),
            WorkerStep::Punch(id(1), 1, 2),
            WorkerStep::Duplicate { source: 0x10000, target: 0x20000, clone: false },
            WorkerStep::Clear(id(2), 3, 9),
            WorkerStep::Rewrite(id(2), 2, 20, vec![RewriteChange::Fill(0, 20, 7)], vec![(7, Vec::new())]),
            WorkerStep::Restore(0x10000, 0x20000),
            WorkerStep::Remove(id(1)),
            WorkerStep::RemoveCollection(id(9)),
            WorkerStep::Resize(id(2), 2),
            WorkerStep::Refresh(0x20000),
        ]
    }

    #[test]
    fn only_the_last_acknowledged_state_is_accepted() {
        let mut history = WorkerHistory::default();
        let states = run(&mut history, &steps());
        let last = states.last().expect("there is one");
        for state in &states {
            assert_eq!(history.clone().settle(state.clone()).is_ok(), state == last);
        }
        assert_eq!(history.acknowledged(), steps().len() as u64);
    }

    #[test]
    fn a_lost_step_is_named() {
        let mut history = WorkerHistory::default();
        run(&mut history, &[WorkerStep::Create(id(1), vec![1]), WorkerStep::Create(id(2), vec![2])]);
        let states =
            run(&mut history, &[WorkerStep::Append(id(1), vec![9]), WorkerStep::Append(id(2), vec![9])]);
        let mut mix = states[2].clone();
        mix.insert(id(1), states[0][&id(1)].clone());
        let violation = history.settle(mix).unwrap_err();
        assert!(
            violation.contains(&id(1).to_string()) && !violation.contains(&id(2).to_string()),
            "{violation}"
        );
    }

    #[test]
    fn pending_steps_are_optional_and_refused_ones_absent() {
        let mut history = WorkerHistory::default();
        let states = run(&mut history, &[WorkerStep::Create(id(1), vec![1])]);
        history.send(WorkerStep::Append(id(1), vec![2]));
        let mut after = states[1].clone();
        WorkerStep::Append(id(1), vec![2]).apply(&mut after);
        assert_eq!(history.clone().settle(states[1].clone()), Ok(()));
        assert_eq!(history.clone().settle(after.clone()), Ok(()));
        history.refused();
        assert!(history.settle(after).is_err());
    }

    #[test]
    fn refused_attribute_list_may_set_a_prefix() {
        let values = |numbers: &[u32]| numbers.iter().map(|number| (*number, vec![7])).collect::<Vec<_>>();
        let step = WorkerStep::Attributes(id(1), values(&[1, 2, 3]));
        let wanted = [&[1][..], &[1, 2]].map(|some| WorkerStep::Attributes(id(1), values(some)));
        assert_eq!(step.begun(), wanted);
        let rewrite = |numbers: &[u32]| WorkerStep::Rewrite(id(1), 0, 4, Vec::new(), values(numbers));
        assert_eq!(rewrite(&[1, 2]).begun(), [rewrite(&[]), rewrite(&[1])]);
        assert_eq!(WorkerStep::Append(id(1), vec![1]).begun(), []);
    }

    /// A partition that was being removed may have lost its first objects, in order, and no others.
    #[test]
    fn pending_removal_may_affect_any_object() {
        let mut history = WorkerHistory::default();
        let steps = [
            WorkerStep::Create(id(1), vec![1]),
            WorkerStep::Create(id(2), vec![2]),
            WorkerStep::Duplicate { source: 0x10000, target: 0x20000, clone: true },
        ];
        let states = run(&mut history, &steps);
        history.send(WorkerStep::RemovePartition(0x20000));
        let mut half = states[3].clone();
        half.remove(&ObjectId::new(0x20000, id(1).object));
        assert_eq!(history.clone().settle(half), Ok(()));
        let mut wrong = states[3].clone();
        wrong.remove(&ObjectId::new(0x20000, id(2).object));
        assert!(history.clone().settle(wrong).is_err());
        assert_eq!(history.settle(states[2].clone()), Ok(()), "the partition is removed");
    }

    /// Members leave a collection one by one before it is removed.
    #[test]
    fn pending_collection_removal_may_drop_first_members() {
        let mut history = WorkerHistory::default();
        let steps = [
            WorkerStep::Create(id(1), vec![1]),
            WorkerStep::Create(id(2), vec![2]),
            WorkerStep::CreateCollection(id(9)),
            WorkerStep::Join(id(1), 1, id(9).object),
            WorkerStep::Join(id(2), 3, id(9).object),
        ];
        let states = run(&mut history, &steps);
        history.send(WorkerStep::RemoveCollection(id(9)));
        let all = states[5].clone();
        let left = |number: u64, slot: u32| {
            let mut state = all.clone();
            WorkerStep::Join(id(number), slot, 0).apply(&mut state);
            state
        };
        assert_eq!(history.clone().settle(left(1, 1)), Ok(()));
        let violation = history.clone().settle(left(2, 3)).unwrap_err();
        assert!(violation.contains("REMOVE COLLECTION"), "{violation}");
        let mut removed = all.clone();
        WorkerStep::RemoveCollection(id(9)).apply(&mut removed);
        assert_eq!(history.settle(removed), Ok(()));
    }
}
