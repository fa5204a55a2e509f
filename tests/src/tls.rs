//! A TLS client that believes everybody: an attacker's.

use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned};

#[derive(Debug)]
struct Gullible;

impl ServerCertVerifier for Gullible {
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

/// What a client that names these application protocols and believes every certificate shakes hands with.
#[must_use]
pub fn gullible(protocols: &[Vec<u8>]) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3 is there")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Gullible))
        .with_no_client_auth();
    config.alpn_protocols = protocols.to_vec();
    config
}

/// A TLS connection to a metadata server, whoever it is.
///
/// # Panics
/// If there is none to be had.
#[track_caller]
#[must_use]
pub fn connect(address: &str) -> StreamOwned<ClientConnection, TcpStream> {
    connect_as(address, &[b"osd-mds/1".to_vec()])
}

/// A TLS connection for one of these application protocols to whoever listens there.
///
/// # Panics
/// If there is none to be had.
#[track_caller]
#[must_use]
pub fn connect_as(address: &str, protocols: &[Vec<u8>]) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("mds.example").expect("a name");
    let connection = ClientConnection::new(Arc::new(gullible(protocols)), name).expect("a connection");
    StreamOwned::new(connection, TcpStream::connect(address).expect("the port is open"))
}

/// A TLS connection to a metadata server over a stream that is open already.
///
/// # Panics
/// Never, if the name below is one.
#[must_use]
pub fn over(stream: TcpStream) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("mds.example").expect("a name");
    let config = Arc::new(gullible(&[b"osd-mds/1".to_vec()]));
    StreamOwned::new(ClientConnection::new(config, name).expect("a connection"), stream)
}
