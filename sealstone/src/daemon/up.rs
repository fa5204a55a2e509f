//! `sealstone up`: a metadata server and some devices in one process, created on first use.
//!
//! Contract: `up.toml` is written last. A folder with `up.incomplete` is from an interrupted
//! creation and has no user data: it is created again. A folder with neither file is refused unless
//! it is empty.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sealstone_client::Client;
use sealstone_daemon::metrics::{Observed, Page};
use sealstone_daemon::{AUDIT_FILE, MetricsPort, Shutdown, check_data_folder};
use sealstone_device_server::{DeviceServer, DeviceServerConfig, StorePlace, create_device};
use sealstone_failure::secret_file::read_bounded;
use sealstone_failure::text::{ShownPath as _, with_paths};
use sealstone_failure::{Failure, Outcome, secret_file};
use sealstone_mds_server::{ADMIN_SECRET_FILE, KeystoreProtection};
use sealstone_metadata_server::{
    ADMIN, CLUSTER_FILE, MetadataServer, MetadataServerConfig, create_metadata_server,
};
use serde::{Deserialize, Serialize};

use super::mds;
use crate::cli::UpArgs;
use crate::limits::JOIN_S_MAX;
use crate::output::Output;

/// Version of the folder layout.
const VERSION: u32 = 1;
const SYSTEM_FILE: &str = "up.toml";
const MARKER_FILE: &str = "up.incomplete";
const MDS_FOLDER: &str = "mds";
/// Default number of devices on first use.
const OSDS_DEFAULT: u16 = 3;

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

/// A running system.
pub(crate) struct RunningSystem {
    pub(crate) mds: MetadataServer,
    pub(crate) osds: Vec<DeviceServer>,
    pub(crate) admin_secret: PathBuf,
    pub(crate) data: PathBuf,
    /// Locked, so that a second process cannot use the folder.
    folder: Option<File>,
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

/// `sealstone up`.
pub(crate) fn command(output: Output, arguments: &UpArgs) -> Outcome {
    super::run(async {
        let shutdown = super::shutdown_on_signals()?;
        let metrics = MetricsPort::bind(arguments.metrics.as_deref()).await?;
        let running = start(output, arguments, &shutdown).await?;
        let mut pages = vec![running.mds.observed()];
        pages.extend(running.osds.iter().map(DeviceServer::observed));
        let metrics = metrics.serve(Arc::new(AllDaemons(pages)), &shutdown);
        let audit = |folder: &str| running.data.join(folder).join(AUDIT_FILE);
        let device = |osd: &DeviceServer| {
            let pin = osd.pin().map(|pin| pin.to_string());
            let value = serde_json::json!({ "name": osd.name(), "url": osd.url(), "pin": pin });
            with_paths(value, [("audit", &audit(osd.name()))])
        };
        let value = serde_json::json!({
            "ready": "up", "address": running.mds.address().to_string(), "pin": running.mds.pin(), "admin": ADMIN,
            "metrics": metrics.map(|address| address.to_string()),
            "osds": running.osds.iter().map(device).collect::<Vec<_>>(),
        });
        let secret = running.admin_secret.as_path();
        let paths = [
            ("cluster", running.mds.cluster_file()),
            ("admin_secret", secret),
            ("audit", &audit(MDS_FOLDER)),
        ];
        let value = with_paths(value, paths);
        output.ready(&value, || {
            let mut lines = vec![format!("metadata server  {}", running.mds.address())];
            lines.extend(running.osds.iter().map(|osd| format!("device {:9} {}", osd.name(), osd.url())));
            lines.push(format!("admin's secret   {}", running.admin_secret.shown()));
            lines.push(format!(
                "log in with      sealstone login {ADMIN} --cluster {} --password-file {}",
                running.mds.cluster_file().shown(),
                running.admin_secret.shown(),
            ));
            lines.push("ready; stop with ^C".into());
            lines.join("\n")
        });
        running.finish().await
    })
}

impl RunningSystem {
    /// Serves until the shutdown; stops the metadata server first, then the devices.
    pub(crate) async fn finish(self) -> Outcome {
        // The lock of the folder is released when all have ended.
        let mut first = self.mds.join().await;
        for osd in self.osds {
            let ended = osd.join().await;
            first = first.and(ended);
        }
        first
    }
}

/// Starts the system in the folder; creates it first if necessary.
pub(crate) async fn start(output: Output, arguments: &UpArgs, shutdown: &Shutdown) -> Outcome<RunningSystem> {
    let data = arguments.data.as_path();
    check_data_folder(data)?;
    let folder = lock_folder(data)?;
    let mut running = start_in(output, arguments, shutdown).await?;
    running.folder = Some(folder);
    Ok(running)
}

/// Locks the folder, and creates it first if it does not exist.
fn lock_folder(data: &Path) -> Outcome<File> {
    let at = |error: std::io::Error| Failure::from(error).at(data.shown());
    DirBuilder::new().recursive(true).mode(0o700).create(data).map_err(at)?;
    let folder = File::open(data).map_err(at)?;
    match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(Failure::operation("another `sealstone up` runs in this folder")
            .at(data.shown())
            .hint("stop it, or use another --data")),
        // A file system without locks: the devices lock their own files.
        _ => Ok(folder),
    }
}

async fn start_in(output: Output, arguments: &UpArgs, shutdown: &Shutdown) -> Outcome<RunningSystem> {
    let data = arguments.data.as_path();
    let system_file = data.join(SYSTEM_FILE);
    if system_file.exists() {
        let system = read_system(&system_file)?;
        if arguments.osd_port.is_some() {
            return Err(Failure::usage(
                "the devices exist, and the metadata server has stored their addresses",
            )
            .at(data.shown())
            .hint("--osd-port is allowed on first use only"));
        }
        if arguments.osds.is_some_and(|osds| usize::from(osds) != system.osds.len()) {
            return Err(Failure::usage(format!("the system has {} devices", system.osds.len()))
                .at(data.shown())
                .hint("omit --osds, or use another --data"));
        }
        return serve(arguments, &system, shutdown).await;
    }
    create(output, arguments, shutdown).await
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

async fn serve(arguments: &UpArgs, system: &SystemFile, shutdown: &Shutdown) -> Outcome<RunningSystem> {
    let data = arguments.data.clone();
    let mut osds = Vec::new();
    for device in &system.osds {
        let config = DeviceServerConfig {
            listen: device.listen.clone(),
            ..DeviceServerConfig::new(&data.join(&device.name))
        };
        let daemon = DeviceServer::start(config, shutdown).await;
        osds.push(
            daemon.map_err(|failure| device_failure(failure, arguments, data.as_path()).at(&device.name))?,
        );
    }
    let config = MetadataServerConfig {
        listen: arguments.listen.clone(),
        ..MetadataServerConfig::new(&data.join(MDS_FOLDER))
    };
    let mds = MetadataServer::start(config, shutdown).await;
    let mds = mds.map_err(|failure| failure.at("metadata server"))?;
    let cluster = secret_file::read_bytes(mds.cluster_file())?;
    secret_file::write_changed(&data.join(CLUSTER_FILE), &cluster)?;
    let admin_secret = data.join(ADMIN_SECRET_FILE);
    Ok(RunningSystem { mds, osds, admin_secret, data, folder: None })
}

/// Creates a system, by the same steps as on several machines.
async fn create(output: Output, arguments: &UpArgs, shutdown: &Shutdown) -> Outcome<RunningSystem> {
    let data = arguments.data.as_path();
    let at = |error: std::io::Error| Failure::from(error).at(data.shown());
    let marker = data.join(MARKER_FILE);
    if marker.exists() {
        output.remark(format!("{}: creation was interrupted; creating it again", data.shown()));
        for entry in fs::read_dir(data).map_err(at)? {
            let path = entry.map_err(at)?.path();
            if path != marker {
                if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }.map_err(at)?;
            }
        }
    } else if fs::read_dir(data).map_err(at)?.next().is_some() {
        return Err(Failure::operation("not empty, and not a folder of `sealstone up`")
            .at(data.shown())
            .hint("use another --data"));
    }
    secret_file::write(&marker, b"")?;

    let count = arguments.osds.unwrap_or(OSDS_DEFAULT);
    let mds_folder = data.join(MDS_FOLDER);
    let secret = create_metadata_server(&mds_folder, &KeystoreProtection::KeyFile(None), None)?;
    fs::rename(&secret, data.join(ADMIN_SECRET_FILE)).map_err(at)?;
    let mut devices = Vec::new();
    let mut keys = Vec::new();
    for index in 0..count {
        let name = format!("osd{}", index + 1);
        let place = StorePlace::Files { capacity: arguments.capacity, preallocate: false };
        let device = create_device(&data.join(&name), place, Some(&name), None)?;
        // The plan of the last device includes the others.
        if let Some(warning) = device.warning.as_ref().filter(|_| index + 1 == count) {
            output.remark(warning);
        }
        keys.push(device.key);
        devices.push(DeviceEntry {
            name,
            listen: device_address(&arguments.listen, arguments.osd_port, index)?,
        });
    }
    let mut system = SystemFile { version: VERSION, osds: devices };
    let running = serve(arguments, &system, shutdown).await?;
    // Port 0 took a free port, which the metadata server stores: it must not change.
    for (device, daemon) in system.osds.iter_mut().zip(&running.osds) {
        device.listen = daemon.address().to_string();
    }
    let client = admin_client(&running).await?;
    for (daemon, key) in running.osds.iter().zip(&keys) {
        mds::add_osd(&client, daemon.url(), key, (daemon.pin(), 0), JOIN_S_MAX).await?;
        fs::remove_file(key).map_err(at)?;
    }
    client.logout().await?;
    let text = toml::to_string(&system).expect("strings and numbers serialise");
    secret_file::write(&data.join(SYSTEM_FILE), text.as_bytes())?;
    fs::remove_file(&marker).map_err(at)?;
    Ok(running)
}

/// Returns a client that is logged in as the administrator.
pub(crate) async fn admin_client(running: &RunningSystem) -> Outcome<Client> {
    let secret = secret_file::read(&running.admin_secret)?;
    let pin = running.mds.pin().parse().expect("our own fingerprint parses");
    Ok(Client::connect(&running.mds.address().to_string(), pin, ADMIN, secret.trim_end().as_bytes()).await?)
}

/// Adds the next step for a device whose port is in use.
fn device_failure(failure: Failure, arguments: &UpArgs, data: &Path) -> Failure {
    if !failure.next_step.as_deref().is_some_and(|hint| hint.contains("choose another port")) {
        return failure;
    }
    if data.join(SYSTEM_FILE).exists() {
        return failure
            .hint("another program uses the port; stop it: the metadata server has stored this address");
    }
    match arguments.osd_port {
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
    use super::*;

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
