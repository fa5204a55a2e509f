//! Connections to a metadata server: TLS over TCP, or what a simulation supplies.

use core::future::Future;
use core::pin::Pin;
use core::time::Duration;
use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::tls::{self, ChannelBinding, Fingerprint};

/// A stream in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A channel that is private and protected against changes, with the value that binds logins to it.
pub type SecureChannel = (Box<dyn ByteStream>, ChannelBinding);

/// Opens channels to one metadata server.
pub trait MdsDial: Send + Sync + 'static {
    /// Opens a new channel.
    fn dial(&self) -> Pin<Box<dyn Future<Output = io::Result<SecureChannel>> + Send + '_>>;
}

/// Maximum addresses that are tried.
const ADDRESSES_MAX: usize = 16;

/// TLS 1.3 over TCP to `HOST:PORT`, with a pinned certificate.
#[derive(Clone, Debug)]
pub struct TlsDial {
    /// `HOST:PORT`; the default port is 3270. Several servers of one database are separated by
    /// commas, at most 16; the first that answers is used.
    pub address: String,
    /// The pin of the certificate.
    pub pin: Fingerprint,
    /// Time limit for connecting and the handshake.
    pub timeout: Duration,
}

impl MdsDial for TlsDial {
    fn dial(&self) -> Pin<Box<dyn Future<Output = io::Result<SecureChannel>> + Send + '_>> {
        Box::pin(async move {
            let mut failed = io::Error::from(io::ErrorKind::InvalidInput);
            for address in self.address.split(',').map(str::trim).take(ADDRESSES_MAX) {
                match tokio::time::timeout(self.timeout, self.dial_one(address)).await {
                    Ok(Ok(channel)) => return Ok(channel),
                    Ok(Err(error)) => failed = error,
                    Err(_) => failed = io::ErrorKind::TimedOut.into(),
                }
                tracing::debug!(address, error = %failed, "cannot connect to a metadata server; trying the next address");
            }
            Err(failed)
        })
    }
}

impl TlsDial {
    async fn dial_one(&self, address: &str) -> io::Result<SecureChannel> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (stream, binding) = tls::connect(stream, self.pin).await?;
        Ok((Box::new(stream), binding))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// Starts a server that closes its first connection; the task ends then.
    async fn closing() -> (String, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (address, tokio::spawn(async move { drop(listener.accept().await) }))
    }

    #[tokio::test]
    async fn unavailable_server_is_skipped() {
        let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let ((first, at_first), (second, at_second)) = (closing().await, closing().await);
        let address = format!("{nobody}, {first},{second}");
        let pin = format!("sha256:{}", "00".repeat(32)).parse().unwrap();
        let dial = TlsDial { address, pin, timeout: Duration::from_secs(60) };
        assert!(dial.dial().await.is_err(), "none of them is a metadata server");
        at_first.await.unwrap();
        at_second.await.unwrap();
    }
}
