//! A clock made of a stopwatch and an offset that moves slowly.
//!
//! Does: tell the time, never an earlier one than before; move towards another offset at a bounded rate.
//! Does not: decide where to; [`crate::Follower`] does.

/// A clock that is steered. Times are milliseconds since 1970; the stopwatch counts milliseconds from anywhere and never
/// goes back.
#[derive(Clone, Debug)]
pub struct Steering {
    /// Fastest that the offset moves, millionths of the time that passes; less than a million, so that time goes on.
    slew_ppm: u32,
    /// The offset at `since_ms` of the stopwatch, and where it goes.
    from_ms: i64,
    since_ms: u64,
    aim_ms: i64,
    told_ms: u64,
}

impl Steering {
    /// A clock that tells the stopwatch plus `offset_ms`, and no time before `floor_ms`.
    #[must_use]
    pub const fn new(offset_ms: i64, floor_ms: u64, slew_ppm: u32) -> Self {
        let slew_ppm = if slew_ppm < 1_000_000 { slew_ppm } else { 999_999 };
        Self { slew_ppm, from_ms: offset_ms, since_ms: 0, aim_ms: offset_ms, told_ms: floor_ms }
    }

    /// The offset now.
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

    /// The time, which is never before one that was told.
    pub fn tell(&mut self, stopwatch_ms: u64) -> u64 {
        self.told_ms = self.told_ms.max(stopwatch_ms.saturating_add_signed(self.offset_ms(stopwatch_ms)));
        self.told_ms
    }

    /// The latest time told, or the floor.
    #[must_use]
    pub const fn told_ms(&self) -> u64 {
        self.told_ms
    }

    /// How much there is still to go.
    #[must_use]
    pub fn left_ms(&self, stopwatch_ms: u64) -> u64 {
        self.aim_ms.abs_diff(self.offset_ms(stopwatch_ms))
    }

    /// Moves to this offset, slowly.
    pub fn aim(&mut self, stopwatch_ms: u64, offset_ms: i64) {
        self.from_ms = self.offset_ms(stopwatch_ms);
        self.since_ms = stopwatch_ms;
        self.aim_ms = offset_ms;
    }

    /// Has this offset at once. The clock stands still where that would take it back.
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
    fn a_clock_moves_at_its_rate_and_stops_where_it_should() {
        let mut clock = Steering::new(1_000_000, 0, 50_000);
        assert_eq!(clock.tell(100), 1_000_100);
        clock.aim(100, 1_000_500);
        assert_eq!(clock.tell(1_100), 1_001_150, "50 ms in a second");
        assert_eq!((clock.tell(10_100), clock.left_ms(10_100)), (1_010_600, 0));
        clock.aim(10_100, 1_000_000);
        assert_eq!(clock.tell(11_100), 1_011_550, "backwards it only goes slower");
        assert_eq!(clock.tell(20_100), 1_020_100);
    }

    #[test]
    fn a_step_back_makes_it_stand_still() {
        let mut clock = Steering::new(1_000_000, 0, 500);
        assert_eq!(clock.tell(0), 1_000_000);
        clock.step(0, 990_000);
        assert_eq!(clock.tell(9_999), 1_000_000);
        assert_eq!(clock.tell(10_001), 1_000_001);
    }

    #[test]
    fn nothing_before_the_floor_is_told() {
        let mut clock = Steering::new(1_000, 5_000, 500);
        assert_eq!((clock.tell(0), clock.tell(3_999), clock.tell(4_001)), (5_000, 5_000, 5_001));
    }

    proptest! {
        /// Whatever is asked of it, it never goes back, and without steps never faster than its rate.
        #[test]
        fn time_goes_on(steps in proptest::collection::vec((0u64..100_000, -1_000_000i64..1_000_000, any::<bool>()), 1..50)) {
            let mut clock = Steering::new(1 << 40, 0, 50_000);
            let (mut stopwatch, mut last) = (0, clock.tell(0));
            for (pause, aim, steps) in steps {
                stopwatch += pause;
                let now = clock.tell(stopwatch);
                prop_assert!(now >= last);
                last = now;
                match steps {
                    true => clock.step(stopwatch, (1 << 40) + aim),
                    false => {
                        clock.aim(stopwatch, (1 << 40) + aim);
                        prop_assert_eq!(clock.tell(stopwatch), now);
                    }
                }
            }
        }

        #[test]
        fn no_number_breaks_it(offset: i64, floor: u64, ppm: u32, at: u64, aim: i64) {
            let mut clock = Steering::new(offset, floor, ppm);
            clock.aim(at, aim);
            clock.tell(u64::MAX);
            clock.step(at, aim);
            let _ = (clock.tell(at), clock.left_ms(u64::MAX));
        }
    }
}
