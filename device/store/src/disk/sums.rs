//! The sum over an object's digests, where the partition's profile asks for one.
//!
//! Does: keep an [`LtHash`] over the known digests of an object's units, changed in the step that changes them.
//! Does not: go to clients; it tells a scrub whether the chunk records that it found are all, and of one time.
//! Costs: 0.3 µs for each digest that comes or goes, and a record of 2 KiB for each object.

use std::collections::BTreeMap;
use std::sync::Arc;

use sealstone_digest::{Element, LtHash, Profile, Value as Digest};
use sealstone_osd::ObjectId;

use super::DiskStore;
use super::chunk::{CHUNK_BLOCKS, Chunk};
use super::record::{Key, Rotten, Value, chunk_key, chunk_of, is_chunk, sum_key};
use super::stage::{Stage, WALK};
use crate::{BLOCK, StoreError};

/// The profile of the values that are summed.
const VALUES: Profile = Profile::LtHash.values();

/// Visits the digests of a chunk as elements of the sum.
fn each(id: ObjectId, number: u64, chunk: &Chunk, mut visit: impl FnMut(&Element<'_>)) {
    let first = number * (CHUNK_BLOCKS * BLOCK / VALUES.unit_bytes());
    for (unit, value) in chunk.digests().iter(VALUES) {
        visit(&Element {
            partition: id.partition,
            object: id.object,
            unit: first + u64::from(unit),
            generation: 0,
            value: &value,
        });
    }
}

impl Stage<'_> {
    /// Brings the sum up to what the staged changes leave. All chunks are among the changes.
    pub(crate) fn sum_up(&mut self, removed: bool) {
        if removed || self.store.profile_of(self.id.partition) != Some(Profile::LtHash) {
            return;
        }
        let key = sum_key(self.id);
        let old = match self.store.index.get(&key) {
            Ok(Some(Ok(Value::Sum(sum)))) => sum,
            Ok(None) => Arc::default(),
            // A sum that is lost stays lost: the scrub says so.
            _ => return,
        };
        let mut sum = LtHash::clone(&old);
        // What is said last of a chunk holds.
        let chunks: BTreeMap<&Key, &Option<Value>> =
            self.changes.iter().filter(|(key, _)| is_chunk(key)).map(|(key, value)| (key, value)).collect();
        for (key, value) in chunks {
            let number = chunk_of(key);
            let before = match self.store.index.get(key) {
                Ok(Some(Ok(Value::Chunk(chunk)))) => Some(chunk),
                _ => None,
            };
            let after = match value {
                Some(Value::Chunk(chunk)) => Some(chunk.clone()),
                _ => None,
            };
            if *key != chunk_key(self.id, number) || before == after {
                continue;
            }
            if let Some(chunk) = before {
                each(self.id, number, &chunk, |element| sum.remove(element));
            }
            if let Some(chunk) = after {
                each(self.id, number, &chunk, |element| sum.add(element));
            }
        }
        if sum != *old {
            self.changes.push((key, Some(Value::Sum(Arc::new(sum)))));
        }
    }
}

impl DiskStore {
    /// The sum over an object's digests as stored and as added up from the chunk records, 32 bytes that stand for each;
    /// `None` if the partition's profile keeps none. They are the same unless records are lost or of another time.
    ///
    /// # Errors
    /// `NotFound`, `IndexDamaged`, `Index`.
    pub fn digest_sums(&self, id: ObjectId) -> Result<Option<(Digest, Digest)>, StoreError> {
        let _lock = self.lock(id).read();
        self.record(id)?;
        let Some(mut course) = self.begin_sum(id) else { return Ok(None) };
        let stored = course.stored.ok_or(StoreError::IndexDamaged { object: id })?;
        self.add_all(id, &mut course)?;
        Ok(Some((stored, course.total.digest())))
    }

    fn add_all(&self, id: ObjectId, course: &mut SumCourse) -> Result<(), StoreError> {
        let mut next = Some(0);
        while let Some(first) = next {
            let found = self.index.scan(chunk_key(id, first)..=chunk_key(id, u64::MAX), WALK)?;
            next = found.last().filter(|_| found.len() == WALK).map(|(key, _)| chunk_of(key) + 1);
            for (key, value) in found {
                match value {
                    Ok(Value::Chunk(chunk)) => course.add(id, chunk_of(&key), &chunk),
                    Ok(_) | Err(Rotten) => return Err(StoreError::IndexDamaged { object: id }),
                }
            }
        }
        Ok(())
    }

    /// The sum of no chunks yet, beside the stored one; `None` if the partition's profile keeps none. The caller holds
    /// the object's lock.
    pub(crate) fn begin_sum(&self, id: ObjectId) -> Option<Box<SumCourse>> {
        if self.profile_of(id.partition) != Some(Profile::LtHash) {
            return None;
        }
        let stored = match self.index.get(&sum_key(id)) {
            Ok(None) => Some(LtHash::default().digest()),
            Ok(Some(Ok(Value::Sum(sum)))) => Some(sum.digest()),
            Ok(Some(_)) => None,
            Err(_) => return None,
        };
        Some(Box::new(SumCourse { stored, total: LtHash::default() }))
    }

    /// Is the stored sum lost, or another than what its digests add up to? Where one of them cannot be read, that is what
    /// is damaged. The caller holds the object's lock.
    pub(crate) fn wrong_sum(&self, id: ObjectId) -> bool {
        let Some(mut course) = self.begin_sum(id) else { return false };
        course.stored.is_none() || (self.add_all(id, &mut course).is_ok() && course.differs())
    }
}

/// The sum over an object's digests, while its chunks are read one after the other.
#[derive(Clone, Debug)]
pub(crate) struct SumCourse {
    /// What is stored; `None`: its record is lost.
    stored: Option<Digest>,
    total: LtHash,
}

impl SumCourse {
    /// The next chunk.
    pub(crate) fn add(&mut self, id: ObjectId, number: u64, chunk: &Chunk) {
        each(id, number, chunk, |element| self.total.add(element));
    }

    fn differs(&self) -> bool {
        self.stored != Some(self.total.digest())
    }

    /// All chunks were added. Is it another than the stored one, and that the same as when it began? The object may have
    /// changed and changed back in between: then nothing is certain. The caller holds its lock.
    pub(crate) fn is_doubtful(&self, store: &DiskStore, id: ObjectId) -> bool {
        self.differs() && store.begin_sum(id).is_some_and(|now| now.stored == self.stored)
    }
}
