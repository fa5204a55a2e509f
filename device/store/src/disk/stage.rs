//! One operation's changes to one object, staged until they enter the open group together.
//!
//! Does: takes free blocks, unmaps blocks, collects new chunks and freed blocks; undoes everything
//! if dropped.
//! Does not: write data; [`write`](super::write) does.
//! Contract: data is written to free blocks only, never to one that a commit or a record of the
//! write log refers to. Blocks allocated in the same open group become free when the record that
//! releases them is written. Bytes of a block beyond the object's end are zero.

use std::collections::{BTreeMap, BTreeSet};
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

/// Returns the error of an operation that stopped, after a commit if it needed one.
pub(crate) fn stop_error(stop: StageError) -> StoreError {
    match stop {
        StageError::Error(error) => error,
        StageError::NeedsCommit => StoreError::NoSpace,
    }
}
