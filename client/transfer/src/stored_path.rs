//! Stored paths as a user gave them.

use std::fmt;
use std::ops::Deref;

use sealstone_client::FilePath;

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
