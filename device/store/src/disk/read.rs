//! Reads an object's extents from the medium into the caller's buffer, and compares each block with
//! its checksum.
//!
//! Does: one call to the medium per extent (up to a slice that fits the CPU's cache), without
//! copies except for partial blocks.
//! Contract: the caller holds the object's lock. The result is the bytes written, or `Damaged`.
//! Blocks that the caller marks [`UncheckedBlocks`] are not compared, because the receiver compares
//! them.

use std::io::{ErrorKind, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use sealstone_osd::ObjectId;

use super::DiskStore;
use super::chunk::{CHUNK_BLOCKS, Chunk};
use super::pool::is_inline;
use super::record::{CorruptRecord, RecordValue, chunk_key};
use crate::damage::{Damage, DamageKind};
use crate::{BLOCK, StoreError};

/// Number of blocks read and checked at a time: it fits the CPU's second-level cache, so that the
/// checksum finds them there.
pub(crate) const SLICE_BLOCKS: u64 = 64;
/// A block's buffer.
pub(crate) type Block = [u8; BLOCK as usize];

/// Blocks of a chunk that are not compared with their checksums: the receiver compares their bytes
/// with digests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UncheckedBlocks([u64; (CHUNK_BLOCKS / 64) as usize]);

impl UncheckedBlocks {
    /// No block: all are compared.
    pub(crate) const NONE: Self = Self([0; (CHUNK_BLOCKS / 64) as usize]);

    /// Adds blocks, numbered within the chunk.
    pub(crate) fn add(&mut self, blocks: Range<u64>) {
        for block in blocks {
            self.0[(block / 64) as usize] |= 1 << (block % 64);
        }
    }

    fn has(&self, block: u64) -> bool {
        self.0.get((block / 64) as usize).is_some_and(|word| word >> (block % 64) & 1 == 1)
    }
}

/// The checksums of an extent, and which of its blocks are compared with them.
#[derive(Clone, Copy)]
struct ExtentSums<'a> {
    sums: &'a [u32],
    unchecked: &'a UncheckedBlocks,
    /// The extent's first block in the chunk.
    first: u64,
}

impl<'a> ExtentSums<'a> {
    fn all(sums: &'a [u32]) -> Self {
        Self { sums, unchecked: &UncheckedBlocks::NONE, first: 0 }
    }

    fn check(&self, block: u64, bytes: &[u8]) -> Result<(), BadRead> {
        let right =
            self.unchecked.has(self.first + block) || crate::crc::crc32c(bytes) == self.sums[block as usize];
        if right { Ok(()) } else { Err(BadRead::Sum(block)) }
    }
}

impl DiskStore {
    /// Returns a chunk of an object, `None` if it is a hole.
    pub(crate) fn chunk(&self, id: ObjectId, chunk: u64) -> Result<Option<Arc<Chunk>>, StoreError> {
        let key = chunk_key(id, chunk);
        match self.index.get(&key)? {
            None => self.check_absence(&key).map(|()| None),
            Some(Ok(RecordValue::Chunk(chunk))) => Ok(Some(chunk)),
            Some(Ok(_) | Err(CorruptRecord)) => Err(StoreError::IndexDamaged { object: id }),
        }
    }

    /// Reads with all checks; returns the number of bytes read and the object's length.
    pub(crate) fn read_whole(
        &self,
        id: ObjectId,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(usize, u64), StoreError> {
        let _lock = self.lock(id).read();
        let length = self.record(id)?.length;
        let count = length.saturating_sub(offset).min(into.len() as u64) as usize;
        self.read_range(id, offset, &mut into[..count]).map_err(|error| within(error, length))?;
        Ok((count, length))
    }

    /// Fills `into` from `offset`, all of it within the object.
    pub(crate) fn read_range(&self, id: ObjectId, offset: u64, into: &mut [u8]) -> Result<(), StoreError> {
        self.read_range_with(id, offset, into, |_, _| UncheckedBlocks::NONE)
    }

    /// Like `read_range`; `unchecked` receives each chunk with its number, in order, and returns
    /// the blocks that are not compared.
    pub(crate) fn read_range_with(
        &self,
        id: ObjectId,
        offset: u64,
        into: &mut [u8],
        mut unchecked: impl FnMut(u64, Option<&Chunk>) -> UncheckedBlocks,
    ) -> Result<(), StoreError> {
        let end = offset + into.len() as u64;
        let mut at = offset;
        // Everything up to `at` is filled.
        while at < end {
            let number = at / BLOCK / CHUNK_BLOCKS;
            let base = number * CHUNK_BLOCKS * BLOCK;
            let stop = end.min(base + CHUNK_BLOCKS * BLOCK);
            let chunk = self.chunk(id, number)?;
            let unchecked = unchecked(number, chunk.as_deref());
            if let Some(chunk) = chunk {
                for (extent, sums) in chunk.extents() {
                    let start = base + u64::from(extent.first) * BLOCK;
                    let (from, to) = (at.max(start), stop.min(start + u64::from(extent.count) * BLOCK));
                    if from >= to {
                        continue;
                    }
                    into[(at - offset) as usize..(from - offset) as usize].fill(0);
                    let target = &mut into[(from - offset) as usize..(to - offset) as usize];
                    let sums = ExtentSums { sums, unchecked: &unchecked, first: extent.first.into() };
                    self.read_extent(extent.location, sums, from - start, target)
                        .map_err(|fail| self.bad_read(fail, id, start))?;
                    at = to;
                }
            }
            into[(at - offset) as usize..(stop - offset) as usize].fill(0);
            at = stop;
        }
        Ok(())
    }

    /// Fills `into` from byte `from` of an extent.
    fn read_extent(
        &self,
        location: u64,
        sums: ExtentSums<'_>,
        from: u64,
        into: &mut [u8],
    ) -> Result<(), BadRead> {
        let mut from = from;
        let mut into = into;
        while !into.is_empty() {
            let slice_end = (from / BLOCK + SLICE_BLOCKS) * BLOCK;
            let length = ((slice_end - from) as usize).min(into.len());
            let (part, rest) = into.split_at_mut(length);
            match self.read_with(location, sums, from, part) {
                // Find the block that failed: the others may be readable.
                Err(BadRead::Io(..)) if part.len() > BLOCK as usize => {
                    self.read_by_blocks(location, sums, from, part)?;
                }
                result => result?,
            }
            from += length as u64;
            into = rest;
        }
        Ok(())
    }

    /// Like `read_extent`, block by block.
    fn read_by_blocks(
        &self,
        location: u64,
        sums: ExtentSums<'_>,
        from: u64,
        into: &mut [u8],
    ) -> Result<(), BadRead> {
        let mut from = from;
        let mut into = into;
        while !into.is_empty() {
            let length = ((BLOCK - from % BLOCK) as usize).min(into.len());
            let (part, rest) = into.split_at_mut(length);
            self.read_with(location, sums, from, part)?;
            from += length as u64;
            into = rest;
        }
        Ok(())
    }

    /// Like `read_extent`, in one call to the medium, with every block checked.
    pub(crate) fn read_slice(
        &self,
        location: u64,
        sums: &[u32],
        from: u64,
        into: &mut [u8],
    ) -> Result<(), BadRead> {
        self.read_with(location, ExtentSums::all(sums), from, into)
    }

    /// Like `read_extent`, in one call to the medium.
    fn read_with(
        &self,
        location: u64,
        sums: ExtentSums<'_>,
        from: u64,
        into: &mut [u8],
    ) -> Result<(), BadRead> {
        if is_inline(location) {
            return self.read_inline(location, sums.sums, from, into);
        }
        let to = from + into.len() as u64;
        let first = from / BLOCK;
        let lead = (from % BLOCK) as usize;
        let trail = (to % BLOCK) as usize;
        let io = |error| BadRead::Io(error, first);
        let check = |block: u64, bytes: &[u8]| sums.check(block, bytes);
        if lead == 0 && trail == 0 {
            self.segments.read(location + first, &mut [IoSliceMut::new(into)]).map_err(io)?;
            return into
                .chunks_exact(BLOCK as usize)
                .zip(first..)
                .try_for_each(|(bytes, block)| check(block, bytes));
        }
        let mut head: Block = [0; BLOCK as usize];
        let last = to / BLOCK;
        if first == last {
            self.segments.read(location + first, &mut [IoSliceMut::new(&mut head)]).map_err(io)?;
            check(first, &head)?;
            into.copy_from_slice(&head[lead..trail]);
            return Ok(());
        }
        let mut tail: Block = [0; BLOCK as usize];
        let length = into.len();
        let (head_part, rest) = into.split_at_mut(if lead == 0 { 0 } else { BLOCK as usize - lead });
        let (middle, tail_part) = rest.split_at_mut(length - head_part.len() - trail);
        {
            let mut parts: [IoSliceMut<'_>; 3] = [
                IoSliceMut::new(if lead == 0 { &mut [] } else { &mut head }),
                IoSliceMut::new(middle),
                IoSliceMut::new(if trail == 0 { &mut [] } else { &mut tail }),
            ];
            self.segments.read(location + first, &mut parts).map_err(io)?;
        }
        if lead != 0 {
            check(first, &head)?;
            head_part.copy_from_slice(&head[lead..]);
        }
        let whole = first + u64::from(lead != 0);
        middle
            .chunks_exact(BLOCK as usize)
            .zip(whole..)
            .try_for_each(|(bytes, block)| check(block, bytes))?;
        if trail != 0 {
            check(last, &tail)?;
            tail_part.copy_from_slice(&tail[..trail]);
        }
        Ok(())
    }

    /// Reads and checks consecutive whole blocks; `None` if any cannot be read or is damaged.
    pub(crate) fn read_sound(&self, location: u64, sums: &[u32], into: &mut [u8]) -> Option<()> {
        self.read_slice(location, sums, 0, into).ok()
    }

    /// Reads and checks one whole block by its location. `block` is its number in the object, for
    /// the error.
    pub(crate) fn read_block(
        &self,
        id: ObjectId,
        block: u64,
        location: u64,
        sum: u32,
    ) -> Result<Block, StoreError> {
        let mut bytes: Block = [0; BLOCK as usize];
        self.read_slice(location, &[sum], 0, &mut bytes)
            .map_err(|fail| self.bad_read(fail, id, block * BLOCK))?;
        Ok(bytes)
    }

    /// Returns the error for an extent that starts at `start` of object `id`, and records the
    /// damage.
    fn bad_read(&self, fail: BadRead, object: ObjectId, start: u64) -> StoreError {
        let (kind, block, source) = match fail {
            BadRead::Sum(block) => (DamageKind::Data, block, None),
            BadRead::Io(source, block) => (DamageKind::Unreadable, block, Some(source)),
        };
        let (offset, length) = (start + block * BLOCK, BLOCK);
        self.note(Damage { object, kind, offset, length });
        // A missing or short file is a permanent error.
        let is_missing = |kind| matches!(kind, ErrorKind::NotFound | ErrorKind::UnexpectedEof);
        match source {
            Some(source) if !is_missing(source.kind()) => StoreError::Io { doing: "reading data", source },
            _ => StoreError::Damaged { object, offset, length },
        }
    }
}

/// Limits the reported damage to the object's `length` bytes.
pub(crate) fn within(error: StoreError, length: u64) -> StoreError {
    match error {
        StoreError::Damaged { object, offset, length: block } => {
            StoreError::Damaged { object, offset, length: block.min(length.saturating_sub(offset)) }
        }
        error => error,
    }
}

/// Why an extent could not be read.
pub(crate) enum BadRead {
    /// The medium failed at this block of the extent.
    Io(std::io::Error, u64),
    /// The checksum of this block of the extent is wrong.
    Sum(u64),
}
