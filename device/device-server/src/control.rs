//! Control socket of a running device, in the device's folder.
//!
//! Does: one request and one response per connection, each one JSON line.
//! Does not: listen on a network.
//! Contract: only the owner of the folder and root can connect: the folder is 0700, the socket
//! 0600, and the peer's user is checked. The process that serves the socket holds the lock of the
//! store.

use std::fs::{self, File, Permissions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sealstone_daemon::{AuditLog, Shutdown};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, FailureKind, Outcome};
use sealstone_function_service::FunctionService;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::audit::UnitChangeLine;
use crate::blocks::{Blocks, UnitParams};
use crate::functions;
use crate::scrub::{ScrubAction, Scrubber};

/// Name of the socket in the device's folder.
const SOCKET: &str = "control.sock";
/// Maximum length of a request or response, bytes: enough for 255 units of 400 bytes.
const LINE_MAX: u64 = 1 << 20;
/// Maximum time to receive a request.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Maximum number of parallel requests; others wait in the listen queue.
const REQUESTS_AT_ONCE: usize = 16;
/// Maximum length of a path in a socket address, with its terminating zero.
const ADDRESS_MAX: usize = 108;

/// A request about block units, or about scrub or functions of a running device.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ControlRequest {
    /// Create a unit.
    Create(UnitParams),
    /// List all units.
    List,
    /// Remove a unit and its data.
    Remove {
        /// Name of the unit.
        name: String,
        /// Also remove a unit that is reserved.
        force: bool,
    },
    /// Begin the next epoch of a unit's key.
    Rotate {
        /// Name of the unit.
        name: String,
    },
    /// Set or clear write-through of a unit.
    Set {
        /// Name of the unit.
        name: String,
        /// Whether every write is durable before it is acknowledged.
        write_through: bool,
    },
    /// Report one unit.
    Show {
        /// Name of the unit.
        name: String,
    },
    /// Report the state of the protection of one unit.
    Status {
        /// Name of the unit.
        name: String,
    },
    /// Start, stop or report the scrub.
    Scrub(ScrubAction),
    /// Report the functions of the device.
    Functions,
}

/// The parts of a device that requests use.
pub(crate) struct ControlHandler {
    /// Block units of the device.
    pub(crate) blocks: Arc<Blocks>,
    /// Receives the changes of block units; `None` if the request changes nothing.
    pub(crate) audit: Option<Arc<AuditLog>>,
    /// `None` if the device is stopped.
    pub(crate) scrubber: Option<Arc<Scrubber>>,
    /// `None` if the device is stopped.
    pub(crate) functions: Option<Arc<FunctionService>>,
}

impl ControlHandler {
    /// Records a change of a block unit by an administrator.
    fn record(&self, action: &str, unit: &str, lun: u16, key_epoch: Option<u32>) {
        if let Some(audit) = &self.audit {
            audit.write(&UnitChangeLine::new(action, unit, lun, key_epoch));
        }
    }
}

impl ControlRequest {
    /// Whether the request changes a block unit.
    pub(crate) const fn changes_unit(&self) -> bool {
        matches!(self, Self::Create(_) | Self::Remove { .. } | Self::Rotate { .. } | Self::Set { .. })
    }
}

/// The response to a request.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum ControlResponse {
    Done(serde_json::Value),
    Failed { kind: String, message: String, next_step: Option<String> },
}

/// Executes a request on a running or stopped device.
pub(crate) fn perform(handler: &ControlHandler, request: ControlRequest) -> Outcome<serde_json::Value> {
    let blocks = &handler.blocks;
    let value = match request {
        ControlRequest::Create(params) => {
            let unit = blocks.create(params, handler.scrubber.is_some())?;
            handler.record("block create", &unit.name, unit.lun, None);
            serde_json::to_value(unit)
        }
        ControlRequest::List => serde_json::to_value(blocks.list()?),
        ControlRequest::Remove { name, force } => {
            let unit = blocks.remove(&name, force)?;
            handler.record("block rm", &unit.removed, unit.lun, None);
            serde_json::to_value(unit)
        }
        ControlRequest::Rotate { name } => {
            let unit = blocks.rotate_key(&name)?;
            let lun = blocks.show(&name)?.lun;
            handler.record("block rotate", &unit.unit, lun, Some(unit.key_epoch));
            serde_json::to_value(unit)
        }
        ControlRequest::Set { name, write_through } => {
            let unit = blocks.set(&name, write_through)?;
            handler.record("block set", &unit.name, unit.lun, None);
            serde_json::to_value(unit)
        }
        ControlRequest::Show { name } => serde_json::to_value(blocks.show(&name)?),
        ControlRequest::Status { name } => serde_json::to_value(blocks.status(&name)?),
        ControlRequest::Scrub(action) => match &handler.scrubber {
            Some(scrubber) => serde_json::to_value(scrubber.perform(action)?),
            None => return Err(Failure::operation("the device is stopped")),
        },
        ControlRequest::Functions => match &handler.functions {
            Some(service) => serde_json::to_value(functions::status(service)),
            None => return Err(Failure::operation("the device is stopped")),
        },
    };
    value.map_err(Failure::operation)
}

/// Returns a path of the socket that fits a socket address: through the open folder if the direct
/// one is too long.
fn address(folder: &Path) -> io::Result<(PathBuf, Option<File>)> {
    let direct = folder.join(SOCKET);
    if direct.as_os_str().len() < ADDRESS_MAX {
        return Ok((direct, None));
    }
    let open = File::open(folder)?;
    Ok((Path::new("/proc/self/fd").join(open.as_raw_fd().to_string()).join(SOCKET), Some(open)))
}

/// A served socket; dropping it removes the socket.
pub(crate) struct ControlSocket {
    path: PathBuf,
    task: JoinHandle<()>,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.task.abort();
        // A stale socket refuses connections and is replaced at the next start.
        let _ = fs::remove_file(&self.path);
    }
}

/// Serves the socket of a folder whose store this process has locked.
pub(crate) fn serve(folder: &Path, handler: ControlHandler, shutdown: &Shutdown) -> Outcome<ControlSocket> {
    let at = |error: io::Error| Failure::from(error).at(folder.join(SOCKET).shown());
    let (path, _folder) = address(folder).map_err(at)?;
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&path).map_err(at)?;
    fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(at)?;
    let (until, handler) = (shutdown.wait(), Arc::new(handler));
    let task = tokio::spawn(async move {
        let mut until = std::pin::pin!(until);
        let permits = Arc::new(Semaphore::new(REQUESTS_AT_ONCE));
        loop {
            let accepted = tokio::select! {
                () = &mut until => return,
                accepted = async {
                    let permit = Arc::clone(&permits).acquire_owned().await.map_err(io::Error::other)?;
                    Ok((listener.accept().await?.0, permit))
                } => accepted,
            };
            match accepted {
                Ok((stream, permit)) => {
                    let handler = Arc::clone(&handler);
                    tokio::spawn(async move {
                        converse(stream, handler).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    let error: io::Error = error;
                    tracing::warn!(%error, "cannot accept on the control socket; retrying");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    });
    Ok(ControlSocket { path: folder.join(SOCKET), task })
}

async fn converse(mut stream: UnixStream, handler: Arc<ControlHandler>) {
    let peer = stream.peer_cred().map(|peer| peer.uid());
    let own = rustix::process::geteuid().as_raw();
    if !peer.is_ok_and(|peer| peer == own || peer == 0) {
        tracing::warn!("control socket: connection of another user refused");
        return;
    }
    let (reading, mut writing) = stream.split();
    let mut line = String::new();
    let mut reader = tokio::io::BufReader::new(reading.take(LINE_MAX));
    if !matches!(tokio::time::timeout(REQUEST_MAX, reader.read_line(&mut line)).await, Ok(Ok(1..))) {
        return;
    }
    let response = match serde_json::from_str::<ControlRequest>(&line) {
        Err(error) => Err(Failure::usage(error)),
        // Creating a thick unit writes all of it.
        Ok(request) => tokio::task::spawn_blocking(move || perform(&handler, request))
            .await
            .unwrap_or_else(|error| Err(Failure::operation(error))),
    };
    let response = match response {
        Ok(value) => ControlResponse::Done(value),
        Err(failure) => ControlResponse::Failed {
            kind: failure.kind.name().to_owned(),
            message: failure.message,
            next_step: failure.next_step,
        },
    };
    if let Ok(mut text) = serde_json::to_vec(&response) {
        text.push(b'\n');
        // The client may have disconnected.
        let _ = writing.write_all(&text).await;
    }
}

/// Sends a request to the device that runs in a folder; `None` if none does.
pub fn send_request(folder: &Path, request: &ControlRequest) -> Outcome<Option<serde_json::Value>> {
    let at = |error: io::Error| Failure::from(error).at(folder.join(SOCKET).shown());
    let mut stream = match address(folder).and_then(|(path, _folder)| BlockingStream::connect(path)) {
        Ok(stream) => stream,
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => return Ok(None),
            _ => return Err(at(error)),
        },
    };
    let mut text = serde_json::to_vec(request).map_err(Failure::operation)?;
    text.push(b'\n');
    stream.write_all(&text).map_err(at)?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_MAX)).read_line(&mut line).map_err(at)?;
    match serde_json::from_str(&line) {
        Ok(ControlResponse::Done(value)) => Ok(Some(value)),
        Ok(ControlResponse::Failed { kind, message, next_step }) => {
            Err(Failure { next_step, ..Failure::new(FailureKind::from_name(&kind), message) })
        }
        Err(_) => Err(Failure::operation("the device stopped during the request")
            .at(folder.shown())
            .hint("start the device and run the command again")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_of_long_path_has_an_address() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let long = folder.path().join("x".repeat(120));
        fs::create_dir(&long).expect("created");
        let (path, _open) = address(&long).expect("an address");
        assert!(path.as_os_str().len() < ADDRESS_MAX);
        let _listener = std::os::unix::net::UnixListener::bind(path).expect("binds");
        assert!(long.join(SOCKET).exists());
    }

    #[test]
    fn requests_round_trip_and_refuse_unknown_fields() {
        let params = UnitParams {
            name: "disk".into(),
            size: 1 << 30,
            block_size: 512,
            lun: Some(3),
            thin: true,
            removable: false,
            write_through: false,
            protect: "none".into(),
            profile: None,
        };
        for request in [
            ControlRequest::Create(params),
            ControlRequest::List,
            ControlRequest::Remove { name: "disk".into(), force: true },
            ControlRequest::Rotate { name: "disk".into() },
            ControlRequest::Scrub(ScrubAction::Begin),
            ControlRequest::Functions,
        ] {
            let text = serde_json::to_string(&request).expect("JSON");
            let again: ControlRequest = serde_json::from_str(&text).expect("our own request");
            assert_eq!(format!("{again:?}"), format!("{request:?}"));
        }
        assert!(
            serde_json::from_str::<ControlRequest>(r#"{"remove":{"name":"a","force":true,"x":1}}"#).is_err()
        );
    }
}
