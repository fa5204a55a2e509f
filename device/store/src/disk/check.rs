//! The list of known damage and the scrub: damage found at open, by reads, and by scrubbing.
//!
//! Does: keeps the list of damage current: reads and scrubs add to it, changes and scrubs remove
//! repaired entries.
//! Does not: limit its rate; the caller does, since the store reads no clock.
//! [`BackgroundThread`](super::BackgroundThread) may.
//! Contract: a scrub reports only what it read and checked, data and records. Objects created
//! behind its position are not visited.
//! Costs: one read of every block for each object that has it; an object's lock for 1 MiB at a time
//! (`examine` reads them).

use std::ops::Range;

use sealstone_osd::ObjectId;

use super::chunk::CHUNK_BLOCKS;
use super::record::{all_objects, object_key, object_of};
use super::{DiskStore, MAX_ATTRIBUTES, attribute_range};
use crate::damage::{Damage, DamageKind, StoreFault, StoreHealth};
use crate::{BLOCK, FormatError, ObjectExamination, StoreError};

/// Bytes of an object in one chunk record.
const CHUNK: u64 = CHUNK_BLOCKS * BLOCK;
/// Bytes of the largest digest unit: a change recomputes digests of whole units.
const UNIT_MAX: u64 = 16 << 10;
/// Bytes counted for checking an object's records.
const RECORDS: u64 = 4096;

/// Position of a scrub.
#[derive(Clone, Debug)]
pub struct StoreScrub {
    now: ObjectExamination,
    objects: u64,
    bytes: u64,
    damaged: u64,
}

impl StoreScrub {
    /// Starts at the first object.
    #[must_use]
    pub fn new() -> Self {
        Self::from(ObjectId::ROOT)
    }

    /// Starts at an object.
    #[must_use]
    pub fn from(next: ObjectId) -> Self {
        Self { now: ObjectExamination::of(next), objects: 0, bytes: 0, damaged: 0 }
    }

    /// Returns the object that is checked now or next. A scrub can continue from it after a
    /// restart.
    #[must_use]
    pub fn next(&self) -> ObjectId {
        self.now.id
    }

    /// Returns the progress of the scrub.
    #[must_use]
    pub fn progress(&self, store: &DiskStore) -> ScrubProgress {
        let space = crate::ObjectStore::space(store);
        let Self { objects, bytes, damaged, .. } = *self;
        ScrubProgress { objects, objects_total: space.objects, bytes, bytes_total: space.used, damaged }
    }
}

impl Default for StoreScrub {
    fn default() -> Self {
        Self::new()
    }
}

/// Progress of a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Objects checked.
    pub objects: u64,
    /// Current number of objects in the store.
    pub objects_total: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Bytes in use now. A scrub reads more where objects share blocks.
    pub bytes_total: u64,
    /// Damage entries found.
    pub damaged: u64,
}

/// Result of one scrub step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubStep {
    /// Bytes read; the records of each object count 4096.
    pub bytes: u64,
    /// Damage of the objects that were completed.
    pub damage: Vec<Damage>,
    /// Whether the scrub is complete.
    pub done: bool,
}

/// Returns the part of the damage that a change of these bytes, or of an attribute, may have
/// repaired.
fn possibly_repaired(damage: &Damage, bytes: &Range<u64>, attributes: bool) -> Option<Damage> {
    let grain = match damage.kind {
        DamageKind::Data | DamageKind::Unreadable => UNIT_MAX,
        DamageKind::Map => CHUNK,
        DamageKind::Attributes | DamageKind::Digests => return attributes.then_some(*damage),
        // The sum changes with added and removed digests, so an error in it stays.
        DamageKind::Sum => return (*bytes == (0..u64::MAX)).then_some(*damage),
        DamageKind::Record | DamageKind::Memberships | DamageKind::Profile => return Some(*damage),
    };
    if bytes.is_empty() {
        return None;
    }
    let last = bytes.end.checked_next_multiple_of(grain).unwrap_or(u64::MAX);
    let start = damage.offset.max(bytes.start / grain * grain);
    let end = damage.offset.saturating_add(damage.length).min(last);
    (start < end).then(|| Damage { offset: start, length: end - start, ..*damage })
}

impl DiskStore {
    /// Returns all known damage: from opening, and from every read, scrub and change since. Reads
    /// nothing.
    #[must_use]
    pub fn health(&self) -> StoreHealth {
        let (damage, more) = self.book.lock().all();
        StoreHealth { read_only: self.is_poisoned(), faults: self.faults.clone(), damage, more }
    }

    /// Checks that all files exist with their full length. A device in use needs them: a file left
    /// behind must be restored before anything is written.
    ///
    /// # Errors
    /// `Missing`, `Truncated`.
    pub fn require_files(&self) -> Result<(), FormatError> {
        let wrong = self.faults.iter().find_map(|fault| match fault.clone() {
            StoreFault::MissingFile { name } => Some(FormatError::Missing { name }),
            StoreFault::ShortFile { name, found, expected } => {
                Some(FormatError::Truncated { name, found, expected })
            }
            _ => None,
        });
        wrong.map_or(Ok(()), Err)
    }

    /// Returns the known damage of one object. Reads nothing.
    #[must_use]
    pub fn damage_of(&self, id: ObjectId) -> Vec<Damage> {
        self.book.lock().of(id)
    }

    /// Records damage that a read found.
    pub(crate) fn note(&self, damage: Damage) {
        self.book.lock().add(damage);
    }

    /// Updates known damage after a change of these bytes of an object, or of an attribute: it may
    /// be repaired or removed.
    pub(crate) fn changed(&self, id: ObjectId, bytes: Range<u64>, attributes: bool) {
        let known = self.book.lock().of(id);
        let met: Vec<Damage> =
            known.iter().filter_map(|damage| possibly_repaired(damage, &bytes, attributes)).collect();
        if met.is_empty() {
            return;
        }
        let left: Vec<Damage> = met.iter().flat_map(|damage| self.remaining_damage(damage)).collect();
        let mut book = self.book.lock();
        met.iter().for_each(|damage| book.remove(damage));
        left.into_iter().for_each(|damage| book.add(damage));
    }

    /// Returns what is left of known damage after looking at it again.
    fn remaining_damage(&self, damage: &Damage) -> Vec<Damage> {
        let id = damage.object;
        let _lock = self.lock(id).read();
        let length = match self.record(id) {
            Ok(record) => record.length,
            Err(StoreError::NotFound(_)) => return Vec::new(),
            Err(_) => return vec![*damage],
        };
        let end = length.min(damage.offset + damage.length);
        let mut left = Vec::new();
        match damage.kind {
            DamageKind::Record => {}
            DamageKind::Memberships => left.push(*damage),
            DamageKind::Attributes => {
                let all = self.index.scan(attribute_range(id, None), MAX_ATTRIBUTES);
                let sound = all.is_ok_and(|all| all.iter().all(|(_, value)| value.is_ok()));
                left.extend((!sound).then_some(*damage));
            }
            DamageKind::Map => {
                let chunks = damage.offset / CHUNK..end.div_ceil(CHUNK);
                let lost = chunks.into_iter().filter(|&number| self.chunk(id, number).is_err());
                left.extend(lost.map(|number| {
                    let offset = number * CHUNK;
                    Damage { offset, length: CHUNK.min(length - offset), ..*damage }
                }));
            }
            DamageKind::Data | DamageKind::Unreadable => {
                left = self.damage_in(id, damage.offset..end, length);
                left.retain(|left| left.offset < end && left.offset + left.length > damage.offset);
            }
            DamageKind::Digests => left.extend(self.wrong_page(id).then_some(*damage)),
            DamageKind::Sum => left.extend(self.wrong_sum(id).then_some(*damage)),
            DamageKind::Profile => left.extend(self.lost_profile(id).then_some(*damage)),
        }
        left
    }

    /// Checks about `bytes_max` more bytes, and at least one piece of 1 MiB.
    ///
    /// # Errors
    /// `RecordIndex` if the index cannot be read at all. Damage is not an error.
    pub fn scrub(&self, walk: &mut StoreScrub, bytes_max: u64) -> Result<ScrubStep, StoreError> {
        let mut step = ScrubStep { bytes: 0, damage: Vec::new(), done: false };
        loop {
            let found = self.index.scan_known(object_key(walk.now.id)..=all_objects().1, 1)?;
            let Some(id) = found.first().map(|(key, _)| object_of(key)) else {
                step.done = true;
                break;
            };
            if id != walk.now.id {
                walk.now = ObjectExamination::of(id);
            }
            let more = match self.examine_next(&mut walk.now) {
                Ok(examined) => {
                    step.bytes += examined.bytes;
                    walk.bytes += examined.bytes;
                    examined.more
                }
                // Removed meanwhile.
                Err(StoreError::NotFound(_)) => false,
                Err(error) => return Err(error),
            };
            if !more {
                step.bytes += RECORDS;
                walk.objects += 1;
                step.damage.extend(self.damage_of(id));
                match id.object.checked_add(1).map(|object| ObjectId::new(id.partition, object)) {
                    Some(next) => walk.now = ObjectExamination::of(next),
                    None => match id.partition.checked_add(1) {
                        Some(partition) => walk.now = ObjectExamination::of(ObjectId::new(partition, 0)),
                        None => step.done = true,
                    },
                }
            }
            if step.done || step.bytes >= bytes_max {
                break;
            }
        }
        walk.damaged += step.damage.len() as u64;
        Ok(step)
    }

    /// Reads and checks every byte and record of an object; returns the damaged blocks as (offset,
    /// length).
    /// For scrubbing: other operations on the object wait for 1 MiB at a time only.
    ///
    /// # Errors
    /// `NotFound`, `IndexDamaged`, `IoMode`.
    pub fn verify(&self, id: ObjectId) -> Result<Vec<(u64, u64)>, StoreError> {
        let mut walk = ObjectExamination { each: true, ..ObjectExamination::of(id) };
        while self.examine_next(&mut walk)?.more {}
        let mut blocks = Vec::new();
        for damage in &walk.found {
            match damage.kind {
                DamageKind::Data | DamageKind::Unreadable => blocks.push((damage.offset, damage.length)),
                _ => return Err(StoreError::IndexDamaged { object: id }),
            }
        }
        Ok(blocks)
    }

    /// Whether any damage is known.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        !self.faults.is_empty() || !self.book.lock().is_empty() || self.salvage
    }
}
