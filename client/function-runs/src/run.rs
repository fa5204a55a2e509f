//! A run of a function on stored files.
//!
//! Does: starts the jobs, runs the function at the client where a device cannot, and writes the
//! results. Those of a shipped function are reduced to one result for each file and a total.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use sealstone_client::functions::{CallReply, CallSummary, FunctionRun};
use sealstone_client::{Client, Devices, FilePath, Metadata, function_failure};
use sealstone_failure::text::{counted, set_bytes};
use sealstone_failure::{Failure, Outcome};
use sealstone_functions::{FunctionOutput, OutputLine, ResultLine, ShippedFunction};
use sealstone_job_records::{JobRecord, JobRecords};
use sealstone_mds_protocol::shown;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::call_plan::{CallPlan, call_of, reducible, start_hook};
use crate::client_engine::ClientEngine;
use crate::file_output::{FileOutputs, split_output};
use crate::files::{InputFile, InputFiles};
use crate::library::at_function;
use crate::local_run::{run_on_empty, run_on_stored, run_results, run_to_file};
use crate::observer::{ResultDestination, RunObserver};
use crate::receipt_folder::ReceiptFolder;
use crate::reduction::{FileResult, Reduction, can_run_at_client, reason_for_client};
use crate::report::{FunctionRunReport, PartFailures, failure_of_reply, json_is_full, reply_value};
use crate::result_sink::ResultSink;
use crate::result_text::{OrderedText, TextForm, add_json, push_text};
use crate::second::{CollectedResults, reduce};

/// Maximum bytes of results in the JSON of a report.
const JSON_RESULT_BYTES_MAX: usize = 256 << 20;
/// Bytes of memory of a line of a result in the JSON, beside its text.
const JSON_LINE_BYTES: usize = 256;
/// Maximum number of jobs that wait for the client.
const LOCAL_JOBS_MAX: usize = 4096;

/// Progress of a run.
struct FunctionRunState<'a> {
    observer: &'a dyn RunObserver,
    files: &'a [InputFile],
    sink: ResultSink,
    /// Whether the report has the JSON of jobs and files.
    with_json: bool,
    /// Receives the receipts of jobs, if the caller requested them.
    receipts: Option<ReceiptFolder>,
    /// Records of jobs, for a user with a session.
    records: Option<JobRecords>,
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
    /// Why devices did not run jobs that the client runs.
    client_reasons: BTreeSet<&'static str>,
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
    failures: PartFailures,
    write_error: Option<Failure>,
}

impl<'a> FunctionRunState<'a> {
    /// Returns the state of a run whose jobs were not started.
    async fn new<M: Metadata, D: Devices>(
        client: &Client<M, D>,
        plan: &CallPlan,
        found: &'a InputFiles,
        (function, call): (Option<&'static ShippedFunction>, &FunctionRun),
        (records, observer): (Option<JobRecords>, &'a dyn RunObserver),
    ) -> Outcome<Self> {
        let arguments = call.arguments.bytes();
        let is_named = found.files.len() > 1 || found.has_directory;
        let makes_files = |function: &&ShippedFunction| function.output_of(arguments) == FunctionOutput::File;
        let outputs = match function.filter(makes_files) {
            Some(function) => {
                let target = (&plan.destination, plan.to.as_ref(), plan.security);
                let files = (&found.files[..], is_named);
                Some(FileOutputs::plan(client, (function, arguments), files, target).await?)
            }
            None if plan.to.is_some() => {
                let text = "only shipped functions that make files have --to; use --output";
                return Err(Failure::usage(text));
            }
            None => None,
        };
        // Before the sink, which truncates the output file.
        let receipts = plan.receipts.as_deref().map(ReceiptFolder::create).transpose()?;
        let sink = match outputs.as_ref().is_some_and(|outputs| !outputs.is_sink()) {
            true => ResultSink::standard(plan.with_json),
            false => ResultSink::open(&plan.destination, plan.with_json)?,
        };
        if let Some(outputs) = &outputs {
            check_destination(plan, outputs, &sink)?;
        }
        let form = TextForm {
            numbered: function.is_some_and(|function| function.name == "grep"),
            with_path: is_named,
            escaped: plan.destination == ResultDestination::Terminal,
        };
        Ok(Self {
            observer,
            files: &found.files,
            sink,
            with_json: plan.with_json,
            receipts,
            records,
            form,
            per_file: plan.per_file,
            reduction: function.map(Reduction::new),
            outputs,
            text: OrderedText::default(),
            header: None,
            ended: BTreeSet::new(),
            at_client: BTreeSet::new(),
            client_reasons: BTreeSet::new(),
            collected: plan.second.as_ref().map(|_| CollectedResults::default()),
            may_run_jobs: !plan.update && !plan.is_async && plan.key_file.is_none(),
            local_jobs: Vec::new(),
            jobs: Vec::new(),
            results: Vec::new(),
            result_bytes: 0,
            failures: PartFailures::default(),
            write_error: None,
        })
    }

    /// Returns the name of the parts: files if results are reduced, jobs otherwise.
    const fn unit(&self) -> &'static str {
        if self.reduction.is_some() { "files" } else { "jobs" }
    }

    /// Runs the jobs, then what the client has to run, and stores outputs. Returns the totals, and
    /// the JSON of the second function.
    async fn run<M: Metadata, D: Devices>(
        &mut self,
        client: &Client<M, D>,
        plan: &CallPlan,
        found: &InputFiles,
        mut call: FunctionRun,
    ) -> Outcome<(CallSummary, Option<Value>)> {
        found.failed.iter().for_each(|failure| self.fail(failure.clone()));
        self.end_empty_files(&call);
        if let Some(records) = self.records.clone().filter(|_| plan.is_async) {
            call.on_start = Some(start_hook(records, &call));
        }
        let ran = call.run(client, |reply| self.add(&call, reply)).await;
        let summary = ran.map_err(|error| at_function(error, &plan.function));
        if summary.is_ok() {
            let engines = plan.engines.as_deref();
            self.run_at_client(client, &call, &plan.function, engines).await;
            self.run_local_jobs(client, &call, &plan.function, engines).await;
        }
        self.store_outputs(client, summary.is_ok()).await;
        let summary = summary?;
        let reduced = self.run_second(client, &call, plan).await;
        Ok((summary, reduced))
    }

    /// Ends the files without bytes, for which no job is needed.
    fn end_empty_files(&mut self, call: &FunctionRun) {
        let arguments = call.arguments.bytes();
        let Some(function) = self.reduction.as_ref().map(|reduction| reduction.function) else { return };
        if !function.is_linked_for(arguments) {
            return;
        }
        let files = self.files;
        for file in (0..files.len()).filter(|file| files[*file].is_empty) {
            let result = match run_on_empty(function, arguments) {
                Ok(lines) => FileResult::Lines(lines, None),
                Err(failure) => FileResult::Failed(failure),
            };
            self.end_file(file, result);
        }
    }

    /// Stores the outputs that wait, and the table of the rows of all files.
    async fn store_outputs<M: Metadata, D: Devices>(&mut self, client: &Client<M, D>, is_complete: bool) {
        let Some(mut outputs) = self.outputs.take() else { return };
        for (file, failure) in outputs.store_waiting(client, self.files).await {
            self.results.retain(|(number, _)| *number != file);
            self.fail(failure);
        }
        if outputs.is_joined() && is_complete {
            let is_written = if self.failures.count > 0 {
                self.observer.remark("the table is not written, because rows of some files are missing");
                false
            } else {
                let written = outputs.write_joined(client, self.files, self.observer).await;
                written.map_err(|failure| self.fail(failure)).is_ok()
            };
            if !is_written {
                self.results.iter_mut().filter_map(|(_, value)| value.as_object_mut()).for_each(|value| {
                    value.remove("output");
                });
            }
        }
        self.outputs = Some(outputs);
    }

    fn fail(&mut self, failure: Failure) {
        self.failures.add(self.observer.part_failed(failure));
    }

    /// Reports that the client runs the function on data, and why devices did not.
    fn remark_client_run(&self, data: &str) {
        let reasons: Vec<_> = self.client_reasons.iter().copied().collect();
        let reasons = reasons.join(", and ");
        self.observer.remark(&format!("the client reads {data} and runs the function: {reasons}"));
    }

    /// Adds a reply, unless the client may run its job.
    fn add(&mut self, call: &FunctionRun, reply: CallReply) {
        self.client_reasons.extend(reason_for_client(&reply));
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
                self.observer.remark(&text);
                None
            }
        };
        let Some(engine) = engine else {
            replies.into_iter().for_each(|reply| self.add_ended(call, reply, false));
            return;
        };
        let jobs = counted(replies.len() as u64, "job");
        self.remark_client_run(&format!("the data of {jobs}"));
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

    /// Reports the log of a failed run at the client, which no job keeps.
    fn show_log(&self, reply: &CallReply, log: &str) {
        if !reply.is_success() && !log.is_empty() {
            self.observer.remark(log.trim_end());
        }
    }

    /// Runs the second function on the results, and writes its result. Returns its JSON.
    async fn run_second<M: Metadata, D: Devices>(
        &mut self,
        client: &Client<M, D>,
        call: &FunctionRun,
        plan: &CallPlan,
    ) -> Option<Value> {
        let (Some(second), Some(collected)) = (&plan.second, self.collected.take()) else { return None };
        if self.failures.count > 0 {
            let text = format!("{} does not run, because results are missing", second.path);
            self.observer.remark(&text);
            return None;
        }
        let engines = plan.engines.as_deref();
        let (reply, log) = match reduce(client, call, second, collected, engines).await {
            Ok(end) => end,
            Err(failure) => {
                self.fail(failure);
                return None;
            }
        };
        self.record(&reply, &[], false);
        self.show_log(&reply, &log);
        let receipt = self.keep_receipt(&reply);
        let has_result = !self.sink.is_file() && self.count_json_bytes(reply.result.len());
        let mut value = reply_value(call, &reply, has_result);
        if reply.device.is_empty() {
            value["at_client"] = true.into();
        }
        if let Some(path) = receipt {
            set_bytes(&mut value, "receipt", path.as_os_str().as_encoded_bytes());
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
        let receipt = self.keep_receipt(&reply);
        let is_reduced = self.reduction.is_some();
        let failure = failure_of_reply(&reply).filter(|_| !(is_reduced && can_run_at_client(&reply)));
        if self.with_json {
            let has_result = !is_reduced && !self.sink.is_file();
            let fits = !has_result || self.count_json_bytes(reply.result.len());
            let mut value = reply_value(call, &reply, has_result && fits);
            if let (Some(failure), Err(_)) = (&failure, &reply.outcome) {
                value["error"] = json!({ "kind": failure.kind.name(), "message": failure.message });
            }
            if at_client {
                value["at_client"] = true.into();
            }
            if let Some(path) = receipt {
                set_bytes(&mut value, "receipt", path.as_os_str().as_encoded_bytes());
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
                self.observer.part_ended();
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
            self.write_error = self.sink.write(self.observer, bytes).err();
        }
    }

    /// Writes receipt and result of a job that a device ran; returns the path of the receipt.
    fn keep_receipt(&mut self, reply: &CallReply) -> Option<PathBuf> {
        let written = self.receipts.as_ref()?.write(reply);
        written.unwrap_or_else(|failure| {
            self.fail(failure);
            None
        })
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
        if is_async || !status.state.is_final() {
            self.observer.remark(&format!("started job {} on device {}", record.job, record.device_name));
        }
        if let Err(failure) = records.add(&[record]) {
            self.observer.warn(&format!("job {} is not recorded: {failure}", handle.job));
        }
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
        self.observer.part_ended();
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
        if self.with_json {
            let mut value = json!({});
            set_bytes(&mut value, "path", self.files[file].path.as_bytes());
            add_json(&mut value, &ResultLine::Output(line))?;
            if let Some(path) = self.outputs.as_ref().and_then(|outputs| outputs.path_of(file)) {
                set_bytes(&mut value, "output", path);
            }
            if let (Some(bytes), false) = (&bytes, self.sink.is_file()) {
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
        if self.with_json {
            let mut value = json!({});
            set_bytes(&mut value, "path", path);
            if !self.sink.is_file() {
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
            self.remark_client_run(&counted(self.at_client.len() as u64, "file"));
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
}

async fn header_of<M: Metadata, D: Devices>(
    client: &Client<M, D>,
    call: &FunctionRun,
    path: &FilePath,
) -> Outcome<String> {
    call.header_of(client, path).await.map_err(|error| function_failure(&error).at(path))
}

/// Refuses destinations that cannot receive the outputs of files.
fn check_destination(plan: &CallPlan, outputs: &FileOutputs, sink: &ResultSink) -> Outcome {
    let advice = "name a local file with --output FILE, or a stored one with --to PATH";
    if outputs.is_joined() && outputs.is_sink() && plan.with_json {
        return Err(Failure::usage("the output of several files is not part of the JSON").hint(advice));
    }
    let is_shown = plan.destination == ResultDestination::Terminal && matches!(sink, ResultSink::Observer);
    if outputs.is_sink() && is_shown {
        return Err(Failure::usage("the output is not written to a terminal").hint(advice));
    }
    Ok(())
}

/// Runs a function on files, and writes its results. `records` is the list of the user's jobs.
///
/// # Errors
/// Nothing was run, or results cannot be written. Failures of files and jobs are in the report.
pub async fn run_function<M: Metadata, D: Devices>(
    client: &Client<M, D>,
    plan: &CallPlan,
    found: &InputFiles,
    records: Option<JobRecords>,
    observer: &dyn RunObserver,
) -> Outcome<FunctionRunReport> {
    let started = Instant::now();
    let function = reducible(plan);
    let call = call_of(plan, function, &found.files)?;
    let mut state =
        FunctionRunState::new(client, plan, found, (function, &call), (records, observer)).await?;
    observer.begin(found.files.len() as u64, state.unit());
    let run = state.run(client, plan, found, call).await;
    observer.end();
    let (summary, reduced) = run?;
    state.finish_text()?;
    if let Some(failure) = state.write_error {
        return Err(failure);
    }
    state.sink.sync()?;
    let (unit, is_reduced) = (state.unit(), function.is_some());
    let parts = if is_reduced { found.files.len() } else { summary.jobs } + found.failed.len();
    let mut value = json!({ "jobs": state.jobs });
    if let Some(reduced) = reduced {
        value["reduced"] = reduced;
    }
    if is_reduced {
        state.results.sort_unstable_by_key(|(file, _)| *file);
        value["files"] = state.results.into_iter().map(|(_, value)| value).collect();
        if let Some(total) = state.reduction.as_ref().and_then(Reduction::total) {
            value["total"] = json!({});
            add_json(&mut value["total"], total)?;
        }
    }
    Ok(FunctionRunReport {
        function: plan.function.clone(),
        files: found.files.len(),
        summary,
        seconds: started.elapsed().as_secs_f64(),
        is_async: plan.is_async,
        failures: state.failures,
        parts,
        unit,
        value,
    })
}
