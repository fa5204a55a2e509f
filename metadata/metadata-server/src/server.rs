//! A metadata server that serves clients: from its configuration to the end of its last request.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sealstone_chap_file::proofs;
use sealstone_daemon::machine_clock::KeptClock;
use sealstone_daemon::metrics::Observed;
use sealstone_daemon::time;
use sealstone_daemon::{AUDIT_FILE, AuditLog, Shutdown, ShutdownTrigger, bind, check_data_folder};
use sealstone_failure::{Failure, Outcome, secret_file};
use sealstone_mds::PaperListener;
use sealstone_mds_protocol::{FILE_PARTITIONS_MAX, Method, UserName};
use sealstone_mds_server::{
    AdminSecret, Environment, InitiatorDevices, KeystoreProtection, Location, Server,
};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use crate::audit::MdsAudit;
use crate::clock::{bind_time, check_machine_clock, follow, time_source};
use crate::cluster_file::{CLUSTER_FILE, ClusterFile};
use crate::config::{MetadataServerConfig, is_host_and_port};
use crate::failures::{in_use, setup_failure};
use crate::metrics::ObservedMds;

/// Account that [`create_metadata_server`] creates.
pub const ADMIN: &str = "admin";

/// Creates a server; returns the file of the administrator's password or key. Without `secret`, the
/// administrator gets a random password.
///
/// # Errors
/// The folder, the keystore or the store cannot be created.
pub fn create_metadata_server(
    data: &Path,
    protection: &KeystoreProtection,
    location: Option<&Location>,
    secret: Option<AdminSecret>,
) -> Outcome<PathBuf> {
    check_data_folder(data)?;
    let admin = UserName::new(ADMIN).expect("a fixed name is a name");
    let environment = Environment::system();
    let secret = secret.unwrap_or_else(|| AdminSecret::random_password(&environment));
    let report = sealstone_mds_server::init_under(data, (&admin, secret), &environment, protection, location)
        .map_err(|error| in_use(setup_failure(error), data))?;
    Ok(report.admin_secret)
}

/// Binds the listener of the paper's login, and logs a warning.
async fn paper_listener(address: &str, accepted: bool) -> Outcome<tokio::net::TcpListener> {
    let (listener, address) = bind(address, "insecure_paper_login").await?;
    if !address.ip().is_loopback() && !accepted {
        return Err(Failure::usage("--insecure-paper-login is allowed on loopback only")
            .at(address)
            .hint("it is insecure; --i-accept-insecure allows it"));
    }
    tracing::warn!("--insecure-paper-login: logins recorded at {address} reveal their passphrases");
    Ok(listener)
}

/// A running metadata server. Dropping it stops it without waiting for its end.
pub struct MetadataServer {
    address: SocketAddr,
    /// Address of the paper's login, if it is served.
    paper: Option<SocketAddr>,
    cluster: PathBuf,
    pin: String,
    /// Address of the time service.
    time: Option<SocketAddr>,
    observed: Arc<ObservedMds>,
    running: JoinHandle<()>,
    trigger: ShutdownTrigger,
}

impl MetadataServer {
    /// Opens the server, listens, and writes the cluster file. It serves until `shutdown`, or until
    /// [`Self::shutdown`].
    ///
    /// # Errors
    /// The configuration is wrong, or the folder, the store or a port cannot be used.
    pub async fn start(config: MetadataServerConfig, shutdown: &Shutdown) -> Outcome<Self> {
        let data = config.data.clone();
        let data = data.as_path();
        let (trigger, shutdown) = shutdown.child();
        let proofs = proofs(config.chap_file.as_ref())?;
        let (listener, address) = bind(&config.listen, "listen").await?;
        let advertised = advertised(config.advertise.as_deref(), address)?;
        let paper = match &config.insecure_paper_login {
            Some(address) => Some(paper_listener(address, config.accept_insecure).await?),
            None => None,
        };
        let time_port = match config.time_listen.as_deref() {
            Some(address) => Some(bind_time(address).await?),
            None => None,
        };
        let source = time_source(&config).await?;
        let mut policy = config.policy;
        policy.paper_login = paper.is_some();
        if policy.file_partitions > FILE_PARTITIONS_MAX {
            return Err(Failure::usage(format!("file_partitions: at most {FILE_PARTITIONS_MAX}")));
        }
        if policy.method_floor < Method::CmdRsp {
            tracing::warn!(
                "--method-floor: clients may get credentials whose commands can be altered in transit"
            );
        }
        // Checked before the log is opened, so that a wrong folder stays untouched.
        check_data_folder(data)?;
        sealstone_mds_server::is_set_up(data).map_err(setup_failure)?;
        let log = AuditLog::open(&data.join(AUDIT_FILE), config.audit_mib_max.saturating_mul(1 << 20))?;
        let (audit_state, log) = (log.state(), Arc::new(log));
        let kept = KeptClock::open(data)?;
        let following = match source {
            Some(source) => Some(follow(source, data, Arc::clone(&log)).await?),
            None => {
                kept.settle().await;
                check_machine_clock(data)?;
                None
            }
        };
        let (folder, audit) = (data.to_owned(), Arc::new(MdsAudit(log)));
        let (unlock, location) = (config.keystore, config.location);
        let opened = tokio::task::spawn_blocking(move || {
            sealstone_mds_server::open_under(&folder, policy, audit, &unlock, location.as_ref())
        })
        .await
        .map_err(Failure::operation)?
        .map_err(setup_failure)?;
        if let Some(directory) = config.directory {
            opened.mds().set_directory(Arc::new(directory));
        }
        let mut limits = config.limits;
        limits.connections_per_address_max = limits.connections_per_address_max.min(limits.connections_max);
        let pin = format!("sha256:{}", opened.fingerprint());
        let mut environment = Environment::system();
        let mut devices = InitiatorDevices::default();
        if let Some((_, clock)) = &following {
            let followed = Arc::clone(clock);
            environment.now_ms = Arc::new(move || followed.now_ms());
            devices = InitiatorDevices::over_tcp_by(clock.clone());
        }
        let devices = Arc::new(devices.proving(proofs).concealing(config.conceal_method));
        let server = Server::start(&opened, listener, devices, environment.clone(), limits)?;
        let paper = match paper {
            Some(listener) => {
                let shared = PaperListener::new(false, &mut *(environment.entropy)());
                Some(server.serve_paper(listener, Arc::new(shared))?)
            }
            None => None,
        };
        let time = time_port.as_ref().map(UdpSocket::local_addr).transpose()?;
        if let Some(port) = time_port {
            let clock = following.as_ref().map(|(_, clock)| Arc::clone(clock));
            server.serve_time(port, Arc::new(move || time::state(clock.as_deref())));
        }
        let kept = kept.start(following.as_ref().map(|(_, clock)| Arc::clone(clock)), &shutdown);
        let following = following.map(|(following, _)| following);
        let followed = following.as_ref().map(|following| following.start(&shutdown));
        let cluster = data.join(CLUSTER_FILE);
        let mut text = ClusterFile { mds: advertised, pin: pin.clone() }.text();
        if let Some(authority) = opened.authority() {
            text.push_str(
                "# Alternative: the pin of the cluster's authority, which stays valid when the certificate is renewed:\n",
            );
            text.push_str(&format!("# pin = \"{authority}\"\n"));
        }
        secret_file::write_changed(&cluster, text.as_bytes())?;
        let server = Arc::new(server);
        let observed = Arc::new(ObservedMds { server: Arc::clone(&server), audit: audit_state, following });
        let running = tokio::spawn(async move {
            shutdown.wait().await;
            server.shutdown().await;
            let _ = kept.await;
            if let Some(followed) = followed {
                // It stores the last served time, so that a restart serves no earlier one.
                let _ = followed.await;
            }
        });
        Ok(Self { address, paper, cluster, pin, time, observed, running, trigger })
    }

    /// Returns the address of its client port.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address of the paper's login, if it is served.
    #[must_use]
    pub const fn paper_address(&self) -> Option<SocketAddr> {
        self.paper
    }

    /// Returns the address of its time service, if it has one.
    #[must_use]
    pub const fn time_address(&self) -> Option<SocketAddr> {
        self.time
    }

    /// Returns the path of its cluster file.
    #[must_use]
    pub fn cluster_file(&self) -> &Path {
        &self.cluster
    }

    /// Returns the pin of its certificate: `sha256:` and hexadecimal digits.
    #[must_use]
    pub fn pin(&self) -> &str {
        &self.pin
    }

    /// Returns the source of its metrics, which holds its store open.
    #[must_use]
    pub fn observed(&self) -> Arc<dyn Observed> {
        Arc::clone(&self.observed) as Arc<dyn Observed>
    }

    /// Stops the server and waits for its end, as [`Self::join`] does.
    ///
    /// # Errors
    /// A part of the server panicked.
    pub async fn shutdown(self) -> Outcome {
        self.trigger.trigger();
        self.join().await
    }

    /// Waits for the shutdown and the end of the server.
    ///
    /// # Errors
    /// A part of the server panicked.
    pub async fn join(self) -> Outcome {
        self.running.await.map_err(Failure::operation)
    }
}

/// Returns the address for clients: this server's, or those of several servers on one database.
fn advertised(advertise: Option<&str>, listens: SocketAddr) -> Outcome<String> {
    let Some(advertise) = advertise else {
        if listens.ip().is_unspecified() {
            tracing::warn!(
                "{CLUSTER_FILE} has {listens}, which clients cannot reach; set --advertise HOST:PORT"
            );
        }
        return Ok(listens.to_string());
    };
    if !advertise.split(',').all(is_host_and_port) {
        let failure = Failure::usage("not HOST:PORT").at(format!("advertise {advertise}"));
        return Err(failure.hint("use HOST:PORT; several servers on one database are separated by commas"));
    }
    Ok(advertise.to_owned())
}
