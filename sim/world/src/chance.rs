//! Chance, all of it from one seed.
//!
//! Does: one stream of random numbers for each purpose, so that a draw more in one place does not shift all others.
//! Contract: one seed and one label give one stream.

use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

/// A stream of random numbers.
pub struct Chance(Mutex<StdRng>);

impl Chance {
    /// The stream of this label under this seed.
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

    /// A number of the range.
    #[must_use]
    pub fn range(&self, range: RangeInclusive<u64>) -> u64 {
        self.0.lock().gen_range(range)
    }

    /// True in this many of a hundred cases.
    #[must_use]
    pub fn percent(&self, percent: u64) -> bool {
        self.range(0..=99) < percent
    }

    /// A number of the range, small ones as likely as large ones on a logarithmic scale.
    #[must_use]
    pub fn logarithmic(&self, range: RangeInclusive<u64>) -> u64 {
        let (low, high) = (*range.start(), *range.end());
        let bits = self.range(u64::from(low.max(1).ilog2())..=u64::from(high.max(1).ilog2()));
        self.range(1 << bits..=(2 << bits) - 1).clamp(low, high)
    }

    /// One of the choices.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn pick<'a, T>(&self, choices: &'a [T]) -> &'a T {
        let last = choices.len().checked_sub(1).expect("there is something to choose from");
        &choices[self.range(0..=last as u64) as usize]
    }

    /// Random bytes.
    pub fn fill(&self, into: &mut [u8]) {
        self.0.lock().fill_bytes(into);
    }

    /// A generator of its own, that begins where this one is.
    #[must_use]
    pub fn generator(&self) -> StdRng {
        StdRng::seed_from_u64(self.0.lock().next_u64())
    }
}
