//! Fencing: revokes the write access of an unresponsive client before other clients continue.
//!
//! Does: set new policy access tags on a file's objects, so that devices refuse the client's
//! credentials; refuse it new ones until it has released the file; end its locks when it can no
//! longer write.
//! Does not: choose the clients to fence; `client_registry` chooses silent clients with locks,
//! `leases` those with unreturned leases.
//! Contract: from the first step on the client gets nothing more for the file; a credential that is
//! being issued meanwhile is not sent. A fence is done when every device has confirmed the new
//! tags, or when every older credential has expired. It is recorded in the transaction that draws
//! the tags, and so survives restarts.
//! Truth: docs/standards/mds/leases.md §5.11; docs/adr/0048-locks-and-fences.md.

use std::sync::atomic::Ordering;

use sealstone_mds_protocol::{ErrorCode, InodeId};

use crate::audit::AuditRecord;
use crate::counters::add;
use crate::error::{MdsError, Result};
use crate::keys;
use crate::leases::{self, ClientKey};
use crate::locks::{self, LockRecord, LockTable};
use crate::records::{decode, load, save};
use crate::request_context::as_server;
use crate::server::Mds;
use crate::server_registry::ServerName;
use crate::store::each_between;
use crate::tags::retag_file;

pub(crate) mod table;

use table::{Fence, FenceKey, surplus};

/// How long a completed fence is kept for a client that does not return, milliseconds. One that
/// returns later finds that it does not hold its locks.
const KEPT_MS: u64 = 7 * 24 * 3_600_000;
/// Maximum number of completed fences that are kept; the oldest are dropped, of users with more
/// than an equal share first.
const KEPT_MAX: usize = 65_536;

impl Mds {
    /// Returns the fence of a client from a file, if any.
    pub(crate) fn fence_of(&self, id: InodeId, client: &ClientKey) -> Result<Option<Fence>> {
        let place = (id, client.clone());
        {
            let table = self.fences.table.lock();
            if let Some(of) = table.begun.get(&place) {
                return Ok(Some(Fence::new(of.is_some(), 0)));
            }
            if !self.config.shared {
                return Ok(table.known.get(&place).cloned());
            }
        }
        Ok(load(&*self.store.snapshot()?, &keys::fence(id, client))?)
    }

    /// Fails if the client is fenced from the file. `first_open`: the client opens the file without
    /// reclaiming; it repeats that until it knows of a lease fence.
    pub(crate) fn check_not_fenced(&self, id: InodeId, client: &ClientKey, first_open: bool) -> Result<()> {
        match self.fence_of(id, client)? {
            Some(fence) if fence.released => Ok(()),
            // It may open the file again after it confirmed the new epoch.
            Some(fence) if first_open && !fence.of_locks => Err(leases::busy()),
            Some(_) => Err(MdsError::refused(ErrorCode::Fenced, "")),
            None => Ok(()),
        }
    }

    /// Begins a fence. `of`: the server responsible for the client's locks on the file, if it is
    /// for locks.
    fn begin_fence(
        &self,
        id: InodeId,
        client: &ClientKey,
        of: Option<ServerName>,
        now_ms: u64,
    ) -> Result<()> {
        let place = (id, client.clone());
        // Before the tags are drawn: credentials that are being issued are checked once more before
        // they are sent.
        let of = {
            let table = &mut *self.fences.table.lock();
            let known = table.begun.entry(place.clone()).or_insert(of);
            *known = known.or(of);
            *known
        };
        let begun = self.update(|tx| {
            if let Some(of) = of
                && load::<LockRecord, _>(tx, &keys::locked(id, client))?
                    .is_none_or(|known| known.server != of)
            {
                // The client released the locks or moved to another server.
                return Ok(None);
            }
            let known: Option<Fence> = load(tx, &keys::fence(id, client))?;
            let mut fence = Fence::new(of.is_some(), now_ms);
            match known {
                Some(known) if !known.released => {
                    fence.of_locks |= known.of_locks;
                    if known.done {
                        // No credentials were issued since.
                        fence.over_ms = now_ms;
                    } else {
                        fence.over_ms = known.over_ms;
                    }
                }
                _ => retag_file(tx, id, now_ms)?,
            }
            save(tx, &keys::fence(id, client), &fence)?;
            Ok(Some(fence))
        })?;
        let table = &mut *self.fences.table.lock();
        table.begun.remove(&place);
        match begun {
            Some(fence) if !self.config.shared => _ = table.known.insert(place, fence),
            Some(_) => {}
            None => {
                table.locked.remove(&place);
                table.mark_reclaimed(id, client);
                return Ok(());
            }
        }
        self.revocations_changed.store(true, Ordering::Release);
        tracing::warn!(inode = id.0, user = %client.0, "client unresponsive; fencing it from the file");
        self.audit_fence(id, client, "begun", now_ms);
        Ok(())
    }

    /// Takes the next step of a fence; returns whether it is done.
    fn step_fence(&self, id: InodeId, client: &ClientKey, fence: &Fence, now_ms: u64) -> Result<bool> {
        if now_ms < fence.over_ms && !self.is_retagged(id)? {
            return Ok(false);
        }
        let done = self.update(|tx| {
            let key = keys::fence(id, client);
            let Some(mut fence) = load::<Fence, _>(tx, &key)?.filter(|fence| !fence.done) else {
                return Ok(None);
            };
            if fence.of_locks && !fence.released {
                locks::end(tx, id, client)?;
            }
            fence.done = true;
            if fence.released {
                tx.delete(&key)?
            } else {
                save(tx, &key, &fence)?
            }
            Ok(Some(fence))
        })?;
        let Some(fence) = done else { return Ok(true) };
        if fence.of_locks && !fence.released {
            if !self.config.shared {
                self.locks.release(client, id, None)?;
            }
            self.fences.unlocked(id, client);
            add(&self.counters.locks_fenced, 1);
        }
        if !fence.of_locks {
            add(&self.counters.leases_fenced, 1);
        }
        self.leases.on_fenced(id, client, !fence.of_locks && !fence.released);
        if !self.config.shared {
            let known = &mut self.fences.table.lock().known;
            let place = (id, client.clone());
            _ = if fence.released { known.remove(&place) } else { known.insert(place, fence) };
        }
        self.audit_fence(id, client, "ok", now_ms);
        Ok(true)
    }

    /// Begins or continues the fence for an unreturned write lease. A waiting request repeats, and
    /// takes the next step.
    pub(crate) fn fence_lease(&self, id: InodeId, client: &ClientKey, now_ms: u64) -> Result<()> {
        let _turn = self.fences.step_lock.lock();
        match self.fence_of(id, client)? {
            Some(fence) if !fence.done && fence.began_ms > 0 => {
                self.step_fence(id, client, &fence, now_ms).map(drop)
            }
            // Current credentials were issued after the old fence.
            _ => self.begin_fence(id, client, None, now_ms),
        }
    }

    /// Fences a silent client that had locks on a file that it can write.
    pub(crate) fn fence_locks(&self, id: InodeId, client: &ClientKey, of: ServerName, now_ms: u64) {
        let _turn = self.fences.step_lock.lock();
        if let Err(error) = self.begin_fence(id, client, Some(of), now_ms) {
            tracing::error!(inode = id.0, %error, "cannot begin a fence; the locks stay until it succeeds");
        }
    }

    /// Fences clients of before the restart that did not reclaim their locks within the grace
    /// period.
    pub(crate) fn fence_unreclaimed_locks(&self, now_ms: u64) {
        for (id, client) in self.fences.unreclaimed() {
            if self.open_files.is_open_by(&client.0, client.1, id) {
                self.fences.mark_reclaimed(id, &client);
            } else {
                self.fence_locks(id, &client, self.config.server, now_ms);
            }
        }
    }

    /// Continues all fences and deletes old ones. Call every few seconds.
    pub(crate) fn tidy_fences(&self, now_ms: u64) -> Result<()> {
        let _turn = self.fences.step_lock.lock();
        let begun: Vec<_> =
            self.fences.table.lock().begun.iter().map(|(place, of)| (place.clone(), *of)).collect();
        for ((id, client), of) in begun {
            // The store failed before.
            self.begin_fence(id, &client, of, now_ms)?;
        }
        let all = if !self.config.shared {
            self.fences
                .table
                .lock()
                .known
                .iter()
                .map(|(place, fence)| (place.clone(), fence.clone()))
                .collect()
        } else if self.is_leading(now_ms) {
            self.fences_on_record()?
        } else {
            return Ok(());
        };
        let mut kept = Vec::new();
        for ((id, client), fence) in all {
            if fence.done {
                kept.push((fence.began_ms, (id, client)));
            } else if let Err(error) = self.step_fence(id, &client, &fence, now_ms) {
                tracing::error!(inode = id.0, %error, "fencing is stuck; retrying");
            }
        }
        kept.sort_unstable_by_key(|(began_ms, _)| *began_ms);
        let surplus = surplus(&kept, KEPT_MAX);
        for (at, (began_ms, (id, client))) in kept.into_iter().enumerate() {
            if surplus.contains(&at) || began_ms.saturating_add(KEPT_MS) <= now_ms {
                self.forget_fence(id, &client)?;
            }
        }
        Ok(())
    }

    fn fences_on_record(&self) -> Result<Vec<(FenceKey, Fence)>> {
        let (from, mut all) = (keys::fences(), Vec::new());
        each_between(&*self.store.snapshot()?, &from, &keys::after_prefix(&from), |key, value| {
            if let Some(place) = keys::locked_parts(key) {
                all.push((place, decode(value)?));
            }
            Ok::<_, MdsError>(())
        })?;
        Ok(all)
    }

    fn forget_fence(&self, id: InodeId, client: &ClientKey) -> Result<()> {
        self.update(|tx| Ok(tx.delete(&keys::fence(id, client))?))?;
        self.fences.table.lock().known.remove(&(id, client.clone()));
        Ok(())
    }

    /// Releases a fence: the client has dropped all data of the file.
    pub(crate) fn release_fence(&self, id: InodeId, client: &ClientKey) -> Result<()> {
        if self.fence_of(id, client)?.is_none() {
            return Ok(());
        }
        let _turn = self.fences.step_lock.lock();
        // No other fence is begun within this step.
        let left = as_server(|| {
            self.update(|tx| {
                let key = keys::fence(id, client);
                let Some(mut fence) = load::<Fence, _>(tx, &key)? else { return Ok(None) };
                if fence.done {
                    tx.delete(&key)?;
                    return Ok(None);
                }
                fence.released = true;
                save(tx, &key, &fence)?;
                Ok(Some(fence))
            })
        })?;
        if !self.config.shared {
            let (place, known) = ((id, client.clone()), &mut self.fences.table.lock().known);
            _ = match left {
                Some(fence) => known.insert(place, fence),
                None => known.remove(&place),
            };
        }
        Ok(())
    }

    /// Releases all fences for leases of a client that confirmed a new epoch.
    pub(crate) fn release_lease_fences(&self, client: &ClientKey) -> Result<()> {
        let lost: Vec<InodeId> = {
            let table = self.fences.table.lock();
            let known = table.known.iter().filter(|((_, one), fence)| one == client && !fence.of_locks);
            known.map(|((id, _), _)| *id).collect()
        };
        lost.into_iter().try_for_each(|id| self.release_fence(id, client))
    }

    fn audit_fence(&self, id: InodeId, (user, _): &ClientKey, verdict: &str, time_ms: u64) {
        let subject = format!("node {}", id.0);
        self.audit.record(&AuditRecord {
            time_ms,
            user: user.as_str(),
            session: None,
            proven: true,
            source: None,
            action: "fence",
            subject: Some(&subject),
            verdict,
        });
    }
}
