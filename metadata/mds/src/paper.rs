//! The login of the OBS paper: which accounts it accepts, and what its sessions may do.
//!
//! Does: the decisions between the state machines and the store, with metrics and audit records.
//! Does not: use sockets.
//! Contract: off unless the operator enables it. A session of this profile never belongs to an
//! administrator, changes no account, and cannot be resumed in the other profile, nor the reverse.
//! Truth: docs/standards/paper-login.md; docs/adr/0027-paper-login-behind-a-flag.md.

mod connection;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use sealstone_login::paper::{
    Channel, PAPER_SESSION_BYTES, PaperFailure, PaperSession, PassphraseKey, REKEY_BYTES, ReplayCache,
    ServerProven, ServerTerms, answer_continue,
};
use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::paper::{Continue, ContinueOk, Identity, SERVER_IDENTITY, SessionOk};
use sealstone_mds_protocol::{AccountKind, ErrorCode, Role, Secret, UserName, record};

use crate::accounts;
use crate::counters::add;
use crate::entropy::{Entropy, random};
use crate::error::{self, MdsError};
use crate::keys;
use crate::limiter::LoginSource;
use crate::records::{Account, SUITE_PAPER, SessionRecord, load, save};
use crate::server::Mds;
use crate::sessions::{self, SessionTable};
use crate::store::Wait;
use crate::store::{Snapshot, Transaction};

pub use connection::PaperConnection;

/// Maximum number of logins of a listener that wait for their confirmation. It equals the number of
/// connections that the server accepts before login, so that its shares of networks and addresses
/// decide which ones stay.
pub const HALF_OPEN_MAX: usize = 640;

record! {
    /// Key of an account in this profile: as secret as its passphrase.
    #[derive(Clone)]
    pub struct PaperKeyRecord {
        /// The key k of the paper.
        pub key: [u8; 20],
        /// Creation time of the account: a later account of the same name has no key.
        pub created_ms: u64,
    }
}

impl Drop for PaperKeyRecord {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.key);
    }
}

record! {
    /// Keys of a session of this profile.
    #[derive(Clone)]
    pub struct PaperSessionRecord {
        /// The encoded `PaperSession`.
        pub session: [u8; PAPER_SESSION_BYTES],
    }
}

impl Drop for PaperSessionRecord {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.session);
    }
}

/// State shared by all connections of a listener.
pub struct PaperListener {
    terms: ServerTerms,
    dummy: zeroize::Zeroizing<[u8; 32]>,
    seen: Mutex<ReplayCache>,
    half_open: AtomicUsize,
    figures: PaperCounters,
}

#[derive(Default)]
struct PaperCounters {
    logins: AtomicU64,
    cookie_mismatches: AtomicU64,
    refused: AtomicU64,
    limited: AtomicU64,
    continued: AtomicU64,
}

/// One of [`HALF_OPEN_MAX`] half-open logins.
struct HalfOpenSlot(Arc<PaperListener>);

impl Drop for HalfOpenSlot {
    fn drop(&mut self) {
        self.0.half_open.fetch_sub(1, Ordering::AcqRel);
    }
}

impl PaperListener {
    /// Creates a listener. `takes_group_1` accepts 768-bit groups.
    #[must_use]
    pub fn new(takes_group_1: bool, rng: &mut dyn Entropy) -> Self {
        let identity = Identity::new(SERVER_IDENTITY).expect("a fixed name is an identity");
        Self {
            terms: ServerTerms { identity, takes_group_1 },
            dummy: zeroize::Zeroizing::new(random(rng)),
            seen: Mutex::default(),
            half_open: AtomicUsize::new(0),
            figures: PaperCounters::default(),
        }
    }

    fn take_slot(self: &Arc<Self>) -> Option<HalfOpenSlot> {
        let taken = self.half_open.fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| {
            (open < HALF_OPEN_MAX).then_some(open + 1)
        });
        taken.is_ok().then(|| HalfOpenSlot(self.clone()))
    }

    /// Returns the numbers of half-open logins and of remembered nonces; both are bounded.
    #[must_use]
    pub fn half_open_counts(&self) -> (usize, usize) {
        (self.half_open.load(Ordering::Acquire), self.seen.lock().len())
    }

    /// Returns the counters as Prometheus text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::from(
            "# HELP sealstone_mds_insecure_profile Enabled mechanisms that give no protection.\n\
             # TYPE sealstone_mds_insecure_profile gauge\n\
             sealstone_mds_insecure_profile{mechanism=\"obs-login\"} 1\n",
        );
        for (name, help, figure) in [
            ("logins", "Logins in the paper's profile.", &self.figures.logins),
            ("cookie_mismatches", "Logins with a wrong cookie.", &self.figures.cookie_mismatches),
            ("refused", "Logins and continued sessions refused.", &self.figures.refused),
            (
                "limited",
                "Logins rejected because of too many attempts or half-open logins.",
                &self.figures.limited,
            ),
            ("continued", "Sessions resumed on a new connection.", &self.figures.continued),
        ] {
            let name = format!("sealstone_mds_paper_{name}_total");
            let value = figure.load(Ordering::Relaxed);
            text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}\n"));
        }
        text
    }
}

/// Whether the account may log in with this profile. A passphrase that can be guessed must not give
/// access to devices or accounts, and services have keys.
fn may_log_in(account: &Account) -> bool {
    matches!(account.role, Role::User | Role::ReadOnly) && account.kind == AccountKind::Password
}

/// Sets or removes the key of an account in this profile. Returns its sessions, which end.
pub(crate) fn set_key(
    tx: &mut dyn Transaction,
    name: &UserName,
    key: Option<&Secret>,
) -> error::Result<Vec<SessionId>> {
    let account = accounts::existing(tx, name)?;
    match key {
        None => tx.delete(&keys::paper_key(name))?,
        Some(_) if !may_log_in(&account) => {
            let why = "no key of the paper's profile for administrators, operators and services";
            return Err(MdsError::refused(ErrorCode::Denied, why));
        }
        Some(key) => {
            let bytes: Result<[u8; 20], _> = key.expose().try_into();
            let key = bytes.map_err(|_| MdsError::refused(ErrorCode::Invalid, "key must have 20 bytes"))?;
            save(tx, &keys::paper_key(name), &PaperKeyRecord { key, created_ms: account.created_ms })?;
        }
    }
    sessions::end_where(tx, name, |_, session| session.suite == SUITE_PAPER)
}

/// Returns the account and its key, if it may log in with this profile now.
fn load_paper_account<S: Snapshot + ?Sized>(
    view: &S,
    user: &UserName,
) -> error::Result<Option<(Account, PaperKeyRecord)>> {
    let account = accounts::existing_enabled(view, user)?.filter(may_log_in);
    let record = load::<PaperKeyRecord, _>(view, &keys::paper_key(user))?;
    Ok(account.zip(record).filter(|(account, record)| account.created_ms == record.created_ms))
}

/// A claimed user, with the stored key or with a fake one.
struct ClaimedUser {
    user: UserName,
    key: PassphraseKey,
    known: bool,
}

impl ClaimedUser {
    /// Returns the refusal of a wrong cookie. For a user without a key the log has another reason;
    /// the answer is the same.
    fn refusal(&self, failure: PaperFailure) -> PaperRefusal {
        if self.known { PaperRefusal::Failure(failure) } else { PaperRefusal::Unknown }
    }
}

impl Mds {
    fn paper_claim(&self, listener: &PaperListener, user: &UserName) -> error::Result<ClaimedUser> {
        let found = load_paper_account(&*self.store.snapshot()?, user)?;
        // Computed for every user, so that timing does not reveal unknown ones.
        let dummy = PassphraseKey::dummy(&listener.dummy, user);
        let known = found.is_some();
        let key = found.map_or(dummy, |(_, record)| PassphraseKey::from_bytes(record.key));
        Ok(ClaimedUser { user: user.clone(), key, known })
    }

    /// Opens a session for an authenticated user. Returns the SESSION_OK frame and the channel of
    /// records.
    fn paper_open(
        &self,
        listener: &PaperListener,
        source: LoginSource,
        (proven, key): (ServerProven, &PassphraseKey),
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<(SessionId, Vec<u8>, Channel), PaperRefusal> {
        let user = proven.user().clone();
        let (session, resume): (SessionId, [u8; 32]) = (random(rng), random(rng));
        let expires_ms = now_ms.saturating_add(self.config.session_ttl_ms);
        let own = PaperSessionRecord { session: *proven.session().to_bytes() };
        // Random keys, so that this session cannot be resumed in the other profile.
        let record = |role| SessionRecord {
            user: user.clone(),
            role,
            suite: SUITE_PAPER,
            expires_ms,
            last_used_ms: now_ms,
            keys: resume,
            directory: None,
        };
        // The account is checked again: it may have been disabled, or its key changed, while the
        // proof was on its way.
        let opened = self.update_and(|tx| {
            let same = |record: &PaperKeyRecord| PassphraseKey::from_bytes(record.key).is_same(key);
            let Some((account, _)) = load_paper_account(tx, &user)?.filter(|(_, record)| same(record)) else {
                return Ok((None, Wait::ForMedium));
            };
            let record = record(account.role);
            let (over, wait) = SessionTable::open(tx, &session, &record)?;
            save(tx, &keys::paper_session(&session), &own)?;
            Ok((Some((record, over)), wait))
        })?;
        let (record, over) = opened.ok_or(PaperRefusal::Unknown)?;
        self.sessions.forget(&over);
        self.sessions.insert(session, record);
        if !self.sessions.confirm(&*self.store, &session)? {
            return Err(PaperRefusal::Unknown);
        }
        self.note_login(&user, source, now_ms);
        add(&listener.figures.logins, 1);
        self.audit_login(source, "paper-login", Some(&user), Some(&session), "ok", now_ms);
        let idle_s = u32::try_from(self.config.session_idle_ms / 1000).unwrap_or(u32::MAX);
        let terms = SessionOk { session, expires_ms, idle_s, rekey_bytes: REKEY_BYTES };
        let (frame, channel) = proven.open(rng, &terms)?;
        Ok((session, frame, channel))
    }

    /// Handles CONTINUE.
    fn paper_continue(
        &self,
        listener: &PaperListener,
        source: LoginSource,
        message: &Continue,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<(ContinueOk, Channel), PaperRefusal> {
        let id = &message.session;
        let found = self.sessions.find(&*self.store, id, self.config.session_idle_ms, now_ms)?;
        // Sessions of the modern profile are not accepted here.
        let Some((record, _)) = found.filter(|(record, _)| record.suite == SUITE_PAPER) else {
            self.audit_login(source, "paper-continue", None, Some(id), "no-session", now_ms);
            return Err(PaperFailure::NoSession.into());
        };
        let view = self.store.snapshot().map_err(MdsError::from)?;
        let own = load::<PaperSessionRecord, _>(&*view, &keys::paper_session(id)).map_err(MdsError::from)?;
        drop(view);
        let session = own.and_then(|own| PaperSession::from_bytes(&own.session));
        let answered = session
            .ok_or(PaperFailure::NoSession)
            .and_then(|session| answer_continue(rng, &session, message, now_ms));
        let (ok, channel) = answered.inspect_err(|failure| {
            self.audit_login(
                source,
                "paper-continue",
                Some(&record.user),
                Some(id),
                verdict(failure),
                now_ms,
            );
        })?;
        self.note_login(&record.user, source, now_ms);
        self.sessions.resume(*id, record, now_ms);
        if !self.sessions.confirm(&*self.store, id)? {
            self.audit_login(source, "paper-continue", None, Some(id), "no-session", now_ms);
            return Err(PaperFailure::NoSession.into());
        }
        add(&listener.figures.continued, 1);
        Ok((ok, channel))
    }
}

/// Reasons why a step failed, for the log. The peer gets only a code.
enum PaperRefusal {
    /// The message was invalid.
    Failure(PaperFailure),
    /// No account that may log in here; the peer gets the answer of a wrong cookie.
    Unknown,
    /// Too many attempts or half-open logins; retry after this many milliseconds.
    Busy(u64),
    /// The store failed.
    Store(MdsError),
}

impl From<PaperFailure> for PaperRefusal {
    fn from(failure: PaperFailure) -> Self {
        Self::Failure(failure)
    }
}

impl From<MdsError> for PaperRefusal {
    fn from(error: MdsError) -> Self {
        match error {
            MdsError::Refused(failure) => Self::Busy(u64::from(failure.retry_ms)),
            error @ MdsError::Store(_) => Self::Store(error),
        }
    }
}

/// Returns the name of a failure in the audit log.
const fn verdict(failure: &PaperFailure) -> &'static str {
    match failure {
        PaperFailure::Malformed(_) => "malformed",
        PaperFailure::GroupUnknown(_) => "group-unknown",
        PaperFailure::GroupRefused(_) => "group-refused",
        PaperFailure::ElementLength { .. } => "element-length",
        PaperFailure::ElementWeak => "element-weak",
        PaperFailure::NoCommon(_) => "no-common-algorithm",
        PaperFailure::ChoiceNotOffered => "choice-not-offered",
        PaperFailure::ClientCookie => "cookie-mismatch",
        PaperFailure::ServerCookie => "server-cookie-mismatch",
        PaperFailure::Signature(_) => "signature",
        PaperFailure::Identity(_) => "identity",
        PaperFailure::Echo(_) => "spliced",
        PaperFailure::NonceIsAddress => "nonce-is-address",
        PaperFailure::Replay => "replay",
        PaperFailure::Late => "late",
        PaperFailure::OutOfPlace => "out-of-place",
        PaperFailure::NoSession => "no-session",
        PaperFailure::Record(_) => "record",
    }
}
