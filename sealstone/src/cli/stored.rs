//! Stored paths on the command line: bytes as they were typed.

use std::ffi::OsStr;
use std::fmt;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;

use sealstone_client::FilePath;
use sealstone_mds_protocol::{shown, unshown};

use super::Global;
use crate::failure::{Failure, Outcome};

/// A stored path that a user typed.
#[derive(Clone, Debug)]
pub(crate) struct StoredPath {
    path: FilePath,
    /// Whether it ended in a slash: then only a directory is meant.
    pub(crate) trailing_slash: bool,
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

impl Global {
    /// Returns the bytes that an argument stands for: itself, or with `--escaped` what its escapes say.
    pub(crate) fn bytes(&self, argument: &OsStr) -> Outcome<Vec<u8>> {
        if !self.escaped {
            return Ok(argument.as_bytes().to_vec());
        }
        let meant = argument.to_str().and_then(unshown);
        meant.ok_or_else(|| {
            Failure::usage("is not escaped text")
                .at(shown(argument.as_bytes()))
                .hint(r"with --escaped a backslash begins \\ or \xNN")
        })
    }

    /// Returns the stored path that an argument names.
    pub(crate) fn stored(&self, argument: &OsStr) -> Outcome<StoredPath> {
        let bytes = self.bytes(argument)?;
        let path = FilePath::new(&bytes).map_err(|error| {
            let failure = Failure::usage(format!("not a name that is allowed: {error}")).at(shown(&bytes));
            if bytes.starts_with(b"/") { failure } else { failure.hint("stored paths begin with /") }
        })?;
        Ok(StoredPath { path, trailing_slash: bytes.ends_with(b"/") && bytes.len() > 1 })
    }
}
