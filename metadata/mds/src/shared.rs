//! Several servers on one store: cache invalidation and leader election.
//!
//! Does: count changes of users and of devices in the store, in the transaction of the change; let
//! a server reload what another one changed before its next request; keep a lease on the work that
//! one server does for all.
//! Does not: share state of a single server: its record of credentials, its rate limits, its
//! connections.
//! Contract: a change of devices or their keys is based on the store, never on a server's cache: if
//! another server was faster, the transaction fails with `Conflict`. A session that ended on any
//! server is not found on any other. Two leaders at the same time, as after a long pause of the
//! first, repeat the same work without harm.
//! Truth: docs/adr/0038-several-servers-one-database.md.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{ErrorCode, record};

use crate::error::{MdsError, Result};
use crate::keys;
use crate::limits::CREDENTIAL_LIFETIME_MAX_MS;
use crate::locks::LockRecord;
use crate::open_files::CLIENT_TIMEOUT_MS;
use crate::records::{counter, decode, load, next_number, save};
use crate::server::Mds;
use crate::store::{MetaError, MetaStore, Pair, Snapshot, Transaction, each_between};

/// A leader that did not renew its lease for this long is no longer the leader, milliseconds. It
/// renews five times as often.
pub const LEASE_MS: u64 = 10_000;
/// Interval at which a server stores its sign of life, milliseconds.
const SEEN_EVERY_MS: u64 = 15_000;
/// Clients of a server that was silent for this long have connected to another one, or are gone,
/// milliseconds.
pub(crate) const DEAD_MS: u64 = CLIENT_TIMEOUT_MS + SEEN_EVERY_MS;
/// Maximum number of servers of one store.
pub(crate) const SERVERS_MAX: usize = 256;

/// Name of a server, chosen when its folder was created.
pub type ServerName = [u8; 16];

record! {
    /// Counters of changes of state that servers cache.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CacheEpochs {
        /// Changes of accounts and groups, and ends of sessions.
        pub accounts: u64,
        /// Changes of devices and their keys.
        pub devices: u64,
    }
}

record! {
    /// The leader's lease.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LeaderLease {
        /// Name of the leader.
        pub server: ServerName,
        /// Grows with each renewal.
        pub beat: u64,
    }
}

record! {
    /// A server that uses the store.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ServerRecord {
        /// Time of its last sign of life, milliseconds since 1970.
        pub seen_ms: u64,
        /// Unique number among all servers: it selects its range of grant numbers.
        pub number: u16,
    }
}

pub(crate) const EPOCHS: &str = "epochs";
const LEASE: &str = "leader";

/// Which caches a transaction invalidates.
#[derive(Clone, Copy, Default)]
struct TouchedCaches {
    accounts: bool,
    devices: bool,
}

impl TouchedCaches {
    fn add(&mut self, key: &[u8], deleted: bool) {
        self.devices |= keys::is_device_record(key);
        // New sessions and their times of use are read when needed, but the end of a session must
        // be noticed.
        self.accounts |= keys::is_account_record(key) || deleted && keys::is_session(key);
    }
}

/// A store that counts changes of cached state.
pub(crate) struct SharedStore {
    inner: Arc<dyn MetaStore>,
    seen: Arc<Mutex<CacheEpochs>>,
}

impl SharedStore {
    pub(crate) fn new(inner: Arc<dyn MetaStore>, seen: Arc<Mutex<CacheEpochs>>) -> Self {
        Self { inner, seen }
    }
}

impl MetaStore for SharedStore {
    fn snapshot(&self) -> std::result::Result<Box<dyn Snapshot + '_>, MetaError> {
        self.inner.snapshot()
    }

    fn begin(&self) -> std::result::Result<Box<dyn Transaction + '_>, MetaError> {
        // Before anything is read: the cache may be newer than this, never older.
        let based_on = *self.seen.lock();
        let inner = self.inner.begin()?;
        Ok(Box::new(SharedTransaction { inner, store: self, based_on, touched: TouchedCaches::default() }))
    }

    fn settle(&self) -> std::result::Result<(), MetaError> {
        self.inner.settle()
    }

    fn accepts_additions(&self) -> bool {
        self.inner.accepts_additions()
    }

    fn wait_for_medium(&self) -> std::result::Result<(), MetaError> {
        self.inner.wait_for_medium()
    }

    fn answers_at_once(&self) -> bool {
        self.inner.answers_at_once()
    }

    fn keys_visited(&self) -> u64 {
        self.inner.keys_visited()
    }
}

struct SharedTransaction<'a> {
    inner: Box<dyn Transaction + 'a>,
    store: &'a SharedStore,
    based_on: CacheEpochs,
    touched: TouchedCaches,
}

impl Snapshot for SharedTransaction<'_> {
    fn get(&self, key: &[u8]) -> std::result::Result<Option<Vec<u8>>, MetaError> {
        self.inner.get(key)
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> std::result::Result<Vec<Pair>, MetaError> {
        self.inner.scan(from, until, limit)
    }
}

impl Transaction for SharedTransaction<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> std::result::Result<(), MetaError> {
        self.touched.add(key, false);
        self.inner.put(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> std::result::Result<(), MetaError> {
        self.touched.add(key, true);
        self.inner.delete(key)
    }

    fn commit(self: Box<Self>) -> std::result::Result<(), MetaError> {
        self.commit_by(|inner| inner.commit())
    }

    fn commit_lazily(self: Box<Self>) -> std::result::Result<(), MetaError> {
        self.commit_by(|inner| inner.commit_lazily())
    }
}

type CommitResult = std::result::Result<(), MetaError>;

impl<'a> SharedTransaction<'a> {
    /// Counts changes of cached state in the same transaction, then commits.
    fn commit_by(self, commit: impl FnOnce(Box<dyn Transaction + 'a>) -> CommitResult) -> CommitResult {
        let Self { mut inner, store, based_on, touched } = self;
        if !touched.accounts && !touched.devices {
            return commit(inner);
        }
        let key = keys::meta(EPOCHS);
        let now: CacheEpochs = load(&*inner, &key)?.unwrap_or_default();
        if touched.devices && now.devices != based_on.devices {
            // Based on state that another server has changed since.
            return Err(MetaError::Conflict);
        }
        let next = CacheEpochs {
            accounts: now.accounts + u64::from(touched.accounts),
            devices: now.devices + u64::from(touched.devices),
        };
        save(&mut *inner, &key, &next)?;
        commit(inner)?;
        // Own changes need not be reloaded, unless another change came before.
        let mut seen = store.seen.lock();
        if seen.accounts == now.accounts {
            seen.accounts = next.accounts;
        }
        if seen.devices == now.devices {
            seen.devices = next.devices;
        }
        Ok(())
    }
}

/// Number of servers; each has a range of a million grant numbers in every session.
const SERVER_NUMBERS: u64 = 1 << 12;
const NUMBERS_BITS: u32 = 20;

/// Returns a number that no registered server has.
fn number_for(tx: &mut dyn Transaction, there: &[Pair]) -> Result<u16> {
    let taken = there.iter().map(|(_, value)| Ok(decode::<ServerRecord>(value)?.number));
    let taken: Vec<u16> = taken.collect::<Result<_>>()?;
    loop {
        let number = (next_number(tx, counter::SERVER)? % SERVER_NUMBERS) as u16;
        if !taken.contains(&number) {
            return Ok(number);
        }
    }
}

/// State of a server in the leader election.
#[derive(Debug, Default)]
pub(crate) struct LeaderState {
    /// The last lease read of another server, and when it was first seen.
    observed: Option<(LeaderLease, u64)>,
    /// This server is the leader until then.
    until_ms: u64,
    /// Last own beat, unless another server became the leader since.
    own_beat: Option<u64>,
    /// Time of the last own sign of life.
    seen_ms: Option<u64>,
}

/// Signs of life of the other servers.
#[derive(Debug, Default)]
pub(crate) struct PeerLiveness {
    /// Last sign of life of each, and since when it is known, by our clock.
    observed: HashMap<ServerName, (u64, u64)>,
    /// Dead servers whose clients' locks were handled.
    settled: HashSet<ServerName>,
}

impl PeerLiveness {
    /// Records the current signs of life and returns the dead servers.
    fn observe(&mut self, records: &[(ServerName, u64)], now_ms: u64) -> HashSet<ServerName> {
        self.observed.retain(|name, _| records.iter().any(|(one, _)| one == name));
        let mut dead = HashSet::new();
        for (name, seen_ms) in records {
            let known = self.observed.entry(*name).or_insert((*seen_ms, now_ms));
            if known.0 != *seen_ms {
                *known = (*seen_ms, now_ms);
            }
            if now_ms.saturating_sub(known.1) >= DEAD_MS {
                dead.insert(*name);
            }
        }
        self.settled.retain(|name| dead.contains(name));
        dead
    }
}

impl Mds {
    /// Fences clients of dead servers from the files that they had locked, unless they connected to
    /// another server.
    pub(crate) fn fence_those_of_dead_servers(&self, now_ms: u64) -> Result<()> {
        let all = keys::servers();
        let mut records = Vec::new();
        for (key, value) in self.store.snapshot()?.scan(&all, &keys::after_prefix(&all), SERVERS_MAX)? {
            let record: ServerRecord = decode(&value)?;
            records.extend(keys::server_name(&key).map(|name| (name, record.seen_ms)));
        }
        let dead = {
            let mut liveness = self.liveness.lock();
            let mut dead = liveness.observe(&records, now_ms);
            dead.remove(&self.config.server);
            if dead.iter().all(|name| liveness.settled.contains(name)) {
                return Ok(());
            }
            dead
        };
        let from = keys::all_locked();
        let mut theirs = Vec::new();
        each_between(&*self.store.snapshot()?, &from, &keys::after_prefix(&from), |key, value| {
            let LockRecord { server, .. } = decode(value)?;
            if let Some((id, client)) = keys::locked_parts(key).filter(|_| dead.contains(&server)) {
                theirs.push((id, client, server));
            }
            Ok::<_, MdsError>(())
        })?;
        for (id, client, server) in theirs {
            self.fence_locks(id, &client, server, now_ms);
        }
        self.liveness.lock().settled.extend(dead);
        Ok(())
    }

    /// Reloads users and devices that other servers changed.
    ///
    /// # Errors
    /// `Store`: the cached state may be outdated then.
    pub fn catch_up(&self) -> Result<()> {
        if !self.config.shared {
            return Ok(());
        }
        let now: CacheEpochs = load(&*self.store.snapshot()?, &keys::meta(EPOCHS))?.unwrap_or_default();
        let seen = *self.seen.lock();
        if now.accounts > seen.accounts {
            self.invalidate_groups();
            let mut seen = self.seen.lock();
            seen.accounts = seen.accounts.max(now.accounts);
        }
        if now.devices > seen.devices {
            // The holder of the key lock works on the cached state, so wait for it.
            let _turn = self.key_lock.lock();
            if self.seen.lock().devices >= now.devices {
                // Another thread has reloaded it meanwhile.
                return Ok(());
            }
            self.devices.reload(&*self.store, self.config.file_partitions())?;
            let mut seen = self.seen.lock();
            seen.devices = seen.devices.max(now.devices);
            drop(seen);
            self.devices_changed.store(true, std::sync::atomic::Ordering::Release);
        }
        Ok(())
    }

    /// Checks that a cached session is still in the store, if users or sessions were changed since
    /// the last check.
    pub(crate) fn recheck_session(&self, session: &SessionId) -> Result<()> {
        if !self.config.shared {
            return Ok(());
        }
        let epoch = self.seen.lock().accounts;
        if self.sessions.confirmed_at(session).is_none_or(|at| at == epoch) {
            return Ok(());
        }
        match load(&*self.store.snapshot()?, &keys::session(session))? {
            Some(record) => self.sessions.confirm_at(session, record, epoch),
            None => self.sessions.forget(&[*session]),
        }
        Ok(())
    }

    /// Whether this server is the leader. Call it every few seconds: it renews the lease.
    ///
    /// # Errors
    /// `Store`.
    pub fn leads(&self, now_ms: u64) -> Result<bool> {
        if !self.config.shared {
            return Ok(true);
        }
        let mut leading = self.leading.lock();
        if leading.seen_ms.is_none_or(|seen_ms| now_ms.saturating_sub(seen_ms) >= SEEN_EVERY_MS) {
            self.register(now_ms)?;
            if now_ms < leading.until_ms {
                self.sweep_servers(now_ms)?;
            }
            leading.seen_ms = Some(now_ms);
        }
        let key = keys::meta(LEASE);
        let found: Option<LeaderLease> = load(&*self.store.snapshot()?, &key)?;
        let own = self.config.server;
        let own_beat = leading.own_beat.take();
        let may_take = match &found {
            None => true,
            Some(lease) if lease.server == own => {
                if own_beat.is_some_and(|beat| beat != lease.beat) {
                    leading.until_ms = 0;
                    leading.own_beat = own_beat;
                    let what =
                        "another server has the same name; if its folder is a copy, remove server-name there";
                    return Err(MdsError::refused(ErrorCode::Exists, what));
                }
                if now_ms < leading.until_ms.saturating_sub(LEASE_MS / 2) {
                    leading.own_beat = own_beat;
                    return Ok(true);
                }
                true
            }
            Some(lease) => match &leading.observed {
                Some((observed, since_ms)) if observed == lease => {
                    now_ms.saturating_sub(*since_ms) >= LEASE_MS
                }
                _ => {
                    leading.observed = Some((lease.clone(), now_ms));
                    false
                }
            },
        };
        leading.until_ms = 0;
        if !may_take {
            return Ok(false);
        }
        let beat = found.as_ref().map_or(0, |lease| lease.beat).wrapping_add(1);
        let took = self.update(|tx| {
            let there: Option<LeaderLease> = load(tx, &key)?;
            if there != found {
                return Ok(false);
            }
            save(tx, &key, &LeaderLease { server: own, beat })?;
            Ok(true)
        })?;
        if took {
            leading.own_beat = Some(beat);
            leading.observed = None;
            // Shorter than the time after which others take over.
            leading.until_ms = now_ms.saturating_add(LEASE_MS * 8 / 10);
        }
        Ok(took)
    }

    /// Whether [`Mds::leads`] returned true recently.
    #[must_use]
    pub fn is_leading(&self, now_ms: u64) -> bool {
        !self.config.shared || now_ms < self.leading.lock().until_ms
    }

    /// Returns the time until which [`Mds::is_leading`] is true.
    pub(crate) fn leads_until_ms(&self) -> u64 {
        if self.config.shared { self.leading.lock().until_ms } else { u64::MAX }
    }

    /// Returns the servers whose credentials may be valid, including this one.
    pub(crate) fn servers<S: Snapshot + ?Sized>(&self, view: &S) -> Result<Vec<ServerName>> {
        let mut servers = vec![self.config.server];
        if self.config.shared {
            let all = keys::servers();
            for (key, _) in view.scan(&all, &keys::after_prefix(&all), SERVERS_MAX)? {
                servers.extend(keys::server_name(&key).filter(|name| *name != self.config.server));
            }
        }
        Ok(servers)
    }

    /// Registers this server in the store. Called before it issues anything, because revocations
    /// use the list.
    ///
    /// # Errors
    /// `Refused` if there are too many; `Store`.
    pub fn register(&self, now_ms: u64) -> Result<()> {
        if !self.config.shared {
            return Ok(());
        }
        let number = self.update(|tx| {
            let (own, all) = (keys::server(&self.config.server), keys::servers());
            let there = tx.scan(&all, &keys::after_prefix(&all), SERVERS_MAX)?;
            let number = match load::<ServerRecord, _>(tx, &own)? {
                Some(known) => known.number,
                None if there.len() >= SERVERS_MAX => {
                    return Err(MdsError::refused(ErrorCode::Limit, "servers of one store"));
                }
                None => number_for(tx, &there)?,
            };
            save(tx, &own, &ServerRecord { seen_ms: now_ms, number })?;
            Ok(number)
        })?;
        self.sessions.begin_numbers_at(u32::from(number) << NUMBERS_BITS);
        Ok(())
    }

    /// Deletes servers that were silent until all their credentials have expired.
    fn sweep_servers(&self, now_ms: u64) -> Result<()> {
        let all = keys::servers();
        let pairs = self.store.snapshot()?.scan(&all, &keys::after_prefix(&all), SERVERS_MAX)?;
        let mut dead = Vec::new();
        for (key, value) in pairs {
            let record: ServerRecord = decode(&value)?;
            if record.seen_ms.saturating_add(CREDENTIAL_LIFETIME_MAX_MS + 2 * SEEN_EVERY_MS) < now_ms {
                self.update(|tx| Ok(tx.delete(&key)?))?;
                dead.extend(keys::server_name(&key));
            }
        }
        // Their clients cannot return either, so their open files are forgotten.
        if dead.is_empty() {
            Ok(())
        } else {
            self.forget_clients_of_servers(&|server: &ServerName| dead.contains(server))
        }
    }
}
