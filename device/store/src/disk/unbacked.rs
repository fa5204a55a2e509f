//! The set of free blocks for which the underlying file system has allocated no space (holes), as
//! runs.
//!
//! Does: keeps runs merged, and returns runs near a location.
//! Does not: allocate space; `backing` does.

use std::collections::BTreeMap;

use super::space::BlockRun;

/// Bytes of a block.
const BLOCK: u64 = 4096;
/// Free blocks with space that only changes without additional demand may take: overwrites,
/// truncation.
pub(crate) const BACKED_RESERVE: u64 = (2 << 20) / BLOCK;
/// Shortest run of free blocks whose space is returned: shorter ones cost more than they gain.
pub(crate) const TRIM_RUN_MIN: u64 = (64 << 10) / BLOCK;

/// Free blocks without space.
#[derive(Debug, Default)]
pub(crate) struct UnbackedBlocks {
    /// First block of a run to its length. Runs neither overlap nor touch.
    runs: BTreeMap<u64, u64>,
    count: u64,
}

impl UnbackedBlocks {
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Whether a block is in the set.
    pub(crate) fn contains(&self, location: u64) -> bool {
        self.runs.range(..=location).next_back().is_some_and(|(start, count)| location - start < *count)
    }

    /// Adds a run, none of whose blocks is in the set.
    pub(crate) fn insert(&mut self, run: BlockRun) {
        self.count += run.count;
        let (mut location, mut count) = (run.location, run.count);
        if let Some((&before, &length)) = self.runs.range(..location).next_back()
            && before + length == location
        {
            self.runs.remove(&before);
            (location, count) = (before, count + length);
        }
        if let Some(behind) = self.runs.remove(&(location + count)) {
            count += behind;
        }
        self.runs.insert(location, count);
    }

    /// Removes up to `most` consecutive blocks, near `location` if there are any; runs end where a
    /// segment does.
    pub(crate) fn take(&mut self, location: u64, most: u64, segment_blocks: u64) -> Option<BlockRun> {
        let at_or_behind = self.runs.range(location..).next();
        let (&start, &count) = at_or_behind.or_else(|| self.runs.iter().next())?;
        let taken = count.min(most).min(segment_blocks - start % segment_blocks);
        self.runs.remove(&start);
        if taken < count {
            self.runs.insert(start + taken, count - taken);
        }
        self.count -= taken;
        Some(BlockRun { location: start, count: taken })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_touch_are_joined() {
        let mut unbacked = UnbackedBlocks::default();
        for (location, count) in [(10, 5), (20, 5), (15, 5), (0, 10)] {
            unbacked.insert(BlockRun { location, count });
        }
        assert_eq!((unbacked.count(), unbacked.runs.len()), (25, 1));
        assert!(unbacked.contains(0) && unbacked.contains(24) && !unbacked.contains(25));
        assert_eq!(
            unbacked.take(12, 100, 8),
            Some(BlockRun { location: 0, count: 8 }),
            "to the end of the segment"
        );
        assert_eq!(unbacked.take(8, 3, 8), Some(BlockRun { location: 8, count: 3 }));
        assert_eq!(unbacked.take(11, 100, 100), Some(BlockRun { location: 11, count: 14 }));
        assert_eq!((unbacked.count(), unbacked.take(0, 1, 8)), (0, None));
    }
}
