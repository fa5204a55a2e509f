//! One connection of the paper's profile: frames in, frames out.
//!
//! Contract: as [`crate::Connection`]. A refusal closes the connection; unauthenticated peers get a
//! code without text.

use std::sync::Arc;

use sealstone_login::paper::{
    Addresses, Channel, HalfOpen, PaperFailure, PassphraseKey, RecordFailure, answer_cookie, check_init,
};
use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::paper::{
    Confirm, CookieRequest, Init, InitResponse, PaperError, PaperErrorCode, PaperHeader, PaperLogout,
    PaperType,
};
use sealstone_mds_protocol::{
    BODY_MAX, ErrorCode, Failure, Request, Response, Text, UserName, Wire, WireError, WireWriter,
    decode_message, encode_message,
};

use super::{ClaimedUser, HalfOpenSlot, PaperListener, PaperRefusal, verdict};
use crate::connection::Output;
use crate::counters::add;
use crate::entropy::Entropy;
use crate::error::MdsError;
use crate::limiter::LoginSource;
use crate::server::Mds;
use crate::violation::{ProtocolViolation, ViolationContext};

/// Retry delay while all half-open logins are in use, milliseconds.
const HALF_OPEN_RETRY_MS: u64 = 1_000;
/// Retry delay after a failure of the store, milliseconds.
const STORE_RETRY_MS: u64 = 1_000;
/// Number of times that a repeated INIT is answered again.
const REPEATS_MAX: u32 = 2;

enum PaperPhase {
    /// Connected; COOKIE_REQ, INIT and CONTINUE are accepted. The user of a cookie request is
    /// counted already.
    Fresh(Option<UserName>),
    /// RESP was sent.
    HalfOpen(Box<HalfOpenLogin>),
    /// Logged in.
    Active { session: SessionId, channel: Box<Channel> },
    /// The connection is closed.
    Closed,
}

/// A login that waits for its confirmation.
struct HalfOpenLogin {
    half: HalfOpen,
    /// Key of the account at that time.
    key: PassphraseKey,
    /// Number of repetitions of its INIT.
    repeats: u32,
    place: HalfOpenSlot,
}

/// The server's end of one connection.
pub struct PaperConnection {
    phase: PaperPhase,
    listener: Arc<PaperListener>,
    addresses: Addresses,
    source: LoginSource,
}

type PaperStep = Result<(PaperPhase, Output), PaperRefusal>;

impl PaperConnection {
    /// Creates a connection between these addresses, as the server's socket sees them.
    #[must_use]
    pub fn new(listener: Arc<PaperListener>, addresses: Addresses) -> Self {
        Self { phase: PaperPhase::Fresh(None), listener, addresses, source: addresses.client.into() }
    }

    /// Whether the connection has a session.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        matches!(self.phase, PaperPhase::Active { .. })
    }

    /// Returns the user of the session, and whether it is an administrator; none before the login.
    #[must_use]
    pub fn user(&self, mds: &Mds) -> Option<(UserName, bool)> {
        match &self.phase {
            PaperPhase::Active { session, .. } => mds.session_user(session),
            _ => None,
        }
    }

    /// Records the end of the connection; nothing more is received.
    pub fn ended(self, mds: &Mds, now_ms: u64) {
        if let PaperPhase::HalfOpen(waiting) = &self.phase {
            add(&self.listener.figures.refused, 1);
            mds.audit_login(self.source, "paper-login", Some(waiting.half.user()), None, "abandoned", now_ms);
        }
    }

    /// Refuses bytes that are not a frame of this profile, or a frame that is too long, and closes
    /// the connection.
    pub fn reject(&mut self, mds: &Mds, error: WireError, now_ms: u64) -> Output {
        let phase = std::mem::replace(&mut self.phase, PaperPhase::Closed);
        let (action, user, session) = match &phase {
            PaperPhase::HalfOpen(waiting) => ("paper-login", Some(waiting.half.user()), None),
            PaperPhase::Active { session, .. } => ("paper-session", None, Some(session)),
            PaperPhase::Fresh(user) => ("paper-login", user.as_ref(), None),
            PaperPhase::Closed => ("paper-login", None, None),
        };
        add(&self.listener.figures.refused, 1);
        let at = ViolationContext { action, message: "", user, session };
        mds.record_violation(self.source, at, &ProtocolViolation::Frame(error), now_ms);
        let code = match error {
            WireError::Frame("version" | "profile") => PaperErrorCode::Version,
            _ => PaperErrorCode::Malformed,
        };
        last(code, 0)
    }

    /// Handles one frame.
    pub fn receive(
        &mut self,
        mds: &Mds,
        header: &PaperHeader,
        body: &[u8],
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Output {
        // A refusal leaves the connection closed.
        let phase = std::mem::replace(&mut self.phase, PaperPhase::Closed);
        let (user, session) = match &phase {
            PaperPhase::HalfOpen(waiting) => (Some(waiting.half.user().clone()), None),
            PaperPhase::Active { session, .. } => (None, Some(*session)),
            PaperPhase::Fresh(_) | PaperPhase::Closed => (claimed(header, body), None),
        };
        let step = match phase {
            PaperPhase::Fresh(asked) => self.fresh(mds, header, body, asked.as_ref(), now_ms, rng),
            PaperPhase::HalfOpen(waiting) => self.half_open(mds, header, body, waiting, now_ms, rng),
            PaperPhase::Active { session, channel } => {
                self.active(mds, header, body, (session, channel), now_ms, rng)
            }
            PaperPhase::Closed => Err(PaperFailure::OutOfPlace.into()),
        };
        match step {
            Ok((phase, output)) => {
                self.phase = if output.close { PaperPhase::Closed } else { phase };
                output
            }
            Err(refusal) => self.refuse(mds, header.kind, user.as_ref(), session.as_ref(), &refusal, now_ms),
        }
    }

    fn fresh(
        &self,
        mds: &Mds,
        header: &PaperHeader,
        body: &[u8],
        asked: Option<&UserName>,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> PaperStep {
        match header.kind {
            // A second request on one connection is a search for cookies.
            PaperType::CookieRequest if asked.is_none() => {
                let request: CookieRequest = decode_message(body).map_err(PaperFailure::from)?;
                let claim = self.claim(mds, &request.user, true, now_ms)?;
                let response = answer_cookie(&claim.key, &self.addresses, &request)
                    .map_err(|failure| claim.refusal(failure))?;
                Ok((PaperPhase::Fresh(Some(claim.user)), plain(PaperType::CookieResponse, &response)?))
            }
            PaperType::Init => {
                let init: Init = decode_message(body).map_err(PaperFailure::from)?;
                let claim = self.claim(mds, &init.user, asked != Some(&init.user), now_ms)?;
                let (response, half, place) = self.init(&claim, init, now_ms, rng)?;
                let output = plain(PaperType::Response, &response)?;
                let waiting = HalfOpenLogin { half, key: claim.key, repeats: 0, place };
                Ok((PaperPhase::HalfOpen(Box::new(waiting)), output))
            }
            PaperType::Continue => {
                let message = decode_message(body).map_err(PaperFailure::from)?;
                let (ok, channel) = mds.paper_continue(&self.listener, self.source, &message, now_ms, rng)?;
                let output = plain(PaperType::ContinueOk, &ok)?;
                Ok((PaperPhase::Active { session: message.session, channel: Box::new(channel) }, output))
            }
            _ => Err(PaperFailure::OutOfPlace.into()),
        }
    }

    /// Counts an attempt and loads the user's key.
    fn claim(
        &self,
        mds: &Mds,
        user: &UserName,
        counts: bool,
        now_ms: u64,
    ) -> Result<ClaimedUser, PaperRefusal> {
        if counts {
            mds.throttle(user, self.source, now_ms).map_err(PaperRefusal::Busy)?;
        }
        Ok(mds.paper_claim(&self.listener, user)?)
    }

    fn init(
        &self,
        claim: &ClaimedUser,
        init: Init,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<(InitResponse, HalfOpen, HalfOpenSlot), PaperRefusal> {
        let checked = check_init(&self.listener.terms, &claim.key, &self.addresses, init)
            .map_err(|failure| claim.refusal(failure))?;
        let place = self.listener.take_slot().ok_or(PaperRefusal::Busy(HALF_OPEN_RETRY_MS))?;
        let fresh = checked.fresh(&mut self.listener.seen.lock())?;
        let (response, half) = fresh.respond(rng, now_ms)?;
        Ok((response, half, place))
    }

    fn half_open(
        &self,
        mds: &Mds,
        header: &PaperHeader,
        body: &[u8],
        mut waiting: Box<HalfOpenLogin>,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> PaperStep {
        match header.kind {
            PaperType::Init if waiting.repeats < REPEATS_MAX => {
                let init: Init = decode_message(body).map_err(PaperFailure::from)?;
                let again = waiting.half.answered(&init).ok_or(PaperFailure::OutOfPlace)?;
                let output = plain(PaperType::Response, again)?;
                waiting.repeats += 1;
                Ok((PaperPhase::HalfOpen(waiting), output))
            }
            PaperType::Confirm => {
                let confirm: Confirm = decode_message(body).map_err(PaperFailure::from)?;
                let HalfOpenLogin { half, key, place, .. } = *waiting;
                let proven = half.confirm(&confirm, now_ms)?;
                drop(place);
                let (session, frame, channel) =
                    mds.paper_open(&self.listener, self.source, (proven, &key), now_ms, rng)?;
                let output = Output { frame: Some(frame), close: false };
                Ok((PaperPhase::Active { session, channel: Box::new(channel) }, output))
            }
            _ => Err(PaperFailure::OutOfPlace.into()),
        }
    }

    /// Logs the reason, and returns the frame with the code for the peer.
    fn refuse(
        &self,
        mds: &Mds,
        kind: PaperType,
        user: Option<&UserName>,
        session: Option<&SessionId>,
        refusal: &PaperRefusal,
        now_ms: u64,
    ) -> Output {
        let figures = &self.listener.figures;
        let (verdict, output) = match refusal {
            PaperRefusal::Failure(failure) => {
                add(&figures.refused, 1);
                match failure {
                    PaperFailure::ClientCookie | PaperFailure::ServerCookie => {
                        add(&figures.cookie_mismatches, 1);
                    }
                    PaperFailure::Malformed(_) | PaperFailure::OutOfPlace | PaperFailure::Record(_) => {
                        add(&mds.counters.violations, 1);
                    }
                    _ => {}
                }
                tracing::info!(source = %self.source, frame = kind.name(), reason = %failure, "paper login refused");
                (verdict(failure), last(failure.code(), 0))
            }
            PaperRefusal::Unknown => {
                add(&figures.refused, 1);
                add(&figures.cookie_mismatches, 1);
                tracing::info!(source = %self.source, frame = kind.name(), "paper login refused: unknown user");
                ("unknown-user", last(PaperErrorCode::Cookie, 0))
            }
            PaperRefusal::Busy(wait_ms) => {
                add(&figures.limited, 1);
                ("limited", last(PaperErrorCode::Busy, *wait_ms))
            }
            PaperRefusal::Store(cause) => {
                tracing::error!(error = %cause, "paper login failed in the metadata store");
                ("store", last(PaperErrorCode::Busy, STORE_RETRY_MS))
            }
        };
        let action = match kind {
            PaperType::Continue => "paper-continue",
            _ if session.is_some() => "paper-session",
            _ => "paper-login",
        };
        // Refused continuations were recorded where the user is known.
        if kind != PaperType::Continue || !matches!(refusal, PaperRefusal::Failure(PaperFailure::NoSession)) {
            if session.is_some() && kind != PaperType::Continue {
                mds.audit_proven(self.source, action, user, session, verdict, now_ms);
            } else {
                mds.audit_login(self.source, action, user, session, verdict, now_ms);
            }
        }
        output
    }

    fn active(
        &self,
        mds: &Mds,
        header: &PaperHeader,
        body: &[u8],
        (session, mut channel): (SessionId, Box<Channel>),
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> PaperStep {
        if !header.kind.is_record() {
            return Err(PaperFailure::OutOfPlace.into());
        }
        let content = channel.opener.open(header, body).map_err(PaperFailure::from)?;
        let (kind, answer, close) = match header.kind {
            PaperType::Data => {
                let (id, response) = match Request::decode(&content) {
                    Ok((id, request)) if administers_accounts(&request) => {
                        mds.audit_proven(self.source, request.name(), None, Some(&session), "Denied", now_ms);
                        let failure = Failure::new(ErrorCode::Denied, "accounts: use the modern profile");
                        (id, Response::Failed { failure })
                    }
                    Ok((id, request)) => (id, mds.handle(Some(&session), request, now_ms, rng)),
                    Err((Some(id), error)) => (id, Response::Failed { failure: error.into() }),
                    Err((None, error)) => return Err(PaperFailure::Malformed(error).into()),
                };
                let close = matches!(&response, Response::Failed { failure } if failure.code == ErrorCode::NotLoggedIn);
                let encoded = response.encode(id).or_else(|_| {
                    // Pages are limited in size, so this response cannot be sent at all.
                    Response::Failed { failure: Failure::new(ErrorCode::Limit, "response") }.encode(id)
                });
                (PaperType::Data, encoded.map_err(PaperFailure::from)?, close)
            }
            PaperType::Logout => {
                let logout: PaperLogout = decode_message(&content).map_err(PaperFailure::from)?;
                if logout.session != session {
                    return Err(PaperFailure::NoSession.into());
                }
                mds.logout(&session, false, now_ms).map(drop).map_err(|error| match error {
                    MdsError::Refused(_) => PaperRefusal::Failure(PaperFailure::NoSession),
                    error @ MdsError::Store(_) => PaperRefusal::Store(error),
                })?;
                let mut out = WireWriter::new();
                logout.put(&mut out);
                (PaperType::LogoutOk, out.finish(BODY_MAX).map_err(PaperFailure::from)?, true)
            }
            _ => return Err(PaperFailure::OutOfPlace.into()),
        };
        let answer = zeroize::Zeroizing::new(answer);
        let frame = channel
            .sealer
            .seal(rng, kind, &answer)
            .map_err(|failure: RecordFailure| PaperFailure::from(failure))?;
        Ok((PaperPhase::Active { session, channel }, Output { frame: Some(frame), close }))
    }
}

/// Returns the last frame of a connection, with a code only.
fn last(code: PaperErrorCode, wait_ms: u64) -> Output {
    Output { close: true, ..plain(PaperType::Error, &error(code, wait_ms)).unwrap_or_default() }
}

/// Returns the claimed user, for the log.
fn claimed(header: &PaperHeader, body: &[u8]) -> Option<UserName> {
    match header.kind {
        PaperType::CookieRequest => decode_message::<CookieRequest>(body).ok().map(|request| request.user),
        PaperType::Init => decode_message::<Init>(body).ok().map(|init| init.user),
        _ => None,
    }
}

fn error(code: PaperErrorCode, wait_ms: u64) -> PaperError {
    PaperError { code, text: Text::default(), retry_ms: u32::try_from(wait_ms).unwrap_or(u32::MAX) }
}

fn plain(kind: PaperType, message: &impl Wire) -> Result<Output, PaperRefusal> {
    let frame = encode_message(kind, 0, message).map_err(PaperFailure::from)?;
    Ok(Output { frame: Some(frame), close: false })
}

/// Whether the request administers accounts. This profile refuses it, because its passphrases can
/// be guessed from a recording.
fn administers_accounts(request: &Request) -> bool {
    matches!(request.operation(), 0x0030..=0x003B | 0x003D..=0x0040)
}
