//! Runs of functions over stored files: jobs on devices, runs at the client, results.
//!
//! Does: finds the files, starts the jobs, reduces the results of shipped functions to one for each
//! file and a total, writes outputs, and runs functions in an engine of this machine.
//! Does not: parse arguments, print, or take signals.
//! Contract: a result reaches the observer or its file in the order of the files, and only if it is
//! complete.
//! Truth: docs/how-to/functions.md; docs/reference/json.md.

mod call_plan;
mod client_engine;
mod file_output;
mod files;
mod library;
mod local_engine;
mod local_run;
mod observer;
mod reduction;
mod report;
mod result_sink;
mod result_text;
mod run;
mod second;
mod stored_object;

pub use call_plan::{CallPlan, add_argument_file, is_reducible, parse_pair};
pub use files::InputFiles;
pub use library::{LIBRARY, at_function, failure_of_ended, is_in_library, json_name, library_path};
pub use local_engine::{LocalCall, LocalEngine, LocalLimits, LocalRunEnd, READS, failure_of};
pub use observer::{ResultDestination, RunObserver};
pub use reduction::{FileResult, Reduction};
pub use report::FunctionRunReport;
pub use run::run_function;
pub use second::{SecondFunction, SecondPlace};
