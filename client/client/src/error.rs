//! Errors of the client, one variant for each thing that a caller can do about it.

use std::io;

use sealstone_initiator::OsdError;
use sealstone_mds_protocol::{DeviceId, ErrorCode, Failure, WireError};
use sealstone_osd::ObjectId;

/// Why a client operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The metadata server refused the request; the code says why.
    #[error("{0}")]
    Refused(#[source] Failure),
    /// A device failed or refused.
    #[error("device {name}: {error}")]
    Device {
        /// The device.
        device: DeviceId,
        /// Its name.
        name: String,
        /// The error.
        #[source]
        error: OsdError,
    },
    /// A device cannot read back what it stored.
    #[error("object {object} on device {name} is damaged: {error}")]
    Damaged {
        /// The device.
        device: DeviceId,
        /// Its name.
        name: String,
        /// The object of the file.
        object: ObjectId,
        /// The error of the device.
        #[source]
        error: OsdError,
    },
    /// A device restarted during a put, and again each time that the possibly lost bytes were sent
    /// again.
    #[error("device {0} restarts repeatedly; nothing was stored")]
    Restarted(String),
    /// A device restarted while bytes were written in place and may have lost some: write the range
    /// again.
    #[error("device {0} restarted while it was written to: write the range again")]
    RestartedMeanwhile(String),
    /// Earlier writes could not be stored; the next sync or close of the file reports the cause.
    #[error("earlier writes of the file could not be stored; its next sync or close reports the cause")]
    NotStored,
    /// Local directory changes could not be written to the metadata server.
    #[error("directory changes could not be written to the metadata server")]
    NameChangesUnsent,
    /// The capability file does not permit the operation.
    #[error("the capability file does not allow it: {0}")]
    NotDelegated(&'static str),
    /// A capability file cannot be used.
    #[error("capability file: {0}")]
    CapabilityFile(&'static str),
    /// The capability file could not be read or written.
    #[error("capability file")]
    CapabilityFileIo(#[source] io::Error),
    /// The metadata server names a device that it does not list.
    #[error("the metadata server does not list device number {}", .0.0)]
    UnknownDevice(DeviceId),
    /// The connection to the metadata server broke and could not be restored. The outcome of a
    /// change that was in flight is unknown.
    #[error("no connection to the metadata server")]
    Connection(#[source] io::Error),
    /// The server does not have the pinned certificate: it is a different server, or a man in the
    /// middle.
    #[error("the server's certificate is not the pinned one")]
    WrongCertificate(#[source] io::Error),
    /// The connection broke during a change; its outcome is unknown.
    #[error("the connection broke during {request}: its outcome is unknown")]
    OutcomeUnknown {
        /// The name of the request.
        request: &'static str,
    },
    /// The request does not exist in the paper's profile.
    #[error("the paper's login profile does not support this request; log in with the modern profile")]
    NotInPaperProfile,
    /// The session has ended: log in again.
    #[error("the session has ended; log in again")]
    SessionOver,
    /// Wrong name or password.
    #[error("wrong user name or password")]
    LoginRefused,
    /// The old password or key is wrong.
    #[error("wrong old password or key")]
    InUseRefused,
    /// The enrolment code is wrong, was used, or has expired.
    #[error("wrong, used or expired enrolment code")]
    EnrolmentRefused,
    /// The file is not a key file of a service.
    #[error("not a key file: {0}")]
    KeyFile(&'static str),
    /// Login of the paper's profile: the server computed a different cookie.
    #[error(
        "the server computed a different cookie: wrong passphrase, no such user in the paper's profile, or addresses \
         translated on the way"
    )]
    CookieRefused,
    /// Too many login attempts: wait.
    #[error("too many login attempts; try again in {} s", .retry_ms.div_ceil(1000))]
    LoginBusy {
        /// Time to wait, in milliseconds.
        retry_ms: u32,
    },
    /// The server could not prove its identity, or login failed otherwise.
    #[error("login failed: {0}")]
    LoginFailed(&'static str),
    /// The metadata server sent an unexpected or invalid message.
    #[error("the metadata server broke the protocol: {0}")]
    Protocol(&'static str),
    /// The path or user name is not valid.
    #[error("invalid name")]
    Name(#[source] WireError),
    /// A message could not be encoded or decoded.
    #[error("malformed message")]
    Message(#[from] WireError),
    /// The source of a put could not be read.
    #[error("reading the source failed")]
    Source(#[source] io::Error),
    /// The destination could not be written.
    #[error("writing to the destination failed")]
    Sink(#[source] io::Error),
    /// The source has a different length than announced.
    #[error("the source has {actual} bytes, {announced} were announced")]
    SourceLength {
        /// Announced bytes.
        announced: u64,
        /// Bytes that were read.
        actual: u64,
    },
    /// The source changed after it was opened.
    #[error("the file changed while it was read")]
    SourceChanged,
    /// An object has fewer bytes than the file's size requires.
    #[error("data of the file is missing at byte {offset}")]
    DataMissing {
        /// First missing byte of the file, or near it.
        offset: u64,
    },
    /// The bytes read do not match the checksum that the writer recorded.
    #[error("the data read does not match the checksum recorded when it was written")]
    ChecksumMismatch,
    /// The file would have more bytes than a layout permits.
    #[error("a file cannot have more than {max} bytes")]
    TooLarge {
        /// The limit.
        max: u64,
    },
    /// The session file cannot be used.
    #[error("session file: {0}")]
    SessionFile(&'static str),
    /// The session file could not be read or written.
    #[error("session file")]
    SessionFileIo(#[source] io::Error),
}

impl ClientError {
    /// The server sent a response of the wrong type.
    pub(crate) const OTHER_ANSWER: Self = Self::Protocol("unexpected response");

    /// Returns the exit code of the command line: 1 failed, 2 usage, 3 access denied, 4 not found.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(failure) => failure.code.exit_code(),
            Self::Name(_) => 2,
            Self::Device { error, .. } if error.is_denied() || error.is_not_admitted() => 3,
            Self::NotDelegated(_) => 3,
            Self::CapabilityFileIo(error) if matches!(error.kind(), io::ErrorKind::NotFound) => 4,
            Self::SessionOver
            | Self::LoginRefused
            | Self::CookieRefused
            | Self::InUseRefused
            | Self::EnrolmentRefused
            | Self::WrongCertificate(_) => 3,
            _ => 1,
        }
    }

    /// Whether the metadata server refused with `NotFound`.
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(failure) if matches!(failure.code, ErrorCode::NotFound))
    }
}

impl From<Failure> for ClientError {
    fn from(failure: Failure) -> Self {
        if failure.code == ErrorCode::NotLoggedIn { Self::SessionOver } else { Self::Refused(failure) }
    }
}
