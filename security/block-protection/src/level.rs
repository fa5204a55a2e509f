//! The levels of protection and the profiles.

use crate::key_list::KeyScheme;

/// How much of a session with a block unit is protected, and which end does the work.
///
/// The names follow the paper. A `u` marks our user-space stand-in for IPsec, which the paper used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProtectionLevel {
    /// No protection.
    S0,
    /// A MAC over records of the whole stream, both ends compute it: the stand-in for AH.
    S1RecordMac,
    /// Lazy authentication: a MAC over headers for the server, a MAC over each block for readers.
    S1LazyMac,
    /// Encryption and a MAC over records, both ends compute it: the stand-in for ESP.
    S2RecordCipher,
    /// Lazy decryption: headers and blocks are encrypted, the server decrypts headers only; a MAC
    /// over records as in S1-1u.
    S2LazyCipher,
    /// Lazy decryption and lazy authentication.
    S2LazyCipherMac,
    /// As S2-5 with today's algorithms: keys of blocks are derived from a key of the unit, and
    /// only generations are on the wire.
    ModernLazy,
}

/// Protection of the records of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordProtection {
    /// A MAC.
    Mac,
    /// Encryption, then a MAC.
    CipherMac,
}

impl ProtectionLevel {
    /// Every level, weakest first.
    pub const ALL: [Self; 7] = [
        Self::S0,
        Self::S1RecordMac,
        Self::S1LazyMac,
        Self::S2RecordCipher,
        Self::S2LazyCipher,
        Self::S2LazyCipherMac,
        Self::ModernLazy,
    ];

    /// Returns the level's name in texts and login keys.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::S0 => "S0",
            Self::S1RecordMac => "S1-1u",
            Self::S1LazyMac => "S1-2",
            Self::S2RecordCipher => "S2-1u",
            Self::S2LazyCipher => "S2-3",
            Self::S2LazyCipherMac => "S2-5",
            Self::ModernLazy => "M-lazy",
        }
    }

    /// Returns the level of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }

    /// Returns which keys each block has; `None` if blocks have none.
    #[must_use]
    pub const fn key_scheme(self) -> Option<KeyScheme> {
        match self {
            Self::S0 | Self::S1RecordMac | Self::S2RecordCipher => None,
            Self::S1LazyMac => Some(KeyScheme::Authentication),
            Self::S2LazyCipher => Some(KeyScheme::Encryption),
            Self::S2LazyCipherMac => Some(KeyScheme::Both),
            Self::ModernLazy => Some(KeyScheme::Generation),
        }
    }

    /// Whether each header ends with a MAC under the session key.
    #[must_use]
    pub const fn has_header_mac(self) -> bool {
        matches!(self, Self::S1LazyMac | Self::S2LazyCipherMac | Self::ModernLazy)
    }

    /// Whether headers are encrypted under the session key.
    #[must_use]
    pub const fn encrypts_headers(self) -> bool {
        matches!(self, Self::S2LazyCipher | Self::S2LazyCipherMac | Self::ModernLazy)
    }

    /// Whether headers have today's algorithms instead of those of the paper.
    #[must_use]
    pub const fn is_modern(self) -> bool {
        matches!(self, Self::ModernLazy)
    }

    /// Returns how records of the whole stream are protected; `None` if they are not.
    #[must_use]
    pub const fn records(self) -> Option<RecordProtection> {
        match self {
            Self::S1RecordMac | Self::S2LazyCipher => Some(RecordProtection::Mac),
            Self::S2RecordCipher => Some(RecordProtection::CipherMac),
            Self::S0 | Self::S1LazyMac | Self::S2LazyCipherMac | Self::ModernLazy => None,
        }
    }

    /// Whether the server acknowledges blocks whose authenticity it has not verified.
    #[must_use]
    pub const fn is_lazily_authenticated(self) -> bool {
        self.has_header_mac()
    }
}

impl core::fmt::Display for ProtectionLevel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// Which vulnerabilities of the paper's design are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProtectionProfile {
    /// The paper's behaviour with a PDU counter against replays.
    Paper,
    /// The paper's behaviour, in which the initiator task tag is the only nonce of a header.
    PaperTaskTag,
    /// The paper's formats with counter-measures: block MACs cover the block address, and the
    /// target verifies blocks itself within a bounded time.
    PaperSafe,
    /// The counter-measures of `PaperSafe` with today's algorithms. Only M-lazy has it.
    Modern,
}

impl ProtectionProfile {
    /// Every profile.
    pub const ALL: [Self; 4] = [Self::Paper, Self::PaperTaskTag, Self::PaperSafe, Self::Modern];

    /// Returns the profile's name in texts and login keys.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::PaperTaskTag => "paper-itt",
            Self::PaperSafe => "paper+safe",
            Self::Modern => "modern",
        }
    }

    /// Returns the profile of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// Returns the code of the algorithms in a key list.
    #[must_use]
    pub const fn algorithm_code(self) -> u8 {
        match self {
            Self::Paper | Self::PaperTaskTag => 1,
            Self::PaperSafe => 2,
            Self::Modern => 3,
        }
    }

    /// Whether a block's MAC covers its address.
    #[must_use]
    pub const fn binds_address(self) -> bool {
        matches!(self, Self::PaperSafe | Self::Modern)
    }

    /// Whether a header's MAC covers a counter of PDUs instead of the task tag only.
    #[must_use]
    pub const fn counts_pdus(self) -> bool {
        !matches!(self, Self::PaperTaskTag)
    }
}

impl core::fmt::Display for ProtectionProfile {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// Length of a logical block of a protected unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtectedBlock {
    /// 512 bytes.
    B512,
    /// 4096 bytes.
    B4096,
}

impl ProtectedBlock {
    /// Returns the length in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        1 << self.shift()
    }

    /// Returns the binary logarithm of the length.
    #[must_use]
    pub const fn shift(self) -> u8 {
        match self {
            Self::B512 => 9,
            Self::B4096 => 12,
        }
    }

    /// Returns the length of a binary logarithm.
    #[must_use]
    pub const fn from_shift(shift: u8) -> Option<Self> {
        match shift {
            9 => Some(Self::B512),
            12 => Some(Self::B4096),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_unknown_fail() {
        for level in ProtectionLevel::ALL {
            assert_eq!(ProtectionLevel::from_name(level.name()), Some(level));
        }
        for profile in ProtectionProfile::ALL {
            assert_eq!(ProtectionProfile::from_name(profile.name()), Some(profile));
        }
        for bad in ["", "s0", "S1-1", "S2-6", "S0 ", "S2-5,S0", "m-lazy"] {
            assert_eq!(ProtectionLevel::from_name(bad), None, "{bad:?}");
        }
        assert_eq!(ProtectionProfile::from_name("safe"), None);
    }

    /// Each level but S0 authenticates headers: by their own MAC or by the records.
    #[test]
    fn every_level_authenticates_headers_once() {
        for level in ProtectionLevel::ALL {
            let methods = u8::from(level.has_header_mac()) + u8::from(level.records().is_some());
            assert_eq!(methods, u8::from(level != ProtectionLevel::S0), "{level}");
        }
    }
}
