//! Mounts of stored directories on this machine, and their mount points.
//!
//! Does: checks mount points, mounts a stored directory, waits for the end of a mount, unmounts;
//! waits until a process in the background has mounted; translates arguments of `mount.sealstone`.
//! Does not: answer the kernel, which `sealstone-fuse` does; parse arguments, print, or take
//! signals.
//! Contract: a mount that has ended has stored what programs wrote, or failed with the reason.
//! Truth: docs/adr/0037-fuse-mount.md.

mod background;
mod directory;
mod helper;
mod mount_point;
mod mount_table;

pub use background::start_background;
pub use directory::{DirectoryMount, DirectoryMountOptions};
pub use helper::{helper_arguments, source_of};
pub use mount_point::{RemarkSink, mount_failure, prepare_mount_point, remount, unmount, until_unmounted};
