//! One connection to the LDAP server: requests out, answers in, each within its time.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustls::{ClientConnection, StreamOwned};
use sealstone_ldap::{
    Attribute, Body, Entry, Filter, LdapError, Message, Outcome, Scope, Search, bind_request,
    message_length_up_to, search_request, start_tls_request, unbind_request,
};
use zeroize::Zeroizing;

use super::settings::{Place, Security, Target};
use super::{ANSWER_MAX, CONNECT_MAX};

/// Bytes of one message of the server: a commit, and what is around it.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Addresses of its name that are tried.
const ADDRESSES_MAX: usize = 4;
/// Read at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// Why there is no answer, or not the one that is wanted.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// The server is away, or was silent too long: what became of a request is not known.
    #[error("{0}")]
    Away(#[from] io::Error),
    /// It says what is no LDAP.
    #[error("what the server says is not understood")]
    Foreign(#[from] LdapError),
    /// It said no.
    #[error("{what}: {outcome}")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// What it said.
        outcome: Outcome,
    },
}

impl Trouble {
    /// The code of a refusal.
    pub(super) const fn code(&self) -> Option<u32> {
        match self {
            Self::Refused { outcome, .. } => Some(outcome.code),
            _ => None,
        }
    }

    /// May it be otherwise in a moment? Another certificate, or another protocol, will not.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Away(error) => {
                !matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::PermissionDenied)
            }
            Self::Refused { outcome, .. } => [Outcome::BUSY, Outcome::UNAVAILABLE].contains(&outcome.code),
            Self::Foreign(_) => false,
        }
    }
}

fn strange(what: &str) -> Trouble {
    Trouble::Away(io::Error::new(io::ErrorKind::InvalidData, what.to_owned()))
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection on which somebody is bound.
pub(super) struct Link {
    stream: Box<dyn Stream>,
    /// The same socket, to look at what came that nobody asked for.
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were read already.
    read: usize,
    id: u32,
    is_bound: bool,
}

impl Link {
    /// Connects, begins TLS if that is how the target is meant, and says who asks.
    pub(super) fn open(target: &Target) -> Result<Self, Trouble> {
        let plain =
            |stream, socket| Self { stream, socket, buffer: Vec::new(), read: 0, id: 0, is_bound: false };
        let link = match &target.place {
            Place::Socket(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(ANSWER_MAX))?;
                stream.set_write_timeout(Some(ANSWER_MAX))?;
                let socket = stream.try_clone()?.into();
                plain(Box::new(stream), socket)
            }
            Place::Host { host, port, loopback_only } => {
                let stream = connect(host, *port, *loopback_only)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(ANSWER_MAX))?;
                stream.set_write_timeout(Some(ANSWER_MAX))?;
                let socket = || stream.try_clone().map(OwnedFd::from);
                let (tls, name) = match &target.security {
                    Security::Plain => {
                        let socket = socket()?;
                        return plain(Box::new(stream), socket).bound(target);
                    }
                    Security::Tls(tls, name) => (tls, name),
                    Security::StartTls(tls, name) => {
                        let mut before = plain(Box::new(stream.try_clone()?), socket()?);
                        let id = before.send(start_tls_request)?;
                        match before.answer(id)? {
                            Body::Extended(outcome) => check("StartTLS", outcome)?,
                            _ => return Err(strange("another answer to StartTLS")),
                        }
                        // Whoever is in between must not put his bytes in front of what comes out of TLS.
                        if before.read < before.buffer.len() {
                            return Err(strange("bytes between StartTLS and TLS"));
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
        link.bound(target)
    }

    fn bound(mut self, target: &Target) -> Result<Self, Trouble> {
        let id = self.send(|id| bind_request(id, &target.who, &target.password))?;
        match self.answer(id)? {
            Body::Bound(outcome) => check("bind", outcome)?,
            _ => return Err(strange("another answer to a bind")),
        }
        self.is_bound = true;
        Ok(self)
    }

    /// Did the server end it, though nobody asked it for anything? Then nothing should be sent any more: whether it arrived
    /// would not be known. Of a connection on which no answer is waited for.
    pub(super) fn has_ended(&self) -> bool {
        let looked = recv(&self.socket, &mut [0_u8], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        // TLS sends tickets for later sessions, and a server that ends says so: both are tried, and one is sound.
        !matches!(looked, Err(Errno::AGAIN | Errno::INTR))
    }

    /// Sends a request; its number.
    pub(super) fn send(&mut self, request: impl FnOnce(u32) -> Zeroizing<Vec<u8>>) -> Result<u32, Trouble> {
        // RFC 4511 §4.1.1.1: from 1 to 2^31 − 1.
        self.id = if self.id >= i32::MAX as u32 { 1 } else { self.id + 1 };
        let bytes = request(self.id);
        self.stream.write_all(&bytes)?;
        self.stream.flush()?;
        Ok(self.id)
    }

    /// What became of a change.
    pub(super) fn change(
        &mut self,
        what: &'static str,
        request: impl FnOnce(u32) -> Zeroizing<Vec<u8>>,
    ) -> Result<(), Trouble> {
        let id = self.send(request)?;
        match self.answer(id)? {
            Body::Changed(outcome) => check(what, outcome),
            _ => Err(strange("another answer to a change")),
        }
    }

    /// What became of one of several changes that were sent: its number, and the result.
    pub(super) fn changed(&mut self) -> Result<(u32, Outcome), Trouble> {
        match self.message()? {
            Message { id, body: Body::Changed(outcome) } => Ok((id, outcome)),
            _ => Err(strange("another answer to a change")),
        }
    }

    /// Does something with each entry that is there, in no order.
    pub(super) fn search<E: From<Trouble>>(
        &mut self,
        base: &str,
        scope: Scope,
        attributes: &[&Attribute],
        mut work: impl FnMut(Entry) -> Result<(), E>,
    ) -> Result<(), E> {
        let all = Filter::parse("(objectClass=*)").map_err(|error| strange(&error.to_string()))?;
        let search = Search { base, scope, filter: &all, attributes, entries_max: 0, time_s_max: 0 };
        let id = self.send(|id| search_request(id, &search))?;
        loop {
            match self.answer(id)? {
                Body::Entry(entry) => work(entry)?,
                // What other servers have is not ours to believe: only the configured one is known.
                Body::Reference | Body::Intermediate => {}
                Body::Done(outcome) => return Ok(check("search", outcome)?),
                _ => return Err(strange("another answer to a search").into()),
            }
        }
    }

    /// Is there an entry of this name?
    pub(super) fn is_there(&mut self, dn: &str) -> Result<bool, Trouble> {
        let mut found = false;
        let searched = self.search::<Trouble>(dn, Scope::Entry, &[], |_| {
            found = true;
            Ok(())
        });
        match searched {
            Err(trouble) if trouble.code() == Some(Outcome::NO_SUCH_OBJECT) => Ok(false),
            other => other.map(|()| found),
        }
    }

    /// The next message, which must answer that request.
    fn answer(&mut self, id: u32) -> Result<Body, Trouble> {
        let message = self.message()?;
        if message.id == id { Ok(message.body) } else { Err(strange("an answer to another request")) }
    }

    fn message(&mut self) -> Result<Message, Trouble> {
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
            Body::Disconnection => Err(strange("the server closed the connection")),
            _ => Ok(message),
        }
    }

    fn more(&mut self) -> Result<(), Trouble> {
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

impl Drop for Link {
    /// Says good-bye; it does not matter whether that arrives.
    fn drop(&mut self) {
        if self.is_bound {
            let _ = self.send(unbind_request);
        }
    }
}

fn check(what: &'static str, outcome: Outcome) -> Result<(), Trouble> {
    if outcome.code == Outcome::SUCCESS { Ok(()) } else { Err(Trouble::Refused { what, outcome }) }
}

fn connect(host: &str, port: u16, loopback_only: bool) -> Result<TcpStream, Trouble> {
    let found = (host, port).to_socket_addrs()?;
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "no address that may be used");
    for address in found.filter(|found| !loopback_only || found.ip().is_loopback()).take(ADDRESSES_MAX) {
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            // Where nobody listens, a port of this machine may be connected with itself.
            Ok(stream) if stream.local_addr().ok() == Some(address) => {
                last = io::Error::new(io::ErrorKind::ConnectionRefused, format!("{address}: nobody listens"));
            }
            Ok(stream) => return Ok(stream),
            Err(error) => last = io::Error::new(error.kind(), format!("{address}: {error}")),
        }
    }
    Err(last.into())
}

/// Connects until it succeeds or that time is over; what will not be otherwise in a moment is final.
pub(super) fn open_until(target: &Target, until: Instant, every: Duration) -> Result<Link, Trouble> {
    loop {
        match Link::open(target) {
            Err(trouble) if trouble.is_passing() && Instant::now() + every < until => {
                std::thread::sleep(every);
            }
            other => return other,
        }
    }
}
