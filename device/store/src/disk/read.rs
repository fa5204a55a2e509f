//! Reading: from extents into the caller's buffer, each block checked.
//!
//! Does: one call to the medium for each extent (up to a slice that stays in the CPU's cache), no copies but of
//! partial blocks. Contract: the caller holds the object's lock; bytes given are the bytes written, or `Damaged`.

use std::io::{ErrorKind, IoSliceMut};
use std::sync::Arc;

use sealstone_osd::ObjectId;

use super::DiskStore;
use super::chunk::{CHUNK_BLOCKS, Chunk};
use super::record::{Rotten, Value, chunk_key};
use crate::damage::{Damage, DamageKind};
use crate::{BLOCK, StoreError};

/// Blocks read and checked at a time: what fits the CPU's second-level cache, so that the checksum finds it there.
pub(crate) const SLICE_BLOCKS: u64 = 64;
/// A block's buffer.
pub(crate) type Block = [u8; BLOCK as usize];

impl DiskStore {
    /// A chunk of an object, `None` if it is a hole.
    pub(crate) fn chunk(&self, id: ObjectId, chunk: u64) -> Result<Option<Arc<Chunk>>, StoreError> {
        let key = chunk_key(id, chunk);
        match self.index.get(&key)? {
            None => self.check_absence(&key).map(|()| None),
            Some(Ok(Value::Chunk(chunk))) => Ok(Some(chunk)),
            Some(Ok(_) | Err(Rotten)) => Err(StoreError::IndexDamaged { object: id }),
        }
    }

    /// Reads, and looks at more under the same lock; gives the bytes read, the object's length, and what `more` found.
    pub(crate) fn read_locked<T>(
        &self,
        id: ObjectId,
        offset: u64,
        into: &mut [u8],
        more: impl FnOnce(usize, u64) -> Result<T, StoreError>,
    ) -> Result<((usize, u64), T), StoreError> {
        let _lock = self.lock(id).read();
        let length = self.record(id)?.length;
        let count = length.saturating_sub(offset).min(into.len() as u64) as usize;
        match self.read_range(id, offset, &mut into[..count]) {
            Ok(()) => Ok(((count, length), more(count, length)?)),
            Err(StoreError::Damaged { object, offset, length: block }) => {
                Err(StoreError::Damaged { object, offset, length: block.min(length - offset) })
            }
            Err(error) => Err(error),
        }
    }

    /// Fills `into` from `offset`, all of which lies in the object.
    pub(crate) fn read_range(&self, id: ObjectId, offset: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let end = offset + into.len() as u64;
        let mut at = offset;
        // Everything up to `at` is filled.
        while at < end {
            let number = at / BLOCK / CHUNK_BLOCKS;
            let base = number * CHUNK_BLOCKS * BLOCK;
            let stop = end.min(base + CHUNK_BLOCKS * BLOCK);
            if let Some(chunk) = self.chunk(id, number)? {
                for (extent, sums) in chunk.extents() {
                    let start = base + u64::from(extent.first) * BLOCK;
                    let (from, to) = (at.max(start), stop.min(start + u64::from(extent.count) * BLOCK));
                    if from >= to {
                        continue;
                    }
                    into[(at - offset) as usize..(from - offset) as usize].fill(0);
                    let target = &mut into[(from - offset) as usize..(to - offset) as usize];
                    self.read_extent(extent.place, sums, from - start, target)
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
    fn read_extent(&self, place: u64, sums: &[u32], from: u64, into: &mut [u8]) -> Result<(), BadRead> {
        let mut from = from;
        let mut into = into;
        while !into.is_empty() {
            let slice_end = (from / BLOCK + SLICE_BLOCKS) * BLOCK;
            let length = ((slice_end - from) as usize).min(into.len());
            let (part, rest) = into.split_at_mut(length);
            match self.read_slice(place, sums, from, part) {
                // Which block is it? The others may be read.
                Err(BadRead::Io(..)) if part.len() > BLOCK as usize => {
                    self.read_by_blocks(place, sums, from, part)?;
                }
                result => result?,
            }
            from += length as u64;
            into = rest;
        }
        Ok(())
    }

    /// As `read_extent`, block by block.
    fn read_by_blocks(&self, place: u64, sums: &[u32], from: u64, into: &mut [u8]) -> Result<(), BadRead> {
        let mut from = from;
        let mut into = into;
        while !into.is_empty() {
            let length = ((BLOCK - from % BLOCK) as usize).min(into.len());
            let (part, rest) = into.split_at_mut(length);
            self.read_slice(place, sums, from, part)?;
            from += length as u64;
            into = rest;
        }
        Ok(())
    }

    /// As `read_extent`, in one call to the medium.
    pub(crate) fn read_slice(
        &self,
        place: u64,
        sums: &[u32],
        from: u64,
        into: &mut [u8],
    ) -> Result<(), BadRead> {
        let to = from + into.len() as u64;
        let first = from / BLOCK;
        let lead = (from % BLOCK) as usize;
        let trail = (to % BLOCK) as usize;
        let io = |error| BadRead::Io(error, first);
        let check = |block: u64, bytes: &[u8]| {
            if crate::crc::crc32c(bytes) == sums[block as usize] { Ok(()) } else { Err(BadRead::Sum(block)) }
        };
        if lead == 0 && trail == 0 {
            self.segments.read(place + first, &mut [IoSliceMut::new(into)]).map_err(io)?;
            return into
                .chunks_exact(BLOCK as usize)
                .zip(first..)
                .try_for_each(|(bytes, block)| check(block, bytes));
        }
        let mut head: Block = [0; BLOCK as usize];
        let last = to / BLOCK;
        if first == last {
            self.segments.read(place + first, &mut [IoSliceMut::new(&mut head)]).map_err(io)?;
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
            self.segments.read(place + first, &mut parts).map_err(io)?;
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

    /// Whole blocks that lie together, checked; `None` if any cannot be read or is damaged.
    pub(crate) fn read_sound(&self, place: u64, sums: &[u32], into: &mut [u8]) -> Option<()> {
        self.read_slice(place, sums, 0, into).ok()
    }

    /// One whole block by its place, checked. `block` is its number in the object, for the error.
    pub(crate) fn read_block(
        &self,
        id: ObjectId,
        block: u64,
        place: u64,
        sum: u32,
    ) -> Result<Block, StoreError> {
        let mut bytes: Block = [0; BLOCK as usize];
        self.read_slice(place, &[sum], 0, &mut bytes)
            .map_err(|fail| self.bad_read(fail, id, block * BLOCK))?;
        Ok(bytes)
    }

    /// The error for an extent that starts at `start` of object `id`. It is remembered.
    fn bad_read(&self, fail: BadRead, object: ObjectId, start: u64) -> StoreError {
        let (kind, block, source) = match fail {
            BadRead::Sum(block) => (DamageKind::Data, block, None),
            BadRead::Io(source, block) => (DamageKind::Unreadable, block, Some(source)),
        };
        let (offset, length) = (start + block * BLOCK, BLOCK);
        self.note(Damage { object, kind, offset, length });
        // A file that is not there, or too short, is not so for a moment.
        let gone = |kind| matches!(kind, ErrorKind::NotFound | ErrorKind::UnexpectedEof);
        match source {
            Some(source) if !gone(source.kind()) => StoreError::Io { doing: "reading data", source },
            _ => StoreError::Damaged { object, offset, length },
        }
    }
}

/// Why an extent could not be read.
pub(crate) enum BadRead {
    /// The medium failed at this block of the extent.
    Io(std::io::Error, u64),
    /// The checksum of this block of the extent is wrong.
    Sum(u64),
}
