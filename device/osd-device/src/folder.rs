//! The trait for the folder with a device's own small files (keys, boot record, configuration), and
//! its implementation by a directory.
//!
//! Does: read and write whole files, overwrite a part of one in place, store state in slot files.
//! Does not: interpret the content.
//! Contract: when `write` and `overwrite` return, the content is durable; names are durable when
//! `sync` returns. After a crash at any step, a file that `replace` or `store` wrote has either the
//! old or the new content, complete. `store` needs no free space if the content fits the slots of
//! the file.
//! Truth: docs/design/security.md 3.7 (atomic rename, fsync of the directory);
//! docs/adr/0056-full-disks.md.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use sealstone_private::PrivateError;
use sealstone_slots::Plan;
use zeroize::Zeroizing;

use crate::provision::ProvisionError;

/// A flat folder of small private files.
pub trait Folder: Send + Sync {
    /// Returns the content of a file; `None` if it does not exist. Refuses a file that is longer
    /// than `len_max` bytes, not a regular file, or readable by other users.
    ///
    /// # Errors
    /// The error of the system; `PermissionDenied` for a file that other users can read.
    fn read(&self, name: &str, len_max: u64) -> io::Result<Option<Vec<u8>>>;

    /// Writes a whole file with mode 0600, and makes its content durable.
    ///
    /// # Errors
    /// The error of the system.
    fn write(&self, name: &str, content: &[u8]) -> io::Result<()>;

    /// Overwrites a part of an existing file durably, without changing its length.
    ///
    /// # Errors
    /// The error of the system. The part may then have any content.
    fn overwrite(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Renames a file, replacing any file of the new name.
    ///
    /// # Errors
    /// The error of the system.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Makes names durable.
    ///
    /// # Errors
    /// The error of the system.
    fn sync(&self) -> io::Result<()>;

    /// Returns the path of a file, for messages.
    fn path(&self, name: &str) -> PathBuf;
}

/// Replaces a file atomically: after a crash it has either the old or the new content.
///
/// # Errors
/// [`ProvisionError::Io`]: the content may be old or new. With `StorageFull` it is the old one.
pub fn replace(folder: &dyn Folder, name: &str, content: &[u8]) -> Result<(), ProvisionError> {
    let fresh = format!("{name}.new");
    folder
        .write(&fresh, content)
        .and_then(|()| folder.rename(&fresh, name))
        // The new file already has the name, so a failed sync must not look like a full disk.
        .and_then(|()| folder.sync().map_err(io::Error::other))
        .map_err(|source| ProvisionError::Io { path: folder.path(name), source })
}

/// Stores the content of a slot file: in place if it fits, so that a full disk does not matter.
///
/// # Errors
/// [`ProvisionError::Io`]: the content is old or new. With `StorageFull` it is the old one.
pub fn store(folder: &dyn Folder, name: &str, content: &[u8]) -> Result<(), ProvisionError> {
    let file_max = sealstone_slots::file_len_max(sealstone_slots::CONTENT_MAX as u64);
    let at = |source| ProvisionError::Io { path: folder.path(name), source };
    let file = folder.read(name, file_max).map_err(at)?.map(Zeroizing::new);
    match sealstone_slots::plan(file.as_deref().map(Vec::as_slice), content) {
        // A failed write in place may have changed the file, so it must not look like a full disk.
        Plan::InPlace { offset, bytes } => {
            folder.overwrite(name, offset, &bytes).map_err(io::Error::other).map_err(at)
        }
        Plan::Whole(bytes) => replace(folder, name, &bytes),
    }
}

/// Reads the content of a slot file, of at most `len_max` bytes; `None` if there is no file.
///
/// # Errors
/// As [`Folder::read`]; `InvalidData` for a slot file without a valid slot.
pub fn load(folder: &dyn Folder, name: &str, len_max: u64) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let file = folder.read(name, sealstone_slots::file_len_max(len_max))?.map(Zeroizing::new);
    let content = file.as_deref().map(|file| sealstone_slots::content(file)).transpose()?;
    Ok(content.map(|content| Zeroizing::new(content.to_vec())))
}

/// A directory of the file system.
#[derive(Clone, Debug)]
pub struct DirectoryFolder(pub PathBuf);

impl Folder for DirectoryFolder {
    fn read(&self, name: &str, len_max: u64) -> io::Result<Option<Vec<u8>>> {
        let path = self.0.join(name);
        let file = match sealstone_private::open(&path) {
            Err(PrivateError::Io(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(PrivateError::Mode { mode }) => {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    format!("mode {mode:04o}, want 0600"),
                ));
            }
            other => other?,
        };
        let meta = file.metadata()?;
        if meta.len() > len_max {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "file is too long"));
        }
        // Allocated in full, so that growing leaves no copy of a secret behind.
        let mut content = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0) + 1);
        file.take(len_max).read_to_end(&mut content)?;
        Ok(Some(content))
    }

    fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let path = self.0.join(name);
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(content)?;
        file.sync_all()
    }

    fn overwrite(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.0.join(name))?;
        file.write_all_at(bytes, offset)?;
        file.sync_data()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}
