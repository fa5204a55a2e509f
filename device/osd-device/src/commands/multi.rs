//! Commands on many objects, split into checks and first step, and the remaining work, which may
//! continue after the status.
//!
//! Does: split QUERY, the member commands and CREATE USER TRACKING COLLECTION into these two parts;
//! queue the second part if IMMED_TR is set.
//! Does not: the work itself.
//! Contract: every error in the request is reported before the command continues in the background.
//! Truth: docs/design/t10-osd.md 1.3, 1.9, 1.10; docs/standards/osd.md, "Collections".

use std::cell::Cell;

use sealstone_osd::ObjectId;
use sealstone_osd::cdb::{Command, pointer};

use super::collections::{self, CollectionKind};
use super::walk::MemberSet;
use super::{CommandResult, CommandRun, ObjectEffect, members, query};
use crate::failure::OsdFailure;
use crate::report::OsdRefusal;
use crate::running::WalkProgress;
use crate::tracking;

/// Longest Data-Out Buffer of an immediate command in bytes. It is kept until the command ends.
const DATA_OUT_MAX: usize = 2 << 20;

/// Result of the first part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MultiPlan {
    /// Object of the command.
    pub(crate) object: ObjectId,
    /// Collection whose members are processed, if any.
    pool: Option<MemberSet>,
    /// Collection that receives the matches of a QUERY.
    matches: Option<ObjectId>,
    /// Collection that tracks the progress.
    pub(crate) tracked: Option<ObjectId>,
    immediate: bool,
}

/// Runs such a command, or its first part.
pub(crate) fn run(run: &mut CommandRun<'_>) -> Result<CommandResult, OsdRefusal> {
    let immediate = immediate(&run.cdb.command);
    if !immediate {
        let plan = prepare(run)?;
        return tracking::follow(run.steps, plan.tracked, run.generation(), |progress| {
            perform(run, &plan, progress)
        });
    }
    if run.data_out_whole > DATA_OUT_MAX {
        return Err(OsdFailure::ListLength.into());
    }
    run.device.running.enter_queue()?;
    match prepare(run) {
        Ok(plan) => {
            let created = matches!(run.cdb.command, Command::CreateTrackingCollection(_));
            let (effect, subjects) = match created {
                true => (ObjectEffect::Created, vec![plan.object]),
                false => (ObjectEffect::Nothing, Vec::new()),
            };
            Ok(CommandResult { plan: Some(plan), effect, subjects, ..CommandResult::of(plan.object) })
        }
        Err(refusal) => {
            run.device.running.leave_queue();
            Err(refusal)
        }
    }
}

/// Whether the initiator requested the status before the work is done.
fn immediate(command: &Command) -> bool {
    match command {
        Command::Query(query) => query.immediate,
        Command::CreateTrackingCollection(create) => create.immediate,
        Command::GetMemberAttributes(members)
        | Command::SetMemberAttributes(members)
        | Command::RemoveMemberObjects(members) => members.immediate,
        _ => false,
    }
}

/// Runs the first part.
fn prepare(run: &CommandRun<'_>) -> Result<MultiPlan, OsdRefusal> {
    let device = run.device;
    let command = &run.cdb.command;
    let plan = match command {
        Command::CreateTrackingCollection(create) => {
            let object = collections::create_tracking(run, create)?;
            let source = (create.source != 0)
                .then(|| collections::second(device, create.object.partition, create.source));
            let pool = source.transpose()?;
            let tracked = pool.map(|_| object);
            MultiPlan { object, pool, matches: None, tracked, immediate: create.immediate }
        }
        Command::Query(query) => {
            let pool = MemberSet::of(device, query.object)?;
            let matches = query::check(run, query)?;
            MultiPlan {
                object: query.object,
                pool: Some(pool),
                matches,
                tracked: matches,
                immediate: query.immediate,
            }
        }
        _ => {
            let pool = MemberSet::of(device, command.object())?;
            let tracked = (pool.kind == CollectionKind::Tracking).then_some(pool.collection);
            let immediate = immediate(command);
            // Without a tracking collection the result could not be read, and retrieved attributes
            // need a waiting initiator.
            if immediate && (tracked.is_none() || run.cdb.attributes.gets()) {
                return Err(OsdFailure::Field(pointer::SPECIFIC_BITS).into());
            }
            MultiPlan { object: pool.collection, pool: Some(pool), matches: None, tracked, immediate }
        }
    };
    if let Some(tracked) = plan.tracked {
        let total = plan.pool.map_or(Ok(0), |pool| pool.count(device))?;
        let action = command.row().osd2.unwrap_or_default();
        if let Err(failure) = tracking::begin(run.steps, tracked, action, total) {
            if matches!(command, Command::CreateTrackingCollection(_)) {
                collections::unmake(run.steps, plan.object)?;
            }
            return Err(failure.into());
        }
    }
    Ok(plan)
}

/// Runs the second part.
pub(crate) fn perform(
    run: &mut CommandRun<'_>,
    plan: &MultiPlan,
    progress: &Cell<WalkProgress>,
) -> Result<CommandResult, OsdRefusal> {
    let pool = plan.pool.ok_or(OsdFailure::UnsupportedAction);
    match run.cdb.command {
        Command::Query(_) => query::query(run, pool?, plan.matches, progress),
        Command::RemoveMemberObjects(_) => members::remove(run, pool?, progress),
        Command::GetMemberAttributes(_) | Command::SetMemberAttributes(_) => {
            members::attributes(run, pool?, progress)
        }
        Command::CreateTrackingCollection(_) => {
            let filled = match plan.pool {
                Some(source) => collections::fill_tracking(run, source, plan.object, progress),
                None => Ok(()),
            };
            if let Err(refusal) = filled {
                // For an immediate command the collection was already reported as created, and it
                // shows the failure.
                if !plan.immediate {
                    collections::unmake(run.steps, plan.object)?;
                }
                return Err(refusal);
            }
            Ok(CommandResult {
                effect: ObjectEffect::Created,
                subjects: vec![plan.object],
                ..CommandResult::of(plan.object)
            })
        }
        _ => Err(OsdFailure::UnsupportedAction.into()),
    }
}
