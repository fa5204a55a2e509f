//! What of an object cannot be read: finding it, and what is remembered of it.
//!
//! Does: read every block and record of an object against its checksum, a piece at a time; keep what was found in the
//! Error Recovery attributes and in a [`Book`] of damaged objects. Does not: repair; writing the damaged blocks anew does.
//! Contract: one object's lock at a time and at most a piece read under it, so that commands wait for no more than that.
//! What is told as damaged could not be read at the moment when it was noted, under the object's lock: a write that
//! came in between is never told as damage.
//! Truth: docs/design/t10-osd.md 3.5 (R+6, P+6, C+6, U+6); docs/standards/device.md.

mod book;

use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sealstone_store::{BLOCK, DamageKind, ObjectStore, StoreError, StretchKind};

pub(crate) use book::{Book, Settled};

use crate::attributes::rows::{self, INTERNAL, page};
use crate::catalog;
use crate::locks::{Grasp, Locks, Reach};

/// Bytes read under one lock.
pub(crate) const PIECE: usize = 1 << 20;
/// Bytes of an object that one record of the index is about.
const MAPPED: u64 = 1 << 20;
/// Most damaged ranges that are remembered of one object; more are counted as one to the end.
pub(crate) const RANGES_MAX: usize = 256;
/// Damaged ranges of an object, 16 bytes each: in its internal page.
const DAMAGED_RANGES: AttributeId = AttributeId::new(INTERNAL, 0x20);

/// Bits of a damage summary.
const DATA: u8 = 0x01;
/// Of a partition or the root: something in it is damaged.
const LIST: u8 = 0x01;
const ATTRIBUTES: u8 = 0x02;

/// Bytes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first one.
    pub offset: u64,
    /// How many.
    pub length: u64,
}

impl Range {
    /// The byte after the last one.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// What is wrong with an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Bytes that cannot be read, ascending.
    pub ranges: Vec<Range>,
    /// Its record, one of its attributes, or the record of where its bytes are.
    pub attributes: bool,
}

impl Damage {
    /// Nothing is.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.ranges.is_empty() && !self.attributes
    }

    /// Damaged bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.length).sum()
    }

    fn add(&mut self, offset: u64, length: u64) {
        if self.ranges.last().is_some_and(|last| offset.saturating_add(length) <= last.end()) {
            return;
        }
        let full = self.ranges.len() >= RANGES_MAX;
        match self.ranges.last_mut() {
            Some(last) if last.end() == offset => last.length += length,
            Some(last) if full => {
                last.length = offset.saturating_add(length).saturating_sub(last.offset);
            }
            _ => self.ranges.push(Range { offset, length }),
        }
    }

    const fn bits(&self) -> u8 {
        let data = if self.ranges.is_empty() { 0 } else { DATA };
        if self.attributes { data | ATTRIBUTES } else { data }
    }
}

/// An object that is being read.
#[derive(Clone, Debug)]
pub(crate) struct Examination {
    pub(crate) id: ObjectId,
    /// Everything before this byte was read.
    pub(crate) at: u64,
    pub(crate) found: Damage,
}

/// How far one step of an examination came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is more; so many bytes were read.
    More(u64),
    /// That was all of it.
    End(u64),
    /// The object is not there any more.
    Gone,
}

/// Reads objects of a store, under the locks of the device that uses it, if one does.
#[derive(Clone, Copy)]
pub(crate) struct Examiner<'a> {
    pub(crate) store: &'a dyn ObjectStore,
    pub(crate) locks: Option<&'a Locks>,
}

impl<'a> Examiner<'a> {
    pub(crate) fn grasp(&self, reach: Reach) -> Option<Grasp<'a>> {
        self.locks.map(|locks| locks.reach(reach))
    }

    /// Begins at the first byte.
    pub(crate) fn begin(&self, id: ObjectId) -> Examination {
        Examination { id, at: 0, found: Damage::default() }
    }

    /// Reads the next piece.
    pub(crate) fn step(&self, examination: &mut Examination, buffer: &mut [u8]) -> Result<Step, StoreError> {
        let Examination { id, at, found } = examination;
        let _look = self.grasp(Reach::Look(*id));
        let read = match self.piece(*id, *at, buffer, found) {
            Ok((Some(next), read)) => {
                *at = next;
                return Ok(Step::More(read));
            }
            Ok((None, read)) => read,
            Err(StoreError::NotFound(_)) => return Ok(Step::Gone),
            Err(StoreError::IndexDamaged { .. }) => match self.lost_from(*id, *at) {
                // A record is lost that says where some of its bytes are: which ones, the store knows.
                Some(lost) if *at < lost.offset => {
                    let end = lost.offset.min(*at + buffer.len() as u64);
                    self.read_over(*id, *at, end, buffer, found)?;
                    let read = end - *at;
                    *at = end;
                    return Ok(Step::More(read));
                }
                Some(lost) if lost.end() > *at => {
                    found.add(*at, lost.end() - *at);
                    *at = lost.end();
                    return Ok(Step::More(0));
                }
                _ => {
                    found.attributes = true;
                    0
                }
            },
            Err(error) => return Err(error),
        };
        match self.store.attributes(*id, None) {
            Err(StoreError::IndexDamaged { .. }) => found.attributes = true,
            Ok(_) => {}
            Err(StoreError::NotFound(_)) => return Ok(Step::Gone),
            Err(error) => return Err(error),
        }
        Ok(Step::End(read))
    }

    /// The first bytes from `at` on of which the store does not know where they are.
    fn lost_from(&self, id: ObjectId, at: u64) -> Option<Range> {
        let known = self.store.known_damage(id);
        let lost = known.iter().filter(|piece| piece.kind == DamageKind::Map);
        let ranges = lost.map(|piece| Range { offset: piece.offset, length: piece.length });
        ranges.filter(|range| range.end() > at).min_by_key(|range| range.offset)
    }

    /// Reads the next data from `offset` on; gives where to go on and how much it was.
    fn piece(
        &self,
        id: ObjectId,
        offset: u64,
        buffer: &mut [u8],
        found: &mut Damage,
    ) -> Result<(Option<u64>, u64), StoreError> {
        let map = self.store.map(id, offset, 2)?;
        let Some(data) = map.iter().find(|stretch| stretch.kind != StretchKind::Hole) else {
            return Ok((map.last().filter(|_| map.len() == 2).map(|last| last.offset + last.length), 0));
        };
        let length = data.length.min(buffer.len() as u64);
        let end = data.offset + length;
        self.read_over(id, data.offset, end, buffer, found)?;
        Ok((Some(end), length))
    }

    /// Reads a stretch and notes what of it cannot be read.
    fn read_over(
        &self,
        id: ObjectId,
        from: u64,
        end: u64,
        buffer: &mut [u8],
        found: &mut Damage,
    ) -> Result<(), StoreError> {
        let mut at = from;
        // A medium that fails says nothing about where: then block by block.
        let mut most = buffer.len() as u64;
        while at < end {
            let wanted = usize::try_from((end - at).min(most)).unwrap_or(0);
            match self.store.read(id, at, &mut buffer[..wanted]) {
                Ok(_) => at += wanted as u64,
                Err(StoreError::Damaged { offset, length, .. }) => {
                    let from = offset.max(at);
                    found.add(from, offset.saturating_add(length).saturating_sub(from).max(1));
                    at = (offset / BLOCK + 1) * BLOCK;
                }
                Err(StoreError::IndexDamaged { .. }) => {
                    let stop = end.min((at / MAPPED + 1) * MAPPED);
                    found.add(at, stop - at);
                    at = stop;
                }
                Err(StoreError::Io { .. }) if most > BLOCK => most = BLOCK,
                Err(StoreError::Io { .. }) => {
                    let stop = end.min((at / BLOCK + 1) * BLOCK);
                    found.add(at, stop - at);
                    at = stop;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Those bytes of `doubted` that cannot be read now. The caller holds the object's lock.
    pub(crate) fn confirm(
        &self,
        id: ObjectId,
        length: u64,
        doubted: &Damage,
        buffer: &mut [u8],
    ) -> Result<Damage, StoreError> {
        let mut sure = Damage::default();
        for range in &doubted.ranges {
            self.read_over(id, range.offset, range.end().min(length), buffer, &mut sure)?;
        }
        Ok(sure)
    }

    /// Can the object's own record or one of its attributes not be read?
    pub(crate) fn records_damaged(&self, id: ObjectId) -> bool {
        let index = |error| matches!(error, StoreError::IndexDamaged { .. });
        self.store.stat(id).is_err_and(index) || self.store.attributes(id, None).is_err_and(index)
    }
}

/// The Error Recovery page of an object.
fn recovery(kind: ObjectType, number: u32) -> AttributeId {
    AttributeId::new(rows::base(kind) + page::ERROR_RECOVERY, number)
}

/// What was found last of an object.
pub(crate) fn known(store: &dyn ObjectStore, id: ObjectId) -> Result<Damage, StoreError> {
    let kind = match store.stat(id) {
        Ok(stat) => stat.kind,
        Err(StoreError::IndexDamaged { .. }) => return Ok(Damage { attributes: true, ..Damage::default() }),
        Err(error) => return Err(error),
    };
    let attributes = match store.attribute(id, recovery(kind, 1)) {
        Ok(value) => value.is_some_and(|value| value.first().is_some_and(|bits| bits & ATTRIBUTES != 0)),
        Err(StoreError::IndexDamaged { .. }) => true,
        Err(error) => return Err(error),
    };
    let ranges = store.attribute(id, DAMAGED_RANGES).unwrap_or_default().unwrap_or_default();
    let range = |bytes: &[u8]| Range { offset: catalog::be(&bytes[..8]), length: catalog::be(&bytes[8..]) };
    Ok(Damage { ranges: ranges.chunks_exact(16).map(range).collect(), attributes })
}

/// Leaves on an object what is wrong with it.
fn store_damage(
    store: &dyn ObjectStore,
    id: ObjectId,
    kind: ObjectType,
    damage: &Damage,
    now_ms: u64,
) -> Result<(), StoreError> {
    let bits = damage.bits();
    let _together = store.begin();
    catalog::set(store, id, recovery(kind, 1), &[bits])?;
    for (bit, number) in [(DATA, 3), (ATTRIBUTES, 4)] {
        if bits & bit != 0 {
            catalog::set(store, id, recovery(kind, number), &catalog::time(now_ms))?;
        }
    }
    let ranges = damage.ranges.iter().flat_map(|range| [range.offset, range.length]);
    let bytes: Vec<u8> = ranges.flat_map(u64::to_be_bytes).collect();
    catalog::set(store, id, DAMAGED_RANGES, &bytes)
}

/// Leaves on a partition or the root what is wrong with what it contains: so many objects or partitions.
pub(crate) fn store_contained(
    store: &dyn ObjectStore,
    id: ObjectId,
    kind: ObjectType,
    damaged: u64,
    now_ms: u64,
) -> Result<(), StoreError> {
    let before = catalog::number(store, id, recovery(kind, 6), 0)?;
    let _together = store.begin();
    catalog::set(store, id, recovery(kind, 2), &[if damaged > 0 { LIST } else { 0 }])?;
    if damaged > before {
        catalog::set(store, id, recovery(kind, 5), &catalog::time(now_ms))?;
    }
    catalog::set(store, id, recovery(kind, 6), &damaged.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_ranges_are_joined_and_bounded() {
        let mut damage = Damage::default();
        damage.add(0, BLOCK);
        damage.add(BLOCK, 10);
        assert_eq!(damage.ranges, [Range { offset: 0, length: BLOCK + 10 }]);
        for block in 1..1000 {
            damage.add(block * 2 * BLOCK, BLOCK);
        }
        assert_eq!(damage.ranges.len(), RANGES_MAX);
        assert_eq!(damage.ranges.last().unwrap().end(), 1999 * BLOCK);
    }
}
