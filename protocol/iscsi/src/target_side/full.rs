//! Full feature phase, target side: processes received PDUs, and requests data-out (R2T).
//!
//! Does: checks headers and sequence numbers, passes data-out to its task, and rejects PDUs that
//! are not valid.
//! Does not: encode responses (`reply`), or know the state of one command (`task`).

use bytes::Bytes;

use super::{
    ReceivedCommand, SessionKind, TargetClosed, TargetConnection, TargetEvent, Violation,
    session::{PduAction, TargetPhase, bytes_of, collect},
    task::{CommandFailure, TargetTask, TaskState, TaskStep, transfer_tag},
};
use crate::{
    Buffer, TaskId,
    frame::SegmentDestination,
    limits,
    pdu::{self, Bhs, NO_TAG, flag, opcode, reason},
    serial,
};

/// Maximum number of rejected PDUs of one connection before it is closed.
const REJECTS_MAX: u32 = 256;

/// Meaning of a PDU's command number (§4.2.2.1).
enum NumberCheck {
    Now,
    /// Outside the window: ignore silently.
    Outside,
}

impl TargetConnection {
    /// Decides what to do with a PDU and where its data goes; `None` while memory is short, since
    /// `since`.
    pub(super) fn full_feature_header(
        &mut self,
        bhs: &Bhs,
        since: Option<u64>,
    ) -> Result<Option<SegmentDestination>, TargetClosed> {
        let length = pdu::data_length(bhs);
        let opcode = pdu::opcode_of(bhs);
        if length > self.agreed.max_receive {
            return Err(Violation::LongSegment(length).into());
        }
        let numbered = matches!(
            opcode,
            opcode::SCSI_COMMAND | opcode::TASK_MANAGEMENT | opcode::TEXT | opcode::LOGOUT | opcode::NOP_OUT
        ) && bhs[0] & opcode::IMMEDIATE == 0;
        if numbered && matches!(self.turn(bhs)?, NumberCheck::Outside) {
            self.fate = PduAction::Ignore;
            return Ok(Some(SegmentDestination::Discard));
        }
        let discovery = matches!(self.phase, TargetPhase::Full(SessionKind::Discovery));
        let destination = match opcode {
            opcode::LOGIN => return Err(Violation::LoginAgain.into()),
            opcode::SCSI_COMMAND | opcode::TASK_MANAGEMENT | opcode::DATA_OUT if discovery => {
                self.rejected_by_header(reason::PROTOCOL)
            }
            opcode::SCSI_COMMAND => match self.command_header(bhs, length, since) {
                Some(destination) => destination,
                None => return Ok(None),
            },
            _ if pdu::ahs_length(bhs) != 0 => self.rejected_by_header(reason::INVALID_FIELD),
            opcode::DATA_OUT => self.data_out_header(bhs, length),
            opcode::TEXT if length as usize > limits::TEXT_MAX => {
                self.rejected_by_header(reason::OUT_OF_RESOURCES)
            }
            opcode::TEXT => {
                self.fate = PduAction::Act;
                collect(length)
            }
            opcode::NOP_OUT => {
                self.fate = PduAction::Act;
                let echo = length.min(limits::PING_ECHO_MAX as u32).min(self.agreed.max_send);
                collect(echo)
            }
            opcode::TASK_MANAGEMENT | opcode::LOGOUT => {
                self.fate = PduAction::Act;
                SegmentDestination::Discard
            }
            opcode::SNACK => self.rejected_by_header(reason::SNACK),
            _ => self.rejected_by_header(reason::NOT_SUPPORTED),
        };
        // From here on the PDU counts as received, whatever happens to it: a rejected one leaves no
        // gap.
        if numbered {
            self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
        }
        Ok(Some(destination))
    }

    fn turn(&self, bhs: &Bhs) -> Result<NumberCheck, TargetClosed> {
        let cmd_sn = pdu::ScsiCommand::of(bhs).cmd_sn.get();
        if cmd_sn == self.exp_cmd_sn && serial::within(cmd_sn, self.exp_cmd_sn, self.max_cmd_sn()) {
            Ok(NumberCheck::Now)
        } else if serial::within(cmd_sn, self.exp_cmd_sn, self.max_cmd_sn()) {
            Err(Violation::CommandGap.into())
        } else {
            Ok(NumberCheck::Outside)
        }
    }

    fn rejected_by_header(&mut self, reason: u8) -> SegmentDestination {
        self.fate = PduAction::Reject(reason);
        SegmentDestination::Discard
    }

    fn command_header(&mut self, bhs: &Bhs, length: u32, since: Option<u64>) -> Option<SegmentDestination> {
        let header = pdu::ScsiCommand::of(bhs);
        let task =
            pdu::parse_ahs(&header.cdb, self.rx.ahs()).and_then(|extras| TargetTask::new(&header, extras));
        let Some(mut task) = task.filter(|task| task.tag != NO_TAG) else {
            return Some(self.rejected_by_header(reason::INVALID_FIELD));
        };
        if self.tasks.find(task.tag).is_some() {
            return Some(self.rejected_by_header(reason::TASK_IN_PROGRESS));
        }
        if task.immediate && self.tasks.immediate() >= limits::IMMEDIATE_MAX {
            return Some(self.rejected_by_header(reason::TOO_MANY_IMMEDIATE));
        }
        let burst = match self.config.pull_bytes {
            Some(_) => self.agreed.max_burst.min(limits::PULL_BURST),
            None => self.agreed.max_burst,
        };
        task.check_unsolicited(&self.agreed, burst, length);
        if task.write_expected > self.config.data_out_max {
            task.fail(CommandFailure::TooLong);
        }
        if task.failure.is_none() && task.write_expected > 0 {
            match Buffer::take_on_page(&self.pool, task.write_expected as usize) {
                Some(buffer) => task.data_out = buffer,
                // Data-out of other commands is behind this command in the stream: reading must
                // continue (SAM-5 §5.3.1).
                None if self.tasks.collecting() > 0 => task.fail(CommandFailure::TaskSetFull),
                None if since.is_some_and(|since| {
                    self.now_ms >= since.saturating_add(self.config.starvation_timeout_ms)
                }) =>
                {
                    task.fail(CommandFailure::Busy);
                }
                None => return None,
            }
        }
        let keep = task.failure.is_none() && length > 0;
        let buffer = if keep { core::mem::take(&mut task.data_out) } else { Buffer::default() };
        if self.tasks.collecting() == 0 {
            self.transfer_at = self.now_ms;
        }
        let Some(slot) = self.tasks.insert(task) else {
            return Some(self.rejected_by_header(reason::OUT_OF_RESOURCES));
        };
        self.fate = PduAction::Command(slot);
        Some(if keep { SegmentDestination::Into(buffer, 0) } else { SegmentDestination::Discard })
    }

    fn data_out_header(&mut self, bhs: &Bhs, length: u32) -> SegmentDestination {
        let header = pdu::DataOut::of(bhs);
        // Data of a command that ended meanwhile may still arrive.
        self.fate = PduAction::Ignore;
        let Some(slot) = self.tasks.find(header.tag.get()) else { return SegmentDestination::Discard };
        let Some(task) = self.tasks.get(slot).filter(|task| task.is_collecting()) else {
            return self.rejected_by_header(reason::PROTOCOL);
        };
        let Some(destination) = task.data_out(slot, &header, length) else {
            return self.rejected_by_header(reason::INVALID_FIELD);
        };
        self.fate = PduAction::DataOut(slot);
        destination
    }

    /// Processes a complete PDU.
    pub(super) fn full_feature(
        &mut self,
        bhs: &Bhs,
        destination: SegmentDestination,
        intact: bool,
    ) -> Result<(), TargetClosed> {
        let length = pdu::data_length(bhs);
        match core::mem::replace(&mut self.fate, PduAction::Ignore) {
            PduAction::Ignore => {}
            PduAction::Reject(reason) => self.reject(bhs, reason)?,
            PduAction::Command(slot) => {
                if !intact {
                    self.reject(bhs, reason::DATA_DIGEST)?;
                }
                if let Some(task) = self.tasks.get(slot) {
                    if let SegmentDestination::Into(buffer, _) = destination {
                        task.data_out = buffer;
                        task.immediate_received(length);
                    }
                    if !intact {
                        task.fail(CommandFailure::ProtocolServiceCrc);
                    }
                }
                self.advance(slot);
                self.pull_more();
            }
            PduAction::DataOut(slot) => {
                self.transfer_at = self.now_ms;
                if !intact {
                    self.reject(bhs, reason::DATA_DIGEST)?;
                }
                if let Some(task) = self.tasks.get(slot) {
                    task.data_out_received(bhs[1] & flag::FINAL != 0, length, destination);
                    if !intact {
                        task.fail(CommandFailure::ProtocolServiceCrc);
                    }
                }
                self.advance(slot);
                self.pull_more();
            }
            PduAction::Act if !intact => self.reject(bhs, reason::DATA_DIGEST)?,
            PduAction::Act => return self.act(bhs, &destination),
        }
        Ok(())
    }

    fn act(&mut self, bhs: &Bhs, destination: &SegmentDestination) -> Result<(), TargetClosed> {
        match pdu::opcode_of(bhs) {
            opcode::TASK_MANAGEMENT => self.manage(&pdu::TaskManagement::of(bhs), bhs),
            opcode::TEXT => self.text(bhs, bytes_of(destination)),
            opcode::NOP_OUT => {
                self.nop_out(&pdu::Text::of(bhs), bytes_of(destination));
                Ok(())
            }
            _ => self.logout(&pdu::Logout::of(bhs)),
        }
    }

    /// Lets commands request data for which others made space.
    pub(super) fn pull_more(&mut self) {
        if self.config.pull_bytes.is_none() || self.tasks.collecting() == 0 {
            return;
        }
        while let Some(slot) = self.tasks.next_to_pull() {
            let before = self.tasks.pulled();
            self.advance(slot);
            // It requests all that it may. If that is nothing, it waits, and so do all later ones.
            if self.tasks.pulled() == before {
                return;
            }
        }
    }

    /// Advances a command as far as possible: requests more data, executes, or fails it.
    fn advance(&mut self, slot: u16) {
        loop {
            let room = match self.config.pull_bytes {
                // First come, first served.
                Some(_) if self.tasks.next_to_pull().is_some_and(|next| next != slot) => 0,
                most => self.tasks.pull_room(slot, most),
            };
            let Some(task) = self.tasks.get(slot) else { return };
            match task.next_step(&self.agreed, room) {
                TaskStep::Nothing => return,
                TaskStep::Ask { r2t_sn, offset, length } => {
                    self.tasks.pull(length);
                    let Some(task) = self.tasks.get(slot) else { return };
                    let mut pdu = pdu::R2t::new(opcode::R2T, flag::FINAL);
                    pdu.lun.set(task.lun);
                    pdu.tag.set(task.tag);
                    pdu.transfer.set(transfer_tag(slot, r2t_sn));
                    pdu.r2t_sn.set(r2t_sn);
                    pdu.offset.set(offset);
                    pdu.desired.set(length);
                    self.transfer_at = self.now_ms;
                    self.control(pdu.wire(), Bytes::new(), false);
                }
                TaskStep::Execute => {
                    let command = ReceivedCommand {
                        task: task.id,
                        tag: task.tag,
                        lun: task.lun,
                        cdb: task.cdb.clone(),
                        attribute: task.attribute,
                        data_out: core::mem::take(&mut task.data_out),
                        data_in_max: task.read_expected,
                    };
                    self.tasks.set_state(slot, TaskState::Running);
                    self.events.push_back(TargetEvent::Command(command));
                    return;
                }
                TaskStep::Fail(failure) => {
                    task.data_out = Buffer::default();
                    let (id, lun) = (task.id, task.lun);
                    let descriptor = self.format.as_ref().is_some_and(|format| format.is_descriptor(lun));
                    self.tasks.set_state(slot, TaskState::Running);
                    self.complete(id, failure.reply(descriptor));
                    return;
                }
            }
        }
    }

    /// Rejects a command whose PDUs contradict each other in parts that the shell processes (reason
    /// 04h). It has no other response.
    pub fn reject_command(&mut self, task: TaskId) {
        let Some(slot) = self.tasks.find_id(task) else { return };
        let Some(entry) = self.tasks.get(slot) else { return };
        let is_running = matches!(entry.state, TaskState::Running);
        let mut header = pdu::ScsiCommand::new(opcode::SCSI_COMMAND, flag::FINAL);
        header.lun.set(entry.lun);
        header.tag.set(entry.tag);
        header.cdb = entry.cdb.first_16();
        self.tasks.remove(slot);
        if is_running {
            if let Err(reason) = self.reject(&header.wire(), reason::PROTOCOL) {
                self.close(reason);
            }
        } else {
            self.task_ended(task);
        }
        self.pull_more();
    }

    /// Rejects a PDU of the initiator.
    pub(super) fn reject(&mut self, bhs: &Bhs, reason: u8) -> Result<(), TargetClosed> {
        self.rejects += 1;
        let mut pdu = pdu::Reject::new(opcode::REJECT, flag::FINAL);
        pdu.reason = reason;
        pdu.tag.set(NO_TAG);
        self.control(pdu.wire(), Bytes::copy_from_slice(bhs), true);
        if self.rejects > REJECTS_MAX { Err(Violation::TooManyRejects.into()) } else { Ok(()) }
    }

    fn nop_out(&mut self, request: &pdu::Text, data: &[u8]) {
        if request.tag.get() == NO_TAG {
            if self.ping.is_some_and(|(_, transfer)| transfer == request.transfer.get()) {
                self.ping = None;
            }
            return;
        }
        let mut answer = pdu::TextResponse::new(opcode::NOP_IN, flag::FINAL);
        answer.lun = request.lun;
        answer.tag = request.tag;
        answer.transfer.set(NO_TAG);
        self.control(answer.wire(), Bytes::copy_from_slice(data), true);
    }

    fn logout(&mut self, request: &pdu::Logout) -> Result<(), TargetClosed> {
        const CLOSE_SESSION: u8 = 0;
        const CLOSE_CONNECTION: u8 = 1;
        let mut answer = pdu::LogoutResponse::new(opcode::LOGOUT_RESPONSE, flag::FINAL);
        answer.tag = request.tag;
        answer.time2wait.set(u16::try_from(self.agreed.time2wait).unwrap_or(u16::MAX));
        answer.time2retain.set(0);
        answer.response = match request.flags & 0x7F {
            CLOSE_SESSION => 0,
            CLOSE_CONNECTION if request.cid.get() == self.cid => 0,
            CLOSE_CONNECTION => 1, // CID not found
            _ => 2,                // connection recovery is not supported
        };
        let done = answer.response == 0;
        self.control(answer.wire(), Bytes::new(), true);
        if done { Err(TargetClosed::LoggedOut) } else { Ok(()) }
    }
}
