//! The first block of a unit: a plain mark by which a protected unit is recognized.
//!
//! ```text
//! magic 8 | version 2 | zero 6 | unit 16 | blocks of the unit 8 | check 32 | zeros
//! ```
//!
//! The check is SHA-256 of the bytes before it: it detects damage, not attacks. A changed header
//! leads to the root of another unit, which does not open.

use alloc::boxed::Box;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::layout::BLOCK_LEN;
use crate::reader::FieldReader;
use crate::sealer::UnitId;

/// The first bytes of the header.
pub const HEADER_MAGIC: &[u8; 8] = b"SLE2EHD\0";
const VERSION: u16 = 1;
const FIELDS: usize = 40;

/// Why a block is no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFormatError {
    /// The unit is not end-to-end protected, or its header was overwritten.
    #[error("the unit has no header of an end-to-end protected disk")]
    NoHeader,
    /// A newer program wrote it.
    #[error("the disk has format {0}; this program reads format {VERSION}")]
    Version(u16),
    /// Changed bytes.
    #[error("the header of the disk is damaged")]
    Damaged,
}

/// Identity and size of a protected unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskHeader {
    /// The unit.
    pub unit: UnitId,
    /// Its size in blocks of 4 KiB.
    pub unit_blocks: u64,
}

impl DiskHeader {
    /// Returns the header as it is stored.
    #[must_use]
    pub fn encode(&self) -> Box<[u8; BLOCK_LEN]> {
        let mut bytes = Box::new([0; BLOCK_LEN]);
        bytes[..8].copy_from_slice(HEADER_MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_be_bytes());
        bytes[16..32].copy_from_slice(&self.unit.0);
        bytes[32..FIELDS].copy_from_slice(&self.unit_blocks.to_be_bytes());
        let check: [u8; 32] = Sha256::digest(&bytes[..FIELDS]).into();
        bytes[FIELDS..FIELDS + 32].copy_from_slice(&check);
        bytes
    }

    /// Parses a stored header.
    ///
    /// # Errors
    /// [`HeaderFormatError`].
    pub fn parse(block: &[u8; BLOCK_LEN]) -> Result<Self, HeaderFormatError> {
        use HeaderFormatError::{Damaged, NoHeader, Version};
        let mut fields = FieldReader(block);
        if fields.array().ok_or(NoHeader)? != *HEADER_MAGIC {
            return Err(NoHeader);
        }
        let check: [u8; 32] = Sha256::digest(&block[..FIELDS]).into();
        let is_zero = block[FIELDS + 32..].iter().all(|byte| *byte == 0);
        if !bool::from(check.ct_eq(&block[FIELDS..FIELDS + 32])) || !is_zero {
            return Err(Damaged);
        }
        let version = fields.u16().ok_or(Damaged)?;
        if version != VERSION {
            return Err(Version(version));
        }
        if fields.array::<6>() != Some([0; 6]) {
            return Err(Damaged);
        }
        let unit = UnitId(fields.array().ok_or(Damaged)?);
        Ok(Self { unit, unit_blocks: fields.u64().ok_or(Damaged)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: DiskHeader = DiskHeader { unit: UnitId([5; 16]), unit_blocks: 1000 };

    #[test]
    fn header_parses_to_itself() {
        assert_eq!(DiskHeader::parse(&HEADER.encode()), Ok(HEADER));
        assert_eq!(DiskHeader::parse(&[0; BLOCK_LEN]), Err(HeaderFormatError::NoHeader));
    }

    #[test]
    fn every_changed_byte_of_header_is_detected() {
        for at in 0..BLOCK_LEN {
            let mut bytes = HEADER.encode();
            bytes[at] ^= 0x10;
            assert!(DiskHeader::parse(&bytes).is_err(), "{at}");
        }
    }
}
