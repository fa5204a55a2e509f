//! TLS server side: the handshake with a client, which has no certificate.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::{CipherSuite, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::{ChannelSecret, EXPORT_LEN, IdentityError, TlsError, TlsIdentity, provider};

/// Maximum ciphertext buffered in one connection until the socket takes it, in bytes.
const WAITING_MAX: usize = 64 * 1024;

/// Accepts TLS handshakes.
#[derive(Clone)]
pub struct TlsServer {
    config: Arc<ServerConfig>,
    label: &'static [u8],
}

/// A TLS stream and its channel properties.
pub struct AcceptedStream<S> {
    /// The decrypted stream.
    pub stream: TlsStream<S>,
    /// The exported value, which both ends of this channel have, and no other channel.
    pub export: [u8; EXPORT_LEN],
    /// The secret for a protection inside the channel.
    pub secret: ChannelSecret,
    /// The cipher suite.
    pub suite: CipherSuite,
}

impl TlsServer {
    /// Creates a server for TLS 1.3 only, without client certificates, resumption or early data:
    /// each connection has its own keys.
    ///
    /// # Errors
    /// [`IdentityError`] if certificate and key do not match.
    pub fn new(identity: &TlsIdentity, protocol: &[u8], label: &'static [u8]) -> Result<Self, IdentityError> {
        if identity.chain.is_empty() {
            return Err(IdentityError::Empty);
        }
        let chain = identity.chain.iter().cloned().map(CertificateDer::from).collect();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(identity.key.to_vec()));
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(IdentityError::Unfit)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(IdentityError::Unfit)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Ok(Self { config: Arc::new(config), label })
    }

    /// Performs the handshake. The caller limits the time.
    ///
    /// # Errors
    /// [`TlsError`]; the stream is then closed, after an alert with no more detail than TLS
    /// requires.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<AcceptedStream<S>, TlsError> {
        let protocol = self.protocol();
        let acceptor = TlsAcceptor::from(Arc::clone(&self.config));
        let accept = acceptor.accept_with(stream, |session| session.set_buffer_limit(Some(WAITING_MAX)));
        let stream = accept.await.map_err(|error| TlsError::of(&error, protocol))?;
        let (_, session) = stream.get_ref();
        // A client without ALPN passes the handshake, and might mean any protocol.
        if session.alpn_protocol() != Some(protocol) {
            return Err(TlsError::OtherProtocol(protocol.to_vec()));
        }
        let suite = session
            .negotiated_cipher_suite()
            .ok_or_else(|| TlsError::Handshake("no cipher suite".to_owned()))?
            .suite();
        let export = session
            .export_keying_material([0; EXPORT_LEN], self.label, None)
            .map_err(|error| TlsError::Handshake(error.to_string()))?;
        let secret = ChannelSecret::of(session)?;
        Ok(AcceptedStream { stream, export, secret, suite })
    }

    fn protocol(&self) -> &[u8] {
        self.config.alpn_protocols.first().map_or(&[], Vec::as_slice)
    }
}

impl core::fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}
