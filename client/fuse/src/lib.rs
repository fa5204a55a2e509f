//! A FUSE mount of a file system of nodes, or of a disk as one file.
//!
//! Does: mounts it and answers the kernel.
//! Does not: keep data or talk to servers; `sealstone_client::nodes` does.
//! Contract: [`mount`] returns when the mount can be used, [`Mount::ended`] when it was unmounted
//! for any reason.
//! Truth: docs/adr/0037-fuse-mount.md.

mod acl;
mod attributes;
mod directory;
mod disk;
mod examine;
mod handler;
mod id_map;
mod kernel;
mod link_rights;
mod listings;
mod lock_owners;
mod mount_state;
mod pages;
mod set_ids;
mod table;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use sealstone_client::nodes::Nodes;
use sealstone_mds_protocol::Node;

pub use disk::{DiskMountOptions, mount_disk};
pub use examine::examine;
pub use id_map::{IdMap, MountingUser, UNKNOWN_ID, UnknownIdError};
pub use kernel::{MountError, MountRoot, check_mountpoint, helper};

/// Threads that read requests from the kernel; long work runs in tasks.
const THREADS: usize = 2;

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The directory to mount on.
    pub mountpoint: PathBuf,
    /// The source in the table of mounts.
    pub source: OsString,
    /// The type of the root.
    pub root: MountRoot,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Whether programs on it cannot be executed.
    pub no_exec: bool,
    /// Whether other users may use it; the kernel then checks owners and permission bits.
    pub allow_other: bool,
}

/// A mounted file system.
#[derive(Debug)]
pub struct Mount {
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Mount {
    /// Waits until it is unmounted.
    ///
    /// # Errors
    /// The connection to the kernel failed.
    pub fn ended(self) -> io::Result<()> {
        let mut outcome = Ok(());
        for thread in self.threads {
            let served = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome = outcome.and(served);
        }
        outcome
    }
}

/// Mounts `nodes` from `root` down.
///
/// # Errors
/// [`MountError`].
pub fn mount(nodes: Nodes, root: Node, id_map: IdMap, options: &MountOptions) -> Result<Mount, MountError> {
    let device = kernel::mount(options)?;
    start_serving(&options.mountpoint, || {
        let channel = kernel::FuseChannel::open(device, options.allow_other)?;
        let pages = pages::KernelPages::new(channel.clone(), root.inode);
        nodes.set_cache_invalidator(Arc::new(pages::KernelInvalidator(pages.clone())));
        Ok((channel, handler::MountHandler::new(nodes, root, id_map, pages)))
    })
}

/// Starts the threads of a mount; unmounts if that fails.
fn start_serving<H: kernel::RequestHandler>(
    mountpoint: &Path,
    open: impl FnOnce() -> io::Result<(Arc<kernel::FuseChannel>, H)>,
) -> Result<Mount, MountError> {
    let served = open().and_then(|(channel, handler)| {
        let handler = Arc::new(handler);
        let serve = |number| {
            let (channel, handler) = (channel.clone(), handler.clone());
            let thread = std::thread::Builder::new().name(format!("fuse-{number}"));
            thread.spawn(move || channel.serve(&*handler))
        };
        (0..THREADS).map(serve).collect::<io::Result<Vec<_>>>()
    });
    match served {
        Ok(threads) => {
            kernel::read_ahead(mountpoint);
            Ok(Mount { threads })
        }
        Err(error) => {
            let _ = rustix::mount::unmount(mountpoint, rustix::mount::UnmountFlags::DETACH);
            Err(MountError::Refused(error))
        }
    }
}
