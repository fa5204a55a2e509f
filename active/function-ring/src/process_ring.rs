//! The ring of an engine process, for interfaces whose calls carry no state, such as that of C.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sealstone_function_abi::{CallErrno, DescriptorError, OwnedCallDescriptor};

use crate::engine::EngineRing;

/// Level of a log line about an error.
const LOG_ERROR: u32 = 1;

/// A ring, and whether a call runs.
#[derive(Debug)]
struct InstalledRing {
    ring: EngineRing,
    is_in_call: bool,
}

/// The ring of a process in a `static`. A call outside of a run, or from a second thread at the
/// same time, fails.
#[derive(Debug, Default)]
pub struct ProcessRing(Mutex<Option<InstalledRing>>);

impl ProcessRing {
    /// Returns a process without a ring.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Locks the ring. A panic under the lock would have ended the process.
    fn lock(&self) -> MutexGuard<'_, Option<InstalledRing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the ring that all calls use.
    pub fn install(&self, ring: EngineRing) {
        *self.lock() = Some(InstalledRing { ring, is_in_call: false });
    }

    /// Runs calls until the host stops the engine; returns the exit code. `run` returns the status
    /// of a call, or the exit code of a process that must not run another one.
    pub fn serve(&self, mut run: impl FnMut(&OwnedCallDescriptor) -> Result<i64, i32>) -> i32 {
        loop {
            match self.wait_call() {
                Ok(None) => return 0,
                Ok(Some(call)) => {
                    let outcome = run(&call);
                    // Arguments may be secret: they are cleared before the call is reported.
                    drop(call);
                    match outcome {
                        Ok(status) => self.finish_call(status),
                        Err(exit_code) => return exit_code,
                    }
                }
                Err(error) => {
                    self.log_error(&format!("cannot begin the call: {error}"));
                    self.finish_call(CallErrno::Invalid.result());
                }
            }
        }
    }

    /// Waits for the next call; `None` if the engine must exit.
    ///
    /// # Errors
    ///
    /// A malformed description of the call. The call runs nevertheless, until it is finished.
    fn wait_call(&self) -> Result<Option<OwnedCallDescriptor>, DescriptorError> {
        let mut state = self.lock();
        let Some(state) = state.as_mut() else { return Ok(None) };
        let outcome = state.ring.wait_call();
        state.is_in_call = !matches!(outcome, Ok(None));
        outcome
    }

    /// Ends the call.
    fn finish_call(&self, status: i64) {
        if let Some(state) = self.lock().as_mut() {
            state.is_in_call = false;
            state.ring.finish_call(status);
        }
    }

    /// Writes an error of the engine itself to the log of the job.
    pub fn log_error(&self, text: &str) {
        let _ = self.with(|ring| ring.log(LOG_ERROR, text.as_bytes()));
    }

    /// Runs `body` with the ring if a call runs.
    ///
    /// # Errors
    ///
    /// Those of `body`; `Busy` during another call, and `BadHandle` outside of a run.
    pub fn with<T>(
        &self,
        body: impl FnOnce(&mut EngineRing) -> Result<T, CallErrno>,
    ) -> Result<T, CallErrno> {
        let mut state = self.0.try_lock().map_err(|_| CallErrno::Busy)?;
        match state.as_mut() {
            Some(InstalledRing { ring, is_in_call: true }) => body(ring),
            _ => Err(CallErrno::BadHandle),
        }
    }
}
