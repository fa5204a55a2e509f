//! A bounded cache of committed index records.
//!
//! Does: caches records and the absence of records; evicts entries that were not used lately.
//! Does not: hold anything that is not in the index.
//! Costs: O(1) per access; each shard keeps two generations and drops the older one when the
//! younger is full.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

use super::record::{Key, RecordValue};

/// Number of independently locked shards.
const SHARDS: usize = 16;
/// Approximate memory of an entry besides its value, in bytes.
const ENTRY: usize = 80;

#[derive(Default)]
struct CacheShard {
    young: HashMap<Key, Option<RecordValue>>,
    old: HashMap<Key, Option<RecordValue>>,
    weight: usize,
}

/// The record cache.
pub(crate) struct RecordCache {
    shards: [Mutex<CacheShard>; SHARDS],
    hasher: RandomState,
    /// Weight at which a shard's young generation becomes the old one, in bytes.
    turn: usize,
}

impl RecordCache {
    /// Creates a cache of about `bytes` of memory.
    pub(crate) fn new(bytes: usize) -> Self {
        let shards = std::array::from_fn(|_| Mutex::default());
        Self { shards, hasher: RandomState::new(), turn: bytes / SHARDS / 2 }
    }

    fn shard(&self, key: &Key) -> &Mutex<CacheShard> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    /// Returns the cached state of a key: not cached (`None`), absent, or its value.
    pub(crate) fn get(&self, key: &Key) -> Option<Option<RecordValue>> {
        let mut shard = self.shard(key).lock();
        if let Some(value) = shard.young.get(key) {
            return Some(value.clone());
        }
        let value = shard.old.remove(key)?;
        self.insert(&mut shard, *key, value.clone());
        Some(value)
    }

    /// Caches a key's committed value or its absence.
    pub(crate) fn put(&self, key: Key, value: Option<RecordValue>) {
        let mut shard = self.shard(&key).lock();
        shard.old.remove(&key);
        self.insert(&mut shard, key, value);
    }

    fn insert(&self, shard: &mut CacheShard, key: Key, value: Option<RecordValue>) {
        let weight = |value: &Option<RecordValue>| ENTRY + value.as_ref().map_or(0, RecordValue::weight);
        shard.weight += weight(&value);
        if let Some(old) = shard.young.insert(key, value) {
            shard.weight -= weight(&old);
        }
        if shard.weight > self.turn {
            shard.old = std::mem::take(&mut shard.young);
            shard.weight = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::chunk_key;
    use super::*;
    use sealstone_osd::ObjectId;

    #[test]
    fn cache_keeps_newest_value_within_its_bound() {
        let cache = RecordCache::new(64 << 10);
        let key = |n| chunk_key(ObjectId::ROOT, n);
        for n in 0..10_000 {
            cache.put(key(n), None);
            cache.put(key(n), Some(RecordValue::Attribute([n as u8].into())));
            assert_eq!(cache.get(&key(n)), Some(Some(RecordValue::Attribute([n as u8].into()))));
        }
        let kept = (0..10_000).filter(|&n| cache.get(&key(n)).is_some()).count();
        assert!(kept * ENTRY <= 64 << 10, "{kept} entries");
        assert!(kept > 100);
    }
}
