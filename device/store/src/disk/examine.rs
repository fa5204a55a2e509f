//! Checks an object against everything that was stored for that: checksums, digests, sums.
//!
//! Does: works one chunk at a time; finds blocks and records that differ from what was written, and
//! units without a digest; computes those digests.
//! Does not: choose objects, limit its rate, or repair.
//! Contract: as [`ObjectExaminer`]; results are consistent for one moment under the object's lock.
//! Costs: one read and one hash of every block, and 0.3 µs per digest where a sum is kept.

use std::ops::Range;

use sealstone_digest::Profile;
use sealstone_osd::ObjectId;

use super::chunk::{CHUNK_BLOCKS, Chunk};
use super::index_space::{PageDemand, ReserveClass};
use super::read::{BadRead, SLICE_BLOCKS};
use super::record::{CorruptRecord, RecordValue, chunk_key, chunk_of, profile_key};
use super::stage::StagedChanges;
use super::{DiskStore, MAX_ATTRIBUTES, attribute_range};
use crate::damage::{Damage, DamageKind};
use crate::examine::{CompletedDigests, ExaminationStep, ObjectExamination, ObjectExaminer, PIECE, join};
use crate::{BLOCK, StoreError};

/// Bytes of an object in one chunk record.
const CHUNK: u64 = CHUNK_BLOCKS * BLOCK;
const _: () = assert!(CHUNK == PIECE, "a step reads a chunk");
/// Bytes of the largest digest unit.
const UNIT_MAX: u64 = 16 << 10;
/// Maximum number of lost records of one object that are examined separately.
const LOST_MAX: u32 = 64;

impl DiskStore {
    /// Checks the next chunk of an object, and its records with the last chunk. Replaces the known
    /// damage of the object with the findings.
    pub(crate) fn examine_next(&self, course: &mut ObjectExamination) -> Result<ExaminationStep, StoreError> {
        let id = course.id;
        let examined = match self.examine_chunk_or_records(course) {
            Err(StoreError::NotFound(_)) => {
                self.book.lock().replace(id, []);
                return Err(StoreError::NotFound(id));
            }
            examined => examined?,
        };
        course.keep(&examined.damage);
        if !examined.more {
            let mut book = self.book.lock();
            let known = if course.whole { book.of(id) } else { Vec::new() };
            // Damage that only opening can find is kept.
            let kept = known.into_iter().filter(|damage| match damage.kind {
                DamageKind::Memberships => true,
                DamageKind::Map | DamageKind::Attributes | DamageKind::Record => self.is_poisoned(),
                _ => false,
            });
            let found: Vec<Damage> = kept.chain(course.found.iter().copied()).collect();
            if course.whole {
                book.replace(id, found);
            } else {
                found.into_iter().for_each(|damage| book.add(damage));
            }
        }
        Ok(examined)
    }

    fn examine_chunk_or_records(
        &self,
        course: &mut ObjectExamination,
    ) -> Result<ExaminationStep, StoreError> {
        let id = course.id;
        let mut step = ExaminationStep::default();
        let _lock = self.lock(id).read();
        let length = match self.record(id) {
            Ok(record) => record.length,
            Err(StoreError::IndexDamaged { .. }) => {
                // Every step checks this.
                let lost = Damage::whole(id, DamageKind::Record);
                if !course.found.contains(&lost) {
                    step.damage.push(lost);
                }
                u64::MAX
            }
            Err(error) => return Err(error),
        };
        if course.at == 0 && course.whole {
            course.sum = self.begin_sum(id);
        }
        let range = chunk_key(id, course.at / CHUNK)..=chunk_key(id, u64::MAX);
        if let Some((key, value)) = self.index.scan(range, 1)?.pop() {
            let number = chunk_of(&key).max(course.at / CHUNK);
            let base = number.saturating_mul(CHUNK).min(length);
            let mut end = base.saturating_add(CHUNK);
            let mut mapped = false;
            if let Ok(RecordValue::Chunk(chunk)) = value {
                let mut found = Vec::new();
                step.bytes = self
                    .examine_chunk(id, base, &chunk, length, &(base..end), &mut |piece| found.push(piece));
                mapped = step.bytes > 0;
                found.sort_by_key(|piece| piece.offset);
                if found.is_empty() {
                    step.incomplete = self.is_incomplete(id, base, &chunk, length).then_some(base);
                }
                found.into_iter().for_each(|piece| join(&mut step.damage, piece, course.each));
                if let Some(sum) = &mut course.sum {
                    sum.add(id, number, &chunk);
                }
            } else {
                course.lost += 1;
                course.sum = None;
                end = if course.lost < LOST_MAX { end } else { u64::MAX };
            }
            if !mapped && base < length {
                let length = end.min(length) - base;
                join(
                    &mut step.damage,
                    Damage { object: id, kind: DamageKind::Map, offset: base, length },
                    course.each,
                );
            }
            course.at = end;
            if end < length {
                step.more = true;
                return Ok(step);
            }
        }
        let wrong_sum = course.sum.take().is_some_and(|sum| sum.is_doubtful(self, id) && self.wrong_sum(id));
        let others = self.damaged_records(id)?.into_iter().chain(wrong_sum.then_some(DamageKind::Sum));
        step.damage.extend(others.map(|kind| Damage::whole(id, kind)));
        Ok(step)
    }

    /// Reads and checks the blocks of the chunk at `base` that lie in `only` (aligned to units),
    /// and the digests of the units there. Returns the number of bytes read.
    fn examine_chunk(
        &self,
        id: ObjectId,
        base: u64,
        chunk: &Chunk,
        length: u64,
        only: &Range<u64>,
        report: &mut dyn FnMut(Damage),
    ) -> u64 {
        let wanted = only.start.saturating_sub(base) / BLOCK
            ..only.end.saturating_sub(base).div_ceil(BLOCK).min(CHUNK_BLOCKS);
        let mut content = vec![0; CHUNK as usize];
        let mut bad = [false; CHUNK_BLOCKS as usize];
        let mut bytes = 0;
        for (extent, sums) in chunk.extents() {
            let first = u64::from(extent.first);
            let blocks = wanted.start.max(first)..wanted.end.min(first + sums.len() as u64);
            if blocks.start >= blocks.end {
                continue;
            }
            let sums = &sums[(blocks.start - first) as usize..(blocks.end - first) as usize];
            let location = extent.location + (blocks.start - first);
            for (slice, sums) in (0..).step_by(SLICE_BLOCKS as usize).zip(sums.chunks(SLICE_BLOCKS as usize))
            {
                let into =
                    &mut content[((blocks.start + slice) * BLOCK) as usize..][..sums.len() * BLOCK as usize];
                bytes += into.len() as u64;
                if self.read_slice(location + slice, sums, 0, into).is_ok() {
                    continue;
                }
                for ((at, sum), block) in (slice..).zip(sums).zip(into.chunks_exact_mut(BLOCK as usize)) {
                    let kind = match self.read_slice(location + at, &[*sum], 0, block) {
                        Ok(()) => continue,
                        Err(BadRead::Sum(_)) => DamageKind::Data,
                        Err(BadRead::Io(..)) => DamageKind::Unreadable,
                    };
                    bad[(blocks.start + at) as usize] = true;
                    let offset = base + (blocks.start + at) * BLOCK;
                    // A block beyond the object's end belongs to no one object's data.
                    if offset < length {
                        report(Damage { object: id, kind, offset, length: BLOCK.min(length - offset) });
                    }
                }
            }
        }
        // If all checksums of a unit are right, its digest must be right, too.
        if length != u64::MAX {
            let sound = |blocks: Range<u64>| {
                wanted.start <= blocks.start
                    && blocks.end <= wanted.end
                    && !bad[blocks.start as usize..blocks.end as usize].contains(&true)
            };
            for unit in chunk.wrong_digests(base, length, &content, sound) {
                tracing::debug!(%id, from = unit.start, "a stored digest does not match the bytes");
                let (offset, length) = (unit.start, unit.end - unit.start);
                report(Damage { object: id, kind: DamageKind::Data, offset, length });
            }
        }
        bytes
    }

    /// Returns the current damage of some bytes, and of those that share a unit with them. The
    /// caller holds the lock of the object, which has `length` bytes.
    pub(crate) fn damage_in(&self, id: ObjectId, bytes: Range<u64>, length: u64) -> Vec<Damage> {
        let mut found = Vec::new();
        let end = bytes.end.checked_next_multiple_of(UNIT_MAX).unwrap_or(u64::MAX).min(length);
        let bytes = bytes.start / UNIT_MAX * UNIT_MAX..end;
        let mut at = bytes.start;
        let mut lost = 0;
        while at < bytes.end {
            let range = chunk_key(id, at / CHUNK)..=chunk_key(id, (bytes.end - 1) / CHUNK);
            let next = self.index.scan(range, 1).ok().and_then(|mut found| found.pop());
            let Some((key, value)) = next else { break };
            let number = chunk_of(&key).max(at / CHUNK);
            let base = number * CHUNK;
            at = base + CHUNK;
            if let Ok(RecordValue::Chunk(chunk)) = value {
                self.examine_chunk(id, base, &chunk, length, &bytes, &mut |piece| found.push(piece));
            } else {
                lost += 1;
                at = if lost < LOST_MAX { at } else { bytes.end };
                let offset = base.max(bytes.start);
                let length = at.min(bytes.end) - offset;
                found.push(Damage { object: id, kind: DamageKind::Map, offset, length });
            }
        }
        found.sort_by_key(|piece| piece.offset);
        let mut joined = Vec::new();
        found.into_iter().for_each(|piece| join(&mut joined, piece, false));
        joined
    }

    /// Whether the chunk at `base` has units that lack a digest.
    fn is_incomplete(&self, id: ObjectId, base: u64, chunk: &Chunk, length: u64) -> bool {
        let profile = self.profile_of(id.partition).map(Profile::values);
        let lost = || self.lost_profile(ObjectId::of_partition(id.partition)) || self.is_poisoned();
        profile.is_some_and(|profile| {
            !chunk.unknown_units(profile, length.saturating_sub(base)).is_empty() && !lost()
        })
    }

    /// Whether the record of a partition's profile is lost.
    pub(crate) fn lost_profile(&self, id: ObjectId) -> bool {
        id.object == 0 && matches!(self.index.get(&profile_key(id.partition)), Ok(Some(Err(CorruptRecord))))
    }

    /// Returns the damage of an object's records, except those of its bytes. The caller holds its
    /// lock.
    fn damaged_records(&self, id: ObjectId) -> Result<Vec<DamageKind>, StoreError> {
        let mut kinds = Vec::new();
        let attributes = self.index.scan(attribute_range(id, None), MAX_ATTRIBUTES)?;
        if attributes.iter().any(|(_, value)| matches!(value, Err(CorruptRecord))) {
            kinds.push(DamageKind::Attributes);
        }
        kinds.extend(self.wrong_page(id).then_some(DamageKind::Digests));
        kinds.extend(self.lost_profile(id).then_some(DamageKind::Profile));
        Ok(kinds)
    }
}

impl ObjectExaminer for DiskStore {
    fn examine(&self, examination: &mut ObjectExamination) -> Result<ExaminationStep, StoreError> {
        self.examine_next(examination)
    }

    fn examine_bytes(&self, id: ObjectId, offset: u64, length: u64) -> Result<Vec<Damage>, StoreError> {
        let _lock = self.lock(id).read();
        let object = match self.record(id) {
            Err(StoreError::IndexDamaged { .. }) => return Ok(Vec::new()),
            record => record?.length,
        };
        let found = self.damage_in(id, offset..offset.saturating_add(length), object);
        found.iter().for_each(|piece| self.note(*piece));
        Ok(found)
    }

    fn examine_records(&self, id: ObjectId) -> Result<Vec<DamageKind>, StoreError> {
        let _lock = self.lock(id).read();
        let mut kinds = match self.record(id) {
            Ok(_) => self.damaged_records(id)?,
            Err(StoreError::IndexDamaged { .. }) => vec![DamageKind::Record],
            Err(error) => return Err(error),
        };
        kinds.extend(self.wrong_sum(id).then_some(DamageKind::Sum));
        Ok(kinds)
    }

    fn complete_digests(&self, id: ObjectId, offset: u64) -> Result<CompletedDigests, StoreError> {
        let Some(profile) = self.profile_of(id.partition).map(Profile::values) else {
            return Ok(CompletedDigests::default());
        };
        let _room = match self.admit(PageDemand::bytes(CHUNK, 0), ReserveClass::Addition) {
            // They are computed later.
            Err(StoreError::NoSpace) => return Ok(CompletedDigests::default()),
            index_space => index_space?,
        };
        let inside = self.groups.gate.enter();
        self.groups.check()?;
        let lock = self.lock(id).write();
        let record = self.record(id)?;
        let (number, base) = (offset / CHUNK, offset / CHUNK * CHUNK);
        let Some(chunk) = self.chunk(id, number)? else { return Ok(CompletedDigests::default()) };
        if !self.is_incomplete(id, base, &chunk, record.length) {
            return Ok(CompletedDigests::default());
        }
        let mut done = CompletedDigests::default();
        // Setting digests of a new profile drops all others: not if one of them shows damage.
        if chunk.digests().profile().is_some_and(|of| of != profile) {
            let mut wrong = false;
            let all = base..base + CHUNK;
            done.bytes += self.examine_chunk(id, base, &chunk, record.length, &all, &mut |_| wrong = true);
            if wrong {
                return Ok(done);
            }
        }
        let units = chunk.unknown_units(profile, record.length.saturating_sub(base));
        let mut stage = StagedChanges::new(self, id, record);
        done.units = stage.complete(number, profile, &units)?;
        done.bytes += units.len() as u64 * profile.unit_bytes();
        if done.units > 0 {
            let ack = stage.finish(false);
            drop((lock, inside));
            self.acknowledge(ack)?;
        }
        Ok(done)
    }
}
