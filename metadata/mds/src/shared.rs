//! Several servers on one store: what this server does about changes and deaths of the others.
//!
//! Does: reload what another server changed before the next request; renew or take the lease on the
//! work that one server does for all; fence clients of dead servers.
//! Does not: share state of a single server: its record of credentials, its rate limits, its
//! connections. Does not: count changes (`cache_epochs`), decide which server leads (`election`),
//! or keep the records of servers (`server_registry`).
//! Contract: a session that ended on any server is not found on any other.
//! Truth: docs/adr/0038-several-servers-one-database.md.

use sealstone_mds_protocol::login::SessionId;

use crate::cache_epochs::{CacheEpochs, EPOCHS};
use crate::election::{LEASE, LeaderLease, LeaseDecision};
use crate::error::{MdsError, Result};
use crate::keys;
use crate::locks::LockRecord;
use crate::records::{decode, load, save};
use crate::server::Mds;
use crate::server_registry::{self, ServerName};
use crate::store::{Snapshot, each_between};

impl Mds {
    /// Fences clients of dead servers from the files that they had locked, unless they connected to
    /// another server.
    pub(crate) fn fence_those_of_dead_servers(&self, now_ms: u64) -> Result<()> {
        let signs = server_registry::signs_of_life(&*self.store.snapshot()?)?;
        let dead = self.liveness.lock().unsettled_dead(&signs, &self.config.server, now_ms);
        if dead.is_empty() {
            return Ok(());
        }
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
        self.liveness.lock().settle(dead);
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
        let mut election = self.election.lock();
        if election.is_sign_due(now_ms) {
            self.register(now_ms)?;
            if now_ms < election.until_ms() {
                self.sweep_servers(now_ms)?;
            }
            election.sign_stored(now_ms);
        }
        let key = keys::meta(LEASE);
        let found: Option<LeaderLease> = load(&*self.store.snapshot()?, &key)?;
        let lease = match election.decide(found.as_ref(), self.config.server, now_ms)? {
            LeaseDecision::Lead => return Ok(true),
            LeaseDecision::Follow => return Ok(false),
            LeaseDecision::Take(lease) => lease,
        };
        let took = self.update(|tx| {
            let there: Option<LeaderLease> = load(tx, &key)?;
            if there != found {
                return Ok(false);
            }
            save(tx, &key, &lease)?;
            Ok(true)
        })?;
        if took {
            election.lease_stored(&lease, now_ms);
        }
        Ok(took)
    }

    /// Whether [`Mds::leads`] returned true recently.
    #[must_use]
    pub fn is_leading(&self, now_ms: u64) -> bool {
        !self.config.shared || now_ms < self.election.lock().until_ms()
    }

    /// Returns the time until which [`Mds::is_leading`] is true.
    pub(crate) fn leads_until_ms(&self) -> u64 {
        if self.config.shared { self.election.lock().until_ms() } else { u64::MAX }
    }

    /// Returns the servers whose credentials may be valid, including this one.
    pub(crate) fn servers<S: Snapshot + ?Sized>(&self, view: &S) -> Result<Vec<ServerName>> {
        let mut servers = vec![self.config.server];
        if self.config.shared {
            let all = server_registry::names(view)?;
            servers.extend(all.into_iter().filter(|name| *name != self.config.server));
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
        let first = self.update(|tx| server_registry::register(tx, &self.config.server, now_ms))?;
        self.sessions.begin_numbers_at(first);
        Ok(())
    }

    /// Deletes servers that were silent until all their credentials have expired.
    fn sweep_servers(&self, now_ms: u64) -> Result<()> {
        let mut dead = Vec::new();
        for key in server_registry::expired(&*self.store.snapshot()?, now_ms)? {
            self.update(|tx| Ok(tx.delete(&key)?))?;
            dead.extend(keys::server_name(&key));
        }
        // Their clients cannot return either, so their open files are forgotten.
        if dead.is_empty() {
            Ok(())
        } else {
            self.forget_clients_of_servers(&|server: &ServerName| dead.contains(server))
        }
    }
}
