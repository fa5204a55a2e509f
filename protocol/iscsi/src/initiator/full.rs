//! Full feature phase, initiator side (RFC 7143 §4, §11).
//!
//! Does: keeps the table of commands in progress, sends commands and data-out within the target's
//! window, collects data-in, and answers pings, asynchronous messages and rejects.
//! Does not: log in; `login` does. `session` calls this module while the session is in full feature
//! phase.

use alloc::{string::String, vec::Vec};
use core::mem;

use bytes::Bytes;

use super::{
    CommandResponse, DiscoveredTarget, InitiatorClosed, InitiatorConnection, InitiatorEvent,
    ManagementFunction, ManagementResult, SubmittedCommand, TaskFailure, Violation,
};
use crate::{
    Residual, TaskId,
    frame::SegmentDestination,
    limits,
    pdu::{self, Bhs, NO_TAG, flag, opcode},
    text,
};

/// One command in progress.
pub(super) struct InitiatorTask {
    pub(super) id: TaskId,
    pub(super) tag: u32,
    pub(super) cmd_sn: u32,
    pub(super) command: SubmittedCommand,
    /// Next DataSN of Data-In, or R2TSN; for bidirectional commands one counter for both (RFC 7143
    /// §4.2.2.4).
    next_sn: u32,
    /// Contiguous bytes of data-in.
    received: usize,
    /// Data-out offset up to which the target has sent R2Ts, or unsolicited data may be sent.
    granted: usize,
    /// R2Ts whose data is not sent yet.
    r2ts: u32,
}

impl InitiatorTask {
    pub(super) const fn new(id: TaskId, tag: u32, cmd_sn: u32, command: SubmittedCommand) -> Self {
        Self { id, tag, cmd_sn, command, next_sn: 0, received: 0, granted: 0, r2ts: 0 }
    }

    /// Returns data-in up to the last whole segment.
    pub(super) fn data_in(&self) -> &[u8] {
        let buffer = self.command.data_in.as_slice();
        &buffer[..self.received.min(buffer.len())]
    }
}

/// Tasks by tag: the low half of a tag is a slot, the high half distinguishes its users.
pub(super) struct InitiatorTasks {
    slots: Vec<Option<InitiatorTask>>,
    free: Vec<u16>,
    serial: u64,
    management: Vec<(TaskId, u32, ManagementFunction)>,
    /// Text of the SendTargets response so far.
    pub(super) text: Option<Vec<u8>>,
}

impl InitiatorTasks {
    pub(super) const PING_TAG: u32 = 0xFFF0;
    pub(super) const TEXT_TAG: u32 = 0xFFF1;
    pub(super) const LOGOUT_TAG: u32 = 0xFFF2;
    /// Low half of tags of task management functions.
    const MANAGEMENT_SLOT: u32 = 0xFFF3;

    pub(super) fn new(depth: u16) -> Self {
        Self {
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            serial: 0,
            management: Vec::new(),
            text: None,
        }
    }

    pub(super) const fn capacity(&self) -> usize {
        self.slots.len()
    }

    pub(super) const fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) const fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    fn fresh(&mut self, slot: u32) -> (TaskId, u32) {
        self.serial += 1;
        let turn = u32::try_from(self.serial & 0xFFFF).unwrap_or_default();
        (TaskId(self.serial), (turn << 16) | slot)
    }

    /// Contract: the table is not full.
    pub(super) fn insert(&mut self, make: impl FnOnce(TaskId, u32) -> InitiatorTask) -> (TaskId, u32) {
        let slot = self.free.pop().expect("can_submit saw a free slot");
        let (id, tag) = self.fresh(u32::from(slot));
        self.slots[usize::from(slot)] = Some(make(id, tag));
        (id, tag)
    }

    fn slot(&mut self, tag: u32) -> Option<&mut Option<InitiatorTask>> {
        let slot = self.slots.get_mut((tag & 0xFFFF) as usize)?;
        slot.as_ref().is_some_and(|task| task.tag == tag).then_some(slot)
    }

    fn get(&mut self, tag: u32) -> Option<&mut InitiatorTask> {
        self.slot(tag)?.as_mut()
    }

    pub(super) fn by_tag(&self, tag: u32) -> Option<&InitiatorTask> {
        self.slots.get((tag & 0xFFFF) as usize)?.as_ref().filter(|task| task.tag == tag)
    }

    fn remove(&mut self, tag: u32) -> Option<InitiatorTask> {
        let task = self.slot(tag)?.take()?;
        self.free.push(u16::try_from(tag & 0xFFFF).unwrap_or_default());
        Some(task)
    }

    pub(super) fn by_id(&self, id: TaskId) -> Option<&InitiatorTask> {
        self.slots.iter().flatten().find(|task| task.id == id)
    }

    pub(super) fn begin_management(&mut self, function: ManagementFunction) -> Option<(TaskId, u32)> {
        if self.management.len() >= limits::MANAGEMENT_MAX {
            return None;
        }
        let (id, tag) = self.fresh(Self::MANAGEMENT_SLOT);
        self.management.push((id, tag, function));
        Some((id, tag))
    }

    fn end_management(&mut self, tag: u32) -> Option<(TaskId, ManagementFunction)> {
        let at = self.management.iter().position(|(_, waiting, _)| *waiting == tag)?;
        let (id, _, function) = self.management.swap_remove(at);
        Some((id, function))
    }

    fn tags_ended_by(&self, function: ManagementFunction) -> Vec<u32> {
        let ended = |task: &&InitiatorTask| match function {
            ManagementFunction::AbortTask(id) => task.id == id,
            ManagementFunction::AbortTaskSet(lun)
            | ManagementFunction::ClearTaskSet(lun)
            | ManagementFunction::LogicalUnitReset(lun) => task.command.lun == lun,
            ManagementFunction::TargetWarmReset | ManagementFunction::TargetColdReset => true,
        };
        self.slots.iter().flatten().filter(ended).map(|task| task.tag).collect()
    }
}

/// PDUs that are not encoded yet.
pub(super) enum PendingPdu {
    Command { tag: u32 },
    DataOut { tag: u32, transfer: u32, lun: u64, from: usize, until: usize, data_sn: u32 },
    Control { bhs: Bhs, data: Bytes },
}

impl InitiatorConnection {
    /// Encodes the next PDU; returns false if there is none.
    pub(super) fn transmit_next(&mut self) -> bool {
        let Some(next) = self.out.pop_front() else { return false };
        match next {
            PendingPdu::Control { mut bhs, data } => {
                if pdu::opcode_of(&bhs) != opcode::LOGIN || self.exp_stat_sn != 0 {
                    bhs[28..32].copy_from_slice(&self.exp_stat_sn.to_be_bytes());
                }
                self.tx.pdu(bhs, &[], data.len(), core::iter::once(data));
            }
            PendingPdu::Command { tag } => self.transmit_command(tag),
            PendingPdu::DataOut { tag, transfer, lun, from, until, data_sn } => {
                self.transmit_data_out(tag, transfer, lun, from, until, data_sn);
            }
        }
        true
    }

    fn transmit_command(&mut self, tag: u32) {
        let (agreed, exp_stat_sn) = (&self.agreed, self.exp_stat_sn);
        let Some(task) = self.tasks.get(tag) else { return };
        let command = &task.command;
        let (out, read) = (command.data_out.len(), command.data_in.len());
        let unasked = out.min(agreed.first_burst as usize);
        let immediate = if agreed.immediate_data { unasked.min(agreed.max_send as usize) } else { 0 };
        let follows = !agreed.initial_r2t && unasked > immediate;

        let mut flags = command.attribute.bits();
        flags |= if follows { 0 } else { flag::FINAL };
        flags |= if out > 0 { flag::WRITE } else { 0 };
        flags |= if read > 0 { flag::READ } else { 0 };
        let mut pdu = pdu::ScsiCommand::new(opcode::SCSI_COMMAND, flags);
        let length = |n: usize| u32::try_from(n).expect("submit refuses buffers beyond 32 bits");
        pdu.lun.set(command.lun);
        pdu.tag.set(tag);
        pdu.expected.set(if out > 0 { length(out) } else { length(read) });
        pdu.cmd_sn.set(task.cmd_sn);
        pdu.exp_stat_sn.set(exp_stat_sn);
        pdu.cdb = command.cdb.first_16();
        let bidi = (out > 0 && read > 0).then(|| length(read));
        let mut ahs = [0; limits::AHS_MAX];
        let used = pdu::write_ahs(&command.cdb, bidi, &mut ahs);
        self.tx.pdu(pdu.wire(), &ahs[..used], immediate, command.data_out.range(0, immediate));
        task.granted = immediate;
        if follows {
            task.granted = unasked;
            let (from, until, lun) = (immediate, unasked, command.lun);
            // Unsolicited data follows its command at once, so it is sent in the order of commands.
            self.out.push_front(PendingPdu::DataOut { tag, transfer: NO_TAG, lun, from, until, data_sn: 0 });
        }
    }

    fn transmit_data_out(
        &mut self,
        tag: u32,
        transfer: u32,
        lun: u64,
        from: usize,
        until: usize,
        data_sn: u32,
    ) {
        let exp_stat_sn = self.exp_stat_sn;
        let Some(task) = self.tasks.get(tag) else { return };
        let length = (until - from).min(self.agreed.max_send as usize);
        let last = from + length == until;
        let mut pdu = pdu::DataOut::new(opcode::DATA_OUT, if last { flag::FINAL } else { 0 });
        pdu.lun.set(lun);
        pdu.tag.set(tag);
        pdu.transfer.set(transfer);
        pdu.exp_stat_sn.set(exp_stat_sn);
        pdu.data_sn.set(data_sn);
        pdu.offset.set(u32::try_from(from).expect("submit refuses buffers beyond 32 bits"));
        self.tx.pdu(pdu.wire(), &[], length, task.command.data_out.range(from, length));
        if last {
            task.r2ts -= u32::from(transfer != NO_TAG);
        } else {
            let (from, data_sn) = (from + length, data_sn.wrapping_add(1));
            self.out.push_front(PendingPdu::DataOut { tag, transfer, lun, from, until, data_sn });
        }
    }

    /// Returns the destination of a Data-In segment; checks its order.
    pub(super) fn data_in_destination(
        &mut self,
        bhs: &Bhs,
        length: u32,
    ) -> Result<SegmentDestination, Violation> {
        let pdu = pdu::DataIn::of(bhs);
        if length > self.agreed.max_receive {
            return Err(Violation::LongSegment(length));
        }
        let task = self.tasks.get(pdu.tag.get()).ok_or(Violation::UnknownTask(pdu.tag.get()))?;
        let end = task.received.checked_add(length as usize);
        let fits = end.is_some_and(|end| end <= task.command.data_in.len());
        if pdu.offset.get() as usize != task.received || pdu.data_sn.get() != task.next_sn || !fits {
            return Err(Violation::DataSequence);
        }
        task.next_sn = task.next_sn.wrapping_add(1);
        self.data_in_tag = Some(task.tag);
        Ok(SegmentDestination::Into(mem::take(&mut task.command.data_in), task.received))
    }

    pub(super) fn full_feature(
        &mut self,
        bhs: &Bhs,
        destination: SegmentDestination,
    ) -> Result<(), InitiatorClosed> {
        // All responses of a target have these three fields at the same offset.
        let head = pdu::ScsiResponse::of(bhs);
        self.window(head.exp_cmd_sn.get(), head.max_cmd_sn.get());
        let carries_status = match pdu::opcode_of(bhs) {
            opcode::DATA_IN => bhs[1] & flag::STATUS != 0,
            opcode::NOP_IN => head.tag.get() != NO_TAG,
            opcode::R2T => false,
            _ => true,
        };
        if carries_status {
            if head.stat_sn.get() != self.exp_stat_sn {
                return Err(InitiatorClosed::Violation(Violation::StatusSequence));
            }
            self.exp_stat_sn = self.exp_stat_sn.wrapping_add(1);
        }
        let done = match pdu::opcode_of(bhs) {
            opcode::DATA_IN => self.data_in(&pdu::DataIn::of(bhs), destination),
            opcode::SCSI_RESPONSE => self.scsi_response(&head, bytes_of(&destination)),
            opcode::R2T => self.ready_to_transfer(&pdu::R2t::of(bhs)),
            opcode::NOP_IN => self.nop_in(&pdu::TextResponse::of(bhs)),
            opcode::TASK_MANAGEMENT_RESPONSE => self.managed(&pdu::TaskManagementResponse::of(bhs)),
            opcode::TEXT_RESPONSE => self.text_response(&pdu::TextResponse::of(bhs), bytes_of(&destination)),
            opcode::REJECT => self.rejected(&pdu::Reject::of(bhs), bytes_of(&destination)),
            opcode::ASYNC => return self.asynchronous(&pdu::Async::of(bhs)),
            opcode::LOGOUT_RESPONSE if head.tag.get() == InitiatorTasks::LOGOUT_TAG => {
                return Err(InitiatorClosed::LoggedOut);
            }
            other => Err(Violation::UnexpectedPdu(other)),
        };
        self.announce_window();
        done.map_err(InitiatorClosed::Violation)
    }

    fn complete(&mut self, task: InitiatorTask, outcome: Result<CommandResponse, TaskFailure>) {
        self.events.push_back(InitiatorEvent::Completed { task: task.id, outcome });
    }

    fn data_in(&mut self, pdu: &pdu::DataIn, destination: SegmentDestination) -> Result<(), Violation> {
        let tag = pdu.tag.get();
        let task = self.tasks.get(tag).ok_or(Violation::UnknownTask(tag))?;
        if let SegmentDestination::Into(buffer, _) = destination {
            task.command.data_in = buffer;
        }
        let length = u32::from_be_bytes([0, pdu.length[0], pdu.length[1], pdu.length[2]]);
        task.received += length as usize;
        if pdu.flags & flag::STATUS != 0 {
            let mut task = self.tasks.remove(tag).ok_or(Violation::UnknownTask(tag))?;
            let response = CommandResponse {
                status: pdu.status,
                sense: Vec::new(),
                data_in: mem::take(&mut task.command.data_in),
                data_in_length: task.received,
                read_residual: residual(pdu.flags, flag::OVERFLOW, flag::UNDERFLOW, pdu.residual.get()),
                write_residual: Residual::None,
            };
            self.complete(task, Ok(response));
        }
        Ok(())
    }

    fn scsi_response(&mut self, pdu: &pdu::ScsiResponse, data: &[u8]) -> Result<(), Violation> {
        let tag = pdu.tag.get();
        let sense = match data.split_first_chunk::<2>() {
            Some((length, rest)) => {
                rest.get(..usize::from(u16::from_be_bytes(*length))).ok_or(Violation::ResponseData)?
            }
            None => &[],
        };
        let mut task = self.tasks.remove(tag).ok_or(Violation::UnknownTask(tag))?;
        if pdu.response != 0 {
            self.complete(task, Err(TaskFailure::Target(pdu.response)));
            return Ok(());
        }
        let bidi = residual(pdu.flags, flag::BIDI_OVERFLOW, flag::BIDI_UNDERFLOW, pdu.bidi_residual.get());
        let plain = residual(pdu.flags, flag::OVERFLOW, flag::UNDERFLOW, pdu.residual.get());
        let (read_residual, write_residual) =
            match (task.command.data_out.is_empty(), task.command.data_in.is_empty()) {
                (true, _) => (plain, Residual::None),
                (false, true) => (Residual::None, plain),
                (false, false) => (bidi, plain),
            };
        let response = CommandResponse {
            status: pdu.status,
            sense: sense.to_vec(),
            data_in: mem::take(&mut task.command.data_in),
            data_in_length: task.received,
            read_residual,
            write_residual,
        };
        self.complete(task, Ok(response));
        Ok(())
    }

    fn ready_to_transfer(&mut self, pdu: &pdu::R2t) -> Result<(), Violation> {
        let (tag, offset, desired) = (pdu.tag.get(), pdu.offset.get() as usize, pdu.desired.get());
        let agreed = &self.agreed;
        let task = self.tasks.get(tag).ok_or(Violation::UnknownTask(tag))?;
        let until = offset.saturating_add(desired as usize);
        let lawful = offset == task.granted
            && (1..=agreed.max_burst).contains(&desired)
            && until <= task.command.data_out.len()
            && task.r2ts < agreed.max_outstanding_r2t
            && pdu.r2t_sn.get() == task.next_sn
            && pdu.transfer.get() != NO_TAG;
        if !lawful {
            return Err(Violation::ReadyToTransfer);
        }
        task.granted = until;
        task.r2ts += 1;
        task.next_sn = task.next_sn.wrapping_add(1);
        let (transfer, lun) = (pdu.transfer.get(), pdu.lun.get());
        self.out.push_back(PendingPdu::DataOut { tag, transfer, lun, from: offset, until, data_sn: 0 });
        Ok(())
    }

    fn nop_in(&mut self, pdu: &pdu::TextResponse) -> Result<(), Violation> {
        match (pdu.tag.get(), pdu.transfer.get()) {
            (InitiatorTasks::PING_TAG, _) if self.ping_sent.is_some() => self.ping_sent = None,
            (NO_TAG, NO_TAG) => {} // reports its counters only
            (NO_TAG, transfer) => {
                let mut answer = pdu::Text::new(opcode::NOP_OUT | opcode::IMMEDIATE, flag::FINAL);
                answer.lun = pdu.lun;
                answer.tag.set(NO_TAG);
                answer.transfer.set(transfer);
                answer.cmd_sn.set(self.cmd_sn);
                self.control(answer.wire(), Vec::new());
            }
            (unknown, _) => return Err(Violation::UnknownTask(unknown)),
        }
        Ok(())
    }

    fn managed(&mut self, pdu: &pdu::TaskManagementResponse) -> Result<(), Violation> {
        let tag = pdu.tag.get();
        let (id, function) = self.tasks.end_management(tag).ok_or(Violation::UnknownTask(tag))?;
        let result = ManagementResult::from(pdu.response);
        let effective = result == ManagementResult::Complete
            || matches!((result, function), (ManagementResult::NoSuchTask, ManagementFunction::AbortTask(_)));
        if effective {
            for tag in self.tasks.tags_ended_by(function) {
                if let Some(task) = self.tasks.remove(tag) {
                    self.complete(task, Err(TaskFailure::Aborted));
                }
            }
        }
        self.events.push_back(InitiatorEvent::Managed { id, result });
        Ok(())
    }

    fn text_response(&mut self, pdu: &pdu::TextResponse, data: &[u8]) -> Result<(), Violation> {
        if pdu.tag.get() != InitiatorTasks::TEXT_TAG {
            return Err(Violation::UnknownTask(pdu.tag.get()));
        }
        let gathered = self.tasks.text.as_mut().ok_or(Violation::UnknownTask(InitiatorTasks::TEXT_TAG))?;
        if gathered.len() + data.len() > limits::TEXT_MAX {
            return Err(Violation::EndlessNegotiation);
        }
        gathered.extend_from_slice(data);
        if pdu.flags & flag::FINAL == 0 {
            if pdu.transfer.get() == NO_TAG || data.is_empty() {
                return Err(Violation::Negotiation);
            }
            let mut request = pdu::Text::new(opcode::TEXT | opcode::IMMEDIATE, flag::FINAL);
            request.lun = pdu.lun;
            request.tag.set(InitiatorTasks::TEXT_TAG);
            request.transfer = pdu.transfer;
            request.cmd_sn.set(self.cmd_sn);
            self.control(request.wire(), Vec::new());
            return Ok(());
        }
        let gathered = self.tasks.text.take().unwrap_or_default();
        let mut targets: Vec<DiscoveredTarget> = Vec::new();
        for (key, value) in text::parse_up_to(limits::TEXT_MAX, &gathered)? {
            match (key, targets.last_mut()) {
                ("TargetName", _) => {
                    targets.push(DiscoveredTarget { name: String::from(value), addresses: Vec::new() });
                }
                ("TargetAddress", Some(target)) => target.addresses.push(String::from(value)),
                _ => {}
            }
        }
        self.events.push_back(InitiatorEvent::Targets(targets));
        Ok(())
    }

    /// Ends the command whose header was returned. A rejected Data-Out does not end its command:
    /// the target ends it with a SCSI Response after it has received the other data (RFC 7143
    /// §7.3).
    fn rejected(&mut self, pdu: &pdu::Reject, data: &[u8]) -> Result<(), Violation> {
        let Some(header) = data.first_chunk::<{ pdu::BHS_LEN }>() else { return Ok(()) };
        let tag = pdu::tag_of(header);
        match pdu::opcode_of(header) {
            opcode::SCSI_COMMAND => {
                if let Some(task) = self.tasks.remove(tag) {
                    self.complete(task, Err(TaskFailure::Rejected(pdu.reason)));
                }
            }
            opcode::TASK_MANAGEMENT => {
                if let Some((id, _)) = self.tasks.end_management(tag) {
                    self.events.push_back(InitiatorEvent::Managed {
                        id,
                        result: ManagementResult::Rejected(pdu.reason),
                    });
                }
            }
            opcode::TEXT if self.tasks.text.take().is_some() => {
                self.events.push_back(InitiatorEvent::Targets(Vec::new()));
            }
            opcode::NOP_OUT => self.ping_sent = None,
            _ => {}
        }
        Ok(())
    }

    fn asynchronous(&mut self, pdu: &pdu::Async) -> Result<(), InitiatorClosed> {
        match pdu.event {
            // Logout requested.
            1 => self.events.push_back(InitiatorEvent::LogoutRequested { seconds: pdu.parameter_3.get() }),
            // Connection, or all connections of the session, will be dropped.
            2 | 3 => return Err(InitiatorClosed::Dropped),
            // SCSI events, negotiation requests, vendor-specific ones: ignored.
            _ => {}
        }
        Ok(())
    }
}

fn bytes_of(destination: &SegmentDestination) -> &[u8] {
    match destination {
        SegmentDestination::Into(buffer, _) => buffer.as_slice(),
        SegmentDestination::Discard => &[],
    }
}

fn residual(flags: u8, overflow: u8, underflow: u8, count: u32) -> Residual {
    Residual::from_parts(flags & overflow != 0, flags & underflow != 0, count)
}
