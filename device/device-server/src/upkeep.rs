//! Work that must not wait for the threads of commands.
//!
//! Does: runs the upkeep of a device, and the steps of its shutdown, on threads of their own. The
//! pool of the runtime is limited, and commands can occupy all of it.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use sealstone_failure::{Failure, Outcome};
use sealstone_function_service::FunctionService;
use sealstone_osd_device::OsdUnit;
use tokio::sync::oneshot;

use crate::blocks::Blocks;

/// Interval of the renewal of the nonce lease.
const UPKEEP_INTERVAL: Duration = Duration::from_millis(500);

/// Runs blocking work on a thread of its own, and waits for it.
///
/// # Errors
/// The system cannot create a thread, or the work panicked.
pub(crate) async fn off_pool<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Outcome<T> {
    let (sender, result) = oneshot::channel();
    Builder::new().name(name.to_owned()).spawn(move || {
        // The receiver is dropped only if the daemon ends early.
        let _ = sender.send(work());
    })?;
    result.await.map_err(|_| Failure::operation("the thread ended early").at(name))
}

/// Interval of the verification of blocks. With the age of 500 ms at which blocks are due, each is
/// verified within a second.
const VERIFY_INTERVAL: Duration = Duration::from_millis(200);

/// The thread that verifies blocks of lazily protected units. Dropping it stops it.
pub(crate) struct VerificationThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl VerificationThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub(crate) fn start(blocks: Arc<Blocks>) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = Builder::new().name("verify-blocks".into()).spawn(move || {
            while stopped.recv_timeout(VERIFY_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                blocks.verify_due();
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for VerificationThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread that renews the nonce lease ahead of the clock, and expires jobs and engines.
/// Dropping it stops it.
pub(crate) struct UpkeepThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl UpkeepThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub(crate) fn start(
        unit: Arc<OsdUnit>,
        blocks: Arc<Blocks>,
        service: Arc<FunctionService>,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = Builder::new().name("upkeep".into()).spawn(move || {
            let began = Instant::now();
            let mut is_failing = false;
            let mut restoring: Option<JoinHandle<()>> = None;
            loop {
                blocks.tick(began.elapsed());
                if restoring.as_ref().is_none_or(JoinHandle::is_finished) && blocks.has_restored_secret() {
                    let blocks = Arc::clone(&blocks);
                    match Builder::new().name("block-keys".into()).spawn(move || blocks.restore_secret()) {
                        Ok(thread) => restoring = Some(thread),
                        Err(error) => {
                            tracing::error!(%error, "cannot start a thread; a restored secret is not loaded");
                        }
                    }
                }
                match unit.upkeep() {
                    Ok(()) => is_failing = false,
                    Err(error) if !is_failing => {
                        is_failing = true;
                        tracing::error!(%error, "cannot renew the nonce lease; signed commands are refused");
                    }
                    Err(_) => {}
                }
                service.tick();
                if stopped.recv_timeout(UPKEEP_INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            // The store is closed after this: no unit may open meanwhile.
            if let Some(thread) = restoring {
                let _ = thread.join();
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for UpkeepThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was reported on standard error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_off_pool_ignores_busy_threads() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (release, released) = channel::<()>();
            let busy = tokio::task::spawn_blocking(move || released.recv());
            assert_eq!(off_pool("test", || 7).await.ok(), Some(7));
            drop(release);
            assert!(busy.await.unwrap().is_err());
        });
    }
}
