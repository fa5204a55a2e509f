//! Mount points: checks, dead mounts, flags, unmounting.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};
use sealstone_daemon::Shutdown;
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};
use sealstone_fuse::{Mount, MountError, MountRoot};

use crate::mount_table::is_mount;

/// Receives remarks about what is done beside the request.
pub type RemarkSink<'a> = &'a (dyn Fn(&str) + Sync);

/// Checks a mount point, and removes a dead mount on it.
///
/// # Errors
/// It does not fit, or something is mounted there.
pub fn prepare_mount_point(place: &Path, root: MountRoot, remark: RemarkSink<'_>) -> Outcome {
    match sealstone_fuse::check_mountpoint(place, root) {
        Err(MountError::Dead) => {
            remark(&format!("{}: removing a dead mount", place.shown()));
            detach(place, true)?;
            sealstone_fuse::check_mountpoint(place, root).map_err(|error| mount_failure(error, place))?;
        }
        outcome => outcome.map_err(|error| mount_failure(error, place))?,
    }
    let whole = std::fs::canonicalize(place).map_err(|error| Failure::from(error).at(place.shown()))?;
    if is_mount(&whole)? {
        // A second mount would hide the first one and need a second umount.
        return Err(Failure::operation("already a sealstone mount")
            .at(place.shown())
            .hint("run `sealstone umount MOUNTPOINT` first"));
    }
    Ok(())
}

/// Changes the flags of an existing mount in the kernel.
///
/// # Errors
/// Nothing of Sealstone is mounted there, or the kernel refuses.
pub fn remount(place: &Path, read_only: bool, no_exec: bool) -> Outcome {
    let at = |error: std::io::Error| Failure::from(error).at(place.shown());
    if !is_mount(&std::fs::canonicalize(place).map_err(at)?)? {
        return Err(no_mount(place));
    }
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::RDONLY, read_only);
    flags.set(MountFlags::NOEXEC, no_exec);
    rustix::mount::mount_remount(place, flags, "").map_err(|error| at(error.into()))
}

fn no_mount(place: &Path) -> Failure {
    Failure::operation("not a sealstone mount").at(place.shown()).hint("`findmnt` lists all mounts")
}

/// Unmounts in order: data of closed files are stored first. A lazy unmount does not wait for
/// programs that use the mount, nor for that data.
///
/// # Errors
/// Nothing of Sealstone is mounted there, the data cannot be stored, or programs use it.
pub fn unmount(place: &Path, is_lazy: bool) -> Outcome {
    let is_dead =
        matches!(sealstone_fuse::check_mountpoint(place, MountRoot::Directory), Err(MountError::Dead));
    if is_dead {
        return detach(place, true);
    }
    let whole = std::fs::canonicalize(place).map_err(|error| Failure::from(error).at(place.shown()))?;
    if !is_mount(&whole)? {
        return Err(no_mount(place));
    }
    // Closed files become durable first; failures are reported.
    let synced = File::open(&whole).and_then(|directory| directory.sync_all());
    if let Err(error) = synced
        && !is_lazy
    {
        return Err(Failure::from(error)
            .at(format!("{}: unflushed data could not be stored", place.shown()))
            .hint("check servers and devices and try again; --lazy discards the data"));
    }
    detach(&whole, is_lazy)
}

/// Waits until it is unmounted, by others or because of the shutdown, which unmounts it lazily
/// while programs use it. `copies_timeout` limits the wait for copies of an unused mount in other
/// mount namespaces.
///
/// # Errors
/// The connection to the kernel failed.
pub async fn until_unmounted(
    mounted: Mount,
    place: &Path,
    copies_timeout: Option<Duration>,
    shutdown: &Shutdown,
) -> Outcome {
    let mut ended = tokio::task::spawn_blocking(move || mounted.ended());
    let unmount = |is_lazy| {
        let place = place.to_owned();
        tokio::task::spawn_blocking(move || detach(&place, is_lazy))
    };
    let joined = tokio::select! {
        biased;
        joined = &mut ended => joined,
        () = shutdown.wait() => {
            let is_unused = matches!(unmount(false).await, Ok(Ok(())));
            if !is_unused {
                let _ = unmount(true).await;
            }
            match copies_timeout.filter(|_| is_unused) {
                None => ended.await,
                Some(limit) => match tokio::time::timeout(limit, &mut ended).await {
                    Ok(joined) => joined,
                    Err(_) => {
                        tracing::warn!("another mount namespace, such as a container, has a copy of the mount");
                        return Ok(());
                    }
                },
            }
        }
    };
    match joined {
        Ok(outcome) => outcome.map_err(|error| Failure::from(error).at("the connection to the kernel")),
        Err(error) => Err(Failure::operation(error).at("mount")),
    }
}

/// Returns the failure of a mount, with the next step.
#[must_use]
pub fn mount_failure(error: MountError, place: &Path) -> Failure {
    let chained = sealstone_failure::chain(&error);
    let failure = Failure::operation(chained).at(place.shown());
    match error {
        MountError::NotADirectory if !place.exists() => {
            Failure::not_found("no such directory").at(place.shown()).hint("create it first: mkdir")
        }
        MountError::NotADirectory => failure.hint("choose a directory"),
        MountError::NotAFile | MountError::NotEmpty => failure.hint("choose an empty file or a new path"),
        MountError::NoDevice(_) => {
            failure.hint("load FUSE with `modprobe fuse`, or give the container /dev/fuse")
        }
        MountError::NoHelper => failure.hint("install the package fuse3, or mount as root"),
        MountError::Dead => failure.hint("sealstone umount --lazy MOUNTPOINT"),
        MountError::Refused(_) => {
            failure.hint("--allow-other needs root, or user_allow_other in /etc/fuse.conf")
        }
        _ => failure,
    }
}

/// Removes a mount from the table of the kernel; a lazy one also while programs use it.
fn detach(place: &Path, lazy: bool) -> Outcome {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let error = match rustix::mount::unmount(place, flags) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::PERM) => return by_helper(place, lazy),
        Err(error) => error,
    };
    let failure = Failure::operation(std::io::Error::from(error)).at(place.shown());
    Err(match error {
        rustix::io::Errno::BUSY => {
            failure.hint("`fuser -vm MOUNTPOINT` shows the programs that use it; --lazy unmounts anyway")
        }
        rustix::io::Errno::INVAL => failure.hint("nothing is mounted there"),
        _ => failure,
    })
}

/// Unmounts by the FUSE helper, for users other than root.
fn by_helper(place: &Path, lazy: bool) -> Outcome {
    let Some(helper) = sealstone_fuse::helper() else {
        return Err(mount_failure(MountError::NoHelper, place));
    };
    let mut command = Command::new(helper);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let ended = command.arg("--").arg(place).stdin(Stdio::null()).output()?;
    if ended.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&ended.stderr);
    Err(Failure::operation(message.lines().next().unwrap_or("fusermount3 failed")).at(place.shown()))
}
