//! PERFORM SCSI COMMAND and PERFORM TASK MANAGEMENT FUNCTION: device management with the DEV_MGMT
//! permission.
//!
//! Does: run one SPC command inside an OSD command; have the target end or find tasks.
//! Does not: run an OSD command inside another, or access tasks itself.
//! Contract: [`task`] waits for tasks to end, and these may wait for locks: call it without any
//! lock.
//! Truth: docs/design/t10-osd.md 1.4, 1.9 (from one source); docs/standards/device.md.

use sealstone_osd::cdb::{OPERATION_CODE, PerformScsi, PerformTask, pointer};
use sealstone_osd::task::{ServiceResponse, TaskFunction, TaskResponse};
use sealstone_scsi::lu::{ScsiCommand, TaskOrder, TaskResult};
use sealstone_scsi::{FieldPointer, Sense, SenseKey, Status, primary};

use super::{CommandResult, CommandRun};
use crate::failure::{self, OsdFailure};
use crate::nexus::OsdNexus;
use crate::spc::OsdServer;

/// PERFORM SCSI COMMAND: runs any command of the logical unit except OSD commands. Its CHECK
/// CONDITION is returned for the whole command, with field pointers adjusted to the embedded CDB.
pub(crate) fn scsi(run: &mut CommandRun<'_>, perform: &PerformScsi) -> Result<CommandResult, OsdFailure> {
    if perform.cdb[0] == OPERATION_CODE {
        return Err(OsdFailure::Field(pointer::EMBEDDED));
    }
    let (nexus, command) = run.origin.ok_or(OsdFailure::UnsupportedAction)?;
    let server = OsdServer { device: run.device, nexus };
    let embedded =
        ScsiCommand { cdb: &perform.cdb, data_out: run.data_out, data_in_max: run.data_in.len(), ..*command };
    let reply = primary::answer(&server, &embedded);
    if reply.status != Status::Good {
        return Err(OsdFailure::Embedded(Box::new(moved(&reply.sense))));
    }
    run.data_in[..reply.data_in.len()].copy_from_slice(&reply.data_in);
    let length = reply.data_in_wanted;
    Ok(CommandResult { data_in: length, data_in_covered: length, ..CommandResult::of(perform.object) })
}

/// Adjusts the sense data of an embedded command to point into the outer CDB.
fn moved(sense: &[u8]) -> Sense {
    match Sense::parse(sense) {
        Ok(sense) => {
            let field = sense.field.map(|field| match field {
                FieldPointer { in_cdb: true, byte, .. } => {
                    FieldPointer { byte: byte.saturating_add(pointer::EMBEDDED), ..field }
                }
                other => other,
            });
            Sense { field, ..sense }
        }
        Err(_) => Sense::new(SenseKey::HardwareError, sealstone_scsi::additional::INTERNAL_TARGET_FAILURE),
    }
}

/// Checks PERFORM TASK MANAGEMENT FUNCTION before anything is done.
pub(crate) fn check_task(perform: &PerformTask) -> Result<CommandResult, OsdFailure> {
    let function = function_of(perform)?;
    // These end commands of others, so a credential for a single object is not sufficient.
    let reaches_others = matches!(function, TaskFunction::ClearTaskSet | TaskFunction::LogicalUnitReset);
    if reaches_others && !perform.object.is_root() {
        let field = if perform.object.partition == 0 { failure::OBJECT } else { failure::PARTITION };
        return Err(OsdFailure::Field(field));
    }
    let length = u64::from(perform.allocation).min(RESPONSE_LEN);
    Ok(CommandResult { data_in: length, data_in_covered: length, ..CommandResult::of(perform.object) })
}

const RESPONSE_LEN: u64 = sealstone_osd::task::RESPONSE_LEN as u64;

fn function_of(perform: &PerformTask) -> Result<TaskFunction, OsdFailure> {
    TaskFunction::from_byte(perform.function).ok_or(OsdFailure::Field(pointer::TASK_FUNCTION))
}

/// PERFORM TASK MANAGEMENT FUNCTION: runs the function and writes the response to the start of the
/// Data-In Buffer.
pub(crate) fn task(
    perform: &PerformTask,
    nexus: &OsdNexus,
    command: &ScsiCommand<'_>,
    data_in: &mut [u8],
) -> Result<(), OsdFailure> {
    let tag = perform.tag;
    let order = match function_of(perform)? {
        TaskFunction::AbortTask => Some(TaskOrder::Abort { tag }),
        TaskFunction::AbortTaskSet => Some(TaskOrder::AbortSet),
        TaskFunction::ClearTaskSet => Some(TaskOrder::ClearSet),
        TaskFunction::LogicalUnitReset => Some(TaskOrder::Reset),
        TaskFunction::NexusReset => Some(TaskOrder::NexusReset),
        TaskFunction::QueryTask => Some(TaskOrder::Query { tag }),
        TaskFunction::QueryTaskSet => Some(TaskOrder::QuerySet),
        // No command leaves an auto contingent allegiance, so there is none to clear.
        TaskFunction::ClearAca => None,
        TaskFunction::QueryUnitAttention => return put(attention(nexus), data_in),
    };
    let response = match order.map(|order| command.tasks.order(order)) {
        None | Some(TaskResult::Complete) => ServiceResponse::Complete,
        Some(TaskResult::Succeeded) => ServiceResponse::Succeeded,
        Some(TaskResult::Rejected) => ServiceResponse::Rejected,
        Some(TaskResult::Unfinished) => return Err(OsdFailure::TasksUnfinished),
    };
    if order == Some(TaskOrder::NexusReset) && response == ServiceResponse::Complete {
        nexus.renew();
    }
    put(TaskResponse::new(response), data_in)
}

/// Returns the pending unit attention without clearing it.
fn attention(nexus: &OsdNexus) -> TaskResponse {
    match nexus.first_attention() {
        None => TaskResponse::new(ServiceResponse::Complete),
        Some(code) => TaskResponse {
            key: SenseKey::UnitAttention,
            code: [code.code(), code.qualifier()],
            ..TaskResponse::new(ServiceResponse::Succeeded)
        },
    }
}

fn put(response: TaskResponse, data_in: &mut [u8]) -> Result<(), OsdFailure> {
    let bytes = response.encode();
    let length = bytes.len().min(data_in.len());
    data_in[..length].copy_from_slice(&bytes[..length]);
    Ok(())
}
