//! `sealstone run`: runs a function on the devices that store the files.
//!
//! Does: finds the files, starts the jobs, and writes the results. Those of a shipped function are
//! reduced to one result for each file and a total; those of other functions are written as they
//! are.
//! Truth: docs/how-to/functions.md; docs/reference/json.md.

mod call_plan;
mod client_engine;
mod file_output;
mod files;
mod local_run;
pub(crate) mod reduction;
mod result_text;
mod second;
mod stored_object;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use sealstone_client::functions::{CallArguments, CallReply, CallSummary, FunctionRun};
use sealstone_client::{Client, Devices, FilePath, Metadata, function_failure};
use sealstone_failure::text::{ShownPath as _, counted, human_bytes, set_bytes};
use sealstone_failure::{Failure, FailureKind, Outcome};
use sealstone_functions::{FunctionOutput, OutputLine, ResultLine, ShippedFunction};
use sealstone_job_records::{JobRecord, JobRecords};
use sealstone_mds_protocol::shown;
use serde_json::{Value, json};
use zeroize::Zeroizing;

pub(crate) use self::call_plan::CallPlan;
use self::call_plan::{call_of, reducible, start_hook};
use self::client_engine::{AT_CLIENT, ClientEngine};
use self::file_output::{FileOutputs, split_output};
use self::files::InputFile;
pub(crate) use self::files::InputFiles;
use self::local_run::{run_on_empty, run_on_stored, run_results, run_to_file};
use self::reduction::{FileResult, Reduction, can_run_at_client};
use self::result_text::{OrderedText, TextForm, add_json, push_text};
pub(crate) use self::second::SecondFunction;
use self::second::{CollectedResults, reduce};
use crate::cli::GlobalArgs;
use crate::cli::functions::RunArgs;
use crate::command::function_test::failure_of;
use crate::command::functions::{at_function, enumeration, function_path};
use crate::command::jobs::failure_of_ended;
use crate::command::result_sink::ResultSink;
use crate::command::session::{client, job_records};
use crate::output::{Output, stdout_failure};

/// Maximum bytes of results in the JSON of a command.
const JSON_RESULT_BYTES_MAX: usize = 256 << 20;
/// Bytes of memory of a line of a result in the JSON, beside its text.
const JSON_LINE_BYTES: usize = 256;
/// Maximum number of failures that the JSON lists.
const JSON_FAILURES_MAX: usize = 10_000;
/// Maximum number of jobs of a command that wait for the client.
const LOCAL_JOBS_MAX: usize = 4096;

/// Progress of a command.
struct RunReport<'a> {
    output: Output,
    files: &'a [InputFile],
    /// Destination of the results, as the command line names it.
    path: &'a OsStr,
    sink: ResultSink,
    /// Records of jobs, for a user with a session.
    records: Option<JobRecords>,
    bar: ProgressBar,
    form: TextForm,
    /// Whether counts of single files are written.
    per_file: bool,
    /// Reduction of the results, for a shipped function.
    reduction: Option<Reduction>,
    /// Outputs of a function that makes a new file of each.
    outputs: Option<FileOutputs>,
    text: OrderedText,
    /// Header that was written before the records of tables.
    header: Option<String>,
    /// Files with a result or failure.
    ended: BTreeSet<usize>,
    /// Files on which the client runs the function.
    at_client: BTreeSet<usize>,
    /// Results of the jobs, for a second function.
    collected: Option<CollectedResults>,
    /// Whether the client may run jobs of a function that is not reduced.
    may_run_jobs: bool,
    /// Replies of jobs that the client may run instead.
    local_jobs: Vec<CallReply>,
    /// The jobs, only for JSON.
    jobs: Vec<Value>,
    /// The results of files by their numbers, only for JSON.
    results: Vec<(usize, Value)>,
    result_bytes: usize,
    failures: Vec<Failure>,
    failed_count: usize,
    write_error: Option<Failure>,
}

impl RunReport<'_> {
    fn fail(&mut self, failure: Failure) {
        let failure = self.output.with_default_hint(failure);
        self.bar.suspend(|| self.output.part_failure(&failure));
        self.failed_count += 1;
        if self.failures.len() < JSON_FAILURES_MAX {
            self.failures.push(failure);
        }
    }

    /// Adds a reply, unless the client may run its job.
    fn add(&mut self, call: &FunctionRun, reply: CallReply) {
        let is_local = self.may_run_jobs && self.reduction.is_none() && can_run_at_client(&reply);
        if is_local && self.local_jobs.len() < LOCAL_JOBS_MAX {
            self.local_jobs.push(reply);
        } else {
            self.add_ended(call, reply, false);
        }
    }

    /// Runs jobs at the client that devices could not run.
    async fn run_local_jobs<M: Metadata, D: Devices>(
        &mut self,
        client: &Client<M, D>,
        call: &FunctionRun,
        path: &FilePath,
        engines: Option<&Path>,
    ) {
        let replies = std::mem::take(&mut self.local_jobs);
        if replies.is_empty() {
            return;
        }
        let engine = match ClientEngine::start_module(client, call, path, engines).await {
            Ok(engine) => engine,
            Err(failure) => {
                let text = format!("the client cannot run the function itself: {failure}");
                self.bar.suspend(|| self.output.remark(text));
                None
            }
        };
        let Some(engine) = engine else {
            replies.into_iter().for_each(|reply| self.add_ended(call, reply, false));
            return;
        };
        let jobs = counted(replies.len() as u64, "job");
        let text =
            format!("the client reads the data of {jobs} and runs the function, because a device cannot");
        self.bar.suspend(|| self.output.remark(text));
        for mut reply in replies {
            match engine.run_job(client, call, &mut reply).await {
                Ok(log) => {
                    self.show_log(&reply, &log);
                    self.add_ended(call, reply, true);
                }
                Err(failure) => {
                    self.add_ended(call, reply, false);
                    self.fail(failure);
                }
            }
        }
    }

    /// Prints the log of a failed run at the client, which no other command returns.
    fn show_log(&self, reply: &CallReply, log: &str) {
        if !reply.is_success() && !log.is_empty() {
            self.bar.suspend(|| self.output.remark(log.trim_end()));
        }
    }

    /// Runs the second function on the results, and writes its result. Returns its JSON.
    async fn run_second<M: Metadata, D: Devices>(
        &mut self,
        client: &Client<M, D>,
        call: &FunctionRun,
        plan: &CallPlan<'_>,
    ) -> Option<Value> {
        let (Some(second), Some(collected)) = (&plan.second, self.collected.take()) else { return None };
        if self.failed_count > 0 {
            let text = format!("{} does not run, because results are missing", second.path);
            self.bar.suspend(|| self.output.remark(text));
            return None;
        }
        let engines = plan.arguments.engines.as_deref();
        let (reply, log) = match reduce(client, call, second, collected, engines).await {
            Ok(end) => end,
            Err(failure) => {
                self.fail(failure);
                return None;
            }
        };
        self.record(&reply, &[], false);
        self.show_log(&reply, &log);
        let has_result =
            matches!(self.sink, ResultSink::Standard) && self.count_json_bytes(reply.result.len());
        let mut value = reply_value(call, &reply, has_result);
        if reply.device.is_empty() {
            value["at_client"] = true.into();
        }
        match failure_of_reply(&reply) {
            Some(failure) => self.fail(failure.at(&second.path)),
            None => self.write(&reply.result),
        }
        Some(value)
    }

    /// Adds a reply: records its job at once, and writes the results that are complete.
    fn add_ended(&mut self, call: &FunctionRun, reply: CallReply, at_client: bool) {
        let names: Vec<String> = reply
            .parts
            .iter()
            .filter_map(|part| call.files.get(part.file))
            .map(|file| shown(&file.path).into_owned())
            .collect();
        self.record(&reply, &names, call.timeout_ms == 0);
        let is_reduced = self.reduction.is_some();
        let failure = failure_of_reply(&reply).filter(|_| !(is_reduced && can_run_at_client(&reply)));
        if self.output.is_json() {
            let has_result = !is_reduced && matches!(self.sink, ResultSink::Standard);
            let fits = !has_result || self.count_json_bytes(reply.result.len());
            let mut value = reply_value(call, &reply, has_result && fits);
            if let (Some(failure), Err(_)) = (&failure, &reply.outcome) {
                value["error"] = json!({ "kind": failure.kind.name(), "message": failure.message });
            }
            if at_client {
                value["at_client"] = true.into();
            }
            self.jobs.push(value);
            if !fits {
                self.fail(json_is_full("result").at(names.join(", ")));
            }
        }
        if let Some(failure) = failure {
            self.fail(failure.at(names.join(", ")));
        }
        match &mut self.reduction {
            Some(reduction) => {
                for (file, result) in reduction.add(reply) {
                    self.end_file(file, result);
                }
            }
            None => {
                self.bar.inc(1);
                let is_final = reply.outcome.as_ref().is_ok_and(|status| status.state.is_final());
                if reply.is_success() && is_final && call.timeout_ms > 0 {
                    match &mut self.collected {
                        None => self.write(&reply.result),
                        Some(collected) => {
                            if let Err(failure) = collected.add(reply.number, reply.result) {
                                self.fail(failure);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Writes bytes of results. Results after one that is incomplete would be taken for its end, so
    /// nothing is written after an error.
    fn write(&mut self, bytes: &[u8]) {
        if self.write_error.is_none() {
            let written = self.bar.suspend(|| self.sink.write(self.path, self.output, bytes));
            self.write_error = written.err();
        }
    }

    /// Records a job that later commands can need: one that runs, or one that failed and has a log.
    fn record(&self, reply: &CallReply, names: &[String], is_async: bool) {
        let (Some(handle), Ok(status), Some(records)) = (&reply.handle, &reply.outcome, &self.records) else {
            return;
        };
        if reply.is_success() && status.state.is_final() && !is_async {
            return;
        }
        let record = JobRecord::new(handle, names, reply.reserved);
        self.bar.suspend(|| {
            if is_async || !status.state.is_final() {
                self.output.remark(format!("started job {} on device {}", record.job, record.device_name));
            }
            if let Err(failure) = records.add(&[record]) {
                self.output.complain(&format!("job {} is not recorded: {failure}", handle.job));
            }
        });
    }

    /// Ends a file: writes its result, or reports its failure.
    fn end_file(&mut self, file: usize, result: FileResult) {
        let Some(InputFile { path, .. }) = self.files.get(file) else { return };
        if matches!(result, FileResult::AtClient) {
            self.at_client.insert(file);
            return;
        }
        if !self.ended.insert(file) {
            return;
        }
        self.bar.inc(1);
        let mut text = Vec::new();
        match self.with_output(file, result) {
            FileResult::Lines(lines, header) => {
                if let Err(failure) = self.add_lines(file, &lines, header, &mut text) {
                    self.fail(failure.at(path));
                    text.clear();
                }
            }
            FileResult::Output(line, bytes) => {
                if let Err(failure) = self.add_output(file, line, bytes, &mut text) {
                    self.fail(failure.at(path));
                }
            }
            FileResult::Failed(failure) => self.fail(failure.at(path)),
            FileResult::Reported | FileResult::AtClient => {}
        }
        let ready = self.text.add(file, text);
        if !ready.is_empty() {
            self.write(&ready);
        }
    }

    /// Converts the lines of a file to its output, and writes it unless it belongs in the sink.
    fn with_output(&mut self, file: usize, result: FileResult) -> FileResult {
        match (result, &mut self.outputs) {
            (FileResult::Lines(lines, _), Some(outputs)) => {
                let taken =
                    split_output(lines).and_then(|(bytes, line)| Ok((line, outputs.take(file, bytes)?)));
                taken.map_or_else(FileResult::Failed, |(line, bytes)| FileResult::Output(line, bytes))
            }
            (result, _) => result,
        }
    }

    /// Adds the output of a file to the sink and the JSON.
    fn add_output(
        &mut self,
        file: usize,
        line: OutputLine,
        bytes: Option<Vec<u8>>,
        text: &mut Vec<u8>,
    ) -> Outcome {
        if self.output.is_json() {
            let mut value = json!({});
            set_bytes(&mut value, "path", self.files[file].path.as_bytes());
            add_json(&mut value, &ResultLine::Output(line))?;
            if let Some(path) = self.outputs.as_ref().and_then(|outputs| outputs.path_of(file)) {
                set_bytes(&mut value, "output", path);
            }
            if let (Some(bytes), ResultSink::Standard) = (&bytes, &self.sink) {
                // Escapes and Base64 take up to four times the bytes.
                if !self.count_json_bytes(4 * bytes.len() + JSON_LINE_BYTES) {
                    return Err(json_is_full("output"));
                }
                set_bytes(&mut value, "data", bytes);
            }
            self.results.push((file, value));
        }
        text.append(&mut bytes.unwrap_or_default());
        Ok(())
    }

    /// Counts memory of results in the JSON; returns whether they fit.
    const fn count_json_bytes(&mut self, bytes: usize) -> bool {
        let fits = bytes <= JSON_RESULT_BYTES_MAX - self.result_bytes;
        if fits {
            self.result_bytes += bytes;
        }
        fits
    }

    /// Adds the lines of a file to its text, the total, and the JSON.
    fn add_lines(
        &mut self,
        file: usize,
        lines: &[ResultLine],
        header: Option<String>,
        text: &mut Vec<u8>,
    ) -> Outcome {
        let path = self.files[file].path.as_bytes();
        if let Some(header) = header {
            match &self.header {
                Some(known) if *known != header => {
                    return Err(Failure::operation("its header differs from that of another file")
                        .hint("run the function on files with one header"));
                }
                Some(_) => {}
                None => {
                    let is_counted = lines.iter().any(|line| matches!(line, ResultLine::MatchCount(_)));
                    if !is_counted {
                        self.write(format!("{header}\n").as_bytes());
                    }
                    self.header = Some(header);
                }
            }
        }
        if let Some(reduction) = &mut self.reduction {
            reduction.add_to_total(lines);
        }
        for line in lines {
            let is_total =
                matches!(line, ResultLine::Count(_) | ResultLine::ByteCount(_) | ResultLine::MatchCount(_));
            if self.per_file || !is_total {
                push_text(self.form, path, line, text)?;
            }
        }
        if self.output.is_json() {
            let mut value = json!({});
            set_bytes(&mut value, "path", path);
            if matches!(self.sink, ResultSink::Standard) {
                if !self.count_json_bytes(text.len() + JSON_LINE_BYTES * lines.len()) {
                    return Err(json_is_full("file"));
                }
                // Only searches have no line for a file.
                if lines.is_empty() {
                    value["matches"] = json!([]);
                }
                lines.iter().try_for_each(|line| add_json(&mut value, line))?;
            }
            self.results.push((file, value));
        }
        Ok(())
    }

    /// Ends empty files, and runs the function at the client on those that need it.
    async fn run_at_client<M: Metadata, D: Devices>(
        &mut self,
        client: &Client<M, D>,
        call: &FunctionRun,
        path: &FilePath,
        engines: Option<&Path>,
    ) {
        let Some(function) = self.reduction.as_ref().map(|reduction| reduction.function) else { return };
        let files: Vec<usize> = (0..self.files.len()).filter(|file| !self.ended.contains(file)).collect();
        if !self.at_client.is_empty() {
            let text = format!(
                "the client reads {} and runs the function, because a device cannot",
                counted(self.at_client.len() as u64, "file")
            );
            self.bar.suspend(|| self.output.remark(text));
        }
        let is_linked = function.is_linked_for(call.arguments.bytes());
        let engine = match is_linked || self.at_client.is_empty() {
            true => None,
            false => Some(ClientEngine::start(client, call, path, engines).await),
        };
        for file in files {
            let is_read = self.at_client.remove(&file);
            let run = (function, engine.as_ref());
            let result = self.result_at_client(client, call, run, (file, is_read)).await;
            self.end_file(file, result.unwrap_or_else(FileResult::Failed));
        }
    }

    /// Runs the function at the client on a file that it reads, or on an empty one.
    async fn result_at_client<M: Metadata, D: Devices>(
        &mut self,
        client: &Client<M, D>,
        call: &FunctionRun,
        (function, engine): (&'static ShippedFunction, Option<&Outcome<ClientEngine>>),
        (file, is_read): (usize, bool),
    ) -> Outcome<FileResult> {
        let path = &self.files[file].path;
        let arguments = Zeroizing::new(call.arguments.bytes().to_vec());
        match engine {
            Some(Ok(engine)) if is_read => {
                let result = engine.run_on_file(client, call, path).await?;
                return Ok(FileResult::Lines(run_results(function, &arguments, &result)?, None));
            }
            Some(Err(failure)) if is_read => return Err(failure.clone()),
            _ if !function.is_linked_for(&arguments) => return Err(Failure::operation("the file is empty")),
            _ if !is_read => return Ok(FileResult::Lines(run_on_empty(function, &arguments)?, None)),
            _ => {}
        }
        if self.outputs.is_some() {
            return self.output_at_client(client, call, function, (file, arguments)).await;
        }
        let lines = run_on_stored(client, call.security, function, arguments, path).await?;
        let header = match call.header_rows {
            true => Some(header_of(client, call, path).await?),
            false => None,
        };
        Ok(FileResult::Lines(lines, header))
    }

    /// Makes the output of a file that the client reads.
    async fn output_at_client<M: Metadata, D: Devices>(
        &mut self,
        client: &Client<M, D>,
        call: &FunctionRun,
        function: &'static ShippedFunction,
        (file, arguments): (usize, Zeroizing<Vec<u8>>),
    ) -> Outcome<FileResult> {
        let (path, is_only) = (&self.files[file].path, self.files.len() == 1);
        let (spool, line) = run_to_file(client, call.security, function, arguments, path).await?;
        let Some(outputs) = &mut self.outputs else { return Ok(FileResult::Reported) };
        let place = (file, self.files[file].output_mode());
        let bytes = outputs.take_spool(client, place, spool, (&mut self.sink, is_only)).await?;
        Ok(FileResult::Output(line, bytes))
    }

    /// Writes the total.
    fn finish_text(&mut self) -> Outcome {
        let total = self.reduction.as_ref().and_then(Reduction::total).cloned();
        let Some(total) = total else { return Ok(()) };
        let mut text = Vec::new();
        // Of files with lines of their own, the last line is the total.
        let form = TextForm { with_path: self.per_file, ..self.form };
        if !self.per_file || self.files.len() > 1 {
            push_text(form, b"total", &total, &mut text)?;
            self.write(&text);
        }
        Ok(())
    }

    /// Returns the failure of the command, of which text has a line for each part.
    fn failure(&self, parts: usize, unit: &str) -> Option<Failure> {
        let first = self.failures.first()?;
        if parts <= 1 && self.failed_count == 1 {
            return Some(Failure { reported: true, ..first.clone() });
        }
        let agree = self.failures.iter().all(|failure| failure.kind == first.kind);
        let kind = if agree && self.failed_count >= parts { first.kind } else { FailureKind::Operation };
        let message = format!("{} of {parts} {unit} failed; the first: {}", self.failed_count, first.message);
        let next_step = first.next_step.clone();
        Some(Failure { next_step, reported: true, ..Failure::new(kind, message) })
    }
}

async fn header_of<M: Metadata, D: Devices>(
    client: &Client<M, D>,
    call: &FunctionRun,
    path: &FilePath,
) -> Outcome<String> {
    call.header_of(client, path).await.map_err(|error| function_failure(&error).at(path))
}

/// Returns the failure of a result for which the JSON has no space.
fn json_is_full(omitted: &str) -> Failure {
    Failure::operation(format!("the results in the JSON have more than 256 MiB; this {omitted} is omitted"))
        .hint("write them with --output FILE")
}

/// Returns the failure of a job that has no result.
fn failure_of_reply(reply: &CallReply) -> Option<Failure> {
    match &reply.outcome {
        Ok(_) if reply.is_success() => None,
        // Only runs at the client are no jobs.
        Ok(status) if reply.handle.is_none() => failure_of(AT_CLIENT, status),
        Ok(status) => Some(failure_of_ended(&reply.handle_text(), status)),
        Err(error) => Some(function_failure(error)),
    }
}

/// Returns the JSON of a job, with or without its result.
fn reply_value(call: &FunctionRun, reply: &CallReply, has_result: bool) -> Value {
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
        if has_result {
            set_bytes(&mut value, "result", &reply.result);
        }
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

fn remark_totals(output: Output, files: usize, summary: &CallSummary, seconds: f64) {
    output.remark(format!(
        "{}: {} on {} read {} in {seconds:.2} s; results of {}",
        counted(files as u64, "file"),
        counted(summary.jobs as u64, "job"),
        counted(summary.devices as u64, "device"),
        human_bytes(summary.bytes_read),
        human_bytes(summary.result_bytes)
    ));
}

/// Returns the second function of the command line.
fn second_function(global: &GlobalArgs, arguments: &RunArgs) -> Outcome<Option<SecondFunction>> {
    let Some(function) = &arguments.reduce else { return Ok(None) };
    let mut all = CallArguments::default();
    for (name, value) in &arguments.reduce_arguments {
        all.add(name, value)?;
    }
    let path = function_path(global, function)?;
    Ok(Some(SecondFunction { path, place: arguments.reduce_on, arguments: all }))
}

/// `sealstone run`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, arguments: &RunArgs) -> Outcome {
    let path = function_path(global, &arguments.function)?;
    let operands: Vec<FilePath> =
        arguments.paths.iter().map(|path| Ok((*global.stored(path)?).clone())).collect::<Outcome<_>>()?;
    let (client, _) = client(global)?;
    let records = job_records(global)?;
    if arguments.is_async {
        // An asynchronous job can be found only by its record.
        records.all()?;
    }
    let found = InputFiles::find(&client, &operands).await?;
    if arguments.update && found.has_directory {
        return Err(Failure::usage("--update changes files that are named, not directories"));
    }
    let stored = |path: &Option<OsString>| path.as_ref().map(|path| global.stored(path)).transpose();
    let (key, to) = (stored(&arguments.key_object)?, stored(&arguments.to)?);
    let plan = CallPlan {
        arguments: &arguments.call,
        function: path,
        is_async: arguments.is_async,
        security: arguments.security.into(),
        key_file: key.map(|path| (*path).clone()),
        to,
        update: arguments.update,
        commit: arguments.commit,
        second: second_function(global, arguments)?,
    };
    run_call(output, &client, &plan, found, Some(records)).await
}

/// Runs a call on files, and writes its results.
pub(crate) async fn run_call<M: Metadata, D: Devices>(
    output: Output,
    client: &Client<M, D>,
    plan: &CallPlan<'_>,
    found: InputFiles,
    records: Option<JobRecords>,
) -> Outcome {
    let started = Instant::now();
    let CallPlan { arguments, function: path, .. } = plan;
    let function = reducible(plan);
    let mut call = call_of(plan, function, &found.files)?;
    let local = arguments.output.as_os_str();
    let makes_files =
        |function: &&ShippedFunction| function.output_of(call.arguments.bytes()) == FunctionOutput::File;
    let outputs = match function.filter(makes_files) {
        Some(function) => {
            let files = (&found.files[..], found.files.len() > 1 || found.has_directory);
            let target = (local, plan.to.as_ref(), plan.security);
            Some(FileOutputs::plan(client, (function, call.arguments.bytes()), files, target).await?)
        }
        None if plan.to.is_some() => {
            return Err(Failure::usage("only shipped functions that make files have --to; use --output"));
        }
        None => None,
    };
    let sink = match outputs.as_ref().is_some_and(|outputs| !outputs.is_sink()) {
        true => ResultSink::Standard,
        false => ResultSink::open(local)?,
    };
    if outputs.as_ref().is_some_and(|outputs| outputs.is_joined() && outputs.is_sink()) && output.is_json() {
        return Err(Failure::usage("the output of several files is not part of the JSON")
            .hint("name a local file with --output FILE, or a stored one with --to PATH"));
    }
    if outputs.as_ref().is_some_and(FileOutputs::is_sink)
        && matches!(sink, ResultSink::Standard)
        && !output.is_json()
        && TextForm::is_terminal()
    {
        return Err(Failure::usage("the output is not written to a terminal")
            .hint("name a local file with --output FILE, or a stored one with --to PATH"));
    }
    let is_named = found.files.len() > 1 || found.has_directory;
    let form = TextForm {
        numbered: function.is_some_and(|function| function.name == "grep"),
        with_path: is_named,
        escaped: matches!(sink, ResultSink::Standard) && TextForm::is_terminal(),
    };
    let unit = if function.is_some() { "files" } else { "jobs" };
    let bar = output.counting(found.files.len() as u64, unit);
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut report = RunReport {
        output,
        files: &found.files,
        path: local,
        sink,
        records,
        bar,
        form,
        per_file: arguments.per_file,
        reduction: function.map(Reduction::new),
        outputs,
        text: OrderedText::default(),
        header: None,
        ended: BTreeSet::new(),
        at_client: BTreeSet::new(),
        collected: plan.second.as_ref().map(|_| CollectedResults::default()),
        may_run_jobs: !plan.update && !plan.is_async && plan.key_file.is_none(),
        local_jobs: Vec::new(),
        jobs: Vec::new(),
        results: Vec::new(),
        result_bytes: 0,
        failures: Vec::new(),
        failed_count: 0,
        write_error: None,
    };
    found.failed.iter().for_each(|failure| report.fail(failure.clone()));
    if let Some(function) = function {
        let is_linked = function.is_linked_for(call.arguments.bytes());
        for file in (0..found.files.len()).filter(|file| found.files[*file].is_empty && is_linked) {
            let result = match run_on_empty(function, call.arguments.bytes()) {
                Ok(lines) => FileResult::Lines(lines, None),
                Err(failure) => FileResult::Failed(failure),
            };
            report.end_file(file, result);
        }
    }
    if let Some(records) = report.records.clone().filter(|_| plan.is_async) {
        call.on_start = Some(start_hook(records, &call));
    }
    let ran = call.run(client, |reply| report.add(&call, reply)).await;
    let summary = ran.map_err(|error| at_function(error, path));
    if summary.is_ok() {
        let engines = arguments.engines.as_deref();
        report.run_at_client(client, &call, path, engines).await;
        report.run_local_jobs(client, &call, path, engines).await;
    }
    if let Some(outputs) = &mut report.outputs {
        for (file, failure) in outputs.store_waiting(client, &found.files).await {
            report.results.retain(|(number, _)| *number != file);
            report.fail(failure);
        }
    }
    if let Some(outputs) = report.outputs.as_mut().filter(|outputs| outputs.is_joined() && summary.is_ok()) {
        let is_written = if report.failed_count > 0 {
            let text = "the table is not written, because rows of some files are missing";
            report.bar.suspend(|| report.output.remark(text));
            false
        } else {
            let written = outputs.write_joined(client, &found.files).await;
            written.map_err(|failure| report.fail(failure)).is_ok()
        };
        if !is_written {
            report.results.iter_mut().filter_map(|(_, value)| value.as_object_mut()).for_each(|value| {
                value.remove("output");
            });
        }
    }
    let reduced = match summary {
        Ok(_) => report.run_second(client, &call, plan).await,
        Err(_) => None,
    };
    report.bar.finish_and_clear();
    let summary = summary?;
    report.finish_text()?;
    if let Some(failure) = report.write_error {
        return Err(failure);
    }
    if let ResultSink::File(file) = &report.sink {
        file.sync_all().map_err(|error| Failure::from(error).at(local.shown()))?;
    } else {
        std::io::stdout().flush().map_err(stdout_failure)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    if !plan.is_async && summary.failed < summary.jobs {
        remark_totals(output, found.files.len(), &summary, seconds);
    }
    let parts = if function.is_some() { found.files.len() } else { summary.jobs } + found.failed.len();
    let failure = report.failure(parts, unit);
    let mut value = json!({
        "jobs": report.jobs, "totals": totals(&summary, seconds),
        "failed_count": report.failed_count,
        "failed": report.failures.iter().map(Failure::json).collect::<Vec<_>>(),
    });
    if let Some(reduced) = reduced {
        value["reduced"] = reduced;
    }
    if function.is_some() {
        report.results.sort_unstable_by_key(|(file, _)| *file);
        value["files"] = report.results.into_iter().map(|(_, value)| value).collect();
        if let Some(total) = report.reduction.as_ref().and_then(Reduction::total) {
            value["total"] = json!({});
            add_json(&mut value["total"], total)?;
        }
    }
    set_bytes(&mut value, "function", path);
    output.done(&value)?;
    failure.map_or(Ok(()), Err)
}
