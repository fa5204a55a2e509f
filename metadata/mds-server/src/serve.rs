//! The listener of the metadata server.
//!
//! Does: accepts connections within the limits, runs one task (`channel`) for each, starts the
//! background tasks, collects metrics, and ends all of it in order.
//! Does not: decide requests; `sealstone-mds` does.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use sealstone_channel::{AcceptedStream, Admission, AdmissionTicket, LoginStage, TlsServer as Tls};
use sealstone_login::ChannelBinding;
use sealstone_login::paper::Addresses;
use sealstone_mds::{Connection, Mds, PaperConnection, PaperListener};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};

use crate::channel::{ListenerState, run};
use crate::devices::Devices;
use crate::environment::Environment;
use crate::housekeeping::Housekeeper;
use crate::limits::Limits;
use crate::setup::OpenedServer;
use crate::time::{ClockStateSource, TimePort};

/// Pause after a failed accept (too many open files, for example), to avoid a busy loop.
const ACCEPT_PAUSE: core::time::Duration = core::time::Duration::from_millis(100);

/// Interval of looking for users whose directory lookup is outdated.
const DIRECTORY_EVERY: core::time::Duration = core::time::Duration::from_secs(1);

/// Connection counters of all listeners.
struct ConnectionCounters {
    admission: Arc<Admission>,
    accepted: AtomicU64,
    handshakes_done: AtomicU64,
    handshakes_failed: AtomicU64,
}

impl ConnectionCounters {
    fn new(limits: &Limits) -> Self {
        let admission = Admission::new(limits.admission());
        Self {
            admission,
            accepted: AtomicU64::new(0),
            handshakes_done: AtomicU64::new(0),
            handshakes_failed: AtomicU64::new(0),
        }
    }
}

/// A running metadata server.
pub struct Server {
    address: SocketAddr,
    mds: Arc<Mds>,
    counters: Arc<ConnectionCounters>,
    stop: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    housekeeper: Housekeeper,
    shared: ListenerState,
    paper: OnceLock<Arc<PaperListener>>,
    environment: Environment,
    time: Mutex<Option<TimePort>>,
}

/// How the connections of a listener are protected.
#[derive(Clone)]
enum TransportProtection {
    Tls(Tls),
    /// The login of the paper's profile, which gives little protection.
    Paper(Arc<PaperListener>),
}

impl Server {
    /// Serves a data folder on a listener, and starts the background tasks.
    ///
    /// # Errors
    /// If the listener has no address.
    pub fn start(
        opened: &OpenedServer,
        listener: TcpListener,
        devices: Arc<dyn Devices>,
        environment: Environment,
        limits: Limits,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let limits = limits.with_bounded_timeouts();
        let (stop, stopped) = watch::channel(false);
        let mds = opened.mds.clone();
        let housekeeper = Housekeeper::new(mds.clone(), devices, environment.clone(), limits.clone());
        let shared = ListenerState::new(
            mds.clone(),
            environment.clone(),
            limits,
            stopped.clone(),
            Some(housekeeper.clone()),
        );
        let counters = Arc::new(ConnectionCounters::new(&shared.limits));
        let tls = TransportProtection::Tls(opened.tls.clone());
        let listen = tokio::spawn(accept(listener, tls, shared.clone(), counters.clone()));
        let mut tasks = vec![listen, tokio::spawn(housekeeper.clone().run(stopped.clone()))];
        tasks.push(tokio::spawn(housekeeper.clone().run_own(stopped.clone())));
        tasks.push(tokio::spawn(housekeeper.clone().run_revoker(stopped.clone())));
        tasks.push(tokio::spawn(housekeeper.clone().run_settler(stopped.clone())));
        tasks.push(tokio::spawn(housekeeper.clone().run_clearer(stopped.clone())));
        tasks.push(tokio::spawn(housekeeper.clone().run_measurer(stopped.clone())));
        tasks.push(tokio::spawn(housekeeper.clone().run_mover(stopped.clone())));
        tasks.push(tokio::spawn(housekeeper.clone().run_checker(stopped.clone())));
        if mds.has_directory() {
            tasks.push(tokio::spawn(refresh_directory_users(mds.clone(), environment.clone(), stopped)));
        }
        let tasks = Mutex::new(tasks);
        let (paper, time) = (OnceLock::new(), Mutex::default());
        Ok(Self { address, mds, counters, stop, tasks, housekeeper, shared, paper, environment, time })
    }

    /// Serves the paper's profile on a separate listener, over plain TCP. An attacker who records a
    /// login can guess its passphrase offline.
    ///
    /// # Errors
    /// If the listener has no address, or this was called before.
    pub fn serve_paper(&self, listener: TcpListener, paper: Arc<PaperListener>) -> io::Result<SocketAddr> {
        let address = listener.local_addr()?;
        self.paper.set(paper.clone()).map_err(|_| io::Error::from(io::ErrorKind::AlreadyExists))?;
        let task =
            accept(listener, TransportProtection::Paper(paper), self.shared.clone(), self.counters.clone());
        self.tasks.lock().push(tokio::spawn(task));
        Ok(address)
    }

    /// Serves time on this port until shutdown.
    pub fn serve_time(&self, socket: UdpSocket, state: ClockStateSource) {
        let port = TimePort::default();
        *self.time.lock() = Some(port.clone());
        let (mds, environment) = (self.mds.clone(), self.environment.clone());
        let task = tokio::spawn(port.serve(socket, mds, environment, state, self.stop.subscribe()));
        self.tasks.lock().push(task);
    }

    /// Returns the address of the listener.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the metrics as Prometheus text.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut text = self.mds.counters().render();
        if let Some(paper) = self.paper.get() {
            text.push_str(&paper.render());
        }
        let admission = &self.counters.admission;
        let value = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        for (name, kind, help, value) in [
            ("connections", "gauge", "Connections open now.", admission.open() as u64),
            (
                "connections_pending",
                "gauge",
                "Connections open now before their login.",
                admission.pending() as u64,
            ),
            ("leases", "gauge", "Leases granted now.", self.mds.lease_count() as u64),
            (
                "store_keys_visited_total",
                "counter",
                "Keys visited by scans of the store, removed ones included.",
                self.mds.keys_visited(),
            ),
            (
                "lease_penalties_total",
                "counter",
                "Times a user was denied leases because its mounts did not answer recalls in time.",
                self.mds.lease_penalties(),
            ),
            (
                "issued_credentials",
                "gauge",
                "Valid credentials in the table, one for each session and object.",
                self.mds.issued_credentials().0 as u64,
            ),
            (
                "issued_credentials_dropped_total",
                "counter",
                "Entries dropped from the full table: a revocation of their users replaces working keys.",
                self.mds.issued_credentials().1,
            ),
            (
                "length_checks",
                "gauge",
                "Files in quotas whose objects are measured when credentials to write expire.",
                self.mds.length_checks() as u64,
            ),
            (
                "connections_accepted_total",
                "counter",
                "Connections accepted.",
                value(&self.counters.accepted),
            ),
            (
                "connections_turned_away_total",
                "counter",
                "Connections closed for others because a limit was reached.",
                admission.evicted(),
            ),
            (
                "handshakes_total",
                "counter",
                "TLS handshakes completed.",
                value(&self.counters.handshakes_done),
            ),
            (
                "handshakes_failed_total",
                "counter",
                "TLS handshakes that failed or took too long.",
                value(&self.counters.handshakes_failed),
            ),
        ] {
            text.push_str(&format!(
                "# HELP sealstone_mds_{name} {help}\n# TYPE sealstone_mds_{name} {kind}\nsealstone_mds_{name} {value}\n"
            ));
        }
        if let Some(port) = &*self.time.lock() {
            text.push_str(&port.metrics());
        }
        text
    }

    /// Whether the store still accepts transactions.
    #[must_use]
    pub fn healthy(&self) -> bool {
        self.mds.inspect(&sealstone_mds_protocol::FilePath::root()).is_ok()
    }

    /// Returns the housekeeper, to start a round of its work at once.
    #[must_use]
    pub const fn housekeeper(&self) -> &Housekeeper {
        &self.housekeeper
    }

    /// Stops accepting connections, lets open ones finish their request, and returns when all tasks
    /// have ended. A second call returns at once.
    pub async fn shutdown(&self) {
        let _ = self.stop.send(true);
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            let _ = task.await;
        }
    }
}

/// Repeats directory lookups of users whose last one is outdated. A separate task, because a
/// directory may be slow.
async fn refresh_directory_users(mds: Arc<Mds>, environment: Environment, mut stop: watch::Receiver<bool>) {
    let mut more = false;
    loop {
        if !more {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(DIRECTORY_EVERY) => {}
            }
        }
        let (mds, now_ms, stopped) = (mds.clone(), environment.now_ms(), stop.clone());
        let round = move || mds.refresh_directory(now_ms, &|| !*stopped.borrow());
        more = match tokio::task::spawn_blocking(round).await {
            Ok(Ok(more)) => more,
            Ok(Err(error)) => {
                tracing::error!(%error, "directory lookup could not be stored");
                false
            }
            Err(error) => {
                tracing::error!(%error, "directory lookup task failed");
                false
            }
        };
    }
}

async fn accept(
    listener: TcpListener,
    protection: TransportProtection,
    shared: ListenerState,
    counters: Arc<ConnectionCounters>,
) {
    let mut connections = JoinSet::new();
    let mut stop = shared.stop.clone();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        counters.accepted.fetch_add(1, Ordering::Relaxed);
        let ticket = counters.admission.enter(peer.ip().into());
        connections.spawn(serve(stream, peer, protection.clone(), shared.clone(), counters.clone(), ticket));
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(shared.limits.shutdown_grace, all).await.is_err() {
        connections.shutdown().await;
    }
}

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    protection: TransportProtection,
    shared: ListenerState,
    counters: Arc<ConnectionCounters>,
    ticket: AdmissionTicket,
) {
    let begun = Instant::now();
    let login_by = begun + shared.limits.login_timeout;
    let _ = stream.set_nodelay(true);
    let tls = match protection {
        TransportProtection::Tls(tls) => tls,
        TransportProtection::Paper(paper) => {
            let Ok(own) = stream.local_addr() else { return };
            let addresses = Addresses { client: peer.ip(), server: own.ip() };
            let connection = PaperConnection::new(paper, addresses);
            if let Err(error) = run(stream, connection, shared, login_by, Some(ticket)).await {
                tracing::debug!(%peer, %error, "connection ended");
            }
            return;
        }
    };
    let handshake_by = login_by.min(begun + shared.limits.handshake_timeout);
    let mut evicted = ticket.evicted();
    let accepted = tokio::select! {
        biased;
        _ = evicted.wait_for(|evicted| *evicted) => return,
        accepted = timeout_at(handshake_by, tls.accept(stream)) => accepted,
    };
    let AcceptedStream { stream, export, .. } = match accepted {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => {
            counters.handshakes_failed.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%peer, %error, "TLS handshake failed");
            return;
        }
        Err(_) => {
            counters.handshakes_failed.fetch_add(1, Ordering::Relaxed);
            return;
        }
    };
    ticket.advance(LoginStage::Secured);
    counters.handshakes_done.fetch_add(1, Ordering::Relaxed);
    let connection = Connection::new(ChannelBinding(export), peer.ip().into());
    if let Err(error) = run(stream, connection, shared, login_by, Some(ticket)).await {
        tracing::debug!(%peer, %error, "connection ended");
    }
}
