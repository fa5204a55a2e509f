//! `sealstone job`: lists, waits for, stops and reads jobs, and verifies receipts.
//!
//! Does: finds jobs in the list of started ones (`sealstone-job-records`) and requests their state
//! from the devices.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sealstone_client::Client;
use sealstone_client::functions::{FunctionError, JobHandle, JobStatus};
use sealstone_failure::text::{ShownPath as _, human_bytes};
use sealstone_failure::{Failure, FailureKind, Outcome, PartResults, for_each};
use sealstone_function_runs::{
    JobList, failure_of_job, job_json, job_line, read_job_log, read_job_result, release_unused, verify_job,
    verify_receipt_file,
};
use sealstone_job_records::JobRecord;
use sealstone_osd::function::JobState;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::FUNCTION_METHOD;
use crate::cli::GlobalArgs;
use crate::cli::functions::Job;
use crate::command::session::{client, job_records};
use crate::command::transfer::write_whole;
use crate::output::{Output, print_bytes};

/// `sealstone job …`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, command: &Job) -> Outcome {
    match command {
        Job::Ls => ls(global, output).await,
        Job::Status { jobs } => finish(
            output,
            each(global, output, jobs, async |client, job| client.job_status(job, FUNCTION_METHOD).await)
                .await?,
        ),
        Job::Wait { jobs, timeout } => {
            let timeout = Duration::from_millis((*timeout).into());
            let wait = async |client: &Client, job: &JobHandle| {
                client.wait_for_job(job, timeout, FUNCTION_METHOD).await
            };
            let mut results = each(global, output, jobs, wait).await?;
            let failures = results.done.iter().filter_map(|(record, status)| failure_of_job(record, status));
            for failure in failures.collect::<Vec<_>>() {
                results.fail(&output, failure);
            }
            finish(output, results)
        }
        Job::Cancel { jobs } => finish(
            output,
            each(global, output, jobs, async |client, job| client.cancel_job(job, FUNCTION_METHOD).await)
                .await?,
        ),
        Job::Log { job } => log(global, output, job).await,
        Job::Result { job, output: path, receipt } => {
            result(global, output, job, path, receipt.as_deref()).await
        }
        Job::Verify { job, receipt, result, inputs } => {
            let files = (result.as_deref(), &inputs[..]);
            verify(global, output, job.as_deref(), receipt.as_deref(), files).await
        }
    }
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
    for_each(&output, &found, async |record| {
        let record = record.clone()?;
        let handle = record.handle()?;
        let status = request(&client, &handle).await.map_err(|error| Failure::from(error).at(&record.job))?;
        release_unused(&client, &records, &record, &status).await;
        Ok((record, status))
    })
    .await
}

/// Prints the states of jobs.
fn finish(output: Output, results: PartResults<(JobRecord, JobStatus)>) -> Outcome {
    let values: Vec<Value> =
        results.done.iter().map(|(record, status)| job_json(record, Some(status))).collect();
    let lines: Vec<String> = results.done.iter().map(|(record, status)| job_line(record, status)).collect();
    output.parts_with_text(results, json!({ "jobs": values }), || lines.join("\n"))
}

async fn ls(global: &GlobalArgs, output: Output) -> Outcome {
    let records = job_records(global)?;
    // Unreadable records are reported before the session is used.
    records.all()?;
    let (client, _) = client(global)?;
    let list = JobList::load(&client, &records, FUNCTION_METHOD).await?;
    output.result(&list.json(), || list.text())
}

async fn log(global: &GlobalArgs, output: Output, job: &str) -> Outcome {
    let record = job_records(global)?.find(job)?;
    let (client, _) = client(global)?;
    let text = read_job_log(&client, &record, FUNCTION_METHOD).await?;
    output.result(&json!({ "job": record.job, "log": text }), || text.trim_end().to_owned())
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
        read_job_result(&client, &record, FUNCTION_METHOD, async |piece| print_bytes(piece))
            .await
            .map_err(at_job)?
    } else {
        // As with `get`, the file gets its name when it is complete.
        write_whole(path, async |file| {
            let write = async |piece: &[u8]| {
                bytes += piece.len() as u64;
                file.write_all(piece).await.map_err(|error| Failure::from(error).at(path.shown()))
            };
            read_job_result(&client, &record, FUNCTION_METHOD, write).await.map_err(at_job)
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
        output.done(&job_json(&record, Some(&page.status)))?;
    }
    failure_of_job(&record, &page.status).map_or(Ok(()), Err)
}

async fn verify(
    global: &GlobalArgs,
    output: Output,
    job: Option<&str>,
    receipt: Option<&Path>,
    (result, inputs): (Option<&Path>, &[PathBuf]),
) -> Outcome {
    let (client, _) = client(global)?;
    let report = match (job, receipt) {
        (_, Some(path)) => verify_receipt_file(&client, path, result).await?,
        (Some(job), None) => {
            let record = job_records(global)?.find(job)?;
            verify_job(&client, &record, FUNCTION_METHOD).await?
        }
        (None, None) => return Err(Failure::usage("neither a job nor a receipt is given")),
    };
    report.compare_inputs(inputs).await?;
    output.result(&report.json(), || report.text())
}
