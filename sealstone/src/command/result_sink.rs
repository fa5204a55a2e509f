//! Where the results of functions go: standard output, or a local file.

use std::ffi::OsStr;
use std::io::Write as _;

use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};

use crate::output::{Output, print_bytes};

/// Destination of the results.
pub(super) enum ResultSink {
    /// Standard output, unless it has the JSON of the command.
    Standard,
    /// A local file that is complete when the command ends.
    File(std::fs::File),
}

impl ResultSink {
    pub(super) fn open(path: &OsStr) -> Outcome<Self> {
        if path == "-" {
            return Ok(Self::Standard);
        }
        let file = std::fs::File::create(path).map_err(|error| Failure::from(error).at(path.shown()))?;
        Ok(Self::File(file))
    }

    pub(super) fn write(&mut self, path: &OsStr, output: Output, bytes: &[u8]) -> Outcome {
        match self {
            Self::Standard if output.is_json() => Ok(()),
            Self::Standard => print_bytes(bytes),
            Self::File(file) => file.write_all(bytes).map_err(|error| Failure::from(error).at(path.shown())),
        }
    }
}
