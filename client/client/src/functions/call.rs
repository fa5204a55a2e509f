//! Calls: one job for each device and set of objects, all devices at once.
//!
//! Contract: a job that may have been started is never started again. The results are reported as
//! they arrive, in any order; each names its part of the call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sealstone_initiator::{Operation, OsdError};
use sealstone_mds_protocol::{Access, DeviceId, ErrorCode, Failure, FilePath, Layout, Method, Stat};
use sealstone_osd::function::{
    ARGUMENTS_MAX, ApiVersion, EngineType, ExecuteRequest, FunctionObject, JobAction, JobRequest, METHOD_MAX,
    REPLY_MAX, RunRequest, TIMEOUT_MAX_MS,
};
use sealstone_osd::{ObjectType, Permissions};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use zeroize::Zeroizing;

use super::copies::OpenFunction;
use super::job::{self, JobHandle, JobStatus};
use super::plan::{self, CallFile, CallGrouping, CallPart, PlannedJob};
use super::{CallArguments, FunctionError};
use crate::client::file_path;
use crate::open::{ObjectGrant, OpenObjects};
use crate::{Client, ClientError, Devices, Metadata, get};

/// Maximum number of jobs of one call that a device runs at once.
pub const JOBS_PER_DEVICE_MAX: usize = 4;
/// Default of the longest run, milliseconds.
const TIMEOUT_DEFAULT_MS: u32 = 30_000;
/// Default of the maximum bytes of the result of one job.
const RESULT_DEFAULT_MAX: usize = 64 << 20;
/// Maximum number of files of one call.
const FILES_MAX: usize = 65_536;
/// Replies that wait for their consumer.
const REPLIES_QUEUED: usize = 16;

/// A call of a function.
///
/// ```no_run
/// use sealstone_client::Client;
/// use sealstone_client::functions::FunctionRun;
/// # async fn demo(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
/// let mut call = FunctionRun::new("/.functions/count");
/// call.read("/data/log.txt");
/// let summary = call
///     .run(client, |reply| {
///         if let Ok(status) = reply.outcome {
///             println!("{}: {}", reply.handle_text(), status.state);
///         }
///     })
///     .await?;
/// assert_eq!(summary.failed, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FunctionRun {
    /// Path of the function.
    pub function: Vec<u8>,
    /// Method of the function; empty for its default method.
    pub method: String,
    /// The arguments, without `stripe.N`.
    pub arguments: CallArguments,
    /// The files.
    pub files: Vec<CallFile>,
    /// How their objects are distributed over jobs.
    pub grouping: CallGrouping,
    /// Longest run in milliseconds; 0 starts asynchronous jobs.
    pub timeout_ms: u32,
    /// Whether devices must not record the arguments.
    pub secret_arguments: bool,
    /// Whether writes become visible only if the function succeeds.
    pub commit_on_success: bool,
    /// The API version to use.
    pub api: ApiVersion,
    /// Maximum bytes of the result of one job.
    pub result_max: usize,
    /// Security method; the server may require a stronger one.
    pub security: Method,
}

/// The end of one job, or the start of an asynchronous one.
#[derive(Debug)]
pub struct CallReply {
    /// Number of the job in the call.
    pub number: usize,
    /// Name of the device.
    pub device: String,
    /// The objects of the job, in the order of its handles.
    pub parts: Vec<CallPart>,
    /// The arguments that the device received.
    pub arguments: Zeroizing<Vec<u8>>,
    /// State of the job; an error if it could not be started, or its outcome is unknown.
    pub outcome: Result<JobStatus, FunctionError>,
    /// The job, for later requests.
    pub handle: Option<JobHandle>,
    /// The result.
    pub result: Vec<u8>,
    /// Receipt of the device; empty if there is none.
    pub receipt: Vec<u8>,
}

impl CallReply {
    /// Returns the job id, or the name of the device if no job was started.
    #[must_use]
    pub fn handle_text(&self) -> String {
        self.handle.as_ref().map_or_else(|| self.device.clone(), |handle| handle.job.to_string())
    }

    /// Whether the job ended with a result, or was started as an asynchronous one.
    #[must_use]
    pub fn is_success(&self) -> bool {
        use sealstone_osd::function::JobState::{Done, Queued, Running};
        self.outcome.as_ref().is_ok_and(|status| matches!(status.state, Done | Queued | Running))
    }
}

/// Totals of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSummary {
    /// Number of jobs.
    pub jobs: usize,
    /// Number of jobs that failed.
    pub failed: usize,
    /// Number of devices.
    pub devices: usize,
    /// Copies of the function that were made.
    pub copies: usize,
    /// Bytes that the functions read.
    pub bytes_read: u64,
    /// Bytes that they wrote.
    pub bytes_written: u64,
    /// Bytes of all results.
    pub result_bytes: u64,
    /// CPU time in microseconds.
    pub cpu_us: u64,
}

impl CallSummary {
    fn add(&mut self, reply: &CallReply) {
        self.failed += usize::from(!reply.is_success());
        self.result_bytes += reply.result.len() as u64;
        if let Ok(status) = &reply.outcome {
            self.bytes_read = self.bytes_read.saturating_add(status.bytes_read);
            self.bytes_written = self.bytes_written.saturating_add(status.bytes_written);
            self.cpu_us = self.cpu_us.saturating_add(status.cpu_us);
        }
    }
}

/// A file of a call, opened.
struct OpenData<M, D> {
    stat: Stat,
    update: bool,
    objects: Arc<OpenObjects<M, D>>,
}

/// State that all jobs of a call share.
struct CallState<M, D> {
    client: Client<M, D>,
    function: OpenFunction<M, D>,
    engine: Option<EngineType>,
    files: Vec<OpenData<M, D>>,
    call: FunctionRun,
}

/// A started or ended job.
struct JobEnd {
    status: JobStatus,
    handle: JobHandle,
    result: Vec<u8>,
    receipt: Vec<u8>,
}

impl FunctionRun {
    /// Returns a call without files and arguments, with a timeout of 30 s.
    #[must_use]
    pub fn new(function: impl AsRef<[u8]>) -> Self {
        Self {
            function: function.as_ref().to_vec(),
            method: String::new(),
            arguments: CallArguments::default(),
            files: Vec::new(),
            grouping: CallGrouping::default(),
            timeout_ms: TIMEOUT_DEFAULT_MS,
            secret_arguments: false,
            commit_on_success: false,
            api: ApiVersion::CURRENT,
            result_max: RESULT_DEFAULT_MAX,
            security: Method::AllData,
        }
    }

    /// Adds a file to read.
    pub fn read(&mut self, path: impl AsRef<[u8]>) {
        self.files.push(CallFile { path: path.as_ref().to_vec(), update: false });
    }

    /// Adds a file whose existing bytes the function may change.
    pub fn update(&mut self, path: impl AsRef<[u8]>) {
        self.files.push(CallFile { path: path.as_ref().to_vec(), update: true });
    }

    fn check(&self) -> Result<(), FunctionError> {
        let limit = |what, length: usize, max: usize| match length > max {
            true => Err(FunctionError::Limit { what, max: max as u64 }),
            false => Ok(()),
        };
        limit("the method", self.method.len(), METHOD_MAX)?;
        limit("the number of files", self.files.len(), FILES_MAX)?;
        if self.timeout_ms > TIMEOUT_MAX_MS {
            return Err(FunctionError::Limit { what: "the timeout", max: TIMEOUT_MAX_MS.into() });
        }
        if self.method.chars().any(char::is_control) {
            return Err(FunctionError::Argument {
                name: "method".to_owned(),
                problem: "a control character",
            });
        }
        Ok(())
    }

    /// Runs the call: makes missing copies of the function, starts the jobs on all devices at once,
    /// and reports each reply. An asynchronous call reports the started jobs.
    ///
    /// # Errors
    /// Those that prevent all jobs. The error of one job is in its reply.
    pub async fn run<M: Metadata, D: Devices>(
        &self,
        client: &Client<M, D>,
        mut on_reply: impl FnMut(CallReply),
    ) -> Result<CallSummary, FunctionError> {
        self.check()?;
        let path = file_path(&self.function)?;
        let mut function = OpenFunction::open(client, &path, self.security).await?;
        let files = self.open_files(client).await?;
        let layouts: Vec<(&Layout, u64)> =
            files.iter().map(|file| (&file.objects.layout, file.stat.size)).collect();
        let jobs = plan::plan(&layouts, self.grouping);
        let devices: BTreeSet<DeviceId> = jobs.iter().map(|job| job.device).collect();
        let devices: Vec<DeviceId> = devices.into_iter().collect();
        let copies = client.make_copies(&function, &devices).await?;
        if devices.iter().any(|device| function.copy_on(*device).is_none()) {
            function = OpenFunction::open(client, &path, self.security).await?;
        }
        let engine = function.description().await.ok().and_then(|description| description.engine);
        let mut summary =
            CallSummary { jobs: jobs.len(), devices: devices.len(), copies, ..CallSummary::default() };
        let state =
            Arc::new(CallState { client: client.clone(), function, engine, files, call: self.clone() });
        let (send, mut receive) = mpsc::channel(REPLIES_QUEUED);
        let mut running = JoinSet::new();
        let permits: BTreeMap<DeviceId, Arc<Semaphore>> =
            devices.iter().map(|device| (*device, Arc::new(Semaphore::new(JOBS_PER_DEVICE_MAX)))).collect();
        for (number, planned) in jobs.into_iter().enumerate() {
            let (state, send, permit) = (state.clone(), send.clone(), permits.get(&planned.device).cloned());
            running.spawn(async move {
                let _permit = match &permit {
                    Some(permit) => permit.acquire().await.ok(),
                    None => None,
                };
                let reply = state.reply(number, planned).await;
                // The caller dropped the call.
                let _ = send.send(reply).await;
            });
        }
        drop(send);
        while let Some(reply) = receive.recv().await {
            summary.add(&reply);
            on_reply(reply);
        }
        while let Some(done) = running.join_next().await {
            crate::put::joined(done.map(Ok))?;
        }
        Ok(summary)
    }

    /// Opens all files, some at once.
    async fn open_files<M: Metadata, D: Devices>(
        &self,
        client: &Client<M, D>,
    ) -> Result<Vec<OpenData<M, D>>, FunctionError> {
        let mut files = Vec::with_capacity(self.files.len());
        for CallFile { path, update } in &self.files {
            let path: FilePath = file_path(path)?;
            let access = if *update { Access::CallUpdate } else { Access::CallRead };
            let (stat, objects) = get::open(&client.core, &path, access, self.security)
                .await
                .map_err(|error| named(error, &path))?;
            files.push(OpenData { stat, update: *update, objects });
        }
        Ok(files)
    }
}

/// Adds the path to a refusal that does not name it.
fn named(error: ClientError, path: &FilePath) -> ClientError {
    match error {
        ClientError::Refused(failure) if failure.subject.as_str().is_empty() => {
            ClientError::Refused(Failure::new(failure.code, &path.shown()))
        }
        other => other,
    }
}

impl<M: Metadata, D: Devices> CallState<M, D> {
    /// Runs one job to its end, or starts it.
    async fn reply(&self, number: usize, planned: PlannedJob) -> CallReply {
        let device = self.client.core.device_label(planned.device).await;
        let arguments = self.arguments(&planned.parts);
        let (arguments, ended) = match arguments {
            Ok(arguments) => {
                let ended = self.run_job(&planned, &device, &arguments).await;
                (arguments, ended)
            }
            Err(error) => (Zeroizing::default(), Err(error)),
        };
        let (outcome, handle, result, receipt) = match ended {
            Ok(JobEnd { status, handle, result, receipt }) => (Ok(status), Some(handle), result, receipt),
            Err(error) => (Err(error), None, Vec::new(), Vec::new()),
        };
        CallReply { number, device, parts: planned.parts, arguments, outcome, handle, result, receipt }
    }

    /// Returns the arguments of a job: those of the call, and the geometry of striped files.
    fn arguments(&self, parts: &[CallPart]) -> Result<Zeroizing<Vec<u8>>, FunctionError> {
        let mut arguments = self.call.arguments.clone();
        for (at, part) in parts.iter().enumerate() {
            if let Some(geometry) = part.geometry() {
                arguments.add(&format!("stripe.{at}"), &geometry)?;
            }
        }
        let length = arguments.bytes().len();
        if length > ARGUMENTS_MAX {
            return Err(FunctionError::ArgumentsTooLong { length, max: ARGUMENTS_MAX });
        }
        Ok(Zeroizing::new(arguments.bytes().to_vec()))
    }

    async fn run_job(
        &self,
        planned: &PlannedJob,
        device_name: &str,
        arguments: &Zeroizing<Vec<u8>>,
    ) -> Result<JobEnd, FunctionError> {
        let index = self.function.copy_on(planned.device).ok_or_else(moved)?;
        let mut renew = false;
        let (parts, object) = loop {
            let function = self.function.objects.object_grant(index, renew).await?;
            let (objects, data) = self.data(planned, renew).await?;
            let object = function.object;
            let request = RunRequest {
                engine: None,
                secret_arguments: self.call.secret_arguments,
                commit_on_success: self.call.commit_on_success,
                timeout_ms: self.call.timeout_ms,
                api: self.call.api,
                digest: Some(self.function.digest),
                method: self.call.method.clone(),
                arguments: arguments.clone(),
                objects,
            };
            let operation = Operation::ExecuteFunction {
                object,
                request: Box::new(ExecuteRequest::Run(request)),
                reply_max: REPLY_MAX as u32,
                data,
            };
            let done = self.client.core.devices.execute(&function.device, &function.bearer, operation).await;
            match done {
                Ok(done) => break (job::parse(&done.data)?, object),
                // Nothing was started. A credential may have been revoked or its key replaced.
                Err(error) if error.is_denied() && !renew => renew = true,
                Err(OsdError::CodeMismatch) => {
                    return Err(FunctionError::DigestMismatch {
                        path: self.function.path.shown().into_owned(),
                    });
                }
                Err(error) => {
                    let name = device_name.to_owned();
                    let error = ClientError::Device { device: planned.device, name, error };
                    return Err(FunctionError::of_call(error, self.engine));
                }
            }
        };
        let handle = JobHandle {
            function: self.function.path.clone(),
            device: planned.device,
            device_name: device_name.to_owned(),
            object,
            job: parts.header.job,
        };
        let mut end = JobEnd { status: parts.header, handle, result: parts.inline, receipt: parts.receipt };
        if end.status.exit == sealstone_osd::function::ExitReason::EngineMissing {
            return Err(FunctionError::NoEngine { device: device_name.to_owned(), engine: self.engine });
        }
        if end.status.state.is_final() {
            self.fetch_rest(index, &mut end).await?;
        }
        Ok(end)
    }

    /// Returns the objects of a job and their credentials.
    async fn data(
        &self,
        planned: &PlannedJob,
        renew: bool,
    ) -> Result<(Vec<FunctionObject>, Vec<sealstone_initiator::Bearer>), FunctionError> {
        let mut objects = Vec::with_capacity(planned.parts.len());
        let mut bearers = Vec::with_capacity(planned.parts.len());
        for part in &planned.parts {
            let file = self.files.get(part.file).ok_or_else(moved)?;
            let ObjectGrant { device, object, bearer } = file.objects.object_grant(part.index, renew).await?;
            if device.id != planned.device {
                return Err(moved().into());
            }
            let reads = Permissions::READ | Permissions::GET_ATTR;
            let writes = Permissions::WRITE | Permissions::OBJ_MGMT;
            let rights = if file.update { reads | writes } else { reads };
            objects.push(FunctionObject { object, kind: ObjectType::User, rights });
            bearers.push(bearer);
        }
        Ok((objects, bearers))
    }

    /// Fetches the bytes of a result that were not in the reply.
    async fn fetch_rest(&self, index: usize, end: &mut JobEnd) -> Result<(), FunctionError> {
        let total = end.status.total_length;
        if total > self.call.result_max as u64 {
            return Err(FunctionError::Limit { what: "the result", max: self.call.result_max as u64 });
        }
        while (end.result.len() as u64) < total {
            let action = JobAction::Result { offset: end.result.len() as u64 };
            let request = JobRequest { action, job: end.handle.job };
            let page = job::execute(&self.function.objects, index, &request)
                .await
                .map_err(|error| FunctionError::of_call(error, self.engine))?;
            let is_next = page.header.offset == end.result.len() as u64 && !page.inline.is_empty();
            if !is_next || page.inline.len() as u64 > total - end.result.len() as u64 {
                return Err(ClientError::Protocol("a device returned other bytes of a result").into());
            }
            end.result.extend_from_slice(&page.inline);
            if end.receipt.is_empty() {
                end.receipt = page.receipt;
            }
        }
        Ok(())
    }
}

/// An object moved to another device between planning and the start of its job.
fn moved() -> ClientError {
    Failure::new(ErrorCode::Busy, "an object moved to another device; run the function again").into()
}
