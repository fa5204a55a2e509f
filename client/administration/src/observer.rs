//! Observer of an operation, and how long its end is awaited.

use std::time::{Duration, Instant};

/// Unit of the progress of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationUnit {
    /// Bytes that are moved or read.
    Bytes,
    /// Objects, keys or nodes.
    Items,
}

/// Observes an operation that takes time.
pub trait OperationObserver: Send + Sync {
    /// The operation begins.
    fn begin(&self, unit: OperationUnit, total: u64, label: &str);
    /// So much of the total is done; both may change.
    fn progress(&self, done: u64, total: u64);
    /// The operation does something else now.
    fn label(&self, label: &str);
    /// The operation has ended, or is not awaited any more.
    fn end(&self);
}

/// Progress of an operation. Its observer receives the end when this is dropped, also after a
/// failure.
pub(crate) struct OperationProgress<'a>(&'a dyn OperationObserver);

impl<'a> OperationProgress<'a> {
    /// Begins an operation.
    pub(crate) fn begin(
        observer: &'a dyn OperationObserver,
        unit: OperationUnit,
        total: u64,
        label: &str,
    ) -> Self {
        observer.begin(unit, total, label);
        Self(observer)
    }

    /// Reports how much of the total is done.
    pub(crate) fn set(&self, done: u64, total: u64) {
        self.0.progress(done, total);
    }

    /// Reports what the operation does now.
    pub(crate) fn label(&self, label: &str) {
        self.0.label(label);
    }
}

impl Drop for OperationProgress<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// How long the end of an operation is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitLimit {
    /// Not at all.
    None,
    /// At most for this time; then the call fails.
    Required(Duration),
    /// At most for this time; then the report says what is pending.
    Wanted(Duration),
    /// Until the end.
    Forever,
}

impl WaitLimit {
    /// Whether it was awaited long enough.
    pub(crate) fn is_over(self, begun: Instant) -> bool {
        match self {
            Self::None => true,
            Self::Required(limit) | Self::Wanted(limit) => begun.elapsed() >= limit,
            Self::Forever => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct CountingObserver {
        ends: AtomicU32,
    }

    impl OperationObserver for CountingObserver {
        fn begin(&self, _: OperationUnit, _: u64, _: &str) {}

        fn progress(&self, _: u64, _: u64) {}

        fn label(&self, _: &str) {}

        fn end(&self) {
            self.ends.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn dropped_progress_reports_one_end() {
        let observer = CountingObserver::default();
        let progress = OperationProgress::begin(&observer, OperationUnit::Items, 2, "keys");
        progress.set(1, 2);
        assert_eq!(observer.ends.load(Ordering::Relaxed), 0);
        drop(progress);
        assert_eq!(observer.ends.load(Ordering::Relaxed), 1);
    }
}
