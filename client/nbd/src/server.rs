//! Accepts connections and stops them in order.
//!
//! Does: limits connections, and refuses peers of other users.
//! Does not: speak the protocol; `connection` does.

use core::time::Duration;
use std::sync::Arc;

use tokio::net::UnixStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::budget::CONNECTIONS_MAX;
use crate::connection::{self, SharedResources};
use crate::{BlockBackend, ExportName, NbdSocket};

/// Time for requests in flight to end when the server stops.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failure to accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves one export until `shutdown` completes. Then requests in flight end, within
/// [`DRAIN_TIMEOUT`]; the caller flushes.
pub async fn serve<B: BlockBackend>(
    socket: NbdSocket,
    backend: Arc<B>,
    name: ExportName,
    shutdown: impl Future<Output = ()>,
) {
    let (stop, stopping) = watch::channel(false);
    let shared = Arc::new(SharedResources::default());
    let connection_slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    let mut shutdown = core::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            accepted = async {
                let slot = Arc::clone(&connection_slots).acquire_owned().await.map_err(std::io::Error::other)?;
                Ok::<_, std::io::Error>((socket.listener.accept().await?.0, slot))
            } => accepted,
        };
        match accepted {
            Ok((stream, _)) if !is_own(&stream) => {
                tracing::warn!("NBD connection of another user refused");
            }
            Ok((stream, slot)) => {
                let connection = connection::run(
                    stream,
                    Arc::clone(&backend),
                    name.clone(),
                    Arc::clone(&shared),
                    stopping.clone(),
                );
                connections.spawn(async move {
                    match connection.await {
                        Ok(()) => tracing::debug!("an NBD connection ended"),
                        Err(error) => tracing::warn!(%error, "an NBD connection failed"),
                    }
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an NBD connection; retrying");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // No new connection from here on.
    drop(socket);
    let _ = stop.send(true);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
        tracing::warn!("requests in flight did not end in time");
    }
}

/// Whether the peer is the user of this process, or root.
fn is_own(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0)
}
