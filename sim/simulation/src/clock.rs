//! Time and random bytes for every host, each with its own clock.

use std::sync::Arc;

use tokio::time::Instant;

use crate::random::RandomSource;

/// Start time of all worlds, in milliseconds since 1970.
pub const START_MS: u64 = 1_800_000_000_000;

/// A host's clock and its source of random bytes.
pub struct SimulatedClock {
    began: Instant,
    skew_ms: i64,
    chance: Arc<RandomSource>,
}

impl SimulatedClock {
    /// Creates a clock that is `skew_ms` ahead.
    #[must_use]
    pub fn new(began: Instant, skew_ms: i64, chance: Arc<RandomSource>) -> Arc<Self> {
        Arc::new(Self { began, skew_ms, chance })
    }

    /// Returns milliseconds since 1970 by this clock.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        let elapsed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        (START_MS + elapsed).saturating_add_signed(self.skew_ms)
    }
}

impl sealstone_initiator::Environment for SimulatedClock {
    fn now_ms(&self) -> u64 {
        Self::now_ms(self)
    }
    fn fill_random(&self, into: &mut [u8]) {
        self.chance.fill(into);
    }
}

impl sealstone_osd_device::DeviceEnvironment for SimulatedClock {
    fn now_ms(&self) -> u64 {
        Self::now_ms(self)
    }
    fn fill_random(&self, into: &mut [u8]) {
        self.chance.fill(into);
    }
}
