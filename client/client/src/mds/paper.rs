//! Client side of the paper's login, over plain TCP. Insecure: from a recorded login the passphrase
//! can be guessed.
//!
//! Does: logs in, and resumes a session on another connection.
//! Does not: send requests; `link` does.
//! Truth: docs/standards/paper-login.md.

use core::future::Future;
use core::pin::Pin;
use core::time::Duration;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use sealstone_initiator::Environment;
use sealstone_login::paper::{
    Addresses, Algorithms, AwaitingCookie, AwaitingResponse, Channel as Records, ClientTerms, ClockReading,
    OakleyGroup, Opened, PaperFailure, PaperSession, PassphraseKey,
};
use sealstone_mds_protocol::paper::{
    CLIENT_IDENTITY, ContinueOk, CookieResponse, Identity, Init, InitResponse, PaperError, PaperErrorCode,
    PaperHeader, PaperType, SERVER_IDENTITY,
};
use sealstone_mds_protocol::{UserName, Wire, decode_message};
use tokio::io::AsyncRead;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::dial::{ByteStream, MdsDial, SecureChannel};
use super::frames::{read_paper, send};
use super::session::{OpaqueRandom, SessionTicket, TicketKeys};
use crate::ClientError;

/// Time after which an unanswered INIT is sent again.
const ANSWER_WAIT: Duration = Duration::from_secs(3);

/// Options of the paper's login.
#[derive(Clone, Copy, Debug)]
pub struct PaperOptions {
    /// Diffie-Hellman group; the paper's time had 1024 bits.
    pub group: OakleyGroup,
    /// Requests the server's cookie before anything is computed.
    pub conservative: bool,
    /// This end's address as the server sees it, if NAT changes it.
    pub address: Option<IpAddr>,
}

impl Default for PaperOptions {
    fn default() -> Self {
        Self { group: OakleyGroup::Modp2048, conservative: false, address: None }
    }
}

/// Plain TCP to `HOST:PORT`.
#[derive(Clone, Debug)]
pub struct PlainDial {
    /// Address of the server, `HOST:PORT`.
    pub address: String,
    /// Time limit for connecting.
    pub timeout: Duration,
}

impl PlainDial {
    pub(crate) async fn connect(&self) -> io::Result<TcpStream> {
        match timeout(self.timeout, TcpStream::connect(&self.address)).await {
            Ok(stream) => stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream)),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl MdsDial for PlainDial {
    fn dial(&self) -> Pin<Box<dyn Future<Output = io::Result<SecureChannel>> + Send + '_>> {
        // Plain TCP has nothing to bind to: one of its weaknesses.
        Box::pin(async move { Ok((Box::new(self.connect().await?) as Box<dyn ByteStream>, [0; 32])) })
    }
}

/// A login or resumed session: the record layer of the connection.
pub(crate) struct PaperLogin {
    pub(crate) records: Records,
    pub(crate) clock: Option<ClockReading>,
}

/// Logs in with a passphrase.
pub(crate) async fn login(
    stream: &mut TcpStream,
    environment: &Arc<dyn Environment>,
    options: PaperOptions,
    user: &UserName,
    passphrase: &str,
) -> Result<(SessionTicket, PaperLogin), ClientError> {
    let addresses = stream.local_addr().and_then(|own| Ok((own, stream.peer_addr()?)));
    let (own, peer): (SocketAddr, SocketAddr) = addresses.map_err(ClientError::Connection)?;
    let identity = |name: &[u8]| Identity::new(name).map_err(ClientError::from);
    let terms = ClientTerms {
        user: user.clone(),
        client: identity(CLIENT_IDENTITY)?,
        server: identity(SERVER_IDENTITY)?,
        addresses: Addresses { client: options.address.unwrap_or(own.ip()), server: peer.ip() },
        group: options.group,
        offers: Algorithms::offers(),
    };
    let key = PassphraseKey::derive(user, passphrase);
    let mut rng = OpaqueRandom(environment.clone());
    let (init, mut waiting) = if options.conservative {
        let (request, waiting) = AwaitingCookie::start(terms, key);
        send(stream, PaperType::CookieRequest, &request).await?;
        let response: CookieResponse = expect(stream, PaperType::CookieResponse).await?;
        waiting.answer(&mut rng, &response)?
    } else {
        AwaitingResponse::start(&mut rng, terms, key)?
    };
    let mut sent_ms = environment.now_ms();
    send(stream, PaperType::Init, &init).await?;
    let (header, body) = loop {
        match timeout(ANSWER_WAIT, readable(stream)).await {
            Ok(ready) => {
                ready.map_err(ClientError::Connection)?;
                break read_paper(stream).await?;
            }
            Err(_) => {
                let silent = || ClientError::Connection(io::ErrorKind::TimedOut.into());
                let again: Init = waiting.again().ok_or_else(silent)?.clone();
                sent_ms = environment.now_ms();
                send(stream, PaperType::Init, &again).await?;
            }
        }
    };
    let response: InitResponse = message(&header, &body, PaperType::Response)?;
    let (confirm, waiting) = waiting.answer(response, sent_ms, environment.now_ms())?;
    send(stream, PaperType::Confirm, &confirm).await?;
    let (header, body) = loop {
        let (header, body) = read_paper(stream).await?;
        // The answer to a repeated INIT.
        let repeat = header.kind == PaperType::Response
            && decode_message(&body).is_ok_and(|response| waiting.is_repeat(&response));
        if !repeat {
            break (header, body);
        }
    };
    refusal(&header, &body)?;
    let Opened { terms, session, channel, clock } = waiting.open(&header, &body)?;
    let ticket = SessionTicket {
        user: user.clone(),
        server_id: [0; 16],
        session: terms.session,
        keys: TicketKeys::Paper(session),
        expires_ms: terms.expires_ms,
    };
    Ok((ticket, PaperLogin { records: channel, clock }))
}

/// Resumes a session on a new connection.
pub(crate) async fn resume(
    stream: &mut Box<dyn ByteStream>,
    environment: &Arc<dyn Environment>,
    ticket: &SessionTicket,
    session: &PaperSession,
) -> Result<PaperLogin, ClientError> {
    let (question, waiting) = session.resume(&mut OpaqueRandom(environment.clone()), ticket.session);
    let sent_ms = environment.now_ms();
    send(stream, PaperType::Continue, &question).await?;
    let ok: ContinueOk = expect(stream, PaperType::ContinueOk).await?;
    let (records, clock) = waiting.answer(&ok, sent_ms, environment.now_ms())?;
    Ok(PaperLogin { records, clock })
}

/// Waits until bytes arrived without reading them, so that a timeout loses none.
async fn readable(stream: &TcpStream) -> io::Result<()> {
    stream.readable().await
}

async fn expect<T: Wire>(stream: &mut (impl AsyncRead + Unpin), kind: PaperType) -> Result<T, ClientError> {
    let (header, body) = read_paper(stream).await?;
    message(&header, &body, kind)
}

fn message<T: Wire>(header: &PaperHeader, body: &[u8], kind: PaperType) -> Result<T, ClientError> {
    refusal(header, body)?;
    if header.kind != kind {
        return Err(ClientError::Protocol("an unexpected login message"));
    }
    Ok(decode_message(body)?)
}

fn refusal(header: &PaperHeader, body: &[u8]) -> Result<(), ClientError> {
    if header.kind != PaperType::Error {
        return Ok(());
    }
    let PaperError { code, retry_ms, .. } = decode_message(body)?;
    Err(match code {
        PaperErrorCode::Refused => ClientError::LoginRefused,
        PaperErrorCode::Cookie => ClientError::CookieRefused,
        PaperErrorCode::Busy => ClientError::LoginBusy { retry_ms },
        PaperErrorCode::SessionExpired => ClientError::SessionOver,
        PaperErrorCode::Version => ClientError::LoginFailed("the server speaks another version"),
        PaperErrorCode::Malformed => ClientError::LoginFailed("the server found our message malformed"),
        PaperErrorCode::Group => ClientError::LoginFailed("the server refuses the group"),
        PaperErrorCode::Algorithms => ClientError::LoginFailed("no algorithms in common"),
        PaperErrorCode::Replay => ClientError::LoginFailed("the server detected a replayed message"),
        PaperErrorCode::Timeout => ClientError::LoginFailed("the login timed out at the server"),
    })
}

impl From<PaperFailure> for ClientError {
    fn from(failure: PaperFailure) -> Self {
        match failure {
            PaperFailure::Malformed(error) => Self::from(error),
            PaperFailure::ServerCookie | PaperFailure::Signature(_) => {
                Self::LoginFailed("the answer is not from the expected server")
            }
            PaperFailure::NoSession => Self::SessionOver,
            _ => Self::LoginFailed("the server's answer breaks the protocol"),
        }
    }
}
