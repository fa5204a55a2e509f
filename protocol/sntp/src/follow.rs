//! What a clock believes of another one.
//!
//! Does: judge samples, choose the best of the last ones, steer the clock, say when to ask again. Does not: check where a
//! sample came from; [`crate::Query`] does.
//! Contract: before the first sample that is believed the clock is whatever the machine says; that sample may put it right
//! by up to a day forwards, and back as far as nothing was told. After it the clock is steered, never stepped, and a
//! sample that is further away than [`Policy::step_max_ms`] is a lie, or a fault that a person has to look at; unless it is
//! ahead and the machine's own clock says the same: then this process was stopped for a while. The clock never tells a time
//! before one that it told, nor before the floor that it was given; whoever has one asks [`Follower::behind_ms`] first.
//! The one exception: a signed server and the machine's clock return together to the time that
//! their last step ahead left.
//! Truth: `docs/adr/0030-time-from-the-metadata-server.md`.

use thiserror::Error;

use crate::query::Sample;
use crate::steer::Steering;

/// Samples among which the best is chosen (RFC 5905 §10).
const SAMPLES: usize = 8;
/// A sample is off by so much more for the time that passed since, millionths: what clocks drift.
const DRIFT_PPM: u64 = 100;
/// Samples until the server is asked at the slow pace.
const QUICK: u32 = 4;
/// Between two of the first questions, milliseconds.
const QUICK_MS: u64 = 2_000;
/// Between two later ones.
const SLOW_MS: u64 = 64_000;
/// After a later one without an answer.
const RETRY_MS: u64 = 16_000;
/// A clock that is so near says the same, milliseconds.
const SAME_MS: u64 = 10_000;
/// The pause doubles so many times at most for each: failures, kisses.
const FAILURES_MAX: u32 = 5;
const KISSES_MAX: u32 = 4;

/// How far and how fast a clock follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Rate of steering, millionths.
    pub slew_ppm: u32,
    /// Furthest that a sample may be from the clock once it follows, milliseconds.
    pub step_max_ms: u64,
    /// Furthest that the first sample may take the clock ahead, milliseconds: what was told cannot be taken back.
    pub first_ahead_max_ms: u64,
    /// Longest that the clock stands still because it should go back, milliseconds.
    pub stand_max_ms: u64,
    /// Furthest from the machine's clock at the start, milliseconds, and millionths of the time since; `None`: however far.
    pub stray_max: Option<(u64, u32)>,
}

impl Policy {
    /// For a server whose answers are signed: an attacker can hold them back, and no more.
    pub const SIGNED: Self = Self {
        slew_ppm: 50_000,
        step_max_ms: 60_000,
        first_ahead_max_ms: 24 * 3600 * 1000,
        stand_max_ms: 54_000,
        stray_max: None,
    };
    /// For one whose answers anybody on the way can write: he moves the clock a minute, and 17 s a day.
    pub const UNSIGNED: Self = Self {
        slew_ppm: 500,
        step_max_ms: 10_000,
        first_ahead_max_ms: 60_000,
        stand_max_ms: 10_000,
        stray_max: Some((60_000, 200)),
    };
}

/// What became of a sample that was believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The first one: the clock has that time.
    Set {
        /// By so much, milliseconds.
        by_ms: i64,
    },
    /// The clock moves.
    Steered {
        /// By so much, milliseconds.
        by_ms: i64,
    },
    /// An earlier one is still the better one.
    Kept,
}

/// A sample that is not believed. The clock goes on as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Lie {
    /// Too far from the clock.
    #[error("the server's clock is {by_ms} ms from ours: at most {max_ms} are followed")]
    TooFar {
        /// How far ahead, milliseconds.
        by_ms: i64,
        /// The limit.
        max_ms: u64,
    },
    /// Before what was told already.
    #[error("the server's clock is {behind_ms} ms before a time that was told here already")]
    Past {
        /// How far ahead of our clock, milliseconds.
        by_ms: i64,
        /// How far before the latest time told.
        behind_ms: u64,
    },
    /// Too far from the machine's clock.
    #[error("the server's clock would take ours {stray_ms} ms from the machine's: at most {max_ms}")]
    Astray {
        /// How far ahead of our clock, milliseconds.
        by_ms: i64,
        /// How far from the machine's.
        stray_ms: u64,
        /// The limit.
        max_ms: u64,
    },
}

impl Lie {
    /// Its name in logs and figures.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::TooFar { .. } => "too_far",
            Self::Past { .. } => "past",
            Self::Astray { .. } => "astray",
        }
    }

    /// How far ahead of ours the other clock is, milliseconds.
    #[must_use]
    pub const fn by_ms(&self) -> i64 {
        match *self {
            Self::TooFar { by_ms, .. } | Self::Past { by_ms, .. } | Self::Astray { by_ms, .. } => by_ms,
        }
    }
}

/// A clock that follows.
#[derive(Clone, Debug)]
pub struct Follower {
    policy: Policy,
    steering: Steering,
    /// The machine's clock minus the stopwatch when this began, and when that was.
    machine_ms: i64,
    began_ms: u64,
    samples: [Option<Sample>; SAMPLES],
    next: usize,
    /// When the sample came that is followed.
    used_ms: Option<u64>,
    /// The offset before the last step ahead that the machine's clock confirmed.
    left_offset_ms: Option<i64>,
    latest: Option<Sample>,
    heard: u32,
    failures: u32,
    kisses: u32,
}

impl Follower {
    /// A clock that goes by the machine's, `machine_ms` at `stopwatch_ms`, `ahead_ms` ahead of it, and tells no time before
    /// `floor_ms`.
    #[must_use]
    pub fn new(policy: Policy, machine_ms: u64, stopwatch_ms: u64, ahead_ms: i64, floor_ms: u64) -> Self {
        let machine = difference(machine_ms, stopwatch_ms);
        let steering = Steering::new(machine.saturating_add(ahead_ms), floor_ms, policy.slew_ppm);
        Self {
            policy,
            steering,
            machine_ms: machine,
            began_ms: stopwatch_ms,
            samples: [None; SAMPLES],
            next: 0,
            used_ms: None,
            left_offset_ms: None,
            latest: None,
            heard: 0,
            failures: 0,
            kisses: 0,
        }
    }

    /// How far it follows.
    #[must_use]
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// The time.
    pub fn tell(&mut self, stopwatch_ms: u64) -> u64 {
        self.steering.tell(stopwatch_ms)
    }

    /// The latest time told, or the floor.
    #[must_use]
    pub const fn told_ms(&self) -> u64 {
        self.steering.told_ms()
    }

    /// How far the clock is before the floor, milliseconds: for so long it would stand still.
    #[must_use]
    pub fn behind_ms(&self, stopwatch_ms: u64) -> u64 {
        let time = stopwatch_ms.saturating_add_signed(self.steering.offset_ms(stopwatch_ms));
        self.steering.told_ms().saturating_sub(time)
    }

    /// The time that goes on where [`Follower::tell`] would stand still for too long.
    #[must_use]
    pub fn untold_ms(&self, stopwatch_ms: u64) -> u64 {
        stopwatch_ms.saturating_add_signed(self.steering.offset_ms(stopwatch_ms))
    }

    /// Was any sample believed?
    #[must_use]
    pub const fn is_set(&self) -> bool {
        self.used_ms.is_some()
    }

    /// The last sample that was believed, and how far the server's clock is ahead of ours by it now, milliseconds.
    #[must_use]
    pub fn latest(&self, stopwatch_ms: u64) -> Option<(Sample, i64)> {
        let sample = self.latest?;
        Some((sample, sample.offset_ms.saturating_sub(self.steering.offset_ms(stopwatch_ms))))
    }

    /// Judges a sample and steers by it. `machine_ms` is what the machine's clock says now.
    ///
    /// # Errors
    /// [`Lie`]; nothing changed.
    pub fn take(&mut self, sample: Sample, stopwatch_ms: u64, machine_ms: u64) -> Result<Heard, Lie> {
        let by_ms = sample.offset_ms.saturating_sub(self.steering.offset_ms(stopwatch_ms));
        let time_ms = stopwatch_ms.saturating_add_signed(sample.offset_ms);
        // Two that know nothing of each other say the same: it is the stopwatch that stopped.
        let confirmed =
            by_ms.unsigned_abs() > self.policy.step_max_ms && time_ms.abs_diff(machine_ms) <= SAME_MS;
        let woken = by_ms > 0 && confirmed;
        let first = woken || self.used_ms.is_none();
        if by_ms < 0 && confirmed && self.has_left(sample.offset_ms) {
            // Both were wrong when they were ahead: what was told then does not count.
            self.steering = Steering::new(sample.offset_ms, 0, self.policy.slew_ppm);
            self.left_offset_ms = None;
            return Ok(self.begin(sample, stopwatch_ms, by_ms));
        }
        self.judge(&sample, by_ms, stopwatch_ms, first)?;
        if woken && self.used_ms.is_some() {
            self.left_offset_ms = Some(self.steering.offset_ms(stopwatch_ms));
        }
        if first {
            return Ok(self.begin(sample, stopwatch_ms, by_ms));
        }
        self.note(sample);
        self.samples[self.next] = Some(sample);
        self.next = (self.next + 1) % SAMPLES;
        let Some(best) = self.best(stopwatch_ms) else { return Ok(Heard::Kept) };
        if self.used_ms.is_some_and(|used| best.at_ms <= used) {
            return Ok(Heard::Kept);
        }
        let by_ms = best.offset_ms.saturating_sub(self.steering.offset_ms(stopwatch_ms));
        self.steering.aim(stopwatch_ms, best.offset_ms);
        self.used_ms = Some(best.at_ms);
        Ok(Heard::Steered { by_ms })
    }

    /// Whether a step ahead that both clocks took led away from this offset, and the server signs.
    fn has_left(&self, offset_ms: i64) -> bool {
        let near = |left: i64| left.abs_diff(offset_ms) <= SAME_MS;
        self.policy.stray_max.is_none() && self.left_offset_ms.is_some_and(near)
    }

    fn note(&mut self, sample: Sample) {
        self.failures = 0;
        self.kisses = 0;
        self.heard = self.heard.saturating_add(1);
        self.latest = Some(sample);
    }

    /// Follows this sample alone: earlier ones do not belong to its time.
    fn begin(&mut self, sample: Sample, stopwatch_ms: u64, by_ms: i64) -> Heard {
        self.note(sample);
        self.samples = [None; SAMPLES];
        self.samples[0] = Some(sample);
        self.next = 1;
        self.steering.step(stopwatch_ms, sample.offset_ms);
        self.used_ms = Some(sample.at_ms);
        Heard::Set { by_ms }
    }

    fn judge(&self, sample: &Sample, by_ms: i64, stopwatch_ms: u64, first: bool) -> Result<(), Lie> {
        let policy = &self.policy;
        if !first {
            if by_ms.unsigned_abs() > policy.step_max_ms {
                return Err(Lie::TooFar { by_ms, max_ms: policy.step_max_ms });
            }
        } else {
            if by_ms > 0 && by_ms.unsigned_abs() > policy.first_ahead_max_ms {
                return Err(Lie::TooFar { by_ms, max_ms: policy.first_ahead_max_ms });
            }
            let time = stopwatch_ms.saturating_add_signed(sample.offset_ms);
            let behind_ms = self.steering.told_ms().saturating_sub(time);
            if behind_ms > policy.stand_max_ms {
                return Err(Lie::Past { by_ms, behind_ms });
            }
        }
        if let Some((base_ms, ppm)) = policy.stray_max {
            let passed = u128::from(stopwatch_ms.saturating_sub(self.began_ms));
            let drift = u64::try_from(passed * u128::from(ppm) / 1_000_000).unwrap_or(u64::MAX);
            let (stray_ms, max_ms) =
                (sample.offset_ms.abs_diff(self.machine_ms), base_ms.saturating_add(drift));
            if stray_ms > max_ms {
                return Err(Lie::Astray { by_ms, stray_ms, max_ms });
            }
        }
        Ok(())
    }

    /// The sample that is least off by now.
    fn best(&self, stopwatch_ms: u64) -> Option<Sample> {
        let off = |sample: &Sample| {
            let age = stopwatch_ms.saturating_sub(sample.at_ms);
            sample.error_ms.saturating_mul(1000).saturating_add(age.saturating_mul(DRIFT_PPM) / 1000)
        };
        // The newest of those that are equally good.
        let newest_first = |sample: &Sample| (off(sample), u64::MAX - sample.at_ms);
        self.samples.iter().flatten().copied().min_by_key(newest_first)
    }

    /// There was no answer, or none that is believed.
    pub fn missed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// The server asked to be asked less often.
    pub fn kissed(&mut self) {
        self.kisses = self.kisses.saturating_add(1);
    }

    /// The pause before the next question, milliseconds.
    #[must_use]
    pub fn pause_ms(&self) -> u64 {
        let failures = self.failures.min(FAILURES_MAX);
        let pause = match (self.heard < QUICK, failures) {
            (true, _) => (QUICK_MS << failures).min(SLOW_MS),
            (false, 0) => SLOW_MS,
            (false, _) => (RETRY_MS << (failures - 1)).min(SLOW_MS),
        };
        pause << self.kisses.min(KISSES_MAX)
    }
}

/// `a - b` of two times; saturates where no real clock gets.
fn difference(a: u64, b: u64) -> i64 {
    let [a, b] = [a, b].map(|time| i64::try_from(time).unwrap_or(i64::MAX));
    a.saturating_sub(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_800_000_000_000;

    fn follower(policy: Policy, floor_ms: u64) -> Follower {
        Follower::new(policy, NOW, 0, 0, floor_ms)
    }

    /// A sample that says the true time is so far ahead of the machine's.
    fn sample(ahead_ms: i64, at_ms: u64) -> Sample {
        let offset_ms = NOW as i64 + ahead_ms;
        Sample { offset_ms, error_ms: 5, delay_ms: 2, at_ms, stratum: 2 }
    }

    #[test]
    fn the_first_sample_sets_the_clock_and_later_ones_steer_it() {
        let mut clock = follower(Policy::SIGNED, 0);
        assert!(!clock.is_set());
        assert_eq!(clock.take(sample(3_600_000, 10), 10, NOW), Ok(Heard::Set { by_ms: 3_600_000 }));
        assert_eq!(clock.tell(10), NOW + 3_600_010);
        assert_eq!(clock.take(sample(3_601_000, 1_010), 1_010, NOW), Ok(Heard::Steered { by_ms: 1_000 }));
        assert_eq!(clock.tell(2_010), NOW + 3_600_000 + 2_010 + 50);
        assert_eq!(clock.latest(2_010).map(|(_, ahead)| ahead), Some(950));
    }

    #[test]
    fn the_first_sample_takes_the_clock_ahead_by_a_day_and_no_more() {
        let day = Policy::SIGNED.first_ahead_max_ms as i64;
        assert_eq!(follower(Policy::SIGNED, 0).take(sample(day, 0), 0, NOW), Ok(Heard::Set { by_ms: day }));
        let mut clock = follower(Policy::SIGNED, 0);
        let lie = Lie::TooFar { by_ms: day + 1, max_ms: day as u64 };
        assert_eq!(clock.take(sample(day + 1, 0), 0, NOW), Err(lie));
        assert_eq!((clock.tell(5), clock.is_set()), (NOW + 5, false));
    }

    #[test]
    fn the_first_sample_takes_it_back_as_far_as_nothing_was_told() {
        // A machine ten days ahead, before it told anybody.
        let ten_days = 10 * 86_400_000;
        let mut clock = follower(Policy::SIGNED, NOW - ten_days as u64 - 1);
        assert_eq!(clock.take(sample(-ten_days, 0), 0, NOW), Ok(Heard::Set { by_ms: -ten_days }));
        assert_eq!(clock.tell(7), NOW - ten_days as u64 + 7);
        // One that told its time may stand still for 54 s, and no longer.
        for (back, good) in [(54_000, true), (54_001, false)] {
            let mut clock = follower(Policy::SIGNED, 0);
            assert_eq!(clock.tell(0), NOW);
            let heard = clock.take(sample(-back, 0), 0, NOW);
            assert_eq!(heard.is_ok(), good, "{heard:?}");
            assert_eq!(clock.tell(1), if good { NOW } else { NOW + 1 });
        }
    }

    #[test]
    fn a_clock_that_follows_believes_a_minute_and_no_more() {
        for (by, good) in [(60_000, true), (-60_000, true), (60_001, false), (-60_001, false)] {
            let mut clock = follower(Policy::SIGNED, 0);
            clock.take(sample(0, 0), 0, NOW).unwrap();
            let before = clock.tell(100);
            let heard = clock.take(sample(by, 100), 100, NOW);
            assert_eq!(
                heard,
                match good {
                    true => Ok(Heard::Steered { by_ms: by }),
                    false => Err(Lie::TooFar { by_ms: by, max_ms: 60_000 }),
                }
            );
            assert_eq!(clock.tell(100), before, "never a jump");
        }
    }

    #[test]
    fn a_process_that_was_stopped_believes_what_two_clocks_say() {
        let hour = 3_600_000;
        let stopped = |machine_ahead: i64| {
            let mut clock = follower(Policy::SIGNED, 0);
            clock.take(sample(0, 0), 0, NOW).unwrap();
            clock.take(sample(hour, 100), 100, (NOW + 100).saturating_add_signed(hour + machine_ahead))
        };
        assert_eq!(stopped(10_000), Ok(Heard::Set { by_ms: hour }));
        assert!(
            stopped(10_001).is_err() && stopped(-10_001).is_err(),
            "the machine's clock says another time"
        );
        // Backwards no witness helps.
        let mut clock = follower(Policy::SIGNED, 0);
        clock.take(sample(0, 0), 0, NOW).unwrap();
        assert!(clock.take(sample(-hour, 100), 100, NOW + 100 - hour as u64).is_err());
    }

    #[test]
    fn step_that_both_clocks_took_is_taken_back() {
        let hour = 3_600_000;
        let ahead = || {
            let mut clock = follower(Policy::SIGNED, 0);
            clock.take(sample(0, 0), 0, NOW).unwrap();
            clock.take(sample(hour, 100), 100, NOW + 100 + hour as u64).unwrap();
            assert_eq!(clock.tell(200), NOW + 200 + hour as u64);
            clock
        };
        let mut clock = ahead();
        assert_eq!(clock.take(sample(20, 300), 300, NOW + 300), Ok(Heard::Set { by_ms: 20 - hour }));
        assert_eq!((clock.tell(400), clock.behind_ms(400)), (NOW + 420, 0));
        assert!(clock.take(sample(-hour, 500), 500, NOW + 500 - hour as u64).is_err());
        // To another time, or by the server's word alone, it does not go back.
        assert!(ahead().take(sample(-60_000, 300), 300, NOW + 300 - 60_000).is_err());
        assert!(ahead().take(sample(0, 300), 300, NOW + 300 + hour as u64).is_err());
    }

    #[test]
    fn a_clock_behind_its_floor_says_so() {
        let clock = follower(Policy::SIGNED, NOW + 5_000);
        assert_eq!((clock.behind_ms(0), clock.behind_ms(5_001)), (5_000, 0));
        assert_eq!((clock.untold_ms(1), clock.told_ms()), (NOW + 1, NOW + 5_000));
    }

    #[test]
    fn an_unsigned_server_moves_the_clock_a_minute_and_seventeen_seconds_a_day() {
        let mut clock = follower(Policy::UNSIGNED, 0);
        clock.take(sample(0, 0), 0, NOW).unwrap();
        // Always as far ahead as is believed, every minute for ten days.
        let (mut at, mut lies) = (0, 0);
        for _ in 0..14_400 {
            at += 60_000;
            let ahead = clock.tell(at) as i64 - (NOW + at) as i64 + 9_000;
            lies += u64::from(clock.take(sample(ahead, at), at, NOW).is_err());
        }
        let ahead = clock.tell(at) - (NOW + at);
        assert!(lies > 0 && (60_000..=60_000 + 10 * 17_280).contains(&ahead), "{ahead} ms ahead");
    }

    #[test]
    fn a_short_way_is_believed_over_a_long_one() {
        let mut clock = follower(Policy::SIGNED, 0);
        clock.take(sample(0, 0), 0, NOW).unwrap();
        assert_eq!(clock.take(sample(10, 1_000), 1_000, NOW), Ok(Heard::Steered { by_ms: 10 }));
        let held_back = Sample { error_ms: 480, delay_ms: 950, ..sample(470, 2_000) };
        assert_eq!(clock.take(held_back, 2_000, NOW), Ok(Heard::Kept));
        // After eight of them there is nothing better.
        let mut steered = 0;
        for at in 3..12 {
            let held_back = Sample { at_ms: at * 1_000, ..held_back };
            steered += u64::from(clock.take(held_back, at * 1_000, NOW) != Ok(Heard::Kept));
        }
        assert!(steered > 0);
    }

    #[test]
    fn questions_become_rare_and_kisses_make_them_rarer() {
        let mut clock = follower(Policy::SIGNED, 0);
        assert_eq!(clock.pause_ms(), 2_000);
        for _ in 0..20 {
            clock.missed();
        }
        assert_eq!(clock.pause_ms(), 64_000);
        for at in 0..4 {
            clock.take(sample(0, at), at, NOW).unwrap();
        }
        assert_eq!(clock.pause_ms(), 64_000);
        clock.missed();
        assert_eq!(clock.pause_ms(), 16_000);
        for _ in 0..100 {
            clock.kissed();
        }
        assert_eq!(clock.pause_ms(), 256_000);
        clock.take(sample(0, 9), 9, NOW).unwrap();
        assert_eq!(clock.pause_ms(), 64_000);
    }

    proptest! {
        /// Whatever servers say, the clock goes on: never back, never faster than its rate once it is set.
        #[test]
        fn no_server_turns_it_back(
            floor_behind in 0u64..1_000_000,
            said in proptest::collection::vec((1u64..100_000, -200_000_000i64..200_000_000, 0u64..2_000), 1..60),
        ) {
            let mut clock = follower(Policy::SIGNED, NOW - floor_behind);
            let (mut stopwatch, mut last) = (0, clock.tell(0));
            for (pause, ahead, error_ms) in said {
                let was_set = clock.is_set();
                stopwatch += pause;
                let now = clock.tell(stopwatch);
                prop_assert!(now >= last);
                prop_assert!(!was_set || now - last <= pause + pause / 20 + 1, "{last} to {now} in {pause}");
                let before = clock.is_set();
                let heard = clock.take(Sample { error_ms, ..sample(ahead, stopwatch) }, stopwatch, 0);
                last = clock.tell(stopwatch);
                prop_assert!(last >= now);
                if before || heard.is_err() {
                    prop_assert_eq!(last, now);
                }
            }
        }

        #[test]
        fn no_number_breaks_it(machine: u64, ahead: i64, floor: u64, offset_ms: i64, error_ms: u64, at: u64) {
            for policy in [Policy::SIGNED, Policy::UNSIGNED] {
                let mut clock = Follower::new(policy, machine, at, ahead, floor);
                for at_ms in [0, at, u64::MAX] {
                    let _ = clock.take(Sample { offset_ms, error_ms, delay_ms: 0, at_ms, stratum: 1 }, at_ms, machine);
                    let _ = (clock.tell(at_ms), clock.latest(at), clock.pause_ms());
                }
            }
        }
    }
}
