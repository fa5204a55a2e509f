//! TLS 1.3 to the MDS, its certificate pinned by fingerprint.
//!
//! Does: the handshake, the channel binding (RFC 9266). Does not: log in; `login` does.
//! Contract: a stream comes back only if the peer proved that it holds the key of the pinned certificate.
//! Truth: security.md §2.4; RFC 8446; RFC 9266.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, SignatureScheme};

/// The application protocol that both ends of an MDS connection name (security.md §1.3).
pub const ALPN: &[u8] = b"osd-mds/1";
/// The label of the exporter that binds a login to its TLS channel (RFC 9266 §2).
const EXPORTER_LABEL: &[u8] = b"EXPORTER-Channel-Binding";
/// The name sent as SNI; the pin and not the name identifies the server.
const SERVER_NAME: &str = "mds.sealstone.invalid";

/// What binds a login to one channel: nothing that a man in the middle can make equal on both of his.
pub type ChannelBinding = [u8; 32];

/// SHA-256 of the MDS's certificate in DER.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

/// A text that is not 64 hexadecimal digits (colons allowed between bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint is 64 hexadecimal digits, with or without colons between the bytes")]
pub struct FingerprintError;

impl Fingerprint {
    /// Of a certificate in DER.
    #[must_use]
    pub fn of(certificate_der: &[u8]) -> Self {
        Self(Sha256::digest(certificate_der).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let mut digits = text.strip_prefix("sha256:").unwrap_or(text).chars().filter(|c| *c != ':');
        let mut bytes = [0u8; 32];
        let mut digit = || digits.next().and_then(|c| c.to_digit(16)).ok_or(FingerprintError);
        for byte in &mut bytes {
            let (high, low) = (digit()?, digit()?);
            *byte = u8::try_from(high << 4 | low).map_err(|_| FingerprintError)?;
        }
        if digits.next().is_some() {
            return Err(FingerprintError);
        }
        Ok(Self(bytes))
    }
}

/// Shakes hands over `stream`; the server must hold the certificate that `pin` names.
///
/// # Errors
/// The peer's certificate is another one, it cannot do TLS 1.3, or the stream failed.
pub async fn connect<S>(stream: S, pin: Fingerprint) -> std::io::Result<(TlsStream<S>, ChannelBinding)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let connector = TlsConnector::from(Arc::new(config(pin)?));
    let name = ServerName::try_from(SERVER_NAME).map_err(std::io::Error::other)?;
    let stream = connector.connect(name, stream).await?;
    let (_, session) = stream.get_ref();
    let binding = session
        .export_keying_material([0u8; 32], EXPORTER_LABEL, Some(b""))
        .map_err(std::io::Error::other)?;
    Ok((stream, binding))
}

fn config(pin: Fingerprint) -> std::io::Result<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Arc::new(Pinned { pin, provider: provider.clone() });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(std::io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.enable_sni = false;
    // Each connection logs in or resumes above TLS; tickets would only add a second kind of resumption.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// Trusts exactly one certificate, whatever its names and dates say.
#[derive(Debug)]
struct Pinned {
    pin: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if Fingerprint::of(end_entity) == self.pin {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(rustls::Error::InvalidCertificate(rustls::CertificateError::ApplicationVerificationFailure))
        }
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
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

    fn server() -> (TlsAcceptor, Fingerprint) {
        let made = rcgen::generate_simple_self_signed(vec!["mds".to_owned()]).unwrap();
        let der = made.cert.der().clone();
        let pin = Fingerprint::of(&der);
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![der], key.into())
            .unwrap();
        config.alpn_protocols = vec![ALPN.to_vec()];
        (TlsAcceptor::from(Arc::new(config)), pin)
    }

    #[tokio::test]
    async fn both_ends_of_one_channel_bind_to_the_same_value() {
        let (acceptor, pin) = server();
        let (near, far) = tokio::io::duplex(65_536);
        let accept = async { acceptor.accept(far).await.unwrap() };
        let (client, served) = tokio::join!(connect(near, pin), accept);
        let (_stream, binding) = client.unwrap();
        let theirs = served.get_ref().1.export_keying_material([0u8; 32], EXPORTER_LABEL, Some(b"")).unwrap();
        assert_eq!(binding, theirs);
    }

    #[tokio::test]
    async fn another_certificate_is_refused() {
        let (acceptor, _) = server();
        let (near, far) = tokio::io::duplex(65_536);
        let accept = async { acceptor.accept(far).await.err() };
        let (client, served) = tokio::join!(connect(near, Fingerprint([7; 32])), accept);
        assert!(client.is_err());
        assert!(served.is_some());
    }

    #[test]
    fn fingerprints_print_what_they_parse() {
        let pin = Fingerprint::of(b"x");
        assert_eq!(pin.to_string().parse(), Ok(pin));
        assert_eq!(format!("sha256:{pin}").parse(), Ok(pin));
        assert_eq!("ab".parse::<Fingerprint>(), Err(FingerprintError));
        assert_eq!(format!("{pin}0").parse::<Fingerprint>(), Err(FingerprintError));
        assert_eq!("zz".repeat(32).parse::<Fingerprint>(), Err(FingerprintError));
    }
}
