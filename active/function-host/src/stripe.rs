//! Arithmetic of striped files, from the view of one object.
//!
//! A striped file consists of stripe units. Unit `k` is in object `k % width`, after the units
//! before it. The client passes the geometry of object `N` as the argument `stripe.N`.
//! Source of truth: docs/reference/shipped-functions.md; `sealstone-mds-protocol` has the client's
//! side.

use core::fmt;

use crate::{ArgumentError, FunctionArguments};

/// Maximum size of a stripe unit, bytes.
pub const STRIPE_UNIT_BYTES_MAX: u64 = 1 << 26;
/// Maximum number of objects of a striped file.
const STRIPE_WIDTH_MAX: u64 = 1 << 16;

/// An invalid geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeometryError;

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stripe geometry: expected UNIT,WIDTH,INDEX,LENGTH with INDEX below WIDTH")
    }
}

impl core::error::Error for GeometryError {}

/// Position of one object in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeGeometry {
    unit: u64,
    width: u64,
    index: u64,
    length: u64,
}

/// A contiguous part of a file that one object contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeUnit {
    /// Number of the unit in the file.
    pub number: u64,
    /// Offset in the file, bytes.
    pub file_offset: u64,
    /// Offset in the object, bytes.
    pub object_offset: u64,
    /// Length in bytes; positive, except for the only unit of an empty file.
    pub length: u64,
    /// Whether the file ends with this unit.
    pub is_last: bool,
}

impl StripeUnit {
    /// Whether the file begins with this unit.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.file_offset == 0
    }
}

impl StripeGeometry {
    /// Returns the geometry of object `index` of `width`, for a file of `length` bytes.
    pub const fn new(unit: u64, width: u64, index: u64, length: u64) -> Result<Self, GeometryError> {
        let is_valid = width >= 1
            && width <= STRIPE_WIDTH_MAX
            && index < width
            && length <= i64::MAX as u64
            && (width == 1 || (unit >= 1 && unit <= STRIPE_UNIT_BYTES_MAX));
        if is_valid { Ok(Self { unit, width, index, length }) } else { Err(GeometryError) }
    }

    /// Returns the geometry of a file that is one object.
    #[must_use]
    pub const fn whole(length: u64) -> Self {
        Self { unit: 0, width: 1, index: 0, length }
    }

    /// Parses `UNIT,WIDTH,INDEX,LENGTH`.
    pub fn parse(text: &str) -> Result<Self, GeometryError> {
        let mut numbers = text.split(',').map(str::parse::<u64>);
        let mut next = || numbers.next().and_then(Result::ok).ok_or(GeometryError);
        let geometry = Self::new(next()?, next()?, next()?, next()?)?;
        if numbers.next().is_some() { Err(GeometryError) } else { Ok(geometry) }
    }

    /// Returns the geometry of an object from the arguments, if the client sent one.
    pub fn from_arguments(
        arguments: &FunctionArguments<'_>,
        object: u32,
    ) -> Result<Option<Self>, ArgumentError> {
        let invalid = ArgumentError::Invalid {
            name: "stripe",
            expected: "UNIT,WIDTH,INDEX,LENGTH with INDEX below WIDTH",
        };
        arguments
            .get(&alloc::format!("stripe.{object}"))
            .map(|text| Self::parse(text).map_err(|GeometryError| invalid))
            .transpose()
    }

    /// Whether the file is one object.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.width == 1
    }

    /// Returns the size of a stripe unit in bytes; the file's length if it is one object.
    #[must_use]
    pub const fn unit_bytes(&self) -> u64 {
        if self.is_whole() { self.length } else { self.unit }
    }

    /// Returns the number of objects of the file.
    #[must_use]
    pub const fn width(&self) -> u64 {
        self.width
    }

    /// Returns the position of the object in the file's stripes.
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.index
    }

    /// Whether unit, width and file length are equal, as they are for objects of one file.
    #[must_use]
    pub const fn has_same_stripes(&self, other: &Self) -> bool {
        self.unit == other.unit && self.width == other.width && self.length == other.length
    }

    /// Returns the length of the file in bytes.
    #[must_use]
    pub const fn file_length(&self) -> u64 {
        self.length
    }

    /// Returns the number of units of the file; 1 for a file that is one object.
    #[must_use]
    pub const fn unit_count(&self) -> u64 {
        if self.is_whole() { 1 } else { self.length.div_ceil(self.unit) }
    }

    /// Returns a unit of the file by its number, of any object; `None` beyond the last one.
    #[must_use]
    pub fn unit_at(self, number: u64) -> Option<StripeUnit> {
        let count = self.unit_count();
        let unit = self.unit_bytes();
        let file_offset = number.checked_mul(unit)?;
        (number < count).then(|| StripeUnit {
            number,
            file_offset,
            object_offset: number / self.width * unit,
            length: unit.min(self.length - file_offset),
            is_last: number + 1 == count,
        })
    }

    /// Returns the units of this object in the order of the file.
    pub fn units(self) -> impl Iterator<Item = StripeUnit> {
        let step = usize::try_from(self.width).unwrap_or(usize::MAX);
        (self.index..self.unit_count()).step_by(step).filter_map(move |number| self.unit_at(number))
    }
}

impl fmt::Display for StripeGeometry {
    /// Writes the form that [`StripeGeometry::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{},{}", self.unit, self.width, self.index, self.length)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_geometry_is_refused() {
        for text in [
            "",
            "4096,2,0",
            "4096,2,2,100",
            "0,2,0,100",
            "4096,0,0,100",
            "4096,2,0,100,1",
            "4096,2,-1,100",
            "134217728,2,0,1",
            "4096,2,0,9223372036854775808",
            "4096,65537,0,1",
        ] {
            assert_eq!(StripeGeometry::parse(text), Err(GeometryError), "{text}");
        }
    }

    #[test]
    fn whole_file_is_one_unit() {
        let units: Vec<_> = StripeGeometry::whole(10).units().collect();
        let expected = StripeUnit { number: 0, file_offset: 0, object_offset: 0, length: 10, is_last: true };
        assert_eq!(units, [expected]);
    }

    proptest! {
        #[test]
        fn units_of_all_objects_cover_file(unit in 1u64..50, width in 2u64..6, length in 0u64..600) {
            let mut units = Vec::new();
            for index in 0..width {
                let geometry = StripeGeometry::new(unit, width, index, length).unwrap();
                prop_assert_eq!(StripeGeometry::parse(&geometry.to_string()), Ok(geometry));
                let mut object_end = 0;
                for part in geometry.units() {
                    prop_assert_eq!(part.object_offset, object_end);
                    object_end += part.length;
                    units.push(part);
                }
            }
            units.sort_by_key(|part| part.number);
            let mut end = 0;
            for part in &units {
                prop_assert_eq!(part.file_offset, end);
                end += part.length;
                prop_assert_eq!(part.is_last, end == length);
            }
            prop_assert_eq!(end, length);
        }
    }
}
