//! The clock of this machine, shared by all parts of the process.
//!
//! Does: reads the wall clock and the time since boot, and returns the time that `sealstone-sntp`
//! computes from both.
//! Does not: store anything; the daemons store [`state`] and pass it to [`continue_from`].
//! Contract: one wrong reading of the wall clock changes nothing. A process has the same time after
//! a suspension of the machine, or a restart on it.
//! Truth: docs/adr/0057-clock-steps.md.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use sealstone_sntp::{ClockReading, MachineClock, MachineState, StepEvent};

/// Maximum time between the readings of both clocks for a valid sample, in milliseconds.
const READING_MAX_MS: u64 = 20;
/// The file with the id of this boot.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the time since boot, suspension included, in milliseconds. No process can set this
/// clock.
#[must_use]
pub fn boot_ms() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000)
}

/// Returns the wall clock, in milliseconds since 1970.
#[must_use]
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time, in milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let before_ms = boot_ms();
    let wall_ms = wall_ms();
    let boot_ms = boot_ms();
    if boot_ms.saturating_sub(before_ms) > READING_MAX_MS {
        return with(|clock| clock.coast(boot_ms));
    }
    let (now_ms, event) = with(|clock| clock.read(ClockReading { wall_ms, boot_ms }));
    if let Some(event) = event {
        report(event);
    }
    now_ms
}

fn report(event: StepEvent) {
    match event {
        StepEvent::Noticed { by_ms } => tracing::warn!(
            by_ms,
            "the wall clock of this machine stepped; the step is ignored until it is confirmed"
        ),
        StepEvent::Ended => tracing::info!("the wall clock of this machine agrees again"),
        StepEvent::Taken { by_ms } => {
            tracing::warn!(by_ms, "the step of the wall clock is confirmed and applied")
        }
        StepEvent::Refused { by_ms } => tracing::error!(
            by_ms,
            "the wall clock of this machine was set back behind a time that held; it is not followed: correct it, \
             or take it over with `sealstone osd clock reset` or `sealstone mds clock reset`"
        ),
    }
}

/// Returns how far the clock is before the least time that earlier processes on this machine
/// stored, in milliseconds.
#[must_use]
pub fn behind_ms() -> u64 {
    let boot_ms = boot_ms();
    with(|clock| clock.behind_ms(boot_ms))
}

/// Returns how far the wall clock is ahead by a step that is not applied, in milliseconds.
#[must_use]
pub fn step_ms() -> Option<i64> {
    let boot_ms = boot_ms();
    with(|clock| clock.step_ms(boot_ms))
}

/// Returns the state to store for the next process.
#[must_use]
pub fn state() -> MachineState {
    let boot_ms = boot_ms();
    with(|clock| clock.state(boot_ms))
}

/// Continues from the state that an earlier process stored.
pub fn continue_from(kept: MachineState) {
    let reading = reading();
    with(|clock| clock.continue_from(reading, kept));
}

/// Applies the wall clock as it is. Returns the step in milliseconds.
pub fn reset() -> i64 {
    let reading = reading();
    with(|clock| clock.reset(reading))
}

fn reading() -> ClockReading {
    ClockReading { wall_ms: wall_ms(), boot_ms: boot_ms() }
}

fn with<T>(work: impl FnOnce(&mut MachineClock) -> T) -> T {
    static CLOCK: OnceLock<Mutex<MachineClock>> = OnceLock::new();
    let clock = CLOCK.get_or_init(|| Mutex::new(MachineClock::start(reading(), boot_id(), None)));
    work(&mut clock.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the id of this boot; zeros, which match no other boot, if the kernel does not report it.
fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string(BOOT_ID_FILE).unwrap_or_default();
    let digits: Vec<u8> =
        text.chars().filter_map(|digit| digit.to_digit(16)?.try_into().ok()).take(32).collect();
    let (pairs, _) = digits.as_chunks::<2>();
    let mut id = [0; 16];
    for (byte, [high, low]) in id.iter_mut().zip(pairs) {
        *byte = high << 4 | low;
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_reads_as_the_wall_clock_does() {
        assert!(now_ms().abs_diff(wall_ms()) < 2_000 && boot_ms() > 0);
        assert_eq!(state().boot_id, boot_id());
    }
}
