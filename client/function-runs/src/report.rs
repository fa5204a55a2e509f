//! Report of a run: totals, failures, and the JSON of jobs and files.

use sealstone_client::FilePath;
use sealstone_client::function_failure;
use sealstone_client::functions::{CallReply, CallSummary, FunctionRun};
use sealstone_failure::text::{counted, human_bytes, set_bytes};
use sealstone_failure::{Failure, FailureKind, Outcome};
use serde_json::{Value, json};

use crate::client_engine::AT_CLIENT;
use crate::library::{failure_of_ended, json_name};
use crate::local_engine::failure_of;

/// Maximum number of failures that a report lists.
const FAILURES_MAX: usize = 10_000;

/// Failures of the parts of a run; those above a limit are only counted.
#[derive(Debug, Default)]
pub(crate) struct PartFailures {
    pub(crate) listed: Vec<Failure>,
    pub(crate) count: usize,
}

impl PartFailures {
    /// Adds a failure.
    pub(crate) fn add(&mut self, failure: Failure) {
        self.count += 1;
        if self.listed.len() < FAILURES_MAX {
            self.listed.push(failure);
        }
    }

    /// Returns the failure of the run. The observer has received that of each part.
    fn failure(&self, parts: usize, unit: &str) -> Option<Failure> {
        let first = self.listed.first()?;
        if parts <= 1 && self.count == 1 {
            return Some(Failure { reported: true, ..first.clone() });
        }
        let agree = self.listed.iter().all(|failure| failure.kind == first.kind);
        let kind = if agree && self.count >= parts { first.kind } else { FailureKind::Operation };
        let message = format!("{} of {parts} {unit} failed; the first: {}", self.count, first.message);
        let next_step = first.next_step.clone();
        Some(Failure { next_step, reported: true, ..Failure::new(kind, message) })
    }
}

/// Report of a run that has ended.
#[derive(Debug)]
pub struct FunctionRunReport {
    /// Stored path of the function.
    pub function: FilePath,
    /// Number of files.
    pub files: usize,
    /// Jobs, devices and bytes.
    pub summary: CallSummary,
    /// Duration in seconds.
    pub seconds: f64,
    /// Whether the jobs were only started.
    pub is_async: bool,
    pub(crate) failures: PartFailures,
    /// Number of parts: files of a function whose results are reduced, and jobs of others.
    pub(crate) parts: usize,
    pub(crate) unit: &'static str,
    /// JSON of the jobs, and of the files, the total and the second function if there are any.
    pub(crate) value: Value,
}

impl FunctionRunReport {
    /// Returns one line about jobs that ended, unless none succeeded.
    #[must_use]
    pub fn summary_line(&self) -> Option<String> {
        let summary = &self.summary;
        (!self.is_async && summary.failed < summary.jobs).then(|| {
            format!(
                "{}: {} on {} read {} in {:.2} s; results of {}",
                counted(self.files as u64, "file"),
                counted(summary.jobs as u64, "job"),
                counted(summary.devices as u64, "device"),
                human_bytes(summary.bytes_read),
                self.seconds,
                human_bytes(summary.result_bytes)
            )
        })
    }

    /// Returns the failures of parts, as the observer returned them; at most 10,000.
    #[must_use]
    pub fn failures(&self) -> &[Failure] {
        &self.failures.listed
    }

    /// Returns the report as `sealstone --json run` prints it. Jobs and files are in that of a plan
    /// with JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let summary = &self.summary;
        let mut value = self.value.clone();
        value["totals"] = json!({
            "jobs": summary.jobs, "failed": summary.failed, "devices": summary.devices,
            "copies": summary.copies, "bytes_read": summary.bytes_read,
            "bytes_written": summary.bytes_written, "result_bytes": summary.result_bytes,
            "cpu_us": summary.cpu_us, "seconds": self.seconds,
        });
        value["failed_count"] = self.failures.count.into();
        value["failed"] = self.failures.listed.iter().map(Failure::json).collect();
        set_bytes(&mut value, "function", &self.function);
        value
    }

    /// Returns the outcome of the run.
    ///
    /// # Errors
    /// A part failed.
    pub fn outcome(&self) -> Outcome {
        self.failures.failure(self.parts, self.unit).map_or(Ok(()), Err)
    }
}

/// Returns the failure of a result for which the JSON has no space.
pub(crate) fn json_is_full(omitted: &str) -> Failure {
    Failure::operation(format!("the results in the JSON have more than 256 MiB; this {omitted} is omitted"))
        .hint("write them with --output FILE")
}

/// Returns the failure of a job that has no result.
pub(crate) fn failure_of_reply(reply: &CallReply) -> Option<Failure> {
    match &reply.outcome {
        Ok(_) if reply.is_success() => None,
        // Only runs at the client are no jobs.
        Ok(status) if reply.handle.is_none() => failure_of(AT_CLIENT, status),
        Ok(status) => Some(failure_of_ended(&reply.handle_text(), status)),
        Err(error) => Some(function_failure(error)),
    }
}

/// Returns the JSON of a job, with or without its result.
pub(crate) fn reply_value(call: &FunctionRun, reply: &CallReply, has_result: bool) -> Value {
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
        value["state"] = json!(json_name(status.state.name()));
        value["exit"] = json!(json_name(status.exit.name()));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(all: &[Failure]) -> PartFailures {
        let mut failures = PartFailures::default();
        all.iter().cloned().for_each(|failure| failures.add(failure));
        failures
    }

    #[test]
    fn failure_of_run_counts_its_parts() {
        assert_eq!(failures(&[]).failure(3, "files"), None);
        let (gone, broken) = (Failure::not_found("a"), Failure::operation("b"));
        let only = failures(std::slice::from_ref(&gone)).failure(1, "files").unwrap();
        assert_eq!((&only.message[..], only.reported), ("a", true));
        let some = failures(std::slice::from_ref(&gone)).failure(3, "files").unwrap();
        assert_eq!(some.message, "1 of 3 files failed; the first: a");
        assert_eq!(some.kind, FailureKind::Operation, "others succeeded");
        let all = failures(&[gone.clone(), gone.clone()]).failure(2, "jobs").unwrap();
        assert_eq!(all.kind, FailureKind::NotFound);
        assert_eq!(failures(&[gone, broken]).failure(2, "jobs").unwrap().kind, FailureKind::Operation);
    }

    #[test]
    fn failures_above_limit_are_only_counted() {
        let mut all = PartFailures::default();
        (0..=FAILURES_MAX).for_each(|_| all.add(Failure::operation("a")));
        assert_eq!((all.listed.len(), all.count), (FAILURES_MAX, FAILURES_MAX + 1));
    }
}
