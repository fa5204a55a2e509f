//! What goes into and comes out of an initiator's connection.

use alloc::{string::String, vec::Vec};

use crate::{
    Buffer, Cdb, Crc32c, FrameError, Gather, Parameters, Policy, Residual, TaskAttribute, TaskId, TextError,
    chap::{Account, Algorithm, CHALLENGE_LEN},
};

/// Who we are and whom we call.
#[derive(Clone, Debug)]
pub struct Config {
    /// Our iSCSI name.
    pub initiator_name: String,
    /// Our alias, if any.
    pub initiator_alias: Option<String>,
    /// The target's iSCSI name; `None` makes a discovery session.
    pub target_name: Option<String>,
    /// Session identifier part of ours: the same ISID towards the same target replaces the older session.
    pub isid: [u8; 6],
    /// What we offer.
    pub policy: Policy,
    /// CRC32C, hardware's if there is.
    pub crc32c: Crc32c,
    /// Most commands under way at once, at most [`crate::limits::QUEUE_DEPTH_MAX`]; the target's window may be less.
    pub queue_depth: u16,
    /// Milliseconds until a login or logout must be over.
    pub login_timeout_ms: u64,
    /// Milliseconds of silence before a ping.
    pub ping_after_ms: u64,
    /// Milliseconds until a ping must be answered.
    pub ping_timeout_ms: u64,
    /// How we prove ourselves; `None`: we do not.
    pub chap: Option<Chap>,
}

/// What CHAP needs of an initiator.
#[derive(Clone, Debug)]
pub struct Chap {
    /// Who we are.
    pub account: Account,
    /// Who the target must be (mutual CHAP); `None`: its word is enough.
    pub target: Option<Account>,
    /// Algorithms that we offer, in our order of preference.
    pub algorithms: Vec<Algorithm>,
    /// Our challenge to the target: fresh unpredictable bytes for each login.
    pub challenge: [u8; CHALLENGE_LEN],
}

impl Config {
    /// Usual values for a session of `initiator_name` with `target_name`.
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
pub struct Command {
    /// Logical unit, as the eight bytes of SAM in big-endian order (LUN 0 is 0).
    pub lun: u64,
    /// The CDB, of any length up to [`crate::limits::CDB_MAX`].
    pub cdb: Cdb,
    /// Task attribute.
    pub attribute: TaskAttribute,
    /// Data-out; sent without being copied.
    pub data_out: Gather,
    /// Destination of data-in; its length is the expected transfer length. Empty if the command has no data-in.
    pub data_in: Buffer,
}

/// How a command ended, as the target told it.
#[derive(Debug)]
pub struct Response {
    /// SCSI status byte.
    pub status: u8,
    /// Sense data without its length prefix; may be there with GOOD.
    pub sense: Vec<u8>,
    /// The command's destination buffer, back.
    pub data_in: Buffer,
    /// Bytes of it, from the beginning, that were received.
    pub data_in_length: usize,
    /// Residual of data-in.
    pub read_residual: Residual,
    /// Residual of data-out.
    pub write_residual: Residual,
}

/// Why a command has no SCSI status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskFailure {
    /// Ended by task management of ours.
    #[error("the command was aborted")]
    Aborted,
    /// The target rejected its PDU; the reason code of RFC 7143 §11.17.1.
    #[error("the target rejected the command, reason {0:#04x}")]
    Rejected(u8),
    /// The target failed; the response code of RFC 7143 §11.4.3.
    #[error("the target failed, response {0:#04x}")]
    Target(u8),
}

/// A command that was not taken, and why.
#[derive(Debug)]
pub struct NotSent {
    /// Why.
    pub error: SubmitError,
    /// The command, back.
    pub command: Command,
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Login is not over, or logout has begun.
    #[error("the session is not in full feature phase")]
    NotReady,
    /// Too many commands are under way: try again after an event.
    #[error("the command window is full")]
    WindowFull,
    /// A buffer exceeds what 32 bits can say.
    #[error("a buffer exceeds 4 GiB")]
    TooLong,
}

/// A task management function (RFC 7143 §11.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
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
    /// TARGET COLD RESET; the target closes every connection after it.
    TargetColdReset,
}

/// The target's answer to a task management function (RFC 7143 §11.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionResult {
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
    /// Function rejected, or a code that RFC 7143 does not know.
    Rejected(u8),
}

impl From<u8> for FunctionResult {
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

/// A target that discovery told about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// Its iSCSI name.
    pub name: String,
    /// Its addresses as `host:port,group`.
    pub addresses: Vec<String>,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// Full feature phase begins; with what was agreed.
    LoggedIn(Parameters),
    /// A command is over.
    Completed {
        /// As [`Connection::submit`](super::Connection::submit) returned it.
        task: TaskId,
        /// Its end.
        outcome: Result<Response, TaskFailure>,
    },
    /// A task management function was answered.
    Managed {
        /// As [`Connection::manage`](super::Connection::manage) returned it.
        id: TaskId,
        /// The answer. Commands it ended have had their own event before.
        result: FunctionResult,
    },
    /// The answer to [`Connection::send_targets`](super::Connection::send_targets).
    Targets(Vec<DiscoveredTarget>),
    /// The target wants us to log out within so many seconds.
    LogoutRequested {
        /// Seconds until it closes the connection.
        seconds: u16,
    },
    /// The window opened: a command may be submitted again.
    WindowOpen,
    /// The last event. Commands without an event of their own are lost: they may or may not have been done.
    Closed(Closed),
}

/// Why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
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
    /// What exactly.
    pub detail: u8,
    /// The address to go to, for a redirection: `host:port`.
    pub redirect: Option<String>,
}

/// How the target broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The target did not prove that it knows its CHAP secret.
    #[error("the target did not prove who it is")]
    Unproven,
    /// The stream cannot be followed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A data segment does not match its digest.
    #[error("data digest mismatch")]
    DataDigest,
    /// This opcode has no place here.
    #[error("unexpected opcode {0:#04x}")]
    UnexpectedPdu(u8),
    /// Additional headers where there are none.
    #[error("unexpected additional headers")]
    AdditionalHeader,
    /// A data segment is longer than we declared to receive.
    #[error("a data segment of {0} bytes")]
    LongSegment(u32),
    /// A tag that names no task of ours.
    #[error("unknown task tag {0:#010x}")]
    UnknownTask(u32),
    /// StatSN is not the next one.
    #[error("status sequence broken")]
    StatusSequence,
    /// Data-In is out of order, overlapping or beyond the buffer.
    #[error("data-in sequence broken")]
    DataSequence,
    /// An R2T asks for what is not there, or too many at once.
    #[error("R2T out of order or out of range")]
    ReadyToTransfer,
    /// Negotiation text is malformed.
    #[error(transparent)]
    Text(#[from] TextError),
    /// Login or text negotiation breaks its rules.
    #[error("negotiation rules broken")]
    Negotiation,
    /// An answer that our offer did not allow.
    #[error("the target selected a value that was not offered")]
    Selection,
    /// More exchanges or text than we allow.
    #[error("negotiation without end")]
    EndlessNegotiation,
    /// Sense data does not fit its segment.
    #[error("malformed response data")]
    ResponseData,
}
