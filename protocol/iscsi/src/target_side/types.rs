//! Configuration, commands, replies, events and errors of a target's connection.

use alloc::{string::String, sync::Arc, vec::Vec};

use super::AccessRules;
use crate::{Buffer, Cdb, Crc32c, FrameError, Gather, Parameters, Policy, TaskAttribute, TaskId};

/// A target behind this portal.
#[derive(Clone, Debug)]
pub struct TargetEntry {
    /// Its iSCSI name.
    pub name: String,
    /// Its alias, if any.
    pub alias: Option<String>,
    /// Addresses to report in discovery, as `host:port`; if empty the one at which the connection
    /// was accepted.
    pub addresses: Vec<String>,
}

/// Settings that all connections of a portal share.
#[derive(Clone, Debug)]
pub struct PortalConfig {
    /// The targets.
    pub targets: Vec<TargetEntry>,
    /// Target portal group tag.
    pub portal_group: u16,
    /// The values that we grant.
    pub policy: Policy,
    /// CRC32C function, in hardware if available.
    pub crc32c: Crc32c,
    /// Maximum number of commands in progress in one session, at most
    /// [`crate::limits::QUEUE_DEPTH_MAX`].
    pub queue_depth: u16,
    /// Longest data-out of one command, in bytes; longer ones are refused without being read.
    pub data_out_max: u32,
    /// Limit of requested data-out of a connection, including data that waits for execution, in
    /// bytes. It is requested at the rate at which commands end, in bursts of at most
    /// [`crate::limits::PULL_BURST`] bytes; one command may always request. `None`: every command
    /// requests at once.
    pub pull_bytes: Option<u32>,
    /// Time limit for a login, or a logout that we requested, milliseconds.
    pub login_timeout_ms: u64,
    /// Milliseconds of silence before a ping.
    pub ping_after_ms: u64,
    /// Time limit for the response to a ping, milliseconds.
    pub ping_timeout_ms: u64,
    /// Time limit of one PDU from its first to its last byte, milliseconds.
    pub pdu_timeout_ms: u64,
    /// Maximum pause of data-out that we wait for, milliseconds.
    pub transfer_timeout_ms: u64,
    /// Time that a command waits for memory before it gets BUSY, milliseconds.
    pub starvation_timeout_ms: u64,
    /// Access rules; `None`: all initiators, without authentication.
    pub access: Option<Arc<AccessRules>>,
    /// Whether initiators may reset the whole target (TARGET WARM RESET and COLD RESET).
    pub allow_target_reset: bool,
}

impl PortalConfig {
    /// Returns default values for these targets.
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

/// The purpose of a session (RFC 7143 §13.21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionKind {
    /// SendTargets only.
    Discovery,
    /// Commands to one target.
    Normal {
        /// Index into [`PortalConfig::targets`].
        target: usize,
    },
}

/// A login that is complete except for the shell's decision.
#[derive(Clone, Debug)]
pub struct LoginRequest {
    /// The initiator's iSCSI name, as it sent it.
    pub initiator: String,
    /// Its alias, if it sent one.
    pub alias: Option<String>,
    /// The initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// Zero for a new session; else the session that this connection requests to join or reinstate
    /// (§6.3.1).
    pub tsih: u16,
    /// The connection's number within its session.
    pub cid: u16,
    /// Purpose of the session. The same initiator, ISID and target as an existing session replace
    /// that session (§6.3.5).
    pub kind: SessionKind,
    /// Authenticated CHAP name; `None` if none was required.
    pub user: Option<String>,
    /// Accessible logical units; `None`: all.
    pub luns: Option<Vec<u16>>,
    /// The negotiated parameters.
    pub parameters: Parameters,
}

/// Why a login is refused: the status codes of RFC 7143 §11.13.5 that we use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Status 0200h.
    #[error("initiator error")]
    InitiatorError,
    /// Status 0200h: the extension of the login refused it, or the session lacks what it requires.
    #[error("the session lacks the protection that the logical units require")]
    Protection,
    /// Status 0201h.
    #[error("authentication failure")]
    Authentication,
    /// Status 0202h.
    #[error("not allowed to use this target")]
    Authorization,
    /// Status 0203h.
    #[error("no such target")]
    NotFound,
    /// Status 0205h.
    #[error("no common protocol version")]
    Version,
    /// Status 0206h.
    #[error("too many connections")]
    TooManyConnections,
    /// Status 0207h.
    #[error("a required key is missing")]
    MissingParameter,
    /// Status 0209h.
    #[error("session type not supported")]
    SessionType,
    /// Status 020Ah.
    #[error("no such session")]
    NoSuchSession,
    /// Status 020Bh.
    #[error("unexpected login request")]
    InvalidDuringLogin,
    /// Status 0301h.
    #[error("service unavailable")]
    Unavailable,
    /// Status 0302h.
    #[error("out of resources")]
    OutOfResources,
}

impl Refusal {
    /// Returns a short name, for an audit log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InitiatorError => "initiator-error",
            Self::Protection => "protection",
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
            Self::InitiatorError | Self::Protection => (2, 0x00),
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
pub struct ReceivedCommand {
    /// The id for [`TargetConnection::complete`](super::TargetConnection::complete).
    pub task: TaskId,
    /// Initiator task tag.
    pub tag: u32,
    /// Logical unit, as the eight bytes of SAM in big-endian order.
    pub lun: u64,
    /// The CDB, at least 16 bytes.
    pub cdb: Cdb,
    /// Task attribute.
    pub attribute: TaskAttribute,
    /// All data-out that the initiator announced.
    pub data_out: Buffer,
    /// Maximum bytes of data-in that the initiator accepts.
    pub data_in_max: u32,
}

/// The result of a command.
#[derive(Clone, Debug, Default)]
pub struct CommandReply {
    /// SCSI status byte.
    pub status: u8,
    /// Sense data; at most 4094 bytes are sent.
    pub sense: Vec<u8>,
    /// Data-in; bytes beyond the command's `data_in_max` are not sent.
    pub data_in: Gather,
    /// Bytes of data-in without that limit, for the read residual.
    pub data_in_wanted: u64,
    /// Bytes of data-out that the command used or would have used, for the write residual.
    pub data_out_wanted: u64,
    /// Whether status is never put into the last Data-In PDU, even where the standard permits it.
    pub separate_status: bool,
}

/// A task management function for the shell to carry out; this session's own commands are ended
/// already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementFunction {
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
pub enum ManagementResult {
    /// Code 0.
    Complete,
    /// Code 1.
    NoSuchTask,
    /// Code 2.
    NoSuchLun,
    /// Code 4.
    NoReassignment,
    /// Code 5.
    NotSupported,
    /// Code 6.
    NotAuthorized,
    /// Code 255.
    Rejected,
}

impl ManagementResult {
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

/// An event of the connection.
#[derive(Debug)]
pub enum TargetEvent {
    /// Call [`TargetConnection::admit`](super::TargetConnection::admit) or
    /// [`TargetConnection::refuse`](super::TargetConnection::refuse); nothing is read before.
    Login(LoginRequest),
    /// Execute it and call [`TargetConnection::complete`](super::TargetConnection::complete).
    Command(ReceivedCommand),
    /// Carry it out and call [`TargetConnection::managed`](super::TargetConnection::managed).
    Management {
        /// The id for the result.
        id: TaskId,
        /// The function.
        function: ManagementFunction,
    },
    /// The last event: write what is left to transmit, then close.
    Closed(TargetClosed),
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetClosed {
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
    #[error("a PDU took too long")]
    PduTimeout,
    /// Data-out that we wait for paused too long.
    #[error("data-out paused too long")]
    TransferTimeout,
    /// TARGET COLD RESET.
    #[error("the target was reset")]
    TargetReset,
    /// The initiator did not log out although it was requested.
    #[error("did not log out when requested")]
    LogoutTimeout,
    /// The initiator violated the protocol.
    #[error("protocol violation: {0}")]
    Violation(#[from] Violation),
}

/// How the initiator violated the protocol in a way that a Reject cannot resolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The stream cannot be parsed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A PDU other than a login request before full feature phase.
    #[error("opcode {0:#04x} before login")]
    NotLoggedIn(u8),
    /// A login request in full feature phase.
    #[error("login request in full feature phase")]
    LoginAgain,
    /// A data segment is longer than we declared.
    #[error("a data segment of {0} bytes exceeds the declared limit")]
    LongSegment(u32),
    /// A command number is missing; on one connection it can never arrive (RFC 7143 §4.2.2.1).
    #[error("a command number is missing")]
    CommandGap,
    /// More PDUs had to be rejected than permitted.
    #[error("too many rejected PDUs")]
    TooManyRejects,
}
