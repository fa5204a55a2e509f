//! Ways to reach a metadata server: TLS over TCP, or whatever a simulation supplies.

use core::future::Future;
use core::pin::Pin;
use core::time::Duration;
use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::tls::{self, ChannelBinding, Fingerprint};

/// Bytes both ways.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A channel that nobody else reads or changes, and the value that binds logins to it.
pub type Channel = (Box<dyn Stream>, ChannelBinding);

/// Makes channels to one metadata server.
pub trait MdsDial: Send + Sync + 'static {
    /// Makes a new one.
    fn dial(&self) -> Pin<Box<dyn Future<Output = io::Result<Channel>> + Send + '_>>;
}

/// TLS 1.3 over TCP to `HOST:PORT`, the certificate pinned.
#[derive(Clone, Debug)]
pub struct TlsDial {
    /// `HOST:PORT`; the port is 3270 unless the server was told otherwise.
    pub address: String,
    /// The certificate's fingerprint.
    pub pin: Fingerprint,
    /// How long connecting and shaking hands may take.
    pub timeout: Duration,
}

impl MdsDial for TlsDial {
    fn dial(&self) -> Pin<Box<dyn Future<Output = io::Result<Channel>> + Send + '_>> {
        Box::pin(async move {
            let connect = async {
                let stream = TcpStream::connect(&self.address).await?;
                stream.set_nodelay(true)?;
                let (stream, binding) = tls::connect(stream, self.pin).await?;
                Ok((Box::new(stream) as Box<dyn Stream>, binding))
            };
            match tokio::time::timeout(self.timeout, connect).await {
                Ok(result) => result,
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            }
        })
    }
}
