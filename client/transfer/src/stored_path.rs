//! Stored paths as a user gave them.

use std::fmt;
use std::ops::Deref;

use sealstone_client::{Client, FileKind, FilePath, Name, Stat};
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::{LinkTarget, shown};

/// A stored path as a user gave it.
#[derive(Clone, Debug)]
pub struct StoredPath {
    path: FilePath,
    /// Whether it ends in a slash: then it must be a directory.
    pub trailing_slash: bool,
}

impl StoredPath {
    /// Returns a path; `trailing_slash`: it ends in a slash.
    #[must_use]
    pub const fn new(path: FilePath, trailing_slash: bool) -> Self {
        Self { path, trailing_slash }
    }
}

impl Deref for StoredPath {
    type Target = FilePath;

    fn deref(&self) -> &FilePath {
        &self.path
    }
}

impl AsRef<[u8]> for StoredPath {
    fn as_ref(&self) -> &[u8] {
        self.path.as_bytes()
    }
}

impl fmt::Display for StoredPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

/// Returns `path`, or `path/NAME` if `path` is a directory; NAME is the last name of `source`.
///
/// # Errors
/// `path` ends in a slash and is no directory, or `source` has no last name.
pub async fn into_directory(client: &Client, path: &StoredPath, source: &[u8]) -> Outcome<FilePath> {
    match client.stat(path).await {
        Ok(stat) if stat.kind == FileKind::Directory => {
            let last = source.split(|byte| *byte == b'/').rfind(|name| !name.is_empty());
            let name = last.and_then(|name| Name::new(name).ok());
            let name = name.ok_or_else(|| Failure::usage("has no last name").at(shown(source)))?;
            path.join(&name).map_err(|error| Failure::usage(error).at(path))
        }
        Ok(_) if path.trailing_slash => Err(Failure::operation("not a directory").at(path)),
        Ok(_) => Ok((**path).clone()),
        Err(error) if error.is_not_found() && !path.trailing_slash => Ok((**path).clone()),
        Err(error) => Err(Failure::from(error).at(path)),
    }
}

/// Returns the target of a symbolic link; `None` for other files, and if it cannot be read.
pub async fn link_target(client: &Client, stat: &Stat) -> Option<LinkTarget> {
    if stat.kind == FileKind::Symlink { client.target_of(stat).await.ok() } else { None }
}
