//! Threads that tick a store and look for damage, for shells that have no loop of their own.
//!
//! Does: call `tick` at an interval, or `scrub` at a rate, until dropped. Does not: start by itself, so that simulations
//! have none.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::{DiskStore, Scrub, ScrubProgress, ScrubStep};

/// The running thread; ends when this is dropped. It does not flush at the end.
#[derive(Debug)]
pub struct Background {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Ticks `store` every `interval`.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(store: Arc<DiskStore>, interval: Duration) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let origin = Instant::now();
        let thread = Builder::new().name("store-commit".into()).spawn(move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                // A failure poisons the store and is reported to whoever writes or flushes next.
                if let Err(error) = store.tick(origin.elapsed()) {
                    tracing::error!(%error, "background commit failed");
                }
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

    /// Walks over `store` from where `walk` is to its end, once, at `bytes_per_second` at most, and tells of each step.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn scrub(
        store: Arc<DiskStore>,
        mut walk: Scrub,
        bytes_per_second: u64,
        mut on_step: impl FnMut(&ScrubStep, &ScrubProgress) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let rate = bytes_per_second.max(1);
        let thread = Builder::new().name("store-scrub".into()).spawn(move || {
            let begun = Instant::now();
            // So much was read at the rate as if at once.
            let mut due = Duration::ZERO;
            loop {
                let step = match store.scrub(&mut walk, rate.min(SCRUB_STEP)) {
                    Ok(step) => step,
                    Err(error) => return tracing::error!(%error, "the scrub ended"),
                };
                on_step(&step, &walk.progress(&store));
                if step.done {
                    return;
                }
                due += Duration::from_secs_f64(step.bytes as f64 / rate as f64);
                let pause = due.saturating_sub(begun.elapsed());
                if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

/// Bytes of one step of a scrub, at most: what is read in one go before it pauses.
const SCRUB_STEP: u64 = 4 << 20;

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}
