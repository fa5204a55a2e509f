//! LtHash16 with 1024 lanes: an order-independent sum of elements, from which elements can be
//! removed.
//!
//! Does: keeps one sum for an object (or more) over (object, unit, generation, value), for
//! scrubbing.
//! Does not: go to clients: lanes of 16 bits are linear, so a sum is not authentic without a MAC of
//! its own. An element added 2^16 times vanishes, which is why the position of a unit is part of
//! its element.
//! Source of truth: docs/design/security.md 5.3; Lewi, Kim, Maykov, Weis, "Securing update
//! propagation with homomorphic hashing".

use alloc::boxed::Box;
use core::fmt;

use blake3::Hasher;

use crate::DigestValue;

/// Lanes of 16 bits.
const LANES: usize = 1024;
/// Bytes of a sum.
pub const LTHASH_BYTES: usize = LANES * 2;
/// Separates elements from all other BLAKE3 uses.
const CONTEXT: &str = "sealstone lthash16x1024 element v1";
/// Separates digests of sums.
const SUM: &str = "sealstone lthash16x1024 sum v1";

/// A summed element: a unit's value with its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LtHashElement<'a> {
    /// The object's partition.
    pub partition: u64,
    /// The object's number.
    pub object: u64,
    /// The unit's number in the object.
    pub unit: u64,
    /// The generation of the object, 0 where none is kept.
    pub generation: u64,
    /// The unit's value.
    pub value: &'a DigestValue,
}

/// A sum of elements.
#[derive(Clone, PartialEq, Eq)]
pub struct LtHash(Box<[u16; LANES]>);

impl Default for LtHash {
    /// Returns the empty sum.
    fn default() -> Self {
        Self(Box::new([0; LANES]))
    }
}

impl fmt::Debug for LtHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LtHash({:?})", self.digest())
    }
}

impl LtHash {
    /// Adds an element.
    pub fn add(&mut self, element: &LtHashElement<'_>) {
        self.combine(element, u16::wrapping_add);
    }

    /// Removes an element that was added.
    pub fn remove(&mut self, element: &LtHashElement<'_>) {
        self.combine(element, u16::wrapping_sub);
    }

    fn combine(&mut self, element: &LtHashElement<'_>, with: impl Fn(u16, u16) -> u16) {
        let mut hasher = Hasher::new_derive_key(CONTEXT);
        for number in [element.partition, element.object, element.unit, element.generation] {
            hasher.update(&number.to_be_bytes());
        }
        hasher.update(element.value.as_bytes());
        let mut lanes = [0; LTHASH_BYTES];
        hasher.finalize_xof().fill(&mut lanes);
        let (lanes, _) = lanes.as_chunks::<2>();
        for (lane, more) in self.0.iter_mut().zip(lanes) {
            *lane = with(*lane, u16::from_le_bytes(*more));
        }
    }

    /// Adds all elements of another sum.
    pub fn merge(&mut self, other: &Self) {
        for (lane, more) in self.0.iter_mut().zip(other.0.iter()) {
            *lane = lane.wrapping_add(*more);
        }
    }

    /// Returns the sum as bytes, little endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LTHASH_BYTES] {
        let mut bytes = [0; LTHASH_BYTES];
        for (bytes, lane) in bytes.chunks_exact_mut(2).zip(self.0.iter()) {
            bytes.copy_from_slice(&lane.to_le_bytes());
        }
        bytes
    }

    /// Parses the result of [`to_bytes`](Self::to_bytes).
    #[must_use]
    pub fn from_bytes(bytes: &[u8; LTHASH_BYTES]) -> Self {
        let mut sum = Self::default();
        let (lanes, _) = bytes.as_chunks::<2>();
        for (lane, bytes) in sum.0.iter_mut().zip(lanes) {
            *lane = u16::from_le_bytes(*bytes);
        }
        sum
    }

    /// Returns 32 bytes that distinguish sums.
    #[must_use]
    pub fn digest(&self) -> DigestValue {
        (*Hasher::new_derive_key(SUM).update(&self.to_bytes()).finalize().as_bytes()).into()
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lthash_ignores_order_and_removed_elements(
            elements in proptest::collection::vec((any::<u64>(), any::<[u8; 32]>()), 0..12),
            gone in proptest::collection::vec((any::<u64>(), any::<[u8; 32]>()), 0..6),
            split in any::<proptest::sample::Index>(),
        ) {
            let values = |list: &[(u64, [u8; 32])]| -> Vec<(u64, DigestValue)> {
                list.iter().map(|&(unit, value)| (unit, value.into())).collect()
            };
            let element = |(unit, value): &'_ (u64, DigestValue)| (*unit, *value);
            let of = |(unit, value): &(u64, DigestValue), sum: &mut LtHash, add: bool| {
                let element = LtHashElement { partition: 1, object: 2, unit: *unit, generation: 3, value };
                if add { sum.add(&element) } else { sum.remove(&element) }
            };
            let (elements, gone) = (values(&elements), values(&gone));
            let mut forward = LtHash::default();
            elements.iter().map(element).for_each(|pair| of(&pair, &mut forward, true));
            let mut other = LtHash::default();
            gone.iter().for_each(|pair| of(pair, &mut other, true));
            elements.iter().rev().for_each(|pair| of(pair, &mut other, true));
            gone.iter().for_each(|pair| of(pair, &mut other, false));
            prop_assert_eq!(&forward, &other);
            prop_assert_eq!(forward.digest(), other.digest());
            let (first, second) = elements.split_at(split.index(elements.len() + 1));
            let mut parts = [LtHash::default(), LtHash::default()];
            first.iter().for_each(|pair| of(pair, &mut parts[0], true));
            second.iter().for_each(|pair| of(pair, &mut parts[1], true));
            let [mut whole, rest] = parts;
            whole.merge(&rest);
            prop_assert_eq!(&whole, &forward);
            prop_assert_eq!(LtHash::from_bytes(&whole.to_bytes()), whole);
        }
    }

    #[test]
    fn whatever_differs_gives_another_sum() {
        let value = DigestValue::from([7; 32]);
        let base = LtHashElement { partition: 1, object: 2, unit: 3, generation: 4, value: &value };
        let other = DigestValue::from([8; 32]);
        let all = [
            base,
            LtHashElement { partition: 9, ..base },
            LtHashElement { object: 9, ..base },
            LtHashElement { unit: 9, ..base },
            LtHashElement { generation: 9, ..base },
            LtHashElement { value: &other, ..base },
        ];
        let digests: Vec<DigestValue> = all
            .iter()
            .map(|element| {
                let mut sum = LtHash::default();
                sum.add(element);
                sum.digest()
            })
            .collect();
        for (index, digest) in digests.iter().enumerate() {
            assert!(!digests[..index].contains(digest));
            assert_ne!(*digest, LtHash::default().digest());
        }
    }
}
