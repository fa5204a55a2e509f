//! The part that most block commands share: which blocks, protection, DPO and FUA (SBC-3 §5).
//!
//! Contract: fields are read from a CDB that was brought to 16 bytes; that it had its own length was checked before.

use crate::failure::Failure;
use crate::geometry::{Extent, Geometry};

/// A CDB of a block command, filled up with zeros.
pub(crate) type Wire = [u8; 16];

/// 16 bits at a byte.
pub(crate) const fn be16(wire: &Wire, at: usize) -> u16 {
    u16::from_be_bytes([wire[at], wire[at + 1]])
}

/// 32 bits at a byte.
pub(crate) const fn be32(wire: &Wire, at: usize) -> u32 {
    u32::from_be_bytes([wire[at], wire[at + 1], wire[at + 2], wire[at + 3]])
}

/// 64 bits at a byte.
pub(crate) const fn be64(wire: &Wire, at: usize) -> u64 {
    (be32(wire, at) as u64) << 32 | be32(wire, at + 4) as u64
}

/// RDPROTECT, WRPROTECT, VRPROTECT, ORPROTECT: byte 1, bits 7 to 5.
const PROTECT: u8 = 0xE0;
/// FUA; DPO, the bit above it, is a hint that is welcome and ignored.
const FUA: u8 = 0x08;

/// Where the fields of a CDB of its length are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// 21 bits of LBA, 8 of length where 0 means 256; no flags.
    Six,
    /// 32 and 16 bits.
    Ten,
    /// 32 and 32 bits.
    Twelve,
    /// 64 and 32 bits.
    Sixteen,
}

impl Form {
    /// Byte of the CDB where the length begins.
    pub(crate) const fn length_at(self) -> u16 {
        match self {
            Self::Six => 4,
            Self::Ten => 7,
            Self::Twelve => 6,
            Self::Sixteen => 10,
        }
    }

    /// First block.
    pub(crate) const fn lba(self, wire: &Wire) -> u64 {
        match self {
            Self::Six => (be32(wire, 0) & 0x1F_FFFF) as u64,
            Self::Ten | Self::Twelve => be32(wire, 2) as u64,
            Self::Sixteen => be64(wire, 2),
        }
    }

    /// Number of blocks.
    pub(crate) const fn blocks(self, wire: &Wire) -> u32 {
        match self {
            Self::Six if wire[4] == 0 => 256,
            Self::Six => wire[4] as u32,
            Self::Ten => be16(wire, 7) as u32,
            Self::Twelve => be32(wire, 6),
            Self::Sixteen => be32(wire, 10),
        }
    }
}

/// Blocks to move, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) extent: Extent,
    /// Past any volatile cache.
    pub(crate) fua: bool,
}

impl Transfer {
    /// Reads and checks the fields; at most `max` blocks.
    ///
    /// Protection information is not kept, so that asking for any is an error (SBC-3 §4.22: PROT_EN zero).
    pub(crate) fn parse(wire: &Wire, form: Form, geometry: &Geometry, max: u32) -> Result<Self, Failure> {
        if form != Form::Six {
            no_protection(wire)?;
        }
        let blocks = form.blocks(wire);
        if blocks > max {
            return Err(Failure::field(form.length_at()));
        }
        let extent = geometry.extent(form.lba(wire), u64::from(blocks))?;
        Ok(Self { extent, fua: form != Form::Six && wire[1] & FUA != 0 })
    }
}

/// Refuses protection information.
pub(crate) const fn no_protection(wire: &Wire) -> Result<(), Failure> {
    if wire[1] & PROTECT == 0 { Ok(()) } else { Err(Failure::bit(1, 7)) }
}

/// Does a CDB of this form ask for FUA?
pub(crate) fn asks_fua(cdb: &[u8]) -> bool {
    cdb.get(1).is_some_and(|flags| flags & FUA != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::BlockSize;

    #[test]
    fn each_form_has_its_fields_where_the_standard_puts_them() {
        let mut wire: Wire = [0x28, 0x18, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
        assert_eq!((Form::Ten.lba(&wire), Form::Ten.blocks(&wire)), (0x0102_0304, 0x0607));
        assert_eq!(Form::Twelve.blocks(&wire), 0x0506_0708);
        assert_eq!(Form::Sixteen.lba(&wire), 0x0102_0304_0506_0708);
        assert_eq!(Form::Sixteen.blocks(&wire), 0x090A_0B0C);
        wire[1] = 0xF5;
        assert_eq!(Form::Six.lba(&wire), 0x15_0102);
        assert_eq!(Form::Six.blocks(&[8; 16]), 8);
        assert_eq!(Form::Six.blocks(&[0; 16]), 256);
    }

    #[test]
    fn protection_and_length_are_checked_before_the_range() {
        let geometry = Geometry::new(BlockSize::B512, 1 << 20).unwrap();
        let parse = |wire: &Wire| Transfer::parse(wire, Form::Ten, &geometry, 64);
        let mut wire: Wire = [0; 16];
        wire[8] = 64;
        assert!(!parse(&wire).unwrap().fua);
        wire[1] = 0x18;
        assert!(parse(&wire).unwrap().fua);
        wire[8] = 65;
        assert!(matches!(parse(&wire), Err(Failure::Field(at)) if at.byte == 7));
        wire[1] = 0x20;
        assert!(matches!(parse(&wire), Err(Failure::Field(at)) if at.byte == 1 && at.bit == Some(7)));
        wire = [0; 16];
        (wire[4], wire[5], wire[8]) = (0x08, 0x00, 1);
        assert!(matches!(parse(&wire), Err(Failure::OutOfRange(0x800))));
    }
}
