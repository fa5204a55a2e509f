//! Ways to reach a device: TCP, inside TLS where it is known by a pin, or whatever a simulation supplies.

use core::future::Future;
use core::pin::Pin as Pinned;
use core::time::Duration;
use std::net::IpAddr;

use sealstone_channel::{ALPN_ISCSI, Pin, Stream, TOKEN_LABEL, TlsError};
use sealstone_seal::SecurityToken;

use crate::session::tcp;
use crate::{SessionError, TargetUrl};

/// How long a TCP connection may take to be made, and as long again a TLS handshake.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a device.
pub struct Dialed {
    /// The bytes.
    pub stream: Box<dyn Stream>,
    /// Inside TLS: what CAPKEY signs there, computed at this end.
    pub token: Option<SecurityToken>,
}

impl Dialed {
    /// A connection that nothing protects.
    #[must_use]
    pub fn plain(stream: Box<dyn Stream>) -> Self {
        Self { stream, token: None }
    }
}

/// A connection under way.
pub type Dialing<'a> = Pinned<Box<dyn Future<Output = Result<Dialed, SessionError>> + Send + 'a>>;

/// Makes connections to one portal.
pub trait Dial: Send + Sync + 'static {
    /// Makes a new one.
    fn dial(&self) -> Dialing<'_>;
}

/// When devices are talked to inside TLS. Whatever it says, it is decided before the first byte, never by what the
/// other end answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsPolicy {
    /// Whenever the device is known by a pin.
    #[default]
    Auto,
    /// Always; a device without a pin is not talked to.
    Required,
    /// Never; a device with a pin only on this machine's own addresses.
    Off,
}

/// TCP to the portal of a URL.
#[derive(Clone, Debug)]
pub struct TcpDial {
    authority: String,
    known: Option<Known>,
}

/// Who must answer there.
#[derive(Clone, Debug)]
struct Known {
    pin: Pin,
    /// In certificates of an authority.
    name: String,
}

impl TcpDial {
    /// To the host and port of `url`, in plain text.
    #[must_use]
    pub fn new(url: &TargetUrl) -> Self {
        Self { authority: url.authority(), known: None }
    }

    /// Inside TLS, to who holds the certificate of `pin`; below an authority it must be for `name`
    /// ([`device_name`](sealstone_channel::device_name)).
    #[must_use]
    pub fn sealed(url: &TargetUrl, pin: Pin, name: String) -> Self {
        Self { authority: url.authority(), known: Some(Known { pin, name }) }
    }

    /// To the device of this system id, inside TLS or not as `policy` says.
    ///
    /// # Errors
    /// `NoPin`, `Plain`: what policy demands cannot be had, or not safely.
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

/// Is it an address of this machine that no network sees? Names are not: whoever answers for names could say so.
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
            Ok(Dialed { stream: Box::new(stream), token: Some(SecurityToken(export)) })
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
