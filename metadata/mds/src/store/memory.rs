//! A store in memory: the oracle of tests and simulation. It can fail commits, and discard lazy
//! ones as in a crash.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::{MetaError, MetaStore, Overlay, Pair, Snapshot, Transaction};

type KeyMap = BTreeMap<Vec<u8>, Vec<u8>>;

/// An ordered map with a writer lock. Clones share the map, so a clone is the disk that survives a
/// crash.
#[derive(Clone, Default)]
pub struct MemoryMeta {
    state: Arc<Mutex<Arc<KeyMap>>>,
    writer: Arc<Mutex<()>>,
    commits_left: Arc<Mutex<Option<u64>>>,
    /// Previous values of the keys changed by each lazy commit since the last durable one.
    unsettled: Arc<Mutex<Vec<UndoLog>>>,
    /// Keys that scans of transactions stepped over.
    visited: Arc<AtomicU64>,
}

type UndoLog = Vec<(Vec<u8>, Option<Vec<u8>>)>;

impl MemoryMeta {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets every commit after this many more ones fail, as after a power failure. `None` ends
    /// that.
    pub fn fail_after(&self, commits: Option<u64>) {
        *self.commits_left.lock() = commits;
    }

    /// Returns an independent copy of the store.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self { state: Arc::new(Mutex::new(self.current())), ..Self::default() }
    }

    /// Returns all pairs, for oracles.
    #[must_use]
    pub fn dump(&self) -> Vec<Pair> {
        self.state.lock().iter().map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Returns the number of lazy commits that a crash may discard.
    #[must_use]
    pub fn unsettled(&self) -> usize {
        self.unsettled.lock().len()
    }

    /// Simulates a crash that discards all lazy commits except the first `kept`.
    pub fn crash(&self, kept: usize) {
        let mut state = self.state.lock();
        let mut unsettled = self.unsettled.lock();
        while unsettled.len() > kept {
            for (key, value) in unsettled.pop().into_iter().flatten() {
                set(Arc::make_mut(&mut state), key, value);
            }
        }
        // The state after the crash is durable.
        unsettled.clear();
    }

    fn current(&self) -> Arc<KeyMap> {
        self.state.lock().clone()
    }

    fn use_up_commit(&self) -> Result<(), MetaError> {
        if let Some(left) = self.commits_left.lock().as_mut() {
            *left = left.checked_sub(1).ok_or(MetaError::Poisoned)?;
        }
        Ok(())
    }
}

impl MetaStore for MemoryMeta {
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, MetaError> {
        Ok(Box::new(MemorySnapshot(self.current())))
    }

    fn begin(&self) -> Result<Box<dyn Transaction + '_>, MetaError> {
        let guard = self.writer.lock();
        Ok(Box::new(MemoryTransaction {
            base: self.current(),
            changes: Overlay::default(),
            store: self,
            _guard: guard,
        }))
    }

    fn settle(&self) -> Result<(), MetaError> {
        if self.unsettled() > 0 {
            self.use_up_commit()?;
            self.unsettled.lock().clear();
        }
        Ok(())
    }

    fn keys_visited(&self) -> u64 {
        self.visited.load(Ordering::Relaxed)
    }
}

/// Sets or removes a key; returns its previous value.
fn set(map: &mut KeyMap, key: Vec<u8>, value: Option<Vec<u8>>) -> Option<Vec<u8>> {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    }
}

struct MemorySnapshot(Arc<KeyMap>);

impl Snapshot for MemorySnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        Ok(self.0.get(key).cloned())
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError> {
        if from >= until {
            return Ok(Vec::new());
        }
        let range = self.0.range::<[u8], _>((Bound::Included(from), Bound::Excluded(until)));
        Ok(range.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}

struct MemoryTransaction<'a> {
    base: Arc<KeyMap>,
    changes: Overlay,
    store: &'a MemoryMeta,
    _guard: MutexGuard<'a, ()>,
}

impl Snapshot for MemoryTransaction<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        Ok(self.changes.get(key).unwrap_or_else(|| self.base.get(key).cloned()))
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError> {
        if from >= until {
            return Ok(Vec::new());
        }
        let below = self.base.range::<[u8], _>((Bound::Included(from), Bound::Excluded(until)));
        let mut visited = 0;
        let below = below.map(|(key, value)| (key.clone(), value.clone())).inspect(|_| visited += 1);
        let found = self.changes.scan(below, from, until, limit);
        self.store.visited.fetch_add(visited, Ordering::Relaxed);
        Ok(found)
    }
}

impl Transaction for MemoryTransaction<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), MetaError> {
        self.changes.put(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), MetaError> {
        self.changes.delete(key);
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), MetaError> {
        self.apply(false)
    }

    fn commit_lazily(self: Box<Self>) -> Result<(), MetaError> {
        self.apply(true)
    }
}

impl MemoryTransaction<'_> {
    fn apply(self, lazily: bool) -> Result<(), MetaError> {
        let Self { base, changes, store, _guard } = self;
        if changes.is_empty() {
            return Ok(());
        }
        store.use_up_commit()?;
        let mut state = store.state.lock();
        drop(base);
        let map = Arc::make_mut(&mut state);
        let undo = changes.into_iter().map(|(key, change)| {
            let before = set(map, key.clone(), change);
            (key, before)
        });
        let undo = undo.collect();
        let mut unsettled = store.unsettled.lock();
        if lazily {
            unsettled.push(undo);
        } else {
            unsettled.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_store_passes_contract() {
        super::super::contract::check(&|| Box::new(MemoryMeta::new()));
    }

    impl super::super::contract::Crash for MemoryMeta {
        fn store(&self) -> &dyn MetaStore {
            self
        }

        fn crash(self: Box<Self>) -> Box<dyn super::super::contract::Crash> {
            Self::crash(&self, 0);
            self
        }
    }

    #[test]
    fn memory_store_passes_crash_contract() {
        super::super::contract::check_crashes(&|| Box::new(MemoryMeta::new()));
    }

    #[test]
    fn crash_discards_only_last_lazy_commits() {
        for kept in 0..=3u8 {
            let store = MemoryMeta::new();
            for key in *b"abcd" {
                let mut tx = store.begin().unwrap();
                tx.put(b"last", &[key]).unwrap();
                tx.put(&[key], b"").unwrap();
                if key == b'a' { tx.commit().unwrap() } else { tx.commit_lazily().unwrap() }
            }
            assert_eq!(store.unsettled(), 3);
            store.crash(usize::from(kept));
            assert_eq!(store.snapshot().unwrap().get(b"last").unwrap(), Some(vec![b'a' + kept]));
            assert_eq!(store.dump().len(), 2 + usize::from(kept));
            store.crash(0);
            assert_eq!(store.dump().len(), 2 + usize::from(kept), "what a crash has left stays");
        }
    }

    #[test]
    fn failed_commit_changes_nothing() {
        let store = MemoryMeta::new();
        store.fail_after(Some(1));
        for key in [b"a", b"b"] {
            let mut tx = store.begin().unwrap();
            tx.put(key, b"1").unwrap();
            let _ = tx.commit();
        }
        assert_eq!(store.dump(), [(b"a".to_vec(), b"1".to_vec())]);
    }
}
