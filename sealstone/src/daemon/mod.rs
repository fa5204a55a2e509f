//! The daemons: what device and metadata server share, such as the runtime, signals, ports and the
//! check of a data folder.

pub(crate) mod access;
mod audit_file;
mod audit_log;
mod audit_rate_limit;
mod audit_shares;
pub(crate) mod blocks;
pub(crate) mod control;
mod directory;
pub(crate) mod functions;
pub(crate) mod identity;
pub(crate) mod keystore;
pub(crate) mod machine_clock;
pub(crate) mod mds;
pub(crate) mod osd;
mod osd_create;
pub(crate) mod scrub;
pub(crate) mod store;
pub(crate) mod time;
pub(crate) mod up;
mod upkeep;

pub(crate) use audit_file::segments as audit_segments;

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::failure::{Failure, FailureKind, Outcome};
use crate::metrics::{self, Observed};
use crate::secret_file;
use crate::text::ShownPath as _;

/// Worker threads in addition to one per core: commands that wait for the disk use them too.
const EXTRA_WORKERS: usize = 2;
/// Threads for long blocking work: flushes, formats, logins.
const BLOCKING_THREADS_MAX: usize = 32;
/// Stack of each thread, in bytes; nothing here recurses deeply.
const STACK_BYTES: usize = 1 << 20;

/// Listen backlog; connections beyond it are retried by the peer after a second.
const BACKLOG: i32 = 4096;

/// MiB of a metadata server's audit log, unless it is configured.
pub(crate) const MDS_AUDIT_MIB_DEFAULT: u64 = 1024;
/// MiB of a device's audit log, unless it is configured.
pub(crate) const OSD_AUDIT_MIB_DEFAULT: u64 = 256;

/// The audit log's name in a daemon's folder.
pub(crate) const AUDIT_FILE: &str = "audit.jsonl";

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

/// Shutdown of a daemon; a second signal ends the process at once.
#[derive(Clone)]
pub(crate) struct Shutdown(watch::Receiver<bool>);

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

impl Shutdown {
    /// Starts when one of the [`ending_signals`] arrives.
    pub(crate) fn on_signals() -> Outcome<Self> {
        let (arrived, mut signals) = ending_signals()?;
        let (sender, receiver) = watch::channel(false);
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
        Ok(Self(receiver))
    }

    /// Starts when the sender sends or is dropped.
    pub(crate) fn manual() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// Completes when the shutdown starts.
    pub(crate) fn wait(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut receiver = self.0.clone();
        async move {
            // A dropped sender is a shutdown as well.
            let _ = receiver.wait_for(|go| *go).await;
        }
    }
}

/// Refuses the folder of a daemon that others could write, or a folder in it; one that does not
/// exist is created for its owner alone.
pub(crate) fn check_data_folder(data: &Path) -> Outcome {
    if !data.exists() {
        return Ok(());
    }
    secret_file::check_folder(data)?;
    let at = |error: std::io::Error| Failure::from(error).at(data.shown());
    for entry in std::fs::read_dir(data).map_err(at)? {
        let path = entry.map_err(at)?.path();
        if path.is_dir() {
            secret_file::check_folder(&path)?;
        }
    }
    Ok(())
}

/// Binds a port.
pub(crate) async fn bind(address: &str, what: &str) -> Outcome<(TcpListener, SocketAddr)> {
    let failure = |error: std::io::Error| {
        let kind = error.kind();
        let failure = Failure::operation(error).at(format!("{what} {address}"));
        match kind {
            std::io::ErrorKind::AddrInUse => {
                failure.hint("another program uses the port; choose another port, 0 takes a free one")
            }
            std::io::ErrorKind::InvalidInput => {
                Failure { kind: FailureKind::Usage, ..failure }.hint("use HOST:PORT")
            }
            _ => failure,
        }
    };
    let listener = TcpListener::bind(address).await.map_err(failure)?;
    // Raises the backlog of the listening socket, which the runtime sets lower.
    rustix::net::listen(&listener, BACKLOG).map_err(|error| failure(error.into()))?;
    let bound = listener.local_addr().map_err(Failure::from)?;
    Ok((listener, bound))
}

/// Port of `/metrics` and `/healthz`, bound before the daemon starts.
pub(crate) struct MetricsPort(Option<(TcpListener, SocketAddr)>);

impl MetricsPort {
    /// Binds it, if an address is given.
    pub(crate) async fn bind(address: Option<&str>) -> Outcome<Self> {
        match address {
            Some(address) => Ok(Self(Some(bind(address, "metrics").await?))),
            None => Ok(Self(None)),
        }
    }

    /// Serves until the shutdown; returns its address.
    pub(crate) fn serve(self, observed: Arc<dyn Observed>, shutdown: &Shutdown) -> Option<SocketAddr> {
        let (listener, bound) = self.0?;
        let until = shutdown.wait();
        tokio::spawn(async move {
            if let Err(error) = metrics::serve(listener, observed, until).await {
                tracing::error!(%error, "metrics port stopped");
            }
        });
        Some(bound)
    }
}

/// Returns the signals that this process ignores from its start, one bit each.
fn ignored_signals() -> u64 {
    // The name of the program in it need not be UTF-8.
    let status = std::fs::read("/proc/self/status").unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Returns milliseconds since 1970 by this machine's clock, which follows only confirmed steps.
pub(crate) fn now_ms() -> u64 {
    sealstone_initiator::machine::now_ms()
}

/// Returns random bytes of the system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    bytes
}
