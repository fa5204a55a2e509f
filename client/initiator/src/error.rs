//! What can go wrong between here and a device, by what a caller can do about it.

use core::time::Duration;
use std::io;

use sealstone_channel::TlsError;
use sealstone_osd::capability::offset;
use sealstone_osd::cdb::pointer;
use sealstone_scsi::{AdditionalSense, SenseKey, Status};

use crate::ProofError;

/// Why a session could not be made, or a command not be carried to its status.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// No connection could be made.
    #[error("the target could not be reached: {0}")]
    Unreachable(io::ErrorKind),
    /// There is no TLS with who answers there, or he is not who he must be.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// TLS is demanded, and there is no telling whose certificate would be the right one.
    #[error("TLS is demanded (--device-tls required), but the device is not known by a certificate")]
    NoPin,
    /// Plain text is demanded for a device that is known by a certificate, and the way to it leaves this machine.
    #[error(
        "plain text is demanded (--device-tls off), but the device is known by a certificate and not on this machine"
    )]
    Plain,
    /// The target refused the login.
    #[error("the target refused the login (class {class}, detail {detail})")]
    LoginRefused {
        /// Status class (RFC 7143 §11.13.5).
        class: u8,
        /// Status detail.
        detail: u8,
    },
    /// The target did not prove who it is, or only claimed to have asked for our proof: somebody else may be in its place.
    #[error("the target did not authenticate")]
    TargetUnproven,
    /// There is no telling how to prove ourselves.
    #[error("no proof for the target: {0}")]
    Proof(#[from] ProofError),
    /// We are to conceal methods, and the device publishes no key for it.
    #[error("the device publishes no key of a method cipher: it runs without --method-cipher")]
    NoMethodCipher,
    /// The login took longer than configured.
    #[error("the login took longer than {0:?}")]
    LoginTimeout(Duration),
    /// The target broke the protocol.
    #[error("the target broke the iSCSI protocol: {0}")]
    Protocol(String),
    /// The connection is gone; commands that were under way may have been done or not.
    #[error("the nexus is lost")]
    NexusLost,
    /// The session was logged out.
    #[error("the session was closed")]
    Closed,
    /// The command had no status in time. Its nexus was given up.
    #[error("no status within {0:?}")]
    Timeout(Duration),
    /// The target rejected the command's PDU.
    #[error("the target rejected the command (reason {0:#04x})")]
    Rejected(u8),
    /// More bytes, or a longer CDB, than a session carries.
    #[error("{what} of {actual} bytes where {max} is the most")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Bytes given.
        actual: usize,
        /// Bytes allowed.
        max: usize,
    },
}

impl SessionError {
    /// Does one end not believe the other? RFC 7143 §11.13.5: 0201h and 0202h; or the certificate is another one.
    #[must_use]
    pub const fn is_denied(&self) -> bool {
        matches!(self, Self::LoginRefused { class: 2, detail: 1 | 2 } | Self::TargetUnproven | Self::Proof(_))
            || matches!(self, Self::NoPin | Self::Plain)
            || self.is_impostor()
    }

    /// Does who answers show another certificate than he must?
    #[must_use]
    pub const fn is_impostor(&self) -> bool {
        matches!(self, Self::Tls(error) if error.is_impostor())
    }
}

impl From<io::Error> for SessionError {
    fn from(error: io::Error) -> Self {
        Self::Unreachable(error.kind())
    }
}

/// Why an OSD command did not succeed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OsdError {
    /// The device does not accept the credential for this command: expired, revoked, for something else, or the
    /// device does not say why. A fresh credential may help.
    #[error("{}", denied(*.field))]
    AccessDenied {
        /// The CDB byte it objects to; only told to who proved a credential.
        field: Option<u16>,
    },
    /// No such object or partition.
    #[error("no such object")]
    NotFound,
    /// The object or partition to be made is there already.
    #[error("the object exists")]
    Exists,
    /// The partition or collection still holds objects.
    #[error("not empty")]
    NotEmpty,
    /// The device refuses a field of the command.
    #[error("the device refuses CDB byte {field}")]
    InvalidField {
        /// Which byte.
        field: u16,
    },
    /// The device refuses the parameter data, an attribute list for example.
    #[error("the device refuses the parameter data: {sense}")]
    InvalidParameter {
        /// How it says so.
        sense: AdditionalSense,
    },
    /// The device does not know the command.
    #[error("the device does not implement {0}")]
    NotImplemented(&'static str),
    /// The nonce was used before, even after a new one was tried.
    #[error("nonce not unique")]
    NonceReplayed,
    /// The device's clock is too far from this machine's, or from the metadata server's, to sign for it.
    #[error("the device's clock differs: {}; check the clocks of the device, the metadata server and this machine", skew(*.skew_ms))]
    ClockSkew {
        /// Device minus ours, milliseconds; `None` if the device did not prove what it said.
        skew_ms: Option<i64>,
    },
    /// The data the device received had another integrity check value than we sent.
    #[error("data was altered on its way to the device")]
    DataOutAltered,
    /// Status, sense or data of the answer does not carry the right integrity check value.
    #[error("the integrity check of the answer failed: {0}")]
    IntegrityFailure(&'static str),
    /// The key that made the credential is frozen, or its audit value is.
    #[error("the key of the credential is frozen")]
    KeyFrozen,
    /// Quota or space used up.
    #[error("no space left on the device, or over quota")]
    NoSpace,
    /// Fewer bytes are there than were asked for.
    #[error("the object ends after {} of the bytes asked for", .data.len())]
    ReadPastEnd {
        /// Those that are there.
        data: Vec<u8>,
    },
    /// The device stayed busy for as long as we were willing to wait.
    #[error("the device is busy")]
    Busy,
    /// The device is formatting, waits for its clock or starts.
    #[error("the device is not ready: {0}")]
    NotReady(AdditionalSense),
    /// The device cannot read what it stored.
    #[error("medium error: {sense}{}", place(*.offset))]
    Medium {
        /// How it says so.
        sense: AdditionalSense,
        /// The first byte of the object that it cannot read, where it says which one.
        offset: Option<u64>,
    },
    /// The device failed.
    #[error("the device failed: {key:?}, {sense}")]
    DeviceFailed {
        /// Sense key.
        key: SenseKey,
        /// Additional sense.
        sense: AdditionalSense,
    },
    /// The connection was lost; whether the command was done is unknown and it may not be repeated blindly.
    #[error("the connection was lost during {command}: its outcome is unknown")]
    OutcomeUnknown {
        /// The command's name.
        command: &'static str,
    },
    /// No session with the device, after as many tries as allowed.
    #[error("no session with the device: {0}")]
    Session(#[from] SessionError),
    /// A status or sense that this client has no use for.
    #[error("unexpected status {status:?}")]
    UnexpectedStatus {
        /// The status.
        status: Status,
    },
    /// The answer's parameter data cannot be read.
    #[error("malformed answer: {0}")]
    Malformed(&'static str),
    /// More bytes than one command carries.
    #[error("{what} of {actual} where {max} is the most")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Given.
        actual: usize,
        /// Allowed.
        max: usize,
    },
}

/// A refusal by the byte of the CDB that the device objects to.
fn denied(field: Option<u16>) -> String {
    let Some(field) = field else { return "access denied".to_owned() };
    match field.checked_sub(pointer::CAPABILITY) {
        Some(at) if at == offset::EXPIRATION => {
            format!("the credential has expired by the device's clock (CDB byte {field})")
        }
        _ => format!("access denied (CDB byte {field})"),
    }
}

fn skew(skew_ms: Option<i64>) -> String {
    match skew_ms {
        Some(ms) if ms >= 0 => format!("it is {ms} ms ahead of this machine's"),
        Some(ms) => format!("it is {} ms behind this machine's", ms.unsigned_abs()),
        None => "it refused the time of the command".to_owned(),
    }
}

fn place(offset: Option<u64>) -> String {
    offset.map(|offset| format!(", at byte {offset} of the object")).unwrap_or_default()
}

impl OsdError {
    /// Might a fresh credential help?
    #[must_use]
    pub const fn is_denied(&self) -> bool {
        matches!(self, Self::AccessDenied { .. } | Self::KeyFrozen)
    }

    /// Is it about clocks, and passes once they agree?
    #[must_use]
    pub fn is_about_time(&self) -> bool {
        match self {
            Self::ClockSkew { .. } | Self::NotReady(_) => true,
            Self::AccessDenied { field: Some(field) } => {
                field.checked_sub(pointer::CAPABILITY) == Some(offset::EXPIRATION)
            }
            _ => false,
        }
    }

    /// Did one end not believe the other at the login? That says nothing about keys and credentials.
    #[must_use]
    pub const fn is_not_admitted(&self) -> bool {
        matches!(self, Self::Session(error) if error.is_denied())
    }
}
