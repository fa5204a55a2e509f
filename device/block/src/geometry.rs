//! Blocks and where they lie.
//!
//! Does: block sizes, capacity, and extents that are known to lie inside it. Does not: touch data.
//! Contract: an [`Extent`] can only be had from a [`Geometry`], so whoever holds one need not check it again.

use std::fmt;

use sealstone_store::MAX_OBJECT_LENGTH;
use thiserror::Error;

use crate::failure::Failure;

/// Bytes of a logical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockSize {
    /// 512 bytes; eight make one block of the store.
    B512,
    /// 4096 bytes, as the store has.
    B4096,
}

impl BlockSize {
    /// The size of so many bytes; `None` for any other.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Option<Self> {
        match bytes {
            512 => Some(Self::B512),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }

    /// Binary logarithm of the bytes.
    #[must_use]
    pub const fn shift(self) -> u32 {
        match self {
            Self::B512 => 9,
            Self::B4096 => 12,
        }
    }

    /// Bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }

    /// LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT: the store's blocks are the physical ones.
    pub(crate) const fn physical_exponent(self) -> u8 {
        match self {
            Self::B512 => 3,
            Self::B4096 => 0,
        }
    }

    /// Logical blocks of one block of the store: what can be unmapped without a rest.
    pub(crate) const fn per_physical(self) -> u32 {
        1 << self.physical_exponent()
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// A size that no unit can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SizeError {
    /// No block at all.
    #[error("a block unit has at least one block")]
    Empty,
    /// Not whole blocks.
    #[error("{bytes} bytes are not a multiple of the block size {block}")]
    Uneven {
        /// What was asked for.
        bytes: u64,
        /// Bytes of a block.
        block: u64,
    },
    /// Longer than an object can be.
    #[error("{bytes} bytes are more than an object can have ({MAX_OBJECT_LENGTH})")]
    TooLarge {
        /// What was asked for.
        bytes: u64,
    },
}

/// Block size and number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    block: BlockSize,
    blocks: u64,
}

impl Geometry {
    /// A unit of so many bytes.
    ///
    /// # Errors
    /// [`SizeError`].
    pub const fn new(block: BlockSize, bytes: u64) -> Result<Self, SizeError> {
        if bytes == 0 {
            return Err(SizeError::Empty);
        }
        if bytes > MAX_OBJECT_LENGTH {
            return Err(SizeError::TooLarge { bytes });
        }
        if !bytes.is_multiple_of(block.bytes()) {
            return Err(SizeError::Uneven { bytes, block: block.bytes() });
        }
        Ok(Self { block, blocks: bytes >> block.shift() })
    }

    /// Bytes of a logical block.
    #[must_use]
    pub const fn block(&self) -> BlockSize {
        self.block
    }

    /// Number of logical blocks, at least 1.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// All bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.blocks << self.block.shift()
    }

    /// Blocks of so many bytes, rounded down, as the 32 bits that most fields have.
    pub(crate) const fn blocks_of(&self, bytes: u64) -> u32 {
        let blocks = bytes >> self.block.shift();
        if blocks > u32::MAX as u64 { u32::MAX } else { blocks as u32 }
    }

    /// The extent of so many blocks from `lba` on. No blocks at the very end is inside; the first block beyond is what
    /// the refusal tells.
    pub(crate) fn extent(&self, lba: u64, blocks: u64) -> Result<Extent, Failure> {
        let end = lba.checked_add(blocks).filter(|end| *end <= self.blocks);
        match end {
            Some(_) => Ok(Extent { lba, blocks, shift: self.block.shift() }),
            None => Err(Failure::OutOfRange(lba.max(self.blocks))),
        }
    }
}

/// Blocks that are all inside a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    lba: u64,
    blocks: u64,
    shift: u32,
}

impl Extent {
    /// First byte in the object.
    pub(crate) const fn offset(&self) -> u64 {
        self.lba << self.shift
    }

    /// Bytes.
    pub(crate) const fn length(&self) -> u64 {
        self.blocks << self.shift
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.blocks == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_never_leaves_the_unit() {
        let unit = Geometry::new(BlockSize::B512, 512 * 100).unwrap();
        for (lba, blocks) in [(0, 0), (0, 100), (99, 1), (100, 0)] {
            let extent = unit.extent(lba, blocks).unwrap();
            assert_eq!((extent.offset(), extent.length()), (lba * 512, blocks * 512));
        }
        let beyond = [(0, 101, 100), (99, 2, 100), (100, 1, 100), (101, 0, 101), (u64::MAX, 1, u64::MAX)];
        for (lba, blocks, first) in beyond {
            assert!(
                matches!(unit.extent(lba, blocks), Err(Failure::OutOfRange(at)) if at == first),
                "{lba} {blocks}"
            );
        }
        assert!(matches!(unit.extent(u64::MAX, u64::MAX), Err(Failure::OutOfRange(u64::MAX))));
    }

    #[test]
    fn sizes_are_whole_blocks_within_an_object() {
        let new = Geometry::new;
        assert_eq!(new(BlockSize::B4096, 0), Err(SizeError::Empty));
        assert_eq!(new(BlockSize::B4096, 4097), Err(SizeError::Uneven { bytes: 4097, block: 4096 }));
        assert_eq!(new(BlockSize::B512, 1 << 51), Err(SizeError::TooLarge { bytes: 1 << 51 }));
        assert_eq!(new(BlockSize::B512, 1 << 50).map(|unit| unit.blocks()), Ok(1 << 41));
    }
}
