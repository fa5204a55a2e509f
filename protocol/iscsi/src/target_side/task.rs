//! Commands in progress on a target, and the collection of their data-out (RFC 7143 §4.2.4,
//! §11.7-11.8).
//!
//! Does: keeps the table of tasks, decides which data-out may arrive and when an R2T is sent, and
//! when a command is complete and can be executed.
//! Does not: execute commands; the shell does.

use alloc::vec::Vec;
use core::mem;

use super::CommandReply;
use crate::{
    Buffer, Cdb, Parameters, TaskAttribute, TaskId,
    frame::SegmentDestination,
    pdu::{self, NO_TAG, flag},
};

/// The iSCSI conditions that end a command with ABORTED COMMAND (RFC 7143 §11.4.7.2), and our own
/// refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandFailure {
    /// Additional sense code 0Ch/0Ch.
    UnexpectedUnsolicited,
    /// Additional sense code 0Ch/0Dh.
    IncorrectAmount,
    /// 47h/05h: a digest is wrong or data is out of sequence.
    ProtocolServiceCrc,
    /// Data-out beyond our maximum.
    TooLong,
    Busy,
    TaskSetFull,
}

impl CommandFailure {
    /// Returns sense data in descriptor or fixed format; a current error (SPC-4 §4.5).
    pub(super) fn reply(self, descriptor: bool) -> CommandReply {
        let sense = |key: u8, code: u8, qualifier: u8| CommandReply {
            status: 0x02,
            sense: if descriptor {
                [0x72, key, code, qualifier, 0, 0, 0, 0].to_vec()
            } else {
                [0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier, 0, 0, 0, 0].to_vec()
            },
            ..CommandReply::default()
        };
        match self {
            Self::UnexpectedUnsolicited => sense(0x0B, 0x0C, 0x0C),
            Self::IncorrectAmount => sense(0x0B, 0x0C, 0x0D),
            Self::ProtocolServiceCrc => sense(0x0B, 0x47, 0x05),
            // ILLEGAL REQUEST, INSUFFICIENT RESOURCES: a retry cannot help.
            Self::TooLong => sense(0x05, 0x55, 0x03),
            Self::Busy => CommandReply { status: 0x08, ..CommandReply::default() },
            Self::TaskSetFull => CommandReply { status: 0x28, ..CommandReply::default() },
        }
    }
}

pub(super) enum TaskState {
    /// Data-out is being received.
    Collecting,
    /// The shell executes it.
    Running,
    /// The shell executes it, but only task management waits for its end.
    Aborted,
    /// Its response is being sent; `sent` bytes of data-in so far.
    Replying { reply: CommandReply, sent: usize },
}

pub(super) struct TargetTask {
    pub(super) id: TaskId,
    pub(super) tag: u32,
    pub(super) lun: u64,
    pub(super) immediate: bool,
    pub(super) bidirectional: bool,
    pub(super) cdb: Cdb,
    pub(super) attribute: TaskAttribute,
    pub(super) write_expected: u32,
    pub(super) read_expected: u32,
    pub(super) state: TaskState,
    pub(super) data_out: Buffer,
    pub(super) failure: Option<CommandFailure>,
    /// DataSN of Data-In; for bidirectional commands it continues from R2TSN (§4.2.2.4).
    pub(super) data_in_sn: u32,
    /// Contiguous bytes of data-out so far.
    received: u32,
    /// Data-out up to here was requested or unsolicited.
    granted: u32,
    /// End of the current sequence.
    sequence_end: u32,
    data_sn: u32,
    unsolicited_open: bool,
    r2ts_sent: u32,
    r2ts_done: u32,
    /// Maximum bytes of one requested burst.
    burst: u32,
    /// Requested bytes, received or not.
    pulled: u32,
}

/// Next step of a task after data was received.
pub(super) enum TaskStep {
    Nothing,
    /// Request `length` bytes from `offset` with this R2TSN.
    Ask {
        r2t_sn: u32,
        offset: u32,
        length: u32,
    },
    Execute,
    Fail(CommandFailure),
}

impl TargetTask {
    pub(super) fn new(header: &pdu::ScsiCommand, extras: pdu::CommandExtras) -> Option<Self> {
        let (reads, writes) = (header.flags & flag::READ != 0, header.flags & flag::WRITE != 0);
        let expected = header.expected.get();
        Some(Self {
            id: TaskId(0),
            tag: header.tag.get(),
            lun: header.lun.get(),
            immediate: header.opcode & pdu::opcode::IMMEDIATE != 0,
            bidirectional: reads && writes,
            cdb: extras.cdb,
            attribute: TaskAttribute::from_bits(header.flags)?,
            write_expected: if writes { expected } else { 0 },
            read_expected: match (reads, writes) {
                (true, false) => expected,
                (true, true) => extras.bidi_read.unwrap_or(0),
                (false, _) => 0,
            },
            state: TaskState::Collecting,
            data_out: Buffer::default(),
            failure: None,
            data_in_sn: 0,
            received: 0,
            granted: 0,
            sequence_end: 0,
            data_sn: 0,
            unsolicited_open: writes && header.flags & flag::FINAL == 0,
            r2ts_sent: 0,
            r2ts_done: 0,
            burst: 0,
            pulled: 0,
        })
    }

    /// Returns the requested bytes, received or not, until the command was executed.
    const fn counts_as_pulled(&self) -> u32 {
        match self.state {
            TaskState::Collecting | TaskState::Running | TaskState::Aborted => self.pulled,
            TaskState::Replying { .. } => 0,
        }
    }

    /// Checks the command PDU's own data; a wrong amount fails the command after all its data was
    /// received. Missing data will be requested in bursts of `burst` bytes.
    pub(super) fn check_unsolicited(&mut self, agreed: &Parameters, burst: u32, immediate_length: u32) {
        self.burst = burst;
        // It is requested from here on, even if the ends of other commands let it request data
        // while its immediate data still arrives.
        self.granted = immediate_length;
        self.sequence_end = self.write_expected.min(agreed.first_burst);
        let fits = immediate_length == 0 || (agreed.immediate_data && immediate_length <= self.sequence_end);
        if !fits || (self.unsolicited_open && agreed.initial_r2t) {
            self.failure = Some(CommandFailure::UnexpectedUnsolicited);
        }
    }

    /// Records a failure; the first one is reported.
    pub(super) fn fail(&mut self, failure: CommandFailure) {
        self.failure.get_or_insert(failure);
    }

    /// Whether there is data that it has not requested.
    pub(super) const fn can_request_data(&self) -> bool {
        !self.unsolicited_open && self.failure.is_none() && self.granted < self.write_expected
    }

    /// Whether unsolicited or requested data is still to be received.
    pub(super) const fn awaits_data(&self) -> bool {
        self.is_collecting() && (self.unsolicited_open || self.r2ts_done < self.r2ts_sent)
    }

    pub(super) const fn is_collecting(&self) -> bool {
        matches!(self.state, TaskState::Collecting)
    }

    /// Processes received immediate data.
    pub(super) fn immediate_received(&mut self, length: u32) {
        self.received = length;
    }

    /// Returns the destination of a Data-Out PDU's segment. Checks tag, sequence and range; wrong
    /// data is dropped and fails the command. `None` if the transfer tag is not open.
    pub(super) fn data_out(
        &mut self,
        slot: u16,
        header: &pdu::DataOut,
        length: u32,
    ) -> Option<SegmentDestination> {
        if header.transfer.get() == NO_TAG {
            if !self.unsolicited_open {
                self.fail(CommandFailure::UnexpectedUnsolicited);
                return Some(SegmentDestination::Discard);
            }
        } else {
            if self.unsolicited_open || self.r2ts_done == self.r2ts_sent {
                return None;
            }
            if header.transfer.get() != transfer_tag(slot, self.r2ts_done) {
                return None;
            }
        }
        let end = self.received.checked_add(length).filter(|end| *end <= self.sequence_end);
        if header.data_sn.get() != self.data_sn || header.offset.get() != self.received {
            self.fail(CommandFailure::ProtocolServiceCrc);
        } else if end.is_none() {
            self.fail(if self.unsolicited_open {
                CommandFailure::UnexpectedUnsolicited
            } else {
                CommandFailure::IncorrectAmount
            });
        }
        self.data_sn = self.data_sn.wrapping_add(1);
        if self.failure.is_some() {
            return Some(SegmentDestination::Discard);
        }
        Some(SegmentDestination::Into(mem::take(&mut self.data_out), self.received as usize))
    }

    /// Processes a Data-Out PDU that [`Self::data_out`] accepted.
    pub(super) fn data_out_received(&mut self, last: bool, length: u32, place: SegmentDestination) {
        if let SegmentDestination::Into(buffer, _) = place {
            self.data_out = buffer;
            self.received += length;
        }
        if !last {
            return;
        }
        self.data_sn = 0;
        if self.unsolicited_open {
            self.unsolicited_open = false;
            // Fewer unsolicited bytes than the first burst may be sent; the rest will be requested.
            self.granted = self.received;
        } else if self.r2ts_done < self.r2ts_sent {
            if self.received != self.sequence_end {
                self.fail(CommandFailure::IncorrectAmount);
            }
            self.r2ts_done += 1;
            self.sequence_end = self.granted.min(self.sequence_end.saturating_add(self.burst));
        }
    }

    /// Returns the next step; call until it is nothing or an end. At most `room` bytes may be
    /// requested now.
    pub(super) fn next_step(&mut self, agreed: &Parameters, room: u32) -> TaskStep {
        let outstanding_r2ts = self.r2ts_sent - self.r2ts_done;
        if !self.is_collecting() || self.unsolicited_open {
            return TaskStep::Nothing;
        }
        if let Some(failure) = self.failure {
            // The response waits for all outstanding data (§7.8).
            return if outstanding_r2ts == 0 { TaskStep::Fail(failure) } else { TaskStep::Nothing };
        }
        if self.received == self.write_expected {
            return TaskStep::Execute;
        }
        if outstanding_r2ts >= agreed.max_outstanding_r2t || self.granted == self.write_expected {
            return TaskStep::Nothing;
        }
        let offset = self.granted;
        let length = (self.write_expected - offset).min(self.burst);
        if length > room {
            return TaskStep::Nothing;
        }
        self.granted = offset + length;
        self.pulled += length;
        if outstanding_r2ts == 0 {
            self.sequence_end = self.granted;
        }
        let r2t_sn = self.r2ts_sent;
        self.r2ts_sent += 1;
        if self.bidirectional {
            self.data_in_sn = self.r2ts_sent;
        }
        TaskStep::Ask { r2t_sn, offset, length }
    }
}

/// Distinguishes transfers of one session; never the reserved tag, as slots stay below 1100.
pub(super) const fn transfer_tag(slot: u16, r2t_sn: u32) -> u32 {
    ((slot as u32) << 16) | (r2t_sn & 0xFFFF)
}

const SLOT_MASK: u64 = 0xFFFF;

/// Tasks by slot; they are found by tag.
pub(super) struct TargetTasks {
    slots: Vec<Option<TargetTask>>,
    /// Tags in a separate vector, so that a search touches few cache lines.
    tags: Vec<u32>,
    free: Vec<u16>,
    serial: u64,
    collecting: usize,
    immediate: u16,
    under_way: u16,
    /// Bytes requested by tasks that are collecting or executing.
    pulled: u64,
}

impl TargetTasks {
    pub(super) fn new(capacity: u16) -> Self {
        Self {
            slots: Vec::new(),
            tags: Vec::new(),
            free: (0..capacity).rev().collect(),
            serial: 0,
            collecting: 0,
            immediate: 0,
            under_way: 0,
            pulled: 0,
        }
    }

    /// Returns an id that belongs to no command.
    pub(super) const fn new_task_id(&mut self) -> TaskId {
        self.serial += 1;
        TaskId((self.serial << 16) | SLOT_MASK)
    }

    /// Returns the number of commands in progress that count in the window.
    pub(super) const fn ordinary(&self) -> u16 {
        self.under_way - self.immediate
    }

    pub(super) const fn under_way(&self) -> u16 {
        self.under_way
    }

    pub(super) const fn immediate(&self) -> u16 {
        self.immediate
    }

    pub(super) const fn collecting(&self) -> usize {
        self.collecting
    }

    /// Counts bytes that a task requests.
    pub(super) fn pull(&mut self, length: u32) {
        self.pulled += u64::from(length);
    }

    /// Returns the bytes requested by tasks that are collecting or executing.
    pub(super) const fn pulled(&self) -> u64 {
        self.pulled
    }

    /// Returns how many bytes the task may request, if all tasks together may have `most`
    /// outstanding; unlimited while no other has any.
    pub(super) fn pull_room(&self, slot: u16, most: Option<u32>) -> u32 {
        let task = self.slots.get(usize::from(slot)).and_then(Option::as_ref);
        let own = u64::from(task.map_or(0, TargetTask::counts_as_pulled));
        match most {
            Some(most) if self.pulled > own => {
                u32::try_from(u64::from(most).saturating_sub(self.pulled)).unwrap_or(u32::MAX)
            }
            _ => u32::MAX,
        }
    }

    /// Returns the earliest task that collects data and may request more.
    pub(super) fn next_to_pull(&self) -> Option<u16> {
        let candidates = self.iter().filter(|(_, task)| task.is_collecting() && task.can_request_data());
        candidates.min_by_key(|(_, task)| task.id.0).map(|(slot, _)| slot)
    }

    pub(super) fn find(&self, tag: u32) -> Option<u16> {
        let at = self.tags.iter().position(|used| *used == tag)?;
        u16::try_from(at).ok().filter(|_| self.slots.get(at).is_some_and(Option::is_some))
    }

    /// Finds a task; its slot is the low half of the id.
    pub(super) fn find_id(&self, id: TaskId) -> Option<u16> {
        let slot = u16::try_from(id.0 & SLOT_MASK).ok()?;
        let task = self.slots.get(usize::from(slot))?.as_ref()?;
        (task.id == id).then_some(slot)
    }

    pub(super) fn get(&mut self, slot: u16) -> Option<&mut TargetTask> {
        self.slots.get_mut(usize::from(slot))?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u16, &TargetTask)> {
        (0_u16..).zip(&self.slots).filter_map(|(slot, task)| Some((slot, task.as_ref()?)))
    }

    pub(super) fn insert(&mut self, mut task: TargetTask) -> Option<u16> {
        let slot = self.free.pop()?;
        self.serial += 1;
        task.id = TaskId((self.serial << 16) | u64::from(slot));
        let at = usize::from(slot);
        while self.slots.len() <= at {
            self.slots.push(None);
            self.tags.push(NO_TAG);
        }
        self.collecting += 1;
        self.immediate += u16::from(task.immediate);
        self.under_way += 1;
        self.tags[at] = task.tag;
        self.slots[at] = Some(task);
        Some(slot)
    }

    /// Changes a task's state.
    pub(super) fn set_state(&mut self, slot: u16, state: TaskState) {
        let Some(task) = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut) else { return };
        self.collecting -= usize::from(task.is_collecting());
        let was = task.counts_as_pulled();
        task.state = state;
        self.pulled -= u64::from(was - task.counts_as_pulled());
        self.collecting += usize::from(task.is_collecting());
    }

    pub(super) fn remove(&mut self, slot: u16) -> Option<TargetTask> {
        let task = self.slots.get_mut(usize::from(slot))?.take()?;
        self.tags[usize::from(slot)] = NO_TAG;
        self.free.push(slot);
        self.collecting -= usize::from(task.is_collecting());
        self.immediate -= u16::from(task.immediate);
        self.under_way -= 1;
        self.pulled -= u64::from(task.counts_as_pulled());
        Some(task)
    }
}
