//! Jobs on devices: status, wait, cancel, log, result, and verification of receipts.
//!
//! Does: sends requests about a job to the device that runs it.
//! Does not: start jobs; `job_run` does.

use std::sync::Arc;
use std::time::Duration;

use sealstone_initiator::{Operation, OsdError};
use sealstone_mds_protocol::{DeviceId, FilePath, Method, ReceiptBytes, ReceiptVerdict, Request, Response};
use sealstone_osd::ObjectId;
use sealstone_osd::function::{
    ExecuteRequest, INLINE_MAX, JobAction, JobId, JobRequest, REPLY_MAX, ReplyHeader, ReplyParts, WAIT_MAX_MS,
};
use tokio::time::{Instant, sleep_until};

use super::FunctionError;
use super::copies::OpenFunction;
use crate::client::file_path;
use crate::open::OpenObjects;
use crate::{Client, ClientError, Devices, Metadata};

/// Maximum bytes of a page of a result or log.
pub const RESULT_PAGE_MAX: usize = INLINE_MAX;
/// Shortest time between two requests to wait for the same job.
const WAIT_INTERVAL_MIN: Duration = Duration::from_millis(500);

/// Identifies a job: its function, and the copy that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobHandle {
    /// Path of the function.
    pub function: FilePath,
    /// The device.
    pub device: DeviceId,
    /// Name of the device, for messages.
    pub device_name: String,
    /// The copy of the function on it.
    pub object: ObjectId,
    /// The job.
    pub job: JobId,
}

/// State of a job and what it used.
pub type JobStatus = ReplyHeader;

/// Bytes of a result or log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPage {
    /// State of the job.
    pub status: JobStatus,
    /// Bytes from the requested offset on; empty at the end.
    pub bytes: Vec<u8>,
    /// The receipt of the device, with a result; empty if there is none.
    pub receipt: Vec<u8>,
}

/// Sends one request about a job, or for a run, to a copy of a function.
pub(super) async fn execute<M: Metadata, D: Devices>(
    objects: &OpenObjects<M, D>,
    index: usize,
    request: &JobRequest,
) -> Result<ReplyParts, ClientError> {
    let operation = |object| Operation::ExecuteFunction {
        object,
        request: Box::new(ExecuteRequest::Job(*request)),
        reply_max: REPLY_MAX as u32,
        data: Vec::new(),
    };
    let done = objects.execute(index, operation).await?;
    parse(&done.data)
}

/// Parses the reply of a device.
pub(super) fn parse(data: &[u8]) -> Result<ReplyParts, ClientError> {
    ReplyParts::parse(data)
        .map_err(|_| ClientError::Protocol("a device sent a malformed reply to a function call"))
}

/// Repeats a request to wait until the job has ended or the time is over.
async fn wait_until(
    deadline: Instant,
    mut wait: impl AsyncFnMut(u32) -> Result<JobStatus, FunctionError>,
) -> Result<JobStatus, FunctionError> {
    loop {
        let sent = Instant::now();
        let left_ms = deadline.saturating_duration_since(sent).as_millis().min(WAIT_MAX_MS.into());
        match wait(u32::try_from(left_ms).unwrap_or(WAIT_MAX_MS)).await {
            Ok(status) if status.state.is_final() || Instant::now() >= deadline => return Ok(status),
            // All threads that wait for jobs may be in use.
            Err(error @ FunctionError::Busy { .. }) if Instant::now() >= deadline => return Err(error),
            Ok(_) | Err(FunctionError::Busy { .. }) => {}
            Err(error) => return Err(error),
        }
        // A device may answer at once, for example before it stops.
        sleep_until((sent + WAIT_INTERVAL_MIN).min(deadline)).await;
    }
}

impl<M: Metadata, D: Devices> Client<M, D> {
    /// Returns the state of a job.
    ///
    /// # Errors
    /// `UnknownJob`; `Client` with `NotFound` if the function was removed.
    pub async fn job_status(&self, job: &JobHandle, method: Method) -> Result<JobStatus, FunctionError> {
        Ok(self.job_request(job, JobAction::Status, method).await?.header)
    }

    /// Waits until a job ends, or for this time, and returns its state. A device waits for a part
    /// of a long time only, and the request is repeated then.
    ///
    /// # Errors
    /// As [`Client::job_status`].
    pub async fn wait_for_job(
        &self,
        job: &JobHandle,
        timeout: Duration,
        method: Method,
    ) -> Result<JobStatus, FunctionError> {
        let wait = async |timeout_ms| {
            Ok(self.job_request(job, JobAction::Wait { timeout_ms }, method).await?.header)
        };
        wait_until(Instant::now() + timeout, wait).await
    }

    /// Stops a job.
    ///
    /// # Errors
    /// As [`Client::job_status`].
    pub async fn cancel_job(&self, job: &JobHandle, method: Method) -> Result<JobStatus, FunctionError> {
        Ok(self.job_request(job, JobAction::Cancel, method).await?.header)
    }

    /// Returns log bytes of a job from an offset on.
    ///
    /// # Errors
    /// As [`Client::job_status`].
    pub async fn job_log(
        &self,
        job: &JobHandle,
        offset: u64,
        method: Method,
    ) -> Result<JobPage, FunctionError> {
        self.job_page(job, JobAction::Log { offset }, offset, method).await
    }

    /// Returns result bytes of a job from an offset on.
    ///
    /// # Errors
    /// As [`Client::job_status`].
    pub async fn job_result(
        &self,
        job: &JobHandle,
        offset: u64,
        method: Method,
    ) -> Result<JobPage, FunctionError> {
        self.job_page(job, JobAction::Result { offset }, offset, method).await
    }

    async fn job_page(
        &self,
        job: &JobHandle,
        action: JobAction,
        offset: u64,
        method: Method,
    ) -> Result<JobPage, FunctionError> {
        let ReplyParts { header, inline, receipt } = self.job_request(job, action, method).await?;
        if header.offset != offset && !inline.is_empty() {
            return Err(ClientError::Protocol("a device returned other bytes of a job than requested").into());
        }
        Ok(JobPage { status: header, bytes: inline, receipt })
    }

    async fn job_request(
        &self,
        job: &JobHandle,
        action: JobAction,
        method: Method,
    ) -> Result<ReplyParts, FunctionError> {
        let path = file_path(job.function.as_bytes())?;
        let function = OpenFunction::open(self, &path, method).await?;
        let known = |object: &sealstone_mds_protocol::ObjectRef| {
            object.device == job.device && object.object == job.object
        };
        let unknown = || FunctionError::UnknownJob { device: job.device_name.clone() };
        let index = function.objects.layout.objects().iter().position(known).ok_or_else(unknown)?;
        let objects: Arc<OpenObjects<M, D>> = function.objects;
        match execute(&objects, index, &JobRequest { action, job: job.job }).await {
            Ok(parts) if parts.header.job == job.job => Ok(parts),
            Ok(_) => Err(ClientError::Protocol("a device answered for another job").into()),
            Err(ClientError::Device { error: OsdError::UnknownJob, .. }) => Err(unknown()),
            Err(error) => Err(FunctionError::of_call(error, None)),
        }
    }

    /// Verifies a receipt at the metadata server; returns the verdict and the device that the
    /// receipt names.
    ///
    /// # Errors
    /// `Limit` for bytes that are no receipt; `Connection` among others.
    pub async fn verify_receipt(
        &self,
        receipt: &[u8],
    ) -> Result<(ReceiptVerdict, Option<DeviceId>), FunctionError> {
        let receipt = ReceiptBytes::new(receipt.to_vec())
            .map_err(|_| FunctionError::Limit { what: "the receipt", max: ReceiptBytes::MAX as u64 })?;
        let request = Request::ReceiptVerify { receipt };
        match self.core.metadata.call(request).await? {
            Response::Receipt { verdict, device } => Ok((verdict, device)),
            _ => Err(ClientError::OTHER_ANSWER.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use sealstone_osd::function::JobState;
    use tokio::time::sleep;

    use super::*;

    fn status(state: JobState) -> JobStatus {
        JobStatus::new(JobId([1; 16]), state)
    }

    /// Waits 50 s for a job; returns the outcome, the seconds that passed, and the requested waits.
    async fn waited(
        mut answer: impl AsyncFnMut(u32) -> Result<JobStatus, FunctionError>,
    ) -> (Result<JobState, FunctionError>, u64, Vec<u32>) {
        let (began, mut requested) = (Instant::now(), Vec::new());
        let wait = async |timeout_ms| {
            requested.push(timeout_ms);
            answer(timeout_ms).await
        };
        let outcome = wait_until(began + Duration::from_secs(50), wait).await;
        (outcome.map(|status| status.state), began.elapsed().as_secs(), requested)
    }

    #[tokio::test(start_paused = true)]
    async fn wait_repeats_until_its_time_is_over() {
        let (outcome, seconds, requested) = waited(async |timeout_ms| {
            sleep(Duration::from_millis(timeout_ms.into())).await;
            Ok(status(JobState::Running))
        })
        .await;
        assert_eq!((outcome.unwrap(), seconds), (JobState::Running, 50));
        assert_eq!(requested, [20_000, 20_000, 10_000]);
    }

    #[tokio::test(start_paused = true)]
    async fn early_and_busy_answers_use_the_time() {
        let (outcome, seconds, requested) = waited(async |_| Ok(status(JobState::Queued))).await;
        assert_eq!((outcome.unwrap(), seconds, requested.len()), (JobState::Queued, 50, 101));
        let busy = async |_| Err(FunctionError::Busy { device: "osd-0".to_owned() });
        let (outcome, seconds, _) = waited(busy).await;
        assert!(matches!(outcome, Err(FunctionError::Busy { .. })) && seconds == 50);
        let mut answers = 0;
        let (outcome, _, _) = waited(async |_| {
            answers += 1;
            match answers {
                1 => Err(FunctionError::Busy { device: "osd-0".to_owned() }),
                2 => Ok(status(JobState::Running)),
                _ => Ok(status(JobState::Done)),
            }
        })
        .await;
        assert_eq!((outcome.unwrap(), answers), (JobState::Done, 3));
    }
}
