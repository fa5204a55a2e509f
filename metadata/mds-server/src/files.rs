//! Files of the data folder: written atomically (temporary file, sync, rename), secret ones with
//! mode 0600.
//!
//! Contract: a secret file that other users can read is an error, not a warning.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sealstone_private::PrivateError;

/// Reason why a file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Reading or writing failed.
    #[error("{}", .path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// Other users may read a secret file.
    #[error("{} has mode {mode:o}, but only its owner may have access (chmod 600)", .path.display())]
    Exposed {
        /// Path of the file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A secret file that another user could replace, or that is not a regular file with one name.
    #[error("{} {source}", .path.display())]
    NotPrivate {
        /// Path of the file.
        path: PathBuf,
        /// Failed check.
        source: PrivateError,
    },
}

impl FileError {
    /// Whether a secret was refused because other users may access it.
    pub(crate) const fn is_exposed(&self) -> bool {
        matches!(self, Self::Exposed { .. } | Self::NotPrivate { .. })
    }
}

pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> FileError + '_ {
    move |source| FileError::Io { path: path.to_owned(), source }
}

/// Creates the data folder for its owner only, if it does not exist.
pub(crate) fn make_folder(path: &Path) -> Result<(), FileError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at(path))
}

/// Whether the folder holds any file besides these names.
pub(crate) fn others(path: &Path, names: &[&str]) -> Result<bool, FileError> {
    for entry in fs::read_dir(path).map_err(at(path))? {
        let name = entry.map_err(at(path))?.file_name();
        if !names.iter().any(|own| name == **own) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Writes a file under a temporary name, makes it durable and renames it.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    let temporary = path.with_extension("new");
    let remove = || match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    let fill = || {
        remove()?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        sync_folder_of(path)
    };
    fill().map_err(at(path))
}

/// Syncs the folder of a file; for a path without a folder, the current one.
fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Renames a durable file, durably.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), FileError> {
    let work = || {
        fs::rename(from, to)?;
        sync_folder_of(to)
    };
    work().map_err(at(to))
}

/// Removes a file.
pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    fs::remove_file(path).map_err(at(path))
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    fs::read(path).map_err(at(path))
}

/// Reads a file that only its owner may access.
pub(crate) fn read_secret(path: &Path) -> Result<zeroize::Zeroizing<Vec<u8>>, FileError> {
    let mut file = match sealstone_private::open(path) {
        Err(PrivateError::Mode { mode }) => return Err(FileError::Exposed { path: path.to_owned(), mode }),
        Err(PrivateError::Io(error)) => return Err(at(path)(error)),
        Err(source) => return Err(FileError::NotPrivate { path: path.to_owned(), source }),
        Ok(file) => file,
    };
    let mut bytes = zeroize::Zeroizing::new(Vec::new());
    file.read_to_end(&mut bytes).map_err(at(path))?;
    Ok(bytes)
}
