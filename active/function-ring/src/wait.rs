//! Waiting for a word of shared memory: polling, then the kernel.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::thread::futex;

/// Polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 64;
/// Maximum number of waits without polling after a failure.
const SKIPS_MAX: u32 = 63;

/// Outcome of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SleepOutcome {
    /// Another thread woke this one, or the word had changed.
    Woken,
    /// A signal arrived, or the time is over.
    Interrupted,
}

/// Polls until `is_ready`, for at most `limit`.
fn poll(limit: Duration, is_ready: impl Fn() -> bool) -> bool {
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

/// Polls before a sleep for as long as that usually succeeds.
///
/// Where the other side needs this core, or computes for long, polling only delays it. After a
/// failure some waits do not poll, twice as many after each further one.
#[derive(Debug)]
pub(crate) struct AdaptivePoll {
    limit: Duration,
    /// Waits that do not poll, after the last failure.
    skipped_after_failure: u32,
    /// Those of them that are left.
    skips_left: u32,
}

impl AdaptivePoll {
    /// Returns polling for at most `limit` in each wait.
    pub(crate) const fn new(limit: Duration) -> Self {
        Self { limit, skipped_after_failure: 0, skips_left: 0 }
    }

    /// Polls until `is_ready`, for at most `limit` and the limit of all waits.
    pub(crate) fn poll(&mut self, limit: Duration, is_ready: impl Fn() -> bool) -> bool {
        if is_ready() {
            return true;
        }
        let limit = limit.min(self.limit);
        if limit.is_zero() {
            return false;
        }
        if self.skips_left > 0 {
            self.skips_left -= 1;
            return false;
        }
        let is_reached = poll(limit, is_ready);
        self.skipped_after_failure =
            if is_reached { 0 } else { (2 * self.skipped_after_failure + 1).min(SKIPS_MAX) };
        self.skips_left = self.skipped_after_failure;
        is_reached
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn failed_polls_are_followed_by_skips() {
        let polls = Cell::new(0);
        let mut poll = AdaptivePoll::new(Duration::from_nanos(1));
        let mut polled = |ready_at: u32| {
            polls.set(0);
            poll.poll(Duration::from_secs(1), || {
                polls.set(polls.get() + 1);
                polls.get() >= ready_at
            });
            polls.get() > 1
        };
        let tries: Vec<bool> = (0..11).map(|_| polled(u32::MAX)).collect();
        let expected: Vec<bool> = (0..11).map(|wait| [0, 2, 6].contains(&wait)).collect();
        assert_eq!(tries, expected);
        let skipped = (0..200).filter(|_| !polled(u32::MAX)).count();
        assert!((190..200).contains(&skipped), "{skipped} of 200 waits");
        // A wait that succeeds ends the skips.
        assert!((0..=SKIPS_MAX).any(|_| polled(2)));
        assert!(polled(2) && polled(2));
    }

    #[test]
    fn no_limit_means_no_polling() {
        let polls = Cell::new(0);
        let count = || {
            polls.set(polls.get() + 1);
            false
        };
        assert!(!AdaptivePoll::new(Duration::ZERO).poll(Duration::from_secs(1), count));
        assert!(!AdaptivePoll::new(Duration::from_secs(1)).poll(Duration::ZERO, count));
        assert_eq!(polls.get(), 2);
    }
}
