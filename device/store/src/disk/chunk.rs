//! A chunk: the block locations, block checksums and unit digests of 1 MiB of an object.
//!
//! Does: keeps extents in a compact form for the cache and the index, and in a flat form for
//! changes.
//! Does not: access the medium.
//! Source of truth: docs/design/store.md, "Chunk record".

use std::ops::Range;

use sealstone_digest::{DigestValue as Digest, Profile};

use super::digests::{self, PackedDigests};
use super::pool::is_inline;
use super::record::CorruptRecord;
use crate::BLOCK;

/// Blocks of one chunk.
pub(crate) const CHUNK_BLOCKS: u64 = 256;
/// Location of a block that is not mapped.
const HOLE: u64 = u64::MAX;

/// Returns a unit's chunk, and its number there.
pub(crate) fn in_chunk(profile: Profile, unit: u64) -> (u64, u32) {
    let each = CHUNK_BLOCKS * BLOCK / profile.unit_bytes();
    (unit / each, (unit % each) as u32)
}

/// Blocks that are consecutive in the chunk and on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkExtent {
    /// First block in the chunk.
    pub(crate) first: u16,
    /// Number of blocks, not 0.
    pub(crate) count: u16,
    /// First block on the medium.
    pub(crate) location: u64,
    /// The group that allocated them; 0 if it is certainly committed. Not stored.
    pub(crate) born: u64,
}

/// The compact form of a chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Sorted, not overlapping.
    extents: Box<[ChunkExtent]>,
    /// One checksum for each block of each extent, in order.
    sums: Box<[u32]>,
    digests: PackedDigests,
}

impl Chunk {
    /// Returns the known digests of its units.
    pub(crate) fn digests(&self) -> &PackedDigests {
        &self.digests
    }

    /// Returns the extents with their checksums.
    pub(crate) fn extents(&self) -> impl Iterator<Item = (ChunkExtent, &[u32])> {
        let mut sums = &self.sums[..];
        self.extents.iter().map(move |extent| {
            let (these, rest) = sums.split_at(usize::from(extent.count));
            sums = rest;
            (*extent, these)
        })
    }

    /// Returns the units whose known digest does not match their bytes, with their ranges. The
    /// chunk starts at `base` of an object of `length` bytes, and `content` is all of it; only
    /// units whose blocks are all `sound` are compared.
    pub(crate) fn wrong_digests(
        &self,
        base: u64,
        length: u64,
        content: &[u8],
        sound: impl Fn(Range<u64>) -> bool,
    ) -> Vec<Range<u64>> {
        let Some(profile) = self.digests.profile() else { return Vec::new() };
        let check = |(number, value): (u32, Digest)| {
            let start = u64::from(number) * profile.unit_bytes();
            let end = (start + profile.unit_bytes()).min(length.saturating_sub(base)).max(start);
            if !sound(start / BLOCK..end.div_ceil(BLOCK)) {
                return None;
            }
            let unit = (base + start) / profile.unit_bytes();
            let bytes = &content[start as usize..end as usize];
            let right = !bytes.is_empty() && profile.value(unit, bytes) == value;
            (!right).then(|| base + start..base + end.max(start + 1))
        };
        self.digests.iter(profile).filter_map(check).collect()
    }

    /// Returns the units that have blocks but no digest of this profile, in a chunk with `length`
    /// bytes of its object.
    pub(crate) fn unknown_units(&self, profile: Profile, length: u64) -> Vec<u32> {
        let mut mapped = [false; CHUNK_BLOCKS as usize];
        for extent in &self.extents {
            mapped[usize::from(extent.first)..][..usize::from(extent.count)].fill(true);
        }
        let end = length.div_ceil(BLOCK).min(CHUNK_BLOCKS) as usize;
        let units = mapped[..end].chunks((profile.unit_bytes() / BLOCK) as usize);
        (0..)
            .zip(units)
            .filter(|(unit, blocks)| blocks.contains(&true) && self.digests.get(profile, *unit).is_none())
            .map(|(unit, _)| unit)
            .collect()
    }

    /// Returns the chunk with all extents counted as committed: their blocks become free only with
    /// a commit.
    pub(crate) fn settled(&self) -> Self {
        let mut settled = self.clone();
        settled.extents.iter_mut().for_each(|extent| extent.born = 0);
        settled
    }

    /// Returns the memory of the tables in bytes.
    pub(crate) fn weight(&self) -> usize {
        size_of_val(&*self.extents) + size_of_val(&*self.sums) + self.digests.weight()
    }

    /// Encodes: profile, number of extents, extents (first, count, location), checksums, digests;
    /// little endian.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.digests.code());
        out.extend_from_slice(&(self.extents.len() as u16).to_le_bytes());
        for extent in &self.extents {
            out.extend_from_slice(&extent.first.to_le_bytes());
            out.extend_from_slice(&extent.count.to_le_bytes());
            out.extend_from_slice(&extent.location.to_le_bytes());
        }
        for sum in &self.sums {
            out.extend_from_slice(&sum.to_le_bytes());
        }
        self.digests.encode(out);
    }

    /// Parses the result of [`encode`](Self::encode). The caller checks locations against the
    /// medium.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, CorruptRecord> {
        let (&[profile, low, high], rest) = bytes.split_first_chunk().ok_or(CorruptRecord)?;
        let count = usize::from(u16::from_le_bytes([low, high]));
        if count > CHUNK_BLOCKS as usize {
            return Err(CorruptRecord);
        }
        let (table, rest) = rest.split_at_checked(count * 12).ok_or(CorruptRecord)?;
        let mut extents: Vec<ChunkExtent> = Vec::with_capacity(count);
        let (mut next, mut blocks) = (0, 0);
        for row in table.chunks_exact(12) {
            let number = |range: Range<usize>| row[range].iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
            let (first, length, location) = (number(0..2), number(2..4), number(4..12));
            if first < next || length == 0 || first + length > CHUNK_BLOCKS || location > HOLE - CHUNK_BLOCKS
            {
                return Err(CorruptRecord);
            }
            // An inline block is an extent of its own.
            if is_inline(location) && length != 1 {
                return Err(CorruptRecord);
            }
            next = first + length;
            blocks += length as usize;
            extents.push(ChunkExtent { first: first as u16, count: length as u16, location, born: 0 });
        }
        let (sums, digests) = rest.split_at_checked(blocks * 4).ok_or(CorruptRecord)?;
        let sums =
            sums.chunks_exact(4).map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]])).collect();
        Ok(Self { extents: extents.into(), sums, digests: PackedDigests::parse(profile, digests)? })
    }
}

/// Location of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockSlot {
    /// Block on the medium, or [`HOLE`].
    location: u64,
    /// The group that allocated it; 0 if committed.
    pub(crate) born: u64,
    /// CRC32C of the block.
    pub(crate) sum: u32,
}

impl BlockSlot {
    const HOLE: Self = Self { location: HOLE, born: 0, sum: 0 };

    pub(crate) fn new(location: u64, born: u64, sum: u32) -> Self {
        Self { location, born, sum }
    }

    /// Returns the location, if the block is mapped.
    pub(crate) fn location(&self) -> Option<u64> {
        (self.location != HOLE).then_some(self.location)
    }
}

/// The changes in a flat chunk since it was built.
#[derive(Clone, Debug, Default)]
struct ChunkChanges {
    /// Changed blocks, as a bitmap.
    blocks: [u64; CHUNK_BLOCKS as usize / 64],
    /// Units whose digest changed, as a bitmap.
    units: u128,
    /// Whether the flat form was built from a stored chunk.
    is_based: bool,
}

/// The flat form: one slot per block, and one digest per unit.
#[derive(Clone, Debug)]
pub(crate) struct FlatChunk {
    slots: Box<[BlockSlot; CHUNK_BLOCKS as usize]>,
    digests: digests::FlatDigests,
    touched: ChunkChanges,
    /// Number of extents of the chunk that it was built from.
    extents_before: usize,
}

impl PartialEq for FlatChunk {
    fn eq(&self, other: &Self) -> bool {
        self.slots == other.slots && self.digests == other.digests
    }
}

/// The changes of one chunk, encoded for the write log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkPatch {
    /// Whether it changes a stored chunk, rather than a chunk of holes.
    pub(crate) is_based: bool,
    /// Profile (1), number of runs (2), runs, number of units (1), units.
    pub(crate) bytes: Vec<u8>,
}

impl FlatChunk {
    /// Returns a chunk of holes whose digests will have this profile.
    pub(crate) fn empty(profile: Option<Profile>) -> Self {
        Self {
            slots: Box::new([BlockSlot::HOLE; CHUNK_BLOCKS as usize]),
            digests: digests::FlatDigests::empty(profile),
            touched: ChunkChanges::default(),
            extents_before: 0,
        }
    }

    /// Returns the flat form of a compact chunk, with its digests if they have this profile.
    pub(crate) fn of(chunk: &Chunk, profile: Option<Profile>) -> Self {
        let mut flat = Self::empty(None);
        for (extent, sums) in chunk.extents() {
            let slots = &mut flat.slots[usize::from(extent.first)..][..sums.len()];
            for ((slot, &sum), location) in slots.iter_mut().zip(sums).zip(extent.location..) {
                *slot = BlockSlot { location, born: extent.born, sum };
            }
        }
        flat.digests = digests::FlatDigests::of(&chunk.digests, profile);
        flat.touched.is_based = true;
        flat.extents_before = chunk.extents.len();
        flat
    }

    /// Whether the digest of a unit is known.
    pub(crate) fn has_digest(&self, unit: u32) -> bool {
        self.digests.has_digest(unit)
    }

    /// Returns the digest of a unit, if it is known.
    pub(crate) fn digest(&self, unit: u32) -> Option<Digest> {
        self.digests.get(unit)
    }

    /// Sets the digest of a unit whose blocks are all final.
    pub(crate) fn set_digest(&mut self, unit: u32, value: &Digest) {
        self.digests.set(unit, value);
        self.touched.units |= 1 << unit;
    }

    /// Clears the digest of a block's unit, whose bytes or length change.
    pub(crate) fn forget(&mut self, block: u64) {
        self.touched.units |= self.digests.forget(block);
    }

    /// Returns the slot of a block, numbered within the chunk.
    pub(crate) fn slot(&self, block: u64) -> BlockSlot {
        self.slots[block as usize]
    }

    /// Sets a slot and returns the old one. Clears the digest of its unit.
    pub(crate) fn set(&mut self, block: u64, slot: BlockSlot) -> BlockSlot {
        self.forget(block);
        self.touched.blocks[block as usize / 64] |= 1 << (block % 64);
        std::mem::replace(&mut self.slots[block as usize], slot)
    }

    /// Makes a hole; returns the old slot.
    pub(crate) fn unmap(&mut self, block: u64) -> BlockSlot {
        self.set(block, BlockSlot::HOLE)
    }

    /// Returns the compact form; `None` if all of it is a hole. Extents are split where a segment
    /// file ends (`segment_blocks`), and blocks allocated before group `open` count as committed.
    pub(crate) fn compact(&self, segment_blocks: u64, open: u64) -> Option<Chunk> {
        // A change adds two extents at most if it is in one place.
        let mut extents: Vec<ChunkExtent> = Vec::with_capacity(self.extents_before + 2);
        let mut sums = Vec::with_capacity(self.slots.iter().filter(|slot| slot.location != HOLE).count());
        // Where the segment file of the last extent ends: one division for each extent.
        let mut segment_end = 0;
        for (block, slot) in self.slots.iter().enumerate() {
            let Some(location) = slot.location() else { continue };
            let born = if slot.born == open { open } else { 0 };
            sums.push(slot.sum);
            match extents.last_mut() {
                Some(last)
                    if usize::from(last.first + last.count) == block
                        && last.location + u64::from(last.count) == location
                        && location != segment_end
                        && !is_inline(location)
                        && last.born == born =>
                {
                    last.count += 1;
                }
                _ => {
                    segment_end =
                        (location / segment_blocks).saturating_add(1).saturating_mul(segment_blocks);
                    extents.push(ChunkExtent { first: block as u16, count: 1, location, born });
                }
            }
        }
        (!extents.is_empty()).then(|| Chunk {
            extents: extents.into(),
            sums: sums.into(),
            digests: self.digests.pack(),
        })
    }
}

impl FlatChunk {
    fn is_touched(&self, block: u64) -> bool {
        self.touched.blocks[block as usize / 64] & 1 << (block % 64) != 0
    }

    /// Encodes the changes since the flat form was built.
    pub(crate) fn patch(&self) -> ChunkPatch {
        let mut bytes = vec![self.digests.code(), 0, 0];
        let mut runs = 0_u16;
        let mut block = 0;
        while block < CHUNK_BLOCKS {
            if !self.is_touched(block) {
                // Most words are unchanged as a whole.
                block += if self.touched.blocks[block as usize / 64] >> (block % 64) == 0 {
                    64 - block % 64
                } else {
                    1
                };
                continue;
            }
            let first = block;
            let location = self.slots[first as usize].location;
            let follows = |block: u64| match location {
                HOLE => HOLE,
                location => location + (block - first),
            };
            while block < CHUNK_BLOCKS
                && self.is_touched(block)
                && self.slots[block as usize].location == follows(block)
            {
                block += 1;
            }
            runs += 1;
            bytes.extend_from_slice(&(first as u16).to_le_bytes());
            bytes.extend_from_slice(&((block - first) as u16).to_le_bytes());
            bytes.extend_from_slice(&location.to_le_bytes());
            if location != HOLE {
                for slot in &self.slots[first as usize..block as usize] {
                    bytes.extend_from_slice(&slot.sum.to_le_bytes());
                }
            }
        }
        bytes[1..3].copy_from_slice(&runs.to_le_bytes());
        bytes.push(self.touched.units.count_ones() as u8);
        for unit in (0..u128::BITS).filter(|unit| self.touched.units & 1 << unit != 0) {
            let digest = self.digest(unit);
            bytes.extend_from_slice(&[unit as u8, u8::from(digest.is_some())]);
            if let Some(digest) = digest {
                bytes.extend_from_slice(digest.as_bytes());
            }
        }
        ChunkPatch { is_based: self.touched.is_based, bytes }
    }

    /// Applies a patch to `base`; returns the new chunk, which counts as committed.
    pub(crate) fn apply_patch(
        bytes: &[u8],
        base: Option<&Chunk>,
        segment_blocks: u64,
    ) -> Result<Option<Chunk>, CorruptRecord> {
        let mut rest = PatchReader(bytes);
        let profile = match rest.number(1)? as u8 {
            0 => None,
            code => {
                let profile = Profile::from_code(code).filter(|profile| profile.values() == *profile);
                Some(profile.ok_or(CorruptRecord)?)
            }
        };
        let mut flat = base.map_or_else(|| Self::empty(profile), |base| Self::of(base, profile));
        for _ in 0..rest.number(2)? {
            let (first, count, location) = (rest.number(2)?, rest.number(2)?, rest.number(8)?);
            if first + count > CHUNK_BLOCKS || (location != HOLE && location > HOLE - CHUNK_BLOCKS) {
                return Err(CorruptRecord);
            }
            for number in 0..count {
                let slot = match location {
                    HOLE => BlockSlot::HOLE,
                    location => BlockSlot::new(location + number, 0, rest.number(4)? as u32),
                };
                flat.set(first + number, slot);
            }
        }
        for _ in 0..rest.number(1)? {
            let (unit, is_known) = (rest.number(1)?, rest.number(1)? != 0);
            let profile = profile.ok_or(CorruptRecord)?;
            let first_block = unit * profile.unit_bytes() / BLOCK;
            if first_block >= CHUNK_BLOCKS {
                return Err(CorruptRecord);
            }
            if is_known {
                let value = Digest::new(rest.take(profile.value_bytes())?).ok_or(CorruptRecord)?;
                flat.set_digest(unit as u32, &value);
            } else {
                flat.forget(first_block);
            }
        }
        if rest.0.is_empty() { Ok(flat.compact(segment_blocks, u64::MAX)) } else { Err(CorruptRecord) }
    }
}

/// Bytes that are parsed front to back.
struct PatchReader<'a>(&'a [u8]);

impl<'a> PatchReader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], CorruptRecord> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(CorruptRecord)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Reads a little-endian number of this many bytes.
    fn number(&mut self, length: usize) -> Result<u64, CorruptRecord> {
        Ok(self.take(length)?.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A patch of any changes produces the same chunk from the same base.
        #[test]
        fn patches_repeat_the_changes(
            base in proptest::collection::vec((0_u64..256, 0_u64..1000, 1_u64..40, any::<u32>()), 0..6),
            changes in proptest::collection::vec((0_u64..256, 0_u64..1000, 0_u64..40, any::<u32>()), 0..6),
            code in 0_u8..5,
            units in proptest::collection::btree_map(0_u32..64, any::<Option<u8>>(), 0..9),
        ) {
            let profile = Profile::from_code(code);
            let fill = |flat: &mut FlatChunk, changes: &[(u64, u64, u64, u32)]| {
                for &(first, location, count, sum) in changes {
                    for block in first..(first + count.max(1)).min(CHUNK_BLOCKS) {
                        match count {
                            0 => flat.unmap(block),
                            _ => flat.set(block, BlockSlot::new(location + block - first, 0, sum ^ block as u32)),
                        };
                    }
                }
            };
            let mut flat = FlatChunk::empty(profile);
            fill(&mut flat, &base);
            let base = flat.compact(256, 7);
            let mut flat = base.as_ref().map_or_else(|| FlatChunk::empty(profile), |base| FlatChunk::of(base, profile));
            fill(&mut flat, &changes);
            let value = |byte: u8| Digest::new(&vec![byte; profile.map_or(20, Profile::value_bytes)]).unwrap();
            for (unit, byte) in units.into_iter().filter(|_| profile.is_some()) {
                match byte {
                    Some(byte) => flat.set_digest(unit, &value(byte)),
                    None => flat.forget(u64::from(unit) * profile.unwrap().unit_bytes() / BLOCK),
                }
            }
            let patch = flat.patch();
            prop_assert_eq!(patch.is_based, base.is_some());
            prop_assert_eq!(FlatChunk::apply_patch(&patch.bytes, base.as_ref(), 256), Ok(flat.compact(256, 7)));
        }

        #[test]
        fn arbitrary_patches_never_panic(bytes: Vec<u8>) {
            let _ = FlatChunk::apply_patch(&bytes, None, 256);
        }

        #[test]
        fn flat_compact_and_bytes_agree(
            slots in proptest::collection::vec((0_u64..256, 0_u64..1000, 1_u64..40, any::<u32>()), 0..30),
            code in 0_u8..5,
            units in proptest::collection::btree_map(0_u32..64, any::<u8>(), 0..9),
        ) {
            let profile = Profile::from_code(code);
            let mut flat = FlatChunk::empty(profile);
            for (first, location, count, sum) in slots {
                for i in 0..count.min(CHUNK_BLOCKS - first) {
                    flat.set(first + i, BlockSlot::new(location + i, 0, sum ^ i as u32));
                }
            }
            let Some(chunk) = flat.compact(256, 7) else {
                prop_assert_eq!(flat, FlatChunk::empty(profile));
                return Ok(());
            };
            for (unit, byte) in units {
                let bytes = profile.map_or(0, Profile::value_bytes);
                flat.set_digest(unit, &Digest::new(&vec![byte; bytes]).unwrap());
            }
            let chunk = flat.compact(256, 7).unwrap_or(chunk);
            prop_assert_eq!(FlatChunk::of(&chunk, profile), flat);
            for (extent, _) in chunk.extents() {
                let last = extent.location + u64::from(extent.count) - 1;
                prop_assert_eq!(extent.location / 256, last / 256, "no extent crosses segments");
            }
            let mut bytes = Vec::new();
            chunk.encode(&mut bytes);
            prop_assert_eq!(Chunk::parse(&bytes), Ok(chunk));
        }
    }

    #[test]
    fn sequential_blocks_are_one_extent() {
        let mut flat = FlatChunk::empty(None);
        for block in 0..CHUNK_BLOCKS {
            flat.set(block, BlockSlot::new(1024 + block, 5, 0));
        }
        let chunk = flat.compact(1 << 18, 5).unwrap();
        assert_eq!(chunk.extents().count(), 1);
    }
}
