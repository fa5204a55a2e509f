//! Where header, journal, tree and data are on the unit, in blocks of 4 KiB.
//!
//! ```text
//! header 1 | journal J | nodes of the top level, two slots each | … | nodes of level 1 | data
//! ```

use alloc::vec::Vec;

use crate::NodeSlot;

/// Bytes of a block and of a node.
pub const BLOCK_LEN: usize = 4096;
/// Entries of a node.
pub const FANOUT: u64 = 128;
/// Minimum blocks of a unit: 1 MiB.
pub const UNIT_BLOCKS_MIN: u64 = 256;
/// Maximum blocks of a unit: 16 PiB.
pub const UNIT_BLOCKS_MAX: u64 = 1 << 42;
/// Minimum blocks of the journal.
pub const JOURNAL_BLOCKS_MIN: u64 = 32;
/// Maximum blocks of the journal: 64 MiB.
const JOURNAL_BLOCKS_MAX: u64 = 16_384;
/// The journal has one block of this many of the unit.
const JOURNAL_SHARE: u64 = 512;

/// Why a unit cannot have a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskLayoutError {
    /// Too small or too large.
    #[error("a unit of {blocks} blocks of 4 KiB; {UNIT_BLOCKS_MIN} to {UNIT_BLOCKS_MAX} are supported")]
    UnitSize {
        /// Blocks of the unit.
        blocks: u64,
    },
}

/// A node of the tree, or with level 0 a block of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    /// Distance from the data.
    pub level: u8,
    /// Number within the level.
    pub index: u64,
}

impl NodeId {
    /// Returns the node that has the entry of this one.
    #[must_use]
    pub const fn parent(self) -> Self {
        Self { level: self.level + 1, index: self.index / FANOUT }
    }

    /// Returns the number of the entry within the parent.
    #[must_use]
    pub const fn position(self) -> usize {
        (self.index % FANOUT) as usize
    }
}

/// Places of everything on a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskLayout {
    unit_blocks: u64,
    journal_blocks: u64,
    data_blocks: u64,
    /// First block and number of nodes of each level, from level 1.
    levels: Vec<(u64, u64)>,
    data_start: u64,
}

impl DiskLayout {
    /// Returns the layout of a unit of that many blocks.
    ///
    /// # Errors
    /// [`DiskLayoutError`].
    pub fn new(unit_blocks: u64) -> Result<Self, DiskLayoutError> {
        if !(UNIT_BLOCKS_MIN..=UNIT_BLOCKS_MAX).contains(&unit_blocks) {
            return Err(DiskLayoutError::UnitSize { blocks: unit_blocks });
        }
        let journal_blocks = (unit_blocks / JOURNAL_SHARE).clamp(JOURNAL_BLOCKS_MIN, JOURNAL_BLOCKS_MAX);
        let free = unit_blocks - 1 - journal_blocks;
        // The largest number of blocks that fits together with its tree. It is close to this
        // estimate, because nodes of level 2 and above are few.
        let mut data_blocks = free * FANOUT / (FANOUT + 2);
        while data_blocks + tree_blocks(data_blocks) > free {
            data_blocks -= (data_blocks + tree_blocks(data_blocks) - free).max(1);
        }
        let mut start = 1 + journal_blocks;
        let mut levels: Vec<(u64, u64)> = node_counts(data_blocks).map(|nodes| (0, nodes)).collect();
        for level in levels.iter_mut().rev() {
            level.0 = start;
            start += 2 * level.1;
        }
        Ok(Self { unit_blocks, journal_blocks, data_blocks, levels, data_start: start })
    }

    /// Returns the blocks of the unit.
    #[must_use]
    pub const fn unit_blocks(&self) -> u64 {
        self.unit_blocks
    }

    /// Returns the blocks of data.
    #[must_use]
    pub const fn data_blocks(&self) -> u64 {
        self.data_blocks
    }

    /// Returns the records that the journal holds.
    #[must_use]
    pub const fn journal_blocks(&self) -> u64 {
        self.journal_blocks
    }

    /// Returns the block of the journal record with a sequence number.
    #[must_use]
    pub const fn journal_block(&self, sequence: u64) -> u64 {
        1 + sequence % self.journal_blocks
    }

    /// Returns the block of the unit that has a block of data.
    #[must_use]
    pub const fn data_block(&self, lba: u64) -> u64 {
        self.data_start + lba
    }

    /// Returns the top node.
    #[must_use]
    pub fn top(&self) -> NodeId {
        NodeId { level: u8::try_from(self.levels.len()).unwrap_or(u8::MAX), index: 0 }
    }

    /// Returns the block of the unit that is a slot of a node; `None` if there is no such node.
    #[must_use]
    pub fn node_block(&self, node: NodeId, slot: NodeSlot) -> Option<u64> {
        let (start, nodes) = *self.levels.get(usize::from(node.level).checked_sub(1)?)?;
        (node.index < nodes).then(|| start + 2 * node.index + slot.number())
    }
}

/// Returns the number of nodes of each level, from level 1.
fn node_counts(data_blocks: u64) -> impl Iterator<Item = u64> {
    let first = data_blocks.div_ceil(FANOUT);
    core::iter::successors(Some(first), |nodes| (*nodes > 1).then(|| nodes.div_ceil(FANOUT)))
}

fn tree_blocks(data_blocks: u64) -> u64 {
    2 * node_counts(data_blocks).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn overhead_is_below_two_percent() {
        for unit_blocks in [1 << 15, 1 << 18, 1 << 28, 1 << 40] {
            let layout = DiskLayout::new(unit_blocks).expect("a supported size");
            assert!((unit_blocks - layout.data_blocks()) * 50 < unit_blocks, "{layout:?}");
        }
    }

    #[test]
    fn sizes_beyond_limits_are_refused() {
        for blocks in [0, UNIT_BLOCKS_MIN - 1, UNIT_BLOCKS_MAX + 1, u64::MAX] {
            assert_eq!(DiskLayout::new(blocks), Err(DiskLayoutError::UnitSize { blocks }));
        }
    }

    proptest! {
        #[test]
        fn places_do_not_overlap(unit_blocks in UNIT_BLOCKS_MIN..5_000_u64) {
            let layout = DiskLayout::new(unit_blocks).expect("a supported size");
            let mut used = alloc::vec![false; usize::try_from(unit_blocks).expect("small")];
            let mut take = |block: u64| {
                let used = &mut used[usize::try_from(block).expect("small")];
                assert!(!core::mem::replace(used, true), "block {block} of {layout:?}");
            };
            take(0);
            (0..layout.journal_blocks()).for_each(|sequence| take(layout.journal_block(sequence)));
            for level in 1..=layout.top().level {
                let nodes = (0..).map(|index| NodeId { level, index });
                for node in nodes.take_while(|node| layout.node_block(*node, NodeSlot::First).is_some()) {
                    take(layout.node_block(node, NodeSlot::First).expect("it exists"));
                    take(layout.node_block(node, NodeSlot::Second).expect("it exists"));
                }
            }
            (0..layout.data_blocks()).for_each(|lba| take(layout.data_block(lba)));
            let left = used.iter().filter(|used| !**used).count();
            prop_assert!(left <= 4, "{left} blocks are unused");
            prop_assert_eq!(layout.node_block(NodeId { level: layout.top().level, index: 1 }, NodeSlot::First), None);
        }

        #[test]
        fn every_size_has_a_layout(unit_blocks in UNIT_BLOCKS_MIN..=UNIT_BLOCKS_MAX) {
            let layout = DiskLayout::new(unit_blocks).expect("a supported size");
            prop_assert!(layout.data_block(layout.data_blocks() - 1) < unit_blocks);
            prop_assert!(layout.top().level <= 6);
        }
    }
}
