//! Ports and the data folder of a daemon.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, FailureKind, Outcome, secret_file};
use tokio::net::TcpListener;

use crate::metrics::{self, Observed};
use crate::shutdown::Shutdown;

/// Listen backlog; connections beyond it are retried by the peer after a second.
const BACKLOG: i32 = 4096;

/// Refuses the folder of a daemon that others could write, or a folder in it. Accepts one that does
/// not exist yet.
pub fn check_data_folder(data: &Path) -> Outcome {
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
pub async fn bind(address: &str, what: &str) -> Outcome<(TcpListener, SocketAddr)> {
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
pub struct MetricsPort(Option<(TcpListener, SocketAddr)>);

impl MetricsPort {
    /// Binds it, if an address is given.
    pub async fn bind(address: Option<&str>) -> Outcome<Self> {
        match address {
            Some(address) => Ok(Self(Some(bind(address, "metrics").await?))),
            None => Ok(Self(None)),
        }
    }

    /// Serves until the shutdown; returns its address.
    pub fn serve(self, observed: Arc<dyn Observed>, shutdown: &Shutdown) -> Option<SocketAddr> {
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
