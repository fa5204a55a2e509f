//! Hello, login and resumption on a fresh channel.
//!
//! Does: runs OPAQUE bound to the channel, or proves the key of an existing session.
//! Does not: send requests; `link` does.
//! Truth: docs/design/security.md §2.4; docs/standards/mds/login.md §4.

use std::sync::Arc;

use sealstone_initiator::Environment;
use sealstone_login::paper::PaperSession;
use sealstone_login::{
    CryptoRng, LoginContext, LoginFailure, RngCore, SessionKeys, begin_login, start_registration,
};
use sealstone_mds_protocol::login::{
    LoginAgain, LoginChallenge, LoginError, LoginErrorCode, LoginOk, RegisterOk, RegisterResponse,
    RegisterStart, RegisterUpload, Retry, SessionId,
};
use sealstone_mds_protocol::{
    MessageType, PROTOCOL_VERSION, Request, Response, Secret, Text, UserName, Wire,
};
use sealstone_seal::clock::DeviceClock;
use zeroize::Zeroizing;

use super::dial::ByteStream;
use super::frames::{receive, send, send_body};
use crate::ClientError;
use crate::tls::ChannelBinding;

/// The client's name in the server's logs.
const SOFTWARE: &str = concat!("sealstone-client ", env!("CARGO_PKG_VERSION"));

/// Maximum cookies that a server may request in one login.
const COOKIES_MAX: u32 = 5;
/// Longest pause before a cookie is returned.
const COOKIE_PAUSE_MAX_MS: u32 = 5_000;

/// The secrets with which a client resumes a session without its password.
#[derive(Clone, Debug)]
pub struct SessionTicket {
    /// The user of the session.
    pub user: UserName,
    /// The identity that the server chose when it was set up.
    pub server_id: [u8; 16],
    /// The session.
    pub session: SessionId,
    /// The keys, which also determine the profile.
    pub keys: TicketKeys,
    /// When it ends in any case, in milliseconds since 1970.
    pub expires_ms: u64,
}

/// Keys of a session, by profile. Keys of one profile are useless in the other.
#[derive(Clone, Debug)]
pub enum TicketKeys {
    /// OPAQUE over TLS.
    Modern(SessionKeys),
    /// The paper's login.
    Paper(PaperSession),
}

impl TicketKeys {
    /// Returns the keys as stored in a file: a secret of 32 bytes in the modern profile, 34 in the
    /// paper's.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            Self::Modern(keys) => keys.to_bytes().to_vec(),
            Self::Paper(session) => session.to_bytes().to_vec(),
        })
    }
}

impl From<SessionKeys> for TicketKeys {
    fn from(keys: SessionKeys) -> Self {
        Self::Modern(keys)
    }
}

/// The server's answer to Hello.
pub(crate) struct Greeting {
    pub(crate) server_id: [u8; 16],
    /// Server's clock minus ours, in milliseconds; `None` if the answer took too long to be exact.
    pub(crate) clock_offset_ms: Option<i64>,
}

/// A Hello that was sent. Messages that do not depend on its answer may follow at once, which saves
/// a round trip.
struct Greeted {
    sent_ms: u64,
}

impl Greeted {
    async fn send(
        stream: &mut Box<dyn ByteStream>,
        environment: &dyn Environment,
    ) -> Result<Self, ClientError> {
        let software = Text::truncated(SOFTWARE);
        let request = Request::Hello { oldest: PROTOCOL_VERSION, newest: PROTOCOL_VERSION, software };
        let sent_ms = environment.now_ms();
        send_body(stream, MessageType::Request, &request.encode(0)?).await?;
        Ok(Self { sent_ms })
    }

    async fn answer(
        self,
        stream: &mut Box<dyn ByteStream>,
        environment: &dyn Environment,
    ) -> Result<Greeting, ClientError> {
        let frame = receive(stream).await?;
        let received_ms = environment.now_ms();
        if frame.kind != MessageType::Response {
            return Err(refusal(&frame, "no answer to the greeting"));
        }
        match Response::decode(&frame.body).map_err(|(_, error)| error)? {
            (0, Response::Hello { version: PROTOCOL_VERSION, server_id, time_ms, .. }) => {
                let reading = DeviceClock::from_exchange(self.sent_ms, received_ms, time_ms);
                Ok(Greeting { server_id, clock_offset_ms: reading.ok().map(|reading| reading.offset_ms()) })
            }
            (_, Response::Failed { failure }) => Err(failure.into()),
            _ => Err(ClientError::Protocol("no answer to the greeting")),
        }
    }
}

/// Sends Hello, negotiates the version, and logs in with a password. Returns the clock offset of
/// [`Greeting`]. Runs Argon2id: three passes over 64 MiB with the standard suite.
pub(crate) async fn login(
    stream: &mut Box<dyn ByteStream>,
    environment: &Arc<dyn Environment>,
    binding: ChannelBinding,
    suite: u16,
    user: &UserName,
    password: &[u8],
) -> Result<(SessionTicket, Option<i64>), ClientError> {
    let mut rng = OpaqueRandom(environment.clone());
    let (start, begun) = begin_login(&mut rng, suite, user, password)?;
    let greeted = Greeted::send(stream, &**environment).await?;
    send(stream, MessageType::LoginStart, &start).await?;
    let greeting = greeted.answer(stream, &**environment).await?;
    let context = LoginContext::new(&greeting.server_id, &sealstone_login::ChannelBinding(binding));
    let challenge = challenged(stream, &start).await?;
    let (finish, state) = begun.with(context).challenge(&mut rng, challenge)?;
    send(stream, MessageType::LoginFinish, &finish).await?;
    let ok: LoginOk = expect(stream, MessageType::LoginOk).await?;
    let keys = state.confirm(&ok)?;
    let ticket = SessionTicket {
        user: user.clone(),
        server_id: greeting.server_id,
        session: ok.session,
        keys: keys.into(),
        expires_ms: ok.expires_ms,
    };
    Ok((ticket, greeting.clock_offset_ms))
}

/// Receives the challenge; a server under load first sends a cookie, which is returned after a
/// pause.
async fn challenged(
    stream: &mut Box<dyn ByteStream>,
    start: &sealstone_mds_protocol::login::LoginStart,
) -> Result<LoginChallenge, ClientError> {
    let mut last_ms = 0;
    for _ in 0..COOKIES_MAX {
        let frame = receive(stream).await?;
        match frame.kind {
            MessageType::LoginChallenge => return frame.message(),
            MessageType::Retry => {
                let Retry { cookie, retry_ms } = frame.message()?;
                last_ms = retry_ms;
                if retry_ms > COOKIE_PAUSE_MAX_MS {
                    break;
                }
                tokio::time::sleep(core::time::Duration::from_millis(u64::from(retry_ms))).await;
                let again = LoginAgain { cookie, start: start.clone() };
                send(stream, MessageType::LoginAgain, &again).await?;
            }
            _ => return Err(refusal(&frame, "an unexpected login message")),
        }
    }
    Err(ClientError::LoginBusy { retry_ms: last_ms })
}

/// Sends Hello, and sets a password with an enrolment code. Runs Argon2id.
pub(crate) async fn enrol(
    stream: &mut Box<dyn ByteStream>,
    environment: &Arc<dyn Environment>,
    suite: u16,
    user: &UserName,
    code: Secret,
    password: &[u8],
) -> Result<(), ClientError> {
    let mut rng = OpaqueRandom(environment.clone());
    Greeted::send(stream, &**environment).await?.answer(stream, &**environment).await?;
    let (request, state) = start_registration(&mut rng, user, password)?;
    let start = RegisterStart { user: user.clone(), code: code.clone(), request };
    send(stream, MessageType::RegisterStart, &start).await?;
    let refused = |error| match error {
        ClientError::LoginRefused => ClientError::EnrolmentRefused,
        other => other,
    };
    let answer: RegisterResponse = expect(stream, MessageType::RegisterResponse).await.map_err(refused)?;
    let record = state.finish(&mut rng, suite, &answer.response)?;
    let upload = RegisterUpload { user: user.clone(), code, record, suite };
    send(stream, MessageType::RegisterUpload, &upload).await?;
    let _: RegisterOk = expect(stream, MessageType::RegisterOk).await.map_err(refused)?;
    Ok(())
}

/// Sends Hello, and resumes a session on a new channel. Returns the clock offset of [`Greeting`].
pub(crate) async fn resume(
    stream: &mut Box<dyn ByteStream>,
    environment: &Arc<dyn Environment>,
    binding: ChannelBinding,
    ticket: &SessionTicket,
    keys: &SessionKeys,
) -> Result<Option<i64>, ClientError> {
    let mut nonce = [0; 16];
    environment.fill_random(&mut nonce);
    let channel = sealstone_login::ChannelBinding(binding);
    let message = keys.resume(ticket.session, &channel, nonce);
    let greeted = Greeted::send(stream, &**environment).await?;
    // Useless to a different server, since it is bound to this channel.
    send(stream, MessageType::Resume, &message).await?;
    let greeting = greeted.answer(stream, &**environment).await?;
    if greeting.server_id != ticket.server_id {
        return Err(ClientError::LoginFailed("connected to a different metadata server"));
    }
    let ok: LoginOk = match expect(stream, MessageType::LoginOk).await {
        Err(ClientError::LoginRefused) => return Err(ClientError::SessionOver),
        other => other?,
    };
    keys.check_resumed(&message, &channel, &ok)?;
    Ok(greeting.clock_offset_ms)
}

async fn expect<T: Wire>(stream: &mut Box<dyn ByteStream>, kind: MessageType) -> Result<T, ClientError> {
    let frame = receive(stream).await?;
    if frame.kind == kind { frame.message() } else { Err(refusal(&frame, "an unexpected login message")) }
}

fn refusal(frame: &super::frames::Frame, otherwise: &'static str) -> ClientError {
    match frame.kind {
        MessageType::Error => match frame.message::<LoginError>() {
            Ok(error) => login_error(error),
            Err(error) => error,
        },
        // No server answers a resumption so.
        MessageType::Retry => match frame.message::<Retry>() {
            Ok(retry) => ClientError::LoginBusy { retry_ms: retry.retry_ms },
            Err(error) => error,
        },
        _ => ClientError::Protocol(otherwise),
    }
}

const fn login_error(error: LoginError) -> ClientError {
    match error.code {
        LoginErrorCode::Refused => ClientError::LoginRefused,
        LoginErrorCode::Busy => ClientError::LoginBusy { retry_ms: error.retry_ms },
        LoginErrorCode::SessionExpired => ClientError::SessionOver,
        LoginErrorCode::Version => ClientError::LoginFailed("the server speaks another version"),
        LoginErrorCode::Malformed => ClientError::LoginFailed("the server found our message malformed"),
        LoginErrorCode::Suite => ClientError::LoginFailed("the account uses another login suite"),
        LoginErrorCode::Replay => ClientError::LoginFailed("the server detected a replayed message"),
        LoginErrorCode::Directory => ClientError::LoginFailed(
            "the password is right, but the directory that knows the account does not answer",
        ),
        LoginErrorCode::Timeout => ClientError::LoginFailed("the login timed out at the server"),
    }
}

impl From<LoginFailure> for ClientError {
    fn from(failure: LoginFailure) -> Self {
        match failure {
            LoginFailure::Refused => Self::LoginRefused,
            LoginFailure::Malformed => Self::LoginFailed("malformed login message"),
            LoginFailure::Suite(_) => Self::LoginFailed("unknown login suite"),
            LoginFailure::Stretch => Self::LoginFailed("not enough memory to stretch the password"),
            LoginFailure::Damaged => Self::LoginFailed("stored login keys are damaged"),
        }
    }
}

/// Random bytes of the environment, for OPAQUE.
pub(crate) struct OpaqueRandom(pub(crate) Arc<dyn Environment>);

impl RngCore for OpaqueRandom {
    fn next_u32(&mut self) -> u32 {
        let mut bytes = [0; 4];
        self.fill_bytes(&mut bytes);
        u32::from_be_bytes(bytes)
    }

    fn next_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.fill_bytes(&mut bytes);
        u64::from_be_bytes(bytes)
    }

    fn fill_bytes(&mut self, into: &mut [u8]) {
        self.0.fill_random(into);
    }

    fn try_fill_bytes(&mut self, into: &mut [u8]) -> Result<(), rand::Error> {
        self.fill_bytes(into);
        Ok(())
    }
}

impl CryptoRng for OpaqueRandom {}
