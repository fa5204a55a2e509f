//! Logins, resumed sessions, logouts and enrolments: the decisions between cryptography and store.
//!
//! Contract: the transaction that opens a session checks the account again, so that an account that
//! was disabled, or whose password was changed meanwhile, gets no session.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sealstone_login::{
    AccountRecord, ChannelBinding, LoginContext, LoginFailure, ServerStarted, SessionTerms, Stretch,
};
use sealstone_mds_protocol::login::{
    LoginChallenge, LoginError, LoginErrorCode, LoginFinish, LoginOk, LoginStart, RegisterResponse,
    RegisterStart, RegisterUpload, Resume, Retry, Revoking, SessionId,
};
use sealstone_mds_protocol::{AccountKind, ErrorCode, MessageType, RevocationTarget, Role, Text, UserName};

use crate::access::Principal;
use crate::accounts;
use crate::audit::AuditRecord;
use crate::counters::add;
use crate::directory::DirectoryVerdict;
use crate::entropy::{Entropy, random};
use crate::error::{MdsError, Result};
use crate::groups;
use crate::limiter::LoginSource;
use crate::records::{Account, AccountCredential, DirectoryGroups, SUITE_PAPER, SessionRecord};
use crate::revoke;
use crate::server::Mds;
use crate::sessions::{self, SessionTable};
use crate::store::Wait;
use crate::violation::{ProtocolViolation, ViolationContext};

const fn error(code: LoginErrorCode) -> LoginError {
    LoginError { code, retry_ms: 0 }
}

fn busy(retry_ms: u64) -> LoginError {
    LoginError { code: LoginErrorCode::Busy, retry_ms: u32::try_from(retry_ms).unwrap_or(u32::MAX) }
}

/// The client gets `Busy`, so that a failed store does not reveal whether the user exists.
fn store_failed(cause: MdsError) -> LoginError {
    tracing::error!(error = %cause, "login failed in the metadata store");
    busy(1_000)
}

fn roles(role: Role) -> Text<255> {
    Text::truncated(role.as_str())
}

/// A login with a challenge sent.
pub(crate) struct PendingLogin {
    pub(crate) started: ServerStarted,
    /// The account's credential at that time; none if the account does not exist and the challenge
    /// is a fake.
    credential: Option<Box<AccountCredential>>,
    /// Whether the account is a directory user's.
    pub(crate) needs_directory: bool,
    _half_open: HalfOpen,
}

/// Counts an unanswered challenge.
struct HalfOpen(Arc<AtomicUsize>);

impl HalfOpen {
    fn new(all: &Arc<AtomicUsize>) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(all.clone())
    }
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Mds {
    /// Handles LOGIN_START: counts the attempt and returns a challenge, whether the user exists or
    /// not.
    pub(crate) fn login_start(
        &self,
        source: LoginSource,
        channel: &ChannelBinding,
        start: &LoginStart,
        now_ms: u64,
        mut rng: &mut dyn Entropy,
    ) -> std::result::Result<(LoginChallenge, PendingLogin), LoginError> {
        let record_violation = |why: &ProtocolViolation| {
            let (message, user) = (MessageType::LoginStart.name(), Some(&start.user));
            self.record_violation(
                source,
                ViolationContext { action: "login", message, user, session: None },
                why,
                now_ms,
            );
        };
        if Stretch::for_suite(start.suite).is_err() {
            record_violation(&ProtocolViolation::Suite(start.suite));
            return Err(error(LoginErrorCode::Suite));
        }
        if let Err(wait) = self.throttle(&start.user, source, now_ms) {
            add(&self.counters.login_limited, 1);
            self.audit_login(source, "login", Some(&start.user), None, "limited", now_ms);
            return Err(busy(wait));
        }
        let account = self
            .store
            .snapshot()
            .map_err(MdsError::from)
            .and_then(|view| accounts::existing_enabled(&*view, &start.user))
            .map_err(store_failed)?;
        let needs_directory = account.as_ref().is_some_and(|account| account.kind == AccountKind::Directory);
        let credential = account.and_then(|account| account.credential(start.suite).cloned().map(Box::new));
        // A damaged record is treated as an unknown user.
        let record = credential.as_ref().and_then(|one| AccountRecord::parse(&one.record).ok());
        let context = LoginContext::new(&self.server_id, channel);
        let (id, skew) = (random(rng), self.config.clock_error_ms);
        self.login_keys
            .challenge(&mut rng, record.as_ref(), start, context, id, now_ms, skew)
            .map(|(challenge, started)| {
                let _half_open = HalfOpen::new(&self.half_open);
                (challenge, PendingLogin { started, credential, needs_directory, _half_open })
            })
            .map_err(|_| {
                record_violation(&ProtocolViolation::Element);
                error(LoginErrorCode::Malformed)
            })
    }

    /// Returns a cookie challenge if the server is under load and the login has no valid cookie.
    /// Nothing is computed or stored before that.
    pub(crate) fn needs_cookie(
        &self,
        channel: &ChannelBinding,
        start: &LoginStart,
        cookie: Option<&[u8; 40]>,
        now_ms: u64,
        mut rng: &mut dyn Entropy,
    ) -> Option<Retry> {
        let mut jar = self.cookies.lock();
        let good = cookie.is_some_and(|cookie| jar.check(cookie, channel, start, now_ms));
        if good || !self.is_under_load() {
            return None;
        }
        add(&self.counters.cookies, 1);
        let retry_ms = self.config.retry_ms;
        Some(Retry { cookie: jar.bake(&mut rng, channel, start, retry_ms, now_ms), retry_ms })
    }

    /// Handles LOGIN_FINISH: opens a session if the proof is correct.
    pub(crate) fn login_finish(
        &self,
        source: LoginSource,
        PendingLogin { started, credential, needs_directory: _, _half_open }: PendingLogin,
        finish: &LoginFinish,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> std::result::Result<LoginOk, LoginError> {
        let user = started.user().clone();
        let proven = started.finish(finish).map_err(|failure| {
            // A proof for a fake challenge always fails. The audit log distinguishes the two cases,
            // the answer does not.
            let verdict = if credential.is_some() { "refused" } else { "unknown-user" };
            self.login_failed(source, &user, verdict, now_ms);
            error(match failure {
                LoginFailure::Malformed => LoginErrorCode::Malformed,
                _ => LoginErrorCode::Refused,
            })
        })?;
        let session: SessionId = random(rng);
        let expires_ms = now_ms.saturating_add(self.config.session_ttl_ms);
        let idle_s = u32::try_from(self.config.session_idle_ms / 1000).unwrap_or(u32::MAX);
        let refused = || {
            self.login_failed(source, &user, "refused", now_ms);
            error(LoginErrorCode::Refused)
        };
        let credential = credential.ok_or_else(refused)?;
        let account = self
            .store
            .snapshot()
            .map_err(MdsError::from)
            .and_then(|view| accounts::existing_enabled(&*view, &user))
            .map_err(store_failed)?
            .ok_or_else(refused)?;
        // Only now, so that clients that cannot prove the password cause no queries.
        let (role, directory) = match account.kind {
            AccountKind::Directory => self.directory_role(source, &user, &account, now_ms)?,
            AccountKind::Password | AccountKind::Service => (account.role, None),
        };
        let terms = SessionTerms { session, expires_ms, idle_s, roles: roles(role) };
        let (ok, keys) = proven.open(terms);
        let record = SessionRecord {
            user: user.clone(),
            role,
            suite: credential.suite,
            expires_ms,
            last_used_ms: now_ms,
            keys: *keys.to_bytes(),
            directory,
        };
        let over = self
            .update_and(|tx| {
                let still = accounts::existing_enabled(tx, &user)?.filter(|still| {
                    still.role == account.role
                        && still.entry == account.entry
                        && still.credential(credential.suite) == Some(&*credential)
                });
                if still.is_none() {
                    return Ok((None, Wait::ForMedium));
                }
                let (over, wait) = SessionTable::open(tx, &session, &record)?;
                Ok((Some(over), wait))
            })
            .map_err(|cause| match cause {
                MdsError::Refused(failure) => busy(u64::from(failure.retry_ms)),
                cause @ MdsError::Store(_) => store_failed(cause),
            })?
            .ok_or_else(refused)?;
        self.sessions.forget(&over);
        self.sessions.insert(session, record);
        if !self.sessions.confirm(&*self.store, &session).map_err(store_failed)? {
            return Err(refused());
        }
        self.note_login(&user, source, now_ms);
        add(&self.counters.logins, 1);
        self.audit_login(source, "login", Some(&user), Some(&session), "ok", now_ms);
        Ok(ok)
    }

    /// Returns role and groups of an authenticated user in the directory.
    fn directory_role(
        &self,
        source: LoginSource,
        user: &UserName,
        account: &Account,
        now_ms: u64,
    ) -> std::result::Result<(Role, Option<DirectoryGroups>), LoginError> {
        let (verdict, code) = match self.query_verdict(user, account, now_ms) {
            DirectoryVerdict::Access(role, answer) => return Ok((role, Some(answer))),
            DirectoryVerdict::NoAccess(why) => (why, LoginErrorCode::Refused),
            DirectoryVerdict::Unavailable => ("no directory", LoginErrorCode::Directory),
        };
        // The user has proven the password.
        add(&self.counters.login_refused, 1);
        self.audit_proven(source, "login", Some(user), None, verdict, now_ms);
        Err(error(code))
    }

    /// Handles RESUME: continues a session on another connection.
    pub(crate) fn resume(
        &self,
        source: LoginSource,
        channel: &ChannelBinding,
        message: &Resume,
        now_ms: u64,
    ) -> std::result::Result<LoginOk, LoginError> {
        let expired = error(LoginErrorCode::SessionExpired);
        let found = self
            .sessions
            .find(&*self.store, &message.session, self.config.session_idle_ms, now_ms)
            .map_err(store_failed)?
            // The paper's profile resumes sessions itself, with other keys.
            .filter(|(record, _)| record.suite != SUITE_PAPER);
        let Some((mut record, keys)) = found else {
            add(&self.counters.login_refused, 1);
            self.audit_login(source, "resume", None, Some(&message.session), "no-session", now_ms);
            return Err(expired);
        };
        if !keys.proves(message, channel) {
            // The same answer as without a session, so that a session id reveals nothing.
            add(&self.counters.login_refused, 1);
            self.audit_login(source, "resume", Some(&record.user), Some(&message.session), "refused", now_ms);
            return Err(expired);
        }
        if !self.check_directory(&message.session, &mut record, now_ms).map_err(store_failed)? {
            let (user, session) = (Some(&record.user), Some(&message.session));
            self.audit_proven(source, "resume", user, session, "directory", now_ms);
            return Err(expired);
        }
        let mut ok = LoginOk {
            session: message.session,
            epoch: 0,
            expires_ms: record.expires_ms,
            idle_s: u32::try_from(self.config.session_idle_ms / 1000).unwrap_or(u32::MAX),
            roles: roles(record.role),
            confirm: [0; 32],
        };
        ok.confirm = keys.resume_confirm(message, channel, &ok);
        let user = record.user.clone();
        self.sessions.resume(message.session, record, now_ms);
        if !self.sessions.confirm(&*self.store, &message.session).map_err(store_failed)? {
            return Err(expired);
        }
        self.note_login(&user, source, now_ms);
        add(&self.counters.resumed, 1);
        Ok(ok)
    }

    /// Handles LOGOUT, which ends the session on all its connections. With `revoke`, the same
    /// transaction begins to revoke its credentials, unless too many revocations are pending; the
    /// session ends in any case.
    pub(crate) fn logout(&self, session: &SessionId, revoke: bool, now_ms: u64) -> Result<Option<Revoking>> {
        self.catch_up()?;
        self.recheck_session(session)?;
        let principal = self.sessions.check(session, self.config.session_idle_ms, now_ms)?.principal;
        let (mut revoking, mut held) = (None, None);
        if revoke {
            // Waits for requests that are issuing credentials, so that these are in the table.
            let _stopped = self.issuing.write();
            let (credentials, unlisted_ms) = {
                let table = self.issued_table(now_ms);
                let unlisted = table.unlisted_of(&principal.user, now_ms);
                let until_ms = unlisted.map_or(0, |unlisted| unlisted.until_ms());
                (table.of_session(session, &principal.user, now_ms), until_ms)
            };
            let listed_ms = credentials.holders.iter().map(|one| one.expires_ms).max().unwrap_or(0);
            let what = RevocationTarget::Session(*session);
            revoking = self.update(|tx| {
                sessions::end(tx, session, &principal.user)?;
                let servers = self.servers(tx)?;
                match revoke::begin(tx, &principal, what.clone(), servers, credentials.complete, now_ms) {
                    Ok(id) => Ok(Some(Revoking {
                        id,
                        objects: u32::try_from(credentials.holders.len()).unwrap_or(u32::MAX),
                        until_ms: listed_ms.max(unlisted_ms),
                        complete: credentials.complete,
                    })),
                    Err(MdsError::Refused(failure)) if failure.code == ErrorCode::Limit => Ok(None),
                    Err(error) => Err(error),
                }
            })?;
            self.revocations_changed.store(true, Ordering::Release);
            let begun =
                if revoking.is_some() { "being revoked" } else { "not revoked: too many revocations" };
            held = Some(format!("{credentials}, {begun}"));
        } else {
            self.update(|tx| sessions::end(tx, session, &principal.user))?;
        }
        self.sessions.forget(&[*session]);
        self.audit.record(&AuditRecord {
            time_ms: now_ms,
            user: principal.user.as_str(),
            session: Some(session),
            proven: true,
            source: None,
            action: "logout",
            subject: held.as_deref(),
            verdict: "ok",
        });
        Ok(revoking)
    }

    /// Handles REGISTER_START for a client with an enrolment code. All refusals look the same.
    pub(crate) fn register_start(
        &self,
        source: LoginSource,
        start: &RegisterStart,
        now_ms: u64,
    ) -> std::result::Result<RegisterResponse, LoginError> {
        if let Err(wait) = self.throttle(&start.user, source, now_ms) {
            add(&self.counters.login_limited, 1);
            self.audit_login(source, "enrol", Some(&start.user), None, "limited", now_ms);
            return Err(busy(wait));
        }
        let invited = self
            .store
            .snapshot()
            .map_err(MdsError::from)
            .and_then(|view| accounts::account_for_code(&*view, &start.user, start.code.expose(), now_ms))
            .map_err(store_failed)?;
        if invited.is_none() {
            self.enrolment_failed(source, &start.user, "refused", now_ms);
            return Err(error(LoginErrorCode::Refused));
        }
        let response = self.login_keys.register(&start.user, &start.request).map_err(|_| {
            let (message, user) = (MessageType::RegisterStart.name(), Some(&start.user));
            let at = ViolationContext { action: "enrol", message, user, session: None };
            self.record_violation(source, at, &ProtocolViolation::Element, now_ms);
            error(LoginErrorCode::Malformed)
        })?;
        Ok(RegisterResponse { response })
    }

    /// Handles REGISTER_UPLOAD: uses the code, sets the password, and ends sessions opened with
    /// another one.
    pub(crate) fn register_upload(
        &self,
        source: LoginSource,
        upload: &RegisterUpload,
        now_ms: u64,
    ) -> std::result::Result<(), LoginError> {
        let user = &upload.user;
        if !accounts::is_password_record(upload.suite, &upload.record) {
            add(&self.counters.login_refused, 1);
            let message = MessageType::RegisterUpload.name();
            let at = ViolationContext { action: "enrol", message, user: Some(user), session: None };
            self.record_violation(source, at, &ProtocolViolation::Record, now_ms);
            return Err(error(LoginErrorCode::Malformed));
        }
        let credential = AccountCredential { suite: upload.suite, record: upload.record };
        let over = self
            .update(|tx| accounts::enrol(tx, user, upload.code.expose(), &credential, now_ms))
            .map_err(store_failed)?;
        let Some(over) = over else {
            self.enrolment_failed(source, user, "refused", now_ms);
            return Err(error(LoginErrorCode::Refused));
        };
        self.sessions.forget(&over);
        self.note_login(user, source, now_ms);
        add(&self.counters.enrolled, 1);
        self.audit_login(source, "enrol", Some(user), None, "ok", now_ms);
        Ok(())
    }

    /// Records an enrolment that failed after its start.
    pub(crate) fn enrolment_failed(&self, source: LoginSource, user: &UserName, verdict: &str, now_ms: u64) {
        add(&self.counters.login_refused, 1);
        self.audit_login(source, "enrol", Some(user), None, verdict, now_ms);
    }

    /// Records a login that failed after its start. A client with a wrong password notices it in
    /// the challenge and sends no proof, so the server often only sees a missing answer.
    pub(crate) fn login_failed(&self, source: LoginSource, user: &UserName, verdict: &str, now_ms: u64) {
        add(&self.counters.login_refused, 1);
        self.audit_login(source, "login", Some(user), None, verdict, now_ms);
    }

    /// Writes an audit record for a step of a login: unauthenticated, unless it succeeded.
    pub(crate) fn audit_login(
        &self,
        source: LoginSource,
        action: &str,
        user: Option<&UserName>,
        session: Option<&SessionId>,
        verdict: &str,
        time_ms: u64,
    ) {
        let proven = verdict == "ok";
        self.audit.record(&AuditRecord { proven, ..step(source, action, user, session, verdict, time_ms) });
    }

    /// Writes an audit record for an authenticated peer of this connection.
    pub(crate) fn audit_proven(
        &self,
        source: LoginSource,
        action: &str,
        user: Option<&UserName>,
        session: Option<&SessionId>,
        verdict: &str,
        time_ms: u64,
    ) {
        self.audit.record(&step(source, action, user, session, verdict, time_ms));
    }

    /// Changes accounts and removes the sessions that `change` returns from the table.
    pub(crate) fn end_sessions_with(
        &self,
        change: impl FnMut(&mut dyn crate::store::Transaction) -> Result<Vec<SessionId>>,
    ) -> Result<()> {
        let over = self.update(change)?;
        self.sessions.forget(&over);
        Ok(())
    }

    /// Returns the principal of a valid session.
    pub(crate) fn principal(&self, session: Option<&SessionId>, now_ms: u64) -> Result<Principal> {
        let session = session.ok_or_else(|| MdsError::refused(ErrorCode::NotLoggedIn, ""))?;
        self.catch_up()?;
        self.recheck_session(session)?;
        // Read before the groups: a change in between makes the next request read them again.
        let generation = self.groups_generation.load(Ordering::Acquire);
        let found = self.sessions.check(session, self.config.session_idle_ms, now_ms)?;
        let silent_ms = found.asked_ms.map_or(0, |asked_ms| now_ms.saturating_sub(asked_ms));
        if silent_ms > self.config.directory_grace_ms {
            self.end_session_without_directory(&found.principal.user, session, now_ms)?;
            return Err(MdsError::refused(ErrorCode::NotLoggedIn, ""));
        }
        if found.stale {
            self.update_and(|tx| Ok((sessions::touch(tx, session, now_ms)?, Wait::No)))?;
        }
        let mut principal = found.principal;
        if found.asked_ms.is_none() && found.groups_of != generation {
            principal.groups = groups::of(&*self.store.snapshot()?, &principal.user)?;
            self.sessions.set_groups(session, principal.groups.clone(), generation);
        }
        Ok(principal)
    }
}

fn step<'a>(
    source: LoginSource,
    action: &'a str,
    user: Option<&'a UserName>,
    session: Option<&'a SessionId>,
    verdict: &'a str,
    time_ms: u64,
) -> AuditRecord<'a> {
    let (source, user) = (Some(source), user.map_or("", UserName::as_str));
    AuditRecord { time_ms, user, session, proven: true, source, action, subject: None, verdict }
}
