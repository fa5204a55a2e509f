//! The device's clock.
//!
//! Does: milliseconds since 1970 that never run backwards, not even across a restart.
//! Does not: set the machine's clock; SNTP does. Contract: [`DeviceClock::now_ms`] is safe from every thread.
//! Truth: docs/design/security.md 3.4 (restart).

use std::sync::atomic::{AtomicU64, Ordering};

use sealstone_seal::freshness::{ClockBehind, clock_after_restart};

use crate::environment::Surroundings;

/// A clock that only goes forward.
pub(crate) struct DeviceClock {
    surroundings: Surroundings,
    /// The latest time told.
    latest_ms: AtomicU64,
    /// The machine's clock must reach this, or come within reach of it, before the device is ready.
    lease_ms: u64,
}

impl DeviceClock {
    /// Goes on after a restart at which nonces up to `lease_ms` had been promised.
    pub(crate) fn new(surroundings: Surroundings, lease_ms: u64) -> Self {
        Self { surroundings, latest_ms: AtomicU64::new(0), lease_ms }
    }

    /// The time.
    ///
    /// # Errors
    /// [`ClockBehind`]: the machine's clock was set back too far; the device is not ready until it is right again.
    pub(crate) fn now_ms(&self) -> Result<u64, ClockBehind> {
        let now = clock_after_restart(self.surroundings.now_ms(), self.lease_ms)?;
        let latest = self.latest_ms.fetch_max(now, Ordering::Relaxed);
        Ok(now.max(latest))
    }

    /// The machine's clock as it is, for audit records while the device is not ready.
    pub(crate) fn machine_ms(&self) -> u64 {
        self.surroundings.now_ms()
    }
}
