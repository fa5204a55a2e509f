//! Partitions whose duplication failed midway: tried again until it is done.
//!
//! Does: remember them, and when the next attempt is due. Does not: finish them; `commands::duplicates` does.
//! Contract: nobody sees such a partition, and who asks for it hears BUSY. What failed for want of space, or of a medium
//! that came back, is whole again without a restart.
//! Truth: docs/standards/device.md, duplicates.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Pause before the first attempt, milliseconds; each one doubles it.
const PAUSE_MS_FIRST: u64 = 1000;
/// The longest pause, milliseconds.
const PAUSE_MS_MAX: u64 = 60_000;

#[derive(Clone, Copy, Debug, Default)]
struct Attempt {
    due_ms: u64,
    pause_ms: u64,
}

/// The stranded partitions of a device.
#[derive(Default)]
pub(crate) struct Stranded(Mutex<BTreeMap<u64, Attempt>>);

impl Stranded {
    /// Its duplication failed. The first attempt is due at once.
    pub(crate) fn add(&self, partition: u64) {
        self.0.lock().entry(partition).or_default();
    }

    /// It is done.
    pub(crate) fn remove(&self, partition: u64) {
        self.0.lock().remove(&partition);
    }

    /// Is it one of them?
    pub(crate) fn contains(&self, partition: u64) -> bool {
        self.0.lock().contains_key(&partition)
    }

    /// FORMAT OSD: there are no partitions any more.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    /// One whose attempt is due by the machine's clock; the next one is put off as if this one failed.
    pub(crate) fn due(&self, now_ms: u64) -> Option<u64> {
        let mut all = self.0.lock();
        let (&partition, attempt) = all.iter_mut().find(|(_, attempt)| {
            // A clock that was set back must not put an attempt off for good.
            now_ms >= attempt.due_ms || attempt.due_ms - now_ms > PAUSE_MS_MAX
        })?;
        attempt.pause_ms = (attempt.pause_ms * 2).clamp(PAUSE_MS_FIRST, PAUSE_MS_MAX);
        attempt.due_ms = now_ms.saturating_add(attempt.pause_ms);
        Some(partition)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_come_at_growing_pauses_and_end_when_it_is_done() {
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
