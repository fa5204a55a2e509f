//! TLS client side: the handshake with a peer whose certificate matches a pin.
//!
//! Clients of devices and of the metadata server use it, and both daemons for their own
//! connections.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::{EXPORT_LEN, Pin, PinKind, TlsError, provider};

/// Performs the TLS handshake over `stream` with a peer whose certificate matches `pin`; below an
/// authority the certificate must be for `name`. Both ends must name `protocol`. The caller limits
/// the time.
///
/// # Errors
/// [`TlsError`]: nothing but the handshake has been sent then.
pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    pin: Pin,
    name: &str,
    protocol: &[u8],
    label: &[u8],
) -> Result<(TlsStream<S>, [u8; EXPORT_LEN]), TlsError> {
    let failed = |error: rustls::Error| TlsError::Handshake(error.to_string());
    let server = ServerName::try_from(name.to_owned())
        .map_err(|_| TlsError::Handshake(format!("{name} is no name of a certificate")))?;
    let connector = TlsConnector::from(Arc::new(config(pin, protocol).map_err(failed)?));
    let stream = connector.connect(server, stream).await.map_err(|error| TlsError::of(&error, protocol))?;
    let (_, session) = stream.get_ref();
    // A server without ALPN would pass: its certificate may serve for another protocol.
    if session.alpn_protocol() != Some(protocol) {
        return Err(TlsError::OtherProtocol(protocol.to_vec()));
    }
    let export = session.export_keying_material([0; EXPORT_LEN], label, None).map_err(failed)?;
    Ok((stream, export))
}

fn config(pin: Pin, protocol: &[u8]) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(provider());
    let verifier = Arc::new(PinVerifier { pin, provider: Arc::clone(&provider) });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Trusts one certificate, whatever its names and dates, or those of one authority for one name.
#[derive(Debug)]
struct PinVerifier {
    pin: Pin,
    provider: Arc<CryptoProvider>,
}

impl PinVerifier {
    fn by_authority(
        &self,
        shown: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), TlsError> {
        let refused = |why: String| TlsError::NotByAuthority { name: name.to_str().into_owned(), why };
        let certificate_error = |error: rustls::Error| refused(error.to_string());
        let Some(authority) = others.iter().find(|der| Pin::authority(der) == self.pin) else {
            return Err(refused("it does not come with that authority's certificate".to_owned()));
        };
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned()).map_err(certificate_error)?;
        let shown = ParsedCertificate::try_from(shown).map_err(certificate_error)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&shown, &roots, &[], now, algorithms)
            .map_err(certificate_error)?;
        verify_server_name(&shown, name).map_err(certificate_error)
    }
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found = Pin::certificate(shown);
        match self.pin.kind {
            PinKind::Certificate if found == self.pin => {}
            PinKind::Certificate => {
                return Err(TlsError::WrongCertificate { pinned: self.pin, found }.refuse());
            }
            PinKind::Authority => self.by_authority(shown, others, name, now).map_err(TlsError::refuse)?,
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl From<io::Error> for TlsError {
    fn from(error: io::Error) -> Self {
        Self::of(&error, &[])
    }
}
