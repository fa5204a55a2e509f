//! Threads that tick and scrub a store, for programs without an event loop of their own.
//!
//! Does: calls `tick` at an interval, or `scrub` at a rate, until dropped.
//! Does not: start on its own, so that simulations run without threads.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::{DiskStore, ScrubProgress, ScrubStep, StoreScrub};

/// The running thread; dropping this stops it. It does not flush at the end.
#[derive(Debug)]
pub struct BackgroundThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundThread {
    /// Ticks `store` every `interval`.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub fn start(store: Arc<DiskStore>, interval: Duration) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let origin = Instant::now();
        let thread = Builder::new().name("store-commit".into()).spawn(move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                // A failure poisons the store and is returned by the next write or flush.
                if let Err(error) = store.tick(origin.elapsed()) {
                    tracing::error!(%error, "background commit failed");
                }
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

    /// Scrubs `store` once, from the position of `walk` to the end, at `bytes_per_second` at most;
    /// reports each step.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub fn scrub(
        store: Arc<DiskStore>,
        mut walk: StoreScrub,
        bytes_per_second: u64,
        mut on_step: impl FnMut(&ScrubStep, &ScrubProgress) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let rate = bytes_per_second.max(1);
        let thread = Builder::new().name("store-scrub".into()).spawn(move || {
            let started = Instant::now();
            // When the bytes read so far are due at this rate.
            let mut due = Duration::ZERO;
            loop {
                let step = match store.scrub(&mut walk, rate.min(SCRUB_STEP)) {
                    Ok(step) => step,
                    Err(error) => return tracing::error!(%error, "scrub failed and stops"),
                };
                on_step(&step, &walk.progress(&store));
                if step.done {
                    return;
                }
                due += Duration::from_secs_f64(step.bytes as f64 / rate as f64);
                let pause = due.saturating_sub(started.elapsed());
                if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

/// Maximum bytes of one scrub step; the pauses are between steps.
const SCRUB_STEP: u64 = 4 << 20;

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread has reported its panic itself.
            let _ = thread.join();
        }
    }
}
