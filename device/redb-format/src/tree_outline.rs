//! Measures a commit's tree of records: sizes of its pages and number of branches, which bound the
//! page demand of a commit.
//!
//! Does: reads the branches alone, about one page in eighty.
//! Does not: read leaves, except one of each last branch.
//! Contract: all leaves of a tree are at the same depth, as redb keeps them.

use crate::{PageRef, PagesByOrder, TreeNode, TreeReader, UNIT};

/// Maximum levels of a tree.
const DEPTH_MAX: u64 = 40;

/// Sizes that bound the demand of a commit. The first byte of a key, its tag, is below `TAGS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeOutline<const TAGS: usize> {
    /// By tag, the order of the largest leaf that has records of this tag only.
    pub orders: [u8; TAGS],
    /// Leaves that may hold records of several tags, at most one more than there are tags, by
    /// order.
    pub joint: PagesByOrder,
    /// Number of branch pages.
    pub branches: u64,
    /// Number of branches on each path.
    pub depth: u64,
    /// Number of 4 KiB units of records and branches.
    pub units: u64,
}

impl<const TAGS: usize> Default for TreeOutline<TAGS> {
    fn default() -> Self {
        Self { orders: [0; TAGS], joint: PagesByOrder::default(), branches: 0, depth: 0, units: 0 }
    }
}

impl<const TAGS: usize> TreeOutline<TAGS> {
    fn count(&mut self, page: PageRef) -> Option<u8> {
        let (_, length) = page.location()?;
        self.units += length / UNIT;
        Some((length / UNIT).trailing_zeros() as u8)
    }
}

/// Returns the first byte of a key of a node.
fn tag(node: &TreeNode, at: usize) -> Option<usize> {
    node.key(at)?.first().map(|tag| usize::from(*tag))
}

impl TreeReader {
    /// Returns the shape of the tree of records; `None` if a branch cannot be read. While pages are
    /// recorded, leaves count as loaded.
    pub fn outline<const TAGS: usize>(&self) -> Option<TreeOutline<TAGS>> {
        let mut shape = TreeOutline::default();
        if let Some(root) = self.records().ok()? {
            let node = self.load_record_page(root)?;
            self.walk(root, &node, (0, TAGS - 1), 0, &mut shape)?;
        }
        Some(shape)
    }

    /// `tags`: the lowest and highest that the page may hold.
    fn walk<const TAGS: usize>(
        &self,
        page: PageRef,
        node: &TreeNode,
        tags: (usize, usize),
        depth: u64,
        shape: &mut TreeOutline<TAGS>,
    ) -> Option<()> {
        let order = shape.count(page)?;
        if node.leaf {
            widen(shape, tags, order);
            return Some(());
        }
        shape.branches += 1;
        shape.depth = shape.depth.max(depth + 1);
        if depth == DEPTH_MAX {
            return None;
        }
        let first = self.load_record_page(node.child(0)?)?;
        for at in 0..=node.count {
            let child = node.child(at)?;
            // The key before a child may be the last key of the previous child, or less.
            let low = if at == 0 { tags.0 } else { tag(node, at - 1)? };
            let high = if at == node.count { tags.1 } else { tag(node, at)? };
            let tags = (low.min(TAGS - 1), high.min(TAGS - 1));
            if first.leaf {
                self.pass_over(child);
                let order = shape.count(child)?;
                widen(shape, tags, order);
            } else {
                let below = if at == 0 { first.clone() } else { self.load_record_page(child)? };
                self.walk(child, &below, tags, depth + 1, shape)?;
            }
        }
        Some(())
    }
}

/// Adds a leaf of these tags.
fn widen<const TAGS: usize>(shape: &mut TreeOutline<TAGS>, (low, high): (usize, usize), order: u8) {
    if low < high {
        shape.joint[usize::from(order)] += 1;
    } else {
        shape.orders[low] = shape.orders[low].max(order);
    }
}
