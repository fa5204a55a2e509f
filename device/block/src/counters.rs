//! Counters of a block unit for metrics: commands, failures, reservation conflicts, bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::integrity::IntegrityFailureKind;

/// Counter values of one unit. They never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitCounters {
    /// Commands, with any outcome.
    pub commands: u64,
    /// Commands that ended with a status other than GOOD or CONDITION MET.
    pub failed: u64,
    /// Commands refused for a reservation of another initiator.
    pub conflicts: u64,
    /// Commands that failed because blocks, keys or versions are damaged, or the unit's keys
    /// unavailable.
    pub damaged: u64,
    /// Writes that were verified before their status and were not authentic.
    pub refused_writes: u64,
    /// Bytes of blocks sent.
    pub read_bytes: u64,
    /// Bytes of blocks received.
    pub written_bytes: u64,
}

/// Atomic counters behind [`UnitCounters`].
#[derive(Debug, Default)]
pub(crate) struct UnitCounterCells {
    commands: AtomicU64,
    failed: AtomicU64,
    conflicts: AtomicU64,
    damaged: AtomicU64,
    refused_writes: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl UnitCounterCells {
    pub(crate) fn command(&self, good: bool, conflict: bool) {
        self.commands.fetch_add(1, Ordering::Relaxed);
        if !good {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        if conflict {
            self.conflicts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a command that failed because of damage or a forgery.
    pub(crate) fn integrity_failure(&self, kind: IntegrityFailureKind) {
        let counter = match kind {
            IntegrityFailureKind::WriteRefused => &self.refused_writes,
            _ => &self.damaged,
        };
        counter.fetch_add(1, Ordering::Relaxed);
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
            damaged: get(&self.damaged),
            refused_writes: get(&self.refused_writes),
            read_bytes: get(&self.read_bytes),
            written_bytes: get(&self.written_bytes),
        }
    }
}
