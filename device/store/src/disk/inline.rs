//! Small objects in the index: the bytes of a first block in a record of their own instead of a
//! block on the medium.
//!
//! Does: chooses which blocks are stored there; writes, reads and finds their records. An inline
//! block has a number in place of a block location, and is shared, counted and released like any
//! other. It counts as one block of the capacity, so that it can be moved out of the index at any
//! time.
//! Contract: the bytes of a number change only where one object refers to it, in the step that
//! changes its checksum.
//! Source of truth: docs/design/store.md, "Small objects".

use std::io;
use std::sync::Arc;

use sealstone_redb_format::{CursorStep, LostKeys, TreeCursor, TreeReader};

use super::pool::{InlinePool, is_inline, number_of};
use super::read::{BadRead, Block};
use super::record::{CorruptRecord, RecordValue, all_inline, inline_key, inline_length, sub_of};
use super::stage::{StageError, StagedChanges};
use super::superblock::Superblock;
use super::survey::{ClaimOutcome, among};
use super::write::BlockSpan;
use super::{DiskStore, MAX_INLINE};
use crate::medium::Medium;
use crate::{BLOCK, StoreError};

/// Divisor of the capacity for the index bytes of inline blocks: where the index grows with its
/// file system,
const SHARE: u64 = 16;
/// and where the index has a fixed space, a 16th of the device. The engine's pages are not all
/// full, and attributes and records of other objects need space, too.
const SHARE_BOUNDED: u64 = 64;

/// Returns how much of the index inline blocks may take, in bytes.
pub(crate) fn share(medium: &dyn Medium, superblock: &Superblock) -> u64 {
    let part = if medium.has_bounded_index() { SHARE_BOUNDED } else { SHARE };
    superblock.capacity_blocks * BLOCK / part
}

impl StagedChanges<'_> {
    /// Whether an object of this length is kept in the index.
    pub(crate) fn may_be_inline(&self, length: u64) -> bool {
        length <= self.store.options.inline_max.min(MAX_INLINE)
    }

    /// Returns an inline location for the first block, if the object is small and there is space.
    pub(crate) fn place_inline(&mut self) -> Result<Option<BlockSpan>, StageError> {
        let length = self.record.length;
        if !self.may_be_inline(length) {
            return Ok(None);
        }
        let slot = self.slot(0)?;
        let shared = self.shared(&[slot]);
        if let Some(location) = slot.location().filter(|location| shared == 0 && is_inline(*location))
            && self.store.space.lock().inline.fits(Some(location), length)
        {
            return Ok(Some(BlockSpan { blocks: 0..1, location, in_place: true }));
        }
        let hole = u64::from(slot.location().is_none());
        let Some(location) = self.take_inline(hole + shared, length)? else { return Ok(None) };
        self.count(hole, 0);
        Ok(Some(BlockSpan { blocks: 0..1, location, in_place: false }))
    }

    /// Sets the bytes of an inline block.
    pub(crate) fn put_inline(&mut self, location: u64, block: &[u8]) {
        let end = block.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        self.inline.insert(location, block[..end].into());
    }

    /// Returns all bytes of a mapped block, including the changes staged so far.
    pub(crate) fn block_at(&self, block: u64, location: u64, sum: u32) -> Result<Block, StoreError> {
        match self.inline.get(&location) {
            Some(bytes) => Ok(padded(bytes)),
            None => self.store.read_block(self.id, block, location, sum),
        }
    }

    /// Adds the records of inline blocks to the changes: new records for written ones, removals for
    /// released ones. Returns the written ones, with their lengths.
    pub(crate) fn inline_records(&mut self) -> Vec<(u64, usize)> {
        for run in self.reusable.iter().filter(|run| is_inline(run.location)) {
            for location in run.location..run.location + run.count {
                self.inline.remove(&location);
                self.changes.push((inline_key(location), None));
            }
        }
        let written = std::mem::take(&mut self.inline);
        let lengths = written.iter().map(|(location, bytes)| (*location, bytes.len())).collect();
        let records = written
            .into_iter()
            .map(|(location, bytes)| (inline_key(location), Some(RecordValue::Inline(bytes))));
        self.changes.extend(records);
        lengths
    }
}

/// Returns a block that begins with these bytes.
fn padded(bytes: &[u8]) -> Block {
    let mut block = [0; BLOCK as usize];
    block[..bytes.len()].copy_from_slice(bytes);
    block
}

impl DiskStore {
    /// Like `read_slice`, for an inline block.
    pub(crate) fn read_inline(
        &self,
        location: u64,
        sums: &[u32],
        from: u64,
        into: &mut [u8],
    ) -> Result<(), BadRead> {
        let found =
            self.index.get(&inline_key(location)).map_err(|error| BadRead::Io(io::Error::other(error), 0))?;
        let bytes: Arc<[u8]> = match found {
            Some(Ok(RecordValue::Inline(bytes))) => bytes,
            Some(Ok(_) | Err(CorruptRecord)) | None => return Err(BadRead::Sum(0)),
        };
        let block = padded(&bytes);
        if crate::crc::crc32c(&block) != sums[0] {
            return Err(BadRead::Sum(0));
        }
        into.copy_from_slice(&block[from as usize..][..into.len()]);
        Ok(())
    }
}

/// The records of inline blocks, as found by the walk at open.
pub(crate) struct InlineRecords {
    /// By number: 0 if there is no record, 1 if it is corrupt, else the length of its bytes plus 2.
    found: Vec<u16>,
    /// Keys that could not be read.
    lost: Vec<LostKeys>,
}

impl InlineRecords {
    /// Walks over all records of inline blocks, of which there are at most `numbers_max`.
    pub(crate) fn survey(reader: &TreeReader, numbers_max: u64) -> Self {
        let (first, last) = all_inline();
        let (mut found, mut lost) = (Vec::new(), Vec::new());
        let mut cursor = TreeCursor::new(reader, first, last);
        while let Some(step) = cursor.current() {
            match step {
                CursorStep::Lost(piece) => lost.push(piece),
                CursorStep::Record(key, value) => {
                    let number = sub_of(key);
                    if number < numbers_max {
                        if found.len() as u64 <= number {
                            found.resize(number as usize + 1, 0);
                        }
                        found[number as usize] = inline_length(key, value).map_or(1, |length| length + 2);
                    }
                }
            }
            cursor.pass();
        }
        Self { found, lost }
    }

    /// Claims the record that a block refers to.
    pub(crate) fn claim(&self, location: u64, pool: &mut InlinePool) -> ClaimOutcome {
        let key = inline_key(location);
        match self.found.get(number_of(location) as usize).copied().unwrap_or(0) {
            0 if among(&self.lost, &key, &key).next().is_some() => ClaimOutcome::Lost,
            0 => ClaimOutcome::Absent,
            1 => ClaimOutcome::Lost,
            length => {
                pool.set(location, usize::from(length - 2));
                ClaimOutcome::Taken
            }
        }
    }
}
