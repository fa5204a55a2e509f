//! OBJECT STRUCTURE CHECK: is everything of a partition, or of the device, what was written?
//!
//! Does: read every block that has data against its checksum, and every record of the index; leave what it finds in the
//! Error Recovery attributes. Does not: repair; writing the damaged blocks anew does. Contract: it holds one object's
//! lock at a time and reads at most a piece under it, so that other commands wait for no more than that; one check runs
//! at a time. What was damaged and is sound again is told as sound.
//! Truth: docs/design/t10-osd.md 1.10, 3.5 (R+6, P+6, U+6); docs/standards/device.md.

use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sealstone_store::{BLOCK, StoreError, StretchKind};

use super::data::partition_of;
use super::{Done, Run};
use crate::attributes::rows::{self, INTERNAL, USER, page};
use crate::catalog::{self, successor};
use crate::device::Device;
use crate::failure::Failure;
use crate::locks::Reach;

/// Bytes read under one lock.
pub(super) const PIECE: usize = 1 << 20;
/// Objects that one step asks for.
const STEP: usize = 256;
/// Most damaged ranges that are remembered of one object; more are counted as one to the end.
const RANGES_MAX: usize = 256;
/// Damaged ranges of a user object, 16 bytes each: in its internal page.
const DAMAGED_RANGES: AttributeId = AttributeId::new(INTERNAL, 0x20);

/// Bits of a damage summary.
const DATA: u8 = 0x01;
const LIST: u8 = 0x01;
const ATTRIBUTES: u8 = 0x02;

/// Bytes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl Range {
    pub(super) const fn end(self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// What is wrong with an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) ranges: Vec<Range>,
    pub(super) attributes: bool,
}

impl Damage {
    const fn is_none(&self) -> bool {
        self.ranges.is_empty() && !self.attributes
    }

    fn add(&mut self, offset: u64, length: u64) {
        let full = self.ranges.len() >= RANGES_MAX;
        match self.ranges.last_mut() {
            Some(last) if last.end() == offset => last.length += length,
            Some(last) if full => {
                last.length = offset.saturating_add(length).saturating_sub(last.offset);
            }
            _ => self.ranges.push(Range { offset, length }),
        }
    }
}

/// What the last check found of a user object.
pub(super) fn known_damage(device: &Device, id: ObjectId) -> Result<Damage, Failure> {
    let summary = AttributeId::new(USER + page::ERROR_RECOVERY, 1);
    let attributes = match device.store.attribute(id, summary) {
        Ok(value) => value.is_some_and(|value| value.first().is_some_and(|bits| bits & ATTRIBUTES != 0)),
        Err(StoreError::IndexDamaged { .. }) => true,
        Err(error) => return Err(error.into()),
    };
    let ranges = device.store.attribute(id, DAMAGED_RANGES).unwrap_or_default().unwrap_or_default();
    let range = |bytes: &[u8]| Range { offset: catalog::be(&bytes[..8]), length: catalog::be(&bytes[8..]) };
    Ok(Damage { ranges: ranges.chunks_exact(16).map(range).collect(), attributes })
}

/// OBJECT STRUCTURE CHECK of a partition, or of the root and all partitions.
pub(crate) fn check(run: &Run<'_>, object: ObjectId) -> Result<Done, Failure> {
    let device = run.device;
    let _only_one = device.checking.try_lock().ok_or(Failure::Taken)?;
    let partitions = if object.is_root() {
        device.catalog.partition_ids(0, usize::MAX)
    } else {
        partition_of(device, object)?;
        vec![object.partition]
    };
    let mut damaged = 0;
    for partition in partitions {
        damaged += u64::from(check_partition(device, partition, run.now_ms)?);
    }
    if object.is_root() {
        let own = own_damage(device, ObjectId::ROOT);
        report_container(device, ObjectId::ROOT, ObjectType::Root, own, damaged, run.now_ms)?;
    }
    Ok(Done::of(object))
}

/// Is anything in a partition damaged? One that was removed meanwhile is not.
fn check_partition(device: &Device, partition: u64, now_ms: u64) -> Result<bool, Failure> {
    let mut damaged = 0u64;
    let mut from = ObjectId::new(partition, 1);
    let object = ObjectId::of_partition(partition);
    loop {
        let found = {
            let _look = device.locks.reach(Reach::Look(object));
            if device.catalog.partition(partition).is_none() {
                return Ok(false);
            }
            device.store.list(from, STEP)?
        };
        let last = found.last().map(|(id, _)| *id);
        let whole = found.len() == STEP;
        for (id, _) in found.into_iter().filter(|(id, _)| id.partition == partition) {
            let damage = examine(device, id)?;
            damaged += u64::from(!damage.is_none());
            report(device, id, &damage, now_ms)?;
        }
        match last.and_then(successor) {
            Some(next) if whole && next.partition == partition => from = next,
            _ => break,
        }
    }
    let own = own_damage(device, object);
    let _change = device.locks.reach(Reach::Change(object));
    if device.catalog.partition(partition).is_none() {
        return Ok(false);
    }
    report_container(device, object, ObjectType::Partition, own, damaged, now_ms)?;
    Ok(own || damaged > 0)
}

/// Can the object's own record or one of its attributes not be read?
fn own_damage(device: &Device, id: ObjectId) -> bool {
    let index = |error| matches!(error, StoreError::IndexDamaged { .. });
    device.store.stat(id).is_err_and(index) || device.store.attributes(id, None).is_err_and(index)
}

/// Reads all of an object, a piece at a time; others use it in between.
fn examine(device: &Device, id: ObjectId) -> Result<Damage, Failure> {
    let mut damage = Damage::default();
    let mut buffer = vec![0; PIECE];
    let mut at = Some(0);
    while let Some(offset) = at {
        let _look = device.locks.reach(Reach::Look(id));
        at = match piece(device, id, offset, &mut buffer, &mut damage) {
            Ok(next) => next,
            Err(StoreError::NotFound(_)) => return Ok(Damage::default()),
            Err(StoreError::IndexDamaged { .. }) => {
                // Which of its bytes the record was about is not known.
                damage.attributes = true;
                None
            }
            Err(error) => return Err(error.into()),
        };
    }
    match device.store.attributes(id, None) {
        Err(StoreError::IndexDamaged { .. }) => damage.attributes = true,
        Ok(_) | Err(StoreError::NotFound(_)) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(damage)
}

/// Reads the next piece of data from `offset` on; gives where to go on.
fn piece(
    device: &Device,
    id: ObjectId,
    offset: u64,
    buffer: &mut [u8],
    damage: &mut Damage,
) -> Result<Option<u64>, StoreError> {
    let map = device.store.map(id, offset, 2)?;
    let Some(data) = map.iter().find(|stretch| stretch.kind != StretchKind::Hole) else {
        return Ok(map.last().filter(|_| map.len() == 2).map(|last| last.offset + last.length));
    };
    let length = data.length.min(buffer.len() as u64);
    let mut at = data.offset;
    while at < data.offset + length {
        let most = usize::try_from(data.offset + length - at).unwrap_or(0).min(buffer.len());
        match device.store.read(id, at, &mut buffer[..most]) {
            Ok(_) => break,
            Err(StoreError::Damaged { offset, length: bad, .. }) => {
                damage.add(offset.max(at), bad.max(1));
                at = (offset / BLOCK + 1) * BLOCK;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Some(data.offset + length))
}

/// Leaves what was found on an object, where it differs from what is known.
fn report(device: &Device, id: ObjectId, damage: &Damage, now_ms: u64) -> Result<(), Failure> {
    let _change = device.locks.reach(Reach::Change(id));
    let known = match known_damage(device, id) {
        Ok(known) => known,
        Err(Failure::Store(StoreError::NotFound(_))) => return Ok(()),
        Err(error) => return Err(error),
    };
    if known == *damage {
        return Ok(());
    }
    let store = &*device.store;
    let kind = store.stat(id).map_or(ObjectType::User, |stat| stat.kind);
    let recovery = rows::base(kind) + page::ERROR_RECOVERY;
    let bits =
        if damage.ranges.is_empty() { 0 } else { DATA } | if damage.attributes { ATTRIBUTES } else { 0 };
    let _together = store.begin();
    catalog::set(store, id, AttributeId::new(recovery, 1), &[bits])?;
    for (bit, number) in [(DATA, 3), (ATTRIBUTES, 4)] {
        if bits & bit != 0 {
            catalog::set(store, id, AttributeId::new(recovery, number), &catalog::time(now_ms))?;
        }
    }
    let ranges = damage.ranges.iter().flat_map(|range| [range.offset, range.length]);
    let bytes: Vec<u8> = ranges.flat_map(u64::to_be_bytes).collect();
    Ok(catalog::set(store, id, DAMAGED_RANGES, &bytes)?)
}

/// Leaves what was found on a partition or the root: its own damage, and that of what it contains.
fn report_container(
    device: &Device,
    id: ObjectId,
    kind: ObjectType,
    own: bool,
    damaged: u64,
    now_ms: u64,
) -> Result<(), Failure> {
    let store = &*device.store;
    let at = |number| AttributeId::new(rows::base(kind) + page::ERROR_RECOVERY, number);
    let _together = store.begin();
    catalog::set(store, id, at(1), &[if own { ATTRIBUTES } else { 0 }])?;
    catalog::set(store, id, at(2), &[if damaged > 0 { LIST } else { 0 }])?;
    if own {
        catalog::set(store, id, at(4), &catalog::time(now_ms))?;
    }
    if damaged > 0 {
        catalog::set(store, id, at(5), &catalog::time(now_ms))?;
    }
    Ok(catalog::set(store, id, at(6), &damaged.to_be_bytes())?)
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
