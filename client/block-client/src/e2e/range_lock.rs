//! Locks on ranges of blocks: writes of the same block follow each other, and reads see none of
//! them halfway.

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The ranges in use.
#[derive(Debug, Default)]
pub(super) struct RangeLocks {
    held: Mutex<Vec<HeldRange>>,
    released: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldRange {
    start: u64,
    end: u64,
    is_exclusive: bool,
}

/// A locked range; it is unlocked when this is dropped.
pub(super) struct RangeGuard<'a> {
    locks: &'a RangeLocks,
    range: HeldRange,
}

impl RangeLocks {
    /// Waits until no other user of the range excludes this one.
    pub(super) async fn lock(&self, start: u64, blocks: u64, is_exclusive: bool) -> RangeGuard<'_> {
        let range = HeldRange { start, end: start.saturating_add(blocks), is_exclusive };
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            // From here on no notification is missed.
            released.as_mut().enable();
            if self.try_lock(range) {
                return RangeGuard { locks: self, range };
            }
            released.await;
        }
    }

    fn try_lock(&self, range: HeldRange) -> bool {
        let mut held = self.held.lock();
        let is_free = held.iter().all(|other| {
            other.end <= range.start
                || range.end <= other.start
                || !(other.is_exclusive || range.is_exclusive)
        });
        if is_free {
            held.push(range);
        }
        is_free
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut held = self.locks.held.lock();
        if let Some(at) = held.iter().position(|range| *range == self.range) {
            held.swap_remove(at);
        }
        drop(held);
        self.locks.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn writers_exclude_users_of_the_same_blocks() {
        let locks = RangeLocks::default();
        let reader = locks.lock(10, 10, false).await;
        let other = locks.lock(5, 10, false).await;
        let apart = locks.lock(20, 5, true).await;
        let range = HeldRange { start: 19, end: 21, is_exclusive: true };
        assert!(!locks.try_lock(range));
        drop(apart);
        assert!(!locks.try_lock(range), "a reader is left");
        drop(reader);
        assert!(locks.try_lock(range));
        drop(other);
        assert_eq!(locks.held.lock().len(), 1);
    }
}
