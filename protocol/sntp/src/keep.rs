//! State of a following clock that is stored, so that a restart never returns an earlier time.
//!
//! Does: selects what to store and where to continue.
//! Does not: store it.
//! Truth: docs/adr/0030-time-from-the-metadata-server.md.

use crate::follow::{FollowPolicy, Follower};

/// Maximum lead over the machine's clock that is restored, in milliseconds. A larger one is
/// restored only if the machine's clock alone would be before a served time.
const AHEAD_KEPT_MS: i64 = 60_000;
/// Distance behind the latest served time at which a clock counts as wrong, in milliseconds.
pub const BEHIND_MAX_MS: u64 = 60_000;

/// Stored state of a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredClock {
    /// Latest served time, in milliseconds since 1970.
    pub last_served_ms: u64,
    /// Its distance ahead of the machine's clock, in milliseconds.
    pub ahead_ms: i64,
}

impl StoredClock {
    /// Returns how far ahead of the machine's clock to start.
    #[must_use]
    pub const fn ahead_at(&self, machine_ms: u64) -> i64 {
        let small = self.ahead_ms.unsigned_abs() <= AHEAD_KEPT_MS.unsigned_abs();
        if small || machine_ms < self.last_served_ms { self.ahead_ms } else { 0 }
    }
}

impl Follower {
    /// Creates a clock that continues from the stored state; its stopwatch is at 0.
    #[must_use]
    pub fn resume(policy: FollowPolicy, machine_ms: u64, kept: StoredClock) -> Self {
        Self::new(policy, machine_ms, 0, kept.ahead_at(machine_ms), kept.last_served_ms)
    }

    /// Returns the state to store; `None` if the clock is wrong, because it is too far behind a
    /// served time.
    pub fn keep(&mut self, stopwatch_ms: u64, machine_ms: u64) -> Option<StoredClock> {
        if self.behind_ms(stopwatch_ms) > BEHIND_MAX_MS {
            return None;
        }
        let last_served_ms = self.time_ms(stopwatch_ms);
        // Of the running clock: the served time may stand still.
        let ahead = i128::from(self.unclamped_ms(stopwatch_ms)) - i128::from(machine_ms);
        Some(StoredClock { last_served_ms, ahead_ms: i64::try_from(ahead).unwrap_or(0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000_000_000;

    #[test]
    fn large_lead_requires_a_machine_behind() {
        let hour = 3_600_000;
        let kept = StoredClock { last_served_ms: NOW, ahead_ms: hour };
        assert_eq!(kept.ahead_at(kept.last_served_ms - 1), hour, "the machine is behind what was served");
        assert_eq!(kept.ahead_at(kept.last_served_ms), 0, "the clock was corrected");
        for small in [-60_000, 60_000] {
            assert_eq!(StoredClock { ahead_ms: small, ..kept }.ahead_at(kept.last_served_ms + 1), small);
        }
        assert_eq!(StoredClock { ahead_ms: -60_001, ..kept }.ahead_at(kept.last_served_ms + 1), 0);
    }

    #[test]
    fn restart_never_returns_an_earlier_time() {
        let mut clock = Follower::new(FollowPolicy::SIGNED, NOW, 0, 5_000, 0);
        let served = clock.time_ms(100);
        let kept = clock.keep(1_000, NOW + 1_000).unwrap();
        assert_eq!(kept, StoredClock { last_served_ms: NOW + 6_000, ahead_ms: 5_000 });
        let mut next = Follower::resume(FollowPolicy::SIGNED, NOW + 2_000, kept);
        assert_eq!(next.time_ms(0), NOW + 7_000);
        assert!(next.time_ms(0) > served);
        // The machine's clock was set back meanwhile, further than the clock may stand still.
        let mut lost = Follower::resume(FollowPolicy::SIGNED, NOW - 3_600_000, kept);
        assert_eq!(lost.keep(0, NOW - 3_600_000), None);
    }
}
