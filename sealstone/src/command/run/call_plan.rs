//! The call of a command line: function, arguments, grouping, and the record of its start.

use sealstone_client::functions::{
    CallArguments, CallGrouping, CallPart, FunctionRun, JobStartHook, StartingJob,
};
use sealstone_client::{FilePath, Method};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome, secret_file};
use sealstone_functions::{FunctionOutput, ShippedFunction, find_function, has_argument};
use sealstone_job_records::{JobRecord, JobRecords};
use sealstone_mds_protocol::shown;

use super::files::InputFile;
use super::second::SecondFunction;
use crate::cli::StoredPath;
use crate::cli::functions::{CallArgs, parse_pair};
use crate::cli::shipped::is_reducible;
use crate::command::functions::is_in_library;

/// End of the names of Parquet files.
const PARQUET_END: &[u8] = b".parquet";

/// A call of a command.
pub(crate) struct CallPlan<'a> {
    pub(crate) arguments: &'a CallArgs,
    pub(crate) function: FilePath,
    pub(crate) is_async: bool,
    pub(crate) security: Method,
    /// Stored file with a key for the function.
    pub(crate) key_file: Option<FilePath>,
    /// Stored file or directory for outputs.
    pub(crate) to: Option<StoredPath>,
    pub(crate) update: bool,
    pub(crate) commit: bool,
    /// Function that reduces the results of the jobs.
    pub(crate) second: Option<SecondFunction>,
}

/// Returns the arguments of the command line and of the private file, and their names.
fn call_arguments(
    plan: &CallPlan<'_>,
    function: Option<&ShippedFunction>,
    files: &[InputFile],
) -> Outcome<CallArguments> {
    let arguments = plan.arguments;
    let (mut all, mut names) = (CallArguments::default(), Vec::new());
    let mut add = |name: &str, value: &str| {
        names.push(name.to_owned());
        all.add(name, value).map_err(Failure::from)
    };
    for (name, value) in arguments.arguments.iter().chain(&arguments.shipped.0) {
        add(name, value)?;
    }
    if let Some(path) = &arguments.arg_file {
        let text = secret_file::read(path)?;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let (name, value) = parse_pair(line).map_err(|error| Failure::usage(error).at(path.shown()))?;
            add(&name, &value)?;
        }
    }
    if let Some(function) = function {
        if function.name == "filter"
            && !names.iter().any(|name| name == "format")
            && let Some(format) = format_of(files)
        {
            names.push("format".to_owned());
            all.add("format", format).map_err(Failure::from)?;
        }
        let has_form = names.iter().any(|name| matches!(name.as_str(), "count" | "result-format"));
        let is_table = function.name == "filter" && has_argument(all.bytes(), "format=parquet");
        if is_table && !has_form && names_parquet(plan) {
            names.push("result-format".to_owned());
            all.add("result-format", "parquet").map_err(Failure::from)?;
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        arguments.shipped.check(function, &names)?;
    }
    Ok(all)
}

/// Whether the output has the name of a Parquet file.
fn names_parquet(plan: &CallPlan<'_>) -> bool {
    let stored = plan.to.as_ref().map(|path| path.as_bytes());
    let name = stored.unwrap_or(plan.arguments.output.as_encoded_bytes());
    name.ends_with(PARQUET_END)
}

/// Returns the format of tables whose names agree about it.
fn format_of(files: &[InputFile]) -> Option<&'static str> {
    let all =
        |ends: &[&[u8]]| files.iter().all(|file| ends.iter().any(|end| file.path.as_bytes().ends_with(end)));
    match () {
        () if files.is_empty() => None,
        () if all(&[b".csv"]) => Some("csv"),
        () if all(&[b".jsonl", b".ndjson"]) => Some("jsonl"),
        () if all(&[PARQUET_END]) => Some("parquet"),
        () => None,
    }
}

/// Returns the shipped function whose results the command reduces.
pub(super) fn reducible(plan: &CallPlan<'_>) -> Option<&'static ShippedFunction> {
    let path = &plan.function;
    let name = path.as_bytes().rsplit(|byte| *byte == b'/').next()?;
    let function = find_function(std::str::from_utf8(name).ok()?)?;
    let is_reduced = is_in_library(path)
        && is_reducible(function)
        && !plan.arguments.raw
        && !plan.is_async
        && plan.second.is_none();
    is_reduced.then_some(function)
}

/// Returns the call of the command line.
pub(super) fn call_of(
    plan: &CallPlan<'_>,
    reducible: Option<&ShippedFunction>,
    files: &[InputFile],
) -> Outcome<FunctionRun> {
    let CallPlan { arguments, function, .. } = plan;
    let mut call = FunctionRun::new(function);
    call.method.clone_from(&arguments.method);
    call.arguments = call_arguments(plan, reducible, files)?;
    call.secret_arguments = arguments.arg_file.is_some();
    call.commit_on_success = plan.commit;
    call.grouping = if arguments.together { CallGrouping::PerDevice } else { CallGrouping::PerFile };
    call.timeout_ms = if plan.is_async { 0 } else { arguments.timeout };
    call.security = plan.security;
    call.key_file = plan.key_file.as_ref().map(|path| path.as_bytes().to_vec());
    let is_filter = reducible.is_some_and(|function| function.name == "filter");
    call.header_rows = is_filter && has_argument(call.arguments.bytes(), "format=csv");
    // The other shipped functions return a few lines.
    call.long_results = reducible.is_none_or(|function| {
        let counts = has_argument(call.arguments.bytes(), "count=true");
        let is_long = matches!(function.name, "grep" | "filter") || function.output == FunctionOutput::File;
        is_long && !counts
    });
    for file in files {
        if plan.update { call.update(&file.path) } else { call.read(&file.path) }
    }
    Ok(call)
}

/// Returns a hook that records asynchronous jobs before they start. Otherwise a client that is
/// killed would leave jobs that no command finds.
pub(super) fn start_hook(records: JobRecords, call: &FunctionRun) -> JobStartHook {
    let paths: Vec<Vec<u8>> = call.files.iter().map(|file| file.path.clone()).collect();
    let refused = records.clone();
    let record = move |starting: &StartingJob| {
        let path = |part: &CallPart| paths.get(part.file).map(|path| shown(path).into_owned());
        let names: Vec<String> = starting.parts.iter().filter_map(path).collect();
        let record = JobRecord::starting(&starting.handle, &names, starting.reserved);
        records.add(&[record]).map_err(|failure| failure.to_string())
    };
    JobStartHook::new(record, move |job| {
        if let Err(failure) = refused.forget(&[job.to_string()]) {
            tracing::debug!(%failure, "a job that was not started stays recorded");
        }
    })
}
