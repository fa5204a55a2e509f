//! One connection: frames in, frames out.
//!
//! Does: the state machine of login, session and logout; sequence numbers. Does not: sockets, clocks, TLS.
//! Contract: call [`Connection::receive`] with one whole frame at a time and send what it returns before the next;
//! after `close` nothing more is answered. Call [`Connection::ended`] at the end: a login that stopped half way is a
//! failed one, and recorded.
//! Truth: docs/standards/mds.md §4.

use sealstone_login::ChannelBinding;
use sealstone_mds_protocol::login::{
    LOGOUT_REVOKE, LoginAgain, LoginError, LoginErrorCode, LoginFinish, LoginStart, Logout, RegisterOk,
    RegisterStart, RegisterUpload, Resume, SessionId,
};
use sealstone_mds_protocol::{
    ErrorCode, Failure, FrameHeader, MessageType, Request, Response, Secret, Sequence, UserName, Wire,
    WireError, decode_message, encode_message, frame,
};

use crate::counters::add;
use crate::entropy::Entropy;
use crate::limiter::Source;
use crate::login::Challenged;
use crate::server::Mds;

/// What to do after a frame.
#[derive(Debug, Default)]
pub struct Output {
    /// Bytes to send.
    pub frame: Option<Vec<u8>>,
    /// Send, then close the connection.
    pub close: bool,
}

enum Phase {
    /// Connected; Hello, LOGIN_START, RESUME and REGISTER_START are taken.
    Fresh,
    /// The challenge is out.
    Challenged { login: Box<Challenged>, until_ms: u64 },
    /// A code was right; the record is awaited.
    Registering { user: UserName, code: Secret, until_ms: u64 },
    /// Logged in.
    Active { session: SessionId, received: Sequence, sent: Sequence },
    /// Over.
    Closed,
}

/// The server's end of one connection.
pub struct Connection {
    phase: Phase,
    channel: ChannelBinding,
    source: Source,
}

impl Connection {
    /// A new connection. `channel` is the exporter of its TLS, or what stands for it in a simulation.
    #[must_use]
    pub const fn new(channel: ChannelBinding, source: Source) -> Self {
        Self { phase: Phase::Fresh, channel, source }
    }

    /// Is somebody logged in on it? The shell gives others less time.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        matches!(self.phase, Phase::Active { .. })
    }

    /// The connection is gone; nothing more is received.
    pub fn ended(self, mds: &Mds, now_ms: u64) {
        match &self.phase {
            Phase::Challenged { login, .. } => {
                mds.login_failed(self.source, login.started.user(), "abandoned", now_ms);
            }
            Phase::Registering { user, .. } => {
                mds.enrolment_failed(self.source, user, "abandoned", now_ms);
            }
            Phase::Fresh | Phase::Active { .. } | Phase::Closed => {}
        }
    }

    /// Takes one frame.
    pub fn receive(
        &mut self,
        mds: &Mds,
        header: &FrameHeader,
        body: &[u8],
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Output {
        // An error leaves it closed.
        let phase = std::mem::replace(&mut self.phase, Phase::Closed);
        let (phase, output) = match phase {
            Phase::Fresh if header.sequence == 0 => self.fresh(mds, header.kind, body, now_ms, rng),
            Phase::Challenged { login, until_ms } if header.sequence == 0 => {
                self.challenged(mds, header.kind, body, (*login, until_ms), now_ms, rng)
            }
            Phase::Registering { user, code, until_ms } if header.sequence == 0 => {
                self.registering(mds, header.kind, body, (user, code, until_ms), now_ms)
            }
            Phase::Active { session, received, sent } => {
                active(mds, header, body, (session, received, sent), now_ms, rng)
            }
            Phase::Fresh | Phase::Challenged { .. } | Phase::Registering { .. } | Phase::Closed => {
                violation(mds)
            }
        };
        self.phase = if output.close { Phase::Closed } else { phase };
        output
    }

    fn fresh(
        &self,
        mds: &Mds,
        kind: MessageType,
        body: &[u8],
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> (Phase, Output) {
        match kind {
            MessageType::Request => match Request::decode(body) {
                Ok((id, request @ Request::Hello { .. })) => {
                    let response = mds.handle(None, request, now_ms, rng);
                    let close = matches!(response, Response::Failed { .. });
                    (Phase::Fresh, Output { close, ..respond(id, &response, 0) })
                }
                Ok((id, _)) => {
                    let failure = Failure::new(ErrorCode::NotLoggedIn, "");
                    (Phase::Fresh, respond(id, &Response::Failed { failure }, 0))
                }
                Err((Some(id), error)) => {
                    add(&mds.counters.violations, 1);
                    let failure = error.into();
                    (Phase::Closed, Output { close: true, ..respond(id, &Response::Failed { failure }, 0) })
                }
                Err((None, _)) => violation(mds),
            },
            MessageType::LoginStart => {
                let Ok(start) = decode_message::<LoginStart>(body) else { return violation(mds) };
                self.start(mds, &start, None, now_ms, rng)
            }
            MessageType::LoginAgain => {
                let Ok(again) = decode_message::<LoginAgain>(body) else { return violation(mds) };
                self.start(mds, &again.start, Some(&again.cookie), now_ms, rng)
            }
            MessageType::RegisterStart => {
                let Ok(start) = decode_message::<RegisterStart>(body) else { return violation(mds) };
                match mds.register_start(self.source, &start, now_ms) {
                    Ok(response) => {
                        let until_ms = now_ms.saturating_add(mds.config.challenge_ms);
                        (
                            Phase::Registering { user: start.user, code: start.code, until_ms },
                            message(MessageType::RegisterResponse, 0, &response),
                        )
                    }
                    Err(error) => refuse(error),
                }
            }
            MessageType::Resume => {
                let Ok(resume) = decode_message::<Resume>(body) else { return violation(mds) };
                match mds.resume(self.source, &self.channel, &resume, now_ms) {
                    Ok(ok) => (open(resume.session), message(MessageType::LoginOk, 0, &ok)),
                    Err(error) => refuse(error),
                }
            }
            _ => violation(mds),
        }
    }

    fn start(
        &self,
        mds: &Mds,
        start: &LoginStart,
        cookie: Option<&[u8; 40]>,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> (Phase, Output) {
        if let Some(retry) = mds.needs_cookie(&self.channel, start, cookie, now_ms, rng) {
            return (Phase::Fresh, message(MessageType::Retry, 0, &retry));
        }
        match mds.login_start(self.source, &self.channel, start, now_ms, rng) {
            Ok((challenge, login)) => {
                let until_ms = now_ms.saturating_add(mds.config.challenge_ms);
                (
                    Phase::Challenged { login: Box::new(login), until_ms },
                    message(MessageType::LoginChallenge, 0, &challenge),
                )
            }
            Err(error) => refuse(error),
        }
    }

    /// The second half of an enrolment: for the same account, with the same code.
    fn registering(
        &self,
        mds: &Mds,
        kind: MessageType,
        body: &[u8],
        (user, code, until_ms): (UserName, Secret, u64),
        now_ms: u64,
    ) -> (Phase, Output) {
        let upload = match kind {
            MessageType::RegisterUpload => decode_message::<RegisterUpload>(body).ok(),
            _ => None,
        };
        let Some(upload) = upload.filter(|upload| upload.user == user && upload.code == code) else {
            mds.enrolment_failed(self.source, &user, "abandoned", now_ms);
            return violation(mds);
        };
        if now_ms > until_ms {
            mds.enrolment_failed(self.source, &user, "late", now_ms);
            return refuse(LoginError { code: LoginErrorCode::Timeout, retry_ms: 0 });
        }
        match mds.register_upload(self.source, &upload, now_ms) {
            // The new user may log in on this connection.
            Ok(()) => (Phase::Fresh, message(MessageType::RegisterOk, 0, &RegisterOk { time_ms: now_ms })),
            Err(error) => refuse(error),
        }
    }

    fn challenged(
        &self,
        mds: &Mds,
        kind: MessageType,
        body: &[u8],
        (login, until_ms): (Challenged, u64),
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> (Phase, Output) {
        let finish = match kind {
            MessageType::LoginFinish => decode_message::<LoginFinish>(body).ok(),
            _ => None,
        };
        let Some(finish) = finish else {
            mds.login_failed(self.source, login.started.user(), "abandoned", now_ms);
            return violation(mds);
        };
        if now_ms > until_ms {
            mds.login_failed(self.source, login.started.user(), "late", now_ms);
            return refuse(LoginError { code: LoginErrorCode::Timeout, retry_ms: 0 });
        }
        match mds.login_finish(self.source, login, &finish, now_ms, rng) {
            Ok(ok) => (open(ok.session), message(MessageType::LoginOk, 0, &ok)),
            Err(error) => refuse(error),
        }
    }
}

fn active(
    mds: &Mds,
    header: &FrameHeader,
    body: &[u8],
    (session, mut received, mut sent): (SessionId, Sequence, Sequence),
    now_ms: u64,
    rng: &mut dyn Entropy,
) -> (Phase, Output) {
    if !received.accept(header.sequence) {
        return violation(mds);
    }
    // 2^32 frames: the client reconnects.
    let Some(sequence) = sent.advance() else { return violation(mds) };
    let phase = Phase::Active { session, received, sent };
    match header.kind {
        MessageType::Request => match Request::decode(body) {
            Ok((id, request)) => {
                let response = mds.handle(Some(&session), request, now_ms, rng);
                let close = matches!(&response, Response::Failed { failure } if failure.code == ErrorCode::NotLoggedIn);
                (phase, Output { close, ..respond(id, &response, sequence) })
            }
            Err((Some(id), error)) => {
                (phase, respond(id, &Response::Failed { failure: error.into() }, sequence))
            }
            Err((None, _)) => violation(mds),
        },
        MessageType::Logout => match decode_message::<Logout>(body) {
            Ok(logout) if logout.session == session => {
                match mds.logout(&session, logout.flags & LOGOUT_REVOKE != 0, now_ms) {
                    Ok(()) => (
                        Phase::Closed,
                        Output { close: true, ..message(MessageType::LogoutOk, sequence, &logout) },
                    ),
                    Err(_) => {
                        let error = LoginError { code: LoginErrorCode::SessionExpired, retry_ms: 0 };
                        (
                            Phase::Closed,
                            Output { close: true, ..message(MessageType::Error, sequence, &error) },
                        )
                    }
                }
            }
            _ => violation(mds),
        },
        _ => violation(mds),
    }
}

fn open(session: SessionId) -> Phase {
    Phase::Active { session, received: Sequence::default(), sent: Sequence::default() }
}

/// Something that no client of ours sends: say so and close.
fn violation(mds: &Mds) -> (Phase, Output) {
    add(&mds.counters.violations, 1);
    refuse(LoginError { code: LoginErrorCode::Malformed, retry_ms: 0 })
}

/// A refused step. One that may be tried again later leaves the connection open.
fn refuse(error: LoginError) -> (Phase, Output) {
    let close = error.code != LoginErrorCode::Busy;
    (Phase::Fresh, Output { close, ..message(MessageType::Error, 0, &error) })
}

fn message(kind: MessageType, sequence: u32, body: &impl Wire) -> Output {
    output(encode_message(kind, sequence, body))
}

fn respond(id: u64, response: &Response, sequence: u32) -> Output {
    let encoded = response.encode(id).or_else(|_| {
        // Pages are cut to fit, so this is a response that cannot be sent at all.
        Response::Failed { failure: Failure::new(ErrorCode::Limit, "response") }.encode(id)
    });
    output(encoded.and_then(|body| frame(MessageType::Response, sequence, &body)))
}

fn output(encoded: Result<Vec<u8>, WireError>) -> Output {
    match encoded {
        Ok(frame) => Output { frame: Some(frame), close: false },
        Err(_) => Output { frame: None, close: true },
    }
}
