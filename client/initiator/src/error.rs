//! Errors between this client and a device, one variant for each thing that a caller can do about
//! it.

use core::time::Duration;
use std::io;

use sealstone_channel::TlsError;
use sealstone_osd::capability::offset;
use sealstone_osd::cdb::pointer;
use sealstone_scsi::{AdditionalSense, SenseKey, Status};

use crate::ProofError;

/// Why a session failed, or a command got no status.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// No connection could be established.
    #[error("the target could not be reached: {0}")]
    Unreachable(io::ErrorKind),
    /// The TLS handshake failed, or the peer does not have the expected certificate.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// TLS is required, but no pin of the device is known.
    #[error("--device-tls required: the device has no pinned certificate")]
    NoPin,
    /// TLS is off for a remote device that has a pin.
    #[error("--device-tls off: not possible for a device with a pinned certificate on another machine")]
    Plain,
    /// The target refused the login.
    #[error("the target refused the login (class {class}, detail {detail})")]
    LoginRefused {
        /// Status class (RFC 7143 §11.13.5).
        class: u8,
        /// Status detail.
        detail: u8,
    },
    /// The target failed mutual authentication: it may be an impostor.
    #[error("the target did not authenticate")]
    TargetUnproven,
    /// The CHAP account for the target could not be determined.
    #[error("no proof for the target: {0}")]
    Proof(#[from] ProofError),
    /// Methods have to be concealed, but the device publishes no key for that.
    #[error("the device publishes no key of a method cipher: start it with --method-cipher")]
    NoMethodCipher,
    /// The login took longer than configured.
    #[error("the login took longer than {0:?}")]
    LoginTimeout(Duration),
    /// The target violated the protocol.
    #[error("the target broke the iSCSI protocol: {0}")]
    Protocol(String),
    /// The connection was lost; commands in flight may have been executed.
    #[error("the nexus is lost")]
    NexusLost,
    /// The session was logged out.
    #[error("the session was closed")]
    Closed,
    /// The command got no status in time, and its connection was closed.
    #[error("no status within {0:?}")]
    Timeout(Duration),
    /// The target rejected the command's PDU.
    #[error("the target rejected the command (reason {0:#04x})")]
    Rejected(u8),
    /// The data or the CDB exceeds the limit of a session.
    #[error("{what} of {actual} bytes where {max} is the most")]
    TooLong {
        /// The field that is too long.
        what: &'static str,
        /// Its bytes.
        actual: usize,
        /// The limit.
        max: usize,
    },
}

impl SessionError {
    /// Whether authentication failed at either end: RFC 7143 §11.13.5, 0201h and 0202h, or a wrong
    /// certificate.
    #[must_use]
    pub const fn is_denied(&self) -> bool {
        matches!(self, Self::LoginRefused { class: 2, detail: 1 | 2 } | Self::TargetUnproven | Self::Proof(_))
            || matches!(self, Self::NoPin | Self::Plain)
            || self.is_impostor()
    }

    /// Whether a further attempt to log in is useless.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::LoginRefused { class: 2, .. } | Self::NoMethodCipher)
            || matches!(self, Self::Protocol(_) | Self::TooLong { .. })
            || matches!(self, Self::TargetUnproven | Self::Proof(_))
            || matches!(self, Self::NoPin | Self::Plain)
            || self.is_impostor()
    }

    /// Whether the peer has a certificate other than the expected one.
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

/// Why an OSD command failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OsdError {
    /// The device does not accept the credential for this command: it is expired, revoked, or for
    /// something else, or the device does not say. A fresh credential may help.
    #[error("{}", denied(*.field))]
    AccessDenied {
        /// The CDB byte that is refused; reported only if a credential was verified.
        field: Option<u16>,
    },
    /// The object or partition does not exist.
    #[error("no such object")]
    NotFound,
    /// The object or partition to be created exists.
    #[error("the object exists")]
    Exists,
    /// The partition or collection has objects.
    #[error("not empty")]
    NotEmpty,
    /// The device refuses a field of the command.
    #[error("the device refuses CDB byte {field}")]
    InvalidField {
        /// The CDB byte.
        field: u16,
    },
    /// The device refuses the parameter data, such as an attribute list.
    #[error("the device refuses the parameter data: {sense}")]
    InvalidParameter {
        /// Additional sense.
        sense: AdditionalSense,
    },
    /// The device does not implement the command.
    #[error("the device does not implement {0}")]
    NotImplemented(&'static str),
    /// The descriptor of the ASF paper was requested, and `OsdOptions::paper_functions` is not set.
    #[error("requests with descriptor 0003h are off for this device: set paper_functions of its options")]
    PaperFunctionsOff,
    /// The policy of the partition excludes the function.
    #[error("the policy of the partition does not permit the function")]
    FunctionExcluded,
    /// The code of a function has another digest than the request names.
    #[error("the code of the function differs from the expected digest")]
    CodeMismatch,
    /// The device has no support for the API version of a function, or its description names
    /// another engine than the request.
    #[error("the device does not support the API version or the engine of the function")]
    FunctionUnsupported,
    /// The device does not know a field of a request for a function: it is older than the client.
    #[error(
        "the device does not know byte {at} of the request, which has an option of a newer version; \
         update the device"
    )]
    FunctionRequestUnknown {
        /// Offset in descriptor FF01h.
        at: u16,
    },
    /// The device does not know the job of a function: it expired, or belongs to another caller.
    #[error("no such job")]
    UnknownJob,
    /// The nonce was used before, and so was a new one.
    #[error("nonce not unique")]
    NonceReplayed,
    /// The device's clock differs too much from this machine's or the metadata server's.
    #[error("the device's clock differs: {}; check the clocks of the device, the metadata server and this machine", skew(*.skew_ms))]
    ClockSkew {
        /// Device minus local time, in milliseconds; `None` if the device's time was not
        /// authenticated.
        skew_ms: Option<i64>,
    },
    /// The device received data with a wrong check value.
    #[error("data was altered on its way to the device")]
    DataOutAltered,
    /// Status, sense or data of the answer has no valid check value.
    #[error("the integrity check of the answer failed: {0}")]
    IntegrityFailure(&'static str),
    /// The key of the credential is frozen, or its audit value is.
    #[error("the key of the credential is frozen")]
    KeyFrozen,
    /// A quota or the space is used up.
    #[error("no space left on the device, or over quota")]
    NoSpace,
    /// The object has fewer bytes than requested.
    #[error("the object ends after {} of the requested bytes", .data.len())]
    ReadPastEnd {
        /// The existing bytes.
        data: Vec<u8>,
    },
    /// The device stayed busy through all retries.
    #[error("the device is busy")]
    Busy,
    /// The device is formatting, starting, or waits for its clock.
    #[error("the device is not ready: {0}")]
    NotReady(AdditionalSense),
    /// The device cannot read back what it stored.
    #[error("medium error: {sense}{}", place(*.offset))]
    Medium {
        /// Additional sense.
        sense: AdditionalSense,
        /// First unreadable byte of the object, if the device reports it.
        offset: Option<u64>,
    },
    /// The device failed.
    #[error("the device failed: {key}, {sense}")]
    DeviceFailed {
        /// Sense key.
        key: SenseKey,
        /// Additional sense.
        sense: AdditionalSense,
    },
    /// The connection was lost during a command that is not idempotent; its outcome is unknown.
    #[error("the connection was lost during {command}: its outcome is unknown")]
    OutcomeUnknown {
        /// The name of the command.
        command: &'static str,
    },
    /// No session could be established within the allowed tries.
    #[error("no session with the device: {0}")]
    Session(#[from] SessionError),
    /// A status that is not used in OSD.
    #[error("unexpected status {status}")]
    UnexpectedStatus {
        /// The status.
        status: Status,
    },
    /// The answer's parameter data is malformed.
    #[error("malformed answer: {0}")]
    Malformed(&'static str),
    /// The data exceeds the limit of one command.
    #[error("{what} of {actual} where {max} is the most")]
    TooLong {
        /// The field that is too long.
        what: &'static str,
        /// Its length.
        actual: usize,
        /// The limit.
        max: usize,
    },
}

/// Returns the message for a refusal, by the CDB byte that is refused.
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
    /// Whether a fresh credential may help.
    #[must_use]
    pub const fn is_denied(&self) -> bool {
        matches!(self, Self::AccessDenied { .. } | Self::KeyFrozen)
    }

    /// Whether it is caused by clocks that differ, and so is transient.
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

    /// Whether authentication failed at the login, which says nothing about keys and credentials.
    #[must_use]
    pub const fn is_not_admitted(&self) -> bool {
        matches!(self, Self::Session(error) if error.is_denied())
    }
}
