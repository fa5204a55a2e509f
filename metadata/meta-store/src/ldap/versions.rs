//! All records in memory, as versions (MVCC): a snapshot does not change when newer versions
//! follow.
//!
//! Does: keeps the newest value of each key, and older ones while a snapshot needs them.
//! Does not: make anything durable.
//! Contract: memory is [`RECORD_BYTES`], key and value for each record, at most [`BYTES_MAX`] when
//! records are added and slightly more when they are removed. Older values add to that while a
//! snapshot needs them.

use std::collections::{BTreeMap, VecDeque, btree_map};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use sealstone_mds::store::{Overlay, Pair};

/// Bytes of a record besides its key and value: its node in the tree and two allocations.
pub(super) const RECORD_BYTES: usize = 160;
/// Maximum bytes of all records, counted in this way.
pub(super) const BYTES_MAX: usize = 16 << 30;

/// [`BYTES_MAX`] plus a reserve for removals, which need records of their own.
const REMOVING_BYTES_MAX: usize = BYTES_MAX + BYTES_MAX / 32;
/// Maximum while loading: a record and its replacement may both be present.
pub(super) const LOADED_BYTES_MAX: usize = BYTES_MAX + BYTES_MAX / 16;

/// A value, shared with the queue of pending writes.
pub(super) type Value = Arc<[u8]>;

/// Versions of a key.
struct KeyVersions {
    /// First state that has the newest value; `None` is a removal.
    now: (u64, Option<Value>),
    /// Older values, the oldest first.
    before: Vec<(u64, Option<Value>)>,
}

impl KeyVersions {
    fn at(&self, state: u64) -> Option<&Value> {
        if self.now.0 <= state {
            return self.now.1.as_ref();
        }
        self.before.iter().rev().find(|(since, _)| *since <= state)?.1.as_ref()
    }
}

#[derive(Default)]
struct VersionedRecords {
    slots: BTreeMap<Box<[u8]>, KeyVersions>,
    /// The newest state.
    state: u64,
    /// Keys with values that are obsolete once no snapshot is older than this state, in order.
    outdated: VecDeque<(u64, Box<[u8]>)>,
    bytes: usize,
}

/// All records with their versions.
#[derive(Default)]
pub(super) struct RecordVersions {
    records: RwLock<VersionedRecords>,
    /// States with snapshots, and the number of snapshots.
    snapshots: Mutex<BTreeMap<u64, usize>>,
}

const fn bytes_of(key: &[u8], value: &[u8]) -> usize {
    RECORD_BYTES + key.len() + value.len()
}

/// Whether the records may grow from `from` to `to` bytes.
const fn may_grow(from: usize, to: usize, removes: bool) -> bool {
    to <= from || to <= if removes { REMOVING_BYTES_MAX } else { BYTES_MAX }
}

impl RecordVersions {
    /// Whether these changes fit into the memory limit, counted as at a start.
    pub(super) fn has_space(&self, changes: &Overlay) -> bool {
        let removes = changes.iter().any(|(_, value)| value.is_none());
        may_grow(self.bytes(), self.bytes_after(changes), removes)
    }

    /// Returns the bytes of all records after these changes.
    fn bytes_after(&self, changes: &Overlay) -> usize {
        let records = self.records.read();
        changes.iter().fold(records.bytes, |bytes, (key, value)| {
            let before = records.slots.get(key).and_then(|slot| slot.now.1.as_ref());
            let less = before.map_or(0, |before| bytes_of(key, before));
            bytes.saturating_add(value.map_or(0, |value| bytes_of(key, value))) - less
        })
    }

    /// Sets a key in the initial state, while records are loaded.
    pub(super) fn load(&self, key: &[u8], value: Option<Value>) {
        let mut records = self.records.write();
        let records = &mut *records;
        let more = value.as_ref().map_or(0, |value| bytes_of(key, value));
        let before = match value {
            Some(value) => {
                let slot = KeyVersions { now: (0, Some(value)), before: Vec::new() };
                records.slots.insert(key.into(), slot)
            }
            None => records.slots.remove(key),
        };
        let less = before.and_then(|slot| slot.now.1).map_or(0, |value| bytes_of(key, &value));
        records.bytes = records.bytes + more - less;
    }

    /// Returns the bytes of all records.
    pub(super) fn bytes(&self) -> usize {
        self.records.read().bytes
    }

    /// Returns a snapshot of the newest state.
    pub(super) fn snapshot(self: &Arc<Self>) -> VersionSnapshot {
        // Registered under the lock of the records, so that the state cannot be dropped in between.
        let records = self.records.read();
        *self.snapshots.lock().entry(records.state).or_default() += 1;
        VersionSnapshot { versions: Arc::clone(self), state: records.state }
    }

    /// Applies changes as the next state. Returns each change, and whether the key existed before.
    pub(super) fn apply(&self, changes: Overlay) -> Vec<RecordChange> {
        let mut records = self.records.write();
        let records = &mut *records;
        records.state += 1;
        let state = records.state;
        let oldest = self.snapshots.lock().first_key_value().map_or(state, |(oldest, _)| *oldest);
        let mut changed = Vec::new();
        for (key, value) in changes {
            let (key, value): (Box<[u8]>, Option<Value>) = (key.into(), value.map(Value::from));
            let more = value.as_ref().map_or(0, |value| bytes_of(&key, value));
            let mut was_there = false;
            match records.slots.entry(key.clone()) {
                btree_map::Entry::Vacant(vacant) => {
                    if value.is_some() {
                        vacant.insert(KeyVersions { now: (state, value.clone()), before: Vec::new() });
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
            changed.push(RecordChange { key, value, was_there: Some(was_there) });
        }
        while let Some((since, _)) = records.outdated.front()
            && *since <= oldest
        {
            let Some((_, key)) = records.outdated.pop_front() else { break };
            if let btree_map::Entry::Occupied(mut slot) = records.slots.entry(key) {
                let values = slot.get_mut();
                // Keeps the newest value that the oldest snapshot sees, and all later ones.
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

/// Change of a key in a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordChange {
    pub(super) key: Box<[u8]>,
    /// New value; `None` is a removal.
    pub(super) value: Option<Value>,
    /// Whether the key existed before; `None` if unknown.
    pub(super) was_there: Option<bool>,
}

/// A snapshot of one state.
pub(super) struct VersionSnapshot {
    versions: Arc<RecordVersions>,
    state: u64,
}

impl VersionSnapshot {
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

impl Drop for VersionSnapshot {
    fn drop(&mut self) {
        let mut snapshots = self.versions.snapshots.lock();
        if let btree_map::Entry::Occupied(mut count) = snapshots.entry(self.state) {
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

    fn all(snapshot: &VersionSnapshot) -> Vec<Pair> {
        snapshot.scan(b"", b"\xFF", usize::MAX)
    }

    #[test]
    fn unused_versions_are_dropped() {
        let versions = Arc::new(RecordVersions::default());
        versions.apply(changes(&[(1, Some(1)), (2, Some(1))]));
        let snapshot = versions.snapshot();
        for value in 2..20 {
            versions.apply(changes(&[(1, Some(value)), (2, None)]));
        }
        assert_eq!(all(&snapshot), [(vec![1], vec![1]), (vec![2], vec![1])]);
        assert!(versions.records.read().slots[&[1][..]].before.len() > 1);
        drop(snapshot);
        versions.apply(changes(&[(1, Some(99))]));
        let records = versions.records.read();
        assert_eq!(records.slots.len(), 1, "a removed key goes");
        assert!(records.slots[&[1][..]].before.is_empty(), "and so do older values");
        assert_eq!(records.bytes, RECORD_BYTES + 2);
        assert!(records.outdated.is_empty());
    }

    #[test]
    fn apply_reports_whether_keys_existed() {
        let versions = Arc::new(RecordVersions::default());
        let existed =
            |changed: Vec<RecordChange>| changed.iter().map(|one| one.was_there).collect::<Vec<_>>();
        assert_eq!(existed(versions.apply(changes(&[(1, Some(1)), (2, None)]))), [Some(false), Some(false)]);
        assert_eq!(existed(versions.apply(changes(&[(1, None), (2, Some(1))]))), [Some(true), Some(false)]);
    }

    #[test]
    fn full_store_accepts_removals_and_loads() {
        assert!(may_grow(0, BYTES_MAX, false) && !may_grow(0, BYTES_MAX + 1, false));
        assert!(
            may_grow(BYTES_MAX, BYTES_MAX + 1, true) && !may_grow(BYTES_MAX, REMOVING_BYTES_MAX + 1, true)
        );
        assert!(may_grow(BYTES_MAX + 2, BYTES_MAX + 1, false), "it becomes less");
        // A full journal of small new records, besides those that it removes.
        let journal = super::super::JOURNAL_BYTES_MAX / (8 + 8 + 8) * bytes_of(&[0; 8], &[0; 8]);
        const { assert!(REMOVING_BYTES_MAX < LOADED_BYTES_MAX) };
        assert!(LOADED_BYTES_MAX - REMOVING_BYTES_MAX > journal);
    }

    proptest! {
        #[test]
        fn snapshots_do_not_change(
            loaded in prop::collection::vec((0..8u8, any::<u8>()), 0..6),
            steps in prop::collection::vec(
                (prop::collection::vec((0..8u8, prop::option::of(any::<u8>())), 0..5), any::<bool>(), 0..4usize), 0..30)) {
            let versions = Arc::new(RecordVersions::default());
            let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
            for (key, value) in loaded {
                versions.load(&[key], Some(Value::from([value])));
                model.insert(vec![key], vec![value]);
            }
            let mut looks: Vec<(VersionSnapshot, Vec<Pair>)> = Vec::new();
            for (step, snapshot, dropped) in steps {
                let after = versions.bytes_after(&changes(&step));
                versions.apply(changes(&step));
                prop_assert_eq!(versions.bytes(), after);
                for (key, value) in &step {
                    match value {
                        Some(value) => model.insert(vec![*key], vec![*value]),
                        None => model.remove(&vec![*key]),
                    };
                }
                if snapshot {
                    looks.push((versions.snapshot(), model.clone().into_iter().collect()));
                }
                if dropped < looks.len() {
                    looks.remove(dropped);
                }
                for (snapshot, seen) in &looks {
                    prop_assert_eq!(&all(snapshot), seen);
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
