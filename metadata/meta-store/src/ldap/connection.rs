//! One connection to the LDAP server: requests and responses, each with a timeout.
//!
//! Does: binds, adds, replaces, renames, removes and finds entries; numbers requests, so that
//! several can be in flight.
//! Does not: repeat a request; the store decides that.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustls::{ClientConnection, StreamOwned};
use sealstone_ldap::{
    Attribute, Filter, LdapError, LdapResult, Message, MessageBody, Search, SearchEntry, SearchScope,
    bind_request, message_length_up_to, search_request, start_tls_request, unbind_request,
};
use zeroize::Zeroizing;

use super::settings::{LdapSecurity, LdapTarget, ServerAddress};
use super::{ANSWER_MAX, CONNECT_MAX};

/// Maximum bytes of a message of the server: a commit and its envelope.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Maximum addresses of the host name that are tried.
const ADDRESSES_MAX: usize = 4;
/// Bytes read at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// Reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// The server is unreachable or timed out: the outcome of the request is unknown.
    #[error("{0}")]
    Away(#[from] io::Error),
    /// The response is not valid LDAP.
    #[error("the response is not valid LDAP")]
    Foreign(#[from] LdapError),
    /// The server refused.
    #[error("{what}: {outcome}")]
    Refused {
        /// Name of the request.
        what: &'static str,
        /// Result of the server.
        outcome: LdapResult,
    },
}

impl RequestError {
    /// Returns the result code of a refusal.
    pub(super) const fn code(&self) -> Option<u32> {
        match self {
            Self::Refused { outcome, .. } => Some(outcome.code),
            _ => None,
        }
    }

    /// Whether a retry may succeed; it does not after a wrong certificate or protocol.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Away(error) => {
                !matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::PermissionDenied)
            }
            Self::Refused { outcome, .. } => {
                [LdapResult::BUSY, LdapResult::UNAVAILABLE].contains(&outcome.code)
            }
            Self::Foreign(_) => false,
        }
    }
}

fn unexpected(what: &str) -> RequestError {
    RequestError::Away(io::Error::new(io::ErrorKind::InvalidData, what.to_owned()))
}

trait LdapStream: Read + Write + Send {}
impl<T: Read + Write + Send> LdapStream for T {}

/// A bound connection.
pub(super) struct LdapConnection {
    stream: Box<dyn LdapStream>,
    /// The same socket, to detect unsolicited messages.
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were already parsed.
    read: usize,
    id: u32,
    is_bound: bool,
}

impl LdapConnection {
    /// Connects, starts TLS if the target requires it, and binds.
    pub(super) fn open(target: &LdapTarget) -> Result<Self, RequestError> {
        let plain =
            |stream, socket| Self { stream, socket, buffer: Vec::new(), read: 0, id: 0, is_bound: false };
        let connection = match &target.address {
            ServerAddress::Socket(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(ANSWER_MAX))?;
                stream.set_write_timeout(Some(ANSWER_MAX))?;
                let socket = stream.try_clone()?.into();
                plain(Box::new(stream), socket)
            }
            ServerAddress::Host { host, port, loopback_only } => {
                let stream = connect(host, *port, *loopback_only)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(ANSWER_MAX))?;
                stream.set_write_timeout(Some(ANSWER_MAX))?;
                let socket = || stream.try_clone().map(OwnedFd::from);
                let (tls, name) = match &target.security {
                    LdapSecurity::Plain => {
                        let socket = socket()?;
                        return plain(Box::new(stream), socket).bound(target);
                    }
                    LdapSecurity::Tls(tls, name) => (tls, name),
                    LdapSecurity::StartTls(tls, name) => {
                        let mut before = plain(Box::new(stream.try_clone()?), socket()?);
                        let id = before.send(start_tls_request)?;
                        match before.answer(id)? {
                            MessageBody::Extended(outcome) => check("StartTLS", outcome)?,
                            _ => return Err(unexpected("unexpected response to StartTLS")),
                        }
                        // A man in the middle must not inject bytes in front of the TLS stream.
                        if before.read < before.buffer.len() {
                            return Err(unexpected("bytes between StartTLS and TLS"));
                        }
                        (tls, name)
                    }
                };
                let mut tls = ClientConnection::new(tls.clone(), name.clone()).map_err(io::Error::other)?;
                let socket = socket()?;
                let mut stream = stream;
                tls.complete_io(&mut stream)?;
                plain(Box::new(StreamOwned::new(tls, stream)), socket)
            }
        };
        connection.bound(target)
    }

    fn bound(mut self, target: &LdapTarget) -> Result<Self, RequestError> {
        let id = self.send(|id| bind_request(id, &target.who, &target.password))?;
        match self.answer(id)? {
            MessageBody::Bound(outcome) => check("bind", outcome)?,
            _ => return Err(unexpected("unexpected response to bind")),
        }
        self.is_bound = true;
        Ok(self)
    }

    /// Whether the server closed the connection or sent an unsolicited message. Then nothing more
    /// must be sent, because its arrival would be unknown. For a connection without pending
    /// requests.
    pub(super) fn has_ended(&self) -> bool {
        let looked = recv(&self.socket, &mut [0_u8], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        // TLS session tickets, and a notice of disconnection, look the same here: the caller tests
        // the connection.
        !matches!(looked, Err(Errno::AGAIN | Errno::INTR))
    }

    /// Sends a request and returns its message id.
    pub(super) fn send(
        &mut self,
        request: impl FnOnce(u32) -> Zeroizing<Vec<u8>>,
    ) -> Result<u32, RequestError> {
        // RFC 4511 §4.1.1.1: from 1 to 2^31 − 1.
        self.id = if self.id >= i32::MAX as u32 { 1 } else { self.id + 1 };
        let bytes = request(self.id);
        self.stream.write_all(&bytes)?;
        self.stream.flush()?;
        Ok(self.id)
    }

    /// Sends a change and waits for its result.
    pub(super) fn change(
        &mut self,
        what: &'static str,
        request: impl FnOnce(u32) -> Zeroizing<Vec<u8>>,
    ) -> Result<(), RequestError> {
        let id = self.send(request)?;
        match self.answer(id)? {
            MessageBody::Changed(outcome) => check(what, outcome),
            _ => Err(unexpected("unexpected response to a change")),
        }
    }

    /// Receives the result of one of several pending changes, with its message id.
    pub(super) fn changed(&mut self) -> Result<(u32, LdapResult), RequestError> {
        match self.message()? {
            Message { id, body: MessageBody::Changed(outcome) } => Ok((id, outcome)),
            _ => Err(unexpected("unexpected response to a change")),
        }
    }

    /// Calls `work` with each entry found, in no order.
    pub(super) fn search<E: From<RequestError>>(
        &mut self,
        base: &str,
        scope: SearchScope,
        attributes: &[&Attribute],
        mut work: impl FnMut(SearchEntry) -> Result<(), E>,
    ) -> Result<(), E> {
        let all = Filter::parse("(objectClass=*)").map_err(|error| unexpected(&error.to_string()))?;
        let search = Search { base, scope, filter: &all, attributes, entries_max: 0, time_s_max: 0 };
        let id = self.send(|id| search_request(id, &search))?;
        loop {
            match self.answer(id)? {
                MessageBody::SearchEntry(entry) => work(entry)?,
                // Referrals to other servers are not followed: only the configured server is
                // trusted.
                MessageBody::Reference | MessageBody::Intermediate => {}
                MessageBody::Done(outcome) => return Ok(check("search", outcome)?),
                _ => return Err(unexpected("unexpected response to search").into()),
            }
        }
    }

    /// Whether an entry of this name exists.
    pub(super) fn exists(&mut self, dn: &str) -> Result<bool, RequestError> {
        let mut found = false;
        let searched = self.search::<RequestError>(dn, SearchScope::Base, &[], |_| {
            found = true;
            Ok(())
        });
        match searched {
            Err(error) if error.code() == Some(LdapResult::NO_SUCH_OBJECT) => Ok(false),
            other => other.map(|()| found),
        }
    }

    /// Receives the next message, which must answer request `id`.
    fn answer(&mut self, id: u32) -> Result<MessageBody, RequestError> {
        let message = self.message()?;
        if message.id == id { Ok(message.body) } else { Err(unexpected("response with another message id")) }
    }

    fn message(&mut self) -> Result<Message, RequestError> {
        let length = loop {
            let there = &self.buffer[self.read..];
            match message_length_up_to(there, MESSAGE_BYTES_MAX)? {
                Some(length) if length <= there.len() => break length,
                _ => self.more()?,
            }
        };
        let message = Message::parse_up_to(&self.buffer[self.read..self.read + length], MESSAGE_BYTES_MAX)?;
        self.read += length;
        match message.body {
            MessageBody::Disconnection => Err(unexpected("the server closed the connection")),
            _ => Ok(message),
        }
    }

    fn more(&mut self) -> Result<(), RequestError> {
        self.buffer.drain(..self.read);
        self.read = 0;
        let before = self.buffer.len();
        self.buffer.resize(before + CHUNK_BYTES, 0);
        let count = self.stream.read(&mut self.buffer[before..]);
        self.buffer.truncate(before + *count.as_ref().unwrap_or(&0));
        match count {
            Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(_) => Ok(()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                let why = format!("no answer in {} s", ANSWER_MAX.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, why).into())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for LdapConnection {
    /// Sends an unbind request; failures do not matter.
    fn drop(&mut self) {
        if self.is_bound {
            let _ = self.send(unbind_request);
        }
    }
}

fn check(what: &'static str, outcome: LdapResult) -> Result<(), RequestError> {
    if outcome.code == LdapResult::SUCCESS { Ok(()) } else { Err(RequestError::Refused { what, outcome }) }
}

fn connect(host: &str, port: u16, loopback_only: bool) -> Result<TcpStream, RequestError> {
    let found = (host, port).to_socket_addrs()?;
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "no usable address");
    for address in found.filter(|found| !loopback_only || found.ip().is_loopback()).take(ADDRESSES_MAX) {
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            // On loopback a connect to a port without a listener may connect to itself.
            Ok(stream) if stream.local_addr().ok() == Some(address) => {
                last = io::Error::new(
                    io::ErrorKind::ConnectionRefused,
                    format!("{address}: connection refused"),
                );
            }
            Ok(stream) => return Ok(stream),
            Err(error) => last = io::Error::new(error.kind(), format!("{address}: {error}")),
        }
    }
    Err(last.into())
}

/// Connects until it succeeds, a permanent error occurs, or the time is over.
pub(super) fn open_until(
    target: &LdapTarget,
    until: Instant,
    every: Duration,
) -> Result<LdapConnection, RequestError> {
    loop {
        match LdapConnection::open(target) {
            Err(error) if error.is_transient() && Instant::now() + every < until => {
                std::thread::sleep(every);
            }
            other => return other,
        }
    }
}
