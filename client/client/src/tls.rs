//! TLS 1.3 to the MDS, authenticated by the pin of its certificate or of its authority's
//! certificate.
//!
//! Does: the handshake and the channel binding (RFC 9266).
//! Does not: log in; `login` does.
//! Contract: returns a stream only if the peer proved that it has the key of the pinned
//! certificate.
//! Truth: docs/design/security.md §2.4; RFC 8446; RFC 9266.

use sealstone_channel::TlsError;
pub use sealstone_channel::{Pin as Fingerprint, PinError as FingerprintError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::client::TlsStream;

/// The ALPN protocol name of MDS connections (docs/design/security.md §1.3).
pub const ALPN: &[u8] = b"osd-mds/1";
/// The exporter label that binds a login to its TLS channel (RFC 9266 §2).
const EXPORTER_LABEL: &[u8] = b"EXPORTER-Channel-Binding";
/// The server name in certificates that an authority signed.
const SERVER_NAME: &str = "mds.sealstone.invalid";

/// A value that binds a login to one TLS channel. The two channels of a man in the middle have
/// different values.
pub type ChannelBinding = [u8; 32];

/// Performs the handshake over `stream`; the server must have the certificate that `pin` names.
///
/// # Errors
/// With [`TlsError`] inside: the certificate is not the pinned one, the peer does not support TLS
/// 1.3, or the stream failed.
pub async fn connect<S>(stream: S, pin: Fingerprint) -> std::io::Result<(TlsStream<S>, ChannelBinding)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let connected = sealstone_channel::connect(stream, pin, SERVER_NAME, ALPN, EXPORTER_LABEL).await;
    connected.map_err(|error| match error {
        TlsError::Stream(kind) => kind.into(),
        error => std::io::Error::new(std::io::ErrorKind::InvalidData, error),
    })
}

/// Whether the peer does not have the pinned certificate.
pub(crate) fn is_impostor(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    inner.is_some_and(TlsError::is_impostor)
}
