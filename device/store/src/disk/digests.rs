//! The digests of a chunk's units, stored with its checksums.
//!
//! Does: keeps the known digests in a compact form for the record and in a flat form for changes;
//! clears a unit's digest as soon as one of its blocks changes.
//! Does not: compute digests, or hold any for holes.
//! Source of truth: docs/design/store.md, "Chunk record".

use sealstone_digest::{DigestValue as Digest, Profile};

use super::chunk::CHUNK_BLOCKS;
use super::record::CorruptRecord;
use crate::BLOCK;

/// Bytes of an object that one chunk covers.
const CHUNK_BYTES: u64 = CHUNK_BLOCKS * BLOCK;
/// The profile byte of a chunk record without digests.
const NONE: u8 = 0;

/// Returns the number of units in a chunk: 64 or 128.
const fn units(profile: Profile) -> u32 {
    (CHUNK_BYTES / profile.unit_bytes()) as u32
}

/// Bitmap of the units whose digest is known.
type KnownUnits = u128;

fn bit(unit: u32) -> KnownUnits {
    1 << unit
}

/// The compact form of a chunk's digests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackedDigests {
    profile: Option<Profile>,
    known: KnownUnits,
    /// The known values, by unit.
    values: Box<[u8]>,
}

impl PackedDigests {
    /// Returns the digest of a unit of the chunk, if it is known under this profile.
    pub(crate) fn get(&self, profile: Profile, unit: u32) -> Option<Digest> {
        if self.profile != Some(profile) || self.known & bit(unit) == 0 {
            return None;
        }
        let before = (self.known & (bit(unit) - 1)).count_ones() as usize;
        let length = profile.value_bytes();
        Digest::new(&self.values[before * length..][..length])
    }

    /// Returns the profile of the digests, if any is known.
    pub(crate) fn profile(&self) -> Option<Profile> {
        self.profile
    }

    /// Returns the known units and their digests.
    pub(crate) fn iter(&self, profile: Profile) -> impl Iterator<Item = (u32, Digest)> + '_ {
        (0..units(profile)).filter_map(move |unit| Some((unit, self.get(profile, unit)?)))
    }

    /// Returns the memory of the digests in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.values.len()
    }

    /// Returns the profile byte of the record.
    pub(crate) fn code(&self) -> u8 {
        self.profile.map_or(NONE, Profile::code)
    }

    /// Appends a bitmap of the known units (lowest bit first), then their digests; nothing if none
    /// is known.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        if let Some(profile) = self.profile {
            out.extend_from_slice(&self.known.to_le_bytes()[..units(profile) as usize / 8]);
            out.extend_from_slice(&self.values);
        }
    }

    /// Parses the result of [`encode`](Self::encode), under the profile with this code.
    pub(crate) fn parse(code: u8, bytes: &[u8]) -> Result<Self, CorruptRecord> {
        if code == NONE {
            return if bytes.is_empty() { Ok(Self::default()) } else { Err(CorruptRecord) };
        }
        let profile = Profile::from_code(code).filter(|profile| profile.values() == *profile);
        let profile = profile.ok_or(CorruptRecord)?;
        let (bits, values) = bytes.split_at_checked(units(profile) as usize / 8).ok_or(CorruptRecord)?;
        let known = bits.iter().rev().fold(0, |known: KnownUnits, &byte| known << 8 | KnownUnits::from(byte));
        if known == 0 || values.len() != known.count_ones() as usize * profile.value_bytes() {
            return Err(CorruptRecord);
        }
        Ok(Self { profile: Some(profile), known, values: values.into() })
    }
}

/// The flat form, with space for each unit's digest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlatDigests {
    profile: Option<Profile>,
    known: KnownUnits,
    values: Vec<u8>,
}

impl FlatDigests {
    /// Returns the form without digests under a profile; without a profile there never are any.
    pub(crate) fn empty(profile: Option<Profile>) -> Self {
        Self { profile: profile.map(Profile::values), known: 0, values: Vec::new() }
    }

    /// Returns the digests of a chunk, if they have this profile.
    pub(crate) fn of(packed: &PackedDigests, profile: Option<Profile>) -> Self {
        let mut flat = Self::empty(profile);
        if let Some(profile) = flat.profile
            && packed.profile == Some(profile)
        {
            for (unit, value) in packed.iter(profile) {
                flat.set(unit, &value);
            }
        }
        flat
    }

    fn location(&mut self, unit: u32) -> Option<&mut [u8]> {
        let profile = self.profile?;
        let length = profile.value_bytes();
        if self.values.is_empty() {
            self.values = vec![0; units(profile) as usize * length];
        }
        Some(&mut self.values[unit as usize * length..][..length])
    }

    /// Whether the digest of a unit is known.
    pub(crate) fn has_digest(&self, unit: u32) -> bool {
        self.known & bit(unit) != 0
    }

    /// Returns the digest of a unit, if it is known.
    pub(crate) fn get(&self, unit: u32) -> Option<Digest> {
        let length = self.profile.filter(|_| self.has_digest(unit))?.value_bytes();
        Digest::new(&self.values[unit as usize * length..][..length])
    }

    /// Sets the digest of a unit, which must have this profile.
    pub(crate) fn set(&mut self, unit: u32, value: &Digest) {
        if let Some(location) = self.location(unit) {
            location.copy_from_slice(value.as_bytes());
            self.known |= bit(unit);
        }
    }

    /// Returns the profile byte of the record.
    pub(crate) fn code(&self) -> u8 {
        self.profile.map_or(NONE, Profile::code)
    }

    /// Clears the digest of the unit that a changed block is in. Returns the unit's bit.
    pub(crate) fn forget(&mut self, block: u64) -> u128 {
        let Some(profile) = self.profile else { return 0 };
        let unit = (block * BLOCK / profile.unit_bytes()) as u32;
        if self.has_digest(unit) {
            self.known &= !bit(unit);
            if let Some(location) = self.location(unit) {
                location.fill(0);
            }
        }
        bit(unit)
    }

    /// Returns the compact form.
    pub(crate) fn pack(&self) -> PackedDigests {
        let Some(profile) = self.profile.filter(|_| self.known != 0) else { return PackedDigests::default() };
        let length = profile.value_bytes();
        let mut values = Vec::with_capacity(self.known.count_ones() as usize * length);
        for (value, unit) in self.values.chunks_exact(length).zip(0..) {
            if self.has_digest(unit) {
                values.extend_from_slice(value);
            }
        }
        PackedDigests { profile: Some(profile), known: self.known, values: values.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn flat_packed_and_bytes_agree(
            code in 1_u8..5, steps in proptest::collection::vec((0_u32..64, any::<bool>(), any::<u8>()), 0..150),
        ) {
            let profile = Profile::from_code(code).unwrap();
            let value = |byte: u8| Digest::new(&vec![byte; profile.value_bytes()]).unwrap();
            let mut flat = FlatDigests::empty(Some(profile));
            let mut model = BTreeMap::new();
            for (unit, set, byte) in steps {
                if set {
                    flat.set(unit, &value(byte));
                    model.insert(unit, value(byte));
                } else {
                    flat.forget(u64::from(unit) * profile.unit_bytes() / BLOCK + u64::from(byte) % 2);
                    model.remove(&unit);
                }
            }
            let packed = flat.pack();
            for unit in 0..64 {
                prop_assert_eq!(flat.get(unit), model.get(&unit).copied());
                prop_assert_eq!(packed.get(profile, unit), model.get(&unit).copied());
                prop_assert_eq!(packed.get(Profile::LtHash, unit), None);
            }
            prop_assert_eq!(packed.iter(profile).collect::<BTreeMap<_, _>>(), model);
            prop_assert_eq!(FlatDigests::of(&packed, Some(profile)).pack(), packed.clone());
            let other = if profile == Profile::Sha1 { Profile::Blake3 } else { Profile::Sha1 };
            prop_assert_eq!(FlatDigests::of(&packed, Some(other)), FlatDigests::empty(Some(other)));
            let mut bytes = Vec::new();
            packed.encode(&mut bytes);
            prop_assert_eq!(PackedDigests::parse(packed.code(), &bytes), Ok(packed));
        }

        #[test]
        fn arbitrary_bytes_never_panic(code: u8, bytes: Vec<u8>) {
            if let Ok(packed) = PackedDigests::parse(code, &bytes) {
                let mut again = Vec::new();
                packed.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn without_a_profile_nothing_is_kept() {
        let mut flat = FlatDigests::empty(None);
        flat.set(3, &Digest::from([1; 32]));
        flat.forget(12);
        assert_eq!((flat.get(3), flat.pack()), (None, PackedDigests::default()));
        assert_eq!(PackedDigests::parse(0, &[1]), Err(CorruptRecord));
        // The profile of the sum is not one of chunks.
        assert_eq!(PackedDigests::parse(Profile::LtHash.code(), &[0; 8]), Err(CorruptRecord));
    }
}
