//! Locks in the store, where several servers see them.
//!
//! Contract: a record for each holder and file, which has his locks on it and the server that answers for him: the one
//! that he last locked something at. It goes with the last of them. Two servers never grant what excludes each other: both
//! look and write in one transaction.

use sealstone_mds_protocol::{InodeId, Lock, LockKind, UserName, record};

use super::{LOCKS_PER_FILE_MAX, LockTable, Owned, check, has_share, in_the_way, is_covered, set};
use crate::error::{MdsError, Result};
use crate::fence;
use crate::keys;
use crate::leases::Who;
use crate::records::{counter, decode, load, save};
use crate::server::Mds;
use crate::shared::ServerName;
use crate::store::{Snapshot, Transaction};

record! {
    /// What a holder has locked of a file.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Locked {
        /// The server that answers for him.
        pub server: ServerName,
        /// His locks; none: they are in that server's memory.
        pub locks: Vec<Lock>,
    }
}

/// The locks of all servers on one store.
pub(crate) struct StoredLocks<'a>(pub(crate) &'a Mds);

/// All on a file.
pub(super) fn of_file<S: Snapshot + ?Sized>(view: &S, id: InodeId) -> Result<Vec<Owned>> {
    let from = keys::locked_of(id);
    let mut all = Vec::new();
    for (key, value) in view.scan(&from, &keys::after_prefix(&from), LOCKS_PER_FILE_MAX)? {
        let Some((_, who)) = keys::locked_parts(&key) else { continue };
        let Locked { locks, .. } = decode(&value)?;
        all.extend(locks.into_iter().map(|lock| Owned { who: who.clone(), lock }));
    }
    Ok(all)
}

fn locks_of_client<S: Snapshot + ?Sized>(view: &S, id: InodeId, who: &Who) -> Result<Option<Locked>> {
    Ok(load(view, &keys::locked(id, who))?)
}

/// How many locks a user has, and all users together.
pub(super) fn counts(tx: &dyn Transaction, user: &UserName) -> Result<(u64, u64)> {
    let own: Option<u64> = load(tx, &keys::lock_count(user))?;
    let all: Option<u64> = load(tx, &keys::meta(counter::LOCKS))?;
    Ok((own.unwrap_or_default(), all.unwrap_or_default()))
}

/// Puts a holder's record, and keeps the books; `before`: how many locks it had.
fn put(tx: &mut dyn Transaction, id: InodeId, who: &Who, record: &Locked, before: usize) -> Result<()> {
    let key = keys::locked(id, who);
    match record.locks.is_empty() {
        true => tx.delete(&key)?,
        false => save(tx, &key, record)?,
    }
    let after = record.locks.len();
    if after != before {
        let (own, all) = counts(tx, &who.0)?;
        let counted = |count: u64| count.saturating_sub(before as u64).saturating_add(after as u64);
        match counted(own) {
            0 => tx.delete(&keys::lock_count(&who.0))?,
            own => save(tx, &keys::lock_count(&who.0), &own)?,
        }
        save(tx, &keys::meta(counter::LOCKS), &counted(all))?;
    }
    Ok(())
}

/// Ends all that a holder has locked of a file.
pub(crate) fn end(tx: &mut dyn Transaction, id: InodeId, who: &Who) -> Result<()> {
    match locks_of_client(tx, id, who)? {
        // Of those in memory there is only this.
        Some(known) => put(tx, id, who, &Locked::default(), known.locks.len()),
        None => Ok(()),
    }
}

impl LockTable for StoredLocks<'_> {
    fn lock(&self, who: &Who, id: InodeId, lock: Lock, test: bool) -> Result<Option<Lock>> {
        check(&lock)?;
        let wanted = Owned { who: who.clone(), lock };
        // Whoever waits asks again and again: he takes no turn.
        let all = of_file(&*self.0.store.snapshot()?, id)?;
        let conflict = in_the_way(&all, &wanted);
        let nothing = lock.kind == LockKind::Unlock && !all.iter().any(|one| one.is_same(&wanted));
        if conflict.is_some() || test || nothing {
            return Ok(conflict);
        }
        self.0.update(|tx| {
            if lock.kind != LockKind::Unlock {
                fence::check(tx, id, who)?;
            }
            let mut all = of_file(tx, id)?;
            if let Some(conflict) = in_the_way(&all, &wanted) {
                return Ok(Some(conflict));
            }
            let before = all.iter().filter(|one| one.who == *who).count();
            let (own, of_all) = counts(tx, &who.0)?;
            let room = has_share(own as usize, of_all as usize);
            set(&mut all, wanted.clone(), room)?;
            let locks = all.into_iter().filter(|one| one.who == *who).map(|one| one.lock).collect();
            put(tx, id, who, &Locked { server: self.0.config.server, locks }, before)?;
            Ok(None)
        })
    }

    fn covers(&self, who: &Who, id: InodeId, lock: &Lock) -> Result<bool> {
        let Some(known) = locks_of_client(&*self.0.store.snapshot()?, id, who)? else { return Ok(false) };
        if !is_covered(known.locks.iter(), lock) {
            return Ok(false);
        }
        if known.server == self.0.config.server {
            return Ok(true);
        }
        // He came from another server: this one answers for him.
        self.0.update(|tx| {
            fence::check(tx, id, who)?;
            let Some(mut known) = locks_of_client(tx, id, who)? else { return Ok(false) };
            if !is_covered(known.locks.iter(), lock) {
                return Ok(false);
            }
            known.server = self.0.config.server;
            let before = known.locks.len();
            put(tx, id, who, &known, before)?;
            Ok::<_, MdsError>(true)
        })
    }

    fn release(&self, who: &Who, id: InodeId, owner: Option<u64>) -> Result<()> {
        if locks_of_client(&*self.0.store.snapshot()?, id, who)?.is_none() {
            return Ok(());
        }
        self.0.update(|tx| {
            let Some(mut known) = locks_of_client(tx, id, who)? else { return Ok(()) };
            let before = known.locks.len();
            known.locks.retain(|one| owner.is_some_and(|owner| one.owner != owner));
            known.server = self.0.config.server;
            put(tx, id, who, &known, before)
        })
    }
}
