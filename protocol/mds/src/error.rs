//! Why a request failed, as a code a program can act on.
//!
//! Truth: docs/standards/mds/wire.md §7.

use crate::wire::{Text, WireError, code, record};

code! {
    /// A kind of failure.
    pub enum ErrorCode: u16 as "error" {
        /// No such path, user, device or create.
        NotFound = 1,
        /// Something has that name already.
        Exists = 2,
        /// The directory has entries.
        NotEmpty = 3,
        /// A directory was needed.
        NotADirectory = 4,
        /// A file was needed.
        IsADirectory = 5,
        /// Not allowed.
        Denied = 6,
        /// No device has room.
        NoSpace = 7,
        /// A name or path is not allowed.
        InvalidName = 8,
        /// What was open is gone: its file was replaced or removed, or the create expired.
        Stale = 9,
        /// Try again after `retry_ms`.
        Busy = 10,
        /// No common protocol version, or an unknown operation.
        Version = 11,
        /// A field has a value that the operation refuses.
        Invalid = 12,
        /// A directory would come to lie inside itself.
        Cycle = 13,
        /// Log in first.
        NotLoggedIn = 14,
        /// A limit of the server was reached (sizes, depth, counts).
        Limit = 15,
        /// The server failed; its log says why.
        Internal = 16,
        /// Only its owner, or an administrator, may do that.
        NotPermitted = 17,
        /// Too many symbolic links on the way.
        Loop = 18,
        /// A file has as many names as it can have.
        TooManyLinks = 19,
        /// There is no such extended attribute.
        NoAttribute = 20,
        /// This server, or this kind of node, does not do that.
        NotSupported = 21,
        /// A file cannot be that long.
        FileTooLarge = 22,
        /// Somebody else has a lock there.
        Locked = 23,
        /// Waiting for that lock would never end.
        Deadlock = 24,
        /// A quota is used up.
        Quota = 25,
        /// Two places are not in the same tree with a quota.
        CrossesTrees = 26,
        /// Somebody did not give a lease to write back, and others went on: what he wrote under it is not taken any more.
        Fenced = 27,
    }
}

impl ErrorCode {
    /// Exit code of the command line: 1 failed, 2 usage, 3 access denied, 4 not found.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::NotFound => 4,
            Self::Denied | Self::NotPermitted | Self::NotLoggedIn => 3,
            Self::InvalidName => 2,
            Self::Exists
            | Self::NotEmpty
            | Self::NotADirectory
            | Self::IsADirectory
            | Self::NoSpace
            | Self::Stale
            | Self::Busy
            | Self::Version
            | Self::Invalid
            | Self::Cycle
            | Self::Limit
            | Self::Internal
            | Self::Loop
            | Self::TooManyLinks
            | Self::NoAttribute
            | Self::NotSupported
            | Self::FileTooLarge
            | Self::Locked
            | Self::Deadlock
            | Self::Quota
            | Self::CrossesTrees
            | Self::Fenced => 1,
        }
    }

    /// Is it a refusal for want of a right?
    #[must_use]
    pub const fn is_denial(self) -> bool {
        matches!(self, Self::Denied | Self::NotPermitted)
    }

    /// A sentence for people.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::NotFound => "not found",
            Self::Exists => "already exists",
            Self::NotEmpty => "directory is not empty",
            Self::NotADirectory => "not a directory",
            Self::IsADirectory => "is a directory",
            Self::Denied => "access denied",
            Self::NoSpace => "no space left",
            Self::InvalidName => "name is not allowed",
            Self::Stale => "the file was replaced or removed meanwhile",
            Self::Busy => "the server is busy",
            Self::Version => "client and server have no protocol version in common",
            Self::Invalid => "the server refuses a value of the request",
            Self::Cycle => "a directory cannot be moved into itself",
            Self::NotLoggedIn => "not logged in",
            Self::Limit => "a limit of the server was reached",
            Self::Internal => "the server failed",
            Self::NotPermitted => "access denied: only its owner may do that",
            Self::Loop => "too many symbolic links",
            Self::TooManyLinks => "the file has as many names as it can have",
            Self::NoAttribute => "no such attribute",
            Self::NotSupported => "not supported",
            Self::FileTooLarge => "a file cannot be that long",
            Self::Locked => "locked by somebody else",
            Self::Deadlock => "waiting for the lock would never end",
            Self::Quota => {
                "the quota is used up: remove something, or have an administrator raise it (`sealstone quota set`)"
            }
            Self::Fenced => {
                "this mount did not answer for too long, others went on, and what was written here meanwhile is lost"
            }
            Self::CrossesTrees => {
                "that would leave or enter a tree with a quota: copy it there, then remove it here"
            }
        }
    }
}

record! {
    /// A failure as it travels.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Failure {
        /// Kind.
        pub code: ErrorCode,
        /// Milliseconds to wait before another try; 0 unless `Busy`.
        pub retry_ms: u32,
        /// What it is about: a path, a name, a limit. Never a secret.
        pub subject: Text<255>,
    }
}

impl Failure {
    /// A failure about `subject`, cut to fit.
    #[must_use]
    pub fn new(code: ErrorCode, subject: &str) -> Self {
        Self { code, retry_ms: 0, subject: Text::truncated(subject) }
    }

    /// `Busy`, to be tried again after `retry_ms`.
    #[must_use]
    pub fn busy(retry_ms: u32) -> Self {
        Self { code: ErrorCode::Busy, retry_ms, subject: Text::default() }
    }
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if !self.subject.as_str().is_empty() {
            write!(f, "{}: ", self.subject)?;
        }
        f.write_str(self.code.message())
    }
}

impl core::error::Error for Failure {}

impl From<WireError> for Failure {
    /// What a client hears about a body that did not parse.
    fn from(error: WireError) -> Self {
        let code = match error {
            WireError::UnknownCode { what: "request" | "schema", .. } | WireError::Frame(_) => {
                ErrorCode::Version
            }
            WireError::Malformed("name" | "path" | "user name" | "group name" | "attribute name") => {
                ErrorCode::InvalidName
            }
            WireError::TooLong { .. } => ErrorCode::Limit,
            WireError::Short
            | WireError::Trailing(_)
            | WireError::Malformed(_)
            | WireError::UnknownCode { .. } => ErrorCode::Invalid,
        };
        Self { code, retry_ms: 0, subject: Text::truncated(&alloc::format!("{error}")) }
    }
}
