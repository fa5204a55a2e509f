//! A clock composed of a stopwatch and an offset that is slewed.
//!
//! Does: returns the time, never before an earlier one; moves towards a target offset at a limited
//! rate.
//! Does not: select the target; [`crate::Follower`] does.

/// A slewed clock. Times are milliseconds since 1970; the stopwatch is monotonic, with any start.
#[derive(Clone, Debug)]
pub struct SlewedClock {
    /// Slew rate in millionths of the elapsed time; below a million, so that time always advances.
    slew_ppm: u32,
    /// Offset at `since_ms` of the stopwatch, and the target offset.
    from_ms: i64,
    since_ms: u64,
    aim_ms: i64,
    last_served_ms: u64,
}

impl SlewedClock {
    /// Creates a clock of stopwatch plus `offset_ms`, which returns no time before `floor_ms`.
    #[must_use]
    pub const fn new(offset_ms: i64, floor_ms: u64, slew_ppm: u32) -> Self {
        let slew_ppm = if slew_ppm < 1_000_000 { slew_ppm } else { 999_999 };
        Self { slew_ppm, from_ms: offset_ms, since_ms: 0, aim_ms: offset_ms, last_served_ms: floor_ms }
    }

    /// Returns the current offset.
    #[must_use]
    pub fn offset_ms(&self, stopwatch_ms: u64) -> i64 {
        let passed = u128::from(stopwatch_ms.saturating_sub(self.since_ms));
        let most = u64::try_from(passed * u128::from(self.slew_ppm) / 1_000_000).unwrap_or(u64::MAX);
        let way = self.aim_ms.abs_diff(self.from_ms);
        match (way <= most, self.aim_ms > self.from_ms) {
            (true, _) => self.aim_ms,
            (false, true) => self.from_ms.saturating_add_unsigned(most),
            (false, false) => self.from_ms.saturating_sub_unsigned(most),
        }
    }

    /// Returns the time, never before an earlier one.
    pub fn time_ms(&mut self, stopwatch_ms: u64) -> u64 {
        self.last_served_ms =
            self.last_served_ms.max(stopwatch_ms.saturating_add_signed(self.offset_ms(stopwatch_ms)));
        self.last_served_ms
    }

    /// Returns the latest served time, or the floor.
    #[must_use]
    pub const fn last_served_ms(&self) -> u64 {
        self.last_served_ms
    }

    /// Returns the distance to the target offset.
    #[must_use]
    pub fn left_ms(&self, stopwatch_ms: u64) -> u64 {
        self.aim_ms.abs_diff(self.offset_ms(stopwatch_ms))
    }

    /// Slews to this offset.
    pub fn aim(&mut self, stopwatch_ms: u64, offset_ms: i64) {
        self.from_ms = self.offset_ms(stopwatch_ms);
        self.since_ms = stopwatch_ms;
        self.aim_ms = offset_ms;
    }

    /// Sets this offset at once. The clock stands still instead of going back.
    pub fn step(&mut self, stopwatch_ms: u64, offset_ms: i64) {
        self.from_ms = offset_ms;
        self.since_ms = stopwatch_ms;
        self.aim_ms = offset_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn clock_slews_at_its_rate_to_target() {
        let mut clock = SlewedClock::new(1_000_000, 0, 50_000);
        assert_eq!(clock.time_ms(100), 1_000_100);
        clock.aim(100, 1_000_500);
        assert_eq!(clock.time_ms(1_100), 1_001_150, "50 ms in a second");
        assert_eq!((clock.time_ms(10_100), clock.left_ms(10_100)), (1_010_600, 0));
        clock.aim(10_100, 1_000_000);
        assert_eq!(clock.time_ms(11_100), 1_011_550, "backwards it only goes slower");
        assert_eq!(clock.time_ms(20_100), 1_020_100);
    }

    #[test]
    fn step_back_stops_the_clock() {
        let mut clock = SlewedClock::new(1_000_000, 0, 500);
        assert_eq!(clock.time_ms(0), 1_000_000);
        clock.step(0, 990_000);
        assert_eq!(clock.time_ms(9_999), 1_000_000);
        assert_eq!(clock.time_ms(10_001), 1_000_001);
    }

    #[test]
    fn clock_returns_nothing_before_its_floor() {
        let mut clock = SlewedClock::new(1_000, 5_000, 500);
        assert_eq!((clock.time_ms(0), clock.time_ms(3_999), clock.time_ms(4_001)), (5_000, 5_000, 5_001));
    }

    proptest! {
        /// For any calls, the clock never goes back, and without steps never exceeds its rate.
        #[test]
        fn time_never_decreases(steps in proptest::collection::vec((0u64..100_000, -1_000_000i64..1_000_000, any::<bool>()), 1..50)) {
            let mut clock = SlewedClock::new(1 << 40, 0, 50_000);
            let (mut stopwatch, mut last) = (0, clock.time_ms(0));
            for (pause, aim, steps) in steps {
                stopwatch += pause;
                let now = clock.time_ms(stopwatch);
                prop_assert!(now >= last);
                last = now;
                match steps {
                    true => clock.step(stopwatch, (1 << 40) + aim),
                    false => {
                        clock.aim(stopwatch, (1 << 40) + aim);
                        prop_assert_eq!(clock.time_ms(stopwatch), now);
                    }
                }
            }
        }

        #[test]
        fn arbitrary_numbers_never_panic(offset: i64, floor: u64, ppm: u32, at: u64, aim: i64) {
            let mut clock = SlewedClock::new(offset, floor, ppm);
            clock.aim(at, aim);
            clock.time_ms(u64::MAX);
            clock.step(at, aim);
            let _ = (clock.time_ms(at), clock.left_ms(u64::MAX));
        }
    }
}
