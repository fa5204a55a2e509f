//! Locks that the server granted to programs on this client, so that they can be reclaimed after a
//! restart.

use std::collections::BTreeMap;

use sealstone_mds_protocol::InodeId;
use sealstone_mds_protocol::{Lock, LockKind};

/// Locks by file.
#[derive(Debug, Default)]
pub(super) struct GrantedLocks(BTreeMap<InodeId, Vec<Lock>>);

impl GrantedLocks {
    /// Records a granted lock; it replaces what the same owner had in its range.
    pub(super) fn record(&mut self, inode: InodeId, lock: Lock) {
        let locks = self.0.entry(inode).or_default();
        let mut left = Vec::with_capacity(locks.len() + 1);
        for old in locks.drain(..) {
            let other = (old.owner, old.whole) != (lock.owner, lock.whole);
            if other || old.end <= lock.start || lock.end <= old.start {
                left.push(old);
                continue;
            }
            if old.start < lock.start {
                left.push(Lock { end: lock.start, ..old });
            }
            if lock.end < old.end {
                left.push(Lock { start: lock.end, ..old });
            }
        }
        if lock.kind != LockKind::Unlock {
            left.push(lock);
        }
        *locks = left;
        if locks.is_empty() {
            self.0.remove(&inode);
        }
    }

    /// Whether the file has any locks.
    pub(super) fn has(&self, inode: InodeId) -> bool {
        self.0.contains_key(&inode)
    }

    /// Forgets all locks of one owner; returns whether there were any.
    pub(super) fn remove_owner(&mut self, inode: InodeId, owner: u64) -> bool {
        let Some(locks) = self.0.get_mut(&inode) else { return false };
        let before = locks.len();
        locks.retain(|lock| lock.owner != owner);
        let had = locks.len() < before;
        if locks.is_empty() {
            self.0.remove(&inode);
        }
        had
    }

    /// Forgets all locks of a file; returns whether there were any.
    pub(super) fn remove_all(&mut self, inode: InodeId) -> bool {
        self.0.remove(&inode).is_some()
    }

    /// Returns all locks of a file.
    pub(super) fn of(&self, inode: InodeId) -> Vec<Lock> {
        self.0.get(&inode).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(kind: LockKind, start: u64, end: u64, owner: u64) -> Lock {
        Lock { kind, whole: false, start, end, owner, pid: 1 }
    }

    #[test]
    fn later_lock_replaces_earlier_one_of_owner() {
        let (mut locks, file) = (GrantedLocks::default(), InodeId(5));
        locks.record(file, lock(LockKind::Write, 0, 100, 1));
        locks.record(file, lock(LockKind::Read, 40, 60, 1));
        locks.record(file, lock(LockKind::Read, 0, 10, 2));
        let mut ranges: Vec<_> = locks.of(file).iter().map(|l| (l.owner, l.start, l.end, l.kind)).collect();
        ranges.sort_by_key(|range| (range.0, range.1));
        assert_eq!(
            ranges,
            [
                (1, 0, 40, LockKind::Write),
                (1, 40, 60, LockKind::Read),
                (1, 60, 100, LockKind::Write),
                (2, 0, 10, LockKind::Read)
            ]
        );
        locks.record(file, lock(LockKind::Unlock, 0, 200, 1));
        assert_eq!(locks.of(file).len(), 1);
        assert!(!locks.remove_owner(file, 1));
        assert!(locks.remove_owner(file, 2));
        assert!(locks.0.is_empty());
    }
}
