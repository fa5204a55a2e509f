//! TLS below PostgreSQL's protocol: the certificate must be signed by a known authority for the
//! server's name.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};

/// Creates the TLS connector of each connection.
#[derive(Clone)]
pub(super) struct MakeTls(pub(super) Option<Arc<ClientConfig>>);

/// TLS connector of one connection.
pub(super) struct PostgresTls {
    config: Option<Arc<ClientConfig>>,
    host: String,
}

/// A TLS connection.
pub(super) struct PostgresStream(tokio_rustls::client::TlsStream<Socket>);

impl MakeTlsConnect<Socket> for MakeTls {
    type Stream = PostgresStream;
    type TlsConnect = PostgresTls;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> io::Result<PostgresTls> {
        Ok(PostgresTls { config: self.0.clone(), host: domain.to_owned() })
    }
}

impl TlsConnect<Socket> for PostgresTls {
    type Stream = PostgresStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<PostgresStream>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        Box::pin(async move {
            let config = self.config.ok_or_else(|| io::Error::other("TLS without an authority"))?;
            let name = ServerName::try_from(self.host).map_err(io::Error::other)?;
            Ok(PostgresStream(tokio_rustls::TlsConnector::from(config).connect(name, stream).await?))
        })
    }
}

impl tokio_postgres::tls::TlsStream for PostgresStream {
    /// Returns none: the certificate was verified, so a man in the middle would need the server's
    /// key.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for PostgresStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for PostgresStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
