//! What is damaged: what opening found, what reads met, and a walk that looks for more.
//!
//! Does: keep the book of damage true: reads and scrubs add to it, changes and scrubs take out what is mended.
//! Does not: pace itself; the caller does, since the store reads no clock. [`Background`](super::Background) may.
//! Contract: what the walk calls sound was read and checked, data and records. Objects made behind it are not seen.
//! Costs: one read of every block for each object that has it; an object's lock for a piece of 1 MiB at a time.

use std::ops::Range;

use sealstone_osd::ObjectId;

use super::chunk::{CHUNK_BLOCKS, Chunk};
use super::read::{BadRead, SLICE_BLOCKS};
use super::record::{Rotten, Value, all_objects, chunk_key, chunk_of, object_key, object_of};
use super::{DiskStore, MAX_ATTRIBUTES, attribute_range};
use crate::damage::{Damage, DamageKind, Health, MAX_DAMAGE, StoreFault};
use crate::{BLOCK, FormatError, StoreError};

/// Bytes of an object under one chunk record.
const CHUNK: u64 = CHUNK_BLOCKS * BLOCK;
/// Bytes of the largest unit of digests: a change makes digests of whole units anew.
const UNIT_MAX: u64 = 16 << 10;
/// What looking at an object's records counts, in bytes.
const RECORDS: u64 = 4096;
/// Lost records of one object that are looked at one by one.
const LOST_MAX: u32 = 64;

/// Where a walk over the store is.
#[derive(Clone, Debug)]
pub struct Scrub {
    next: ObjectId,
    chunk: u64,
    /// Of the object that is under way.
    found: Vec<Damage>,
    /// Blocks are told one by one, and all of them.
    each: bool,
    lost: u32,
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
        Self { next, chunk: 0, found: Vec::new(), each: false, lost: 0, objects: 0, bytes: 0, damaged: 0 }
    }

    /// Keeps a piece of damage. What follows on the last one is one with it; one more piece is kept than the book takes,
    /// so that it knows that there is more.
    fn keep(&mut self, new: Damage) {
        if let Some(last) = self.found.last_mut()
            && !self.each
            && last.kind == new.kind
            && last.offset + last.length == new.offset
        {
            last.length += new.length;
        } else if self.each || self.found.len() <= MAX_DAMAGE {
            self.found.push(new);
        }
    }

    /// The object that comes next, or is under way. A walk may go on from there after a restart.
    #[must_use]
    pub fn next(&self) -> ObjectId {
        self.next
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
        DamageKind::Attributes => return attributes.then_some(*damage),
        DamageKind::Record | DamageKind::Memberships => return Some(*damage),
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
                let mut block = [0; BLOCK as usize];
                for offset in (damage.offset / BLOCK * BLOCK..end).step_by(BLOCK as usize) {
                    let bytes = &mut block[..BLOCK.min(length - offset) as usize];
                    if self.read_range(id, offset, bytes).is_err() {
                        left.push(Damage { offset, length: bytes.len() as u64, ..*damage });
                    }
                }
                if damage.kind == DamageKind::Data {
                    let wrong = self.wrong_units(id, &(damage.offset..end), length);
                    left.extend(wrong.into_iter().map(|unit| {
                        let (offset, length) = (unit.start, unit.end - unit.start);
                        Damage { offset, length, ..*damage }
                    }));
                }
            }
        }
        left
    }

    /// The units with any of these bytes whose stored digest is not that of their bytes, all of which have the right
    /// checksums. The caller holds the lock of the object, which has `length` bytes.
    fn wrong_units(&self, id: ObjectId, bytes: &Range<u64>, length: u64) -> Vec<Range<u64>> {
        let mut wrong = Vec::new();
        let mut content = vec![0; UNIT_MAX as usize];
        for number in bytes.start / CHUNK..bytes.end.div_ceil(CHUNK) {
            let Ok(Some(chunk)) = self.chunk(id, number) else { continue };
            let Some(profile) = chunk.digests().profile() else { continue };
            for (unit, value) in chunk.digests().iter(profile) {
                let start = number * CHUNK + u64::from(unit) * profile.unit_bytes();
                let end = (start + profile.unit_bytes()).min(length);
                if start >= end || start >= bytes.end || bytes.start >= end {
                    continue;
                }
                let content = &mut content[..(end - start) as usize];
                let read = self.read_range(id, start, content);
                if read.is_ok() && profile.value(start / profile.unit_bytes(), content) != value {
                    wrong.push(start..end);
                }
            }
        }
        wrong
    }

    /// Checks about `bytes_max` more bytes, and at least one piece of 1 MiB.
    ///
    /// # Errors
    /// `Index` if the index cannot be read at all. Damage is no error.
    pub fn scrub(&self, walk: &mut Scrub, bytes_max: u64) -> Result<ScrubStep, StoreError> {
        let mut step = ScrubStep { bytes: 0, damage: Vec::new(), done: false };
        loop {
            let found = self.index.scan_known(object_key(walk.next)..=all_objects().1, 1)?;
            let Some(id) = found.first().map(|(key, _)| object_of(key)) else {
                step.done = true;
                break;
            };
            if id != walk.next {
                *walk = Self::fresh(walk, id);
            }
            let (bytes, more) = self.scrub_some(id, walk)?;
            step.bytes += bytes;
            walk.bytes += bytes;
            if !more {
                step.bytes += RECORDS;
                self.finish_scrub(id, walk, &mut step);
                match id.object.checked_add(1).map(|object| ObjectId::new(id.partition, object)) {
                    Some(next) => *walk = Self::fresh(walk, next),
                    None => match id.partition.checked_add(1) {
                        Some(partition) => *walk = Self::fresh(walk, ObjectId::new(partition, 0)),
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

    fn fresh(walk: &Scrub, next: ObjectId) -> Scrub {
        let Scrub { objects, bytes, damaged, .. } = *walk;
        Scrub { objects, bytes, damaged, ..Scrub::from(next) }
    }

    /// The object was looked at: what was found takes the place of what was known.
    fn finish_scrub(&self, id: ObjectId, walk: &mut Scrub, step: &mut ScrubStep) {
        walk.objects += 1;
        let mut book = self.book.lock();
        // What only opening can tell stays.
        let kept = book.of(id).into_iter().filter(|damage| match damage.kind {
            DamageKind::Memberships => true,
            DamageKind::Map | DamageKind::Attributes | DamageKind::Record => self.is_poisoned(),
            DamageKind::Data | DamageKind::Unreadable => false,
        });
        let found: Vec<Damage> = kept.chain(walk.found.drain(..)).collect();
        book.replace(id, found);
        step.damage.extend(book.of(id));
    }

    /// Looks at the next chunk of an object, or at what else it has. Gives bytes read, and whether there is more.
    fn scrub_some(&self, id: ObjectId, walk: &mut Scrub) -> Result<(u64, bool), StoreError> {
        let _lock = self.lock(id).read();
        let length = match self.record(id) {
            Ok(record) => record.length,
            // Removed meanwhile.
            Err(StoreError::NotFound(_)) => return Ok((0, false)),
            Err(StoreError::IndexDamaged { .. }) => {
                // Each step comes by here.
                let lost = Damage::whole(id, DamageKind::Record);
                if !walk.found.contains(&lost) {
                    walk.keep(lost);
                }
                u64::MAX
            }
            Err(error) => return Err(error),
        };
        let range = chunk_key(id, walk.chunk)..=chunk_key(id, u64::MAX);
        let mut read = 0;
        if let Some((key, value)) = self.index.scan(range, 1)?.pop() {
            let number = chunk_of(&key).max(walk.chunk);
            let offset = number.saturating_mul(CHUNK).min(length);
            let (bytes, end) = match value {
                Ok(Value::Chunk(chunk)) => {
                    (self.scrub_chunk(id, offset, &chunk, length, walk), offset + CHUNK)
                }
                _ => {
                    walk.lost += 1;
                    let end = if walk.lost < LOST_MAX { offset.saturating_add(CHUNK) } else { u64::MAX };
                    (0, end)
                }
            };
            if bytes == 0 && offset < length {
                let length = end.min(length) - offset;
                walk.keep(Damage { object: id, kind: DamageKind::Map, offset, length });
            }
            walk.chunk = end / CHUNK;
            if end < length {
                return Ok((bytes, true));
            }
            read = bytes;
        }
        let attributes = self.index.scan(attribute_range(id, None), MAX_ATTRIBUTES)?;
        if attributes.iter().any(|(_, value)| matches!(value, Err(Rotten))) {
            walk.keep(Damage::whole(id, DamageKind::Attributes));
        }
        Ok((read, false))
    }

    /// Reads and checks all blocks of a chunk that begins at `base` of an object, and the digests of its units. Gives the
    /// bytes read.
    fn scrub_chunk(&self, id: ObjectId, base: u64, chunk: &Chunk, length: u64, walk: &mut Scrub) -> u64 {
        let mut content = vec![0; CHUNK as usize];
        let mut sound = true;
        let mut bytes = 0;
        for (extent, sums) in chunk.extents() {
            let start = base + u64::from(extent.first) * BLOCK;
            for (slice, sums) in sums.chunks(SLICE_BLOCKS as usize).enumerate() {
                let first = slice as u64 * SLICE_BLOCKS;
                let from = (u64::from(extent.first) + first) * BLOCK;
                let into = &mut content[from as usize..][..sums.len() * BLOCK as usize];
                bytes += into.len() as u64;
                if self.read_slice(extent.place + first, sums, 0, into).is_ok() {
                    continue;
                }
                for (at, sum) in (first..).zip(sums) {
                    let block = &mut into[((at - first) * BLOCK) as usize..][..BLOCK as usize];
                    let kind = match self.read_slice(extent.place + at, &[*sum], 0, block) {
                        Ok(()) => continue,
                        Err(BadRead::Sum(_)) => DamageKind::Data,
                        Err(BadRead::Io(..)) => DamageKind::Unreadable,
                    };
                    let offset = start + at * BLOCK;
                    // A block that lies behind the object's end is nobody's.
                    if offset < length {
                        let length = BLOCK.min(length - offset);
                        sound = false;
                        walk.keep(Damage { object: id, kind, offset, length });
                    }
                }
            }
        }
        // Where all checksums are right, the digests beside them must be, too.
        if sound && length != u64::MAX {
            for (unit, range) in chunk.wrong_digests(base, length, &content) {
                tracing::error!(%id, unit, "a stored digest is not that of the bytes");
                let (offset, length) = (range.start, range.end - range.start);
                walk.keep(Damage { object: id, kind: DamageKind::Data, offset, length });
            }
        }
        bytes
    }

    /// Reads and checks every byte and record of an object; gives the damaged blocks as (offset, length).
    /// For scrubbing; other operations on the object wait only for 1 MiB at a time.
    ///
    /// # Errors
    /// `NotFound`, `IndexDamaged`, `Io`.
    pub fn verify(&self, id: ObjectId) -> Result<Vec<(u64, u64)>, StoreError> {
        {
            let _lock = self.lock(id).read();
            self.record(id)?;
        }
        let mut walk = Scrub { each: true, ..Scrub::from(id) };
        while self.scrub_some(id, &mut walk)?.1 {}
        let mut blocks = Vec::new();
        for damage in &walk.found {
            match damage.kind {
                DamageKind::Data | DamageKind::Unreadable => blocks.push((damage.offset, damage.length)),
                _ => return Err(StoreError::IndexDamaged { object: id }),
            }
        }
        let mut step = ScrubStep { bytes: 0, damage: Vec::new(), done: false };
        self.finish_scrub(id, &mut walk, &mut step);
        Ok(blocks)
    }

    /// Is there any damage that is known?
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        !self.faults.is_empty() || !self.book.lock().is_empty() || self.salvage
    }
}
