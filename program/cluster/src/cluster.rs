//! A metadata server and some devices in one process, created on first use.
//!
//! Contract: `up.toml` is written last. A folder with `up.incomplete` is from an interrupted
//! creation and has no user data: it is created again. A folder with neither file is refused unless
//! it is empty.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sealstone_client::tls::Fingerprint;
use sealstone_client::{Client, ClientError, Proofs, ServiceKey, SystemEnvironment};
use sealstone_daemon::metrics::{Observed, Page};
use sealstone_daemon::{Shutdown, ShutdownTrigger, check_data_folder};
use sealstone_device_server::{DeviceServer, DeviceServerConfig, StorePlace, create_device};
use sealstone_failure::secret_file::read_bounded;
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome, secret_file};
use sealstone_mds_protocol::UserName;
use sealstone_mds_protocol::login::SUITE_SERVICE_A;
use sealstone_mds_server::{ADMIN_SECRET_FILE, AdminSecret, KeystoreProtection};
use sealstone_metadata_server::{
    ADMIN, CLUSTER_FILE, MetadataServer, MetadataServerConfig, create_metadata_server,
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::join::{JOIN_S_MAX, add_osd};

/// Version of the folder layout.
const VERSION: u32 = 1;
const SYSTEM_FILE: &str = "up.toml";
const MARKER_FILE: &str = "up.incomplete";
const MDS_FOLDER: &str = "mds";
/// Default number of devices on first use.
const OSDS_DEFAULT: u16 = 3;
/// Maximum number of devices. Each has threads and files of its own in the process.
pub const OSDS_MAX: u16 = 64;

/// Content of [`SYSTEM_FILE`].
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct SystemFile {
    version: u32,
    osds: Vec<DeviceEntry>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct DeviceEntry {
    name: String,
    listen: String,
}

/// Configuration of a cluster in one process.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Folder of the cluster.
    pub data: PathBuf,
    /// Number of devices; on first use 3 unless set.
    pub osds: Option<u16>,
    /// Address of the metadata server; port 0 takes a free one on each start.
    pub listen: String,
    /// Port of the first device, on first use; 0 takes free ones. `None`: the ports above the one
    /// of the metadata server.
    pub osd_port: Option<u16>,
    /// Capacity of each new device, bytes.
    pub capacity: u64,
    /// How the administrator logs in; decided on first use.
    pub admin: AdminLogin,
    /// Seconds that clients get to log out of the devices at a shutdown; 5 unless set.
    pub drain_s_max: Option<u16>,
}

impl ClusterConfig {
    /// Whether a folder has a cluster.
    #[must_use]
    pub fn is_created(data: &Path) -> bool {
        data.join(SYSTEM_FILE).exists()
    }
}

/// How the administrator of a new cluster logs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminLogin {
    /// With a password, as a person does.
    Password,
    /// With a key file, as a service does. A login needs no Argon2id.
    ServiceKey,
}

/// The credential of the administrator, as read from the file.
pub enum AdminCredential {
    /// A password.
    Password(Zeroizing<String>),
    /// The key of a service.
    ServiceKey(ServiceKey),
}

impl AdminCredential {
    /// Reads the file with the administrator's password or key.
    ///
    /// # Errors
    /// The file cannot be read, or others can read it.
    pub fn read(file: &Path) -> Outcome<Self> {
        let text = secret_file::read(file)?;
        Ok(match ServiceKey::from_text(&text) {
            Ok(key) => Self::ServiceKey(key),
            Err(_) => Self::Password(Zeroizing::new(text.trim_end().to_owned())),
        })
    }

    /// Logs in to a metadata server as the administrator.
    ///
    /// # Errors
    /// The login failed.
    pub async fn login(&self, address: &str, pin: Fingerprint) -> Result<Client, ClientError> {
        match self {
            Self::Password(password) => Client::connect(address, pin, ADMIN, password.as_bytes()).await,
            Self::ServiceKey(key) => Client::connect_with_key(address, pin, key, Proofs::default()).await,
        }
    }
}

/// A running cluster. Dropping it stops it without waiting for its end.
pub struct Cluster {
    metadata_server: MetadataServer,
    devices: Vec<DeviceServer>,
    admin_secret: PathBuf,
    data: PathBuf,
    trigger: ShutdownTrigger,
    /// Locked, so that a second process cannot use the folder.
    _folder: File,
}

/// The metrics of all daemons on one page.
struct AllDaemons(Vec<Arc<dyn Observed>>);

impl Observed for AllDaemons {
    fn observe(&self, page: &mut Page) {
        self.0.iter().for_each(|one| one.observe(page));
    }

    fn health(&self) -> Result<(), String> {
        self.0.iter().try_for_each(|one| one.health())
    }
}

impl Cluster {
    /// Starts the cluster in the folder; creates it first if necessary. `warn` receives warnings
    /// about the creation.
    ///
    /// # Errors
    /// The configuration does not fit the folder, or a daemon cannot start. Daemons that had
    /// started have ended then, and the folder is free.
    pub async fn start(config: &ClusterConfig, shutdown: &Shutdown, warn: WarningSink<'_>) -> Outcome<Self> {
        let data = config.data.as_path();
        if let Some(osds) = config.osds.filter(|osds| !(1..=OSDS_MAX).contains(osds)) {
            return Err(Failure::usage(format!("a cluster has 1 to {OSDS_MAX} devices, not {osds}")));
        }
        check_data_folder(data)?;
        let folder = lock_folder(data)?;
        let (trigger, shutdown) = shutdown.child();
        let mut devices = Vec::new();
        let metadata_server = match start_in(config, &shutdown, warn, &mut devices).await {
            Ok(server) => server,
            Err(failure) => {
                trigger.trigger();
                join_all(devices).await.unwrap_or_else(|error| warn(&error.to_string()));
                return Err(failure);
            }
        };
        let admin_secret = data.join(ADMIN_SECRET_FILE);
        Ok(Self { metadata_server, devices, admin_secret, data: data.to_owned(), trigger, _folder: folder })
    }

    /// Returns the metadata server.
    #[must_use]
    pub const fn metadata_server(&self) -> &MetadataServer {
        &self.metadata_server
    }

    /// Returns the devices.
    #[must_use]
    pub fn devices(&self) -> &[DeviceServer] {
        &self.devices
    }

    /// Returns the file with the administrator's password or key.
    #[must_use]
    pub fn admin_secret(&self) -> &Path {
        &self.admin_secret
    }

    /// Returns the folder of the cluster.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Returns the folder of the metadata server.
    #[must_use]
    pub fn metadata_folder(&self) -> PathBuf {
        self.data.join(MDS_FOLDER)
    }

    /// Returns the metrics of all daemons, which hold their stores open.
    #[must_use]
    pub fn observed(&self) -> Arc<dyn Observed> {
        let mut pages = vec![self.metadata_server.observed()];
        pages.extend(self.devices.iter().map(DeviceServer::observed));
        Arc::new(AllDaemons(pages))
    }

    /// Returns a client that is logged in as the administrator.
    ///
    /// # Errors
    /// The password or key cannot be read, or the login failed.
    pub async fn admin_client(&self) -> Outcome<Client> {
        admin_client(&self.metadata_server, &self.admin_secret).await
    }

    /// Stops the cluster and waits for its end, as [`Self::join`] does.
    ///
    /// # Errors
    /// A daemon failed to stop in order.
    pub async fn shutdown(self) -> Outcome {
        self.trigger.trigger();
        self.join().await
    }

    /// Waits for the shutdown and the end of all daemons, which stop at the same time.
    ///
    /// # Errors
    /// A daemon failed to stop in order.
    pub async fn join(self) -> Outcome {
        // The lock of the folder is released when all have ended.
        let ended = self.metadata_server.join().await;
        ended.and(join_all(self.devices).await)
    }
}

/// Waits for the end of all devices. Returns the first failure.
async fn join_all(devices: Vec<DeviceServer>) -> Outcome {
    let mut first = Ok(());
    for device in devices {
        let ended = device.join().await;
        first = first.and(ended);
    }
    first
}

/// Receiver of warnings, one line each.
pub type WarningSink<'a> = &'a (dyn Fn(&str) + Sync);

/// Locks the folder, and creates it first if it does not exist.
fn lock_folder(data: &Path) -> Outcome<File> {
    let at = |error: std::io::Error| Failure::from(error).at(data.shown());
    DirBuilder::new().recursive(true).mode(0o700).create(data).map_err(at)?;
    let folder = File::open(data).map_err(at)?;
    match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(Failure::operation("another cluster runs in this folder")
            .at(data.shown())
            .hint("stop it, or use another folder (--data)")),
        // A file system without locks: the devices lock their own files.
        _ => Ok(folder),
    }
}

/// Starts the daemons. The devices that have started are in `devices`, after a failure too.
async fn start_in(
    config: &ClusterConfig,
    shutdown: &Shutdown,
    warn: WarningSink<'_>,
    devices: &mut Vec<DeviceServer>,
) -> Outcome<MetadataServer> {
    let data = config.data.as_path();
    let system_file = data.join(SYSTEM_FILE);
    if system_file.exists() {
        let system = read_system(&system_file)?;
        if config.osd_port.is_some() {
            return Err(Failure::usage(
                "the devices exist, and the metadata server has stored their addresses",
            )
            .at(data.shown())
            .hint("--osd-port is allowed on first use only"));
        }
        if config.osds.is_some_and(|osds| usize::from(osds) != system.osds.len()) {
            return Err(Failure::usage(format!("the system has {} devices", system.osds.len()))
                .at(data.shown())
                .hint("omit the number (--osds), or use another folder (--data)"));
        }
        return serve(config, &system, shutdown, devices).await;
    }
    create(config, shutdown, warn, devices).await
}

fn read_system(path: &Path) -> Outcome<SystemFile> {
    let text = read_bounded(path)?;
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| Failure::operation(error.message()).at(path.shown()))?;
    let found = table.get("version").and_then(toml::Value::as_integer).unwrap_or(0);
    if found != i64::from(VERSION) {
        return Err(Failure::operation(format!(
            "the folder has version {found}, this program supports {VERSION}"
        ))
        .at(path.shown()));
    }
    toml::from_str(&text).map_err(|error| Failure::operation(error.message()).at(path.shown()))
}

async fn serve(
    config: &ClusterConfig,
    system: &SystemFile,
    shutdown: &Shutdown,
    devices: &mut Vec<DeviceServer>,
) -> Outcome<MetadataServer> {
    let data = config.data.as_path();
    for entry in &system.osds {
        let mut device = DeviceServerConfig::new(&data.join(&entry.name));
        device.listen.clone_from(&entry.listen);
        device.drain_s_max = config.drain_s_max.unwrap_or(device.drain_s_max);
        let started = DeviceServer::start(device, shutdown).await;
        devices.push(started.map_err(|failure| device_failure(failure, config, data).at(&entry.name))?);
    }
    let mut server = MetadataServerConfig::new(&data.join(MDS_FOLDER));
    server.listen.clone_from(&config.listen);
    let started = MetadataServer::start(server, shutdown).await;
    let metadata_server = started.map_err(|failure| failure.at("metadata server"))?;
    let copied = secret_file::read_bytes(metadata_server.cluster_file())
        .and_then(|cluster| secret_file::write_changed(&data.join(CLUSTER_FILE), &cluster));
    unless_failed(metadata_server, copied).await
}

/// Returns the server, or waits for its end if `outcome` is a failure.
async fn unless_failed(server: MetadataServer, outcome: Outcome) -> Outcome<MetadataServer> {
    match outcome {
        Ok(()) => Ok(server),
        Err(failure) => {
            // The first failure is the one to report.
            let _ = server.shutdown().await;
            Err(failure)
        }
    }
}

/// Creates a cluster, by the same steps as on several machines.
async fn create(
    config: &ClusterConfig,
    shutdown: &Shutdown,
    warn: WarningSink<'_>,
    devices: &mut Vec<DeviceServer>,
) -> Outcome<MetadataServer> {
    let data = config.data.as_path();
    let at = |error: std::io::Error| Failure::from(error).at(data.shown());
    let marker = data.join(MARKER_FILE);
    if marker.exists() {
        warn(&format!("{}: creation was interrupted; creating it again", data.shown()));
        for entry in fs::read_dir(data).map_err(at)? {
            let path = entry.map_err(at)?.path();
            if path != marker {
                if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }.map_err(at)?;
            }
        }
    } else if fs::read_dir(data).map_err(at)?.next().is_some() {
        return Err(Failure::operation("not empty, and not a folder of a cluster (`sealstone up`)")
            .at(data.shown())
            .hint("use another folder (--data)"));
    }
    // Not by a temporary file: one that a killed process left alone makes the folder "not empty".
    let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(&marker);
    file.and_then(|file| file.sync_all()).and_then(|()| File::open(data)?.sync_all()).map_err(at)?;

    let count = config.osds.unwrap_or(OSDS_DEFAULT);
    let mds_folder = data.join(MDS_FOLDER);
    let key = match config.admin {
        AdminLogin::Password => None,
        AdminLogin::ServiceKey => {
            let admin = UserName::new(ADMIN).expect("a fixed name is a name");
            let key = ServiceKey::generate(admin, SUITE_SERVICE_A, &SystemEnvironment);
            Some(AdminSecret::service_key(key.suite, key.secret(), &key.to_text()))
        }
    };
    let secret = create_metadata_server(&mds_folder, &KeystoreProtection::KeyFile(None), None, key)?;
    fs::rename(&secret, data.join(ADMIN_SECRET_FILE)).map_err(at)?;
    let mut entries = Vec::new();
    let mut keys = Vec::new();
    for index in 0..count {
        let name = format!("osd{}", index + 1);
        let place = StorePlace::Files { capacity: config.capacity, preallocate: false };
        let device = create_device(&data.join(&name), place, Some(&name), None)?;
        // The plan of the last device includes the others.
        if let Some(warning) = device.warning.as_ref().filter(|_| index + 1 == count) {
            warn(warning);
        }
        keys.push(device.key);
        entries.push(DeviceEntry { name, listen: device_address(&config.listen, config.osd_port, index)? });
    }
    let system = SystemFile { version: VERSION, osds: entries };
    let server = serve(config, &system, shutdown, devices).await?;
    let added = add_devices(data, system, &server, devices, &keys).await;
    let completed = added.and_then(|()| fs::remove_file(&marker).map_err(at));
    unless_failed(server, completed).await
}

/// Adds the devices to the metadata server, and writes the system file.
async fn add_devices(
    data: &Path,
    mut system: SystemFile,
    server: &MetadataServer,
    devices: &[DeviceServer],
    keys: &[PathBuf],
) -> Outcome {
    // Port 0 took a free port, which the metadata server stores: it must not change.
    for (entry, device) in system.osds.iter_mut().zip(devices) {
        entry.listen = device.address().to_string();
    }
    let client = admin_client(server, &data.join(ADMIN_SECRET_FILE)).await?;
    for (device, key) in devices.iter().zip(keys) {
        add_osd(&client, device.url(), key, device.pin(), 0, JOIN_S_MAX).await?;
        fs::remove_file(key).map_err(|error| Failure::from(error).at(key.shown()))?;
    }
    client.logout().await?;
    let text = toml::to_string(&system).expect("strings and numbers serialise");
    secret_file::write(&data.join(SYSTEM_FILE), text.as_bytes())
}

async fn admin_client(server: &MetadataServer, secret: &Path) -> Outcome<Client> {
    let pin = server.pin().parse().expect("our own fingerprint parses");
    Ok(AdminCredential::read(secret)?.login(&server.address().to_string(), pin).await?)
}

/// Adds the next step for a device whose port is in use.
fn device_failure(failure: Failure, config: &ClusterConfig, data: &Path) -> Failure {
    if !failure.next_step.as_deref().is_some_and(|hint| hint.contains("choose another port")) {
        return failure;
    }
    if data.join(SYSTEM_FILE).exists() {
        return failure
            .hint("another program uses the port; stop it: the metadata server has stored this address");
    }
    match config.osd_port {
        Some(_) => {
            failure.hint("another program uses the port; choose another --osd-port, 0 takes free ports")
        }
        None => failure.hint("another program uses the port; choose --osd-port, 0 takes free ports"),
    }
}

/// Returns the address of device `index`: the same host, `index` ports above `first` [default: the
/// port after the metadata server's]. Port 0 stays 0.
fn device_address(listen: &str, first: Option<u16>, index: u16) -> Outcome<String> {
    let (host, port) = listen
        .rsplit_once(':')
        .and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)))
        .filter(|(host, _)| !host.is_empty())
        .ok_or_else(|| Failure::usage("not HOST:PORT").at(listen))?;
    let none_left = || Failure::usage("no ports left for devices").at(listen);
    let first = match (first, port) {
        (Some(first), _) => first,
        (None, 0) => 0,
        (None, port) => port.checked_add(1).ok_or_else(none_left)?,
    };
    let port = if first == 0 { 0 } else { first.checked_add(index).ok_or_else(none_left)? };
    Ok(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use sealstone_client::{GetOptions, PutOptions};
    use tokio::net::TcpStream;

    use super::*;

    fn config(folder: &Path) -> ClusterConfig {
        ClusterConfig {
            data: folder.to_owned(),
            osds: Some(1),
            listen: "127.0.0.1:0".to_owned(),
            osd_port: None,
            capacity: 1 << 30,
            admin: AdminLogin::Password,
            drain_s_max: None,
        }
    }

    /// Nothing in the libraries is global to the process: two clusters run side by side, and one
    /// that ended starts again in its folder.
    #[tokio::test(flavor = "multi_thread")]
    async fn two_clusters_run_in_one_process() {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("temporary folder"));
        let (_stop, shutdown) = Shutdown::manual();
        let start = async |index: usize| {
            Cluster::start(&config(folders[index].path()), &shutdown, &|_| {}).await.expect("started")
        };
        let (first, second) = (start(0).await, start(1).await);
        for (cluster, text) in [(&first, "first"), (&second, "second")] {
            let client = cluster.admin_client().await.expect("logged in");
            client.put("/name", text.as_bytes(), PutOptions::default()).await.expect("stored");
        }
        first.shutdown().await.expect("stopped");
        let first = start(0).await;
        for (cluster, text) in [(first, "first"), (second, "second")] {
            let client = cluster.admin_client().await.expect("logged in");
            let mut bytes = Vec::new();
            client.get("/name", &mut bytes, GetOptions::default()).await.expect("read");
            assert_eq!(bytes, text.as_bytes());
            cluster.shutdown().await.expect("stopped");
        }
    }

    /// A failed start leaves no thread behind that still writes to the folder.
    #[tokio::test(flavor = "multi_thread")]
    async fn failed_start_ends_its_daemons() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let config = ClusterConfig { osds: Some(3), ..config(folder.path()) };
        let (stop, ended) = Shutdown::manual();
        drop(stop);
        // The daemons end before the administrator can log in.
        assert!(Cluster::start(&config, &ended, &|_| {}).await.is_err());
        let (_stop, shutdown) = Shutdown::manual();
        let cluster = Cluster::start(&config, &shutdown, &|_| {}).await.expect("created again");
        cluster.shutdown().await.expect("stopped");
        let [metadata, moved] = [MDS_FOLDER, "moved"].map(|name| folder.path().join(name));
        for _ in 0..4 {
            // The devices start, and the metadata server cannot.
            fs::rename(&metadata, &moved).expect("moved");
            assert!(Cluster::start(&config, &shutdown, &|_| {}).await.is_err());
            fs::rename(&moved, &metadata).expect("moved back");
            let cluster = Cluster::start(&config, &shutdown, &|_| {}).await.expect("its stores are closed");
            cluster.shutdown().await.expect("stopped");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn dropped_cluster_stops_serving() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (_stop, shutdown) = Shutdown::manual();
        let start = async || Cluster::start(&config(folder.path()), &shutdown, &|_| {}).await;
        let cluster = start().await.expect("started");
        let client = cluster.admin_client().await.expect("logged in");
        client.put("/name", &b"kept"[..], PutOptions::default()).await.expect("stored");
        drop(client);
        // A metrics port may live longer than the cluster.
        let observed = cluster.observed();
        let addresses = [cluster.metadata_server().address(), cluster.devices()[0].address()];
        drop(cluster);
        for address in addresses {
            until(async || TcpStream::connect(address).await.is_err().then_some(())).await;
        }
        drop(observed);
        let cluster = until(async || start().await.ok()).await;
        let client = cluster.admin_client().await.expect("logged in");
        let mut bytes = Vec::new();
        client.get("/name", &mut bytes, GetOptions::default()).await.expect("read");
        assert_eq!(bytes, b"kept");
        cluster.shutdown().await.expect("stopped");
    }

    /// Repeats an attempt until it has a result.
    async fn until<T>(attempt: impl AsyncFn() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(result) = attempt().await {
                return result;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "no result in a minute");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[test]
    fn devices_get_following_ports() {
        let address = |listen, first, index| device_address(listen, first, index).ok();
        assert_eq!(address("127.0.0.1:3270", None, 0).as_deref(), Some("127.0.0.1:3271"));
        assert_eq!(address("127.0.0.1:0", None, 5).as_deref(), Some("127.0.0.1:0"));
        assert_eq!(address("[::1]:3270", None, 1).as_deref(), Some("[::1]:3272"));
        assert_eq!(address("localhost:3270", None, 1).as_deref(), Some("localhost:3272"));
        assert_eq!(address("localhost:3270", Some(5000), 1).as_deref(), Some("localhost:5001"));
        assert_eq!(address("localhost:3270", Some(0), 1).as_deref(), Some("localhost:0"));
        for (listen, first) in
            [("127.0.0.1:65535", None), ("localhost", None), (":1", None), ("a:1", Some(65535))]
        {
            assert!(device_address(listen, first, 1).is_err(), "{listen}");
        }
    }
}
