//! The device's clock.
//!
//! Does: return milliseconds since 1970, never earlier than a previous time of the same clock era,
//! across restarts too; apply the offset that the adjustable clock attribute (R+5/9) sets.
//! Does not: set the machine's clock, or decide whether time may go back;
//! [`crate::DeviceEnvironment::is_sound`] does.
//! Contract: [`OsdClock::now_ms`] is safe on every thread. If the machine's clock steps back,
//! the device's clock stands still until [`OsdClock::set_back`], which the caller calls after
//! closing the era of nonces. An offset is durable before it takes effect, so the lease is never
//! ahead of what the clock can reach after a restart.
//! Truth: docs/design/security.md 3.4 (restart); docs/adr/0057-clock-steps.md.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use sealstone_seal::freshness::{CLOCK_BACK_MAX_MS, ClockBehind, LEASE_AHEAD_MS, clock_after_restart};

use crate::environment::Env;

/// Largest step ahead by one setting, in milliseconds. A mistake cannot be reverted, only waited
/// for.
pub(crate) const AHEAD_MAX_MS: u64 = 24 * 3600 * 1000;
/// Largest step back by one setting, in milliseconds. The clock stands still that long, and a
/// restart meanwhile must not find it too far behind the lease.
pub(crate) const BACK_MAX_MS: u64 = CLOCK_BACK_MAX_MS - 2 * LEASE_AHEAD_MS;
/// If the clock would stand still for longer than this, in milliseconds, and the machine's clock is
/// sound, it is set back instead. Repeated restarts take the lease ahead by less.
pub(crate) const STAND_MAX_MS: u64 = 10_000;

/// A clock that goes back only by [`OsdClock::set_back`].
pub(crate) struct OsdClock {
    env: Env,
    /// Offset to the machine's clock in milliseconds.
    offset_ms: AtomicI64,
    /// Latest time of this era.
    latest_ms: AtomicU64,
    /// Time that the clock must reach, or come close to, before the device is ready.
    lease_ms: AtomicU64,
}

impl OsdClock {
    /// Continues after a restart at which nonces up to `lease_ms` had been promised.
    pub(crate) fn new(env: Env, lease_ms: u64, offset_ms: i64) -> Self {
        let offset_ms = AtomicI64::new(offset_ms);
        let (latest_ms, lease_ms) = (AtomicU64::new(0), AtomicU64::new(lease_ms));
        Self { env, offset_ms, latest_ms, lease_ms }
    }

    /// Returns the current time.
    ///
    /// # Errors
    /// [`ClockBehind`] if the machine's clock was set back too far: the device is not ready until
    /// the clock is correct. Or if repeated restarts took the lease ahead: the device is ready in a
    /// moment.
    pub(crate) fn now_ms(&self) -> Result<u64, ClockBehind> {
        if let Some(behind_ms) = self.env.known_behind_ms() {
            return Err(ClockBehind::Wrong { behind_ms });
        }
        let (adjusted, lease_ms) = (self.adjusted_ms(), self.lease_ms.load(Ordering::Acquire));
        let now = match clock_after_restart(adjusted, lease_ms) {
            // A running clock stands still until the era is closed, instead of failing.
            Err(ClockBehind::Settling { .. }) if self.latest_ms.load(Ordering::Relaxed) > lease_ms => 0,
            other => other?,
        };
        let latest = self.latest_ms.fetch_max(now, Ordering::Relaxed);
        Ok(now.max(latest))
    }

    /// Returns the time to which the clock should be set back: if the machine's clock is sound, and
    /// so far behind that waiting would take long.
    pub(crate) fn set_back_target_ms(&self) -> Option<u64> {
        let adjusted = self.adjusted_ms();
        let reached = self.latest_ms.load(Ordering::Relaxed).max(self.lease_ms.load(Ordering::Acquire));
        let behind_ms = reached.saturating_sub(adjusted);
        (behind_ms > STAND_MAX_MS && self.env.is_sound()).then_some(adjusted)
    }

    /// Continues at `now_ms`. The previous era was closed durably before.
    pub(crate) fn set_back(&self, now_ms: u64) {
        // A thread that read the lease or the time of the previous era may move the time ahead once
        // more. The next maintenance call corrects that.
        self.lease_ms.store(now_ms, Ordering::Release);
        self.latest_ms.store(now_ms, Ordering::Release);
    }

    /// Returns the machine's clock plus the offset.
    fn adjusted_ms(&self) -> u64 {
        self.env.now_ms().saturating_add_signed(self.offset_ms.load(Ordering::Relaxed))
    }

    /// Returns the offset with which the clock shows `wanted_ms` instead of `now_ms`; `None` if the
    /// step is too large.
    pub(crate) fn adjustment(&self, wanted_ms: u64, now_ms: u64) -> Option<i64> {
        let near = now_ms.saturating_sub(BACK_MAX_MS)..=now_ms.saturating_add(AHEAD_MAX_MS);
        let offset = i128::from(wanted_ms) - i128::from(self.env.now_ms());
        i64::try_from(offset).ok().filter(|_| near.contains(&wanted_ms))
    }

    /// Applies an offset that is already durable.
    pub(crate) fn adjust(&self, offset_ms: i64) {
        self.offset_ms.store(offset_ms, Ordering::Relaxed);
    }

    /// Returns the sources of time and random bytes.
    pub(crate) const fn env(&self) -> &Env {
        &self.env
    }

    /// Returns the machine's clock without offset, for audit records while the device is not ready.
    pub(crate) fn machine_ms(&self) -> u64 {
        self.env.now_ms()
    }
}
