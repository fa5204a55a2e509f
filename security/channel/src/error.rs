//! Why a handshake came to nothing.

use std::io;
use std::sync::Arc;

use rustls::{CertificateError, OtherError};

use crate::Pin;

/// Why there is no channel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The other end shows another certificate than the pinned one: it is another one, or somebody is in between.
    #[error("the other end shows the certificate {found}, pinned is {pinned}")]
    WrongCertificate {
        /// What the pin says.
        pinned: Pin,
        /// What came.
        found: Pin,
    },
    /// The pinned authority did not sign the certificate for this name, or not for today.
    #[error("the other end's certificate is not one of the pinned authority for {name}: {why}")]
    NotByAuthority {
        /// The name that the other end must have.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The other end does not speak TLS.
    #[error("the other end does not speak TLS")]
    NoTls,
    /// The other end speaks TLS, but not for this protocol.
    #[error("the other end does not speak {} inside TLS", String::from_utf8_lossy(.0))]
    OtherProtocol(Vec<u8>),
    /// The connection ended within the handshake.
    #[error("the other end closed the connection during the TLS handshake")]
    Closed,
    /// Anything else that TLS does not allow.
    #[error("TLS: {0}")]
    Handshake(String),
    /// The stream broke.
    #[error("{0}")]
    Stream(io::ErrorKind),
}

impl TlsError {
    /// Is the other end not who it must be? Trying again cannot help.
    #[must_use]
    pub const fn is_impostor(&self) -> bool {
        matches!(self, Self::WrongCertificate { .. } | Self::NotByAuthority { .. })
    }

    /// A short name for counters and audit records.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::WrongCertificate { .. } | Self::NotByAuthority { .. } => "certificate",
            Self::NoTls => "no-tls",
            Self::OtherProtocol(_) => "protocol",
            Self::Closed => "closed",
            Self::Handshake(_) => "handshake",
            Self::Stream(_) => "stream",
        }
    }

    /// What `rustls` said through a stream.
    pub(crate) fn of(error: &io::Error, protocol: &[u8]) -> Self {
        use rustls::Error as E;
        let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<E>()) else {
            return match error.kind() {
                io::ErrorKind::UnexpectedEof => Self::Closed,
                kind => Self::Stream(kind),
            };
        };
        match tls {
            E::InvalidCertificate(CertificateError::Other(OtherError(inner))) => match inner.downcast_ref() {
                Some(own) => Self::clone(own),
                None => Self::Handshake(tls.to_string()),
            },
            E::InvalidMessage(_) => Self::NoTls,
            E::NoApplicationProtocol | E::AlertReceived(rustls::AlertDescription::NoApplicationProtocol) => {
                Self::OtherProtocol(protocol.to_vec())
            }
            _ => Self::Handshake(tls.to_string()),
        }
    }

    /// As a verifier must say it.
    pub(crate) fn refuse(self) -> rustls::Error {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(self))))
    }
}
