//! Failure of a request: a code that programs can act on, and its subject.
//!
//! Truth: docs/standards/mds/wire.md §7.

use crate::wire::{Text, WireError, code, record};

code! {
    /// A kind of failure.
    pub enum ErrorCode: u16 as "error" {
        /// No such path, user, device or create.
        NotFound = 1,
        /// The name exists already.
        Exists = 2,
        /// The directory has entries.
        NotEmpty = 3,
        /// The operation needs a directory.
        NotADirectory = 4,
        /// The operation needs a file.
        IsADirectory = 5,
        /// Not allowed.
        Denied = 6,
        /// No device has free space.
        NoSpace = 7,
        /// A name or path is not allowed.
        InvalidName = 8,
        /// The open file was replaced or removed, or the create expired.
        Stale = 9,
        /// Repeat after `retry_ms`.
        Busy = 10,
        /// No common protocol version, or an unknown operation.
        Version = 11,
        /// A field has an invalid value.
        Invalid = 12,
        /// A directory would be moved into itself.
        Cycle = 13,
        /// Log in first.
        NotLoggedIn = 14,
        /// A limit of the server was reached (size, depth, count).
        Limit = 15,
        /// The server failed; its log says why.
        Internal = 16,
        /// Only the owner or an administrator may do that.
        NotPermitted = 17,
        /// Too many symbolic links in the path.
        Loop = 18,
        /// The file has the maximum number of hard links.
        TooManyLinks = 19,
        /// The extended attribute does not exist.
        NoAttribute = 20,
        /// This server, or this kind of node, does not support the operation.
        NotSupported = 21,
        /// The file would exceed the maximum size.
        FileTooLarge = 22,
        /// Another owner has a conflicting lock.
        Locked = 23,
        /// The lock would cause a deadlock.
        Deadlock = 24,
        /// A quota is exceeded.
        Quota = 25,
        /// The operation would cross the boundary of a quota tree.
        CrossesTrees = 26,
        /// The client is fenced: it did not return a write lease or lock in time, and its later
        /// writes are refused.
        Fenced = 27,
    }
}

impl ErrorCode {
    /// Returns the exit code of the command line: 1 failed, 2 usage, 3 access denied, 4 not found.
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

    /// Whether the request was refused for lack of permission.
    #[must_use]
    pub const fn is_denial(self) -> bool {
        matches!(self, Self::Denied | Self::NotPermitted)
    }

    /// Returns the message for users.
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
            Self::Stale => "the file was replaced or removed by another client",
            Self::Busy => "the server is busy",
            Self::Version => "client and server have no protocol version in common",
            Self::Invalid => "invalid value in the request",
            Self::Cycle => "a directory cannot be moved into itself",
            Self::NotLoggedIn => "not logged in",
            Self::Limit => "a limit of the server was reached",
            Self::Internal => "the server failed",
            Self::NotPermitted => "access denied: only its owner may do that",
            Self::Loop => "too many symbolic links",
            Self::TooManyLinks => "the file has too many hard links",
            Self::NoAttribute => "no such attribute",
            Self::NotSupported => "not supported",
            Self::FileTooLarge => "file too large",
            Self::Locked => "locked by another client or program",
            Self::Deadlock => "deadlock: the lock would never be granted",
            Self::Quota => {
                "quota exceeded: remove files, or have an administrator raise it (`sealstone quota set`)"
            }
            Self::Fenced => {
                "fenced: this client did not respond in time; its unsaved writes to the file are lost"
            }
            Self::CrossesTrees => {
                "cannot cross the boundary of a quota tree: copy the file, then remove the original"
            }
        }
    }
}

record! {
    /// A failure as sent in a response.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Failure {
        pub code: ErrorCode,
        /// Delay before the next attempt, milliseconds; 0 unless `Busy`.
        pub retry_ms: u32,
        /// Subject: a path, a name, a limit. Never a secret.
        pub subject: Text<255>,
    }
}

impl Failure {
    /// Returns a failure about `subject`, truncated to fit.
    #[must_use]
    pub fn new(code: ErrorCode, subject: &str) -> Self {
        Self { code, retry_ms: 0, subject: Text::truncated(subject) }
    }

    /// Returns `Busy`, to be repeated after `retry_ms`.
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
    /// Maps a decoding error of a request to the failure in its response.
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
