//! What a clock that follows another one keeps, so that no start of it tells an earlier time than the one before.
//!
//! Does: say what to keep and where to begin. Does not: store it.
//! Truth: docs/adr/0030-time-from-the-metadata-server.md.

use crate::follow::{Follower, Policy};

/// What a clock was ahead of the machine's is taken up again at a start up to here; milliseconds. More than that only if
/// the machine's clock alone would be before what was told.
const AHEAD_KEPT_MS: i64 = 60_000;
/// A clock further behind what was told than this is wrong, milliseconds.
pub const BEHIND_MAX_MS: u64 = 60_000;

/// What is kept of a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The latest time told, milliseconds since 1970.
    pub told_ms: u64,
    /// How far ahead of the machine's clock that was.
    pub ahead_ms: i64,
}

impl Kept {
    /// How far ahead of the machine's clock to begin.
    #[must_use]
    pub const fn ahead_at(&self, machine_ms: u64) -> i64 {
        let small = self.ahead_ms.unsigned_abs() <= AHEAD_KEPT_MS.unsigned_abs();
        if small || machine_ms < self.told_ms { self.ahead_ms } else { 0 }
    }
}

impl Follower {
    /// A clock that goes on from what was kept; its stopwatch is at 0.
    #[must_use]
    pub fn resume(policy: Policy, machine_ms: u64, kept: Kept) -> Self {
        Self::new(policy, machine_ms, 0, kept.ahead_at(machine_ms), kept.told_ms)
    }

    /// What to keep of it now. None of a clock that is not believed itself: it is too far behind what was told.
    pub fn keep(&mut self, stopwatch_ms: u64, machine_ms: u64) -> Option<Kept> {
        if self.behind_ms(stopwatch_ms) > BEHIND_MAX_MS {
            return None;
        }
        let told_ms = self.tell(stopwatch_ms);
        // Of the clock that goes on: the one that is told may stand still.
        let ahead = i128::from(self.untold_ms(stopwatch_ms)) - i128::from(machine_ms);
        Some(Kept { told_ms, ahead_ms: i64::try_from(ahead).unwrap_or(0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000_000_000;

    #[test]
    fn a_clock_that_was_far_ahead_of_the_machines_is_taken_up_only_if_the_machine_must_be_wrong() {
        let hour = 3_600_000;
        let kept = Kept { told_ms: NOW, ahead_ms: hour };
        assert_eq!(kept.ahead_at(kept.told_ms - 1), hour, "the machine is behind what was told");
        assert_eq!(kept.ahead_at(kept.told_ms), 0, "somebody put it right");
        for small in [-60_000, 60_000] {
            assert_eq!(Kept { ahead_ms: small, ..kept }.ahead_at(kept.told_ms + 1), small);
        }
        assert_eq!(Kept { ahead_ms: -60_001, ..kept }.ahead_at(kept.told_ms + 1), 0);
    }

    #[test]
    fn a_start_goes_on_where_the_one_before_was_and_never_before() {
        let mut clock = Follower::new(Policy::SIGNED, NOW, 0, 5_000, 0);
        let told = clock.tell(100);
        let kept = clock.keep(1_000, NOW + 1_000).unwrap();
        assert_eq!(kept, Kept { told_ms: NOW + 6_000, ahead_ms: 5_000 });
        let mut next = Follower::resume(Policy::SIGNED, NOW + 2_000, kept);
        assert_eq!(next.tell(0), NOW + 7_000);
        assert!(next.tell(0) > told);
        // The machine's clock was set back meanwhile, by more than anybody should wait.
        let mut lost = Follower::resume(Policy::SIGNED, NOW - 3_600_000, kept);
        assert_eq!(lost.keep(0, NOW - 3_600_000), None);
    }
}
