//! Ways to reach a device: TCP, or whatever a simulation supplies.

use core::any::Any;
use core::future::Future;
use core::pin::Pin;
use core::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::session::tcp;
use crate::{SessionError, TargetUrl};

/// How long a TCP connection may take to be made.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes both ways.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// What it really is: a TCP socket can do more than any stream.
    fn as_any(&mut self) -> &mut dyn Any;
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// A connection under way.
pub type Dialing<'a> = Pin<Box<dyn Future<Output = Result<Box<dyn Stream>, SessionError>> + Send + 'a>>;

/// Makes connections to one portal.
pub trait Dial: Send + Sync + 'static {
    /// Makes a new one.
    fn dial(&self) -> Dialing<'_>;
}

/// TCP to the portal of a URL.
#[derive(Clone, Debug)]
pub struct TcpDial {
    authority: String,
}

impl TcpDial {
    /// To the host and port of `url`.
    #[must_use]
    pub fn new(url: &TargetUrl) -> Self {
        Self { authority: url.authority() }
    }
}

impl Dial for TcpDial {
    fn dial(&self) -> Dialing<'_> {
        Box::pin(async move {
            let stream = tcp(&self.authority, CONNECT_TIMEOUT).await?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}
