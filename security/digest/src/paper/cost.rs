//! The cost of the paper's digests, in calls of SHA-1's compression function, and the trait that
//! counts them.
//!
//! Does: the formulas of the cost model, in hundredths of a compression; [`CountingEngine`], to
//! compare the code with them.
//! Source of truth: docs/design/security.md 5.6.

use crate::paper::AdHash;
use crate::paper::sha1::BLOCK;

/// The unit of costs: hundredths of a compression.
pub const COMPRESSION: u64 = 100;
/// Adding one element to a sum.
pub const COMBINE: u64 = 10;
/// Subtracting one element from a sum.
pub const UNCOMBINE: u64 = 7;

/// Computes SHA-1's compression function.
pub trait CompressionEngine {
    /// Runs it over `blocks`, one after the other.
    fn compress(&mut self, state: &mut [u32; 5], blocks: &[[u8; 64]]);
}

/// Computes without counting.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainEngine;

impl CompressionEngine for PlainEngine {
    fn compress(&mut self, state: &mut [u32; 5], blocks: &[[u8; 64]]) {
        sha1::block_api::compress(state, blocks);
    }
}

/// Computes and counts the calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingEngine {
    /// Calls so far.
    pub compressions: u64,
}

impl CompressionEngine for CountingEngine {
    fn compress(&mut self, state: &mut [u32; 5], blocks: &[[u8; 64]]) {
        self.compressions += blocks.len() as u64;
        PlainEngine.compress(state, blocks);
    }
}

/// Returns h(n): compressions for `bytes` bytes; the paper counts the padding as free.
#[must_use]
pub const fn compressions(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK as u64)
}

/// Returns the compressions of one element of AdHash, also of a short one, which is padded.
const fn element(hash: AdHash) -> u64 {
    compressions(hash.block_bytes() as u64)
}

/// Returns the cost of computing the part `from..to` of a unit directly.
#[must_use]
pub const fn direct(hash: AdHash, from: u64, to: u64) -> u64 {
    let block = hash.block_bytes() as u64;
    if from >= to {
        return 0;
    }
    ((to - 1) / block - from / block + 1) * (element(hash) * COMPRESSION + COMBINE)
}

/// Returns the cost of computing it from the stored value of a unit of `length` bytes.
#[must_use]
pub const fn complement(hash: AdHash, length: u64, from: u64, to: u64) -> u64 {
    let block = hash.block_bytes() as u64;
    if from >= to {
        return 0;
    }
    let (first, last) = (from / block, (to - 1) / block);
    let outside = length.div_ceil(block) - (last - first + 1);
    let cut_first = !from.is_multiple_of(block);
    let cut_last = !to.is_multiple_of(block) && to != length;
    let cut = if first == last { (cut_first || cut_last) as u64 } else { cut_first as u64 + cut_last as u64 };
    let take = element(hash) * COMPRESSION + UNCOMBINE;
    outside * take + cut * (take + element(hash) * COMPRESSION + COMBINE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec;

    use super::*;
    use crate::Profile;

    proptest! {
        /// The code calls the compression function as often as the model says.
        #[test]
        fn real_calls_equal_the_model(length in 1_usize..8193, one in any::<u64>(), two in any::<u64>()) {
            let unit = vec![5; length];
            let (one, two) = (one as usize % length, two as usize % length);
            let (from, to) = (one.min(two), one.max(two) + 1);
            for hash in [AdHash::A128, AdHash::A256] {
                let value = hash.value_with(&mut PlainEngine, &unit);
                let mut count = CountingEngine::default();
                hash.part_with(&mut count, from, &unit[from..to]);
                let model = direct(hash, from as u64, to as u64);
                // The rest is the cost of sums, at most 64 elements in and out.
                let sums = model - count.compressions * COMPRESSION;
                prop_assert!(sums <= 64 * COMBINE, "{model} {}", count.compressions);
                let mut count = CountingEngine::default();
                hash.complement_with(&mut count, &value, &unit, from, to);
                let model = complement(hash, length as u64, from as u64, to as u64);
                let sums = model - count.compressions * COMPRESSION;
                prop_assert!(sums <= 64 * UNCOMBINE + 2 * COMBINE, "{model} {}", count.compressions);
                let mut count = CountingEngine::default();
                hash.part_by_cost(&mut count, Some(&value), &unit, from, to);
                prop_assert!(count.compressions * COMPRESSION <= direct(hash, from as u64, to as u64));
            }
        }
    }

    /// Figure 6a: an aligned read of a stored digest costs the device no hashing of data; Figure
    /// 7b: a small change in the middle of a unit.
    #[test]
    fn cost_model_matches_the_paper() {
        let unit = vec![5; 8192];
        let mut count = CountingEngine::default();
        Profile::Sha1.value_with(&mut count, 0, &unit);
        assert_eq!(count.compressions, 129);
        let mut count = CountingEngine::default();
        Profile::AdHash256.value_with(&mut count, 0, &unit);
        assert_eq!(count.compressions, 128);
        let value = Profile::AdHash256.value(0, &unit);
        // 1 KiB at 4000: five blocks out, five in.
        let (from, to) = AdHash::A256.grown(4000, 5024, 8192);
        let mut count = CountingEngine::default();
        AdHash::A256.changed_with(&mut count, &value, from, &unit[from..to], &unit[from..to]);
        assert_eq!(count.compressions, 40);
    }
}
