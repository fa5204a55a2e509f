//! Mounting: by the system call for root, by the helper `fusermount3` for other users.
//!
//! Truth: mount(2); fusermount3(1) and its protocol: it sends the open device over the socket named
//! in `_FUSE_COMMFD`.

use std::ffi::{CString, OsStr};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::MountOptions;

/// The device file of FUSE.
const DEVICE: &str = "/dev/fuse";
/// File system type in the table of mounts, after `fuse.`.
const SUBTYPE: &str = "sealstone";

/// Read-ahead of the kernel in KiB: as much as one request carries, so that eight requests become
/// one.
const READ_AHEAD_KIB: u32 = 1024;

/// Why mounting failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// This kernel has no FUSE, or this process may not use it.
    #[error("{DEVICE} cannot be opened")]
    NoDevice(#[source] io::Error),
    /// The mount point does not exist or is not a directory.
    #[error("the mount point is not a directory")]
    NotADirectory,
    /// The mount point of a disk does not exist or is not a regular file.
    #[error("the mount point is not a regular file")]
    NotAFile,
    /// The mount would hide the content of the file.
    #[error("the mount point is a file with content, which the mount would hide")]
    NotEmpty,
    /// The mount point cannot be accessed.
    #[error("the mount point cannot be used")]
    Mountpoint(#[source] io::Error),
    /// There is a mount whose process has ended.
    #[error("the mount point has a mount whose process has ended")]
    Dead,
    /// Only root can mount without the helper.
    #[error("only root can mount without fusermount3, which is not installed")]
    NoHelper,
    /// The helper refused, with its message.
    #[error("fusermount3: {0}")]
    Helper(String),
    /// The kernel refused.
    #[error("the kernel refused the mount")]
    Refused(#[source] io::Error),
}

/// Sets the kernel's read-ahead to the size of one request, which only root may do. Otherwise the
/// default stays.
pub(crate) fn read_ahead(place: &Path) {
    // Only what the kernel has cached: the mount is not queried, since it may wait for a server.
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let checked = statx(CWD, place, flags, StatxFlags::empty()).map_err(io::Error::from).and_then(|stat| {
        let device = format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
        std::fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), READ_AHEAD_KIB.to_string())
    });
    if let Err(error) = checked {
        tracing::debug!(%error, "could not set the kernel's read-ahead; the default stays");
    }
}

/// The root of a mount, and what it is mounted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountRoot {
    /// A directory.
    Directory,
    /// A regular file; the one that is mounted on is empty.
    File,
}

/// Checks whether a root can be mounted on this path.
///
/// # Errors
/// `NotADirectory`, `NotAFile`, `NotEmpty`, `Dead`, `Mountpoint`.
pub fn check_mountpoint(place: &Path, root: MountRoot) -> Result<(), MountError> {
    let wrong = match root {
        MountRoot::Directory => MountError::NotADirectory,
        MountRoot::File => MountError::NotAFile,
    };
    match std::fs::metadata(place) {
        Ok(metadata) => match root {
            MountRoot::Directory if metadata.is_dir() => Ok(()),
            MountRoot::File if metadata.is_file() && metadata.len() > 0 => Err(MountError::NotEmpty),
            MountRoot::File if metadata.is_file() => Ok(()),
            _ => Err(wrong),
        },
        Err(error) => Err(match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR) => wrong,
            Some(Errno::NOTCONN) => MountError::Dead,
            _ => MountError::Mountpoint(error),
        }),
    }
}

/// Returns the path of the helper, if it is installed.
#[must_use]
pub fn helper() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/bin"), PathBuf::from("/usr/bin")]);
    folders.map(|folder| folder.join("fusermount3")).find(|helper| helper.is_file())
}

/// Mounts; returns the device file of the mount.
pub(crate) fn mount(options: &MountOptions) -> Result<OwnedFd, MountError> {
    check_mountpoint(&options.mountpoint, options.root)?;
    if !rustix::process::geteuid().is_root() {
        let helper = helper().ok_or(MountError::NoHelper)?;
        return by_helper(&helper, options);
    }
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(DEVICE);
    let device = OwnedFd::from(opened.map_err(MountError::NoDevice)?);
    let root_mode = match options.root {
        MountRoot::Directory => "40000",
        MountRoot::File => "100000",
    };
    let mut data = format!(
        "fd={},rootmode={root_mode},user_id={},group_id={}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    if options.allow_other {
        data.push_str(",default_permissions,allow_other");
    }
    let data = CString::new(data).expect("digits and letters");
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    if options.read_only {
        flags |= MountFlags::RDONLY;
    }
    if options.no_exec {
        flags |= MountFlags::NOEXEC;
    }
    let kind = format!("fuse.{SUBTYPE}");
    rustix::mount::mount(&*options.source, &options.mountpoint, &*kind, flags, Some(&*data))
        .map_err(|error| MountError::Refused(error.into()))?;
    Ok(device)
}

fn by_helper(helper: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let failed = |error: io::Error| MountError::Helper(error.to_string());
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    // The helper inherits this end.
    fcntl_setfd(&theirs, FdFlags::empty()).map_err(|error| failed(error.into()))?;
    let mut words = b"fsname=".to_vec();
    for byte in options.source.as_bytes() {
        if matches!(byte, b'\\' | b',') {
            words.push(b'\\');
        }
        words.push(*byte);
    }
    words.extend_from_slice(format!(",subtype={SUBTYPE},nosuid,nodev").as_bytes());
    for (given, word) in [
        (options.read_only, ",ro"),
        (options.no_exec, ",noexec"),
        (options.allow_other, ",default_permissions,allow_other"),
    ] {
        if given {
            words.extend_from_slice(word.as_bytes());
        }
    }
    let mut command = Command::new(helper);
    command.arg("-o").arg(OsStr::from_bytes(&words)).arg("--").arg(&options.mountpoint);
    command.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    let child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    drop(theirs);
    let received = receive(&ours);
    let ended = child.wait_with_output().map_err(failed)?;
    match received {
        Ok(Some(device)) => Ok(device),
        Err(error) if ended.status.success() => Err(failed(error)),
        Ok(None) | Err(_) => {
            let message = String::from_utf8_lossy(&ended.stderr);
            let line =
                message.lines().next().unwrap_or("it sent no device").trim_start_matches("fusermount3: ");
            Err(MountError::Helper(line.to_owned()))
        }
    }
}

/// Receives the descriptor that the helper sends with one byte.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_directory_is_a_place() {
        let check = |path: &str| check_mountpoint(Path::new(path), MountRoot::Directory);
        assert!(check("/").is_ok());
        assert!(matches!(check("/proc/version"), Err(MountError::NotADirectory)));
        assert!(matches!(check("/no/such/place"), Err(MountError::NotADirectory)));
    }

    #[test]
    fn disk_needs_an_empty_file() {
        let check = |path: &str| check_mountpoint(Path::new(path), MountRoot::File);
        assert!(check("/proc/version").is_ok(), "its length is 0");
        assert!(matches!(check(env!("CARGO_MANIFEST_PATH")), Err(MountError::NotEmpty)));
        assert!(matches!(check("/"), Err(MountError::NotAFile)));
        assert!(matches!(check("/no/such/place"), Err(MountError::NotAFile)));
    }
}
