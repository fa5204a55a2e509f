//! Runs one command on its logical unit, on the connection's task or on the pool for long commands.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
};

use sealstone_iscsi::{
    Gather,
    target_side::{CommandReply, ReceivedCommand},
};
use sealstone_scsi::{
    Status,
    lu::{BlockSeals, Cost, LogicalUnit, NexusId, NoTasks, ScsiCommand, ScsiReply, Tasks},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
};

use super::{ConnectionDriver, orders::SessionTasks};
use crate::{
    Counter, TargetCounters,
    block_seals::ConnectionSeals,
    luns::{CommandRoute, failed},
    pool::CommandBuffers,
    refusals::INTEGRITY,
};

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> ConnectionDriver<S> {
    pub(super) fn execute(&mut self, command: ReceivedCommand) {
        let counters = &self.shared.counters;
        counters.add(Counter::Commands, 1);
        let task = command.task;
        let Some(session) = &self.session else { return };
        let (nexus, most) = (session.entry.nexus, command.data_in_max as usize);
        let visible = session.visible();
        let written = self.seals.as_ref().map_or(Ok(None), |seals| seals.take_written(command.tag));
        let Ok(written) = written else {
            tracing::warn!(
                nexus = nexus.0,
                "command rejected: keys and MACs of its blocks do not match its data"
            );
            counters.add(Counter::MalformedSeals, 1);
            let (source, initiator) = (self.slot.place.source(), self.machine.initiator());
            self.shared.refusals.add(source, initiator, INTEGRITY, "malformed-keys");
            return self.machine.reject_command(task);
        };
        let addressee = self.shared.luns.address(command.lun, command.cdb.as_slice(), most, visible);
        if let CommandRoute::Reported(_) = addressee {
            for unit in self.shared.luns.units() {
                unit.luns_reported(nexus);
            }
        }
        match addressee {
            CommandRoute::Answered(reply) | CommandRoute::Reported(reply) => {
                let reply = translate(reply, counters);
                self.on_reply(task, reply);
            }
            CommandRoute::Unit(number, unit) => match unit.cost(nexus, command.cdb.as_slice()) {
                cost if cost == Cost::Inline || self.runs_inline(cost) => {
                    let buffers = self.buffers(written);
                    let reply = run(&*unit, nexus, number, &command, buffers, counters, &NoTasks);
                    drop(command);
                    self.on_reply(task, reply);
                }
                cost => {
                    let (buffers, counters) = (self.buffers(written), Arc::clone(counters));
                    let completed = self.completed.clone();
                    let others = SessionTasks { orders: self.orders.clone(), lun: command.lun, task };
                    self.offloaded += 1;
                    let connection_ended = Arc::clone(&self.connection_ended);
                    // The length in a CDB is chosen by the initiator, so it is bounded by the real
                    // transfer.
                    let real = command.data_out.len() as u64 + u64::from(command.data_in_max);
                    // A command that was ended, or whose connection ended, gets no answer and need
                    // not start.
                    let work = move |starts: bool| {
                        let reply = if starts && !connection_ended.load(Ordering::Acquire) {
                            run(&*unit, nexus, number, &command, buffers, &counters, &others)
                        } else {
                            CommandReply::default()
                        };
                        drop(command);
                        // The receiver is gone only if the connection task was aborted.
                        let _ = completed.send((task, reply));
                    };
                    if let (Cost::Heavy(bytes), Some(heavy)) = (cost, &self.shared.heavy) {
                        self.shared.counters.add(Counter::CommandsHeavy, 1);
                        heavy.run(bytes.min(real), move || work(true));
                    } else if cost == Cost::Blocking {
                        tokio::task::spawn_blocking(move || work(true));
                    } else {
                        let places = self.slot.place.long();
                        let (queued, ended) = oneshot::channel::<()>();
                        self.queued.push((task, queued));
                        tokio::spawn(async move {
                            let place = tokio::select! {
                                biased;
                                _ = ended => None,
                                // The semaphore is never closed.
                                place = places.acquire_owned() => place.ok(),
                            };
                            // Held until the work is done.
                            if let Some(_place) = place {
                                let _ = tokio::task::spawn_blocking(move || work(true)).await;
                            } else {
                                work(false);
                            }
                        });
                    }
                }
            },
        }
    }

    /// Returns the buffers of a command, with the seals of its data-out.
    fn buffers(&self, written: Option<BlockSeals>) -> SealedBuffers {
        SealedBuffers {
            buffers: CommandBuffers::new(Arc::clone(&self.share), written),
            seals: self.seals.clone(),
        }
    }

    /// Cancels the wait of long commands that were ended.
    pub(super) fn cancel_ended_waits(&mut self) {
        let machine = &self.machine;
        self.queued.retain(|(task, queued)| !queued.is_closed() && !machine.is_ended(*task));
    }

    /// Whether a heavy command runs on the thread that received it, which is so unless short ones
    /// go first.
    fn runs_inline(&self, cost: Cost) -> bool {
        matches!(cost, Cost::Heavy(_)) && self.shared.heavy.is_none()
    }
}

/// Buffers of a command, and where the seals of its data-in go.
struct SealedBuffers {
    buffers: CommandBuffers,
    seals: Option<ConnectionSeals>,
}

fn run(
    unit: &dyn LogicalUnit,
    nexus: NexusId,
    lun: u64,
    command: &ReceivedCommand,
    sealed: SealedBuffers,
    counters: &TargetCounters,
    tasks: &dyn Tasks,
) -> CommandReply {
    let SealedBuffers { buffers, seals } = sealed;
    let tag = command.tag;
    let command = ScsiCommand {
        nexus,
        lun,
        cdb: command.cdb.as_slice(),
        data_out: command.data_out.as_slice(),
        data_in_max: command.data_in_max as usize,
        buffers: &buffers,
        tasks,
    };
    // A panic of a logical unit must not end the connection or the target.
    let reply = catch_unwind(AssertUnwindSafe(|| unit.execute(command))).unwrap_or_else(|_| {
        counters.add(Counter::CommandsPanicked, 1);
        failed(unit.has_descriptor_sense())
    });
    if let (Some(seals), Some(read)) = (seals, buffers.take_read()) {
        seals.put_read(tag, read);
    }
    translate(reply, counters)
}

fn translate(reply: ScsiReply, counters: &TargetCounters) -> CommandReply {
    if reply.status != Status::Good {
        counters.add(Counter::CommandsFailed, 1);
    }
    CommandReply {
        status: reply.status.byte(),
        sense: reply.sense,
        data_in: Gather::from(reply.data_in),
        data_in_wanted: reply.data_in_wanted,
        data_out_wanted: reply.data_out_used,
        separate_status: false,
    }
}
