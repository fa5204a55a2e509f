//! Mounts of stored directories on this machine, and their mount points.
//!
//! Does: checks mount points, mounts a stored directory, waits for the end of a mount, unmounts.
//! Does not: answer the kernel, which `sealstone-fuse` does; parse arguments, print, take signals,
//! or start processes in the background.
//! Contract: a mount that has ended has stored what programs wrote, or failed with the reason.
//! Truth: docs/adr/0037-fuse-mount.md.

mod directory;
mod mount_point;
mod mount_table;

pub use directory::{DirectoryMount, DirectoryMountOptions};
pub use mount_point::{
    RemarkSink, detach, mount_failure, prepare_mount_point, remount, unmount, until_unmounted,
};
pub use mount_table::is_mount;
