//! The Unix socket of a server, for its own user only.
//!
//! Does: creates it with mode 0600 in a folder that others cannot write, replaces a stale one, and
//! removes it at the end.
//! Does not: accept connections.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener as BlockingListener, UnixStream as BlockingStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sealstone_private::PrivateError;
use tokio::net::UnixListener;

/// Listen backlog.
const BACKLOG: i32 = 64;
/// Mode of the socket: its owner alone can connect.
const MODE: u32 = 0o600;

/// Why a socket cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The folder of the socket is unsafe.
    #[error("the folder of the socket is not safe: {0}")]
    Folder(#[source] PrivateError),
    /// Another server uses the socket.
    #[error("another server uses the socket")]
    InUse,
    /// The path exists and is not a socket.
    #[error("the path exists and is no socket")]
    NotASocket,
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A listening socket; dropping it removes the path.
#[derive(Debug)]
pub struct NbdSocket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    inode: (u64, u64),
}

impl NbdSocket {
    /// Creates the socket and listens on it. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        sealstone_private::check_folder(folder).map_err(SocketError::Folder)?;
        remove_stale(path)?;
        let listener = BlockingListener::from(listen(path).map_err(io::Error::from)?);
        let metadata = fs::symlink_metadata(path)?;
        let listener = UnixListener::from_std(listener)?;
        Ok(Self { listener, path: path.to_owned(), inode: (metadata.dev(), metadata.ino()) })
    }
}

impl Drop for NbdSocket {
    fn drop(&mut self) {
        // Another server may have replaced the path meanwhile.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The mode is set before the path exists, so that no other user can connect in between.
fn listen(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::from_raw_mode(MODE))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Removes a socket whose server has ended.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(found) if !found.file_type().is_socket() => return Err(SocketError::NotASocket),
        Ok(_) => {}
    }
    match BlockingStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(fs::remove_file(path)?),
        Err(error) => Err(error.into()),
        Ok(_) => Err(SocketError::InUse),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn socket_is_private_and_removed() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("s");
        let socket = NbdSocket::bind(&path).expect("bound");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, MODE);
        assert!(matches!(NbdSocket::bind(&path), Err(SocketError::InUse)));
        drop(socket);
        assert!(!path.exists());
        // A stale socket is replaced, a file is not.
        drop(BlockingListener::bind(&path).expect("bound"));
        drop(NbdSocket::bind(&path).expect("replaced"));
        fs::write(&path, b"data").expect("written");
        assert!(matches!(NbdSocket::bind(&path), Err(SocketError::NotASocket)));
        assert_eq!(fs::read(&path).expect("unchanged"), b"data");
    }

    #[tokio::test]
    async fn writable_folder_and_long_path_are_refused() {
        let folder = tempfile::tempdir().expect("folder");
        let open = folder.path().join("open");
        fs::create_dir(&open).expect("created");
        fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("set");
        assert!(matches!(NbdSocket::bind(&open.join("s")), Err(SocketError::Folder(_))));
        let long = folder.path().join("s".repeat(120));
        assert!(matches!(NbdSocket::bind(&long), Err(SocketError::Io(_))));
        assert!(matches!(NbdSocket::bind(&folder.path().join("no/s")), Err(SocketError::Folder(_))));
    }
}
