//! The commands that run daemons: options, signals, the runtime, and ready lines.

mod directory;
pub(crate) mod keystore;
pub(crate) mod mds;
pub(crate) mod osd;
pub(crate) mod store;
pub(crate) mod up;

use std::future::Future;

use sealstone_daemon::Shutdown;
use sealstone_failure::{Failure, Outcome};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Worker threads in addition to one per core: commands that wait for the disk use them too.
const EXTRA_WORKERS: usize = 2;
/// Threads for long blocking work: flushes, formats, logins.
const BLOCKING_THREADS_MAX: usize = 32;
/// Stack of each thread, in bytes; nothing here recurses deeply.
const STACK_BYTES: usize = 1 << 20;

/// Runs a daemon to its end.
pub(crate) fn run(daemon: impl Future<Output = Outcome>) -> Outcome {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores + EXTRA_WORKERS)
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_stack_size(STACK_BYTES)
        .enable_all()
        .build()
        .map_err(|error| Failure::from(error).at("runtime"))?
        .block_on(daemon)
}

/// Signals that stop a process in order; a second one stops it at once.
const ENDING_SIGNALS: [SignalKind; 4] =
    [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];

/// Returns the numbers of [`ENDING_SIGNALS`] as they arrive, except signals that the process
/// ignores from its start, as with `nohup`. The sender must be kept, so that the channel stays
/// open.
pub(crate) fn ending_signals() -> Outcome<(mpsc::UnboundedSender<i32>, mpsc::UnboundedReceiver<i32>)> {
    let ignored = ignored_signals();
    let (arrived, signals) = mpsc::unbounded_channel();
    for kind in ENDING_SIGNALS {
        if ignored >> (kind.as_raw_value() - 1) & 1 != 0 {
            continue;
        }
        let (mut listener, arrived) = (signal(kind)?, arrived.clone());
        tokio::spawn(async move {
            while listener.recv().await.is_some() && arrived.send(kind.as_raw_value()).is_ok() {}
        });
    }
    Ok((arrived, signals))
}

/// Returns a shutdown that starts when one of the [`ending_signals`] arrives; a second one ends the
/// process at once.
pub(crate) fn shutdown_on_signals() -> Outcome<Shutdown> {
    let (arrived, mut signals) = ending_signals()?;
    let (sender, shutdown) = Shutdown::manual();
    tokio::spawn(async move {
        // Kept, so that the channel stays open.
        let _arrived = arrived;
        let Some(number) = signals.recv().await else { return };
        tracing::info!(signal = number, "signal received; stopping in order");
        let _ = sender.send(true);
        if let Some(number) = signals.recv().await {
            tracing::warn!(signal = number, "second signal received; stopping at once");
            std::process::exit(1);
        }
    });
    Ok(shutdown)
}

/// Returns the signals that this process ignores from its start, one bit each.
fn ignored_signals() -> u64 {
    // The name of the program in it need not be UTF-8.
    let status = std::fs::read("/proc/self/status").unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
