//! One connection to an LDAP server: StartTLS or TLS, bind, search, end.
//!
//! Contract: the bytes received on one connection are limited, and so are the entries of a search.
//! The caller limits the time.

use core::time::Duration;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ClientConfig;
use sealstone_ldap::{
    LdapResult, Message, MessageBody, Search, SearchEntry, bind_request, message_length, search_request,
    start_tls_request, unbind_request,
};
use sealstone_mds::DirectoryError;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::settings::{DirectoryAddress, DirectorySecurity};

/// Maximum bytes that a directory may send on one connection.
pub(super) const RECEIVED_BYTES_MAX: usize = 4 << 20;
/// Maximum messages of a search that are no entries, mostly references.
const OTHERS_MAX: usize = 1024;
/// Maximum addresses of the host name that are tried.
const ADDRESSES_MAX: usize = 4;
/// Bytes read at a time.
const CHUNK_BYTES: usize = 8 * 1024;

trait DirectoryStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> DirectoryStream for T {}

/// Entries that a search returned.
pub(super) struct SearchResult {
    pub(super) entries: Vec<SearchEntry>,
    /// Whether there are more entries than requested.
    pub(super) more: bool,
}

pub(super) struct DirectoryConnection {
    stream: Box<dyn DirectoryStream>,
    buffer: Vec<u8>,
    received: usize,
    id: u32,
}

fn unreachable(why: impl core::fmt::Display) -> DirectoryError {
    DirectoryError::Unreachable(why.to_string())
}

fn refused(what: &str, outcome: &LdapResult) -> DirectoryError {
    DirectoryError::Refused(format!("{what}: {outcome}"))
}

impl DirectoryConnection {
    /// Connects, and starts TLS if the address requires it.
    pub(super) async fn begin(
        address: &DirectoryAddress,
        tls: Option<&Arc<ClientConfig>>,
        time: Duration,
    ) -> Result<Self, DirectoryError> {
        let stream = connect(address, time).await?;
        let plain =
            |stream: Box<dyn DirectoryStream>| Self { stream, buffer: Vec::new(), received: 0, id: 0 };
        let tls = match (address.security, tls) {
            (DirectorySecurity::Plain, _) => return Ok(plain(Box::new(stream))),
            (DirectorySecurity::Tls | DirectorySecurity::StartTls, Some(tls)) => {
                TlsConnector::from(tls.clone())
            }
            // Settings without certificates are rejected earlier. Checked again: a bind must never
            // be sent in plain text.
            (DirectorySecurity::Tls | DirectorySecurity::StartTls, None) => {
                return Err(unreachable("no certificates for TLS"));
            }
        };
        let stream: Box<dyn DirectoryStream> = if address.security == DirectorySecurity::StartTls {
            let mut before = plain(Box::new(stream));
            let id = before.send(start_tls_request).await?;
            match before.answer(id).await? {
                MessageBody::Extended(outcome) if outcome.code == LdapResult::SUCCESS => {}
                MessageBody::Extended(outcome) => return Err(refused("StartTLS", &outcome)),
                _ => return Err(unreachable("unexpected response to StartTLS")),
            }
            // A man in the middle must not inject bytes in front of the TLS stream.
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

    /// Authenticates with a simple bind.
    pub(super) async fn bind(&mut self, dn: &str, password: &str) -> Result<(), DirectoryError> {
        let id = self.send(|id| bind_request(id, dn, password)).await?;
        match self.answer(id).await? {
            MessageBody::Bound(outcome) if outcome.code == LdapResult::SUCCESS => Ok(()),
            MessageBody::Bound(outcome) => Err(refused("bind", &outcome)),
            _ => Err(unreachable("unexpected response to bind")),
        }
    }

    /// Searches for entries.
    pub(super) async fn search(&mut self, search: &Search<'_>) -> Result<SearchResult, DirectoryError> {
        let id = self.send(|id| search_request(id, search)).await?;
        let mut searched = SearchResult { entries: Vec::new(), more: false };
        let mut others = 0;
        loop {
            match self.answer(id).await? {
                // A server that ignores the size limit is cut off at the limit.
                MessageBody::SearchEntry(_) if searched.entries.len() >= search.entries_max as usize => {
                    searched.more = true;
                    return Ok(searched);
                }
                MessageBody::SearchEntry(entry) => searched.entries.push(entry),
                // Referrals to other servers are not followed: only the configured server is
                // trusted.
                MessageBody::Reference | MessageBody::Intermediate if others < OTHERS_MAX => others += 1,
                MessageBody::Done(outcome) => {
                    return match outcome.code {
                        LdapResult::SUCCESS => Ok(searched),
                        LdapResult::SIZE_LIMIT_EXCEEDED => {
                            searched.more = true;
                            Ok(searched)
                        }
                        _ => Err(refused(&format!("search below {}", search.base), &outcome)),
                    };
                }
                _ => return Err(unreachable("unexpected response to search")),
            }
        }
    }

    /// Sends an unbind request; failures do not matter.
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

    /// Receives the next message, which must answer request `id`.
    async fn answer(&mut self, id: u32) -> Result<MessageBody, DirectoryError> {
        let length = loop {
            match message_length(&self.buffer).map_err(unreachable)? {
                Some(length) if length <= self.buffer.len() => break length,
                _ => self.more().await?,
            }
        };
        let message = Message::parse(&self.buffer[..length]).map_err(unreachable)?;
        self.buffer.drain(..length);
        match message.body {
            MessageBody::Disconnection => Err(unreachable("it closed the connection")),
            body if message.id == id => Ok(body),
            _ => Err(unreachable("response with another message id")),
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
            return Err(unreachable(format!(
                "more than {RECEIVED_BYTES_MAX} bytes in response to one lookup"
            )));
        }
        self.buffer.extend_from_slice(&chunk[..count]);
        Ok(())
    }
}

async fn connect(address: &DirectoryAddress, time: Duration) -> Result<TcpStream, DirectoryError> {
    let host = (address.host.as_str(), address.port);
    let found = lookup_host(host).await.map_err(|error| unreachable(format!("{}: {error}", address.host)))?;
    let allowed = |found: &SocketAddr| !address.loopback_only || found.ip().is_loopback();
    let mut last = unreachable(format!("{} has no usable address", address.host));
    for found in found.filter(allowed).take(ADDRESSES_MAX) {
        // The first of two addresses must not use up the whole time.
        match timeout(time / 2, TcpStream::connect(found)).await {
            Ok(Ok(stream)) => {
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => last = unreachable(format!("{found}: {error}")),
            Err(_) => last = unreachable(format!("{found}: connect timed out")),
        }
    }
    Err(last)
}
