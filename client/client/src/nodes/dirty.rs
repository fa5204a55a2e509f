//! Written bytes of a file that were not sent to a device yet.
//!
//! Does: collects small writes into pieces as large as a command, returns complete pieces, and
//! copies dirty bytes over data that was read.
//! Does not: send, wait, or reserve memory; it only computes how much is needed.
//! Contract: pieces do not overlap, and none crosses a multiple of the unit. The newest byte of
//! each offset is kept.

use core::ops::Range;
use std::collections::BTreeMap;

use crate::buffers::Buffers;

/// Minimum memory that a piece is counted with, in bytes.
const PIECE_MEMORY_MIN: usize = 4096;

/// Pieces by their offset in the file.
#[derive(Debug)]
pub(super) struct DirtyPieces {
    pieces: BTreeMap<u64, BufferedPiece>,
    unit: u64,
    memory: usize,
    /// Source of buffers as long as a unit; they are returned to it after sending.
    buffers: Buffers,
}

#[derive(Debug)]
struct BufferedPiece {
    data: Vec<u8>,
    memory: usize,
}

/// A piece that was taken out to be sent, with the memory that is counted for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DirtyPiece {
    pub(super) offset: u64,
    /// The buffer; `part` of it is the piece.
    pub(super) data: Vec<u8>,
    pub(super) part: Range<usize>,
    pub(super) memory: usize,
}

/// The effect of one write inside one unit.
struct WritePlan {
    /// Offsets of the pieces that it overlaps or adjoins.
    touched: Vec<u64>,
    /// Range of the merged piece.
    span: Range<u64>,
    /// Memory that those pieces have now.
    memory_before: usize,
    /// Memory of the merged piece.
    memory: usize,
}

impl DirtyPieces {
    /// Creates an empty set with pieces of at most `unit` bytes, a power of two of at least
    /// [`ROOM_MIN`].
    pub(super) fn new(unit: usize, buffers: Buffers) -> Self {
        Self { pieces: BTreeMap::new(), unit: unit.max(PIECE_MEMORY_MIN) as u64, memory: 0, buffers }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns the ranges of all pieces, by offset.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.pieces.iter().map(|(start, piece)| *start..*start + piece.data.len() as u64)
    }

    /// Memory that the pieces are counted with, in bytes.
    pub(super) const fn memory(&self) -> usize {
        self.memory
    }

    /// Number of pieces.
    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Memory that a write would add, in bytes.
    pub(super) fn cost(&self, offset: u64, length: usize) -> usize {
        self.parts(offset, length)
            .map(|part| {
                let plan = self.plan(&part);
                plan.memory.saturating_sub(plan.memory_before)
            })
            .sum()
    }

    /// Whether these bytes are a complete unit without dirty bytes, and so a piece by themselves.
    pub(super) fn is_complete_unit(&self, offset: u64, length: usize) -> bool {
        let whole = length as u64 == self.unit && offset.is_multiple_of(self.unit);
        whole && self.pieces.range(offset..offset + self.unit).next().is_none()
    }

    /// Adds bytes.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        for part in self.parts(offset, data.len()) {
            let from = (part.start - offset) as usize;
            let bytes = &data[from..from + (part.end - part.start) as usize];
            self.write_part(&part, bytes);
        }
    }

    fn write_part(&mut self, part: &Range<u64>, bytes: &[u8]) {
        let plan = self.plan(part);
        // The first piece is extended in place: an append copies only its own bytes until the
        // capacity is used.
        let mut data = match plan.touched.first().filter(|first| **first == plan.span.start) {
            Some(first) => self.take_piece(*first).data,
            None => Vec::new(),
        };
        let length = (plan.span.end - plan.span.start) as usize;
        if data.capacity() < length {
            data = self.larger(data, plan.memory);
        }
        let at = (part.start - plan.span.start) as usize;
        let mut overwrites = at != data.len();
        if !overwrites {
            data.extend_from_slice(bytes);
        }
        data.resize(length, 0);
        for start in plan.touched {
            if let Some(piece) = self.pieces.remove(&start) {
                self.memory -= piece.memory;
                let at = (start - plan.span.start) as usize;
                data[at..at + piece.data.len()].copy_from_slice(&piece.data);
                // It may have covered newer bytes.
                overwrites = true;
            }
        }
        if overwrites {
            data[at..at + bytes.len()].copy_from_slice(bytes);
        }
        self.memory += plan.memory;
        self.pieces.insert(plan.span.start, BufferedPiece { data, memory: plan.memory });
    }

    /// Returns a buffer with the same bytes and more capacity. Of a whole unit it is a used one, if
    /// possible, since new memory costs page faults.
    fn larger(&self, mut data: Vec<u8>, memory: usize) -> Vec<u8> {
        if memory as u64 == self.unit {
            let mut used = self.buffers.take(memory);
            if used.capacity() >= memory {
                used.clear();
                used.extend_from_slice(&data);
                return used;
            }
        }
        data.reserve_exact(memory.saturating_sub(data.len()));
        data
    }

    fn plan(&self, part: &Range<u64>) -> WritePlan {
        let unit = part.start / self.unit * self.unit;
        let mut span = part.clone();
        let (mut touched, mut memory_before) = (Vec::new(), 0);
        for (&start, piece) in self.pieces.range(unit..unit + self.unit) {
            let end = start + piece.data.len() as u64;
            // Adjacent pieces are merged too.
            if end >= part.start && start <= part.end {
                touched.push(start);
                memory_before += piece.memory;
                span = span.start.min(start)..span.end.max(end);
            }
        }
        let length = (span.end - span.start) as usize;
        let doubled = length.next_power_of_two().clamp(PIECE_MEMORY_MIN, self.unit as usize);
        WritePlan { touched, span, memory_before, memory: doubled }
    }

    /// Splits a range at the ends of units.
    fn parts(&self, offset: u64, length: usize) -> impl Iterator<Item = Range<u64>> + use<> {
        let (unit, end) = (self.unit, offset + length as u64);
        let mut at = offset;
        core::iter::from_fn(move || {
            (at < end).then(|| {
                let stop = (at / unit + 1).saturating_mul(unit).min(end);
                let part = at..stop;
                at = stop;
                part
            })
        })
    }

    fn take_piece(&mut self, start: u64) -> DirtyPiece {
        let Some(BufferedPiece { data, memory }) = self.pieces.remove(&start) else {
            return DirtyPiece { offset: start, data: Vec::new(), part: 0..0, memory: 0 };
        };
        self.memory -= memory;
        DirtyPiece { offset: start, part: 0..data.len(), data, memory }
    }

    /// Takes out the pieces as long as a unit, which cannot grow.
    pub(super) fn take_complete(&mut self) -> Vec<DirtyPiece> {
        let whole =
            |(start, piece): (&u64, &BufferedPiece)| (piece.data.len() as u64 == self.unit).then_some(*start);
        let starts: Vec<u64> = self.pieces.iter().filter_map(whole).collect();
        starts.into_iter().map(|start| self.take_piece(start)).collect()
    }

    /// Takes out all pieces, by offset.
    pub(super) fn take_all(&mut self) -> Vec<DirtyPiece> {
        let starts: Vec<u64> = self.pieces.keys().copied().collect();
        starts.into_iter().map(|start| self.take_piece(start)).collect()
    }

    /// Copies dirty bytes over `into`, the file's bytes from `offset` on, and appends the covered
    /// ranges to `covered`.
    pub(super) fn overlay(&self, offset: u64, into: &mut [u8], covered: &mut Vec<Range<u64>>) {
        let wanted = offset..offset + into.len() as u64;
        let first = self.pieces.range(..=wanted.start).next_back().map_or(wanted.start, |(start, _)| *start);
        for (&start, piece) in self.pieces.range(first..wanted.end) {
            copy_overlap(offset, into, start, &piece.data, covered);
        }
    }

    /// Drops all bytes from `size` on.
    pub(super) fn truncate(&mut self, size: u64) {
        self.remove_range(size..u64::MAX);
    }

    /// Drops a range.
    pub(super) fn remove_range(&mut self, range: Range<u64>) {
        let first = self.pieces.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let touched: Vec<u64> = self
            .pieces
            .range(first..range.end)
            .filter(|(start, piece)| **start + piece.data.len() as u64 > range.start)
            .map(|(start, _)| *start)
            .collect();
        for start in touched {
            let DirtyPiece { data, .. } = self.take_piece(start);
            let end = start + data.len() as u64;
            if start < range.start {
                self.write(start, &data[..(range.start - start) as usize]);
            }
            if end > range.end {
                self.write(range.end, &data[(range.end - start) as usize..]);
            }
        }
    }

    /// Returns the end of the last piece.
    pub(super) fn end(&self) -> u64 {
        self.pieces.iter().next_back().map_or(0, |(start, piece)| start + piece.data.len() as u64)
    }
}

/// Copies the overlap of `data` (at offset `start`) into `into` (at `offset`), and adds its range
/// to `covered`.
pub(super) fn copy_overlap(
    offset: u64,
    into: &mut [u8],
    start: u64,
    data: &[u8],
    covered: &mut Vec<Range<u64>>,
) {
    let from = start.max(offset);
    let to = (start + data.len() as u64).min(offset + into.len() as u64);
    if from >= to {
        return;
    }
    let length = (to - from) as usize;
    let (at, of) = ((from - offset) as usize, (from - start) as usize);
    into[at..at + length].copy_from_slice(&data[of..of + length]);
    covered.push(from..to);
}

/// Returns the parts of `range` that `covered` does not cover, by offset.
pub(super) fn gaps(range: Range<u64>, mut covered: Vec<Range<u64>>) -> Vec<Range<u64>> {
    covered.sort_by_key(|range| range.start);
    let (mut gaps, mut at) = (Vec::new(), range.start);
    for part in covered {
        if part.start > at {
            gaps.push(at..part.start.min(range.end));
        }
        at = at.max(part.end);
    }
    if at < range.end {
        gaps.push(at..range.end);
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNIT: usize = 8192;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, usize, u8),
        TakeWhole,
        Truncate(u64),
        Forget(u64, u64),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0u64..40_000, 0usize..12_000, any::<u8>()).prop_map(|(at, length, byte)| Step::Write(at, length, byte)),
            1 => Just(Step::TakeWhole),
            1 => (0u64..40_000).prop_map(Step::Truncate),
            1 => (0u64..40_000, 0u64..12_000).prop_map(|(at, length)| Step::Forget(at, at + length)),
        ]
    }

    proptest! {
        /// A read returns the last written bytes after any writes, takes and truncations.
        #[test]
        fn the_newest_byte_is_the_one_kept(steps in proptest::collection::vec(any_step(), 1..40)) {
            let mut dirty = DirtyPieces::new(UNIT, Buffers::new(4 * UNIT));
            let mut model: Vec<Option<u8>> = vec![None; 60_000];
            for step in steps {
                match step {
                    Step::Write(at, length, byte) => {
                        let cost = dirty.cost(at, length);
                        let before = dirty.memory();
                        dirty.write(at, &vec![byte; length]);
                        prop_assert!(dirty.memory() <= before + cost, "{} after {before} + {cost}", dirty.memory());
                        model[at as usize..at as usize + length].fill(Some(byte));
                    }
                    Step::TakeWhole => {
                        for taken in dirty.take_complete() {
                            prop_assert_eq!(taken.data.len(), UNIT);
                            prop_assert_eq!(taken.offset % UNIT as u64, 0);
                            let at = taken.offset as usize;
                            for (index, byte) in taken.data.iter().enumerate() {
                                prop_assert_eq!(model[at + index].take(), Some(*byte));
                            }
                        }
                    }
                    Step::Truncate(size) => {
                        dirty.truncate(size);
                        model[size as usize..].fill(None);
                        prop_assert!(dirty.end() <= size);
                    }
                    Step::Forget(start, end) => {
                        dirty.remove_range(start..end);
                        model[start as usize..end as usize].fill(None);
                    }
                }
                let total: usize = dirty.pieces.values().map(|piece| piece.memory).sum();
                prop_assert_eq!(total, dirty.memory());
                let mut seen = vec![0; model.len()];
                let mut covered = Vec::new();
                dirty.overlay(0, &mut seen, &mut covered);
                let mut is_hole = vec![false; model.len()];
                for hole in gaps(0..model.len() as u64, covered) {
                    is_hole[hole.start as usize..hole.end as usize].fill(true);
                }
                // Compared as a whole: assertions for each byte take most of the test's time.
                prop_assert!(is_hole.iter().zip(&model).all(|(hole, byte)| *hole == byte.is_none()));
                prop_assert!(seen.iter().zip(&model).all(|(seen, byte)| *seen == byte.unwrap_or(0)));
            }
            let taken = dirty.take_all();
            prop_assert!(taken.windows(2).all(|pair| pair[0].offset + pair[0].data.len() as u64 <= pair[1].offset));
            prop_assert_eq!((dirty.memory(), dirty.len()), (0, 0));
        }
    }

    #[test]
    fn small_sequential_writes_become_whole_pieces() {
        let mut dirty = DirtyPieces::new(UNIT, Buffers::new(4 * UNIT));
        for at in 0..(3 * UNIT as u64 + 100) / 10 {
            dirty.write(at * 10, &[at as u8; 10]);
        }
        let whole = dirty.take_complete();
        assert_eq!(whole.iter().map(|taken| taken.offset).collect::<Vec<_>>(), [0, 8192, 16384]);
        assert_eq!(dirty.take_all().len(), 1);
    }

    #[test]
    fn unit_piece_reuses_buffer_without_old_bytes() {
        let buffers = Buffers::new(4 * UNIT);
        buffers.give(vec![0xEE; UNIT]);
        let mut dirty = DirtyPieces::new(UNIT, buffers.clone());
        dirty.write(0, &[1; 10]);
        dirty.write(10, &[2; UNIT - 20]);
        assert!(buffers.take(UNIT).capacity() == 0, "the buffer is in use");
        dirty.write(UNIT as u64 - 10, &[3; 10]);
        let whole = dirty.take_complete();
        assert_eq!(whole[0].data, [&[1; 10][..], &[2; UNIT - 20], &[3; 10]].concat());
        // A shorter piece is counted with less memory, so it must not take a whole buffer.
        buffers.give(vec![0xEE; UNIT]);
        dirty.write(0, &[4; 100]);
        assert!(buffers.take(UNIT).capacity() >= UNIT);
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "one range is what is meant")]
    fn gaps_are_uncovered_ranges() {
        assert_eq!(gaps(10..20, vec![]), [10..20]);
        assert_eq!(gaps(10..20, vec![0..12, 15..16, 16..30]), [12..15]);
        assert_eq!(gaps(10..20, vec![0..40]), []);
        assert_eq!(gaps(10..20, vec![12..13, 11..14]), [10..11, 14..20]);
    }
}
