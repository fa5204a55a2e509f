//! The directory of shared functions, and failures of functions and jobs.

use sealstone_client::FilePath;
use sealstone_client::functions::{FunctionError, JobStatus};
use sealstone_failure::{Failure, FailureKind, Outcome};
use sealstone_functions::SHIPPED_FUNCTIONS;

/// Directory of functions that are named without a slash.
pub const LIBRARY: &str = "/.functions";

/// Returns a name of the wire format in the form of JSON.
pub(crate) fn json_name(name: &str) -> String {
    name.replace('-', "_")
}

/// Whether the path is below [`LIBRARY`].
pub(crate) fn is_in_library(path: &FilePath) -> bool {
    path.as_bytes().strip_prefix(LIBRARY.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
}

/// Returns the path of a function of the library.
///
/// # Errors
/// The name is not that of a file.
pub fn library_path(name: &str) -> Outcome<FilePath> {
    FilePath::new(format!("{LIBRARY}/{name}")).map_err(Failure::usage)
}

/// Adds the path to a failure, and the next step if it does not exist.
#[must_use]
pub fn at_function(error: FunctionError, path: &FilePath) -> Failure {
    let failure = Failure::from(error).at(path);
    if failure.kind != FailureKind::NotFound {
        return failure;
    }
    if SHIPPED_FUNCTIONS.iter().any(|function| library_path(function.name).is_ok_and(|known| known == *path))
    {
        return failure.hint(
            "an administrator stores the shipped functions by `sealstone fn install`; `sealstone fn ls` lists \
             those of /.functions",
        );
    }
    failure.hint("`sealstone fn ls` lists the functions of /.functions")
}

/// Returns the state and exit reason of a run as text: `failed: trap, code 11`.
pub(crate) fn end_text(status: &JobStatus) -> String {
    let code = if status.error == 0 { String::new() } else { format!(", code {}", status.error) };
    format!("{}: {}{code}", status.state, status.exit)
}

/// Returns the failure of a job that ended without a complete result.
pub(crate) fn failure_of_ended(job: &str, status: &JobStatus) -> Failure {
    Failure::operation(format!("job {job} ended as {}", end_text(status)))
        .hint(format!("`sealstone job log {job}` shows its log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_has_only_paths_below_it() {
        for (path, below) in [("/.functions/a", true), ("/.functions-old/a", false), ("/.functions", false)] {
            assert_eq!(is_in_library(&FilePath::new(path.as_bytes()).unwrap()), below, "{path}");
        }
    }
}
