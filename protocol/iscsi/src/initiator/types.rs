//! Configuration, commands, results, events and errors of an initiator's connection.

use alloc::{string::String, vec::Vec};

use crate::{
    Buffer, Cdb, Crc32c, FrameError, Gather, Parameters, Policy, Residual, TaskAttribute, TaskId, TextError,
    chap::{CHALLENGE_LEN, ChapAccount, ChapAlgorithm},
};

/// Names, policy and timeouts of an initiator.
#[derive(Clone, Debug)]
pub struct InitiatorConfig {
    /// Our iSCSI name.
    pub initiator_name: String,
    /// Our alias, if any.
    pub initiator_alias: Option<String>,
    /// The target's iSCSI name; `None` makes a discovery session.
    pub target_name: Option<String>,
    /// Session identifier part of ours: a login with the same ISID to the same target replaces the
    /// older session.
    pub isid: [u8; 6],
    /// The values that we offer.
    pub policy: Policy,
    /// CRC32C function, in hardware if available.
    pub crc32c: Crc32c,
    /// Maximum number of commands in progress, at most [`crate::limits::QUEUE_DEPTH_MAX`]; the
    /// target's window may be smaller.
    pub queue_depth: u16,
    /// Time limit for login and logout, milliseconds.
    pub login_timeout_ms: u64,
    /// Milliseconds of silence before a ping.
    pub ping_after_ms: u64,
    /// Time limit for the response to a ping, milliseconds.
    pub ping_timeout_ms: u64,
    /// How we authenticate; `None`: not at all.
    pub chap: Option<InitiatorChap>,
}

/// CHAP settings of an initiator.
#[derive(Clone, Debug)]
pub struct InitiatorChap {
    /// Our account.
    pub account: ChapAccount,
    /// The target's account (mutual CHAP); `None`: the target need not authenticate.
    pub target: Option<ChapAccount>,
    /// Algorithms that we offer, in our order of preference.
    pub algorithms: Vec<ChapAlgorithm>,
    /// Our challenge to the target: fresh unpredictable bytes for each login.
    pub challenge: [u8; CHALLENGE_LEN],
}

impl InitiatorConfig {
    /// Returns default values for a session of `initiator_name` with `target_name`.
    #[must_use]
    pub fn new(initiator_name: String, target_name: Option<String>, isid: [u8; 6]) -> Self {
        Self {
            initiator_name,
            initiator_alias: None,
            target_name,
            isid,
            policy: Policy::default(),
            crc32c: crate::crc32c_append,
            queue_depth: 128,
            login_timeout_ms: 10_000,
            ping_after_ms: 10_000,
            ping_timeout_ms: 10_000,
            chap: None,
        }
    }
}

/// One SCSI command to send. With data both ways it is bidirectional.
#[derive(Debug)]
pub struct SubmittedCommand {
    /// Logical unit, as the eight bytes of SAM in big-endian order (LUN 0 is 0).
    pub lun: u64,
    /// The CDB, of any length up to [`crate::limits::CDB_MAX`].
    pub cdb: Cdb,
    /// Task attribute.
    pub attribute: TaskAttribute,
    /// Data-out; sent without copying.
    pub data_out: Gather,
    /// Destination of data-in; its length is the expected transfer length. Empty if the command has
    /// no data-in.
    pub data_in: Buffer,
}

/// The result of a command, as reported by the target.
#[derive(Debug)]
pub struct CommandResponse {
    /// SCSI status byte.
    pub status: u8,
    /// Sense data without its length prefix; possible with GOOD.
    pub sense: Vec<u8>,
    /// The command's destination buffer, returned.
    pub data_in: Buffer,
    /// Received bytes in it, from the start.
    pub data_in_length: usize,
    /// Residual of data-in.
    pub read_residual: Residual,
    /// Residual of data-out.
    pub write_residual: Residual,
}

/// Why a command has no SCSI status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskFailure {
    /// Ended by our task management.
    #[error("the command was aborted")]
    Aborted,
    /// The target rejected its PDU; the reason code of RFC 7143 §11.17.1.
    #[error("the target rejected the command, reason {0:#04x}")]
    Rejected(u8),
    /// The target failed; the response code of RFC 7143 §11.4.3.
    #[error("the target failed, response {0:#04x}")]
    Target(u8),
}

/// A command that was not accepted, and why.
#[derive(Debug)]
pub struct NotSent {
    /// The reason.
    pub error: SubmitError,
    /// The command, returned.
    pub command: SubmittedCommand,
}

/// Why a command was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Login is not finished, or logout has begun.
    #[error("the session is not in full feature phase")]
    NotReady,
    /// Too many commands are in progress: retry after an event.
    #[error("the command window is full")]
    WindowFull,
    /// The length of a buffer does not fit 32 bits.
    #[error("a buffer exceeds 4 GiB")]
    TooLong,
}

/// A task management function (RFC 7143 §11.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementFunction {
    /// ABORT TASK: this command of ours.
    AbortTask(TaskId),
    /// ABORT TASK SET: all commands of this session to the logical unit.
    AbortTaskSet(u64),
    /// LOGICAL UNIT RESET.
    LogicalUnitReset(u64),
    /// CLEAR TASK SET: all commands of all sessions to the logical unit.
    ClearTaskSet(u64),
    /// TARGET WARM RESET.
    TargetWarmReset,
    /// TARGET COLD RESET; the target closes every connection afterwards.
    TargetColdReset,
}

/// The target's answer to a task management function (RFC 7143 §11.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementResult {
    /// Function complete.
    Complete,
    /// Task does not exist: it had ended.
    NoSuchTask,
    /// LUN does not exist.
    NoSuchLun,
    /// Task still allegiant.
    StillAllegiant,
    /// Task allegiance reassignment not supported.
    NoReassignment,
    /// Task management function not supported.
    NotSupported,
    /// Function authorization failed.
    NotAuthorized,
    /// Function rejected, or a code that RFC 7143 does not define.
    Rejected(u8),
}

impl From<u8> for ManagementResult {
    fn from(code: u8) -> Self {
        match code {
            0 => Self::Complete,
            1 => Self::NoSuchTask,
            2 => Self::NoSuchLun,
            3 => Self::StillAllegiant,
            4 => Self::NoReassignment,
            5 => Self::NotSupported,
            6 => Self::NotAuthorized,
            other => Self::Rejected(other),
        }
    }
}

/// A target found by discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// Its iSCSI name.
    pub name: String,
    /// Its addresses as `host:port,group`.
    pub addresses: Vec<String>,
}

/// An event of the connection.
#[derive(Debug)]
pub enum InitiatorEvent {
    /// Full feature phase begins, with the negotiated parameters.
    LoggedIn(Parameters),
    /// A command ended.
    Completed {
        /// The id from [`InitiatorConnection::submit`](super::InitiatorConnection::submit).
        task: TaskId,
        /// Its result.
        outcome: Result<CommandResponse, TaskFailure>,
    },
    /// A task management function was answered.
    Managed {
        /// The id from [`InitiatorConnection::manage`](super::InitiatorConnection::manage).
        id: TaskId,
        /// The result. Commands that it ended had their own event before.
        result: ManagementResult,
    },
    /// The answer to
    /// [`InitiatorConnection::send_targets`](super::InitiatorConnection::send_targets).
    Targets(Vec<DiscoveredTarget>),
    /// The target requests a logout within this time.
    LogoutRequested {
        /// Seconds until it closes the connection.
        seconds: u16,
    },
    /// The window opened: a command may be submitted again.
    WindowOpen,
    /// The last event. Commands without an event of their own are lost: they may or may not have
    /// been executed.
    Closed(InitiatorClosed),
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InitiatorClosed {
    /// We logged out.
    #[error("logged out")]
    LoggedOut,
    /// The target closed the stream.
    #[error("the target closed the connection")]
    EndOfStream,
    /// The target announced that it drops the connection or session.
    #[error("the target dropped the session")]
    Dropped,
    /// Login was refused or redirected.
    #[error("login refused: {0}")]
    Refused(LoginRefusal),
    /// Login took too long.
    #[error("login timed out")]
    LoginTimeout,
    /// Logout took too long.
    #[error("logout timed out")]
    LogoutTimeout,
    /// A ping was not answered.
    #[error("the target does not answer pings")]
    PingTimeout,
    /// The target broke the protocol.
    #[error("protocol violation: {0}")]
    Violation(Violation),
}

/// Status class and detail of a refused login (RFC 7143 §11.13.5).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("status {class:#04x}{detail:02x}")]
pub struct LoginRefusal {
    /// 1 redirection, 2 our error, 3 the target's error.
    pub class: u8,
    /// Detail within the class.
    pub detail: u8,
    /// The address to connect to, for a redirection: `host:port`.
    pub redirect: Option<String>,
}

/// How the target violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The target did not prove that it knows its CHAP secret.
    #[error("the target did not authenticate")]
    Unproven,
    /// The stream cannot be parsed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A data segment does not match its digest.
    #[error("data digest mismatch")]
    DataDigest,
    /// This opcode is not expected here.
    #[error("unexpected opcode {0:#04x}")]
    UnexpectedPdu(u8),
    /// Additional headers where none are permitted.
    #[error("unexpected additional headers")]
    AdditionalHeader,
    /// A data segment is longer than we declared.
    #[error("a data segment of {0} bytes exceeds the declared limit")]
    LongSegment(u32),
    /// A tag that belongs to no task of ours.
    #[error("unknown task tag {0:#010x}")]
    UnknownTask(u32),
    /// StatSN is not the next one.
    #[error("status sequence broken")]
    StatusSequence,
    /// Data-In is out of order, overlapping or beyond the buffer.
    #[error("data-in sequence broken")]
    DataSequence,
    /// An R2T requests data that does not exist, or there are too many at once.
    #[error("R2T out of order or out of range")]
    ReadyToTransfer,
    /// Negotiation text is malformed.
    #[error(transparent)]
    Text(#[from] TextError),
    /// Login or text negotiation violates its rules.
    #[error("negotiation rules broken")]
    Negotiation,
    /// An answer that our offer did not permit.
    #[error("the target selected a value that was not offered")]
    Selection,
    /// An extension of the login refused it.
    #[error("the target refused the required extension of the login")]
    Extension,
    /// More exchanges or text than permitted.
    #[error("too many negotiation exchanges")]
    EndlessNegotiation,
    /// Sense data does not fit its segment.
    #[error("malformed response data")]
    ResponseData,
}
