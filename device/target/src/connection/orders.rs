//! Orders that one command gives about others: the way from a command's thread to its connection's task and back.
//!
//! Does: end or find this session's commands, tell other sessions, hold the reply of whoever gave the order back until
//! what it ended has ended. Does not: stop a command that a logical unit executes; nothing can.
//! Contract: no thread waits for another command: it waits for the connection's task alone, at most [`ANSWER_MAX`]. A
//! command whose reply is held is not waited for, so that two that end each other both return.
//! Truth: SAM-5 §7; `sealstone_scsi::lu::Tasks`.

use std::{sync::mpsc as blocking, time::Duration};

use sealstone_iscsi::{
    TaskId,
    target::{Meant, Reply},
};
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

/// Longest that a command's thread waits for its connection's task to take an order.
const ANSWER_MAX: Duration = Duration::from_secs(10);

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
        result.recv_timeout(ANSWER_MAX).unwrap_or(TaskResult::Unfinished)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Driver<S> {
    /// Carries an order out, or begins to.
    pub(super) fn carry_out(&mut self, order: Order) {
        let Order { what, lun, from, answer } = order;
        if self.machine.is_ended(from) {
            // Whoever was ended ends nobody: of commands that end each other, the first one is answered.
            let _ = answer.send(TaskResult::Unfinished);
            return;
        }
        if matches!(what, TaskOrder::ClearSet | TaskOrder::Reset) {
            // These reach other sessions, by whatever road they come.
            if !self.shared.resets.take(self.now_ms()) {
                self.shared.counters.add(Counter::ResetsRefused, 1);
                let _ = answer.send(TaskResult::Rejected);
                return;
            }
            self.shared.counters.add(Counter::Resets, 1);
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
        self.waiting.push(Waiting { from, lun, what, tasks });
        let _ = answer.send(TaskResult::Complete);
        self.settle_orders();
    }

    /// A command was executed, here or on a thread of its own.
    pub(super) fn has_come_back(&mut self, task: TaskId, reply: Reply) {
        if self.waiting.iter().any(|waiting| waiting.from == task) {
            self.held.push((task, reply));
        } else {
            self.machine.complete(task, reply);
        }
        for waiting in &mut self.waiting {
            waiting.tasks.retain(|&other| other != task);
        }
        self.settle_orders();
    }

    /// Concludes every order that waits for nothing more than for others that wait, and lets their replies go.
    fn settle_orders(&mut self) {
        let waiting: Vec<TaskId> = self.waiting.iter().map(|waiting| waiting.from).collect();
        let is_over = |order: &mut Waiting| order.tasks.iter().all(|task| waiting.contains(task));
        for order in self.waiting.extract_if(.., is_over).collect::<Vec<_>>() {
            self.conclude(&order);
        }
        let waiting = &self.waiting;
        let is_free = |held: &mut (TaskId, Reply)| !waiting.iter().any(|waiting| waiting.from == held.0);
        for (task, reply) in self.held.extract_if(.., is_free).collect::<Vec<_>>() {
            self.machine.complete(task, reply);
        }
    }

    fn conclude(&self, order: &Waiting) {
        match order.what {
            TaskOrder::Reset => {
                let seen = self.session.as_ref().and_then(|session| session.luns.as_deref());
                if let Some((_, unit)) = self.shared.luns.find(order.lun, seen) {
                    unit.reset();
                }
            }
            TaskOrder::NexusReset => {
                for (unit, nexus) in self.shared.luns.units().iter().zip(std::iter::repeat(self.nexus())) {
                    if let Some(nexus) = nexus {
                        unit.attention(nexus, NEXUS_LOSS_OCCURRED);
                    }
                }
            }
            _ => {}
        }
    }
}
