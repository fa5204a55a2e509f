//! `sealstone block attach`: a block unit as an NBD server or a mounted file, in the foreground.
//!
//! Does: finds and opens the unit, serves it until a signal arrives, then flushes and logs out.
//! Does not: speak iSCSI, NBD or FUSE; `sealstone-block-client`, `sealstone-nbd` and
//! `sealstone-fuse` do.

use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sealstone_block::UnitProtection;
use sealstone_block_client::{BlockError, BlockUnitClient, UnitClientOptions};
use sealstone_block_e2e::DiskHeader;
use sealstone_block_protection::{ProtectedBlock, ProtectionProfile, ProtectionSettings};
use sealstone_channel::{Pin, PinKind};
use sealstone_chap_file::{iscsi_name, proofs};
use sealstone_daemon::Shutdown;
use sealstone_device_server::{ControlRequest, END_TO_END, UnitReport, administer, identity};
use sealstone_failure::text::{ShownPath as _, human_bytes, with_paths};
use sealstone_failure::{Failure, FailureKind, Outcome, chain, secret_file};
use sealstone_fuse::{DiskMountOptions, Mount, MountRoot};
use sealstone_initiator::{SystemEnvironment, TargetUrl, TcpDial, TlsPolicy};
use sealstone_nbd::{BlockBackend, E2eBackend, ExportName, NbdSocket, SocketError, UnitBackend};
use sealstone_osd_device::DataDir;
use serde_json::json;

use super::block_e2e;
use super::mount::{detach, failure as mount_failure, prepare_place};
use crate::cli::{AttachArgs, GlobalArgs, ProtectChoice};
use crate::daemon::shutdown_on_signals;
use crate::output::Output;

/// Name of the export of a unit that is given by its URL.
const EXPORT_DEFAULT: &str = "disk";

/// How long copies of an unused mount in other mount namespaces delay the end of the command.
const COPIES_TIMEOUT: Duration = Duration::from_secs(5);
/// Seconds for which a unit that was just created is awaited.
const OPEN_TIMEOUT_S: u32 = 10;
/// Text of a refusal.
pub(super) const NO_PAPER_PROFILE: &str = "e2e and lazy have no profile of the paper";
/// Integrity failures that wait to be reported.
const REPORTS_MAX: usize = 16;

/// A unit and how it is reached.
struct UnitLocation {
    url: TargetUrl,
    export: ExportName,
    dial: TcpDial,
    /// Protection of the sessions.
    protection: Option<ProtectionSettings>,
}

/// Runs the command.
pub(super) fn command(global: &GlobalArgs, output: Output, arguments: &AttachArgs) -> Outcome {
    let location = locate(global, arguments)?;
    // One thread: a request passes through several tasks, and each change of thread costs more than
    // the work of the task.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::from(error).at("runtime"))?;
    let outcome = runtime.block_on(serve(global, output, arguments, location));
    // A thread may still wait for the end of a mount.
    runtime.shutdown_background();
    outcome
}

/// Finds the URL of the unit, and the expected certificate of its device.
fn locate(global: &GlobalArgs, arguments: &AttachArgs) -> Outcome<UnitLocation> {
    let policy = TlsPolicy::from(global.device_tls);
    let (url, export, folder, unit) = if arguments.unit.contains("://") {
        (arguments.unit.clone(), EXPORT_DEFAULT, None, None)
    } else {
        let data = arguments.data.as_deref().ok_or_else(|| {
            Failure::usage("the name of a unit needs the folder of its device")
                .hint("give --data DIR, or the URL of the unit")
        })?;
        let name = arguments.unit.clone();
        let value = administer(data, ControlRequest::Show { name })?;
        let unit: UnitReport = serde_json::from_value(value).map_err(Failure::operation)?;
        let url = unit.url.clone().ok_or_else(|| {
            Failure::operation("the device is stopped")
                .at(data.shown())
                .hint("sealstone osd serve --data DIR")
        })?;
        (url, arguments.unit.as_str(), Some(data), Some(unit))
    };
    let protection = session_protection(unit.as_ref(), arguments)?;
    let url: TargetUrl =
        url.parse().map_err(|error| Failure::usage(error).at(&url).hint("iscsi://HOST[:PORT]/TARGET/LUN"))?;
    let export = arguments.export.as_deref().unwrap_or(export);
    let export = ExportName::new(export).map_err(|error| Failure::usage(error).at("--export"))?;
    let known = folder.filter(|_| arguments.pin.is_none());
    let device = known.map(|folder| known_device(folder, &url, policy)).transpose()?;
    let (pin, system_id) = match (device, arguments.pin) {
        (Some((pin, system_id)), _) => (pin, system_id),
        (None, Some(pin)) if pin.kind == PinKind::Authority => {
            return Err(Failure::usage("the pin of an authority does not select one device")
                .at("--pin")
                .hint("give the pin of the device's own certificate: sha256:HEX"));
        }
        (None, pin) => (pin, [0; 20]),
    };
    let dial =
        TcpDial::by_policy(&url, pin, &system_id, policy).map_err(|error| session_failure(&error, &url))?;
    Ok(UnitLocation { url, export, dial, protection })
}

/// Returns a protection with the paper's own profile if that is requested.
fn with_profile(protection: UnitProtection, paper: bool) -> UnitProtection {
    let profile = if paper { ProtectionProfile::Paper } else { protection.profile() };
    UnitProtection::new(protection.level(), profile)
}

/// Returns the settings of the sessions: those that the unit requires, or those of the options.
fn session_protection(
    unit: Option<&UnitReport>,
    arguments: &AttachArgs,
) -> Outcome<Option<ProtectionSettings>> {
    if arguments.insecure_paper_profile && arguments.protect.is_some_and(|chosen| !chosen.has_paper_profile())
    {
        return Err(Failure::usage(NO_PAPER_PROFILE).at("--insecure-paper-profile"));
    }
    let sessions = match arguments.protect {
        Some(ProtectChoice::Sessions(level)) => Some(level),
        Some(ProtectChoice::EndToEnd) | None => None,
    };
    let Some(unit) = unit else {
        let chosen = sessions.map(|chosen| with_profile(chosen, arguments.insecure_paper_profile));
        return Ok(chosen.and_then(|chosen| chosen.settings(arguments.protect_block)));
    };
    let block = if unit.block_size == 4096 { ProtectedBlock::B4096 } else { ProtectedBlock::B512 };
    let required = match unit.protect.as_str() {
        END_TO_END => UnitProtection::NONE,
        sessions => UnitProtection::parse(sessions).map_err(Failure::operation)?,
    };
    let profile = unit.profile.as_deref().and_then(ProtectionProfile::from_name);
    let profile = profile.unwrap_or(required.profile());
    let required = UnitProtection::new(required.level(), profile).settings(block);
    let Some(chosen) = sessions else { return Ok(required) };
    let chosen = UnitProtection::new(chosen.level(), profile).settings(block);
    let is_less = required.is_some_and(|required| !chosen.is_some_and(|chosen| chosen.fulfils(&required)));
    if is_less {
        return Err(Failure::usage(format!("unit {} requires {}", unit.name, unit.protect)).at("--protect"));
    }
    Ok(chosen)
}

/// Returns the pin of the device in a folder, and its system id. On loopback there is no
/// pin unless TLS is required.
fn known_device(folder: &Path, url: &TargetUrl, policy: TlsPolicy) -> Outcome<(Option<Pin>, [u8; 20])> {
    let data = DataDir::open(folder).map_err(|error| Failure::operation(chain(&error)))?;
    let is_loopback =
        url.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
    if is_loopback && policy != TlsPolicy::Required {
        return Ok((None, data.identity.system_id));
    }
    let certificate = secret_file::read_public(&folder.join(identity::CERTIFICATE_FILE))?;
    Ok((Some(Pin::certificate(&certificate)), data.identity.system_id))
}

async fn serve(
    global: &GlobalArgs,
    output: Output,
    arguments: &AttachArgs,
    location: UnitLocation,
) -> Outcome {
    let shutdown = shutdown_on_signals()?;
    let (url, export) = (location.url.clone(), location.export.clone());
    let protect = location.protection.map_or("none".to_owned(), |settings| protection_name(&settings));
    let unit = connect(global, arguments, location).await?;
    let is_read_only = arguments.read_only || unit.geometry().is_read_only;
    let header = block_e2e::header(&unit).await?;
    // The device states the protection, so the record of the disk decides.
    let name = Some(arguments.unit.as_str()).filter(|unit| !unit.contains("://"));
    if let Err(failure) = check_record(global, arguments, name, header.as_ref()).await {
        unit.close().await;
        return Err(failure.at(&url));
    }
    let Some(header) = header else {
        let ready = ReadyExport { url: &url, export, size: unit.geometry().bytes, protect };
        let backend = Arc::new(UnitBackend::new(unit.clone(), is_read_only));
        let served = export_until_end(output, arguments, ready, backend, &shutdown).await;
        // Losses that no client has seen are reported here.
        let flushed = match is_read_only {
            true => Ok(()),
            false => unit.flush(&unit.flush_cursor()).await,
        };
        unit.close().await;
        flushed.map_err(|error| unit_failure(&error, &url))?;
        return served;
    };
    let disk = block_e2e::open(global, unit, &header).await?;
    let (sender, receiver) = tokio::sync::mpsc::channel(REPORTS_MAX);
    let keeper = tokio::spawn(block_e2e::keep(disk.clone(), is_read_only, receiver));
    // A full queue has enough reports.
    let report = move |text| drop(sender.try_send(text));
    let backend = Arc::new(E2eBackend::new(disk.clone(), is_read_only, report));
    let ready = ReadyExport { url: &url, export, size: disk.bytes(), protect: END_TO_END.to_owned() };
    let served = export_until_end(output, arguments, ready, backend, &shutdown).await;
    let closed = block_e2e::close(global, &disk).await;
    keeper.abort();
    closed?;
    served
}

/// Refuses a unit that does not have the end-to-end protection of its record, or of the options.
async fn check_record(
    global: &GlobalArgs,
    arguments: &AttachArgs,
    name: Option<&str>,
    header: Option<&DiskHeader>,
) -> Outcome {
    match arguments.protect {
        Some(ProtectChoice::EndToEnd) if header.is_none() => {
            Err(Failure::new(FailureKind::Denied, "the unit has no end-to-end protection")
                .hint("it was created without, or the device removed its header"))
        }
        // The user states that it is a unit without; such levels have no disks.
        Some(ProtectChoice::Sessions(chosen))
            if header.is_none() && (chosen == UnitProtection::NONE || chosen.stores_block_keys()) =>
        {
            Ok(())
        }
        _ => block_e2e::check_record(global, name, header).await,
    }
}

/// Opens a unit of a running device by its name.
pub(super) async fn open_unit(global: &GlobalArgs, name: &str, data: &Path) -> Outcome<BlockUnitClient> {
    let arguments = AttachArgs {
        unit: name.to_owned(),
        data: Some(data.to_owned()),
        nbd: None,
        mount_file: None,
        read_only: false,
        export: None,
        timeout: OPEN_TIMEOUT_S,
        sessions: 1,
        initiator_name: None,
        pin: None,
        protect: None,
        protect_block: ProtectedBlock::B512,
        insecure_paper_profile: false,
    };
    let location = locate(global, &arguments)?;
    connect(global, &arguments, location).await
}

async fn connect(
    global: &GlobalArgs,
    arguments: &AttachArgs,
    location: UnitLocation,
) -> Outcome<BlockUnitClient> {
    let UnitLocation { url, dial, protection, .. } = location;
    let mut options = UnitClientOptions::new(&SystemEnvironment);
    options.session.proofs = proofs(global.chap_file.as_ref())?;
    options.session.protection = protection;
    options.sessions = usize::from(arguments.sessions);
    options.recovery_timeout =
        (arguments.timeout > 0).then(|| Duration::from_secs(u64::from(arguments.timeout)));
    if let Some(name) = &arguments.initiator_name {
        let name = iscsi_name(name).map_err(|failure| failure.at("--initiator-name"))?;
        if name.ends_with('*') {
            return Err(Failure::usage("a pattern is not a name; give one iSCSI name").at("--initiator-name"));
        }
        options.session.initiator_name = name;
    }
    BlockUnitClient::open(Arc::new(dial), &url, &SystemEnvironment, &options)
        .await
        .map_err(|error| unit_failure(&error, &url))
}

/// Description of an export in the ready line.
struct ReadyExport<'a> {
    url: &'a TargetUrl,
    export: ExportName,
    size: u64,
    protect: String,
}

/// Serves a backend until a signal arrives or it is unmounted.
async fn export_until_end<B: BlockBackend>(
    output: Output,
    arguments: &AttachArgs,
    ready: ReadyExport<'_>,
    backend: Arc<B>,
    shutdown: &Shutdown,
) -> Outcome {
    let ReadyExport { url, export, size: bytes, protect } = ready;
    let properties = backend.properties();
    let is_read_only = properties.is_read_only;
    let mut value = json!({
        "url": url.to_string(), "size": bytes, "block_size": properties.block_min,
        "read_only": is_read_only, "sessions": arguments.sessions, "protect": protect,
        "pid": std::process::id(),
    });
    let size = human_bytes(bytes);
    if let Some(path) = &arguments.nbd {
        let socket = NbdSocket::bind(path).map_err(|error| socket_failure(&error, path))?;
        let uri = nbd_uri(&export, path);
        value["export"] = export.to_string().into();
        value["uri"] = uri.as_str().into();
        let value = with_paths(value, [("socket", path)]);
        output.ready(&value, || format!("{url} ({size}) at {uri}"));
        sealstone_nbd::serve(socket, backend, export, shutdown.wait()).await;
        Ok(())
    } else if let Some(path) = &arguments.mount_file {
        let file = MountedFile::create(output, path)?;
        let source = format!("sealstone:{url}").into();
        let options = DiskMountOptions { file: path.clone(), source, read_only: is_read_only };
        let mounted =
            sealstone_fuse::mount_disk(backend, &options).map_err(|error| mount_failure(error, path))?;
        let value = with_paths(value, [("file", path)]);
        output.ready(&value, || format!("{url} ({size}) at {}", path.shown()));
        let ended = until_unmounted(mounted, path, shutdown).await;
        drop(file);
        ended
    } else {
        Err(Failure::usage("give --nbd or --mount-file").at("block attach"))
    }
}

/// Waits until a unit is unmounted, by others or because a signal arrived. While programs use the
/// file, the signal waits for them.
async fn until_unmounted(mounted: Mount, place: &Path, shutdown: &Shutdown) -> Outcome {
    let mut ended = tokio::task::spawn_blocking(move || mounted.ended());
    let unmount = |is_lazy| {
        let place = place.to_owned();
        tokio::task::spawn_blocking(move || detach(&place, is_lazy))
    };
    let joined = tokio::select! {
        biased;
        joined = &mut ended => joined,
        () = shutdown.wait() => match unmount(false).await {
            Ok(Ok(())) => match tokio::time::timeout(COPIES_TIMEOUT, &mut ended).await {
                Ok(joined) => joined,
                Err(_) => {
                    tracing::warn!("another mount namespace, such as a container, has a copy of the mount");
                    return Ok(());
                }
            },
            _ => {
                let _ = unmount(true).await;
                ended.await
            }
        },
    };
    match joined {
        Ok(outcome) => outcome.map_err(|error| Failure::from(error).at("the connection to the kernel")),
        Err(error) => Err(Failure::operation(error).at("mount")),
    }
}

/// The empty file that a unit is mounted on; removed at the end if it was created here.
struct MountedFile<'a> {
    path: &'a Path,
    is_created: bool,
}

impl<'a> MountedFile<'a> {
    fn create(output: Output, path: &'a Path) -> Outcome<Self> {
        let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let is_created = match created {
            Ok(_) => true,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(Failure::from(error).at(path.shown())),
        };
        let file = Self { path, is_created };
        prepare_place(output, path, MountRoot::File)?;
        Ok(file)
    }
}

impl Drop for MountedFile<'_> {
    fn drop(&mut self) {
        let is_empty = || std::fs::symlink_metadata(self.path).is_ok_and(|found| found.len() == 0);
        if self.is_created && is_empty() {
            let _ = std::fs::remove_file(self.path);
        }
    }
}

/// Returns the name of a protection on the command line.
fn protection_name(settings: &ProtectionSettings) -> String {
    UnitProtection::new(settings.level, settings.profile).name()
}

/// Returns the NBD URI of an export (doc/uri.md of the NBD project).
fn nbd_uri(export: &ExportName, socket: &Path) -> String {
    let absolute = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
    let encoded = |bytes: &[u8]| {
        bytes.iter().fold(String::new(), |mut text, byte| {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                    text.push(char::from(*byte));
                }
                other => text.push_str(&format!("%{other:02X}")),
            }
            text
        })
    };
    let name = encoded(export.to_string().as_bytes());
    format!("nbd+unix:///{name}?socket={}", encoded(absolute.as_os_str().as_bytes()))
}

fn session_failure(error: &sealstone_initiator::SessionError, url: &TargetUrl) -> Failure {
    let failure = Failure::operation(chain(error)).at(url);
    match error {
        error if error.is_denied() => Failure { kind: FailureKind::Denied, ..failure }
            .hint("check --chap-file, --initiator-name and --pin against the device's access file"),
        sealstone_initiator::SessionError::LoginRefused { class: 2, detail: 3 } => {
            Failure { kind: FailureKind::NotFound, ..failure }
                .hint("`sealstone block list` shows the URLs of the units")
        }
        sealstone_initiator::SessionError::LoginRefused { class: 2, detail: 0 } => {
            Failure { kind: FailureKind::Denied, ..failure }
                .hint("the unit may require protection: give --protect, and an account with --chap-file")
        }
        _ => failure.hint("check that the device runs, and its address"),
    }
}

fn unit_failure(error: &BlockError, url: &TargetUrl) -> Failure {
    let failure = Failure::operation(chain(error)).at(url);
    match error {
        BlockError::Session(error) => session_failure(error, url),
        BlockError::NoUnit => Failure { kind: FailureKind::NotFound, ..failure }
            .hint("`sealstone block list` shows the URLs of the units"),
        BlockError::NotADisk(_) => failure.hint("the OSD is LUN 0; block units have 1 and above"),
        BlockError::LostWrites => failure.hint("check the file system on the unit"),
        BlockError::Unavailable { .. } => {
            failure.hint("acknowledged writes of the last seconds may be lost if the device's machine failed")
        }
        _ => failure,
    }
}

fn socket_failure(error: &SocketError, path: &Path) -> Failure {
    let failure = Failure::operation(chain(error)).at(path.shown());
    match error {
        SocketError::Folder(_) => {
            failure.hint("choose a folder that only you can write, such as $XDG_RUNTIME_DIR")
        }
        SocketError::InUse | SocketError::NotASocket => failure.hint("choose another path"),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_encodes_export_and_path() {
        let export = ExportName::new("my disk").expect("a name");
        let uri = nbd_uri(&export, Path::new("/run/a b?.sock"));
        assert_eq!(uri, "nbd+unix:///my%20disk?socket=/run/a%20b%3F.sock");
    }
}
