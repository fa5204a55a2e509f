//! A store in memory: the oracle of tests and simulation, with a switch that fails commits.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::{MetaError, MetaStore, Pair, Snapshot, Transaction, check_limits};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Ordered map behind a writer lock. Clones share the map, so a clone is "the disk" that survives a crash.
#[derive(Clone, Default)]
pub struct MemoryMeta {
    state: Arc<Mutex<Arc<Map>>>,
    writer: Arc<Mutex<()>>,
    commits_left: Arc<Mutex<Option<u64>>>,
}

impl MemoryMeta {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// After this many more commits every commit fails, as if power were lost. `None` ends that.
    pub fn fail_after(&self, commits: Option<u64>) {
        *self.commits_left.lock() = commits;
    }

    /// Another store with the same contents.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self { state: Arc::new(Mutex::new(self.current())), ..Self::default() }
    }

    /// Everything stored, for oracles.
    #[must_use]
    pub fn dump(&self) -> Vec<Pair> {
        self.state.lock().iter().map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    fn current(&self) -> Arc<Map> {
        self.state.lock().clone()
    }
}

impl MetaStore for MemoryMeta {
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, MetaError> {
        Ok(Box::new(View(self.current())))
    }

    fn begin(&self) -> Result<Box<dyn Transaction + '_>, MetaError> {
        let turn = self.writer.lock();
        Ok(Box::new(Changes { base: self.current(), changes: BTreeMap::new(), store: self, _turn: turn }))
    }
}

struct View(Arc<Map>);

impl Snapshot for View {
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

struct Changes<'a> {
    base: Arc<Map>,
    changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    store: &'a MemoryMeta,
    _turn: MutexGuard<'a, ()>,
}

impl Snapshot for Changes<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        Ok(match self.changes.get(key) {
            Some(change) => change.clone(),
            None => self.base.get(key).cloned(),
        })
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError> {
        if from >= until {
            return Ok(Vec::new());
        }
        let bounds = (Bound::Included(from), Bound::Excluded(until));
        let mut base = self.base.range::<[u8], _>(bounds).peekable();
        let mut changed = self.changes.range::<[u8], _>(bounds).peekable();
        let mut found = Vec::new();
        while found.len() < limit {
            let take_base = match (base.peek(), changed.peek()) {
                (None, None) => break,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (Some((base_key, _)), Some((changed_key, _))) if base_key == changed_key => {
                    base.next();
                    false
                }
                (Some((base_key, _)), Some((changed_key, _))) => base_key < changed_key,
            };
            if take_base {
                found.extend(base.next().map(|(key, value)| (key.clone(), value.clone())));
            } else if let Some((key, Some(value))) = changed.next() {
                found.push((key.clone(), value.clone()));
            }
        }
        Ok(found)
    }
}

impl Transaction for Changes<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), MetaError> {
        check_limits(key, value)?;
        self.changes.insert(key.to_vec(), Some(value.to_vec()));
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), MetaError> {
        self.changes.insert(key.to_vec(), None);
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), MetaError> {
        if self.changes.is_empty() {
            return Ok(());
        }
        if let Some(left) = self.store.commits_left.lock().as_mut() {
            *left = left.checked_sub(1).ok_or(MetaError::Poisoned)?;
        }
        let Self { base, changes, store, _turn } = *self;
        let mut state = store.state.lock();
        drop(base);
        let map = Arc::make_mut(&mut state);
        for (key, change) in changes {
            match change {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_keeps_the_contract() {
        super::super::contract::check(&|| Box::new(MemoryMeta::new()));
    }

    #[test]
    fn a_failed_commit_changes_nothing() {
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
