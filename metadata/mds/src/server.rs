//! The metadata server: set up once, opened on every start.
//!
//! Does: hold the state shared by all requests, run transactions, and the housekeeping that the
//! daemon calls.
//! Does not: decide requests; `handle` does.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use sealstone_login::{CookieJar, ServerId, ServerKeys, start_registration};
use sealstone_mds_protocol::login::{SUITE_STANDARD, SessionId, is_service_suite};
use sealstone_mds_protocol::{
    AccountKind, DeviceId, DeviceProblem, DeviceState, ErrorCode, FILE_PARTITION, Failure, InodeId,
    ProblemKind, Role, Stat, Text, UserName,
};
use sealstone_seal::Credential;

use crate::audit::{AuditSink, NoAudit};
use crate::cache_epochs::{CacheEpochs, EPOCHS, SharedStore};
use crate::check::job::LastCheck;
use crate::client_registry::records::{has_recorded_clients, recorded_clients};
use crate::config::Config;
use crate::counters::{Counters, add};
use crate::device_keys::SeedExchanges;
use crate::devices::{self, DeviceAddress, DeviceTable, ServerPurpose, SharedSpace};
use crate::dir_delegations::records::{delete_all_delegations, recorded_delegations};
use crate::election::{LEASE_MS, LeaderElection};
use crate::entropy::{Entropy, random};
use crate::error::{MdsError, Result};
use crate::fence::table::Fences;
use crate::grant_log::{GrantLog, NoGrantLog};
use crate::issued_credentials::{CredentialList, IssuedCredentials, WriteCredentials};
use crate::keys::{self, LOGIN_KEYS};
use crate::leases::{ClientKey, Leases};
use crate::lengths::table::LengthChecks;
use crate::limiter::LoginLimiter;
use crate::locks::MemoryLocks;
use crate::namespace::{self, ClearItem, RemoveCursors};
use crate::open_files::OpenFiles;
use crate::proof::ProofKey;
use crate::reap::{self, ReapItem};
use crate::records::{Account, AccountCredential, count, counter, load, save};
use crate::replay_cache::{self, ReplayCache};
use crate::request_context::advance_read_point;
use crate::server_registry::PeerLiveness;
use crate::sessions::{self, SessionTable};
use crate::store::{MetaError, MetaStore, Transaction, Wait};
use crate::user_directory::UserDirectory;

/// Version of the record formats in the store.
pub(crate) const STORE_VERSION: u64 = 9;
/// Maximum number of times that a transaction is repeated after a conflict.
const CONFLICTS_MAX: usize = 8;
/// Maximum number of creates expired in one transaction.
const EXPIRE_BATCH: usize = 64;
/// Lifetime of a credential for the server itself, milliseconds.
pub(crate) const OWN_CREDENTIAL_MS: u64 = 60_000;

/// Numbers skipped after a restore: more than a server uses between two backups.
const RESTORE_STEP: u64 = 1 << 32;
/// Policy access tags skipped after a restore; they have 32 bits.
const RESTORE_TAG_STEP: u64 = 1 << 20;

const VERSION: &str = "version";
const SERVER_ID: &str = "server-id";

/// Reasons why a server cannot start on a store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store is empty or its setup was interrupted: it has to be set up again.
    #[error("the metadata store is not set up")]
    NotSetUp,
    /// The store belongs to a release with another layout.
    #[error("the metadata store has version {found}, this release reads {STORE_VERSION}")]
    Version {
        /// Version of the store.
        found: u64,
    },
    /// The store is already set up.
    #[error("the metadata store is already set up")]
    AlreadySetUp,
    /// The login keys do not parse.
    #[error("the login keys in the metadata store are damaged")]
    LoginKeys,
    /// The administrator's account could not be created.
    #[error("the administrator's password cannot be used")]
    Password(#[source] sealstone_login::LoginFailure),
    /// The store failed, or its records do not parse.
    #[error("the metadata store cannot be used")]
    Store(#[from] MdsError),
}

impl From<MetaError> for OpenError {
    fn from(error: MetaError) -> Self {
        Self::Store(error.into())
    }
}

/// The server, shared by all connections.
pub struct Mds {
    pub(crate) store: Arc<dyn MetaStore>,
    pub(crate) config: Config,
    pub(crate) server_id: ServerId,
    pub(crate) login_keys: ServerKeys,
    pub(crate) proof_key: ProofKey,
    pub(crate) open_files: OpenFiles,
    pub(crate) locks: MemoryLocks,
    pub(crate) fences: Fences,
    /// Times at which other servers of the store were last seen.
    pub(crate) liveness: Mutex<PeerLiveness>,
    pub(crate) leases: Arc<Leases>,
    /// Whether clients without leases existed before the start.
    pub(crate) uncached_before: bool,
    /// Credentials for writing that were issued before the start.
    pub(crate) writers_before: WriteCredentials,
    pub(crate) clears_changed: AtomicBool,
    pub(crate) clients_swept: AtomicBool,
    pub(crate) devices: DeviceTable,
    pub(crate) sessions: SessionTable,
    pub(crate) limiter: Mutex<LoginLimiter>,
    /// Throttle of registrations by logged-in users, separate from that of logins.
    pub(crate) registrations: Mutex<LoginLimiter>,
    /// Throttle of refused requests in the record of credentials, for each user.
    pub(crate) refusals: Mutex<LoginLimiter>,
    pub(crate) counters: Counters,
    pub(crate) audit: Arc<dyn AuditSink>,
    sweep_at: Mutex<Option<SessionId>>,
    /// Where the next request of a recursive removal continues.
    pub(crate) remove_cursors: RemoveCursors,
    pub(crate) checks: LastCheck,
    pub(crate) replay_cache: ReplayCache,
    /// Clients with stored state that are not connected, with the time since when.
    pub(crate) missed: Mutex<HashMap<ClientKey, u64>>,
    pub(crate) devices_changed: AtomicBool,
    /// Counts changes of groups and memberships, from 1.
    pub(crate) groups_generation: AtomicU64,
    pub(crate) issued_table: Mutex<IssuedCredentials>,
    pub(crate) length_checks: LengthChecks,
    holdings_began: AtomicBool,
    pub(crate) cookies: Mutex<CookieJar>,
    /// Number of unanswered login challenges.
    pub(crate) half_open: Arc<AtomicUsize>,
    logins_waiting: AtomicUsize,
    pub(crate) key_lock: Mutex<SeedExchanges>,
    pub(crate) directory: OnceLock<Arc<dyn UserDirectory>>,
    /// Read-locked while credentials are issued; write-locked while they are revoked.
    pub(crate) issuing: RwLock<()>,
    pub(crate) grant_log: Arc<dyn GrantLog>,
    pub(crate) revocations_changed: AtomicBool,
    /// Whether changes were committed lazily since the last `settle`.
    unsettled: AtomicBool,
    /// Change counters of all servers as known here.
    pub(crate) seen: Arc<Mutex<CacheEpochs>>,
    pub(crate) election: Mutex<LeaderElection>,
}

/// A login queued by the daemon.
pub struct QueuedLogin<'a>(&'a AtomicUsize);

impl Drop for QueuedLogin<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Mds {
    /// Sets up an empty store in one transaction: identity, login keys, root directory,
    /// administrator with a password.
    ///
    /// # Errors
    /// `AlreadySetUp`, `Password`, `Store`.
    pub fn set_up(
        store: &dyn MetaStore,
        admin: &UserName,
        password: &[u8],
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> std::result::Result<ServerId, OpenError> {
        Self::set_up_with_suite(store, admin, (SUITE_STANDARD, password), now_ms, rng)
    }

    /// As [`Mds::set_up`], with the login suite of the administrator: that of a password, or one of
    /// a service key.
    ///
    /// # Errors
    /// As [`Mds::set_up`].
    pub fn set_up_with_suite(
        store: &dyn MetaStore,
        admin: &UserName,
        (suite, secret): (u16, &[u8]),
        now_ms: u64,
        mut rng: &mut dyn Entropy,
    ) -> std::result::Result<ServerId, OpenError> {
        if is_set_up(store)? {
            return Err(OpenError::AlreadySetUp);
        }
        let server_id: ServerId = random(rng);
        let login_keys = ServerKeys::generate(&mut rng);
        let (request, started) = start_registration(&mut rng, admin, secret).map_err(OpenError::Password)?;
        let response = login_keys.register(admin, &request).map_err(OpenError::Password)?;
        let record = started.finish(&mut rng, suite, &response).map_err(OpenError::Password)?;
        let account = Account {
            kind: if is_service_suite(suite) { AccountKind::Service } else { AccountKind::Password },
            role: Role::Admin,
            enabled: true,
            created_ms: now_ms,
            credentials: vec![AccountCredential { suite, record }],
            invitation: None,
            entry: None,
        };
        let object_base = u64::from(u32::from_be_bytes(random(rng)) >> 1 | 1) << 32;

        let mut tx = store.begin()?;
        tx.put(&keys::meta(LOGIN_KEYS), &login_keys.to_bytes())?;
        save(&mut *tx, &keys::meta(SERVER_ID), &server_id)?;
        // The upper half is random, so that a device that served another server before has no
        // object with that number.
        save(&mut *tx, &keys::meta(counter::OBJECT), &object_base)?;
        save(&mut *tx, &keys::user(admin), &account)?;
        count(&mut *tx, counter::USERS, 1)?;
        namespace::make_root(&mut *tx, admin, now_ms)?;
        save(&mut *tx, &keys::meta(VERSION), &STORE_VERSION)?;
        tx.commit()?;
        Ok(server_id)
    }

    /// Prepares a store that was restored from a backup. Numbers issued since the backup are
    /// unknown, so all counters continue far ahead, and all sessions are deleted.
    ///
    /// # Errors
    /// `NotSetUp`, `Version`, `Store`.
    pub fn restored(store: &dyn MetaStore, rng: &mut dyn Entropy) -> std::result::Result<(), OpenError> {
        if !is_set_up(store)? {
            return Err(OpenError::NotSetUp);
        }
        let mut tx = store.begin()?;
        // As at setup: objects created after the backup exist on the devices under unknown numbers.
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

    /// Returns the server id of the store, and the version of its records.
    ///
    /// # Errors
    /// `NotSetUp`, `Version`, `Store`.
    pub fn identity(store: &dyn MetaStore) -> std::result::Result<(ServerId, u64), OpenError> {
        if !is_set_up(store)? {
            return Err(OpenError::NotSetUp);
        }
        let id = load(&*store.snapshot()?, &keys::meta(SERVER_ID))?;
        Ok((id.ok_or(MetaError::Damaged("missing server id"))?, STORE_VERSION))
    }

    /// Whether the store is set up.
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
            let id = load(&*view, &keys::meta(SERVER_ID))?.ok_or(MetaError::Damaged("missing server id"))?;
            let bytes = view.get(&keys::meta(LOGIN_KEYS))?.ok_or(OpenError::LoginKeys)?;
            let bytes = zeroize::Zeroizing::new(bytes);
            let login_keys = ServerKeys::from_bytes(&bytes).map_err(|_| OpenError::LoginKeys)?;
            (id, login_keys, ProofKey::new(&bytes))
        };
        let before = has_recorded_clients(&*store, config.shared.then_some(&config.server))?;
        // Servers that share a store grant no leases.
        let (caching_clients, uncached_before) =
            if config.shared { (Vec::new(), true) } else { recorded_clients(&*store)? };
        let delegations = if config.shared {
            delete_all_delegations(&*store)?;
            Vec::new()
        } else {
            recorded_delegations(&*store)?
        };
        let fences = Fences::load(&*store, config.shared.then_some(&config.server))?;
        let seen: Arc<Mutex<CacheEpochs>> = Arc::default();
        let mut store = store;
        let sessions = SessionTable::default();
        if config.shared {
            // Read before the devices, so that the counters are never newer than the cached state.
            *seen.lock() = load(&*store.snapshot()?, &keys::meta(EPOCHS))?.unwrap_or_default();
            store = Arc::new(SharedStore::new(store, Arc::clone(&seen)));
        }
        let devices = DeviceTable::load(&*store, config.file_partitions())?;
        let issued_table = IssuedCredentials::new(config.issued_max);
        Ok(Self {
            seen,
            election: Mutex::default(),
            store,
            config,
            server_id,
            login_keys,
            proof_key,
            open_files: OpenFiles::new(before),
            locks: MemoryLocks::default(),
            fences,
            liveness: Mutex::default(),
            leases: Arc::new(Leases::new(caching_clients, delegations)),
            uncached_before,
            writers_before: WriteCredentials::default(),
            clears_changed: AtomicBool::new(true),
            clients_swept: AtomicBool::new(false),
            devices,
            sessions,
            limiter: Mutex::default(),
            registrations: Mutex::default(),
            refusals: Mutex::default(),
            counters: Counters::default(),
            audit: Arc::new(NoAudit),
            sweep_at: Mutex::default(),
            remove_cursors: RemoveCursors::default(),
            checks: LastCheck::default(),
            replay_cache: ReplayCache::default(),
            missed: Mutex::default(),
            devices_changed: AtomicBool::new(false),
            groups_generation: AtomicU64::new(1),
            issued_table: Mutex::new(issued_table),
            length_checks: LengthChecks::default(),
            holdings_began: AtomicBool::new(false),
            cookies: Mutex::default(),
            half_open: Arc::default(),
            logins_waiting: AtomicUsize::new(0),
            key_lock: Mutex::default(),
            directory: OnceLock::new(),
            issuing: RwLock::default(),
            grant_log: Arc::new(NoGrantLog),
            // For revocations that were pending when the server ended.
            revocations_changed: AtomicBool::new(true),
            unsettled: AtomicBool::new(false),
        })
    }

    /// Sets the sink of audit records; without it none is written.
    #[must_use]
    pub fn with_audit(self, audit: Arc<dyn AuditSink>) -> Self {
        Self { audit, ..self }
    }

    /// Returns the identity of this server, which is part of every login.
    #[must_use]
    pub const fn server_id(&self) -> ServerId {
        self.server_id
    }

    /// Returns the counters since the start.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Registers a login that waits in the queue; if too many wait, logins need a cookie.
    #[must_use]
    pub fn queue_login(&self) -> QueuedLogin<'_> {
        self.logins_waiting.fetch_add(1, Ordering::Relaxed);
        QueuedLogin(&self.logins_waiting)
    }

    /// Whether the server is under load, so that a login needs a cookie.
    #[must_use]
    pub fn is_under_load(&self) -> bool {
        self.half_open.load(Ordering::Relaxed) >= self.config.half_open_max
            || self.logins_waiting.load(Ordering::Relaxed) >= self.config.login_queue_max
    }

    /// Marks the table of issued credentials as complete.
    pub(crate) fn mark_issued_complete(&self) {
        self.holdings_began.store(true, Ordering::Relaxed);
    }

    /// Returns the table of issued credentials; the first call sets the time from which it is
    /// complete.
    pub(crate) fn issued_table(&self, now_ms: u64) -> parking_lot::MutexGuard<'_, IssuedCredentials> {
        let mut table = self.issued_table.lock();
        if !self.holdings_began.swap(true, Ordering::Relaxed) {
            table.begin(now_ms);
        }
        table
    }

    /// Returns the number of entries in the table of issued credentials, and of those dropped since
    /// the start.
    #[must_use]
    pub fn issued_credentials(&self) -> (usize, u64) {
        self.issued_table.lock().figures()
    }

    /// Returns the credentials of a user that devices still accept. They stay valid when the user's
    /// sessions end, unless they are revoked at the devices.
    #[must_use]
    pub fn credentials_of(&self, user: &UserName, now_ms: u64) -> CredentialList {
        self.issued_table(now_ms).of_user(user, now_ms)
    }

    /// Runs a transaction; repeats it after a conflict.
    pub(crate) fn update<T>(&self, mut work: impl FnMut(&mut dyn Transaction) -> Result<T>) -> Result<T> {
        self.update_and(|tx| Ok((work(tx)?, Wait::ForMedium)))
    }

    /// Runs a transaction; `work` returns whether the commit must be durable.
    pub(crate) fn update_and<T>(
        &self,
        mut work: impl FnMut(&mut dyn Transaction) -> Result<(T, Wait)>,
    ) -> Result<T> {
        for _ in 0..CONFLICTS_MAX {
            advance_read_point();
            let mut tx = self.store.begin()?;
            // No lease on changed nodes is granted until the commit.
            let (done, _changing) = self.track_changes(&mut *tx, &mut work);
            let (value, wait) = match done {
                Ok(done) => done,
                // A store may detect the conflict at the first read.
                Err(MdsError::Store(MetaError::Conflict)) => continue,
                Err(error) => {
                    drop(tx);
                    self.fence_unreturned_now();
                    return Err(error);
                }
            };
            let committed = match wait {
                Wait::ForMedium => tx.commit(),
                Wait::No => tx.commit_lazily(),
            };
            match committed {
                Ok(()) => {
                    // After the commit, so that a concurrent `settle` may run once too often but
                    // never too seldom.
                    self.unsettled.fetch_or(wait == Wait::No, Ordering::AcqRel);
                    return Ok(value);
                }
                Err(MetaError::Conflict) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(MdsError::Refused(Failure::busy(10)))
    }

    /// Whether a lookup request is answered in microseconds.
    #[must_use]
    pub fn answers_at_once(&self) -> bool {
        self.store.answers_at_once()
    }

    pub(crate) fn session_user(&self, session: &SessionId) -> Option<(UserName, bool)> {
        self.sessions.user_and_role(session)
    }

    /// Returns how many keys scans of the store have stepped over since it was opened, removed ones
    /// included.
    #[must_use]
    pub fn keys_visited(&self) -> u64 {
        self.store.keys_visited()
    }

    /// Returns `read` after the state that it was read from is durable, because devices will act on
    /// it.
    pub(crate) fn wait_durable<T>(&self, read: T) -> Result<T> {
        self.store.wait_for_medium()?;
        Ok(read)
    }

    /// Makes lazy commits durable: sessions that were opened or used. Call it about every second
    /// and at shutdown; sessions lost in a crash are opened again.
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

    /// Removes expired state from memory. Call it every few seconds on every server.
    pub fn tidy_memory(&self, now_ms: u64) {
        self.issued_table(now_ms).expire(now_ms);
        if let Err(error) = self.expire_clients(now_ms) {
            tracing::error!(%error, "cannot store open files of clients; retrying");
        }
        if let Err(error) = self.expire_answers(now_ms) {
            tracing::error!(%error, "replay cache could not be trimmed; retrying");
        }
        if self.config.shared {
            self.sessions.expire(self.config.session_idle_ms, now_ms);
        }
    }

    /// Deletes expired answers of the replay cache, and records of clients not seen for long. Scans
    /// once a minute.
    fn expire_answers(&self, now_ms: u64) -> Result<()> {
        if !self.replay_cache.begin_scan(now_ms) {
            return Ok(());
        }
        let expired = self.replay_cache.scan(&*self.store.snapshot()?, now_ms)?;
        for batch in expired.chunks(replay_cache::FORGET_BATCH) {
            self.update(|tx| replay_cache::forget(tx, batch))?;
        }
        self.expire_delegations(now_ms)
    }

    /// Expires creates and sessions, a bounded number of each. Call it every few seconds on the
    /// leader. Returns whether there may be more to do at once.
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

    /// Returns up to `limit` files whose objects hold truncated bytes. These must be cleared before
    /// the file may grow.
    ///
    /// # Errors
    /// `Store`.
    pub fn next_clears(&self, after: Option<InodeId>, limit: usize) -> Result<Vec<ClearItem>> {
        let items = namespace::next_clears(&*self.store.snapshot()?, after, limit)?;
        self.wait_durable(items)
    }

    /// Returns the current clear work of a file; none if nothing is to be cleared.
    ///
    /// # Errors
    /// `Store`.
    pub fn clear_of(&self, inode: InodeId) -> Result<Option<ClearItem>> {
        let item = namespace::clear_of(&*self.store.snapshot()?, inode)?;
        self.wait_durable(item)
    }

    /// Records that the objects of these files are durably cleared.
    ///
    /// # Errors
    /// `Store`.
    pub fn cleared(&self, items: &[ClearItem]) -> Result<()> {
        self.update(|tx| namespace::cleared(tx, items))
    }

    /// Whether, since the last call, a file was truncated or a request had to wait for a clear.
    #[must_use]
    pub fn take_clears_changed(&self) -> bool {
        self.clears_changed.load(Ordering::Relaxed) && self.clears_changed.swap(false, Ordering::AcqRel)
    }

    /// Returns up to `limit` objects to be removed from their devices now, after `after`. Reading
    /// the queue from its start again would step over every removed key.
    ///
    /// # Errors
    /// `Store`.
    pub fn next_reap(&self, after: Option<&ReapItem>, limit: usize, now_ms: u64) -> Result<Vec<ReapItem>> {
        let mut after = after.copied();
        loop {
            let view = self.store.snapshot()?;
            let mut items = reap::next(&*view, after.as_ref(), limit, now_ms)?;
            after = items.last().copied().or(after);
            let revoked = reap::revoked_items(&*view, &items, now_ms)?;
            drop(view);
            if revoked.is_empty() {
                return self.wait_durable(items);
            }
            self.update(|tx| reap::postpone_revoked(tx, &revoked))?;
            items.retain(|item| !revoked.contains(item));
            if !items.is_empty() {
                return self.wait_durable(items);
            }
        }
    }

    /// Records that these objects are removed from their devices.
    ///
    /// # Errors
    /// `Store`.
    pub fn reaped(&self, items: &[ReapItem], now_ms: u64) -> Result<()> {
        self.update(|tx| reap::confirm_removed(tx, items, now_ms))?;
        add(&self.counters.reaped, items.len() as u64);
        Ok(())
    }

    /// Postpones the removal of these objects to `until_ms`, because their devices did not answer.
    ///
    /// # Errors
    /// `Store`.
    pub fn postpone_reap(&self, items: &[ReapItem], until_ms: u64) -> Result<()> {
        self.update(|tx| reap::postpone(tx, items, until_ms))
    }

    /// Returns the partitions for files, the same on each device.
    pub fn file_partitions(&self) -> impl Iterator<Item = u64> + use<> {
        FILE_PARTITION..FILE_PARTITION + self.config.file_partitions()
    }

    /// Returns the address of a device as it is registered now.
    #[must_use]
    pub fn device_address(&self, id: DeviceId) -> Option<DeviceAddress> {
        self.devices.addresses().into_iter().map(|(at, _)| at).find(|at| at.id == id)
    }

    /// Returns all devices, for the daemon that connects to them.
    #[must_use]
    pub fn devices(&self) -> Vec<(DeviceAddress, DeviceState)> {
        self.devices.addresses()
    }

    /// Requests a round of the tasks for devices.
    pub(crate) fn wake_for_devices(&self) {
        self.devices_changed.store(true, Ordering::Release);
    }

    /// Whether a device was added, its address or the policy about functions changed since the last
    /// call. Then there is work for the daemon.
    #[must_use]
    pub fn take_devices_changed(&self) -> bool {
        // Called after every request, so a plain load comes first.
        self.devices_changed.load(Ordering::Relaxed) && self.devices_changed.swap(false, Ordering::AcqRel)
    }

    /// Returns a credential for one of the server's own purposes, valid for a minute. To truncate
    /// an object it is valid at most while this server is the leader: the device refuses a
    /// truncation that arrives when another server may have let the file grow.
    ///
    /// # Errors
    /// `Store` if the device or its keys are missing; `Refused` with `Busy` if another server
    /// leads.
    pub fn own_credential(
        &self,
        device: DeviceId,
        purpose: ServerPurpose,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Credential> {
        let mut until_ms = now_ms.saturating_add(OWN_CREDENTIAL_MS);
        if let ServerPurpose::TruncateObject(_) = purpose {
            until_ms = until_ms.min(self.leads_until_ms());
            if until_ms <= now_ms {
                return Err(MdsError::Refused(Failure::busy(LEASE_MS as u32)));
            }
        }
        self.devices.own_credential(device, purpose, until_ms, self.config.seal_capabilities, rng)
    }

    /// Records that a device has its partitions and may store objects. Returns false, and does
    /// nothing, if the device was registered again since.
    ///
    /// # Errors
    /// `Store`, `Refused` if there is no such device.
    pub fn device_prepared(&self, at: &DeviceAddress) -> Result<bool> {
        if self.devices.registered_state(at).is_none() {
            return Ok(false);
        }
        self.change_device(at.id, Some(DeviceState::Active)).map(|()| true)
    }

    /// Sets the capacity of a device on a server that is not the leader, for placement only. The
    /// leader stores it. Ignored if the device was registered again since.
    pub fn device_measured(&self, at: &DeviceAddress, total: u64, used: u64) {
        let _ = self.devices.set_capacity(at, total, used);
    }

    /// Sets the free space of a file system that several devices share: see [`SharedSpace`].
    /// Ignored if the device was registered again since.
    pub fn device_shares(&self, at: &DeviceAddress, shared: Option<SharedSpace>) {
        let _ = self.devices.set_shared(at, shared);
    }

    /// Records capacity and use of a device that answered; an unreachable one becomes active again.
    /// Ignored if the device was registered again since.
    ///
    /// # Errors
    /// `Store`, `Refused` if there is no such device.
    pub fn device_answered(&self, at: &DeviceAddress, total: u64, used: u64) -> Result<()> {
        let Some(write) = self.devices.set_capacity(at, total, used) else { return Ok(()) };
        match self.devices.registered_state(at) {
            Some(DeviceState::Unreachable) => self.change_device(at.id, Some(DeviceState::Active)),
            Some(_) if write => self.change_device(at.id, None),
            _ => Ok(()),
        }
    }

    /// Marks a device as unreachable: it gets no new objects until it answers. Ignored if the
    /// device was registered again since.
    ///
    /// # Errors
    /// `Store`, `Refused` if there is no such device.
    pub fn mark_unreachable(&self, at: &DeviceAddress) -> Result<()> {
        match self.devices.registered_state(at) {
            Some(DeviceState::Active) => self.change_device(at.id, Some(DeviceState::Unreachable)),
            _ => Ok(()),
        }
    }

    /// Whether the last access to the device succeeded.
    #[must_use]
    pub fn is_device_healthy(&self, id: DeviceId) -> bool {
        self.devices.get(id).is_some_and(|device| device.problem.is_none())
    }

    /// Records why the last access to a device failed; cleared when it answers. Returns false if
    /// the device was registered again since: then the failure says nothing about it.
    pub fn device_failed(&self, at: &DeviceAddress, kind: ProblemKind, detail: &str) -> bool {
        self.devices.set_problem(at, DeviceProblem { kind, said: Text::truncated(detail) }).is_some()
    }

    /// Stores a device's capacity, and its new state if given.
    pub(crate) fn change_device(&self, id: DeviceId, state: Option<DeviceState>) -> Result<()> {
        let record = self.update(|tx| {
            // Inside the transaction, so that the cached state is as new as the transaction.
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

    /// Returns attributes of a path without access checks: for tools and oracles inside the
    /// process.
    ///
    /// # Errors
    /// `Refused`, `Store`.
    pub fn inspect(&self, path: &sealstone_mds_protocol::FilePath) -> Result<Stat> {
        let user = UserName::new("inspect").map_err(MdsError::from)?;
        let (role, groups) = (Role::Admin, Arc::default());
        let principal = crate::access::Principal { user, role, groups, session: [0; 16] };
        namespace::stat(&*self.store.snapshot()?, &principal, path, namespace::FinalLink::Follow)
    }
}

fn is_set_up(store: &dyn MetaStore) -> std::result::Result<bool, OpenError> {
    match load::<u64, _>(&*store.snapshot()?, &keys::meta(VERSION))? {
        None => Ok(false),
        Some(STORE_VERSION) => Ok(true),
        Some(found) => Err(OpenError::Version { found }),
    }
}
