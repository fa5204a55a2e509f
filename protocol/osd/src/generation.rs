//! The two standards whose layouts are supported, and the four security methods.

use core::fmt;

/// The standard that a CDB, a list or a capability follows; determined by the service action, never
/// by a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Generation {
    /// T10/1355-D revision 10: 200-byte CDB, 80-byte capability, 20-byte ICV.
    Osd1,
    /// T10/1729-D revision 4 and 5: 236-byte CDB, 104-byte capability, 32-byte ICV.
    Osd2,
}

impl Generation {
    /// Returns the bytes of a capability.
    #[must_use]
    pub const fn capability_len(self) -> usize {
        match self {
            Self::Osd1 => 80,
            Self::Osd2 => 104,
        }
    }

    /// Returns the bytes of every integrity check value field.
    #[must_use]
    pub const fn icv_len(self) -> usize {
        match self {
            Self::Osd1 => 20,
            Self::Osd2 => 32,
        }
    }

    /// Returns the bytes of a CDB.
    #[must_use]
    pub const fn cdb_len(self) -> usize {
        match self {
            Self::Osd1 => 200,
            Self::Osd2 => 236,
        }
    }

    /// Returns the item of a pair (OSD-1, OSD-2) for this generation.
    #[must_use]
    pub const fn select<T: Copy>(self, pair: [T; 2]) -> T {
        match self {
            Self::Osd1 => pair[0],
            Self::Osd2 => pair[1],
        }
    }

    /// Returns the number in CAPABILITY FORMAT.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Osd1 => 1,
            Self::Osd2 => 2,
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OSD-{}", self.number())
    }
}

/// Security methods, weakest first: each one protects at least what the weaker ones protect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum SecurityMethod {
    /// No check value; the capability's permissions still apply.
    NoSec = 0,
    /// The capability's integrity, over a channel that is secure by itself.
    CapKey = 1,
    /// CDB, status and sense data.
    CmdRsp = 2,
    /// Data and attributes too.
    AllData = 3,
}

impl SecurityMethod {
    /// All methods, weakest first.
    pub const ALL: [Self; 4] = [Self::NoSec, Self::CapKey, Self::CmdRsp, Self::AllData];

    /// Converts the low four bits of a wire byte; 4 to 15 are reserved.
    #[must_use]
    pub const fn from_nibble(byte: u8) -> Option<Self> {
        Some(match byte & 0x0F {
            0 => Self::NoSec,
            1 => Self::CapKey,
            2 => Self::CmdRsp,
            3 => Self::AllData,
            _ => return None,
        })
    }

    /// Returns its bit in the supported-methods attribute (R+5, 7).
    #[must_use]
    pub const fn mask(self) -> u16 {
        1 << self as u16
    }
}

impl fmt::Display for SecurityMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSec => "NOSEC",
            Self::CapKey => "CAPKEY",
            Self::CmdRsp => "CMDRSP",
            Self::AllData => "ALLDATA",
        })
    }
}
