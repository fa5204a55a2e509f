//! LIST and LIST COLLECTION: partitions, user objects, collections, members.
//!
//! Does: return whole entries up to the allocation length, with attributes if requested, and the
//! continuation id; report whether the list changed during a series.
//! Contract: the caller has no lock. Entries are written directly into the output buffer; other
//! memory is bounded by one step.
//! Costs: O(log n + entries); no step holds a lock for more than its own entries.
//! Truth: docs/design/t10-osd.md 1.9; traps T6, T12, T13.

use sealstone_osd::cdb::{List, pointer};
use sealstone_osd::listing::{ALLOCATION_MIN, End, HEADER, Head, Listed, entry_with_attributes};
use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sealstone_seal::Permit;
use sealstone_store::StoreError;

use super::data::partition_of;
use super::walk::MemberSet;
use super::{CommandResult, CommandRun, collections, members};
use crate::attributes::current::CurrentCommandPage;
use crate::attributes::engine::AttributeRequest;
use crate::attributes::view::AttributeView;
use crate::device::OsdDevice;
use crate::failure::OsdFailure;
use crate::locks::LockScope;
use crate::report::OsdRefusal;

/// Ids listed per step.
const STEP: usize = 1024;
/// Entries with attributes listed per step.
const STEP_WITH_ATTRIBUTES: usize = 64;
/// Flag of every list identifier. The other bits are the change count at the start of the series.
const SERIES: u32 = 0x8000_0000;

/// Parameters for attributes in LIST entries.
#[derive(Clone, Copy)]
pub(crate) struct ListEntries<'a> {
    pub(crate) attribute_request: &'a AttributeRequest<'a>,
    pub(crate) permit: Permit,
}

/// Kind of entries of a list.
#[derive(Clone, Copy)]
enum ListSource {
    Partitions,
    Objects(u64),
    Collections(u64),
    Members(MemberSet),
}

impl ListSource {
    fn of_list(device: &OsdDevice, list: &List) -> Result<Self, OsdFailure> {
        if list.object.is_root() {
            return Ok(Self::Partitions);
        }
        partition_of(device, list.object)?;
        Ok(Self::Objects(list.object.partition))
    }

    fn of_list_collection(device: &OsdDevice, list: &List) -> Result<Self, OsdFailure> {
        partition_of(device, list.object)?;
        if list.object.is_partition() {
            return Ok(Self::Collections(list.object.partition));
        }
        MemberSet::of(device, list.object).map(Self::Members)
    }

    const fn listed(self) -> Listed {
        match self {
            Self::Partitions => Listed::Partitions,
            Self::Collections(_) => Listed::Collections,
            Self::Objects(_) | Self::Members(_) => Listed::Objects,
        }
    }

    /// Returns the number of entries, and the number of changes.
    fn state(self, device: &OsdDevice, at: ObjectId) -> Result<(u64, u64), OsdFailure> {
        if let Self::Partitions = self {
            return Ok((device.catalog.partition_count(), device.catalog.changes()));
        }
        let partition = partition_of(device, at)?;
        let count = match self {
            Self::Collections(_) => partition.collections(),
            Self::Members(pool) => pool.count(device)?,
            Self::Objects(_) | Self::Partitions => partition.objects(),
        };
        Ok((count, partition.changes()))
    }

    /// Returns entries from `from` on, ascending, and where to continue.
    fn part(self, device: &OsdDevice, from: u64, max: usize) -> Result<(Vec<u64>, Option<u64>), OsdFailure> {
        let store = &*device.store;
        let next = |last: Option<u64>, full: bool| last.filter(|_| full).and_then(|last| last.checked_add(1));
        let whole = |ids: Vec<u64>| {
            let next = next(ids.last().copied(), ids.len() == max);
            (ids, next)
        };
        let of = |partition: u64| move |id: &ObjectId| id.partition == partition;
        match self {
            Self::Partitions => Ok(whole(device.catalog.partition_ids(from, max))),
            Self::Collections(partition) => {
                let begin = ObjectId::new(partition, from);
                let found = match store.collections(begin, max) {
                    Err(error @ StoreError::ListGap { .. }) => {
                        let (found, next) = before_gap(error, begin)?;
                        return Ok((found.into_iter().map(|(id, _)| id.object).collect(), next));
                    }
                    found => found?,
                };
                Ok(whole(found.into_iter().filter(of(partition)).map(|id| id.object).collect()))
            }
            Self::Members(pool) if pool.kind != collections::CollectionKind::Spontaneous => {
                let found = store.members(pool.collection, from, max)?;
                Ok(whole(found.into_iter().map(|(id, _)| id).collect()))
            }
            Self::Objects(partition)
            | Self::Members(MemberSet { collection: ObjectId { partition, .. }, .. }) => {
                let begin = ObjectId::new(partition, from.max(1));
                let wanted = |(id, kind): &(ObjectId, ObjectType)| {
                    id.partition == partition && *kind == ObjectType::User
                };
                let found = match store.list(begin, max) {
                    Err(error @ StoreError::ListGap { .. }) => {
                        let (found, next) = before_gap(error, begin)?;
                        return Ok((
                            found.iter().filter(|one| wanted(one)).map(|(id, _)| id.object).collect(),
                            next,
                        ));
                    }
                    found => found?,
                };
                let last = found.last().map(|(id, _)| *id).filter(of(partition));
                let next = next(last.map(|id| id.object), found.len() == max);
                Ok((found.iter().filter(|one| wanted(one)).map(|(id, _)| id.object).collect(), next))
            }
        }
    }

    fn id(self, partition: u64, number: u64) -> (ObjectId, ObjectType) {
        match self {
            Self::Partitions => (ObjectId::of_partition(number), ObjectType::Partition),
            Self::Collections(_) => (ObjectId::new(partition, number), ObjectType::Collection),
            Self::Objects(_) | Self::Members(_) => (ObjectId::new(partition, number), ObjectType::User),
        }
    }
}

/// Ids and types in a list, and where to continue.
type EntriesBeforeGap = (Vec<(ObjectId, ObjectType)>, Option<u64>);

/// Returns the entries before a gap of possibly lost ids, and the start of the gap. A list that
/// continues there gets the error.
fn before_gap(error: StoreError, begin: ObjectId) -> Result<EntriesBeforeGap, OsdFailure> {
    match error {
        StoreError::ListGap { mut before, from, to } if from.partition > begin.partition => {
            // The gap does not concern this partition.
            before.retain(|(id, _)| id.partition == begin.partition);
            tracing::debug!(%from, %to, "objects after this partition may be lost");
            Ok((before, None))
        }
        StoreError::ListGap { before, from, .. } if from > begin => Ok((before, Some(from.object))),
        error => Err(error.into()),
    }
}

/// Returns numbers of objects of a partition, or of members of a collection, from `from` on, and
/// where to continue. The caller has the lock of the object. For a function.
pub(crate) fn object_numbers(
    device: &OsdDevice,
    id: ObjectId,
    from: u64,
    max: usize,
) -> Result<(Vec<u64>, Option<u64>), OsdFailure> {
    partition_of(device, id)?;
    let source = match id.is_partition() {
        true => ListSource::Objects(id.partition),
        false => ListSource::Members(MemberSet::of(device, id)?),
    };
    source.part(device, from, max.clamp(1, STEP))
}

/// Runs LIST.
pub(crate) fn list(run: &mut CommandRun<'_>, list: &List) -> Result<CommandResult, OsdRefusal> {
    let source = ListSource::of_list(run.device, list)?;
    write(run, list, source)
}

/// LIST COLLECTION: members of a collection, or the collections of a partition.
pub(crate) fn list_collection(run: &mut CommandRun<'_>, list: &List) -> Result<CommandResult, OsdRefusal> {
    let source = ListSource::of_list_collection(run.device, list)?;
    write(run, list, source)
}

fn write(run: &mut CommandRun<'_>, list: &List, source: ListSource) -> Result<CommandResult, OsdRefusal> {
    let object = list.object;
    let generation = run.generation();
    let (total, changes) = source.state(run.device, object)?;
    let began = series(list.list_id, changes).ok_or(OsdFailure::Field(pointer::list_id(generation)))?;
    if list.allocation == 0 {
        return Ok(CommandResult::of(object));
    }
    if list.allocation < ALLOCATION_MIN {
        return Err(OsdFailure::Field(run.length_field()).into());
    }
    let into = std::mem::take(&mut run.data_in);
    let mut end = HEADER.min(into.len());
    let next = fill(run, list, source, into, &mut end)?;
    let (_, changes) = source.state(run.device, object)?;
    let changed = low(began) != low(changes);
    // The number of entries before a later start is unknown without counting, and that of a
    // changing list too.
    let total = (list.initial == 0 && !changed).then_some(total);
    let ending = match next {
        None => End::Complete,
        Some(next) => End::Continued { next, total, list_id: SERIES | low(began) },
    };
    let head = Head { generation, listed: source.listed(), with_attributes: list.with_attributes };
    let header = head.encode(end as u64, list.list_id != 0 && changed, ending);
    let kept = HEADER.min(into.len());
    into[..kept].copy_from_slice(&header[..kept]);
    Ok(CommandResult { data_in: end as u64, data_in_covered: end as u64, ..CommandResult::of(object) })
}

/// Returns the change count at the start of the series; `None` for an invalid list identifier.
fn series(list_id: u32, changes: u64) -> Option<u64> {
    let began = u64::from(list_id & !SERIES);
    match list_id {
        0 => Some(changes),
        _ if list_id & SERIES != 0 && began <= changes => Some(began),
        _ => None,
    }
}

/// Returns the part of a change count that fits into a list identifier.
fn low(changes: u64) -> u32 {
    (changes & u64::from(!SERIES)) as u32
}

/// Adds entries. Returns the first id that did not fit.
fn fill(
    run: &CommandRun<'_>,
    list: &List,
    source: ListSource,
    into: &mut [u8],
    end: &mut usize,
) -> Result<Option<u64>, OsdRefusal> {
    let device = run.device;
    let with_attributes = list.with_attributes && run.generation() == sealstone_osd::Generation::Osd2;
    let step = if with_attributes { STEP_WITH_ATTRIBUTES } else { STEP };
    let mut from = Some(list.initial);
    while let Some(first) = from {
        let _guards = run.steps.acquire(LockScope::Look(list.object));
        run.steps.authority()?;
        let (ids, next) = match source.part(device, first, step) {
            // Entries before the gap are returned; the list continues at the gap.
            Err(OsdFailure::Store(StoreError::ListGap { .. })) if first > list.initial => {
                return Ok(Some(first));
            }
            part => part?,
        };
        for number in ids {
            let room = if with_attributes {
                let entry = entry(run, source, list.object.partition, number)?;
                put(into, end, &entry)
            } else {
                put(into, end, &number.to_be_bytes())
            };
            if !room {
                return Ok(Some(number));
            }
        }
        from = next;
    }
    Ok(None)
}

/// Adds an entry if it fits completely.
fn put(into: &mut [u8], end: &mut usize, entry: &[u8]) -> bool {
    match into.get_mut(*end..*end + entry.len()) {
        Some(slot) if *end >= HEADER => {
            slot.copy_from_slice(entry);
            *end += entry.len();
            true
        }
        _ => false,
    }
}

fn entry(
    run: &CommandRun<'_>,
    source: ListSource,
    partition: u64,
    number: u64,
) -> Result<Vec<u8>, OsdFailure> {
    let (id, kind) = source.id(partition, number);
    if members::check_floor(run, id).is_err() {
        // The object is listed without attributes, which require its own method or a stronger one.
        return Ok(entry_with_attributes(number, source.listed(), &[]));
    }
    let current = CurrentCommandPage {
        generation: run.generation(),
        response_icv: Vec::new(),
        kind,
        partition: id.partition,
        object: id.object,
        append_start: 0,
        capacity_change: 0,
    };
    let view = AttributeView { device: run.device, id, kind, now_ms: run.now_ms, current: &current };
    let pairs = match run.entries.attribute_request.pairs(&view, &run.entries.permit) {
        // The object was removed meanwhile, and its attributes with it.
        Err(OsdFailure::Store(StoreError::NotFound(_))) => Vec::new(),
        pairs => pairs?,
    };
    let pairs: Vec<(AttributeId, &[u8])> = pairs.iter().map(|(id, value)| (*id, value.as_slice())).collect();
    Ok(entry_with_attributes(number, source.listed(), &pairs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_issued_list_identifiers_are_valid() {
        assert_eq!(series(0, 7), Some(7));
        assert_eq!(series(SERIES | 5, 7), Some(5));
        assert_eq!(series(SERIES | 8, 7), None);
        assert_eq!(series(5, 7), None);
        assert_eq!(low(u64::from(SERIES) + 3), 3);
    }
}
