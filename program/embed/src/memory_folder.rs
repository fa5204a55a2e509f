//! A private folder in the memory of the machine, removed with its handle.
//!
//! Does: creates the folder on the memory file system, and removes those that a killed process
//! left behind.
//! Contract: a folder is locked while its process uses it; a folder without a lock is abandoned.
//! Truth: docs/reference/files.md (folders in memory).

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock, statfs};
use rustix::process::geteuid;
use sealstone_client::{Environment as _, SystemEnvironment};
use sealstone_failure::{Failure, Outcome};

/// The memory file system that every Linux distribution mounts.
const MEMORY_FILE_SYSTEM: &str = "/dev/shm";
/// Type of a memory file system, as statfs(2) returns it.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// First part of the name of a folder; random digits follow.
const PREFIX: &str = "sealstone-embedded-";
/// Maximum folders that are checked for abandoned ones at a start.
const ABANDONED_CHECKED_MAX: usize = 256;
/// Maximum attempts to create a folder. Another process may remove one before it is locked.
const ATTEMPTS_MAX: u32 = 8;

/// A folder in memory. Dropping it removes the folder with its content.
#[derive(Debug)]
pub(crate) struct MemoryFolder {
    path: PathBuf,
    free: u64,
    /// Locked while the folder is in use.
    _lock: File,
}

impl MemoryFolder {
    /// Creates a folder, if the memory file system has `needed` bytes free.
    pub(crate) fn create(needed: u64) -> Outcome<Self> {
        Self::create_in(Path::new(MEMORY_FILE_SYSTEM), needed)
    }

    fn create_in(parent: &Path, needed: u64) -> Outcome<Self> {
        let in_folder = "store the cluster in a folder instead";
        let at = |failure: Failure| failure.at(parent.display()).or_hint(in_folder);
        remove_abandoned(parent);
        let info = statfs(parent).map_err(|error| at(std::io::Error::from(error).into()))?;
        if u64::try_from(info.f_type).ok() != Some(TMPFS_MAGIC) {
            return Err(at(Failure::operation("not a memory file system")));
        }
        let free = info.f_bavail.saturating_mul(u64::try_from(info.f_bsize).unwrap_or(0));
        if free < needed {
            let message = format!("{} MiB of memory are required, {} are free", needed >> 20, free >> 20);
            return Err(at(Failure::operation(message)));
        }
        for _ in 0..ATTEMPTS_MAX {
            let mut random = [0; 8];
            SystemEnvironment.fill_random(&mut random);
            let path = parent.join(format!("{PREFIX}{:016x}", u64::from_be_bytes(random)));
            let created = DirBuilder::new().mode(0o700).create(&path);
            created.map_err(|error| Failure::from(error).at(path.display()).or_hint(in_folder))?;
            if let Some(lock) = lock_existing(&path) {
                return Ok(Self { path, free, _lock: lock });
            }
        }
        Err(at(Failure::operation("other processes remove the folders of this one")))
    }

    /// Returns the path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the free bytes of the memory file system before the folder was created.
    pub(crate) const fn free_bytes(&self) -> u64 {
        self.free
    }
}

impl Drop for MemoryFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, folder = %self.path.display(), "cannot remove the folder of an ended cluster");
        }
    }
}

/// Locks a folder. Returns `None` if another process has the lock, or has removed the folder.
fn lock_existing(path: &Path) -> Option<File> {
    let folder = File::open(path).ok()?;
    flock(&folder, FlockOperation::NonBlockingLockExclusive).ok()?;
    let (locked, named) = (folder.metadata().ok()?, fs::symlink_metadata(path).ok()?);
    (locked.dev() == named.dev() && locked.ino() == named.ino()).then_some(folder)
}

/// Removes the folders of this user that no process uses.
fn remove_abandoned(parent: &Path) {
    let own = geteuid().as_raw();
    let named = |name: &std::ffi::OsStr| {
        let digits = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        digits
            .is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| named(&entry.file_name())).take(ABANDONED_CHECKED_MAX) {
        let path = entry.path();
        let is_own = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir() && found.uid() == own);
        if is_own && let Some(_lock) = lock_existing(&path) {
            // Another process may remove it as well; it is tried again at the next start.
            let _ = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> tempfile::TempDir {
        tempfile::tempdir_in(MEMORY_FILE_SYSTEM).expect("folder in memory")
    }

    #[test]
    fn folder_ends_with_its_handle() {
        let parent = memory();
        let folder = MemoryFolder::create_in(parent.path(), 1).expect("created");
        fs::write(folder.path().join("file"), b"content").expect("written");
        assert_eq!(fs::metadata(folder.path()).expect("folder").mode() & 0o777, 0o700);
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn only_abandoned_folders_are_removed() {
        let parent = memory();
        let used = MemoryFolder::create_in(parent.path(), 1).expect("created");
        let abandoned = parent.path().join(format!("{PREFIX}{:016x}", 7));
        let others = [parent.path().join(format!("{PREFIX}notes")), parent.path().join("folder")];
        fs::create_dir_all(abandoned.join("below")).expect("folder");
        others.iter().for_each(|other| fs::create_dir(other).expect("folder"));
        let next = MemoryFolder::create_in(parent.path(), 1).expect("created");
        assert!(!abandoned.exists());
        assert!([used.path(), next.path()].iter().all(|path| path.exists()));
        assert!(others.iter().all(|other| other.exists()));
    }

    #[test]
    fn unsuitable_file_systems_are_refused() {
        let parent = memory();
        let scarce = MemoryFolder::create_in(parent.path(), u64::MAX).expect_err("too much");
        assert!(scarce.message.contains("MiB of memory are required"), "{scarce}");
        let disk = MemoryFolder::create_in(Path::new("/proc"), 1).expect_err("no memory file system");
        assert!(disk.message.contains("not a memory file system"), "{disk}");
        assert_eq!(disk.next_step.as_deref(), Some("store the cluster in a folder instead"));
    }
}
