//! `sealstone run`: runs a function on the devices that store the files.

use std::ffi::OsStr;
use std::io::Write as _;
use std::time::Instant;

use sealstone_client::functions::{CallArguments, CallGrouping, CallReply, CallSummary, FunctionRun};
use sealstone_mds_protocol::shown;
use serde_json::{Value, json};

use crate::cli::GlobalArgs;
use crate::cli::functions::{RunArgs, parse_pair};
use crate::command::functions::{at_function, enumeration, failure_of, function_path};
use crate::command::job_records::{JobRecord, JobRecords};
use crate::command::session::client;
use crate::failure::{Failure, FailureKind, Outcome};
use crate::output::{Output, human_bytes, print_bytes, stdout_failure};
use crate::secret_file;
use crate::text::{ShownPath as _, set_bytes};

/// Destination of the results.
enum ResultSink {
    /// Standard output, unless it has the JSON of the command.
    Standard,
    /// A local file that is complete when the command ends.
    File(std::fs::File),
}

impl ResultSink {
    fn open(path: &OsStr) -> Outcome<Self> {
        if path == "-" {
            return Ok(Self::Standard);
        }
        let file = std::fs::File::create(path).map_err(|error| Failure::from(error).at(path.shown()))?;
        Ok(Self::File(file))
    }

    fn write(&mut self, path: &OsStr, output: Output, bytes: &[u8]) -> Outcome {
        match self {
            Self::Standard if output.is_json() => Ok(()),
            Self::Standard => print_bytes(bytes),
            Self::File(file) => file.write_all(bytes).map_err(|error| Failure::from(error).at(path.shown())),
        }
    }
}

/// Returns the arguments of the command line and of the private file.
fn call_arguments(arguments: &RunArgs) -> Outcome<CallArguments> {
    let mut all = CallArguments::default();
    for (name, value) in &arguments.arguments {
        all.add(name, value).map_err(Failure::from)?;
    }
    if let Some(path) = &arguments.arg_file {
        let text = secret_file::read(path)?;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let (name, value) = parse_pair(line).map_err(|error| Failure::usage(error).at(path.shown()))?;
            all.add(&name, &value).map_err(Failure::from)?;
        }
    }
    Ok(all)
}

/// Returns the call of the command line.
fn call_of(global: &GlobalArgs, arguments: &RunArgs, function: &[u8]) -> Outcome<FunctionRun> {
    let mut call = FunctionRun::new(function);
    call.method.clone_from(&arguments.method);
    call.arguments = call_arguments(arguments)?;
    call.secret_arguments = arguments.arg_file.is_some();
    call.commit_on_success = arguments.commit;
    call.grouping = if arguments.together { CallGrouping::PerDevice } else { CallGrouping::PerFile };
    call.timeout_ms = if arguments.is_async { 0 } else { arguments.timeout };
    call.security = arguments.security.into();
    for path in &arguments.paths {
        let path = global.stored(path)?;
        if arguments.update { call.update(&path) } else { call.read(&path) }
    }
    Ok(call)
}

/// Progress of a command.
struct RunReport<'a> {
    output: Output,
    /// Destination of the results, as the command line names it.
    path: &'a OsStr,
    sink: ResultSink,
    records: JobRecords,
    /// The jobs, only for JSON.
    values: Vec<Value>,
    failures: Vec<Failure>,
    write_error: Option<Failure>,
}

impl RunReport<'_> {
    /// Adds a reply: writes its result, or records its job at once.
    fn add(&mut self, call: &FunctionRun, reply: &CallReply) {
        let output = self.output;
        let names: Vec<String> = reply
            .parts
            .iter()
            .filter_map(|part| call.files.get(part.file))
            .map(|file| shown(&file.path).into_owned())
            .collect();
        let mut error_value = None;
        match &reply.outcome {
            Ok(status) if reply.is_success() => {
                // Results after one that is incomplete would be taken for its end.
                if status.state.is_final() && self.write_error.is_none() {
                    self.write_error = self.sink.write(self.path, output, &reply.result).err();
                }
            }
            Ok(status) => {
                let code = if status.error == 0 { String::new() } else { format!(", code {}", status.error) };
                let what =
                    format!("job {} ended as {}: {}{code}", reply.handle_text(), status.state, status.exit);
                let failure = Failure::operation(what)
                    .at(names.join(", "))
                    .hint(format!("`sealstone job log {}` shows its log", reply.handle_text()));
                output.complain(&failure.to_string());
                self.failures.push(failure);
            }
            Err(error) => {
                let failure = failure_of(error).at(names.join(", "));
                error_value = Some(json!({ "kind": failure.kind.name(), "message": failure.message }));
                output.complain(&failure.to_string());
                self.failures.push(failure);
            }
        }
        self.record(reply, &names);
        if output.is_json() {
            let mut value = reply_value(call, reply);
            if let Some(error) = error_value {
                value["error"] = error;
            }
            self.values.push(value);
        }
    }

    /// Records a job that later commands can need: one that runs, or one that failed and has a log.
    fn record(&self, reply: &CallReply, names: &[String]) {
        let (Some(handle), Ok(status)) = (&reply.handle, &reply.outcome) else { return };
        let is_running = !status.state.is_final();
        if reply.is_success() && !is_running {
            return;
        }
        let record = JobRecord::new(handle, names);
        if is_running {
            self.output.remark(format!("started job {} on device {}", record.job, record.device_name));
        }
        if let Err(failure) = self.records.add(&[record]) {
            self.output.complain(&format!("job {} is not recorded: {failure}", handle.job));
        }
    }

    /// Returns the failure of the command, of which text has a line for each job.
    fn failure(&self, summary: &CallSummary) -> Option<Failure> {
        let first = self.failures.first()?;
        let agree = self.failures.iter().all(|failure| failure.kind == first.kind);
        let kind = if agree && summary.failed == summary.jobs { first.kind } else { FailureKind::Operation };
        let message =
            format!("{} of {} jobs failed; the first: {}", summary.failed, summary.jobs, first.message);
        let next_step = first.next_step.clone();
        Some(Failure { next_step, reported: true, ..Failure::new(kind, message) })
    }
}

/// Returns the JSON of a job.
fn reply_value(call: &FunctionRun, reply: &CallReply) -> Value {
    let files: Vec<Value> = reply
        .parts
        .iter()
        .filter_map(|part| {
            let mut value = json!({ "object": part.index, "objects": part.width });
            set_bytes(&mut value, "path", &call.files.get(part.file)?.path);
            Some(value)
        })
        .collect();
    let mut value = json!({ "device": reply.device, "files": files });
    if let Some(handle) = &reply.handle {
        value["job"] = json!(handle.job.to_string());
    }
    if let Ok(status) = &reply.outcome {
        value["state"] = json!(enumeration(status.state.name()));
        value["exit"] = json!(enumeration(status.exit.name()));
        value["code"] = json!(status.error);
        value["bytes_read"] = json!(status.bytes_read);
        value["bytes_written"] = json!(status.bytes_written);
        value["cpu_us"] = json!(status.cpu_us);
        value["result_bytes"] = json!(reply.result.len());
        set_bytes(&mut value, "result", &reply.result);
    }
    value
}

fn totals(summary: &CallSummary, seconds: f64) -> Value {
    json!({
        "jobs": summary.jobs, "failed": summary.failed, "devices": summary.devices, "copies": summary.copies,
        "bytes_read": summary.bytes_read, "bytes_written": summary.bytes_written,
        "result_bytes": summary.result_bytes, "cpu_us": summary.cpu_us, "seconds": seconds,
    })
}

/// `sealstone run`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, arguments: &RunArgs) -> Outcome {
    let path = function_path(global, &arguments.function)?;
    let call = call_of(global, arguments, path.as_bytes())?;
    let (client, _) = client(global)?;
    let records = JobRecords::of(global)?;
    if arguments.is_async {
        // An asynchronous job can be found only by its record.
        records.all()?;
    }
    let started = Instant::now();
    let local = arguments.output.as_os_str();
    let mut report = RunReport {
        output,
        path: local,
        sink: ResultSink::open(local)?,
        records,
        values: Vec::new(),
        failures: Vec::new(),
        write_error: None,
    };
    let bar = output.counting(call.files.len() as u64, "jobs");
    let ran = call
        .run(&client, |reply| {
            bar.inc(1);
            bar.suspend(|| report.add(&call, &reply));
        })
        .await;
    bar.finish_and_clear();
    let summary = ran.map_err(|error| at_function(error, &path))?;
    if let Some(failure) = report.write_error {
        return Err(failure);
    }
    if let ResultSink::File(file) = &report.sink {
        file.sync_all().map_err(|error| Failure::from(error).at(local.shown()))?;
    } else {
        std::io::stdout().flush().map_err(stdout_failure)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    if !arguments.is_async && summary.failed < summary.jobs {
        output.remark(format!(
            "{} jobs on {} devices read {} in {seconds:.2} s; results of {}",
            summary.jobs,
            summary.devices,
            human_bytes(summary.bytes_read),
            human_bytes(summary.result_bytes)
        ));
    }
    let failure = report.failure(&summary);
    let mut value = json!({ "jobs": report.values, "totals": totals(&summary, seconds) });
    set_bytes(&mut value, "function", &path);
    output.done(&value)?;
    failure.map_or(Ok(()), Err)
}
