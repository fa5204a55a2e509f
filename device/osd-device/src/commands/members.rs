//! GET MEMBER ATTRIBUTES, SET MEMBER ATTRIBUTES, REMOVE MEMBER OBJECTS.
//!
//! Does: apply the command to every member of a collection, in steps.
//! Does not: define the members.
//! Contract: a member that requires a stronger method than that of the command ends the command, as
//! a direct command on it would be refused. Effects on earlier members remain.
//! Truth: docs/design/t10-osd.md 1.10, 3.3 (list type E); docs/standards/osd.md, "Collections".

use std::cell::Cell;

use sealstone_osd::attribute::list::RetrievedWriter;
use sealstone_osd::cdb::{Action, Timestamps};
use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sealstone_seal::Denial;

use super::walk::{self, MemberSet, StepAccess};
use super::{CommandResult, CommandRun, ObjectEffect, objects};
use crate::attributes::current::CurrentCommandPage;
use crate::attributes::engine::AttributesToGet;
use crate::attributes::rows::{USER, page};
use crate::attributes::view::AttributeView;
use crate::cache::AccessTimes;
use crate::catalog;
use crate::report::OsdRefusal;
use crate::running::WalkProgress;

/// GET MEMBER ATTRIBUTES and SET MEMBER ATTRIBUTES: applies the lists of the command to each
/// member.
pub(crate) fn attributes(
    run: &CommandRun<'_>,
    pool: MemberSet,
    progress: &Cell<WalkProgress>,
) -> Result<CommandResult, OsdRefusal> {
    let (device, attribute_request, permit) =
        (run.device, run.entries.attribute_request, &run.entries.permit);
    let mut retrieved = Vec::new();
    let gets = matches!(attribute_request.get, AttributesToGet::List(_));
    let mut out = gets
        .then(|| RetrievedWriter::by_object(run.generation(), &mut retrieved, attribute_request.allocation));
    let sets = !attribute_request.set.is_empty();
    let get_first = run.cdb.command.action() == Action::GetMemberAttributes;
    let hold = if sets { StepAccess::Change } else { StepAccess::Look };
    if gets || sets {
        walk::walk(run.steps, pool, hold, progress, |member| {
            check_floor(run, member)?;
            let mut get = || -> Result<(), OsdRefusal> {
                let Some(out) = &mut out else { return Ok(()) };
                let current = current(run, member);
                let view = AttributeView {
                    device,
                    id: member,
                    kind: ObjectType::User,
                    now_ms: run.now_ms,
                    current: &current,
                };
                let pairs = attribute_request.pairs(&view, permit)?;
                let pairs: Vec<_> = pairs.iter().map(|(id, value)| (*id, value.as_slice())).collect();
                out.push_object(member.object, ObjectType::User, &pairs);
                Ok(())
            };
            if get_first {
                get()?;
            }
            if sets {
                attribute_request.check_set(device, member, ObjectType::User, permit)?;
                attribute_request.apply(device, member, ObjectType::User)?;
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
    Ok(CommandResult { attributes: Some(retrieved), ..CommandResult::of(pool.collection) })
}

/// REMOVE MEMBER OBJECTS: removes the members. The collection stays.
pub(crate) fn remove(
    run: &CommandRun<'_>,
    pool: MemberSet,
    progress: &Cell<WalkProgress>,
) -> Result<CommandResult, OsdRefusal> {
    let freed = Cell::new(0_i64);
    walk::walk(run.steps, pool, StepAccess::Remove, progress, |member| {
        check_floor(run, member)?;
        freed.set(freed.get().saturating_add(objects::remove_object(run.device, member)?));
        Ok(true)
    })?;
    Ok(CommandResult {
        capacity_change: -freed.get(),
        effect: ObjectEffect::DataModified,
        ..CommandResult::of(pool.collection)
    })
}

/// Checks the minimum method of a member, which also applies to access through a collection.
pub(super) fn check_floor(run: &CommandRun<'_>, member: ObjectId) -> Result<(), Denial> {
    run.entries.permit.check_floor(member, run.device)
}

/// Returns the Current Command page of a member.
pub(super) fn current(run: &CommandRun<'_>, member: ObjectId) -> CurrentCommandPage {
    CurrentCommandPage {
        generation: run.generation(),
        response_icv: Vec::new(),
        kind: ObjectType::User,
        partition: member.partition,
        object: member.object,
        append_start: 0,
        capacity_change: 0,
    }
}

fn update_timestamps(
    run: &CommandRun<'_>,
    member: ObjectId,
    gets: bool,
    sets: bool,
) -> Result<(), OsdRefusal> {
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
        let accesses = AccessTimes { attributes_ms: Some(run.now_ms), ..AccessTimes::default() };
        device.note(member, accesses)?;
    }
    Ok(())
}
