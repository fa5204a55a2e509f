//! Rate-limited records of refused connections and logins, for an audit log.
//!
//! Does: report the first refusal of a source and reason at once, and combine later ones into one
//! record.
//! Does not: format or store records; the daemon does.
//! Contract: each source and reason produces at most one record in [`EVERY_MS`], for at most
//! [`KINDS_MAX`] pairs. Every refusal is in the `count` of one record.

use std::{collections::HashMap, fmt, mem, sync::Arc};

use parking_lot::Mutex;

use crate::MonotonicClock;

/// Milliseconds between two records of one source and reason.
pub const EVERY_MS: u64 = 10_000;
/// Pairs of source and reason that are counted apart. Further sources are reported as [`OTHERS`].
const KINDS_MAX: usize = 1024;
/// Source of a record that combines several sources.
pub const OTHERS: &str = "others";

/// Action of records about PDUs that are not what the other end sent.
pub(crate) const INTEGRITY: &str = "INTEGRITY";

/// One record about refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalRecord<'a> {
    /// IPv4 address or IPv6 /64.
    pub source: &'a str,
    /// The iSCSI name that the initiator sent, not authenticated. Empty if it sent none.
    pub initiator: &'a str,
    /// `connect`, `login`, `manage` or `INTEGRITY`.
    pub action: &'static str,
    /// Reason of the refusal, as in the audit log.
    pub reason: &'static str,
    /// Number of refusals that this record covers.
    pub count: u64,
}

/// Receives records of refusals.
pub trait RefusalSink: Send + Sync {
    /// Receives one record. Runs on the accepting task, so it must not block for long.
    fn refused(&self, refused: &RefusalRecord<'_>);
}

/// An optional receiver of refusals.
#[derive(Clone, Default)]
pub struct RefusalSinkHandle(Option<Arc<dyn RefusalSink>>);

impl RefusalSinkHandle {
    /// Sends refusals to this receiver.
    #[must_use]
    pub fn by(sink: Arc<dyn RefusalSink>) -> Self {
        Self(Some(sink))
    }
}

impl fmt::Debug for RefusalSinkHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

type RefusalKind = (String, &'static str, &'static str);

struct PendingRefusals {
    since_ms: u64,
    initiator: String,
    count: u64,
}

/// Combines refusals before they are reported.
pub(crate) struct RefusalLog {
    sink: RefusalSinkHandle,
    clock: MonotonicClock,
    pending: Mutex<HashMap<RefusalKind, PendingRefusals>>,
}

impl RefusalLog {
    pub(crate) fn new(sink: RefusalSinkHandle, clock: MonotonicClock) -> Self {
        Self { sink, clock, pending: Mutex::default() }
    }

    pub(crate) fn add(&self, source: &str, initiator: &str, action: &'static str, reason: &'static str) {
        let Some(sink) = &self.sink.0 else { return };
        let now_ms = self.clock.now_ms();
        let mut pending = self.pending.lock();
        let mut kind = (source.to_owned(), action, reason);
        if pending.len() >= KINDS_MAX && !pending.contains_key(&kind) {
            OTHERS.clone_into(&mut kind.0);
        }
        if let Some(known) = pending.get_mut(&kind) {
            initiator.clone_into(&mut known.initiator);
            known.count += 1;
            return;
        }
        let source = kind.0.clone();
        pending.insert(kind, PendingRefusals { since_ms: now_ms, initiator: initiator.to_owned(), count: 0 });
        drop(pending);
        sink.refused(&RefusalRecord { source: &source, initiator, action, reason, count: 1 });
    }

    /// Reports combined refusals that are due; with `all` also younger ones.
    pub(crate) fn flush(&self, all: bool) {
        let Some(sink) = &self.sink.0 else { return };
        let now_ms = self.clock.now_ms();
        let mut due = Vec::new();
        self.pending.lock().retain(|kind, one| {
            if !all && now_ms < one.since_ms.saturating_add(EVERY_MS) {
                return true;
            }
            let (count, initiator) = (mem::take(&mut one.count), mem::take(&mut one.initiator));
            one.since_ms = now_ms;
            if count > 0 {
                due.push((kind.clone(), initiator, count));
            }
            // A source that continues is reported again only after another interval.
            count > 0 && !all
        });
        for ((source, action, reason), initiator, count) in due {
            sink.refused(&RefusalRecord { source: &source, initiator: &initiator, action, reason, count });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Default)]
    struct CollectedRefusals(Mutex<Vec<(String, &'static str, u64)>>);

    impl RefusalSink for CollectedRefusals {
        fn refused(&self, refused: &RefusalRecord<'_>) {
            self.0.lock().push((refused.source.to_owned(), refused.reason, refused.count));
        }
    }

    #[test]
    fn refusal_flood_is_combined_and_fully_counted() {
        let (collected, now) = (Arc::new(CollectedRefusals::default()), Arc::new(AtomicU64::new(0)));
        let time = Arc::clone(&now);
        let refusals = RefusalLog::new(
            RefusalSinkHandle::by(collected.clone()),
            MonotonicClock::new(move || time.load(Ordering::SeqCst)),
        );
        for _ in 0..1000 {
            refusals.add("a", "", "connect", "too-fast");
            refusals.add("b", "", "connect", "too-fast");
        }
        refusals.flush(false);
        assert_eq!(collected.0.lock().len(), 2, "the first of each at once, the others later");
        now.store(EVERY_MS, Ordering::SeqCst);
        refusals.flush(false);
        refusals.add("a", "", "connect", "too-fast");
        refusals.flush(false);
        assert_eq!(collected.0.lock().len(), 4, "a source that continues waits another interval");
        refusals.flush(true);
        refusals.flush(true);
        let of = |source: &str| -> u64 {
            collected.0.lock().iter().filter(|(one, ..)| one == source).map(|(_, _, count)| count).sum()
        };
        assert_eq!((of("a"), of("b"), collected.0.lock().len()), (1001, 1000, 5));
    }

    #[test]
    fn many_sources_are_reported_as_others() {
        let collected = Arc::new(CollectedRefusals::default());
        let refusals = RefusalLog::new(RefusalSinkHandle::by(collected.clone()), MonotonicClock::new(|| 0));
        for n in 0..3 * KINDS_MAX {
            refusals.add(&n.to_string(), "", "connect", "too-fast");
        }
        assert!(refusals.pending.lock().len() <= KINDS_MAX + 1);
        refusals.flush(true);
        let collected = collected.0.lock();
        assert_eq!(collected.len(), KINDS_MAX + 2);
        assert_eq!(collected.iter().map(|(_, _, count)| count).sum::<u64>(), 3 * KINDS_MAX as u64);
    }
}
