//! Time and chance, handed in so that a simulation can supply its own.
//!
//! Does: name what nonces and expiry need. Does not: measure durations; `tokio::time` does, and can be paused.

use std::time::{SystemTime, UNIX_EPOCH};

/// A source of wall-clock time and of unpredictable bytes.
pub trait Environment: Send + Sync {
    /// Milliseconds since 1970-01-01 00:00 UT by this machine's clock.
    fn now_ms(&self) -> u64;
    /// Fills the slice with bytes that nobody can predict.
    fn fill_random(&self, into: &mut [u8]);
}

/// The machine's clock and the system's random bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEnvironment;

impl Environment for SystemEnvironment {
    fn now_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn fill_random(&self, into: &mut [u8]) {
        // Without random bytes a nonce could repeat; the system never fails here once it has booted.
        getrandom::fill(into).expect("the system's random source answers");
    }
}
