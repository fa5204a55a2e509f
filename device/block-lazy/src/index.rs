//! Index of unverified versions: block to its versions, oldest first.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::WriterId;
use crate::layout::VersionNumber;
use crate::version_log::RecordPlace;

/// Location of a version, and the time of its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VersionEntry {
    pub(crate) version: VersionNumber,
    pub(crate) segment: u32,
    /// Offset of the record in its segment.
    pub(crate) offset: u64,
    pub(crate) since_ms: u64,
    pub(crate) writer: Option<WriterId>,
}

impl VersionEntry {
    /// Returns the location of the record.
    pub(crate) const fn place(&self) -> RecordPlace {
        RecordPlace { segment: self.segment, offset: self.offset }
    }
}

/// All unverified versions of a unit.
#[derive(Debug, Default)]
pub(crate) struct VersionIndex {
    blocks: BTreeMap<u64, Vec<VersionEntry>>,
    /// Versions by age, with their blocks.
    by_age: BTreeSet<(u64, VersionNumber, u64)>,
    /// Number of versions in each segment with any.
    segments: BTreeMap<u32, u64>,
}

impl VersionIndex {
    /// Adds the newest version of a block.
    pub(crate) fn push(&mut self, lba: u64, entry: VersionEntry) {
        self.blocks.entry(lba).or_default().push(entry);
        self.by_age.insert((entry.since_ms, entry.version, lba));
        *self.segments.entry(entry.segment).or_default() += 1;
    }

    /// Returns the versions of a block, oldest first.
    pub(crate) fn versions(&self, lba: u64) -> &[VersionEntry] {
        self.blocks.get(&lba).map_or(&[], Vec::as_slice)
    }

    /// Removes all versions of a block.
    pub(crate) fn remove(&mut self, lba: u64) {
        for entry in self.blocks.remove(&lba).unwrap_or_default() {
            self.by_age.remove(&(entry.since_ms, entry.version, lba));
            if let Some(count) = self.segments.get_mut(&entry.segment) {
                *count -= 1;
                if *count == 0 {
                    self.segments.remove(&entry.segment);
                }
            }
        }
    }

    /// Returns the blocks from an address on that have versions, within an extent.
    pub(crate) fn blocks_in(&self, first: u64, count: u64) -> Vec<u64> {
        self.blocks.range(first..first.saturating_add(count)).map(|(lba, _)| *lba).collect()
    }

    /// Returns the blocks with versions that were written at this time or earlier, oldest first.
    pub(crate) fn written_until(&self, ms: u64) -> Vec<u64> {
        let mut seen = BTreeSet::new();
        let old = self.by_age.iter().take_while(|(since_ms, ..)| *since_ms <= ms);
        old.map(|(_, _, lba)| *lba).filter(|lba| seen.insert(*lba)).collect()
    }

    /// Returns the blocks with more versions than a limit.
    pub(crate) fn with_more_than(&self, limit: usize) -> Vec<u64> {
        self.blocks.iter().filter(|(_, versions)| versions.len() > limit).map(|(lba, _)| *lba).collect()
    }

    /// Returns the number of the oldest segment that has a version.
    pub(crate) fn oldest_segment(&self) -> Option<u32> {
        self.segments.keys().next().copied()
    }

    /// Returns the time of the oldest version.
    pub(crate) fn oldest_ms(&self) -> Option<u64> {
        self.by_age.first().map(|(since_ms, ..)| *since_ms)
    }

    /// Returns the number of versions.
    pub(crate) fn len(&self) -> usize {
        self.by_age.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(version: u64, segment: u32, since_ms: u64) -> VersionEntry {
        let version = VersionNumber::new(version).unwrap();
        VersionEntry { version, segment, offset: 0, since_ms, writer: None }
    }

    #[test]
    fn index_orders_blocks_by_age_and_segment() {
        let mut index = VersionIndex::default();
        index.push(9, entry(1, 0, 100));
        index.push(3, entry(2, 0, 100));
        index.push(9, entry(3, 1, 200));
        index.push(5, entry(4, 2, 300));
        assert_eq!(index.written_until(99), []);
        assert_eq!(index.written_until(200), [9, 3]);
        assert_eq!((index.len(), index.oldest_segment(), index.oldest_ms()), (4, Some(0), Some(100)));
        assert_eq!(index.with_more_than(1), [9]);
        assert_eq!(index.blocks_in(3, 3), [3, 5]);
        index.remove(9);
        assert_eq!((index.len(), index.oldest_segment()), (2, Some(0)));
        index.remove(3);
        index.remove(4);
        assert_eq!((index.len(), index.oldest_segment(), index.oldest_ms()), (1, Some(2), Some(300)));
        assert!(index.versions(9).is_empty() && index.versions(5).len() == 1);
    }
}
