//! Free blocks without space on the underlying file system, and how they get it.
//!
//! Does: allocates space (`fallocate`) before blocks are handed out; returns the space of free
//! blocks where the store is overcommitted on its file system.
//! Does not: store anything; at open the file system reports the holes of the segments.
//! Contract: a block that is handed out has space, as far as the file system can guarantee that, so
//! that no data write fails for lack of space. The free space that writes leave on the file system
//! is for the index, the daemon's own files and removals.
//! Source of truth: docs/adr/0056-full-disks.md; docs/design/store.md, "A file system that is
//! full".

use std::io;

use super::DiskStore;
use super::unbacked::{BACKED_RESERVE, TRIM_RUN_MIN};
use crate::BLOCK;
use crate::medium::FreeSpace;

/// Writes leave a 64th of the file system free, with these lower and upper limits in bytes.
const FILE_SYSTEM_RESERVE: (u64, u64) = (4 << 20, 256 << 20);
const FILE_SYSTEM_RESERVE_PART: u64 = 64;
/// On a small file system they leave at most this part of it free.
const FILE_SYSTEM_RESERVE_PART_MAX: u64 = 16;
/// Blocks get space in steps of at most this many bytes, and of a 16th of the file system's free
/// space.
const STEP_MAX: u64 = 16 << 20;
const STEP_MIN: u64 = 1 << 20;
const STEP_PART: u64 = 16;
/// Free blocks that keep their space when space is returned: a 64th of the file system, within
/// these limits in bytes.
const KEPT_BACKED: (u64, u64) = (4 << 20, 16 << 20);
/// Maximum number of blocks whose space one `tick` returns.
const TRIM_BLOCKS_MAX: u64 = (256 << 20) / BLOCK;
/// Maximum number of runs whose space one `tick` returns.
const TRIM_RUNS_MAX: usize = 1024;
/// Maximum number of attempts of an operation to get space: others may take what it got.
pub(crate) const ROUNDS_MAX: usize = 8;

/// Returns the bytes of a file system that data may take now.
pub(crate) fn allowance(space: &FreeSpace) -> u64 {
    let (least, most) = FILE_SYSTEM_RESERVE;
    let reserve = (space.total / FILE_SYSTEM_RESERVE_PART).clamp(least, most);
    space.free.saturating_sub(reserve.min(space.total / FILE_SYSTEM_RESERVE_PART_MAX))
}

impl DiskStore {
    /// Returns the bytes of the medium that data may take beyond the store's own; `None` if there
    /// is no limit.
    pub(crate) fn medium_allowance(&self) -> Option<u64> {
        self.medium.free_space().as_ref().map(allowance)
    }

    /// Allocates space for at least `least` free blocks without it. Returns `false` if the medium
    /// has not that much. `from_reserve`: may use the reserve that additions leave on the file
    /// system.
    pub(crate) fn back(&self, least: u64, from_reserve: bool) -> bool {
        let _alone = self.backing.lock();
        let mut left = least;
        while left > 0 {
            let may = self.medium_allowance().unwrap_or(u64::MAX) / BLOCK;
            let step = (may / STEP_PART).clamp(STEP_MIN / BLOCK, STEP_MAX / BLOCK);
            let wanted = if from_reserve { left.max(step.min(may)) } else { left.max(step).min(may) };
            let Some(run) = (wanted > 0).then(|| self.space.lock().take_unbacked(wanted)).flatten() else {
                self.space.lock().set_starved(true);
                return false;
            };
            if let Err(error) = self.segments.back(run) {
                let mut space = self.space.lock();
                space.put_unbacked(run);
                space.set_starved(true);
                drop(space);
                if error.kind() != io::ErrorKind::StorageFull {
                    tracing::warn!(%error, "allocating space for free blocks failed");
                }
                return false;
            }
            let mut space = self.space.lock();
            space.supply(run);
            space.set_starved(false);
            left = left.saturating_sub(run.count);
        }
        true
    }

    /// Keeps enough free blocks with space for changes that need no more blocks than before.
    pub(crate) fn back_reserve(&self) {
        let short = {
            let space = self.space.lock();
            if space.unbacked() == 0 { 0 } else { BACKED_RESERVE.saturating_sub(space.free()) }
        };
        if short > 0 && !self.back(short, true) {
            tracing::warn!(
                "the file system of the store is full: objects can be read and removed; free some space to write again"
            );
        }
    }

    /// Returns space of free blocks to the file system, if the store is overcommitted on it.
    pub(crate) fn trim(&self) {
        if !self.is_bounded || self.groups.check().is_err() {
            return;
        }
        let Some(below) = self.medium.free_space() else { return };
        let kept = (below.total / FILE_SYSTEM_RESERVE_PART).clamp(KEPT_BACKED.0, KEPT_BACKED.1) / BLOCK;
        let (surplus, unbacked) = {
            let space = self.space.lock();
            (space.free().saturating_sub(kept), space.unbacked())
        };
        // If the file system is full, its other users need the space even if this store is not
        // overcommitted.
        let is_short = allowance(&below) / BLOCK < unbacked.max(1);
        if surplus < TRIM_RUN_MIN || !is_short {
            return;
        }
        let _alone = self.backing.lock();
        let runs = self.space.lock().withhold_free(surplus.min(TRIM_BLOCKS_MAX), TRIM_RUNS_MAX);
        for run in runs {
            if let Err(error) = self.segments.discard(run) {
                tracing::warn!(%error, "returning space of free blocks to the file system failed");
                let mut space = self.space.lock();
                space.take_back(run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_system_keeps_its_reserve() {
        let of = |free: u64, total: u64| allowance(&FreeSpace { free, total, id: [0; 16] });
        assert_eq!(of(120 << 20, 120 << 20), 116 << 20);
        assert_eq!(of(4 << 20, 120 << 20), 0);
        assert_eq!(of(8 << 20, 8 << 20), (8 << 20) - (512 << 10));
        assert_eq!(of(1 << 40, 64 << 40), (1 << 40) - (256 << 20));
    }
}
