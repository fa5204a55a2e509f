//! Removes a range from the middle of an object.
//!
//! Does: moves extents if offset and gap are whole blocks (nothing is copied); otherwise rewrites
//! the tail.
//! Costs: O(chunks of the tail); unaligned, also its bytes, and free space for all of it at once.

use std::ops::Range;
use std::sync::Arc;

use sealstone_digest::DigestValue as Digest;

use super::chunk::{BlockSlot, CHUNK_BLOCKS, Chunk, FlatChunk};
use super::pool::is_inline;
use super::record::{CorruptRecord, RecordValue, chunk_key, chunk_of};
use super::space::BlockRun;
use super::stage::{StageError, StagedChanges, WALK};
use super::write::write_error;
use crate::{BLOCK, StoreError};

/// Number of blocks written at a time.
const PIECE_BLOCKS: u64 = 256;

/// Builds new chunks in ascending order and compacts them one by one.
#[derive(Default)]
struct ChunkBuilder {
    current: Option<(u64, FlatChunk)>,
    chunks: Vec<(u64, RecordValue)>,
    /// The first chunk with the digests that it keeps: those of units before the removed range. The
    /// others become unknown, since a BLAKE3 value is bound to its offset.
    kept: Option<(u64, Vec<(u32, Digest)>)>,
}

impl ChunkBuilder {
    fn push(&mut self, stage: &StagedChanges<'_>, block: u64, slot: BlockSlot) {
        let number = block / CHUNK_BLOCKS;
        if self.current.as_ref().is_none_or(|(current, _)| *current != number) {
            self.close(stage);
            self.current = Some((number, FlatChunk::empty(stage.profile)));
        }
        if let Some((_, flat)) = &mut self.current {
            flat.set(block % CHUNK_BLOCKS, slot);
        }
    }

    fn close(&mut self, stage: &StagedChanges<'_>) {
        let Some((number, mut flat)) = self.current.take() else { return };
        for (unit, value) in self.kept.iter().filter(|(kept, _)| *kept == number).flat_map(|(_, kept)| kept) {
            flat.set_digest(*unit, value);
        }
        if let Some(chunk) = flat.compact(stage.store.segments.blocks_each, stage.open) {
            self.chunks.push((number, RecordValue::Chunk(chunk.into())));
        }
    }
}

impl StagedChanges<'_> {
    /// Removes `gap` bytes at `offset`; `offset + gap` is less than the length. Nothing else was
    /// staged.
    pub(crate) fn punch(&mut self, offset: u64, gap: u64) -> Result<(), StageError> {
        let first_chunk = offset / BLOCK / CHUNK_BLOCKS;
        let mut old_chunks = Vec::new();
        let mut builder =
            ChunkBuilder { kept: self.digests_before(first_chunk, offset)?, ..ChunkBuilder::default() };
        if offset.is_multiple_of(BLOCK) && gap.is_multiple_of(BLOCK) {
            let (from, to) = (offset / BLOCK, (offset + gap) / BLOCK);
            self.walk(
                first_chunk,
                |stage, block, slot| {
                    match block {
                        _ if block < from => builder.push(stage, block, slot),
                        _ if block < to => stage.release_block(slot, true),
                        _ => builder.push(stage, block - (to - from), slot),
                    }
                    Ok(())
                },
                &mut old_chunks,
            )?;
        } else {
            let mut runs: Vec<Range<u64>> = Vec::new();
            let mut left = Vec::new();
            let new_end = (self.record.length - gap).div_ceil(BLOCK);
            self.walk(
                first_chunk,
                |stage, block, slot| {
                    if block < offset / BLOCK {
                        builder.push(stage, block, slot);
                        return Ok(());
                    }
                    left.push(slot);
                    stage.release_block(slot, false);
                    for target in targets(block, offset, gap, new_end).into_iter().flatten() {
                        match runs.last_mut() {
                            Some(run) if target < run.end => {}
                            Some(run) if run.end == target => run.end += 1,
                            _ => runs.push(target..target + 1),
                        }
                    }
                    Ok(())
                },
                &mut old_chunks,
            )?;
            self.rewrite(&runs, &left, offset, gap, &mut builder)?;
        }
        builder.close(self);
        for number in old_chunks {
            self.changes.push((chunk_key(self.id, number), None));
        }
        for (number, value) in builder.chunks {
            self.changes.push((chunk_key(self.id, number), Some(value)));
        }
        self.record.length -= gap;
        Ok(())
    }

    /// Returns the digests of a chunk's units that end at or before `offset`.
    fn digests_before(
        &self,
        chunk: u64,
        offset: u64,
    ) -> Result<Option<(u64, Vec<(u32, Digest)>)>, StageError> {
        let Some(profile) = self.profile else { return Ok(None) };
        let found = self.store.chunk(self.id, chunk)?;
        let end = |unit: u32| chunk * CHUNK_BLOCKS * BLOCK + u64::from(unit + 1) * profile.unit_bytes();
        let before = |chunk: Arc<Chunk>| {
            chunk.digests().iter(profile).filter(|(unit, _)| end(*unit) <= offset).collect()
        };
        Ok(found.map(|found| (chunk, before(found))))
    }

    /// Visits each mapped block from a chunk on, and records the chunks.
    fn walk(
        &mut self,
        first: u64,
        mut visit: impl FnMut(&mut Self, u64, BlockSlot) -> Result<(), StageError>,
        chunks: &mut Vec<u64>,
    ) -> Result<(), StageError> {
        let mut next = Some(first);
        while let Some(from) = next {
            let range = chunk_key(self.id, from)..=chunk_key(self.id, u64::MAX);
            let found = self.store.index.scan(range, WALK)?;
            next = found.last().filter(|_| found.len() == WALK).map(|(key, _)| chunk_of(key) + 1);
            for (key, value) in found {
                let number = chunk_of(&key);
                let chunk = match value {
                    Ok(RecordValue::Chunk(chunk)) => chunk,
                    Ok(_) | Err(CorruptRecord) => {
                        return Err(StoreError::IndexDamaged { object: self.id }.into());
                    }
                };
                chunks.push(number);
                for (extent, sums) in chunk.extents() {
                    let first = number * CHUNK_BLOCKS + u64::from(extent.first);
                    for ((block, location), &sum) in (first..).zip(extent.location..).zip(sums) {
                        visit(self, block, BlockSlot::new(location, extent.born, sum))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes the blocks `runs` of the resulting object, read from the unchanged object; `left` are
    /// the old blocks.
    fn rewrite(
        &mut self,
        runs: &[Range<u64>],
        left: &[BlockSlot],
        offset: u64,
        gap: u64,
        builder: &mut ChunkBuilder,
    ) -> Result<(), StageError> {
        let after: u64 = runs.iter().map(|run| run.end - run.start).sum();
        let (before, shared) = (left.len() as u64, self.shared(left));
        let length = self.record.length - gap;
        let growth = after.saturating_sub(before - shared);
        let inline = match after == 1 && self.may_be_inline(length) {
            true => self.take_inline(growth, length)?.map(|location| vec![BlockRun { location, count: 1 }]),
            false => None,
        };
        let mut locations = inline.map_or_else(|| self.take(growth, after, None), Ok)?.into_iter();
        self.count(after, before);
        let mut left = BlockRun { location: 0, count: 0 };
        let mut buffer = Vec::new();
        for run in runs {
            let mut block = run.start;
            while block < run.end {
                if left.count == 0 {
                    left = locations.next().expect("as many blocks were taken as are needed");
                }
                let count = left.count.min(run.end - block).min(PIECE_BLOCKS);
                buffer.clear();
                buffer.resize((count * BLOCK) as usize, 0);
                let (start, end) = (block * BLOCK, ((block + count) * BLOCK).min(length));
                let (kept, moved) = buffer[..(end - start) as usize]
                    .split_at_mut((offset.clamp(start, end) - start) as usize);
                self.store.read_range(self.id, start, kept)?;
                self.store.read_range(self.id, start.max(offset) + gap, moved)?;
                if is_inline(left.location) {
                    self.put_inline(left.location, &buffer);
                } else {
                    self.store
                        .segments
                        .write(left.location, &[std::io::IoSlice::new(&buffer)])
                        .map_err(write_error)?;
                    self.store.groups.wrote(count * BLOCK);
                }
                for ((bytes, block), location) in
                    buffer.chunks_exact(BLOCK as usize).zip(block..).zip(left.location..)
                {
                    builder.push(self, block, BlockSlot::new(location, self.open, crate::crc::crc32c(bytes)));
                }
                left = BlockRun { location: left.location + count, count: left.count - count };
                block += count;
            }
        }
        Ok(())
    }
}

/// Returns the blocks of the resulting object that bytes of the old `block` move to, ascending.
fn targets(block: u64, offset: u64, gap: u64, new_end: u64) -> [Option<u64>; 3] {
    let (start, end) = (block * BLOCK, (block + 1) * BLOCK);
    let stays = (start < offset).then_some(block);
    let moved = start.max(offset + gap)..end;
    let (mut first, mut last) = (None, None);
    if moved.start < moved.end {
        first = Some((moved.start - gap) / BLOCK).filter(|target| *target < new_end);
        last =
            Some((moved.end - 1 - gap) / BLOCK).filter(|target| *target < new_end && Some(*target) != first);
    }
    [stays, first.filter(|target| Some(*target) != stays), last]
}
