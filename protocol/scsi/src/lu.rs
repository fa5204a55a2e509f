//! The seam between the target's shell and logical units.
//!
//! Does: say what a command brings and a reply carries. Does not: know a transport or a device type.
//! Contract: all data-out of a command is there (bounded by the target) before `execute`.

use alloc::vec::Vec;

use bytes::Bytes;

use crate::{AdditionalSense, Status, additional};

/// One `I_T` nexus; never reused within a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusId(pub u64);

/// A value that both ends of one sealed channel can compute, and of no other channel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChannelToken(pub [u8; 32]);

impl core::fmt::Debug for ChannelToken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ChannelToken")
    }
}

/// Who is at the far end of a nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitiatorPort<'a> {
    /// iSCSI name.
    pub name: &'a str,
    /// Initiator session identifier: with the name it is the SCSI port (RFC 7143 §4.4.3.1).
    pub isid: [u8; 6],
    /// The account that was proven when it logged in, if any: a name is said, an account is proven, so what a port owns
    /// belongs to both.
    pub account: Option<&'a str>,
    /// What the TLS channel of its connection is known by at both ends; none if there is no TLS.
    pub channel: Option<ChannelToken>,
    /// A nexus of the same port was lost before, in this run: I_T NEXUS LOSS is what it must hear.
    pub returns: bool,
}

impl<'a> InitiatorPort<'a> {
    /// A port that comes for the first time, over an open channel.
    #[must_use]
    pub const fn new(name: &'a str) -> Self {
        Self { name, isid: [0; 6], account: None, channel: None, returns: false }
    }

    /// The unit attention that it hears first.
    #[must_use]
    pub const fn attention(&self) -> AdditionalSense {
        if self.returns { additional::NEXUS_LOSS_OCCURRED } else { additional::POWER_ON_OR_RESET }
    }
}

/// One command as the transport collected it.
#[derive(Clone, Copy)]
pub struct ScsiCommand<'a> {
    /// Whence it came.
    pub nexus: NexusId,
    /// The addressed logical unit, as flat number.
    pub lun: u64,
    /// The whole CDB, extended ones included.
    pub cdb: &'a [u8],
    /// The whole Data-Out Buffer.
    pub data_out: &'a [u8],
    /// Most bytes of data-in that the initiator takes.
    pub data_in_max: usize,
    /// Whence data-in buffers come.
    pub buffers: &'a dyn Buffers,
    /// The other tasks, for a command that manages tasks.
    pub tasks: &'a dyn Tasks,
}

/// What a logical unit answers.
#[derive(Clone, Debug)]
pub struct ScsiReply {
    /// Status byte.
    pub status: Status,
    /// Encoded sense data; may be there with GOOD too (response ICV); empty if none.
    pub sense: Vec<u8>,
    /// The Data-In Buffer, at most `data_in_max` bytes.
    pub data_in: Bytes,
    /// Bytes that would have gone in without `data_in_max`: the overflow residual comes from it.
    pub data_in_wanted: u64,
    /// Bytes of data-out that were used: the write residual comes from it.
    pub data_out_used: u64,
}

impl ScsiReply {
    /// Status alone.
    #[must_use]
    pub const fn status(status: Status) -> Self {
        Self { status, sense: Vec::new(), data_in: Bytes::new(), data_in_wanted: 0, data_out_used: 0 }
    }

    /// GOOD with data; cut to `max` bytes, the residual tells the rest.
    #[must_use]
    pub fn data(mut data_in: Bytes, max: usize) -> Self {
        let data_in_wanted = data_in.len() as u64;
        data_in.truncate(max);
        Self { data_in, data_in_wanted, ..Self::status(Status::Good) }
    }

    /// CHECK CONDITION with these sense bytes.
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
    /// `len` bytes of unspecified but initialised contents; `None` is over budget: answer BUSY or TASK SET FULL.
    fn take(&self, len: usize) -> Option<Vec<u8>>;
    /// Makes it sharable; it goes back to the pool when the last clone drops.
    fn freeze(&self, buffer: Vec<u8>) -> Bytes;
}

/// What a command asks of the task manager (SAM-5 §7): about tasks of its own nexus and logical unit, but for
/// [`TaskOrder::ClearSet`] and [`TaskOrder::Reset`], which end those of every nexus, and [`TaskOrder::NexusReset`],
/// which ends those of every logical unit.
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

/// What came of a [`TaskOrder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskResult {
    /// Done; of a query: no such task.
    Complete,
    /// A query found a task.
    Succeeded,
    /// Nobody manages tasks here, or there were too many resets of late.
    Rejected,
    /// The command that gave the order was ended itself; it will never be answered.
    Unfinished,
}

/// The other tasks, as one command reaches them. It never reaches itself.
pub trait Tasks: Send + Sync {
    /// Carries an order out. The tasks that it ends have not ended when this returns: the shell holds the reply of the
    /// command back until they have, so that no thread waits for them. Not for commands of [`Cost::Inline`], and
    /// without holding anything that another task may wait for.
    fn order(&self, order: TaskOrder) -> TaskResult;
}

/// There are no other tasks that could be reached.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTasks;

impl Tasks for NoTasks {
    fn order(&self, _: TaskOrder) -> TaskResult {
        TaskResult::Rejected
    }
}

/// How long a command may hold the thread that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Short: run it on the connection's own task.
    Inline,
    /// Computes over so many bytes, and waits for nothing: a shell that lets short commands go first runs it elsewhere.
    Heavy(u64),
    /// May wait for a medium: the shell runs it elsewhere.
    Blocking,
    /// Works long, on the processor or the medium: the shell runs it elsewhere, and few of one initiator at once, so that
    /// others get their share of both.
    Long,
}

/// A logical unit: bytes in, bytes out.
pub trait LogicalUnit: Send + Sync {
    /// Does its sense data have descriptor format? What the shell answers in its name has the same.
    fn has_descriptor_sense(&self) -> bool {
        false
    }
    /// Returns what this CDB of this nexus will cost. It changes nothing.
    fn cost(&self, nexus: NexusId, cdb: &[u8]) -> Cost;
    /// Runs one command to its end.
    fn execute(&self, command: ScsiCommand<'_>) -> ScsiReply;
    /// A nexus begins.
    fn nexus_established(&self, nexus: NexusId, port: &InitiatorPort<'_>);
    /// A nexus is gone with all its commands.
    fn nexus_lost(&self, nexus: NexusId);
    /// LOGICAL UNIT RESET, or a reset of the whole target: every nexus hears of it.
    fn reset(&self);
    /// Something happened outside this unit that the initiator of this nexus must hear as unit attention.
    fn attention(&self, nexus: NexusId, code: AdditionalSense);
    /// The target answered REPORT LUNS on this nexus: an attention about changed logical units is no news any more.
    fn luns_reported(&self, nexus: NexusId);
}
