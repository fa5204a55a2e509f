//! Files of the data folder: written whole or not at all, secret ones for the owner only.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sealstone_private::PrivateError;

/// A file that could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Reading or writing failed.
    #[error("{}", .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Others may read a secret.
    #[error("{} has mode {mode:o}, but only its owner may have access (chmod 600)", .path.display())]
    Exposed {
        /// Which.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A secret that another user could replace, or that is no file of its own.
    #[error("{} {source}", .path.display())]
    NotPrivate {
        /// Which.
        path: PathBuf,
        /// Why.
        source: PrivateError,
    },
}

impl FileError {
    /// Whether a secret is refused because of what other users can do.
    pub(crate) const fn is_exposed(&self) -> bool {
        matches!(self, Self::Exposed { .. } | Self::NotPrivate { .. })
    }
}

pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> FileError + '_ {
    move |source| FileError::Io { path: path.to_owned(), source }
}

/// Makes the data folder, for its owner only, if it is not there.
pub(crate) fn make_folder(path: &Path) -> Result<(), FileError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at(path))
}

/// Does the folder hold anything besides files of these names?
pub(crate) fn others(path: &Path, names: &[&str]) -> Result<bool, FileError> {
    for entry in fs::read_dir(path).map_err(at(path))? {
        let name = entry.map_err(at(path))?.file_name();
        if !names.iter().any(|own| name == **own) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Writes a file under a temporary name, makes it durable and gives it its name.
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

/// Makes durable which names there are beside a file; one without a folder before its name is in the current one.
fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Gives a durable file its name, durably.
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

/// Reads a file that must be for its owner only.
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
