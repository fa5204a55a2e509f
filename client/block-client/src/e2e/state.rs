//! The state of an open disk: tree, journal position, last root, and what is durable of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use sealstone_block_e2e::{ChainTag, DiskRoot, DiskSealer, IntegrityTree};
use tokio::time::Instant;

/// Changed blocks at which a checkpoint is due: what a recovery keeps in memory is bounded.
pub(super) const CHANGED_BLOCKS_MAX: u64 = 1 << 20;

/// A record of the journal whose blocks are not all written.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenRecord {
    /// The tag of the record before it.
    before: ChainTag,
    /// Changes whose blocks are not written.
    changes: usize,
}

/// The state of a disk, behind one lock that is never held while the unit works.
#[derive(Debug)]
pub(super) struct DiskState {
    pub(super) sealer: Arc<DiskSealer>,
    pub(super) tree: IntegrityTree,
    /// The last counter in use.
    counter: u64,
    /// The last record of the journal that was begun.
    last: (u64, ChainTag),
    open_records: BTreeMap<u64, OpenRecord>,
    /// The last record that was written, and the last one that is durable.
    written: u64,
    forced: u64,
    /// The last record whose blocks were durable at the last flush.
    durable: (u64, ChainTag),
    /// The published root, and when it was published.
    pub(super) root: DiskRoot,
    pub(super) published: Instant,
    /// Blocks in records since the last checkpoint.
    pub(super) changed_blocks: u64,
    /// Records that requests in progress may still begin.
    pub(super) reserved: u64,
    /// Why unit and state may differ; then the disk is opened again before the next request.
    pub(super) has_fault: bool,
    /// Whether another client has the lease; then all requests fail.
    pub(super) is_fenced: bool,
}

impl DiskState {
    pub(super) fn new(
        sealer: Arc<DiskSealer>,
        tree: IntegrityTree,
        root: DiskRoot,
        last: (u64, ChainTag),
    ) -> Self {
        Self {
            sealer,
            tree,
            counter: 0,
            last,
            open_records: BTreeMap::new(),
            written: last.0,
            forced: last.0,
            durable: root.journal,
            root,
            published: Instant::now(),
            changed_blocks: 0,
            reserved: 0,
            has_fault: false,
            is_fenced: false,
        }
    }

    /// Returns the first of `count` counters that were never used with this lease.
    pub(super) const fn take_counters(&mut self, count: u64) -> u64 {
        let first = self.counter + 1;
        self.counter += count;
        first
    }

    /// Returns the last record that was begun.
    pub(super) const fn last(&self) -> (u64, ChainTag) {
        self.last
    }

    /// Returns the records of the ring that are in use.
    pub(super) const fn used_records(&self) -> u64 {
        self.last.0 - self.root.checkpoint.0
    }

    /// Marks a record as begun, with that many changes.
    pub(super) fn begin_record(&mut self, sequence: u64, chain: ChainTag, changes: usize) {
        self.open_records.insert(sequence, OpenRecord { before: self.last.1, changes });
        self.last = (sequence, chain);
    }

    /// Marks the blocks of one change of a record as written.
    pub(super) fn end_change(&mut self, sequence: u64) {
        if let Some(record) = self.open_records.get_mut(&sequence) {
            record.changes -= 1;
            if record.changes == 0 {
                self.open_records.remove(&sequence);
            }
        }
    }

    /// Marks all records up to this one as written, and optionally as durable.
    pub(super) fn records_written(&mut self, sequence: u64, is_durable: bool) {
        self.written = self.written.max(sequence);
        if is_durable {
            self.forced = self.forced.max(sequence);
        }
    }

    /// Whether records before the next one may not be durable.
    pub(super) const fn has_unforced_records(&self) -> bool {
        self.written > self.forced
    }

    /// Returns the records that a flush makes durable if it begins now.
    pub(super) fn begin_flush(&self) -> FlushScope {
        let settled = match self.open_records.first_key_value() {
            Some((sequence, record)) => (sequence - 1, record.before),
            None => self.last,
        };
        FlushScope { settled, written: self.written }
    }

    /// Marks the scope of a flush as durable.
    pub(super) fn end_flush(&mut self, scope: FlushScope) {
        self.forced = self.forced.max(scope.written);
        if scope.settled.0 > self.durable.0 {
            self.durable = scope.settled;
        }
    }

    /// Returns the last record whose blocks are durable.
    pub(super) const fn durable(&self) -> (u64, ChainTag) {
        self.durable
    }

    /// Whether there are changes that may not be durable.
    pub(super) const fn has_unflushed(&self) -> bool {
        self.last.0 > self.durable.0
    }
}

/// The records that a flush makes durable.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlushScope {
    settled: (u64, ChainTag),
    written: u64,
}

#[cfg(test)]
mod tests {
    use sealstone_block_e2e::{BlockEntry, DiskLayout, KeyEpoch, LeaseEpoch, UnitId, UnitKey, UnitKeyRing};

    use super::*;
    use crate::e2e::fast_aead;

    #[test]
    fn change_behind_open_record_is_unflushed() {
        let ring = UnitKeyRing::new(UnitId([1; 16]), KeyEpoch(1), UnitKey::new([2; 32]), fast_aead);
        let sealer = Arc::new(DiskSealer::new(ring.expect("epoch 1"), LeaseEpoch(3)));
        let start = (0, ChainTag::default());
        let root = DiskRoot {
            lease_epoch: LeaseEpoch(2),
            version: 1,
            unit_blocks: 256,
            top: BlockEntry::UNWRITTEN,
            checkpoint: start,
            journal: start,
            is_clean: true,
            oldest_key: KeyEpoch(1),
        };
        let tree = IntegrityTree::new(DiskLayout::new(256).expect("large enough"), root.top, 16);
        let mut state = DiskState::new(sealer, tree, root, start);
        assert!(!state.has_unflushed());
        state.begin_record(1, ChainTag::default(), 1);
        state.begin_record(2, ChainTag::default(), 1);
        state.end_change(2);
        assert!(state.has_unflushed(), "the second change was acknowledged");
        state.end_change(1);
        let scope = state.begin_flush();
        state.end_flush(scope);
        assert!(!state.has_unflushed());
    }
}
