//! Digests of a range whose bytes are still arriving.
//!
//! Does: computes the value of each whole unit as soon as its last byte has arrived, while it is in
//! the processor's caches.
//! Does not: compute edges, or a last unit that the object's end shortens: the end is known only
//! from the reply, so [`CoveredDigests`](crate::CoveredDigests) computes those.
//! Contract: bytes arrive in order, and bytes that were passed do not change later.

use alloc::vec::Vec;

use crate::{DigestValue, Profile};

/// The values of the full units of a range, as far as its bytes have arrived. Takes 33 bytes of
/// memory for each unit of 8 or 16 KiB; each byte is hashed once.
#[derive(Clone, Debug)]
pub struct ReceivedDigests {
    profile: Profile,
    offset: u64,
    length: u64,
    first: u64,
    values: Vec<DigestValue>,
}

impl ReceivedDigests {
    /// Starts without bytes, for at most `length` bytes at `offset` of an object.
    #[must_use]
    pub fn new(profile: Profile, offset: u64, length: u64) -> Self {
        let profile = profile.values();
        let length = length.min(u64::MAX - offset);
        Self { profile, offset, length, first: offset.div_ceil(profile.unit_bytes()), values: Vec::new() }
    }

    /// Advances with the first bytes of the range: all those of earlier calls, and more.
    pub fn advance(&mut self, so_far: &[u8]) {
        let bytes = self.profile.unit_bytes();
        let end = self.offset + (so_far.len() as u64).min(self.length);
        loop {
            let unit = self.first + self.values.len() as u64;
            let Some(until) = unit.checked_add(1).and_then(|next| next.checked_mul(bytes)) else { return };
            if until > end {
                return;
            }
            let from = (until - bytes - self.offset) as usize;
            self.values.push(self.profile.value(unit, &so_far[from..from + bytes as usize]));
        }
    }

    /// Returns the value of a unit whose bytes have all arrived.
    #[must_use]
    pub fn value(&self, unit: u64) -> Option<DigestValue> {
        let index = usize::try_from(unit.checked_sub(self.first)?).ok()?;
        self.values.get(index).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec;

    use super::*;
    use crate::{CoveredDigests, DigestCover};

    proptest! {
        /// However the bytes arrive, and however much more of the buffer is filled behind them, the
        /// values are those of the whole range.
        #[test]
        fn digests_of_arriving_bytes_equal_those_of_all(
            code in 1_u8..6, offset in 0_u64..60_000, length in 0_usize..120_000, behind in 0_usize..200,
            steps in prop::collection::vec(1_usize..50_000, 0..12),
        ) {
            let profile = Profile::from_code(code).unwrap();
            let data: Vec<u8> = (0..length + behind).map(|at| (at * 7 + at / 251) as u8).collect();
            let mut arriving = ReceivedDigests::new(profile, offset, length as u64);
            let mut at = 0;
            for step in steps {
                at = (at + step).min(data.len());
                arriving.advance(&data[..at]);
            }
            arriving.advance(&data);
            let cover = DigestCover::of_write(profile, offset, length as u64);
            let whole = CoveredDigests::of(cover.clone(), &data[..length]);
            for unit in cover.whole_units() {
                prop_assert_eq!(arriving.value(unit), whole.whole(unit));
            }
            prop_assert_eq!(arriving.value(cover.whole_units().end), None);
            let first = cover.whole_units().start;
            prop_assert_eq!(first.checked_sub(1).and_then(|unit| arriving.value(unit)), None);
            prop_assert_eq!(CoveredDigests::with(cover, &data[..length], |unit| arriving.value(unit)), whole);
        }
    }

    #[test]
    fn unit_digest_exists_after_its_last_byte() {
        let data = vec![3; 40_000];
        let mut arriving = ReceivedDigests::new(Profile::Blake3, 16_384, 40_000);
        arriving.advance(&data[..16_383]);
        assert_eq!(arriving.value(1), None);
        arriving.advance(&data[..16_384]);
        assert_eq!(arriving.value(1), Some(Profile::Blake3.value(1, &[3; 16_384])));
        assert_eq!((arriving.value(0), arriving.value(2)), (None, None));
    }

    #[test]
    fn the_ends_of_numbers_do_not_overflow() {
        for profile in Profile::ALL {
            for offset in [u64::MAX, u64::MAX - 5, u64::MAX - 16_384] {
                let mut arriving = ReceivedDigests::new(profile, offset, u64::MAX);
                arriving.advance(&[1; 40_000]);
                assert_eq!(arriving.value(u64::MAX / profile.unit_bytes()), None);
            }
        }
    }
}
