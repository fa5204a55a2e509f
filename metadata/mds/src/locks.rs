//! Advisory locks: byte ranges as fcntl has them, whole files as flock has them, apart from each
//! other.
//!
//! Does: keep locks while their client has the file open: in memory, or, where several servers
//! share a store, in the store, so that each of them sees all.
//! Does not: wait; the client repeats the request, so there are no deadlocks at the server.
//! Does not: end locks of a silent client; `fence` does, when it can no longer write.
//! Contract: O(locks of the file), of which there are at most [`LOCKS_PER_FILE_MAX`]. A user has a
//! share of the locks of a file and of all locks (see `share`).

mod stored;

use std::collections::HashMap;

use parking_lot::Mutex;
use sealstone_mds_protocol::{ErrorCode, InodeId, LOCK_TO_END, Lock, LockKind, UserName};

pub(crate) use stored::{LockRecord, StoredLocks, end};

use crate::error::{MdsError, Result};
use crate::leases::ClientKey;
use crate::share;

/// Maximum number of locks of one file.
pub(crate) const LOCKS_PER_FILE_MAX: usize = 8192;
/// Maximum number of all locks.
pub(crate) const LOCKS_MAX: usize = 1 << 18;
/// Maximum number of locks of one user.
pub(crate) const LOCKS_BY_USER_MAX: usize = LOCKS_MAX / 4;

/// A table of locks.
pub(crate) trait LockTable {
    /// Sets, changes or removes a lock. Returns a conflicting lock, and then changes nothing.
    /// `test`: only checks.
    fn lock(&self, client: &ClientKey, id: InodeId, lock: Lock, test: bool) -> Result<Option<Lock>>;

    /// Whether the owner's locks cover this one, at least of its kind.
    fn covers(&self, client: &ClientKey, id: InodeId, lock: &Lock) -> Result<bool>;

    /// Releases all locks on a file of one owner, or of all owners of a client.
    fn release(&self, client: &ClientKey, id: InodeId, owner: Option<u64>) -> Result<()>;
}

/// A lock with its client; the owner is a program of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnedLock {
    client: ClientKey,
    lock: Lock,
}

impl OwnedLock {
    fn is_same(&self, other: &Self) -> bool {
        self.client == other.client && self.lock.owner == other.lock.owner
    }
}

#[derive(Default)]
struct LockMap {
    files: HashMap<InodeId, Vec<OwnedLock>>,
    count: usize,
    by_user: HashMap<UserName, usize>,
}

impl LockMap {
    /// Changes a user's locks of a file and updates the counters.
    fn change<T>(
        &mut self,
        id: InodeId,
        (user, _): &ClientKey,
        work: impl FnOnce(&mut Vec<OwnedLock>) -> T,
    ) -> T {
        let locks = self.files.entry(id).or_default();
        let before = locks.len();
        let result = work(locks);
        self.count = self.count - before + locks.len();
        let own = self.by_user.entry(user.clone()).or_default();
        *own = (*own + locks.len()).saturating_sub(before);
        if *own == 0 {
            self.by_user.remove(user);
        }
        if locks.is_empty() {
            self.files.remove(&id);
        }
        result
    }
}

/// All locks.
#[derive(Default)]
pub(crate) struct MemoryLocks(Mutex<LockMap>);

const fn overlap(a: &Lock, b: &Lock) -> bool {
    a.whole == b.whole && a.start < b.end && b.start < a.end
}

fn check(lock: &Lock) -> Result<()> {
    let sound = if lock.whole { (lock.start, lock.end) == (0, LOCK_TO_END) } else { lock.start < lock.end };
    if sound { Ok(()) } else { Err(MdsError::refused(ErrorCode::Invalid, "range of a lock")) }
}

impl MemoryLocks {
    /// Whether the client has any lock on the file.
    pub(crate) fn any(&self, client: &ClientKey, id: InodeId) -> bool {
        self.0.lock().files.get(&id).is_some_and(|all| all.iter().any(|one| one.client == *client))
    }
}

impl LockTable for MemoryLocks {
    fn lock(&self, client: &ClientKey, id: InodeId, lock: Lock, test: bool) -> Result<Option<Lock>> {
        check(&lock)?;
        let wanted = OwnedLock { client: client.clone(), lock };
        let table = &mut *self.0.lock();
        let all = table.files.get(&id).map(Vec::as_slice).unwrap_or_default();
        let conflict = find_conflict(all, &wanted);
        if conflict.is_some() || test {
            return Ok(conflict);
        }
        let own = table.by_user.get(&client.0).copied().unwrap_or_default();
        let may_grow = has_share(own, table.count);
        table.change(id, client, |locks| set(locks, wanted, may_grow))?;
        Ok(None)
    }

    fn covers(&self, client: &ClientKey, id: InodeId, lock: &Lock) -> Result<bool> {
        let table = &*self.0.lock();
        let all = table.files.get(&id).into_iter().flatten();
        Ok(is_covered(all.filter(|one| one.client == *client).map(|one| &one.lock), lock))
    }

    fn release(&self, client: &ClientKey, id: InodeId, owner: Option<u64>) -> Result<()> {
        let table = &mut *self.0.lock();
        if table.files.contains_key(&id) {
            table.change(id, client, |locks| {
                locks.retain(|one| {
                    one.client != *client || owner.is_some_and(|owner| one.lock.owner != owner)
                });
            });
        }
        Ok(())
    }
}

/// Whether a user with `own` of `count` locks may have another one.
const fn has_share(own: usize, count: usize) -> bool {
    own < LOCKS_BY_USER_MAX && share::is_free(own, count, 1, LOCKS_MAX)
}

/// Returns a lock of another owner that conflicts.
fn find_conflict(locks: &[OwnedLock], wanted: &OwnedLock) -> Option<Lock> {
    let lock = &wanted.lock;
    if lock.kind == LockKind::Unlock {
        return None;
    }
    let exclusive = |other: &Lock| other.kind == LockKind::Write || lock.kind == LockKind::Write;
    let meets =
        |other: &&OwnedLock| !other.is_same(wanted) && overlap(&other.lock, lock) && exclusive(&other.lock);
    locks.iter().find(meets).map(|other| other.lock)
}

/// Whether a client's locks cover this one, at least of its kind.
fn is_covered<'a>(own: impl Iterator<Item = &'a Lock>, lock: &Lock) -> bool {
    let as_much = |one: &&Lock| one.kind == LockKind::Write || lock.kind == LockKind::Read;
    let mut own: Vec<&Lock> =
        own.filter(|one| one.owner == lock.owner && overlap(one, lock)).filter(as_much).collect();
    own.sort_unstable_by_key(|one| one.start);
    let mut from = lock.start;
    for one in own {
        if one.start > from {
            return false;
        }
        from = from.max(one.end);
    }
    from >= lock.end
}

/// Replaces the owner's locks in a range by one lock.
fn set(locks: &mut Vec<OwnedLock>, wanted: OwnedLock, may_grow: bool) -> Result<()> {
    let range = wanted.lock;
    // The rest of the old locks on either side: at most one more than there were.
    let mut rest = Vec::new();
    for old in locks.iter().filter(|old| old.is_same(&wanted) && overlap(&old.lock, &range)) {
        if old.lock.start < range.start {
            rest.push(OwnedLock { lock: Lock { end: range.start, ..old.lock }, ..old.clone() });
        }
        if old.lock.end > range.end {
            rest.push(OwnedLock { lock: Lock { start: range.end, ..old.lock }, ..old.clone() });
        }
    }
    let replaced = locks.iter().filter(|old| old.is_same(&wanted) && overlap(&old.lock, &range)).count();
    let new = rest.len() + usize::from(range.kind != LockKind::Unlock);
    let own = locks.iter().filter(|old| old.client.0 == wanted.client.0).count();
    if new > replaced && !(may_grow && share::is_free(own, locks.len(), new - replaced, LOCKS_PER_FILE_MAX)) {
        let why = format!("locks: user {} has {own} on the file and cannot have more", wanted.client.0);
        return Err(MdsError::refused(ErrorCode::Limit, why));
    }
    locks.retain(|old| !(old.is_same(&wanted) && overlap(&old.lock, &range)));
    locks.append(&mut rest);
    if range.kind != LockKind::Unlock {
        let mut whole = wanted;
        // Adjacent locks of the same kind are merged, so that a file locked piece by piece ends
        // with one lock.
        while let Some(at) = locks.iter().position(|old| touches(old, &whole)) {
            let old = locks.swap_remove(at);
            whole.lock.start = whole.lock.start.min(old.lock.start);
            whole.lock.end = whole.lock.end.max(old.lock.end);
        }
        locks.push(whole);
    }
    Ok(())
}

fn touches(old: &OwnedLock, new: &OwnedLock) -> bool {
    let (a, b) = (&old.lock, &new.lock);
    old.is_same(new) && a.kind == b.kind && a.whole == b.whole && (a.end == b.start || b.end == a.start)
}

#[cfg(test)]
mod tests;
