//! Files and folders that hold secrets.
//!
//! Does: opens a secret file only if it is not a symbolic link, belongs to this user or root, and
//! no other user can read or replace it; checks a data folder likewise.
//! Does not: write files.
//! Contract: the checks apply to the open file itself, not to its name, so that an exchange in
//! between is detected.
//! Source of truth: docs/reference/files.md (modes); SECURITY.md.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use thiserror::Error;

/// Mode bits that let other users read or write.
const OTHERS: u32 = 0o077;
/// Mode bits that let other users write.
const OTHERS_WRITE: u32 = 0o022;
/// The mode bit that lets any user write.
const ANYBODY_WRITES: u32 = 0o002;
/// The mode bit with which only the owner of an entry replaces it.
const STICKY: u32 = 0o1000;

/// Why a file or folder is not private.
#[derive(Debug, Error)]
pub enum PrivateError {
    /// The system call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is a symbolic link.
    #[error("is a symbolic link: another file could take its place")]
    Symlink,
    /// It is not a regular file.
    #[error("is not a regular file")]
    NotAFile,
    /// It is not a folder.
    #[error("is not a folder")]
    NotAFolder,
    /// Other users can read or write it.
    #[error("mode {mode:03o} lets others {}", if .mode & OTHERS_WRITE == 0 { "read it" } else { "write it" })]
    Mode {
        /// The permission bits.
        mode: u32,
    },
    /// It belongs to another user.
    #[error("belongs to another user (uid {uid})")]
    Owner {
        /// The owner.
        uid: u32,
    },
    /// A folder above it lets any user replace its entries.
    #[error("the folder {} has mode {mode:03o}: others can replace what is in it", folder.display())]
    Parent {
        /// The folder.
        folder: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

impl PrivateError {
    /// Whether a file is refused because of what other users can do, and not because the system
    /// refused.
    #[must_use]
    pub const fn is_denied(&self) -> bool {
        !matches!(self, Self::Io(_))
    }

    /// Returns what the user can do about it.
    #[must_use]
    pub fn next_step(&self, path: &Path) -> Option<String> {
        let shown = path.display();
        match self {
            Self::Io(_) | Self::NotAFile | Self::NotAFolder => None,
            Self::Symlink => Some(format!("give the path of the file itself instead of {shown}")),
            Self::Mode { .. } if path.is_dir() => Some(format!("chmod 700 {shown}")),
            Self::Mode { .. } => Some(format!("chmod 600 {shown}")),
            Self::Owner { .. } => Some(format!("chown it to the user that runs this: {shown}")),
            Self::Parent { folder, .. } => Some(format!("chmod o-w {}", folder.display())),
        }
    }
}

impl From<PrivateError> for io::Error {
    fn from(error: PrivateError) -> Self {
        match error {
            PrivateError::Io(error) => error,
            denied => Self::new(io::ErrorKind::PermissionDenied, denied.to_string()),
        }
    }
}

/// Opens a secret file for reading. A pipe is accepted as it is (`--password-file <(command)`),
/// under `/dev` and `/proc` only.
///
/// # Errors
/// [`PrivateError`].
pub fn open(path: &Path) -> Result<File, PrivateError> {
    let by_descriptor = ["/dev", "/proc"].iter().any(|folder| path.starts_with(folder));
    let mut options = OpenOptions::new();
    options.read(true);
    if !by_descriptor {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        options.custom_flags(flags.bits().cast_signed());
    }
    let file = match options.open(path) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Err(PrivateError::Symlink);
        }
        other => other?,
    };
    let metadata = file.metadata()?;
    if by_descriptor && !metadata.is_file() {
        return Ok(file);
    }
    if !metadata.is_file() {
        return Err(PrivateError::NotAFile);
    }
    check_owner(metadata.uid())?;
    let mode = metadata.mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(PrivateError::Mode { mode });
    }
    if !by_descriptor {
        check_parents(path)?;
    }
    Ok(file)
}

/// Checks the folder of a daemon: its own, and not writable by others.
///
/// # Errors
/// [`PrivateError`].
pub fn check_folder(path: &Path) -> Result<(), PrivateError> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_dir() {
        return Err(PrivateError::NotAFolder);
    }
    check_owner(metadata.uid())?;
    let mode = metadata.mode() & 0o7777;
    if mode & OTHERS_WRITE != 0 {
        return Err(PrivateError::Mode { mode });
    }
    check_parents(path)
}

/// Checks the folders above: one that any user can write, and that is not sticky, lets any user
/// replace the file.
fn check_parents(path: &Path) -> Result<(), PrivateError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for folder in fs::canonicalize(parent)?.ancestors() {
        let mode = fs::metadata(folder)?.mode() & 0o7777;
        if mode & ANYBODY_WRITES != 0 && mode & STICKY == 0 {
            return Err(PrivateError::Parent { folder: folder.to_owned(), mode });
        }
    }
    Ok(())
}

/// Root's files are trusted, and root can read those of any user.
fn check_owner(uid: u32) -> Result<(), PrivateError> {
    let own = rustix::process::geteuid().as_raw();
    if uid == own || uid == 0 || own == 0 { Ok(()) } else { Err(PrivateError::Owner { uid }) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn secret_others_reach_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, "x").unwrap();
        for (mode, good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)] {
            set_mode(&path, mode);
            assert_eq!(open(&path).is_ok(), good, "{mode:o}");
        }
        set_mode(&path, 0o600);
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(matches!(open(&link), Err(PrivateError::Symlink)));
        assert!(matches!(open(folder.path()), Err(PrivateError::NotAFile)));
        assert!(matches!(open(&folder.path().join("none")), Err(PrivateError::Io(_))));
        set_mode(folder.path(), 0o777);
        assert!(matches!(open(&path), Err(PrivateError::Parent { .. })));
        set_mode(folder.path(), 0o1777);
        assert!(open(&path).is_ok());
    }

    #[test]
    fn folder_others_write_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("data");
        fs::create_dir(&folder).unwrap();
        for (mode, good) in [(0o700, true), (0o755, true), (0o775, false), (0o777, false), (0o1777, false)] {
            set_mode(&folder, mode);
            assert_eq!(check_folder(&folder).is_ok(), good, "{mode:o}");
        }
        set_mode(&folder, 0o700);
        set_mode(parent.path(), 0o777);
        assert!(matches!(check_folder(&folder), Err(PrivateError::Parent { .. })));
    }
}
