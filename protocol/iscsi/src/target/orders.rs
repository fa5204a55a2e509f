//! Task management that another command asks for, not a task management PDU.
//!
//! Does: find and end this session's commands. Does not: answer anybody; the shell does when the last one has ended.
//! Contract: ended commands are never answered. Those that the shell still executes come back, to be waited for.
//! Truth: SAM-5 §7; `super::management` for PDUs.

use alloc::vec::Vec;

use super::{Connection, task::State};
use crate::TaskId;

/// Which commands of a session are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meant {
    /// To this logical unit (wire form), or to any.
    pub lun: Option<u64>,
    /// The one with this initiator task tag, or any.
    pub tag: Option<u32>,
    /// Never this one: the command that asks.
    pub except: TaskId,
}

impl Connection {
    /// Is any of them under way?
    #[must_use]
    pub fn has_commands(&self, meant: Meant) -> bool {
        let is_aborted =
            |slot| self.tasks.iter().any(|(at, task)| at == slot && matches!(task.state, State::Aborted));
        self.meant(meant).into_iter().any(|slot| !is_aborted(slot))
    }

    /// Has this command been ended, though the shell still executes it?
    #[must_use]
    pub fn is_ended(&self, task: TaskId) -> bool {
        self.tasks.iter().any(|(_, entry)| entry.id == task && matches!(entry.state, State::Aborted))
    }

    /// Ends them; gives those that the shell executes and has to wait for.
    pub fn end_meant(&mut self, meant: Meant) -> Vec<TaskId> {
        let executed = self.meant(meant).into_iter().filter_map(|slot| self.end_one(slot)).collect();
        self.pull_more();
        executed
    }

    fn meant(&self, meant: Meant) -> Vec<u16> {
        let ours = self.tasks.iter().filter(|(_, task)| {
            task.id != meant.except
                && meant.lun.is_none_or(|lun| task.lun == lun)
                && meant.tag.is_none_or(|tag| task.tag == tag)
                && !matches!(task.state, State::Replying { .. })
        });
        ours.map(|(slot, _)| slot).collect()
    }
}
