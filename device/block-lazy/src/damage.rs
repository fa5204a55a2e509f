//! Blocks of a unit that are damaged on the medium.

use std::collections::BTreeSet;
use std::ops::Range;

/// Committed blocks that are listed as not authentic. Each report of a further one counts as a
/// block.
const CORRUPT_MAX: usize = 1024;

/// Blocks that were found damaged on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedBlocks {
    /// The first block that was found.
    pub first_lba: u64,
    /// Number of blocks.
    pub count: u64,
}

/// The damaged blocks of a unit.
#[derive(Debug, Default)]
pub(crate) struct DamageList {
    /// Blocks whose keys or records are damaged. They are neither verified nor read from the log.
    unverifiable: BTreeSet<u64>,
    /// Committed blocks that were reported and are not authentic.
    corrupt: BTreeSet<u64>,
    /// Blocks that were added since the caller took them.
    untaken: Option<DamagedBlocks>,
}

impl DamageList {
    /// Adds a block whose keys or records are damaged.
    pub(crate) fn add_unverifiable(&mut self, lba: u64) {
        if self.unverifiable.insert(lba) {
            self.add_untaken(lba);
        }
    }

    /// Adds a committed block that is not authentic.
    pub(crate) fn add_corrupt(&mut self, lba: u64) {
        if self.corrupt.contains(&lba) {
            return;
        }
        if self.corrupt.len() < CORRUPT_MAX {
            self.corrupt.insert(lba);
        }
        self.add_untaken(lba);
    }

    fn add_untaken(&mut self, first_lba: u64) {
        self.untaken.get_or_insert(DamagedBlocks { first_lba, count: 0 }).count += 1;
    }

    /// Whether keys or records of the block are damaged.
    pub(crate) fn is_unverifiable(&self, lba: u64) -> bool {
        self.unverifiable.contains(&lba)
    }

    /// Removes a block that is sound again.
    pub(crate) fn remove(&mut self, lba: u64) {
        self.unverifiable.remove(&lba);
        self.corrupt.remove(&lba);
    }

    /// Removes committed blocks that were written again.
    pub(crate) fn remove_corrupt(&mut self, lbas: &Range<u64>) {
        self.corrupt.retain(|lba| !lbas.contains(lba));
    }

    /// Returns the number of damaged blocks.
    pub(crate) fn count(&self) -> usize {
        self.unverifiable.len() + self.corrupt.len()
    }

    /// Takes the blocks that were added since the last call.
    pub(crate) const fn take(&mut self) -> Option<DamagedBlocks> {
        self.untaken.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_beyond_full_list_are_reported() {
        let mut damage = DamageList::default();
        let (listed, found) = (CORRUPT_MAX as u64, CORRUPT_MAX as u64 + 5);
        (0..listed).chain(0..found).for_each(|lba| damage.add_corrupt(lba));
        assert_eq!(damage.take(), Some(DamagedBlocks { first_lba: 0, count: found }));
        assert_eq!((damage.count() as u64, damage.take()), (listed, None));
    }
}
