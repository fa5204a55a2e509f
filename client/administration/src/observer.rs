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
