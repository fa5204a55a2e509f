//! Whether the index has room for more records, where the medium gives it a bounded share: on a raw device.
//!
//! Does: refuse what adds records (`NoSpace`) before the index is full, so that no commit fails for lack of room; keep a
//! reserve for removals and overwrites; commit in smaller groups when there is little left.
//! Contract: a commit writes the pages that it changes to other places before the old ones come free. A change is
//! counted as [`CHANGE`] bytes of that.
//! Costs: with much room an addition; with little a walk over the index's branches after each commit.

use std::sync::atomic::{AtomicU64, Ordering};

use sealstone_osd::ObjectId;

use super::DiskStore;
use crate::StoreError;
use crate::store::StretchKind;

/// Room that is left to removals and overwrites, in bytes.
const RESERVE: u64 = 2 << 20;
/// What a change may take until its commit is over, in bytes: a leaf, split in two, and its share of branches.
const CHANGE: u64 = 8192;
/// With so much room to grow, nobody asks what is free within the file, in bytes.
const PLENTY: u64 = 32 << 20;

/// Room as of the last commit, in bytes; `u64::MAX`: no bound is known.
pub(crate) struct Room(AtomicU64);

impl Room {
    pub(crate) fn unknown() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }

    fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|free| *free != u64::MAX)
    }
}

impl DiskStore {
    /// Looks how much room there is, after a commit.
    pub(crate) fn measure_room(&self) {
        let free = self.index.room(PLENTY).unwrap_or(u64::MAX);
        self.room.0.store(free, Ordering::Release);
    }

    /// What the open group takes of the index's room.
    fn index_need(&self) -> u64 {
        let (changes, weight) = self.index.open_changes();
        changes * CHANGE + weight
    }

    /// Does the open group take so much of the index's room that it should be committed?
    pub(crate) fn is_index_tight(&self) -> bool {
        self.room.get().is_some_and(|free| self.index_need() > (free / 2).max(RESERVE / 4))
    }

    /// Before an operation that adds records: `NoSpace` if the index may not have the room.
    pub(crate) fn room_for_records(&self) -> Result<(), StoreError> {
        let Some(free) = self.room.get() else { return Ok(()) };
        let fits = |free: u64| free >= RESERVE + CHANGE + self.index_need();
        if fits(free) {
            return Ok(());
        }
        if !self.groups.gate.holds() && self.index.is_dirty() {
            self.commit_now()?;
        }
        if self.room.get().is_none_or(fits) { Ok(()) } else { Err(StoreError::NoSpace) }
    }

    /// The same before a write: one that only overwrites may go on.
    pub(crate) fn room_for_write(&self, id: ObjectId, offset: u64, length: u64) -> Result<(), StoreError> {
        match self.room_for_records() {
            Err(StoreError::NoSpace) => {
                let first = self.map_of(id, offset, 1)?.first().copied();
                let mapped = first.is_some_and(|stretch| {
                    matches!(stretch.kind, StretchKind::Data { shared: false })
                        && stretch.offset + stretch.length >= offset.saturating_add(length)
                });
                if mapped { Ok(()) } else { Err(StoreError::NoSpace) }
            }
            room => room,
        }
    }
}
