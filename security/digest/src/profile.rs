//! Digest profiles: which digest is stored for each unit of an object.
//!
//! Does: defines the profiles, with their sizes, and computes the value of a whole unit or of a
//! part of one.
//! Source of truth: docs/design/security.md 5.1 to 5.4; the codes are those of the range header
//! (5.1, byte 7).

use core::fmt;

use crate::paper::cost::{CompressionEngine, PlainEngine};
use crate::paper::{AdHash, sha1};
use crate::subtree;

/// Longest value of any profile, in bytes.
pub const VALUE_BYTES_MAX: usize = 32;
/// Smallest unit of any profile, in bytes.
pub const UNIT_BYTES_MIN: u64 = 8 << 10;
/// Largest unit of any profile, in bytes.
pub const UNIT_BYTES_MAX: u64 = 16 << 10;

/// How the bytes of a partition's objects are digested. An object is split into units; the last one
/// may be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Profile {
    /// HierMAC: SHA-1 of each 8 KiB unit. For reproduction of the paper.
    Sha1 = 1,
    /// AdHash over blocks of 128 bytes, units of 8 KiB. Broken, for reproduction of the paper.
    AdHash128 = 2,
    /// AdHash over blocks of 256 bytes, units of 8 KiB. Broken, for reproduction of the paper.
    AdHash256 = 3,
    /// The chaining value of the BLAKE3 subtree of each 16 KiB unit, bound to its offset in the
    /// object. The default.
    Blake3 = 4,
    /// The values of [`Blake3`](Self::Blake3), and for each object an order-independent sum of them
    /// ([`LtHash`](crate::LtHash)). The sum stays at the device.
    LtHash = 5,
}

/// Security status of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileStatus {
    /// Secure, for all use.
    Modern,
    /// The paper's, with a hash whose collisions are public: for reproduction.
    Paper,
    /// The paper's, with second preimages in minutes: only for reproduction.
    Broken,
}

/// The digest of a unit, or of a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DigestValue {
    bytes: [u8; VALUE_BYTES_MAX],
    length: u8,
}

impl DigestValue {
    /// Creates a value from its bytes; `None` if there are more than [`VALUE_BYTES_MAX`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut value = Self { bytes: [0; VALUE_BYTES_MAX], length: bytes.len() as u8 };
        value.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(value)
    }

    /// Returns its bytes, as many as the profile defines.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl From<[u8; 20]> for DigestValue {
    fn from(bytes: [u8; 20]) -> Self {
        Self::new(&bytes).expect("20 bytes fit")
    }
}

impl From<[u8; 32]> for DigestValue {
    fn from(bytes: [u8; 32]) -> Self {
        Self { bytes, length: 32 }
    }
}

impl AsRef<[u8]> for DigestValue {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl fmt::Debug for DigestValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Profile {
    /// All profiles, by code.
    pub const ALL: [Self; 5] = [Self::Sha1, Self::AdHash128, Self::AdHash256, Self::Blake3, Self::LtHash];
    /// The profile of a partition for which none was set.
    pub const DEFAULT: Self = Self::Blake3;

    /// Returns its code in records; never 0.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the profile of a code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.code() == code)
    }

    /// Returns the profile whose values these are, on the wire and in chunk records: the sum of
    /// `LtHash` is not part of them.
    #[must_use]
    pub const fn values(self) -> Self {
        match self {
            Self::LtHash => Self::Blake3,
            other => other,
        }
    }

    /// Returns its name in configuration and output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::AdHash128 => "adhash128",
            Self::AdHash256 => "adhash256",
            Self::Blake3 => "blake3",
            Self::LtHash => "lthash",
        }
    }

    /// Returns the profile of a name; `adhash` is the one of the paper's evaluation, with blocks of
    /// 256 bytes.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let name = if name == "adhash" { "adhash256" } else { name };
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// Returns its security status.
    #[must_use]
    pub const fn status(self) -> ProfileStatus {
        match self {
            Self::Sha1 => ProfileStatus::Paper,
            Self::AdHash128 | Self::AdHash256 => ProfileStatus::Broken,
            Self::Blake3 | Self::LtHash => ProfileStatus::Modern,
        }
    }

    /// Returns the bytes of a unit.
    #[must_use]
    pub const fn unit_bytes(self) -> u64 {
        match self {
            Self::Sha1 | Self::AdHash128 | Self::AdHash256 => 8 << 10,
            Self::Blake3 | Self::LtHash => 16 << 10,
        }
    }

    /// Returns the bytes of a value, of a whole unit or an edge.
    #[must_use]
    pub const fn value_bytes(self) -> usize {
        match self {
            Self::Sha1 => 20,
            _ => 32,
        }
    }

    /// Returns the AdHash variant, if it is one.
    #[must_use]
    pub const fn adhash(self) -> Option<AdHash> {
        match self {
            Self::AdHash128 => Some(AdHash::A128),
            Self::AdHash256 => Some(AdHash::A256),
            _ => None,
        }
    }

    /// Returns the value of a unit: `bytes` are all that the object has of it.
    ///
    /// # Panics
    /// If there are no bytes, or more than a unit has.
    #[must_use]
    pub fn value(self, unit: u64, bytes: &[u8]) -> DigestValue {
        self.value_with(&mut PlainEngine, unit, bytes)
    }

    /// Like [`value`](Self::value), with SHA-1's compressions done by `engine`.
    pub fn value_with(self, engine: &mut impl CompressionEngine, unit: u64, bytes: &[u8]) -> DigestValue {
        assert!(!bytes.is_empty() && bytes.len() as u64 <= self.unit_bytes(), "{} bytes", bytes.len());
        match self {
            Self::Sha1 => sha1::digest(engine, &[bytes]).into(),
            Self::AdHash128 => AdHash::A128.value_with(engine, bytes),
            Self::AdHash256 => AdHash::A256.value_with(engine, bytes),
            Self::Blake3 | Self::LtHash => subtree::value(unit * self.unit_bytes(), bytes),
        }
    }

    /// Returns the digest of a part of a unit, which starts at `offset` in the object. It differs
    /// from that of a unit.
    #[must_use]
    pub fn edge(self, offset: u64, bytes: &[u8]) -> DigestValue {
        self.edge_with(&mut PlainEngine, offset, bytes)
    }

    /// Returns the digest of a list of attributes on the wire: SHA-1 in the paper's profiles, else
    /// BLAKE3.
    #[must_use]
    pub fn list(self, bytes: &[u8]) -> DigestValue {
        match self {
            Self::Sha1 | Self::AdHash128 | Self::AdHash256 => sha1::digest(&mut PlainEngine, &[bytes]).into(),
            Self::Blake3 | Self::LtHash => (*blake3::hash(bytes).as_bytes()).into(),
        }
    }

    /// Like [`edge`](Self::edge), with SHA-1's compressions done by `engine`.
    pub fn edge_with(self, engine: &mut impl CompressionEngine, offset: u64, bytes: &[u8]) -> DigestValue {
        let within = (offset % self.unit_bytes()) as usize;
        match self {
            // The paper's: the bytes alone. Offset and length are in the header beside it.
            Self::Sha1 => sha1::digest(engine, &[bytes]).into(),
            Self::AdHash128 => AdHash::A128.part_with(engine, within, bytes),
            Self::AdHash256 => AdHash::A256.part_with(engine, within, bytes),
            Self::Blake3 | Self::LtHash => subtree::edge(offset, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec;

    use super::*;

    #[test]
    fn codes_and_names_tell_profiles_apart() {
        let codes: BTreeSet<u8> = Profile::ALL.iter().map(|profile| profile.code()).collect();
        assert_eq!(codes, BTreeSet::from([1, 2, 3, 4, 5]));
        for profile in Profile::ALL {
            assert_eq!(Profile::from_code(profile.code()), Some(profile));
            assert_eq!(Profile::from_name(profile.name()), Some(profile));
            assert!((UNIT_BYTES_MIN..=UNIT_BYTES_MAX).contains(&profile.unit_bytes()));
            assert_eq!(profile.value(3, &[1]).as_bytes().len(), profile.value_bytes());
            assert_eq!(profile.edge(3, &[]).as_bytes().len(), profile.value_bytes());
        }
        assert_eq!((Profile::from_code(0), Profile::from_code(6)), (None, None));
        assert_eq!(Profile::from_name("adhash"), Some(Profile::AdHash256));
        assert_eq!(Profile::from_name("BLAKE3"), None);
        assert_eq!(DigestValue::new(&[0; 33]), None);
    }

    #[test]
    fn blake3_values_depend_on_offset() {
        let unit = vec![7; 16 << 10];
        let value = Profile::Blake3.value(0, &unit);
        assert_ne!(Profile::Blake3.value(1, &unit), value);
        assert_ne!(Profile::Blake3.value(0, &unit[1..]), value);
        assert_ne!(Profile::Blake3.edge(0, &unit), value);
        assert_ne!(Profile::Blake3.edge(5, &unit[..9]), Profile::Blake3.edge(6, &unit[..9]));
        assert_eq!(Profile::LtHash.value(0, &unit), value);
    }
}
