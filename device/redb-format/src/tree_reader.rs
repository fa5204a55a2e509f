//! Reads pages by number and checksum, and the table with our records.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::{
    CursorStep, LostKeys, PageRef, REPAIRABLE, RecordedPages, TableKey, TreeCursor, TreeNode, TreeShape,
    definition,
};

/// Maximum levels of the trees of tables.
const TABLES_DEPTH_MAX: usize = 16;
/// Maximum number of damaged pages that are listed.
const LISTED: usize = 1024;
/// Maximum number of damaged pages in which a wrong bit is searched for: each costs about 30 ms.
/// More are not single-bit corruption.
const TRIED: usize = 64;

/// The file that a [`TreeReader`] reads.
pub trait PageSource: Send + Sync {
    /// Fills `into` from `offset`.
    ///
    /// # Errors
    /// If the bytes cannot be read, or the file ends before.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Receives each page that was found intact.
    fn verified(&self, _offset: u64, _bytes: &[u8]) {}
}

/// Reads the trees of one commit.
pub struct TreeReader {
    file: Box<dyn PageSource>,
    length: u64,
    /// The root of our table; `Ok(None)` if it is empty.
    records: Result<Option<PageRef>, LostKeys>,
    /// Pages whose checksum was wrong; with a node if a single wrong bit was repaired.
    repaired: Mutex<HashMap<PageRef, Option<Arc<TreeNode>>>>,
    damaged: AtomicU64,
    /// The loaded pages of the commit, while they are recorded.
    recorded: Mutex<Option<RecordedPages>>,
}

impl TreeReader {
    /// Creates a reader of a file of `length` bytes, without a table yet.
    #[must_use]
    pub fn new(file: Box<dyn PageSource>, length: u64) -> Self {
        let repaired = Mutex::default();
        let (records, damaged, recorded) = (Err(LostKeys::ALL), AtomicU64::new(0), Mutex::default());
        Self { file, length, records, repaired, damaged, recorded }
    }

    /// Starts recording which pages are referenced and loaded, from this root.
    pub fn start_recording(&self, root: Option<PageRef>) {
        let mut recorded = RecordedPages::default();
        root.into_iter().for_each(|root| recorded.refer(root));
        *self.recorded.lock() = Some(recorded);
    }

    /// Ends recording and returns the recorded pages.
    pub fn take_recorded(&self) -> Option<RecordedPages> {
        self.recorded.lock().take()
    }

    fn note(&self, page: PageRef, node: &TreeNode) {
        if let Some(recorded) = &mut *self.recorded.lock()
            && recorded.load(page)
        {
            (0..=node.count).filter_map(|at| node.child(at)).for_each(|child| recorded.refer(child));
            // A tree of tables refers to their roots.
            if node.leaf && node.shape == TreeShape::TABLES {
                let roots = (0..node.count).filter_map(|at| definition(node.value(at)?)?.0);
                roots.for_each(|root| recorded.refer(root));
            }
        }
    }

    /// Finds our table in the tree of tables. Returns false if there certainly is none.
    pub fn find_table(&mut self, tables: Option<PageRef>, name: &str) -> bool {
        let mut found = None;
        let mut lost = false;
        if let Some(tables) = tables {
            self.each_table(
                tables,
                &mut |key, value| {
                    if key == name.as_bytes() {
                        found = definition(value);
                    }
                },
                &mut lost,
                0,
            );
        }
        self.records = match found {
            Some((root, TreeShape::RECORDS)) => Ok(root),
            _ => Err(LostKeys::ALL),
        };
        self.damaged.fetch_add(u64::from(lost), Ordering::Relaxed);
        self.records.is_ok() || lost
    }

    fn each_table(&self, page: PageRef, visit: &mut dyn FnMut(&[u8], &[u8]), lost: &mut bool, depth: usize) {
        let node = self.try_load(page, TreeShape::TABLES).filter(|_| depth < TABLES_DEPTH_MAX);
        let Some(node) = node else {
            *lost = true;
            return;
        };
        for at in 0..node.count {
            if let (Some(key), Some(value)) = (node.key(at), node.value(at).filter(|_| node.leaf)) {
                visit(key, value);
            }
        }
        for child in (0..=node.count).filter_map(|at| node.child(at)) {
            self.each_table(child, visit, lost, depth + 1);
        }
    }

    /// Reads all pages of a tree of tables and of those tables; adds damaged pages to `bad`.
    pub fn find_damaged(&self, tables: Option<PageRef>, bad: &mut Vec<PageRef>) {
        let mut roots = Vec::new();
        let mut lost = false;
        let Some(tables) = tables else { return };
        self.each_table(
            tables,
            &mut |_, value| match definition(value) {
                Some((root, shape)) => roots.extend(root.map(|root| (root, shape))),
                None => roots.push((tables, TreeShape::RECORDS)),
            },
            &mut lost,
            0,
        );
        if lost {
            bad.push(tables);
        }
        while let Some((page, shape)) = roots.pop() {
            match self.try_load(page, shape) {
                Some(node) => {
                    roots
                        .extend((0..=node.count).filter_map(|at| node.child(at)).map(|child| (child, shape)));
                }
                None if bad.len() < LISTED => bad.push(page),
                None => return,
            }
        }
    }

    /// Counts a page as loaded without reading it.
    pub(crate) fn pass_over(&self, page: PageRef) {
        if let Some(recorded) = &mut *self.recorded.lock() {
            recorded.load(page);
        }
    }

    pub(crate) fn records(&self) -> Result<Option<PageRef>, LostKeys> {
        self.records
    }

    /// Returns a page of our table, if it is intact; otherwise counts it as damaged.
    pub(crate) fn load_record_page(&self, page: PageRef) -> Option<Arc<TreeNode>> {
        let loaded = self.try_load(page, TreeShape::RECORDS);
        if loaded.is_none() {
            self.damaged.fetch_add(1, Ordering::Relaxed);
        }
        loaded
    }

    /// Returns a page, if it is intact or can be repaired.
    fn try_load(&self, page: PageRef, shape: TreeShape) -> Option<Arc<TreeNode>> {
        let (offset, length) = page.location()?;
        if offset.checked_add(length)? > self.length {
            return None;
        }
        let mut bytes = vec![0; length as usize].into_boxed_slice();
        // Read once more: a permanent error repeats.
        self.file.read_at(offset, &mut bytes).or_else(|_| self.file.read_at(offset, &mut bytes)).ok()?;
        let sound = TreeNode::is_sound(&bytes, shape, page.sum);
        if !sound {
            let mut repaired = self.repaired.lock();
            if let Some(known) = repaired.get(&page) {
                let known = known.clone();
                known.iter().for_each(|node| self.note(page, node));
                return known;
            }
            if length > REPAIRABLE || repaired.len() >= TRIED {
                return None;
            }
            if !TreeNode::repair(&mut bytes, shape, page.sum) {
                repaired.insert(page, None);
                return None;
            }
            tracing::warn!(offset, "corrected a single wrong bit in a page of the index");
        }
        self.file.verified(offset, &bytes);
        let node = Arc::new(TreeNode::parse(bytes, shape)?);
        self.note(page, &node);
        if !sound {
            self.repaired.lock().insert(page, Some(node.clone()));
        }
        Some(node)
    }

    /// Returns the pages that were repaired since the last call: offset in the file, and bytes.
    pub fn take_repaired(&self) -> Vec<(u64, Box<[u8]>)> {
        let repaired = std::mem::take(&mut *self.repaired.lock());
        let repaired = repaired.into_iter().filter_map(|(page, node)| Some((page.location()?.0, node?)));
        repaired.map(|(offset, node)| (offset, node.bytes.clone())).collect()
    }

    /// Returns how often a page could not be read so far.
    pub fn damaged(&self) -> u64 {
        self.damaged.load(Ordering::Relaxed)
    }

    /// Returns a record's bytes; `None` if there certainly is none.
    pub fn get(&self, key: &TableKey) -> Result<Option<Vec<u8>>, LostKeys> {
        match TreeCursor::new(self, *key, *key).current() {
            None => Ok(None),
            Some(CursorStep::Record(_, value)) => Ok(Some(value.to_vec())),
            Some(CursorStep::Lost(lost)) => Err(lost),
        }
    }
}
