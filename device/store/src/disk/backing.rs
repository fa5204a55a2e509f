//! Free blocks without space on the file system beneath, and how they get it.
//!
//! Does: give space to some of them before they are handed out (`fallocate`); give space
//! of free blocks back where the store promises more than its file system has. Does not: store anything; at open the file
//! system says where segments have holes.
//! Contract: a block that is handed out has space, as far as the file system can promise that, so that no write of data
//! finds it full. What writes leave free on the file system is for the index, the daemon's own files and removals.
//! Truth: docs/adr/0056-full-disks.md; docs/design/store.md, "A file system that is full".

use std::io;

use super::DiskStore;
use super::unbacked::{BACKED_RESERVE, TRIM_RUN_MIN};
use crate::BLOCK;
use crate::medium::FreeSpace;

/// Of the file system, writes leave a 64th free, but not less than the first nor more than the second number of bytes.
const FILE_SYSTEM_RESERVE: (u64, u64) = (4 << 20, 256 << 20);
const FILE_SYSTEM_RESERVE_PART: u64 = 64;
/// Nor more than this part of a small one.
const FILE_SYSTEM_RESERVE_PART_MAX: u64 = 16;
/// Blocks get space in steps of at most so many bytes, and of a 16th of what the file system has.
const STEP_MAX: u64 = 16 << 20;
const STEP_MIN: u64 = 1 << 20;
const STEP_PART: u64 = 16;
/// Free blocks with space that stay so when space is given back: a 64th of the file system, within these bounds in bytes.
const KEPT_BACKED: (u64, u64) = (4 << 20, 16 << 20);
/// Blocks whose space is given back in one `tick`, at most.
const TRIM_BLOCKS_MAX: u64 = (256 << 20) / BLOCK;
/// Runs whose space is given back in one `tick`, at most.
const TRIM_RUNS_MAX: usize = 1024;
/// Rounds in which an operation asks for space, at most: others may take what it got.
pub(crate) const ROUNDS_MAX: usize = 8;

/// Returns the bytes of a file system that data may take now.
pub(crate) fn allowance(space: &FreeSpace) -> u64 {
    let (least, most) = FILE_SYSTEM_RESERVE;
    let reserve = (space.total / FILE_SYSTEM_RESERVE_PART).clamp(least, most);
    space.free.saturating_sub(reserve.min(space.total / FILE_SYSTEM_RESERVE_PART_MAX))
}

impl DiskStore {
    /// Returns the bytes that data may take of the medium beyond what the store has; `None` if nothing bounds it.
    pub(crate) fn medium_allowance(&self) -> Option<u64> {
        self.medium.free_space().as_ref().map(allowance)
    }

    /// Gives space to at least `least` free blocks without it; `false` if the medium has not so much. `from_reserve`: also
    /// what additions leave of the file system.
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
                    tracing::warn!(%error, "no space for free blocks from the file system");
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

    /// Sees to it that changes which need no more blocks than before find some with space.
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

    /// Gives space of free blocks back to the file system, if the store promises more than that has.
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
        // Where nothing is left, other users of the file system need the space even if this store is not overcommitted.
        let is_short = allowance(&below) / BLOCK < unbacked.max(1);
        if surplus < TRIM_RUN_MIN || !is_short {
            return;
        }
        let _alone = self.backing.lock();
        let runs = self.space.lock().withhold_free(surplus.min(TRIM_BLOCKS_MAX), TRIM_RUNS_MAX);
        for run in runs {
            if let Err(error) = self.segments.discard(run) {
                tracing::warn!(%error, "space of free blocks was not given back");
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
