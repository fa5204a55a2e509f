//! The integrity tree: entries of all blocks, in nodes of 128 entries, of which a bounded number is
//! in memory.
//!
//! Does: states which nodes a range needs, verifies them with their parents, changes entries, seals
//! changed nodes for a checkpoint.
//! Does not: read or write nodes; the caller does.
//! Contract: a node in memory was verified, and so were its ancestors, which are in memory too. A
//! checkpoint writes each changed node to the slot that the published tree does not use.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::entry::{BlockEntry, ENTRY_LEN};
use crate::layout::{BLOCK_LEN, DiskLayout, FANOUT, NodeId};
use crate::sealer::{BlockPosition, DiskSealer, E2eMismatch};

/// A node that has to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRead {
    /// The node.
    pub node: NodeId,
    /// The block of the unit that has it.
    pub block: u64,
    entry: BlockEntry,
}

/// A node that has to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeWrite {
    /// The block of the unit.
    pub block: u64,
    /// The sealed node.
    pub bytes: Box<[u8; BLOCK_LEN]>,
}

/// Why the tree could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// A node or an entry is not what the last writer stored.
    #[error(transparent)]
    Mismatch(#[from] E2eMismatch),
    /// The caller did not read the nodes of the range.
    #[error("node {} of level {} is not in memory", .0.index, .0.level)]
    Absent(NodeId),
}

struct CachedNode {
    bytes: Box<[u8; BLOCK_LEN]>,
    is_dirty: bool,
    last_use: u64,
}

/// The tree of a unit.
pub struct IntegrityTree {
    layout: DiskLayout,
    top: BlockEntry,
    nodes: BTreeMap<NodeId, CachedNode>,
    nodes_max: usize,
    dirty: usize,
    uses: u64,
}

impl IntegrityTree {
    /// Minimum nodes in memory: a path, and space for a range.
    pub const NODES_MIN: usize = 16;

    /// Returns the tree with that entry of its top node, and no nodes in memory. `nodes_max` is the
    /// number of nodes in memory; changed nodes may exceed it.
    #[must_use]
    pub fn new(layout: DiskLayout, top: BlockEntry, nodes_max: usize) -> Self {
        let nodes_max = nodes_max.max(Self::NODES_MIN);
        Self { layout, top, nodes: BTreeMap::new(), nodes_max, dirty: 0, uses: 0 }
    }

    /// Returns the layout of the unit.
    #[must_use]
    pub const fn layout(&self) -> &DiskLayout {
        &self.layout
    }

    /// Returns the entry of the top node, as of the last checkpoint.
    #[must_use]
    pub const fn top(&self) -> &BlockEntry {
        &self.top
    }

    /// Returns the number of nodes that changed since the last checkpoint.
    #[must_use]
    pub const fn dirty(&self) -> usize {
        self.dirty
    }

    /// Returns the number of nodes in memory.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the nodes to read next, so that the entries of `blocks` blocks are in memory. Empty:
    /// they are. Nodes below the returned ones follow with the next call.
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn missing(&mut self, lba: u64, blocks: u64) -> Result<Vec<NodeRead>, TreeError> {
        let mut reads: Vec<NodeRead> = Vec::new();
        let Some(last) = blocks.checked_sub(1).and_then(|blocks| lba.checked_add(blocks)) else {
            return Ok(reads);
        };
        for leaf in lba / FANOUT..=last / FANOUT {
            if let Some(read) = self.first_missing(NodeId { level: 1, index: leaf })?
                && reads.last().is_none_or(|last| last.node != read.node)
            {
                reads.push(read);
            }
        }
        Ok(reads)
    }

    /// Returns the node nearest to the top that is not in memory, on the path to `leaf`. Nodes of
    /// zeros are added without reading.
    fn first_missing(&mut self, leaf: NodeId) -> Result<Option<NodeRead>, TreeError> {
        if self.nodes.contains_key(&leaf) {
            return Ok(None);
        }
        let mut path = Vec::new();
        let mut node = leaf;
        while node != self.layout.top() && !self.nodes.contains_key(&node) {
            if node.level >= self.layout.top().level {
                return Err(TreeError::Absent(node));
            }
            path.push(node);
            node = node.parent();
        }
        if !self.nodes.contains_key(&node) {
            path.push(node);
        }
        while let Some(node) = path.pop() {
            let entry = self.entry_of(node)?;
            if !entry.is_unwritten() {
                let block = self.layout.node_block(node, entry.slot).ok_or(TreeError::Absent(node))?;
                return Ok(Some(NodeRead { node, block, entry }));
            }
            self.insert_node(node, Box::new([0; BLOCK_LEN]));
        }
        Ok(None)
    }

    /// Adds a node that was read. It may have been added meanwhile; then nothing happens.
    ///
    /// # Errors
    /// [`E2eMismatch`].
    pub fn insert(&mut self, read: &NodeRead, sealed: &[u8], sealer: &DiskSealer) -> Result<(), TreeError> {
        // Another entry: the node changed and was evicted since the read began; it is read again.
        if self.nodes.contains_key(&read.node) || self.entry_of(read.node)? != read.entry {
            return Ok(());
        }
        let mut bytes = Box::new([0; BLOCK_LEN]);
        sealer.open_block(BlockPosition::Node(read.node), &read.entry, sealed, &mut bytes[..])?;
        self.insert_node(read.node, bytes);
        Ok(())
    }

    fn insert_node(&mut self, node: NodeId, bytes: Box<[u8; BLOCK_LEN]>) {
        let last_use = self.next_use();
        self.nodes.insert(node, CachedNode { bytes, is_dirty: false, last_use });
    }

    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// Returns the entry of a node in its parent, which is in memory.
    fn entry_of(&self, node: NodeId) -> Result<BlockEntry, TreeError> {
        if node == self.layout.top() {
            return Ok(self.top);
        }
        let parent = node.parent();
        let cached = self.nodes.get(&parent).ok_or(TreeError::Absent(parent))?;
        entry_at(parent, &cached.bytes, node.position())
    }

    /// Appends the entries of `blocks` blocks.
    ///
    /// # Errors
    /// [`TreeError`]; `Absent` if [`IntegrityTree::missing`] has nodes to read.
    pub fn entries(&mut self, lba: u64, blocks: u64, into: &mut Vec<BlockEntry>) -> Result<(), TreeError> {
        let stamp = self.next_use();
        for block in lba..lba.saturating_add(blocks) {
            let leaf = NodeId { level: 0, index: block }.parent();
            let cached = self.nodes.get_mut(&leaf).ok_or(TreeError::Absent(leaf))?;
            cached.last_use = stamp;
            into.push(entry_at(leaf, &cached.bytes, NodeId { level: 0, index: block }.position())?);
        }
        Ok(())
    }

    /// Changes the entry of a block.
    ///
    /// # Errors
    /// [`TreeError::Absent`].
    pub fn set_entry(&mut self, lba: u64, entry: &BlockEntry) -> Result<(), TreeError> {
        let block = NodeId { level: 0, index: lba };
        self.set_child(block, entry)
    }

    fn set_child(&mut self, child: NodeId, entry: &BlockEntry) -> Result<(), TreeError> {
        let parent = child.parent();
        let stamp = self.next_use();
        let cached = self.nodes.get_mut(&parent).ok_or(TreeError::Absent(parent))?;
        cached.last_use = stamp;
        let place = child.position() * ENTRY_LEN;
        let (stored, encoded) = (&mut cached.bytes[place..place + ENTRY_LEN], entry.encode());
        if *stored != encoded {
            stored.copy_from_slice(&encoded);
            self.dirty += usize::from(!core::mem::replace(&mut cached.is_dirty, true));
        }
        Ok(())
    }

    /// Seals all changed nodes, from the lowest level up, and returns where to write them. The tree
    /// then counts them as unchanged; the caller makes them durable and publishes
    /// [`IntegrityTree::top`], or drops the tree. `counters` gives numbers that are used once.
    ///
    /// # Errors
    /// [`TreeError`]; then the tree has to be dropped.
    pub fn checkpoint(
        &mut self,
        sealer: &DiskSealer,
        counters: &mut dyn FnMut() -> u64,
    ) -> Result<Vec<NodeWrite>, TreeError> {
        let mut writes = Vec::new();
        for level in 1..=self.layout.top().level {
            let of_level = NodeId { level, index: 0 }..NodeId { level: level + 1, index: 0 };
            let changed: Vec<NodeId> = self
                .nodes
                .range_mut(of_level)
                .filter_map(|(node, cached)| core::mem::take(&mut cached.is_dirty).then_some(*node))
                .collect();
            for node in changed {
                self.dirty -= 1;
                let slot = match self.entry_of(node)? {
                    entry if entry.is_unwritten() => entry.slot,
                    entry => entry.slot.other(),
                };
                let cached = self.nodes.get(&node).ok_or(TreeError::Absent(node))?;
                let mut entry = BlockEntry::UNWRITTEN;
                if cached.bytes.iter().any(|byte| *byte != 0) {
                    let block = self.layout.node_block(node, slot).ok_or(TreeError::Absent(node))?;
                    let mut bytes = cached.bytes.clone();
                    entry = sealer.seal_block(BlockPosition::Node(node), counters(), &mut bytes[..]);
                    entry.slot = slot;
                    writes.push(NodeWrite { block, bytes });
                }
                if node == self.layout.top() {
                    self.top = entry;
                } else {
                    self.set_child(node, &entry)?;
                }
            }
        }
        Ok(writes)
    }

    /// Removes unchanged nodes from memory until the limit is met, the least recently used first.
    pub fn shrink(&mut self) {
        while self.nodes.len() > self.nodes_max {
            let mut candidates: Vec<(u64, NodeId)> = self
                .nodes
                .iter()
                .filter(|(node, cached)| !cached.is_dirty && !self.has_cached_child(**node))
                .map(|(node, cached)| (cached.last_use, *node))
                .collect();
            if candidates.is_empty() {
                return;
            }
            candidates.sort_unstable();
            // A quarter at once: the search is not repeated for each new node.
            let count = self.nodes.len() - self.nodes_max + self.nodes_max / 4;
            for (_, node) in candidates.into_iter().take(count) {
                self.nodes.remove(&node);
            }
        }
    }

    fn has_cached_child(&self, node: NodeId) -> bool {
        let Some(level) = node.level.checked_sub(1).filter(|level| *level > 0) else { return false };
        let first = node.index * FANOUT;
        let children = NodeId { level, index: first }..NodeId { level, index: first + FANOUT };
        self.nodes.range(children).next().is_some()
    }
}

impl core::fmt::Debug for IntegrityTree {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("IntegrityTree")
            .field("cached", &self.nodes.len())
            .field("dirty", &self.dirty)
            .finish_non_exhaustive()
    }
}

fn entry_at(node: NodeId, bytes: &[u8; BLOCK_LEN], position: usize) -> Result<BlockEntry, TreeError> {
    let form = E2eMismatch::EntryForm { position: BlockPosition::Node(node) };
    let stored = bytes[position * ENTRY_LEN..].first_chunk().ok_or(form)?;
    Ok(BlockEntry::parse(stored).ok_or(form)?)
}

const _: () = assert!(ENTRY_LEN * FANOUT as usize == BLOCK_LEN, "a node is a block");

#[cfg(test)]
mod tests;
