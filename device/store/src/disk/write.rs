//! The write path: from the data of a WRITE to blocks on the medium and staged changes.
//!
//! Does: computes checksums and digests before any lock; admits the change; under the object's
//! lock extends the length, completes partial blocks, allocates locations, writes the data there,
//! and sets slots and digests; puts the changes into the open group.
//! Does not: change a block that a commit refers to: data goes to free blocks, or to inline blocks
//! of this group.
//! Contract: an operation that fails has changed nothing that is visible.
//! Source of truth: docs/design/store.md.

use std::io::{self, IoSlice};
use std::ops::Range;

use sealstone_digest::CoveredDigests;
use sealstone_osd::ObjectId;

use super::DiskStore;
use super::chunk::{BlockSlot, CHUNK_BLOCKS, in_chunk};
use super::group::AnswerWait;
use super::index_space::PageDemand;
use super::pool::is_inline;
use super::prepared::PreparedData;
use super::read::Block;
use super::space::BlockRun;
use super::stage::{StageError, StagedChanges, stop_error};
use crate::store::{check_transfer, end_of};
use crate::{BLOCK, StoreError};

impl DiskStore {
    /// Writes data, with its digests if the caller has them.
    pub(crate) fn write_with(
        &self,
        id: ObjectId,
        offset: u64,
        data: &[u8],
        covered: Option<&CoveredDigests>,
    ) -> Result<(), StoreError> {
        let fits = check_transfer(data.len()).and_then(|()| end_of(offset, data.len() as u64));
        let prepared = match fits {
            Ok(_) => PreparedData::of(self.profile_of(id.partition), offset, data, covered),
            Err(_) => PreparedData::default(),
        };
        let bytes = offset..offset.saturating_add(data.len() as u64);
        let load = PageDemand::bytes(data.len() as u64, self.options.inline_max);
        let _room = self.admit_change(load, || Ok(self.is_mapped(id, &bytes)?.then_some(load)))?;
        self.change(id, Some(bytes.clone()), |stage| {
            check_transfer(data.len())?;
            end_of(offset, data.len() as u64)?;
            if data.is_empty() { Ok(()) } else { stage.write(offset, data, &prepared) }
        })
    }

    /// Runs one operation that changes these bytes of an object, or an attribute; commits and
    /// retries once if it needs freed blocks.
    pub(crate) fn change(
        &self,
        id: ObjectId,
        bytes: Option<Range<u64>>,
        change: impl Fn(&mut StagedChanges<'_>) -> Result<(), StageError>,
    ) -> Result<(), StoreError> {
        self.commit_if_full();
        let (lengths, ack) = match self.try_change(id, &change) {
            Err(StageError::NeedsCommit) if !self.groups.gate.holds() => {
                self.commit_now()?;
                self.try_change(id, &change)
            }
            result => result,
        }
        .map_err(stop_error)?;
        match bytes {
            Some(bytes) => {
                // If the length changes, all bytes between the old and the new one change.
                let both = match (bytes.is_empty(), lengths.is_empty()) {
                    (true, _) => lengths,
                    (false, true) => bytes,
                    (false, false) => bytes.start.min(lengths.start)..bytes.end.max(lengths.end),
                };
                self.changed(id, both, false);
            }
            None => self.changed(id, 0..0, true),
        }
        self.acknowledge(ack)
    }

    /// Returns the bytes between the old length and the new one.
    fn try_change(
        &self,
        id: ObjectId,
        change: impl Fn(&mut StagedChanges<'_>) -> Result<(), StageError>,
    ) -> Result<(Range<u64>, AnswerWait), StageError> {
        let _inside = self.groups.gate.enter();
        self.groups.check()?;
        let _lock = self.lock(id).write();
        let record = self.record(id)?;
        let before = record.length;
        let mut stage = StagedChanges::new(self, id, record);
        change(&mut stage)?;
        let after = stage.record.length;
        let ack = stage.finish(false);
        Ok((before.min(after)..before.max(after), ack))
    }
}

/// Consecutive blocks of the object that are stored in consecutive blocks of the medium, or one
/// inline block.
pub(crate) struct BlockSpan {
    pub(crate) blocks: Range<u64>,
    pub(crate) location: u64,
    pub(crate) in_place: bool,
}

/// The data of a write, with its partial first and last blocks completed.
pub(crate) struct WriteSource<'a> {
    data: &'a [u8],
    /// Offset of the data in the object.
    offset: u64,
    /// The whole blocks in `data`, and where the first one starts there.
    whole: Range<u64>,
    start: usize,
    pub(crate) head: Option<PartialBlock>,
    pub(crate) tail: Option<PartialBlock>,
}

/// A block that the data covers partially.
pub(crate) struct PartialBlock {
    pub(crate) block: u64,
    /// The new content.
    pub(crate) bytes: Box<Block>,
    /// The old content, if it is needed.
    pub(crate) before: Option<Box<Block>>,
}

impl WriteSource<'_> {
    /// Returns all new bytes of a block, if the data covers it.
    pub(crate) fn find(&self, block: u64) -> Option<&[u8]> {
        if self.whole.contains(&block) {
            let from = self.start + ((block - self.whole.start) * BLOCK) as usize;
            return Some(&self.data[from..][..BLOCK as usize]);
        }
        let edge = [&self.head, &self.tail].into_iter().flatten().find(|edge| edge.block == block);
        edge.map(|edge| &edge.bytes[..])
    }

    fn block(&self, block: u64) -> &[u8] {
        self.find(block).expect("a block of a write is whole or one of its edges")
    }

    /// Returns these bytes of the object, if the data has them all.
    pub(crate) fn slice(&self, range: &Range<u64>) -> Option<&[u8]> {
        let from = range.start.checked_sub(self.offset)? as usize;
        self.data.get(from..from + (range.end - range.start) as usize)
    }

    /// Returns the bytes of the object that the data covers.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }

    /// Returns the blocks that the data touches.
    pub(crate) fn blocks(&self) -> Range<u64> {
        self.offset / BLOCK..(self.offset + self.data.len() as u64).div_ceil(BLOCK)
    }

    /// Returns the bytes of these blocks, in up to three parts.
    fn parts(&self, blocks: &Range<u64>) -> Vec<IoSlice<'_>> {
        let mut parts = Vec::with_capacity(3);
        let edge =
            |edge: &Option<PartialBlock>| edge.as_ref().is_some_and(|edge| blocks.contains(&edge.block));
        if edge(&self.head) {
            parts.push(IoSlice::new(self.block(blocks.start)));
        }
        let whole = blocks.start.max(self.whole.start)..blocks.end.min(self.whole.end);
        if whole.start < whole.end {
            let from = self.start + ((whole.start - self.whole.start) * BLOCK) as usize;
            parts.push(IoSlice::new(&self.data[from..][..((whole.end - whole.start) * BLOCK) as usize]));
        }
        if edge(&self.tail) {
            parts.push(IoSlice::new(self.block(blocks.end - 1)));
        }
        parts
    }
}

impl StagedChanges<'_> {
    /// Writes data, which is not empty and has its checksums and digests in `prepared`; extends the
    /// length if needed.
    pub(crate) fn write(
        &mut self,
        offset: u64,
        data: &[u8],
        prepared: &PreparedData<'_>,
    ) -> Result<(), StageError> {
        self.length_before = self.record.length;
        self.set_length(self.record.length.max(offset + data.len() as u64))?;
        let source = self.source(offset, data)?;
        let spans = self.allocate_locations(source.blocks())?;
        self.put(&[(source, spans)], prepared)
    }

    /// Sets the object's length. Clears the digest of the unit where the shorter of the two lengths
    /// ends, since its bytes change.
    pub(crate) fn set_length(&mut self, length: u64) -> Result<(), StoreError> {
        let end = length.min(self.record.length);
        let differs = length != self.record.length;
        self.record.length = length;
        if let Some(profile) = self.profile
            && differs
            && !end.is_multiple_of(profile.unit_bytes())
        {
            let unit = end / profile.unit_bytes();
            let (chunk, number) = in_chunk(profile, unit);
            if self.has(chunk)? {
                let flat = self.flat(chunk)?;
                let known = flat.digest(number);
                flat.forget(end / BLOCK % CHUNK_BLOCKS);
                self.forgotten = known.map(|value| (unit, value));
                self.touch(end);
            }
        }
        Ok(())
    }

    /// Sets the length, and unmaps or zeroes the bytes beyond it.
    pub(crate) fn cut_or_extend(&mut self, length: u64) -> Result<(), StageError> {
        let old = self.record.length;
        self.set_length(length)?;
        if length < old {
            self.zero(length, old.next_multiple_of(BLOCK))?;
        }
        Ok(())
    }

    /// Returns a whole block with `data` copied over it at `within`.
    fn edge(&mut self, block: u64, within: usize, data: &[u8]) -> Result<PartialBlock, StoreError> {
        let slot = self.slot(block)?;
        let past_end = block * BLOCK + (within + data.len()) as u64 >= self.record.length;
        let (mut bytes, is_old) = match slot.location() {
            Some(location) if within > 0 || !past_end => {
                (Box::new(self.block_at(block, location, slot.sum)?), true)
            }
            location => (Box::new([0; BLOCK as usize]), location.is_none()),
        };
        let before = (is_old && self.needs_old_bytes()).then(|| bytes.clone());
        bytes[within..within + data.len()].copy_from_slice(data);
        Ok(PartialBlock { block, bytes, before })
    }

    pub(crate) fn source<'d>(&mut self, offset: u64, data: &'d [u8]) -> Result<WriteSource<'d>, StoreError> {
        let end = offset + data.len() as u64;
        let (first, last) = (offset / BLOCK, end / BLOCK);
        let (lead, trail) = ((offset % BLOCK) as usize, (end % BLOCK) as usize);
        let whole = offset.div_ceil(BLOCK)..last.max(offset.div_ceil(BLOCK));
        let start = ((whole.start * BLOCK) - offset) as usize;
        let head = match lead {
            0 => None,
            _ => Some(self.edge(first, lead, &data[..start.min(data.len())])?),
        };
        let tail = match trail {
            _ if trail == 0 || (lead != 0 && first == last) => None,
            _ => Some(self.edge(last, 0, &data[data.len() - trail..])?),
        };
        Ok(WriteSource { data, offset, whole, start, head, tail })
    }

    /// Allocates a location for each block.
    pub(crate) fn allocate_locations(&mut self, blocks: Range<u64>) -> Result<Vec<BlockSpan>, StageError> {
        if blocks == (0..1)
            && let Some(span) = self.place_inline()?
        {
            return Ok(vec![span]);
        }
        let (need, mut holes) = (blocks.end - blocks.start, 0);
        let mut left = Vec::new();
        for block in blocks.clone() {
            let slot = self.slot(block)?;
            holes += u64::from(slot.location().is_none());
            left.push(slot);
        }
        // A block that others refer to stays in use when this object leaves it.
        let growth = holes + self.shared(&left);
        let hint = match blocks.start.checked_sub(1) {
            Some(before) if need > 0 => self.slot(before)?.location().map(|location| location + 1),
            _ => None,
        };
        let mut runs = self.take(growth, need, hint)?.into_iter();
        self.count(holes, 0);
        let mut run = BlockRun { location: 0, count: 0 };
        let mut spans: Vec<BlockSpan> = Vec::new();
        for block in blocks {
            if run.count == 0 {
                run = runs.next().expect("as many blocks were taken as are needed");
            }
            let location = run.location;
            run = BlockRun { location: location + 1, count: run.count - 1 };
            match spans.last_mut() {
                Some(span)
                    if span.location + (span.blocks.end - span.blocks.start) == location
                        && !location.is_multiple_of(self.store.segments.blocks_each) =>
                {
                    span.blocks.end += 1;
                }
                _ => spans.push(BlockSpan { blocks: block..block + 1, location, in_place: false }),
            }
        }
        Ok(spans)
    }

    /// Writes the data to its locations, and sets the slots.
    pub(crate) fn put(
        &mut self,
        pieces: &[(WriteSource<'_>, Vec<BlockSpan>)],
        prepared: &PreparedData<'_>,
    ) -> Result<(), StageError> {
        let all = || pieces.iter().flat_map(|(source, spans)| spans.iter().map(move |span| (source, span)));
        for (source, span) in all().filter(|(_, span)| !is_inline(span.location)) {
            self.store.segments.write(span.location, &source.parts(&span.blocks)).map_err(write_error)?;
            self.store.groups.wrote((span.blocks.end - span.blocks.start) * BLOCK);
        }
        let increments = self.increments(pieces.iter().map(|(source, _)| source));
        for (source, span) in all() {
            for (block, location) in span.blocks.clone().zip(span.location..) {
                if is_inline(location) {
                    self.put_inline(location, source.block(block));
                }
                let sum = prepared.sum(block).unwrap_or_else(|| crate::crc::crc32c(source.block(block)));
                let slot = BlockSlot::new(location, self.open, sum);
                let old = self.flat(block / CHUNK_BLOCKS)?.set(block % CHUNK_BLOCKS, slot);
                if !span.in_place {
                    self.release_block(old, false);
                }
            }
        }
        for (source, _) in pieces {
            self.digest(source, prepared, &increments)?;
        }
        Ok(())
    }
}

/// Maps the error of a failed write of new data: a full file system means no space to the caller.
pub(crate) fn write_error(source: io::Error) -> StoreError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::NoSpace,
        _ => StoreError::Io { doing: "writing data", source },
    }
}
