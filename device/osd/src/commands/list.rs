//! LIST: partitions of the root, user objects of a partition.
//!
//! Does: whole entries up to the allocation length, with attributes if asked, and where to go on.
//! Does not: bind a series of requests together; no list identifier is ever given out.
//! Contract: the caller holds the partition's lock. Memory follows what the initiator takes, not what there is.
//! Truth: docs/design/t10-osd.md 1.9; traps T6, T12, T13.

use sealstone_osd::cdb::{List, pointer};
use sealstone_osd::listing::{ALLOCATION_MIN, End, Listed, ListingWriter};
use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sealstone_seal::Permit;

use super::data::partition_of;
use super::{Done, Run};
use crate::attributes::current::Current;
use crate::attributes::engine::Wishes;
use crate::attributes::view::View;
use crate::failure::Failure;

/// Objects that one step through the store asks for.
const STEP: usize = 1024;

/// What LIST needs to put attributes into its entries.
#[derive(Clone, Copy)]
pub(crate) struct Entries<'a> {
    pub(crate) wishes: &'a Wishes<'a>,
    pub(crate) permit: Permit,
}

/// LIST.
pub(crate) fn list(run: &mut Run<'_>, list: &List) -> Result<Done, Failure> {
    let object = list.object;
    let generation = run.generation();
    if list.list_id != 0 {
        return Err(Failure::Field(pointer::list_id(generation)));
    }
    let total = if object.is_root() {
        run.device.catalog.partition_count()
    } else {
        partition_of(run.device, object)?.objects()
    };
    if list.allocation == 0 {
        return Ok(Done::of(object));
    }
    if list.allocation < ALLOCATION_MIN {
        return Err(Failure::Field(run.length_field()));
    }
    let listed = if object.is_root() { Listed::Partitions } else { Listed::Objects };
    let mut bytes = Vec::new();
    let room = run.data_in.len();
    let mut out = ListingWriter::new(generation, listed, list.with_attributes, &mut bytes, room);
    let next = fill(run, list, &mut out)?;
    let end = match next {
        None => End::Complete,
        // How many come before a later beginning would have to be counted.
        Some(next) => End::Continued { next, total: (list.initial == 0).then_some(total), list_id: 0 },
    };
    out.finish(false, end);
    run.data_in[..bytes.len()].copy_from_slice(&bytes);
    let length = bytes.len() as u64;
    Ok(Done { data_in: length, data_in_covered: length, ..Done::of(object) })
}

/// Adds entries; gives the first id that found no room.
fn fill(run: &Run<'_>, list: &List, out: &mut ListingWriter<'_>) -> Result<Option<u64>, Failure> {
    let (device, object) = (run.device, list.object);
    if object.is_root() {
        for id in device.catalog.partition_ids(list.initial, usize::MAX) {
            if !entry(run, list, out, ObjectId::of_partition(id), ObjectType::Partition)? {
                return Ok(Some(id));
            }
        }
        return Ok(None);
    }
    let mut from = ObjectId::new(object.partition, list.initial.max(1));
    loop {
        let found = device.store.list(from, STEP)?;
        for &(id, kind) in &found {
            if id.partition != object.partition {
                return Ok(None);
            }
            if kind == ObjectType::User && !entry(run, list, out, id, kind)? {
                return Ok(Some(id.object));
            }
        }
        let last = found.last().map(|(id, _)| id.object);
        match last.and_then(|last| last.checked_add(1)) {
            Some(next) if found.len() == STEP => from.object = next,
            _ => return Ok(None),
        }
    }
}

fn entry(
    run: &Run<'_>,
    list: &List,
    out: &mut ListingWriter<'_>,
    id: ObjectId,
    kind: ObjectType,
) -> Result<bool, Failure> {
    let number = if kind == ObjectType::Partition { id.partition } else { id.object };
    if !list.with_attributes {
        return Ok(out.push(number, &[]));
    }
    let current = Current {
        generation: run.generation(),
        response_icv: Vec::new(),
        kind,
        partition: id.partition,
        object: id.object,
        append_start: 0,
        capacity_change: 0,
    };
    let view = View { device: run.device, id, kind, now_ms: run.now_ms, current: &current };
    let pairs = run.entries.wishes.pairs(&view, &run.entries.permit)?;
    let pairs: Vec<(AttributeId, &[u8])> = pairs.iter().map(|(id, value)| (*id, value.as_slice())).collect();
    Ok(out.push(number, &pairs))
}
