//! Lock owners by open file, so that the close of an open file releases the locks taken through it.
//!
//! Does: records through which open files each lock owner took locks, and returns the owners whose
//! locks end with an open file.
//! Does not: send requests. The kernel sends FLUSH with the owner of POSIX locks at each close of a
//! descriptor. For open file description (OFD) locks it sends only RELEASE, which names no owner.
//! Contract: every owner that took a lock through an open file is returned once, by its flush or by
//! the release of that file.
//! Truth: fcntl(2) of Linux (open file description locks); fs/fuse/file.c of Linux.

use std::collections::BTreeSet;

use parking_lot::Mutex;

/// Inode number of the kernel, number of the open file, lock owner.
type OwnerEntry = (u64, u64, u64);

/// Lock owners of all open files of a mount. The size is limited by the locks that the metadata
/// server grants.
#[derive(Debug, Default)]
pub(crate) struct LockOwners(Mutex<BTreeSet<OwnerEntry>>);

impl LockOwners {
    /// Records that an owner took a lock through an open file.
    pub(crate) fn insert(&self, ino: u64, handle: u64, owner: u64) {
        self.0.lock().insert((ino, handle, owner));
    }

    /// Removes an owner on a node, for all its open files: FLUSH releases all its locks there.
    pub(crate) fn flush(&self, ino: u64, owner: u64) {
        let mut entries = self.0.lock();
        if entries.is_empty() {
            return;
        }
        let ended: Vec<OwnerEntry> = of_node(&entries, ino).filter(|entry| entry.2 == owner).collect();
        for entry in &ended {
            entries.remove(entry);
        }
    }

    /// Removes an open file. Returns the owners that took locks only through it.
    pub(crate) fn release(&self, ino: u64, handle: u64) -> Vec<u64> {
        let mut entries = self.0.lock();
        if entries.is_empty() {
            return Vec::new();
        }
        let through: Vec<OwnerEntry> = of_node(&entries, ino).filter(|entry| entry.1 == handle).collect();
        for entry in &through {
            entries.remove(entry);
        }
        // The kernel may reuse the address of a closed file, and so its owner number.
        let others: BTreeSet<u64> = of_node(&entries, ino).map(|entry| entry.2).collect();
        through.into_iter().map(|entry| entry.2).filter(|owner| !others.contains(owner)).collect()
    }
}

fn of_node(entries: &BTreeSet<OwnerEntry>, ino: u64) -> impl Iterator<Item = OwnerEntry> + '_ {
    entries.range((ino, 0, 0)..=(ino, u64::MAX, u64::MAX)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_returns_owners_that_were_not_flushed() {
        let owners = LockOwners::default();
        owners.insert(5, 1, 100);
        owners.insert(5, 1, 200);
        owners.insert(6, 2, 100);
        owners.flush(5, 200);
        assert_eq!(owners.release(5, 1), [100]);
        assert!(owners.release(5, 1).is_empty());
        assert_eq!(owners.release(6, 2), [100]);
    }

    #[test]
    fn owner_of_another_open_file_keeps_its_locks() {
        let owners = LockOwners::default();
        owners.insert(5, 1, 100);
        owners.insert(5, 2, 100);
        assert!(owners.release(5, 1).is_empty());
        assert_eq!(owners.release(5, 2), [100]);
    }
}
