//! Locks in the store, where several servers see them.
//!
//! Contract: one record for each client and file, with the client's locks on it and the server
//! responsible for the client: where it last locked something. It is deleted with the last lock.
//! Two servers never grant conflicting locks: each checks and writes in one transaction.

use sealstone_mds_protocol::{InodeId, Lock, LockKind, UserName, record};

use super::{LOCKS_PER_FILE_MAX, LockTable, OwnedLock, check, find_conflict, has_share, is_covered, set};
use crate::error::{MdsError, Result};
use crate::fence::table::check_fence;
use crate::keys;
use crate::leases::ClientKey;
use crate::records::{counter, decode, load, save};
use crate::server::Mds;
use crate::server_registry::ServerName;
use crate::store::{Snapshot, Transaction};

record! {
    /// Locks of a client on a file.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct LockRecord {
        /// The server responsible for the client.
        pub server: ServerName,
        /// The locks; empty: they are in that server's memory.
        pub locks: Vec<Lock>,
    }
}

/// The locks of all servers on one store.
pub(crate) struct StoredLocks<'a>(pub(crate) &'a Mds);

/// Returns all locks on a file.
pub(super) fn of_file<S: Snapshot + ?Sized>(view: &S, id: InodeId) -> Result<Vec<OwnedLock>> {
    let from = keys::locked_of(id);
    let mut all = Vec::new();
    for (key, value) in view.scan(&from, &keys::after_prefix(&from), LOCKS_PER_FILE_MAX)? {
        let Some((_, client)) = keys::locked_parts(&key) else { continue };
        let LockRecord { locks, .. } = decode(&value)?;
        all.extend(locks.into_iter().map(|lock| OwnedLock { client: client.clone(), lock }));
    }
    Ok(all)
}

fn locks_of_client<S: Snapshot + ?Sized>(
    view: &S,
    id: InodeId,
    client: &ClientKey,
) -> Result<Option<LockRecord>> {
    Ok(load(view, &keys::locked(id, client))?)
}

/// Returns the number of locks of a user and of all users.
pub(super) fn counts(tx: &dyn Transaction, user: &UserName) -> Result<(u64, u64)> {
    let own: Option<u64> = load(tx, &keys::lock_count(user))?;
    let all: Option<u64> = load(tx, &keys::meta(counter::LOCKS))?;
    Ok((own.unwrap_or_default(), all.unwrap_or_default()))
}

/// Stores a client's record and updates the counters; `before`: its previous number of locks.
fn put(
    tx: &mut dyn Transaction,
    id: InodeId,
    client: &ClientKey,
    record: &LockRecord,
    before: usize,
) -> Result<()> {
    let key = keys::locked(id, client);
    match record.locks.is_empty() {
        true => tx.delete(&key)?,
        false => save(tx, &key, record)?,
    }
    let after = record.locks.len();
    if after != before {
        let (own, all) = counts(tx, &client.0)?;
        let counted = |count: u64| count.saturating_sub(before as u64).saturating_add(after as u64);
        match counted(own) {
            0 => tx.delete(&keys::lock_count(&client.0))?,
            own => save(tx, &keys::lock_count(&client.0), &own)?,
        }
        save(tx, &keys::meta(counter::LOCKS), &counted(all))?;
    }
    Ok(())
}

/// Removes all locks of a client on a file.
pub(crate) fn end(tx: &mut dyn Transaction, id: InodeId, client: &ClientKey) -> Result<()> {
    match locks_of_client(tx, id, client)? {
        // Locks in memory have only this record.
        Some(known) => put(tx, id, client, &LockRecord::default(), known.locks.len()),
        None => Ok(()),
    }
}

impl LockTable for StoredLocks<'_> {
    fn lock(&self, client: &ClientKey, id: InodeId, lock: Lock, test: bool) -> Result<Option<Lock>> {
        check(&lock)?;
        let wanted = OwnedLock { client: client.clone(), lock };
        // A waiting client repeats the request often: check without a transaction first.
        let all = of_file(&*self.0.store.snapshot()?, id)?;
        let conflict = find_conflict(&all, &wanted);
        let nothing = lock.kind == LockKind::Unlock && !all.iter().any(|one| one.is_same(&wanted));
        if conflict.is_some() || test || nothing {
            return Ok(conflict);
        }
        self.0.update(|tx| {
            if lock.kind != LockKind::Unlock {
                check_fence(tx, id, client)?;
            }
            let mut all = of_file(tx, id)?;
            if let Some(conflict) = find_conflict(&all, &wanted) {
                return Ok(Some(conflict));
            }
            let before = all.iter().filter(|one| one.client == *client).count();
            let (own, of_all) = counts(tx, &client.0)?;
            let may_grow = has_share(own as usize, of_all as usize);
            set(&mut all, wanted.clone(), may_grow)?;
            let locks = all.into_iter().filter(|one| one.client == *client).map(|one| one.lock).collect();
            put(tx, id, client, &LockRecord { server: self.0.config.server, locks }, before)?;
            Ok(None)
        })
    }

    fn covers(&self, client: &ClientKey, id: InodeId, lock: &Lock) -> Result<bool> {
        let Some(known) = locks_of_client(&*self.0.store.snapshot()?, id, client)? else { return Ok(false) };
        if !is_covered(known.locks.iter(), lock) {
            return Ok(false);
        }
        if known.server == self.0.config.server {
            return Ok(true);
        }
        // The client came from another server: this one becomes responsible.
        self.0.update(|tx| {
            check_fence(tx, id, client)?;
            let Some(mut known) = locks_of_client(tx, id, client)? else { return Ok(false) };
            if !is_covered(known.locks.iter(), lock) {
                return Ok(false);
            }
            known.server = self.0.config.server;
            let before = known.locks.len();
            put(tx, id, client, &known, before)?;
            Ok::<_, MdsError>(true)
        })
    }

    fn release(&self, client: &ClientKey, id: InodeId, owner: Option<u64>) -> Result<()> {
        if locks_of_client(&*self.0.store.snapshot()?, id, client)?.is_none() {
            return Ok(());
        }
        self.0.update(|tx| {
            let Some(mut known) = locks_of_client(tx, id, client)? else { return Ok(()) };
            let before = known.locks.len();
            known.locks.retain(|one| owner.is_some_and(|owner| one.owner != owner));
            known.server = self.0.config.server;
            put(tx, id, client, &known, before)
        })
    }
}
