//! Calls: one job for each device and set of objects, all devices at once.
//!
//! Contract: a job that may have been started is never started again. The results are reported as
//! they arrive, in any order; each names its part of the call. Results that are not reported yet
//! have at most [`RESULTS_BYTES_MAX`] bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sealstone_mds_protocol::{Access, DeviceId, Failure, FilePath, IntentId, Layout, Method, shown};
use sealstone_osd::function::{ApiVersion, METHOD_MAX, OBJECTS_MAX, TIMEOUT_MAX_MS};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use zeroize::Zeroizing;

use super::copies::OpenFunction;
use super::job::{JobHandle, JobStatus};
use super::job_run::{CallState, OpenData};
use super::key_file::KeyFile;
use super::plan::{self, CallFile, CallGrouping, CallPart, PlannedJob};
use super::result_objects::ResultObjects;
use super::{CallArguments, FunctionDescription, FunctionError, JobStartHook};
use crate::client::file_path;
use crate::{Client, ClientError, Devices, Metadata, get};

/// Maximum number of jobs of one call that a device runs at once.
pub const JOBS_PER_DEVICE_MAX: usize = 4;
/// Default of the longest run, milliseconds.
const TIMEOUT_DEFAULT_MS: u32 = 30_000;
/// Default of the maximum bytes of the result of one job.
const RESULT_DEFAULT_MAX: usize = 64 << 20;
/// Maximum bytes that are reserved for the result of one job: devices limit results to them.
pub(super) const RESULT_RESERVED_MAX: usize = 16 << 20;
/// Maximum number of files of one call.
const FILES_MAX: usize = 65_536;
/// Number of files that are opened before their jobs start.
const FILES_AT_ONCE: usize = 256;
/// Number of files that are opened at the same time.
const OPENS_AT_ONCE: usize = 16;
/// The next files are opened when at most this number of jobs has not ended.
const JOBS_BEFORE_NEXT_FILES: usize = 64;
/// Replies that wait for their consumer.
const REPLIES_QUEUED: usize = 16;
/// Maximum bytes of results that are fetched and not reported yet.
pub const RESULTS_BYTES_MAX: usize = 256 << 20;
/// Unit of the permits for results, bytes.
pub(super) const RESULT_PERMIT_BYTES: usize = 64 << 10;
/// Maximum bytes of a header row.
const HEADER_BYTES_MAX: u64 = 32 << 10;

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
///
/// [`FunctionRun::on_start`] is called before each asynchronous job starts, so that a caller which
/// ends at any moment can find its jobs.
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
    /// A file with a key, of which each job receives an object after those of the files. The
    /// argument `key-object` has its index, so no argument has the key.
    pub key_file: Option<Vec<u8>>,
    /// How their objects are distributed over jobs.
    pub grouping: CallGrouping,
    /// Longest run in milliseconds; 0 starts asynchronous jobs.
    pub timeout_ms: u32,
    /// Whether devices must not record the arguments.
    pub secret_arguments: bool,
    /// Whether writes become visible only if the function succeeds.
    pub commit_on_success: bool,
    /// Whether receipts of synchronous jobs have digests of all bytes that the devices read. Those
    /// of asynchronous jobs always have them.
    pub input_digests: bool,
    /// The lowest API version to use. A function that needs a higher one gets that.
    pub api: ApiVersion,
    /// Maximum bytes of the result of one job.
    pub result_max: usize,
    /// Whether results may be longer than a reply, 64 KiB, so that a device needs an object for
    /// one.
    pub long_results: bool,
    /// Called before an asynchronous job starts.
    pub on_start: Option<JobStartHook>,
    /// Whether each job receives the first line of its files, as the arguments `header.N`.
    pub header_rows: bool,
    /// Security method; the server may require a stronger one.
    pub security: Method,
}

/// Jobs whose results belong together: those of one file, or of files that share jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallGroup {
    /// Number of the first file of the group.
    pub first_file: usize,
    /// Number of replies of the group.
    pub replies: usize,
}

/// The end of one job, or the start of an asynchronous one.
#[derive(Debug)]
pub struct CallReply {
    /// Number of the job in the call.
    pub number: usize,
    /// The jobs that it belongs to.
    pub group: CallGroup,
    /// Name of the device; empty if the file could not be opened.
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
    /// Reservation of the object for a long result of an asynchronous job.
    pub reserved: Option<IntentId>,
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

/// A reply, and the permit for its result.
pub(super) type QueuedReply = (CallReply, Option<OwnedSemaphorePermit>);

/// Jobs of a call that run, and the queue of their replies.
struct RunningJobs {
    tasks: JoinSet<()>,
    send: mpsc::Sender<QueuedReply>,
    permits: BTreeMap<DeviceId, Arc<Semaphore>>,
    /// Number of replies that were not received.
    pending: usize,
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
            key_file: None,
            grouping: CallGrouping::default(),
            timeout_ms: TIMEOUT_DEFAULT_MS,
            secret_arguments: false,
            commit_on_success: false,
            input_digests: false,
            api: ApiVersion::FIRST,
            result_max: RESULT_DEFAULT_MAX,
            long_results: true,
            on_start: None,
            header_rows: false,
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

    /// Returns the version to request: a higher one than that of the call if the function needs it.
    pub(super) fn api_for(&self, description: Option<&FunctionDescription>) -> ApiVersion {
        let lowest = description.and_then(|description| description.api).map(|(lowest, _)| lowest);
        lowest.map_or(self.api, |lowest| lowest.max(self.api))
    }

    pub(super) fn check(&self) -> Result<(), FunctionError> {
        let limit = |what, length: usize, max: usize| match length > max {
            true => Err(FunctionError::Limit { what, max: max as u64 }),
            false => Ok(()),
        };
        limit("the method", self.method.len(), METHOD_MAX)?;
        limit("the number of files", self.files.len(), FILES_MAX)?;
        limit("the bytes of a result", self.result_max, RESULTS_BYTES_MAX)?;
        if self.pairs_objects() {
            let max = OBJECTS_MAX - usize::from(self.key_file.is_some());
            limit("the number of files that one call changes together", self.files.len(), max)?;
        }
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
    /// A file that cannot be opened has a reply with the error. An empty file has no reply.
    ///
    /// # Errors
    /// Those that prevent all jobs, or those of the files that are left. The error of one job is in
    /// its reply.
    pub async fn run<M: Metadata, D: Devices>(
        &self,
        client: &Client<M, D>,
        mut on_reply: impl FnMut(CallReply),
    ) -> Result<CallSummary, FunctionError> {
        self.check()?;
        let path = file_path(&self.function)?;
        let mut function = Arc::new(OpenFunction::open(client, &path, self.security).await?);
        let mut key = match &self.key_file {
            Some(path) => Some(Arc::new(KeyFile::open(client, &file_path(path)?, self.security).await?)),
            None => None,
        };
        let description = function.description().await.ok();
        let engine = description.as_ref().and_then(|description| description.engine);
        let call = Arc::new(Self { api: self.api_for(description.as_ref()), ..self.clone() });
        let results = Arc::new(Semaphore::new(RESULTS_BYTES_MAX / RESULT_PERMIT_BYTES));
        let reserved = self.result_max.clamp(1, RESULT_RESERVED_MAX) as u64;
        let result_objects = ResultObjects::new(&client.core, &path, self.security, reserved);
        let mut summary = CallSummary::default();
        let mut devices = BTreeSet::new();
        let (send, mut receive) = mpsc::channel(REPLIES_QUEUED);
        let mut failure = None;
        let mut running = RunningJobs { tasks: JoinSet::new(), send, permits: BTreeMap::new(), pending: 0 };
        for first in (0..self.files.len()).step_by(FILES_AT_ONCE) {
            while running.pending > JOBS_BEFORE_NEXT_FILES {
                let Some(reply) = receive.recv().await else { break };
                running.pending -= 1;
                summary.report(reply, &mut on_reply);
            }
            let started = async {
                let (files, mut failed) = open_files(&call, client, first).await?;
                if self.pairs_objects() && !failed.is_empty() {
                    return Err(failed.swap_remove(0).1);
                }
                let jobs = self.plan(&files);
                if self.pairs_objects() {
                    // One job has all files.
                    if let Some((file, device)) = plan::missing_object(&jobs, 0..self.files.len()) {
                        let path = shown(&self.files[file].path).into_owned();
                        let device = client.core.device_label(device).await;
                        return Err(FunctionError::NoObject { path, device });
                    }
                }
                let needed: BTreeSet<DeviceId> = jobs.iter().map(|job| job.device).collect();
                let missing: Vec<DeviceId> =
                    needed.iter().copied().filter(|device| function.copy_on(*device).is_none()).collect();
                if !missing.is_empty() {
                    summary.copies += client.make_copies(&function, &missing).await?;
                    function = Arc::new(OpenFunction::open(client, &path, self.security).await?);
                }
                if let Some(open) = &key
                    && open.copy_to(client, &needed).await?
                {
                    key = Some(Arc::new(KeyFile::open(client, open.path(), self.security).await?));
                }
                devices.extend(needed);
                let number = summary.jobs;
                summary.jobs += jobs.len() + failed.len();
                let (client, function, call) = (client.clone(), function.clone(), call.clone());
                let (key, results, result_objects) = (key.clone(), results.clone(), result_objects.clone());
                let state = CallState { client, function, engine, files, call, key, results, result_objects };
                let state = Arc::new(state);
                let failed: Vec<CallReply> = running.start(number, &state, jobs, failed);
                for reply in failed {
                    summary.report((reply, None), &mut on_reply);
                }
                Ok(())
            };
            // Jobs that were started have replies nevertheless.
            if let Err(error) = started.await {
                failure = Some(error);
                break;
            }
        }
        summary.devices = devices.len();
        while running.pending > 0 {
            let Some(reply) = receive.recv().await else { break };
            running.pending -= 1;
            summary.report(reply, &mut on_reply);
        }
        while let Some(done) = running.tasks.join_next().await {
            crate::put::joined(done.map(Ok))?;
        }
        result_objects.end_all().await;
        failure.map_or(Ok(summary), Err)
    }

    /// Whether functions may change objects that they pair by position, so that each job needs an
    /// object of each file.
    fn pairs_objects(&self) -> bool {
        self.grouping == CallGrouping::PerDevice && self.files.iter().any(|file| file.update)
    }

    /// Plans the jobs of open files.
    fn plan<M, D>(&self, files: &[OpenData<M, D>]) -> Vec<PlannedJob> {
        let layouts: Vec<(&Layout, u64)> =
            files.iter().map(|file| (&file.objects.layout, file.stat.size)).collect();
        let mut jobs = plan::plan(&layouts, self.grouping);
        for part in jobs.iter_mut().flat_map(|job| &mut job.parts) {
            part.file = files[part.file].number;
        }
        jobs
    }

    async fn open_file<M: Metadata, D: Devices>(
        &self,
        client: &Client<M, D>,
        number: usize,
    ) -> Result<OpenData<M, D>, FunctionError> {
        let CallFile { path, update } = &self.files[number];
        let path: FilePath = file_path(path)?;
        let access = if *update { Access::CallUpdate } else { Access::CallRead };
        let (stat, objects) = get::open(&client.core, &path, access, self.security)
            .await
            .map_err(|error| named(error, &path))?;
        let header = match self.header_rows && stat.size > 0 {
            true => Some(self.header_of(client, &path).await?),
            false => None,
        };
        Ok(OpenData { number, stat, update: *update, header, objects })
    }

    /// Reads the first line of a file, as jobs receive it with `header_rows`.
    ///
    /// # Errors
    /// `Argument` for a line that is too long or not UTF-8; `Client`.
    pub async fn header_of<M: Metadata, D: Devices>(
        &self,
        client: &Client<M, D>,
        path: &FilePath,
    ) -> Result<String, FunctionError> {
        let invalid = |problem| FunctionError::Argument { name: "header".to_owned(), problem };
        let file = client.open(path, self.security).await?;
        let mut row = file.read(0..HEADER_BYTES_MAX).await?;
        match row.iter().position(|byte| *byte == b'\n') {
            Some(end) => row.truncate(end),
            None if row.len() as u64 == HEADER_BYTES_MAX => {
                return Err(invalid("the first line of the table has more than 32 KiB"));
            }
            None => {}
        }
        String::from_utf8(row).map_err(|_| invalid("the first line of the table is not UTF-8"))
    }
}

impl CallSummary {
    fn report(&mut self, (reply, permit): QueuedReply, on_reply: &mut impl FnMut(CallReply)) {
        self.add(&reply);
        on_reply(reply);
        drop(permit);
    }
}

impl RunningJobs {
    /// Starts jobs, the first of which has this number. Returns the replies of files that could not
    /// be opened.
    fn start<M: Metadata, D: Devices>(
        &mut self,
        mut number: usize,
        state: &Arc<CallState<M, D>>,
        jobs: Vec<PlannedJob>,
        failed: Vec<(usize, FunctionError)>,
    ) -> Vec<CallReply> {
        let grouping = state.call.grouping;
        let first = jobs.iter().flat_map(|job| &job.parts).map(|part| part.file).min().unwrap_or(0);
        let group_of = |parts: &[CallPart]| match grouping {
            CallGrouping::PerFile => parts.first().map_or(0, |part| part.file),
            CallGrouping::PerDevice => first,
        };
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for job in &jobs {
            *counts.entry(group_of(&job.parts)).or_default() += 1;
        }
        for planned in jobs {
            let first_file = group_of(&planned.parts);
            let replies = counts.get(&first_file).copied().unwrap_or(1);
            let group = CallGroup { first_file, replies };
            let permits = self
                .permits
                .entry(planned.device)
                .or_insert_with(|| Arc::new(Semaphore::new(JOBS_PER_DEVICE_MAX)));
            let (state, send, permits) = (state.clone(), self.send.clone(), permits.clone());
            self.pending += 1;
            self.tasks.spawn(async move {
                let _permit = permits.acquire().await.ok();
                let reply = state.reply(number, group, planned).await;
                // The caller dropped the call.
                let _ = send.send(reply).await;
            });
            number += 1;
        }
        let replies = failed.into_iter().enumerate().map(|(at, (file, error))| CallReply {
            number: number + at,
            group: CallGroup { first_file: file, replies: 1 },
            device: String::new(),
            parts: vec![CallPart { file, index: 0, unit: None, width: 1, size: 0 }],
            arguments: Zeroizing::default(),
            outcome: Err(error),
            handle: None,
            result: Vec::new(),
            receipt: Vec::new(),
            reserved: None,
        });
        replies.collect()
    }
}

/// Opens the files of a call from this number on, some at once. Returns those that were opened, and
/// the failures.
async fn open_files<M: Metadata, D: Devices>(
    call: &Arc<FunctionRun>,
    client: &Client<M, D>,
    first: usize,
) -> Result<(Vec<OpenData<M, D>>, Vec<(usize, FunctionError)>), FunctionError> {
    let mut waiting = first..call.files.len().min(first + FILES_AT_ONCE);
    let (mut files, mut failed) = (Vec::with_capacity(waiting.len()), Vec::new());
    let mut opening = JoinSet::new();
    loop {
        while opening.len() < OPENS_AT_ONCE
            && let Some(number) = waiting.next()
        {
            let (call, client) = (call.clone(), client.clone());
            opening.spawn(async move { (number, call.open_file(&client, number).await) });
        }
        let Some(opened) = opening.join_next().await else { break };
        match crate::put::joined(opened.map(Ok))? {
            (_, Ok(file)) => files.push(file),
            (number, Err(error)) => failed.push((number, error)),
        }
    }
    files.sort_unstable_by_key(|file: &OpenData<M, D>| file.number);
    failed.sort_unstable_by_key(|(number, _)| *number);
    Ok((files, failed))
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
