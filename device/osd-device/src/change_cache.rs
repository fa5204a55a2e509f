//! Values that were read from objects, such as the code of functions that ran lately.
//!
//! Does: keep them in memory, so that a run of a function need not read them again.
//! Does not: read them.
//! Contract: a value is used only while the store has counted no change of its object. The caller
//! reads the count before the value, so a change meanwhile makes the entry useless, and never
//! wrong. At most [`VALUES_MAX`] values are kept, and no more bytes than the limit of the cache.
//! Truth: docs/adr/0082-short-runs-of-functions.md.

use std::collections::VecDeque;

use parking_lot::Mutex;
use sealstone_osd::ObjectId;

/// Maximum number of values of a cache.
const VALUES_MAX: usize = 32;

struct CachedValue<V> {
    id: ObjectId,
    changes: u64,
    bytes: usize,
    value: V,
}

/// Values by object; the one that was used last is the last one.
pub(crate) struct ChangeCache<V> {
    bytes_max: usize,
    values: Mutex<VecDeque<CachedValue<V>>>,
}

impl<V: Clone> ChangeCache<V> {
    /// Returns an empty cache for values of so many bytes together.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, values: Mutex::default() }
    }

    /// Returns the value of an object; `None` if it is not kept, or the object changed since.
    pub(crate) fn get(&self, id: ObjectId, changes: u64) -> Option<V> {
        let mut values = self.values.lock();
        let at = values.iter().position(|entry| entry.id == id)?;
        let found = values.remove(at).filter(|entry| entry.changes == changes)?;
        let value = found.value.clone();
        values.push_back(found);
        Some(value)
    }

    /// Keeps a value of `bytes` bytes that an object had after `changes`.
    pub(crate) fn insert(&self, id: ObjectId, changes: u64, value: V, bytes: usize) {
        if bytes > self.bytes_max {
            return;
        }
        let mut values = self.values.lock();
        values.retain(|entry| entry.id != id);
        values.push_back(CachedValue { id, changes, bytes, value });
        let mut bytes: usize = values.iter().map(|entry| entry.bytes).sum();
        while bytes > self.bytes_max || values.len() > VALUES_MAX {
            let Some(oldest) = values.pop_front() else { return };
            bytes -= oldest.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: usize = 1000;

    fn id(number: u64) -> ObjectId {
        ObjectId::new(0x10000, number)
    }

    #[test]
    fn value_of_changed_object_is_dropped() {
        let cache = ChangeCache::new(BYTES_MAX);
        cache.insert(id(1), 5, "value", 10);
        assert_eq!((cache.get(id(2), 5), cache.get(id(1), 5)), (None, Some("value")));
        assert_eq!(cache.get(id(1), 6), None);
        assert_eq!(cache.get(id(1), 5), None, "it was dropped");
    }

    #[test]
    fn limits_drop_value_used_longest_ago() {
        let cache = ChangeCache::new(BYTES_MAX);
        let is_kept = |number| cache.get(id(number), 1).is_some();
        cache.insert(id(0), 1, (), BYTES_MAX + 1);
        assert!(!is_kept(0));
        for number in 1..=VALUES_MAX as u64 {
            cache.insert(id(number), 1, (), 10);
        }
        assert!(is_kept(1));
        cache.insert(id(100), 1, (), 10);
        assert!(is_kept(1) && !is_kept(2));
        cache.insert(id(101), 1, (), BYTES_MAX);
        assert!(!is_kept(1) && is_kept(101));
        assert_eq!(cache.values.lock().len(), 1);
    }
}
