//! `sealstone mds init`, `mds serve` and `mds add-osd`.
//!
//! Does: builds the server from its configuration: keystore, store, directory, time source,
//! listeners, metrics and audit log; starts and ends them in order.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealstone_channel::{Pin, device_name};
use sealstone_chap_file::proofs;
use sealstone_client::{Client, Metadata};
use sealstone_daemon::machine_clock::{self, KeptClock, MACHINE_CLOCK_FILE};
use sealstone_daemon::metrics::{MetricKind, Observed, Page};
use sealstone_daemon::time::{self, FollowedClock, Following, ResponseAuth};
use sealstone_daemon::{AUDIT_FILE, AuditLog, AuditState, MetricsPort, Shutdown, bind, check_data_folder};
use sealstone_device_server::identity;
use sealstone_failure::text::{ShownPath as _, with_paths};
use sealstone_failure::{Failure, FailureKind, Outcome, chain, secret_file};
use sealstone_mds::{Config, PaperListener};
use sealstone_mds_protocol::{
    Device, DeviceState, FILE_PARTITIONS_MAX, Method, Name, NewDevice, ProblemKind, Request, Response,
    SYSTEM_ID_BYTES, Secret, Text, UserName,
};
use sealstone_mds_server::{
    ADMIN_SECRET_FILE, Environment, InitiatorDevices, Limits, Location, LocationError, Server, SetupError,
};
#[cfg(feature = "ldap")]
use sealstone_meta_store::LdapStoreError;
#[cfg(feature = "postgres")]
use sealstone_meta_store::PostgresError;
use sealstone_osd_device::provision::InitialKeyFile;
use sealstone_sntp::FollowPolicy;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use super::mds_audit::MdsAudit;
use super::{MDS_AUDIT_MIB_DEFAULT, keystore, shutdown_on_signals};
use crate::cli::keys::{Keys, KeystoreArgs};
use crate::cli::{GlobalArgs, Mds};
use crate::command::session::{self, Cluster};
use crate::config::{self, MdsOptions};
use crate::output::Output;

/// File that `serve` writes for clients, in the server's folder.
pub(crate) const CLUSTER_FILE: &str = "cluster.toml";
/// Account that `init` creates.
pub(crate) const ADMIN: &str = "admin";
const LISTEN_DEFAULT: &str = "127.0.0.1:3270";

/// Creates a server; returns the file of the administrator's password.
pub(crate) fn init(data: &Path, keystore: &KeystoreArgs, location: Option<&Location>) -> Outcome<PathBuf> {
    check_data_folder(data)?;
    let admin = UserName::new(ADMIN).expect("a fixed name is a name");
    let protection = keystore::protection(keystore)?;
    let report =
        sealstone_mds_server::init_under(data, &admin, &Environment::system(), &protection, location)
            .map_err(|error| keystore::in_use(setup_failure(error), data))?;
    Ok(report.admin_secret)
}

pub(crate) fn setup_failure(error: SetupError) -> Failure {
    let failure = Failure::operation(chain(&error));
    if let Some(error) = keystore::of_setup(&error) {
        return keystore::keystore_failure(error, failure);
    }
    match error {
        // The message has the file and the next step.
        error if error.is_exposed() => Failure { kind: FailureKind::Denied, ..failure },
        SetupError::NoAuthority(_) => {
            failure.hint("this older server has none; pin the device's own certificate")
        }
        SetupError::StoreNotEmpty(_) => {
            failure.hint("to add a server to this database: sealstone mds join --data DIR --from FOLDER")
        }
        #[cfg(feature = "postgres")]
        SetupError::Database(PostgresError::Url(_) | PostgresError::PasswordInUrl) => {
            Failure { kind: FailureKind::Usage, ..failure }
                .hint("use --meta-password-file FILE, or PGPASSWORD")
        }
        #[cfg(feature = "postgres")]
        SetupError::Database(PostgresError::NoCa) => Failure { kind: FailureKind::Usage, ..failure }
            .hint("use --meta-ca-file FILE; --insecure-meta allows plain text"),
        #[cfg(feature = "ldap")]
        SetupError::Ldap(error) => ldap_failure(&error, failure),
        SetupError::Location(LocationError::Url(_)) => Failure { kind: FailureKind::Usage, ..failure },
        SetupError::Location(LocationError::NotShared(_)) => failure
            .hint("move it into a database first: sealstone mds export, sealstone mds import --meta URL"),
        SetupError::Unfinished(_) => {
            Failure { kind: FailureKind::NotFound, ..failure }.hint("sealstone mds init --data DIR")
        }
        _ => failure,
    }
}

/// Adds exit code and next step to the failure of an LDAP server.
#[cfg(feature = "ldap")]
fn ldap_failure(error: &LdapStoreError, failure: Failure) -> Failure {
    match error {
        LdapStoreError::Url(_) => Failure { kind: FailureKind::Usage, ..failure }
            .hint("NAME and BASE are distinguished names; %XX encodes a character, such as %2F for /"),
        LdapStoreError::PasswordInUrl | LdapStoreError::NoPassword => {
            Failure { kind: FailureKind::Usage, ..failure }.hint("use --meta-password-file FILE")
        }
        LdapStoreError::NoCa => Failure { kind: FailureKind::Usage, ..failure }
            .hint("use --meta-ca-file FILE; --insecure-meta allows plain text (ldap://)"),
        LdapStoreError::Password { .. } => Failure { kind: FailureKind::Denied, ..failure }
            .hint("check the name before the @ of the URL and --meta-password-file"),
        LdapStoreError::Rights { .. } => Failure { kind: FailureKind::Denied, ..failure }
            .hint("with slapd: access to dn.subtree=\"BASE\" by dn.exact=\"NAME\" write"),
        LdapStoreError::Limits { .. } => {
            failure.hint("with slapd: limits dn.exact=\"NAME\" size=unlimited time=unlimited")
        }
        LdapStoreError::NoBase { .. } | LdapStoreError::Others { .. } => {
            failure.hint("see docs/how-to/metadata-in-ldap.md")
        }
        _ => failure,
    }
}

/// Binds the listener of the paper's login, and logs a warning.
async fn paper_listener(address: &str, accepted: Option<bool>) -> Outcome<tokio::net::TcpListener> {
    let (listener, address) = bind(address, "insecure_paper_login").await?;
    if !address.ip().is_loopback() && accepted != Some(true) {
        return Err(Failure::usage("--insecure-paper-login is allowed on loopback only")
            .at(address)
            .hint("it is insecure; --i-accept-insecure allows it"));
    }
    tracing::warn!("--insecure-paper-login: logins recorded at {address} reveal their passphrases");
    Ok(listener)
}

/// A running metadata server.
pub(crate) struct MdsDaemon {
    pub(crate) address: SocketAddr,
    /// Address of the paper's login, if it is served.
    pub(crate) paper: Option<SocketAddr>,
    pub(crate) cluster: PathBuf,
    pub(crate) pin: String,
    /// Address of the time service.
    pub(crate) time: Option<SocketAddr>,
    kept: JoinHandle<()>,
    following: Option<(Arc<Following>, JoinHandle<()>)>,
    server: Arc<Server>,
    audit: Arc<AuditState>,
    shutdown: Shutdown,
}

struct ObservedMds {
    server: Arc<Server>,
    audit: Arc<AuditState>,
    following: Option<Arc<Following>>,
}

impl Observed for ObservedMds {
    fn observe(&self, page: &mut Page) {
        page.raw(&self.server.metrics());
        for (name, help, value) in [
            ("sealstone_mds_audit_records_total", "Audit records written.", self.audit.records()),
            (
                "sealstone_mds_audit_suppressed_total",
                "Audit records that are in the count of another line.",
                self.audit.suppressed(),
            ),
            ("sealstone_mds_audit_lost_total", "Audit records that the disk refused.", self.audit.lost()),
        ] {
            page.family(MetricKind::Counter, name, help, [(&[][..], value)]);
        }
        if let Some(following) = &self.following {
            following.observe("mds", page);
        }
    }

    fn health(&self) -> Result<(), String> {
        if self.audit.is_failing() {
            return Err("cannot write the audit log".into());
        }
        if self.server.healthy() { Ok(()) } else { Err("the metadata store refuses transactions".into()) }
    }
}

impl MdsDaemon {
    /// Opens the server in `data`, listens, and writes the cluster file.
    pub(crate) async fn start(data: &Path, options: &MdsOptions, shutdown: Shutdown) -> Outcome<Self> {
        let proofs = proofs(options.chap_file.as_ref())?;
        let (listener, address) = bind(options.listen.as_deref().unwrap_or(LISTEN_DEFAULT), "listen").await?;
        let advertised = advertised(options.advertise.as_deref(), address)?;
        let paper = match &options.insecure_paper_login {
            Some(address) => Some(paper_listener(address, options.i_accept_insecure).await?),
            None => None,
        };
        let time_port = match options.time_listen.as_deref() {
            Some(address) => Some(bind_time(address).await?),
            None => None,
        };
        let source = time_source(options).await?;
        let mut policy = Config { paper_login: paper.is_some(), ..Config::default() };
        policy.method_floor = options.method_floor.map_or(policy.method_floor, Into::into);
        let ms = |seconds: Option<NonZeroU64>, default| {
            seconds.map_or(default, |seconds: NonZeroU64| seconds.get().saturating_mul(1000))
        };
        policy.grant_lifetime_ms = ms(options.grant_s, policy.grant_lifetime_ms);
        policy.delegated_lifetime_ms = ms(options.delegated_s_max, policy.delegated_lifetime_ms);
        policy.issued_max = options.issued_max.unwrap_or(policy.issued_max);
        policy.working_key_age_ms = ms(options.working_key_age_s, policy.working_key_age_ms);
        policy.partition_key_age_ms = ms(options.partition_key_age_s, policy.partition_key_age_ms);
        if let Some(max) = options.credentials_per_key_max {
            policy.credentials_per_key_max = max.get();
        }
        if let Some(partitions) = options.file_partitions {
            policy.file_partitions = partitions.get();
            if policy.file_partitions > FILE_PARTITIONS_MAX {
                return Err(Failure::usage(format!("file_partitions: at most {FILE_PARTITIONS_MAX}")));
            }
        }
        let unlock = keystore::unlock(&KeystoreArgs {
            keystore_key: options.keystore_key.clone(),
            passphrase_file: options.passphrase_file.clone(),
            keystore_credential: options.keystore_credential.clone(),
        })?;
        if policy.method_floor < Method::CmdRsp {
            tracing::warn!(
                "--method-floor: clients may get credentials whose commands can be altered in transit"
            );
        }
        policy.seal_capabilities = options.seal_capabilities.unwrap_or(policy.seal_capabilities);
        let directory = super::directory::configured(options, &mut policy)?;
        let location = super::store::location_of(options)?;
        // Checked before the log is opened, so that a wrong folder stays untouched.
        check_data_folder(data)?;
        sealstone_mds_server::is_set_up(data).map_err(setup_failure)?;
        let audit_mib = options.audit_mib_max.unwrap_or(MDS_AUDIT_MIB_DEFAULT);
        let log = Arc::new(AuditLog::open(&data.join(AUDIT_FILE), audit_mib.saturating_mul(1 << 20))?);
        let audit_state = log.state();
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
        let opened = tokio::task::spawn_blocking(move || {
            sealstone_mds_server::open_under(&folder, policy, audit, &unlock, location.as_ref())
        })
        .await
        .map_err(Failure::operation)?
        .map_err(setup_failure)?;
        if let Some(directory) = directory {
            opened.mds().set_directory(Arc::new(directory));
        }
        let mut limits = Limits::default();
        let seconds = |given: Option<u64>, default| given.map_or(default, Duration::from_secs);
        limits.login_timeout = seconds(options.login_s_max, limits.login_timeout);
        limits.frame_timeout = seconds(options.frame_s_max, limits.frame_timeout);
        limits.idle_timeout = seconds(options.idle_s_max, limits.idle_timeout);
        limits.connections_max = options.connections_max.unwrap_or(limits.connections_max);
        limits.connections_per_address_max = limits.connections_per_address_max.min(limits.connections_max);
        limits.carry_rate = options.carry_mib_s.map_or(limits.carry_rate, |mib| mib.saturating_mul(1 << 20));
        let pin = format!("sha256:{}", opened.fingerprint());
        let conceal = options.conceal_method.unwrap_or(false);
        let mut environment = Environment::system();
        let mut devices = InitiatorDevices::default();
        if let Some((_, clock)) = &following {
            let followed = Arc::clone(clock);
            environment.now_ms = Arc::new(move || followed.now_ms());
            devices = InitiatorDevices::over_tcp_by(clock.clone());
        }
        let devices = Arc::new(devices.proving(proofs).concealing(conceal));
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
        let following = following.map(|(following, _)| {
            let task = following.start(&shutdown);
            (following, task)
        });
        let cluster = data.join(CLUSTER_FILE);
        let mut text = Cluster { mds: advertised, pin: pin.clone() }.text();
        if let Some(authority) = opened.authority() {
            text.push_str(
                "# Alternative: the pin of the cluster's authority, which stays valid when the certificate is renewed:\n",
            );
            text.push_str(&format!("# pin = \"{authority}\"\n"));
        }
        secret_file::write_changed(&cluster, text.as_bytes())?;
        let server = Arc::new(server);
        Ok(Self { address, paper, cluster, pin, time, kept, following, server, audit: audit_state, shutdown })
    }

    pub(crate) fn observed(&self) -> Arc<dyn Observed> {
        let following = self.following.as_ref().map(|(following, _)| Arc::clone(following));
        Arc::new(ObservedMds { server: Arc::clone(&self.server), audit: Arc::clone(&self.audit), following })
    }

    /// Serves until the shutdown, then stops in order.
    pub(crate) async fn finish(self) -> Outcome {
        self.shutdown.wait().await;
        self.server.shutdown().await;
        let _ = self.kept.await;
        if let Some((_, task)) = self.following {
            // It stores the last served time, so that a restart serves no earlier one.
            let _ = task.await;
        }
        Ok(())
    }
}

fn is_host_and_port(address: &str) -> bool {
    address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
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

/// Binds the port of the time service.
async fn bind_time(address: &str) -> Outcome<UdpSocket> {
    UdpSocket::bind(address).await.map_err(|error| {
        let kind = error.kind();
        let failure = Failure::operation(error).at(format!("time_listen {address}"));
        match kind {
            std::io::ErrorKind::AddrInUse => {
                failure.hint("another time server uses it; choose another port, and set it on the devices")
            }
            std::io::ErrorKind::PermissionDenied => {
                failure.hint("ports below 1024 need root; choose another one, and set it on the devices")
            }
            std::io::ErrorKind::InvalidInput => {
                Failure { kind: FailureKind::Usage, ..failure }.hint("use HOST:PORT")
            }
            _ => failure,
        }
    })
}

/// The time server that the clock follows, its authentication, and the limits of corrections.
struct TimeSource {
    server: String,
    proof: ResponseAuth,
    policy: FollowPolicy,
}

async fn time_source(options: &MdsOptions) -> Outcome<Option<TimeSource>> {
    let Some(server) = options.time_source.clone() else {
        if options.time_key_file.is_some() {
            return Err(Failure::usage("--time-key-file requires --time-source"));
        }
        return Ok(None);
    };
    if !is_host_and_port(&server) {
        return Err(Failure::usage("not HOST:PORT").at(format!("time_source {server}")));
    }
    if let Some(path) = &options.time_key_file {
        let key = time::key_file(path)?;
        let proof = ResponseAuth::Key(Arc::new(move || Some(key.clone())));
        return Ok(Some(TimeSource { server, proof, policy: FollowPolicy::SIGNED }));
    }
    if !time::is_here(&server).await {
        if !options.insecure_time.unwrap_or(false) {
            return Err(Failure::usage("the time server is not authenticated")
                .at(format!("time_source {server}"))
                .hint(
                    "use --time-key-file, or a time server on this machine, such as chrony with NTS; \
                       --insecure-time accepts it",
                ));
        }
        tracing::warn!("--insecure-time: a man in the middle can move this clock, within limits");
    }
    Ok(Some(TimeSource { server, proof: ResponseAuth::None, policy: FollowPolicy::UNSIGNED }))
}

/// Starts to follow the time source and waits for its first answer. Refuses a clock that would make
/// expired sessions and credentials valid again.
async fn follow(
    source: TimeSource,
    data: &Path,
    audit: Arc<AuditLog>,
) -> Outcome<(Arc<Following>, Arc<FollowedClock>)> {
    let clock = FollowedClock::open(data, source.policy)?;
    let following = Following::new(&source.server, source.proof, Arc::clone(&clock), audit);
    following.first().await;
    let behind_ms = clock.behind_ms();
    if behind_ms > sealstone_sntp::BEHIND_MAX_MS {
        let message =
            format!("the clock is {} s before the last time that this server served", behind_ms / 1000);
        return Err(Failure::operation(message).at(clock.file().shown()).hint(reset_hint(data)));
    }
    clock.begin();
    Ok((following, clock))
}

/// Refuses a machine clock that was set back: expired sessions and credentials would be valid
/// again.
fn check_machine_clock(data: &Path) -> Outcome {
    if machine_clock::is_sound() {
        return Ok(());
    }
    let behind_s = sealstone_initiator::machine::behind_ms() / 1000;
    let message = format!("the clock is {behind_s} s before an earlier time of this server");
    Err(Failure::operation(message).at(data.join(MACHINE_CLOCK_FILE).shown()).hint(reset_hint(data)))
}

fn reset_hint(data: &Path) -> String {
    format!(
        "set the clock of this machine; if the earlier time was wrong: `sealstone mds clock reset --data {}`",
        data.shown()
    )
}

/// `sealstone mds …`.
pub(crate) fn command(global: &GlobalArgs, output: Output, command: Mds) -> Outcome {
    match command {
        Mds::Init { data, keystore, meta } => {
            let secret = init(&data, &keystore, super::store::location(&meta)?.as_ref())?;
            let value = serde_json::json!({ "admin": ADMIN });
            let value = with_paths(value, [("data", &data), ("admin_secret", &secret)]);
            output.result(&value, || {
                format!(
                    "metadata server in {}\nadministrator {ADMIN}, password in {}",
                    data.shown(),
                    secret.shown()
                )
            })
        }
        Mds::Serve { data, config, options } => {
            let options = options.or(config::read(config.as_ref())?);
            super::run(serve(output, &data, &options))
        }
        Mds::Directory { name, config, options } => {
            super::directory::ask(output, &name, &options.or(config::read(config.as_ref())?))
        }
        Mds::IssueCertificate { data, key, out, days } => issue_certificate(output, &data, &key, &out, days),
        Mds::Clock(command) => crate::command::clock::run(output, command, identity::CERTIFICATE_FILE),
        Mds::Keys(Keys::List { device }) => {
            crate::command::block_on(crate::command::keys::list(global, output, device.as_deref()))
        }
        Mds::Keys(Keys::Rotate(arguments)) => {
            crate::command::block_on(crate::command::keys::rotate(global, output, &arguments))
        }
        Mds::Keys(Keys::Reseal { data, keystore, new }) => keystore::reseal(output, &data, &keystore, &new),
        Mds::Join(arguments) => super::store::join(output, &arguments),
        Mds::Export(arguments) => super::store::export(output, &arguments),
        Mds::Import(arguments) => super::store::import(output, &arguments),
        Mds::Backup(arguments) => keystore::backup(output, &arguments),
        Mds::Restore(arguments) => keystore::restore(output, &arguments),
        Mds::AddOsd { url, key, pin, certificate, speed, wait } => crate::command::block_on(async {
            let pin = match certificate {
                Some(path) => Some(Pin::certificate(&secret_file::read_public(&path)?)),
                None => pin,
            };
            let (client, _) = session::client(global)?;
            let device = add_osd(&client, &url, &key, (pin, speed), wait).await?;
            let name = device.name.shown();
            let pending = device.state == DeviceState::Pending;
            output.remark(match device.state {
                DeviceState::Pending => format!(
                    "added {name}; it is not used until an administrator runs `sealstone osd approve {name}`"
                ),
                DeviceState::Draining => format!(
                    "{name} is being drained and takes no new objects; `sealstone osd drain {name} --undo` undoes that"
                ),
                _ => format!("{name} is active"),
            });
            let pin = pin.map(|pin| pin.to_string());
            output.done(&serde_json::json!({ "name": name, "url": url, "pin": pin, "pending": pending }))
        }),
    }
}

async fn serve(output: Output, data: &Path, options: &MdsOptions) -> Outcome {
    let shutdown = shutdown_on_signals()?;
    let metrics = MetricsPort::bind(options.metrics.as_deref()).await?;
    let daemon = MdsDaemon::start(data, options, shutdown.clone()).await?;
    let metrics = metrics.serve(daemon.observed(), &shutdown);
    let value = serde_json::json!({
        "ready": "mds", "address": daemon.address.to_string(), "pin": daemon.pin,
        "metrics": metrics.map(|address| address.to_string()), "time": daemon.time.map(|address| address.to_string()),
        "insecure_paper_login": daemon.paper.map(|address| address.to_string()),
    });
    let (secret, audit) = (data.join(ADMIN_SECRET_FILE), data.join(AUDIT_FILE));
    let paths = [("cluster", daemon.cluster.as_path()), ("admin_secret", &secret), ("audit", &audit)];
    let value = with_paths(value, paths);
    output.ready(&value, || {
        let paper = daemon.paper.map_or_else(String::new, |address| {
            format!("\nINSECURE: the paper's login is served at {address}, over plain TCP")
        });
        format!("ready {} {}\nclients need {}{paper}", daemon.address, daemon.pin, daemon.cluster.shown())
    });
    daemon.finish().await
}

/// Issues a certificate for the device of a key file, into a folder.
fn issue_certificate(output: Output, data: &Path, key: &Path, out: &Path, days: u16) -> Outcome {
    let file = key_file(key)?;
    let life = Duration::from_secs(u64::from(days) * 24 * 3600);
    let name = device_name(&file.system_id);
    let made = sealstone_mds_server::issue_certificate(data, &name, life, &Environment::system())
        .map_err(setup_failure)?;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(out)
        .map_err(|error| Failure::from(error).at(out.shown()))?;
    if out.join(identity::KEY_FILE).exists() {
        return Err(Failure::operation("already exists").at(out.join(identity::KEY_FILE).shown()));
    }
    identity::write(out, &made)?;
    let authority = made.chain.get(1).map(|der| Pin::authority(der).to_string());
    let value = serde_json::json!({
        "name": file.name, "certificate_name": name, "days": days, "authority": authority,
        "pin": made.pin().map_err(Failure::operation)?.to_string(),
    });
    let value = with_paths(value, [("out", out)]);
    output.result(&value, || {
        format!(
            "certificate of {} for {days} days in {}\ncopy its files to the device's folder, and add the device with \
             --pin {}",
            file.name,
            out.shown(),
            authority.unwrap_or_default()
        )
    })
}

/// Reads a device's key file.
fn key_file(path: &Path) -> Outcome<InitialKeyFile> {
    InitialKeyFile::parse(&secret_file::read(path)?).map_err(|error| Failure::usage(error).at(path.shown()))
}

/// Adds a device to the metadata server. Waits until it is in use, unless an administrator must
/// approve it first.
pub(crate) async fn add_osd(
    client: &Client,
    url: &str,
    key: &Path,
    (pin, speed): (Option<Pin>, u64),
    wait_s: u64,
) -> Outcome<Device> {
    let file = key_file(key)?;
    let system_id = file.system_id;
    url.parse::<sealstone_initiator::TargetUrl>().map_err(|error| Failure::usage(error).at(url))?;
    let invalid = |error: sealstone_mds_protocol::WireError| Failure::usage(chain(&error));
    let device = NewDevice {
        name: Name::new(file.name.clone()).map_err(invalid)?,
        system_id,
        url: Text::new(url).map_err(invalid)?,
        pin: pin.map(Into::into),
        capacity: 0,
        speed,
        master_key: Secret::new(file.key.0.to_vec()).map_err(invalid)?,
    };
    let added = client
        .metadata()
        .call(Request::DeviceAdd { device })
        .await
        .map_err(|error| Failure::from(error).at(&file.name))?;
    match added {
        Response::Device { device } if device.state == DeviceState::Pending => Ok(device),
        _ => wait_until_joined(client, system_id, &file.name, (pin.is_some(), wait_s)).await,
    }
}

/// Waits until a device that was added is in use.
pub(crate) async fn wait_until_joined(
    client: &Client,
    system_id: [u8; SYSTEM_ID_BYTES],
    name: &str,
    (has_pin, wait_s): (bool, u64),
) -> Outcome<Device> {
    let started = Instant::now();
    loop {
        let devices = client.device_list().await?;
        // A device that is not approved yet may claim the same system id.
        let pending = |device: &&Device| device.state == DeviceState::Pending;
        let found = devices.iter().filter(|device| device.system_id == system_id).min_by_key(pending);
        if let Some(outcome) = found.and_then(|device| join_result(device, name)) {
            return outcome;
        }
        if started.elapsed() > Duration::from_secs(wait_s) {
            let why =
                found.and_then(|device| device.problem.as_ref()).map_or("", |problem| problem.said.as_str());
            let colon = if why.is_empty() { "" } else { ": " };
            return Err(Failure::operation(format!(
                "{name} was added, but is not usable after {wait_s} s{colon}{why}"
            ))
            .hint(match has_pin {
                true => "check that the device runs at that URL; the metadata server keeps trying",
                false => {
                    "check that the device runs at that URL, and use --pin if it requires TLS; the metadata server keeps trying"
                }
            }));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns the result of an addition once it is final, also for problems that waiting does not
/// solve.
fn join_result(device: &Device, name: &str) -> Option<Outcome<Device>> {
    // A known device keeps its state: a draining one does not become active.
    let in_use = match device.state {
        DeviceState::Active => true,
        DeviceState::Draining => device.problem.is_none(),
        _ => false,
    };
    if in_use && device.total > 0 {
        return Some(Ok(device.clone()));
    }
    let problem = device.problem.as_ref()?;
    let failure = |failure: Failure| {
        let failure = failure.at(name);
        Some(Err(failure.hint("run `mds add-osd` again with the right URL and key file")))
    };
    match problem.kind {
        ProblemKind::Denied => failure(Failure::new(
            FailureKind::Denied,
            format!("the device at {} does not accept this key", device.url.as_str()),
        )),
        ProblemKind::NotAdmitted => Some(Err(Failure::new(
            FailureKind::Denied,
            format!(
                "the device at {} refuses the login of the metadata server: {}",
                device.url.as_str(),
                problem.said
            ),
        )
        .at(name)
        .hint(
            "compare the access file of the device with --chap-file of the server, then run add-osd again",
        ))),
        ProblemKind::OtherCertificate => Some(Err(Failure::new(
            FailureKind::Denied,
            format!("the device at {} has another certificate: {}", device.url.as_str(), problem.said),
        )
        .at(name)
        .hint("compare --pin with the pin that `osd serve` prints"))),
        ProblemKind::OtherDevice => {
            failure(Failure::operation(format!("another device responds at {}", device.url.as_str())))
        }
        ProblemKind::Silent | ProblemKind::Failed => None,
    }
}
