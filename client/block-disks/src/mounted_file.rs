//! The file of this machine that a unit is mounted on.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};
use sealstone_fuse::MountRoot;
use sealstone_mounts::{RemarkSink, prepare_mount_point};

/// The empty file that a unit is mounted on; removed at the end if it was created here.
pub(crate) struct MountedFile<'a> {
    path: &'a Path,
    is_created: bool,
}

impl<'a> MountedFile<'a> {
    /// Creates the file unless it exists, and checks that it can be mounted on.
    pub(crate) fn create(path: &'a Path, remark: RemarkSink<'_>) -> Outcome<Self> {
        let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let is_created = match created {
            Ok(_) => true,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(Failure::from(error).at(path.shown())),
        };
        let file = Self { path, is_created };
        prepare_mount_point(path, MountRoot::File, remark)?;
        Ok(file)
    }
}

impl Drop for MountedFile<'_> {
    fn drop(&mut self) {
        let is_empty = || std::fs::symlink_metadata(self.path).is_ok_and(|found| found.len() == 0);
        if self.is_created && is_empty() {
            let _ = std::fs::remove_file(self.path);
        }
    }
}
