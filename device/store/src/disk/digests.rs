//! The digests of a chunk's units, beside its checksums.
//!
//! Does: keep those that are known, compactly in the record and laid out flat for changing; forget a unit's as soon as
//! one of its blocks changes. Does not: compute them, or hold any of a hole.
//! Truth: docs/design/store.md, "Chunk record".

use sealstone_digest::{Profile, Value};

use super::chunk::CHUNK_BLOCKS;
use super::record::Rotten;
use crate::BLOCK;

/// Bytes of a chunk.
const CHUNK_BYTES: u64 = CHUNK_BLOCKS * BLOCK;
/// The profile byte of a chunk record without digests.
const NONE: u8 = 0;

/// Units of one chunk: 64 or 128.
const fn units(profile: Profile) -> u32 {
    (CHUNK_BYTES / profile.unit_bytes()) as u32
}

/// Which units have a known value, by bit.
type Known = u128;

fn bit(unit: u32) -> Known {
    1 << unit
}

/// The compact form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packed {
    profile: Option<Profile>,
    known: Known,
    /// The known values, by unit.
    values: Box<[u8]>,
}

impl Packed {
    /// The value of a unit of the chunk, if it is known under this profile.
    pub(crate) fn get(&self, profile: Profile, unit: u32) -> Option<Value> {
        if self.profile != Some(profile) || self.known & bit(unit) == 0 {
            return None;
        }
        let before = (self.known & (bit(unit) - 1)).count_ones() as usize;
        let length = profile.value_bytes();
        Value::new(&self.values[before * length..][..length])
    }

    /// What its values are of, if any is known.
    pub(crate) fn profile(&self) -> Option<Profile> {
        self.profile
    }

    /// The known units and their values.
    pub(crate) fn iter(&self, profile: Profile) -> impl Iterator<Item = (u32, Value)> + '_ {
        (0..units(profile)).filter_map(move |unit| Some((unit, self.get(profile, unit)?)))
    }

    /// Memory of the values in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.values.len()
    }

    /// The profile byte of the record.
    pub(crate) fn code(&self) -> u8 {
        self.profile.map_or(NONE, Profile::code)
    }

    /// Appends: which are known (a bit for each unit, the lowest first), then those values. Nothing if none is.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        if let Some(profile) = self.profile {
            out.extend_from_slice(&self.known.to_le_bytes()[..units(profile) as usize / 8]);
            out.extend_from_slice(&self.values);
        }
    }

    /// Parses what [`encode`](Self::encode) wrote, of the profile with this byte.
    pub(crate) fn parse(code: u8, bytes: &[u8]) -> Result<Self, Rotten> {
        if code == NONE {
            return if bytes.is_empty() { Ok(Self::default()) } else { Err(Rotten) };
        }
        let profile = Profile::from_code(code).filter(|profile| profile.values() == *profile);
        let profile = profile.ok_or(Rotten)?;
        let (bits, values) = bytes.split_at_checked(units(profile) as usize / 8).ok_or(Rotten)?;
        let known = bits.iter().rev().fold(0, |known: Known, &byte| known << 8 | Known::from(byte));
        if known == 0 || values.len() != known.count_ones() as usize * profile.value_bytes() {
            return Err(Rotten);
        }
        Ok(Self { profile: Some(profile), known, values: values.into() })
    }
}

/// The flat form: room for each unit's value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flat {
    profile: Option<Profile>,
    known: Known,
    values: Vec<u8>,
}

impl Flat {
    /// No values, by a profile; by none there never are any.
    pub(crate) fn empty(profile: Option<Profile>) -> Self {
        Self { profile: profile.map(Profile::values), known: 0, values: Vec::new() }
    }

    /// Those values of a chunk that are of this profile.
    pub(crate) fn of(packed: &Packed, profile: Option<Profile>) -> Self {
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

    fn place(&mut self, unit: u32) -> Option<&mut [u8]> {
        let profile = self.profile?;
        let length = profile.value_bytes();
        if self.values.is_empty() {
            self.values = vec![0; units(profile) as usize * length];
        }
        Some(&mut self.values[unit as usize * length..][..length])
    }

    /// Is the value of a unit known?
    pub(crate) fn knows(&self, unit: u32) -> bool {
        self.known & bit(unit) != 0
    }

    /// The value of a unit, if it is known.
    pub(crate) fn get(&self, unit: u32) -> Option<Value> {
        let length = self.profile.filter(|_| self.knows(unit))?.value_bytes();
        Value::new(&self.values[unit as usize * length..][..length])
    }

    /// Notes the value of a unit, which is of the profile.
    pub(crate) fn set(&mut self, unit: u32, value: &Value) {
        if let Some(place) = self.place(unit) {
            place.copy_from_slice(value.as_bytes());
            self.known |= bit(unit);
        }
    }

    /// The profile byte of the record.
    pub(crate) fn code(&self) -> u8 {
        self.profile.map_or(NONE, Profile::code)
    }

    /// A block of the chunk changes: its unit's value is not known any more. Gives the unit's bit.
    pub(crate) fn forget(&mut self, block: u64) -> u128 {
        let Some(profile) = self.profile else { return 0 };
        let unit = (block * BLOCK / profile.unit_bytes()) as u32;
        if self.knows(unit) {
            self.known &= !bit(unit);
            if let Some(place) = self.place(unit) {
                place.fill(0);
            }
        }
        bit(unit)
    }

    /// The compact form.
    pub(crate) fn pack(&self) -> Packed {
        let Some(profile) = self.profile.filter(|_| self.known != 0) else { return Packed::default() };
        let length = profile.value_bytes();
        let mut values = Vec::with_capacity(self.known.count_ones() as usize * length);
        for (value, unit) in self.values.chunks_exact(length).zip(0..) {
            if self.knows(unit) {
                values.extend_from_slice(value);
            }
        }
        Packed { profile: Some(profile), known: self.known, values: values.into() }
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
            let value = |byte: u8| Value::new(&vec![byte; profile.value_bytes()]).unwrap();
            let mut flat = Flat::empty(Some(profile));
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
            prop_assert_eq!(Flat::of(&packed, Some(profile)).pack(), packed.clone());
            let other = if profile == Profile::Sha1 { Profile::Blake3 } else { Profile::Sha1 };
            prop_assert_eq!(Flat::of(&packed, Some(other)), Flat::empty(Some(other)));
            let mut bytes = Vec::new();
            packed.encode(&mut bytes);
            prop_assert_eq!(Packed::parse(packed.code(), &bytes), Ok(packed));
        }

        #[test]
        fn arbitrary_bytes_never_panic(code: u8, bytes: Vec<u8>) {
            if let Ok(packed) = Packed::parse(code, &bytes) {
                let mut again = Vec::new();
                packed.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn without_a_profile_nothing_is_kept() {
        let mut flat = Flat::empty(None);
        flat.set(3, &Value::from([1; 32]));
        flat.forget(12);
        assert_eq!((flat.get(3), flat.pack()), (None, Packed::default()));
        assert_eq!(Packed::parse(0, &[1]), Err(Rotten));
        // The sum's profile is none of chunks.
        assert_eq!(Packed::parse(Profile::LtHash.code(), &[0; 8]), Err(Rotten));
    }
}
