//! Shows the progress of operations.

use indicatif::ProgressBar;
use parking_lot::Mutex;
use sealstone_administration::{OperationObserver, OperationUnit};

use crate::output::Output;

/// Shows the progress of an operation.
pub(crate) struct ShownOperation {
    output: Output,
    bar: Mutex<ProgressBar>,
}

impl ShownOperation {
    pub(crate) fn new(output: Output) -> Self {
        Self { output, bar: Mutex::new(ProgressBar::hidden()) }
    }
}

impl OperationObserver for ShownOperation {
    fn begin(&self, unit: OperationUnit, total: u64, label: &str) {
        *self.bar.lock() = match unit {
            OperationUnit::Bytes => self.output.progress(Some(total), label),
            OperationUnit::Items => self.output.counting(total, label),
        };
    }

    fn progress(&self, done: u64, total: u64) {
        let bar = self.bar.lock();
        bar.set_length(total);
        bar.set_position(done);
    }

    fn label(&self, label: &str) {
        self.bar.lock().set_message(label.to_owned());
    }

    fn end(&self) {
        self.bar.lock().finish_and_clear();
    }
}
