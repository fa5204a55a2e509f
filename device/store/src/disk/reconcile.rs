//! Compares the checksums of objects that share blocks.
//!
//! Does: after the walk that found the shared blocks, checks that all chunks that refer to one
//! block hold the same checksum for it. A block that was wrongly allocated twice would have two.
//! Costs: if anything is shared, one more walk over the chunks for each 16 Mi shared blocks, and 8
//! bytes of memory for each block of such a window.

use sealstone_osd::ObjectId;
use sealstone_redb_format::{CursorStep, TreeCursor, TreeReader};

use super::record::{RecordValue, all_chunks, object_of};
use super::shares::SharedBlocks;
use super::space::BlockRun;

/// Number of shared blocks checked in one walk.
const WINDOW_BLOCKS: u64 = 16 << 20;
/// Longest piece of a shared run that a window takes as a whole.
const PIECE_BLOCKS: u64 = 1 << 20;

/// A set of shared blocks with the checksums found so far.
#[derive(Default)]
struct SharedWindow {
    /// Runs in ascending order, with the index of their first block in `sums`.
    runs: Vec<(BlockRun, usize)>,
    /// 0: not seen yet; else its checksum plus 1.
    sums: Vec<u64>,
}

impl SharedWindow {
    fn push(&mut self, run: BlockRun) {
        self.runs.push((run, self.sums.len()));
        self.sums.resize(self.sums.len() + run.count as usize, 0);
    }

    /// Records the checksums of an extent; returns the first block that has another checksum
    /// already.
    fn record_extent(&mut self, location: u64, sums: &[u32]) -> Option<u64> {
        let end = location + sums.len() as u64;
        let first = self.runs.partition_point(|(run, _)| run.location + run.count <= location);
        for &(run, base) in self.runs[first..].iter().take_while(|(run, _)| run.location < end) {
            for block in run.location.max(location)..end.min(run.location + run.count) {
                let known = &mut self.sums[base + (block - run.location) as usize];
                let met = u64::from(sums[(block - location) as usize]) + 1;
                if *known != 0 && *known != met {
                    return Some(block);
                }
                *known = met;
            }
        }
        None
    }
}

/// Splits a long run into pieces.
fn pieces(run: BlockRun) -> impl Iterator<Item = BlockRun> {
    (0..run.count.div_ceil(PIECE_BLOCKS)).map(move |piece| BlockRun {
        location: run.location + piece * PIECE_BLOCKS,
        count: PIECE_BLOCKS.min(run.count - piece * PIECE_BLOCKS),
    })
}

/// Checks all shared blocks; returns the objects whose checksum of one differs from that of an
/// earlier object.
pub(crate) fn check(reader: &TreeReader, shares: &SharedBlocks) -> Vec<ObjectId> {
    let mut clashes = Vec::new();
    let mut runs = shares.runs().flat_map(pieces).peekable();
    while runs.peek().is_some() {
        let mut window = SharedWindow::default();
        while let Some(run) = runs.next_if(|run| window.sums.len() as u64 + run.count <= WINDOW_BLOCKS) {
            window.push(run);
        }
        let (first, last) = all_chunks();
        let mut cursor = TreeCursor::new(reader, first, last);
        while let Some(step) = cursor.current() {
            if let CursorStep::Record(key, value) = step
                && let Ok(RecordValue::Chunk(chunk)) = RecordValue::parse(key, value)
                && chunk.extents().any(|(extent, sums)| window.record_extent(extent.location, sums).is_some())
            {
                clashes.push(object_of(key));
            }
            cursor.pass();
        }
    }
    clashes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_known_by_two_checksums_is_found() {
        let mut window = SharedWindow::default();
        window.push(BlockRun { location: 10, count: 4 });
        window.push(BlockRun { location: 20, count: 2 });
        assert_eq!(window.record_extent(8, &[1, 2, 3, 4, 5, 6, 7]), None);
        assert_eq!(window.record_extent(10, &[3, 4]), None);
        assert_eq!(window.record_extent(14, &[9, 9, 9, 9, 9, 9, 30, 31, 9]), None);
        assert_eq!(window.record_extent(20, &[30]), None);
        assert_eq!(window.record_extent(12, &[5, 0]), Some(13));
        assert_eq!(window.record_extent(0, &[0; 10]), None);
    }

    #[test]
    fn long_runs_are_cut() {
        let run = BlockRun { location: 5, count: 2 * PIECE_BLOCKS + 1 };
        let cut: Vec<BlockRun> = pieces(run).collect();
        assert_eq!(cut.len(), 3);
        assert_eq!(cut.iter().map(|run| run.count).sum::<u64>(), run.count);
        assert_eq!(cut[2], BlockRun { location: 5 + 2 * PIECE_BLOCKS, count: 1 });
    }
}
