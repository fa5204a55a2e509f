//! A machine's wall clock, checked against the time since its boot.
//!
//! Does: compares the wall clock with the time since boot, accepts a step of the wall clock only
//! after it lasted [`CONFIRM_MS`] or [`LONG_CONFIRM_MS`], and limits how far back the time may go.
//! Does not: read a clock or store anything.
//! Contract: the time goes back only by a confirmed step, and never before
//! [`MachineClock::least_ms`], except by [`MachineClock::reset`].
//! Truth: docs/adr/0057-clock-steps.md; docs/standards/time.md.

use crate::steer::SlewedClock;

/// Largest difference that is slewed, in milliseconds; a larger one is a step.
pub const STEP_MS: u64 = 2_000;
/// How long a step back to the time before the last step, or to before the start of the current
/// time, must last, in milliseconds. Also any step in the first [`LONG_CONFIRM_MS`] of a boot, when
/// a clock without a battery is set, and a step ahead from before the least time.
pub const CONFIRM_MS: u64 = 15_000;
/// How long any other step must last, in milliseconds: a step ahead expires data irrevocably, and a
/// step back repeats times that were used.
pub const LONG_CONFIRM_MS: u64 = 600_000;
/// Maximum gap between two readings of a step, in milliseconds; after a longer one its observation
/// restarts.
pub const GAP_MAX_MS: u64 = 10_000;
/// Maximum difference of readings that belong to the same step, in milliseconds.
const SAME_MS: u64 = 500;
/// How long a time must last after a boot until the clock does not go back before it, in
/// milliseconds.
pub const TRUST_AFTER_MS: u64 = 3_600_000;
/// How long after a step ahead the clock may return to the time before the step, in milliseconds.
pub const RETURN_MAX_MS: u64 = 24 * 3_600_000;
/// Slew rate in millionths: twice chrony's default maximum.
const SLEW_PPM: u32 = 200_000;
/// Smallest difference that is slewed, in milliseconds.
const STEER_MIN_MS: u64 = 3;
/// Drift of the boot clock against a disciplined wall clock, in millionths.
const DRIFT_PPM: u64 = 500;
/// Distance of the wall clock before the least time, in milliseconds, above which it counts as
/// wrong.
pub const BEHIND_OK_MS: u64 = 60_000;

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// The wall clock, in milliseconds since 1970.
    pub wall_ms: u64,
    /// Time since the machine booted, including suspension, in milliseconds.
    pub boot_ms: u64,
}

/// How trustworthy the time is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockTrust {
    /// No time has lasted [`TRUST_AFTER_MS`] since the boot.
    New,
    /// The time has lasted that long.
    Held,
    /// The wall clock stepped ahead of a time that had lasted.
    Ahead,
}

/// Stored state of a machine's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineState {
    /// Boot id of the machine.
    pub boot_id: [u8; 16],
    /// The time minus the time since boot, in milliseconds.
    pub offset_ms: i64,
    /// The least time minus the time since boot, in milliseconds.
    pub least_offset_ms: i64,
    /// The least time, in milliseconds since 1970; the only field that counts after another boot.
    pub least_ms: u64,
    /// How trustworthy the time is.
    pub trust: ClockTrust,
    /// Time since boot at which it became so, in milliseconds.
    pub since_ms: u64,
}

/// Event of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEvent {
    /// The wall clock differs, and the step is being observed.
    Noticed {
        /// How far the wall clock is ahead, in milliseconds.
        by_ms: i64,
    },
    /// The wall clock agrees again.
    Ended,
    /// The step was confirmed and accepted.
    Taken {
        /// Change in milliseconds.
        by_ms: i64,
    },
    /// The step lasted but was refused: the time would be before the least time.
    Refused {
        /// How far the wall clock is ahead, in milliseconds.
        by_ms: i64,
    },
}

struct ObservedStep {
    offset_ms: i64,
    since_ms: u64,
    last_ms: u64,
    refused: bool,
}

/// The clock of a machine.
pub struct MachineClock {
    boot_id: [u8; 16],
    steering: SlewedClock,
    aim_ms: i64,
    least_offset_ms: i64,
    trust: ClockTrust,
    since_ms: u64,
    /// Offset before the last accepted step.
    offset_before_step_ms: Option<i64>,
    step: Option<ObservedStep>,
    latest_boot_ms: u64,
}

impl MachineClock {
    /// Creates a clock with this reading that continues from the stored state.
    #[must_use]
    pub fn start(reading: ClockReading, boot_id: [u8; 16], kept: Option<MachineState>) -> Self {
        let wall_offset_ms = difference(reading.wall_ms, reading.boot_ms);
        let mut clock = Self {
            boot_id,
            steering: SlewedClock::new(wall_offset_ms, 0, SLEW_PPM),
            aim_ms: wall_offset_ms,
            least_offset_ms: difference(0, reading.boot_ms),
            trust: ClockTrust::New,
            since_ms: reading.boot_ms,
            offset_before_step_ms: None,
            step: None,
            latest_boot_ms: reading.boot_ms,
        };
        if let Some(kept) = kept {
            clock.continue_from(reading, kept);
        }
        clock
    }

    /// Merges the state of another daemon on this machine: the least time only rises.
    pub fn continue_from(&mut self, reading: ClockReading, kept: MachineState) {
        if kept.boot_id != self.boot_id || kept.since_ms > reading.boot_ms {
            // After another boot the stored time is only a lower bound, because the downtime is
            // unknown.
            let least = difference(kept.least_ms, reading.boot_ms);
            self.least_offset_ms = self.least_offset_ms.max(least);
            return;
        }
        self.least_offset_ms = self.least_offset_ms.max(kept.least_offset_ms);
        if self.trust == ClockTrust::New {
            self.trust = kept.trust;
            self.since_ms = kept.since_ms;
            self.step = None;
            self.aim_ms = kept.offset_ms;
            self.steering = SlewedClock::new(kept.offset_ms, 0, SLEW_PPM);
        }
    }

    /// Returns the state to store.
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

    /// Returns the time of this reading in milliseconds since 1970, and the event.
    pub fn read(&mut self, reading: ClockReading) -> (u64, Option<StepEvent>) {
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
        self.update_trust(boot_ms);
        (self.steering.time_ms(boot_ms), event)
    }

    /// Returns the time without reading the wall clock.
    pub fn coast(&mut self, boot_ms: u64) -> u64 {
        self.steering.time_ms(boot_ms.max(self.latest_boot_ms))
    }

    /// Returns the time before which the clock does not go back, in milliseconds since 1970.
    #[must_use]
    pub fn least_ms(&self, boot_ms: u64) -> u64 {
        boot_ms.saturating_add_signed(self.least_offset_ms)
    }

    /// Returns how far the clock is before the least time, in milliseconds.
    #[must_use]
    pub fn behind_ms(&self, boot_ms: u64) -> u64 {
        let time_ms = boot_ms.saturating_add_signed(self.steering.offset_ms(boot_ms));
        self.least_ms(boot_ms).saturating_sub(time_ms)
    }

    /// Returns how far the wall clock is ahead in an unaccepted step, in milliseconds.
    #[must_use]
    pub fn step_ms(&self, boot_ms: u64) -> Option<i64> {
        let step = self.step.as_ref()?;
        Some(step.offset_ms.saturating_sub(self.steering.offset_ms(boot_ms)))
    }

    /// Returns how trustworthy the time is.
    #[must_use]
    pub const fn trust(&self) -> ClockTrust {
        self.trust
    }

    /// Accepts the wall clock as it is, even before the least time, on an administrator's request.
    /// Returns the step in milliseconds.
    pub fn reset(&mut self, reading: ClockReading) -> i64 {
        let offset_ms = difference(reading.wall_ms, reading.boot_ms);
        let by_ms = offset_ms.saturating_sub(self.steering.offset_ms(reading.boot_ms));
        self.take(offset_ms, reading.boot_ms);
        self.trust = ClockTrust::Held;
        self.least_offset_ms = offset_ms;
        by_ms
    }

    fn observe(&mut self, offset_ms: i64, by_ms: i64, boot_ms: u64) -> Option<StepEvent> {
        let returns = [self.offset_before_step_ms, Some(self.least_offset_ms)]
            .into_iter()
            .flatten()
            .any(|known| offset_ms.abs_diff(known) <= self.tolerance_ms(boot_ms));
        let is_before = by_ms < 0 && by_ms.unsigned_abs() > boot_ms.saturating_sub(self.since_ms);
        // The current time is known to be wrong, so another one does no harm.
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
            self.step = Some(ObservedStep { offset_ms, since_ms: boot_ms, last_ms: boot_ms, refused: false });
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
            ClockTrust::New => ClockTrust::New,
            ClockTrust::Held | ClockTrust::Ahead if ahead => ClockTrust::Ahead,
            // A return near the least time is a return to the time that had lasted.
            ClockTrust::Held | ClockTrust::Ahead if self.is_near_least(offset_ms, boot_ms) => {
                ClockTrust::Held
            }
            ClockTrust::Held | ClockTrust::Ahead => ClockTrust::Ahead,
        };
        self.offset_before_step_ms = Some(self.steering.offset_ms(boot_ms));
        self.steering = SlewedClock::new(offset_ms, 0, SLEW_PPM);
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

    fn update_trust(&mut self, boot_ms: u64) {
        let held_ms = boot_ms.saturating_sub(self.since_ms);
        let offset_ms = self.steering.offset_ms(boot_ms);
        match self.trust {
            ClockTrust::New if held_ms >= TRUST_AFTER_MS && self.behind_ms(boot_ms) == 0 => {
                self.trust = ClockTrust::Held;
                self.least_offset_ms = offset_ms;
            }
            ClockTrust::Held => self.least_offset_ms = offset_ms,
            ClockTrust::Ahead if held_ms >= RETURN_MAX_MS => {
                self.trust = ClockTrust::Held;
                self.least_offset_ms = self.least_offset_ms.max(offset_ms);
            }
            ClockTrust::New | ClockTrust::Ahead => {}
        }
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
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const NOW: u64 = 1_800_000_000_000;
    const DAY: i64 = 86_400_000;
    const BOOT: [u8; 16] = [1; 16];

    /// A machine whose wall clock is off by `off_ms`.
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

        /// Reads the clock twice a second for `ms`. Returns how far the last time is from the true
        /// one.
        fn run(&mut self, ms: u64) -> i64 {
            let mut last_served_ms = 0;
            for _ in 0..ms.div_ceil(500) {
                self.boot_ms += 500;
                let (time_ms, event) = self.clock.read(reading(self.boot_ms, self.off_ms));
                last_served_ms = time_ms;
                self.events.extend(event);
            }
            difference(last_served_ms, NOW + self.boot_ms)
        }

        fn restart(&mut self) {
            let kept = self.clock.state(self.boot_ms);
            self.clock = MachineClock::start(reading(self.boot_ms, self.off_ms), BOOT, Some(kept));
        }

        fn hold(mut self) -> Self {
            self.run(TRUST_AFTER_MS + 1_000);
            assert_eq!(self.clock.trust(), ClockTrust::Held);
            self
        }
    }

    fn reading(boot_ms: u64, off_ms: i64) -> ClockReading {
        ClockReading { wall_ms: (NOW + boot_ms).saturating_add_signed(off_ms), boot_ms }
    }

    #[test]
    fn short_wrong_reading_changes_nothing() {
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
    fn lasting_step_is_accepted_and_reverted() {
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
    fn clock_without_battery_is_set_after_boot() {
        let boot_ms = 5_000;
        let clock = MachineClock::start(reading(boot_ms, -9_000 * DAY), BOOT, None);
        let mut machine = Machine { clock, boot_ms, off_ms: 0, events: Vec::new() };
        assert_eq!(machine.run(CONFIRM_MS + 1_000), 0);
    }

    #[test]
    fn step_back_before_trusted_time_is_refused() {
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
    fn other_boot_starts_at_wall_clock_above_least() {
        let machine = Machine::new().hold();
        let mut kept = machine.clock.state(machine.boot_ms);
        kept.boot_id = [2; 16];
        let ahead = i64::try_from(machine.boot_ms - 1_000_000).unwrap();
        // A clock that is ahead after the boot is corrected, down to the least time.
        let mut next = Machine::kept(ahead + 3 * DAY, Some(kept));
        next.run(60_000);
        next.off_ms = ahead + 5_000;
        assert_eq!(next.run(60_000), ahead + 5_000);
        assert_eq!(next.clock.behind_ms(next.boot_ms), 0);
        // A clock before the least time reports it.
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
    fn small_difference_is_slewed_forward() {
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
        /// For any readings, the clock stays after the least time, and goes back only by a
        /// confirmed step.
        #[test]
        fn time_steps_back_only_after_confirmation(
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
        fn arbitrary_numbers_never_panic(readings in proptest::collection::vec((any::<u64>(), any::<u64>()), 1..20)) {
            let mut clock = MachineClock::start(ClockReading { wall_ms: u64::MAX, boot_ms: 0 }, BOOT, None);
            for (wall_ms, boot_ms) in readings {
                let reading = ClockReading { wall_ms, boot_ms };
                let _ = (clock.read(reading), clock.state(boot_ms), clock.behind_ms(boot_ms));
                clock.continue_from(reading, clock.state(boot_ms));
            }
            clock.reset(ClockReading { wall_ms: 0, boot_ms: u64::MAX });
        }
    }
}
