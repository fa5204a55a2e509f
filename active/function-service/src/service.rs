//! The function service: jobs, threads, engines and results together.
//!
//! Does: run synchronous jobs on the thread of their command and asynchronous ones on threads of
//! their own, answer requests about jobs, store large results, issue receipts.
//! Does not: serve the requests of an engine; `invocation` does.
//! Contract: a job ends exactly once, and is recorded once. Without a running slot a job waits in
//! the queue. No lock is held while an engine or an object is used.
//! Truth: docs/design/active.md, docs/adr/0069-function-service.md.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sealstone_osd::function::{
    ApiVersion, EngineType, ExitReason, INLINE_MAX, JobAction, JobId, JobState, ReplyHeader, ReplyParts,
};
use sealstone_osd_device::{
    CodeRequest, CodeReservation, DeviceEnvironment, EngineInfo, FunctionCall, FunctionCode, FunctionRefusal,
    FunctionRunner, JobCall, Principal,
};
use thiserror::Error;

use crate::engines::{API_VERSIONS, EngineSet, EngineStatus, describe};
use crate::invocation::{InvocationEnd, RunCancel, run_call};
use crate::job_records::JobRecords;
use crate::job_table::{
    AdmitError, CancelEffect, JobCounts, JobEnd, JobEntry, JobOwner, JobResult, JobTable, JobUsage, JobUser,
};
use crate::limits::{RunLimits, ServiceLimits};
use crate::metrics::ServiceMetrics;
use crate::pool::{EngineKey, EnginePool, EngineStartError};
use crate::run_record::{ReceiptSource, RunRecord, RunRecorder};
use crate::staging::StagedOutput;

mod budgets;
mod results;

use budgets::{CodeBudget, CommandThreads};
use results::{PublishedResult, RunInputs};

/// Time between two checks whether the client of a waiting command still exists.
const ABANDONED_CHECK: Duration = Duration::from_millis(250);
/// Longest wait for running jobs at a shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Attempts to draw a job id that is not in use; a second one never happens in practice.
const ID_ATTEMPTS: usize = 4;

/// The parts of a service.
pub struct ServiceParts {
    /// The engine programs, started before the keys were loaded.
    pub engines: EngineSet,
    /// The limits.
    pub limits: ServiceLimits,
    /// Clock and random bytes.
    pub environment: Arc<dyn DeviceEnvironment>,
    /// File with the asynchronous jobs.
    pub records: PathBuf,
    /// Receives the records of runs.
    pub recorder: Arc<dyn RunRecorder>,
    /// Key of receipts.
    pub receipts: ReceiptSource,
}

/// Why a service cannot start.
#[derive(Debug, Error)]
pub enum ServiceStartError {
    /// The file of asynchronous jobs cannot be read.
    #[error("cannot read {path}, the file of asynchronous jobs; remove it to start without them")]
    Records {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
}

/// Runs the functions of one device.
pub struct FunctionService(Arc<ServiceState>);

struct ServiceState {
    pool: EnginePool,
    limits: ServiceLimits,
    environment: Arc<dyn DeviceEnvironment>,
    records: JobRecords,
    recorder: Arc<dyn RunRecorder>,
    receipts: ReceiptSource,
    metrics: ServiceMetrics,
    code_budget: Arc<CodeBudget>,
    command_threads: CommandThreads,
    started: Instant,
    stopping: AtomicBool,
    active: Mutex<ActiveJobs>,
    /// Signalled when a job changes its state.
    changed: Condvar,
}

/// The jobs, and the parts of those that have not ended.
struct ActiveJobs {
    table: JobTable,
    /// Calls of queued asynchronous jobs.
    queued: HashMap<JobId, FunctionCall>,
    running: HashMap<JobId, Arc<RunCancel>>,
    /// Asynchronous jobs that are being recorded.
    starting: HashSet<JobId>,
}

impl FunctionService {
    /// Starts the service. Jobs that were active when the device stopped are lost.
    ///
    /// # Errors
    /// [`ServiceStartError`].
    pub fn start(parts: ServiceParts) -> Result<Self, ServiceStartError> {
        let opened = JobRecords::open(parts.records.clone());
        let (records, lost) =
            opened.map_err(|source| ServiceStartError::Records { path: parts.records, source })?;
        let mut table = JobTable::new(parts.limits.jobs);
        for (id, owner) in lost {
            table.add_lost(id, owner, 0);
        }
        Ok(Self(Arc::new(ServiceState {
            pool: EnginePool::new(parts.engines, &parts.limits),
            limits: parts.limits,
            environment: parts.environment,
            records,
            recorder: parts.recorder,
            receipts: parts.receipts,
            metrics: ServiceMetrics::default(),
            code_budget: Arc::default(),
            command_threads: CommandThreads::default(),
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            active: Mutex::new(ActiveJobs {
                table,
                queued: HashMap::new(),
                running: HashMap::new(),
                starting: HashSet::new(),
            }),
            changed: Condvar::new(),
        })))
    }

    /// Removes old jobs and idle engines. Call it about once in a second.
    pub fn tick(&self) {
        self.0.pool.expire(Instant::now());
        let now_ms = self.0.now_ms();
        self.0.active.lock().table.expire(now_ms);
    }

    /// Stops all jobs and waits for their end, at most some seconds. Asynchronous jobs are reported
    /// as lost after the next start.
    pub fn shut_down(&self) {
        let state = &*self.0;
        state.stopping.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        let mut active = state.active.lock();
        let running: Vec<_> = active.running.values().map(Arc::clone).collect();
        let queued = std::mem::take(&mut active.queued);
        drop(active);
        state.changed.notify_all();
        // Without the lock: both take locks of their own and make system calls.
        running.iter().for_each(|cancel| cancel.cancel());
        drop(queued);
        let mut active = state.active.lock();
        while !active.running.is_empty() && !state.changed.wait_until(&mut active, deadline).timed_out() {}
        drop(active);
        state.pool.clear();
    }

    /// Returns the status of the engines and of the layers that confine them.
    #[must_use]
    pub fn engine_status(&self) -> Vec<EngineStatus> {
        self.0.pool.engines().status()
    }

    /// Whether incomplete confinement makes an engine unavailable.
    #[must_use]
    pub fn is_strict(&self) -> bool {
        self.0.pool.engines().is_strict()
    }

    /// Returns numbers of jobs.
    #[must_use]
    pub fn job_counts(&self) -> JobCounts {
        self.0.active.lock().table.counts()
    }

    /// Returns the limits.
    #[must_use]
    pub fn limits(&self) -> &ServiceLimits {
        &self.0.limits
    }

    /// Returns the metrics of the service as Prometheus text. `device` becomes a label.
    #[must_use]
    pub fn prometheus(&self, device: &str) -> String {
        self.0.metrics.prometheus(device, &self.job_counts(), self.0.pool.counts())
    }
}

impl FunctionRunner for FunctionService {
    fn engines(&self) -> Vec<EngineInfo> {
        self.0.pool.engines().infos()
    }

    fn reserve_code(&self, request: &CodeRequest<'_>) -> Result<CodeReservation, FunctionRefusal> {
        let state = &self.0;
        state.check_run(request.engine, request.api)?;
        let user = JobUser::of_audit(&request.caller.audit);
        let owner = JobOwner { user, function: request.function };
        let checked = state.active.lock().table.check_limits(owner);
        checked.map_err(|_| FunctionRefusal::TooManyJobs)?;
        let permit = state.code_budget.reserve(user, request.bytes);
        permit.map(CodeReservation::new).ok_or_else(|| state.refuse_full())
    }

    fn execute(&self, call: FunctionCall) -> Result<ReplyParts, FunctionRefusal> {
        let state = &self.0;
        state.check_run(call.engine, call.api)?;
        let owner = JobOwner { user: JobUser::of_audit(&call.caller.audit), function: call.function };
        if call.timeout_ms == 0 {
            return state.start_asynchronous(owner, call);
        }
        let _thread = state.command_threads.occupy(owner.user).ok_or_else(|| state.refuse_full())?;
        state.run_here(owner, call)
    }

    fn job(&self, call: JobCall) -> Result<ReplyParts, FunctionRefusal> {
        let state = &self.0;
        let owner = JobOwner { user: JobUser::of_audit(&call.caller.audit), function: call.function };
        let id = call.request.job;
        let mut offset = None;
        match call.request.action {
            JobAction::Status => {}
            JobAction::Wait { timeout_ms } => {
                // The reply about an ended or unknown job needs no thread.
                let is_pending =
                    state.active.lock().table.get(id, owner).is_some_and(|job| !job.state().is_final());
                if is_pending {
                    let thread = state.command_threads.occupy(owner.user);
                    let _thread = thread.ok_or(FunctionRefusal::TooManyJobs)?;
                    let at_most = Duration::from_millis(timeout_ms.into()).min(state.limits.wait);
                    state.wait(id, owner, at_most, &|| call.caller.is_disconnected());
                }
            }
            JobAction::Cancel => state.cancel(id, owner)?,
            JobAction::Log { offset } => return state.log_reply(id, owner, offset, call.inline_max),
            JobAction::Result { offset: from } => offset = Some(from),
        }
        let active = state.active.lock();
        let job = active.table.get(id, owner).ok_or(FunctionRefusal::UnknownJob)?;
        Ok(reply(id, job, offset, call.inline_max))
    }
}

impl ServiceState {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Checks whether the service could run such a call now, whatever its code is.
    fn check_run(&self, engine: EngineType, api: ApiVersion) -> Result<(), FunctionRefusal> {
        if self.is_stopping() {
            return Err(FunctionRefusal::Stopping);
        }
        if self.pool.engines().zygote(engine).is_none() {
            return Err(FunctionRefusal::EngineMissing(engine));
        }
        if !API_VERSIONS.contains(&api) {
            let (lowest, highest) = API_VERSIONS.into_inner();
            return Err(FunctionRefusal::ApiUnsupported { requested: api, lowest, highest });
        }
        Ok(())
    }

    /// Counts a refusal: TASK SET FULL.
    fn refuse_full(&self) -> FunctionRefusal {
        self.active.lock().table.count_refusal();
        FunctionRefusal::TooManyJobs
    }

    /// Draws a job id, and passes it to `admit` until that accepts it or a limit is reached.
    fn admit(
        &self,
        mut admit: impl FnMut(&mut ActiveJobs, JobId, u64) -> Result<(), AdmitError>,
    ) -> Result<JobId, FunctionRefusal> {
        for _ in 0..ID_ATTEMPTS {
            let mut id = JobId::NONE;
            self.environment.fill_random(&mut id.0);
            match admit(&mut self.active.lock(), id, self.now_ms()) {
                Ok(()) => return Ok(id),
                Err(AdmitError::IdInUse) => {}
                Err(AdmitError::UserFull(_) | AdmitError::DeviceFull(_)) => {
                    return Err(FunctionRefusal::TooManyJobs);
                }
            }
        }
        Err(FunctionRefusal::ServiceFailed)
    }

    /// Puts an asynchronous job into the queue. Its id is durable before it is returned.
    fn start_asynchronous(
        self: &Arc<Self>,
        owner: JobOwner,
        call: FunctionCall,
    ) -> Result<ReplyParts, FunctionRefusal> {
        let end_ms = self.environment.now_ms().saturating_add(self.limits.run.wall.as_millis() as u64);
        if call.result_object.as_ref().is_some_and(|object| (1..end_ms).contains(&object.expires_ms())) {
            return Err(FunctionRefusal::ResultExpires);
        }
        // Without this check a refused job would cost a flush of the disk.
        let check = |active: &mut ActiveJobs, id: JobId| {
            if active.table.state_of(id).is_some() || active.starting.contains(&id) {
                return Err(AdmitError::IdInUse);
            }
            active.table.check_limits(owner)?;
            active.starting.insert(id);
            Ok(())
        };
        let id = match call.job {
            Some(id) => {
                check(&mut self.active.lock(), id).map_err(|error| match error {
                    AdmitError::IdInUse => FunctionRefusal::JobIdInUse,
                    AdmitError::UserFull(_) | AdmitError::DeviceFull(_) => FunctionRefusal::TooManyJobs,
                })?;
                id
            }
            None => self.admit(|active, id, _| check(active, id))?,
        };
        let recorded = self.records.add(id, owner);
        let mut active = self.active.lock();
        active.starting.remove(&id);
        recorded.map_err(|error| {
            tracing::error!(%error, "cannot record an asynchronous job; job refused");
            FunctionRefusal::ServiceFailed
        })?;
        // In the queue together with its call, so that no other thread starts it without one.
        if let Err(error) = active.table.admit(id, owner, self.now_ms()) {
            drop(active);
            tracing::debug!(%error, "the last slot for a job was taken meanwhile");
            self.forget(id);
            return Err(FunctionRefusal::TooManyJobs);
        }
        active.queued.insert(id, call);
        drop(active);
        self.dispatch();
        let active = self.active.lock();
        let job = active.table.get(id, owner).ok_or(FunctionRefusal::UnknownJob)?;
        Ok(reply(id, job, None, 0))
    }

    /// Removes the record of a job that has ended or was not admitted.
    fn forget(&self, id: JobId) {
        if let Err(error) = self.records.remove(id) {
            tracing::warn!(%error, job = %id, "cannot remove the record of an ended job; after a restart it is reported as lost");
        }
    }

    /// Runs a synchronous job on this thread as soon as it may run.
    fn run_here(
        self: &Arc<Self>,
        owner: JobOwner,
        call: FunctionCall,
    ) -> Result<ReplyParts, FunctionRefusal> {
        let id = self.admit(|active, id, now_ms| active.table.admit(id, owner, now_ms))?;
        let deadline = Instant::now() + Duration::from_millis(call.timeout_ms.into());
        self.dispatch();
        let mut active = self.active.lock();
        while active.table.state_of(id) == Some(JobState::Queued) {
            let exit = if self.is_stopping() {
                ExitReason::Killed
            } else if call.caller.is_disconnected() {
                ExitReason::Cancelled
            } else if Instant::now() >= deadline {
                ExitReason::WallTime
            } else {
                self.changed.wait_for(&mut active, ABANDONED_CHECK);
                continue;
            };
            let now_ms = self.now_ms();
            active.table.finish(id, JobEnd::without_result(exit), now_ms);
        }
        let may_run = active.table.state_of(id) == Some(JobState::Running);
        drop(active);
        let inline_max = call.inline_max;
        if may_run {
            self.run(id, call, true);
        }
        self.dispatch();
        let active = self.active.lock();
        let job = active.table.get(id, owner).ok_or(FunctionRefusal::UnknownJob)?;
        Ok(reply(id, job, Some(0), inline_max))
    }

    /// Starts queued jobs while slots are free.
    fn dispatch(self: &Arc<Self>) {
        loop {
            let mut active = self.active.lock();
            if self.is_stopping() {
                return;
            }
            let Some(id) = active.table.start_next(self.now_ms()) else { return };
            active.running.insert(id, Arc::new(RunCancel::default()));
            let Some(call) = active.queued.remove(&id) else {
                // Its command waits on a thread of its own.
                self.changed.notify_all();
                continue;
            };
            drop(active);
            let state = Arc::clone(self);
            let name = "function-job".to_owned();
            let spawned = std::thread::Builder::new().name(name).spawn(move || {
                state.run(id, call, false);
                state.dispatch();
            });
            if let Err(error) = spawned {
                tracing::error!(%error, "cannot start a thread for an asynchronous job; job failed");
                self.finish(id, JobEnd::without_result(ExitReason::Killed));
            }
        }
    }

    /// Runs a job and stores its end.
    fn run(&self, id: JobId, mut call: FunctionCall, is_synchronous: bool) {
        let code = call.code.take();
        let started_ms = self.environment.now_ms();
        let cancel = self.active.lock().running.get(&id).map(Arc::clone).unwrap_or_default();
        let mut limits = self.limits.run;
        if call.timeout_ms > 0 {
            limits.wall = limits.wall.min(Duration::from_millis(call.timeout_ms.into()));
        }
        let inputs = RunInputs::of(&call);
        let stage = call.commit_on_success.then(|| StagedOutput::new(limits.output));
        let observer = JobObserver { state: self, id, call: &call, is_synchronous };
        let mut end = self.run_in_engine(&call, code, stage.as_ref(), &limits, &cancel, &observer);
        let mut published = PublishedResult::empty();
        if end.exit == ExitReason::Success {
            match Self::publish(&call, stage.as_deref(), std::mem::take(&mut end.result)) {
                Ok(result) => published = result,
                Err(error) => {
                    (end.exit, end.error) = (ExitReason::Output, error.code());
                    observer.log(format!("device: {error}").as_bytes());
                }
            }
        }
        if end.exit != ExitReason::Success
            && let Some(stage) = &stage
        {
            stage.discard();
        }
        if self.is_stopping() && end.exit == ExitReason::Cancelled {
            end.exit = ExitReason::Killed;
        }
        let ended_ms = self.environment.now_ms();
        let receipt = self.receipt(id, &call, &inputs, &limits, &end, &published, (started_ms, ended_ms));
        let result = JobResult { receipt, ..published.result };
        self.metrics.count(&end.usage, end.denials);
        self.recorder.record_run(&RunRecord {
            time_ms: ended_ms,
            principal: Principal(call.caller.audit),
            initiator: &call.caller.initiator,
            job: id,
            function: call.function,
            digest: call.digest,
            objects: call.objects.iter().map(|object| object.object()).collect(),
            exit: end.exit,
            error: end.error,
            usage: end.usage,
            denials: end.denials,
        });
        // Dropped before the end is visible: arguments are cleared, and objects released.
        drop(call);
        self.finish(id, JobEnd { exit: end.exit, error: end.error, usage: end.usage, result });
    }

    fn run_in_engine(
        &self,
        call: &FunctionCall,
        code: Option<FunctionCode>,
        stage: Option<&Arc<StagedOutput>>,
        limits: &RunLimits,
        cancel: &RunCancel,
        observer: &JobObserver<'_>,
    ) -> InvocationEnd {
        let key = EngineKey {
            engine: call.engine,
            digest: call.digest,
            user: JobUser::of_audit(&call.caller.audit),
        };
        let bytes = code.as_ref().map_or(&[][..], |code| &code.bytes);
        let acquired = self.pool.acquire(key, bytes, limits);
        // The engine has the code. Its copy is not needed during the run.
        drop(code);
        let mut engine = match acquired {
            Ok(engine) => engine,
            Err(error) => {
                let exit = match error {
                    EngineStartError::Missing => ExitReason::EngineMissing,
                    EngineStartError::Memory(_) | EngineStartError::Sandbox(_) => ExitReason::Killed,
                };
                tracing::warn!(
                    error = describe(&error),
                    engine = call.engine.name(),
                    "cannot start an engine; job failed"
                );
                observer.log(b"device: no engine could be started");
                return InvocationEnd {
                    exit,
                    error: 0,
                    usage: JobUsage::default(),
                    result: Vec::new(),
                    denials: 0,
                    read_digests: Vec::new(),
                    reusable: false,
                };
            }
        };
        let objects = call.objects.iter().map(|object| match stage {
            Some(stage) => stage.wrap(Arc::clone(object)),
            None => Arc::clone(object),
        });
        let end = run_call(&mut engine, call, objects.collect(), limits, cancel, observer);
        // Memory of an engine may keep secrets of a call.
        if end.reusable && !call.secret_arguments && !self.is_stopping() {
            self.pool.release(engine);
        }
        end
    }

    /// Stores the end of a job.
    fn finish(&self, id: JobId, end: JobEnd) {
        let mut active = self.active.lock();
        active.running.remove(&id);
        let now_ms = self.now_ms();
        active.table.finish(id, end, now_ms);
        drop(active);
        self.changed.notify_all();
        // A job that a shutdown stops is reported as lost after the next start.
        if !self.is_stopping() {
            self.forget(id);
        }
    }

    /// Waits until a job ends, the time is over, or the client is gone.
    fn wait(&self, id: JobId, owner: JobOwner, at_most: Duration, is_disconnected: &dyn Fn() -> bool) {
        let deadline = Instant::now() + at_most;
        let mut active = self.active.lock();
        while active.table.get(id, owner).is_some_and(|job| !job.state().is_final())
            && Instant::now() < deadline
            && !self.is_stopping()
            && !is_disconnected()
        {
            let step = deadline.min(Instant::now() + ABANDONED_CHECK);
            self.changed.wait_until(&mut active, step);
        }
    }

    fn cancel(&self, id: JobId, owner: JobOwner) -> Result<(), FunctionRefusal> {
        let now_ms = self.now_ms();
        let mut active = self.active.lock();
        match active.table.cancel(id, owner, now_ms).ok_or(FunctionRefusal::UnknownJob)? {
            CancelEffect::NoEffect => Ok(()),
            CancelEffect::MustStop => {
                let cancel = active.running.get(&id).map(Arc::clone);
                drop(active);
                if let Some(cancel) = cancel {
                    cancel.cancel();
                }
                Ok(())
            }
            CancelEffect::Ended => {
                let call = active.queued.remove(&id);
                drop(active);
                drop(call);
                self.changed.notify_all();
                self.forget(id);
                Ok(())
            }
        }
    }

    fn log_reply(
        &self,
        id: JobId,
        owner: JobOwner,
        offset: u64,
        inline_max: usize,
    ) -> Result<ReplyParts, FunctionRefusal> {
        let active = self.active.lock();
        let job = active.table.get(id, owner).ok_or(FunctionRefusal::UnknownJob)?;
        let (start, inline) = job.log().read(offset, inline_max.min(INLINE_MAX));
        let mut header = header(id, job);
        (header.total_length, header.offset) = (job.log().end(), start);
        Ok(ReplyParts { header, inline, receipt: Vec::new() })
    }
}

/// Passes log and progress of a run to its job.
pub(crate) struct JobObserver<'a> {
    state: &'a ServiceState,
    id: JobId,
    call: &'a FunctionCall,
    is_synchronous: bool,
}

impl JobObserver<'_> {
    /// Appends a line to the log of the job.
    pub(crate) fn log(&self, message: &[u8]) {
        self.state.active.lock().table.log(self.id, message);
    }

    /// Stores progress and usage.
    pub(crate) fn report(&self, progress: (u64, u64), usage: JobUsage) {
        self.state.active.lock().table.report(self.id, progress, usage);
    }

    /// Whether an engine may serve another run after this one.
    pub(crate) const fn keeps_engines(&self) -> bool {
        self.state.limits.warm_engines > 0
    }

    /// Whether no client waits for the result any more. An asynchronous job continues without its
    /// connection.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_synchronous && self.call.caller.is_disconnected()
    }
}

fn header(id: JobId, job: &JobEntry) -> ReplyHeader {
    let (end, usage) = (job.end(), job.end().usage);
    ReplyHeader {
        exit: end.exit,
        error: end.error,
        total_length: end.result.length,
        bytes_read: usage.bytes_read,
        bytes_written: usage.bytes_written,
        cpu_us: usage.cpu_us,
        wall_us: usage.wall_us,
        peak_memory: usage.peak_memory,
        calls: usage.calls,
        progress_done: job.progress().0,
        progress_total: job.progress().1,
        result_object: end.result.object,
        ..ReplyHeader::new(id, job.state())
    }
}

/// Returns the state of a job, with result bytes from an offset on and the receipt if requested.
fn reply(id: JobId, job: &JobEntry, offset: Option<u64>, inline_max: usize) -> ReplyParts {
    let mut header = header(id, job);
    let Some(offset) = offset else { return ReplyParts { header, inline: Vec::new(), receipt: Vec::new() } };
    let result = &job.end().result;
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(result.bytes.len());
    let rest = &result.bytes[from..];
    header.offset = from as u64;
    let inline = rest[..rest.len().min(inline_max).min(INLINE_MAX)].to_vec();
    ReplyParts { header, inline, receipt: result.receipt.clone() }
}
