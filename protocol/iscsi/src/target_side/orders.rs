//! Task management on request of a SCSI command: PREEMPT AND ABORT of a persistent reservation, or
//! PERFORM TASK MANAGEMENT FUNCTION of an OSD.
//!
//! Does: finds and ends this session's commands that a [`TaskSelection`] matches.
//! Does not: send any response; the shell does when the last one has ended.
//! Contract: ended commands get no response. Those that the shell still executes are returned, to
//! be waited for.
//! Source of truth: SAM-5 §7; `super::management` for PDUs.

use alloc::vec::Vec;

use super::{TargetConnection, task::TaskState};
use crate::TaskId;

/// Selects commands of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskSelection {
    /// The logical unit (wire form), or any.
    pub lun: Option<u64>,
    /// The initiator task tag, or any.
    pub tag: Option<u32>,
    /// Never this one: the requesting command.
    pub except: TaskId,
}

impl TargetConnection {
    /// Whether any selected command is in progress.
    #[must_use]
    pub fn has_commands(&self, selection: TaskSelection) -> bool {
        let is_aborted =
            |slot| self.tasks.iter().any(|(at, task)| at == slot && matches!(task.state, TaskState::Aborted));
        self.selected_slots(selection).into_iter().any(|slot| !is_aborted(slot))
    }

    /// Whether this command has been ended, though the shell still executes it.
    #[must_use]
    pub fn is_ended(&self, task: TaskId) -> bool {
        self.tasks.iter().any(|(_, entry)| entry.id == task && matches!(entry.state, TaskState::Aborted))
    }

    /// Ends the selected commands; returns those that the shell executes and must wait for.
    pub fn end_selected(&mut self, selection: TaskSelection) -> Vec<TaskId> {
        let executed =
            self.selected_slots(selection).into_iter().filter_map(|slot| self.end_one(slot)).collect();
        self.pull_more();
        executed
    }

    fn selected_slots(&self, selection: TaskSelection) -> Vec<u16> {
        let ours = self.tasks.iter().filter(|(_, task)| {
            task.id != selection.except
                && selection.lun.is_none_or(|lun| task.lun == lun)
                && selection.tag.is_none_or(|tag| task.tag == tag)
                && !matches!(task.state, TaskState::Replying { .. })
        });
        ours.map(|(slot, _)| slot).collect()
    }
}
