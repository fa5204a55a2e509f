//! State of the commands that a device runs: tracked ones, and how many immediate ones there are.
//!
//! Does: keeps progress, counts, and whether the device shuts down.
//! Does not: run or store anything; `tracking` does.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use sealstone_osd::ObjectId;

use crate::failure::OsdFailure;

/// Immediate commands that wait or run. Beyond that the initiator gets BUSY.
pub(crate) const QUEUE_MAX: usize = 16;

/// Progress of an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WalkProgress {
    /// Members visited.
    pub(crate) processed: u64,
    /// Members that were removed before they were visited.
    pub(crate) missing: u64,
}

/// A running command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningCommand {
    pub(crate) action: u16,
    pub(crate) total: u64,
    pub(crate) progress: WalkProgress,
}

/// Running commands of a device.
#[derive(Default)]
pub(crate) struct RunningCommands {
    tracked: Mutex<BTreeMap<ObjectId, RunningCommand>>,
    /// Immediate commands that have not ended.
    immediate: Mutex<usize>,
    /// Immediate commands that have ended since the start, with any result.
    ended: AtomicU64,
    /// Whether the device is shutting down.
    stopping: AtomicBool,
}

impl RunningCommands {
    /// Whether a running command is tracked by this collection.
    pub(crate) fn is_active(&self, collection: ObjectId) -> bool {
        self.tracked.lock().contains_key(&collection)
    }

    /// Takes a place in the queue, which [`Self::leave_queue`] releases.
    pub(crate) fn enter_queue(&self) -> Result<(), OsdFailure> {
        let mut immediate = self.immediate.lock();
        if *immediate >= QUEUE_MAX {
            return Err(OsdFailure::NoBuffer);
        }
        *immediate += 1;
        Ok(())
    }

    pub(crate) fn leave_queue(&self) {
        let mut immediate = self.immediate.lock();
        *immediate = immediate.saturating_sub(1);
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many immediate commands have not ended, and how many have.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (*self.immediate.lock() as u64, self.ended.load(Ordering::Relaxed))
    }

    /// Updates the progress of a command.
    pub(crate) fn note(&self, collection: ObjectId, progress: WalkProgress) {
        if let Some(running) = self.tracked.lock().get_mut(&collection) {
            running.progress = progress;
        }
    }

    /// Adds a command that is tracked by a collection. Returns false if one is already.
    pub(crate) fn add(&self, collection: ObjectId, action: u16, total: u64) -> bool {
        let mut tracked = self.tracked.lock();
        if tracked.contains_key(&collection) {
            return false;
        }
        tracked.insert(collection, RunningCommand { action, total, progress: WalkProgress::default() });
        true
    }

    /// Removes the command that is tracked by a collection.
    pub(crate) fn remove(&self, collection: ObjectId) -> Option<RunningCommand> {
        self.tracked.lock().remove(&collection)
    }

    /// Returns the command that is tracked by a collection.
    pub(crate) fn get(&self, collection: ObjectId) -> Option<RunningCommand> {
        self.tracked.lock().get(&collection).copied()
    }

    /// Shuts down: no immediate command takes another step.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Whether the device is shutting down.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}
