//! The thread that runs the remaining work of immediate commands, and completes failed
//! duplications.
//!
//! Does: wait for work, run it, stop on request.
//! Does not: decide what may run; [`OsdUnit::work`] does.
//! Contract: work starts as soon as there is some, and never delays periodic maintenance such as
//! the nonce lease. Bounded: at most [`crate::running::QUEUE_MAX`] commands wait or run, each with
//! at most 2 MiB of data; beyond that the initiator gets BUSY. Dropping the worker ends the running
//! command at its next step with ABORTED COMMAND.
//! Truth: docs/standards/device.md, IMMED_TR.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::unit::OsdUnit;

/// Longest sleep without a wakeup. Jobs that could not run are tried again after this.
const PAUSE: Duration = Duration::from_millis(100);

/// Background worker of a device.
pub struct Worker {
    unit: Arc<OsdUnit>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub fn start(unit: Arc<OsdUnit>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (held, stopped) = (Arc::clone(&unit), Arc::clone(&stop));
        let thread = Builder::new().name("osd-work".into()).spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                // A panic of one command must not stop those after it.
                let worked = catch_unwind(AssertUnwindSafe(|| held.work())).unwrap_or_else(|_| {
                    tracing::error!("an immediate command panicked");
                    false
                });
                if !worked {
                    held.wait_for_work(PAUSE);
                }
            }
        })?;
        Ok(Self { unit, stop, thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.unit.stop_work();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of immediate commands panicked");
        }
    }
}
