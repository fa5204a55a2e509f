//! One connection to an LDAP server: requests out, answers in, within bounds.

use core::time::Duration;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ClientConfig;
use sealstone_ldap::{
    Body, Entry, Message, Outcome, Search, bind_request, message_length, search_request, start_tls_request,
    unbind_request,
};
use sealstone_mds::DirectoryError;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::settings::{Address, Security};

/// Bytes that a directory may send to one question.
pub(super) const RECEIVED_BYTES_MAX: usize = 4 << 20;
/// Messages that it may send to one search besides the entries asked for: references, mostly.
const OTHERS_MAX: usize = 1024;
/// Addresses of its name that are tried.
const ADDRESSES_MAX: usize = 4;
/// Read at a time.
const CHUNK_BYTES: usize = 8 * 1024;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The entries that a search found.
pub(super) struct Searched {
    pub(super) entries: Vec<Entry>,
    /// There are more than were asked for.
    pub(super) more: bool,
}

pub(super) struct Conversation {
    stream: Box<dyn Stream>,
    buffer: Vec<u8>,
    received: usize,
    id: u32,
}

fn unreachable(why: impl core::fmt::Display) -> DirectoryError {
    DirectoryError::Unreachable(why.to_string())
}

fn refused(what: &str, outcome: &Outcome) -> DirectoryError {
    DirectoryError::Refused(format!("{what}: {outcome}"))
}

impl Conversation {
    /// Connects, and begins TLS if that is how the address is meant.
    pub(super) async fn begin(
        address: &Address,
        tls: Option<&Arc<ClientConfig>>,
        time: Duration,
    ) -> Result<Self, DirectoryError> {
        let stream = connect(address, time).await?;
        let plain = |stream: Box<dyn Stream>| Self { stream, buffer: Vec::new(), received: 0, id: 0 };
        let tls = match (address.security, tls) {
            (Security::Plain, _) => return Ok(plain(Box::new(stream))),
            (Security::Tls | Security::StartTls, Some(tls)) => TlsConnector::from(tls.clone()),
            // Settings without certificates are refused before; here once more, rather than a name in plain text.
            (Security::Tls | Security::StartTls, None) => return Err(unreachable("no certificates for TLS")),
        };
        let stream: Box<dyn Stream> = if address.security == Security::StartTls {
            let mut before = plain(Box::new(stream));
            let id = before.send(start_tls_request).await?;
            match before.answer(id).await? {
                Body::Extended(outcome) if outcome.code == Outcome::SUCCESS => {}
                Body::Extended(outcome) => return Err(refused("StartTLS", &outcome)),
                _ => return Err(unreachable("another answer to StartTLS")),
            }
            // Whoever is in between must not put his bytes in front of what comes out of TLS.
            if !before.buffer.is_empty() {
                return Err(unreachable("bytes between StartTLS and TLS"));
            }
            before.stream
        } else {
            Box::new(stream)
        };
        let stream = tls.connect(address.name.clone(), stream).await;
        let stream = stream.map_err(|error| unreachable(format!("TLS: {error}")))?;
        Ok(plain(Box::new(stream)))
    }

    /// Says who asks.
    pub(super) async fn bind(&mut self, dn: &str, password: &str) -> Result<(), DirectoryError> {
        let id = self.send(|id| bind_request(id, dn, password)).await?;
        match self.answer(id).await? {
            Body::Bound(outcome) if outcome.code == Outcome::SUCCESS => Ok(()),
            Body::Bound(outcome) => Err(refused("bind", &outcome)),
            _ => Err(unreachable("another answer to a bind")),
        }
    }

    /// Looks for entries.
    pub(super) async fn search(&mut self, search: &Search<'_>) -> Result<Searched, DirectoryError> {
        let id = self.send(|id| search_request(id, search)).await?;
        let mut searched = Searched { entries: Vec::new(), more: false };
        let mut others = 0;
        loop {
            match self.answer(id).await? {
                // A server that takes no notice of the limit is not listened to for longer than one that does.
                Body::Entry(_) if searched.entries.len() >= search.entries_max as usize => {
                    searched.more = true;
                    return Ok(searched);
                }
                Body::Entry(entry) => searched.entries.push(entry),
                // What other servers have is not ours to believe: only the configured one is known.
                Body::Reference | Body::Intermediate if others < OTHERS_MAX => others += 1,
                Body::Done(outcome) => {
                    return match outcome.code {
                        Outcome::SUCCESS => Ok(searched),
                        Outcome::SIZE_LIMIT_EXCEEDED => {
                            searched.more = true;
                            Ok(searched)
                        }
                        _ => Err(refused(&format!("search below {}", search.base), &outcome)),
                    };
                }
                _ => return Err(unreachable("another answer to a search")),
            }
        }
    }

    /// Says good-bye; it does not matter whether that arrives.
    pub(super) async fn end(mut self) {
        let _ = self.send(unbind_request).await;
        let _ = timeout(Duration::from_millis(200), self.stream.shutdown()).await;
    }

    async fn send(
        &mut self,
        request: impl FnOnce(u32) -> zeroize::Zeroizing<Vec<u8>>,
    ) -> Result<u32, DirectoryError> {
        self.id += 1;
        let bytes = request(self.id);
        self.stream.write_all(&bytes).await.map_err(unreachable)?;
        self.stream.flush().await.map_err(unreachable)?;
        Ok(self.id)
    }

    /// The next message, which must answer that request.
    async fn answer(&mut self, id: u32) -> Result<Body, DirectoryError> {
        let length = loop {
            match message_length(&self.buffer).map_err(unreachable)? {
                Some(length) if length <= self.buffer.len() => break length,
                _ => self.more().await?,
            }
        };
        let message = Message::parse(&self.buffer[..length]).map_err(unreachable)?;
        self.buffer.drain(..length);
        match message.body {
            Body::Disconnection => Err(unreachable("it closed the connection")),
            body if message.id == id => Ok(body),
            _ => Err(unreachable("an answer to another request")),
        }
    }

    async fn more(&mut self) -> Result<(), DirectoryError> {
        let mut chunk = [0; CHUNK_BYTES];
        let count = self.stream.read(&mut chunk).await.map_err(unreachable)?;
        if count == 0 {
            return Err(unreachable("it closed the connection"));
        }
        self.received += count;
        if self.received > RECEIVED_BYTES_MAX {
            return Err(unreachable(format!("more than {RECEIVED_BYTES_MAX} bytes to one question")));
        }
        self.buffer.extend_from_slice(&chunk[..count]);
        Ok(())
    }
}

async fn connect(address: &Address, time: Duration) -> Result<TcpStream, DirectoryError> {
    let host = (address.host.as_str(), address.port);
    let found = lookup_host(host).await.map_err(|error| unreachable(format!("{}: {error}", address.host)))?;
    let allowed = |found: &SocketAddr| !address.loopback_only || found.ip().is_loopback();
    let mut last = unreachable(format!("{} has no address that may be used", address.host));
    for found in found.filter(allowed).take(ADDRESSES_MAX) {
        // The first of two addresses must not use all the time up.
        match timeout(time / 2, TcpStream::connect(found)).await {
            Ok(Ok(stream)) => {
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => last = unreachable(format!("{found}: {error}")),
            Err(_) => last = unreachable(format!("{found}: no connection in time")),
        }
    }
    Err(last)
}
