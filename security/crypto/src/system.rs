//! Random bytes and mutexes of the operating system.

use sealstone_seal::{Locks, Mutex, Random};

/// The random source of the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRandom;

impl Random for SystemRandom {
    /// # Panics
    /// If the system cannot return random bytes: no key or nonce may be created then.
    fn fill(&mut self, into: &mut [u8]) {
        getrandom::fill(into).expect("the system gives random bytes");
    }
}

/// Mutexes of `parking_lot`: small, and not poisoned by a panic.
pub enum ParkingLot {}

/// A `parking_lot` mutex behind seal's trait.
pub struct ParkingLotMutex<T>(parking_lot::Mutex<T>);

impl<T: Send> Mutex<T> for ParkingLotMutex<T> {
    fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.0.lock())
    }
}

impl Locks for ParkingLot {
    type Mutex<T: Send + 'static> = ParkingLotMutex<T>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_draws_differ() {
        let [mut a, mut b] = [[0; 32]; 2];
        SystemRandom.fill(&mut a);
        SystemRandom.fill(&mut b);
        assert_ne!(a, b);
    }
}
