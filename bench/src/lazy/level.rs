//! The levels that are compared.

use sealstone_block_protection::{
    ProtectedBlock, ProtectionLevel, ProtectionProfile, ProtectionSettings, UnitProtection,
};

/// One level of protection, in one profile.
#[derive(Debug)]
pub(super) struct BenchLevel {
    /// Name in tables and for `--levels`.
    pub(super) name: &'static str,
    /// Protection of the sessions, which the unit requires.
    sessions: UnitProtection,
    /// Whether the client seals blocks that the server cannot open.
    pub(super) is_end_to_end: bool,
}

const fn level(name: &'static str, level: ProtectionLevel, profile: ProtectionProfile) -> BenchLevel {
    BenchLevel { name, sessions: UnitProtection::new(level, profile), is_end_to_end: false }
}

/// The unprotected level.
pub(super) const PLAIN: &str = "S0";
/// End-to-end protected disks.
pub(super) const END_TO_END: &str = "E2E";

/// Lazy protection with today's algorithms.
pub(super) const MODERN: &str = "M-lazy";

/// All levels. A name that ends with `+safe` is the profile `paper+safe`, the default of units.
/// M-lazy has a profile of its own; the others are the paper's own profile.
pub(super) static LEVELS: [BenchLevel; 11] = [
    level(PLAIN, ProtectionLevel::S0, ProtectionProfile::Paper),
    level("S1-1u", ProtectionLevel::S1RecordMac, ProtectionProfile::Paper),
    level("S1-2", ProtectionLevel::S1LazyMac, ProtectionProfile::Paper),
    level("S1-2+safe", ProtectionLevel::S1LazyMac, ProtectionProfile::PaperSafe),
    level("S2-1u", ProtectionLevel::S2RecordCipher, ProtectionProfile::Paper),
    level("S2-3", ProtectionLevel::S2LazyCipher, ProtectionProfile::Paper),
    level("S2-3+safe", ProtectionLevel::S2LazyCipher, ProtectionProfile::PaperSafe),
    level("S2-5", ProtectionLevel::S2LazyCipherMac, ProtectionProfile::Paper),
    level("S2-5+safe", ProtectionLevel::S2LazyCipherMac, ProtectionProfile::PaperSafe),
    level(MODERN, ProtectionLevel::ModernLazy, ProtectionProfile::Modern),
    BenchLevel { name: END_TO_END, sessions: UnitProtection::NONE, is_end_to_end: true },
];

impl BenchLevel {
    /// Returns the level with a name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        LEVELS.iter().find(|level| level.name == name)
    }

    /// Returns the settings of a session with a unit of these blocks.
    pub(super) fn settings(&self, block: ProtectedBlock) -> Option<ProtectionSettings> {
        self.sessions.settings(block)
    }

    /// Returns the options of `block create` that select the level.
    pub(super) fn create_options(&self) -> Vec<String> {
        let mut options = vec!["--protect".to_owned(), self.sessions.name()];
        if self.is_paper_profile() {
            options.push("--insecure-paper-profile".to_owned());
        }
        options
    }

    /// Whether blocks are stored with keys of their writers.
    pub(super) const fn stores_block_keys(&self) -> bool {
        self.sessions.stores_block_keys()
    }

    /// Whether acknowledged writes are unverified versions until the target verifies them.
    pub(super) const fn is_lazily_authenticated(&self) -> bool {
        self.sessions.level().is_lazily_authenticated()
    }

    /// Whether the unit has keys of blocks in the paper's own profile.
    pub(super) fn is_paper_profile(&self) -> bool {
        self.stores_block_keys() && self.sessions.profile() == ProtectionProfile::Paper
    }

    /// Whether several clients can write to one unit at the same time.
    pub(super) const fn is_shared(&self) -> bool {
        !self.is_end_to_end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_select_levels_and_profiles() {
        for level in &LEVELS {
            assert!(std::ptr::eq(BenchLevel::named(level.name).unwrap(), level));
            assert_eq!(level.create_options().len() == 3, level.is_paper_profile());
        }
        assert_eq!(BenchLevel::named("S2-5").unwrap().create_options()[1], "paper:S2-5");
        assert_eq!(BenchLevel::named(PLAIN).unwrap().create_options(), ["--protect", "none"]);
        assert_eq!(BenchLevel::named(MODERN).unwrap().create_options(), ["--protect", "lazy"]);
        assert!(BenchLevel::named("S2-6").is_none());
    }
}
