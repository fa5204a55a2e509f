//! A client's estimate of one device's clock, and when a refused nonce is worth another try.
//!
//! Does: offset, correction, the retry rule. Does not: read a clock.
//! Contract: only a reply whose check value verified may correct the estimate: a forged hint would make the client
//! sign requests for a time to come, which an attacker could keep.
//! Truth: docs/design/security.md 2.2 (clock), 3.4 (client skew), 8.5 N13.

use sealstone_scsi::{Sense, additional};
use thiserror::Error;

use crate::nonce::TIME_MAX_MS;

/// Largest correction believed, milliseconds.
pub const STEP_MAX_MS: u64 = 3_600_000;
/// Largest round trip from which an offset is taken at login, milliseconds.
pub const ROUND_TRIP_MAX_MS: u64 = 2_000;
/// Re-signings of one command after its nonce was refused for its time.
pub const RESYNCS_MAX: u8 = 1;

/// The estimate: device clock minus local clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceClock {
    offset_ms: i64,
    error_ms: u64,
    last_ms: u64,
}

/// A clock reading that cannot be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ClockError {
    /// The reply took too long to say anything about the time.
    #[error("round trip of {0} ms")]
    RoundTrip(u64),
    /// The correction is too large.
    #[error("correction by {0} ms")]
    Step(u64),
}

impl DeviceClock {
    /// An estimate known to be off by `error_ms` at most: the MDS tells both at login.
    #[must_use]
    pub const fn new(offset_ms: i64, error_ms: u64) -> Self {
        Self { offset_ms, error_ms, last_ms: 0 }
    }

    /// From one authenticated exchange: local times of sending and receiving, and what the other clock said.
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

    /// Device clock minus local clock, milliseconds.
    #[must_use]
    pub const fn offset_ms(&self) -> i64 {
        self.offset_ms
    }

    /// How far the estimate may be off, milliseconds.
    #[must_use]
    pub const fn error_ms(&self) -> u64 {
        self.error_ms
    }

    /// The time for the next nonce: the estimate, but never before that of an earlier nonce.
    #[must_use]
    pub fn nonce_time(&mut self, local_ms: u64) -> u64 {
        self.last_ms = self.last_ms.max(local_ms.saturating_add_signed(self.offset_ms)).min(TIME_MAX_MS);
        self.last_ms
    }

    /// Takes over the device's clock from an authenticated refusal. Time may go back here: the nonces that were
    /// ahead have been refused. A step beyond [`STEP_MAX_MS`] is taken if it leads near the local clock, or near the
    /// metadata server's, which is `server_ms` ahead of the local one: then it is the estimate that was wrong.
    ///
    /// # Errors
    /// [`ClockError::Step`]; the estimate stays.
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

/// `a - b` of two times; saturates where no real clock gets.
fn difference(a: u64, b: u64) -> i64 {
    let [a, b] = [a, b].map(|time| i64::try_from(time).unwrap_or(i64::MAX));
    a.saturating_sub(b)
}

/// What to do with one command after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The reply stands: hand it to the caller.
    Done,
    /// The clock was corrected: sign again with a new nonce and send.
    SignAgain,
}

/// The retry rule of one command: at most one re-signing after a clock correction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retry {
    resyncs: u8,
}

impl Retry {
    /// Judges the sense data of a reply whose check value verified.
    #[must_use]
    pub fn after(
        &mut self,
        sense: Option<&Sense>,
        clock: &mut DeviceClock,
        local_ms: u64,
        server_ms: i64,
    ) -> Advice {
        let device_ms = sense
            .filter(|sense| sense.code == additional::NONCE_TIMESTAMP_OUT_OF_RANGE)
            .and_then(|sense| sense.information);
        match device_ms {
            Some(device_ms)
                if self.resyncs < RESYNCS_MAX && clock.resync(device_ms, local_ms, server_ms).is_ok() =>
            {
                self.resyncs += 1;
                Advice::SignAgain
            }
            _ => Advice::Done,
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
    fn a_clock_ten_minutes_off_costs_exactly_one_retry() {
        for device in [LOCAL - 600_000, LOCAL + 600_000] {
            let (mut clock, mut retry) = (DeviceClock::default(), Retry::default());
            assert_eq!(clock.nonce_time(LOCAL), LOCAL);
            assert_eq!(retry.after(Some(&out_of_range(device)), &mut clock, LOCAL, 0), Advice::SignAgain);
            assert_eq!(clock.nonce_time(LOCAL), device);
            assert_eq!(retry.after(Some(&out_of_range(device)), &mut clock, LOCAL, 0), Advice::Done);
        }
    }

    #[test]
    fn nonces_do_not_go_back_with_the_local_clock() {
        let mut clock = DeviceClock::new(5, 1);
        let first = clock.nonce_time(LOCAL);
        assert_eq!(clock.nonce_time(LOCAL - 10_000), first);
        assert_eq!(clock.nonce_time(u64::MAX), TIME_MAX_MS);
    }

    #[test]
    fn a_correction_by_more_than_an_hour_is_not_believed() {
        let (mut clock, mut retry) = (DeviceClock::default(), Retry::default());
        let sense = out_of_range(LOCAL + STEP_MAX_MS + 1);
        assert_eq!(retry.after(Some(&sense), &mut clock, LOCAL, 0), Advice::Done);
        assert_eq!(clock, DeviceClock::default());
        assert_eq!(clock.resync(0, u64::MAX, 0), Err(ClockError::Step(i64::MAX as u64)));
    }

    #[test]
    fn an_estimate_returns_to_the_local_or_server_clock() {
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
        let (mut clock, mut retry) = (DeviceClock::default(), Retry::default());
        let sense = Sense::new(SenseKey::IllegalRequest, additional::NONCE_NOT_UNIQUE);
        assert_eq!(retry.after(Some(&sense), &mut clock, LOCAL, 0), Advice::Done);
        assert_eq!(retry.after(None, &mut clock, LOCAL, 0), Advice::Done);
    }

    #[test]
    fn an_exchange_gives_the_offset_to_half_its_round_trip() {
        let clock = DeviceClock::from_exchange(LOCAL, LOCAL + 100, LOCAL + 1050).unwrap();
        assert_eq!((clock.offset_ms(), clock.error_ms()), (1000, 50));
        assert_eq!(DeviceClock::from_exchange(0, 2001, 0), Err(ClockError::RoundTrip(2001)));
    }
}
