//! Time and random bytes for every part, each with a clock of its own.

use std::sync::Arc;

use tokio::time::Instant;

use crate::chance::Chance;

/// When worlds begin, milliseconds since 1970.
pub const START_MS: u64 = 1_800_000_000_000;

/// A host's clock and its source of random bytes.
pub struct Clockwork {
    began: Instant,
    skew_ms: i64,
    chance: Arc<Chance>,
}

impl Clockwork {
    /// A host whose clock is `skew_ms` ahead.
    #[must_use]
    pub fn new(began: Instant, skew_ms: i64, chance: Arc<Chance>) -> Arc<Self> {
        Arc::new(Self { began, skew_ms, chance })
    }

    /// Milliseconds since 1970 by this clock.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        let elapsed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        (START_MS + elapsed).saturating_add_signed(self.skew_ms)
    }
}

impl sealstone_initiator::Environment for Clockwork {
    fn now_ms(&self) -> u64 {
        Self::now_ms(self)
    }
    fn fill_random(&self, into: &mut [u8]) {
        self.chance.fill(into);
    }
}

impl sealstone_device::Environment for Clockwork {
    fn now_ms(&self) -> u64 {
        Self::now_ms(self)
    }
    fn fill_random(&self, into: &mut [u8]) {
        self.chance.fill(into);
    }
}
