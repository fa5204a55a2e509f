//! The tree on an array of blocks, compared with a plain array of entries.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::{KeyEpoch, LeaseEpoch, UnitId, UnitKey, UnitKeyRing, portable_aead};

/// Blocks of the unit: the tree has two levels.
const UNIT_BLOCKS: u64 = 1000;

fn sealer() -> DiskSealer {
    let ring = UnitKeyRing::new(UnitId([1; 16]), KeyEpoch(1), UnitKey::new([2; 32]), portable_aead);
    DiskSealer::new(ring.expect("epoch 1"), LeaseEpoch(3))
}

/// A tree and the blocks that have its nodes.
struct StoredTree {
    tree: IntegrityTree,
    blocks: HashMap<u64, Box<[u8; BLOCK_LEN]>>,
    counter: u64,
}

impl StoredTree {
    fn new() -> Self {
        let layout = DiskLayout::new(UNIT_BLOCKS).expect("a supported size");
        let tree = IntegrityTree::new(layout, BlockEntry::UNWRITTEN, 0);
        Self { tree, blocks: HashMap::new(), counter: 0 }
    }

    fn load(&mut self, lba: u64, blocks: u64) -> Result<(), TreeError> {
        loop {
            let reads = self.tree.missing(lba, blocks)?;
            if reads.is_empty() {
                return Ok(());
            }
            for read in reads {
                let zeros = Box::new([0; BLOCK_LEN]);
                let bytes = self.blocks.get(&read.block).unwrap_or(&zeros);
                self.tree.insert(&read, &bytes[..], &sealer())?;
            }
        }
    }

    fn get(&mut self, lba: u64) -> Result<BlockEntry, TreeError> {
        self.load(lba, 1)?;
        let mut entries = Vec::new();
        self.tree.entries(lba, 1, &mut entries)?;
        Ok(entries[0])
    }

    fn set(&mut self, lba: u64, counter: u64) {
        self.load(lba, 1).expect("nothing is damaged");
        self.tree.set_entry(lba, &entry(counter)).expect("it was loaded");
    }

    fn checkpoint(&mut self) {
        let counter = &mut self.counter;
        let mut next = || {
            *counter += 1;
            *counter
        };
        let writes = self.tree.checkpoint(&sealer(), &mut next).expect("nothing is damaged");
        for write in writes {
            self.blocks.insert(write.block, write.bytes);
        }
        assert_eq!(self.tree.dirty(), 0);
    }

    /// Drops all that is in memory.
    fn reopen(&mut self) {
        self.tree = IntegrityTree::new(self.tree.layout().clone(), *self.tree.top(), 0);
    }
}

fn entry(counter: u64) -> BlockEntry {
    match counter {
        0 => BlockEntry::UNWRITTEN,
        counter => {
            BlockEntry { key_epoch: KeyEpoch(1), counter, tag: [counter as u8; 16], ..BlockEntry::UNWRITTEN }
        }
    }
}

#[derive(Clone, Debug)]
enum TreeStep {
    Set(u64, u64),
    Checkpoint,
    Reopen,
    Shrink,
}

fn any_step() -> impl Strategy<Value = TreeStep> {
    prop_oneof![
        8 => (0..900_u64, 0..50_u64).prop_map(|(lba, counter)| TreeStep::Set(lba, counter)),
        1 => Just(TreeStep::Checkpoint),
        1 => Just(TreeStep::Reopen),
        1 => Just(TreeStep::Shrink),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn entries_equal_those_of_an_array(steps in proptest::collection::vec(any_step(), 1..60)) {
        let mut stored = StoredTree::new();
        let mut array = std::vec![0_u64; 900];
        let mut durable = array.clone();
        for step in steps {
            match step {
                TreeStep::Set(lba, counter) => {
                    stored.set(lba, counter);
                    array[lba as usize] = counter;
                }
                TreeStep::Checkpoint => {
                    stored.checkpoint();
                    durable.clone_from(&array);
                }
                TreeStep::Reopen => {
                    stored.reopen();
                    array.clone_from(&durable);
                }
                TreeStep::Shrink => stored.tree.shrink(),
            }
        }
        for (lba, counter) in array.iter().enumerate() {
            prop_assert_eq!(stored.get(lba as u64), Ok(entry(*counter)), "{}", lba);
        }
    }
}

#[test]
fn crash_before_publication_keeps_the_published_tree() {
    let mut stored = StoredTree::new();
    stored.set(5, 1);
    stored.set(700, 2);
    stored.checkpoint();
    let published = *stored.tree.top();
    stored.set(5, 3);
    stored.set(200, 4);
    // All nodes are written, the root is not.
    stored.checkpoint();
    stored.tree = IntegrityTree::new(stored.tree.layout().clone(), published, 0);
    for (lba, counter) in [(5, 1), (200, 0), (700, 2)] {
        assert_eq!(stored.get(lba), Ok(entry(counter)));
    }
}

#[test]
fn every_changed_byte_of_node_is_detected() {
    let mut stored = StoredTree::new();
    stored.set(5, 1);
    stored.checkpoint();
    let blocks: Vec<u64> = stored.blocks.keys().copied().collect();
    assert_eq!(blocks.len(), 2, "two levels");
    for block in blocks {
        for at in 0..BLOCK_LEN {
            stored.blocks.get_mut(&block).expect("it exists")[at] ^= 1;
            stored.reopen();
            assert!(matches!(stored.get(5), Err(TreeError::Mismatch(E2eMismatch::Tag { .. }))), "{at}");
            stored.blocks.get_mut(&block).expect("it exists")[at] ^= 1;
        }
    }
    stored.reopen();
    assert_eq!(stored.get(5), Ok(entry(1)));
}

#[test]
fn older_nodes_are_detected() {
    let mut stored = StoredTree::new();
    stored.set(5, 1);
    stored.checkpoint();
    let old = stored.blocks.clone();
    stored.set(5, 2);
    stored.checkpoint();
    stored.set(5, 3);
    stored.checkpoint();
    stored.blocks = old;
    stored.reopen();
    assert!(matches!(stored.get(5), Err(TreeError::Mismatch(E2eMismatch::Tag { .. }))));
}

#[test]
fn memory_stays_below_the_limit() {
    let layout = DiskLayout::new(1 << 20).expect("a supported size");
    let mut stored =
        StoredTree { tree: IntegrityTree::new(layout, BlockEntry::UNWRITTEN, 64), ..StoredTree::new() };
    for lba in (0..500_000).step_by(1000) {
        stored.set(lba, 1 + lba);
        if lba % 16_000 == 0 {
            stored.checkpoint();
        }
        stored.tree.shrink();
        assert!(stored.tree.cached() <= 64 + stored.tree.dirty());
    }
    for lba in (0..500_000).step_by(1000) {
        assert_eq!(stored.get(lba), Ok(entry(1 + lba)));
        stored.tree.shrink();
        assert!(stored.tree.cached() <= 64 + stored.tree.dirty() + 3);
    }
}

#[test]
fn ranges_beyond_the_end_are_refused() {
    let mut stored = StoredTree::new();
    assert!(matches!(stored.get(u64::MAX), Err(TreeError::Absent(_)) | Ok(_)));
    assert!(matches!(stored.get(1 << 40), Err(TreeError::Absent(_)) | Ok(_)));
}
