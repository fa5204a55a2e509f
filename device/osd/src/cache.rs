//! What the device remembers about user objects it met lately.
//!
//! Does: the attributes that every command's check needs, and the times of last access.
//! Does not: lengths or data; the store has its own caches.
//! Contract: `forget` after a change of a cached attribute. Facts that were being read meanwhile are not kept, so
//! readers need no lock. Times of access are kept here
//! until they are taken away or the cache is full: a crash may lose them, nothing else.
//! Truth: docs/design/t10-osd.md 3.5 (timestamps); our choice that access times are lazy is in docs/standards/osd.md.

use std::collections::HashMap;

use parking_lot::Mutex;
use sealstone_osd::ObjectId;

/// Independently locked parts.
const SHARDS: usize = 64;
/// Most objects remembered in one part; then the part is emptied.
const SHARD_MAX: usize = 2048;

/// The attributes a check needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Created time, milliseconds.
    pub(crate) created_ms: u64,
    /// Policy access tag.
    pub(crate) tag: u32,
    /// The object's own least security method, as stored.
    pub(crate) method: u8,
    /// Largest logical length, bytes.
    pub(crate) max_length: u64,
}

/// When an object was last looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accesses {
    /// Its data, milliseconds.
    pub(crate) data_ms: Option<u64>,
    /// Its attributes, milliseconds.
    pub(crate) attributes_ms: Option<u64>,
    /// When objects were last added to or taken from it (partition, collection), milliseconds.
    pub(crate) modified_ms: Option<u64>,
}

impl Accesses {
    fn merge(&mut self, newer: Self) {
        self.data_ms = newer.data_ms.or(self.data_ms);
        self.attributes_ms = newer.attributes_ms.or(self.attributes_ms);
        self.modified_ms = newer.modified_ms.or(self.modified_ms);
    }
}

#[derive(Default)]
struct Shard {
    /// Counts what was forgotten.
    changes: u64,
    facts: HashMap<ObjectId, Facts>,
    accesses: HashMap<ObjectId, Accesses>,
}

/// The memory of a device about its objects.
pub(crate) struct ObjectCache(Box<[Mutex<Shard>]>);

impl ObjectCache {
    pub(crate) fn new() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect())
    }

    fn shard(&self, id: ObjectId) -> &Mutex<Shard> {
        let spread = (id.partition.rotate_left(32) ^ id.object).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58;
        &self.0[usize::try_from(spread).map_or(0, |spread| spread % SHARDS)]
    }

    /// The facts about an object, from memory or from `load`.
    pub(crate) fn facts<E>(&self, id: ObjectId, load: impl FnOnce() -> Result<Facts, E>) -> Result<Facts, E> {
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

    /// An attribute among the facts changed, or the object is gone.
    pub(crate) fn forget(&self, id: ObjectId) {
        let mut shard = self.shard(id).lock();
        shard.changes += 1;
        shard.facts.remove(&id);
    }

    /// Notes an access. Gives back what no longer fits and must be stored.
    #[must_use]
    pub(crate) fn note(&self, id: ObjectId, accesses: Accesses) -> Vec<(ObjectId, Accesses)> {
        let mut shard = self.shard(id).lock();
        let spill = if shard.accesses.len() >= SHARD_MAX && !shard.accesses.contains_key(&id) {
            shard.accesses.drain().collect()
        } else {
            Vec::new()
        };
        shard.accesses.entry(id).or_default().merge(accesses);
        spill
    }

    /// When an object was last looked at, if that is not stored yet.
    pub(crate) fn accesses(&self, id: ObjectId) -> Accesses {
        self.shard(id).lock().accesses.get(&id).copied().unwrap_or_default()
    }

    /// Takes the accesses of one object away.
    pub(crate) fn take(&self, id: ObjectId) -> Option<Accesses> {
        self.shard(id).lock().accesses.remove(&id)
    }

    /// Takes all accesses away, to be stored.
    pub(crate) fn take_all(&self) -> Vec<(ObjectId, Accesses)> {
        self.0.iter().flat_map(|shard| shard.lock().accesses.drain().collect::<Vec<_>>()).collect()
    }

    /// FORMAT OSD, REMOVE PARTITION: forget everything.
    pub(crate) fn clear(&self) {
        for shard in &self.0 {
            let mut shard = shard.lock();
            *shard = Shard { changes: shard.changes + 1, ..Shard::default() };
        }
    }
}
