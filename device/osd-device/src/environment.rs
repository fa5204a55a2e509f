//! Time and random bytes, supplied by the daemon.
//!
//! Does: define what the logical unit needs from outside.
//! Does not: read a clock or a random source itself.
//! Contract: `now_ms` may jump in either direction. The unit keeps its own clock from running
//! backwards, unless the source is sound.
//! Truth: the device's code reads no clock and no random source, so that simulations are
//! repeatable.

use core::fmt;
use std::sync::Arc;

/// A source of wall-clock time and of unpredictable bytes.
pub trait DeviceEnvironment: Send + Sync {
    /// Returns milliseconds since 1970-01-01 00:00 UT by the machine's clock.
    fn now_ms(&self) -> u64;
    /// Fills the slice with unpredictable bytes.
    fn fill_random(&self, into: &mut [u8]);
    /// Whether the source confirms its time even if it is before an earlier one: the step is
    /// genuine, and no expired credential becomes valid again. Otherwise the device's clock stands
    /// still, or the device is not ready.
    fn is_sound(&self) -> bool {
        false
    }
    /// Returns by how many milliseconds the time is known to be before an earlier valid one.
    ///
    /// The device is not ready meanwhile, because expired credentials must not become valid again.
    fn known_behind_ms(&self) -> Option<u64> {
        None
    }
}

/// A shared [`DeviceEnvironment`].
#[derive(Clone)]
pub(crate) struct Env(Arc<dyn DeviceEnvironment>);

impl Env {
    /// Returns milliseconds since 1970 by the machine's clock.
    pub(crate) fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }

    /// Whether the machine's clock may go back.
    pub(crate) fn is_sound(&self) -> bool {
        self.0.is_sound()
    }

    /// Returns by how many milliseconds the machine's clock is known to be behind.
    pub(crate) fn known_behind_ms(&self) -> Option<u64> {
        self.0.known_behind_ms()
    }

    /// Fills the slice with unpredictable bytes.
    pub(crate) fn fill_random(&self, into: &mut [u8]) {
        self.0.fill_random(into);
    }

    /// Returns an array of unpredictable bytes.
    pub(crate) fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.fill_random(&mut bytes);
        bytes
    }
}

impl From<Arc<dyn DeviceEnvironment>> for Env {
    fn from(environment: Arc<dyn DeviceEnvironment>) -> Self {
        Self(environment)
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Env")
    }
}
