//! A clock that follows a server's clock.
//!
//! Does: judges samples, selects the best recent one, slews the clock, and schedules queries.
//! Does not: authenticate samples; [`crate::TimeQuery`] does.
//! Contract: before the first accepted sample the clock is the machine's. That sample may set it
//! ahead by up to a day, and back as far as the time was not served yet. Afterwards the clock is
//! slewed, never stepped. A sample further away than [`FollowPolicy::step_max_ms`] is rejected as
//! forged or faulty. The exception is a sample ahead that the machine's clock confirms: then this
//! process was suspended. The clock never returns a time before an earlier one, or before its
//! floor; callers check [`Follower::behind_ms`] first. The one exception: a signed server and the
//! machine's clock return together to the time before their last step ahead.
//! Truth: `docs/adr/0030-time-from-the-metadata-server.md`.

use thiserror::Error;

use crate::query::ClockSample;
use crate::steer::SlewedClock;

/// Number of samples among which the best is selected (RFC 5905 §10).
const SAMPLES: usize = 8;
/// Growth of a sample's error with its age, in millionths: the drift of clocks.
const DRIFT_PPM: u64 = 100;
/// Number of samples before queries slow down.
const QUICK: u32 = 4;
/// Interval of the first queries, in milliseconds.
const QUICK_MS: u64 = 2_000;
/// Interval of later queries, in milliseconds.
const SLOW_MS: u64 = 64_000;
/// Interval after a failed later query, in milliseconds.
const RETRY_MS: u64 = 16_000;
/// Maximum difference at which two clocks agree, in milliseconds.
const SAME_MS: u64 = 10_000;
/// Maximum doublings of the interval for failures and for kisses.
const FAILURES_MAX: u32 = 5;
const KISSES_MAX: u32 = 4;

/// Limits of how far and how fast a clock follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowPolicy {
    /// Slew rate, in millionths.
    pub slew_ppm: u32,
    /// Maximum distance of a sample once the clock follows, in milliseconds.
    pub step_max_ms: u64,
    /// Maximum distance by which the first sample sets the clock ahead, in milliseconds: served
    /// times cannot be withdrawn.
    pub first_ahead_max_ms: u64,
    /// Maximum time that the clock stands still instead of going back, in milliseconds.
    pub stand_max_ms: u64,
    /// Maximum distance from the machine's clock at the start, in milliseconds, and its growth in
    /// millionths; `None` for no limit.
    pub stray_max: Option<(u64, u32)>,
}

impl FollowPolicy {
    /// For a server with signed responses, which an attacker can only delay.
    pub const SIGNED: Self = Self {
        slew_ppm: 50_000,
        step_max_ms: 60_000,
        first_ahead_max_ms: 24 * 3600 * 1000,
        stand_max_ms: 54_000,
        stray_max: None,
    };
    /// For a server without signatures: an attacker on the network moves the clock by a minute at
    /// most, and 17 s a day.
    pub const UNSIGNED: Self = Self {
        slew_ppm: 500,
        step_max_ms: 10_000,
        first_ahead_max_ms: 60_000,
        stand_max_ms: 10_000,
        stray_max: Some((60_000, 200)),
    };
}

/// Result of an accepted sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleOutcome {
    /// The clock was set by its first sample.
    Set {
        /// Change in milliseconds.
        by_ms: i64,
    },
    /// The clock is slewed.
    Steered {
        /// Remaining change in milliseconds.
        by_ms: i64,
    },
    /// An earlier sample is better.
    Unchanged,
}

/// Reason why a sample was rejected. The clock is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ImplausibleSample {
    /// Too far from the clock.
    #[error("the server's clock differs by {by_ms} ms; the limit is {max_ms} ms")]
    TooFar {
        /// How far the server's clock is ahead, in milliseconds.
        by_ms: i64,
        /// Limit in milliseconds.
        max_ms: u64,
    },
    /// Before a time that was already served.
    #[error("the server's clock is {behind_ms} ms behind a time already in use here")]
    Past {
        /// How far the server's clock is ahead of ours, in milliseconds.
        by_ms: i64,
        /// How far it is before the latest served time, in milliseconds.
        behind_ms: u64,
    },
    /// Too far from the machine's clock.
    #[error("the server's clock is {stray_ms} ms from the machine's clock; the limit is {max_ms} ms")]
    Astray {
        /// How far the server's clock is ahead of ours, in milliseconds.
        by_ms: i64,
        /// Distance from the machine's clock, in milliseconds.
        stray_ms: u64,
        /// Limit in milliseconds.
        max_ms: u64,
    },
}

impl ImplausibleSample {
    /// Returns the name in logs and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::TooFar { .. } => "too_far",
            Self::Past { .. } => "past",
            Self::Astray { .. } => "astray",
        }
    }

    /// Returns how far the server's clock is ahead of ours, in milliseconds.
    #[must_use]
    pub const fn by_ms(&self) -> i64 {
        match *self {
            Self::TooFar { by_ms, .. } | Self::Past { by_ms, .. } | Self::Astray { by_ms, .. } => by_ms,
        }
    }
}

/// A clock that follows a server.
#[derive(Clone, Debug)]
pub struct Follower {
    policy: FollowPolicy,
    steering: SlewedClock,
    /// Machine's clock minus the stopwatch at the start, and the stopwatch then.
    machine_ms: i64,
    began_ms: u64,
    samples: [Option<ClockSample>; SAMPLES],
    next: usize,
    /// Time of the sample that is followed.
    used_ms: Option<u64>,
    /// Offset before the last step ahead that the machine's clock confirmed.
    offset_before_step_ms: Option<i64>,
    latest: Option<ClockSample>,
    accepted: u32,
    failures: u32,
    kisses: u32,
}

impl Follower {
    /// Creates a clock that is `ahead_ms` ahead of the machine's, which was `machine_ms` at
    /// `stopwatch_ms`. It returns no time before `floor_ms`.
    #[must_use]
    pub fn new(
        policy: FollowPolicy,
        machine_ms: u64,
        stopwatch_ms: u64,
        ahead_ms: i64,
        floor_ms: u64,
    ) -> Self {
        let machine = difference(machine_ms, stopwatch_ms);
        let steering = SlewedClock::new(machine.saturating_add(ahead_ms), floor_ms, policy.slew_ppm);
        Self {
            policy,
            steering,
            machine_ms: machine,
            began_ms: stopwatch_ms,
            samples: [None; SAMPLES],
            next: 0,
            used_ms: None,
            offset_before_step_ms: None,
            latest: None,
            accepted: 0,
            failures: 0,
            kisses: 0,
        }
    }

    /// Returns the limits.
    #[must_use]
    pub const fn policy(&self) -> FollowPolicy {
        self.policy
    }

    /// Returns the time, never before an earlier one.
    pub fn time_ms(&mut self, stopwatch_ms: u64) -> u64 {
        self.steering.time_ms(stopwatch_ms)
    }

    /// Returns the latest served time, or the floor.
    #[must_use]
    pub const fn last_served_ms(&self) -> u64 {
        self.steering.last_served_ms()
    }

    /// Returns the distance of the clock before its floor, in milliseconds. The clock would stand
    /// still for that time.
    #[must_use]
    pub fn behind_ms(&self, stopwatch_ms: u64) -> u64 {
        let time = stopwatch_ms.saturating_add_signed(self.steering.offset_ms(stopwatch_ms));
        self.steering.last_served_ms().saturating_sub(time)
    }

    /// Returns the time without the floor, for a clock that would stand still for too long.
    #[must_use]
    pub fn unclamped_ms(&self, stopwatch_ms: u64) -> u64 {
        stopwatch_ms.saturating_add_signed(self.steering.offset_ms(stopwatch_ms))
    }

    /// Whether a sample was accepted.
    #[must_use]
    pub const fn is_set(&self) -> bool {
        self.used_ms.is_some()
    }

    /// Returns the last accepted sample, and how far the server's clock is ahead of ours now, in
    /// milliseconds.
    #[must_use]
    pub fn latest(&self, stopwatch_ms: u64) -> Option<(ClockSample, i64)> {
        let sample = self.latest?;
        Some((sample, sample.offset_ms.saturating_sub(self.steering.offset_ms(stopwatch_ms))))
    }

    /// Judges a sample and slews the clock by it. `machine_ms` is the machine's clock now.
    ///
    /// # Errors
    /// [`ImplausibleSample`]; the clock is unchanged.
    pub fn apply_sample(
        &mut self,
        sample: ClockSample,
        stopwatch_ms: u64,
        machine_ms: u64,
    ) -> Result<SampleOutcome, ImplausibleSample> {
        let by_ms = sample.offset_ms.saturating_sub(self.steering.offset_ms(stopwatch_ms));
        let time_ms = stopwatch_ms.saturating_add_signed(sample.offset_ms);
        // Two independent clocks agree, so the stopwatch was stopped.
        let confirmed =
            by_ms.unsigned_abs() > self.policy.step_max_ms && time_ms.abs_diff(machine_ms) <= SAME_MS;
        let woken = by_ms > 0 && confirmed;
        let first = woken || self.used_ms.is_none();
        if by_ms < 0 && confirmed && self.left_by_step(sample.offset_ms) {
            // Both clocks were wrong while ahead: times served meanwhile do not count.
            self.steering = SlewedClock::new(sample.offset_ms, 0, self.policy.slew_ppm);
            self.offset_before_step_ms = None;
            return Ok(self.begin(sample, stopwatch_ms, by_ms));
        }
        self.check_sample(&sample, by_ms, stopwatch_ms, first)?;
        if woken && self.used_ms.is_some() {
            self.offset_before_step_ms = Some(self.steering.offset_ms(stopwatch_ms));
        }
        if first {
            return Ok(self.begin(sample, stopwatch_ms, by_ms));
        }
        self.accept_sample(sample);
        self.samples[self.next] = Some(sample);
        self.next = (self.next + 1) % SAMPLES;
        let Some(best) = self.best(stopwatch_ms) else { return Ok(SampleOutcome::Unchanged) };
        if self.used_ms.is_some_and(|used| best.at_ms <= used) {
            return Ok(SampleOutcome::Unchanged);
        }
        let by_ms = best.offset_ms.saturating_sub(self.steering.offset_ms(stopwatch_ms));
        self.steering.aim(stopwatch_ms, best.offset_ms);
        self.used_ms = Some(best.at_ms);
        Ok(SampleOutcome::Steered { by_ms })
    }

    /// Whether both clocks left this offset by a confirmed step ahead, and the server signs.
    fn left_by_step(&self, offset_ms: i64) -> bool {
        let near = |left: i64| left.abs_diff(offset_ms) <= SAME_MS;
        self.policy.stray_max.is_none() && self.offset_before_step_ms.is_some_and(near)
    }

    fn accept_sample(&mut self, sample: ClockSample) {
        self.failures = 0;
        self.kisses = 0;
        self.accepted = self.accepted.saturating_add(1);
        self.latest = Some(sample);
    }

    /// Follows this sample alone; earlier samples belong to another time.
    fn begin(&mut self, sample: ClockSample, stopwatch_ms: u64, by_ms: i64) -> SampleOutcome {
        self.accept_sample(sample);
        self.samples = [None; SAMPLES];
        self.samples[0] = Some(sample);
        self.next = 1;
        self.steering.step(stopwatch_ms, sample.offset_ms);
        self.used_ms = Some(sample.at_ms);
        SampleOutcome::Set { by_ms }
    }

    fn check_sample(
        &self,
        sample: &ClockSample,
        by_ms: i64,
        stopwatch_ms: u64,
        first: bool,
    ) -> Result<(), ImplausibleSample> {
        let policy = &self.policy;
        if !first {
            if by_ms.unsigned_abs() > policy.step_max_ms {
                return Err(ImplausibleSample::TooFar { by_ms, max_ms: policy.step_max_ms });
            }
        } else {
            if by_ms > 0 && by_ms.unsigned_abs() > policy.first_ahead_max_ms {
                return Err(ImplausibleSample::TooFar { by_ms, max_ms: policy.first_ahead_max_ms });
            }
            let time = stopwatch_ms.saturating_add_signed(sample.offset_ms);
            let behind_ms = self.steering.last_served_ms().saturating_sub(time);
            if behind_ms > policy.stand_max_ms {
                return Err(ImplausibleSample::Past { by_ms, behind_ms });
            }
        }
        if let Some((base_ms, ppm)) = policy.stray_max {
            let passed = u128::from(stopwatch_ms.saturating_sub(self.began_ms));
            let drift = u64::try_from(passed * u128::from(ppm) / 1_000_000).unwrap_or(u64::MAX);
            let (stray_ms, max_ms) =
                (sample.offset_ms.abs_diff(self.machine_ms), base_ms.saturating_add(drift));
            if stray_ms > max_ms {
                return Err(ImplausibleSample::Astray { by_ms, stray_ms, max_ms });
            }
        }
        Ok(())
    }

    /// Returns the sample with the smallest error now.
    fn best(&self, stopwatch_ms: u64) -> Option<ClockSample> {
        let off = |sample: &ClockSample| {
            let age = stopwatch_ms.saturating_sub(sample.at_ms);
            sample.error_ms.saturating_mul(1000).saturating_add(age.saturating_mul(DRIFT_PPM) / 1000)
        };
        // Of equal ones the newest.
        let newest_first = |sample: &ClockSample| (off(sample), u64::MAX - sample.at_ms);
        self.samples.iter().flatten().copied().min_by_key(newest_first)
    }

    /// Records a query without an accepted response.
    pub fn record_failure(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Records a kiss-o'-death: the server wants fewer queries.
    pub fn record_kiss(&mut self) {
        self.kisses = self.kisses.saturating_add(1);
    }

    /// Returns the pause before the next query, in milliseconds.
    #[must_use]
    pub fn pause_ms(&self) -> u64 {
        let failures = self.failures.min(FAILURES_MAX);
        let pause = match (self.accepted < QUICK, failures) {
            (true, _) => (QUICK_MS << failures).min(SLOW_MS),
            (false, 0) => SLOW_MS,
            (false, _) => (RETRY_MS << (failures - 1)).min(SLOW_MS),
        };
        pause << self.kisses.min(KISSES_MAX)
    }
}

/// Returns `a - b` of two times, saturated outside of real clocks.
fn difference(a: u64, b: u64) -> i64 {
    let [a, b] = [a, b].map(|time| i64::try_from(time).unwrap_or(i64::MAX));
    a.saturating_sub(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_800_000_000_000;

    fn follower(policy: FollowPolicy, floor_ms: u64) -> Follower {
        Follower::new(policy, NOW, 0, 0, floor_ms)
    }

    /// Returns a sample of a server this far ahead of the machine's clock.
    fn sample(ahead_ms: i64, at_ms: u64) -> ClockSample {
        let offset_ms = NOW as i64 + ahead_ms;
        ClockSample { offset_ms, error_ms: 5, delay_ms: 2, at_ms, stratum: 2 }
    }

    #[test]
    fn first_sample_sets_and_later_ones_slew() {
        let mut clock = follower(FollowPolicy::SIGNED, 0);
        assert!(!clock.is_set());
        assert_eq!(
            clock.apply_sample(sample(3_600_000, 10), 10, NOW),
            Ok(SampleOutcome::Set { by_ms: 3_600_000 })
        );
        assert_eq!(clock.time_ms(10), NOW + 3_600_010);
        assert_eq!(
            clock.apply_sample(sample(3_601_000, 1_010), 1_010, NOW),
            Ok(SampleOutcome::Steered { by_ms: 1_000 })
        );
        assert_eq!(clock.time_ms(2_010), NOW + 3_600_000 + 2_010 + 50);
        assert_eq!(clock.latest(2_010).map(|(_, ahead)| ahead), Some(950));
    }

    #[test]
    fn first_sample_sets_ahead_a_day_at_most() {
        let day = FollowPolicy::SIGNED.first_ahead_max_ms as i64;
        assert_eq!(
            follower(FollowPolicy::SIGNED, 0).apply_sample(sample(day, 0), 0, NOW),
            Ok(SampleOutcome::Set { by_ms: day })
        );
        let mut clock = follower(FollowPolicy::SIGNED, 0);
        let lie = ImplausibleSample::TooFar { by_ms: day + 1, max_ms: day as u64 };
        assert_eq!(clock.apply_sample(sample(day + 1, 0), 0, NOW), Err(lie));
        assert_eq!((clock.time_ms(5), clock.is_set()), (NOW + 5, false));
    }

    #[test]
    fn first_sample_never_precedes_served_time() {
        // The machine's clock was ten days ahead, but no time was served yet.
        let ten_days = 10 * 86_400_000;
        let mut clock = follower(FollowPolicy::SIGNED, NOW - ten_days as u64 - 1);
        assert_eq!(
            clock.apply_sample(sample(-ten_days, 0), 0, NOW),
            Ok(SampleOutcome::Set { by_ms: -ten_days })
        );
        assert_eq!(clock.time_ms(7), NOW - ten_days as u64 + 7);
        // A clock that served its time may stand still for 54 s at most.
        for (back, good) in [(54_000, true), (54_001, false)] {
            let mut clock = follower(FollowPolicy::SIGNED, 0);
            assert_eq!(clock.time_ms(0), NOW);
            let accepted = clock.apply_sample(sample(-back, 0), 0, NOW);
            assert_eq!(accepted.is_ok(), good, "{accepted:?}");
            assert_eq!(clock.time_ms(1), if good { NOW } else { NOW + 1 });
        }
    }

    #[test]
    fn following_clock_accepts_a_minute_at_most() {
        for (by, good) in [(60_000, true), (-60_000, true), (60_001, false), (-60_001, false)] {
            let mut clock = follower(FollowPolicy::SIGNED, 0);
            clock.apply_sample(sample(0, 0), 0, NOW).unwrap();
            let before = clock.time_ms(100);
            let accepted = clock.apply_sample(sample(by, 100), 100, NOW);
            assert_eq!(
                accepted,
                match good {
                    true => Ok(SampleOutcome::Steered { by_ms: by }),
                    false => Err(ImplausibleSample::TooFar { by_ms: by, max_ms: 60_000 }),
                }
            );
            assert_eq!(clock.time_ms(100), before, "never a jump");
        }
    }

    #[test]
    fn suspended_process_accepts_two_agreeing_clocks() {
        let hour = 3_600_000;
        let stopped = |machine_ahead: i64| {
            let mut clock = follower(FollowPolicy::SIGNED, 0);
            clock.apply_sample(sample(0, 0), 0, NOW).unwrap();
            clock.apply_sample(
                sample(hour, 100),
                100,
                (NOW + 100).saturating_add_signed(hour + machine_ahead),
            )
        };
        assert_eq!(stopped(10_000), Ok(SampleOutcome::Set { by_ms: hour }));
        assert!(
            stopped(10_001).is_err() && stopped(-10_001).is_err(),
            "the machine's clock says another time"
        );
        // A step back is rejected even if the machine's clock confirms it.
        let mut clock = follower(FollowPolicy::SIGNED, 0);
        clock.apply_sample(sample(0, 0), 0, NOW).unwrap();
        assert!(clock.apply_sample(sample(-hour, 100), 100, NOW + 100 - hour as u64).is_err());
    }

    #[test]
    fn confirmed_step_ahead_can_be_reverted() {
        let hour = 3_600_000;
        let ahead = || {
            let mut clock = follower(FollowPolicy::SIGNED, 0);
            clock.apply_sample(sample(0, 0), 0, NOW).unwrap();
            clock.apply_sample(sample(hour, 100), 100, NOW + 100 + hour as u64).unwrap();
            assert_eq!(clock.time_ms(200), NOW + 200 + hour as u64);
            clock
        };
        let mut clock = ahead();
        assert_eq!(
            clock.apply_sample(sample(20, 300), 300, NOW + 300),
            Ok(SampleOutcome::Set { by_ms: 20 - hour })
        );
        assert_eq!((clock.time_ms(400), clock.behind_ms(400)), (NOW + 420, 0));
        assert!(clock.apply_sample(sample(-hour, 500), 500, NOW + 500 - hour as u64).is_err());
        // A return to another time, or without confirmation, is rejected.
        assert!(ahead().apply_sample(sample(-60_000, 300), 300, NOW + 300 - 60_000).is_err());
        assert!(ahead().apply_sample(sample(0, 300), 300, NOW + 300 + hour as u64).is_err());
    }

    #[test]
    fn clock_behind_its_floor_reports_it() {
        let clock = follower(FollowPolicy::SIGNED, NOW + 5_000);
        assert_eq!((clock.behind_ms(0), clock.behind_ms(5_001)), (5_000, 0));
        assert_eq!((clock.unclamped_ms(1), clock.last_served_ms()), (NOW + 1, NOW + 5_000));
    }

    #[test]
    fn unsigned_server_moves_clock_within_its_limits() {
        let mut clock = follower(FollowPolicy::UNSIGNED, 0);
        clock.apply_sample(sample(0, 0), 0, NOW).unwrap();
        // A server that is as far ahead as accepted, every minute for ten days.
        let (mut at, mut lies) = (0, 0);
        for _ in 0..14_400 {
            at += 60_000;
            let ahead = clock.time_ms(at) as i64 - (NOW + at) as i64 + 9_000;
            lies += u64::from(clock.apply_sample(sample(ahead, at), at, NOW).is_err());
        }
        let ahead = clock.time_ms(at) - (NOW + at);
        assert!(lies > 0 && (60_000..=60_000 + 10 * 17_280).contains(&ahead), "{ahead} ms ahead");
    }

    #[test]
    fn shorter_round_trip_is_preferred() {
        let mut clock = follower(FollowPolicy::SIGNED, 0);
        clock.apply_sample(sample(0, 0), 0, NOW).unwrap();
        assert_eq!(
            clock.apply_sample(sample(10, 1_000), 1_000, NOW),
            Ok(SampleOutcome::Steered { by_ms: 10 })
        );
        let held_back = ClockSample { error_ms: 480, delay_ms: 950, ..sample(470, 2_000) };
        assert_eq!(clock.apply_sample(held_back, 2_000, NOW), Ok(SampleOutcome::Unchanged));
        // After eight delayed samples there is no better one.
        let mut steered = 0;
        for at in 3..12 {
            let held_back = ClockSample { at_ms: at * 1_000, ..held_back };
            steered +=
                u64::from(clock.apply_sample(held_back, at * 1_000, NOW) != Ok(SampleOutcome::Unchanged));
        }
        assert!(steered > 0);
    }

    #[test]
    fn queries_slow_down_after_failures_and_kisses() {
        let mut clock = follower(FollowPolicy::SIGNED, 0);
        assert_eq!(clock.pause_ms(), 2_000);
        for _ in 0..20 {
            clock.record_failure();
        }
        assert_eq!(clock.pause_ms(), 64_000);
        for at in 0..4 {
            clock.apply_sample(sample(0, at), at, NOW).unwrap();
        }
        assert_eq!(clock.pause_ms(), 64_000);
        clock.record_failure();
        assert_eq!(clock.pause_ms(), 16_000);
        for _ in 0..100 {
            clock.record_kiss();
        }
        assert_eq!(clock.pause_ms(), 256_000);
        clock.apply_sample(sample(0, 9), 9, NOW).unwrap();
        assert_eq!(clock.pause_ms(), 64_000);
    }

    proptest! {
        /// For any samples, the clock never goes back, and once set never exceeds its rate.
        #[test]
        fn clock_never_steps_back(
            floor_behind in 0u64..1_000_000,
            samples in proptest::collection::vec((1u64..100_000, -200_000_000i64..200_000_000, 0u64..2_000), 1..60),
        ) {
            let mut clock = follower(FollowPolicy::SIGNED, NOW - floor_behind);
            let (mut stopwatch, mut last) = (0, clock.time_ms(0));
            for (pause, ahead, error_ms) in samples {
                let was_set = clock.is_set();
                stopwatch += pause;
                let now = clock.time_ms(stopwatch);
                prop_assert!(now >= last);
                prop_assert!(!was_set || now - last <= pause + pause / 20 + 1, "{last} to {now} in {pause}");
                let before = clock.is_set();
                let accepted = clock.apply_sample(ClockSample { error_ms, ..sample(ahead, stopwatch) }, stopwatch, 0);
                last = clock.time_ms(stopwatch);
                prop_assert!(last >= now);
                if before || accepted.is_err() {
                    prop_assert_eq!(last, now);
                }
            }
        }

        #[test]
        fn arbitrary_numbers_never_panic(machine: u64, ahead: i64, floor: u64, offset_ms: i64, error_ms: u64, at: u64) {
            for policy in [FollowPolicy::SIGNED, FollowPolicy::UNSIGNED] {
                let mut clock = Follower::new(policy, machine, at, ahead, floor);
                for at_ms in [0, at, u64::MAX] {
                    let _ = clock.apply_sample(ClockSample { offset_ms, error_ms, delay_ms: 0, at_ms, stratum: 1 }, at_ms, machine);
                    let _ = (clock.time_ms(at_ms), clock.latest(at), clock.pause_ms());
                }
            }
        }
    }
}
