//! Which digests stand for a range of an object.
//!
//! Does: cut a range into an edge, whole units and an edge, for both ends of a transfer alike.
//! Contract: the parts lie side by side and are the range; at most the first and the last one are edges.
//! Truth: docs/design/security.md 5.1: a unit that the range covers up to the object's end is whole.

use alloc::vec::Vec;
use core::ops::Range;

use crate::{Profile, Value};

/// A range of an object, cut at the units of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cover {
    profile: Profile,
    range: Range<u64>,
    object_length: u64,
}

/// A piece of the range with one digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// All that the object has of a unit: its stored value stands for it.
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

impl Part {
    /// Its bytes in the object.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        let (Self::Whole { range, .. } | Self::Edge { range, .. }) = self;
        range.clone()
    }
}

impl Cover {
    /// The cover of `length` bytes at `offset` of an object of `object_length` bytes; what is beyond its end is not
    /// in it.
    #[must_use]
    pub fn new(profile: Profile, offset: u64, length: u64, object_length: u64) -> Self {
        let end = offset.saturating_add(length).min(object_length);
        Self { profile: profile.values(), range: offset.min(end)..end, object_length }
    }

    /// The cover of data to write. The writer does not know where the object ends: a unit that the data does not fill
    /// is an edge.
    #[must_use]
    pub fn of_write(profile: Profile, offset: u64, length: u64) -> Self {
        Self::new(profile, offset, length, u64::MAX)
    }

    /// The profile of the values.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// The bytes that are covered.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// The units that it touches.
    fn units(&self) -> Range<u64> {
        let unit = self.profile.unit_bytes();
        if self.range.is_empty() { 0..0 } else { self.range.start / unit..self.range.end.div_ceil(unit) }
    }

    /// How many parts it has.
    #[must_use]
    pub fn count(&self) -> u64 {
        let units = self.units();
        units.end - units.start
    }

    /// The part of a unit that it touches.
    fn part(&self, unit: u64) -> Part {
        let bytes = self.profile.unit_bytes();
        let whole = unit * bytes..(unit * bytes).saturating_add(bytes).min(self.object_length);
        let range = whole.start.max(self.range.start)..whole.end.min(self.range.end);
        if range == whole { Part::Whole { unit, range } } else { Part::Edge { unit, range } }
    }

    /// Its parts in order.
    pub fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        self.units().map(|unit| self.part(unit))
    }

    /// The units that are covered as a whole.
    #[must_use]
    pub fn whole_units(&self) -> Range<u64> {
        let Range { start, end } = self.units();
        if start == end {
            return start..end;
        }
        let is_edge = |unit| u64::from(matches!(self.part(unit), Part::Edge { .. }));
        let first = start + is_edge(start);
        first..(end - is_edge(end - 1)).max(first)
    }
}

/// The digests of all parts of a range, made from its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Covered {
    cover: Cover,
    values: Vec<Value>,
}

impl Covered {
    /// Computes all from `data`, the bytes of the range.
    ///
    /// # Panics
    /// If there are not as many bytes as the cover has.
    #[must_use]
    pub fn of(cover: Cover, data: &[u8]) -> Self {
        assert_eq!(data.len() as u64, cover.range.end - cover.range.start, "bytes of the range");
        Self::with(cover, data, |_| None)
    }

    /// As [`of`](Self::of); `stored` gives the values of whole units that are known already.
    ///
    /// # Panics
    /// As `of`.
    #[must_use]
    pub fn with(cover: Cover, data: &[u8], stored: impl Fn(u64) -> Option<Value>) -> Self {
        let profile = cover.profile;
        let bytes = |range: &Range<u64>| {
            let from = (range.start - cover.range.start) as usize;
            &data[from..from + (range.end - range.start) as usize]
        };
        let value = |part: Part| match part {
            Part::Whole { unit, range } => stored(unit).unwrap_or_else(|| profile.value(unit, bytes(&range))),
            Part::Edge { range, .. } => profile.edge(range.start, bytes(&range)),
        };
        let values = cover.parts().map(value).collect();
        Self { cover, values }
    }

    /// What it is of.
    #[must_use]
    pub fn cover(&self) -> &Cover {
        &self.cover
    }

    /// The values of all parts, in order.
    #[must_use]
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// The value of a unit that is covered as a whole.
    #[must_use]
    pub fn whole(&self, unit: u64) -> Option<Value> {
        let first = self.cover.units().start;
        self.cover.whole_units().contains(&unit).then(|| self.values[(unit - first) as usize])
    }

    /// The value of a unit if `range` is what is covered of it, and that as a whole.
    #[must_use]
    pub fn whole_of(&self, unit: u64, range: &Range<u64>) -> Option<Value> {
        let found = self.whole(unit)?;
        (self.cover.part(unit).range() == *range).then_some(found)
    }

    /// The values one after the other, as a MAC takes them.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.values.iter().flat_map(Value::as_bytes).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec;

    use super::*;

    proptest! {
        /// The parts are the range, in order; edges are the first and the last at most; and both ends cut alike,
        /// whether they take the values from the store or from the data.
        #[test]
        fn a_cover_is_the_range(
            code in 1_u8..6, offset in 0_u64..60_000, length in 0_u64..60_000, object in 0_u64..80_000,
        ) {
            let profile = Profile::from_code(code).unwrap();
            let cover = Cover::new(profile, offset, length, object);
            let range = cover.range();
            prop_assert_eq!(range.clone(), offset.min((offset + length).min(object))..(offset + length).min(object));
            let parts: Vec<Part> = cover.parts().collect();
            prop_assert_eq!(parts.len() as u64, cover.count());
            let mut at = range.start;
            let mut whole = Vec::new();
            for (index, part) in parts.iter().enumerate() {
                prop_assert_eq!(part.range().start, at);
                prop_assert!(part.range().end > at);
                at = part.range().end;
                match part {
                    Part::Whole { unit, range } => {
                        whole.push(*unit);
                        prop_assert_eq!(range.start, unit * profile.unit_bytes());
                        prop_assert_eq!(range.end, (range.start + profile.unit_bytes()).min(object));
                    }
                    Part::Edge { .. } => prop_assert!(index == 0 || index == parts.len() - 1),
                }
            }
            prop_assert_eq!(at, range.end);
            prop_assert_eq!(cover.whole_units().collect::<Vec<_>>(), whole);
            let bytes: Vec<u8> = (0..object).map(|at| (at * 7 + at / 251) as u8).collect();
            let data = &bytes[range.start as usize..range.end as usize];
            let client = Covered::of(cover.clone(), data);
            let device = Covered::with(cover, data, |unit| {
                let from = (unit * profile.unit_bytes()) as usize;
                let to = (from + profile.unit_bytes() as usize).min(bytes.len());
                Some(profile.value(unit, &bytes[from..to]))
            });
            prop_assert_eq!(&client, &device);
            prop_assert_eq!(client.to_bytes().len() as u64, client.cover().count() * profile.value_bytes() as u64);
        }
    }

    #[test]
    fn a_writers_last_unit_is_an_edge_unless_it_is_full() {
        let cover = Cover::of_write(Profile::Blake3, 0, 20_000);
        let parts: Vec<Part> = cover.parts().collect();
        assert_eq!(
            parts,
            [Part::Whole { unit: 0, range: 0..16_384 }, Part::Edge { unit: 1, range: 16_384..20_000 }]
        );
        let covered = Covered::of(cover, &vec![1; 20_000]);
        assert_eq!(covered.whole(0), Some(Profile::Blake3.value(0, &[1; 16_384])));
        assert_eq!((covered.whole(1), covered.whole(2)), (None, None));
    }

    #[test]
    fn the_ends_of_numbers_do_not_overflow() {
        for profile in Profile::ALL {
            let cover = Cover::new(profile, u64::MAX - 5, u64::MAX, u64::MAX);
            assert_eq!(cover.parts().map(|part| part.range().end).collect::<Vec<_>>(), [u64::MAX]);
            assert_eq!(Cover::new(profile, 10, 0, 100).count(), 0);
            assert_eq!(Cover::new(profile, 200, 5, 100).count(), 0);
        }
    }
}
