//! Destination of results, and the observer of a run.

use std::path::{Path, PathBuf};

use sealstone_failure::{Failure, Outcome};

/// Destination of the results of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultDestination {
    /// The observer, which shows them on a terminal: control characters are escaped.
    Terminal,
    /// The observer.
    Observer,
    /// A local file, or a folder for one output of each file.
    File(PathBuf),
}

impl ResultDestination {
    /// Returns the local file or folder.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Terminal | Self::Observer => None,
        }
    }
}

/// Observes a run of a function, and receives its results.
pub trait RunObserver: Send + Sync {
    /// The run on so many files begins; `unit` names the parts that end: files or jobs.
    fn begin(&self, files: u64, unit: &str);
    /// One more part has ended.
    fn part_ended(&self);
    /// All parts have ended.
    fn end(&self);
    /// The run does something that the caller may not expect.
    fn remark(&self, text: &str);
    /// Something went wrong that does not fail the run.
    fn warn(&self, text: &str);
    /// A part has failed. Returns the failure for the report, perhaps with a next step.
    fn part_failed(&self, failure: Failure) -> Failure;
    /// Receives the next bytes of the results.
    ///
    /// # Errors
    /// They cannot be written. The run continues, sends no more results, and fails at its end.
    fn result(&self, bytes: &[u8]) -> Outcome;
}
