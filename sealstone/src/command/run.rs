//! `sealstone run`: runs a function on the devices that store the files. `sealstone-function-runs`
//! does the work.
//!
//! Truth: docs/how-to/functions.md; docs/reference/json.md.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::ProgressBar;
use parking_lot::Mutex;
use sealstone_client::{Client, Devices, FilePath, Metadata, Method};
use sealstone_failure::{Failure, Outcome, PartObserver};
use sealstone_function_runs::{
    CallPlan, InputFiles, ResultDestination, RunObserver, SecondFunction, named_arguments, run_function,
};
use sealstone_job_records::JobRecords;

use crate::cli::GlobalArgs;
use crate::cli::functions::{CallArgs, RunArgs};
use crate::command::session::{client, job_records};
use crate::command::transfer::until_signal;
use crate::output::{Output, print_bytes};

/// Shows the progress of a run, and prints its results.
pub(super) struct ShownRun {
    output: Output,
    bar: Mutex<ProgressBar>,
}

impl ShownRun {
    pub(super) fn new(output: Output) -> Self {
        Self { output, bar: Mutex::new(ProgressBar::hidden()) }
    }

    /// Prints while the bar is hidden.
    fn print<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.lock().suspend(print)
    }
}

impl RunObserver for ShownRun {
    fn begin(&self, files: u64, unit: &str) {
        let bar = self.output.counting(files, unit);
        bar.enable_steady_tick(Duration::from_millis(200));
        *self.bar.lock() = bar;
    }

    fn part_ended(&self) {
        self.bar.lock().inc(1);
    }

    fn end(&self) {
        self.bar.lock().finish_and_clear();
    }

    fn remark(&self, text: &str) {
        self.print(|| self.output.remark(text));
    }

    fn warn(&self, text: &str) {
        self.print(|| self.output.complain(text));
    }

    fn part_failed(&self, failure: Failure) -> Failure {
        self.print(|| PartObserver::part_failed(&self.output, failure))
    }

    fn result(&self, bytes: &[u8]) -> Outcome {
        self.print(|| print_bytes(bytes))
    }
}

/// Returns the destination of an option `--output`.
pub(super) fn destination(output: Output, path: &OsStr) -> ResultDestination {
    match path {
        path if path != "-" => ResultDestination::File(PathBuf::from(path)),
        _ if !output.is_json() && std::io::stdout().is_terminal() => ResultDestination::Terminal,
        _ => ResultDestination::Observer,
    }
}

/// Returns the plan of a call on the command line, with the options that `cap run` has.
pub(super) fn plan_of(output: Output, function: FilePath, arguments: &CallArgs) -> CallPlan {
    CallPlan {
        function,
        method: arguments.method.clone(),
        arguments: arguments.arguments.clone(),
        shipped_arguments: arguments.shipped.0.clone(),
        argument_file: arguments.arg_file.clone(),
        together: arguments.together,
        per_file: arguments.per_file,
        raw: arguments.raw,
        destination: destination(output, &arguments.output),
        with_json: output.is_json(),
        engines: arguments.engines.clone(),
        timeout_ms: arguments.timeout,
        is_async: false,
        security: Method::AllData,
        key_file: None,
        to: None,
        update: false,
        commit: false,
        receipts: arguments.receipts.clone(),
        second: None,
    }
}

/// Returns the second function of the command line.
fn second_function(global: &GlobalArgs, arguments: &RunArgs) -> Outcome<Option<SecondFunction>> {
    let Some(function) = &arguments.reduce else { return Ok(None) };
    let all = named_arguments(&arguments.reduce_arguments, None)?;
    let path = global.function(function)?;
    Ok(Some(SecondFunction { path, place: arguments.reduce_on.into(), arguments: all }))
}

/// `sealstone run`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, arguments: &RunArgs) -> Outcome {
    let path = global.function(&arguments.function)?;
    let operands: Vec<FilePath> =
        arguments.paths.iter().map(|path| Ok((*global.stored(path)?).clone())).collect::<Outcome<_>>()?;
    let (client, _) = client(global)?;
    let records = job_records(global)?;
    if arguments.is_async {
        // An asynchronous job can be found only by its record.
        records.all()?;
    }
    let found = InputFiles::find(&client, &operands).await?;
    if arguments.update && found.has_directory() {
        return Err(Failure::usage("--update changes files that are named, not directories"));
    }
    let stored = |path: &Option<OsString>| path.as_ref().map(|path| global.stored(path)).transpose();
    let (key, to) = (stored(&arguments.key_object)?, stored(&arguments.to)?);
    let plan = CallPlan {
        is_async: arguments.is_async,
        security: arguments.security.into(),
        key_file: key.map(|path| (*path).clone()),
        to,
        update: arguments.update,
        commit: arguments.commit,
        second: second_function(global, arguments)?,
        ..plan_of(output, path, &arguments.call)
    };
    run_call(output, &client, &plan, &found, Some(records)).await
}

/// Runs a call on files, and prints its results.
pub(super) async fn run_call<M: Metadata, D: Devices>(
    output: Output,
    client: &Client<M, D>,
    plan: &CallPlan,
    found: &InputFiles,
    records: Option<JobRecords>,
) -> Outcome {
    let work = async {
        let report = run_function(client, plan, found, records, &ShownRun::new(output)).await?;
        if let Some(line) = report.summary_line() {
            output.remark(line);
        }
        output.done(&report.json())?;
        report.outcome()
    };
    until_signal(work, async || {}, "run it again").await
}
