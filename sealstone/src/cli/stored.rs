//! Stored paths of the command line, which are bytes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use sealstone_client::FilePath;
use sealstone_failure::{Failure, Outcome};
use sealstone_function_runs::LIBRARY;
use sealstone_mds_protocol::{shown, unshown};
use sealstone_transfer::StoredPath;

use super::GlobalArgs;

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
        Ok(StoredPath::new(path, bytes.ends_with(b"/") && bytes.len() > 1))
    }

    /// Returns the stored path of a function: a name without a slash is in [`LIBRARY`].
    pub(crate) fn function(&self, argument: &OsStr) -> Outcome<FilePath> {
        let bytes = self.bytes(argument)?;
        let whole = if bytes.contains(&b'/') { bytes } else { [LIBRARY.as_bytes(), b"/", &bytes].concat() };
        FilePath::new(&whole).map_err(|error| {
            Failure::usage(format!("invalid path: {error}"))
                .at(shown(&whole))
                .hint("a function is a name in /.functions, or a stored path that begins with /")
        })
    }
}
