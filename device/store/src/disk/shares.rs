//! Reference counts of blocks that several objects share.
//!
//! Does: counts references beyond the first, by runs of blocks.
//! Does not: store anything: like the free map it is rebuilt from the chunk records at open, so
//! that no second copy can disagree with them.
//! Contract: a block without an entry has one reference, or none if it is free.
//! Costs: O(log n) per run; about 40 bytes for each run of blocks with equal counts.

use std::collections::BTreeMap;

use super::space::BlockRun;

/// References beyond the first.
#[derive(Debug, Default)]
pub(crate) struct SharedBlocks {
    /// First block of a run, to its length and its additional references, at least 1. Runs do not
    /// overlap; adjacent ones differ in references.
    runs: BTreeMap<u64, (u64, u32)>,
}

impl SharedBlocks {
    /// Whether nothing is shared.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether this block has more than one reference.
    pub(crate) fn contains(&self, location: u64) -> bool {
        let found = self.runs.range(..=location).next_back();
        found.is_some_and(|(start, (count, _))| location - start < *count)
    }

    /// Returns the shared runs, ascending.
    pub(crate) fn runs(&self) -> impl Iterator<Item = BlockRun> {
        self.runs.iter().map(|(&location, &(count, _))| BlockRun { location, count })
    }

    /// Adds one reference to each block of a run. The blocks are in use.
    pub(crate) fn add(&mut self, run: BlockRun) {
        let end = run.location + run.count;
        self.cut(run.location);
        self.cut(end);
        let mut at = run.location;
        while at < end {
            let next = self.runs.range_mut(at..end).next();
            let hole = match next {
                Some((&start, (count, further))) if start == at => {
                    *further = further.saturating_add(1);
                    at += *count;
                    continue;
                }
                Some((&start, _)) => at..start,
                None => at..end,
            };
            self.runs.insert(hole.start, (hole.end - hole.start, 1));
            at = hole.end;
        }
        self.join(run.location, end);
    }

    /// Removes one reference from each block of a run; appends the blocks that had only one to
    /// `last`.
    pub(crate) fn remove(&mut self, run: BlockRun, last: &mut Vec<BlockRun>) {
        let end = run.location + run.count;
        if self.runs.is_empty() {
            return BlockRun::push(last, run);
        }
        self.cut(run.location);
        self.cut(end);
        let mut at = run.location;
        while at < end {
            let next = self.runs.range_mut(at..end).next();
            let single = match next {
                Some((&start, (count, further))) if start == at => {
                    at += *count;
                    *further -= 1;
                    if *further == 0 {
                        self.runs.remove(&start);
                    }
                    continue;
                }
                Some((&start, _)) => at..start,
                None => at..end,
            };
            BlockRun::push(last, BlockRun { location: single.start, count: single.end - single.start });
            at = single.end;
        }
        self.join(run.location, end);
    }

    /// Splits a run that spans `at`.
    fn cut(&mut self, at: u64) {
        let Some((&start, &(count, further))) = self.runs.range(..at).next_back() else { return };
        if at - start < count {
            self.runs.insert(start, (at - start, further));
            self.runs.insert(at, (count - (at - start), further));
        }
    }

    /// Merges adjacent runs with equal counts, from the one before `from` to the one at `to`.
    fn join(&mut self, from: u64, to: u64) {
        let first = self.runs.range(..from).next_back().map_or(from, |(&start, _)| start);
        let mut before: Option<(u64, (u64, u32))> = None;
        let near: Vec<_> = self.runs.range(first..=to).map(|(&start, &run)| (start, run)).collect();
        for (start, (count, further)) in near {
            match &mut before {
                Some((at, (length, same))) if *at + *length == start && *same == further => {
                    *length += count;
                    self.runs.remove(&start);
                    self.runs.insert(*at, (*length, further));
                }
                _ => before = Some((start, (count, further))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with a plain list of counts.
        #[test]
        fn references_are_counted_block_by_block(
            steps in proptest::collection::vec((0_u64..60, 1_u64..20, any::<bool>()), 0..60),
        ) {
            let mut shares = SharedBlocks::default();
            let mut counts = [0_u32; 80];
            for (location, count, add) in steps {
                let run = BlockRun { location, count };
                let range = location as usize..(location + count) as usize;
                if add {
                    shares.add(run);
                    counts[range].iter_mut().for_each(|count| *count += 1);
                } else {
                    let mut last = Vec::new();
                    shares.remove(run, &mut last);
                    let single: Vec<u64> =
                        range.clone().filter(|&at| counts[at] == 0).map(|at| at as u64).collect();
                    let reported: Vec<u64> = last.iter().flat_map(|run| run.location..run.location + run.count).collect();
                    prop_assert_eq!(reported, single);
                    counts[range].iter_mut().for_each(|count| *count = count.saturating_sub(1));
                }
                for (at, &count) in counts.iter().enumerate() {
                    prop_assert_eq!(shares.contains(at as u64), count > 0, "block {}", at);
                }
                let runs: Vec<_> = shares.runs.iter().map(|(&at, &(length, further))| (at, length, further)).collect();
                for pair in runs.windows(2) {
                    let touch = pair[0].0 + pair[0].1 == pair[1].0;
                    prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0);
                    prop_assert!(!touch || pair[0].2 != pair[1].2, "{:?}", pair);
                }
                let total: u64 = runs.iter().map(|&(_, length, further)| length * u64::from(further)).sum();
                prop_assert_eq!(total, counts.iter().map(|&count| u64::from(count)).sum::<u64>());
            }
        }
    }
}
