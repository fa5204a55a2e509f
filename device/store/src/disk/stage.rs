//! One operation's changes to one object, staged until they enter the open group together.
//!
//! Does: chooses blocks, writes data to them, collects new chunks and freed blocks; undoes
//! everything if dropped.
//! Contract: data is written to free blocks only, never to one that a commit or a record of the
//! write log refers to. Blocks allocated in the same open group become free when the record that
//! releases them is written. Bytes of a block beyond the object's end are zero.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;

use sealstone_digest::{DigestValue as Digest, Profile};
use sealstone_osd::ObjectId;

use super::DiskStore;
use super::backing::ROUNDS_MAX;
use super::chunk::{BlockSlot, CHUNK_BLOCKS, Chunk, FlatChunk};
use super::group::AnswerWait;
use super::pool::is_inline;
use super::prepared::PreparedData;
use super::read::Block;
use super::record::{CorruptRecord, Key, ObjectRecord, RecordValue, chunk_key, chunk_of, object_key};
use super::space::{BlockRun, BlockShortage, BlockTurnover};
use crate::{BLOCK, StoreError};

/// Number of chunks looked up at a time when a range is walked.
pub(crate) const WALK: usize = 256;

/// Why a staged operation stops.
#[derive(Debug)]
pub(crate) enum StageError {
    /// A permanent error.
    Error(StoreError),
    /// The blocks it needs become free with the next commit.
    NeedsCommit,
}

impl From<StoreError> for StageError {
    fn from(error: StoreError) -> Self {
        Self::Error(error)
    }
}

impl From<BlockShortage> for StageError {
    fn from(short: BlockShortage) -> Self {
        match short {
            BlockShortage::Capacity => Self::Error(StoreError::NoSpace),
            BlockShortage::Pending => Self::NeedsCommit,
            // The file system has no space: a commit may free some.
            BlockShortage::Unbacked(_) => Self::NeedsCommit,
        }
    }
}

/// The staged changes.
pub(crate) struct StagedChanges<'a> {
    pub(crate) store: &'a DiskStore,
    pub(crate) id: ObjectId,
    pub(crate) record: ObjectRecord,
    /// Digest profile of the object's units.
    pub(crate) profile: Option<Profile>,
    /// The object's length before this operation changed it.
    pub(crate) length_before: u64,
    /// The former digest of the unit where the length changed.
    pub(crate) forgotten: Option<(u64, Digest)>,
    /// Units whose digest must be recomputed after all other changes.
    pub(crate) stale: BTreeSet<u64>,
    /// The open group.
    pub(crate) open: u64,
    /// Changed chunks; `None` is one that becomes a hole.
    flats: BTreeMap<u64, Option<FlatChunk>>,
    /// Finished changes.
    pub(crate) changes: Vec<(Key, Option<RecordValue>)>,
    taken: Vec<BlockRun>,
    /// Reserved capacity, in blocks.
    reserved: u64,
    /// Number of blocks that the object gained.
    grown: u64,
    /// Number of blocks that the object lost.
    shrunk: u64,
    /// Blocks in use that this object newly refers to, too.
    pub(crate) newly_shared: Vec<BlockRun>,
    /// Blocks of committed groups that this object does not refer to any more.
    dropped: Vec<BlockRun>,
    /// Blocks of this group that are not used any more. Only this object refers to them.
    pub(crate) reusable: Vec<BlockRun>,
    /// The written bytes of inline blocks, by location.
    pub(crate) inline: BTreeMap<u64, Arc<[u8]>>,
    finished: bool,
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

impl<'a> StagedChanges<'a> {
    pub(crate) fn new(store: &'a DiskStore, id: ObjectId, record: ObjectRecord) -> Self {
        Self {
            store,
            id,
            length_before: record.length,
            forgotten: None,
            record,
            profile: store.profile_of(id.partition).map(Profile::values),
            stale: BTreeSet::new(),
            open: store.groups.open(),
            flats: BTreeMap::new(),
            changes: Vec::new(),
            taken: Vec::new(),
            reserved: 0,
            grown: 0,
            shrunk: 0,
            newly_shared: Vec::new(),
            dropped: Vec::new(),
            reusable: Vec::new(),
            inline: BTreeMap::new(),
            finished: false,
        }
    }

    /// Returns a chunk in its current staged form.
    pub(crate) fn flat(&mut self, chunk: u64) -> Result<&mut FlatChunk, StoreError> {
        let profile = self.profile;
        let entry = match self.flats.entry(chunk) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let compact = self.store.chunk(self.id, chunk)?;
                let flat = compact
                    .map_or_else(|| FlatChunk::empty(profile), |compact| FlatChunk::of(&compact, profile));
                entry.insert(Some(flat))
            }
        };
        Ok(entry.get_or_insert_with(|| FlatChunk::empty(profile)))
    }

    /// Whether the chunk has any data in its current staged form.
    pub(crate) fn has(&self, chunk: u64) -> Result<bool, StoreError> {
        match self.flats.get(&chunk) {
            Some(flat) => Ok(flat.is_some()),
            None => Ok(self.store.chunk(self.id, chunk)?.is_some()),
        }
    }

    pub(crate) fn slot(&mut self, block: u64) -> Result<BlockSlot, StoreError> {
        Ok(self.flat(block / CHUNK_BLOCKS)?.slot(block % CHUNK_BLOCKS))
    }

    /// Replaces a chunk, which was unmapped before.
    pub(crate) fn replace(&mut self, number: u64, chunk: Arc<Chunk>) {
        self.flats.remove(&number);
        self.changes.push((chunk_key(self.id, number), Some(RecordValue::Chunk(chunk))));
    }

    /// Allocates blocks from the free map; they are freed if the stage is dropped. `growth`:
    /// maximum growth of the used blocks.
    pub(crate) fn take(
        &mut self,
        growth: u64,
        need: u64,
        hint: Option<u64>,
    ) -> Result<Vec<BlockRun>, BlockShortage> {
        let mut rounds = ROUNDS_MAX;
        let runs = loop {
            let taken = self.store.space.lock().take(growth, need, hint);
            match taken {
                Err(BlockShortage::Unbacked(least)) if rounds > 0 && self.store.back(least, growth == 0) => {
                    rounds -= 1
                }
                taken => break taken?,
            }
        };
        self.taken.extend_from_slice(&runs);
        self.reserved += growth;
        Ok(runs)
    }

    /// Like `take`, for one inline block of this many bytes; `None` if there is no space for it.
    pub(crate) fn take_inline(&mut self, growth: u64, length: u64) -> Result<Option<u64>, BlockShortage> {
        let location = self.store.space.lock().take_inline(growth, length)?;
        if let Some(location) = location {
            self.taken.push(BlockRun { location, count: 1 });
            self.reserved += growth;
        }
        Ok(location)
    }

    /// Releases a block's old location. `gone`: the block becomes a hole, rather than moves.
    pub(crate) fn release_block(&mut self, slot: BlockSlot, gone: bool) {
        if let Some(location) = slot.location() {
            if slot.born == self.open {
                BlockRun::push(&mut self.reusable, BlockRun { location, count: 1 });
            } else {
                BlockRun::push(&mut self.dropped, BlockRun { location, count: 1 });
            }
            self.shrunk += u64::from(gone);
        }
    }

    /// Counts blocks that the object gained and lost.
    pub(crate) fn count(&mut self, more: u64, less: u64) {
        self.grown += more;
        self.shrunk += less;
    }

    /// Returns how many of these blocks other objects refer to, too.
    pub(crate) fn shared(&self, slots: &[BlockSlot]) -> u64 {
        let space = self.store.space.lock();
        if space.shares().is_empty() {
            return 0;
        }
        let shared =
            |slot: &&BlockSlot| slot.location().is_some_and(|location| space.shares().contains(location));
        slots.iter().filter(shared).count() as u64
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
        let before = (is_old && self.wants_before()).then(|| bytes.clone());
        bytes[within..within + data.len()].copy_from_slice(data);
        Ok(PartialBlock { block, bytes, before })
    }

    fn source<'d>(&mut self, offset: u64, data: &'d [u8]) -> Result<WriteSource<'d>, StoreError> {
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

    /// Allocates a location for each block.
    fn allocate_locations(&mut self, blocks: Range<u64>) -> Result<Vec<BlockSpan>, StageError> {
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
    fn put(
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

    /// Zeroes the mapped bytes from `offset` to `end`; whole blocks become holes.
    pub(crate) fn zero(&mut self, offset: u64, end: u64) -> Result<(), StageError> {
        let whole = offset.div_ceil(BLOCK)..end / BLOCK;
        let edges = if whole.start > whole.end {
            [offset..end, 0..0]
        } else {
            [offset..whole.start * BLOCK, whole.end * BLOCK..end]
        };
        let zeros = [0; BLOCK as usize];
        let mut pieces = Vec::with_capacity(2);
        for edge in edges {
            let block = edge.start / BLOCK;
            if edge.start < edge.end && self.slot(block)?.location().is_some() {
                let source = self.source(edge.start, &zeros[..(edge.end - edge.start) as usize])?;
                pieces.push((source, self.allocate_locations(block..block + 1)?));
            }
        }
        self.unmap(whole)?;
        self.put(&pieces, &PreparedData::default())?;
        self.touch(offset);
        self.touch(end.saturating_sub(1));
        Ok(())
    }

    /// Makes blocks holes.
    pub(crate) fn unmap(&mut self, blocks: Range<u64>) -> Result<(), StageError> {
        if blocks.start >= blocks.end {
            return Ok(());
        }
        let last = (blocks.end - 1) / CHUNK_BLOCKS;
        let mut next = Some(blocks.start / CHUNK_BLOCKS);
        while let Some(first) = next {
            let range = chunk_key(self.id, first)..=chunk_key(self.id, last);
            let found = self.store.index.scan(range, WALK)?;
            next = match found.last() {
                Some((key, _)) if found.len() == WALK && chunk_of(key) < last => Some(chunk_of(key) + 1),
                _ => None,
            };
            for (key, value) in found {
                self.unmap_in(chunk_of(&key), value, &blocks)?;
            }
        }
        Ok(())
    }

    /// Makes those blocks of one chunk holes that lie in `blocks`.
    fn unmap_in(
        &mut self,
        number: u64,
        value: Result<RecordValue, CorruptRecord>,
        blocks: &Range<u64>,
    ) -> Result<(), StageError> {
        let base = number * CHUNK_BLOCKS;
        let inner = blocks.start.max(base) - base..blocks.end.min(base + CHUNK_BLOCKS) - base;
        let all = inner == (0..CHUNK_BLOCKS);
        let mut flat = match (self.flats.remove(&number), value) {
            (Some(Some(flat)), _) => flat,
            (Some(None), _) => FlatChunk::empty(self.profile),
            (None, Ok(RecordValue::Chunk(chunk))) => FlatChunk::of(&chunk, self.profile),
            // The mapping of a corrupt record is unknown. It can be dropped as a whole, or with all
            // data that the object has there. Its blocks become free at the next open.
            (None, _) if all || (blocks.start <= base && blocks.end * BLOCK >= self.record.length) => {
                // Its number of blocks is unknown: the others are counted again.
                self.record.blocks = self.store.sound_blocks(self.id)?;
                self.flats.insert(number, None);
                return Ok(());
            }
            (None, _) => return Err(StoreError::IndexDamaged { object: self.id }.into()),
        };
        for block in inner {
            let old = flat.unmap(block);
            self.release_block(old, true);
        }
        self.flats.insert(number, (!all).then_some(flat));
        Ok(())
    }

    /// Puts all changes into the open group and the write log; without the object's own record if
    /// it is removed.
    pub(crate) fn finish(mut self, removed: bool) -> AnswerWait {
        self.refresh();
        let mut patches = Vec::new();
        for (number, flat) in std::mem::take(&mut self.flats) {
            let key = chunk_key(self.id, number);
            let value =
                flat.as_ref().and_then(|flat| flat.compact(self.store.segments.blocks_each, self.open));
            patches.extend(flat.filter(|_| value.is_some()).map(|flat| (key, flat.patch())));
            self.changes.push((key, value.map(|chunk| RecordValue::Chunk(chunk.into()))));
        }
        self.record.blocks = (self.record.blocks + self.grown).saturating_sub(self.shrunk);
        self.sum_up(removed);
        let record = (!removed).then_some(RecordValue::Object(self.record));
        self.changes.push((object_key(self.id), record));
        let total = |runs: &[BlockRun]| runs.iter().map(|run| run.count).sum();
        let turnover = BlockTurnover {
            taken: total(&self.taken),
            reserved: self.reserved,
            newly_shared: std::mem::take(&mut self.newly_shared),
            dropped: std::mem::take(&mut self.dropped),
            reusable: total(&self.reusable),
        };
        let freed = self.store.space.lock().turn_over(&turnover);
        // Inline blocks are in the index: their replacement is committed together with their
        // removal.
        let (gone, freed): (Vec<BlockRun>, Vec<BlockRun>) =
            freed.into_iter().partition(|run| is_inline(run.location));
        self.reusable.extend(gone);
        let written = self.inline_records();
        if !written.is_empty() {
            let mut space = self.store.space.lock();
            written.iter().for_each(|(location, length)| space.inline.set(*location, *length));
        }
        self.finished = true;
        let (changes, reusable) = (std::mem::take(&mut self.changes), std::mem::take(&mut self.reusable));
        self.store.apply(changes, &patches, &freed, reusable)
    }
}

impl Drop for StagedChanges<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.store.space.lock().give_back(&self.taken, self.reserved);
        }
    }
}

/// Maps the error of a failed write of new data: a full file system means no space to the caller.
pub(crate) fn write_error(source: io::Error) -> StoreError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::NoSpace,
        _ => StoreError::Io { doing: "writing data", source },
    }
}
