//! The least protection that a block unit requires of its sessions.
//!
//! Does: names, one-byte codes, and the settings that fulfil a requirement.
//! Does not: negotiate.
//! Contract: name and code identify a requirement; unknown ones are refused.
//! Truth: `docs/standards/block-protection.md`, "Sessions".

use alloc::format;
use alloc::string::String;

use crate::level::{ProtectedBlock, ProtectionLevel, ProtectionProfile};
use crate::negotiation::ProtectionSettings;
use crate::record::RecordSize;

/// Name of a unit without protection.
const NONE: &str = "none";
/// Name of M-lazy.
const MODERN: &str = "lazy";
/// Prefix of the names of the paper's levels.
const PAPER: &str = "paper:";
/// Bits of the level in a code; those of the profile are above.
const LEVEL_BITS: u8 = 4;

/// Level and profile that a unit requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitProtection {
    level: ProtectionLevel,
    profile: ProtectionProfile,
}

/// Why a name of a protection was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown protection {0:?}: use none, lazy, paper:S1-1u, paper:S2-1u, paper:S1-2, paper:S2-3 or paper:S2-5"
)]
pub struct UnknownProtection(String);

impl UnitProtection {
    /// No protection.
    pub const NONE: Self = Self { level: ProtectionLevel::S0, profile: ProtectionProfile::PaperSafe };

    /// Creates a requirement. Levels without keys of blocks are the same in every profile, and
    /// M-lazy has its own one, which no other level has.
    #[must_use]
    pub const fn new(level: ProtectionLevel, profile: ProtectionProfile) -> Self {
        let profile = match (level, profile) {
            (ProtectionLevel::ModernLazy, _) => ProtectionProfile::Modern,
            (_, ProtectionProfile::Modern) => ProtectionProfile::PaperSafe,
            _ if level.key_scheme().is_some() => profile,
            _ => ProtectionProfile::PaperSafe,
        };
        Self { level, profile }
    }

    /// Returns the required level.
    #[must_use]
    pub const fn level(self) -> ProtectionLevel {
        self.level
    }

    /// Returns the profile of the level.
    #[must_use]
    pub const fn profile(self) -> ProtectionProfile {
        self.profile
    }

    /// Whether sessions need any protection.
    #[must_use]
    pub fn is_required(self) -> bool {
        self.level != ProtectionLevel::S0
    }

    /// Whether blocks are stored with keys of their writers.
    #[must_use]
    pub const fn stores_block_keys(self) -> bool {
        self.level.key_scheme().is_some()
    }

    /// Returns the name on the command line, without the profile.
    #[must_use]
    pub fn name(self) -> String {
        match self.level {
            ProtectionLevel::S0 => NONE.into(),
            ProtectionLevel::ModernLazy => MODERN.into(),
            level => format!("{PAPER}{}", level.name()),
        }
    }

    /// Parses a name; the profile of the paper's levels is `paper+safe`.
    ///
    /// # Errors
    /// [`UnknownProtection`] for any other text.
    pub fn parse(name: &str) -> Result<Self, UnknownProtection> {
        if name == NONE {
            return Ok(Self::NONE);
        }
        if name == MODERN {
            return Ok(Self::new(ProtectionLevel::ModernLazy, ProtectionProfile::Modern));
        }
        let level = name.strip_prefix(PAPER).and_then(ProtectionLevel::from_name);
        level
            .filter(|level| !matches!(level, ProtectionLevel::S0 | ProtectionLevel::ModernLazy))
            .map(|level| Self::new(level, ProtectionProfile::PaperSafe))
            .ok_or_else(|| UnknownProtection(name.chars().take(32).collect()))
    }

    /// Returns the code in the record of a unit; 0 is no protection.
    #[must_use]
    pub fn code(self) -> u8 {
        if !self.is_required() {
            return 0;
        }
        let position = |at: Option<usize>| at.and_then(|at| u8::try_from(at).ok()).unwrap_or_default();
        let level = position(ProtectionLevel::ALL.iter().position(|level| *level == self.level));
        let profile = position(ProtectionProfile::ALL.iter().position(|profile| *profile == self.profile));
        level | profile << LEVEL_BITS
    }

    /// Returns the requirement of a code; `None` if no requirement has it.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        if code == 0 {
            return Some(Self::NONE);
        }
        let level = *ProtectionLevel::ALL.get(usize::from(code & ((1 << LEVEL_BITS) - 1)))?;
        let profile = *ProtectionProfile::ALL.get(usize::from(code >> LEVEL_BITS))?;
        Some(Self { level, profile })
            .filter(|found| found.code() == code && *found == Self::new(level, profile))
    }

    /// Returns the settings of a session with exactly this protection; `None` without protection.
    #[must_use]
    pub fn settings(self, block: ProtectedBlock) -> Option<ProtectionSettings> {
        let Self { level, profile } = self;
        let record = level.records().map(|_| RecordSize::Large);
        self.is_required().then_some(ProtectionSettings { level, block, profile, record })
    }
}

impl ProtectionSettings {
    /// Whether a session with these settings fulfils `required`.
    ///
    /// The levels that consist of records are ordered. A unit that stores keys of blocks needs
    /// exactly its level.
    #[must_use]
    pub fn fulfils(&self, required: &Self) -> bool {
        let is_record_only =
            |level: ProtectionLevel| level.key_scheme().is_none() && level.records().is_some();
        let same_level = Self { level: required.level, ..*self } == *required;
        let both_records = is_record_only(self.level) && is_record_only(required.level);
        same_level && (self.level == required.level || both_records && self.level > required.level)
    }

    /// Returns all settings that fulfil these, the weakest first.
    pub fn fulfilling(self) -> impl Iterator<Item = Self> {
        let all = ProtectionLevel::ALL.into_iter().map(move |level| Self { level, ..self });
        all.filter(move |settings| settings.fulfils(&self))
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn names_and_codes_read_back() {
        for name in ["none", "lazy", "paper:S1-1u", "paper:S2-1u", "paper:S1-2", "paper:S2-3", "paper:S2-5"] {
            let found = UnitProtection::parse(name).unwrap();
            assert_eq!(found.name(), name);
            assert_eq!(UnitProtection::from_code(found.code()), Some(found));
        }
        for bad in ["", "paper", "paper:S0", "S1-2", "paper:S1-1", "None", "modern:S1-2", "paper:M-lazy"] {
            assert!(UnitProtection::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn each_code_has_one_requirement() {
        let known: Vec<UnitProtection> = (0..=u8::MAX).filter_map(UnitProtection::from_code).collect();
        // None, two levels of records, three levels in three profiles, M-lazy.
        assert_eq!(known.len(), 1 + 2 + 9 + 1);
        for (at, found) in known.iter().enumerate() {
            assert!(!known[..at].contains(found));
        }
    }

    #[test]
    fn stronger_records_fulfil_weaker_ones_only() {
        let of = |name| UnitProtection::parse(name).unwrap().settings(ProtectedBlock::B512).unwrap();
        let (mac, cipher, lazy) = (of("paper:S1-1u"), of("paper:S2-1u"), of("paper:S2-5"));
        let modern = of("lazy");
        assert!(modern.fulfils(&modern) && !modern.fulfils(&lazy) && !lazy.fulfils(&modern));
        assert!(!modern.fulfils(&mac) && !cipher.fulfils(&modern));
        assert!(cipher.fulfils(&mac) && mac.fulfils(&mac) && !mac.fulfils(&cipher));
        assert!(!lazy.fulfils(&mac) && !cipher.fulfils(&lazy) && lazy.fulfils(&lazy));
        let other_block = ProtectionSettings { block: ProtectedBlock::B4096, ..cipher };
        assert!(!other_block.fulfils(&mac));
        assert_eq!(mac.fulfilling().collect::<Vec<_>>(), [mac, cipher]);
        assert_eq!(lazy.fulfilling().collect::<Vec<_>>(), [lazy]);
    }
}
