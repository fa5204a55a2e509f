//! Compares two objects block by block and lists where they differ, up to a limit per call.
//!
//! Does: merges the block lists of both objects, and returns the offset at which the next call
//! continues.
//! Contract: the caller reports blocks in ascending order, each once, without those that are holes
//! in both objects.

use crate::store::push_extent;
use crate::{BLOCK, ExtentKind, MAP_PIECES_MAX, MAX_EXTENTS, ObjectExtent, PIECE};

/// One part of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectComparison {
    /// The differing extents, in ascending order.
    pub extents: Vec<ObjectExtent>,
    /// End of the compared range; `None` if the end of the longer object was reached.
    pub next: Option<u64>,
}

pub(crate) struct ObjectComparer {
    offset: u64,
    mine: u64,
    both: u64,
    longer: u64,
    max: usize,
    /// Number of 1 MiB pieces visited, and the last one.
    pieces: usize,
    piece: u64,
    /// Offset up to which `extents` is complete; it may lie beyond the end of the shorter object.
    at: u64,
    map: Vec<ObjectExtent>,
    stop: Option<u64>,
}

impl ObjectComparer {
    /// Starts at `offset`, for an object of length `mine` and one of length `theirs`.
    pub(crate) fn new(offset: u64, mine: u64, theirs: u64, max: usize) -> Self {
        let both = mine.min(theirs);
        Self {
            offset,
            mine,
            both,
            longer: mine.max(theirs),
            max: max.min(MAX_EXTENTS),
            pieces: 0,
            piece: 0,
            at: both.max(offset),
            map: Vec::new(),
            stop: None,
        }
    }

    /// Adds a block that at least one object has. `mine`: its kind in the first object, if it has
    /// one; `same`: both objects refer to this very block. Returns whether the caller should
    /// continue.
    pub(crate) fn block(&mut self, block: u64, mine: Option<ExtentKind>, same: bool) -> bool {
        let (start, end) = (block * BLOCK, (block + 1) * BLOCK);
        if end <= self.offset {
            return true;
        }
        if self.pieces == 0 || self.piece != start / PIECE {
            if self.pieces == MAP_PIECES_MAX {
                self.stop = Some((self.piece + 1) * PIECE);
                return false;
            }
            self.pieces += 1;
            self.piece = start / PIECE;
        }
        if !same {
            let kind = mine.unwrap_or(ExtentKind::Hole);
            push_extent(&mut self.map, start.max(self.offset), end.min(self.both), kind);
        }
        let (start, end) = (start.max(self.at), end.min(self.mine));
        if let Some(kind) = mine
            && start < end
        {
            push_extent(&mut self.map, self.at, start, ExtentKind::Hole);
            push_extent(&mut self.map, start, end, kind);
            self.at = end;
        }
        self.map.len() <= self.max
    }

    /// Finishes the comparison: there are no more blocks, or the limit is reached.
    pub(crate) fn end(mut self) -> ObjectComparison {
        let stop = self.stop.filter(|stop| *stop < self.longer);
        push_extent(&mut self.map, self.at, stop.unwrap_or(self.longer), ExtentKind::Hole);
        let cut = self.map.len() > self.max;
        self.map.truncate(self.max);
        let last = self.map.last().map_or(self.offset, |last| last.offset + last.length);
        ObjectComparison { extents: self.map, next: if cut { Some(last) } else { stop } }
    }
}
