//! AdHash over SHA-1's compression function: a sum over small blocks, so that a change costs only
//! the changed blocks.
//!
//! Does: the sums of the paper with blocks of 128 and of 256 bytes; change and complement of a sum.
//! Does not: resist attacks. A second preimage of a unit takes minutes (docs/design/security.md
//! 5.2); only for reproducing the paper.
//! Source of truth: docs/design/security.md 5.2. Parts of a block other than the last one are our
//! choice: their bytes are moved to the front, and their number is encoded like that of a short
//! last block; their offset is in the header beside the digest.

use crate::DigestValue;
use crate::paper::cost::{CompressionEngine, PlainEngine};
use crate::paper::sha1::{BLOCK, INITIAL, Sha1State};

/// Longest block in bytes.
const BLOCK_MAX: usize = 256;

/// A sum modulo 2^256, most significant word first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AdHashSum([u64; 4]);

impl AdHashSum {
    fn add(&mut self, other: Self) {
        let mut carry = false;
        for (word, more) in self.0.iter_mut().zip(other.0).rev() {
            let (sum, first) = word.overflowing_add(more);
            let (sum, second) = sum.overflowing_add(u64::from(carry));
            (*word, carry) = (sum, first | second);
        }
    }

    fn sub(&mut self, other: Self) {
        let mut borrow = false;
        for (word, less) in self.0.iter_mut().zip(other.0).rev() {
            let (rest, first) = word.overflowing_sub(less);
            let (rest, second) = rest.overflowing_sub(u64::from(borrow));
            (*word, borrow) = (rest, first | second);
        }
    }

    /// Returns (high << 96) xor low, both numbers of 160 bits.
    fn join(high: &Sha1State, low: &Sha1State) -> Self {
        let pair = |first: u32, second: u32| u64::from(first) << 32 | u64::from(second);
        Self([
            pair(high[0], high[1]),
            pair(high[2], high[3] ^ low[0]),
            pair(high[4] ^ low[1], low[2]),
            pair(low[3], low[4]),
        ])
    }

    fn from_value(value: &DigestValue) -> Option<Self> {
        let (words, []) = value.as_bytes().as_chunks::<8>() else { return None };
        Some(Self(<[[u8; 8]; 4]>::try_from(words).ok()?.map(u64::from_be_bytes)))
    }

    fn value(self) -> DigestValue {
        let mut bytes = [0; 32];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        bytes.into()
    }
}

/// One of the two readings of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdHash {
    /// Blocks of 128 bytes: a message block into each half.
    A128,
    /// Blocks of 256 bytes: two message blocks into each half.
    A256,
}

impl AdHash {
    /// Returns the bytes of one block.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::A128 => 128,
            Self::A256 => 256,
        }
    }

    /// Returns what block `number` of the unit adds to the sum: all of it, or `bytes` of it.
    fn element(self, engine: &mut impl CompressionEngine, number: usize, bytes: &[u8]) -> AdHashSum {
        let whole = self.block_bytes();
        let mut padded = [0; BLOCK_MAX];
        // A short block is padded, and its length is part of the initial value.
        let (block, short) = match bytes.len() {
            length if length == whole => (bytes, 0),
            length => {
                padded[..length].copy_from_slice(bytes);
                (&padded[..whole], length as u32)
            }
        };
        let half = |side: usize| {
            let mut state = INITIAL;
            state[0] ^= (2 * number + side) as u32;
            state[4] ^= short;
            state
        };
        let (mut high, mut low) = (half(0), half(1));
        let (blocks, _) = block.as_chunks::<BLOCK>();
        let (first, second) = blocks.split_at(blocks.len() / 2);
        engine.compress(&mut high, first);
        engine.compress(&mut low, second);
        AdHashSum::join(&high, &low)
    }

    /// Returns the sum over `bytes`, which start at `within` in the unit, at any offset in a block.
    fn sum(self, engine: &mut impl CompressionEngine, within: usize, bytes: &[u8]) -> AdHashSum {
        let block = self.block_bytes();
        let mut sum = AdHashSum::default();
        let (mut number, mut rest) = (within / block, bytes);
        let mut room = block - within % block;
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(room.min(rest.len()));
            sum.add(self.element(engine, number, head));
            (number, rest, room) = (number + 1, tail, block);
        }
        sum
    }

    pub(crate) fn value_with(self, engine: &mut impl CompressionEngine, bytes: &[u8]) -> DigestValue {
        self.sum(engine, 0, bytes).value()
    }

    pub(crate) fn part_with(
        self,
        engine: &mut impl CompressionEngine,
        within: usize,
        bytes: &[u8],
    ) -> DigestValue {
        self.sum(engine, within, bytes).value()
    }

    /// Returns the value of a unit after the blocks from `within` on changed from `old` to `new`.
    /// `within` is a block's start; both end with whole blocks or where the object ends, before and
    /// after. `None` if `value` is not of AdHash.
    #[must_use]
    pub fn changed(self, value: &DigestValue, within: usize, old: &[u8], new: &[u8]) -> Option<DigestValue> {
        self.changed_with(&mut PlainEngine, value, within, old, new)
    }

    /// Like [`changed`](Self::changed), with the compressions done by `engine`.
    pub fn changed_with(
        self,
        engine: &mut impl CompressionEngine,
        value: &DigestValue,
        within: usize,
        old: &[u8],
        new: &[u8],
    ) -> Option<DigestValue> {
        let mut sum = AdHashSum::from_value(value)?;
        sum.sub(self.sum(engine, within, old));
        sum.add(self.sum(engine, within, new));
        Some(sum.value())
    }

    /// Returns the blocks that a part of a unit touches, as a range within a unit of `length`
    /// bytes.
    #[must_use]
    pub fn grown(self, from: usize, to: usize, length: usize) -> (usize, usize) {
        let block = self.block_bytes();
        (from / block * block, to.next_multiple_of(block).min(length))
    }

    /// Returns the digest of the part `from..to` of a unit, computed from its stored value by
    /// subtracting the rest. That is cheaper than [`Profile::edge`](crate::Profile::edge) if the
    /// rest is small. `unit`: all bytes of the unit. `None` if `value` is not of AdHash or the part
    /// is not inside.
    #[must_use]
    pub fn complement(self, value: &DigestValue, unit: &[u8], from: usize, to: usize) -> Option<DigestValue> {
        self.complement_with(&mut PlainEngine, value, unit, from, to)
    }

    /// Like [`complement`](Self::complement), with the compressions done by `engine`.
    pub fn complement_with(
        self,
        engine: &mut impl CompressionEngine,
        value: &DigestValue,
        unit: &[u8],
        from: usize,
        to: usize,
    ) -> Option<DigestValue> {
        let part = unit.get(from..to).filter(|part| !part.is_empty())?;
        let mut sum = AdHashSum::from_value(value)?;
        let block = self.block_bytes();
        let (first, last) = (from / block, (to - 1) / block);
        for (bytes, number) in unit.chunks(block).zip(0..) {
            let start = number * block;
            if number < first || number > last || start < from || start + bytes.len() > to {
                sum.sub(self.element(engine, number, bytes));
            }
        }
        // The blocks that the part covers partially: first and last.
        for number in [first, last].into_iter().take(if first == last { 1 } else { 2 }) {
            let (start, end) = ((number * block).max(from), ((number + 1) * block).min(to));
            let whole = start == number * block && end == ((number + 1) * block).min(unit.len());
            if !whole {
                sum.add(self.element(engine, number, &part[start - from..end - from]));
            }
        }
        Some(sum.value())
    }

    /// Returns the digest of the part `from..to` of a unit, by the method with fewer compressions
    /// (5.6). `stored`: the value of the unit, if it is known and `unit` has all of its bytes.
    #[must_use]
    pub fn part(self, stored: Option<&DigestValue>, unit: &[u8], from: usize, to: usize) -> DigestValue {
        self.part_by_cost(&mut PlainEngine, stored, unit, from, to)
    }

    /// Like [`part`](Self::part), with the compressions done by `engine`.
    pub fn part_by_cost(
        self,
        engine: &mut impl CompressionEngine,
        stored: Option<&DigestValue>,
        unit: &[u8],
        from: usize,
        to: usize,
    ) -> DigestValue {
        let cheaper = crate::paper::cost::complement(self, unit.len() as u64, from as u64, to as u64)
            < crate::paper::cost::direct(self, from as u64, to as u64);
        stored
            .filter(|_| cheaper)
            .and_then(|value| self.complement_with(engine, value, unit, from, to))
            .unwrap_or_else(|| self.part_with(engine, from, &unit[from..to]))
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const BOTH: [AdHash; 2] = [AdHash::A128, AdHash::A256];

    proptest! {
        #[test]
        fn sums_and_differences_are_inverse(one in any::<[u64; 4]>(), two in any::<[u64; 4]>()) {
            let mut sum = AdHashSum(one);
            sum.add(AdHashSum(two));
            sum.sub(AdHashSum(one));
            prop_assert_eq!(sum, AdHashSum(two));
            prop_assert_eq!(AdHashSum::from_value(&sum.value()), Some(sum));
        }

        /// Changing a part of a unit, also one that makes it longer or shorter, equals recomputing
        /// it.
        #[test]
        fn incremental_update_equals_recomputation(
            before in proptest::collection::vec(any::<u8>(), 1..8193),
            at in any::<proptest::sample::Index>(),
            data in proptest::collection::vec(any::<u8>(), 1..700),
        ) {
            for hash in BOTH {
                let at = at.index(before.len());
                let mut after = before.clone();
                let end = (at + data.len()).min(8192);
                after.resize(after.len().max(end), 0);
                after[at..end].copy_from_slice(&data[..end - at]);
                let (from, _) = hash.grown(at, end, after.len());
                let to = |length| hash.grown(at, end, length).1;
                let value = hash.value_with(&mut PlainEngine, &before);
                let old = &before[from..to(before.len())];
                let new = &after[from..to(after.len())];
                prop_assert_eq!(
                    hash.changed(&value, from, old, new),
                    Some(hash.value_with(&mut PlainEngine, &after)),
                );
            }
        }

        /// Subtracting the rest from the stored value yields the digest of the part itself.
        #[test]
        fn the_complement_equals_direct_computation(
            unit in proptest::collection::vec(any::<u8>(), 1..8193),
            one in any::<proptest::sample::Index>(),
            two in any::<proptest::sample::Index>(),
        ) {
            for hash in BOTH {
                let (one, two) = (one.index(unit.len()), two.index(unit.len()));
                let (from, to) = (one.min(two), one.max(two) + 1);
                let value = hash.value_with(&mut PlainEngine, &unit);
                let direct = hash.part_with(&mut PlainEngine, from, &unit[from..to]);
                prop_assert_eq!(hash.complement(&value, &unit, from, to), Some(direct));
                prop_assert_eq!(hash.part(Some(&value), &unit, from, to), direct);
                prop_assert_eq!(hash.part(None, &unit, from, to), direct);
            }
        }
    }

    #[test]
    fn short_block_differs_from_padded_one() {
        for hash in BOTH {
            let values: Vec<DigestValue> = [1, 2, 127, 128, 129, 256]
                .map(|length| hash.value_with(&mut PlainEngine, &[0; 256][..length]))
                .into();
            for (index, value) in values.iter().enumerate() {
                assert!(!values[..index].contains(value));
            }
        }
    }

    #[test]
    fn a_foreign_value_is_refused() {
        let foreign = DigestValue::from([1; 20]);
        assert_eq!(AdHash::A256.changed(&foreign, 0, &[], &[1]), None);
        assert_eq!(AdHash::A256.complement(&foreign, &[1, 2], 0, 1), None);
        assert_eq!(AdHash::A256.complement(&DigestValue::from([1; 32]), &[1, 2], 1, 3), None);
        assert_eq!(AdHash::A256.complement(&DigestValue::from([1; 32]), &[1, 2], 1, 1), None);
    }
}
