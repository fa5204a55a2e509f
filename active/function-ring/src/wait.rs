//! Waiting for a word of shared memory: polling, then the kernel.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::thread::futex;

/// Polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 64;

/// Outcome of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SleepOutcome {
    /// Another thread woke this one, or the word had changed.
    Woken,
    /// A signal arrived, or the time is over.
    Interrupted,
}

/// Polls until `is_ready`, for at most `limit`.
pub(crate) fn poll(limit: Duration, is_ready: impl Fn() -> bool) -> bool {
    if limit.is_zero() {
        return is_ready();
    }
    let start = Instant::now();
    loop {
        for _ in 0..POLLS_PER_LOOK {
            if is_ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() >= limit {
            return false;
        }
    }
}

/// Sleeps while the word has a value, for at most `limit`.
pub(crate) fn sleep(word: &AtomicU32, value: u32, limit: Option<Duration>) -> SleepOutcome {
    let limit = limit.map(|limit| futex::Timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    match futex::wait(word, futex::Flags::empty(), value, limit.as_ref()) {
        Ok(()) | Err(rustix::io::Errno::AGAIN) => SleepOutcome::Woken,
        Err(_) => SleepOutcome::Interrupted,
    }
}

/// Wakes all threads that sleep on a word. An error means that there is none.
pub(crate) fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// Wakes the other side after a word was changed, if that side has announced that it sleeps.
///
/// The fence pairs with the one in [`announce`]: either this side sees the announcement, or the
/// other one sees the changed word before it sleeps.
pub(crate) fn wake_if_sleeping(word: &AtomicU32, is_sleeping: &AtomicU32) {
    fence(Ordering::SeqCst);
    if is_sleeping.load(Ordering::Relaxed) != 0 {
        wake(word);
    }
}

/// Announces that this side is about to sleep. The caller must look at its words again.
pub(crate) fn announce(is_sleeping: &AtomicU32) {
    is_sleeping.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Withdraws the announcement.
pub(crate) fn withdraw(is_sleeping: &AtomicU32) {
    is_sleeping.store(0, Ordering::Relaxed);
}
