//! The request nonce: 6 bytes of time, 6 random bytes (t10-osd 4.6).

/// Bytes of a nonce on the wire.
pub const NONCE_LEN: usize = 12;
/// Latest time that fits a nonce, milliseconds since 1970-01-01 UT.
pub const TIME_MAX_MS: u64 = 0xFFFF_FFFF_FFFF;

/// A request nonce. Zero where the method uses none (NOSEC, CAPKEY).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Nonce(pub [u8; NONCE_LEN]);

impl Nonce {
    /// The absent nonce.
    pub const ZERO: Self = Self([0; NONCE_LEN]);

    /// Creates a nonce from the sender's estimate of the device's clock, milliseconds, and six
    /// random bytes.
    #[must_use]
    pub fn new(time_ms: u64, random: [u8; 6]) -> Self {
        let mut bytes = [0; NONCE_LEN];
        bytes[..6].copy_from_slice(&time_ms.min(TIME_MAX_MS).to_be_bytes()[2..]);
        bytes[6..].copy_from_slice(&random);
        Self(bytes)
    }

    /// Returns the milliseconds since 1970-01-01 UT.
    #[must_use]
    pub const fn time_ms(&self) -> u64 {
        let [a, b, c, d, e, f, ..] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonce_time_round_trips() {
        for time in [0, 1, 0x019b_76da_abe8, TIME_MAX_MS] {
            assert_eq!(Nonce::new(time, [0xFF; 6]).time_ms(), time);
        }
        assert_eq!(Nonce::new(u64::MAX, [0; 6]).time_ms(), TIME_MAX_MS);
    }
}
