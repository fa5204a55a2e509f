//! GET MEMBER ATTRIBUTES, SET MEMBER ATTRIBUTES, REMOVE MEMBER OBJECTS.
//!
//! Does: apply the command to every member of a collection, in steps. Does not: define the members.
//! Contract: a member that requires a stronger method than that of the command ends the command, as
//! a direct command on it would be refused. Effects on earlier members remain.
//! Truth: docs/design/t10-osd.md 1.10, 3.3 (list type E); docs/standards/osd.md, "Collections".

use std::cell::Cell;

use sealstone_osd::attribute::list::RetrievedWriter;
use sealstone_osd::cdb::{Action, Timestamps};
use sealstone_osd::{AttributeId, ObjectId, ObjectType, SecurityMethod};
use sealstone_seal::{Denial, Facts as _};

use super::walk::{self, Hold, Pool, Tally};
use super::{Done, Run, Touch, objects};
use crate::attributes::current::Current;
use crate::attributes::engine::Get;
use crate::attributes::rows::{USER, page};
use crate::attributes::view::View;
use crate::cache::Accesses;
use crate::catalog;
use crate::report::Refusal;

/// GET MEMBER ATTRIBUTES and SET MEMBER ATTRIBUTES: applies the lists of the command to each
/// member.
pub(crate) fn attributes(run: &Run<'_>, pool: Pool, tally: &Cell<Tally>) -> Result<Done, Refusal> {
    let (device, wishes, permit) = (run.device, run.entries.wishes, &run.entries.permit);
    let mut retrieved = Vec::new();
    let gets = matches!(wishes.get, Get::List(_));
    let mut out =
        gets.then(|| RetrievedWriter::by_object(run.generation(), &mut retrieved, wishes.allocation));
    let sets = !wishes.set.is_empty();
    let get_first = run.cdb.command.action() == Action::GetMemberAttributes;
    let hold = if sets { Hold::Change } else { Hold::Look };
    if gets || sets {
        walk::walk(run.steps, pool, hold, tally, |member| {
            check_floor(run, member)?;
            let mut get = || -> Result<(), Refusal> {
                let Some(out) = &mut out else { return Ok(()) };
                let current = current(run, member);
                let view = View {
                    device,
                    id: member,
                    kind: ObjectType::User,
                    now_ms: run.now_ms,
                    current: &current,
                };
                let pairs = wishes.pairs(&view, permit)?;
                let pairs: Vec<_> = pairs.iter().map(|(id, value)| (*id, value.as_slice())).collect();
                out.push_object(member.object, ObjectType::User, &pairs);
                Ok(())
            };
            if get_first {
                get()?;
            }
            if sets {
                wishes.check_set(device, member, ObjectType::User, permit)?;
                wishes.apply(device, member, ObjectType::User)?;
            }
            if !get_first {
                get()?;
            }
            update_timestamps(run, member, gets, sets)?;
            Ok(true)
        })?;
    }
    if let Some(out) = out {
        out.finish();
    }
    Ok(Done { attributes: Some(retrieved), ..Done::of(pool.collection) })
}

/// REMOVE MEMBER OBJECTS: removes the members. The collection stays.
pub(crate) fn remove(run: &Run<'_>, pool: Pool, tally: &Cell<Tally>) -> Result<Done, Refusal> {
    let freed = Cell::new(0_i64);
    walk::walk(run.steps, pool, Hold::Remove, tally, |member| {
        check_floor(run, member)?;
        freed.set(freed.get().saturating_add(objects::remove_object(run.device, member)?));
        Ok(true)
    })?;
    Ok(Done { capacity_change: -freed.get(), touch: Touch::DataModified, ..Done::of(pool.collection) })
}

/// Checks the minimum method of a member, which also applies to access through a collection.
pub(super) fn check_floor(run: &Run<'_>, member: ObjectId) -> Result<(), Denial> {
    let floor: SecurityMethod = run.device.floor(member);
    let method = run.entries.permit.method();
    if method < floor { Err(Denial::BelowFloor { method, floor }) } else { Ok(()) }
}

/// Returns the Current Command page of a member.
pub(super) fn current(run: &Run<'_>, member: ObjectId) -> Current {
    Current {
        generation: run.generation(),
        response_icv: Vec::new(),
        kind: ObjectType::User,
        partition: member.partition,
        object: member.object,
        append_start: 0,
        capacity_change: 0,
    }
}

fn update_timestamps(run: &Run<'_>, member: ObjectId, gets: bool, sets: bool) -> Result<(), Refusal> {
    let device = run.device;
    let bypass = device
        .catalog
        .partition(member.partition)
        .is_some_and(|partition| partition.policy().bypass_timestamps);
    if bypass || run.cdb.timestamps == Timestamps::Bypass {
        return Ok(());
    }
    if sets {
        let modified = AttributeId::new(USER + page::TIMESTAMPS, 3);
        catalog::set(&*device.store, member, modified, &catalog::time(run.now_ms))?;
    }
    if gets {
        let accesses = Accesses { attributes_ms: Some(run.now_ms), ..Accesses::default() };
        device.note(member, accesses)?;
    }
    Ok(())
}
