//! READ MAP and READ MAPS AND COMPARE: data, holes and damage of a user object, and differences
//! from the object that it was duplicated from.
//!
//! Does: report ranges from the store, with known damage that still exists.
//! Does not: read data, except the few ranges known as damaged.
//! Contract: the caller has the object's lock. Memory is bounded by the output length, not by the
//! object.
//! Truth: docs/design/t10-osd.md 1.9; what READ MAPS AND COMPARE compares is ours:
//! docs/standards/device.md.

use sealstone_osd::ObjectId;
use sealstone_osd::cdb::{ReadMap, pointer};
use sealstone_osd::map::{
    ALL, ALLOCATION_MIN, DAMAGED_ATTRIBUTES, DAMAGED_DATA, HOLE, MapExtent as Entry, MapWriter, WRITTEN,
};
use sealstone_store::{ExtentKind, ObjectComparison, ObjectExtent};

use super::data::{partition_of, user_object};
use super::{CommandResult, CommandRun, ObjectEffect};
use crate::damage::{self, PIECE, Range};
use crate::device::OsdDevice;
use crate::duplicates::DuplicateKind;
use crate::failure::{self, OsdFailure};

/// Ranges requested from the store per step.
const STEP: usize = 4096;
/// Ranges counted beyond those that fit. A longer map does not report its full length.
const COUNTED_MAX: u64 = 1 << 20;
/// Byte of the CDB: MAP TYPE.
const KIND_FIELD: u16 = 48;

/// READ MAP.
pub(crate) fn read_map(run: &mut CommandRun<'_>, map: &ReadMap) -> Result<CommandResult, OsdFailure> {
    let length = user_object(run.device, map.object)?.length;
    let damage = damage::known(&*run.device.store, map.object)?;
    let damaged = still_damaged(run.device, map.object, length, &damage.ranges);
    answer(run, map, length, damage.attributes, |device, offset| {
        let extents = device.store.map(map.object, offset, STEP)?;
        let next = extents.last().map(|last| last.offset + last.length);
        let mut parts = Vec::with_capacity(extents.len());
        for extent in extents {
            split_damaged(&extent, &damaged, &mut parts);
        }
        Ok((parts, next))
    })
}

/// READ MAPS AND COMPARE: only ranges that differ from the object with the same id in the source
/// partition.
pub(crate) fn compare_maps(run: &mut CommandRun<'_>, map: &ReadMap) -> Result<CommandResult, OsdFailure> {
    let length = user_object(run.device, map.object)?.length;
    let lineage = partition_of(run.device, map.object)?.policy().lineage;
    if lineage.kind == DuplicateKind::Original {
        return Err(OsdFailure::Field(failure::PARTITION));
    }
    let source = ObjectId::new(lineage.source, map.object.object);
    // Looked up once: the source partition may change meanwhile, the result must not.
    let source_stat = user_object(run.device, source).ok();
    let length = source_stat.map_or(length, |source| source.length.max(length));
    answer(run, map, length, false, |device, offset| {
        let ObjectComparison { extents, next } = match source_stat {
            Some(_) => device.store.compare(map.object, source, offset, STEP)?,
            None => {
                let extents = device.store.map(map.object, offset, STEP)?;
                let next = extents.last().map(|last| last.offset + last.length);
                ObjectComparison { extents, next }
            }
        };
        Ok((extents.iter().map(|extent| (kind(extent), extent.offset, extent.length)).collect(), next))
    })
}

/// Type, first byte and length of a range.
type MapRange = (u16, u64, u64);

/// Encodes the ranges that `step` returns from an offset on, until it returns no continuation.
fn answer(
    run: &mut CommandRun<'_>,
    map: &ReadMap,
    length: u64,
    damaged_attributes: bool,
    step: impl Fn(&OsdDevice, u64) -> Result<(Vec<MapRange>, Option<u64>), OsdFailure>,
) -> Result<CommandResult, OsdFailure> {
    if ![ALL, WRITTEN, HOLE, DAMAGED_DATA, DAMAGED_ATTRIBUTES].contains(&map.kind) {
        return Err(OsdFailure::Field(KIND_FIELD));
    }
    if map.start > length {
        return Err(OsdFailure::Field(pointer::start(run.generation())));
    }
    if map.allocation == 0 {
        return Ok(CommandResult { effect: ObjectEffect::DataRead, ..CommandResult::of(map.object) });
    }
    if map.allocation < ALLOCATION_MIN {
        return Err(OsdFailure::Field(run.length_field()));
    }
    let wanted = |kind: u16| map.kind == ALL || map.kind == kind;
    let mut bytes = Vec::new();
    let mut out = MapWriter::new(&mut bytes, run.data_in.len());
    if damaged_attributes && wanted(DAMAGED_ATTRIBUTES) {
        out.push(&Entry { kind: DAMAGED_ATTRIBUTES, length: 0, offset: 0 });
    }
    let mut next = Some(map.start);
    // The last range may continue in the next step.
    let mut pending: Option<MapRange> = None;
    while let Some(offset) = next {
        if out.left_out() > COUNTED_MAX {
            break;
        }
        let (parts, more) = step(run.device, offset)?;
        next = more;
        for part in parts.into_iter().filter(|(kind, ..)| wanted(*kind)) {
            match &mut pending {
                Some(last) if last.0 == part.0 && last.1 + last.2 == part.1 => last.2 += part.2,
                _ => flush(&mut out, pending.replace(part)),
            }
        }
    }
    flush(&mut out, pending);
    out.finish(next.is_none());
    run.data_in[..bytes.len()].copy_from_slice(&bytes);
    let length = bytes.len() as u64;
    Ok(CommandResult {
        data_in: length,
        data_in_covered: length,
        effect: ObjectEffect::DataRead,
        ..CommandResult::of(map.object)
    })
}

fn flush(out: &mut MapWriter<'_>, part: Option<MapRange>) {
    if let Some((kind, offset, length)) = part {
        out.push_long(kind, offset, length);
    }
}

const fn kind(extent: &ObjectExtent) -> u16 {
    match extent.kind {
        ExtentKind::Hole => HOLE,
        ExtentKind::Data { .. } => WRITTEN,
    }
}

/// Splits a data range around its damaged parts.
fn split_damaged(extent: &ObjectExtent, damaged: &[Range], parts: &mut Vec<MapRange>) {
    let end = extent.offset + extent.length;
    let mut at = extent.offset;
    let data = kind(extent) == WRITTEN;
    for range in damaged.iter().filter(|range| data && range.offset < end && range.end() > extent.offset) {
        let (from, to) = (range.offset.max(at), range.end().min(end));
        if at < from {
            parts.push((WRITTEN, at, from - at));
        }
        if from < to {
            parts.push((DAMAGED_DATA, from, to - from));
            at = to;
        }
    }
    if at < end {
        parts.push((kind(extent), at, end - at));
    }
}

/// Returns the ranges that are still unreadable. Rewritten ones are readable again.
fn still_damaged(device: &OsdDevice, id: ObjectId, length: u64, ranges: &[Range]) -> Vec<Range> {
    let mut found = Vec::new();
    for &range in ranges {
        let most = range.length.min(length.saturating_sub(range.offset)).min(PIECE as u64);
        let sound = || device.store.examine_bytes(id, range.offset, most).is_ok_and(|found| found.is_empty());
        if most > 0 && !sound() {
            found.push(range);
        }
    }
    found.sort_unstable_by_key(|range| range.offset);
    found
}
