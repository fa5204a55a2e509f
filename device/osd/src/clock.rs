//! The device's clock.
//!
//! Does: milliseconds since 1970, not before an earlier time of the same era, across restarts too; an adjustment that is
//! set through the adjustable clock attribute (R+5/9). Does not: set the machine's clock, or decide whether time may go back;
//! [`crate::Environment::is_sound`] does.
//! Contract: [`DeviceClock::now_ms`] is safe from every thread. A clock that is set back stands still until
//! [`DeviceClock::set_back`], which the caller calls after it closed the era of nonces. An adjustment is durable before it
//! counts: the lease must never be ahead of what the clock can reach after a restart.
//! Truth: docs/design/security.md 3.4 (restart); docs/adr/0057-clock-steps.md.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use sealstone_seal::freshness::{CLOCK_BACK_MAX_MS, ClockBehind, LEASE_AHEAD_MS, clock_after_restart};

use crate::environment::Surroundings;

/// Furthest that one setting moves the clock ahead, milliseconds: a mistake cannot be taken back, only waited for.
pub(crate) const AHEAD_MAX_MS: u64 = 24 * 3600 * 1000;
/// Furthest that it can be set back, milliseconds: it stands still that long, and a restart meanwhile must not find it
/// too far behind the lease.
pub(crate) const BACK_MAX_MS: u64 = CLOCK_BACK_MAX_MS - 2 * LEASE_AHEAD_MS;
/// A clock that would stand still for longer than this is set back instead, milliseconds, if the machine's clock is sound.
/// Restarts in a row take the lease ahead by less.
pub(crate) const STAND_MAX_MS: u64 = 10_000;

/// A clock that goes back only by [`DeviceClock::set_back`].
pub(crate) struct DeviceClock {
    surroundings: Surroundings,
    /// What is added to the machine's clock, milliseconds.
    offset_ms: AtomicI64,
    /// The latest time of this era.
    latest_ms: AtomicU64,
    /// The machine's clock must reach this, or come within reach of it, before the device is ready.
    lease_ms: AtomicU64,
}

impl DeviceClock {
    /// Continues after a restart at which nonces up to `lease_ms` had been promised.
    pub(crate) fn new(surroundings: Surroundings, lease_ms: u64, offset_ms: i64) -> Self {
        let offset_ms = AtomicI64::new(offset_ms);
        let (latest_ms, lease_ms) = (AtomicU64::new(0), AtomicU64::new(lease_ms));
        Self { surroundings, offset_ms, latest_ms, lease_ms }
    }

    /// The time.
    ///
    /// # Errors
    /// [`ClockBehind`]: the machine's clock was set back too far, and the device is not ready until it is right again; or
    /// restarts in a row took the lease ahead, and it is ready in a moment.
    pub(crate) fn now_ms(&self) -> Result<u64, ClockBehind> {
        if let Some(behind_ms) = self.surroundings.known_behind_ms() {
            return Err(ClockBehind::Wrong { behind_ms });
        }
        let (adjusted, lease_ms) = (self.adjusted_ms(), self.lease_ms.load(Ordering::Acquire));
        let now = match clock_after_restart(adjusted, lease_ms) {
            // Once it goes, it stands still rather than stop, until the era is closed.
            Err(ClockBehind::Settling { .. }) if self.latest_ms.load(Ordering::Relaxed) > lease_ms => 0,
            other => other?,
        };
        let latest = self.latest_ms.fetch_max(now, Ordering::Relaxed);
        Ok(now.max(latest))
    }

    /// The time to which the clock is to be set back: the machine's clock is sound, and so far behind that waiting for it
    /// would take long.
    pub(crate) fn wants_back_ms(&self) -> Option<u64> {
        let adjusted = self.adjusted_ms();
        let reached = self.latest_ms.load(Ordering::Relaxed).max(self.lease_ms.load(Ordering::Acquire));
        let behind_ms = reached.saturating_sub(adjusted);
        (behind_ms > STAND_MAX_MS && self.surroundings.is_sound()).then_some(adjusted)
    }

    /// Continues at `now_ms`. The era before it was closed, durably.
    pub(crate) fn set_back(&self, now_ms: u64) {
        // A thread that read the lease or the time of the era before it may put the time ahead once more; the next call of
        // the upkeep finds that.
        self.lease_ms.store(now_ms, Ordering::Release);
        self.latest_ms.store(now_ms, Ordering::Release);
    }

    /// The machine's clock with the adjustment.
    fn adjusted_ms(&self) -> u64 {
        self.surroundings.now_ms().saturating_add_signed(self.offset_ms.load(Ordering::Relaxed))
    }

    /// The adjustment with which the clock tells `wanted_ms`, told `now_ms` now; `None`: too far either way.
    pub(crate) fn adjustment(&self, wanted_ms: u64, now_ms: u64) -> Option<i64> {
        let near = now_ms.saturating_sub(BACK_MAX_MS)..=now_ms.saturating_add(AHEAD_MAX_MS);
        let offset = i128::from(wanted_ms) - i128::from(self.surroundings.now_ms());
        i64::try_from(offset).ok().filter(|_| near.contains(&wanted_ms))
    }

    /// Goes by this adjustment from now on. It has been made durable.
    pub(crate) fn adjust(&self, offset_ms: i64) {
        self.offset_ms.store(offset_ms, Ordering::Relaxed);
    }

    /// Time and chance as the shell gives them.
    pub(crate) const fn surroundings(&self) -> &Surroundings {
        &self.surroundings
    }

    /// The machine's clock as it is, for audit records while the device is not ready.
    pub(crate) fn machine_ms(&self) -> u64 {
        self.surroundings.now_ms()
    }
}
