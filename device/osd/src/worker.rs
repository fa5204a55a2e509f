//! The thread that runs what is left of immediate commands, and brings failed duplications to their end.
//!
//! Does: wait for work, do it, stop when asked. Does not: decide what may run; [`OsdUnit::work`] does.
//! Contract: work begins as soon as there is some; what the device promised at fixed times (the nonce lease) never waits
//! for it. Bounded: at most [`crate::tracking::QUEUE_MAX`] commands wait or run, each with at most 2 MiB of data; beyond,
//! the initiator hears BUSY. Dropping it ends the command under way at its next step, told as ABORTED COMMAND.
//! Truth: docs/standards/device.md, IMMED_TR.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::unit::OsdUnit;

/// How long it sleeps when nobody wakes it: what cannot run yet is tried again after this.
const PAUSE: Duration = Duration::from_millis(100);

/// A device's worker.
pub struct Worker {
    unit: Arc<OsdUnit>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts it.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(unit: Arc<OsdUnit>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (held, stopped) = (Arc::clone(&unit), Arc::clone(&stop));
        let thread = Builder::new().name("osd-work".into()).spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                // A command that panics must not take those after it along.
                let worked = catch_unwind(AssertUnwindSafe(|| held.work())).unwrap_or_else(|_| {
                    tracing::error!("what was left of an immediate command ended in a panic");
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
            tracing::error!("the thread of immediate commands ended in a panic");
        }
    }
}
