//! Errors of TLS handshakes.

use std::io;
use std::sync::Arc;

use rustls::{CertificateError, OtherError};

use crate::Pin;

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The peer's certificate is not the pinned one: it is another server, or a man in the middle.
    #[error("wrong certificate: the peer presents {found}, pinned is {pinned}")]
    WrongCertificate {
        /// The configured pin.
        pinned: Pin,
        /// The pin of the received certificate.
        found: Pin,
    },
    /// The pinned authority did not sign the certificate for this name, or not for this date.
    #[error("the peer's certificate is not from the pinned authority for {name}: {why}")]
    NotByAuthority {
        /// The name that the peer must have.
        name: String,
        /// The reason.
        why: String,
    },
    /// The peer does not speak TLS.
    #[error("the peer does not speak TLS")]
    NoTls,
    /// The peer speaks TLS, but not for this protocol.
    #[error("the peer does not speak {} inside TLS", String::from_utf8_lossy(.0))]
    OtherProtocol(Vec<u8>),
    /// The connection ended during the handshake.
    #[error("the peer closed the connection during the TLS handshake")]
    Closed,
    /// Any other violation of TLS.
    #[error("TLS: {0}")]
    Handshake(String),
    /// The stream failed.
    #[error("{0}")]
    Stream(io::ErrorKind),
}

impl TlsError {
    /// Whether the peer is not the expected one. A retry cannot help.
    #[must_use]
    pub const fn is_impostor(&self) -> bool {
        matches!(self, Self::WrongCertificate { .. } | Self::NotByAuthority { .. })
    }

    /// Returns a short name for counters and audit records.
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

    /// Converts an error that `rustls` returned through a stream.
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

    /// Returns the error as a verifier must return it.
    pub(crate) fn refuse(self) -> rustls::Error {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(self))))
    }
}
