//! Limits of asynchronous operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;
use rustix::io::Errno;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::errors;

/// Maximum asynchronous operations of one client that run at once; others wait in order. The logins
/// of one process have the same limits.
const IN_FLIGHT_MAX: usize = 128;
/// Maximum ones that run or wait.
const STARTED_MAX: usize = 1 << 14;

/// Limits of the asynchronous operations of one client.
pub(crate) struct OperationLimits {
    in_flight: Semaphore,
    started: AtomicUsize,
}

impl Default for OperationLimits {
    fn default() -> Self {
        Self { in_flight: Semaphore::new(IN_FLIGHT_MAX), started: AtomicUsize::new(0) }
    }
}

/// A started operation. Its drop ends the count.
pub(crate) struct StartedOperation(Arc<OperationLimits>);

impl OperationLimits {
    /// Counts an operation that starts; fails when too many run or wait.
    pub(crate) fn start(self: &Arc<Self>, py: Python<'_>) -> PyResult<StartedOperation> {
        let started = StartedOperation(Arc::clone(self));
        if self.started.fetch_add(1, Ordering::Relaxed) >= STARTED_MAX {
            let message = format!("{STARTED_MAX} operations run or wait already; start fewer at once");
            return Err(errors::raise(py, "", Errno::AGAIN, &message, None));
        }
        Ok(started)
    }
}

impl StartedOperation {
    /// Waits until the operation may run.
    pub(crate) async fn acquire(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.0.in_flight.acquire().await.ok()
    }
}

impl Drop for StartedOperation {
    fn drop(&mut self) {
        self.0.started.fetch_sub(1, Ordering::Relaxed);
    }
}
