//! A disk as one file, mounted by FUSE, for programs that need a file or a loop device.
//!
//! Does: mounts it on a file, and answers the kernel.
//! Does not: cache; the kernel does not either, since the file is open for direct I/O.
//! Contract: an fsync is answered when all acknowledged writes are durable, and fails once for each
//! open file after a loss.

mod file;
mod handler;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use sealstone_nbd::BlockBackend;
use tokio::runtime::Handle;

use crate::kernel::{self, FuseChannel, MountRoot};
use crate::{Mount, MountError, start_serving};

/// Options of a disk that is mounted as a file.
#[derive(Clone, Debug)]
pub struct DiskMountOptions {
    /// The file to mount on.
    pub file: PathBuf,
    /// The source in the table of mounts.
    pub source: OsString,
    /// Whether changes are refused.
    pub read_only: bool,
}

/// Mounts a disk. Requests run in the runtime of the caller.
///
/// # Errors
/// [`MountError`].
///
/// # Panics
/// Outside of a tokio runtime.
pub fn mount_disk<B: BlockBackend>(backend: Arc<B>, options: &DiskMountOptions) -> Result<Mount, MountError> {
    let runtime = Handle::current();
    let device = kernel::mount(&crate::MountOptions {
        mountpoint: options.file.clone(),
        source: options.source.clone(),
        root: MountRoot::File,
        read_only: options.read_only,
        no_exec: true,
        allow_other: false,
    })?;
    start_serving(&options.file, || {
        let channel = FuseChannel::open_disk(device)?;
        Ok((channel, handler::DiskHandler::new(file::DiskFile::new(backend), runtime)))
    })
}
