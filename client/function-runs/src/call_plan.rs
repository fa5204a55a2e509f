//! The plan of a run: function, arguments, grouping, and the record of its start.

use std::path::{Path, PathBuf};

use sealstone_client::functions::{
    CallArguments, CallGrouping, CallPart, FunctionRun, JobStartHook, StartingJob,
};
use sealstone_client::{FilePath, Method};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome, secret_file};
use sealstone_functions::{FunctionOutput, FunctionParameter, ShippedFunction, find_function, has_argument};
use sealstone_job_records::{JobRecord, JobRecords};
use sealstone_mds_protocol::shown;
use sealstone_transfer::StoredPath;

use crate::files::InputFile;
use crate::library::is_in_library;
use crate::observer::ResultDestination;
use crate::second::SecondFunction;

/// End of the names of Parquet files.
const PARQUET_END: &[u8] = b".parquet";

/// Plan of a run.
#[derive(Clone)]
pub struct CallPlan {
    /// Stored path of the function.
    pub function: FilePath,
    /// Method of the function; its default method if empty.
    pub method: String,
    /// Arguments by name.
    pub arguments: Vec<(String, String)>,
    /// Arguments that only a shipped function with such a parameter takes.
    pub shipped_arguments: Vec<(String, String)>,
    /// Private file with more arguments; devices do not record arguments then.
    pub argument_file: Option<PathBuf>,
    /// One job for each device with up to 64 objects, instead of one for each file.
    pub together: bool,
    /// Results have the counts of each file before the total.
    pub per_file: bool,
    /// Results are those of jobs, not of files.
    pub raw: bool,
    /// Destination of the results.
    pub destination: ResultDestination,
    /// The report has all jobs and files as JSON, with the results that do not go to a file.
    pub with_json: bool,
    /// Folder with engine programs, for jobs at the client; that of this program without it.
    pub engines: Option<PathBuf>,
    /// Longest run of a job in milliseconds.
    pub timeout_ms: u32,
    /// Only start the jobs.
    pub is_async: bool,
    /// Security method of the commands; the server may raise it.
    pub security: Method,
    /// Stored file with a key for the function.
    pub key_file: Option<FilePath>,
    /// Stored file or directory for outputs.
    pub to: Option<StoredPath>,
    /// The function may change existing bytes of the files.
    pub update: bool,
    /// Changes become visible only if the function succeeds.
    pub commit: bool,
    /// Folder for the receipts and results of the jobs, which then state digests of their inputs.
    pub receipts: Option<PathBuf>,
    /// Function that reduces the results of the jobs.
    pub second: Option<SecondFunction>,
}

/// Parses `NAME=VALUE`.
///
/// # Errors
/// There is no name. The error does not contain the value, which may be secret.
pub fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("'{}' is not of the form NAME=VALUE", text.split('=').next().unwrap_or_default())),
    }
}

/// Returns arguments by name, with those of a private file if given.
///
/// # Errors
/// An argument is too long or there are too many; those of the file.
pub fn named_arguments(given: &[(String, String)], file: Option<&Path>) -> Outcome<CallArguments> {
    let mut all = CallArguments::default();
    for (name, value) in given {
        all.add(name, value)?;
    }
    if let Some(path) = file {
        add_argument_file(&mut all, path)?;
    }
    Ok(all)
}

/// Adds the arguments of a private file with `NAME=VALUE` lines; returns their names.
/// Fails if the file is unreadable, not private, or has another line.
fn add_argument_file(all: &mut CallArguments, path: &Path) -> Outcome<Vec<String>> {
    let text = secret_file::read(path)?;
    let mut names = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (name, value) = parse_pair(line).map_err(|error| Failure::usage(error).at(path.shown()))?;
        all.add(&name, &value)?;
        names.push(name);
    }
    Ok(names)
}

/// Whether a run has results of a function to reduce.
#[must_use]
pub fn is_reducible(function: &ShippedFunction) -> bool {
    function.output != FunctionOutput::Objects
}

/// Refuses arguments of other shipped functions, and missing arguments. `given` has the names of
/// all arguments of the call.
fn check_arguments(
    function: &ShippedFunction,
    shipped_arguments: &[(String, String)],
    given: &[String],
) -> Outcome {
    let has = |name: &str| function.parameters.iter().any(|parameter| parameter.name == name);
    if let Some((name, _)) = shipped_arguments.iter().find(|(name, _)| !has(name)) {
        return Err(Failure::usage(format!("{} has no argument '{name}'", function.name)));
    }
    let missing = |parameter: &&FunctionParameter| {
        parameter.required && !given.iter().any(|name| name == parameter.name)
    };
    match function.parameters.iter().find(missing) {
        Some(FunctionParameter { name, help, .. }) => {
            Err(Failure::usage(format!("{} needs --{name}: {help}", function.name)))
        }
        None => Ok(()),
    }
}

/// Returns the arguments of the plan and of its private file.
fn call_arguments(
    plan: &CallPlan,
    function: Option<&ShippedFunction>,
    files: &[InputFile],
) -> Outcome<CallArguments> {
    let (mut all, mut names) = (CallArguments::default(), Vec::new());
    for (name, value) in plan.arguments.iter().chain(&plan.shipped_arguments) {
        names.push(name.clone());
        all.add(name, value)?;
    }
    if let Some(path) = &plan.argument_file {
        names.append(&mut add_argument_file(&mut all, path)?);
    }
    if let Some(function) = function {
        if function.name == "filter"
            && !names.iter().any(|name| name == "format")
            && let Some(format) = format_of(files)
        {
            names.push("format".to_owned());
            all.add("format", format)?;
        }
        let has_form = names.iter().any(|name| matches!(name.as_str(), "count" | "result-format"));
        let is_table = function.name == "filter" && has_argument(all.bytes(), "format=parquet");
        if is_table && !has_form && names_parquet(plan) {
            names.push("result-format".to_owned());
            all.add("result-format", "parquet")?;
        }
        check_arguments(function, &plan.shipped_arguments, &names)?;
    }
    Ok(all)
}

/// Whether the output has the name of a Parquet file.
fn names_parquet(plan: &CallPlan) -> bool {
    let local = || plan.destination.path().map(|path| path.as_os_str().as_encoded_bytes());
    let name = plan.to.as_ref().map(|path| path.as_bytes()).or_else(local);
    name.is_some_and(|name| name.ends_with(PARQUET_END))
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

/// Returns the shipped function whose results the run reduces.
pub(crate) fn reducible(plan: &CallPlan) -> Option<&'static ShippedFunction> {
    let path = &plan.function;
    let name = path.as_bytes().rsplit(|byte| *byte == b'/').next()?;
    let function = find_function(std::str::from_utf8(name).ok()?)?;
    let is_reduced =
        is_in_library(path) && is_reducible(function) && !plan.raw && !plan.is_async && plan.second.is_none();
    is_reduced.then_some(function)
}

/// Returns the call of a plan.
pub(crate) fn call_of(
    plan: &CallPlan,
    reducible: Option<&ShippedFunction>,
    files: &[InputFile],
) -> Outcome<FunctionRun> {
    let mut call = FunctionRun::new(&plan.function);
    call.method.clone_from(&plan.method);
    call.arguments = call_arguments(plan, reducible, files)?;
    call.secret_arguments = plan.argument_file.is_some();
    call.commit_on_success = plan.commit;
    call.input_digests = plan.receipts.is_some();
    call.grouping = if plan.together { CallGrouping::PerDevice } else { CallGrouping::PerFile };
    call.timeout_ms = if plan.is_async { 0 } else { plan.timeout_ms };
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
pub(crate) fn start_hook(records: JobRecords, call: &FunctionRun) -> JobStartHook {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_values_are_not_in_parse_errors() {
        assert_eq!(parse_pair("k=v=w"), Ok(("k".into(), "v=w".into())));
        assert!(!parse_pair("=secret").unwrap_err().contains("secret"));
        assert!(parse_pair("name").is_err());
    }

    #[test]
    fn arguments_of_other_functions_are_refused() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let pairs = [pair("ignore-case", "true"), pair("pattern", "-x")];
        let names = pairs.clone().map(|(name, _)| name);
        let grep = find_function("grep").unwrap();
        assert_eq!(check_arguments(grep, &pairs, &names), Ok(()));
        assert!(check_arguments(grep, &pairs, &[]).unwrap_err().message.contains("grep needs --pattern"));
        let count = find_function("count").unwrap();
        let failure = check_arguments(count, &pairs, &[]).unwrap_err();
        assert!(failure.message.contains("no argument 'ignore-case'"), "{failure}");
    }
}
