//! QUERY: finds the members of a collection whose attributes are within bounds.
//!
//! Does: compare, and return the ids or add the matches to a tracking collection.
//! Does not: change the members.
//! Contract: a member whose minimum method forbids access does not match. Memory is bounded: ids
//! are written directly into the output buffer.
//! Costs: O(n log n) for n members, one lookup per criterion and member.
//! Truth: docs/design/t10-osd.md 1.9; trap T11; docs/standards/osd.md, "Collections".

use std::cell::Cell;

use sealstone_osd::cdb::{Query, pointer};
use sealstone_osd::listing::{MATCHES_HEADER, matches_header};
use sealstone_osd::query::{QueryList, QueryType};
use sealstone_osd::{AttributeId, ObjectId, ObjectType};

use super::collections::{self, CollectionKind, SECOND_COLLECTION};
use super::data::partition_of;
use super::members::{check_floor, current};
use super::walk::{self, MemberSet, StepAccess};
use super::{CommandResult, CommandRun};
use crate::attributes::rows;
use crate::attributes::view::AttributeView;
use crate::failure::OsdFailure;
use crate::report::OsdRefusal;
use crate::running::WalkProgress;

/// Bytes of an id in the answer.
const ID: usize = 8;

/// Checks the CDB and the query list. Returns the collection that receives the matches, if any.
pub(crate) fn check(run: &CommandRun<'_>, query: &Query) -> Result<Option<ObjectId>, OsdRefusal> {
    let list = parse(run)?;
    for criterion in &list.criteria {
        run.entries.permit.check_compared(criterion.id, run.device)?;
        // Security attributes are compared only if the capability allows to read them.
        if rows::is_security_page(ObjectType::User, criterion.id.page) {
            run.entries.permit.check_get(criterion.id, run.device)?;
        }
    }
    match (query.allocation, query.matches) {
        (0, 0) => Err(OsdFailure::Field(run.length_field()).into()),
        (_, 0) if query.immediate => Err(OsdFailure::Field(pointer::SPECIFIC_BITS).into()),
        (1..MATCHES_MIN, 0) => Err(OsdFailure::Field(run.length_field()).into()),
        (_, 0) => Ok(None),
        (0, matches) => {
            let pool = collections::second(run.device, query.object.partition, matches)?;
            if pool.kind != CollectionKind::Tracking || pool.collection == query.object {
                return Err(OsdFailure::Field(SECOND_COLLECTION).into());
            }
            Ok(Some(pool.collection))
        }
        _ => Err(OsdFailure::Field(SECOND_COLLECTION).into()),
    }
}

const MATCHES_MIN: u64 = MATCHES_HEADER as u64;

fn parse<'a>(run: &'a CommandRun<'_>) -> Result<QueryList<'a>, OsdFailure> {
    let malformed = || OsdFailure::Field(pointer::CONTINUATION);
    let bytes = run.segment.query.as_deref().ok_or_else(malformed)?;
    QueryList::parse(bytes).map_err(|_| malformed())
}

/// QUERY, after [`check`].
pub(crate) fn query(
    run: &mut CommandRun<'_>,
    pool: MemberSet,
    matches: Option<ObjectId>,
    progress: &Cell<WalkProgress>,
) -> Result<CommandResult, OsdRefusal> {
    // The buffer is filled while the rest of the command is read.
    let into = std::mem::take(&mut run.data_in);
    let run = &*run;
    let (device, list) = (run.device, parse(run)?);
    let mut found = 0_u64;
    let mut end = MATCHES_HEADER;
    walk::walk(run.steps, pool, StepAccess::Look, progress, |member| {
        if check_floor(run, member).is_err() || !is_match(run, &list, member)? {
            return Ok(true);
        }
        found += 1;
        match matches {
            Some(collection) => {
                device.store.join(collection, member.object, 0).map_err(OsdFailure::from)?;
            }
            None => {
                if let Some(slot) = into.get_mut(end..end + ID) {
                    slot.copy_from_slice(&member.object.to_be_bytes());
                    end += ID;
                }
            }
        }
        Ok(true)
    })?;
    if matches.is_some() {
        partition_of(device, pool.collection)?.note_change();
        return Ok(CommandResult::of(pool.collection));
    }
    let header = matches_header(found);
    let length = end.min(into.len());
    let head = header.len().min(length);
    into[..head].copy_from_slice(&header[..head]);
    let length = length as u64;
    Ok(CommandResult { data_in: length, data_in_covered: length, ..CommandResult::of(pool.collection) })
}

fn is_match(run: &CommandRun<'_>, list: &QueryList<'_>, member: ObjectId) -> Result<bool, OsdFailure> {
    let current = current(run, member);
    let view = AttributeView {
        device: run.device,
        id: member,
        kind: ObjectType::User,
        now_ms: run.now_ms,
        current: &current,
    };
    let value = |id: AttributeId| view.value(id).map(Option::unwrap_or_default);
    let union = list.kind == QueryType::Union;
    for criterion in &list.criteria {
        // The first decisive criterion ends the comparison.
        if criterion.matches(&value(criterion.id)?) == union {
            return Ok(union);
        }
    }
    Ok(!union || list.criteria.is_empty())
}
