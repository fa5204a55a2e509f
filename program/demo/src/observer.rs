//! Observer of the demo.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sealstone_failure::Outcome;

/// Observes the demo.
pub trait DemoObserver: Send + Sync {
    /// A step has ended, or something else is worth a line.
    fn remark(&self, text: &str);
    /// A transfer of so many bytes begins.
    fn begin(&self, bytes: u64, what: &str);
    /// So many bytes have been transferred.
    fn position(&self, bytes: u64);
    /// The transfer has ended.
    fn end(&self);
    /// All attacks have ended; the table has a line for each.
    ///
    /// # Errors
    /// It cannot be shown; the demo ends.
    fn attacks(&self, table: &str) -> Outcome;
}

/// Bytes that parallel transfers have moved.
#[derive(Clone)]
pub(crate) struct DemoProgress {
    bytes: Arc<AtomicU64>,
    observer: Arc<dyn DemoObserver>,
}

impl DemoProgress {
    /// Begins a transfer.
    pub(crate) fn begin(observer: &Arc<dyn DemoObserver>, bytes: u64, what: &str) -> Self {
        observer.begin(bytes, what);
        Self { bytes: Arc::default(), observer: Arc::clone(observer) }
    }

    /// Adds bytes.
    pub(crate) fn add(&self, bytes: u64) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.observer.position(before.saturating_add(bytes));
    }
}
