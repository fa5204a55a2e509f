//! The response integrity check value inside sense data (descriptor type 07h), on raw bytes.
//!
//! Does: finds it, appends it, removes it.
//! Does not: interpret any other descriptor.
//! Contract: descriptor-format sense only; any bytes are safe input.
//! Source of truth: t10-osd 5.1; docs/design/security.md 3.2 (carriers of the response ICV).

use alloc::vec::Vec;
use core::ops::Range;

use crate::Tag;

/// Type of the descriptor that carries a response integrity check value.
pub const RESPONSE_ICV_DESCRIPTOR: u8 = 0x07;
/// Maximum bytes of sense data.
pub const SENSE_MAX: usize = 252;
/// Bytes before the descriptors.
const HEADER: usize = 8;
/// Sense data of a GOOD reply: current, descriptor format, no sense, nothing before its only
/// descriptor.
const GOOD: [u8; HEADER] = [0x72, 0, 0, 0, 0, 0, 0, 0];

/// Returns the location of the first response ICV descriptor's value; `None` if there is none.
#[must_use]
pub fn response_icv_field(sense: &[u8]) -> Option<Range<usize>> {
    let found = descriptors(sense)?.find(|range| sense[range.start] == RESPONSE_ICV_DESCRIPTOR)?;
    Some(found.start + 2..found.end)
}

/// Returns the ranges of the complete descriptors in sense data of descriptor format.
fn descriptors(sense: &[u8]) -> Option<impl Iterator<Item = Range<usize>> + '_> {
    if sense.len() < HEADER || sense[0] & 0x7E != 0x72 {
        return None;
    }
    let end = sense.len().min(HEADER + usize::from(sense[7]));
    let mut at = HEADER;
    Some(core::iter::from_fn(move || {
        let length = usize::from(*sense.get(at + 1)?);
        let range = at..at + 2 + length;
        (range.end <= end).then(|| {
            at = range.end;
            range
        })
    }))
}

/// Returns sense data with a response ICV descriptor of `width` zero bytes at its end, ready for
/// the MAC, and the location of the value. Without sense (GOOD) the carrier is created. The last
/// descriptors are dropped where [`SENSE_MAX`] would be exceeded, and an older response ICV
/// descriptor is removed.
pub(crate) fn with_room(sense: &[u8], width: usize) -> (Vec<u8>, Range<usize>) {
    let mut out = Vec::with_capacity(SENSE_MAX);
    let room = SENSE_MAX - 2 - width;
    match descriptors(sense) {
        Some(all) => {
            out.extend_from_slice(&sense[..HEADER]);
            for range in all {
                if sense[range.start] != RESPONSE_ICV_DESCRIPTOR && out.len() + range.len() <= room {
                    out.extend_from_slice(&sense[range]);
                }
            }
        }
        None => out.extend_from_slice(&GOOD),
    }
    out.extend_from_slice(&[RESPONSE_ICV_DESCRIPTOR, width as u8]);
    let field = out.len()..out.len() + width;
    out.resize(field.end, 0);
    out[7] = (out.len() - HEADER) as u8;
    (out, field)
}

/// Returns the check value in the carrier of a GOOD reply: it must be alone, since the value does
/// not cover the carrier.
#[must_use]
pub fn good_carrier(sense: &[u8]) -> Option<&[u8]> {
    let field = response_icv_field(sense)?;
    let whole = field.end == sense.len() && usize::from(sense[7]) == sense.len() - HEADER;
    let bare = whole && field.start == HEADER + 2 && sense[..7] == GOOD[..7];
    bare.then(|| &sense[field])
}

/// Writes a tag at the location from [`with_room`].
pub(crate) fn place(sense: &mut [u8], field: Range<usize>, tag: &Tag) -> bool {
    sense.get_mut(field).is_some_and(|field| tag.place(field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_carrier_of_good_holds_nothing_else() {
        let (mut sense, field) = with_room(&[], 32);
        assert!(place(&mut sense, field, &Tag::from_sha256([3; 32])));
        assert_eq!(good_carrier(&sense), Some(&[3; 32][..]));
        let mut other = sense.clone();
        other[1] = 5;
        assert_eq!(good_carrier(&other), None);
        other = sense.clone();
        other.push(0);
        assert_eq!(good_carrier(&other), None);
    }

    #[test]
    fn full_sense_data_keeps_the_check_value() {
        let mut sense = alloc::vec![0x72, 5, 0x24, 0, 0, 0, 0, 240];
        for _ in 0..20 {
            sense.extend_from_slice(&[0x02, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        let (out, field) = with_room(&sense, 32);
        assert!(out.len() <= SENSE_MAX && out.len() > SENSE_MAX - 12);
        assert_eq!(response_icv_field(&out), Some(field));
    }

    proptest! {
        #[test]
        fn arbitrary_sense_bytes_are_safe(sense in proptest::collection::vec(any::<u8>(), 0..300),
                                                     osd1 in any::<bool>()) {
            let _ = response_icv_field(&sense);
            let _ = good_carrier(&sense);
            let (out, field) = with_room(&sense, if osd1 { 20 } else { 32 });
            prop_assert!(out.len() <= SENSE_MAX);
            prop_assert_eq!(response_icv_field(&out), Some(field));
        }
    }
}
