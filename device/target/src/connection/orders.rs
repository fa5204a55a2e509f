//! Orders that one command gives about others: the way from a command's thread to its connection's task and back.
//!
//! Does: end or find this session's commands, tell other sessions, wait until what was ended has ended.
//! Does not: stop a command that a logical unit executes; nothing can.
//! Contract: the thread waits at most [`WAIT_MAX`]; a command that waits here itself is not waited for, so that two
//! that end each other both return.
//! Truth: SAM-5 §7; `sealstone_scsi::lu::Tasks`.

use std::{sync::mpsc as blocking, time::Duration};

use sealstone_iscsi::{TaskId, target::Meant};
use sealstone_scsi::{
    additional::NEXUS_LOSS_OCCURRED,
    lu::{TaskOrder, TaskResult, Tasks},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};

use super::Driver;
use crate::Counter;

/// Longest that a command waits for others that it ended.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// What a command's thread wants of its connection.
pub(super) struct Order {
    what: TaskOrder,
    /// Wire form.
    lun: u64,
    from: TaskId,
    answer: blocking::SyncSender<TaskResult>,
}

/// Whoever gave an order, until the commands that it ended have ended.
pub(super) struct Waiting {
    from: TaskId,
    lun: u64,
    what: TaskOrder,
    tasks: Vec<TaskId>,
    answer: blocking::SyncSender<TaskResult>,
}

/// The other tasks, for the command of one task.
pub(super) struct OtherTasks {
    pub(super) orders: mpsc::UnboundedSender<Order>,
    pub(super) lun: u64,
    pub(super) task: TaskId,
}

impl Tasks for OtherTasks {
    fn order(&self, what: TaskOrder) -> TaskResult {
        let (answer, result) = blocking::sync_channel(1);
        let order = Order { what, lun: self.lun, from: self.task, answer };
        if self.orders.send(order).is_err() {
            return TaskResult::Unfinished;
        }
        // The sender is dropped without a word when the connection is over.
        result.recv_timeout(WAIT_MAX).unwrap_or(TaskResult::Unfinished)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Driver<S> {
    /// Carries an order out, or begins to.
    pub(super) fn carry_out(&mut self, order: Order) {
        let Order { what, lun, from, answer } = order;
        if self.machine.is_ended(from) {
            // Whoever was ended ends nobody: of commands that end each other, the first one is answered.
            let _ = answer.send(TaskResult::Unfinished);
            return;
        }
        let meant = |lun, tag| Meant { lun, tag, except: from };
        // Initiator task tags have 32 bits: a longer one names no task.
        let tagged = |tag: u64| u32::try_from(tag).ok().map(|tag| meant(Some(lun), Some(tag)));
        let tasks = match what {
            TaskOrder::Query { .. } | TaskOrder::QuerySet => {
                let meant = match what {
                    TaskOrder::Query { tag } => tagged(tag),
                    _ => Some(meant(Some(lun), None)),
                };
                let found = meant.is_some_and(|meant| self.machine.has_commands(meant));
                let _ = answer.send(if found { TaskResult::Succeeded } else { TaskResult::Complete });
                return;
            }
            TaskOrder::Abort { tag } => {
                tagged(tag).map_or_else(Vec::new, |meant| self.machine.end_meant(meant))
            }
            TaskOrder::AbortSet | TaskOrder::ClearSet | TaskOrder::Reset => {
                self.machine.end_meant(meant(Some(lun), None))
            }
            TaskOrder::NexusReset => self.machine.end_meant(meant(None, None)),
        };
        if let (TaskOrder::ClearSet | TaskOrder::Reset, Some(nexus)) = (what, self.nexus()) {
            self.shared.sessions.end_commands(nexus, Some(lun), matches!(what, TaskOrder::ClearSet));
        }
        self.waiting.push(Waiting { from, lun, what, tasks, answer });
        self.settle_orders();
    }

    /// A command's thread has come back.
    pub(super) fn has_ended(&mut self, task: TaskId) {
        for waiting in &mut self.waiting {
            waiting.tasks.retain(|&other| other != task);
        }
        self.settle_orders();
    }

    /// Answers every order that waits for nothing more than for others that wait.
    fn settle_orders(&mut self) {
        let waiting: Vec<TaskId> = self.waiting.iter().map(|waiting| waiting.from).collect();
        let is_over = |order: &mut Waiting| order.tasks.iter().all(|task| waiting.contains(task));
        for order in self.waiting.extract_if(.., is_over).collect::<Vec<_>>() {
            self.conclude(&order);
        }
    }

    fn conclude(&self, order: &Waiting) {
        match order.what {
            TaskOrder::Reset => {
                self.shared.counters.add(Counter::Resets, 1);
                let seen = self.session.as_ref().and_then(|session| session.luns.as_deref());
                if let Some((_, unit)) = self.shared.luns.find(order.lun, seen) {
                    unit.reset();
                }
            }
            TaskOrder::ClearSet => self.shared.counters.add(Counter::Resets, 1),
            TaskOrder::NexusReset => {
                for (unit, nexus) in self.shared.luns.units().iter().zip(std::iter::repeat(self.nexus())) {
                    if let Some(nexus) = nexus {
                        unit.attention(nexus, NEXUS_LOSS_OCCURRED);
                    }
                }
            }
            _ => {}
        }
        let _ = order.answer.send(TaskResult::Complete);
    }
}
