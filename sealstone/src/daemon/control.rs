//! How the command line reaches a running device: a socket in the device's folder.
//!
//! Does: one request of one JSON line, one answer of one JSON line. Does not: listen on any network.
//! Contract: only the owner of the folder can connect: the folder is 0700, the socket 0600, and the peer's user is
//! checked. The store's lock is held by whoever serves the socket, so a device folder has one master at a time.

use std::fs::{self, File, Permissions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::Shutdown;
use super::blocks::{Blocks, Wanted};
use super::scrub::{Asked, Scrubber};
use crate::failure::{Failure, Kind, Outcome};
use crate::text::ShownPath as _;

/// The socket's name in the device's folder.
const SOCKET: &str = "control.sock";
/// Longest request or answer, bytes: 255 units of some 400 bytes, with room.
const LINE_MAX: u64 = 1 << 20;
/// Patience with a client's request.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Requests served at once; further ones wait in the system's queue.
const REQUESTS_AT_ONCE: usize = 16;
/// Longest path that a socket address has room for, with its zero.
const ADDRESS_MAX: usize = 108;

/// What can be asked: about block units, and about the scrub of a device that runs.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    Create(Wanted),
    List,
    Remove { name: String, force: bool },
    Set { name: String, write_through: bool },
    Show { name: String },
    Scrub(Asked),
}

/// Who answers.
pub(crate) struct Served {
    pub(crate) blocks: Arc<Blocks>,
    /// Only while the device runs.
    pub(crate) scrubber: Option<Arc<Scrubber>>,
}

/// What is answered.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Done(serde_json::Value),
    Failed { kind: String, message: String, next_step: Option<String> },
}

/// Does what is asked, on a device that runs or one that rests.
pub(crate) fn perform(served: &Served, request: Request) -> Outcome<serde_json::Value> {
    let blocks = &served.blocks;
    let value = match request {
        Request::Create(wanted) => serde_json::to_value(blocks.create(wanted, served.scrubber.is_some())?),
        Request::List => serde_json::to_value(blocks.list()?),
        Request::Remove { name, force } => {
            let lun = blocks.remove(&name, force)?;
            Ok(serde_json::json!({ "removed": name, "lun": lun }))
        }
        Request::Set { name, write_through } => serde_json::to_value(blocks.set(&name, write_through)?),
        Request::Show { name } => serde_json::to_value(blocks.show(&name)?),
        Request::Scrub(asked) => match &served.scrubber {
            Some(scrubber) => serde_json::to_value(scrubber.perform(asked)?),
            None => return Err(Failure::operation("the device does not run")),
        },
    };
    value.map_err(Failure::operation)
}

/// A path of the socket that fits an address: by way of the open folder if the direct one is too long.
fn address(folder: &Path) -> io::Result<(PathBuf, Option<File>)> {
    let direct = folder.join(SOCKET);
    if direct.as_os_str().len() < ADDRESS_MAX {
        return Ok((direct, None));
    }
    let open = File::open(folder)?;
    Ok((Path::new("/proc/self/fd").join(open.as_raw_fd().to_string()).join(SOCKET), Some(open)))
}

/// A socket that is served; it goes with it.
pub(crate) struct Control {
    path: PathBuf,
    task: JoinHandle<()>,
}

impl Drop for Control {
    fn drop(&mut self) {
        self.task.abort();
        // A leftover does no harm: nobody answers on it, and the next device takes its place.
        let _ = fs::remove_file(&self.path);
    }
}

/// Serves the socket of a folder whose store we have locked.
pub(crate) fn serve(folder: &Path, served: Served, shutdown: &Shutdown) -> Outcome<Control> {
    let at = |error: io::Error| Failure::from(error).at(folder.join(SOCKET).shown());
    let (path, _folder) = address(folder).map_err(at)?;
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&path).map_err(at)?;
    fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(at)?;
    let (until, served) = (shutdown.wait(), Arc::new(served));
    let task = tokio::spawn(async move {
        let mut until = std::pin::pin!(until);
        let places = Arc::new(Semaphore::new(REQUESTS_AT_ONCE));
        loop {
            let accepted = tokio::select! {
                () = &mut until => return,
                accepted = async {
                    let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
                    Ok((listener.accept().await?.0, place))
                } => accepted,
            };
            match accepted {
                Ok((stream, place)) => {
                    let served = Arc::clone(&served);
                    tokio::spawn(async move {
                        converse(stream, served).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    let error: io::Error = error;
                    tracing::warn!(%error, "control socket");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    });
    Ok(Control { path: folder.join(SOCKET), task })
}

async fn converse(mut stream: UnixStream, served: Arc<Served>) {
    let peer = stream.peer_cred().map(|peer| peer.uid());
    let own = rustix::process::geteuid().as_raw();
    if !peer.is_ok_and(|peer| peer == own || peer == 0) {
        tracing::warn!("control socket: refused another user");
        return;
    }
    let (reading, mut writing) = stream.split();
    let mut line = String::new();
    let mut reader = tokio::io::BufReader::new(reading.take(LINE_MAX));
    if !matches!(tokio::time::timeout(REQUEST_MAX, reader.read_line(&mut line)).await, Ok(Ok(1..))) {
        return;
    }
    let answer = match serde_json::from_str::<Request>(&line) {
        Err(error) => Err(Failure::usage(error)),
        // Provisioning a unit fully takes as long as writing it.
        Ok(request) => tokio::task::spawn_blocking(move || perform(&served, request))
            .await
            .unwrap_or_else(|error| Err(Failure::operation(error))),
    };
    let answer = match answer {
        Ok(value) => Answer::Done(value),
        Err(failure) => Answer::Failed {
            kind: failure.kind.name().to_owned(),
            message: failure.message,
            next_step: failure.next_step,
        },
    };
    if let Ok(mut text) = serde_json::to_vec(&answer) {
        text.push(b'\n');
        // Whoever asked may be gone.
        let _ = writing.write_all(&text).await;
    }
}

/// Asks the device that runs on a folder; `None` if none does.
pub(crate) fn ask(folder: &Path, request: &Request) -> Outcome<Option<serde_json::Value>> {
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
        Ok(Answer::Done(value)) => Ok(Some(value)),
        Ok(Answer::Failed { kind, message, next_step }) => {
            Err(Failure { next_step, ..Failure::new(Kind::from_name(&kind), message) })
        }
        Err(_) => Err(Failure::operation("the device ended in the middle of it")
            .at(folder.shown())
            .hint("start it again and ask again")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with a long path has a socket like any other.
    #[test]
    fn a_long_path_still_has_an_address() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let long = folder.path().join("x".repeat(120));
        fs::create_dir(&long).expect("made");
        let (path, _open) = address(&long).expect("an address");
        assert!(path.as_os_str().len() < ADDRESS_MAX);
        let _listener = std::os::unix::net::UnixListener::bind(path).expect("binds");
        assert!(long.join(SOCKET).exists());
    }

    /// Requests are what they say, with nothing beside.
    #[test]
    fn requests_come_back_and_unknown_fields_are_refused() {
        let wanted = Wanted {
            name: "disk".into(),
            size: 1 << 30,
            block_size: 512,
            lun: Some(3),
            thin: true,
            removable: false,
            write_through: false,
        };
        for request in [
            Request::Create(wanted),
            Request::List,
            Request::Remove { name: "disk".into(), force: true },
            Request::Scrub(Asked::Begin),
        ] {
            let text = serde_json::to_string(&request).expect("JSON");
            let again: Request = serde_json::from_str(&text).expect("our own request");
            assert_eq!(format!("{again:?}"), format!("{request:?}"));
        }
        assert!(serde_json::from_str::<Request>(r#"{"remove":{"name":"a","force":true,"x":1}}"#).is_err());
    }
}
