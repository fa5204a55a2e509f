//! Integrity information blocks that ALLDATA puts into the data buffers: byte counts and a check
//! value (OSD-2 §4.11.8).
//!
//! Does: encodes and parses the layout.
//! Does not: define what the check value covers; `seal` does.

use crate::Generation;
use crate::bytes::u64_at;

/// A check value field: 20 bytes in OSD-1, here padded with zeros; 32 in OSD-2.
pub type Icv = [u8; 32];

/// The block at DATA-OUT INTEGRITY CHECK VALUE OFFSET of the Data-Out Buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOutIntegrity {
    /// Bytes of command data, without the continuation segment.
    pub data: u64,
    /// Bytes of set attributes.
    pub set_attributes: u64,
    /// Bytes of the get attributes list.
    pub get_list: u64,
    /// The check value.
    pub icv: Icv,
}

/// The block at DATA-IN INTEGRITY CHECK VALUE OFFSET of the Data-In Buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataInIntegrity {
    /// Bytes of command data.
    pub data: u64,
    /// Bytes of retrieved attributes.
    pub attributes: u64,
    /// The check value.
    pub icv: Icv,
}

/// A block's wire bytes; the counts come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    bytes: [u8; DataOutIntegrity::COUNTS + 32],
    length: usize,
}

impl core::ops::Deref for Block {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Block {
    fn new(generation: Generation, counts: &[u64], icv: &Icv) -> Self {
        let mut bytes = [0; DataOutIntegrity::COUNTS + 32];
        for (slot, count) in bytes.chunks_exact_mut(8).zip(counts) {
            slot.copy_from_slice(&count.to_be_bytes());
        }
        let (at, width) = (8 * counts.len(), generation.icv_len());
        bytes[at..at + width].copy_from_slice(&icv[..width]);
        Self { bytes, length: at + width }
    }
}

fn icv_at(generation: Generation, bytes: &[u8], at: usize) -> Option<Icv> {
    let field = bytes.get(at..)?.get(..generation.icv_len())?;
    let mut icv = [0; 32];
    icv[..field.len()].copy_from_slice(field);
    Some(icv)
}

impl DataOutIntegrity {
    /// Bytes of the counts, which the check value covers.
    pub const COUNTS: usize = 24;

    /// Returns the bytes of the block.
    #[must_use]
    pub const fn len(generation: Generation) -> usize {
        Self::COUNTS + generation.icv_len()
    }

    /// Parses a block at the start of `bytes`; `None` if it is truncated.
    #[must_use]
    pub fn parse(generation: Generation, bytes: &[u8]) -> Option<Self> {
        Some(Self {
            data: u64_at(bytes, 0)?,
            set_attributes: u64_at(bytes, 8)?,
            get_list: u64_at(bytes, 16)?,
            icv: icv_at(generation, bytes, Self::COUNTS)?,
        })
    }

    /// Returns the wire form.
    #[must_use]
    pub fn encode(&self, generation: Generation) -> Block {
        Block::new(generation, &[self.data, self.set_attributes, self.get_list], &self.icv)
    }
}

impl DataInIntegrity {
    /// Bytes of the counts, which the check value covers.
    pub const COUNTS: usize = 16;

    /// Returns the bytes of the block.
    #[must_use]
    pub const fn len(generation: Generation) -> usize {
        Self::COUNTS + generation.icv_len()
    }

    /// Parses a block at the start of `bytes`; `None` if it is truncated.
    #[must_use]
    pub fn parse(generation: Generation, bytes: &[u8]) -> Option<Self> {
        Some(Self {
            data: u64_at(bytes, 0)?,
            attributes: u64_at(bytes, 8)?,
            icv: icv_at(generation, bytes, Self::COUNTS)?,
        })
    }

    /// Returns the wire form.
    #[must_use]
    pub fn encode(&self, generation: Generation) -> Block {
        Block::new(generation, &[self.data, self.attributes], &self.icv)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Generation::{Osd1, Osd2};

    #[test]
    fn integrity_blocks_have_standard_sizes_and_round_trip() {
        for (generation, out_len, in_len) in [(Osd1, 44, 36), (Osd2, 56, 48)] {
            let mut icv = [0; 32];
            icv[..generation.icv_len()].fill(0xA5);
            let out = DataOutIntegrity { data: 1, set_attributes: 2, get_list: u64::MAX, icv };
            let wire = out.encode(generation);
            assert_eq!((wire.len(), DataOutIntegrity::len(generation)), (out_len, out_len));
            assert_eq!(DataOutIntegrity::parse(generation, &wire), Some(out));
            assert_eq!(DataOutIntegrity::parse(generation, &wire[1..]), None);
            let input = DataInIntegrity { data: 1, attributes: 2, icv };
            let wire = input.encode(generation);
            assert_eq!((wire.len(), DataInIntegrity::len(generation)), (in_len, in_len));
            assert_eq!(DataInIntegrity::parse(generation, &wire), Some(input));
            assert_eq!(DataInIntegrity::parse(generation, &wire[1..]), None);
        }
    }
}
