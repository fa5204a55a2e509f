//! What is damaged: what opening found, what reads met, and a walk that looks for more.
//!
//! Does: keep the book of damage true: reads and scrubs add to it, changes and scrubs take out what is mended.
//! Does not: pace itself; the caller does, since the store reads no clock. [`Background`](super::Background) may.
//! Contract: what the walk calls sound was read and checked, data and records. Objects made behind it are not seen.
//! Costs: one read of every block for each object that has it; an object's lock for a piece of 1 MiB at a time
//! (`examine` reads them).

use std::ops::Range;

use sealstone_osd::ObjectId;

use super::chunk::CHUNK_BLOCKS;
use super::record::{all_objects, object_key, object_of};
use super::{DiskStore, MAX_ATTRIBUTES, attribute_range};
use crate::damage::{Damage, DamageKind, Health, StoreFault};
use crate::{BLOCK, Examination, FormatError, StoreError};

/// Bytes of an object under one chunk record.
const CHUNK: u64 = CHUNK_BLOCKS * BLOCK;
/// Bytes of the largest unit of digests: a change makes digests of whole units anew.
const UNIT_MAX: u64 = 16 << 10;
/// What looking at an object's records counts, in bytes.
const RECORDS: u64 = 4096;

/// Where a walk over the store is.
#[derive(Clone, Debug)]
pub struct Scrub {
    now: Examination,
    objects: u64,
    bytes: u64,
    damaged: u64,
}

impl Scrub {
    /// From the beginning.
    #[must_use]
    pub fn new() -> Self {
        Self::from(ObjectId::ROOT)
    }

    /// From an object on.
    #[must_use]
    pub fn from(next: ObjectId) -> Self {
        Self { now: Examination::of(next), objects: 0, bytes: 0, damaged: 0 }
    }

    /// The object that comes next, or is under way. A walk may go on from there after a restart.
    #[must_use]
    pub fn next(&self) -> ObjectId {
        self.now.id
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self, store: &DiskStore) -> ScrubProgress {
        let space = crate::ObjectStore::space(store);
        let Self { objects, bytes, damaged, .. } = *self;
        ScrubProgress { objects, objects_total: space.objects, bytes, bytes_total: space.used, damaged }
    }
}

impl Default for Scrub {
    fn default() -> Self {
        Self::new()
    }
}

/// How far a walk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Objects that were checked.
    pub objects: u64,
    /// Objects of the store, now.
    pub objects_total: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Bytes in use, now. More are read where objects share blocks.
    pub bytes_total: u64,
    /// Pieces of damage that were found.
    pub damaged: u64,
}

/// What one step of a walk found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubStep {
    /// Bytes that were read, records with 4096 for each object.
    pub bytes: u64,
    /// Damage of the objects that were finished.
    pub damage: Vec<Damage>,
    /// Is the walk at its end?
    pub done: bool,
}

/// What of a piece of damage a change of these bytes, or of an attribute, may have mended.
fn met_by(damage: &Damage, bytes: &Range<u64>, attributes: bool) -> Option<Damage> {
    let grain = match damage.kind {
        DamageKind::Data | DamageKind::Unreadable => UNIT_MAX,
        DamageKind::Map => CHUNK,
        DamageKind::Attributes | DamageKind::Digests => return attributes.then_some(*damage),
        // It changes with the digests that come and go, and stays as wrong as it is.
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
    /// What is known to be damaged: from opening, and from every read, scrub and change since. Reads nothing.
    #[must_use]
    pub fn health(&self) -> Health {
        let (damage, more) = self.book.lock().all();
        Health { read_only: self.is_poisoned(), faults: self.faults.clone(), damage, more }
    }

    /// Are all files there in full? A device that is used needs them: a file left behind is brought back before anything
    /// is written.
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

    /// What is known to be damaged of one object. Reads nothing.
    #[must_use]
    pub fn damage_of(&self, id: ObjectId) -> Vec<Damage> {
        self.book.lock().of(id)
    }

    /// Remembers what a read met.
    pub(crate) fn note(&self, damage: Damage) {
        self.book.lock().add(damage);
    }

    /// These bytes of an object were changed, or an attribute: what was damaged there may be sound, or gone.
    pub(crate) fn changed(&self, id: ObjectId, bytes: Range<u64>, attributes: bool) {
        let known = self.book.lock().of(id);
        let met: Vec<Damage> = known.iter().filter_map(|damage| met_by(damage, &bytes, attributes)).collect();
        if met.is_empty() {
            return;
        }
        let left: Vec<Damage> = met.iter().flat_map(|damage| self.still(damage)).collect();
        let mut book = self.book.lock();
        met.iter().for_each(|damage| book.remove(damage));
        left.into_iter().for_each(|damage| book.add(damage));
    }

    /// What is left of a piece of damage.
    fn still(&self, damage: &Damage) -> Vec<Damage> {
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
    /// `Index` if the index cannot be read at all. Damage is no error.
    pub fn scrub(&self, walk: &mut Scrub, bytes_max: u64) -> Result<ScrubStep, StoreError> {
        let mut step = ScrubStep { bytes: 0, damage: Vec::new(), done: false };
        loop {
            let found = self.index.scan_known(object_key(walk.now.id)..=all_objects().1, 1)?;
            let Some(id) = found.first().map(|(key, _)| object_of(key)) else {
                step.done = true;
                break;
            };
            if id != walk.now.id {
                walk.now = Examination::of(id);
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
                    Some(next) => walk.now = Examination::of(next),
                    None => match id.partition.checked_add(1) {
                        Some(partition) => walk.now = Examination::of(ObjectId::new(partition, 0)),
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

    /// Reads and checks every byte and record of an object; gives the damaged blocks as (offset, length).
    /// For scrubbing; other operations on the object wait only for 1 MiB at a time.
    ///
    /// # Errors
    /// `NotFound`, `IndexDamaged`, `Io`.
    pub fn verify(&self, id: ObjectId) -> Result<Vec<(u64, u64)>, StoreError> {
        let mut walk = Examination { each: true, ..Examination::of(id) };
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

    /// Is there any damage that is known?
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        !self.faults.is_empty() || !self.book.lock().is_empty() || self.salvage
    }
}
