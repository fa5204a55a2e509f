//! Files that run as another user or group, until somebody writes to them.
//!
//! Does: remember which files the kernel was told of with such bits, and say what is left of a mode. So the kernel need not look whether
//! there are any before each write, which takes it a request for an attribute.
//! Contract: a file that the kernel may believe to have the bits is among them, a device or fifo as well, which loses them when it is given
//! away. O(1) for a write; 16 bytes for each file.
//! Truth: `FUSE_HANDLE_KILLPRIV_V2` in include/uapi/linux/fuse.h of Linux; chmod(2), write(2) of POSIX.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sealstone_mds_protocol::{FileKind, Stat};

const SET_USER_ID: u16 = 0o4000;
const SET_GROUP_ID: u16 = 0o2000;
/// Without it the other bit says something else, and stays.
const GROUP_RUNS: u16 = 0o010;
/// More files than this are not told apart: each of them is looked at.
const FILES_MAX: usize = 65_536;

/// See the module. By the kernel's numbers.
#[derive(Debug, Default)]
pub(crate) struct SetIds {
    any: AtomicBool,
    files: Mutex<HashSet<u64>>,
}

impl SetIds {
    /// The kernel is told of a node.
    pub(crate) fn note(&self, ino: u64, stat: &Stat) {
        if stat.kind != FileKind::Directory && stat.mode & (SET_USER_ID | SET_GROUP_ID) != 0 {
            self.add(ino);
        }
    }

    /// It may have such bits.
    pub(crate) fn add(&self, ino: u64) {
        let mut files = self.files.lock();
        if files.len() < FILES_MAX {
            files.insert(ino);
        }
        self.any.store(true, Ordering::Release);
    }

    /// May it have such bits?
    pub(crate) fn may_have(&self, ino: u64) -> bool {
        self.any.load(Ordering::Acquire) && {
            let files = self.files.lock();
            files.len() >= FILES_MAX || files.contains(&ino)
        }
    }

    /// They are being taken away.
    pub(crate) fn drop(&self, ino: u64) {
        let mut files = self.files.lock();
        // Of those that were too many nothing is known.
        if files.len() < FILES_MAX {
            files.remove(&ino);
        }
    }
}

/// What is left of a file's mode when it was written to, or given to somebody else.
pub(crate) const fn without(mode: u16) -> u16 {
    let left = mode & !SET_USER_ID;
    if mode & GROUP_RUNS != 0 { left & !SET_GROUP_ID } else { left }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_file_while_its_bits_are_taken_away_is_not_forgotten() {
        let files = SetIds::default();
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
    fn files_that_are_too_many_are_not_told_apart() {
        let files = SetIds::default();
        (0..=FILES_MAX as u64).for_each(|ino| files.add(ino));
        files.drop(3);
        assert!(files.may_have(3) && files.may_have(u64::MAX));
    }

    #[test]
    fn a_mode_loses_what_runs_as_another_one_and_nothing_else() {
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
