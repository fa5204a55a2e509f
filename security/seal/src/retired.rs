//! Partition ids that once had keys: a new partition under such an id does not get the factory
//! keys.
//!
//! Does: remembers ids in bounded space.
//! Does not: hold keys.
//! Contract: a remembered id stays remembered; when space runs out, additional ids count as
//! remembered, never fewer.
//! Source of truth: docs/standards/security.md, section 2 (retired partitions): ours.

use alloc::collections::BTreeMap;

/// Maximum number of separate ranges of ids; 16 bytes each where keys are stored.
pub const RETIRED_RANGES_MAX: usize = 1024;

/// A set of ids as ranges: first and last, none touching the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RetiredIds(BTreeMap<u64, u64>);

impl RetiredIds {
    pub(crate) fn contains(&self, id: u64) -> bool {
        self.0.range(..=id).next_back().is_some_and(|(_, &last)| id <= last)
    }

    /// Adds an id. O(log n), and O(n) once the number of ranges is at its limit.
    pub(crate) fn insert(&mut self, id: u64) {
        if self.contains(id) {
            return;
        }
        let (mut first, mut last) = (id, id);
        let before = self.0.range(..id).next_back().map(|(&first, &last)| (first, last));
        if let Some((start, end)) = before
            && end.checked_add(1) == Some(id)
        {
            first = start;
        }
        if let Some(end) = id.checked_add(1).and_then(|next| self.0.remove(&next)) {
            last = end;
        }
        self.0.insert(first, last);
        if self.0.len() > RETIRED_RANGES_MAX {
            self.join_nearest();
        }
    }

    /// Merges the two ranges with the smallest gap, including the gap.
    fn join_nearest(&mut self) {
        let gap = |(&(_, last), &(first, _)): (&(u64, u64), &(u64, u64))| first - last;
        let all: alloc::vec::Vec<(u64, u64)> = self.ranges().collect();
        let pairs = all.iter().zip(all.iter().skip(1));
        if let Some((one, other)) = pairs.min_by_key(|pair| gap(*pair)) {
            self.0.remove(&other.0);
            self.0.insert(one.0, other.1);
        }
    }

    /// Returns first and last id of each range, ascending.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(&first, &last)| (first, last))
    }

    /// Creates the set from stored ranges; `None` unless they are ascending, do not touch, and are
    /// within the limit.
    pub(crate) fn from_ranges(ranges: impl Iterator<Item = (u64, u64)>) -> Option<Self> {
        let mut this = Self::default();
        let mut after = None;
        for (first, last) in ranges {
            let apart = after.is_none_or(|after: u64| after.checked_add(1).is_some_and(|next| next < first));
            if first > last || !apart || this.0.len() >= RETIRED_RANGES_MAX {
                return None;
            }
            this.0.insert(first, last);
            after = Some(last);
        }
        Some(this)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn adjacent_retired_ids_form_one_range() {
        let mut retired = RetiredIds::default();
        for id in [5, 7, 6, u64::MAX, u64::MAX - 1, 0] {
            retired.insert(id);
        }
        let all: Vec<_> = retired.ranges().collect();
        assert_eq!(all, [(0, 0), (5, 7), (u64::MAX - 1, u64::MAX)]);
    }

    #[test]
    fn retired_ids_stay_retired_when_space_ends() {
        let mut retired = RetiredIds::default();
        let ids: Vec<u64> = (0..5000_u64).map(|n| n * n * 3 + 0x10000).collect();
        ids.iter().for_each(|&id| retired.insert(id));
        assert_eq!(retired.ranges().count(), RETIRED_RANGES_MAX);
        assert!(ids.iter().all(|&id| retired.contains(id)));
        // Distant ids, with the largest gaps between them, are still separate.
        assert!(!retired.contains(ids[4999] - 1));
    }

    proptest! {
        #[test]
        fn retired_ids_form_a_set(ids in proptest::collection::vec(0_u64..80, 0..60)) {
            let mut retired = RetiredIds::default();
            ids.iter().for_each(|&id| retired.insert(id));
            let set: BTreeSet<u64> = ids.into_iter().collect();
            for id in 0..90 {
                prop_assert_eq!(retired.contains(id), set.contains(&id));
            }
            prop_assert_eq!(RetiredIds::from_ranges(retired.ranges()), Some(retired));
        }
    }

    #[test]
    fn touching_or_descending_ranges_are_refused() {
        for bad in
            [&[(2, 1)][..], &[(1, 2), (3, 4)], &[(1, 2), (2, 4)], &[(5, 6), (1, 2)], &[(1, u64::MAX), (0, 0)]]
        {
            assert_eq!(RetiredIds::from_ranges(bad.iter().copied()), None, "{bad:?}");
        }
    }
}
