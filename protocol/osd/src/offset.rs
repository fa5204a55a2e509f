//! Offsets into the data buffers: 28 bits of mantissa, 4 of exponent (OSD-1 §5.2.1, OSD-2 §5.2.4).
//!
//! Source of truth: `docs/standards/osd.md`, offsets. OSD-1 counts in 256 bytes, OSD-2 in 8, with a
//! signed exponent.

use crate::Generation;

/// The field value of an offset that is not used; 0 is a legal offset.
pub const UNUSED: u32 = 0xFFFF_FFFF;

/// Largest mantissa.
const MANTISSA_MAX: u64 = 0x0FFF_FFFF;

/// The value of an offset field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// All ones: no offset.
    Unused,
    /// Bytes from the start of the buffer.
    At(u64),
    /// An OSD-2 exponent below −5: finer than the 8 bytes permitted.
    Reserved,
}

/// Returns smallest and largest shift of the mantissa.
const fn shifts(generation: Generation) -> (u32, u32) {
    match generation {
        Generation::Osd1 => (8, 23),
        Generation::Osd2 => (3, 15),
    }
}

/// Returns the granularity of offsets in bytes.
#[must_use]
pub const fn granularity(generation: Generation) -> u64 {
    1 << shifts(generation).0
}

/// Decodes a field.
#[must_use]
pub const fn decode(generation: Generation, field: u32) -> Decoded {
    if field == UNUSED {
        return Decoded::Unused;
    }
    let mantissa = field as u64 & MANTISSA_MAX;
    let nibble = field >> 28;
    let shift = match generation {
        Generation::Osd1 => nibble + 8,
        Generation::Osd2 => (nibble ^ 8) & 0xF, // signed −8..7, plus 8
    };
    if shift < shifts(generation).0 { Decoded::Reserved } else { Decoded::At(mantissa << shift) }
}

/// Returns the field for exactly this offset, with the finest exponent that can express it; `None`
/// if there is none. Offset 0 is all zeros, as peers write it.
#[must_use]
pub const fn encode(generation: Generation, offset: u64) -> Option<u32> {
    if offset == 0 {
        return Some(0);
    }
    let (mut shift, last) = shifts(generation);
    while shift <= last {
        let mantissa = offset >> shift;
        if mantissa <= MANTISSA_MAX {
            let nibble = match generation {
                Generation::Osd1 => shift - 8,
                Generation::Osd2 => (shift ^ 8) & 0xF,
            };
            let field = nibble << 28 | mantissa as u32;
            return if mantissa << shift == offset && field != UNUSED { Some(field) } else { None };
        }
        shift += 1;
    }
    None
}

/// Returns the smallest offset not below `offset` that a field can express; `None` past the
/// largest.
#[must_use]
pub const fn align_up(generation: Generation, offset: u64) -> Option<u64> {
    let (mut shift, last) = shifts(generation);
    while shift <= last {
        let mantissa = offset.div_ceil(1 << shift);
        if mantissa <= MANTISSA_MAX {
            let aligned = mantissa << shift;
            if encode(generation, aligned).is_some() {
                return Some(aligned);
            }
        }
        shift += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use Generation::{Osd1, Osd2};

    #[test]
    fn the_examples_of_the_reference_hold() {
        assert_eq!(encode(Osd2, 24), Some(0xB000_0003));
        assert_eq!(encode(Osd1, 256), Some(0x0000_0001));
        assert_eq!(decode(Osd2, 0xB000_0020), Decoded::At(256));
        assert_eq!(decode(Osd2, 0x0000_0001), Decoded::At(256));
        assert_eq!(decode(Osd2, 0xA000_0001), Decoded::Reserved);
        assert_eq!((decode(Osd2, 0), encode(Osd2, 0)), (Decoded::At(0), Some(0)));
        assert_eq!(decode(Osd1, UNUSED), Decoded::Unused);
        assert_eq!((encode(Osd1, 8), encode(Osd2, 4)), (None, None));
        assert_eq!((granularity(Osd1), granularity(Osd2)), (256, 8));
    }

    #[test]
    fn unused_value_is_never_an_offset() {
        for (generation, shift) in [(Osd1, 23), (Osd2, 7)] {
            assert_eq!(encode(generation, MANTISSA_MAX << shift), None);
        }
        assert_eq!(align_up(Osd2, MANTISSA_MAX << 7), Some(1 << 35));
        assert_eq!(align_up(Osd1, MANTISSA_MAX << 23), None);
    }

    proptest! {
        #[test]
        fn an_aligned_offset_survives_the_wire(
            offset in any::<u64>().prop_flat_map(|value| (0..64_u32).prop_map(move |by| value >> by)),
            generation in prop_oneof![Just(Osd1), Just(Osd2)],
        ) {
            if let Some(aligned) = align_up(generation, offset) {
                prop_assert!(aligned >= offset);
                let field = encode(generation, aligned).unwrap();
                prop_assert_eq!(decode(generation, field), Decoded::At(aligned));
            }
        }

        #[test]
        fn any_field_decodes(field in any::<u32>()) {
            for generation in [Osd1, Osd2] {
                let _ = decode(generation, field);
            }
        }
    }
}
