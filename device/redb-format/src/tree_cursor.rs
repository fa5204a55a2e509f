//! A walk over the records of a tree in key order, which reports the key ranges that it could not
//! read.

use std::sync::Arc;

use crate::{PageRef, TableKey, TreeNode, TreeReader};

/// Maximum levels of a tree; none has a tenth of that.
const DEPTH_MAX: usize = 64;

/// A range of keys whose records cannot be read: above `after`, up to `through`; `None` is
/// unbounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostKeys {
    /// The greatest readable key before the range.
    pub after: Option<TableKey>,
    /// The last key of the range.
    pub through: Option<TableKey>,
}

impl LostKeys {
    /// All keys.
    pub const ALL: Self = Self { after: None, through: None };

    /// Whether a key of `first..=last` may be in the range.
    pub fn overlaps(&self, first: &TableKey, last: &TableKey) -> bool {
        self.after.is_none_or(|after| after < *last) && self.through.is_none_or(|through| through >= *first)
    }
}

/// The current position of the cursor.
#[derive(Clone, Copy, Debug)]
pub enum CursorStep<'a> {
    /// A record: key and value.
    Record(&'a TableKey, &'a [u8]),
    /// A range of keys whose pages are damaged.
    Lost(LostKeys),
}

struct CursorLevel {
    node: Arc<TreeNode>,
    at: usize,
    /// Its range of keys.
    keys: LostKeys,
}

/// The walk.
pub struct TreeCursor<'a> {
    reader: &'a TreeReader,
    stack: Vec<CursorLevel>,
    first: TableKey,
    last: TableKey,
    lost: Option<LostKeys>,
}

impl<'a> TreeCursor<'a> {
    /// Creates a cursor over `first..=last` of a tree.
    pub fn new(reader: &'a TreeReader, first: TableKey, last: TableKey) -> Self {
        let mut cursor = Self { reader, stack: Vec::new(), first, last, lost: None };
        match reader.records() {
            Ok(Some(root)) => cursor.enter(root, LostKeys::ALL),
            Ok(None) => {}
            Err(lost) => cursor.lost = Some(lost),
        }
        cursor
    }

    fn enter(&mut self, page: PageRef, keys: LostKeys) {
        let node = if self.stack.len() < DEPTH_MAX { self.reader.load_record_page(page) } else { None };
        match node {
            Some(node) => {
                let at = node.position(&self.first);
                self.stack.push(CursorLevel { node, at, keys });
            }
            None => self.lost = Some(keys).filter(|keys| keys.overlaps(&self.first, &self.last)),
        }
    }

    /// Moves to the next record or lost range, if there is one.
    fn settle(&mut self) {
        while self.lost.is_none()
            && let Some(level) = self.stack.last_mut()
        {
            let at = level.at;
            if level.node.leaf {
                match level.node.key(at) {
                    Some(key) if key <= &self.last[..] => return,
                    Some(_) => self.stack.clear(),
                    None => drop(self.stack.pop()),
                }
                continue;
            }
            let Some(child) = level.node.child(at) else {
                self.stack.pop();
                continue;
            };
            level.at += 1;
            let bound = |at: usize| level.node.key(at).and_then(|key| key.first_chunk().copied());
            let after = at.checked_sub(1).and_then(bound).or(level.keys.after);
            let keys = LostKeys { after, through: bound(at).or(level.keys.through) };
            if keys.after.is_some_and(|after| after >= self.last) {
                self.stack.clear();
            } else {
                self.enter(child, keys);
            }
        }
    }

    /// Returns the current position; `None` at the end.
    pub fn current(&mut self) -> Option<CursorStep<'_>> {
        self.settle();
        if let Some(lost) = self.lost {
            return Some(CursorStep::Lost(lost));
        }
        let level = self.stack.last()?;
        let key = level.node.key(level.at)?.first_chunk()?;
        Some(CursorStep::Record(key, level.node.value(level.at)?))
    }

    /// Advances beyond the current position.
    pub fn pass(&mut self) {
        if self.lost.take().is_none()
            && let Some(level) = self.stack.last_mut()
        {
            level.at += 1;
        }
    }
}
