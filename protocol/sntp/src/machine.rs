//! A machine's wall clock, checked against a clock that nobody sets.
//!
//! Does: compare the wall clock with the time since the machine booted, take a step of the wall clock only after it held
//! for [`CONFIRM_MS`] or [`LONG_CONFIRM_MS`], and say how far back the time may go. Does not: read a clock or store anything.
//! Contract: the time goes back only by a confirmed step, and never before [`MachineClock::least_ms`], except by
//! [`MachineClock::reset`].
//! Truth: docs/adr/0057-clock-steps.md; docs/standards/time.md.

use crate::steer::Steering;

/// A difference up to here is made good by steering, milliseconds. A larger one is a step.
pub const STEP_MS: u64 = 2_000;
/// A step of the wall clock to the time before the last step, or back to before the time that this
/// one began with, is taken after it was seen for so long, milliseconds. So is any step in the
/// first [`LONG_CONFIRM_MS`] of a boot, when a clock without a battery is set, and a step ahead of
/// a time before the least time.
pub const CONFIRM_MS: u64 = 15_000;
/// Any other step is taken after so long, milliseconds: what a step ahead makes expire does not come back, and a step back
/// leads into times that are used already.
pub const LONG_CONFIRM_MS: u64 = 600_000;
/// Two readings of a step are apart by this at most, milliseconds; else it is observed from the start.
pub const GAP_MAX_MS: u64 = 10_000;
/// Readings of a step that are of the same step, milliseconds.
const SAME_MS: u64 = 500;
/// A time that held for so long after a boot is the one that the clock does not go back from, milliseconds.
pub const TRUST_AFTER_MS: u64 = 3_600_000;
/// After a step ahead the clock may return to the time before the step for so long, milliseconds.
pub const RETURN_MAX_MS: u64 = 24 * 3_600_000;
/// Rate of steering, millionths: twice the fastest that chrony moves a clock by default.
const SLEW_PPM: u32 = 200_000;
/// Differences below this are no reason to steer, milliseconds.
const STEER_MIN_MS: u64 = 3;
/// What a boot clock and a steered wall clock drift apart, millionths.
const DRIFT_PPM: u64 = 500;
/// The wall clock of a start may be so far before the least time, milliseconds; beyond it the wall clock is wrong.
pub const BEHIND_OK_MS: u64 = 60_000;

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The wall clock, milliseconds since 1970.
    pub wall_ms: u64,
    /// Time since the machine booted, suspension included, milliseconds.
    pub boot_ms: u64,
}

/// How sure the time is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Since the boot no time held for [`TRUST_AFTER_MS`].
    New,
    /// The time held for long.
    Held,
    /// The wall clock stepped ahead of a time that held for long.
    Ahead,
}

/// What is kept of a machine's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineState {
    /// Which boot of the machine it is about.
    pub boot_id: [u8; 16],
    /// The time minus the time since the boot, milliseconds.
    pub offset_ms: i64,
    /// The same of the least time.
    pub least_offset_ms: i64,
    /// The least time, milliseconds since 1970: all that counts after another boot.
    pub least_ms: u64,
    /// How sure the time is.
    pub trust: Trust,
    /// Time since the boot at which it became so, milliseconds.
    pub since_ms: u64,
}

/// What a reading changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEvent {
    /// The wall clock differs, and the step is observed before it is taken.
    Noticed {
        /// How far the wall clock is ahead, milliseconds.
        by_ms: i64,
    },
    /// The step is over: the wall clock agrees again.
    Ended,
    /// The step was confirmed and is taken.
    Taken {
        /// By so much, milliseconds.
        by_ms: i64,
    },
    /// The step held, and is not taken: the time would be before the least time.
    Refused {
        /// How far the wall clock is ahead, milliseconds.
        by_ms: i64,
    },
}

struct Step {
    offset_ms: i64,
    since_ms: u64,
    last_ms: u64,
    refused: bool,
}

/// The clock of a machine.
pub struct MachineClock {
    boot_id: [u8; 16],
    steering: Steering,
    aim_ms: i64,
    least_offset_ms: i64,
    trust: Trust,
    since_ms: u64,
    /// The offset before the last step that was taken.
    left_offset_ms: Option<i64>,
    step: Option<Step>,
    latest_boot_ms: u64,
}

impl MachineClock {
    /// A clock that begins with this reading, and continues from what was kept.
    #[must_use]
    pub fn start(reading: Reading, boot_id: [u8; 16], kept: Option<MachineState>) -> Self {
        let wall_offset_ms = difference(reading.wall_ms, reading.boot_ms);
        let mut clock = Self {
            boot_id,
            steering: Steering::new(wall_offset_ms, 0, SLEW_PPM),
            aim_ms: wall_offset_ms,
            least_offset_ms: difference(0, reading.boot_ms),
            trust: Trust::New,
            since_ms: reading.boot_ms,
            left_offset_ms: None,
            step: None,
            latest_boot_ms: reading.boot_ms,
        };
        if let Some(kept) = kept {
            clock.continue_from(reading, kept);
        }
        clock
    }

    /// Takes over what another daemon on this machine kept: the least time only rises.
    pub fn continue_from(&mut self, reading: Reading, kept: MachineState) {
        if kept.boot_id != self.boot_id || kept.since_ms > reading.boot_ms {
            // After another boot the kept time says what is over, and nothing about how long ago that was.
            let least = difference(kept.least_ms, reading.boot_ms);
            self.least_offset_ms = self.least_offset_ms.max(least);
            return;
        }
        self.least_offset_ms = self.least_offset_ms.max(kept.least_offset_ms);
        if self.trust == Trust::New {
            self.trust = kept.trust;
            self.since_ms = kept.since_ms;
            self.step = None;
            self.aim_ms = kept.offset_ms;
            self.steering = Steering::new(kept.offset_ms, 0, SLEW_PPM);
        }
    }

    /// What to keep.
    #[must_use]
    pub fn state(&self, boot_ms: u64) -> MachineState {
        MachineState {
            boot_id: self.boot_id,
            offset_ms: self.steering.offset_ms(boot_ms),
            least_offset_ms: self.least_offset_ms,
            least_ms: self.least_ms(boot_ms),
            trust: self.trust,
            since_ms: self.since_ms,
        }
    }

    /// The time of this reading, milliseconds since 1970, and what the reading changed.
    pub fn read(&mut self, reading: Reading) -> (u64, Option<StepEvent>) {
        let boot_ms = reading.boot_ms.max(self.latest_boot_ms);
        self.latest_boot_ms = boot_ms;
        let wall_offset_ms = difference(reading.wall_ms, boot_ms);
        let by_ms = wall_offset_ms.saturating_sub(self.steering.offset_ms(boot_ms));
        let event = if by_ms.unsigned_abs() <= STEP_MS {
            if wall_offset_ms.abs_diff(self.aim_ms) >= STEER_MIN_MS {
                self.aim_ms = wall_offset_ms;
                self.steering.aim(boot_ms, wall_offset_ms);
            }
            self.step.take().map(|_| StepEvent::Ended)
        } else {
            self.observe(wall_offset_ms, by_ms, boot_ms)
        };
        self.grow_trust(boot_ms);
        (self.steering.tell(boot_ms), event)
    }

    /// The time without the wall clock.
    pub fn coast(&mut self, boot_ms: u64) -> u64 {
        self.steering.tell(boot_ms.max(self.latest_boot_ms))
    }

    /// The time that the clock does not go back behind, milliseconds since 1970.
    #[must_use]
    pub fn least_ms(&self, boot_ms: u64) -> u64 {
        boot_ms.saturating_add_signed(self.least_offset_ms)
    }

    /// How far the clock is before the least time, milliseconds.
    #[must_use]
    pub fn behind_ms(&self, boot_ms: u64) -> u64 {
        let time_ms = boot_ms.saturating_add_signed(self.steering.offset_ms(boot_ms));
        self.least_ms(boot_ms).saturating_sub(time_ms)
    }

    /// How far the wall clock is ahead where it differs by a step that is not taken, milliseconds.
    #[must_use]
    pub fn step_ms(&self, boot_ms: u64) -> Option<i64> {
        let step = self.step.as_ref()?;
        Some(step.offset_ms.saturating_sub(self.steering.offset_ms(boot_ms)))
    }

    /// How sure the time is.
    #[must_use]
    pub const fn trust(&self) -> Trust {
        self.trust
    }

    /// Takes the wall clock as it is, also before the least time: for an administrator. Returns the step, milliseconds.
    pub fn reset(&mut self, reading: Reading) -> i64 {
        let offset_ms = difference(reading.wall_ms, reading.boot_ms);
        let by_ms = offset_ms.saturating_sub(self.steering.offset_ms(reading.boot_ms));
        self.take(offset_ms, reading.boot_ms);
        self.trust = Trust::Held;
        self.least_offset_ms = offset_ms;
        by_ms
    }

    fn observe(&mut self, offset_ms: i64, by_ms: i64, boot_ms: u64) -> Option<StepEvent> {
        let returns = [self.left_offset_ms, Some(self.least_offset_ms)]
            .into_iter()
            .flatten()
            .any(|known| offset_ms.abs_diff(known) <= self.tolerance_ms(boot_ms));
        let is_before = by_ms < 0 && by_ms.unsigned_abs() > boot_ms.saturating_sub(self.since_ms);
        // The time is known to be wrong: nothing is lost by another one.
        let is_lost = by_ms > 0 && self.behind_ms(boot_ms) > BEHIND_OK_MS;
        let quick = is_before || is_lost || returns || boot_ms < LONG_CONFIRM_MS;
        let confirm_ms = if quick { CONFIRM_MS } else { LONG_CONFIRM_MS };
        let back_to_ms = offset_ms.saturating_add_unsigned(self.tolerance_ms(boot_ms));
        let same = self.step.as_mut().filter(|step| {
            step.offset_ms.abs_diff(offset_ms) <= SAME_MS
                && boot_ms.saturating_sub(step.last_ms) <= GAP_MAX_MS
        });
        let Some(step) = same else {
            let first = self.step.is_none();
            self.step = Some(Step { offset_ms, since_ms: boot_ms, last_ms: boot_ms, refused: false });
            return first.then_some(StepEvent::Noticed { by_ms });
        };
        step.last_ms = boot_ms;
        if boot_ms.saturating_sub(step.since_ms) < confirm_ms {
            return None;
        }
        if by_ms < 0 && back_to_ms < self.least_offset_ms {
            let refused = core::mem::replace(&mut step.refused, true);
            return (!refused).then_some(StepEvent::Refused { by_ms });
        }
        self.take(offset_ms, boot_ms);
        Some(StepEvent::Taken { by_ms })
    }

    fn take(&mut self, offset_ms: i64, boot_ms: u64) {
        let ahead = offset_ms > self.steering.offset_ms(boot_ms);
        self.trust = match self.trust {
            Trust::New => Trust::New,
            Trust::Held | Trust::Ahead if ahead => Trust::Ahead,
            // Back to the least time, or near it: that is the time that held.
            Trust::Held | Trust::Ahead if self.is_near_least(offset_ms, boot_ms) => Trust::Held,
            Trust::Held | Trust::Ahead => Trust::Ahead,
        };
        self.left_offset_ms = Some(self.steering.offset_ms(boot_ms));
        self.steering = Steering::new(offset_ms, 0, SLEW_PPM);
        self.aim_ms = offset_ms;
        self.since_ms = boot_ms;
        self.step = None;
    }

    fn is_near_least(&self, offset_ms: i64, boot_ms: u64) -> bool {
        offset_ms.abs_diff(self.least_offset_ms) <= self.tolerance_ms(boot_ms)
    }

    fn tolerance_ms(&self, boot_ms: u64) -> u64 {
        STEP_MS + boot_ms.saturating_sub(self.since_ms) / 1_000_000 * DRIFT_PPM
    }

    fn grow_trust(&mut self, boot_ms: u64) {
        let held_ms = boot_ms.saturating_sub(self.since_ms);
        let offset_ms = self.steering.offset_ms(boot_ms);
        match self.trust {
            Trust::New if held_ms >= TRUST_AFTER_MS && self.behind_ms(boot_ms) == 0 => {
                self.trust = Trust::Held;
                self.least_offset_ms = offset_ms;
            }
            Trust::Held => self.least_offset_ms = offset_ms,
            Trust::Ahead if held_ms >= RETURN_MAX_MS => {
                self.trust = Trust::Held;
                self.least_offset_ms = self.least_offset_ms.max(offset_ms);
            }
            Trust::New | Trust::Ahead => {}
        }
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
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const NOW: u64 = 1_800_000_000_000;
    const DAY: i64 = 86_400_000;
    const BOOT: [u8; 16] = [1; 16];

    /// A machine whose wall clock is off by as much as the test says.
    struct Machine {
        clock: MachineClock,
        boot_ms: u64,
        off_ms: i64,
        events: Vec<StepEvent>,
    }

    impl Machine {
        fn new() -> Self {
            Self::kept(0, None)
        }

        fn kept(off_ms: i64, kept: Option<MachineState>) -> Self {
            let boot_ms = 1_000_000;
            let clock = MachineClock::start(reading(boot_ms, off_ms), BOOT, kept);
            Self { clock, boot_ms, off_ms, events: Vec::new() }
        }

        /// Reads the clock twice a second for so long; how far the last time told is from the true one.
        fn run(&mut self, ms: u64) -> i64 {
            let mut told_ms = 0;
            for _ in 0..ms.div_ceil(500) {
                self.boot_ms += 500;
                let (time_ms, event) = self.clock.read(reading(self.boot_ms, self.off_ms));
                told_ms = time_ms;
                self.events.extend(event);
            }
            difference(told_ms, NOW + self.boot_ms)
        }

        fn restart(&mut self) {
            let kept = self.clock.state(self.boot_ms);
            self.clock = MachineClock::start(reading(self.boot_ms, self.off_ms), BOOT, Some(kept));
        }

        fn hold(mut self) -> Self {
            self.run(TRUST_AFTER_MS + 1_000);
            assert_eq!(self.clock.trust(), Trust::Held);
            self
        }
    }

    fn reading(boot_ms: u64, off_ms: i64) -> Reading {
        Reading { wall_ms: (NOW + boot_ms).saturating_add_signed(off_ms), boot_ms }
    }

    #[test]
    fn a_wrong_reading_of_seconds_changes_nothing() {
        for off_ms in [3 * DAY, 600_000, -600_000, -3 * DAY] {
            for mut machine in [Machine::new(), Machine::new().hold()] {
                machine.run(10_000);
                machine.off_ms = off_ms;
                assert_eq!(machine.run(3_000), 0);
                machine.restart();
                assert_eq!(machine.run(10_000), 0, "the restart knows the boot");
                machine.off_ms = 0;
                assert_eq!(machine.run(1_000), 0);
                machine.restart();
                assert_eq!(machine.run(60_000), 0);
            }
        }
    }

    #[test]
    fn a_step_that_holds_is_taken_and_taken_back() {
        for mut machine in [Machine::new(), Machine::new().hold()] {
            machine.off_ms = 3 * DAY;
            assert_eq!(machine.run(LONG_CONFIRM_MS - 1_000), 0);
            assert_eq!(machine.run(2_000), 3 * DAY);
            machine.run(600_000);
            machine.restart();
            machine.off_ms = 0;
            assert_eq!(machine.run(CONFIRM_MS + 1_000), 0);
            let taken = |by_ms| StepEvent::Taken { by_ms };
            assert!(machine.events.contains(&taken(3 * DAY)) && machine.events.contains(&taken(-3 * DAY)));
        }
    }

    #[test]
    fn a_clock_without_battery_is_set_soon_after_the_boot() {
        let boot_ms = 5_000;
        let clock = MachineClock::start(reading(boot_ms, -9_000 * DAY), BOOT, None);
        let mut machine = Machine { clock, boot_ms, off_ms: 0, events: Vec::new() };
        assert_eq!(machine.run(CONFIRM_MS + 1_000), 0);
    }

    #[test]
    fn a_time_that_held_is_not_gone_back_from() {
        let mut machine = Machine::new().hold();
        machine.off_ms = -600_000;
        assert_eq!(machine.run(3_600_000), 0);
        assert!(matches!(
            machine.events[..],
            [StepEvent::Noticed { .. }, StepEvent::Refused { by_ms: -600_000 }]
        ));
        assert_eq!(machine.clock.step_ms(machine.boot_ms), Some(-600_000));
        machine.restart();
        assert_eq!(machine.run(60_000), 0);
        assert_eq!(machine.clock.reset(reading(machine.boot_ms, machine.off_ms)), -600_000);
        assert_eq!(machine.run(1_000), -600_000);
    }

    #[test]
    fn another_boot_begins_at_the_wall_clock_and_knows_the_least_time() {
        let machine = Machine::new().hold();
        let mut kept = machine.clock.state(machine.boot_ms);
        kept.boot_id = [2; 16];
        let ahead = i64::try_from(machine.boot_ms - 1_000_000).unwrap();
        // A clock that is ahead after the boot is put right, down to the least time.
        let mut next = Machine::kept(ahead + 3 * DAY, Some(kept));
        next.run(60_000);
        next.off_ms = ahead + 5_000;
        assert_eq!(next.run(60_000), ahead + 5_000);
        assert_eq!(next.clock.behind_ms(next.boot_ms), 0);
        // One that is before the least time says so.
        let next = Machine::kept(ahead - 3_600_000, Some(kept));
        assert_eq!(next.clock.behind_ms(next.boot_ms), 3_600_000);
    }

    #[test]
    fn time_before_the_least_is_corrected_soon() {
        let machine = Machine::new().hold();
        let mut kept = machine.clock.state(machine.boot_ms);
        kept.boot_id = [2; 16];
        let ahead = i64::try_from(machine.boot_ms - 1_000_000).unwrap();
        let mut next = Machine::kept(ahead - 3 * DAY, Some(kept));
        assert!(next.boot_ms >= LONG_CONFIRM_MS);
        next.run(60_000);
        next.off_ms = ahead + 3_600_000;
        assert_eq!(next.run(CONFIRM_MS + 1_000), ahead + 3_600_000);
        assert_eq!(next.clock.behind_ms(next.boot_ms), 0);
    }

    #[test]
    fn steps_that_change_are_never_confirmed() {
        let mut machine = Machine::new();
        for round in 0..100 {
            machine.off_ms = 600_000 + round * 10_000;
            assert_eq!(machine.run(10_000), 0);
        }
    }

    #[test]
    fn a_small_difference_is_steered_and_time_goes_forward() {
        let mut machine = Machine::new();
        machine.off_ms = -1_900;
        let mut last = 0;
        for _ in 0..60 {
            machine.boot_ms += 500;
            let (time_ms, _) = machine.clock.read(reading(machine.boot_ms, machine.off_ms));
            assert!(time_ms > last);
            last = time_ms;
        }
        assert_eq!(last, (NOW + machine.boot_ms) - 1_900);
    }

    proptest! {
        /// No readings take the clock before the least time, and it goes back only by a step that was confirmed.
        #[test]
        fn time_goes_back_by_confirmed_steps_alone(
            steps in proptest::collection::vec((0i64..5, 1u64..40_000), 1..60), held: bool) {
            let mut machine = if held { Machine::new().hold() } else { Machine::new() };
            let mut last = 0;
            for (off, ms) in steps {
                machine.off_ms = (off - 2) * 3_600_000;
                for _ in 0..ms.div_ceil(500) {
                    machine.boot_ms += 500;
                    let least = machine.clock.least_ms(machine.boot_ms);
                    let (time_ms, event) = machine.clock.read(reading(machine.boot_ms, machine.off_ms));
                    let back = matches!(event, Some(StepEvent::Taken { by_ms }) if by_ms < 0);
                    prop_assert!(back || time_ms >= last);
                    prop_assert!(time_ms + STEP_MS + 1 >= least, "{time_ms} {least}");
                    last = time_ms;
                }
            }
        }

        #[test]
        fn no_number_breaks_it(readings in proptest::collection::vec((any::<u64>(), any::<u64>()), 1..20)) {
            let mut clock = MachineClock::start(Reading { wall_ms: u64::MAX, boot_ms: 0 }, BOOT, None);
            for (wall_ms, boot_ms) in readings {
                let reading = Reading { wall_ms, boot_ms };
                let _ = (clock.read(reading), clock.state(boot_ms), clock.behind_ms(boot_ms));
                clock.continue_from(reading, clock.state(boot_ms));
            }
            clock.reset(Reading { wall_ms: 0, boot_ms: u64::MAX });
        }
    }
}
