//! The server itself: set up once, opened on every start.
//!
//! Does: hold what all requests share, run transactions, the housekeeping that the shell calls. Does not: decide a
//! request; `handle` does.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use sealstone_login::{CookieJar, ServerId, ServerKeys, start_registration};
use sealstone_mds_protocol::login::{SUITE_STANDARD, SessionId};
use sealstone_mds_protocol::{
    AccountKind, DeviceId, DeviceProblem, DeviceState, ErrorCode, FILE_PARTITION, Failure, InodeId,
    ProblemKind, Role, Stat, Text, UserName,
};
use sealstone_seal::Credential;

use crate::ahead;
use crate::audit::{AuditSink, NoAudit};
use crate::check::Checks;
use crate::config::Config;
use crate::counters::{Counters, add};
use crate::devices::{self, DeviceAddress, DeviceTable, Purpose, SharedSpace};
use crate::directory::Directory;
use crate::entropy::{Entropy, random};
use crate::error::{MdsError, Result};
use crate::fence::Fences;
use crate::handle::leases::sees_all_until_now;
use crate::holders;
use crate::holdings::{HoldingTable, Holdings, Writers};
use crate::holds::Holds;
use crate::issue::{GrantLog, NoGrantLog};
use crate::keeping::Exchanges;
use crate::keys::{self, LOGIN_KEYS};
use crate::leases::{Leases, Who};
use crate::lengths::LengthChecks;
use crate::limiter::LoginLimiter;
use crate::locks::Locks;
use crate::namespace::{self, ClearItem, RemoveCursors};
use crate::once::Remembered;
use crate::proof::ProofKey;
use crate::reap::{self, ReapItem};
use crate::records::{Account, AccountCredential, count, counter, load, save};
use crate::sessions::{self, Sessions};
use crate::shared::{EPOCHS, Epochs, LEASE_MS, Leading, Lives, SharedStore};
use crate::store::{MetaError, MetaStore, Transaction};

/// Version of the layout of the store.
pub(crate) const STORE_VERSION: u64 = 9;
/// Times a transaction is run again after a conflict.
const CONFLICTS_MAX: usize = 8;
/// Creates expired in one transaction at most.
const EXPIRE_BATCH: usize = 64;
/// Life of a credential for the server itself, milliseconds.
pub(crate) const OWN_CREDENTIAL_MS: u64 = 60_000;

/// Numbers that are left out after a restore: more files than a server makes between two backups.
const RESTORE_STEP: u64 = 1 << 32;
/// The same for policy access tags, which have 32 bits.
const RESTORE_TAG_STEP: u64 = 1 << 20;

const VERSION: &str = "version";
const SERVER_ID: &str = "server-id";

/// Why a server cannot start on a store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store is empty or its setup was interrupted: set it up (again).
    #[error("the metadata store is not set up")]
    NotSetUp,
    /// The store belongs to a release with another layout.
    #[error("the metadata store has version {found}, this release reads {STORE_VERSION}")]
    Version {
        /// The version found.
        found: u64,
    },
    /// The store is set up already.
    #[error("the metadata store is set up already")]
    AlreadySetUp,
    /// The keys for logins do not parse.
    #[error("the login keys in the metadata store are damaged")]
    LoginKeys,
    /// The administrator's account could not be made.
    #[error("the administrator's password cannot be used")]
    Password(#[source] sealstone_login::LoginFailure),
    /// The store failed, or what it holds does not parse.
    #[error("the metadata store cannot be used")]
    Store(#[from] MdsError),
}

impl From<MetaError> for OpenError {
    fn from(error: MetaError) -> Self {
        Self::Store(error.into())
    }
}

/// The server: shared by all connections.
pub struct Mds {
    pub(crate) store: Arc<dyn MetaStore>,
    pub(crate) config: Config,
    pub(crate) server_id: ServerId,
    pub(crate) login_keys: ServerKeys,
    pub(crate) proof_key: ProofKey,
    pub(crate) holds: Holds,
    pub(crate) locks: Locks,
    pub(crate) fences: Fences,
    /// When servers of the same store were last heard of.
    pub(crate) lives: Mutex<Lives>,
    pub(crate) leases: Arc<Leases>,
    /// Were there holders before the start that are given no leases?
    pub(crate) unled_before: bool,
    /// What others may write with since before the start.
    pub(crate) writers_before: Writers,
    pub(crate) clears_changed: AtomicBool,
    pub(crate) holders_swept: AtomicBool,
    pub(crate) devices: DeviceTable,
    pub(crate) sessions: Sessions,
    pub(crate) limiter: Mutex<LoginLimiter>,
    /// Of registrations by who is logged in: they must not use up logins, nor logins them.
    pub(crate) registrations: Mutex<LoginLimiter>,
    /// Shares of users in the record of refused requests for credentials.
    pub(crate) refusals: Mutex<LoginLimiter>,
    pub(crate) counters: Counters,
    pub(crate) audit: Arc<dyn AuditSink>,
    sweep_at: Mutex<Option<SessionId>>,
    /// Where the next request of a recursive removal continues.
    pub(crate) remove_cursors: RemoveCursors,
    pub(crate) checks: Checks,
    /// Answers to changes that are done once.
    pub(crate) remembered: Mutex<Remembered>,
    /// Holders that have something on record and are not here: since when.
    pub(crate) missed: Mutex<HashMap<Who, u64>>,
    pub(crate) devices_changed: AtomicBool,
    /// Counts changes of groups and memberships, from 1.
    pub(crate) groups_generation: AtomicU64,
    pub(crate) holdings: Mutex<HoldingTable>,
    pub(crate) length_checks: LengthChecks,
    holdings_began: AtomicBool,
    pub(crate) cookies: Mutex<CookieJar>,
    /// Challenges that nobody has answered yet.
    pub(crate) half_open: Arc<AtomicUsize>,
    logins_waiting: AtomicUsize,
    pub(crate) key_turn: Mutex<Exchanges>,
    pub(crate) directory: OnceLock<Arc<dyn Directory>>,
    /// Held while credentials leave; alone, while what is held is revoked.
    pub(crate) issuing: RwLock<()>,
    pub(crate) grant_log: Arc<dyn GrantLog>,
    pub(crate) revocations_changed: AtomicBool,
    /// Was anything committed lazily since the store was settled?
    unsettled: AtomicBool,
    /// Changes by whichever server that are known here.
    pub(crate) seen: Arc<Mutex<Epochs>>,
    pub(crate) leading: Mutex<Leading>,
}

/// May a crash take a change that was told of already?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// No: nobody hears of it before it is on the medium.
    ForMedium,
    /// Yes, and whatever it takes does nobody any harm: only for what gives nothing but a session.
    No,
}

/// A login that waits for its turn in the shell.
pub struct LoginTurn<'a>(&'a AtomicUsize);

impl Drop for LoginTurn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Mds {
    /// Sets an empty store up in one transaction: identity, login keys, root directory, administrator.
    ///
    /// # Errors
    /// `AlreadySetUp`, `Password`, `Store`.
    pub fn set_up(
        store: &dyn MetaStore,
        admin: &UserName,
        password: &[u8],
        now_ms: u64,
        mut rng: &mut dyn Entropy,
    ) -> std::result::Result<ServerId, OpenError> {
        if is_set_up(store)? {
            return Err(OpenError::AlreadySetUp);
        }
        let server_id: ServerId = random(rng);
        let login_keys = ServerKeys::generate(&mut rng);
        let (request, started) =
            start_registration(&mut rng, admin, password).map_err(OpenError::Password)?;
        let response = login_keys.register(admin, &request).map_err(OpenError::Password)?;
        let record = started.finish(&mut rng, SUITE_STANDARD, &response).map_err(OpenError::Password)?;
        let account = Account {
            kind: AccountKind::Password,
            role: Role::Admin,
            enabled: true,
            created_ms: now_ms,
            credentials: vec![AccountCredential { suite: SUITE_STANDARD, record }],
            invitation: None,
            entry: None,
        };
        let object_base = u64::from(u32::from_be_bytes(random(rng)) >> 1 | 1) << 32;

        let mut tx = store.begin()?;
        tx.put(&keys::meta(LOGIN_KEYS), &login_keys.to_bytes())?;
        save(&mut *tx, &keys::meta(SERVER_ID), &server_id)?;
        // The upper half is random, so that a device that served another server before holds no object of that number.
        save(&mut *tx, &keys::meta(counter::OBJECT), &object_base)?;
        save(&mut *tx, &keys::user(admin), &account)?;
        count(&mut *tx, counter::USERS, 1)?;
        namespace::make_root(&mut *tx, admin, now_ms)?;
        save(&mut *tx, &keys::meta(VERSION), &STORE_VERSION)?;
        tx.commit()?;
        Ok(server_id)
    }

    /// The store was copied back from a backup: what was given out since then is not known. Numbers go on from where
    /// nobody has been, and no session comes back.
    ///
    /// # Errors
    /// `NotSetUp`, `Version`, `Store`.
    pub fn restored(store: &dyn MetaStore, rng: &mut dyn Entropy) -> std::result::Result<(), OpenError> {
        if !is_set_up(store)? {
            return Err(OpenError::NotSetUp);
        }
        let mut tx = store.begin()?;
        // As at setup: objects that were made after the backup are on the devices under numbers that are not known.
        let object_base = u64::from(u32::from_be_bytes(random(rng)) >> 1 | 1) << 32;
        save(&mut *tx, &keys::meta(counter::OBJECT), &object_base)?;
        let tag: u64 = load(&*tx, &keys::meta(counter::TAG))?.unwrap_or(0);
        save(&mut *tx, &keys::meta(counter::TAG), &tag.saturating_add(RESTORE_TAG_STEP))?;
        for name in [counter::INODE, counter::INTENT] {
            let number: u64 = load(&*tx, &keys::meta(name))?.unwrap_or(1);
            save(&mut *tx, &keys::meta(name), &number.saturating_add(RESTORE_STEP))?;
        }
        sessions::forget_all(&mut *tx)?;
        tx.commit()?;
        Ok(())
    }

    /// Version of the records that this release reads and writes.
    pub const RECORDS_VERSION: u64 = STORE_VERSION;

    /// Whose store it is, and the version of its records.
    ///
    /// # Errors
    /// `NotSetUp`, `Version`, `Store`.
    pub fn identity(store: &dyn MetaStore) -> std::result::Result<(ServerId, u64), OpenError> {
        if !is_set_up(store)? {
            return Err(OpenError::NotSetUp);
        }
        let id = load(&*store.snapshot()?, &keys::meta(SERVER_ID))?;
        Ok((id.ok_or(MetaError::Damaged("no server id"))?, STORE_VERSION))
    }

    /// Is the store set up?
    ///
    /// # Errors
    /// `Version`, `Store`.
    pub fn is_set_up(store: &dyn MetaStore) -> std::result::Result<bool, OpenError> {
        is_set_up(store)
    }

    /// Opens a store that is set up.
    ///
    /// # Errors
    /// `NotSetUp`, `Version`, `LoginKeys`, `Store`.
    pub fn open(store: Arc<dyn MetaStore>, config: Config) -> std::result::Result<Self, OpenError> {
        if !is_set_up(&*store)? {
            return Err(OpenError::NotSetUp);
        }
        let (server_id, login_keys, proof_key) = {
            let view = store.snapshot()?;
            let id = load(&*view, &keys::meta(SERVER_ID))?.ok_or(MetaError::Damaged("no server id"))?;
            let bytes = view.get(&keys::meta(LOGIN_KEYS))?.ok_or(OpenError::LoginKeys)?;
            let bytes = zeroize::Zeroizing::new(bytes);
            let login_keys = ServerKeys::from_bytes(&bytes).map_err(|_| OpenError::LoginKeys)?;
            (id, login_keys, ProofKey::new(&bytes))
        };
        let before = holders::are_on_record(&*store, config.shared.then_some(&config.server))?;
        // Where several servers share a store nobody is given leases.
        let (led, unled_before) =
            if config.shared { (Vec::new(), true) } else { holders::led_on_record(&*store)? };
        let ahead = if config.shared {
            ahead::forget_all(&*store)?;
            Vec::new()
        } else {
            ahead::on_record(&*store)?
        };
        let fences = Fences::load(&*store, config.shared.then_some(&config.server))?;
        let seen: Arc<Mutex<Epochs>> = Arc::default();
        let mut store = store;
        let sessions = Sessions::default();
        if config.shared {
            // Before the devices are read: what is known is never older than what is said to be.
            *seen.lock() = load(&*store.snapshot()?, &keys::meta(EPOCHS))?.unwrap_or_default();
            store = Arc::new(SharedStore::new(store, Arc::clone(&seen)));
        }
        let devices = DeviceTable::load(&*store, config.file_partitions())?;
        let holdings = HoldingTable::new(config.issued_max);
        Ok(Self {
            seen,
            leading: Mutex::default(),
            store,
            config,
            server_id,
            login_keys,
            proof_key,
            holds: Holds::new(before),
            locks: Locks::default(),
            fences,
            lives: Mutex::default(),
            leases: Arc::new(Leases::new(led, ahead)),
            unled_before,
            writers_before: Writers::default(),
            clears_changed: AtomicBool::new(true),
            holders_swept: AtomicBool::new(false),
            devices,
            sessions,
            limiter: Mutex::default(),
            registrations: Mutex::default(),
            refusals: Mutex::default(),
            counters: Counters::default(),
            audit: Arc::new(NoAudit),
            sweep_at: Mutex::default(),
            remove_cursors: RemoveCursors::default(),
            checks: Checks::default(),
            remembered: Mutex::default(),
            missed: Mutex::default(),
            devices_changed: AtomicBool::new(false),
            groups_generation: AtomicU64::new(1),
            holdings: Mutex::new(holdings),
            length_checks: LengthChecks::default(),
            holdings_began: AtomicBool::new(false),
            cookies: Mutex::default(),
            half_open: Arc::default(),
            logins_waiting: AtomicUsize::new(0),
            key_turn: Mutex::default(),
            directory: OnceLock::new(),
            issuing: RwLock::default(),
            grant_log: Arc::new(NoGrantLog),
            // What was under way when the server ended.
            revocations_changed: AtomicBool::new(true),
            unsettled: AtomicBool::new(false),
        })
    }

    /// Has every decision that matters recorded there; without it none is.
    #[must_use]
    pub fn with_audit(self, audit: Arc<dyn AuditSink>) -> Self {
        Self { audit, ..self }
    }

    /// Identity of this server, part of every login.
    #[must_use]
    pub const fn server_id(&self) -> ServerId {
        self.server_id
    }

    /// Figures since the start.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Announces a login that waits for its turn: too many of them, and logins need a cookie.
    #[must_use]
    pub fn login_turn(&self) -> LoginTurn<'_> {
        self.logins_waiting.fetch_add(1, Ordering::Relaxed);
        LoginTurn(&self.logins_waiting)
    }

    /// Is the server under load, so that a login must come with a cookie?
    #[must_use]
    pub fn is_under_load(&self) -> bool {
        self.half_open.load(Ordering::Relaxed) >= self.config.half_open_max
            || self.logins_waiting.load(Ordering::Relaxed) >= self.config.login_queue_max
    }

    /// The table of grants knows all that are alive.
    pub(crate) fn holdings_are_known(&self) {
        self.holdings_began.store(true, Ordering::Relaxed);
    }

    /// The table of grants; it learns here when the server began.
    pub(crate) fn holdings(&self, now_ms: u64) -> parking_lot::MutexGuard<'_, HoldingTable> {
        let mut table = self.holdings.lock();
        if !self.holdings_began.swap(true, Ordering::Relaxed) {
            table.begin(now_ms);
        }
        table
    }

    /// Entries in the table of issued credentials, and those dropped from it since the start.
    #[must_use]
    pub fn issued_credentials(&self) -> (usize, u64) {
        self.holdings.lock().figures()
    }

    /// What a user holds that devices still accept. His sessions and future credentials end without this; whoever
    /// wants these to end too must tell the devices.
    #[must_use]
    pub fn held_by(&self, user: &UserName, now_ms: u64) -> Holdings {
        self.holdings(now_ms).of_user(user, now_ms)
    }

    /// Runs changes as one transaction; again if another server was faster.
    pub(crate) fn update<T>(&self, mut work: impl FnMut(&mut dyn Transaction) -> Result<T>) -> Result<T> {
        self.update_and(|tx| Ok((work(tx)?, Wait::ForMedium)))
    }

    /// The same; `work` says whether the medium is waited for.
    pub(crate) fn update_and<T>(
        &self,
        mut work: impl FnMut(&mut dyn Transaction) -> Result<(T, Wait)>,
    ) -> Result<T> {
        for _ in 0..CONFLICTS_MAX {
            sees_all_until_now();
            let mut tx = self.store.begin()?;
            // Until the commit nobody is given a lease on what is changed.
            let (done, _changing) = self.watched(&mut *tx, &mut work);
            let (value, wait) = match done {
                Ok(done) => done,
                // A store may see it as soon as something is read.
                Err(MdsError::Store(MetaError::Conflict)) => continue,
                Err(error) => {
                    drop(tx);
                    self.fence_lost_now();
                    return Err(error);
                }
            };
            let committed = match wait {
                Wait::ForMedium => tx.commit(),
                Wait::No => tx.commit_lazily(),
            };
            match committed {
                Ok(()) => {
                    // After the commit: whoever settles meanwhile may settle once too often, never too seldom.
                    self.unsettled.fetch_or(wait == Wait::No, Ordering::AcqRel);
                    return Ok(value);
                }
                Err(MetaError::Conflict) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(MdsError::Refused(Failure::busy(10)))
    }

    /// Would a request that only looks something up be answered in microseconds?
    #[must_use]
    pub fn answers_at_once(&self) -> bool {
        self.store.answers_at_once()
    }

    pub(crate) fn session_user(&self, session: &SessionId) -> Option<(UserName, bool)> {
        self.sessions.user_and_role(session)
    }

    /// Keys that scans of the store have stepped over since it was opened, removed ones included.
    #[must_use]
    pub fn keys_visited(&self) -> u64 {
        self.store.keys_visited()
    }

    /// What was read from the store, when no crash can take it back: devices do what is in it.
    pub(crate) fn durably<T>(&self, read: T) -> Result<T> {
        self.store.wait_for_medium()?;
        Ok(read)
    }

    /// Makes durable what nobody waited for: sessions that were opened or used. Call it every second or so, and at the
    /// end; what a crash takes before, its users open again.
    ///
    /// # Errors
    /// `Store`.
    pub fn settle(&self) -> Result<()> {
        if self.unsettled.swap(false, Ordering::AcqRel)
            && let Err(error) = self.store.settle()
        {
            self.unsettled.store(true, Ordering::Release);
            return Err(error.into());
        }
        Ok(())
    }

    /// Forgets what has expired of what is in memory. Call every few seconds, on every server.
    pub fn tidy_memory(&self, now_ms: u64) {
        self.holdings(now_ms).expire(now_ms);
        if let Err(error) = self.tidy_holders(now_ms) {
            tracing::error!(%error, "what is held is not on record as it is");
        }
        if let Err(error) = self.forget_answers(now_ms) {
            tracing::error!(%error, "answers are remembered for longer than they need to be");
        }
        if self.config.shared {
            self.sessions.expire(self.config.session_idle_ms, now_ms);
        }
    }

    /// Gives expired creates up and ends old sessions, a bounded number of each. Call every few seconds, on the server
    /// that leads; returns whether there may be more to do at once.
    ///
    /// # Errors
    /// `Store`.
    pub fn tidy(&self, now_ms: u64) -> Result<bool> {
        let expired = self.update(|tx| namespace::expire(tx, EXPIRE_BATCH, now_ms))?;
        add(&self.counters.expired_intents, expired as u64);
        self.tidy_memory(now_ms);
        let more = self.sweep_orphans(true, now_ms)?;
        let after = *self.sweep_at.lock();
        let idle = self.config.session_idle_ms;
        let (over, next) = self.update(|tx| sessions::sweep(tx, after, idle, now_ms))?;
        self.sessions.forget(&over);
        *self.sweep_at.lock() = next;
        Ok(more || expired == EXPIRE_BATCH)
    }

    /// Up to `limit` files whose objects hold bytes that were cut off: these must be gone before the file may grow.
    ///
    /// # Errors
    /// `Store`.
    pub fn next_clears(&self, after: Option<InodeId>, limit: usize) -> Result<Vec<ClearItem>> {
        let items = namespace::next_clears(&*self.store.snapshot()?, after, limit)?;
        self.durably(items)
    }

    /// A file as [`Mds::next_clears`] gives it, as it is now; none if there is nothing to be cleared.
    ///
    /// # Errors
    /// `Store`.
    pub fn clear_of(&self, inode: InodeId) -> Result<Option<ClearItem>> {
        let item = namespace::clear_of(&*self.store.snapshot()?, inode)?;
        self.durably(item)
    }

    /// The objects of these are no longer than they are to be, and that is durable.
    ///
    /// # Errors
    /// `Store`.
    pub fn cleared(&self, items: &[ClearItem]) -> Result<()> {
        self.update(|tx| namespace::cleared(tx, items))
    }

    /// Was a file cut, or does anybody wait for one to be cleared, since the last call?
    #[must_use]
    pub fn take_clears_changed(&self) -> bool {
        self.clears_changed.load(Ordering::Relaxed) && self.clears_changed.swap(false, Ordering::AcqRel)
    }

    /// Up to `limit` objects to be removed from their devices now. `after` is the last one of the page before: a queue that
    /// is read from its start again costs a step for each removed key.
    ///
    /// # Errors
    /// `Store`.
    pub fn next_reap(&self, after: Option<&ReapItem>, limit: usize, now_ms: u64) -> Result<Vec<ReapItem>> {
        let mut after = after.copied();
        loop {
            let view = self.store.snapshot()?;
            let mut items = reap::next(&*view, after.as_ref(), limit, now_ms)?;
            after = items.last().copied().or(after);
            let barred = reap::barred(&*view, &items, now_ms)?;
            drop(view);
            if barred.is_empty() {
                return self.durably(items);
            }
            self.update(|tx| reap::bar(tx, &barred))?;
            items.retain(|item| !barred.contains(item));
            if !items.is_empty() {
                return self.durably(items);
            }
        }
    }

    /// These are gone from their devices.
    ///
    /// # Errors
    /// `Store`.
    pub fn reaped(&self, items: &[ReapItem], now_ms: u64) -> Result<()> {
        self.update(|tx| reap::done(tx, items, now_ms))?;
        add(&self.counters.reaped, items.len() as u64);
        Ok(())
    }

    /// The devices of these did not answer: not before `until_ms` again.
    ///
    /// # Errors
    /// `Store`.
    pub fn postpone_reap(&self, items: &[ReapItem], until_ms: u64) -> Result<()> {
        self.update(|tx| reap::postpone(tx, items, until_ms))
    }

    /// The partitions of files, the same at each device.
    pub fn file_partitions(&self) -> impl Iterator<Item = u64> + use<> {
        FILE_PARTITION..FILE_PARTITION + self.config.file_partitions()
    }

    /// All devices, for the shell that talks to them.
    #[must_use]
    pub fn devices(&self) -> Vec<(DeviceAddress, DeviceState)> {
        self.devices.addresses()
    }

    /// Was a device added or moved since the last call? Then it wants to be prepared.
    #[must_use]
    pub fn take_devices_changed(&self) -> bool {
        // Looked at after every request, so a plain load comes first.
        self.devices_changed.load(Ordering::Relaxed) && self.devices_changed.swap(false, Ordering::AcqRel)
    }

    /// A credential for one of the server's own purposes, valid for a minute; to cut an object, for as long as this server
    /// leads at most: the device itself refuses a cut that arrives when another one may have let the file grow.
    ///
    /// # Errors
    /// `Store` if the device or its keys are missing; `Refused` with `Busy` if another server leads.
    pub fn own_credential(
        &self,
        device: DeviceId,
        purpose: Purpose,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Credential> {
        let mut until_ms = now_ms.saturating_add(OWN_CREDENTIAL_MS);
        if let Purpose::CutObject(_) = purpose {
            until_ms = until_ms.min(self.leads_until_ms());
            if until_ms <= now_ms {
                return Err(MdsError::Refused(Failure::busy(LEASE_MS as u32)));
            }
        }
        self.devices.own_credential(device, purpose, until_ms, self.config.seal_capabilities, rng)
    }

    /// A device has its partition and may take objects.
    ///
    /// # Errors
    /// `Store`, `Refused` if there is no such device.
    pub fn device_prepared(&self, id: DeviceId) -> Result<()> {
        self.change_device(id, Some(DeviceState::Active))
    }

    /// A device told its figures to a server that does not lead: placement goes by them here. What is stored is the
    /// leader's to change.
    pub fn device_measured(&self, id: DeviceId, total: u64, used: u64) {
        self.devices.set_capacity(id, total, used);
    }

    /// Notes what a device may take of a file system that other devices may use, too: see [`SharedSpace`].
    pub fn device_shares(&self, id: DeviceId, shared: Option<SharedSpace>) {
        self.devices.set_shared(id, shared);
    }

    /// A device told its figures; one that was thought unreachable is in use again.
    ///
    /// # Errors
    /// `Store`, `Refused` if there is no such device.
    pub fn device_answered(&self, id: DeviceId, total: u64, used: u64) -> Result<()> {
        let write = self.devices.set_capacity(id, total, used);
        match self.devices.get(id).map(|device| device.state) {
            Some(DeviceState::Unreachable) => self.change_device(id, Some(DeviceState::Active)),
            _ if write => self.change_device(id, None),
            _ => Ok(()),
        }
    }

    /// A device does not answer: it takes no new objects until it does.
    ///
    /// # Errors
    /// `Store`, `Refused` if there is no such device.
    pub fn device_silent(&self, id: DeviceId) -> Result<()> {
        match self.devices.get(id).map(|device| device.state) {
            Some(DeviceState::Active) => self.change_device(id, Some(DeviceState::Unreachable)),
            _ => Ok(()),
        }
    }

    /// Did all go well when the device was last tried?
    #[must_use]
    pub fn device_is_well(&self, id: DeviceId) -> bool {
        self.devices.get(id).is_some_and(|device| device.problem.is_none())
    }

    /// What went wrong when the shell last tried to reach a device; forgotten when it answers.
    pub fn device_failed(&self, id: DeviceId, kind: ProblemKind, said: &str) {
        self.devices.set_problem(id, DeviceProblem { kind, said: Text::truncated(said) });
    }

    /// Writes a device's figures, and its new state if there is one.
    pub(crate) fn change_device(&self, id: DeviceId, state: Option<DeviceState>) -> Result<()> {
        let record = self.update(|tx| {
            // Inside: what is remembered is as new as the transaction.
            let mut device = self
                .devices
                .get(id)
                .ok_or_else(|| MdsError::refused(ErrorCode::NotFound, format!("device {}", id.0)))?;
            device.state = state.unwrap_or(device.state);
            devices::change(tx, id, &device)
        })?;
        self.devices.refresh(id, record);
        Ok(())
    }

    /// Reads a path as the administrator would: for tools and oracles inside the process.
    ///
    /// # Errors
    /// `Refused`, `Store`.
    pub fn inspect(&self, path: &sealstone_mds_protocol::FilePath) -> Result<Stat> {
        let user = UserName::new("inspect").map_err(MdsError::from)?;
        let (role, groups) = (Role::Admin, Arc::default());
        let who = crate::access::Principal { user, role, groups, session: [0; 16] };
        namespace::stat(&*self.store.snapshot()?, &who, path, namespace::Last::Follow)
    }
}

fn is_set_up(store: &dyn MetaStore) -> std::result::Result<bool, OpenError> {
    match load::<u64, _>(&*store.snapshot()?, &keys::meta(VERSION))? {
        None => Ok(false),
        Some(STORE_VERSION) => Ok(true),
        Some(found) => Err(OpenError::Version { found }),
    }
}
