//! Randomness, all derived from one seed.
//!
//! Does: provides one random stream per purpose, so that an additional draw in one does not shift
//! the others.
//! Contract: the same seed and label give the same stream.

use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

/// A stream of random numbers.
pub struct RandomSource(Mutex<StdRng>);

impl RandomSource {
    /// Creates the stream of this label and seed.
    #[must_use]
    pub fn new(seed: u64, label: &str) -> Arc<Self> {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_be_bytes());
        for (i, byte) in label.bytes().enumerate() {
            let place = &mut key[8 + i % 24];
            *place = place.rotate_left(3) ^ byte;
        }
        Arc::new(Self(Mutex::new(StdRng::from_seed(key))))
    }

    /// Returns a number of the range.
    #[must_use]
    pub fn range(&self, range: RangeInclusive<u64>) -> u64 {
        self.0.lock().gen_range(range)
    }

    /// Returns true in this percentage of calls.
    #[must_use]
    pub fn percent(&self, percent: u64) -> bool {
        self.range(0..=99) < percent
    }

    /// Returns a number of the range, uniformly on a logarithmic scale.
    #[must_use]
    pub fn logarithmic(&self, range: RangeInclusive<u64>) -> u64 {
        let (low, high) = (*range.start(), *range.end());
        let bits = self.range(u64::from(low.max(1).ilog2())..=u64::from(high.max(1).ilog2()));
        self.range(1 << bits..=(2 << bits) - 1).clamp(low, high)
    }

    /// Returns one of the choices.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn pick<'a, T>(&self, choices: &'a [T]) -> &'a T {
        let last = choices.len().checked_sub(1).expect("there is something to choose from");
        &choices[self.range(0..=last as u64) as usize]
    }

    /// Fills the buffer with random bytes.
    pub fn fill(&self, into: &mut [u8]) {
        self.0.lock().fill_bytes(into);
    }

    /// Returns a separate generator that continues from the current state.
    #[must_use]
    pub fn generator(&self) -> StdRng {
        StdRng::seed_from_u64(self.0.lock().next_u64())
    }
}
