//! One connection: frames in, frames out.
//!
//! Does: the state machine of login, session and logout; sequence numbers.
//! Does not: sockets, clocks, TLS.
//! Contract: call [`Connection::receive`] with one whole frame at a time and send the returned
//! frame before the next call; after `close` no frame is answered. In a session,
//! [`Connection::take_request`] can take a request out of a frame, so that further frames can be
//! received before [`Connection::answer`] returns its answer. Call [`Connection::ended`] at the
//! end: an unfinished login is recorded as failed.
//! Truth: docs/standards/mds/login.md §4.

use sealstone_login::ChannelBinding;
use sealstone_mds_protocol::login::{
    LOGOUT_REVOKE, LoginAgain, LoginError, LoginErrorCode, LoginFinish, LoginStart, Logout, LogoutOk,
    RegisterOk, RegisterStart, RegisterUpload, Resume, SessionId,
};
use sealstone_mds_protocol::{
    ErrorCode, Failure, FrameHeader, MessageType, Request, Response, Secret, Sequence, UserName, Wire,
    WireError, decode_message, encode_message, frame,
};

use crate::counters::add;
use crate::entropy::Entropy;
use crate::handle::PendingRecalls;
use crate::limiter::LoginSource;
use crate::login::PendingLogin;
use crate::server::Mds;
use crate::violation::{ProtocolViolation, ViolationContext};

/// The actions of the caller after a frame.
#[derive(Debug, Default)]
pub struct Output {
    /// Bytes to send.
    pub frame: Option<Vec<u8>>,
    /// Whether to close the connection after sending.
    pub close: bool,
}

/// A request of a session that can be executed in parallel with others.
pub struct SessionRequest {
    session: SessionId,
    id: u64,
    request: Request,
}

impl SessionRequest {
    /// Executes the request.
    #[must_use]
    pub fn decide(self, mds: &Mds, now_ms: u64, rng: &mut dyn Entropy) -> SessionResponse {
        SessionResponse { id: self.id, response: mds.handle(Some(&self.session), self.request, now_ms, rng) }
    }
}

/// Response to a request.
pub struct SessionResponse {
    id: u64,
    response: Response,
}

enum ConnectionPhase {
    /// Connected; Hello, LOGIN_START, RESUME and REGISTER_START are accepted.
    Fresh,
    /// The challenge was sent.
    PendingLogin { login: Box<PendingLogin>, until_ms: u64 },
    /// An enrolment code was correct; the record is expected.
    Registering { user: UserName, code: Secret, until_ms: u64 },
    /// Logged in.
    Active { session: SessionId, received: Sequence, sent: Sequence },
    /// The connection is closed.
    Closed,
}

/// The server's end of one connection.
pub struct Connection {
    phase: ConnectionPhase,
    channel: ChannelBinding,
    source: LoginSource,
}

impl Connection {
    /// Creates a connection. `channel` is the exporter value of its TLS, or a substitute in a
    /// simulation.
    #[must_use]
    pub const fn new(channel: ChannelBinding, source: LoginSource) -> Self {
        Self { phase: ConnectionPhase::Fresh, channel, source }
    }

    /// Whether the connection has a session. The server gives other connections less time.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Active { .. })
    }

    /// Returns the user of the session, and whether it is an administrator; none before the login.
    #[must_use]
    pub fn user(&self, mds: &Mds) -> Option<(UserName, bool)> {
        match &self.phase {
            ConnectionPhase::Active { session, .. } => mds.session_user(session),
            _ => None,
        }
    }

    /// Whether the login in progress needs a directory query when its proof arrives.
    #[must_use]
    pub fn needs_directory(&self) -> bool {
        matches!(&self.phase, ConnectionPhase::PendingLogin { login, .. } if login.needs_directory)
    }

    /// Returns the event that a request has to wait for, if any. The server waits, and passes the
    /// frame in afterwards.
    #[must_use]
    pub fn waits(&self, mds: &Mds, kind: MessageType, body: &[u8]) -> Option<PendingRecalls> {
        match &self.phase {
            ConnectionPhase::Active { session, .. }
                if kind == MessageType::Request && Request::waits(body) =>
            {
                mds.waiting(session, body)
            }
            _ => None,
        }
    }

    /// Records the end of the connection; nothing more is received.
    pub fn ended(self, mds: &Mds, now_ms: u64) {
        match &self.phase {
            ConnectionPhase::PendingLogin { login, .. } => {
                mds.login_failed(self.source, login.started.user(), "abandoned", now_ms);
            }
            ConnectionPhase::Registering { user, .. } => {
                mds.enrolment_failed(self.source, user, "abandoned", now_ms);
            }
            ConnectionPhase::Fresh | ConnectionPhase::Active { .. } | ConnectionPhase::Closed => {}
        }
    }

    /// Handles one frame.
    pub fn receive(
        &mut self,
        mds: &Mds,
        header: &FrameHeader,
        body: &[u8],
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Output {
        if let Some(request) = self.take_request(header, body) {
            let answered = request.decide(mds, now_ms, rng);
            let output = self.answer(mds, &answered, now_ms);
            if output.close {
                self.phase = ConnectionPhase::Closed;
            }
            return output;
        }
        // An error leaves the connection closed.
        let phase = std::mem::replace(&mut self.phase, ConnectionPhase::Closed);
        let (phase, output) = match phase {
            ConnectionPhase::Fresh if header.sequence == 0 => self.fresh(mds, header.kind, body, now_ms, rng),
            ConnectionPhase::PendingLogin { login, until_ms } if header.sequence == 0 => {
                self.challenged(mds, header.kind, body, (*login, until_ms), now_ms, rng)
            }
            ConnectionPhase::Registering { user, code, until_ms } if header.sequence == 0 => {
                self.registering(mds, header.kind, body, (user, code, until_ms), now_ms)
            }
            ConnectionPhase::Active { session, received, sent } => {
                self.active(mds, header, body, (session, received, sent), now_ms)
            }
            // A sequence number without a session.
            phase @ (ConnectionPhase::Fresh
            | ConnectionPhase::PendingLogin { .. }
            | ConnectionPhase::Registering { .. }) => {
                let why = ProtocolViolation::Sequence(header.sequence);
                self.violation(mds, &phase, header.kind.name(), &why, now_ms)
            }
            ConnectionPhase::Closed => self.violation(
                mds,
                &ConnectionPhase::Closed,
                header.kind.name(),
                &ProtocolViolation::OutOfPlace,
                now_ms,
            ),
        };
        self.phase = if output.close { ConnectionPhase::Closed } else { phase };
        output
    }

    /// Takes a request of a session out of a frame. Returns none, without any change, for all other
    /// or invalid frames: those are for [`Connection::receive`], after all requests are answered.
    pub fn take_request(&mut self, header: &FrameHeader, body: &[u8]) -> Option<SessionRequest> {
        let ConnectionPhase::Active { session, received, .. } = &mut self.phase else { return None };
        let mut next = *received;
        if header.kind != MessageType::Request || !next.accept(header.sequence) {
            return None;
        }
        let (id, request) = Request::decode(body).ok()?;
        *received = next;
        Some(SessionRequest { session: *session, id, request })
    }

    /// Returns the frame of a response. Responses may be in another order than requests. After one
    /// that closes the connection, pending responses are still sent, and no further frame is
    /// accepted.
    pub fn answer(&mut self, mds: &Mds, answered: &SessionResponse, now_ms: u64) -> Output {
        let SessionResponse { id, response } = answered;
        let ConnectionPhase::Active { session, sent, .. } = &mut self.phase else {
            return Output { frame: None, close: true };
        };
        let (session, sequence) = (*session, sent.advance());
        // After 2^32 frames the client reconnects.
        let Some(sequence) = sequence else {
            let name = MessageType::Response.name();
            let output = self.violation(mds, &open(session), name, &ProtocolViolation::Exhausted, now_ms).1;
            self.phase = ConnectionPhase::Closed;
            return output;
        };
        let close =
            matches!(response, Response::Failed { failure } if failure.code == ErrorCode::NotLoggedIn);
        Output { close, ..respond(*id, response, sequence) }
    }

    /// Refuses bytes that are not a frame of this profile, or a frame that is too long, and closes
    /// the connection.
    pub fn reject(&mut self, mds: &Mds, error: WireError, now_ms: u64) -> Output {
        let phase = std::mem::replace(&mut self.phase, ConnectionPhase::Closed);
        let output = self.violation(mds, &phase, "", &ProtocolViolation::Frame(error), now_ms).1;
        match error {
            WireError::Frame("version" | "profile") => {
                refuse(LoginError { code: LoginErrorCode::Version, retry_ms: 0 }).1
            }
            _ => output,
        }
    }

    /// Records a protocol violation and closes the connection with an error.
    fn violation(
        &self,
        mds: &Mds,
        phase: &ConnectionPhase,
        message: &'static str,
        why: &ProtocolViolation,
        now_ms: u64,
    ) -> (ConnectionPhase, Output) {
        let (action, user, session) = match phase {
            ConnectionPhase::Fresh | ConnectionPhase::Closed => ("login", None, None),
            ConnectionPhase::PendingLogin { login, .. } => ("login", Some(login.started.user()), None),
            ConnectionPhase::Registering { user, .. } => ("enrol", Some(user), None),
            ConnectionPhase::Active { session, .. } => ("session", None, Some(session)),
        };
        if matches!(phase, ConnectionPhase::PendingLogin { .. } | ConnectionPhase::Registering { .. }) {
            // A failed login, too.
            add(&mds.counters.login_refused, 1);
        }
        mds.record_violation(self.source, ViolationContext { action, message, user, session }, why, now_ms);
        refuse(LoginError { code: LoginErrorCode::Malformed, retry_ms: 0 })
    }

    fn fresh(
        &self,
        mds: &Mds,
        kind: MessageType,
        body: &[u8],
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> (ConnectionPhase, Output) {
        let refused =
            |why: &ProtocolViolation| self.violation(mds, &ConnectionPhase::Fresh, kind.name(), why, now_ms);
        match kind {
            MessageType::Request => match Request::decode(body) {
                Ok((id, request @ Request::Hello { .. })) => {
                    let response = mds.handle(None, request, now_ms, rng);
                    let close = matches!(response, Response::Failed { .. });
                    (ConnectionPhase::Fresh, Output { close, ..respond(id, &response, 0) })
                }
                Ok((id, _)) => {
                    let failure = Failure::new(ErrorCode::NotLoggedIn, "");
                    (ConnectionPhase::Fresh, respond(id, &Response::Failed { failure }, 0))
                }
                Err((Some(id), error)) => {
                    let failure = error.into();
                    refused(&ProtocolViolation::Malformed(error));
                    (
                        ConnectionPhase::Closed,
                        Output { close: true, ..respond(id, &Response::Failed { failure }, 0) },
                    )
                }
                Err((None, error)) => refused(&ProtocolViolation::Malformed(error)),
            },
            MessageType::LoginStart => match decode_message::<LoginStart>(body) {
                Ok(start) => self.start(mds, &start, None, now_ms, rng),
                Err(error) => refused(&ProtocolViolation::Malformed(error)),
            },
            MessageType::LoginAgain => match decode_message::<LoginAgain>(body) {
                Ok(again) => self.start(mds, &again.start, Some(&again.cookie), now_ms, rng),
                Err(error) => refused(&ProtocolViolation::Malformed(error)),
            },
            MessageType::RegisterStart => {
                let start = match decode_message::<RegisterStart>(body) {
                    Ok(start) => start,
                    Err(error) => return refused(&ProtocolViolation::Malformed(error)),
                };
                match mds.register_start(self.source, &start, now_ms) {
                    Ok(response) => {
                        let until_ms = now_ms.saturating_add(mds.config.challenge_ms);
                        (
                            ConnectionPhase::Registering { user: start.user, code: start.code, until_ms },
                            message(MessageType::RegisterResponse, 0, &response),
                        )
                    }
                    Err(error) => refuse(error),
                }
            }
            MessageType::Resume => match decode_message::<Resume>(body) {
                Ok(resume) => match mds.resume(self.source, &self.channel, &resume, now_ms) {
                    Ok(ok) => (open(resume.session), message(MessageType::LoginOk, 0, &ok)),
                    Err(error) => refuse(error),
                },
                Err(error) => refused(&ProtocolViolation::Malformed(error)),
            },
            _ => refused(&ProtocolViolation::OutOfPlace),
        }
    }

    fn start(
        &self,
        mds: &Mds,
        start: &LoginStart,
        cookie: Option<&[u8; 40]>,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> (ConnectionPhase, Output) {
        if let Some(retry) = mds.needs_cookie(&self.channel, start, cookie, now_ms, rng) {
            return (ConnectionPhase::Fresh, message(MessageType::Retry, 0, &retry));
        }
        match mds.login_start(self.source, &self.channel, start, now_ms, rng) {
            Ok((challenge, login)) => {
                let until_ms = now_ms.saturating_add(mds.config.challenge_ms);
                (
                    ConnectionPhase::PendingLogin { login: Box::new(login), until_ms },
                    message(MessageType::LoginChallenge, 0, &challenge),
                )
            }
            Err(error) => refuse(error),
        }
    }

    /// Handles the second half of an enrolment; account and code must be those of the first.
    fn registering(
        &self,
        mds: &Mds,
        kind: MessageType,
        body: &[u8],
        (user, code, until_ms): (UserName, Secret, u64),
        now_ms: u64,
    ) -> (ConnectionPhase, Output) {
        let upload = match kind {
            MessageType::RegisterUpload => decode_message(body).map_err(ProtocolViolation::Malformed),
            _ => Err(ProtocolViolation::OutOfPlace),
        };
        let upload = upload.and_then(|upload: RegisterUpload| {
            let same = upload.user == user && upload.code == code;
            if same { Ok(upload) } else { Err(ProtocolViolation::OtherEnrolment) }
        });
        let upload = match upload {
            Ok(upload) => upload,
            Err(why) => {
                let phase = ConnectionPhase::Registering { user, code, until_ms };
                return self.violation(mds, &phase, kind.name(), &why, now_ms);
            }
        };
        if now_ms > until_ms {
            mds.enrolment_failed(self.source, &user, "late", now_ms);
            return refuse(LoginError { code: LoginErrorCode::Timeout, retry_ms: 0 });
        }
        match mds.register_upload(self.source, &upload, now_ms) {
            // The new user may log in on this connection.
            Ok(()) => {
                (ConnectionPhase::Fresh, message(MessageType::RegisterOk, 0, &RegisterOk { time_ms: now_ms }))
            }
            Err(error) => refuse(error),
        }
    }

    fn challenged(
        &self,
        mds: &Mds,
        kind: MessageType,
        body: &[u8],
        (login, until_ms): (PendingLogin, u64),
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> (ConnectionPhase, Output) {
        let finish = match kind {
            MessageType::LoginFinish => {
                decode_message::<LoginFinish>(body).map_err(ProtocolViolation::Malformed)
            }
            _ => Err(ProtocolViolation::OutOfPlace),
        };
        let finish = match finish {
            Ok(finish) => finish,
            Err(why) => {
                let phase = ConnectionPhase::PendingLogin { login: Box::new(login), until_ms };
                return self.violation(mds, &phase, kind.name(), &why, now_ms);
            }
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

    fn active(
        &self,
        mds: &Mds,
        header: &FrameHeader,
        body: &[u8],
        (session, mut received, mut sent): (SessionId, Sequence, Sequence),
        now_ms: u64,
    ) -> (ConnectionPhase, Output) {
        let refused =
            |why: &ProtocolViolation| self.violation(mds, &open(session), header.kind.name(), why, now_ms);
        if !received.accept(header.sequence) {
            return refused(&ProtocolViolation::Sequence(header.sequence));
        }
        // After 2^32 frames the client reconnects.
        let Some(sequence) = sent.advance() else { return refused(&ProtocolViolation::Exhausted) };
        let phase = ConnectionPhase::Active { session, received, sent };
        match header.kind {
            // Valid requests were taken out before.
            MessageType::Request => match Request::decode(body) {
                Err((Some(id), error)) => {
                    (phase, respond(id, &Response::Failed { failure: error.into() }, sequence))
                }
                Err((None, error)) => refused(&ProtocolViolation::Malformed(error)),
                Ok(_) => refused(&ProtocolViolation::OutOfPlace),
            },
            MessageType::Logout => match decode_message::<Logout>(body) {
                Ok(logout) if logout.session == session => {
                    match mds.logout(&session, logout.flags & LOGOUT_REVOKE != 0, now_ms) {
                        Ok(revoking) => {
                            let ok = LogoutOk { session, revoking };
                            (
                                ConnectionPhase::Closed,
                                Output { close: true, ..message(MessageType::LogoutOk, sequence, &ok) },
                            )
                        }
                        Err(_) => {
                            let error = LoginError { code: LoginErrorCode::SessionExpired, retry_ms: 0 };
                            (
                                ConnectionPhase::Closed,
                                Output { close: true, ..message(MessageType::Error, sequence, &error) },
                            )
                        }
                    }
                }
                Ok(_) => refused(&ProtocolViolation::OtherSession),
                Err(error) => refused(&ProtocolViolation::Malformed(error)),
            },
            _ => refused(&ProtocolViolation::OutOfPlace),
        }
    }
}

fn open(session: SessionId) -> ConnectionPhase {
    ConnectionPhase::Active { session, received: Sequence::default(), sent: Sequence::default() }
}

/// Returns the error for a refused step. If it can be retried later, the connection stays open.
fn refuse(error: LoginError) -> (ConnectionPhase, Output) {
    let close = error.code != LoginErrorCode::Busy;
    (ConnectionPhase::Fresh, Output { close, ..message(MessageType::Error, 0, &error) })
}

fn message(kind: MessageType, sequence: u32, body: &impl Wire) -> Output {
    output(encode_message(kind, sequence, body))
}

fn respond(id: u64, response: &Response, sequence: u32) -> Output {
    let encoded = response.encode(id).or_else(|_| {
        // Pages are limited in size, so this response cannot be sent at all.
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
