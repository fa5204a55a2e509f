//! Which digests cover a range of an object.
//!
//! Does: splits a range into an edge, whole units and an edge, in the same way at both ends of a
//! transfer.
//! Contract: the parts are adjacent and form the range; at most the first and the last one are
//! edges.
//! Source of truth: docs/design/security.md 5.1: a unit that the range covers up to the object's
//! end is whole.

use alloc::vec::Vec;
use core::ops::Range;

use crate::{DigestValue, Profile};

/// A range of an object, split at the units of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestCover {
    profile: Profile,
    range: Range<u64>,
    object_length: u64,
}

/// A part of the range with one digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoverPart {
    /// All bytes that the object has of a unit: its stored value covers them.
    Whole {
        /// The unit's number.
        unit: u64,
        /// Its bytes in the object.
        range: Range<u64>,
    },
    /// A part of a unit.
    Edge {
        /// The unit's number.
        unit: u64,
        /// Its bytes in the object.
        range: Range<u64>,
    },
}

impl CoverPart {
    /// Returns its bytes in the object.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        let (Self::Whole { range, .. } | Self::Edge { range, .. }) = self;
        range.clone()
    }
}

impl DigestCover {
    /// Creates the cover of `length` bytes at `offset` of an object of `object_length` bytes,
    /// without bytes beyond its end.
    #[must_use]
    pub fn new(profile: Profile, offset: u64, length: u64, object_length: u64) -> Self {
        let end = offset.saturating_add(length).min(object_length);
        Self { profile: profile.values(), range: offset.min(end)..end, object_length }
    }

    /// Creates the cover of data to write. The writer does not know where the object ends: a unit
    /// that the data does not fill is an edge.
    #[must_use]
    pub fn of_write(profile: Profile, offset: u64, length: u64) -> Self {
        Self::new(profile, offset, length, u64::MAX)
    }

    /// Returns the profile of the values.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Returns the covered bytes.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Returns the units that it touches.
    fn units(&self) -> Range<u64> {
        let unit = self.profile.unit_bytes();
        if self.range.is_empty() { 0..0 } else { self.range.start / unit..self.range.end.div_ceil(unit) }
    }

    /// Returns the number of parts.
    #[must_use]
    pub fn count(&self) -> u64 {
        let units = self.units();
        units.end - units.start
    }

    /// Returns the part of a unit that it touches.
    fn part(&self, unit: u64) -> CoverPart {
        let bytes = self.profile.unit_bytes();
        let whole = unit * bytes..(unit * bytes).saturating_add(bytes).min(self.object_length);
        let range = whole.start.max(self.range.start)..whole.end.min(self.range.end);
        if range == whole { CoverPart::Whole { unit, range } } else { CoverPart::Edge { unit, range } }
    }

    /// Returns its parts in order.
    pub fn parts(&self) -> impl Iterator<Item = CoverPart> + '_ {
        self.units().map(|unit| self.part(unit))
    }

    /// Returns the units that are covered completely.
    #[must_use]
    pub fn whole_units(&self) -> Range<u64> {
        let Range { start, end } = self.units();
        if start == end {
            return start..end;
        }
        let is_edge = |unit| u64::from(matches!(self.part(unit), CoverPart::Edge { .. }));
        let first = start + is_edge(start);
        first..(end - is_edge(end - 1)).max(first)
    }
}

/// The digests of all parts of a range, computed from its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoveredDigests {
    cover: DigestCover,
    values: Vec<DigestValue>,
}

impl CoveredDigests {
    /// Computes all digests from `data`, the bytes of the range.
    ///
    /// # Panics
    /// If there are not as many bytes as the cover has.
    #[must_use]
    pub fn of(cover: DigestCover, data: &[u8]) -> Self {
        assert_eq!(data.len() as u64, cover.range.end - cover.range.start, "bytes of the range");
        Self::with(cover, data, |_| None)
    }

    /// Like [`of`](Self::of); `stored` returns the known values of whole units.
    ///
    /// # Panics
    /// As `of`.
    #[must_use]
    pub fn with(cover: DigestCover, data: &[u8], stored: impl Fn(u64) -> Option<DigestValue>) -> Self {
        let profile = cover.profile;
        let bytes = |range: &Range<u64>| {
            let from = (range.start - cover.range.start) as usize;
            &data[from..from + (range.end - range.start) as usize]
        };
        let value = |part: CoverPart| match part {
            CoverPart::Whole { unit, range } => {
                stored(unit).unwrap_or_else(|| profile.value(unit, bytes(&range)))
            }
            CoverPart::Edge { range, .. } => profile.edge(range.start, bytes(&range)),
        };
        let values = cover.parts().map(value).collect();
        Self { cover, values }
    }

    /// Returns the cover.
    #[must_use]
    pub fn cover(&self) -> &DigestCover {
        &self.cover
    }

    /// Returns the values of all parts, in order.
    #[must_use]
    pub fn values(&self) -> &[DigestValue] {
        &self.values
    }

    /// Returns the value of a unit that is covered completely.
    #[must_use]
    pub fn whole(&self, unit: u64) -> Option<DigestValue> {
        let first = self.cover.units().start;
        self.cover.whole_units().contains(&unit).then(|| self.values[(unit - first) as usize])
    }

    /// Returns the value of a unit that is covered completely and whose bytes are `range`.
    #[must_use]
    pub fn whole_of(&self, unit: u64, range: &Range<u64>) -> Option<DigestValue> {
        let found = self.whole(unit)?;
        (self.cover.part(unit).range() == *range).then_some(found)
    }

    /// Returns the concatenated values, as input of a MAC.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.values.iter().flat_map(DigestValue::as_bytes).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec;

    use super::*;

    proptest! {
        /// The parts are the range, in order; at most the first and the last are edges; and both
        /// ends split alike, whether they take the values from the store or from the data.
        #[test]
        fn a_cover_is_the_range(
            code in 1_u8..6, offset in 0_u64..60_000, length in 0_u64..60_000, object in 0_u64..80_000,
        ) {
            let profile = Profile::from_code(code).unwrap();
            let cover = DigestCover::new(profile, offset, length, object);
            let range = cover.range();
            prop_assert_eq!(range.clone(), offset.min((offset + length).min(object))..(offset + length).min(object));
            let parts: Vec<CoverPart> = cover.parts().collect();
            prop_assert_eq!(parts.len() as u64, cover.count());
            let mut at = range.start;
            let mut whole = Vec::new();
            for (index, part) in parts.iter().enumerate() {
                prop_assert_eq!(part.range().start, at);
                prop_assert!(part.range().end > at);
                at = part.range().end;
                match part {
                    CoverPart::Whole { unit, range } => {
                        whole.push(*unit);
                        prop_assert_eq!(range.start, unit * profile.unit_bytes());
                        prop_assert_eq!(range.end, (range.start + profile.unit_bytes()).min(object));
                    }
                    CoverPart::Edge { .. } => prop_assert!(index == 0 || index == parts.len() - 1),
                }
            }
            prop_assert_eq!(at, range.end);
            prop_assert_eq!(cover.whole_units().collect::<Vec<_>>(), whole);
            let bytes: Vec<u8> = (0..object).map(|at| (at * 7 + at / 251) as u8).collect();
            let data = &bytes[range.start as usize..range.end as usize];
            let client = CoveredDigests::of(cover.clone(), data);
            let device = CoveredDigests::with(cover, data, |unit| {
                let from = (unit * profile.unit_bytes()) as usize;
                let to = (from + profile.unit_bytes() as usize).min(bytes.len());
                Some(profile.value(unit, &bytes[from..to]))
            });
            prop_assert_eq!(&client, &device);
            prop_assert_eq!(client.to_bytes().len() as u64, client.cover().count() * profile.value_bytes() as u64);
        }
    }

    #[test]
    fn last_written_unit_is_edge_unless_full() {
        let cover = DigestCover::of_write(Profile::Blake3, 0, 20_000);
        let parts: Vec<CoverPart> = cover.parts().collect();
        assert_eq!(
            parts,
            [
                CoverPart::Whole { unit: 0, range: 0..16_384 },
                CoverPart::Edge { unit: 1, range: 16_384..20_000 }
            ]
        );
        let covered = CoveredDigests::of(cover, &vec![1; 20_000]);
        assert_eq!(covered.whole(0), Some(Profile::Blake3.value(0, &[1; 16_384])));
        assert_eq!((covered.whole(1), covered.whole(2)), (None, None));
    }

    #[test]
    fn the_ends_of_numbers_do_not_overflow() {
        for profile in Profile::ALL {
            let cover = DigestCover::new(profile, u64::MAX - 5, u64::MAX, u64::MAX);
            assert_eq!(cover.parts().map(|part| part.range().end).collect::<Vec<_>>(), [u64::MAX]);
            assert_eq!(DigestCover::new(profile, 10, 0, 100).count(), 0);
            assert_eq!(DigestCover::new(profile, 200, 5, 100).count(), 0);
        }
    }
}
