//! Several servers on one store: what each keeps in memory follows what the others change, and one of them leads.
//!
//! Does: count changes of people and of devices in the store, in the transaction that makes them; have a server read
//! again what another one changed, before its next request; keep a lease on the work that one server does for all. Does
//! not: share what is a server's own: its record of credentials, its limits of attempts, its connections.
//! Contract: a change of devices or their keys is made on what the store has, never on what a server remembers: if
//! another server was faster, the transaction fails with `Conflict`. A session that ended anywhere is found by nobody. Two
//! leaders at a time, as after a long pause of the first, do the same work twice and harm nothing.
//! Truth: docs/adr/0038-several-servers-one-database.md.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{ErrorCode, record};

use crate::config::CREDENTIAL_LIFETIME_MAX_MS;
use crate::error::{MdsError, Result};
use crate::holds::HOLD_MS;
use crate::keys;
use crate::locks::Locked;
use crate::records::{counter, decode, load, next_number, save};
use crate::server::Mds;
use crate::store::{MetaError, MetaStore, Pair, Snapshot, Transaction, each_between};

/// A leader that was not heard of for so long leads no more, milliseconds. He renews five times as often.
pub const LEASE_MS: u64 = 10_000;
/// A server says so often that it is there, milliseconds.
const SEEN_EVERY_MS: u64 = 15_000;
/// Holders that were with a server that said nothing for so long have come to another one, or are gone, milliseconds.
pub(crate) const DEAD_MS: u64 = HOLD_MS + SEEN_EVERY_MS;
/// Servers of one store at most.
pub(crate) const SERVERS_MAX: usize = 256;

/// Name of a server, drawn when its folder was made.
pub type ServerName = [u8; 16];

record! {
    /// How often something was changed that servers keep in memory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Epochs {
        /// Accounts, groups, ends of sessions.
        pub people: u64,
        /// Devices and their keys.
        pub devices: u64,
    }
}

record! {
    /// Who leads.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Lease {
        /// The server.
        pub server: ServerName,
        /// Counts up while it does.
        pub beat: u64,
    }
}

record! {
    /// A server that uses the store.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ServerRecord {
        /// When it last said so, milliseconds since 1970.
        pub seen_ms: u64,
        /// Its own among all servers: where it begins to number grants.
        pub number: u16,
    }
}

pub(crate) const EPOCHS: &str = "epochs";
const LEASE: &str = "leader";

/// What kind of memory a key is kept in, beside the store.
#[derive(Clone, Copy, Default)]
struct Touched {
    people: bool,
    devices: bool,
}

impl Touched {
    fn add(&mut self, key: &[u8], deleted: bool) {
        self.devices |= keys::is_of_devices(key);
        // New sessions and their times of use are read where they are needed; that one ended must be known.
        self.people |= keys::is_of_people(key) || deleted && keys::is_session(key);
    }
}

/// A store that counts what other servers have to read again.
pub(crate) struct SharedStore {
    inner: Arc<dyn MetaStore>,
    seen: Arc<Mutex<Epochs>>,
}

impl SharedStore {
    pub(crate) fn new(inner: Arc<dyn MetaStore>, seen: Arc<Mutex<Epochs>>) -> Self {
        Self { inner, seen }
    }
}

impl MetaStore for SharedStore {
    fn snapshot(&self) -> std::result::Result<Box<dyn Snapshot + '_>, MetaError> {
        self.inner.snapshot()
    }

    fn begin(&self) -> std::result::Result<Box<dyn Transaction + '_>, MetaError> {
        // Before anything is read: what is remembered may be newer than this, never older.
        let based_on = *self.seen.lock();
        let inner = self.inner.begin()?;
        Ok(Box::new(Changes { inner, store: self, based_on, touched: Touched::default() }))
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

struct Changes<'a> {
    inner: Box<dyn Transaction + 'a>,
    store: &'a SharedStore,
    based_on: Epochs,
    touched: Touched,
}

impl Snapshot for Changes<'_> {
    fn get(&self, key: &[u8]) -> std::result::Result<Option<Vec<u8>>, MetaError> {
        self.inner.get(key)
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> std::result::Result<Vec<Pair>, MetaError> {
        self.inner.scan(from, until, limit)
    }
}

impl Transaction for Changes<'_> {
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

type Committed = std::result::Result<(), MetaError>;

impl<'a> Changes<'a> {
    /// Counts what other servers have to read again, in the same transaction.
    fn commit_by(self, commit: impl FnOnce(Box<dyn Transaction + 'a>) -> Committed) -> Committed {
        let Self { mut inner, store, based_on, touched } = self;
        if !touched.people && !touched.devices {
            return commit(inner);
        }
        let key = keys::meta(EPOCHS);
        let now: Epochs = load(&*inner, &key)?.unwrap_or_default();
        if touched.devices && now.devices != based_on.devices {
            // Made of what another server has changed since.
            return Err(MetaError::Conflict);
        }
        let next = Epochs {
            people: now.people + u64::from(touched.people),
            devices: now.devices + u64::from(touched.devices),
        };
        save(&mut *inner, &key, &next)?;
        commit(inner)?;
        // What we changed ourselves need not be read again, unless something else was changed before it.
        let mut seen = store.seen.lock();
        if seen.people == now.people {
            seen.people = next.people;
        }
        if seen.devices == now.devices {
            seen.devices = next.devices;
        }
        Ok(())
    }
}

/// Numbers of servers: each has a million numbers of grants for itself in every session.
const SERVER_NUMBERS: u64 = 1 << 12;
const NUMBERS_BITS: u32 = 20;

/// A number that no server has, and none had for long.
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

/// What a server knows of the lease.
#[derive(Debug, Default)]
pub(crate) struct Leading {
    /// The holder and his beat as they were last read, and when that was first.
    observed: Option<(Lease, u64)>,
    /// We lead until then.
    until_ms: u64,
    /// Our latest beat, if nobody followed us since.
    own_beat: Option<u64>,
    /// When we last said that we are there.
    seen_ms: Option<u64>,
}

/// What a server knows of the lives of the others.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    /// What each last said of itself, and since when, by our clock.
    observed: HashMap<ServerName, (u64, u64)>,
    /// Dead ones whose holders' locks were seen to.
    settled: HashSet<ServerName>,
}

impl Lives {
    /// Takes down what the servers say now; which of them are dead?
    fn observe(&mut self, said: &[(ServerName, u64)], now_ms: u64) -> HashSet<ServerName> {
        self.observed.retain(|name, _| said.iter().any(|(one, _)| one == name));
        let mut dead = HashSet::new();
        for (name, seen_ms) in said {
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
    /// Has holders fenced whose server died, and who came to no other one: from what they had locked.
    pub(crate) fn fence_those_of_dead_servers(&self, now_ms: u64) -> Result<()> {
        let all = keys::servers();
        let mut said = Vec::new();
        for (key, value) in self.store.snapshot()?.scan(&all, &keys::after_prefix(&all), SERVERS_MAX)? {
            let record: ServerRecord = decode(&value)?;
            said.extend(keys::server_name(&key).map(|name| (name, record.seen_ms)));
        }
        let dead = {
            let mut lives = self.lives.lock();
            let mut dead = lives.observe(&said, now_ms);
            dead.remove(&self.config.server);
            if dead.iter().all(|name| lives.settled.contains(name)) {
                return Ok(());
            }
            dead
        };
        let from = keys::all_locked();
        let mut theirs = Vec::new();
        each_between(&*self.store.snapshot()?, &from, &keys::after_prefix(&from), |key, value| {
            let Locked { server, .. } = decode(value)?;
            if let Some((id, who)) = keys::locked_parts(key).filter(|_| dead.contains(&server)) {
                theirs.push((id, who, server));
            }
            Ok::<_, MdsError>(())
        })?;
        for (id, who, server) in theirs {
            self.fence_locks(id, &who, server, now_ms);
        }
        self.lives.lock().settled.extend(dead);
        Ok(())
    }

    /// Takes over what other servers changed of people and devices.
    ///
    /// # Errors
    /// `Store`: what is remembered may be too old then.
    pub fn catch_up(&self) -> Result<()> {
        if !self.config.shared {
            return Ok(());
        }
        let now: Epochs = load(&*self.store.snapshot()?, &keys::meta(EPOCHS))?.unwrap_or_default();
        let seen = *self.seen.lock();
        if now.people > seen.people {
            self.regrouped();
            let mut seen = self.seen.lock();
            seen.people = seen.people.max(now.people);
        }
        if now.devices > seen.devices {
            // Who changes keys has the turn: what he began with stays what he knows.
            let _turn = self.key_turn.lock();
            if self.seen.lock().devices >= now.devices {
                // Somebody else has read it while we waited.
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

    /// Is the session, which is in memory, in the store still? Asked again when anything of people was changed.
    pub(crate) fn reconfirm(&self, session: &SessionId) -> Result<()> {
        if !self.config.shared {
            return Ok(());
        }
        let epoch = self.seen.lock().people;
        if self.sessions.confirmed_at(session).is_none_or(|at| at == epoch) {
            return Ok(());
        }
        match load(&*self.store.snapshot()?, &keys::session(session))? {
            Some(record) => self.sessions.confirm_at(session, record, epoch),
            None => self.sessions.forget(&[*session]),
        }
        Ok(())
    }

    /// Does this server do the work that one does for all? Call it every few seconds: that keeps the lease.
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
        let found: Option<Lease> = load(&*self.store.snapshot()?, &key)?;
        let own = self.config.server;
        let own_beat = leading.own_beat.take();
        let may_take = match &found {
            None => true,
            Some(lease) if lease.server == own => {
                if own_beat.is_some_and(|beat| beat != lease.beat) {
                    leading.until_ms = 0;
                    leading.own_beat = own_beat;
                    let what = "another server has the name of this one: is its folder a copy? Remove server-name there";
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
            let there: Option<Lease> = load(tx, &key)?;
            if there != found {
                return Ok(false);
            }
            save(tx, &key, &Lease { server: own, beat })?;
            Ok(true)
        })?;
        if took {
            leading.own_beat = Some(beat);
            leading.observed = None;
            // It is told as ours for less than the others give us.
            leading.until_ms = now_ms.saturating_add(LEASE_MS * 8 / 10);
        }
        Ok(took)
    }

    /// As [`Mds::leads`] last said, if that was not long ago.
    #[must_use]
    pub fn is_leading(&self, now_ms: u64) -> bool {
        !self.config.shared || now_ms < self.leading.lock().until_ms
    }

    /// Until when [`Mds::is_leading`] says so, by the clock that it was last asked with.
    pub(crate) fn leads_until_ms(&self) -> u64 {
        if self.config.shared { self.leading.lock().until_ms } else { u64::MAX }
    }

    /// The servers that may have given out credentials which are alive, this one among them.
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

    /// Says that this server uses the store. Called before it gives anything out, since revocations go by the list.
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

    /// Forgets servers that said nothing for so long that nothing they gave out is alive.
    fn sweep_servers(&self, now_ms: u64) -> Result<()> {
        let all = keys::servers();
        let pairs = self.store.snapshot()?.scan(&all, &keys::after_prefix(&all), SERVERS_MAX)?;
        let mut gone = Vec::new();
        for (key, value) in pairs {
            let record: ServerRecord = decode(&value)?;
            if record.seen_ms.saturating_add(CREDENTIAL_LIFETIME_MAX_MS + 2 * SEEN_EVERY_MS) < now_ms {
                self.update(|tx| Ok(tx.delete(&key)?))?;
                gone.extend(keys::server_name(&key));
            }
        }
        // Nor does anybody come back to whom one of them gave files to hold.
        if gone.is_empty() {
            Ok(())
        } else {
            self.forget_holders_of(&|server: &ServerName| gone.contains(server))
        }
    }
}
