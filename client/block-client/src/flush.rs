//! Which flush reports lost writes: each user of a unit gets each loss exactly once.
//!
//! Does: counts losses, and groups flushes that wait for each other.
//! Does not: detect losses; the unit's paths do.
//! Contract: a loss that was reported to no user is reported to the next one, even if its cursor
//! was created later.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

use crate::BlockError;

/// The losses that a user of a unit has seen. Each connection to a unit's data has one of its own.
#[derive(Debug, Default)]
pub struct FlushCursor(AtomicU64);

/// The losses of a unit.
#[derive(Debug, Default)]
pub(crate) struct LossCounter {
    losses: AtomicU64,
    /// The losses that at least one user has seen.
    reported: AtomicU64,
}

impl LossCounter {
    /// Counts one loss.
    pub(crate) fn record(&self) {
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number of losses.
    pub(crate) fn count(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    /// Returns the cursor of a new user.
    pub(crate) fn cursor(&self) -> FlushCursor {
        FlushCursor(AtomicU64::new(self.reported.load(Ordering::SeqCst)))
    }

    /// Fails if there are losses that the user has not seen, and marks them as seen.
    pub(crate) fn check(&self, cursor: &FlushCursor) -> Result<(), BlockError> {
        let losses = self.losses.load(Ordering::SeqCst);
        if cursor.0.fetch_max(losses, Ordering::SeqCst) >= losses {
            return Ok(());
        }
        self.reported.fetch_max(losses, Ordering::SeqCst);
        Err(BlockError::LostWrites)
    }
}

/// The writes of one path, for the decision whether a power failure lost any.
#[derive(Debug, Default)]
pub(crate) struct UnflushedWrites {
    /// Steps of writes: each is counted when it is sent, and again when it is acknowledged.
    written: AtomicU64,
    /// The steps that are durable or whose loss was recorded.
    flushed: AtomicU64,
}

impl UnflushedWrites {
    /// Counts a step of a write. The step before the command is sent covers a power failure that is
    /// reported before the acknowledgement of the write is processed. The step at the
    /// acknowledgement covers a flush that began during the write.
    pub(crate) fn count_step(&self) {
        self.written.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the steps that a flush covers if it is sent after this call.
    pub(crate) fn begin_flush(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    /// Marks steps as durable, or as lost if the loss was recorded. Returns whether any were
    /// unflushed.
    pub(crate) fn end_flush(&self, covered: u64) -> bool {
        self.flushed.fetch_max(covered, Ordering::SeqCst) < covered
    }
}

/// Groups flushes: a flush that begins after a request arrived serves that request too, also if it
/// fails.
#[derive(Debug, Default)]
pub(crate) struct FlushGroup {
    arrivals: AtomicU64,
    last: Mutex<LastFlush>,
}

/// The last flush of a group.
#[derive(Debug, Default)]
struct LastFlush {
    /// Requests that arrived before this number were served.
    covered: u64,
    /// The error of the last flush, and the number of the first request since the last success.
    failure: Option<(u64, BlockError)>,
}

impl FlushGroup {
    /// Runs `flush`, unless another one that began after this call has ended meanwhile.
    pub(crate) async fn run<F>(&self, flush: impl FnOnce() -> F) -> Result<(), BlockError>
    where
        F: Future<Output = Result<(), BlockError>>,
    {
        let arrival = self.arrivals.fetch_add(1, Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if last.covered > arrival {
            return match &last.failure {
                // A later flush that succeeded made everything durable.
                Some((first, error)) if *first <= arrival => Err(error.clone()),
                _ => Ok(()),
            };
        }
        let covered = self.arrivals.load(Ordering::SeqCst);
        let outcome = flush().await;
        // Each user gets this error once, so it proves nothing about the writes of a waiting one.
        if matches!(outcome, Err(BlockError::LostWrites)) {
            return outcome;
        }
        let first = last.failure.as_ref().map_or(last.covered, |(first, _)| *first);
        last.failure = outcome.as_ref().err().map(|error| (first, error.clone()));
        last.covered = covered;
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn each_user_sees_each_loss_once() {
        let counter = LossCounter::default();
        let [one, two] = [counter.cursor(), counter.cursor()];
        assert!(counter.check(&one).is_ok());
        counter.record();
        let late = counter.cursor();
        assert!(counter.check(&late).is_err(), "no user has seen it");
        assert!(counter.check(&one).is_err() && counter.check(&two).is_err());
        assert!(counter.check(&one).is_ok() && counter.check(&two).is_ok() && counter.check(&late).is_ok());
        assert!(counter.check(&counter.cursor()).is_ok(), "it was reported before");
    }

    #[test]
    fn power_failure_during_flush_is_recorded() {
        let writes = UnflushedWrites::default();
        assert!(!writes.end_flush(writes.begin_flush()), "nothing was written");
        writes.count_step();
        writes.count_step();
        let covered = writes.begin_flush();
        // The unit attention is reported before the flush gets a status.
        assert!(writes.end_flush(writes.begin_flush()));
        assert!(!writes.end_flush(covered), "recorded once");
    }

    #[test]
    fn write_acknowledged_during_flush_stays_unflushed() {
        let writes = UnflushedWrites::default();
        writes.count_step();
        let covered = writes.begin_flush();
        writes.count_step();
        assert!(writes.end_flush(covered));
        assert!(writes.end_flush(writes.begin_flush()), "the flush may have overtaken the write");
    }

    #[tokio::test]
    async fn waiting_flushes_share_one() {
        let (group, runs) = (FlushGroup::default(), AtomicUsize::new(0));
        let one = || {
            group.run(|| async {
                runs.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                Ok(())
            })
        };
        let (a, b, c) = tokio::join!(one(), one(), one());
        assert!(a.is_ok() && b.is_ok() && c.is_ok());
        assert_eq!(runs.load(Ordering::SeqCst), 2, "the first, and one for those that waited");
    }

    #[tokio::test]
    async fn failed_flush_leaves_later_requests_to_the_next() {
        let group = FlushGroup::default();
        let (a, b) = tokio::join!(
            group.run(|| async {
                tokio::task::yield_now().await;
                Err(BlockError::Busy)
            }),
            group.run(|| async { Ok(()) })
        );
        assert!(a.is_err() && b.is_ok());
    }

    #[tokio::test]
    async fn failed_flush_fails_requests_that_waited_for_it() {
        let (group, runs) = (FlushGroup::default(), AtomicUsize::new(0));
        let one = || {
            group.run(|| async {
                runs.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                Err(BlockError::Busy)
            })
        };
        let (a, b, c) = tokio::join!(one(), one(), one());
        assert!(a.is_err() && b.is_err() && c.is_err());
        assert_eq!(runs.load(Ordering::SeqCst), 2, "the first, and one for those that waited");
        assert!(group.run(|| async { Ok(()) }).await.is_ok());
    }
}
