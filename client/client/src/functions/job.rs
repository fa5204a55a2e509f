//! Jobs on devices: status, wait, cancel, log and result.

use std::sync::Arc;

use sealstone_initiator::{Operation, OsdError};
use sealstone_mds_protocol::{DeviceId, FilePath, Method, ReceiptBytes, ReceiptVerdict, Request, Response};
use sealstone_osd::ObjectId;
use sealstone_osd::function::{
    ExecuteRequest, INLINE_MAX, JobAction, JobId, JobRequest, REPLY_MAX, ReplyHeader, ReplyParts,
};

use super::FunctionError;
use super::copies::OpenFunction;
use crate::client::file_path;
use crate::open::OpenObjects;
use crate::{Client, ClientError, Devices, Metadata};

/// Maximum bytes of a page of a result or log.
pub const RESULT_PAGE_MAX: usize = INLINE_MAX;

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

impl<M: Metadata, D: Devices> Client<M, D> {
    /// Returns the state of a job.
    ///
    /// # Errors
    /// `UnknownJob`; `Client` with `NotFound` if the function was removed.
    pub async fn job_status(&self, job: &JobHandle, method: Method) -> Result<JobStatus, FunctionError> {
        Ok(self.job_request(job, JobAction::Status, method).await?.header)
    }

    /// Waits until a job ends, at most `timeout_ms`, and returns its state.
    ///
    /// # Errors
    /// As [`Client::job_status`].
    pub async fn wait_for_job(
        &self,
        job: &JobHandle,
        timeout_ms: u32,
        method: Method,
    ) -> Result<JobStatus, FunctionError> {
        Ok(self.job_request(job, JobAction::Wait { timeout_ms }, method).await?.header)
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
