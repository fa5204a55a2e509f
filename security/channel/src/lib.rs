//! TLS 1.3 with pinned certificates, admission of connections, and sockets that are read into two
//! buffers at once.
//!
//! Does: creates and loads the identity of a device or server, performs handshakes at both ends,
//! exports the value that binds a login or a CAPKEY command to the channel, shares connection slots
//! fairly ([`Admission`]), receives into two buffers at once.
//! Does not: open sockets, store files.
//! Contract: [`connect`] returns a stream only if the peer holds the key of the certificate that
//! the pin identifies, and both ends named the same protocol; names and dates count only below an
//! authority.
//! Source of truth: RFC 8446; RFC 5705 and 8446 §7.5 (exporters); docs/design/security.md 1.3, 2.4;
//! docs/standards/iscsi.md, TLS.

mod admission;
mod connect;
mod error;
mod identity;
mod pin;
mod receive;
mod records;
mod secret;
mod serve;

pub use admission::{Admission, AdmissionLimits, AdmissionTicket, ConnectionOrigin, LoginStage, NoFreeSlot};
pub use connect::connect;
pub use error::TlsError;
pub use identity::{CertificateAuthority, IdentityError, TlsIdentity};
pub use pin::{Pin, PinError, PinKind};
pub use receive::{ByteStream, poll_receive};
pub use records::{FillRandom, RecordStream, StreamProtection, StreamRecords};
pub use rustls::CipherSuite;
pub use secret::ChannelSecret;
pub use serve::{AcceptedStream, TlsServer};

/// The application protocol of iSCSI inside TLS (ALPN).
pub const ALPN_ISCSI: &[u8] = b"osd-iscsi/1";
/// Label of the exporter whose value is the security token of a nexus (VPD page B1h). The context
/// is empty.
pub const TOKEN_LABEL: &[u8] = b"EXPORTER-sealstone-osd-security-token";
/// Label of the exporter whose value is the secret of a protection inside the channel. The context
/// is empty.
pub const PROTECTION_LABEL: &[u8] = b"EXPORTER-sealstone-block-protection";
/// Bytes of a value that is exported from a channel.
pub const EXPORT_LEN: usize = 32;
/// First byte of every TLS connection: a record with a handshake message. No iSCSI login begins
/// with it.
pub const FIRST_BYTE: u8 = 0x16;

/// Returns the name of a device in certificates: its OSD system id in hexadecimal digits.
#[must_use]
pub fn device_name(system_id: &[u8; 20]) -> String {
    let digits: String = system_id.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{digits}.osd.sealstone.invalid")
}

/// Returns the primitives of both ends. The hybrid key exchange comes first, so that a recording of
/// today cannot be decrypted later by a machine that breaks elliptic curves.
fn provider() -> rustls::crypto::CryptoProvider {
    use rustls::crypto::aws_lc_rs::{default_provider, kx_group};
    let mut provider = default_provider();
    provider.kx_groups = vec![kx_group::X25519MLKEM768, kx_group::X25519];
    provider
}
