//! The peer's clock, as derived from a login.

/// A longer round trip yields no clock reading, milliseconds.
pub const RTT_MAX_MS: u64 = 2_000;

/// The server's clock, measured by one round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// Server's clock minus ours, milliseconds.
    pub offset_ms: i64,
    /// Maximum error, milliseconds: half the round trip.
    pub error_ms: u64,
}

impl ClockReading {
    /// Returns `TS − (sent + received) / 2`; `None` if the round trip took longer than
    /// [`RTT_MAX_MS`] or our own clock stepped back meanwhile.
    #[must_use]
    pub fn of(server_ms: u64, sent_ms: u64, received_ms: u64) -> Option<Self> {
        let round_trip = received_ms.checked_sub(sent_ms).filter(|rtt| *rtt <= RTT_MAX_MS)?;
        let ours = sent_ms.midpoint(received_ms);
        let distance = i64::try_from(server_ms.abs_diff(ours)).unwrap_or(i64::MAX);
        let offset_ms = if server_ms >= ours { distance } else { -distance };
        Some(Self { offset_ms, error_ms: round_trip.div_ceil(2) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_offset_is_measured_at_mid_round_trip() {
        assert_eq!(
            ClockReading::of(5_000, 1_000, 1_100),
            Some(ClockReading { offset_ms: 3_950, error_ms: 50 })
        );
        assert_eq!(ClockReading::of(0, 1_000, 1_001), Some(ClockReading { offset_ms: -1_000, error_ms: 1 }));
        assert_eq!(ClockReading::of(5_000, 1_000, 1_000 + RTT_MAX_MS).map(|r| r.error_ms), Some(1_000));
        assert_eq!(ClockReading::of(5_000, 1_000, 1_001 + RTT_MAX_MS), None);
        assert_eq!(ClockReading::of(5_000, 1_001, 1_000), None, "our clock went back");
        assert_eq!(ClockReading::of(u64::MAX, 0, 0).map(|r| r.offset_ms), Some(i64::MAX));
    }
}
