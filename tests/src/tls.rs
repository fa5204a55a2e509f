//! A TLS client that accepts any certificate, as an attacker would.

use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned};

#[derive(Debug)]
struct AcceptAnyCertificate;

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the configuration of a client with these application protocols that accepts any
/// certificate.
#[must_use]
pub fn unverified_config(protocols: &[Vec<u8>]) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3 is there")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate))
        .with_no_client_auth();
    config.alpn_protocols = protocols.to_vec();
    config
}

/// Connects with TLS to any metadata server.
///
/// # Panics
/// If the connection fails.
#[track_caller]
#[must_use]
pub fn connect(address: &str) -> StreamOwned<ClientConnection, TcpStream> {
    connect_as(address, &[b"osd-mds/1".to_vec()])
}

/// Connects with TLS and one of these application protocols to any server.
///
/// # Panics
/// If the connection fails.
#[track_caller]
#[must_use]
pub fn connect_as(address: &str, protocols: &[Vec<u8>]) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("mds.example").expect("a name");
    let connection =
        ClientConnection::new(Arc::new(unverified_config(protocols)), name).expect("a connection");
    StreamOwned::new(connection, TcpStream::connect(address).expect("the port is open"))
}

/// Starts TLS to a metadata server over an open stream.
///
/// # Panics
/// Never: the name is valid.
#[must_use]
pub fn over(stream: TcpStream) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("mds.example").expect("a name");
    let config = Arc::new(unverified_config(&[b"osd-mds/1".to_vec()]));
    StreamOwned::new(ClientConnection::new(config, name).expect("a connection"), stream)
}
