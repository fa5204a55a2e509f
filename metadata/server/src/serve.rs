//! The listener: accepts, counts, bounds and ends connections.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use sealstone_channel::{Accepted, Server as Tls};
use sealstone_login::ChannelBinding;
use sealstone_login::paper::Addresses;
use sealstone_mds::{Connection, Mds, PaperConnection, PaperListener};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};

use crate::channel::{Shared, run};
use crate::devices::Devices;
use crate::environment::Environment;
use crate::housekeeping::Housekeeper;
use crate::limits::Limits;
use crate::setup::Opened;
use crate::time::{StateOfClock, TimePort};

/// Pause after a failed accept (too many open files, say), so that it does not spin.
const ACCEPT_PAUSE: core::time::Duration = core::time::Duration::from_millis(100);

/// Between two looks for users whose last answer of the directory is old.
const DIRECTORY_EVERY: core::time::Duration = core::time::Duration::from_secs(1);

#[derive(Default)]
struct Tally {
    open: Mutex<HashMap<IpAddr, usize>>,
    accepted: AtomicU64,
    turned_away: AtomicU64,
    handshakes_failed: AtomicU64,
}

/// One connection's place in the tally.
struct Place {
    tally: Arc<Tally>,
    address: IpAddr,
}

impl Tally {
    fn enter(self: &Arc<Self>, address: IpAddr, limits: &Limits) -> Option<Place> {
        let mut open = self.open.lock();
        let all: usize = open.values().sum();
        let own = open.entry(address).or_default();
        if all >= limits.connections_max || *own >= limits.connections_per_address_max {
            if *own == 0 {
                open.remove(&address);
            }
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        *own += 1;
        self.accepted.fetch_add(1, Ordering::Relaxed);
        Some(Place { tally: self.clone(), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.tally.open.lock();
        if let Some(own) = open.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.address);
            }
        }
    }
}

/// A metadata server that is running.
pub struct Server {
    address: SocketAddr,
    mds: Arc<Mds>,
    tally: Arc<Tally>,
    stop: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    keeper: Housekeeper,
    shared: Shared,
    paper: OnceLock<Arc<PaperListener>>,
    environment: Environment,
    time: Mutex<Option<TimePort>>,
}

/// How the connections of a listener are protected.
#[derive(Clone)]
enum Protection {
    Tls(Tls),
    /// By the login itself, which is the paper's: hardly.
    Paper(Arc<PaperListener>),
}

impl Server {
    /// Serves a data folder on a listener, and looks after the devices.
    ///
    /// # Errors
    /// If the listener has no address.
    pub fn start(
        opened: &Opened,
        listener: TcpListener,
        devices: Arc<dyn Devices>,
        environment: Environment,
        limits: Limits,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (stop, stopped) = watch::channel(false);
        let mds = opened.mds.clone();
        let keeper = Housekeeper::new(mds.clone(), devices, environment.clone(), limits.clone());
        let shared =
            Shared::new(mds.clone(), environment.clone(), limits, stopped.clone(), Some(keeper.clone()));
        let tally = Arc::new(Tally::default());
        let tls = Protection::Tls(opened.tls.clone());
        let listen = tokio::spawn(accept(listener, tls, shared.clone(), tally.clone()));
        let mut tasks = vec![listen, tokio::spawn(keeper.clone().run(stopped.clone()))];
        tasks.push(tokio::spawn(keeper.clone().run_own(stopped.clone())));
        tasks.push(tokio::spawn(keeper.clone().run_revoker(stopped.clone())));
        tasks.push(tokio::spawn(keeper.clone().run_settler(stopped.clone())));
        tasks.push(tokio::spawn(keeper.clone().run_clearer(stopped.clone())));
        tasks.push(tokio::spawn(keeper.clone().run_mover(stopped.clone())));
        tasks.push(tokio::spawn(keeper.clone().run_checker(stopped.clone())));
        if mds.has_directory() {
            tasks.push(tokio::spawn(ask_again(mds.clone(), environment.clone(), stopped)));
        }
        let tasks = Mutex::new(tasks);
        let (paper, time) = (OnceLock::new(), Mutex::default());
        Ok(Self { address, mds, tally, stop, tasks, keeper, shared, paper, environment, time })
    }

    /// Serves the paper's profile too, on a listener of its own: plain TCP. Who can record a login can guess its
    /// passphrase.
    ///
    /// # Errors
    /// If the listener has no address, or this was called before.
    pub fn serve_paper(&self, listener: TcpListener, paper: Arc<PaperListener>) -> io::Result<SocketAddr> {
        let address = listener.local_addr()?;
        self.paper.set(paper.clone()).map_err(|_| io::Error::from(io::ErrorKind::AlreadyExists))?;
        let task = accept(listener, Protection::Paper(paper), self.shared.clone(), self.tally.clone());
        self.tasks.lock().push(tokio::spawn(task));
        Ok(address)
    }

    /// Tells the time on this port, until the shutdown.
    pub fn tell_time(&self, socket: UdpSocket, state: StateOfClock) {
        let port = TimePort::default();
        *self.time.lock() = Some(port.clone());
        let (mds, environment) = (self.mds.clone(), self.environment.clone());
        let task = tokio::spawn(port.serve(socket, mds, environment, state, self.stop.subscribe()));
        self.tasks.lock().push(task);
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Figures as Prometheus text.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut text = self.mds.counters().render();
        if let Some(paper) = self.paper.get() {
            text.push_str(&paper.render());
        }
        let open: usize = self.tally.open.lock().values().sum();
        let value = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        for (name, kind, help, value) in [
            ("connections", "gauge", "Connections open now.", open as u64),
            ("leases", "gauge", "Leases on files that are out.", self.mds.leases_out() as u64),
            ("connections_accepted_total", "counter", "Connections accepted.", value(&self.tally.accepted)),
            (
                "connections_turned_away_total",
                "counter",
                "Connections closed at once because a limit was reached.",
                value(&self.tally.turned_away),
            ),
            (
                "handshakes_failed_total",
                "counter",
                "TLS handshakes that failed or took too long.",
                value(&self.tally.handshakes_failed),
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

    /// Does the store still take transactions?
    #[must_use]
    pub fn healthy(&self) -> bool {
        self.mds.inspect(&sealstone_mds_protocol::FilePath::root()).is_ok()
    }

    /// The devices' keeper, to have a round of its work done at once.
    #[must_use]
    pub const fn housekeeper(&self) -> &Housekeeper {
        &self.keeper
    }

    /// Takes no more connections, lets the others finish what they are at, and returns when all is quiet. A second
    /// call returns at once.
    pub async fn shutdown(&self) {
        let _ = self.stop.send(true);
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            let _ = task.await;
        }
    }
}

/// Asks the directory again about those whose last answer is old. A task of its own: a directory may be slow.
async fn ask_again(mds: Arc<Mds>, environment: Environment, mut stop: watch::Receiver<bool>) {
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
                tracing::error!(%error, "the directory's word could not be stored");
                false
            }
            Err(error) => {
                tracing::error!(%error, "asking the directory failed");
                false
            }
        };
    }
}

async fn accept(listener: TcpListener, protection: Protection, shared: Shared, tally: Arc<Tally>) {
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
        if let Some(place) = tally.enter(peer.ip(), &shared.limits) {
            connections.spawn(serve(stream, peer, protection.clone(), shared.clone(), place));
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(shared.limits.shutdown_grace, all).await.is_err() {
        connections.shutdown().await;
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, protection: Protection, shared: Shared, place: Place) {
    let login_by = Instant::now() + shared.limits.login_timeout;
    let _ = stream.set_nodelay(true);
    let tls = match protection {
        Protection::Tls(tls) => tls,
        Protection::Paper(paper) => {
            let Ok(own) = stream.local_addr() else { return };
            let addresses = Addresses { client: peer.ip(), server: own.ip() };
            let connection = PaperConnection::new(paper, addresses);
            if let Err(error) = run(stream, connection, shared, login_by).await {
                tracing::debug!(%peer, %error, "connection ended");
            }
            return;
        }
    };
    let Accepted { stream, export, .. } = match timeout_at(login_by, tls.accept(stream)).await {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => {
            place.tally.handshakes_failed.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%peer, %error, "TLS handshake failed");
            return;
        }
        Err(_) => {
            place.tally.handshakes_failed.fetch_add(1, Ordering::Relaxed);
            return;
        }
    };
    let connection = Connection::new(ChannelBinding(export), peer.ip().into());
    if let Err(error) = run(stream, connection, shared, login_by).await {
        tracing::debug!(%peer, %error, "connection ended");
    }
}
