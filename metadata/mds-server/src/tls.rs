//! The server's certificate, and the binding of a login to its channel.
//!
//! Truth: RFC 8446; RFC 9266 (exporter); docs/design/security.md 1.3, 2.4.

use core::fmt;
use core::time::Duration;

use sealstone_channel::{IdentityError, Pin, TlsIdentity, TlsServer};

/// Application protocol (ALPN) of both ends.
pub const ALPN: &[u8] = b"osd-mds/1";
/// Label of the exporter that binds a login to its channel (RFC 9266 §2).
const EXPORTER_LABEL: &[u8] = b"EXPORTER-Channel-Binding";
/// Name in the certificate, which clients that pin the authority check.
pub(crate) const SUBJECT: &str = "mds.sealstone.invalid";
/// Lifetime of the certificate for clients that pin the authority; clients that pin the certificate
/// ignore its dates.
pub(crate) const CERTIFICATE_LIFE: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// SHA-256 of a certificate in DER, which clients pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateFingerprint(pub [u8; 32]);

impl CertificateFingerprint {
    pub(crate) fn of(certificate: &[u8]) -> Self {
        Self(Pin::certificate(certificate).hash)
    }
}

impl fmt::Display for CertificateFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Returns the TLS configuration of the listener.
pub(crate) fn server(identity: &TlsIdentity) -> Result<TlsServer, IdentityError> {
    TlsServer::new(identity, ALPN, EXPORTER_LABEL)
}
