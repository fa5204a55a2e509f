//! A running cluster, and the thread that owns its runtime.
//!
//! Does: starts the runtime of the cluster, waits for its start and its end.
//! Contract: the thread ends after the daemons, their last flush and the removal of a folder in
//! memory. Callers wait for the thread, so that nothing of the cluster outlives its handle.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use sealstone_client::tls::Fingerprint;
use sealstone_client::{Client, Environment as _, SystemEnvironment};
use sealstone_cluster::{AdminCredential, Cluster, ClusterConfig};
use sealstone_daemon::Shutdown;
use sealstone_failure::{Failure, Outcome};
use tokio::runtime;
use tokio::sync::{oneshot, watch};

use crate::memory_folder::MemoryFolder;

/// Maximum threads of the runtime of a cluster.
const WORKERS_MAX: usize = 8;

/// Addresses and identities of a running cluster.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// Address of the metadata server, on loopback.
    pub metadata_server: SocketAddr,
    /// Pin of the certificate of the metadata server.
    pub pin: Fingerprint,
    /// The devices.
    pub devices: Vec<DeviceEndpoint>,
    /// File with the address and the pin of the metadata server, for `sealstone login --cluster`.
    pub cluster_file: PathBuf,
    /// File with the key or password of the administrator, mode 0600.
    pub admin_secret: PathBuf,
}

impl Endpoints {
    /// Returns a client that is logged in as the administrator. It belongs to the runtime of the
    /// caller.
    ///
    /// # Errors
    /// The file with the key or password is missing, or the login failed.
    pub async fn admin_client(&self) -> Outcome<Client> {
        Ok(self.admin_credential()?.login(&self.metadata_server.to_string(), self.pin).await?)
    }

    /// Reads the key or password of the administrator.
    ///
    /// # Errors
    /// The file is missing, or others can read it.
    pub fn admin_credential(&self) -> Outcome<AdminCredential> {
        AdminCredential::read(&self.admin_secret)
    }
}

/// Address of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceEndpoint {
    /// Name of the device.
    pub name: String,
    /// URL of its logical unit.
    pub url: String,
    /// Address of its portal, on loopback.
    pub address: SocketAddr,
}

/// A running cluster. Dropping it stops the cluster and waits for its end, which blocks the thread.
pub struct EmbeddedCluster {
    endpoints: Endpoints,
    folder: PathBuf,
    running: RunningThread,
}

/// The thread of a cluster. Dropping it stops the cluster and waits for its end.
struct RunningThread {
    /// Dropping it starts the shutdown.
    stop: Option<watch::Sender<bool>>,
    ended: oneshot::Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for RunningThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of an embedded cluster panicked");
        }
    }
}

impl EmbeddedCluster {
    pub(crate) async fn start(config: ClusterConfig, memory: Option<MemoryFolder>) -> Outcome<Self> {
        let folder = config.data.clone();
        let (stop, shutdown) = Shutdown::manual();
        let (started, start) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let thread = thread::Builder::new().name("sealstone-embed".to_owned());
        let thread = thread
            .spawn(move || {
                let outcome = run(&config, &shutdown, started);
                drop(memory);
                // The caller may not wait for it.
                let _ = end.send(outcome);
            })
            .map_err(|error| Failure::from(error).at("thread of the cluster"))?;
        let running = RunningThread { stop: Some(stop), ended, thread: Some(thread) };
        match start.await {
            Ok(endpoints) => Ok(Self { endpoints, folder, running }),
            Err(_) => match running.end().await {
                Err(failure) => Err(failure),
                Ok(()) => Err(Failure::operation("the cluster stopped while it started")),
            },
        }
    }

    /// Returns a client that is logged in as the administrator. It belongs to the runtime of the
    /// caller.
    ///
    /// # Errors
    /// As [`Endpoints::admin_client`].
    pub async fn client(&self) -> Outcome<Client> {
        self.endpoints.admin_client().await
    }

    /// Returns the addresses of the cluster, with which other clients log in.
    #[must_use]
    pub const fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Returns the folder of the cluster; one in memory ends with the cluster.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Stops the cluster and waits until its data is durable and its ports are free.
    ///
    /// # Errors
    /// A daemon failed to stop in order.
    pub async fn stop(self) -> Outcome {
        self.running.end().await
    }
}

impl RunningThread {
    /// Stops the cluster and waits for its outcome without blocking the caller's thread.
    async fn end(mut self) -> Outcome {
        drop(self.stop.take());
        // The thread sends as its last action, so that the join in `drop` is short.
        (&mut self.ended)
            .await
            .unwrap_or_else(|_| Err(Failure::operation("the thread of the cluster panicked")))
    }
}

/// Runs a cluster until the shutdown, on a runtime of its own.
fn run(config: &ClusterConfig, shutdown: &Shutdown, started: oneshot::Sender<Endpoints>) -> Outcome {
    let workers = thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX);
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .thread_name("sealstone-embed")
        .enable_all()
        .build()
        .map_err(|error| Failure::from(error).at("runtime of the cluster"))?;
    runtime.block_on(async {
        let warn = |line: &str| tracing::warn!("{line}");
        let cluster = Cluster::start(config, shutdown, &warn).await?;
        // A caller that waits no longer has dropped the shutdown as well.
        let _ = started.send(endpoints_of(&cluster));
        cluster.join().await
    })
}

fn endpoints_of(cluster: &Cluster) -> Endpoints {
    let server = cluster.metadata_server();
    let device = |device: &sealstone_cluster::DeviceServer| DeviceEndpoint {
        name: device.name().to_owned(),
        url: device.url().to_owned(),
        address: device.address(),
    };
    Endpoints {
        metadata_server: server.address(),
        pin: server.pin().parse().expect("our own fingerprint parses"),
        devices: cluster.devices().iter().map(device).collect(),
        cluster_file: server.cluster_file().to_owned(),
        admin_secret: cluster.admin_secret().to_owned(),
    }
}

/// Returns a loopback address that no other program is likely to use. Devices need the same port at
/// each start, and the ports of 127.0.0.1 are given to all programs.
pub(crate) fn loopback_host() -> Ipv4Addr {
    let mut random = [0; 3];
    SystemEnvironment.fill_random(&mut random);
    let [a, b, c] = random;
    let host = Ipv4Addr::new(127, a.clamp(1, 254), b, c.clamp(1, 254));
    // Some containers have 127.0.0.1 only.
    if TcpListener::bind((host, 0)).is_ok() { host } else { Ipv4Addr::LOCALHOST }
}
