//! Handshakes that must succeed, and those that must fail.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sealstone_channel::{
    ALPN_ISCSI, CertificateAuthority, Pin, TOKEN_LABEL, TlsError, TlsIdentity, TlsServer, connect,
    device_name,
};
use sealstone_tests::tls::unverified_config;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsConnector, client::TlsStream};

const NAME: &str = "a.osd.sealstone.invalid";
const LIFE: Duration = Duration::from_secs(3600);

fn now_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64
}

fn server(identity: &TlsIdentity) -> TlsServer {
    TlsServer::new(identity, ALPN_ISCSI, TOKEN_LABEL).unwrap()
}

type Met = (Result<(TlsStream<DuplexStream>, [u8; 32]), TlsError>, Result<[u8; 32], TlsError>);

/// Connects both ends over a pipe.
async fn meet(server: &TlsServer, pin: Pin, name: &str) -> Met {
    let (near, far) = duplex(64 * 1024);
    let accept = async { server.accept(far).await.map(|accepted| accepted.export) };
    tokio::join!(connect(near, pin, name, ALPN_ISCSI, TOKEN_LABEL), accept)
}

#[tokio::test]
async fn token_is_unique_to_both_ends_of_channel() {
    let own = TlsIdentity::self_signed(NAME).unwrap();
    let (server, pin) = (server(&own), own.pin().unwrap());
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (near, far) = meet(&server, pin, NAME).await;
        let (near, far) = (near.unwrap().1, far.unwrap());
        assert_eq!(near, far);
        assert!(!seen.contains(&near));
        seen.push(near);
    }
}

#[tokio::test]
async fn another_certificate_is_refused_and_both_are_named() {
    let [own, other] = [0, 1].map(|_| TlsIdentity::self_signed(NAME).unwrap());
    let (pinned, found) = (own.pin().unwrap(), other.pin().unwrap());
    let (near, far) = meet(&server(&other), pinned, NAME).await;
    let error = near.err().unwrap();
    assert_eq!(error, TlsError::WrongCertificate { pinned, found });
    assert!(error.is_impostor() && error.to_string().contains(&found.to_string()));
    assert!(far.is_err(), "the server has no channel either");
}

/// An attacker with the certificate, which is public, does not have its key.
#[tokio::test]
async fn a_certificate_without_its_key_makes_no_server() {
    let [mut own, other] = [0, 1].map(|_| TlsIdentity::self_signed(NAME).unwrap());
    own.key = other.key;
    assert!(TlsServer::new(&own, ALPN_ISCSI, TOKEN_LABEL).is_err());
    own.key.truncate(20);
    assert!(TlsServer::new(&own, ALPN_ISCSI, TOKEN_LABEL).is_err());
    own.chain.clear();
    assert!(TlsServer::new(&own, ALPN_ISCSI, TOKEN_LABEL).is_err());
}

#[tokio::test]
async fn authority_pin_checks_name_and_date() {
    let authority = CertificateAuthority::new().unwrap();
    let again = CertificateAuthority::load(authority.certificate().to_vec(), &authority.key()).unwrap();
    let own = again.issue(NAME, now_ms(), LIFE).unwrap();
    meet(&server(&own), authority.pin(), NAME).await.0.unwrap();
    // Its own hash is also accepted.
    meet(&server(&own), own.pin().unwrap(), "whatever.name").await.0.unwrap();
    let refused = |near: Met| match near.0.err().unwrap() {
        TlsError::NotByAuthority { name, why } => (name, why),
        other => panic!("{other}"),
    };
    let (name, why) = refused(meet(&server(&own), authority.pin(), "b.osd.sealstone.invalid").await);
    assert!(name.starts_with("b.") && why.contains("name"), "{name}: {why}");
    let old = authority.issue(NAME, now_ms() - 7_200_000, LIFE).unwrap();
    let (_, why) = refused(meet(&server(&old), authority.pin(), NAME).await);
    assert!(why.contains("xpired"), "{why}");
    // With a pin of the certificate itself the date is not checked.
    meet(&server(&old), old.pin().unwrap(), NAME).await.0.unwrap();
    let early = authority.issue(NAME, now_ms() + 48 * 3_600_000, LIFE).unwrap();
    refused(meet(&server(&early), authority.pin(), NAME).await);
    // Another authority, one that only claims to have signed, and none at all.
    let other = CertificateAuthority::new().unwrap();
    refused(meet(&server(&other.issue(NAME, now_ms(), LIFE).unwrap()), authority.pin(), NAME).await);
    let mut forged = other.issue(NAME, now_ms(), LIFE).unwrap();
    forged.chain[1] = authority.certificate().to_vec();
    refused(meet(&server(&forged), authority.pin(), NAME).await);
    refused(meet(&server(&TlsIdentity::self_signed(NAME).unwrap()), authority.pin(), NAME).await);
    // A certificate that the authority signed cannot sign others.
    let mut below = authority.issue(NAME, now_ms(), LIFE).unwrap();
    below.chain.swap(0, 1);
    assert!(TlsServer::new(&below, ALPN_ISCSI, TOKEN_LABEL).is_err());
}

#[tokio::test]
async fn peer_with_another_protocol_is_refused() {
    let own = TlsIdentity::self_signed(NAME).unwrap();
    for protocols in [vec![], vec![b"osd-mds/1".to_vec()], vec![b"h2".to_vec(), b"http/1.1".to_vec()]] {
        let (near, far) = duplex(64 * 1024);
        let (server, connector) = (server(&own), TlsConnector::from(Arc::new(unverified_config(&protocols))));
        let name = ServerName::try_from(NAME).unwrap();
        let (_, far) = tokio::join!(connector.connect(name, near), server.accept(far));
        assert_eq!(far.err(), Some(TlsError::OtherProtocol(ALPN_ISCSI.to_vec())), "{protocols:?}");
    }
    let mds = TlsServer::new(&own, b"osd-mds/1", TOKEN_LABEL).unwrap();
    let error = meet(&mds, own.pin().unwrap(), NAME).await.0.err().unwrap();
    assert_eq!(error, TlsError::OtherProtocol(ALPN_ISCSI.to_vec()));
}

#[tokio::test]
async fn non_tls_bytes_fail_at_both_ends() {
    let own = TlsIdentity::self_signed(NAME).unwrap();
    let (mut near, far) = duplex(64 * 1024);
    near.write_all(&[0x43; 48]).await.unwrap();
    assert_eq!(server(&own).accept(far).await.err(), Some(TlsError::NoTls));
    // A hello of TLS 1.2 without an offer of 1.3.
    let mut hello = vec![0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0xC0, 0x2F, 1, 0]);
    let (mut near, far) = duplex(64 * 1024);
    near.write_all(&hello).await.unwrap();
    let error = server(&own).accept(far).await.err().unwrap();
    assert!(matches!(error, TlsError::Handshake(_)), "{error}");
    let mut alert = Vec::new();
    near.read_to_end(&mut alert).await.unwrap();
    assert_eq!(alert.first(), Some(&0x15), "an alert and nothing else: {alert:02x?}");

    for output in [&b""[..], b"login response in plain text, as from who strips TLS", &[0x16]] {
        let (near, mut far) = duplex(64 * 1024);
        let strip = async move {
            let mut hello = [0; 64];
            far.read_exact(&mut hello).await?;
            far.write_all(output).await?;
            far.shutdown().await?;
            io::Result::Ok(hello[0])
        };
        let (near, first) =
            tokio::join!(connect(near, own.pin().unwrap(), NAME, ALPN_ISCSI, TOKEN_LABEL), strip);
        assert_eq!(first.unwrap(), sealstone_channel::FIRST_BYTE, "nothing but a hello was sent");
        assert!(matches!(near.err().unwrap(), TlsError::NoTls | TlsError::Closed), "{output:?}");
    }
}

/// A man in the middle has one channel with each end, and they have no exported value in common.
#[tokio::test]
async fn relayed_channels_have_different_tokens() {
    let [own, between] = [0, 1].map(|_| TlsIdentity::self_signed(NAME).unwrap());
    let (victim, relay) = meet(&server(&between), between.pin().unwrap(), NAME).await;
    let (real, _) = meet(&server(&own), own.pin().unwrap(), NAME).await;
    assert_eq!(victim.as_ref().unwrap().1, relay.unwrap());
    assert_ne!(victim.unwrap().1, real.unwrap().1);
}

/// A stream that ends without close_notify is an error, not an end.
#[tokio::test]
async fn truncated_stream_is_an_error() {
    let own = TlsIdentity::self_signed(NAME).unwrap();
    for orderly in [true, false] {
        let (near, far) = duplex(64 * 1024);
        let server = server(&own);
        let (near, far) = tokio::join!(
            connect(near, own.pin().unwrap(), NAME, ALPN_ISCSI, TOKEN_LABEL),
            server.accept(far)
        );
        let (mut near, mut far) = (near.unwrap().0, far.unwrap().stream);
        near.write_all(b"half of it").await.unwrap();
        near.flush().await.unwrap();
        if orderly {
            near.shutdown().await.unwrap();
        }
        drop(near);
        let mut bytes = Vec::new();
        let end = far.read_to_end(&mut bytes).await.map_err(|error| error.kind());
        assert_eq!(bytes, b"half of it");
        assert_eq!(end.is_ok(), orderly, "{end:?}");
    }
}

#[test]
fn a_device_is_named_by_its_system_id() {
    let name = device_name(&[0xAB; 20]);
    assert!(name.starts_with("abab") && name.ends_with(".osd.sealstone.invalid"));
    assert!(ServerName::try_from(name).is_ok());
}
