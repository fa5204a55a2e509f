//! Checksums and digests of the data of a write, computed in one pass before any lock is acquired.
//!
//! Does: computes the digest of each unit that the data covers, together with the checksums of its
//! blocks, while the unit is in the CPU's cache.
//! Does not: know the object's content; partial blocks and units are handled later.

use std::ops::Range;

use sealstone_digest::{CoveredDigests, DigestValue as Digest, Profile};

use crate::BLOCK;

/// Checksums and digests computed from some data.
#[derive(Default)]
pub(crate) struct PreparedData<'a> {
    /// The blocks that the data covers completely.
    blocks: Range<u64>,
    sums: Vec<u32>,
    profile: Option<Profile>,
    first_unit: u64,
    values: Vec<Digest>,
    /// Digests that the caller supplied; they take precedence over ours.
    covered: Option<&'a CoveredDigests>,
}

impl<'a> PreparedData<'a> {
    /// Computes the values of `data`, which is to be written at `offset`.
    pub(crate) fn of(
        profile: Option<Profile>,
        offset: u64,
        data: &[u8],
        covered: Option<&'a CoveredDigests>,
    ) -> Self {
        let profile = profile.map(Profile::values);
        let end = offset + data.len() as u64;
        let blocks = offset.div_ceil(BLOCK)..(end / BLOCK).max(offset.div_ceil(BLOCK));
        let covered = covered.filter(|covered| {
            Some(covered.cover().profile()) == profile && covered.cover().range() == (offset..end)
        });
        let unit_bytes = profile.map_or(BLOCK, Profile::unit_bytes);
        let mut prepared = Self {
            blocks: blocks.clone(),
            profile,
            covered,
            first_unit: offset.div_ceil(unit_bytes),
            ..Self::default()
        };
        prepared.sums.reserve_exact((blocks.end - blocks.start) as usize);
        let bytes = |from: u64, length: u64| &data[(from - offset) as usize..][..length as usize];
        for block in blocks {
            let start = block * BLOCK;
            if let Some(profile) = profile
                && covered.is_none()
                && start.is_multiple_of(unit_bytes)
                && start + unit_bytes <= end
            {
                prepared.values.push(profile.value(start / unit_bytes, bytes(start, unit_bytes)));
            }
            prepared.sums.push(crate::crc::crc32c(bytes(start, BLOCK)));
        }
        prepared
    }

    /// Returns the checksum of a block, if the data covers it.
    pub(crate) fn sum(&self, block: u64) -> Option<u32> {
        self.sums.get(block.checked_sub(self.blocks.start)? as usize).copied()
    }

    /// Returns the digest of a unit with the bytes `range` of the object, if the data covers it.
    pub(crate) fn value(&self, profile: Profile, unit: u64, range: &Range<u64>) -> Option<Digest> {
        if self.profile != Some(profile) {
            return None;
        }
        if let Some(covered) = self.covered {
            return covered.whole_of(unit, range);
        }
        if range.end - range.start < profile.unit_bytes() {
            return None;
        }
        self.values.get(unit.checked_sub(self.first_unit)? as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sealstone_digest::DigestCover;

    use super::*;

    proptest! {
        /// Values of whole blocks and units are known and right, whether the store or the caller
        /// computes them.
        #[test]
        fn whole_blocks_and_units_are_known(offset in 0_u64..40_000, length in 0_usize..100_000, code in 0_u8..6) {
            let profile = Profile::from_code(code);
            let values = profile.map(Profile::values);
            let data: Vec<u8> = (0..length).map(|at| (at / 7) as u8).collect();
            let covered = profile.map(|profile| {
                // As if the object ended with the data.
                let end = offset + length as u64;
                CoveredDigests::of(DigestCover::new(profile, offset, length as u64, end), &data)
            });
            let ours = PreparedData::of(profile, offset, &data, None);
            let theirs = PreparedData::of(profile, offset, &data, covered.as_ref());
            let end = offset + length as u64;
            for block in 0..40 {
                let (from, to) = (block * BLOCK, (block + 1) * BLOCK);
                let sum = (from >= offset && to <= end)
                    .then(|| crate::crc::crc32c(&data[(from - offset) as usize..(to - offset) as usize]));
                prop_assert_eq!(ours.sum(block), sum);
                prop_assert_eq!(theirs.sum(block), sum);
            }
            let Some(profile) = values else { return Ok(()) };
            for unit in 0..20 {
                let range = unit * profile.unit_bytes()..(unit + 1) * profile.unit_bytes();
                let value = (range.start >= offset && range.end <= end).then(|| {
                    profile.value(unit, &data[(range.start - offset) as usize..(range.end - offset) as usize])
                });
                prop_assert_eq!(ours.value(profile, unit, &range), value);
                prop_assert_eq!(theirs.value(profile, unit, &range), value);
                // The last unit is short if the object ends with the data.
                let short = range.start..end.min(range.end);
                if range.start >= offset && short.end > short.start && short != range {
                    let value = profile.value(unit, &data[(short.start - offset) as usize..(short.end - offset) as usize]);
                    prop_assert_eq!(theirs.value(profile, unit, &short), Some(value));
                    prop_assert_eq!(theirs.value(profile, unit, &(short.start..short.end + 1)), None);
                    prop_assert_eq!(ours.value(profile, unit, &short), None);
                }
            }
            let other = if profile == Profile::Sha1 { Profile::Blake3 } else { Profile::Sha1 };
            prop_assert_eq!(theirs.value(other, 1, &(other.unit_bytes()..2 * other.unit_bytes())), None);
        }
    }
}
