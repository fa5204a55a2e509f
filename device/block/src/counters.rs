//! What a unit did so far, as numbers.

use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers of one unit; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitCounters {
    /// Commands, of whatever outcome.
    pub commands: u64,
    /// Commands that did not end with GOOD or CONDITION MET.
    pub failed: u64,
    /// Commands refused for another's reservation.
    pub conflicts: u64,
    /// Bytes of blocks sent.
    pub read_bytes: u64,
    /// Bytes of blocks taken.
    pub written_bytes: u64,
}

/// The same, being counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    commands: AtomicU64,
    failed: AtomicU64,
    conflicts: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn command(&self, good: bool, conflict: bool) {
        self.commands.fetch_add(1, Ordering::Relaxed);
        if !good {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        if conflict {
            self.conflicts.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn moved(&self, read: u64, written: u64) {
        self.read_bytes.fetch_add(read, Ordering::Relaxed);
        self.written_bytes.fetch_add(written, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> UnitCounters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        UnitCounters {
            commands: get(&self.commands),
            failed: get(&self.failed),
            conflicts: get(&self.conflicts),
            read_bytes: get(&self.read_bytes),
            written_bytes: get(&self.written_bytes),
        }
    }
}
