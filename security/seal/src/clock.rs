//! A client's estimate of one device's clock, and the rule for retrying after a refused nonce.
//!
//! Does: offset, correction, the retry rule.
//! Does not: read a clock.
//! Contract: only a reply with a verified check value may correct the estimate: a forged hint would
//! make the client sign requests for a future time, which an attacker could store.
//! Source of truth: docs/design/security.md 2.2 (clock), 3.4 (client skew), 8.5 N13.

use sealstone_scsi::{Sense, additional};
use thiserror::Error;

use crate::nonce::TIME_MAX_MS;

/// Largest accepted correction, milliseconds.
pub const STEP_MAX_MS: u64 = 3_600_000;
/// Largest round trip from which an offset is derived at login, milliseconds.
pub const ROUND_TRIP_MAX_MS: u64 = 2_000;
/// Maximum number of times that one command is signed again after its nonce was refused for its
/// time.
pub const RESYNCS_MAX: u8 = 1;

/// The estimated offset: device clock minus local clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceClock {
    offset_ms: i64,
    error_ms: u64,
    last_ms: u64,
}

/// Why a clock reading is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ClockError {
    /// The round trip was too long to derive an offset.
    #[error("a round trip of {0} ms is too long to read the clock")]
    RoundTrip(u64),
    /// The correction is too large.
    #[error("a clock correction of {0} ms is too large")]
    Step(u64),
}

impl DeviceClock {
    /// Creates an estimate with an error of at most `error_ms`; the MDS sends both values at login.
    #[must_use]
    pub const fn new(offset_ms: i64, error_ms: u64) -> Self {
        Self { offset_ms, error_ms, last_ms: 0 }
    }

    /// Derives the estimate from one authenticated exchange: local times of sending and receiving,
    /// and the remote time.
    ///
    /// # Errors
    /// [`ClockError::RoundTrip`].
    pub fn from_exchange(sent_ms: u64, received_ms: u64, remote_ms: u64) -> Result<Self, ClockError> {
        let round_trip = received_ms.saturating_sub(sent_ms);
        if round_trip > ROUND_TRIP_MAX_MS {
            return Err(ClockError::RoundTrip(round_trip));
        }
        let local = sent_ms.saturating_add(round_trip / 2);
        Ok(Self::new(difference(remote_ms, local), round_trip.div_ceil(2)))
    }

    /// Returns device clock minus local clock, milliseconds.
    #[must_use]
    pub const fn offset_ms(&self) -> i64 {
        self.offset_ms
    }

    /// Returns the maximum error of the estimate, milliseconds.
    #[must_use]
    pub const fn error_ms(&self) -> u64 {
        self.error_ms
    }

    /// Returns the time for the next nonce: the estimate, but never before that of an earlier
    /// nonce.
    #[must_use]
    pub fn nonce_time(&mut self, local_ms: u64) -> u64 {
        self.last_ms = self.last_ms.max(local_ms.saturating_add_signed(self.offset_ms)).min(TIME_MAX_MS);
        self.last_ms
    }

    /// Sets the estimate to the device's clock from an authenticated refusal. The time may go back
    /// here: nonces with later times have been refused. A step beyond [`STEP_MAX_MS`] is accepted
    /// if it leads near the local clock, or near the metadata server's, which is `server_ms` ahead
    /// of the local one: then the estimate was wrong.
    ///
    /// # Errors
    /// [`ClockError::Step`]; the estimate does not change.
    pub fn resync(&mut self, device_ms: u64, local_ms: u64, server_ms: i64) -> Result<(), ClockError> {
        let offset = difference(device_ms, local_ms);
        let step = offset.abs_diff(self.offset_ms);
        let known = [0, server_ms].iter().any(|known| offset.abs_diff(*known) <= STEP_MAX_MS);
        if step > STEP_MAX_MS && !known {
            return Err(ClockError::Step(step));
        }
        *self = Self::new(offset, self.error_ms);
        Ok(())
    }
}

/// Returns `a - b` of two times, saturated at values that no real clock reaches.
fn difference(a: u64, b: u64) -> i64 {
    let [a, b] = [a, b].map(|time| i64::try_from(time).unwrap_or(i64::MAX));
    a.saturating_sub(b)
}

/// The next step for a command after its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAdvice {
    /// The reply is final: return it to the caller.
    Done,
    /// The clock was corrected: sign the command again with a new nonce and send it.
    SignAgain,
}

/// The retry rule for one command: it is signed again at most once after a clock correction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NonceRetry {
    resyncs: u8,
}

impl NonceRetry {
    /// Decides after sense data in a reply with a verified check value.
    #[must_use]
    pub fn after(
        &mut self,
        sense: Option<&Sense>,
        clock: &mut DeviceClock,
        local_ms: u64,
        server_ms: i64,
    ) -> RetryAdvice {
        let device_ms = sense
            .filter(|sense| sense.code == additional::NONCE_TIMESTAMP_OUT_OF_RANGE)
            .and_then(|sense| sense.information);
        match device_ms {
            Some(device_ms)
                if self.resyncs < RESYNCS_MAX && clock.resync(device_ms, local_ms, server_ms).is_ok() =>
            {
                self.resyncs += 1;
                RetryAdvice::SignAgain
            }
            _ => RetryAdvice::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealstone_scsi::SenseKey;

    const LOCAL: u64 = 1_700_000_000_000;

    fn out_of_range(device_ms: u64) -> Sense {
        let sense = Sense::new(SenseKey::IllegalRequest, additional::NONCE_TIMESTAMP_OUT_OF_RANGE);
        Sense { information: Some(device_ms), ..sense }
    }

    #[test]
    fn wrong_clock_costs_exactly_one_retry() {
        for device in [LOCAL - 600_000, LOCAL + 600_000] {
            let (mut clock, mut retry) = (DeviceClock::default(), NonceRetry::default());
            assert_eq!(clock.nonce_time(LOCAL), LOCAL);
            assert_eq!(
                retry.after(Some(&out_of_range(device)), &mut clock, LOCAL, 0),
                RetryAdvice::SignAgain
            );
            assert_eq!(clock.nonce_time(LOCAL), device);
            assert_eq!(retry.after(Some(&out_of_range(device)), &mut clock, LOCAL, 0), RetryAdvice::Done);
        }
    }

    #[test]
    fn nonces_never_go_back_in_time() {
        let mut clock = DeviceClock::new(5, 1);
        let first = clock.nonce_time(LOCAL);
        assert_eq!(clock.nonce_time(LOCAL - 10_000), first);
        assert_eq!(clock.nonce_time(u64::MAX), TIME_MAX_MS);
    }

    #[test]
    fn clock_correction_above_one_hour_is_rejected() {
        let (mut clock, mut retry) = (DeviceClock::default(), NonceRetry::default());
        let sense = out_of_range(LOCAL + STEP_MAX_MS + 1);
        assert_eq!(retry.after(Some(&sense), &mut clock, LOCAL, 0), RetryAdvice::Done);
        assert_eq!(clock, DeviceClock::default());
        assert_eq!(clock.resync(0, u64::MAX, 0), Err(ClockError::Step(i64::MAX as u64)));
    }

    #[test]
    fn clock_estimate_returns_to_local_or_server_clock() {
        let days = 3 * 86_400_000;
        for (server, device, good) in
            [(0, LOCAL, true), (-days, LOCAL - 259_200_000, true), (0, LOCAL - 259_200_000, false)]
        {
            let mut clock = DeviceClock::new(days, 1);
            let _ = clock.nonce_time(LOCAL);
            assert_eq!(clock.resync(device, LOCAL, server).is_ok(), good);
            assert_eq!(clock.nonce_time(LOCAL) == device, good);
        }
    }

    #[test]
    fn other_refusals_are_not_retried() {
        let (mut clock, mut retry) = (DeviceClock::default(), NonceRetry::default());
        let sense = Sense::new(SenseKey::IllegalRequest, additional::NONCE_NOT_UNIQUE);
        assert_eq!(retry.after(Some(&sense), &mut clock, LOCAL, 0), RetryAdvice::Done);
        assert_eq!(retry.after(None, &mut clock, LOCAL, 0), RetryAdvice::Done);
    }

    #[test]
    fn exchange_yields_offset_within_half_round_trip() {
        let clock = DeviceClock::from_exchange(LOCAL, LOCAL + 100, LOCAL + 1050).unwrap();
        assert_eq!((clock.offset_ms(), clock.error_ms()), (1000, 50));
        assert_eq!(DeviceClock::from_exchange(0, 2001, 0), Err(ClockError::RoundTrip(2001)));
    }
}
