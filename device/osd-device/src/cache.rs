//! Cache of attributes and access times of user objects.
//!
//! Does: cache the attributes that every command's check needs, and the times of last access.
//! Does not: cache lengths or data; the store has its own caches.
//! Contract: call `forget` after a change of a cached attribute. Facts that were loaded
//! concurrently are then not cached, so readers need no lock. Access times are kept here until they
//! are taken or the cache is full. A crash may lose them, and nothing else.
//! Truth: docs/design/t10-osd.md 3.5 (timestamps); lazy access times are our choice:
//! docs/standards/osd.md.

use std::collections::HashMap;

use parking_lot::Mutex;
use sealstone_osd::ObjectId;

/// Shards, each with its own lock.
const SHARDS: usize = 64;
/// Objects cached in one shard. A full shard is emptied.
const SHARD_MAX: usize = 2048;

/// Attributes that a check needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CachedFacts {
    /// Created time in milliseconds.
    pub(crate) created_ms: u64,
    /// Policy access tag.
    pub(crate) tag: u32,
    /// The object's own minimum security method, as stored.
    pub(crate) method: u8,
    /// Largest logical length in bytes.
    pub(crate) max_length: u64,
}

/// Times of last access of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessTimes {
    /// Data access in milliseconds.
    pub(crate) data_ms: Option<u64>,
    /// Attribute access in milliseconds.
    pub(crate) attributes_ms: Option<u64>,
    /// Last addition or removal of an object (partition, collection) in milliseconds.
    pub(crate) modified_ms: Option<u64>,
}

impl AccessTimes {
    fn merge(&mut self, newer: Self) {
        self.data_ms = newer.data_ms.or(self.data_ms);
        self.attributes_ms = newer.attributes_ms.or(self.attributes_ms);
        self.modified_ms = newer.modified_ms.or(self.modified_ms);
    }
}

#[derive(Default)]
struct CacheShard {
    /// Number of invalidations.
    changes: u64,
    facts: HashMap<ObjectId, CachedFacts>,
    accesses: HashMap<ObjectId, AccessTimes>,
}

/// Cache of a device about its objects.
pub(crate) struct ObjectCache(Box<[Mutex<CacheShard>]>);

impl ObjectCache {
    pub(crate) fn new() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect())
    }

    fn shard(&self, id: ObjectId) -> &Mutex<CacheShard> {
        let spread = (id.partition.rotate_left(32) ^ id.object).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58;
        &self.0[usize::try_from(spread).map_or(0, |spread| spread % SHARDS)]
    }

    /// Returns the facts about an object, from the cache or from `load`.
    pub(crate) fn facts<E>(
        &self,
        id: ObjectId,
        load: impl FnOnce() -> Result<CachedFacts, E>,
    ) -> Result<CachedFacts, E> {
        let changes = {
            let shard = self.shard(id).lock();
            if let Some(&facts) = shard.facts.get(&id) {
                return Ok(facts);
            }
            shard.changes
        };
        let facts = load()?;
        let mut shard = self.shard(id).lock();
        if shard.changes == changes {
            if shard.facts.len() >= SHARD_MAX {
                shard.facts.clear();
            }
            shard.facts.insert(id, facts);
        }
        Ok(facts)
    }

    /// Invalidates an object whose facts changed or that was removed.
    pub(crate) fn forget(&self, id: ObjectId) {
        let mut shard = self.shard(id).lock();
        shard.changes += 1;
        shard.facts.remove(&id);
    }

    /// Records an access. Returns evicted access times, which the caller must store.
    #[must_use]
    pub(crate) fn note(&self, id: ObjectId, accesses: AccessTimes) -> Vec<(ObjectId, AccessTimes)> {
        let mut shard = self.shard(id).lock();
        let spill = if shard.accesses.len() >= SHARD_MAX && !shard.accesses.contains_key(&id) {
            shard.accesses.drain().collect()
        } else {
            Vec::new()
        };
        shard.accesses.entry(id).or_default().merge(accesses);
        spill
    }

    /// Returns the access times of an object that are not stored yet.
    pub(crate) fn accesses(&self, id: ObjectId) -> AccessTimes {
        self.shard(id).lock().accesses.get(&id).copied().unwrap_or_default()
    }

    /// Takes the access times of one object out of the cache.
    pub(crate) fn take(&self, id: ObjectId) -> Option<AccessTimes> {
        self.shard(id).lock().accesses.remove(&id)
    }

    /// Takes all access times out of the cache, to store them.
    pub(crate) fn take_all(&self) -> Vec<(ObjectId, AccessTimes)> {
        self.0.iter().flat_map(|shard| shard.lock().accesses.drain().collect::<Vec<_>>()).collect()
    }

    /// FORMAT OSD, REMOVE PARTITION: empties the cache.
    pub(crate) fn clear(&self) {
        for shard in &self.0 {
            let mut shard = shard.lock();
            *shard = CacheShard { changes: shard.changes + 1, ..CacheShard::default() };
        }
    }
}
