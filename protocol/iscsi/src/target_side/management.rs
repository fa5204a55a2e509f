//! Task management, target side (RFC 7143 §11.5-11.6, SAM-5 §7).
//!
//! Does: ends this session's commands and answers when the last of them has really ended.
//! Does not: access other sessions or logical units; the shell does, on
//! [`TargetEvent::Management`].

use alloc::vec::Vec;

use bytes::Bytes;

use super::{
    ManagementFunction, ManagementResult, TargetClosed, TargetConnection, TargetEvent, task::TaskState,
};
use crate::{
    TaskId, limits,
    pdu::{self, Bhs, flag, opcode, reason},
    serial,
};

/// Whether two LUN fields are equal. Flat space addressing of a number below 256 equals peripheral
/// addressing on bus 0 (SAM-5 §4.7.7).
const fn same_unit(one: u64, other: u64) -> bool {
    const FLAT: u64 = 0x40 << 56;
    const fn plain(lun: u64) -> u64 {
        if lun >> 56 == 0x40 { lun & !FLAT } else { lun }
    }
    plain(one) == plain(other)
}

/// A function that waits for commands to end, or for the shell.
pub(super) struct PendingFunction {
    id: TaskId,
    tag: u32,
    waiting: Vec<TaskId>,
    function: Option<ManagementFunction>,
}

impl TargetConnection {
    pub(super) fn manage(&mut self, request: &pdu::TaskManagement, bhs: &Bhs) -> Result<(), TargetClosed> {
        const ABORT_TASK: u8 = 1;
        const ABORT_TASK_SET: u8 = 2;
        const CLEAR_TASK_SET: u8 = 4;
        const LOGICAL_UNIT_RESET: u8 = 5;
        const TARGET_WARM_RESET: u8 = 6;
        const TARGET_COLD_RESET: u8 = 7;
        const TASK_REASSIGN: u8 = 8;
        const LAST_KNOWN: u8 = 8;
        if self.pending.len() >= limits::MANAGEMENT_MAX {
            return self.reject(bhs, reason::TOO_MANY_IMMEDIATE);
        }
        let (tag, lun, referenced) = (request.tag.get(), request.lun.get(), request.referenced.get());
        match request.flags & 0x7F {
            ABORT_TASK => match self.tasks.find(referenced) {
                Some(slot) if self.can_abort(slot, lun) => self.end(tag, &[slot], None),
                Some(_) => self.management_response(tag, ManagementResult::NoSuchTask),
                None => self.abort_unseen(request),
            },
            ABORT_TASK_SET => {
                let slots = self.slots_of(Some(lun));
                self.end(tag, &slots, Some(ManagementFunction::AbortTaskSet(lun)));
            }
            CLEAR_TASK_SET => {
                let slots = self.slots_of(Some(lun));
                self.end(tag, &slots, Some(ManagementFunction::ClearTaskSet(lun)));
            }
            LOGICAL_UNIT_RESET => {
                let slots = self.slots_of(Some(lun));
                self.end(tag, &slots, Some(ManagementFunction::LogicalUnitReset(lun)));
            }
            TASK_REASSIGN => self.management_response(tag, ManagementResult::NoReassignment),
            // They end commands of other initiators: only where the operator permits it.
            TARGET_WARM_RESET | TARGET_COLD_RESET if !self.config.allow_target_reset => {
                self.management_response(tag, ManagementResult::NotAuthorized);
            }
            function @ (TARGET_WARM_RESET | TARGET_COLD_RESET) => {
                let slots = self.slots_of(None);
                let warm = function == TARGET_WARM_RESET;
                let function = if warm {
                    ManagementFunction::TargetWarmReset
                } else {
                    ManagementFunction::TargetColdReset
                };
                self.end(tag, &slots, Some(function));
            }
            // CLEAR ACA: we never establish ACA.
            known if known <= LAST_KNOWN && known > 0 => {
                self.management_response(tag, ManagementResult::NotSupported);
            }
            _ => self.management_response(tag, ManagementResult::Rejected),
        }
        Ok(())
    }

    /// Completes an [`TargetEvent::Management`] that the shell has carried out.
    pub fn managed(&mut self, id: TaskId, result: ManagementResult) {
        if let Some(at) = self.pending.iter().position(|pending| pending.id == id) {
            let pending = self.pending.swap_remove(at);
            self.management_response(pending.tag, result);
        }
    }

    /// Ends our commands to a logical unit that another session reset or whose task set it cleared;
    /// they get no response. `None` is every logical unit. Returns how many were not ended before.
    pub fn end_commands(&mut self, lun: Option<u64>) -> usize {
        let slots = self.slots_of(lun);
        let mut ended = 0;
        for slot in slots {
            let before = self.tasks.get(slot).is_some_and(|task| matches!(task.state, TaskState::Aborted));
            ended += usize::from(!before);
            self.end_one(slot);
        }
        self.pull_more();
        ended
    }

    fn can_abort(&mut self, slot: u16, lun: u64) -> bool {
        self.tasks
            .get(slot)
            .is_some_and(|task| same_unit(task.lun, lun) && !matches!(task.state, TaskState::Replying { .. }))
    }

    /// ABORT TASK for a command that was not received: if its number is the next one expected, it
    /// counts as received and the function as done (§11.6.1, b).
    fn abort_unseen(&mut self, request: &pdu::TaskManagement) {
        let number = request.ref_cmd_sn.get();
        let open = serial::within(number, self.exp_cmd_sn, self.max_cmd_sn());
        if open && number == self.exp_cmd_sn && serial::before(number, request.cmd_sn.get()) {
            self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
            self.management_response(request.tag.get(), ManagementResult::Complete);
        } else {
            self.management_response(request.tag.get(), ManagementResult::NoSuchTask);
        }
    }

    fn slots_of(&self, lun: Option<u64>) -> Vec<u16> {
        let ours = self.tasks.iter().filter(|(_, task)| {
            lun.is_none_or(|lun| same_unit(task.lun, lun))
                && !matches!(task.state, TaskState::Replying { .. })
        });
        ours.map(|(slot, _)| slot).collect()
    }

    /// Ends a command; returns the id to wait for if the shell still executes it.
    pub(super) fn end_one(&mut self, slot: u16) -> Option<TaskId> {
        let task = self.tasks.get(slot)?;
        let id = task.id;
        match task.state {
            TaskState::Collecting => {
                self.tasks.remove(slot);
                None
            }
            TaskState::Running | TaskState::Aborted => {
                self.tasks.set_state(slot, TaskState::Aborted);
                Some(id)
            }
            TaskState::Replying { .. } => None,
        }
    }

    fn end(&mut self, tag: u32, slots: &[u16], function: Option<ManagementFunction>) {
        let waiting = slots.iter().filter_map(|slot| self.end_one(*slot)).collect();
        let id = self.tasks.new_task_id();
        self.pending.push(PendingFunction { id, tag, waiting, function });
        self.pull_more();
        self.settle();
    }

    /// Processes the end of an aborted command.
    pub(super) fn task_ended(&mut self, task: TaskId) {
        for pending in &mut self.pending {
            pending.waiting.retain(|waiting| *waiting != task);
        }
        self.settle();
    }

    /// Answers, or passes to the shell, every function that waits for nothing more.
    fn settle(&mut self) {
        let mut at = 0;
        while let Some(pending) = self.pending.get_mut(at) {
            if !pending.waiting.is_empty() {
                at += 1;
            } else if let Some(function) = pending.function.take() {
                let id = pending.id;
                // From now on it waits for the shell, under an id that no task has.
                pending.waiting.push(id);
                self.events.push_back(TargetEvent::Management { id, function });
                at += 1;
            } else {
                let tag = self.pending.swap_remove(at).tag;
                self.management_response(tag, ManagementResult::Complete);
            }
        }
    }

    fn management_response(&mut self, tag: u32, result: ManagementResult) {
        let mut pdu = pdu::TaskManagementResponse::new(opcode::TASK_MANAGEMENT_RESPONSE, flag::FINAL);
        pdu.response = result.code();
        pdu.tag.set(tag);
        self.control(pdu.wire(), Bytes::new(), true);
    }
}
