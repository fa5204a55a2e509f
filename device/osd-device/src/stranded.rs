//! Partitions whose duplication failed midway and is retried.
//!
//! Does: keep them, with the time of the next attempt.
//! Does not: complete them; `commands::duplicates` does.
//! Contract: such a partition is hidden, and commands on it get BUSY. A failure for lack of space,
//! or of a disk that works again, is repaired without a restart.
//! Truth: docs/standards/device.md, duplicates.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Pause after the first attempt in milliseconds. Each attempt doubles it.
const PAUSE_MS_FIRST: u64 = 1000;
/// Longest pause in milliseconds.
const PAUSE_MS_MAX: u64 = 60_000;

#[derive(Clone, Copy, Debug, Default)]
struct StrandedRetry {
    due_ms: u64,
    pause_ms: u64,
}

/// The stranded partitions of a device.
#[derive(Default)]
pub(crate) struct Stranded(Mutex<BTreeMap<u64, StrandedRetry>>);

impl Stranded {
    /// Adds a partition whose duplication failed. The first attempt is due at once.
    pub(crate) fn add(&self, partition: u64) {
        self.0.lock().entry(partition).or_default();
    }

    /// Removes a partition whose duplication is complete.
    pub(crate) fn remove(&self, partition: u64) {
        self.0.lock().remove(&partition);
    }

    /// Whether the partition is stranded.
    pub(crate) fn contains(&self, partition: u64) -> bool {
        self.0.lock().contains_key(&partition)
    }

    /// FORMAT OSD: removes all partitions.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    /// Returns a partition whose attempt is due by the machine's clock, and schedules the next
    /// attempt.
    pub(crate) fn due(&self, now_ms: u64) -> Option<u64> {
        let mut all = self.0.lock();
        let (&partition, attempt) = all.iter_mut().find(|(_, attempt)| {
            // A clock that was set back must not delay an attempt indefinitely.
            now_ms >= attempt.due_ms || attempt.due_ms - now_ms > PAUSE_MS_MAX
        })?;
        attempt.pause_ms = (attempt.pause_ms * 2).clamp(PAUSE_MS_FIRST, PAUSE_MS_MAX);
        attempt.due_ms = now_ms.saturating_add(attempt.pause_ms);
        Some(partition)
    }

    /// Returns the number of stranded partitions.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stranded_retries_back_off_until_done() {
        let stranded = Stranded::default();
        assert_eq!(stranded.due(5), None);
        stranded.add(7);
        stranded.add(7);
        assert_eq!(stranded.count(), 1);
        let mut now = 1_000_000;
        for pause in [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000] {
            assert_eq!(stranded.due(now), Some(7));
            assert_eq!(stranded.due(now + pause - 1), None);
            now += pause;
        }
        assert_eq!(stranded.due(3), Some(7), "the clock was set back");
        stranded.remove(7);
        assert_eq!(stranded.due(u64::MAX), None);
    }
}
