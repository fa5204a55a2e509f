//! The server's certificate, and what binds a login to its channel.
//!
//! Truth: RFC 8446; RFC 9266 (exporter); docs/design/security.md 1.3, 2.4.

use core::fmt;
use core::time::Duration;

use sealstone_channel::{Identity, IdentityError, Pin, Server};

/// The application protocol that both ends name.
pub const ALPN: &[u8] = b"osd-mds/1";
/// Label of the exporter that binds a login to its channel (RFC 9266 §2).
const EXPORTER_LABEL: &[u8] = b"EXPORTER-Channel-Binding";
/// Name in the certificate: who knows the server by its authority wants to see it.
pub(crate) const SUBJECT: &str = "mds.sealstone.invalid";
/// How long the server's certificate lasts for who knows it by its authority; whoever pins it looks at no date.
pub(crate) const CERTIFICATE_LIFE: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// SHA-256 of a certificate in DER: what a client pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    pub(crate) fn of(certificate: &[u8]) -> Self {
        Self(Pin::certificate(certificate).hash)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What the listener shakes hands with.
pub(crate) fn server(identity: &Identity) -> Result<Server, IdentityError> {
    Server::new(identity, ALPN, EXPORTER_LABEL)
}
