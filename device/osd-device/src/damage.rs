//! Damage of objects: finding and recording what cannot be read.
//!
//! Does: have the store verify every block and record of an object against its checksums and stored
//! digests, a piece at a time; keep findings in the Error Recovery attributes and in a
//! [`DamageList`] of damaged objects.
//! Does not: repair; rewriting the damaged blocks does.
//! Contract: one object's lock at a time, and at most one piece read under it, so commands wait no
//! longer than that. Reported damage was unreadable when it was recorded, under the object's lock:
//! a concurrent write is never reported as damage.
//! Truth: docs/design/t10-osd.md 3.5 (R+6, P+6, C+6, U+6); docs/standards/device.md.

mod list;

use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sealstone_store::{self as store, DamageKind, ObjectStore, StoreError};

pub(crate) use list::{DamageList, RecordResult};

use crate::attributes::rows::{self, INTERNAL, page};
use crate::catalog;
use crate::locks::{LockGuards, LockScope, ObjectLocks};

/// Bytes read under one lock.
pub(crate) const PIECE: usize = store::PIECE as usize;
/// Damaged bytes that are read again under one lock before they are recorded. Beyond that the first
/// reading counts; the next pass corrects it.
const CONFIRM_MAX: u64 = 64 << 20;
/// Damaged ranges recorded per object. Further ones are merged into one range up to the end.
pub(crate) const RANGES_MAX: usize = 256;
/// Damaged ranges of an object, 16 bytes each, in its internal page.
const DAMAGED_RANGES: AttributeId = AttributeId::new(INTERNAL, 0x20);

/// Bits of a damage summary.
const DATA: u8 = 0x01;
/// Of a partition or the root: something in it is damaged.
const LIST: u8 = 0x01;
const ATTRIBUTES: u8 = 0x02;

/// A range of bytes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl Range {
    /// Returns the byte after the last one.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// Damage of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Unreadable bytes, ascending.
    pub ranges: Vec<Range>,
    /// Whether its record, one of its attributes, or a stored digest that is not of data is
    /// damaged.
    pub attributes: bool,
}

impl Damage {
    /// Whether there is no damage.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.ranges.is_empty() && !self.attributes
    }

    /// Returns the number of damaged bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.length).sum()
    }

    /// Adds damage reported by the store, in its order.
    pub(crate) fn take(&mut self, pieces: &[store::Damage]) {
        for piece in pieces {
            match piece.kind {
                DamageKind::Data | DamageKind::Unreadable | DamageKind::Map if piece.length > 0 => {
                    self.add(piece.offset, piece.length);
                }
                _ => self.attributes = true,
            }
        }
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

/// Progress of reading one object.
#[derive(Clone, Debug)]
pub(crate) struct Examination {
    course: store::ObjectExamination,
    pub(crate) found: Damage,
    /// A byte of the last piece, if units in it have no digest.
    pub(crate) incomplete: Option<u64>,
}

impl Examination {
    /// Starts at the first byte.
    pub(crate) fn of(id: ObjectId) -> Self {
        Self { course: store::ObjectExamination::of(id), found: Damage::default(), incomplete: None }
    }

    /// Resumes at a later byte, with earlier findings.
    pub(crate) fn resumed(id: ObjectId, at: u64, mut found: Damage) -> Self {
        let course = store::ObjectExamination::resumed(id, at);
        found.ranges.retain(|range| range.offset < course.at());
        Self { course, found, incomplete: None }
    }

    pub(crate) const fn id(&self) -> ObjectId {
        self.course.id()
    }

    /// Returns the position: everything before it was read.
    pub(crate) const fn at(&self) -> u64 {
        self.course.at()
    }

    /// Records the remainder as damaged, because the object cannot be read further.
    pub(crate) fn give_up(&mut self, length: Option<u64>) {
        match length.filter(|length| *length > self.at()) {
            Some(length) => self.found.add(self.at(), length - self.at()),
            None => self.found.attributes = true,
        }
    }
}

/// Result of one step of an examination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExamineStep {
    /// There is more; number of bytes read.
    More(u64),
    /// The object is complete; number of bytes read.
    End(u64),
    /// The object does not exist any more.
    Gone,
}

/// Reads objects of a store, under the locks of the device, if one is running.
#[derive(Clone, Copy)]
pub(crate) struct Examiner<'a> {
    pub(crate) store: &'a dyn ObjectStore,
    pub(crate) locks: Option<&'a ObjectLocks>,
}

impl<'a> Examiner<'a> {
    pub(crate) fn acquire(&self, scope: LockScope) -> Option<LockGuards<'a>> {
        self.locks.map(|locks| locks.acquire(scope))
    }

    /// Reads the next piece.
    pub(crate) fn step(&self, examination: &mut Examination) -> Result<ExamineStep, StoreError> {
        let _look = self.acquire(LockScope::Look(examination.id()));
        let examined = match self.store.examine(&mut examination.course) {
            Err(StoreError::NotFound(_)) => return Ok(ExamineStep::Gone),
            examined => examined?,
        };
        examination.found.take(&examined.damage);
        examination.incomplete = examined.incomplete;
        Ok(if examined.more { ExamineStep::More(examined.bytes) } else { ExamineStep::End(examined.bytes) })
    }

    /// Returns the part of `doubted` that is damaged now. The caller has the object's lock.
    /// Anything that the store cannot check stays as it was.
    pub(crate) fn confirm(&self, id: ObjectId, doubted: &Damage) -> Damage {
        let mut sure = Damage::default();
        let mut left = CONFIRM_MAX;
        for range in &doubted.ranges {
            let length = range.length.min(left);
            left -= length;
            match self.store.examine_bytes(id, range.offset, length) {
                _ if length == 0 => {}
                Ok(found) => sure.take(&found),
                Err(StoreError::NotFound(_) | StoreError::IndexDamaged { .. }) => continue,
                Err(_) => sure.add(range.offset, length),
            }
            if length < range.length {
                sure.add(range.offset + length, range.length - length);
            }
        }
        sure.attributes = doubted.attributes
            && match self.store.examine_records(id) {
                Ok(kinds) => !kinds.is_empty(),
                Err(StoreError::NotFound(_)) => false,
                Err(_) => true,
            };
        sure
    }
}

/// Returns an attribute of the Error Recovery page of an object.
fn recovery(kind: ObjectType, number: u32) -> AttributeId {
    AttributeId::new(rows::base(kind) + page::ERROR_RECOVERY, number)
}

/// Returns the damage recorded for an object.
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

/// Records damage of an object in its attributes.
fn store_damage(
    store: &dyn ObjectStore,
    id: ObjectId,
    kind: ObjectType,
    damage: &Damage,
    now_ms: u64,
) -> Result<(), StoreError> {
    let bits = damage.bits();
    let scope = store.begin();
    catalog::set(store, id, recovery(kind, 1), &[bits])?;
    for (bit, number) in [(DATA, 3), (ATTRIBUTES, 4)] {
        if bits & bit != 0 {
            catalog::set(store, id, recovery(kind, number), &catalog::time(now_ms))?;
        }
    }
    let ranges = damage.ranges.iter().flat_map(|range| [range.offset, range.length]);
    let bytes: Vec<u8> = ranges.flat_map(u64::to_be_bytes).collect();
    catalog::set(store, id, DAMAGED_RANGES, &bytes)?;
    scope.end()
}

/// Records on a partition or the root how many of its objects or partitions are damaged.
pub(crate) fn store_contained(
    store: &dyn ObjectStore,
    id: ObjectId,
    kind: ObjectType,
    damaged: u64,
    now_ms: u64,
) -> Result<(), StoreError> {
    let before = catalog::number(store, id, recovery(kind, 6), 0)?;
    let scope = store.begin();
    catalog::set(store, id, recovery(kind, 2), &[if damaged > 0 { LIST } else { 0 }])?;
    if damaged > before {
        catalog::set(store, id, recovery(kind, 5), &catalog::time(now_ms))?;
    }
    catalog::set(store, id, recovery(kind, 6), &damaged.to_be_bytes())?;
    scope.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = store::BLOCK;

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
