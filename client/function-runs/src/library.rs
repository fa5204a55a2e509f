//! The directory of shared functions, and failures of functions and jobs.

use sealstone_client::FilePath;
use sealstone_client::functions::{FunctionError, JobStatus};
use sealstone_failure::{Failure, FailureKind};
use sealstone_functions::SHIPPED_FUNCTIONS;

/// Directory of functions that are named without a slash.
pub const LIBRARY: &str = "/.functions";

/// Returns a name of the wire format in the form of JSON.
#[must_use]
pub fn json_name(name: &str) -> String {
    name.replace('-', "_")
}

/// Whether the path is below [`LIBRARY`].
#[must_use]
pub fn is_in_library(path: &FilePath) -> bool {
    path.as_bytes().strip_prefix(LIBRARY.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
}

/// Returns the path of a function of the library.
#[must_use]
pub fn library_path(name: &str) -> String {
    format!("{LIBRARY}/{name}")
}

/// Adds the path to a failure, and the next step if it does not exist.
#[must_use]
pub fn at_function(error: FunctionError, path: &FilePath) -> Failure {
    let failure = Failure::from(error).at(path);
    if failure.kind != FailureKind::NotFound {
        return failure;
    }
    if SHIPPED_FUNCTIONS.iter().any(|function| path.as_bytes() == library_path(function.name).as_bytes()) {
        return failure.hint(
            "an administrator stores the shipped functions by `sealstone fn install`; `sealstone fn ls` lists \
             those of /.functions",
        );
    }
    failure.hint("`sealstone fn ls` lists the functions of /.functions")
}

/// Returns the failure of a job that ended without a complete result.
#[must_use]
pub fn failure_of_ended(job: &str, status: &JobStatus) -> Failure {
    let code = if status.error == 0 { String::new() } else { format!(", code {}", status.error) };
    Failure::operation(format!("job {job} ended as {}: {}{code}", status.state, status.exit))
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
