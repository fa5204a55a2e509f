//! The commands that every logical unit answers: INQUIRY, REPORT LUNS, REQUEST SENSE, TEST UNIT READY.
//!
//! Does: say who this device is. Does not: anything with objects.
//! Contract: `answer` gives `None` for what is an OSD command or nothing at all.
//! Truth: SPC-4; docs/design/t10-osd.md 6.2, 6.3.

use bytes::Bytes;
use sealstone_scsi::lu::{ScsiCommand, ScsiReply};
use sealstone_scsi::spc::{
    self, DEVICE_TYPE_OSD, Identity, NOT_THERE, Select, SpcCommand, SpcError, version, vpd,
};
use sealstone_scsi::{Sense, SenseKey, Status, additional};

use crate::device::Device;
use crate::failure::Failure;
use crate::nexus::Nexus;
use crate::report::Refusal;

/// The logical unit number of the device.
const LUN: u64 = 0;

/// Answers a command of SPC; an operation code that is none of them is refused.
pub(crate) fn answer(device: &Device, nexus: &Nexus, command: &ScsiCommand<'_>) -> ScsiReply {
    let spc = match SpcCommand::parse(command.cdb) {
        Ok(spc) => spc,
        Err(error) => return unknown(nexus, command, error),
    };
    if !spc.ignores_unit_attention()
        && let Some(reply) = not_addressable(nexus, command)
    {
        return reply;
    }
    let there = command.lun == LUN;
    let data = match spc {
        SpcCommand::TestUnitReady => return ready(device),
        SpcCommand::Inquiry { page: None, .. } => spc::standard_inquiry(&Identity {
            device_type: if there { DEVICE_TYPE_OSD } else { NOT_THERE },
            vendor: "SEALSTON",
            product: "SEALSTONE OSD",
            revision: "0001",
            versions: &[version::OSD, version::OSD_2, version::ISCSI, version::SPC_3],
        }),
        SpcCommand::Inquiry { page: Some(page), .. } => match product_data(device, nexus, page, there) {
            Some(data) => data,
            None => return ScsiReply::check(vpd::unsupported().encode()),
        },
        SpcCommand::ReportLuns { select: Select::WellKnown, .. } => spc::report_luns(&[]),
        SpcCommand::ReportLuns { .. } => spc::report_luns(&[0]),
        SpcCommand::RequestSense { descriptor, .. } => {
            let sense = match nexus.take_attention() {
                _ if !there => Sense::new(SenseKey::IllegalRequest, additional::LOGICAL_UNIT_NOT_SUPPORTED),
                Some(attention) => Sense::new(SenseKey::UnitAttention, attention),
                None => Sense::new(SenseKey::NoSense, additional::NO_ADDITIONAL_SENSE),
            };
            if descriptor { sense.encode() } else { sense.encode_fixed() }
        }
    };
    let mut data = data;
    data.truncate(spc.allocation());
    ScsiReply::data(Bytes::from(data), command.data_in_max)
}

/// What stands before every command that is not answered in any state: the logical unit, then unit attentions.
pub(crate) fn not_addressable(nexus: &Nexus, command: &ScsiCommand<'_>) -> Option<ScsiReply> {
    let sense = if command.lun == LUN {
        Sense::new(SenseKey::UnitAttention, nexus.take_attention()?)
    } else {
        Sense::new(SenseKey::IllegalRequest, additional::LOGICAL_UNIT_NOT_SUPPORTED)
    };
    Some(ScsiReply::check(sense.encode()))
}

fn unknown(nexus: &Nexus, command: &ScsiCommand<'_>, error: SpcError) -> ScsiReply {
    match error {
        SpcError::OperationCode(_) => {
            not_addressable(nexus, command).unwrap_or_else(|| ScsiReply::check(error.sense().encode()))
        }
        SpcError::Empty | SpcError::Length(_) | SpcError::Field { .. } => {
            ScsiReply::check(error.sense().encode())
        }
    }
}

fn ready(device: &Device) -> ScsiReply {
    let failure = if device.is_formatting() {
        Failure::Formatting
    } else if device.clock.now_ms().is_err() {
        Failure::ClockNotSet
    } else {
        return ScsiReply::status(Status::Good);
    };
    Refusal::Failed(failure).bare_reply()
}

/// A vital product data page.
fn product_data(device: &Device, nexus: &Nexus, page: u8, there: bool) -> Option<Vec<u8>> {
    let kind = if there { DEVICE_TYPE_OSD } else { NOT_THERE };
    let page_of = |content: &[u8]| Some(vpd::page(kind, page, content));
    match page {
        vpd::SUPPORTED => page_of(&vpd::OSD_PAGES),
        _ if !there => None,
        vpd::SERIAL => page_of(device.serial_number().as_bytes()),
        // The OSD SYSTEM ID is the designation descriptor itself.
        vpd::IDENTIFICATION => page_of(&device.system_id),
        // No source gives its contents.
        vpd::OSD_INFORMATION => page_of(&[]),
        vpd::SECURITY_TOKEN => page_of(&nexus.token()),
        _ => None,
    }
}
