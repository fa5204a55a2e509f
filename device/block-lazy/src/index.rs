//! Index of unverified versions: block to its versions, oldest first.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::WriterId;
use crate::layout::VersionNumber;
use crate::version_log::RecordPlace;

/// Location of a version, the time of its write, and what clients reported about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VersionEntry {
    pub(crate) version: VersionNumber,
    pub(crate) segment: u32,
    /// Offset of the record in its segment.
    pub(crate) offset: u64,
    pub(crate) since_ms: u64,
    pub(crate) writer: Option<WriterId>,
    /// Whether a client reported that it is not authentic.
    pub(crate) is_reported_corrupt: bool,
}

impl VersionEntry {
    /// Returns a version without reports.
    pub(crate) const fn new(
        version: VersionNumber,
        place: RecordPlace,
        since_ms: u64,
        writer: Option<WriterId>,
    ) -> Self {
        let RecordPlace { segment, offset } = place;
        Self { version, segment, offset, since_ms, writer, is_reported_corrupt: false }
    }

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

    /// Marks a version of a block that a client reported as not authentic.
    pub(crate) fn mark_corrupt(&mut self, lba: u64, version: VersionNumber) {
        let versions = self.blocks.get_mut(&lba).into_iter().flatten();
        for entry in versions.filter(|entry| entry.version == version) {
            entry.is_reported_corrupt = true;
        }
    }

    /// Returns the floor of a block after a client has read a version successfully. The client has
    /// tried the newer versions that were reported. It may not know further ones: they were written
    /// after its read.
    pub(crate) fn floor_after_success(&self, lba: u64, version: VersionNumber) -> VersionNumber {
        let newer = self.versions(lba).iter().filter(|entry| entry.version > version);
        let tried = newer.take_while(|entry| entry.is_reported_corrupt).last();
        tried.map_or(version, |entry| entry.version)
    }

    /// Removes the versions of a block up to a floor.
    pub(crate) fn remove_until(&mut self, lba: u64, floor: VersionNumber) {
        let Some(mut removed) = self.blocks.remove(&lba) else { return };
        let newer = removed.split_off(removed.partition_point(|entry| entry.version <= floor));
        if !newer.is_empty() {
            self.blocks.insert(lba, newer);
        }
        for entry in removed {
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
        VersionEntry::new(version, RecordPlace { segment, offset: 0 }, since_ms, None)
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
        let last = VersionNumber::new(4).unwrap();
        index.remove_until(9, VersionNumber::new(2).unwrap());
        assert_eq!(index.versions(9), [entry(3, 1, 200)]);
        index.remove_until(9, last);
        assert_eq!((index.len(), index.oldest_segment()), (2, Some(0)));
        index.remove_until(3, last);
        index.remove_until(4, last);
        assert_eq!((index.len(), index.oldest_segment(), index.oldest_ms()), (1, Some(2), Some(300)));
        assert!(index.versions(9).is_empty() && index.versions(5).len() == 1);
    }
}
