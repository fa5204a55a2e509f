//! NTP timestamps: 32 bits of seconds since 1900, 32 bits of fraction.

/// Seconds from 1900 to 1970.
const UNIX_EPOCH_S: u64 = 2_208_988_800;
/// Seconds of one era: the 32 bits roll over in 2036.
const ERA_S: u64 = 1 << 32;

/// A timestamp; zero means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NtpTimestamp(pub u64);

impl NtpTimestamp {
    /// No timestamp.
    pub const NONE: Self = Self(0);

    /// Converts milliseconds since 1970 in any era; rounded up to the fraction's precision, so that
    /// it converts back exactly.
    #[must_use]
    pub const fn of_ms(unix_ms: u64) -> Self {
        let seconds = (unix_ms / 1000).wrapping_add(UNIX_EPOCH_S) % ERA_S;
        let fraction = ((unix_ms % 1000) << 32).div_ceil(1000);
        let stamp = seconds << 32 | fraction;
        // The first moment of an era would read as none.
        Self(if stamp == 0 { 1 } else { stamp })
    }

    /// Converts to milliseconds since 1970 in the era nearest to `near_ms`. Returns `None` if there
    /// is no timestamp, or for times before 1970.
    #[must_use]
    pub fn to_ms(self, near_ms: u64) -> Option<u64> {
        if self == Self::NONE {
            return None;
        }
        let seconds = self.0 >> 32;
        // At most 999: the fraction is below one.
        let ms = ((self.0 & 0xFFFF_FFFF) * 1000) >> 32;
        let near = (near_ms / 1000).saturating_add(UNIX_EPOCH_S);
        let era = near - near % ERA_S;
        let candidates = [era.checked_sub(ERA_S), Some(era), era.checked_add(ERA_S)];
        let nearest = candidates
            .into_iter()
            .flatten()
            .map(|era| era.saturating_add(seconds))
            .min_by_key(|candidate| candidate.abs_diff(near))?;
        nearest.checked_sub(UNIX_EPOCH_S)?.checked_mul(1000)?.checked_add(ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn epochs_match_the_rfc() {
        assert_eq!(NtpTimestamp::of_ms(0).0 >> 32, 0x83AA_7E80);
        assert_eq!(NtpTimestamp::of_ms(1_500).0, 0x83AA_7E81_8000_0000);
        // RFC 5905, figure 4: the first day of era 1.
        let rollover_ms = (ERA_S - UNIX_EPOCH_S) * 1000;
        assert_eq!(NtpTimestamp::of_ms(rollover_ms + 1_000), NtpTimestamp(1 << 32));
        assert_eq!(NtpTimestamp(1 << 32).to_ms(rollover_ms - 5_000), Some(rollover_ms + 1_000));
        assert_eq!(
            NtpTimestamp::of_ms(rollover_ms - 1_000).to_ms(rollover_ms + 5_000),
            Some(rollover_ms - 1_000)
        );
    }

    #[test]
    fn zero_stamp_has_no_time() {
        assert_eq!(NtpTimestamp::NONE.to_ms(1_700_000_000_000), None);
        assert_eq!(NtpTimestamp(2_000_000_000 << 32).to_ms(0), None, "1963 is no time of ours");
        let _ = NtpTimestamp(u64::MAX).to_ms(u64::MAX);
    }

    proptest! {
        #[test]
        fn time_round_trips_near_itself(ms in 0u64..1 << 44, off in -1_000_000_000_000i64..1_000_000_000_000) {
            let near = ms.saturating_add_signed(off);
            prop_assert_eq!(NtpTimestamp::of_ms(ms).to_ms(near), Some(ms));
        }

        #[test]
        fn any_bits_convert_or_fail(bits: u64, near: u64) {
            let _ = NtpTimestamp(bits).to_ms(near);
        }
    }
}
