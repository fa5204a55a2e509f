//! Jobs of functions: their states, results and logs.

use sealstone_client::functions::{FunctionError, JobPage, JobStatus};
use sealstone_client::{Client, ClientError, Method};
use sealstone_failure::text::human_bytes;
use sealstone_failure::{Failure, Outcome};
use sealstone_job_records::{JobRecord, JobRecords};
use sealstone_mds_protocol::{ErrorCode, IntentId};
use sealstone_osd::function::{ExitReason, JobState};
use serde_json::{Value, json};

use crate::library::{failure_of_ended, json_name};
use crate::receipt::{ReceiptReport, verify_receipt};

/// The recorded jobs, and their states on the devices.
#[derive(Clone, Debug, Default)]
pub struct JobList {
    values: Vec<Value>,
    lines: Vec<String>,
}

impl JobList {
    /// Requests the states of all recorded jobs. Removes records of jobs that their devices do not
    /// know any more.
    ///
    /// # Errors
    /// The records cannot be read or written, or the session is over.
    pub async fn load(client: &Client, records: &JobRecords, method: Method) -> Outcome<Self> {
        let (mut values, mut lines, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for record in &records.all()? {
            match client.job_status(&record.handle()?, method).await {
                Ok(status) => {
                    release_unused(client, records, record, &status).await;
                    values.push(job_json(record, Some(&status)));
                    lines.push(job_line(record, &status));
                }
                Err(error) if is_forgotten(&error) && !record.may_start() => {
                    if let Some(reserved) = record.reserved {
                        client.release_job_result(IntentId(reserved)).await;
                    }
                    unknown.push(record.job.clone());
                }
                Err(error) => {
                    let failure = Failure::from(error);
                    if failure.fatal {
                        return Err(failure);
                    }
                    let mut value = job_json(record, None);
                    value["error"] = json!({ "kind": failure.kind.name(), "message": failure.message });
                    values.push(value);
                    lines.push(format!("{}  {failure}", record.job));
                }
            }
        }
        records.forget(&unknown)?;
        Ok(Self { values, lines })
    }

    /// Returns the list as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({ "jobs": self.values })
    }

    /// Returns the list as text.
    #[must_use]
    pub fn text(&self) -> String {
        if self.lines.is_empty() {
            return "no jobs; `sealstone run --async` starts some".to_owned();
        }
        self.lines.join("\n")
    }
}

/// Returns a job as `--json` prints it.
#[must_use]
pub fn job_json(record: &JobRecord, status: Option<&JobStatus>) -> Value {
    let mut value = json!({
        "job": record.job, "function": record.function, "device": record.device_name, "files": record.files,
        "recorded_ms": record.recorded_ms,
    });
    let Some(status) = status else { return value };
    let fields = json!({
        "state": json_name(status.state.name()), "exit": json_name(status.exit.name()), "code": status.error,
        "result_bytes": status.total_length, "bytes_read": status.bytes_read,
        "bytes_written": status.bytes_written, "cpu_us": status.cpu_us, "wall_us": status.wall_us,
        "peak_memory": status.peak_memory, "calls": status.calls,
        "progress": { "done": status.progress_done, "total": status.progress_total },
    });
    if let (Value::Object(value), Value::Object(fields)) = (&mut value, fields) {
        value.extend(fields);
    }
    value
}

/// Returns one line about a job.
#[must_use]
pub fn job_line(record: &JobRecord, status: &JobStatus) -> String {
    let progress = match (status.state, status.progress_total) {
        (JobState::Running, total) if total > 0 => {
            format!(" {} %", status.progress_done.saturating_mul(100) / total)
        }
        _ => String::new(),
    };
    let exit = match status.exit {
        ExitReason::Success => String::new(),
        ExitReason::FunctionError | ExitReason::Trap => format!(" ({}, code {})", status.exit, status.error),
        exit => format!(" ({exit})"),
    };
    format!(
        "{}  {}{progress}{exit}  {} on {}  read {}, result {}",
        record.job,
        status.state,
        record.function,
        record.device_name,
        human_bytes(status.bytes_read),
        human_bytes(status.total_length)
    )
}

/// Returns the failure of a job that has no complete result.
#[must_use]
pub fn failure_of_job(record: &JobRecord, status: &JobStatus) -> Option<Failure> {
    let job = &record.job;
    if status.state == JobState::Done {
        return None;
    }
    if !status.state.is_final() {
        let failure = Failure::operation(format!("job {job} is still {}", status.state));
        return Some(failure.hint(format!("sealstone job wait {job}")));
    }
    Some(failure_of_ended(job, status))
}

/// Whether the device has no job of this record any more: the job expired, or its function was
/// removed or changed.
fn is_forgotten(error: &FunctionError) -> bool {
    match error {
        FunctionError::UnknownJob { .. }
        | FunctionError::NotAFunction { .. }
        | FunctionError::NotWhole { .. } => true,
        FunctionError::Client(error) => error.is_not_found(),
        _ => false,
    }
}

/// Reads the result of a job page by page, or from the object with a long result.
///
/// # Errors
/// The job has not ended, or its result was removed; those of `each`.
pub async fn read_job_result(
    client: &Client,
    record: &JobRecord,
    method: Method,
    mut each: impl AsyncFnMut(&[u8]) -> Outcome,
) -> Outcome<JobPage> {
    let handle = &record.handle()?;
    let (mut at, mut receipt) = (0u64, Vec::new());
    loop {
        let mut page = client.job_result(handle, at, method).await.map_err(Failure::from)?;
        if page.status.state == JobState::Done && page.status.result_object.is_some() {
            read_long_result(client, record, &page.status, method, each).await?;
            return Ok(page);
        }
        if !page.status.state.is_final() {
            return Err(Failure::operation("the job has not ended")
                .hint(format!("sealstone job wait {}", handle.job)));
        }
        each(&page.bytes).await?;
        at += page.bytes.len() as u64;
        if receipt.is_empty() {
            receipt = std::mem::take(&mut page.receipt);
        }
        if page.bytes.is_empty() || at >= page.status.total_length {
            return Ok(JobPage { receipt, ..page });
        }
    }
}

/// Reads the result of a job from its object.
async fn read_long_result(
    client: &Client,
    record: &JobRecord,
    status: &JobStatus,
    method: Method,
    mut each: impl AsyncFnMut(&[u8]) -> Outcome,
) -> Outcome {
    let gone = || {
        Failure::operation("the object with its result was removed")
            .hint("run the function again, and fetch the result earlier")
    };
    let reserved = IntentId(record.reserved.ok_or_else(gone)?);
    let opened = client.long_job_result(reserved, status, method).await;
    let mut reader = opened.map_err(|error| if is_stale(&error) { gone() } else { Failure::from(error) })?;
    while let Some(piece) = reader.next().await.map_err(Failure::from)? {
        each(&piece).await?;
    }
    Ok(())
}

/// Whether the reservation has ended.
fn is_stale(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(failure) if failure.code == ErrorCode::Stale)
}

/// Ends the reservation of a job that ended without a long result.
pub async fn release_unused(client: &Client, records: &JobRecords, record: &JobRecord, status: &JobStatus) {
    let Some(reserved) = record.reserved.map(IntentId) else { return };
    if status.state.is_final() && status.result_object.is_none() {
        client.release_job_result(reserved).await;
        if let Err(failure) = records.clear_reservation(&record.job) {
            tracing::debug!(%failure, "the record of a job keeps its reservation");
        }
    }
}

/// Verifies the receipt of a job at the metadata server, and compares it with the job's result.
///
/// # Errors
/// The job has not ended or has no receipt, or the receipt is not genuine.
pub async fn verify_job(client: &Client, record: &JobRecord, method: Method) -> Outcome<ReceiptReport> {
    let mut digest = blake3::Hasher::new();
    let page = read_job_result(client, record, method, async |piece| {
        digest.update(piece);
        Ok(())
    })
    .await
    .map_err(|failure| failure.at(&record.job))?;
    if page.receipt.is_empty() {
        return Err(Failure::operation("the device returned no receipt").at(&record.job));
    }
    verify_receipt(client, &record.job, &page.receipt, Some(*digest.finalize().as_bytes())).await
}

/// Reads the log of a job.
///
/// # Errors
/// The device does not know the job, or cannot be reached.
pub async fn read_job_log(client: &Client, record: &JobRecord, method: Method) -> Outcome<String> {
    let handle = record.handle()?;
    let mut text = Vec::new();
    loop {
        let page = client
            .job_log(&handle, text.len() as u64, method)
            .await
            .map_err(|error| Failure::from(error).at(&record.job))?;
        text.extend_from_slice(&page.bytes);
        if page.bytes.is_empty() || text.len() as u64 >= page.status.total_length {
            return Ok(String::from_utf8_lossy(&text).into_owned());
        }
    }
}
