//! A thread that ticks a store, for shells that have no loop of their own.
//!
//! Does: call `tick` at an interval until dropped. Does not: start by itself, so that simulations have none.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::DiskStore;

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
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}
