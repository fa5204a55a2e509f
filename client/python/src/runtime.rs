//! The runtime of the process, and waits that end at a signal.
//!
//! Contract: the runtime is created at first use in each process. A child of a fork has none of
//! the threads of its parent, so it gets a new one.

use core::time::Duration;
use std::future::Future;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};

use crate::limits::OperationLimits;

/// Interval at which a waiting call checks for signals, such as Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum threads of the runtime.
const WORKERS_MAX: usize = 8;

/// The runtime of one process, which all its clients share.
#[derive(Clone)]
struct ProcessRuntime {
    owner: OwnerProcess,
    runtime: Arc<Runtime>,
    /// Limits of logins, which have no client yet.
    login_limits: Arc<OperationLimits>,
}

static RUNTIME: Mutex<Option<ProcessRuntime>> = Mutex::new(None);

/// Returns the runtime of this process.
pub(crate) fn runtime() -> PyResult<Arc<Runtime>> {
    Ok(process_runtime()?.runtime)
}

/// Returns the limits of the logins of this process.
pub(crate) fn login_limits() -> PyResult<Arc<OperationLimits>> {
    Ok(process_runtime()?.login_limits)
}

fn process_runtime() -> PyResult<ProcessRuntime> {
    let mut slot = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(existing) = &*slot {
        if existing.owner.is_current() {
            return Ok(existing.clone());
        }
        // The threads of the parent do not exist here, so its runtime cannot be shut down.
        core::mem::forget(existing.clone());
    }
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX);
    let built =
        Builder::new_multi_thread().worker_threads(workers).thread_name("sealstone").enable_all().build()?;
    let created = ProcessRuntime {
        owner: OwnerProcess::current(),
        runtime: Arc::new(built),
        login_limits: Arc::default(),
    };
    *slot = Some(created.clone());
    Ok(created)
}

/// The process that created an object.
#[derive(Clone, Copy)]
pub(crate) struct OwnerProcess(u32);

impl OwnerProcess {
    pub(crate) fn current() -> Self {
        Self(process::id())
    }

    /// Whether this process created the object.
    pub(crate) fn is_current(self) -> bool {
        self.0 == process::id()
    }

    /// Fails in a child of a fork.
    pub(crate) fn check(self) -> PyResult<()> {
        if self.is_current() {
            return Ok(());
        }
        let message =
            format!("created in process {}, before a fork; create a new one in this process", self.0);
        Err(PyRuntimeError::new_err(message))
    }
}

/// Waits for a future without the interpreter lock. A signal handler that raises ends the wait and
/// drops the future.
pub(crate) fn wait<T: Send>(py: Python<'_>, future: impl Future<Output = T> + Send) -> PyResult<T> {
    let runtime = runtime()?;
    let mut future = Box::pin(future);
    loop {
        let step = async { tokio::time::timeout(SIGNAL_INTERVAL, &mut future).await };
        match py.detach(|| runtime.block_on(step)) {
            Ok(value) => return Ok(value),
            Err(_) => py.check_signals()?,
        }
    }
}
