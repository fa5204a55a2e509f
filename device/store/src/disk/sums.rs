//! The homomorphic sum (LtHash) of an object's digests, for partitions whose profile requires one.
//!
//! Does: keeps an [`LtHash`] over the known digests of an object's units, updated in the step that
//! changes them.
//! Does not: go to clients. A scrub uses it to see whether the chunk records are complete and of
//! the same moment.
//! Costs: 0.3 µs per digest that is added or removed, and a record of 2 KiB per object.

use std::collections::BTreeMap;
use std::sync::Arc;

use sealstone_digest::{DigestValue as Digest, LtHash, LtHashElement, Profile};
use sealstone_osd::ObjectId;

use super::DiskStore;
use super::chunk::{CHUNK_BLOCKS, Chunk};
use super::record::{CorruptRecord, Key, RecordValue, chunk_key, chunk_of, is_chunk, sum_key};
use super::stage::{StagedChanges, WALK};
use crate::{BLOCK, StoreError};

/// The profile of the summed digests.
const VALUES: Profile = Profile::LtHash.values();

/// Visits the digests of a chunk as elements of the sum.
fn each(id: ObjectId, number: u64, chunk: &Chunk, mut visit: impl FnMut(&LtHashElement<'_>)) {
    let first = number * (CHUNK_BLOCKS * BLOCK / VALUES.unit_bytes());
    for (unit, value) in chunk.digests().iter(VALUES) {
        visit(&LtHashElement {
            partition: id.partition,
            object: id.object,
            unit: first + u64::from(unit),
            generation: 0,
            value: &value,
        });
    }
}

impl StagedChanges<'_> {
    /// Updates the sum for the staged changes. All chunks are among the changes.
    pub(crate) fn sum_up(&mut self, removed: bool) {
        if removed || self.store.profile_of(self.id.partition) != Some(Profile::LtHash) {
            return;
        }
        let key = sum_key(self.id);
        let old = match self.store.index.get(&key) {
            Ok(Some(Ok(RecordValue::Sum(sum)))) => sum,
            Ok(None) => Arc::default(),
            // A lost sum stays lost: the scrub reports it.
            _ => return,
        };
        let mut sum = LtHash::clone(&old);
        // The last change of a chunk counts.
        let chunks: BTreeMap<&Key, &Option<RecordValue>> =
            self.changes.iter().filter(|(key, _)| is_chunk(key)).map(|(key, value)| (key, value)).collect();
        for (key, value) in chunks {
            let number = chunk_of(key);
            let before = match self.store.index.get(key) {
                Ok(Some(Ok(RecordValue::Chunk(chunk)))) => Some(chunk),
                _ => None,
            };
            let after = match value {
                Some(RecordValue::Chunk(chunk)) => Some(chunk.clone()),
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
            self.changes.push((key, Some(RecordValue::Sum(Arc::new(sum)))));
        }
    }
}

impl DiskStore {
    /// Returns the sum of an object's digests as stored and as computed from the chunk records, as
    /// 32 bytes each; `None` if the partition's profile keeps none. They differ only if records are
    /// lost or out of date.
    ///
    /// # Errors
    /// `NotFound`, `IndexDamaged`, `RecordIndex`.
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
                    Ok(RecordValue::Chunk(chunk)) => course.add(id, chunk_of(&key), &chunk),
                    Ok(_) | Err(CorruptRecord) => return Err(StoreError::IndexDamaged { object: id }),
                }
            }
        }
        Ok(())
    }

    /// Starts the sum of an object's chunks, with the stored one beside it; `None` if the
    /// partition's profile keeps none. The caller holds the object's lock.
    pub(crate) fn begin_sum(&self, id: ObjectId) -> Option<Box<SumCourse>> {
        if self.profile_of(id.partition) != Some(Profile::LtHash) {
            return None;
        }
        let stored = match self.index.get(&sum_key(id)) {
            Ok(None) => Some(LtHash::default().digest()),
            Ok(Some(Ok(RecordValue::Sum(sum)))) => Some(sum.digest()),
            Ok(Some(_)) => None,
            Err(_) => return None,
        };
        Some(Box::new(SumCourse { stored, total: LtHash::default() }))
    }

    /// Whether the stored sum is lost or wrong. If a digest cannot be read, that counts as the
    /// damage instead. The caller holds the object's lock.
    pub(crate) fn wrong_sum(&self, id: ObjectId) -> bool {
        let Some(mut course) = self.begin_sum(id) else { return false };
        course.stored.is_none() || (self.add_all(id, &mut course).is_ok() && course.differs())
    }
}

/// The sum of an object's digests, while its chunks are read one after the other.
#[derive(Clone, Debug)]
pub(crate) struct SumCourse {
    /// The stored sum; `None` if its record is lost.
    stored: Option<Digest>,
    total: LtHash,
}

impl SumCourse {
    /// Adds the next chunk.
    pub(crate) fn add(&mut self, id: ObjectId, number: u64, chunk: &Chunk) {
        each(id, number, chunk, |element| self.total.add(element));
    }

    fn differs(&self) -> bool {
        self.stored != Some(self.total.digest())
    }

    /// Whether the sum of all chunks differs from the stored one, and the stored one has not
    /// changed since the start. The object may have changed and changed back in between, so this is
    /// not proof of damage. The caller holds its lock.
    pub(crate) fn is_doubtful(&self, store: &DiskStore, id: ObjectId) -> bool {
        self.differs() && store.begin_sum(id).is_some_and(|now| now.stored == self.stored)
    }
}
