//! The trait between the target and its logical units.
//!
//! Does: defines what a command consists of and what a reply contains.
//! Does not: know a transport or a device type.
//! Contract: all data-out of a command (bounded by the target) is received before `execute`.

use alloc::vec::Vec;

use bytes::Bytes;
use zeroize::Zeroizing;

use crate::{AdditionalSense, Status, additional};

/// One `I_T` nexus; never reused within a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusId(pub u64);

/// A value that both ends of one TLS channel can compute, and no other channel has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChannelToken(pub [u8; 32]);

impl core::fmt::Debug for ChannelToken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ChannelToken")
    }
}

/// The initiator of a nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitiatorPort<'a> {
    /// iSCSI name.
    pub name: &'a str,
    /// Initiator session identifier: with the name it is the SCSI port (RFC 7143 §4.4.3.1).
    pub isid: [u8; 6],
    /// The account that was authenticated at login, if any. The name alone is not authenticated, so
    /// resources of a port belong to name and account together.
    pub account: Option<&'a str>,
    /// The identifier of the TLS channel of its connection, known to both ends; none without TLS.
    pub channel: Option<ChannelToken>,
    /// Whether a nexus of the same port was lost before, in this run: then the initiator must
    /// receive I_T NEXUS LOSS.
    pub returns: bool,
}

impl<'a> InitiatorPort<'a> {
    /// Returns a port on its first connection, without TLS.
    #[must_use]
    pub const fn new(name: &'a str) -> Self {
        Self { name, isid: [0; 6], account: None, channel: None, returns: false }
    }

    /// Returns its first unit attention.
    #[must_use]
    pub const fn attention(&self) -> AdditionalSense {
        if self.returns { additional::NEXUS_LOSS_OCCURRED } else { additional::POWER_ON_OR_RESET }
    }
}

/// One command as the transport collected it.
#[derive(Clone, Copy)]
pub struct ScsiCommand<'a> {
    /// The nexus of the command.
    pub nexus: NexusId,
    /// The addressed logical unit, as flat number.
    pub lun: u64,
    /// The whole CDB, extended ones included.
    pub cdb: &'a [u8],
    /// The whole Data-Out Buffer.
    pub data_out: &'a [u8],
    /// Maximum bytes of data-in that the initiator accepts.
    pub data_in_max: usize,
    /// Source of data-in buffers.
    pub buffers: &'a dyn Buffers,
    /// The other tasks, for a command that manages tasks.
    pub tasks: &'a dyn Tasks,
}

/// The reply of a logical unit.
#[derive(Clone, Debug)]
pub struct ScsiReply {
    /// Status byte.
    pub status: Status,
    /// Encoded sense data; possible with GOOD too (response ICV); empty if none.
    pub sense: Vec<u8>,
    /// The Data-In Buffer, at most `data_in_max` bytes.
    pub data_in: Bytes,
    /// Bytes of data-in without the limit `data_in_max`, for the overflow residual.
    pub data_in_wanted: u64,
    /// Bytes of data-out that were used, for the write residual.
    pub data_out_used: u64,
}

impl ScsiReply {
    /// Returns a reply with a status alone.
    #[must_use]
    pub const fn status(status: Status) -> Self {
        Self { status, sense: Vec::new(), data_in: Bytes::new(), data_in_wanted: 0, data_out_used: 0 }
    }

    /// Returns GOOD with data, truncated to `max` bytes; the residual covers the rest.
    #[must_use]
    pub fn data(mut data_in: Bytes, max: usize) -> Self {
        let data_in_wanted = data_in.len() as u64;
        data_in.truncate(max);
        Self { data_in, data_in_wanted, ..Self::status(Status::Good) }
    }

    /// Returns CHECK CONDITION with these sense bytes.
    #[must_use]
    pub const fn check(sense: Vec<u8>) -> Self {
        Self {
            status: Status::CheckCondition,
            sense,
            data_in: Bytes::new(),
            data_in_wanted: 0,
            data_out_used: 0,
        }
    }
}

/// Buffers from a bounded pool.
pub trait Buffers: Send + Sync {
    /// Returns a buffer of `len` bytes with unspecified but initialised contents; `None` if it is
    /// over budget: then reply BUSY or TASK SET FULL.
    fn take(&self, len: usize) -> Option<Vec<u8>>;
    /// Makes the buffer sharable; it returns to the pool when the last clone is dropped.
    fn freeze(&self, buffer: Vec<u8>) -> Bytes;
    /// Takes keys and MACs that arrived with the blocks of data-out; `None` if none did.
    fn take_seals(&self) -> Option<BlockSeals> {
        None
    }
    /// Passes keys and MACs of the blocks of data-in to the transport.
    fn put_seals(&self, _seals: BlockSeals) {}
}

/// Keys and MACs of consecutive blocks beside their data. Only the ends that protect blocks know
/// the format; the transport passes one entry of the same length for each block.
#[derive(Clone)]
pub struct BlockSeals {
    /// Address of the first block.
    pub first_lba: u64,
    /// The entries.
    pub bytes: Zeroizing<Vec<u8>>,
}

impl core::fmt::Debug for BlockSeals {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("BlockSeals").field("first_lba", &self.first_lba).finish_non_exhaustive()
    }
}

/// A request of a command to the task manager (SAM-5 §7). It concerns tasks of its own nexus and
/// logical unit. Exceptions: [`TaskOrder::ClearSet`] and [`TaskOrder::Reset`] end those of every
/// nexus, [`TaskOrder::NexusReset`] those of every logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskOrder {
    /// ABORT TASK.
    Abort {
        /// Its tag.
        tag: u64,
    },
    /// ABORT TASK SET.
    AbortSet,
    /// CLEAR TASK SET.
    ClearSet,
    /// LOGICAL UNIT RESET.
    Reset,
    /// I_T NEXUS RESET.
    NexusReset,
    /// QUERY TASK.
    Query {
        /// Its tag.
        tag: u64,
    },
    /// QUERY TASK SET.
    QuerySet,
}

/// The result of a [`TaskOrder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskResult {
    /// Done; for a query: no such task.
    Complete,
    /// A query found a task.
    Succeeded,
    /// There is no task manager, or there were too many recent resets.
    Rejected,
    /// The command that sent the order was ended itself; it gets no reply.
    Unfinished,
}

/// The other tasks, as one command can access them. It never accesses itself.
pub trait Tasks: Send + Sync {
    /// Executes an order. The tasks that it ends may still run when this returns: the target holds
    /// the reply of the command back until they have ended, so that no thread waits for them. Not
    /// for commands of [`Cost::Inline`], and not while holding anything that another task may wait
    /// for.
    fn order(&self, order: TaskOrder) -> TaskResult;
}

/// No task manager.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTasks;

impl Tasks for NoTasks {
    fn order(&self, _: TaskOrder) -> TaskResult {
        TaskResult::Rejected
    }
}

/// How long a command may occupy the thread that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Short: run it on the connection's own task.
    Inline,
    /// Computes over this many bytes, without waiting: a target that prefers short commands runs it
    /// elsewhere.
    Heavy(u64),
    /// May wait for a medium: the target runs it elsewhere.
    Blocking,
    /// Runs long, on the processor or the medium: the target runs it elsewhere, and few of one
    /// initiator at once, so that others get their share.
    Long,
}

/// A logical unit: executes commands.
pub trait LogicalUnit: Send + Sync {
    /// Whether its sense data has descriptor format. Replies that the target sends on its behalf
    /// have the same format.
    fn has_descriptor_sense(&self) -> bool {
        false
    }
    /// Returns the cost of this CDB on this nexus. It changes nothing.
    fn cost(&self, nexus: NexusId, cdb: &[u8]) -> Cost;
    /// Executes one command completely.
    fn execute(&self, command: ScsiCommand<'_>) -> ScsiReply;
    /// Registers a new nexus.
    fn nexus_established(&self, nexus: NexusId, port: &InitiatorPort<'_>);
    /// Records that the connection of a nexus ended while its commands may still run, so that long
    /// ones can stop. It must not block; [`LogicalUnit::nexus_lost`] follows when all have ended.
    fn connection_ended(&self, _nexus: NexusId) {}
    /// Removes a nexus with all its commands.
    fn nexus_lost(&self, nexus: NexusId);
    /// Handles LOGICAL UNIT RESET, or a reset of the whole target: every nexus gets a unit
    /// attention.
    fn reset(&self);
    /// Adds a unit attention for the initiator of this nexus, about an event outside this unit.
    fn attention(&self, nexus: NexusId, code: AdditionalSense);
    /// Clears the attention about changed logical units: the target answered REPORT LUNS on this
    /// nexus.
    fn luns_reported(&self, nexus: NexusId);
}
