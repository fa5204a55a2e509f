//! Integrity check value algorithms, and the slots through which a capability selects one.
//!
//! Does: has one row per algorithm; the slots of a device, and the slot for a new credential.
//! Does not: compute check values; [`crate::icv`] does.
//! Source of truth: docs/design/security.md 3.2 (algorithm slots); `docs/standards/security.md`.

use sealstone_digest::Profile;
use sealstone_osd::{Generation, SecurityMethod};

/// A hash function under HMAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// 20-byte tags.
    Sha1,
    /// 32-byte tags.
    Sha256,
}

impl Hash {
    /// Returns the bytes of a tag, and of every key derived with this hash.
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
    /// HMAC-SHA256 with one key per purpose: our default below ALLDATA.
    HmacSha256Split,
    /// The same keys; data are covered through BLAKE3 values of their units: our default for
    /// ALLDATA.
    UnitsBlake3,
    /// HMAC-SHA1; data are covered through SHA-1 digests of their units (HierMAC).
    UnitsSha1,
    /// HMAC-SHA1; data are covered through incremental digests of their units (AdHash over SHA-1).
    /// Broken: a man in the middle can replace a block with a constructed one. For
    /// reproducing a paper.
    UnitsAdHash,
}

/// One row of [`ALGORITHMS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlgorithmRow {
    /// The algorithm of the row.
    pub algorithm: Algorithm,
    /// The code in attribute R+5, `8000_0000h` + slot.
    pub code: u8,
    /// Name for output.
    pub name: &'static str,
    /// The hash under the HMAC; sets the width of tags and capability keys.
    pub hash: Hash,
    /// Whether each purpose has its own key.
    pub split: bool,
    /// Digest profile that covers data under ALLDATA; `None`: the MAC is over all bytes.
    pub digest: Option<Profile>,
    /// Whether it is known to be broken: it is in no slot unless an administrator enables it.
    pub broken: bool,
}

/// Every algorithm this crate computes.
pub static ALGORITHMS: &[AlgorithmRow] = &[
    AlgorithmRow {
        algorithm: Algorithm::HmacSha1,
        code: 0x01,
        name: "HMAC-SHA1",
        hash: Hash::Sha1,
        split: false,
        digest: None,
        broken: false,
    },
    AlgorithmRow {
        algorithm: Algorithm::HmacSha256,
        code: 0xF0,
        name: "HMAC-SHA256, one key",
        hash: Hash::Sha256,
        split: false,
        digest: None,
        broken: false,
    },
    AlgorithmRow {
        algorithm: Algorithm::HmacSha256Split,
        code: 0xF1,
        name: "HMAC-SHA256, key per purpose",
        hash: Hash::Sha256,
        split: true,
        digest: None,
        broken: false,
    },
    AlgorithmRow {
        algorithm: Algorithm::UnitsBlake3,
        code: 0xF3,
        name: "HMAC-SHA256, key per purpose, over BLAKE3 units",
        hash: Hash::Sha256,
        split: true,
        digest: Some(Profile::Blake3),
        broken: false,
    },
    AlgorithmRow {
        algorithm: Algorithm::UnitsSha1,
        code: 0xF4,
        name: "HMAC-SHA1 over SHA-1 units (HierMAC)",
        hash: Hash::Sha1,
        split: false,
        digest: Some(Profile::Sha1),
        broken: false,
    },
    AlgorithmRow {
        algorithm: Algorithm::UnitsAdHash,
        code: 0xF5,
        name: "HMAC-SHA1 over AdHash units, broken",
        hash: Hash::Sha1,
        split: false,
        digest: Some(Profile::AdHash256),
        broken: true,
    },
];

impl Algorithm {
    /// Returns the row of the algorithm.
    #[must_use]
    pub const fn row(self) -> &'static AlgorithmRow {
        match self {
            Self::HmacSha1 => &ALGORITHMS[0],
            Self::HmacSha256 => &ALGORITHMS[1],
            Self::HmacSha256Split => &ALGORITHMS[2],
            Self::UnitsBlake3 => &ALGORITHMS[3],
            Self::UnitsSha1 => &ALGORITHMS[4],
            Self::UnitsAdHash => &ALGORITHMS[5],
        }
    }

    /// Returns the algorithm of a code; `None` for 00h (no algorithm) and for unsupported codes.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        ALGORITHMS.iter().find(|row| row.code == code).map(|row| row.algorithm)
    }

    /// Returns the code in attribute R+5.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.row().code
    }

    /// Returns the hash under the HMAC.
    #[must_use]
    pub const fn hash(self) -> Hash {
        self.row().hash
    }

    /// Whether each purpose has its own key.
    #[must_use]
    pub const fn is_split(self) -> bool {
        self.row().split
    }

    /// Returns the digest profile that covers data under ALLDATA; `None`: the MAC is over all
    /// bytes.
    #[must_use]
    pub const fn digest(self) -> Option<Profile> {
        self.row().digest
    }
}

/// Number of slots; the capability's nibble indexes them.
pub const SLOTS: usize = 16;

/// The slot of HMAC-SHA1 in [`AlgorithmSlots::DEFAULT`]: for new credentials of OSD-1.
pub const SLOT_HMAC_SHA1: u8 = 0;
/// The slot of HMAC-SHA256 with a key per purpose in [`AlgorithmSlots::DEFAULT`]: for new
/// credentials below ALLDATA.
pub const SLOT_HMAC_SHA256: u8 = 1;
/// The slot of BLAKE3 units in [`AlgorithmSlots::DEFAULT`]: for new credentials of ALLDATA.
pub const SLOT_UNITS_BLAKE3: u8 = 2;
/// The slot of SHA-1 units in [`AlgorithmSlots::DEFAULT`]: only on request, since collisions of
/// SHA-1 are public.
pub const SLOT_UNITS_SHA1: u8 = 3;
/// The slot of AdHash units in [`AlgorithmSlots::WITH_BROKEN`]; empty otherwise.
pub const SLOT_UNITS_ADHASH: u8 = 4;

/// Returns the slot for a new credential: the best algorithm for its generation and method.
#[must_use]
pub const fn preferred_slot(generation: Generation, method: SecurityMethod) -> u8 {
    match (generation, method) {
        (Generation::Osd2, SecurityMethod::AllData) => SLOT_UNITS_BLAKE3,
        (Generation::Osd2, _) => SLOT_HMAC_SHA256,
        // Not SLOT_UNITS_SHA1: a party that chooses the data could have two units with one SHA-1.
        (Generation::Osd1, _) => SLOT_HMAC_SHA1,
    }
}

/// The algorithm in each slot of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlgorithmSlots([Option<Algorithm>; SLOTS]);

impl AlgorithmSlots {
    /// Slot 0 HMAC-SHA1, slot 1 HMAC-SHA256 with a key per purpose, slot 2 the same over BLAKE3
    /// units, slot 3 HMAC-SHA1 over SHA-1 units, the rest empty.
    pub const DEFAULT: Self = Self::EMPTY
        .with(SLOT_HMAC_SHA1, Some(Algorithm::HmacSha1))
        .with(SLOT_HMAC_SHA256, Some(Algorithm::HmacSha256Split))
        .with(SLOT_UNITS_BLAKE3, Some(Algorithm::UnitsBlake3))
        .with(SLOT_UNITS_SHA1, Some(Algorithm::UnitsSha1));

    /// [`Self::DEFAULT`], plus the broken algorithm: slot 4 HMAC-SHA1 over AdHash units. For an
    /// administrator who enabled it, at either end.
    pub const WITH_BROKEN: Self = Self::DEFAULT.with(SLOT_UNITS_ADHASH, Some(Algorithm::UnitsAdHash));

    /// All slots empty.
    pub const EMPTY: Self = Self([None; SLOTS]);

    /// Returns the slots with another content of one slot; the slot's high nibble is ignored.
    #[must_use]
    pub const fn with(mut self, slot: u8, algorithm: Option<Algorithm>) -> Self {
        self.0[(slot & 0x0F) as usize] = algorithm;
        self
    }

    /// Returns the content of a slot; `None` if it is empty.
    #[must_use]
    pub const fn get(&self, slot: u8) -> Option<Algorithm> {
        self.0[(slot & 0x0F) as usize]
    }

    /// Returns the code of each slot for attributes R+5, `8000_0000h` + slot; 0 is empty.
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
    use sealstone_digest::ProfileStatus;

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
        assert_eq!(codes[..4], [0x01, 0xF1, 0xF3, 0xF4]);
        assert_eq!(codes[4..], [0; 12]);
    }

    #[test]
    fn broken_algorithms_are_in_no_default_slot() {
        let slots = |slots: AlgorithmSlots| (0..16).filter_map(move |slot| slots.get(slot));
        assert!(slots(AlgorithmSlots::DEFAULT).all(|algorithm| !algorithm.row().broken));
        let broken: std::vec::Vec<_> =
            slots(AlgorithmSlots::WITH_BROKEN).filter(|algorithm| algorithm.row().broken).collect();
        assert_eq!(broken, [Algorithm::UnitsAdHash]);
    }

    #[test]
    fn preferred_slot_has_a_fitting_algorithm() {
        for generation in [Generation::Osd1, Generation::Osd2] {
            for method in SecurityMethod::ALL {
                let algorithm = AlgorithmSlots::DEFAULT.get(preferred_slot(generation, method)).unwrap();
                assert!(algorithm.hash().tag_len() <= generation.icv_len());
                let over_digests = generation == Generation::Osd2 && method == SecurityMethod::AllData;
                assert_eq!(algorithm.digest().is_some(), over_digests);
                // Only a hash without known collisions may cover data.
                assert!(algorithm.digest().is_none_or(|profile| profile.status() == ProfileStatus::Modern));
            }
        }
    }
}
