//! The clock of this machine, for every part of the process.
//!
//! Does: read the wall clock and the time since the boot, and give the time that `sealstone-sntp` makes of both.
//! Does not: store anything; the daemons keep [`state`] and hand it back with [`continue_from`].
//! Contract: one wrong reading of the wall clock changes nothing. A process suspended with its machine, or restarted on it,
//! has the same time as before.
//! Truth: docs/adr/0057-clock-steps.md.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use sealstone_sntp::{ClockReading, MachineClock, MachineState, StepEvent};

/// A reading whose two clocks were read further apart says nothing, milliseconds.
const READING_MAX_MS: u64 = 20;
/// Where the kernel names this boot of the machine.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// The time since the machine booted, suspension included, milliseconds. No process can set this clock.
#[must_use]
pub fn boot_ms() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000)
}

/// The wall clock as it is, milliseconds since 1970.
#[must_use]
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The time, milliseconds since 1970.
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
            "the wall clock of this machine stepped; it is not followed unless the step holds"
        ),
        StepEvent::Ended => tracing::info!("the wall clock of this machine agrees again"),
        StepEvent::Taken { by_ms } => tracing::warn!(by_ms, "the step of the wall clock held and is taken"),
        StepEvent::Refused { by_ms } => tracing::error!(
            by_ms,
            "the wall clock of this machine was set back behind a time that held; it is not followed: correct it, \
             or take it over with `sealstone osd clock reset` or `sealstone mds clock reset`"
        ),
    }
}

/// How far the clock is before the least time that earlier processes on this machine kept, milliseconds.
#[must_use]
pub fn behind_ms() -> u64 {
    let boot_ms = boot_ms();
    with(|clock| clock.behind_ms(boot_ms))
}

/// How far the wall clock is ahead where it differs by a step that is not taken, milliseconds.
#[must_use]
pub fn step_ms() -> Option<i64> {
    let boot_ms = boot_ms();
    with(|clock| clock.step_ms(boot_ms))
}

/// What to keep for the next process.
#[must_use]
pub fn state() -> MachineState {
    let boot_ms = boot_ms();
    with(|clock| clock.state(boot_ms))
}

/// Continues from what an earlier process kept.
pub fn continue_from(kept: MachineState) {
    let reading = reading();
    with(|clock| clock.continue_from(reading, kept));
}

/// Takes the wall clock as it is. Returns the step, milliseconds.
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

/// This boot of the machine; zeros where the kernel does not say, which is a boot like no other.
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
