//! The root file system of an engine: a tmpfs with its code and read-only binds.
//!
//! Contract: after [`enter`], no other file of the machine can be reached by a path.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};

use crate::message::StepFailure;
use crate::options::ReadOnlyBind;
use crate::system;

/// A folder of every Linux system, over which the root is mounted before it is entered.
const MOUNT_POINT: &str = "/proc";
/// Bytes of the tmpfs besides the code, for its folders.
const SPARE_BYTES: u64 = 1 << 20;
/// Files and folders of the tmpfs; each bind needs those of its path.
const INODES_MAX: u32 = 1024;

/// The code of a function as it is copied to the root.
pub(super) struct RootFile<'a> {
    pub(super) name: &'a str,
    pub(super) length: u64,
    pub(super) file: &'a OwnedFd,
}

/// Moves the process to a root with the code and the binds, and detaches everything else.
pub(super) fn enter(code: Option<RootFile<'_>>, binds: &[ReadOnlyBind]) -> Result<(), StepFailure> {
    let step = |name: &'static str| move |error: io::Error| StepFailure::new(name, &error);
    // Later mounts of the machine do not appear in the binds.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|error| StepFailure::new("make mounts private", &error.into()))?;
    mount_root(code.as_ref().map_or(0, |code| code.length)).map_err(step("mount the root"))?;
    for bind in binds {
        add_bind(bind)
            .map_err(|error| StepFailure::new(&format!("bind {}", bind.source.display()), &error))?;
    }
    if let Some(code) = code {
        copy_code(&code).map_err(step("copy the code"))?;
    }
    pivot().map_err(step("enter the root"))
}

fn mount_root(code_bytes: u64) -> io::Result<()> {
    let data = CString::new(format!("mode=0755,size={},nr_inodes={INODES_MAX}", code_bytes + SPARE_BYTES))?;
    // Without NOEXEC: the code is mapped executable from here.
    Ok(mount("engine", MOUNT_POINT, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(data.as_c_str()))?)
}

fn add_bind(bind: &ReadOnlyBind) -> io::Result<()> {
    let target = in_root(&bind.target)?;
    let mut folders = fs::DirBuilder::new();
    folders.recursive(true).mode(0o755);
    if fs::metadata(&bind.source)?.is_dir() {
        folders.create(&target)?;
    } else {
        folders.create(target.parent().unwrap_or(Path::new(MOUNT_POINT)))?;
        fs::File::create(&target)?;
    }
    mount_bind_recursive(&bind.source, &target)?;
    system::set_mount_read_only(&CString::new(target.as_os_str().as_bytes())?)
}

/// Returns where a path of the root is before the root is entered.
fn in_root(target: &Path) -> io::Result<PathBuf> {
    let below = target.strip_prefix("/").map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    Ok(Path::new(MOUNT_POINT).join(below))
}

fn copy_code(code: &RootFile<'_>) -> io::Result<()> {
    let path = Path::new(MOUNT_POINT).join(code.name);
    let file = fs::File::options().write(true).create_new(true).mode(0o444).open(path)?;
    // Engines share the memory file, so its own position is not used.
    let mut position = 0;
    while position < code.length {
        let rest = usize::try_from(code.length - position).unwrap_or(usize::MAX);
        if rustix::fs::sendfile(&file, code.file.as_fd(), Some(&mut position), rest)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

fn pivot() -> io::Result<()> {
    std::env::set_current_dir(MOUNT_POINT)?;
    // With one folder for both roots the old one is mounted over the new one, and then detached.
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    std::env::set_current_dir("/")?;
    Ok(mount_remount("/", MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV, "")?)
}
