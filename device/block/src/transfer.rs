//! Fields that most block commands share: extent, protection, DPO and FUA (SBC-3 §5).
//!
//! Contract: fields are read from a CDB that was padded to 16 bytes and whose own length was
//! checked before.

use crate::failure::BlockFailure;
use crate::geometry::{BlockExtent, Geometry};

/// A CDB of a block command, padded with zeros.
pub(crate) type PaddedCdb = [u8; 16];

/// Returns the 16-bit value at a byte.
pub(crate) const fn be16(wire: &PaddedCdb, at: usize) -> u16 {
    u16::from_be_bytes([wire[at], wire[at + 1]])
}

/// Returns the 32-bit value at a byte.
pub(crate) const fn be32(wire: &PaddedCdb, at: usize) -> u32 {
    u32::from_be_bytes([wire[at], wire[at + 1], wire[at + 2], wire[at + 3]])
}

/// Returns the 64-bit value at a byte.
pub(crate) const fn be64(wire: &PaddedCdb, at: usize) -> u64 {
    (be32(wire, at) as u64) << 32 | be32(wire, at + 4) as u64
}

/// RDPROTECT, WRPROTECT, VRPROTECT, ORPROTECT: byte 1, bits 7 to 5.
const PROTECT: u8 = 0xE0;
/// FUA. DPO, the bit above it, is a hint that is accepted and ignored.
const FUA: u8 = 0x08;

/// Position of the fields in a CDB, by its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CdbForm {
    /// 21 bits of LBA, 8 of length where 0 means 256; no flags.
    Six,
    /// 32 bits of LBA, 16 of length.
    Ten,
    /// 32 bits of LBA, 32 of length.
    Twelve,
    /// 64 bits of LBA, 32 of length.
    Sixteen,
}

impl CdbForm {
    /// Returns the byte of the CDB where the length starts.
    pub(crate) const fn length_at(self) -> u16 {
        match self {
            Self::Six => 4,
            Self::Ten => 7,
            Self::Twelve => 6,
            Self::Sixteen => 10,
        }
    }

    /// Returns the first block.
    pub(crate) const fn lba(self, wire: &PaddedCdb) -> u64 {
        match self {
            Self::Six => (be32(wire, 0) & 0x1F_FFFF) as u64,
            Self::Ten | Self::Twelve => be32(wire, 2) as u64,
            Self::Sixteen => be64(wire, 2),
        }
    }

    /// Returns the number of blocks.
    pub(crate) const fn blocks(self, wire: &PaddedCdb) -> u32 {
        match self {
            Self::Six if wire[4] == 0 => 256,
            Self::Six => wire[4] as u32,
            Self::Ten => be16(wire, 7) as u32,
            Self::Twelve => be32(wire, 6),
            Self::Sixteen => be32(wire, 10),
        }
    }
}

/// Extent and options of a data transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockTransfer {
    pub(crate) extent: BlockExtent,
    /// Whether to bypass any volatile cache.
    pub(crate) fua: bool,
}

impl BlockTransfer {
    /// Parses and checks the fields; at most `max` blocks.
    ///
    /// Protection information is not supported, so a request for it is an error (SBC-3 §4.22:
    /// PROT_EN zero).
    pub(crate) fn parse(
        wire: &PaddedCdb,
        form: CdbForm,
        geometry: &Geometry,
        max: u32,
    ) -> Result<Self, BlockFailure> {
        if form != CdbForm::Six {
            no_protection(wire)?;
        }
        let blocks = form.blocks(wire);
        if blocks > max {
            return Err(BlockFailure::field(form.length_at()));
        }
        let extent = geometry.extent(form.lba(wire), u64::from(blocks))?;
        Ok(Self { extent, fua: form != CdbForm::Six && wire[1] & FUA != 0 })
    }
}

/// Refuses protection information.
pub(crate) const fn no_protection(wire: &PaddedCdb) -> Result<(), BlockFailure> {
    if wire[1] & PROTECT == 0 { Ok(()) } else { Err(BlockFailure::bit(1, 7)) }
}

/// Whether a CDB with these flags sets FUA.
pub(crate) fn has_fua(cdb: &[u8]) -> bool {
    cdb.get(1).is_some_and(|flags| flags & FUA != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::BlockSize;

    #[test]
    fn cdb_forms_read_standard_field_positions() {
        let mut wire: PaddedCdb = [0x28, 0x18, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
        assert_eq!((CdbForm::Ten.lba(&wire), CdbForm::Ten.blocks(&wire)), (0x0102_0304, 0x0607));
        assert_eq!(CdbForm::Twelve.blocks(&wire), 0x0506_0708);
        assert_eq!(CdbForm::Sixteen.lba(&wire), 0x0102_0304_0506_0708);
        assert_eq!(CdbForm::Sixteen.blocks(&wire), 0x090A_0B0C);
        wire[1] = 0xF5;
        assert_eq!(CdbForm::Six.lba(&wire), 0x15_0102);
        assert_eq!(CdbForm::Six.blocks(&[8; 16]), 8);
        assert_eq!(CdbForm::Six.blocks(&[0; 16]), 256);
    }

    #[test]
    fn protection_and_length_are_checked_before_the_range() {
        let geometry = Geometry::new(BlockSize::B512, 1 << 20).unwrap();
        let parse = |wire: &PaddedCdb| BlockTransfer::parse(wire, CdbForm::Ten, &geometry, 64);
        let mut wire: PaddedCdb = [0; 16];
        wire[8] = 64;
        assert!(!parse(&wire).unwrap().fua);
        wire[1] = 0x18;
        assert!(parse(&wire).unwrap().fua);
        wire[8] = 65;
        assert!(matches!(parse(&wire), Err(BlockFailure::Field(at)) if at.byte == 7));
        wire[1] = 0x20;
        assert!(matches!(parse(&wire), Err(BlockFailure::Field(at)) if at.byte == 1 && at.bit == Some(7)));
        wire = [0; 16];
        (wire[4], wire[5], wire[8]) = (0x08, 0x00, 1);
        assert!(matches!(parse(&wire), Err(BlockFailure::OutOfRange(0x800))));
    }
}
