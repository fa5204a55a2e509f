//! A chunk: where 1 MiB of an object lies on the medium, the checksum of each of its blocks, the digests of its units.
//!
//! Does: keep extents compactly for the cache and the index, and flat for changing them.
//! Does not: touch the medium. Truth: docs/design/store.md, "Chunk record".

use std::ops::Range;

use sealstone_digest::{Profile, Value as Digest};

use super::digests::{self, Packed};
use super::pool::is_inline;
use super::record::Rotten;
use crate::BLOCK;

/// Blocks of one chunk.
pub(crate) const CHUNK_BLOCKS: u64 = 256;
/// A block's place when it is not mapped.
const HOLE: u64 = u64::MAX;

/// Blocks that lie together, in the chunk and on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First block in the chunk.
    pub(crate) first: u16,
    /// Number of blocks, not 0.
    pub(crate) count: u16,
    /// First block on the medium.
    pub(crate) place: u64,
    /// The group that allocated them; 0 if it is committed for sure. Not stored.
    pub(crate) born: u64,
}

/// The compact form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Sorted, not overlapping.
    extents: Box<[Extent]>,
    /// One checksum for each block of each extent, in order.
    sums: Box<[u32]>,
    digests: Packed,
}

impl Chunk {
    /// The digests of its units, as far as they are known.
    pub(crate) fn digests(&self) -> &Packed {
        &self.digests
    }

    /// The extents with their checksums.
    pub(crate) fn extents(&self) -> impl Iterator<Item = (Extent, &[u32])> {
        let mut sums = &self.sums[..];
        self.extents.iter().map(move |extent| {
            let (these, rest) = sums.split_at(usize::from(extent.count));
            sums = rest;
            (*extent, these)
        })
    }

    /// The units whose known digest is not that of their bytes, with their range; of the chunk at `base` of an object of
    /// `length` bytes. `content` is all of the chunk; only units all of whose blocks are `sound` are looked at.
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

    /// The units that have blocks and no digest by this profile, of a chunk that has `length` bytes of its object.
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

    /// The same, with all of it counted as committed: no block of it is written in place any more.
    pub(crate) fn settled(&self) -> Self {
        let mut settled = self.clone();
        settled.extents.iter_mut().for_each(|extent| extent.born = 0);
        settled
    }

    /// Memory of the tables in bytes.
    pub(crate) fn weight(&self) -> usize {
        size_of_val(&*self.extents) + size_of_val(&*self.sums) + self.digests.weight()
    }

    /// Layout: profile, number of extents, extents (first, count, place), checksums, digests; little endian.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.digests.code());
        out.extend_from_slice(&(self.extents.len() as u16).to_le_bytes());
        for extent in &self.extents {
            out.extend_from_slice(&extent.first.to_le_bytes());
            out.extend_from_slice(&extent.count.to_le_bytes());
            out.extend_from_slice(&extent.place.to_le_bytes());
        }
        for sum in &self.sums {
            out.extend_from_slice(&sum.to_le_bytes());
        }
        self.digests.encode(out);
    }

    /// Parses what [`encode`](Self::encode) wrote. Places are checked against the medium by the caller.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Rotten> {
        let (&[profile, low, high], rest) = bytes.split_first_chunk().ok_or(Rotten)?;
        let count = usize::from(u16::from_le_bytes([low, high]));
        if count > CHUNK_BLOCKS as usize {
            return Err(Rotten);
        }
        let (table, rest) = rest.split_at_checked(count * 12).ok_or(Rotten)?;
        let mut extents: Vec<Extent> = Vec::with_capacity(count);
        let (mut next, mut blocks) = (0, 0);
        for row in table.chunks_exact(12) {
            let number = |range: Range<usize>| row[range].iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
            let (first, length, place) = (number(0..2), number(2..4), number(4..12));
            if first < next || length == 0 || first + length > CHUNK_BLOCKS || place > HOLE - CHUNK_BLOCKS {
                return Err(Rotten);
            }
            // An inline block stands alone.
            if is_inline(place) && length != 1 {
                return Err(Rotten);
            }
            next = first + length;
            blocks += length as usize;
            extents.push(Extent { first: first as u16, count: length as u16, place, born: 0 });
        }
        let (sums, digests) = rest.split_at_checked(blocks * 4).ok_or(Rotten)?;
        let sums =
            sums.chunks_exact(4).map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]])).collect();
        Ok(Self { extents: extents.into(), sums, digests: Packed::parse(profile, digests)? })
    }
}

/// One block's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Block on the medium, or [`HOLE`].
    place: u64,
    /// The group that allocated it; 0 if committed.
    pub(crate) born: u64,
    /// CRC32C of its bytes.
    pub(crate) sum: u32,
}

impl Slot {
    const HOLE: Self = Self { place: HOLE, born: 0, sum: 0 };

    pub(crate) fn new(place: u64, born: u64, sum: u32) -> Self {
        Self { place, born, sum }
    }

    /// Where it is, if it is mapped.
    pub(crate) fn place(&self) -> Option<u64> {
        (self.place != HOLE).then_some(self.place)
    }
}

/// The flat form: one slot for each block, and one digest for each unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flat {
    slots: Box<[Slot; CHUNK_BLOCKS as usize]>,
    digests: digests::Flat,
}

impl Flat {
    /// A chunk of holes, whose digests will be of a profile.
    pub(crate) fn empty(profile: Option<Profile>) -> Self {
        Self { slots: Box::new([Slot::HOLE; CHUNK_BLOCKS as usize]), digests: digests::Flat::empty(profile) }
    }

    /// A compact chunk laid out flat, with those digests that are of the profile.
    pub(crate) fn of(chunk: &Chunk, profile: Option<Profile>) -> Self {
        let mut flat = Self::empty(None);
        for (extent, sums) in chunk.extents() {
            let slots = &mut flat.slots[usize::from(extent.first)..][..sums.len()];
            for ((slot, &sum), place) in slots.iter_mut().zip(sums).zip(extent.place..) {
                *slot = Slot { place, born: extent.born, sum };
            }
        }
        flat.digests = digests::Flat::of(&chunk.digests, profile);
        flat
    }

    /// Does it know the digest of a unit?
    pub(crate) fn knows(&self, unit: u32) -> bool {
        self.digests.knows(unit)
    }

    /// The digest of a unit, if it is known.
    pub(crate) fn digest(&self, unit: u32) -> Option<Digest> {
        self.digests.get(unit)
    }

    /// Notes the digest of a unit, all of whose blocks are as they will be.
    pub(crate) fn set_digest(&mut self, unit: u32, value: &Digest) {
        self.digests.set(unit, value);
    }

    /// The bytes of a block's unit change, if only in number.
    pub(crate) fn forget(&mut self, block: u64) {
        self.digests.forget(block);
    }

    /// The slot of a block, numbered within the chunk.
    pub(crate) fn slot(&self, block: u64) -> Slot {
        self.slots[block as usize]
    }

    /// Sets a slot; gives the old one. The digest of its unit is not known any more.
    pub(crate) fn set(&mut self, block: u64, slot: Slot) -> Slot {
        self.digests.forget(block);
        std::mem::replace(&mut self.slots[block as usize], slot)
    }

    /// Makes a hole; gives the old slot.
    pub(crate) fn unmap(&mut self, block: u64) -> Slot {
        self.set(block, Slot::HOLE)
    }

    /// The compact form; `None` if all is hole. Extents end where `segment_blocks` says a file ends, and
    /// blocks born before group `open` count as committed.
    pub(crate) fn compact(&self, segment_blocks: u64, open: u64) -> Option<Chunk> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut sums = Vec::new();
        for (block, slot) in self.slots.iter().enumerate() {
            let Some(place) = slot.place() else { continue };
            let born = if slot.born == open { open } else { 0 };
            sums.push(slot.sum);
            match extents.last_mut() {
                Some(last)
                    if usize::from(last.first + last.count) == block
                        && last.place + u64::from(last.count) == place
                        && place % segment_blocks != 0
                        && !is_inline(place)
                        && last.born == born =>
                {
                    last.count += 1;
                }
                _ => extents.push(Extent { first: block as u16, count: 1, place, born }),
            }
        }
        (!extents.is_empty()).then(|| Chunk {
            extents: extents.into(),
            sums: sums.into(),
            digests: self.digests.pack(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn flat_compact_and_bytes_agree(
            slots in proptest::collection::vec((0_u64..256, 0_u64..1000, 1_u64..40, any::<u32>()), 0..30),
            code in 0_u8..5,
            units in proptest::collection::btree_map(0_u32..64, any::<u8>(), 0..9),
        ) {
            let profile = Profile::from_code(code);
            let mut flat = Flat::empty(profile);
            for (first, place, count, sum) in slots {
                for i in 0..count.min(CHUNK_BLOCKS - first) {
                    flat.set(first + i, Slot::new(place + i, 0, sum ^ i as u32));
                }
            }
            let Some(chunk) = flat.compact(256, 7) else {
                prop_assert_eq!(flat, Flat::empty(profile));
                return Ok(());
            };
            for (unit, byte) in units {
                let bytes = profile.map_or(0, Profile::value_bytes);
                flat.set_digest(unit, &Digest::new(&vec![byte; bytes]).unwrap());
            }
            let chunk = flat.compact(256, 7).unwrap_or(chunk);
            prop_assert_eq!(Flat::of(&chunk, profile), flat);
            for (extent, _) in chunk.extents() {
                let last = extent.place + u64::from(extent.count) - 1;
                prop_assert_eq!(extent.place / 256, last / 256, "no extent crosses segments");
            }
            let mut bytes = Vec::new();
            chunk.encode(&mut bytes);
            prop_assert_eq!(Chunk::parse(&bytes), Ok(chunk));
        }
    }

    #[test]
    fn sequential_blocks_are_one_extent() {
        let mut flat = Flat::empty(None);
        for block in 0..CHUNK_BLOCKS {
            flat.set(block, Slot::new(1024 + block, 5, 0));
        }
        let chunk = flat.compact(1 << 18, 5).unwrap();
        assert_eq!(chunk.extents().count(), 1);
    }
}
