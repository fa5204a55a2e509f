//! Where two objects differ, as far as one call looks.
//!
//! Does: lay out what both backends find block by block, and say where to go on.
//! Contract: blocks come in ascending order, each once; not those that both have as holes.

use crate::store::push_stretch;
use crate::{BLOCK, MAP_PIECES_MAX, MAX_STRETCHES, PIECE, Stretch, StretchKind};

/// A part of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// What differs, in order.
    pub stretches: Vec<Stretch>,
    /// Up to where it looked; `None` is the end of the longer object.
    pub next: Option<u64>,
}

pub(crate) struct Comparer {
    offset: u64,
    mine: u64,
    both: u64,
    longer: u64,
    max: usize,
    /// How many pieces of 1 MiB were gone over, and the last one.
    pieces: usize,
    piece: u64,
    /// Beyond the end of the shorter object, up to where all is in the map.
    at: u64,
    map: Vec<Stretch>,
    stop: Option<u64>,
}

impl Comparer {
    /// From `offset` on, of an object of length `mine` with one of length `theirs`.
    pub(crate) fn new(offset: u64, mine: u64, theirs: u64, max: usize) -> Self {
        let both = mine.min(theirs);
        Self {
            offset,
            mine,
            both,
            longer: mine.max(theirs),
            max: max.min(MAX_STRETCHES),
            pieces: 0,
            piece: 0,
            at: both.max(offset),
            map: Vec::new(),
            stop: None,
        }
    }

    /// A block that one of them has. `mine`: if the first one does; `same`: both have this very one. Gives whether more is
    /// wanted.
    pub(crate) fn block(&mut self, block: u64, mine: Option<StretchKind>, same: bool) -> bool {
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
            let kind = mine.unwrap_or(StretchKind::Hole);
            push_stretch(&mut self.map, start.max(self.offset), end.min(self.both), kind);
        }
        let (start, end) = (start.max(self.at), end.min(self.mine));
        if let Some(kind) = mine
            && start < end
        {
            push_stretch(&mut self.map, self.at, start, StretchKind::Hole);
            push_stretch(&mut self.map, start, end, kind);
            self.at = end;
        }
        self.map.len() <= self.max
    }

    /// There are no more blocks, or no more are wanted.
    pub(crate) fn end(mut self) -> Comparison {
        let stop = self.stop.filter(|stop| *stop < self.longer);
        push_stretch(&mut self.map, self.at, stop.unwrap_or(self.longer), StretchKind::Hole);
        let cut = self.map.len() > self.max;
        self.map.truncate(self.max);
        let last = self.map.last().map_or(self.offset, |last| last.offset + last.length);
        Comparison { stretches: self.map, next: if cut { Some(last) } else { stop } }
    }
}
