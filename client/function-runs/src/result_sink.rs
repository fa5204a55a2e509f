//! Where the results of a run go: the observer, or a local file.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};

use crate::observer::{ResultDestination, RunObserver};

/// Destination of the bytes of results.
#[derive(Debug)]
pub enum ResultSink {
    /// The observer.
    Observer,
    /// The report has the results instead.
    Report,
    /// A local file that is complete when the run ends.
    File(File, PathBuf),
}

impl ResultSink {
    /// Opens the destination. A report with JSON has the results that do not go to a file.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn open(destination: &ResultDestination, with_json: bool) -> Outcome<Self> {
        match destination {
            ResultDestination::Terminal | ResultDestination::Observer => Ok(Self::standard(with_json)),
            ResultDestination::File(path) => {
                let file = File::create(path).map_err(|error| Failure::from(error).at(path.shown()))?;
                Ok(Self::File(file, path.clone()))
            }
        }
    }

    /// Returns the destination of results that do not go to a file.
    pub(crate) const fn standard(with_json: bool) -> Self {
        if with_json { Self::Report } else { Self::Observer }
    }

    /// Whether the results go to a file.
    #[must_use]
    pub const fn is_file(&self) -> bool {
        matches!(self, Self::File(..))
    }

    /// Writes the next bytes.
    ///
    /// # Errors
    /// The observer or the file does not take them.
    pub fn write(&mut self, observer: &dyn RunObserver, bytes: &[u8]) -> Outcome {
        match self {
            Self::Observer => observer.result(bytes),
            Self::Report => Ok(()),
            Self::File(file, path) => {
                file.write_all(bytes).map_err(|error| Failure::from(error).at(path.shown()))
            }
        }
    }

    /// Makes the bytes of a file durable.
    pub(crate) fn sync(&self) -> Outcome {
        match self {
            Self::Observer | Self::Report => Ok(()),
            Self::File(file, path) => file.sync_all().map_err(|error| Failure::from(error).at(path.shown())),
        }
    }
}
