//! A walk over the records of a tree in key order, which reports the key ranges that it could not
//! read.

use std::sync::Arc;

use super::reader::Reader;
use super::{Node, PageRef};
use crate::disk::record::Key;

/// Maximum levels of a tree; none has a tenth of that.
const DEPTH_MAX: usize = 64;

/// A range of keys whose records cannot be read: above `after`, up to `through`; `None` is
/// unbounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) after: Option<Key>,
    pub(crate) through: Option<Key>,
}

impl Lost {
    /// All keys.
    pub(crate) const ALL: Self = Self { after: None, through: None };

    /// Whether a key of `first..=last` may be in the range.
    pub(crate) fn meets(&self, first: &Key, last: &Key) -> bool {
        self.after.is_none_or(|after| after < *last) && self.through.is_none_or(|through| through >= *first)
    }
}

/// The current position of the cursor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<'a> {
    Record(&'a Key, &'a [u8]),
    Lost(Lost),
}

struct Level {
    node: Arc<Node>,
    at: usize,
    /// Its range of keys.
    keys: Lost,
}

/// The walk.
pub(crate) struct Cursor<'a> {
    reader: &'a Reader,
    stack: Vec<Level>,
    first: Key,
    last: Key,
    lost: Option<Lost>,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor over `first..=last` of a tree.
    pub(crate) fn new(reader: &'a Reader, first: Key, last: Key) -> Self {
        let mut cursor = Self { reader, stack: Vec::new(), first, last, lost: None };
        match reader.records() {
            Ok(Some(root)) => cursor.enter(root, Lost::ALL),
            Ok(None) => {}
            Err(lost) => cursor.lost = Some(lost),
        }
        cursor
    }

    fn enter(&mut self, page: PageRef, keys: Lost) {
        let node = if self.stack.len() < DEPTH_MAX { self.reader.load_record_page(page) } else { None };
        match node {
            Some(node) => {
                let at = node.position(&self.first);
                self.stack.push(Level { node, at, keys });
            }
            None => self.lost = Some(keys).filter(|keys| keys.meets(&self.first, &self.last)),
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
            let keys = Lost { after, through: bound(at).or(level.keys.through) };
            if keys.after.is_some_and(|after| after >= self.last) {
                self.stack.clear();
            } else {
                self.enter(child, keys);
            }
        }
    }

    /// Returns the current position; `None` at the end.
    pub(crate) fn current(&mut self) -> Option<Step<'_>> {
        self.settle();
        if let Some(lost) = self.lost {
            return Some(Step::Lost(lost));
        }
        let level = self.stack.last()?;
        let key = level.node.key(level.at)?.first_chunk()?;
        Some(Step::Record(key, level.node.value(level.at)?))
    }

    /// Advances beyond the current position.
    pub(crate) fn pass(&mut self) {
        if self.lost.take().is_none()
            && let Some(level) = self.stack.last_mut()
        {
            level.at += 1;
        }
    }
}
