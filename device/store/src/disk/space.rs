//! The block allocator: a bitmap of the free blocks of the medium.
//!
//! Does: allocates blocks, contiguous if possible, and frees them; counts the blocks that objects
//! use.
//! Does not: store anything. The map is rebuilt from the index at open, in time O(extents).
//! Contract: a block is free, or in use by as many objects as refer to it; blocks freed by a group
//! become free only when it is committed.
//! Costs: one bit per block (32 MiB of memory per TiB), a 32nd more for summaries, and 4 bytes for
//! each 65536 blocks.
//! Allocating and freeing work word by word; a search uses the summaries, and gives up after a
//! number of steps.

use super::pool::{InlinePool, is_inline};
use super::shares::SharedBlocks;
use super::unbacked::{BACKED_RESERVE, TRIM_RUN_MIN, UnbackedBlocks};

/// Bits of one word of the map.
const WORD: u64 = 64;
/// Words of one region, which is skipped as a whole when none of its blocks is free.
const REGION_WORDS: u64 = 1024;
/// Blocks of one region.
const REGION: u64 = REGION_WORDS * WORD;
/// Number of contiguous blocks that are searched for at once; more are taken if they follow.
const TOGETHER: u64 = 256;
/// Runs of at least this many blocks are searched for among completely free words: such a run
/// contains one.
const WHOLE_WORDS: u64 = 2 * WORD - 1;
/// Maximum number of positions that an allocation checks for long runs, before it takes single
/// blocks.
const STEPS: u64 = 2048;
/// Maximum number of positions checked for one run among partly free words.
const STEPS_WITHIN: u64 = 256;

/// Minimum blocks of a freed run that is reused first.
const RECYCLE: u64 = TOGETHER;

/// A run of consecutive blocks on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRun {
    pub(crate) location: u64,
    pub(crate) count: u64,
}

impl BlockRun {
    /// Appends a run, merged with the last one if they are adjacent.
    pub(crate) fn push(runs: &mut Vec<Self>, run: Self) {
        match runs.last_mut() {
            Some(last) if last.location + last.count == run.location => last.count += run.count,
            _ => runs.push(run),
        }
    }
}

/// Why blocks are not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockShortage {
    /// The capacity is used up.
    Capacity,
    /// The blocks exist, but the groups that freed them are not committed yet.
    Pending,
    /// This many free blocks more need space on the underlying file system.
    Unbacked(u64),
}

/// The free map and the counters.
pub(crate) struct FreeMap {
    /// A set bit is a block in use (or one past the end).
    words: Vec<u64>,
    /// A set bit is a word of `words` without a free block.
    full: Vec<u64>,
    /// A set bit is a word of `words` in which all blocks are free.
    empty: Vec<u64>,
    /// Free blocks of each region.
    regions: Vec<u32>,
    blocks: u64,
    segment_blocks: u64,
    free: u64,
    capacity: u64,
    used: u64,
    cursor: u64,
    /// Free blocks without space on the file system; set in `words`, since they cannot be allocated
    /// yet.
    unbacked: UnbackedBlocks,
    /// Whether the file system had no space at the last attempt.
    starved: bool,
    /// Where the search for space to return continues.
    trimmed: u64,
    shares: SharedBlocks,
    /// Blocks in the index; they count as used, too.
    pub(crate) inline: InlinePool,
    handed_out: HandedOut,
}

/// Allocations so far: the fewer runs for a number of blocks, the less fragmented is new data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandedOut {
    /// Number of blocks.
    pub blocks: u64,
    /// Number of runs that they were in.
    pub runs: u64,
}

/// Fragmentation of the free blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeRuns {
    /// Number of free blocks.
    pub blocks: u64,
    /// Number of runs that they are in.
    pub runs: u64,
    /// Number of blocks of the longest run.
    pub longest: u64,
}

/// The changes of one operation to blocks, besides the allocation of free ones.
#[derive(Debug, Default)]
pub(crate) struct BlockTurnover {
    /// Number of allocated blocks that became used.
    pub(crate) taken: u64,
    /// Capacity that was reserved for them.
    pub(crate) reserved: u64,
    /// References added to blocks in use.
    pub(crate) newly_shared: Vec<BlockRun>,
    /// References removed from blocks of committed groups.
    pub(crate) dropped: Vec<BlockRun>,
    /// Number of unused blocks of the open group; nothing else refers to them.
    pub(crate) reusable: u64,
}

impl FreeMap {
    /// Creates a map in which all `blocks` are free, of which objects may use `capacity`; runs do
    /// not cross multiples of `segment_blocks`.
    pub(crate) fn new(blocks: u64, capacity: u64, segment_blocks: u64) -> Self {
        let words = blocks.div_ceil(WORD);
        let summary = words.div_ceil(WORD) as usize;
        let mut map = Self {
            words: vec![0; words as usize],
            full: vec![0; summary],
            empty: vec![u64::MAX; summary],
            regions: Vec::new(),
            blocks,
            segment_blocks,
            free: blocks,
            capacity,
            used: 0,
            cursor: 0,
            unbacked: UnbackedBlocks::default(),
            starved: false,
            trimmed: 0,
            shares: SharedBlocks::default(),
            inline: InlinePool::new(blocks),
            handed_out: HandedOut::default(),
        };
        if !blocks.is_multiple_of(WORD) {
            map.words[words as usize - 1] = u64::MAX << (blocks % WORD);
            map.summarise(words as usize - 1);
        }
        if !words.is_multiple_of(WORD) {
            // Words beyond the end have no free block.
            map.full[summary - 1] |= u64::MAX << (words % WORD);
            map.empty[summary - 1] &= !(u64::MAX << (words % WORD));
        }
        map.regions =
            (0..blocks.div_ceil(REGION)).map(|r| (blocks - r * REGION).min(REGION) as u32).collect();
        map
    }

    /// Returns the number of blocks that objects use, each counted once.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Returns the number of blocks that objects may use.
    #[allow(dead_code, reason = "the example that lets a map grow old asks")]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the number of blocks that can be allocated now.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Returns the number of unused blocks that cannot be allocated yet because their group is not
    /// committed.
    pub(crate) fn pending(&self) -> u64 {
        self.blocks + self.inline.usage().blocks - self.used - self.free - self.unbacked.count()
    }

    /// Returns the number of free blocks without space on the file system.
    pub(crate) fn unbacked(&self) -> u64 {
        self.unbacked.count()
    }

    /// Returns the number of blocks that objects can still use, if the medium allocates space for
    /// `backable` more; blocks freed by uncommitted groups count.
    pub(crate) fn available(&self, backable: u64) -> u64 {
        let backed = (self.free + self.pending()).saturating_sub(self.backed_reserve());
        let more = self.unbacked.count().min(backable);
        (backed + more).min(self.capacity.saturating_sub(self.used))
    }

    /// Whether a group that holds back freed blocks should be committed early.
    ///
    /// Fewer blocks are free than the low-water mark, or than the group holds back. A command that
    /// overwrites as much as the last one then finds enough blocks.
    pub(crate) fn is_low(&self, low_water: u64) -> bool {
        let starved = self.starved && self.free < 2 * BACKED_RESERVE;
        let pending = self.pending();
        pending > 0 && (starved || self.free + self.unbacked.count() < low_water.max(pending))
    }

    pub(crate) fn set_starved(&mut self, starved: bool) {
        self.starved = starved;
    }

    /// Returns the blocks with space that additions leave; if all blocks have space, the store's
    /// own reserve serves instead.
    fn backed_reserve(&self) -> u64 {
        if self.unbacked.count() == 0 { 0 } else { BACKED_RESERVE }
    }

    /// Marks the free blocks of a run as without space: they cannot be allocated before they get
    /// some.
    pub(crate) fn withhold(&mut self, run: BlockRun) {
        let (mut location, end) = (run.location, (run.location + run.count).min(self.blocks));
        while location < end {
            if self.is_used(location) {
                let bits = self.words[(location / WORD) as usize] >> (location % WORD);
                location += u64::from(bits.trailing_ones()).min(WORD - location % WORD);
                continue;
            }
            let free = BlockRun { location, count: self.free_from(location, end) };
            self.change(free, true);
            self.unbacked.insert(free);
            location += free.count;
        }
    }

    /// Withholds up to `most` free blocks, in sufficiently long runs; returns them.
    pub(crate) fn withhold_free(&mut self, most: u64, runs_max: usize) -> Vec<BlockRun> {
        let (mut left, mut location, mut runs) = (most, self.trimmed, Vec::new());
        let mut wrapped = false;
        while left >= TRIM_RUN_MIN && runs.len() < runs_max {
            location = self.next_free_word(location);
            if location >= self.blocks {
                if wrapped {
                    break;
                }
                (wrapped, location) = (true, 0);
                continue;
            }
            if self.is_used(location) {
                let bits = self.words[(location / WORD) as usize] >> (location % WORD);
                location += u64::from(bits.trailing_ones()).min(WORD - location % WORD);
                continue;
            }
            let length = self.free_from(location, self.blocks);
            if length >= TRIM_RUN_MIN {
                let run = BlockRun { location, count: length.min(left) };
                self.change(run, true);
                self.unbacked.insert(run);
                left -= run.count;
                runs.push(run);
            }
            location += length;
        }
        self.trimmed = location;
        runs
    }

    /// Takes up to `most` free blocks without space, in one segment, to allocate space for them.
    pub(crate) fn take_unbacked(&mut self, most: u64) -> Option<BlockRun> {
        self.unbacked.take(self.cursor, most, self.segment_blocks)
    }

    /// Puts back the result of `take_unbacked`: there was no space.
    pub(crate) fn put_unbacked(&mut self, run: BlockRun) {
        self.unbacked.insert(run);
    }

    /// Makes the result of `take_unbacked` free: it has space now.
    pub(crate) fn supply(&mut self, run: BlockRun) {
        self.change(run, false);
    }

    /// Makes a withheld run free again: it kept its space.
    pub(crate) fn take_back(&mut self, run: BlockRun) {
        let (mut location, end) = (run.location, run.location + run.count);
        while location < end {
            let Some(part) = self.unbacked.take(location, end - location, self.segment_blocks) else {
                return;
            };
            if part.location != location {
                self.unbacked.insert(part);
                return;
            }
            self.change(part, false);
            location += part.count;
        }
    }

    /// Claims a run found in the index; fails with the first block that is outside. Blocks that are
    /// claimed already become shared.
    pub(crate) fn claim(&mut self, run: BlockRun) -> Result<(), u64> {
        if is_inline(run.location) {
            match self.inline.claim(run.location) {
                None => return Err(run.location),
                Some(true) => self.used += 1,
                Some(false) => self.shares.add(run),
            }
            return Ok(());
        }
        for location in run.location..run.location.saturating_add(run.count) {
            if location >= self.blocks {
                return Err(location);
            }
            if self.is_used(location) {
                self.shares.add(BlockRun { location, count: 1 });
            } else {
                self.mark(location);
                self.used += 1;
            }
        }
        Ok(())
    }

    /// Returns the blocks that have more than one reference.
    pub(crate) fn shares(&self) -> &SharedBlocks {
        &self.shares
    }

    /// Applies the changes of an operation to the counters; returns the blocks of committed groups
    /// without references.
    pub(crate) fn turn_over(&mut self, turnover: &BlockTurnover) -> Vec<BlockRun> {
        // Before any removal: an object may take over blocks that it has already.
        for &run in &turnover.newly_shared {
            self.shares.add(run);
        }
        let mut freed = Vec::new();
        for &run in &turnover.dropped {
            self.shares.remove(run, &mut freed);
        }
        let gone = turnover.reusable + freed.iter().map(|run| run.count).sum::<u64>();
        self.used = (self.used + turnover.taken).saturating_sub(turnover.reserved + gone);
        freed
    }

    /// Allocates `need` blocks while the use of objects grows by `growth`, near `hint` if that is
    /// free.
    pub(crate) fn take(
        &mut self,
        growth: u64,
        need: u64,
        hint: Option<u64>,
    ) -> Result<Vec<BlockRun>, BlockShortage> {
        if growth > 0 && self.used + growth > self.capacity {
            return Err(BlockShortage::Capacity);
        }
        let kept = if growth > 0 && need > 0 { self.backed_reserve() } else { 0 };
        if need + kept > self.free {
            let short = need + kept - self.free;
            return Err(if self.unbacked.count() > 0 {
                BlockShortage::Unbacked(short)
            } else {
                BlockShortage::Pending
            });
        }
        self.used += growth;
        let mut runs = Vec::new();
        let mut left = need;
        if let Some(hint) = hint
            && hint < self.blocks
        {
            left -= self.take_from(hint, left, &mut runs);
        }
        let mut steps = STEPS;
        while left > 1
            && let Some(location) = self.find_run(left.min(TOGETHER), &mut steps)
        {
            left -= self.take_from(location, left, &mut runs);
        }
        while left > 0 {
            let location = self.next_free(self.cursor);
            left -= self.take_from(location, left, &mut runs);
        }
        self.handed_out.blocks += need;
        self.handed_out.runs += runs.len() as u64;
        Ok(runs)
    }

    /// Allocates an inline location for a block of `length` bytes, while the use of objects grows
    /// by `growth`; `None` if there is none.
    pub(crate) fn take_inline(&mut self, growth: u64, length: u64) -> Result<Option<u64>, BlockShortage> {
        if growth > 0 && self.used + growth > self.capacity {
            return Err(BlockShortage::Capacity);
        }
        let location = if self.inline.fits(None, length) { self.inline.take() } else { None };
        if location.is_some() {
            self.used += growth;
        }
        Ok(location)
    }

    /// Returns allocated blocks, and `growth` of the use of objects.
    pub(crate) fn give_back(&mut self, runs: &[BlockRun], growth: u64) {
        self.release(runs);
        self.used = self.used.saturating_sub(growth);
    }

    /// Makes blocks free that a committed group freed. A long run is used by the next allocation:
    /// its pages are likely still in memory, whereas unused ones would have to be allocated.
    pub(crate) fn recycle(&mut self, runs: &[BlockRun]) {
        self.release(runs);
        if let Some(run) = runs.iter().max_by_key(|run| run.count).filter(|run| run.count >= RECYCLE) {
            self.cursor = run.location;
        }
    }

    /// Makes blocks free.
    pub(crate) fn release(&mut self, runs: &[BlockRun]) {
        for &run in runs {
            if is_inline(run.location) {
                (run.location..run.location + run.count).for_each(|location| self.inline.release(location));
                continue;
            }
            debug_assert!(
                (run.location..run.location + run.count).all(|location| self.is_used(location)),
                "released twice"
            );
            self.change(run, false);
        }
    }

    /// Returns the allocations since the store was opened.
    pub(crate) fn handed_out(&self) -> HandedOut {
        self.handed_out
    }

    /// Returns the fragmentation of the free blocks; reads the whole map.
    pub(crate) fn free_runs(&self) -> FreeRuns {
        let mut found = FreeRuns { blocks: self.free, ..FreeRuns::default() };
        let mut location = 0;
        loop {
            location = self.next_free_word(location);
            if location >= self.blocks {
                break;
            }
            let bits = self.words[(location / WORD) as usize] >> (location % WORD);
            if bits & 1 == 1 {
                location += u64::from(bits.trailing_ones()).min(WORD - location % WORD);
                continue;
            }
            let length = self.free_from(location, self.blocks);
            found.runs += 1;
            found.longest = found.longest.max(length);
            location += length;
        }
        found
    }

    /// Whether these blocks exist.
    pub(crate) fn has(&self, location: u64, count: u64) -> bool {
        location.checked_add(count).is_some_and(|end| end <= self.blocks)
    }

    /// Whether a block is in use, rather than free with or without space.
    pub(crate) fn is_occupied(&self, location: u64) -> bool {
        self.is_used(location) && !self.unbacked.contains(location)
    }

    fn is_used(&self, location: u64) -> bool {
        self.words[(location / WORD) as usize] & 1 << (location % WORD) != 0
    }

    fn mark(&mut self, location: u64) {
        self.change(BlockRun { location, count: 1 }, true);
    }

    /// Marks all blocks of a run, which were in the other state, as used or free.
    fn change(&mut self, run: BlockRun, used: bool) {
        let (mut location, end) = (run.location, run.location + run.count);
        while location < end {
            let (word, bit) = ((location / WORD) as usize, location % WORD);
            let count = (WORD - bit).min(end - location);
            let mask = (u64::MAX >> (WORD - count)) << bit;
            let region = &mut self.regions[(location / REGION) as usize];
            if used {
                self.words[word] |= mask;
                *region -= count as u32;
                self.free -= count;
            } else {
                self.words[word] &= !mask;
                *region += count as u32;
                self.free += count;
            }
            self.summarise(word);
            location += count;
        }
    }

    /// Updates the summaries of a word.
    fn summarise(&mut self, word: usize) {
        let (at, bit) = (word / WORD as usize, 1 << (word % WORD as usize));
        let bits = self.words[word];
        if bits == u64::MAX {
            self.full[at] |= bit
        } else {
            self.full[at] &= !bit
        }
        if bits == 0 { self.empty[at] |= bit } else { self.empty[at] &= !bit }
    }

    /// Returns the number of consecutive free blocks from `location` on, up to `end`.
    fn free_from(&self, location: u64, end: u64) -> u64 {
        let mut at = location;
        while at < end {
            let bits = self.words[(at / WORD) as usize] >> (at % WORD);
            let free = u64::from(bits.trailing_zeros()).min(WORD - at % WORD);
            at += free;
            if free == 0 || !at.is_multiple_of(WORD) {
                break;
            }
        }
        at.min(end) - location
    }

    /// Allocates free blocks from `location` on, to the end of the run or of the segment; returns
    /// how many. The next search continues from there.
    fn take_from(&mut self, location: u64, most: u64, runs: &mut Vec<BlockRun>) -> u64 {
        let segment_end = (location / self.segment_blocks + 1) * self.segment_blocks;
        let end = segment_end.min(self.blocks).min(location + most);
        let count = self.free_from(location, end);
        if count > 0 {
            self.change(BlockRun { location, count }, true);
            runs.push(BlockRun { location, count });
            self.cursor = (location + count) % self.blocks;
        }
        count
    }

    /// Returns the first location from `location` on whose word has a free block, by the summary:
    /// `location` itself if its word has one, else the start of a word. Returns the number of
    /// blocks, or more, if there is none.
    fn next_free_word(&self, location: u64) -> u64 {
        let word = location / WORD;
        let found = self.next_bit(&self.full, word, true, 1);
        if found == word { location } else { found * WORD }
    }

    /// Returns the first word from `word` on whose bit in a summary is set, or clear if `clear`;
    /// regions with less than `least` free blocks are skipped. Returns the number of words, or
    /// more, if there is none.
    fn next_bit(&self, summary: &[u64], word: u64, clear: bool, least: u32) -> u64 {
        let flip = if clear { u64::MAX } else { 0 };
        let words = self.words.len() as u64;
        let mut word = word;
        while word < words {
            if self.regions[(word / REGION_WORDS) as usize] < least {
                word = (word / REGION_WORDS + 1) * REGION_WORDS;
                continue;
            }
            let bits = (summary[(word / WORD) as usize] ^ flip) >> (word % WORD);
            if bits != 0 {
                return word + u64::from(bits.trailing_zeros());
            }
            word = (word / WORD + 1) * WORD;
        }
        words
    }

    /// Returns the first free block from `from` on, wrapping around. There must be one.
    fn next_free(&self, from: u64) -> u64 {
        let mut location = from;
        loop {
            location = self.next_free_word(location);
            if location >= self.blocks {
                location = 0;
                continue;
            }
            let used =
                u64::from((!(self.words[(location / WORD) as usize] >> (location % WORD))).trailing_zeros());
            if location % WORD + used < WORD {
                return location + used;
            }
            // The free blocks of this word lie before `from`.
            location = (location / WORD + 1) * WORD;
        }
    }

    /// Returns a location from the cursor on where `length` consecutive blocks are free. If a short
    /// search finds none, returns the longest run that it found, of at least two. `steps` are the
    /// steps that the search may still take.
    fn find_run(&self, length: u64, steps: &mut u64) -> Option<u64> {
        let mut best = BlockRun { location: 0, count: 1 };
        if length >= WHOLE_WORDS {
            for start in [self.cursor, 0] {
                let mut word = start / WORD;
                while *steps > 0 {
                    *steps -= 1;
                    word = self.next_bit(&self.empty, word, false, WORD as u32);
                    if word >= self.words.len() as u64 {
                        break;
                    }
                    let before = match word {
                        0 => 0,
                        _ => u64::from(self.words[word as usize - 1].leading_zeros()),
                    };
                    let location = word * WORD - before;
                    let end = self.blocks.min(location + before + 2 * length);
                    let found = self
                        .within_segment(BlockRun { location, count: self.free_from(location, end) }, length);
                    if found.count >= length {
                        return Some(found.location);
                    }
                    if found.count > best.count {
                        best = found;
                    }
                    word = (location + self.free_from(location, end)).div_ceil(WORD).max(word + 1);
                }
            }
            if best.count > 1 {
                return Some(best.location);
            }
        }
        let mut location = self.cursor;
        for _ in 0..STEPS_WITHIN.min(*steps) {
            *steps -= 1;
            location = self.next_free(location);
            let count = self.free_from(location, self.blocks.min(location + 2 * length));
            let found = self.within_segment(BlockRun { location, count }, length);
            if found.count >= length {
                return Some(found.location);
            }
            if found.count > best.count {
                best = found;
            }
            location = (location + count) % self.blocks;
        }
        (best.count > 1).then_some(best.location)
    }

    /// Returns the part of a free run that lies in one segment: the first that is long enough, else
    /// the longest.
    fn within_segment(&self, run: BlockRun, length: u64) -> BlockRun {
        let (mut location, end) = (run.location, run.location + run.count);
        let mut best = BlockRun { location, count: 0 };
        while location < end && best.count < length {
            let stop = end.min((location / self.segment_blocks + 1) * self.segment_blocks);
            if stop - location > best.count {
                best = BlockRun { location, count: stop - location };
            }
            location = stop;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with a plain list of flags: nothing is allocated twice or lost, and no run
        /// crosses segments.
        #[test]
        fn every_block_has_one_owner(
            blocks in 1_u64..3000, segment in 64_u64..700, steps in proptest::collection::vec((any::<u64>(), any::<bool>()), 0..80),
        ) {
            let mut map = FreeMap::new(blocks, blocks, segment);
            let mut owned: Vec<BlockRun> = Vec::new();
            for (dice, take) in steps {
                if take {
                    let need = dice % 300;
                    match map.take(need, need, (dice % 3 == 0).then_some(dice % blocks)) {
                        Ok(runs) => {
                            prop_assert_eq!(runs.iter().map(|run| run.count).sum::<u64>(), need);
                            for run in &runs {
                                prop_assert_eq!(run.location / segment, (run.location + run.count - 1) / segment);
                                for other in &owned {
                                    prop_assert!(run.location + run.count <= other.location || other.location + other.count <= run.location);
                                }
                            }
                            owned.extend(runs);
                        }
                        Err(short) => {
                            prop_assert_eq!(short, BlockShortage::Capacity);
                            prop_assert!(need > blocks - map.used());
                        }
                    }
                } else if !owned.is_empty() {
                    let run = owned.swap_remove((dice % owned.len() as u64) as usize);
                    map.give_back(&[run], run.count);
                }
                let total: u64 = owned.iter().map(|run| run.count).sum();
                prop_assert_eq!((map.used(), map.free()), (total, blocks - total));
                for (word, &bits) in map.words.iter().enumerate() {
                    let bit = |summary: &[u64]| summary[word / 64] >> (word % 64) & 1 == 1;
                    prop_assert_eq!((bit(&map.full), bit(&map.empty)), (bits == u64::MAX, bits == 0));
                }
                let flags: Vec<bool> = (0..blocks).map(|location| map.is_used(location)).collect();
                let lengths: Vec<u64> = flags.split(|&used| used).map(|run| run.len() as u64).filter(|&n| n > 0).collect();
                let (runs, longest) = (lengths.len() as u64, lengths.iter().copied().max().unwrap_or(0));
                prop_assert_eq!(map.free_runs(), FreeRuns { blocks: blocks - total, runs, longest });
            }
        }
    }

    /// Every second block is used: a large allocation takes single blocks, and each search starts
    /// where the last one ended.
    #[test]
    fn fragmented_blocks_are_taken_one_by_one() {
        const BLOCKS: u64 = 1 << 20;
        let mut map = FreeMap::new(BLOCKS, BLOCKS, 1 << 18);
        let all = map.take(BLOCKS, BLOCKS, None).unwrap();
        assert_eq!(all.len(), 4, "a segment each");
        let crumbs: Vec<BlockRun> = (0..BLOCKS / 2).map(|n| BlockRun { location: 2 * n, count: 1 }).collect();
        map.give_back(&crumbs, BLOCKS / 2);
        assert_eq!(map.free_runs(), FreeRuns { blocks: BLOCKS / 2, runs: BLOCKS / 2, longest: 1 });
        let taken = map.take(BLOCKS / 2, BLOCKS / 2, None).unwrap();
        assert_eq!(taken.len() as u64, BLOCKS / 2);
        assert_eq!(map.free(), 0);
        assert_eq!(map.handed_out(), HandedOut { blocks: BLOCKS / 2 * 3, runs: BLOCKS / 2 + 4 });
    }

    /// If no run is long enough, the longest ones near are taken, not the next small ones.
    #[test]
    fn the_longest_runs_near_are_taken_first() {
        let mut map = FreeMap::new(10_000, 10_000, 10_000);
        map.take(10_000, 10_000, None).unwrap();
        let free = [(10, 1), (100, 3), (1000, 60), (2000, 200), (5000, 90)];
        let runs = free.map(|(location, count)| BlockRun { location, count });
        map.give_back(&runs, 354);
        let taken = map.take(256, 256, None).unwrap();
        assert_eq!(taken, [BlockRun { location: 2000, count: 200 }, BlockRun { location: 5000, count: 56 }]);
    }

    #[test]
    fn block_claimed_twice_is_shared_and_counted_once() {
        let mut map = FreeMap::new(100, 90, 64);
        map.claim(BlockRun { location: 10, count: 5 }).unwrap();
        map.claim(BlockRun { location: 8, count: 5 }).unwrap();
        assert_eq!((map.used(), map.free()), (7, 93));
        assert_eq!(map.shares().runs().collect::<Vec<_>>(), [BlockRun { location: 10, count: 3 }]);
        assert_eq!(map.claim(BlockRun { location: 98, count: 5 }), Err(100));
    }

    #[test]
    fn shared_block_is_freed_with_last_reference() {
        let mut map = FreeMap::new(100, 90, 64);
        let block = BlockRun { location: 10, count: 4 };
        map.claim(block).unwrap();
        let none = BlockTurnover::default;
        assert_eq!(map.turn_over(&BlockTurnover { newly_shared: vec![block], ..none() }), []);
        // One of the last two overwrites both: two more blocks are in use.
        assert_eq!(map.take(2, 2, None).map(|runs| runs.len()), Ok(1));
        let dropped = vec![BlockRun { location: 12, count: 2 }];
        assert_eq!(map.turn_over(&BlockTurnover { taken: 2, reserved: 2, dropped, ..none() }), []);
        assert_eq!(map.used(), 6);
        let freed = map.turn_over(&BlockTurnover { dropped: vec![block], ..none() });
        assert_eq!((freed, map.used()), (vec![BlockRun { location: 12, count: 2 }], 4));
        let freed =
            map.turn_over(&BlockTurnover { dropped: vec![BlockRun { location: 10, count: 2 }], ..none() });
        assert_eq!((freed, map.used()), (vec![BlockRun { location: 10, count: 2 }], 2));
    }
}
