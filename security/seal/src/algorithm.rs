//! Integrity check value algorithms, and the slots through which a capability names one.
//!
//! Does: one row per algorithm. Does not: compute; [`crate::icv`] does.
//! Truth: docs/design/security.md 3.2 (algorithm slots); `docs/standards/security.md`.

/// A hash under HMAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// 20-byte tags.
    Sha1,
    /// 32-byte tags.
    Sha256,
}

impl Hash {
    /// Bytes of a tag, and of every key derived with this hash.
    #[must_use]
    pub const fn tag_len(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }
}

/// An integrity check value algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// HMAC-SHA1, the standard's own.
    HmacSha1,
    /// HMAC-SHA256 with one key for everything: for the pinned vectors; in no slot by default.
    HmacSha256,
    /// HMAC-SHA256 with one key per purpose: our default.
    HmacSha256Split,
}

/// One row of [`ALGORITHMS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlgorithmRow {
    /// Which one.
    pub algorithm: Algorithm,
    /// The code in attribute R+5, `8000_0000h` + slot.
    pub code: u8,
    /// For people.
    pub name: &'static str,
    /// The hash under the HMAC; sets the width of tags and capability keys.
    pub hash: Hash,
    /// Has each purpose its own key?
    pub split: bool,
}

/// Every algorithm this crate computes.
pub static ALGORITHMS: &[AlgorithmRow] = &[
    AlgorithmRow {
        algorithm: Algorithm::HmacSha1,
        code: 0x01,
        name: "HMAC-SHA1",
        hash: Hash::Sha1,
        split: false,
    },
    AlgorithmRow {
        algorithm: Algorithm::HmacSha256,
        code: 0xF0,
        name: "HMAC-SHA256, one key",
        hash: Hash::Sha256,
        split: false,
    },
    AlgorithmRow {
        algorithm: Algorithm::HmacSha256Split,
        code: 0xF1,
        name: "HMAC-SHA256, key per purpose",
        hash: Hash::Sha256,
        split: true,
    },
];

impl Algorithm {
    /// Its row.
    #[must_use]
    pub const fn row(self) -> &'static AlgorithmRow {
        match self {
            Self::HmacSha1 => &ALGORITHMS[0],
            Self::HmacSha256 => &ALGORITHMS[1],
            Self::HmacSha256Split => &ALGORITHMS[2],
        }
    }

    /// The algorithm of a code; `None` for 00h (no algorithm) and every code we do not compute.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        ALGORITHMS.iter().find(|row| row.code == code).map(|row| row.algorithm)
    }

    /// The code in attribute R+5.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.row().code
    }

    /// The hash under the HMAC.
    #[must_use]
    pub const fn hash(self) -> Hash {
        self.row().hash
    }

    /// Has each purpose its own key?
    #[must_use]
    pub const fn is_split(self) -> bool {
        self.row().split
    }
}

/// Number of slots; the capability's nibble indexes them.
pub const SLOTS: usize = 16;

/// The slot of HMAC-SHA1 in [`AlgorithmSlots::DEFAULT`].
pub const SLOT_HMAC_SHA1: u8 = 0;
/// The slot of HMAC-SHA256 with a key per purpose in [`AlgorithmSlots::DEFAULT`]: what new credentials use.
pub const SLOT_HMAC_SHA256: u8 = 1;

/// Which algorithm each slot of a device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlgorithmSlots([Option<Algorithm>; SLOTS]);

impl AlgorithmSlots {
    /// Slot 0 HMAC-SHA1, slot 1 HMAC-SHA256 with a key per purpose, the rest empty.
    pub const DEFAULT: Self = Self::EMPTY
        .with(SLOT_HMAC_SHA1, Some(Algorithm::HmacSha1))
        .with(SLOT_HMAC_SHA256, Some(Algorithm::HmacSha256Split));

    /// All slots empty.
    pub const EMPTY: Self = Self([None; SLOTS]);

    /// The same, with another content of one slot; the slot's high nibble is ignored.
    #[must_use]
    pub const fn with(mut self, slot: u8, algorithm: Option<Algorithm>) -> Self {
        self.0[(slot & 0x0F) as usize] = algorithm;
        self
    }

    /// What a slot holds; `None` if it is empty.
    #[must_use]
    pub const fn get(&self, slot: u8) -> Option<Algorithm> {
        self.0[(slot & 0x0F) as usize]
    }

    /// The code of each slot for attributes R+5, `8000_0000h` + slot; 0 is empty.
    #[must_use]
    pub fn codes(&self) -> [u8; SLOTS] {
        self.0.map(|slot| slot.map_or(0, Algorithm::code))
    }
}

impl Default for AlgorithmSlots {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_finds_its_row_and_its_code() {
        for row in ALGORITHMS {
            assert_eq!(row.algorithm.row(), row);
            assert_eq!(Algorithm::from_code(row.code), Some(row.algorithm));
        }
        assert_eq!(Algorithm::from_code(0), None);
    }

    #[test]
    fn the_default_slots_are_those_of_the_design() {
        let codes = AlgorithmSlots::DEFAULT.codes();
        assert_eq!(codes[..2], [0x01, 0xF1]);
        assert_eq!(codes[2..], [0; 14]);
    }
}
