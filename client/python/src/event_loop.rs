//! Operations that an event loop of asyncio runs.
//!
//! Does: spawns operations on the runtime, queues their results, and wakes the event loop through a
//! file descriptor that it watches.
//! Does not: touch Python from threads of the runtime. They need neither the interpreter lock nor
//! an interpreter that still exists.
//! Contract: each started number is in one answer of `completed`, unless it was aborted.
//! Truth: docs/adr/0091-asyncio-and-fsspec.md.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::task::AbortHandle;

use crate::operation::{NativeOperation, ResultConversion};
use crate::runtime::{OwnerProcess, runtime};

/// Maximum wake-ups that are cleared at once. A wake-up follows only a clearing, so few accumulate.
const WAKEUPS_MAX: usize = 64;

/// Results that the event loop has not taken yet.
struct CompletionQueue {
    /// Readable while the queue has results; the event loop watches it.
    wakeup: UnixStream,
    /// The other end of `wakeup`.
    waker: UnixStream,
    results: Mutex<Vec<(u64, ResultConversion)>>,
}

impl CompletionQueue {
    fn push(&self, number: u64, result: ResultConversion) {
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = results.is_empty();
        results.push((number, result));
        drop(results);
        if was_empty {
            // Fails only if the socket is full, and then it is readable.
            let _ = (&self.waker).write(&[0]);
        }
    }

    fn take(&self) -> Vec<(u64, ResultConversion)> {
        // Cleared before the results are taken, so that a later one makes it readable again.
        let _ = (&self.wakeup).read(&mut [0; WAKEUPS_MAX]);
        core::mem::take(&mut *self.results.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Queues the result of an operation, or an error if its task ends without one.
struct PendingResult {
    number: u64,
    queue: Arc<CompletionQueue>,
    queued: bool,
}

impl PendingResult {
    fn complete(mut self, result: ResultConversion) {
        self.queued = true;
        self.queue.push(self.number, result);
    }
}

impl Drop for PendingResult {
    fn drop(&mut self) {
        if !self.queued {
            let ended = || PyRuntimeError::new_err("the operation ended without a result");
            self.queue.push(self.number, Box::new(move |_| Err(ended())));
        }
    }
}

/// The operations of one event loop.
#[pyclass(frozen, module = "sealstone._native")]
pub(crate) struct NativeLoop {
    queue: Arc<CompletionQueue>,
    running: Mutex<HashMap<u64, AbortHandle>>,
    next: AtomicU64,
    owner: OwnerProcess,
}

#[pymethods]
impl NativeLoop {
    #[new]
    fn new() -> PyResult<Self> {
        let (wakeup, waker) = UnixStream::pair()?;
        wakeup.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        Ok(Self {
            queue: Arc::new(CompletionQueue { wakeup, waker, results: Mutex::default() }),
            running: Mutex::default(),
            next: AtomicU64::new(0),
            owner: OwnerProcess::current(),
        })
    }

    /// Returns the file descriptor that is readable while there are results.
    fn fileno(&self) -> i32 {
        self.queue.wakeup.as_raw_fd()
    }

    /// Starts an operation; returns its number.
    fn start(&self, py: Python<'_>, operation: &NativeOperation) -> PyResult<u64> {
        self.owner.check()?;
        let started = operation.limits().start(py)?;
        let (future, runtime) = (operation.take()?, runtime()?);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let pending = PendingResult { number, queue: Arc::clone(&self.queue), queued: false };
        let task = runtime.spawn(async move {
            let permit = started.acquire().await;
            let result = future.await;
            drop(permit);
            pending.complete(result);
        });
        self.running.lock().unwrap_or_else(PoisonError::into_inner).insert(number, task.abort_handle());
        Ok(number)
    }

    /// Returns the results since the last call: numbers, values, and exceptions or none.
    fn completed(&self, py: Python<'_>) -> PyResult<Vec<(u64, Py<PyAny>, Option<PyErr>)>> {
        self.owner.check()?;
        let mut results = self.queue.take();
        {
            // The result of an aborted operation has no receiver.
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            results.retain(|(number, _)| running.remove(number).is_some());
        }
        let converted = results.into_iter().map(|(number, convert)| match convert(py) {
            Ok(value) => (number, value, None),
            Err(error) => (number, py.None(), Some(error)),
        });
        Ok(converted.collect())
    }

    /// Cancels an operation. It may have taken effect.
    fn abort(&self, number: u64) {
        let task = self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        if let Some(task) = task
            && self.owner.is_current()
        {
            task.abort();
        }
    }

    /// Cancels all operations.
    fn abort_all(&self) {
        let running = core::mem::take(&mut *self.running.lock().unwrap_or_else(PoisonError::into_inner));
        if self.owner.is_current() {
            running.values().for_each(AbortHandle::abort);
        }
    }
}

impl Drop for NativeLoop {
    fn drop(&mut self) {
        self.abort_all();
    }
}
