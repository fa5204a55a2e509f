//! Task management by SCSI commands: passes orders from the thread of a command to the task of its
//! connection.
//!
//! Does: end or find commands of this session, signal other sessions, delay the reply to an order
//! until the commands that it ended have ended.
//! Does not: stop a command that a logical unit executes; nothing can.
//! Contract: no thread waits for another command. It only waits for the task of the connection, at
//! most [`ANSWER_MAX`]. Commands whose reply is delayed are not waited for, so two commands that
//! end each other both return.
//! Truth: SAM-5 §7; `sealstone_scsi::lu::Tasks`.

use std::{sync::mpsc as blocking, time::Duration};

use sealstone_iscsi::{
    TaskId,
    target_side::{CommandReply, TaskSelection},
};
use sealstone_scsi::{
    additional::NEXUS_LOSS_OCCURRED,
    lu::{TaskOrder, TaskResult, Tasks},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};

use super::{ConnectionDriver, NormalSession};
use crate::{Counter, luns::VisibleLuns};

/// Longest wait of a command's thread until its connection's task takes an order.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// An order of a command's thread to its connection.
pub(super) struct OrderRequest {
    what: TaskOrder,
    /// In wire form.
    lun: u64,
    from: TaskId,
    answer: blocking::SyncSender<TaskResult>,
}

/// An order that waits until the commands that it ended have ended.
pub(super) struct PendingOrder {
    from: TaskId,
    lun: u64,
    what: TaskOrder,
    tasks: Vec<TaskId>,
}

/// The other tasks of the session, as one command sees them.
pub(super) struct SessionTasks {
    pub(super) orders: mpsc::UnboundedSender<OrderRequest>,
    pub(super) lun: u64,
    pub(super) task: TaskId,
}

impl Tasks for SessionTasks {
    fn order(&self, what: TaskOrder) -> TaskResult {
        let (answer, result) = blocking::sync_channel(1);
        let order = OrderRequest { what, lun: self.lun, from: self.task, answer };
        if self.orders.send(order).is_err() {
            return TaskResult::Unfinished;
        }
        // When the connection ends, the sender is dropped without an answer.
        result.recv_timeout(ANSWER_MAX).unwrap_or(TaskResult::Unfinished)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> ConnectionDriver<S> {
    /// Executes an order, or starts it.
    pub(super) fn execute_order(&mut self, order: OrderRequest) {
        let OrderRequest { what, lun, from, answer } = order;
        if self.machine.is_ended(from) {
            // An ended command cannot end others. Of commands that end each other, the first one
            // succeeds.
            let _ = answer.send(TaskResult::Unfinished);
            return;
        }
        if matches!(what, TaskOrder::ClearSet | TaskOrder::Reset) {
            // These affect other sessions, so they are limited like task management functions.
            if !self.shared.resets.take(self.now_ms()) {
                self.shared.counters.add(Counter::ResetsRefused, 1);
                let _ = answer.send(TaskResult::Rejected);
                return;
            }
            self.shared.counters.add(Counter::ResetThrottle, 1);
        }
        let selection = |lun, tag| TaskSelection { lun, tag, except: from };
        // Initiator task tags have 32 bits. A longer tag matches no task.
        let tagged = |tag: u64| u32::try_from(tag).ok().map(|tag| selection(Some(lun), Some(tag)));
        let tasks = match what {
            TaskOrder::Query { .. } | TaskOrder::QuerySet => {
                let selection = match what {
                    TaskOrder::Query { tag } => tagged(tag),
                    _ => Some(selection(Some(lun), None)),
                };
                let found = selection.is_some_and(|selection| self.machine.has_commands(selection));
                let _ = answer.send(if found { TaskResult::Succeeded } else { TaskResult::Complete });
                return;
            }
            TaskOrder::Abort { tag } => {
                tagged(tag).map_or_else(Vec::new, |selection| self.machine.end_selected(selection))
            }
            TaskOrder::AbortSet | TaskOrder::ClearSet | TaskOrder::Reset => {
                self.machine.end_selected(selection(Some(lun), None))
            }
            TaskOrder::NexusReset => self.machine.end_selected(selection(None, None)),
        };
        if let (TaskOrder::ClearSet | TaskOrder::Reset, Some(nexus)) = (what, self.nexus()) {
            self.shared.sessions.end_commands(nexus, Some(lun), matches!(what, TaskOrder::ClearSet));
        }
        self.waiting.push(PendingOrder { from, lun, what, tasks });
        let _ = answer.send(TaskResult::Complete);
        self.complete_orders();
    }

    /// Handles the reply of a command that ran here or on another thread.
    pub(super) fn on_reply(&mut self, task: TaskId, reply: CommandReply) {
        if self.waiting.iter().any(|waiting| waiting.from == task) {
            self.delayed_replies.push((task, reply));
        } else {
            self.machine.complete(task, reply);
        }
        for waiting in &mut self.waiting {
            waiting.tasks.retain(|&other| other != task);
        }
        self.complete_orders();
    }

    /// Completes every order that waits only for commands that wait themselves, and sends delayed
    /// replies.
    fn complete_orders(&mut self) {
        let waiting: Vec<TaskId> = self.waiting.iter().map(|waiting| waiting.from).collect();
        let is_over = |order: &mut PendingOrder| order.tasks.iter().all(|task| waiting.contains(task));
        for order in self.waiting.extract_if(.., is_over).collect::<Vec<_>>() {
            self.conclude(&order);
        }
        let waiting = &self.waiting;
        let is_free =
            |delayed: &mut (TaskId, CommandReply)| !waiting.iter().any(|waiting| waiting.from == delayed.0);
        for (task, reply) in self.delayed_replies.extract_if(.., is_free).collect::<Vec<_>>() {
            self.machine.complete(task, reply);
        }
    }

    fn conclude(&self, order: &PendingOrder) {
        match order.what {
            TaskOrder::Reset => {
                let visible = self.session.as_ref().map_or(VisibleLuns::ALL, NormalSession::visible);
                if let Some((_, unit)) = self.shared.luns.find(order.lun, visible) {
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
