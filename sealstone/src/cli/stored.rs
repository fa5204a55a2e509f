//! Stored paths of the command line, which are bytes.

use std::ffi::OsStr;
use std::fmt;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;

use sealstone_client::FilePath;
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::{shown, unshown};

use super::GlobalArgs;

/// A stored path of the command line.
#[derive(Clone, Debug)]
pub(crate) struct StoredPath {
    path: FilePath,
    /// Whether it ends in a slash: then it must be a directory.
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

impl GlobalArgs {
    /// Returns the bytes of an argument, with `--escaped` decoded.
    pub(crate) fn bytes(&self, argument: &OsStr) -> Outcome<Vec<u8>> {
        if !self.escaped {
            return Ok(argument.as_bytes().to_vec());
        }
        let decoded = argument.to_str().and_then(unshown);
        decoded.ok_or_else(|| {
            Failure::usage("invalid escape")
                .at(shown(argument.as_bytes()))
                .hint(r"with --escaped a backslash starts \\ or \xNN")
        })
    }

    /// Returns the stored path of an argument.
    pub(crate) fn stored(&self, argument: &OsStr) -> Outcome<StoredPath> {
        let bytes = self.bytes(argument)?;
        let path = FilePath::new(&bytes).map_err(|error| {
            let failure = Failure::usage(format!("invalid path: {error}")).at(shown(&bytes));
            if bytes.starts_with(b"/") { failure } else { failure.hint("stored paths begin with /") }
        })?;
        Ok(StoredPath { path, trailing_slash: bytes.ends_with(b"/") && bytes.len() > 1 })
    }
}
