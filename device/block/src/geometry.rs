//! Block sizes, capacity, and extents of blocks.
//!
//! Does: create extents that are within the capacity.
//! Does not: touch data.
//! Contract: only a [`Geometry`] creates an [`BlockExtent`], so its users need not check it again.

use std::fmt;

use sealstone_store::MAX_OBJECT_LENGTH;
use thiserror::Error;

use crate::failure::BlockFailure;

/// Size of a logical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockSize {
    /// 512 bytes; eight form one block of the store.
    B512,
    /// 4096 bytes, like the store's blocks.
    B4096,
}

impl BlockSize {
    /// Returns the size with this many bytes; `None` if unsupported.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Option<Self> {
        match bytes {
            512 => Some(Self::B512),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }

    /// Returns the binary logarithm of the size.
    #[must_use]
    pub const fn shift(self) -> u32 {
        match self {
            Self::B512 => 9,
            Self::B4096 => 12,
        }
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }

    /// Returns LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT. Physical blocks are those of the store.
    pub(crate) const fn physical_exponent(self) -> u8 {
        match self {
            Self::B512 => 3,
            Self::B4096 => 0,
        }
    }

    /// Returns the logical blocks per block of the store: the granularity of UNMAP.
    pub(crate) const fn per_physical(self) -> u32 {
        1 << self.physical_exponent()
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// Why a size is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SizeError {
    /// No block.
    #[error("a block unit needs at least one block")]
    Empty,
    /// Not a multiple of the block size.
    #[error("{bytes} bytes are not a multiple of the block size {block}")]
    Uneven {
        /// Bytes requested.
        bytes: u64,
        /// Bytes of a block.
        block: u64,
    },
    /// Longer than the largest object.
    #[error("{bytes} bytes exceed the largest object ({MAX_OBJECT_LENGTH})")]
    TooLarge {
        /// Bytes requested.
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
    /// Creates the geometry of a unit of this size.
    ///
    /// # Errors
    /// [`SizeError`] if the size is invalid.
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

    /// Returns the size of a logical block.
    #[must_use]
    pub const fn block(&self) -> BlockSize {
        self.block
    }

    /// Returns the number of logical blocks, at least 1.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the capacity in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.blocks << self.block.shift()
    }

    /// Returns the blocks in this many bytes, rounded down, limited to 32 bits as in most fields.
    pub(crate) const fn blocks_of(&self, bytes: u64) -> u32 {
        let blocks = bytes >> self.block.shift();
        if blocks > u32::MAX as u64 { u32::MAX } else { blocks as u32 }
    }

    /// Returns the extent of `blocks` blocks from `lba` on. An empty extent at the end is valid.
    /// The error names the first block beyond the capacity.
    pub(crate) fn extent(&self, lba: u64, blocks: u64) -> Result<BlockExtent, BlockFailure> {
        let end = lba.checked_add(blocks).filter(|end| *end <= self.blocks);
        match end {
            Some(_) => Ok(BlockExtent { lba, blocks, shift: self.block.shift() }),
            None => Err(BlockFailure::OutOfRange(lba.max(self.blocks))),
        }
    }
}

/// A run of blocks within a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockExtent {
    lba: u64,
    blocks: u64,
    shift: u32,
}

impl BlockExtent {
    /// Returns the first block.
    pub(crate) const fn lba(&self) -> u64 {
        self.lba
    }

    /// Returns the offset of the first byte in the object.
    pub(crate) const fn offset(&self) -> u64 {
        self.lba << self.shift
    }

    /// Returns the length in bytes.
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
                matches!(unit.extent(lba, blocks), Err(BlockFailure::OutOfRange(at)) if at == first),
                "{lba} {blocks}"
            );
        }
        assert!(matches!(unit.extent(u64::MAX, u64::MAX), Err(BlockFailure::OutOfRange(u64::MAX))));
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
