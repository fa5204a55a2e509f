//! Advisory locks: byte ranges as fcntl has them, whole files as flock has them, apart from each other.
//!
//! Does: keep them in memory for as long as their holder holds the file. Does not: wait; whoever wants to asks again, so
//! that nobody waits for himself either. After a restart those that were held are taken up again before anybody gets new ones.
//! Contract: O(locks of the file), of which there are [`LOCKS_PER_FILE_MAX`] at most.
//! Truth: POSIX.1-2017 fcntl(); docs/standards/mds.md §5.8.

use std::collections::HashMap;

use parking_lot::Mutex;
use sealstone_mds_protocol::{ErrorCode, HolderId, InodeId, LOCK_TO_END, Lock, LockKind, UserName};

use crate::error::{MdsError, Result};

/// Locks of one file at most.
pub(crate) const LOCKS_PER_FILE_MAX: usize = 4096;
/// Locks of all files at most.
pub(crate) const LOCKS_MAX: usize = 1 << 18;
/// Of them, those of one user: nobody takes all the room.
pub(crate) const LOCKS_BY_USER_MAX: usize = LOCKS_MAX / 4;

/// Whose a lock is: a program of a holder of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owned {
    user: UserName,
    holder: HolderId,
    lock: Lock,
}

impl Owned {
    fn is_of(&self, user: &UserName, holder: HolderId) -> bool {
        self.holder == holder && self.user == *user
    }

    fn is_same(&self, other: &Self) -> bool {
        self.is_of(&other.user, other.holder) && self.lock.owner == other.lock.owner
    }
}

#[derive(Default)]
struct Table {
    files: HashMap<InodeId, Vec<Owned>>,
    count: usize,
    by_user: HashMap<UserName, usize>,
}

impl Table {
    /// Changes a user's locks of a file, and keeps the books.
    fn change<T>(&mut self, id: InodeId, user: &UserName, work: impl FnOnce(&mut Vec<Owned>) -> T) -> T {
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
pub(crate) struct Locks(Mutex<Table>);

const fn overlap(a: &Lock, b: &Lock) -> bool {
    a.whole == b.whole && a.start < b.end && b.start < a.end
}

fn check(lock: &Lock) -> Result<()> {
    let sound = if lock.whole { (lock.start, lock.end) == (0, LOCK_TO_END) } else { lock.start < lock.end };
    if sound { Ok(()) } else { Err(MdsError::refused(ErrorCode::Invalid, "range of a lock")) }
}

impl Locks {
    /// Sets, changes or takes away a lock; gives the one in the way if there is one, and has then done nothing. `test`:
    /// only looks.
    pub(crate) fn lock(
        &self,
        user: &UserName,
        holder: HolderId,
        id: InodeId,
        lock: Lock,
        test: bool,
    ) -> Result<Option<Lock>> {
        check(&lock)?;
        let wanted = Owned { user: user.clone(), holder, lock };
        let table = &mut *self.0.lock();
        let exclusive = |a: &Lock, b: &Lock| a.kind == LockKind::Write || b.kind == LockKind::Write;
        if lock.kind != LockKind::Unlock {
            let others = table.files.get(&id).into_iter().flatten();
            let mut in_the_way = others.filter(|other| {
                !other.is_same(&wanted) && overlap(&other.lock, &lock) && exclusive(&other.lock, &lock)
            });
            if let Some(other) = in_the_way.next() {
                return Ok(Some(other.lock));
            }
        }
        if test {
            return Ok(None);
        }
        let own = table.by_user.get(user).copied().unwrap_or_default();
        let room = table.count < LOCKS_MAX && own < LOCKS_BY_USER_MAX;
        table.change(id, user, |locks| set(locks, wanted, room))?;
        Ok(None)
    }

    /// Ends all locks on a file of one owner, or of all owners of a holder.
    pub(crate) fn release(&self, user: &UserName, holder: HolderId, id: InodeId, owner: Option<u64>) {
        let table = &mut *self.0.lock();
        if table.files.contains_key(&id) {
            table.change(id, user, |locks| {
                locks.retain(|one| {
                    !one.is_of(user, holder) || owner.is_some_and(|owner| one.lock.owner != owner)
                });
            });
        }
    }
}

/// Puts a lock in the place of what its owner has in that range.
fn set(locks: &mut Vec<Owned>, wanted: Owned, room: bool) -> Result<()> {
    let range = wanted.lock;
    // What is left of the old ones on either side: at most one more than there were.
    let mut rest = Vec::new();
    for old in locks.iter().filter(|old| old.is_same(&wanted) && overlap(&old.lock, &range)) {
        if old.lock.start < range.start {
            rest.push(Owned { lock: Lock { end: range.start, ..old.lock }, ..old.clone() });
        }
        if old.lock.end > range.end {
            rest.push(Owned { lock: Lock { start: range.end, ..old.lock }, ..old.clone() });
        }
    }
    let gone = locks.iter().filter(|old| old.is_same(&wanted) && overlap(&old.lock, &range)).count();
    let new = rest.len() + usize::from(range.kind != LockKind::Unlock);
    if new > gone && (!room || locks.len() - gone + new > LOCKS_PER_FILE_MAX) {
        return Err(MdsError::refused(ErrorCode::Limit, "locks"));
    }
    locks.retain(|old| !(old.is_same(&wanted) && overlap(&old.lock, &range)));
    locks.append(&mut rest);
    if range.kind != LockKind::Unlock {
        let mut whole = wanted;
        // Neighbours of the same kind become one, so that a file locked piece by piece has one lock in the end.
        while let Some(at) = locks.iter().position(|old| touches(old, &whole)) {
            let old = locks.swap_remove(at);
            whole.lock.start = whole.lock.start.min(old.lock.start);
            whole.lock.end = whole.lock.end.max(old.lock.end);
        }
        locks.push(whole);
    }
    Ok(())
}

fn touches(old: &Owned, new: &Owned) -> bool {
    let (a, b) = (&old.lock, &new.lock);
    old.is_same(new) && a.kind == b.kind && a.whole == b.whole && (a.end == b.start || b.end == a.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: InodeId = InodeId(7);

    fn user() -> UserName {
        UserName::new("alice").unwrap()
    }

    fn holder(number: u64) -> HolderId {
        HolderId { number }
    }

    fn range(kind: LockKind, start: u64, end: u64, owner: u64) -> Lock {
        Lock { kind, whole: false, start, end, owner, pid: 1 }
    }

    /// Bytes that can be told apart in the model.
    const BYTES: u64 = 12;

    fn any_lock() -> impl Strategy<Value = (u64, Lock, bool)> {
        (0..2u64, 0..3usize, 0..BYTES, 1..BYTES, 0..2u64, any::<bool>()).prop_map(
            |(holder, kind, start, length, owner, release)| {
                let end = (start + length).min(BYTES);
                (holder, range(LockKind::ALL[kind], start, end, owner), release)
            },
        )
    }

    proptest! {
        /// The model has a byte's locks, each byte by itself.
        #[test]
        fn ranges_lock_what_a_table_of_bytes_does(steps in prop::collection::vec(any_lock(), 1..60)) {
            let locks = Locks::default();
            let mut bytes: Vec<Vec<(u64, u64, LockKind)>> = vec![Vec::new(); BYTES as usize];
            for (number, lock, release) in steps {
                if release && lock.kind == LockKind::Unlock {
                    locks.release(&user(), holder(number), FILE, Some(lock.owner));
                    bytes.iter_mut().for_each(|byte| byte.retain(|one| (one.0, one.1) != (number, lock.owner)));
                    continue;
                }
                let touched = || (lock.start..lock.end).map(|at| at as usize);
                let free = lock.kind == LockKind::Unlock || touched().all(|at| {
                    bytes[at].iter().all(|(holder, owner, kind)| {
                        (*holder, *owner) == (number, lock.owner)
                            || (*kind == LockKind::Read && lock.kind == LockKind::Read)
                    })
                });
                let tested = locks.lock(&user(), holder(number), FILE, lock, true).unwrap();
                let found = locks.lock(&user(), holder(number), FILE, lock, false).unwrap();
                prop_assert_eq!((tested.is_none(), found.is_none()), (free, free));
                if free {
                    for at in touched() {
                        bytes[at].retain(|one| (one.0, one.1) != (number, lock.owner));
                        if lock.kind != LockKind::Unlock {
                            bytes[at].push((number, lock.owner, lock.kind));
                        }
                    }
                }
            }
            let table = locks.0.lock();
            prop_assert_eq!(table.count, table.files.values().map(Vec::len).sum::<usize>());
            prop_assert_eq!(table.count, table.by_user.values().sum::<usize>());
            let all = table.files.get(&FILE).map(Vec::as_slice).unwrap_or_default();
            for (at, byte) in bytes.iter().enumerate() {
                let covering = all.iter().filter(|one| (one.lock.start..one.lock.end).contains(&(at as u64)));
                prop_assert_eq!(covering.count(), byte.len());
            }
        }
    }

    #[test]
    fn a_file_locked_piece_by_piece_has_one_lock() {
        let locks = Locks::default();
        for at in 0..2 * LOCKS_PER_FILE_MAX as u64 {
            locks.lock(&user(), holder(1), FILE, range(LockKind::Write, at, at + 1, 1), false).unwrap();
        }
        assert_eq!(locks.0.lock().count, 1);
    }

    #[test]
    fn a_file_has_so_many_locks_and_no_more() {
        let locks = Locks::default();
        let one = |at: u64| range(LockKind::Read, 2 * at, 2 * at + 1, 1);
        for at in 0..LOCKS_PER_FILE_MAX as u64 {
            locks.lock(&user(), holder(1), FILE, one(at), false).unwrap();
        }
        assert!(locks.lock(&user(), holder(1), FILE, one(LOCKS_PER_FILE_MAX as u64), false).is_err());
        // What does not need more room is done.
        locks.lock(&user(), holder(1), FILE, range(LockKind::Unlock, 0, 1, 1), false).unwrap();
        locks.lock(&user(), holder(1), FILE, one(LOCKS_PER_FILE_MAX as u64), false).unwrap();
    }

    #[test]
    fn a_user_has_so_many_locks_and_leaves_room_for_others() {
        let locks = Locks::default();
        for at in 0..LOCKS_BY_USER_MAX as u64 {
            let (file, at) = (InodeId(at / 64), at % 64);
            locks
                .lock(&user(), holder(1), file, range(LockKind::Read, 2 * at, 2 * at + 1, 1), false)
                .unwrap();
        }
        let other = InodeId(1 << 40);
        assert!(locks.lock(&user(), holder(1), other, range(LockKind::Read, 0, 1, 1), false).is_err());
        let bob = UserName::new("bob").unwrap();
        assert!(locks.lock(&bob, holder(1), other, range(LockKind::Read, 0, 1, 1), false).is_ok());
        locks.release(&user(), holder(1), InodeId(0), None);
        assert!(locks.lock(&user(), holder(1), other, range(LockKind::Read, 0, 1, 1), false).is_ok());
    }

    #[test]
    fn whole_files_and_ranges_do_not_meet_and_a_broken_range_is_refused() {
        let locks = Locks::default();
        let whole = Lock { kind: LockKind::Write, whole: true, start: 0, end: LOCK_TO_END, owner: 1, pid: 1 };
        assert_eq!(locks.lock(&user(), holder(1), FILE, whole, false).unwrap(), None);
        let other = range(LockKind::Write, 0, 9, 2);
        assert_eq!(locks.lock(&user(), holder(2), FILE, other, false).unwrap(), None);
        let second = Lock { owner: 2, ..whole };
        assert_eq!(locks.lock(&user(), holder(2), FILE, second, false).unwrap(), Some(whole));
        locks.release(&user(), holder(1), FILE, None);
        assert_eq!(locks.lock(&user(), holder(2), FILE, second, false).unwrap(), None);
        for broken in
            [range(LockKind::Read, 5, 5, 1), range(LockKind::Read, 6, 5, 1), Lock { start: 1, ..whole }]
        {
            assert!(locks.lock(&user(), holder(1), FILE, broken, false).is_err());
        }
    }
}
