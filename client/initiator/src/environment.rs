//! Clock and randomness as an interface, so that a simulation can supply its own.
//!
//! Does: covers what nonces and expiry need.
//! Does not: measure durations; `tokio::time` does, and can be paused.

use std::cell::RefCell;

/// Random bytes requested from the system at once: a system call for each nonce would cost half as
/// much as its check value.
const POOL: usize = 1024;

/// A source of wall-clock time and unpredictable bytes.
pub trait Environment: Send + Sync {
    /// Returns milliseconds since 1970-01-01 00:00 UT by this machine's clock.
    fn now_ms(&self) -> u64;
    /// Fills the slice with unpredictable bytes.
    fn fill_random(&self, into: &mut [u8]);
}

/// The machine's clock and the system's random bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEnvironment;

impl Environment for SystemEnvironment {
    fn now_ms(&self) -> u64 {
        crate::machine::now_ms()
    }

    fn fill_random(&self, into: &mut [u8]) {
        if into.len() > POOL {
            return read_system_random(into);
        }
        thread_local!(static BYTES: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; POOL], used: POOL }) });
        BYTES.with_borrow_mut(|pool| pool.take(into));
    }
}

/// Random bytes that were not used yet.
struct Pool {
    bytes: [u8; POOL],
    used: usize,
}

impl Pool {
    /// Fills `into`, of at most [`POOL`] bytes. Each byte is used once and then erased.
    fn take(&mut self, into: &mut [u8]) {
        if self.bytes.len() - self.used < into.len() {
            read_system_random(&mut self.bytes);
            self.used = 0;
        }
        let given = &mut self.bytes[self.used..self.used + into.len()];
        into.copy_from_slice(given);
        given.fill(0);
        self.used += into.len();
    }
}

fn read_system_random(into: &mut [u8]) {
    // Without random bytes a nonce could repeat. The system call never fails after the boot.
    getrandom::fill(into).expect("the system's random source answers");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_random_byte_is_given_twice() {
        let mut seen = BTreeSet::new();
        for length in (8..200).chain([POOL - 1, POOL, POOL + 1, 4 * POOL]) {
            let mut bytes = vec![0; length];
            SystemEnvironment.fill_random(&mut bytes);
            assert!(bytes.windows(8).step_by(8).all(|bytes| seen.insert(bytes.to_vec())));
        }
    }
}
