//! A unit as an NBD server or a mounted file of this machine.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sealstone_block::UnitProtection;
use sealstone_block_client::BlockUnitClient;
use sealstone_block_e2e::DiskHeader;
use sealstone_block_protection::ProtectionSettings;
use sealstone_daemon::Shutdown;
use sealstone_device_server::END_TO_END;
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, FailureKind, Outcome, chain};
use sealstone_fuse::DiskMountOptions;
use sealstone_initiator::TargetUrl;
use sealstone_mounts::{RemarkSink, mount_failure, until_unmounted};
use sealstone_nbd::{BlockBackend, E2eBackend, ExportName, NbdSocket, SocketError, UnitBackend};
use tokio::task::JoinSet;

use crate::disk;
use crate::mounted_file::MountedFile;
use crate::record::{check_record, unit_header};
use crate::unit::{UnitAddress, UnitOptions, UnitProtectionChoice, connect, locate, unit_failure};
use crate::user_disks::UserDisks;

/// Name of the export of a unit that is given by its URL.
const EXPORT_DEFAULT: &str = "disk";
/// How long copies of an unused mount in other mount namespaces delay the end.
const COPIES_TIMEOUT: Duration = Duration::from_secs(5);
/// Integrity failures that wait to be reported.
const REPORTS_MAX: usize = 16;

/// Place of a unit on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitPlace {
    /// An NBD server.
    Nbd {
        /// Path of the Unix socket. Its folder must not be writable by other users.
        socket: PathBuf,
        /// Name of the export; that of the unit without it.
        export: Option<String>,
    },
    /// A file, which is created if it does not exist.
    File(PathBuf),
}

/// Options of a unit that is attached to this machine.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    /// The unit.
    pub address: UnitAddress,
    /// Its sessions.
    pub unit: UnitOptions,
    /// Its place on this machine.
    pub place: UnitPlace,
    /// Refuse writes.
    pub read_only: bool,
}

/// Place of a unit that is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadyPlace {
    /// An NBD server.
    Nbd {
        /// Name of the export.
        export: String,
        /// URI of the export.
        uri: String,
    },
    /// A mounted file.
    File,
}

/// A unit that is ready for use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyUnit {
    /// URL of the unit.
    pub url: String,
    /// Size in bytes.
    pub size: u64,
    /// Smallest request in bytes.
    pub block_size: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Level of protection.
    pub protect: String,
    /// Its place on this machine.
    pub place: ReadyPlace,
}

/// Callbacks and shutdown of the caller of [`attach`].
struct AttachCaller<'a> {
    remark: RemarkSink<'a>,
    ready: &'a mut (dyn FnMut(&ReadyUnit) + Send),
    shutdown: &'a Shutdown,
}

/// Description of an export that is about to start.
struct NewExport<'a> {
    url: &'a TargetUrl,
    name: Option<&'a str>,
    size: u64,
    protect: String,
}

/// Serves a unit on this machine until the shutdown, or until it is unmounted; then flushes it.
/// `disks` returns the disks of the user, if this machine has a session. `ready` receives the unit
/// when it can be used.
///
/// # Errors
/// The unit cannot be opened or has less protection than required, or acknowledged writes were
/// lost.
pub async fn attach(
    options: &AttachOptions,
    disks: &(dyn Fn() -> Outcome<Option<UserDisks>> + Sync),
    remark: RemarkSink<'_>,
    ready: &mut (dyn FnMut(&ReadyUnit) + Send),
    shutdown: &Shutdown,
) -> Outcome {
    let location = locate(&options.address, &options.unit)?;
    let url = location.url.clone();
    let protect = location.protection.map_or("none".to_owned(), |settings| protection_name(&settings));
    if let UnitPlace::Nbd { export, .. } = &options.place {
        export_name(export.as_deref(), options.address.name())?;
    }
    let caller = AttachCaller { remark, ready, shutdown };
    let unit = connect(location, &options.unit).await?;
    let is_read_only = options.read_only || unit.geometry().is_read_only;
    let header = unit_header(&unit).await?;
    // The device states the protection, so the record of the disk decides.
    if let Err(failure) = check_protection(options, disks, header.as_ref()).await {
        unit.close().await;
        return Err(failure.at(&url));
    }
    let name = options.address.name();
    match header {
        None => {
            let export = NewExport { url: &url, name, size: unit.geometry().bytes, protect };
            attach_plain(unit, is_read_only, options, export, caller).await
        }
        Some(header) => attach_protected(unit, is_read_only, (options, disks), (&url, &header), caller).await,
    }
}

async fn attach_plain(
    unit: BlockUnitClient,
    is_read_only: bool,
    options: &AttachOptions,
    export: NewExport<'_>,
    caller: AttachCaller<'_>,
) -> Outcome {
    let url = export.url;
    let backend = Arc::new(UnitBackend::new(unit.clone(), is_read_only));
    let served = export_until_end(&options.place, export, backend, caller).await;
    // Losses that no client has seen are reported here.
    let flushed = match is_read_only {
        true => Ok(()),
        false => unit.flush(&unit.flush_cursor()).await,
    };
    unit.close().await;
    flushed.map_err(|error| unit_failure(&error, url))?;
    served
}

async fn attach_protected(
    unit: BlockUnitClient,
    is_read_only: bool,
    (options, disks): (&AttachOptions, &(dyn Fn() -> Outcome<Option<UserDisks>> + Sync)),
    (url, header): (&TargetUrl, &DiskHeader),
    caller: AttachCaller<'_>,
) -> Outcome {
    let user = disks()?
        .ok_or_else(|| Failure::new(FailureKind::Denied, "not logged in").hint("sealstone login NAME"))?;
    let disk = disk::open(&user, unit, header).await?;
    let (sender, receiver) = tokio::sync::mpsc::channel(REPORTS_MAX);
    // A dropped call ends it; a detached task would renew the lease for ever.
    let mut keeper = JoinSet::new();
    keeper.spawn(disk::keep(disk.clone(), is_read_only, receiver));
    // A full queue has enough reports.
    let report = move |text| drop(sender.try_send(text));
    let backend = Arc::new(E2eBackend::new(disk.clone(), is_read_only, report));
    let (name, protect) = (options.address.name(), END_TO_END.to_owned());
    let export = NewExport { url, name, size: disk.bytes(), protect };
    let served = export_until_end(&options.place, export, backend, caller).await;
    disk::close(&user, &disk).await?;
    served
}

/// Refuses a unit that does not have the end-to-end protection of its record, or of the options.
async fn check_protection(
    options: &AttachOptions,
    disks: &(dyn Fn() -> Outcome<Option<UserDisks>> + Sync),
    header: Option<&DiskHeader>,
) -> Outcome {
    match options.unit.protection {
        Some(UnitProtectionChoice::EndToEnd) if header.is_none() => {
            return Err(Failure::new(FailureKind::Denied, "the unit has no end-to-end protection")
                .hint("it was created without, or the device removed its header"));
        }
        // The user states that it is a unit without; such levels have no disks.
        Some(UnitProtectionChoice::Sessions(chosen))
            if header.is_none() && (chosen == UnitProtection::NONE || chosen.stores_block_keys()) =>
        {
            return Ok(());
        }
        _ => {}
    }
    let name = options.address.name();
    if name.is_none() && header.is_some() {
        return Ok(());
    }
    // Without a session on this machine there is nothing to compare.
    match disks()? {
        Some(user) => check_record(&user, name, header).await,
        None => Ok(()),
    }
}

/// Returns the name of an export: the chosen one, or that of the unit.
fn export_name(chosen: Option<&str>, unit: Option<&str>) -> Outcome<ExportName> {
    let name = chosen.or(unit).unwrap_or(EXPORT_DEFAULT);
    ExportName::new(name).map_err(|error| Failure::usage(error).at("--export"))
}

/// Serves a backend until the shutdown, or until it is unmounted.
async fn export_until_end<B: BlockBackend>(
    place: &UnitPlace,
    export: NewExport<'_>,
    backend: Arc<B>,
    caller: AttachCaller<'_>,
) -> Outcome {
    let NewExport { url, name, size, protect } = export;
    let AttachCaller { remark, ready, shutdown } = caller;
    let properties = backend.properties();
    let (block_size, read_only) = (properties.block_min, properties.is_read_only);
    let mut report = |place| {
        ready(&ReadyUnit {
            url: url.to_string(),
            size,
            block_size,
            read_only,
            protect: protect.clone(),
            place,
        });
    };
    match place {
        UnitPlace::Nbd { socket: path, export } => {
            let export = export_name(export.as_deref(), name)?;
            let socket = NbdSocket::bind(path).map_err(|error| socket_failure(&error, path))?;
            report(ReadyPlace::Nbd { export: export.to_string(), uri: nbd_uri(&export, path) });
            sealstone_nbd::serve(socket, backend, export, shutdown.wait()).await;
            Ok(())
        }
        UnitPlace::File(path) => {
            let file = MountedFile::create(path, remark)?;
            let source = format!("sealstone:{url}").into();
            let options = DiskMountOptions { file: path.clone(), source, read_only };
            let mounted =
                sealstone_fuse::mount_disk(backend, &options).map_err(|error| mount_failure(error, path))?;
            report(ReadyPlace::File);
            let ended = until_unmounted(mounted, path, Some(COPIES_TIMEOUT), shutdown).await;
            drop(file);
            ended
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
