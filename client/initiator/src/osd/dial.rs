//! Connections to a device: TCP, with TLS if a pin is known, or what a simulation supplies.

use core::future::Future;
use core::pin::Pin as Pinned;
use core::time::Duration;
use std::net::IpAddr;

use sealstone_channel::{ALPN_ISCSI, ByteStream, ChannelSecret, Pin, TOKEN_LABEL, TlsError};
use sealstone_seal::SecurityToken;

use crate::session::tcp;
use crate::{SessionError, TargetUrl};

/// Time limit for a TCP connection, and again for a TLS handshake.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a device.
pub struct Dialed {
    /// The stream.
    pub stream: Box<dyn ByteStream>,
    /// With TLS: the token that CAPKEY signs, computed at this end.
    pub token: Option<SecurityToken>,
    /// With TLS: the secret for a protection inside the channel.
    pub secret: Option<ChannelSecret>,
}

impl Dialed {
    /// Wraps a connection without TLS.
    #[must_use]
    pub fn plain(stream: Box<dyn ByteStream>) -> Self {
        Self { stream, token: None, secret: None }
    }
}

/// A connection being established.
pub type Dialing<'a> = Pinned<Box<dyn Future<Output = Result<Dialed, SessionError>> + Send + 'a>>;

/// Opens connections to one portal.
pub trait Dial: Send + Sync + 'static {
    /// Opens a new connection.
    fn dial(&self) -> Dialing<'_>;
}

/// When TLS is used. The decision is made before the first byte, never by an answer of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsPolicy {
    /// If a pin of the device is known.
    #[default]
    Auto,
    /// Always; a device without a pin is refused.
    Required,
    /// Never; a device with a pin is refused unless it is on this machine.
    Off,
}

/// TCP to the portal of a URL.
#[derive(Clone, Debug)]
pub struct TcpDial {
    authority: String,
    known: Option<Known>,
}

/// The expected identity of the peer.
#[derive(Clone, Debug)]
struct Known {
    pin: Pin,
    /// The name in certificates of an authority.
    name: String,
}

impl TcpDial {
    /// Connects to host and port of `url` without TLS.
    #[must_use]
    pub fn new(url: &TargetUrl) -> Self {
        Self { authority: url.authority(), known: None }
    }

    /// Connects with TLS to the owner of the certificate of `pin`; a certificate of an authority
    /// must be for `name` ([`device_name`](sealstone_channel::device_name)).
    #[must_use]
    pub fn sealed(url: &TargetUrl, pin: Pin, name: String) -> Self {
        Self { authority: url.authority(), known: Some(Known { pin, name }) }
    }

    /// Connects to the device with this system id, with or without TLS as `policy` requires.
    ///
    /// # Errors
    /// `NoPin`, `Plain`: the policy cannot be fulfilled.
    pub fn by_policy(
        url: &TargetUrl,
        pin: Option<Pin>,
        system_id: &[u8; 20],
        policy: TlsPolicy,
    ) -> Result<Self, SessionError> {
        match (policy, pin) {
            (TlsPolicy::Auto | TlsPolicy::Required, Some(pin)) => {
                Ok(Self::sealed(url, pin, sealstone_channel::device_name(system_id)))
            }
            (TlsPolicy::Required, None) => Err(SessionError::NoPin),
            (TlsPolicy::Off, Some(_)) if !is_loopback(&url.host) => Err(SessionError::Plain),
            (TlsPolicy::Auto, None) | (TlsPolicy::Off, _) => Ok(Self::new(url)),
        }
    }
}

/// Whether it is a loopback address. Names do not count, since a name server could forge them.
fn is_loopback(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

impl Dial for TcpDial {
    fn dial(&self) -> Dialing<'_> {
        Box::pin(async move {
            let stream = tcp(&self.authority, CONNECT_TIMEOUT).await?;
            let Some(Known { pin, name }) = &self.known else {
                return Ok(Dialed::plain(Box::new(stream)));
            };
            let shaking = sealstone_channel::connect(stream, *pin, name, ALPN_ISCSI, TOKEN_LABEL);
            let (stream, export) = tokio::time::timeout(CONNECT_TIMEOUT, shaking)
                .await
                .map_err(|_| TlsError::Handshake("no answer in time".to_owned()))??;
            let secret = ChannelSecret::of(stream.get_ref().1)?;
            let token = Some(SecurityToken(export));
            Ok(Dialed { stream: Box::new(stream), token, secret: Some(secret) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_decides_before_the_first_byte() {
        let id = [7; 20];
        let pin = Some(Pin::certificate(b"x"));
        let sealed = |host: &str, pin, policy| {
            let url = format!("iscsi://{host}/iqn.x/0").parse().unwrap();
            TcpDial::by_policy(&url, pin, &id, policy).map(|dial| dial.known.is_some())
        };
        for host in ["127.0.0.1", "10.0.0.1", "osd.example.org"] {
            assert_eq!(sealed(host, pin, TlsPolicy::Auto).ok(), Some(true));
            assert_eq!(sealed(host, pin, TlsPolicy::Required).ok(), Some(true));
            assert_eq!(sealed(host, None, TlsPolicy::Auto).ok(), Some(false));
            assert_eq!(sealed(host, None, TlsPolicy::Off).ok(), Some(false));
            assert!(matches!(sealed(host, None, TlsPolicy::Required), Err(SessionError::NoPin)));
        }
        for here in ["127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]"] {
            assert_eq!(sealed(here, pin, TlsPolicy::Off).ok(), Some(false), "{here}");
        }
        for there in ["10.0.0.1", "localhost", "[::]", "[2001:db8::1]"] {
            assert!(matches!(sealed(there, pin, TlsPolicy::Off), Err(SessionError::Plain)), "{there}");
        }
    }
}
