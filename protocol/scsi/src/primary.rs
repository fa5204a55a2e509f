//! The commands that every logical unit supports, whatever its type: one engine, with a few
//! type-specific responses.
//!
//! Does: INQUIRY with its pages, REPORT LUNS, REQUEST SENSE, TEST UNIT READY, MODE SENSE and
//! SELECT, REPORT SUPPORTED OPERATION CODES and TASK MANAGEMENT FUNCTIONS; unit attentions before
//! any command.
//! Does not: keep state; the device server does.
//! Contract: call [`attention`] before a type-specific command, and [`answer`] for all others.
//! Source of truth: SPC-4 §6; SAM-5 §5.14; `docs/standards/scsi.md`.

use alloc::vec::Vec;

use bytes::Bytes;

use crate::lu::{NexusId, ScsiCommand, ScsiReply};
use crate::spc::mode::{self, ModeHeader, ModePage, ModeSense, NewPage};
use crate::spc::supported::{self, CommandRow};
use crate::spc::{self, Identity, SpcCommand, SpcError, opcode, vpd};
use crate::{AdditionalSense, Sense, SenseKey, Status, additional};

/// The type-specific part of the shared commands.
pub trait DeviceServer {
    /// Returns the standard INQUIRY data.
    fn identity(&self) -> Identity<'_>;
    /// Returns the numbers of its vital product data pages, ascending, including 00h.
    fn pages(&self) -> &[u8];
    /// Returns the content of one of [`Self::pages`] other than 00h, without its header.
    fn page(&self, nexus: NexusId, page: u8) -> Option<Vec<u8>>;
    /// Returns its type-specific commands; the shared ones are added.
    fn commands(&self) -> &[CommandRow];
    /// TEST UNIT READY: fails with the reason.
    ///
    /// # Errors
    /// The sense data to return.
    fn ready(&self) -> Result<(), Sense>;
    /// Returns the pending unit attention of this nexus; `take` removes it.
    fn unit_attention(&self, nexus: NexusId, take: bool) -> Option<AdditionalSense>;
    /// Clears the attention about changed logical units: REPORT LUNS was answered on this nexus.
    fn luns_reported(&self, nexus: NexusId);
    /// Whether sense data has descriptor format (D_SENSE).
    fn descriptor_sense(&self) -> bool;
    /// Returns the mode parameter header.
    fn mode_header(&self) -> ModeHeader;
    /// Returns the mode pages, ascending by code and subpage.
    fn mode_pages(&self) -> Vec<ModePage>;
    /// Called when MODE SENSE returned the current values of these pages to the nexus.
    fn mode_sensed(&self, _nexus: NexusId, _sense: &ModeSense) {}
    /// Changes these pages by MODE SELECT; they were checked against their changeable bits. With
    /// `save`, which only a device with savable pages receives, the values of all pages are saved
    /// too, even if none changes.
    ///
    /// # Errors
    /// The sense data to return; no value changes then.
    fn mode_select(&self, nexus: NexusId, pages: &[NewPage], save: bool) -> Result<(), Sense>;
}

/// The shared commands, as listed by REPORT SUPPORTED OPERATION CODES.
pub static COMMANDS: &[CommandRow] = &[
    CommandRow::new(opcode::TEST_UNIT_READY, 6, &[0, 0, 0, 0, 0x04]),
    CommandRow::new(opcode::REQUEST_SENSE, 6, &[0x01, 0, 0, 0xFF, 0x04]),
    CommandRow::new(opcode::INQUIRY, 6, &[0x01, 0xFF, 0xFF, 0xFF, 0x04]),
    CommandRow::new(opcode::MODE_SELECT_6, 6, &[0x11, 0, 0, 0xFF, 0x04]),
    CommandRow::new(opcode::MODE_SENSE_6, 6, &[0x08, 0xFF, 0xFF, 0xFF, 0x04]),
    CommandRow::new(opcode::MODE_SELECT_10, 10, &[0x11, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0x04]),
    CommandRow::new(opcode::MODE_SENSE_10, 10, &[0x18, 0xFF, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0x04]),
    CommandRow::new(opcode::REPORT_LUNS, 12, &[0, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04]),
    CommandRow::new(
        opcode::MAINTENANCE_IN,
        12,
        &[0x1F, 0x87, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04],
    )
    .action(opcode::REPORT_OPERATION_CODES as u16),
    CommandRow::new(opcode::MAINTENANCE_IN, 12, &[0x1F, 0x80, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04])
        .action(opcode::REPORT_TASK_FUNCTIONS as u16),
];

/// Returns CHECK CONDITION in the format of this device.
pub fn refusal(server: &dyn DeviceServer, sense: &Sense) -> ScsiReply {
    ScsiReply::check(if server.descriptor_sense() { sense.encode() } else { sense.encode_fixed() })
}

/// Removes and returns the unit attention to report instead of a command; `None` if none is
/// pending.
pub fn attention(server: &dyn DeviceServer, nexus: NexusId) -> Option<ScsiReply> {
    let code = server.unit_attention(nexus, true)?;
    Some(refusal(server, &Sense::new(SenseKey::UnitAttention, code)))
}

/// Answers one of the shared commands; refuses any other operation code with INVALID COMMAND
/// OPERATION CODE, after pending unit attentions were reported.
pub fn answer(server: &dyn DeviceServer, command: &ScsiCommand<'_>) -> ScsiReply {
    let spc = match SpcCommand::parse(command.cdb) {
        Ok(spc) => spc,
        Err(error) => {
            let reply = match error {
                SpcError::OperationCode(_) => attention(server, command.nexus),
                SpcError::Empty | SpcError::Length(_) | SpcError::Field { .. } => None,
            };
            return reply.unwrap_or_else(|| refusal(server, &error.sense()));
        }
    };
    if !spc.ignores_unit_attention()
        && let Some(reply) = attention(server, command.nexus)
    {
        return reply;
    }
    match run(server, command, spc) {
        Ok(mut data) => {
            data.truncate(spc.allocation());
            let used = if let SpcCommand::ModeSelect(select) = spc { u64::from(select.length) } else { 0 };
            ScsiReply { data_out_used: used, ..ScsiReply::data(Bytes::from(data), command.data_in_max) }
        }
        Err(sense) => refusal(server, &sense),
    }
}

fn run(server: &dyn DeviceServer, command: &ScsiCommand<'_>, spc: SpcCommand) -> Result<Vec<u8>, Sense> {
    let nexus = command.nexus;
    Ok(match spc {
        SpcCommand::TestUnitReady => {
            server.ready()?;
            Vec::new()
        }
        SpcCommand::Inquiry { page: None, .. } => spc::standard_inquiry(&server.identity()),
        SpcCommand::Inquiry { page: Some(page), .. } => {
            let kind = server.identity().device_type;
            let content = match page {
                vpd::SUPPORTED => server.pages().to_vec(),
                _ if !server.pages().contains(&page) => return Err(vpd::unsupported()),
                _ => server.page(nexus, page).ok_or_else(vpd::unsupported)?,
            };
            vpd::page(kind, page, &content)
        }
        // A target with several logical units answers itself before the command gets here.
        SpcCommand::ReportLuns { select, .. } => {
            let own: &[u16] = &[u16::try_from(command.lun).unwrap_or_default()];
            server.luns_reported(nexus);
            spc::report_luns(if select == spc::Select::WellKnown { &[] } else { own })
        }
        SpcCommand::RequestSense { descriptor, .. } => {
            let sense = match (server.unit_attention(nexus, true), server.ready()) {
                (Some(attention), _) => Sense::new(SenseKey::UnitAttention, attention),
                (None, Err(sense)) => sense,
                (None, Ok(())) => Sense::new(SenseKey::NoSense, additional::NO_ADDITIONAL_SENSE),
            };
            if descriptor { sense.encode() } else { sense.encode_fixed() }
        }
        SpcCommand::ModeSense { sense, .. } => {
            let data = sense.answer(&server.mode_header(), &server.mode_pages())?;
            server.mode_sensed(nexus, &sense);
            data
        }
        SpcCommand::ModeSelect(select) => {
            let pages = server.mode_pages();
            if select.save && !mode::can_save(&pages) {
                return Err(SpcError::Field { at: 1 }.sense());
            }
            let changes = select.changes(&server.mode_header(), &pages, command.data_out)?;
            if select.save || !changes.is_empty() {
                server.mode_select(nexus, &changes, select.save)?;
            }
            Vec::new()
        }
        SpcCommand::ReportOperationCodes { reporting, timeouts, .. } => {
            let mut rows: Vec<CommandRow> = COMMANDS.iter().chain(server.commands()).copied().collect();
            rows.sort_by_key(|row| (row.opcode, row.action));
            supported::operation_codes(rows.iter().copied(), reporting, timeouts)
                .map_err(|error| error.sense())?
        }
        SpcCommand::ReportTaskFunctions { extended, .. } => supported::task_functions(extended),
    })
}

/// Returns the reply for a logical unit that does not exist (SPC-4 §6.6.1, SAM-5 §5.11): INQUIRY
/// and REQUEST SENSE are answered, everything else is refused.
#[must_use]
pub fn absent(command: &[u8], data_in_max: usize) -> ScsiReply {
    let not_supported = Sense::new(SenseKey::IllegalRequest, additional::LOGICAL_UNIT_NOT_SUPPORTED);
    let data = match SpcCommand::parse(command) {
        Ok(spc @ SpcCommand::Inquiry { page: None, .. }) => {
            let nobody = Identity {
                device_type: spc::NOT_THERE,
                vendor: spc::VENDOR,
                product: "",
                revision: "",
                versions: &[],
                removable: false,
            };
            Some((spc::standard_inquiry(&nobody), spc.allocation()))
        }
        Ok(SpcCommand::Inquiry { page: Some(_), .. }) => {
            return ScsiReply::check(vpd::unsupported().encode_fixed());
        }
        Ok(spc @ SpcCommand::RequestSense { descriptor, .. }) => {
            let sense = if descriptor { not_supported.encode() } else { not_supported.encode_fixed() };
            Some((sense, spc.allocation()))
        }
        Err(error @ (SpcError::Field { .. } | SpcError::Length(_))) => {
            return ScsiReply::check(error.sense().encode_fixed());
        }
        _ => None,
    };
    match data {
        Some((mut data, allocation)) => {
            data.truncate(allocation);
            ScsiReply { status: Status::Good, ..ScsiReply::data(Bytes::from(data), data_in_max) }
        }
        None => ScsiReply::check(not_supported.encode_fixed()),
    }
}

#[cfg(test)]
#[path = "primary_tests.rs"]
mod tests;
