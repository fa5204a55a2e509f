//! What goes into and comes out of a target's connection.

use alloc::{string::String, sync::Arc, vec::Vec};

use super::Access;
use crate::{Buffer, Cdb, Crc32c, FrameError, Gather, Parameters, Policy, TaskAttribute, TaskId};

/// A target behind this portal.
#[derive(Clone, Debug)]
pub struct TargetEntry {
    /// Its iSCSI name.
    pub name: String,
    /// Its alias, if any.
    pub alias: Option<String>,
    /// Addresses to tell in discovery, as `host:port`; if empty the one that the connection came in at.
    pub addresses: Vec<String>,
}

/// What all connections of a portal have in common.
#[derive(Clone, Debug)]
pub struct Config {
    /// The targets.
    pub targets: Vec<TargetEntry>,
    /// Target portal group tag.
    pub portal_group: u16,
    /// What we grant.
    pub policy: Policy,
    /// CRC32C, hardware's if there is.
    pub crc32c: Crc32c,
    /// Most commands under way in one session, at most [`crate::limits::QUEUE_DEPTH_MAX`].
    pub queue_depth: u16,
    /// Longest data-out of one command, in bytes; longer ones are refused without being read.
    pub data_out_max: u32,
    /// Data-out is asked for at the pace at which commands end: at most so many bytes of it at once in a connection, in
    /// bursts of at most [`crate::limits::PULL_BURST`] bytes, those counted that wait to be executed; one command may
    /// always ask. `None`: every command asks as soon as it comes.
    pub pull_bytes: Option<u32>,
    /// Milliseconds until a login, or a logout that we asked for, must be over.
    pub login_timeout_ms: u64,
    /// Milliseconds of silence before a ping.
    pub ping_after_ms: u64,
    /// Milliseconds until a ping must be answered.
    pub ping_timeout_ms: u64,
    /// Milliseconds that one PDU may take from its first to its last byte.
    pub pdu_timeout_ms: u64,
    /// Milliseconds that data-out we wait for may pause.
    pub transfer_timeout_ms: u64,
    /// Milliseconds that a command waits for memory before it gets BUSY.
    pub starvation_timeout_ms: u64,
    /// Who may log in; `None`: everybody, unproven.
    pub access: Option<Arc<Access>>,
    /// Initiators may reset the whole target (TARGET WARM RESET and COLD RESET).
    pub allow_target_reset: bool,
}

impl Config {
    /// Usual values for these targets.
    #[must_use]
    pub fn new(targets: Vec<TargetEntry>) -> Self {
        Self {
            targets,
            portal_group: 1,
            policy: Policy::default(),
            crc32c: crate::crc32c_append,
            queue_depth: 128,
            data_out_max: 16 * 1024 * 1024,
            pull_bytes: None,
            login_timeout_ms: 10_000,
            ping_after_ms: 30_000,
            ping_timeout_ms: 10_000,
            pdu_timeout_ms: 30_000,
            transfer_timeout_ms: 30_000,
            starvation_timeout_ms: 5_000,
            access: None,
            allow_target_reset: false,
        }
    }
}

/// What a session is for (RFC 7143 §13.21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionKind {
    /// SendTargets only.
    Discovery,
    /// Commands to the target at this place of [`Config::targets`].
    Normal {
        /// Index into [`Config::targets`].
        target: usize,
    },
}

/// A login that has come to its end but for the shell's word.
#[derive(Clone, Debug)]
pub struct LoginRequest {
    /// The initiator's iSCSI name, as it says.
    pub initiator: String,
    /// Its alias, if it told one.
    pub alias: Option<String>,
    /// The initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// Zero for a new session; else the session that this connection wants to join or reinstate (§6.3.1).
    pub tsih: u16,
    /// The connection's number within its session.
    pub cid: u16,
    /// What for. The same initiator, ISID and target as a living session replace that session (§6.3.5).
    pub kind: SessionKind,
    /// CHAP name that was proven; `None` if none was asked for.
    pub user: Option<String>,
    /// Logical units that it may see; `None`: all.
    pub luns: Option<Vec<u16>>,
    /// What was agreed.
    pub parameters: Parameters,
}

/// Why a login is refused: the status codes of RFC 7143 §11.13.5 that we use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// 0200h.
    #[error("initiator error")]
    InitiatorError,
    /// 0201h.
    #[error("authentication failure")]
    Authentication,
    /// 0202h.
    #[error("not allowed to use this target")]
    Authorization,
    /// 0203h.
    #[error("no such target")]
    NotFound,
    /// 0205h.
    #[error("no common protocol version")]
    Version,
    /// 0206h.
    #[error("too many connections")]
    TooManyConnections,
    /// 0207h.
    #[error("a required key is missing")]
    MissingParameter,
    /// 0209h.
    #[error("session type not supported")]
    SessionType,
    /// 020Ah.
    #[error("no such session")]
    NoSuchSession,
    /// 020Bh.
    #[error("a login request out of place")]
    InvalidDuringLogin,
    /// 0301h.
    #[error("service unavailable")]
    Unavailable,
    /// 0302h.
    #[error("out of resources")]
    OutOfResources,
}

impl Refusal {
    /// A short name, for an audit log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InitiatorError => "initiator-error",
            Self::Authentication => "authentication",
            Self::Authorization => "authorization",
            Self::NotFound => "no-such-target",
            Self::Version => "version",
            Self::TooManyConnections => "too-many-connections",
            Self::MissingParameter => "missing-parameter",
            Self::SessionType => "session-type",
            Self::NoSuchSession => "no-such-session",
            Self::InvalidDuringLogin => "invalid-during-login",
            Self::Unavailable => "unavailable",
            Self::OutOfResources => "out-of-resources",
        }
    }

    pub(super) const fn status(self) -> (u8, u8) {
        match self {
            Self::InitiatorError => (2, 0x00),
            Self::Authentication => (2, 0x01),
            Self::Authorization => (2, 0x02),
            Self::NotFound => (2, 0x03),
            Self::Version => (2, 0x05),
            Self::TooManyConnections => (2, 0x06),
            Self::MissingParameter => (2, 0x07),
            Self::SessionType => (2, 0x09),
            Self::NoSuchSession => (2, 0x0A),
            Self::InvalidDuringLogin => (2, 0x0B),
            Self::Unavailable => (3, 0x01),
            Self::OutOfResources => (3, 0x02),
        }
    }
}

/// A command with all its data-out, ready to be executed.
#[derive(Debug)]
pub struct Command {
    /// For [`Connection::complete`](super::Connection::complete).
    pub task: TaskId,
    /// Logical unit, as the eight bytes of SAM in big-endian order.
    pub lun: u64,
    /// The CDB, at least 16 bytes.
    pub cdb: Cdb,
    /// Task attribute.
    pub attribute: TaskAttribute,
    /// All data-out that the initiator announced.
    pub data_out: Buffer,
    /// Most bytes of data-in that the initiator takes.
    pub data_in_max: u32,
}

/// What a command came to.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// SCSI status byte.
    pub status: u8,
    /// Sense data; at most 4094 bytes are sent.
    pub sense: Vec<u8>,
    /// Data-in; what exceeds the command's `data_in_max` is not sent.
    pub data_in: Gather,
    /// Bytes of data-in that the command would have had; the read residual comes from it.
    pub data_in_wanted: u64,
    /// Bytes of data-out that the command used or would have used; the write residual comes from it.
    pub data_out_wanted: u64,
    /// Never put status into the last Data-In PDU, even where the standard allows it.
    pub separate_status: bool,
}

/// A task management function for the shell to carry out; this session's own commands are ended already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// CLEAR TASK SET: end all sessions' commands to this logical unit.
    ClearTaskSet(u64),
    /// LOGICAL UNIT RESET: end all sessions' commands to this logical unit and reset it.
    LogicalUnitReset(u64),
    /// ABORT TASK SET: done already, if there is such a logical unit.
    AbortTaskSet(u64),
    /// TARGET WARM RESET: end all commands and reset all logical units.
    TargetWarmReset,
    /// TARGET COLD RESET: the same, then close every connection.
    TargetColdReset,
}

/// The answer to a task management function (RFC 7143 §11.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionResult {
    /// 0.
    Complete,
    /// 1.
    NoSuchTask,
    /// 2.
    NoSuchLun,
    /// 4.
    NoReassignment,
    /// 5.
    NotSupported,
    /// 6.
    NotAuthorized,
    /// 255.
    Rejected,
}

impl FunctionResult {
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Complete => 0,
            Self::NoSuchTask => 1,
            Self::NoSuchLun => 2,
            Self::NoReassignment => 4,
            Self::NotSupported => 5,
            Self::NotAuthorized => 6,
            Self::Rejected => 255,
        }
    }
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// Answer with [`Connection::admit`](super::Connection::admit) or
    /// [`Connection::refuse`](super::Connection::refuse); nothing is read before.
    Login(LoginRequest),
    /// Execute it and answer with [`Connection::complete`](super::Connection::complete).
    Command(Command),
    /// Do it and answer with [`Connection::managed`](super::Connection::managed).
    Management {
        /// For the answer.
        id: TaskId,
        /// What to do.
        function: Function,
    },
    /// The last event: write what is left to transmit, then close.
    Closed(Closed),
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The initiator logged out.
    #[error("logged out")]
    LoggedOut,
    /// The initiator closed the stream.
    #[error("the initiator closed the connection")]
    EndOfStream,
    /// The login was refused.
    #[error("login refused: {0}")]
    Refused(#[from] Refusal),
    /// Login took too long.
    #[error("login timed out")]
    LoginTimeout,
    /// A ping was not answered.
    #[error("the initiator does not answer pings")]
    PingTimeout,
    /// One PDU took too long.
    #[error("a PDU came too slowly")]
    PduTimeout,
    /// Data-out that we wait for paused too long.
    #[error("data-out paused too long")]
    TransferTimeout,
    /// TARGET COLD RESET.
    #[error("the target was reset")]
    TargetReset,
    /// The initiator did not log out although asked to.
    #[error("asked to log out and did not")]
    LogoutTimeout,
    /// The initiator broke the protocol.
    #[error("protocol violation: {0}")]
    Violation(#[from] Violation),
}

/// How the initiator broke the protocol beyond what a Reject can mend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The stream cannot be followed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Something other than a login request before full feature phase.
    #[error("opcode {0:#04x} before login")]
    NotLoggedIn(u8),
    /// A login request in full feature phase.
    #[error("login request in full feature phase")]
    LoginAgain,
    /// A data segment is longer than we declared to receive.
    #[error("a data segment of {0} bytes")]
    LongSegment(u32),
    /// A command number is missing; on one connection it can never come (RFC 7143 §4.2.2.1).
    #[error("a command number is missing")]
    CommandGap,
    /// More PDUs had to be rejected than we bear.
    #[error("too many rejected PDUs")]
    TooManyRejects,
}
