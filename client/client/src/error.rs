//! What can go wrong, by what a caller can do about it.

use std::io;

use sealstone_initiator::OsdError;
use sealstone_mds_protocol::{DeviceId, ErrorCode, Failure, WireError};
use sealstone_osd::ObjectId;

/// Why a client operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The metadata server said no; its code says why.
    #[error("{0}")]
    Refused(#[source] Failure),
    /// A device failed or refused.
    #[error("device {name}: {error}")]
    Device {
        /// Which.
        device: DeviceId,
        /// Its name.
        name: String,
        /// How.
        #[source]
        error: OsdError,
    },
    /// A device cannot read what it stored: its medium gives other bytes, or none.
    #[error("object {object} on device {name} is damaged: {error}")]
    Damaged {
        /// Which device.
        device: DeviceId,
        /// Its name.
        name: String,
        /// Which object of the file.
        object: ObjectId,
        /// What the device says.
        #[source]
        error: OsdError,
    },
    /// A device restarted in the middle of a put, and again each time that it was sent anew what it may have lost.
    #[error("device {0} restarts repeatedly; nothing was stored")]
    Restarted(String),
    /// A device restarted while bytes were written in place, and may have lost some: write the range again.
    #[error("device {0} restarted while it was written to: write the range again")]
    RestartedMeanwhile(String),
    /// Bytes that were written before could not be stored; why, the next sync or close of their file tells.
    #[error(
        "bytes that were written before could not be stored: the next sync or close of their file says why"
    )]
    NotStored,
    /// Names that were changed here could not be told to the metadata server.
    #[error("the metadata server could not be told of what was done to names")]
    NamesNotTold,
    /// A capability file does not allow it.
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
    /// The connection to the metadata server broke and could not be made again. The outcome of a request that
    /// changes something is unknown.
    #[error("no connection to the metadata server")]
    Connection(#[source] io::Error),
    /// The other end does not hold the pinned certificate: another server, or somebody in between.
    #[error("the server's certificate is not the pinned one")]
    WrongCertificate(#[source] io::Error),
    /// A connection broke while a request that changes something was under way; whether it was done is unknown.
    #[error("the connection broke during {request}: its outcome is unknown")]
    OutcomeUnknown {
        /// The request's name.
        request: &'static str,
    },
    /// A session of the paper's profile cannot ask for this.
    #[error("the paper's profile has no way to ask for this: log in with the modern one")]
    NotInPaperProfile,
    /// The session is over: log in again.
    #[error("the session is over; log in again")]
    SessionOver,
    /// Wrong name or password.
    #[error("wrong user name or password")]
    LoginRefused,
    /// What was to be proven before a change is not the password or key in use.
    #[error("the old password or key is another one")]
    InUseRefused,
    /// The code is not the account's, was used, or has expired.
    #[error("wrong, used or expired enrolment code")]
    EnrolmentRefused,
    /// A file is no service's key.
    #[error("not a key file: {0}")]
    KeyFile(&'static str),
    /// The paper's login: the server computes another cookie than we do.
    #[error(
        "the server computes another cookie: a wrong passphrase, no such user in the paper's profile, or addresses that \
         are translated on the way"
    )]
    CookieRefused,
    /// Too many attempts; wait.
    #[error("the metadata server wants {retry_ms} ms of patience before the next try")]
    LoginBusy {
        /// How long, milliseconds.
        retry_ms: u32,
    },
    /// The other end could not prove that it is the metadata server, or speaks something else.
    #[error("login failed: {0}")]
    LoginFailed(&'static str),
    /// The metadata server sent bytes that make no sense here.
    #[error("the metadata server broke the protocol: {0}")]
    Protocol(&'static str),
    /// The caller gave a path or a user name that none can have.
    #[error("not a name that is allowed")]
    Name(#[source] WireError),
    /// A message could not be read or written.
    #[error("malformed message")]
    Message(#[from] WireError),
    /// The file to be stored could not be read.
    #[error("reading the source failed")]
    Source(#[source] io::Error),
    /// The destination could not be written.
    #[error("writing to the destination failed")]
    Sink(#[source] io::Error),
    /// The source ended at another length than announced.
    #[error("the source has {actual} bytes, {announced} were announced")]
    SourceLength {
        /// What was announced.
        announced: u64,
        /// What came.
        actual: u64,
    },
    /// The source is another one than it was when it was opened.
    #[error("the file changed while it was read")]
    SourceChanged,
    /// An object holds fewer bytes than the file's size demands.
    #[error("data of the file is missing at byte {offset}")]
    DataMissing {
        /// First byte of the file that is missing, or near it.
        offset: u64,
    },
    /// What was read has another checksum than the writer recorded.
    #[error("the data read does not match the checksum recorded when it was written")]
    ChecksumMismatch,
    /// A file of more bytes than a layout can hold.
    #[error("a file cannot have more than {max} bytes")]
    TooLarge {
        /// The limit.
        max: u64,
    },
    /// The file with session or key material cannot be used.
    #[error("session file: {0}")]
    SessionFile(&'static str),
    /// The session file could not be read or written.
    #[error("session file")]
    SessionFileIo(#[source] io::Error),
}

impl ClientError {
    /// A server answered another question than the one that it was asked.
    pub(crate) const OTHER_ANSWER: Self = Self::Protocol("an answer to another request");

    /// Exit code of the command line: 1 failed, 2 usage, 3 access denied, 4 not found.
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

    /// Does the metadata server say that there is no such thing?
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
