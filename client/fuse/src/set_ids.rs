//! Set-user-ID and set-group-ID bits of files, which a write by another user removes.
//!
//! Does: records which files were shown to the kernel with such bits, and computes a mode without
//! them. So the kernel needs no request for an attribute before each write.
//! Contract: every file that the kernel may believe to have the bits is recorded, also devices and
//! pipes, which lose them at chown. O(1) for a write; 16 bytes for each file.
//! Truth: `FUSE_HANDLE_KILLPRIV_V2` in include/uapi/linux/fuse.h of Linux; chmod(2), write(2) of
//! POSIX.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sealstone_mds_protocol::{FileKind, Stat};

const SET_USER_ID: u16 = 0o4000;
const SET_GROUP_ID: u16 = 0o2000;
/// Without it the set-group-ID bit means mandatory locking, and stays.
const GROUP_RUNS: u16 = 0o010;
/// Number of files above which every file counts as recorded.
const FILES_MAX: usize = 65_536;

/// The recorded files, by the kernel's inode number.
#[derive(Debug, Default)]
pub(crate) struct SetIdFiles {
    any: AtomicBool,
    files: Mutex<HashSet<u64>>,
}

impl SetIdFiles {
    /// Records a node that is shown to the kernel, if it has such bits.
    pub(crate) fn note(&self, ino: u64, stat: &Stat) {
        if stat.kind != FileKind::Directory && stat.mode & (SET_USER_ID | SET_GROUP_ID) != 0 {
            self.add(ino);
        }
    }

    /// Records that a node may have such bits.
    pub(crate) fn add(&self, ino: u64) {
        let mut files = self.files.lock();
        if files.len() < FILES_MAX {
            files.insert(ino);
        }
        self.any.store(true, Ordering::Release);
    }

    /// Whether a node may have such bits.
    pub(crate) fn may_have(&self, ino: u64) -> bool {
        self.any.load(Ordering::Acquire) && {
            let files = self.files.lock();
            files.len() >= FILES_MAX || files.contains(&ino)
        }
    }

    /// Removes a node whose bits are being removed.
    pub(crate) fn drop(&self, ino: u64) {
        let mut files = self.files.lock();
        // Above the limit the record is incomplete.
        if files.len() < FILES_MAX {
            files.remove(&ino);
        }
    }
}

/// Returns a mode without the bits that a write or a change of the owner removes.
pub(crate) const fn without(mode: u16) -> u16 {
    let left = mode & !SET_USER_ID;
    if mode & GROUP_RUNS != 0 { left & !SET_GROUP_ID } else { left }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_during_bit_removal_is_kept() {
        let files = SetIdFiles::default();
        assert!(!files.may_have(7));
        files.add(7);
        assert!(files.may_have(7) && !files.may_have(8));
        files.drop(7);
        files.add(7);
        assert!(files.may_have(7));
        files.drop(7);
        assert!(!files.may_have(7));
    }

    #[test]
    fn files_above_limit_all_count_as_recorded() {
        let files = SetIdFiles::default();
        (0..=FILES_MAX as u64).for_each(|ino| files.add(ino));
        files.drop(3);
        assert!(files.may_have(3) && files.may_have(u64::MAX));
    }

    #[test]
    fn only_set_id_bits_are_removed() {
        for (mode, left) in [
            (0o4755, 0o755),
            (0o2755, 0o755),
            (0o6711, 0o711),
            (0o2644, 0o2644),
            (0o6604, 0o2604),
            (0o1777, 0o1777),
        ] {
            assert_eq!(without(mode), left, "{mode:o}");
        }
    }
}
