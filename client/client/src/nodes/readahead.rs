//! Read-ahead of a file.
//!
//! Does: detects sequential reads, chooses blocks to fetch, keeps them until they were read or
//! overwritten.
//! Does not: read; the reader that needs a block fetches it or waits for its fetch.
//! Contract: a block that was overwritten on this client is not returned any more. Writes of other
//! clients are noticed at open.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::OnceCell;

/// Maximum blocks fetched ahead of a reader.
const WINDOW_MAX: u64 = 8;
/// Maximum blocks kept.
const BLOCKS_MAX: usize = 24;

/// A block; empty until it was read. A reader fetches a block again whose read-ahead failed.
pub(super) type ReadBlock = Arc<OnceCell<Bytes>>;

/// Read-ahead state of a file.
#[derive(Debug)]
pub(super) struct ReadAhead {
    size: u64,
    blocks: BTreeMap<u64, ReadBlock>,
    /// Largest end of the recent reads.
    last_end: u64,
    /// Number of sequential reads in a row, up to a maximum.
    streak: u64,
}

/// The blocks that one read should use and fetch.
#[derive(Debug, Default)]
pub(super) struct ReadPlan {
    /// Blocks to use, and to fetch if they are empty, by number.
    pub(super) blocks: Vec<(u64, ReadBlock)>,
    /// Blocks to fetch in the background.
    pub(super) fetch: Vec<(u64, ReadBlock)>,
}

impl ReadAhead {
    /// Creates an empty state with blocks of `size` bytes.
    pub(super) const fn new(size: u64) -> Self {
        Self { size, blocks: BTreeMap::new(), last_end: 0, streak: 0 }
    }

    /// Returns what a read of this range should use and fetch.
    pub(super) fn plan_read(&mut self, range: &Range<u64>, file_size: u64) -> ReadPlan {
        // Concurrent reads may arrive in any order.
        let near = range.start.abs_diff(self.last_end) <= self.size;
        if near {
            self.streak = (self.streak + 1).min(WINDOW_MAX * 4);
            self.last_end = self.last_end.max(range.end);
        } else {
            self.streak = 0;
            self.last_end = range.end;
        }
        let (first, last) = (range.start / self.size, (range.end - 1) / self.size);
        let mut advice = ReadPlan::default();
        // A single read in the middle of a file fetches only its own range.
        let whole = range.end - range.start >= self.size;
        if self.streak < 2 && !whole {
            if (first..=last).all(|number| self.blocks.contains_key(&number)) {
                advice.blocks = (first..=last).map(|number| (number, self.blocks[&number].clone())).collect();
            }
            return advice;
        }
        self.blocks.retain(|number, _| *number + 2 > first);
        advice.blocks = (first..=last).map(|number| (number, self.block(number).0)).collect();
        let window = (self.streak / 2).min(WINDOW_MAX);
        for number in last + 1..=last + window {
            if number * self.size >= file_size || self.blocks.len() >= BLOCKS_MAX {
                break;
            }
            if let (block, true) = self.block(number) {
                advice.fetch.push((number, block));
            }
        }
        advice
    }

    /// Returns the block of this number and whether it is new.
    fn block(&mut self, number: u64) -> (ReadBlock, bool) {
        let mut new = false;
        let block = self.blocks.entry(number).or_insert_with(|| {
            new = true;
            ReadBlock::default()
        });
        (block.clone(), new)
    }

    /// Drops the blocks that overlap a range.
    pub(super) fn invalidate(&mut self, range: Range<u64>) {
        let size = self.size;
        if !self.blocks.is_empty() {
            self.blocks.retain(|number, _| (number + 1) * size <= range.start || number * size >= range.end);
        }
    }

    /// Drops a block that could not be fetched.
    pub(super) fn drop_block(&mut self, number: u64) {
        self.blocks.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn numbers(blocks: &[(u64, ReadBlock)]) -> Vec<u64> {
        blocks.iter().map(|(number, _)| *number).collect()
    }

    #[test]
    fn sequential_reads_grow_window_up_to_end() {
        let mut ahead = ReadAhead::new(SIZE);
        let (mut at, mut fetched) = (0, Vec::new());
        while at < 20 * SIZE {
            let advice = ahead.plan_read(&(at..at + SIZE / 8), 20 * SIZE);
            fetched.extend(numbers(&advice.fetch));
            at += SIZE / 8;
        }
        assert_eq!(fetched, (1..20).collect::<Vec<_>>());
        assert!(ahead.blocks.len() <= 3, "old blocks are dropped: {:?}", ahead.blocks.keys());
    }

    #[test]
    fn random_reads_fetch_nothing_ahead() {
        let mut ahead = ReadAhead::new(SIZE);
        for at in [50, 3, 90, 17, 71] {
            let advice = ahead.plan_read(&(at * SIZE..at * SIZE + 4096), 100 * SIZE);
            assert!(advice.blocks.is_empty() && advice.fetch.is_empty());
        }
    }

    #[test]
    fn overwritten_blocks_are_dropped() {
        let mut ahead = ReadAhead::new(SIZE);
        for at in 0..4 {
            ahead.plan_read(&(at * SIZE..(at + 1) * SIZE), 100 * SIZE);
        }
        let before = ahead.blocks.len();
        ahead.invalidate(4 * SIZE + 5..4 * SIZE + 6);
        assert_eq!(ahead.blocks.len(), before - 1);
        ahead.invalidate(0..u64::MAX);
        assert!(ahead.blocks.is_empty());
    }
}
