//! TLS 1.3 to the MDS, known by the pin of its certificate or of its authority's.
//!
//! Does: the handshake, the channel binding (RFC 9266). Does not: log in; `login` does.
//! Contract: a stream comes back only if the peer proved that it holds the key of the pinned certificate.
//! Truth: security.md §2.4; RFC 8446; RFC 9266.

use sealstone_channel::TlsError;
pub use sealstone_channel::{Pin as Fingerprint, PinError as FingerprintError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::client::TlsStream;

/// The application protocol that both ends of an MDS connection name (security.md §1.3).
pub const ALPN: &[u8] = b"osd-mds/1";
/// The label of the exporter that binds a login to its TLS channel (RFC 9266 §2).
const EXPORTER_LABEL: &[u8] = b"EXPORTER-Channel-Binding";
/// The server's name in a certificate that an authority signed.
const SERVER_NAME: &str = "mds.sealstone.invalid";

/// What binds a login to one channel: nothing that a man in the middle can make equal on both of his.
pub type ChannelBinding = [u8; 32];

/// Shakes hands over `stream`; the server must hold the certificate that `pin` names.
///
/// # Errors
/// With [`TlsError`] inside: the peer's certificate is another one, it cannot do TLS 1.3, or the stream failed.
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

/// Is the other end not the one that was pinned?
pub(crate) fn is_impostor(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    inner.is_some_and(TlsError::is_impostor)
}
