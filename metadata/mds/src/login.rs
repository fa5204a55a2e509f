//! Logins, resumed sessions, logouts: the decisions between the cryptography and the store.

use sealstone_login::{
    AccountRecord, ChannelBinding, LoginContext, LoginFailure, ServerStarted, SessionTerms, Stretch,
};
use sealstone_mds_protocol::login::{
    LoginChallenge, LoginError, LoginErrorCode, LoginFinish, LoginOk, LoginStart, Resume, SessionId,
};
use sealstone_mds_protocol::{ErrorCode, Text, UserName};

use crate::accounts;
use crate::audit::AuditRecord;
use crate::counters::add;
use crate::entropy::{Entropy, random};
use crate::error::{MdsError, Result};
use crate::limiter::Source;
use crate::records::SessionRecord;
use crate::server::Mds;
use crate::sessions::{self, Sessions};

const fn error(code: LoginErrorCode) -> LoginError {
    LoginError { code, retry_ms: 0 }
}

fn busy(retry_ms: u64) -> LoginError {
    LoginError { code: LoginErrorCode::Busy, retry_ms: u32::try_from(retry_ms).unwrap_or(u32::MAX) }
}

/// A store that fails does not tell whether the user exists.
fn store_failed(cause: MdsError) -> LoginError {
    tracing::error!(error = %cause, "login: metadata store");
    busy(1_000)
}

fn roles(admin: bool) -> Text<255> {
    Text::truncated(if admin { "user,admin" } else { "user" })
}

impl Mds {
    /// LOGIN_START: counts the attempt, answers with a challenge whether the user exists or not.
    pub(crate) fn login_start(
        &self,
        source: Source,
        channel: &ChannelBinding,
        start: &LoginStart,
        now_ms: u64,
        mut rng: &mut dyn Entropy,
    ) -> std::result::Result<(LoginChallenge, ServerStarted), LoginError> {
        if Stretch::for_suite(start.suite).is_err() {
            return Err(error(LoginErrorCode::Suite));
        }
        if let Err(wait) = self.limiter.lock().attempt(&start.user, source, now_ms) {
            add(&self.counters.login_limited, 1);
            self.audit_login(source, "login", &start.user, None, "limited", now_ms);
            return Err(busy(wait));
        }
        let account = self
            .store
            .snapshot()
            .map_err(MdsError::from)
            .and_then(|view| accounts::for_login(&*view, &start.user, start.suite))
            .map_err(store_failed)?;
        // A damaged record is treated as an unknown user.
        let record = account.and_then(|account| AccountRecord::parse(&account.record).ok());
        let context = LoginContext::new(&self.server_id, channel);
        let (id, skew) = (random(rng), self.config.clock_error_ms);
        self.login_keys
            .challenge(&mut rng, record.as_ref(), start, context, id, now_ms, skew)
            .map_err(|_| error(LoginErrorCode::Malformed))
    }

    /// LOGIN_FINISH: opens a session if the proof is right.
    pub(crate) fn login_finish(
        &self,
        source: Source,
        started: ServerStarted,
        finish: &LoginFinish,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> std::result::Result<LoginOk, LoginError> {
        let user = started.user().clone();
        let proven = started.finish(finish).map_err(|failure| {
            self.login_failed(source, &user, "refused", now_ms);
            error(match failure {
                LoginFailure::Malformed => LoginErrorCode::Malformed,
                _ => LoginErrorCode::Refused,
            })
        })?;
        let session: SessionId = random(rng);
        let expires_ms = now_ms.saturating_add(self.config.session_ttl_ms);
        let idle_s = u32::try_from(self.config.session_idle_ms / 1000).unwrap_or(u32::MAX);
        // The account may have been removed or disabled while the proof was on its way.
        let account = self
            .store
            .snapshot()
            .map_err(MdsError::from)
            .and_then(|view| accounts::existing_enabled(&*view, &user))
            .map_err(store_failed)?
            .ok_or_else(|| {
                self.login_failed(source, &user, "refused", now_ms);
                error(LoginErrorCode::Refused)
            })?;
        let terms = SessionTerms { session, expires_ms, idle_s, roles: roles(account.admin) };
        let (ok, keys) = proven.open(terms);
        let record = SessionRecord {
            user: user.clone(),
            admin: account.admin,
            expires_ms,
            last_used_ms: now_ms,
            keys: *keys.to_bytes(),
        };
        let over = self.update(|tx| Sessions::open(tx, &session, &record)).map_err(|cause| match cause {
            MdsError::Refused(failure) => busy(u64::from(failure.retry_ms)),
            cause @ MdsError::Store(_) => store_failed(cause),
        })?;
        self.sessions.forget(&over);
        self.sessions.insert(session, record);
        self.limiter.lock().succeeded(&user, source, now_ms);
        add(&self.counters.logins, 1);
        self.audit_login(source, "login", &user, Some(&session), "ok", now_ms);
        Ok(ok)
    }

    /// RESUME: takes a session up on another connection.
    pub(crate) fn resume(
        &self,
        source: Source,
        channel: &ChannelBinding,
        message: &Resume,
        now_ms: u64,
    ) -> std::result::Result<LoginOk, LoginError> {
        let expired = error(LoginErrorCode::SessionExpired);
        let (record, keys) = self
            .sessions
            .find(&*self.store, &message.session, self.config.session_idle_ms, now_ms)
            .map_err(store_failed)?
            .ok_or(expired)?;
        if !keys.proves(message, channel) {
            // The same answer as for no session: a session id alone tells nothing.
            add(&self.counters.login_refused, 1);
            self.audit_login(source, "resume", &record.user, Some(&message.session), "refused", now_ms);
            return Err(expired);
        }
        let mut ok = LoginOk {
            session: message.session,
            epoch: 0,
            expires_ms: record.expires_ms,
            idle_s: u32::try_from(self.config.session_idle_ms / 1000).unwrap_or(u32::MAX),
            rekey_records: 0,
            roles: roles(record.admin),
            confirm: [0; 32],
        };
        ok.confirm = keys.resume_confirm(message, channel, &ok);
        self.limiter.lock().succeeded(&record.user, source, now_ms);
        self.sessions.take_up(message.session, record, now_ms);
        add(&self.counters.resumed, 1);
        Ok(ok)
    }

    /// LOGOUT, on every connection of the session.
    pub(crate) fn logout(&self, session: &SessionId, now_ms: u64) -> Result<()> {
        let (who, _) = self.sessions.check(session, self.config.session_idle_ms, now_ms)?;
        self.update(|tx| sessions::end(tx, session, &who.user))?;
        self.sessions.forget(&[*session]);
        self.audit.record(&AuditRecord {
            time_ms: now_ms,
            user: who.user.as_str(),
            session: Some(session),
            source: None,
            action: "logout",
            subject: None,
            verdict: "ok",
        });
        Ok(())
    }

    /// A login that was begun did not succeed. Who has the wrong password finds out from the challenge, alone: then all
    /// that the server sees is that no proof comes.
    pub(crate) fn login_failed(&self, source: Source, user: &UserName, verdict: &str, now_ms: u64) {
        add(&self.counters.login_refused, 1);
        self.audit_login(source, "login", user, None, verdict, now_ms);
    }

    fn audit_login(
        &self,
        source: Source,
        action: &str,
        user: &UserName,
        session: Option<&SessionId>,
        verdict: &str,
        time_ms: u64,
    ) {
        let source = Some(source);
        let user = user.as_str();
        self.audit.record(&AuditRecord { time_ms, user, session, source, action, subject: None, verdict });
    }

    /// Ends all sessions of a user, in the same transaction as `change`.
    pub(crate) fn end_sessions_with(
        &self,
        user: &UserName,
        mut change: impl FnMut(&mut dyn crate::store::Transaction) -> Result<()>,
    ) -> Result<()> {
        let over = self.update(|tx| {
            change(tx)?;
            sessions::end_all(tx, user)
        })?;
        self.sessions.forget(&over);
        Ok(())
    }

    /// The principal of a session that is alive.
    pub(crate) fn principal(
        &self,
        session: Option<&SessionId>,
        now_ms: u64,
    ) -> Result<crate::access::Principal> {
        let session = session.ok_or_else(|| MdsError::refused(ErrorCode::NotLoggedIn, ""))?;
        let (who, stale) = self.sessions.check(session, self.config.session_idle_ms, now_ms)?;
        if stale {
            self.update(|tx| sessions::touch(tx, session, now_ms))?;
        }
        Ok(who)
    }
}
