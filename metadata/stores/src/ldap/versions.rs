//! All records in memory, as versions: a state that is looked at does not move when others come after it.
//!
//! Does: keep the newest value of each key, and older ones as long as somebody looks at a state that has them. Does not:
//! make anything durable.
//! Contract: memory is [`RECORD_BYTES`] and the bytes of key and value for each record, and [`BYTES_MAX`] at most when
//! records are put, and a little more when they are removed; older values are beside that, as long as a look at them lasts.

use std::collections::{BTreeMap, VecDeque, btree_map};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use sealstone_mds::store::{Overlay, Pair};

/// Bytes that a record takes beside its key and value: its place in the tree, two allocations.
pub(super) const RECORD_BYTES: usize = 160;
/// Bytes of all records at most, so counted.
pub(super) const BYTES_MAX: usize = 16 << 30;

/// The same with what removals need: who has too much must be able to remove some of it, and that takes records of its own.
const REMOVING_BYTES_MAX: usize = BYTES_MAX + BYTES_MAX / 32;
/// What is loaded may be a little more still: a record that is to go may be there beside the one that comes for it.
pub(super) const LOADED_BYTES_MAX: usize = BYTES_MAX + BYTES_MAX / 16;

/// A value, shared with what has still to be written.
pub(super) type Value = Arc<[u8]>;

/// A key's values.
struct Slot {
    /// Since which state, and what; none: removed.
    now: (u64, Option<Value>),
    /// Those before, the oldest first.
    before: Vec<(u64, Option<Value>)>,
}

impl Slot {
    fn at(&self, state: u64) -> Option<&Value> {
        if self.now.0 <= state {
            return self.now.1.as_ref();
        }
        self.before.iter().rev().find(|(since, _)| *since <= state)?.1.as_ref()
    }
}

#[derive(Default)]
struct Records {
    slots: BTreeMap<Box<[u8]>, Slot>,
    /// The newest state.
    state: u64,
    /// Keys with values that are of no use when nobody looks at a state before this one, in order.
    outdated: VecDeque<(u64, Box<[u8]>)>,
    bytes: usize,
}

/// The records.
#[derive(Default)]
pub(super) struct Versions {
    records: RwLock<Records>,
    /// States that are looked at, and by how many.
    looked_at: Mutex<BTreeMap<u64, usize>>,
}

const fn bytes_of(key: &[u8], value: &[u8]) -> usize {
    RECORD_BYTES + key.len() + value.len()
}

/// May records grow so, from so many bytes to so many?
const fn may_grow(from: usize, to: usize, removes: bool) -> bool {
    to <= from || to <= if removes { REMOVING_BYTES_MAX } else { BYTES_MAX }
}

impl Versions {
    /// Is there room for these changes? Counted as a start counts them.
    pub(super) fn has_room(&self, changes: &Overlay) -> bool {
        let removes = changes.iter().any(|(_, value)| value.is_none());
        may_grow(self.bytes(), self.bytes_after(changes), removes)
    }

    /// Bytes of all records when these are changed.
    fn bytes_after(&self, changes: &Overlay) -> usize {
        let records = self.records.read();
        changes.iter().fold(records.bytes, |bytes, (key, value)| {
            let before = records.slots.get(key).and_then(|slot| slot.now.1.as_ref());
            let less = before.map_or(0, |before| bytes_of(key, before));
            bytes.saturating_add(value.map_or(0, |value| bytes_of(key, value))) - less
        })
    }

    /// Sets a key in the state from which all others come: while records are loaded.
    pub(super) fn load(&self, key: &[u8], value: Option<Value>) {
        let mut records = self.records.write();
        let records = &mut *records;
        let more = value.as_ref().map_or(0, |value| bytes_of(key, value));
        let before = match value {
            Some(value) => {
                let slot = Slot { now: (0, Some(value)), before: Vec::new() };
                records.slots.insert(key.into(), slot)
            }
            None => records.slots.remove(key),
        };
        let less = before.and_then(|slot| slot.now.1).map_or(0, |value| bytes_of(key, &value));
        records.bytes = records.bytes + more - less;
    }

    /// Bytes of all records.
    pub(super) fn bytes(&self) -> usize {
        self.records.read().bytes
    }

    /// The newest state, which stays as it is as long as this is kept.
    pub(super) fn look(self: &Arc<Self>) -> Look {
        // Taken under the lock of the records: no state is forgotten between its number and its mark.
        let records = self.records.read();
        *self.looked_at.lock().entry(records.state).or_default() += 1;
        Look { versions: Arc::clone(self), state: records.state }
    }

    /// The next state. What was changed, and whether the key was there before.
    pub(super) fn apply(&self, changes: Overlay) -> Vec<Change> {
        let mut records = self.records.write();
        let records = &mut *records;
        records.state += 1;
        let state = records.state;
        let oldest = self.looked_at.lock().first_key_value().map_or(state, |(oldest, _)| *oldest);
        let mut changed = Vec::new();
        for (key, value) in changes {
            let (key, value): (Box<[u8]>, Option<Value>) = (key.into(), value.map(Value::from));
            let more = value.as_ref().map_or(0, |value| bytes_of(&key, value));
            let mut was_there = false;
            match records.slots.entry(key.clone()) {
                btree_map::Entry::Vacant(vacant) => {
                    if value.is_some() {
                        vacant.insert(Slot { now: (state, value.clone()), before: Vec::new() });
                    }
                }
                btree_map::Entry::Occupied(mut slot) => {
                    let slot = slot.get_mut();
                    let before = std::mem::replace(&mut slot.now, (state, value.clone()));
                    if let Some(before) = &before.1 {
                        was_there = true;
                        records.bytes -= bytes_of(&key, before);
                    }
                    slot.before.push(before);
                    records.outdated.push_back((state, key.clone()));
                }
            }
            records.bytes += more;
            changed.push(Change { key, value, was_there: Some(was_there) });
        }
        while let Some((since, _)) = records.outdated.front()
            && *since <= oldest
        {
            let Some((_, key)) = records.outdated.pop_front() else { break };
            if let btree_map::Entry::Occupied(mut slot) = records.slots.entry(key) {
                let values = slot.get_mut();
                // The newest value that the oldest look sees, and all after it.
                let seen = values.before.iter().rposition(|(since, _)| *since <= oldest);
                if values.now.0 <= oldest {
                    values.before = Vec::new();
                } else if let Some(seen) = seen {
                    values.before.drain(..seen);
                }
                if values.now.1.is_none() && values.before.is_empty() {
                    slot.remove();
                }
            }
        }
        changed
    }
}

/// What a commit did to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) key: Box<[u8]>,
    /// None: removed.
    pub(super) value: Option<Value>,
    /// Was there a value before? None if that is not known.
    pub(super) was_there: Option<bool>,
}

/// One state.
pub(super) struct Look {
    versions: Arc<Versions>,
    state: u64,
}

impl Look {
    pub(super) fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.versions.records.read().slots.get(key)?.at(self.state).map(|value| value.to_vec())
    }

    pub(super) fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Vec<Pair> {
        if from >= until {
            return Vec::new();
        }
        let records = self.versions.records.read();
        let range = records.slots.range::<[u8], _>((Bound::Included(from), Bound::Excluded(until)));
        let there = range.filter_map(|(key, slot)| Some((key.to_vec(), slot.at(self.state)?.to_vec())));
        there.take(limit).collect()
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        let mut looked_at = self.versions.looked_at.lock();
        if let btree_map::Entry::Occupied(mut count) = looked_at.entry(self.state) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn changes(pairs: &[(u8, Option<u8>)]) -> Overlay {
        let mut overlay = Overlay::default();
        for (key, value) in pairs {
            match value {
                Some(value) => overlay.put(&[*key], &[*value]).unwrap(),
                None => overlay.delete(&[*key]),
            }
        }
        overlay
    }

    fn all(look: &Look) -> Vec<Pair> {
        look.scan(b"", b"\xFF", usize::MAX)
    }

    #[test]
    fn what_nobody_looks_at_any_more_is_forgotten() {
        let versions = Arc::new(Versions::default());
        versions.apply(changes(&[(1, Some(1)), (2, Some(1))]));
        let look = versions.look();
        for value in 2..20 {
            versions.apply(changes(&[(1, Some(value)), (2, None)]));
        }
        assert_eq!(all(&look), [(vec![1], vec![1]), (vec![2], vec![1])]);
        assert!(versions.records.read().slots[&[1][..]].before.len() > 1);
        drop(look);
        versions.apply(changes(&[(1, Some(99))]));
        let records = versions.records.read();
        assert_eq!(records.slots.len(), 1, "a removed key goes");
        assert!(records.slots[&[1][..]].before.is_empty(), "and so do older values");
        assert_eq!(records.bytes, RECORD_BYTES + 2);
        assert!(records.outdated.is_empty());
    }

    #[test]
    fn whether_a_key_was_there_is_told() {
        let versions = Arc::new(Versions::default());
        let told = |changed: Vec<Change>| changed.iter().map(|one| one.was_there).collect::<Vec<_>>();
        assert_eq!(told(versions.apply(changes(&[(1, Some(1)), (2, None)]))), [Some(false), Some(false)]);
        assert_eq!(told(versions.apply(changes(&[(1, None), (2, Some(1))]))), [Some(true), Some(false)]);
    }

    #[test]
    fn who_has_too_much_may_remove_and_what_he_may_have_is_loaded() {
        assert!(may_grow(0, BYTES_MAX, false) && !may_grow(0, BYTES_MAX + 1, false));
        assert!(
            may_grow(BYTES_MAX, BYTES_MAX + 1, true) && !may_grow(BYTES_MAX, REMOVING_BYTES_MAX + 1, true)
        );
        assert!(may_grow(BYTES_MAX + 2, BYTES_MAX + 1, false), "it becomes less");
        // A whole journal of additions, of small records, beside those that it removes.
        let journal = super::super::JOURNAL_BYTES_MAX / (8 + 8 + 8) * bytes_of(&[0; 8], &[0; 8]);
        const { assert!(REMOVING_BYTES_MAX < LOADED_BYTES_MAX) };
        assert!(LOADED_BYTES_MAX - REMOVING_BYTES_MAX > journal);
    }

    proptest! {
        #[test]
        fn every_state_stays_as_it_was_when_it_was_looked_at(
            loaded in prop::collection::vec((0..8u8, any::<u8>()), 0..6),
            steps in prop::collection::vec(
                (prop::collection::vec((0..8u8, prop::option::of(any::<u8>())), 0..5), any::<bool>(), 0..4usize), 0..30)) {
            let versions = Arc::new(Versions::default());
            let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
            for (key, value) in loaded {
                versions.load(&[key], Some(Value::from([value])));
                model.insert(vec![key], vec![value]);
            }
            let mut looks: Vec<(Look, Vec<Pair>)> = Vec::new();
            for (step, look, dropped) in steps {
                let after = versions.bytes_after(&changes(&step));
                versions.apply(changes(&step));
                prop_assert_eq!(versions.bytes(), after);
                for (key, value) in &step {
                    match value {
                        Some(value) => model.insert(vec![*key], vec![*value]),
                        None => model.remove(&vec![*key]),
                    };
                }
                if look {
                    looks.push((versions.look(), model.clone().into_iter().collect()));
                }
                if dropped < looks.len() {
                    looks.remove(dropped);
                }
                for (look, seen) in &looks {
                    prop_assert_eq!(&all(look), seen);
                }
                let bytes: usize = model.iter().map(|(key, value)| bytes_of(key, value)).sum();
                prop_assert_eq!(versions.bytes(), bytes);
            }
            looks.clear();
            versions.apply(changes(&[]));
            let records = versions.records.read();
            prop_assert_eq!(records.slots.len(), model.len());
            prop_assert!(records.slots.values().all(|slot| slot.before.is_empty()));
        }
    }
}
