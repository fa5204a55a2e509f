//! `sealstone job`: lists, waits for, stops and reads jobs, and verifies receipts.
//!
//! Does: finds jobs in the list of started ones (`sealstone-job-records`) and requests their state
//! from the devices.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use sealstone_client::functions::{FunctionError, JobHandle, JobPage, JobStatus};
use sealstone_client::{Client, ClientError, Method};
use sealstone_failure::text::{ShownPath as _, hex, human_bytes};
use sealstone_failure::{Failure, FailureKind, Outcome};
use sealstone_function_runs::{failure_of_ended, json_name};
use sealstone_job_records::{JobRecord, JobRecords};
use sealstone_mds_protocol::{ErrorCode, IntentId, ReceiptVerdict};
use sealstone_osd::function::{EngineType, ExitReason, JobState, RECEIPT_MAX};
use sealstone_seal::FunctionReceipt;
use sealstone_units::utc;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::cli::GlobalArgs;
use crate::cli::functions::Job;
use crate::command::parts::{PartResults, for_each};
use crate::command::session::{client, job_records};
use crate::command::transfer::write_whole;
use crate::output::{Output, print_bytes};

/// Security method of the commands.
const METHOD: Method = Method::AllData;

/// `sealstone job …`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, command: &Job) -> Outcome {
    match command {
        Job::Ls => ls(global, output).await,
        Job::Status { jobs } => finish(
            each(global, output, jobs, async |client, job| client.job_status(job, METHOD).await).await?,
        ),
        Job::Wait { jobs, timeout } => {
            let timeout = Duration::from_millis((*timeout).into());
            let wait =
                async |client: &Client, job: &JobHandle| client.wait_for_job(job, timeout, METHOD).await;
            let mut results = each(global, output, jobs, wait).await?;
            let failures = results.done.iter().filter_map(|(record, status)| failure_of_job(record, status));
            for failure in failures.collect::<Vec<_>>() {
                results.fail(failure);
            }
            finish(results)
        }
        Job::Cancel { jobs } => finish(
            each(global, output, jobs, async |client, job| client.cancel_job(job, METHOD).await).await?,
        ),
        Job::Log { job } => log(global, output, job).await,
        Job::Result { job, output: path, receipt } => {
            result(global, output, job, path, receipt.as_deref()).await
        }
        Job::Verify { job, receipt, result } => {
            verify(global, output, job.as_deref(), receipt.as_deref(), result.as_deref()).await
        }
    }
}

/// Returns the JSON of a job.
fn value(record: &JobRecord, status: Option<&JobStatus>) -> Value {
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
fn line(record: &JobRecord, status: &JobStatus) -> String {
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
fn failure_of_job(record: &JobRecord, status: &JobStatus) -> Option<Failure> {
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

/// Sends a request about each job and returns their states.
async fn each(
    global: &GlobalArgs,
    output: Output,
    jobs: &[String],
    mut request: impl AsyncFnMut(&Client, &JobHandle) -> Result<JobStatus, FunctionError>,
) -> Outcome<PartResults<(JobRecord, JobStatus)>> {
    let records = job_records(global)?;
    let mut found: Vec<Outcome<JobRecord>> = Vec::with_capacity(jobs.len());
    for job in jobs {
        match records.find(job) {
            // An ambiguous id is refused before any request.
            Err(failure) if failure.kind != FailureKind::NotFound => return Err(failure),
            record => found.push(record),
        }
    }
    let (client, _) = client(global)?;
    for_each(output, &found, async |record| {
        let record = record.clone()?;
        let handle = record.handle()?;
        let status = request(&client, &handle).await.map_err(|error| Failure::from(error).at(&record.job))?;
        release_unused(&client, &records, &record, &status).await;
        Ok((record, status))
    })
    .await
}

/// Prints the states of jobs.
fn finish(results: PartResults<(JobRecord, JobStatus)>) -> Outcome {
    let values: Vec<Value> =
        results.done.iter().map(|(record, status)| value(record, Some(status))).collect();
    let lines: Vec<String> = results.done.iter().map(|(record, status)| line(record, status)).collect();
    results.finish_with_text(json!({ "jobs": values }), || lines.join("\n"))
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

async fn ls(global: &GlobalArgs, output: Output) -> Outcome {
    let records = job_records(global)?;
    let all = records.all()?;
    let (client, _) = client(global)?;
    let (mut values, mut lines, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    for record in &all {
        match client.job_status(&record.handle()?, METHOD).await {
            Ok(status) => {
                release_unused(&client, &records, record, &status).await;
                values.push(value(record, Some(&status)));
                lines.push(line(record, &status));
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
                let mut value = value(record, None);
                value["error"] = json!({ "kind": failure.kind.name(), "message": failure.message });
                values.push(value);
                lines.push(format!("{}  {failure}", record.job));
            }
        }
    }
    records.forget(&unknown)?;
    output.result(&json!({ "jobs": values }), || {
        if lines.is_empty() {
            "no jobs; `sealstone run --async` starts some".to_owned()
        } else {
            lines.join("\n")
        }
    })
}

async fn log(global: &GlobalArgs, output: Output, job: &str) -> Outcome {
    let record = job_records(global)?.find(job)?;
    let handle = record.handle()?;
    let (client, _) = client(global)?;
    let mut text = Vec::new();
    loop {
        let page = client
            .job_log(&handle, text.len() as u64, METHOD)
            .await
            .map_err(|error| Failure::from(error).at(&record.job))?;
        text.extend_from_slice(&page.bytes);
        if page.bytes.is_empty() || text.len() as u64 >= page.status.total_length {
            break;
        }
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    output.result(&json!({ "job": record.job, "log": text }), || text.trim_end().to_owned())
}

/// Reads the result of a job page by page, or from the object with a long result.
async fn read_result(
    client: &Client,
    record: &JobRecord,
    mut each: impl AsyncFnMut(&[u8]) -> Outcome,
) -> Outcome<JobPage> {
    let handle = &record.handle()?;
    let (mut at, mut receipt) = (0u64, Vec::new());
    loop {
        let mut page = client.job_result(handle, at, METHOD).await.map_err(Failure::from)?;
        if page.status.state == JobState::Done && page.status.result_object.is_some() {
            read_long_result(client, record, &page.status, each).await?;
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
    mut each: impl AsyncFnMut(&[u8]) -> Outcome,
) -> Outcome {
    let gone = || {
        Failure::operation("the object with its result was removed")
            .hint("run the function again, and fetch the result earlier")
    };
    let reserved = IntentId(record.reserved.ok_or_else(gone)?);
    let opened = client.long_job_result(reserved, status, METHOD).await;
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
async fn release_unused(client: &Client, records: &JobRecords, record: &JobRecord, status: &JobStatus) {
    let Some(reserved) = record.reserved.map(IntentId) else { return };
    if status.state.is_final() && status.result_object.is_none() {
        client.release_job_result(reserved).await;
        if let Err(failure) = records.clear_reservation(&record.job) {
            tracing::debug!(%failure, "the record of a job keeps its reservation");
        }
    }
}

async fn result(
    global: &GlobalArgs,
    output: Output,
    job: &str,
    path: &OsStr,
    receipt: Option<&Path>,
) -> Outcome {
    let records = job_records(global)?;
    let record = records.find(job)?;
    let (client, _) = client(global)?;
    let mut bytes = 0;
    let at_job = |failure: Failure| failure.at(&record.job);
    let page = if path == "-" {
        read_result(&client, &record, async |piece| print_bytes(piece)).await.map_err(at_job)?
    } else {
        // As with `get`, the file gets its name when it is complete.
        write_whole(path, async |file| {
            let write = async |piece: &[u8]| {
                bytes += piece.len() as u64;
                file.write_all(piece).await.map_err(|error| Failure::from(error).at(path.shown()))
            };
            read_result(&client, &record, write).await.map_err(at_job)
        })
        .await?
    };
    release_unused(&client, &records, &record, &page.status).await;
    if let Some(path) = receipt {
        if page.receipt.is_empty() {
            return Err(Failure::operation("the device returned no receipt").at(&record.job));
        }
        std::fs::write(path, &page.receipt).map_err(|error| Failure::from(error).at(path.shown()))?;
    }
    // Standard output has the bytes of the result and nothing else.
    if path != "-" {
        if page.status.state == JobState::Done {
            output.remark(format!("{}: {}", record.job, human_bytes(bytes)));
        }
        output.done(&value(&record, Some(&page.status)))?;
    }
    failure_of_job(&record, &page.status).map_or(Ok(()), Err)
}

fn read_receipt(path: &Path) -> Outcome<Vec<u8>> {
    let bytes = std::fs::read(path).map_err(|error| Failure::from(error).at(path.shown()))?;
    if bytes.len() > RECEIPT_MAX {
        return Err(Failure::usage("not a receipt: the file is too long").at(path.shown()));
    }
    Ok(bytes)
}

async fn verify(
    global: &GlobalArgs,
    output: Output,
    job: Option<&str>,
    receipt: Option<&Path>,
    result: Option<&Path>,
) -> Outcome {
    let (client, _) = client(global)?;
    let mut digest = blake3::Hasher::new();
    let mut compares = false;
    let (subject, bytes) = match (job, receipt) {
        (_, Some(path)) => {
            if let Some(result) = result {
                let file =
                    std::fs::File::open(result).map_err(|error| Failure::from(error).at(result.shown()))?;
                let mut file = std::io::BufReader::new(file);
                std::io::copy(&mut file, &mut digest)
                    .map_err(|error| Failure::from(error).at(result.shown()))?;
                compares = true;
            }
            (path.shown().into_owned(), read_receipt(path)?)
        }
        (Some(job), None) => {
            let record = job_records(global)?.find(job)?;
            let page = read_result(&client, &record, async |piece| {
                digest.update(piece);
                Ok(())
            })
            .await
            .map_err(|failure| failure.at(&record.job))?;
            if page.receipt.is_empty() {
                return Err(Failure::operation("the device returned no receipt").at(&record.job));
            }
            compares = true;
            (record.job, page.receipt)
        }
        (None, None) => return Err(Failure::usage("neither a job nor a receipt is given")),
    };
    let (verdict, _) =
        client.verify_receipt(&bytes).await.map_err(|error| Failure::from(error).at(&subject))?;
    let problem = match verdict {
        ReceiptVerdict::Genuine => None,
        ReceiptVerdict::Malformed => Some("not a receipt"),
        ReceiptVerdict::UnknownDevice => {
            Some("the receipt names a device that the metadata server does not know")
        }
        ReceiptVerdict::KeyReplaced => {
            Some("the root key of the device was replaced since, so the receipt cannot be verified any more")
        }
        ReceiptVerdict::Forged => Some("the receipt was changed or forged"),
    };
    if let Some(problem) = problem {
        return Err(Failure::operation(problem).at(&subject).hint("do not rely on the result"));
    }
    let found = FunctionReceipt::parse_unverified(&bytes)
        .ok_or_else(|| Failure::operation("the receipt has another format").at(&subject))?;
    if compares && *digest.finalize().as_bytes() != found.result_digest {
        return Err(Failure::operation("the result differs from the one that the receipt states")
            .at(&subject)
            .hint("do not rely on the result"));
    }
    let engine = EngineType::from_code(found.engine).map_or("unknown", EngineType::name);
    let exit = ExitReason::from_code(found.exit).map_or("unknown", ExitReason::name);
    let inputs: Vec<Value> = found
        .inputs
        .iter()
        .map(|input| {
            json!({
                "object": input.object.to_string(), "length": input.length, "changed_ms": input.version,
                "unchanged": input.unchanged, "digest": input.digest.map(|digest| hex(&digest)),
            })
        })
        .collect();
    let value = json!({
        "verified": true, "job": hex(&found.job), "engine": engine, "exit": json_name(exit), "code": found.error,
        "code_digest": hex(&found.code_digest), "arguments_digest": hex(&found.arguments_digest),
        "result_digest": hex(&found.result_digest), "result_bytes": found.result_length,
        "result_compared": compares, "started_ms": found.started_ms, "ended_ms": found.ended_ms,
        "inputs": inputs,
    });
    output.result(&value, || {
        let mut lines = vec![
            format!("genuine    receipt of job {}", hex(&found.job)),
            format!("code       {engine} {}", hex(&found.code_digest)),
            format!("result     {} {}", human_bytes(found.result_length), hex(&found.result_digest)),
            format!("ended      {exit}, {} UTC", utc(found.ended_ms)),
        ];
        lines.extend(found.inputs.iter().map(|input| {
            let digest = input.digest.map_or_else(|| "no digest".to_owned(), |digest| hex(&digest));
            let length = human_bytes(input.length);
            let state = if input.unchanged { "" } else { ", perhaps changed during the run" };
            format!("input      {} ({length}{state}) {digest}", input.object)
        }));
        if !compares {
            lines.push("compared   no result; --result FILE compares one".to_owned());
        }
        lines.join("\n")
    })
}
