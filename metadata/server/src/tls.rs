//! TLS 1.3, the server's certificate, and what binds a login to its channel.
//!
//! Truth: RFC 8446; RFC 9266 (exporter); docs/design/security.md 1.3, 2.4.

use core::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sealstone_login::ChannelBinding;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// The application protocol that both ends name.
pub const ALPN: &[u8] = b"osd-mds/1";
/// Label of the exporter that binds a login to its channel (RFC 9266 §2).
const EXPORTER_LABEL: &[u8] = b"EXPORTER-Channel-Binding";
/// Name in the certificate. Clients know the server by the certificate's hash, not by a name.
const SUBJECT: &str = "mds.sealstone.invalid";

/// SHA-256 of a certificate in DER: what a client pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    pub(crate) fn of(certificate: &[u8]) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A new key pair and its self-signed certificate, both DER.
pub(crate) fn new_identity() -> Result<(Vec<u8>, Zeroizing<Vec<u8>>), rcgen::Error> {
    let certified = rcgen::generate_simple_self_signed(vec![SUBJECT.to_owned()])?;
    Ok((certified.cert.der().to_vec(), Zeroizing::new(certified.signing_key.serialize_der())))
}

/// TLS 1.3 only, no client certificates, no resumption: each connection has its own keys and its own binding.
pub(crate) fn server_config(certificate: Vec<u8>, key: &[u8]) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.to_vec()));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(certificate)], key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(config)
}

/// The exporter of a finished handshake.
pub(crate) fn channel_binding(
    connection: &rustls::ServerConnection,
) -> Result<ChannelBinding, rustls::Error> {
    connection.export_keying_material([0; 32], EXPORTER_LABEL, None).map(ChannelBinding)
}
