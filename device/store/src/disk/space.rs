//! Which blocks of the medium are free.
//!
//! Does: hand out blocks, contiguous where it can, and take them back; count what objects use.
//! Does not: store anything. The map is rebuilt from the index at open, in time O(extents).
//! Contract: a block is free, or in use by as many objects as refer to it; blocks freed by a group come back only
//! when it is committed.
//! Costs: one bit a block (32 MiB of memory for each TiB), plus 4 bytes for each 65536 blocks.

use super::shares::Shares;

/// Bits of one word of the map.
const WORD: u64 = 64;
/// Words of one region, which are skipped together when none of their blocks is free.
const REGION_WORDS: u64 = 1024;
/// Blocks of one region.
const REGION: u64 = REGION_WORDS * WORD;
/// How many words are searched at most for one run long enough, before shorter ones are taken.
const PROBE_WORDS: u64 = 16 * 1024;

/// Blocks of a freed run from which on it is used again first.
const RECYCLE: u64 = 256;

/// A run of blocks on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) place: u64,
    pub(crate) count: u64,
}

impl Run {
    /// Appends a run, merging it with the last one if they touch.
    pub(crate) fn push(runs: &mut Vec<Self>, run: Self) {
        match runs.last_mut() {
            Some(last) if last.place + last.count == run.place => last.count += run.count,
            _ => runs.push(run),
        }
    }
}

/// Why blocks could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Short {
    /// The capacity is used up.
    Capacity,
    /// The blocks exist, but the groups that freed them are not committed yet.
    Pending,
}

/// The free map and the counters.
pub(crate) struct FreeMap {
    /// A set bit is a block in use (or one past the end).
    words: Vec<u64>,
    /// Free blocks of each region.
    regions: Vec<u32>,
    blocks: u64,
    segment_blocks: u64,
    free: u64,
    capacity: u64,
    used: u64,
    cursor: u64,
    shares: Shares,
}

/// What one operation did to blocks, beside taking free ones.
#[derive(Debug, Default)]
pub(crate) struct Turnover {
    /// Blocks that came into use, of those taken.
    pub(crate) taken: u64,
    /// What was claimed for them of the capacity.
    pub(crate) reserved: u64,
    /// References that were added to blocks in use.
    pub(crate) gained: Vec<Run>,
    /// References that are gone, to blocks of committed groups.
    pub(crate) dropped: Vec<Run>,
    /// Blocks of the open group that are not used any more; nothing else refers to them.
    pub(crate) spared: u64,
}

impl FreeMap {
    /// All `blocks` free, of which objects may use `capacity`; runs do not cross multiples of `segment_blocks`.
    pub(crate) fn new(blocks: u64, capacity: u64, segment_blocks: u64) -> Self {
        let words = blocks.div_ceil(WORD);
        let mut map = Self {
            words: vec![0; words as usize],
            regions: Vec::new(),
            blocks,
            segment_blocks,
            free: blocks,
            capacity,
            used: 0,
            cursor: 0,
            shares: Shares::default(),
        };
        if !blocks.is_multiple_of(WORD) {
            map.words[words as usize - 1] = u64::MAX << (blocks % WORD);
        }
        map.regions =
            (0..blocks.div_ceil(REGION)).map(|r| (blocks - r * REGION).min(REGION) as u32).collect();
        map
    }

    /// Blocks that objects use, each counted once.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Blocks that can be had now.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Blocks that no object uses and that cannot be had yet: their group is not committed.
    pub(crate) fn pending(&self) -> u64 {
        self.blocks - self.used - self.free
    }

    /// Claims a run found in the index; gives the first block that is outside. What is claimed already is shared.
    pub(crate) fn claim(&mut self, run: Run) -> Result<(), u64> {
        for place in run.place..run.place.saturating_add(run.count) {
            if place >= self.blocks {
                return Err(place);
            }
            if self.is_used(place) {
                self.shares.add(Run { place, count: 1 });
            } else {
                self.mark(place);
                self.used += 1;
            }
        }
        Ok(())
    }

    /// Which blocks have more than one reference.
    pub(crate) fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Counts what an operation did; gives the blocks of committed groups that nothing refers to any more.
    pub(crate) fn turn_over(&mut self, turnover: &Turnover) -> Vec<Run> {
        // Before any is removed: an object may take over blocks that it has already.
        for &run in &turnover.gained {
            self.shares.add(run);
        }
        let mut freed = Vec::new();
        for &run in &turnover.dropped {
            self.shares.remove(run, &mut freed);
        }
        let gone = turnover.spared + freed.iter().map(|run| run.count).sum::<u64>();
        self.used = (self.used + turnover.taken).saturating_sub(turnover.reserved + gone);
        freed
    }

    /// Takes `need` blocks while objects come to use `growth` more, near `hint` if that is free.
    pub(crate) fn take(&mut self, growth: u64, need: u64, hint: Option<u64>) -> Result<Vec<Run>, Short> {
        if growth > 0 && self.used + growth > self.capacity {
            return Err(Short::Capacity);
        }
        if need > self.free {
            return Err(Short::Pending);
        }
        self.used += growth;
        let mut runs = Vec::new();
        let mut left = need;
        if let Some(hint) = hint
            && hint < self.blocks
        {
            left -= self.take_from(hint, left, &mut runs);
        }
        if left > 1
            && let Some(place) = self.find_run(left.min(256))
        {
            left -= self.take_from(place, left, &mut runs);
        }
        while left > 0 {
            let place = self.next_free();
            left -= self.take_from(place, left, &mut runs);
        }
        if let Some(last) = runs.last() {
            self.cursor = (last.place + last.count) % self.blocks;
        }
        Ok(runs)
    }

    /// Gives back blocks that were taken, and `growth` of what objects use.
    pub(crate) fn give_back(&mut self, runs: &[Run], growth: u64) {
        self.release(runs);
        self.used = self.used.saturating_sub(growth);
    }

    /// Makes blocks free that a committed group freed. What comes next goes there, if it is a long run: its
    /// pages are likely still in memory, where never used ones would have to be made.
    pub(crate) fn recycle(&mut self, runs: &[Run]) {
        self.release(runs);
        if let Some(run) = runs.iter().max_by_key(|run| run.count).filter(|run| run.count >= RECYCLE) {
            self.cursor = run.place;
        }
    }

    /// Makes blocks free.
    pub(crate) fn release(&mut self, runs: &[Run]) {
        for run in runs {
            for place in run.place..run.place + run.count {
                debug_assert!(self.is_used(place), "block {place} is released twice");
                self.words[(place / WORD) as usize] &= !(1 << (place % WORD));
                self.regions[(place / REGION) as usize] += 1;
            }
            self.free += run.count;
        }
    }

    fn is_used(&self, place: u64) -> bool {
        self.words[(place / WORD) as usize] & 1 << (place % WORD) != 0
    }

    fn mark(&mut self, place: u64) {
        self.words[(place / WORD) as usize] |= 1 << (place % WORD);
        self.regions[(place / REGION) as usize] -= 1;
        self.free -= 1;
    }

    /// Takes free blocks from `place` on, to the end of the run or of the segment; gives how many.
    fn take_from(&mut self, place: u64, most: u64, runs: &mut Vec<Run>) -> u64 {
        let segment_end = (place / self.segment_blocks + 1) * self.segment_blocks;
        let end = segment_end.min(self.blocks).min(place + most);
        let mut count = 0;
        while place + count < end && !self.is_used(place + count) {
            self.mark(place + count);
            count += 1;
        }
        if count > 0 {
            runs.push(Run { place, count });
        }
        count
    }

    /// The first free block from the cursor on, around the end. There is one.
    fn next_free(&self) -> u64 {
        let words = self.words.len() as u64;
        let start = self.cursor / WORD;
        let first = self.words[start as usize] | ((1 << (self.cursor % WORD)) - 1);
        if first != u64::MAX {
            return start * WORD + u64::from(first.trailing_ones());
        }
        let mut word = start + 1;
        loop {
            if word >= words {
                word = 0;
            }
            if word.is_multiple_of(REGION_WORDS) && self.regions[(word / REGION_WORDS) as usize] == 0 {
                word += REGION_WORDS;
                continue;
            }
            let bits = self.words[word as usize];
            if bits != u64::MAX {
                return word * WORD + u64::from(bits.trailing_ones());
            }
            word += 1;
        }
    }

    /// A place from the cursor on where `length` blocks are free together, if a short search finds one.
    fn find_run(&self, length: u64) -> Option<u64> {
        let mut place = self.cursor;
        let (mut start, mut count) = (place, 0);
        let mut budget = PROBE_WORDS;
        while budget > 0 {
            budget -= 1;
            if place >= self.blocks {
                (place, start, count) = (0, 0, 0);
            }
            if place.is_multiple_of(self.segment_blocks) {
                (start, count) = (place, 0);
            }
            // One word at a time where it is all free or all used, else bit by bit.
            let bits = self.words[(place / WORD) as usize] >> (place % WORD);
            let span = WORD - place % WORD;
            let to_segment = self.segment_blocks - place % self.segment_blocks;
            let free = u64::from(bits.trailing_zeros()).min(span).min(to_segment);
            if free > 0 {
                count += free;
                place += free;
                if count >= length {
                    return Some(start);
                }
                continue;
            }
            place += u64::from((!bits).trailing_zeros()).min(span);
            (start, count) = (place, 0);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain list of flags: nothing handed out twice, nothing lost, no run across segments.
        #[test]
        fn every_block_has_one_owner(
            blocks in 1_u64..3000, segment in 64_u64..700, steps in proptest::collection::vec((any::<u64>(), any::<bool>()), 0..80),
        ) {
            let mut map = FreeMap::new(blocks, blocks, segment);
            let mut owned: Vec<Run> = Vec::new();
            for (dice, take) in steps {
                if take {
                    let need = dice % 300;
                    match map.take(need, need, (dice % 3 == 0).then_some(dice % blocks)) {
                        Ok(runs) => {
                            prop_assert_eq!(runs.iter().map(|run| run.count).sum::<u64>(), need);
                            for run in &runs {
                                prop_assert_eq!(run.place / segment, (run.place + run.count - 1) / segment);
                                for other in &owned {
                                    prop_assert!(run.place + run.count <= other.place || other.place + other.count <= run.place);
                                }
                            }
                            owned.extend(runs);
                        }
                        Err(short) => {
                            prop_assert_eq!(short, Short::Capacity);
                            prop_assert!(need > blocks - map.used());
                        }
                    }
                } else if !owned.is_empty() {
                    let run = owned.swap_remove((dice % owned.len() as u64) as usize);
                    map.give_back(&[run], run.count);
                }
                let total: u64 = owned.iter().map(|run| run.count).sum();
                prop_assert_eq!((map.used(), map.free()), (total, blocks - total));
            }
        }
    }

    #[test]
    fn a_block_claimed_twice_is_shared_and_counted_once() {
        let mut map = FreeMap::new(100, 90, 64);
        map.claim(Run { place: 10, count: 5 }).unwrap();
        map.claim(Run { place: 8, count: 5 }).unwrap();
        assert_eq!((map.used(), map.free()), (7, 93));
        assert_eq!(map.shares().runs().collect::<Vec<_>>(), [Run { place: 10, count: 3 }]);
        assert_eq!(map.claim(Run { place: 98, count: 5 }), Err(100));
    }

    #[test]
    fn a_shared_block_comes_free_with_its_last_reference() {
        let mut map = FreeMap::new(100, 90, 64);
        let block = Run { place: 10, count: 4 };
        map.claim(block).unwrap();
        let none = Turnover::default;
        assert_eq!(map.turn_over(&Turnover { gained: vec![block], ..none() }), []);
        // The last two are overwritten by one of the two: two blocks more are in use.
        assert_eq!(map.take(2, 2, None).map(|runs| runs.len()), Ok(1));
        let dropped = vec![Run { place: 12, count: 2 }];
        assert_eq!(map.turn_over(&Turnover { taken: 2, reserved: 2, dropped, ..none() }), []);
        assert_eq!(map.used(), 6);
        let freed = map.turn_over(&Turnover { dropped: vec![block], ..none() });
        assert_eq!((freed, map.used()), (vec![Run { place: 12, count: 2 }], 4));
        let freed = map.turn_over(&Turnover { dropped: vec![Run { place: 10, count: 2 }], ..none() });
        assert_eq!((freed, map.used()), (vec![Run { place: 10, count: 2 }], 2));
    }
}
