//! Runs of functions over stored files: jobs on devices, runs at the client, results.
//!
//! Does: stores functions, finds the files, starts the jobs, reduces the results of shipped
//! functions to one for each file and a total, writes outputs, and runs functions in an engine of
//! this machine.
//! Does not: parse arguments, print, or take signals.
//! Contract: a result reaches the observer or its file in the order of the files, and only if it is
//! complete.
//! Truth: docs/how-to/functions.md; docs/reference/json.md.

mod call_plan;
mod client_engine;
mod engine_list;
mod file_output;
mod files;
mod function_list;
mod function_report;
mod install;
mod jobs;
mod library;
mod local_engine;
mod local_report;
mod local_run;
mod observer;
mod policy_change;
mod policy_report;
mod publication;
mod receipt;
mod receipt_folder;
mod reduction;
mod report;
mod result_sink;
mod result_text;
mod run;
mod second;
mod source;
mod stored_object;

pub use call_plan::{CallPlan, is_reducible, named_arguments, parse_pair};
pub use engine_list::EngineList;
pub use files::InputFiles;
pub use function_list::FunctionList;
pub use function_report::{function_json, function_text};
pub use install::FunctionInstaller;
pub use jobs::{
    JobList, failure_of_job, job_json, job_line, read_job_log, read_job_result, release_unused, verify_job,
};
pub use library::{LIBRARY, at_function, library_path};
pub use local_engine::{LocalCall, LocalEngine, LocalLimits, LocalRunEnd, failure_of};
pub use local_report::{group_local_files, local_run_json, local_run_line, open_local_object};
pub use observer::{ResultDestination, RunObserver};
pub use policy_change::{PolicyChange, policy_partitions};
pub use policy_report::{policy_json, policy_text};
pub use publication::{copy_to_devices, publish_function, store_function};
pub use receipt::{ReceiptReport, verify_receipt_file};
pub use reduction::{FileResult, Reduction};
pub use report::FunctionRunReport;
pub use result_sink::ResultSink;
pub use run::run_function;
pub use second::{SecondFunction, SecondPlace};
pub use source::{FunctionSource, parse_api_range, read_code};
