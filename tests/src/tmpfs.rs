//! A small separate file system that tests fill.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted tmpfs; unmounted when dropped.
#[derive(Debug)]
pub struct Tmpfs(PathBuf);

/// Whether this process may mount a tmpfs, which needs root. Reports the test as left out if not.
#[must_use]
pub fn can_mount_tmpfs() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        crate::left_out("a tmpfs needs root");
    }
    is_root
}

impl Tmpfs {
    /// Mounts a tmpfs of this many MiB at a new folder.
    ///
    /// # Panics
    /// If the system refuses.
    #[track_caller]
    #[must_use]
    pub fn mount(place: &Path, size_mib: u32) -> Self {
        fs::create_dir(place).expect("a new folder");
        let options = format!("size={size_mib}M,mode=0700");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(place).status();
        assert!(mount.expect("mount starts").success(), "a tmpfs at {}", place.display());
        Self(place.to_owned())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Fills a file system completely with a file of this name. Returns its length.
///
/// # Panics
/// If the file cannot be created.
#[track_caller]
pub fn fill(path: &Path) -> u64 {
    let mut file = File::create(path).expect("made");
    let mut taken = 0;
    for piece in [1 << 20, 4096, 1] {
        let bytes = vec![0x55_u8; piece];
        while file.write_all(&bytes).is_ok() {
            taken += piece as u64;
        }
    }
    taken
}
