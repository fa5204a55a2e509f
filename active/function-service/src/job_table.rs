//! The jobs of one device: states, limits, and how long ended jobs are kept.
//!
//! Does: admit, queue, start, cancel, end, expire.
//! Does not: run anything, read a clock, or draw random numbers; `service` does.
//! Contract: `now_ms` never decreases. A job is reported to its owner only; for all others it does
//! not exist. At most `JobLimits::running` jobs run and `JobLimits::per_user` jobs of one user are
//! queued or running.
//! Truth: docs/standards/active.md, docs/design/active.md.

use std::collections::{BTreeMap, HashMap, VecDeque};

use sealstone_osd::ObjectId;
use sealstone_osd::function::{ExitReason, JobId, JobState};
use thiserror::Error;

use crate::log_ring::LogRing;

/// Bytes of the AUDIT field that identify a user: our metadata server puts its session there, and
/// the number of the credential after it.
pub(crate) const USER_LEN: usize = 16;

/// Default maximum number of queued and running jobs of one user.
pub(crate) const JOBS_PER_USER: usize = 4;
/// Default maximum number of running jobs for each processor.
pub(crate) const JOBS_PER_CORE: usize = 2;
/// Default maximum number of queued jobs of a device.
pub(crate) const JOBS_QUEUED: usize = 64;
/// Default maximum number of ended jobs that are kept.
pub(crate) const JOBS_KEPT: usize = 10_000;
/// Default time for which ended jobs are kept, in milliseconds: one hour.
pub(crate) const JOBS_KEPT_MS: u64 = 60 * 60 * 1000;
/// Default maximum bytes of results and logs of ended jobs.
pub(crate) const JOBS_KEPT_BYTES: usize = 64 << 20;
/// Bytes that an ended job counts besides its result and its log.
const ENTRY_BYTES: usize = 512;

/// Limits of a job table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobLimits {
    /// Maximum number of queued and running jobs of one user.
    pub per_user: usize,
    /// Maximum number of running jobs.
    pub running: usize,
    /// Maximum number of queued jobs.
    pub queued: usize,
    /// Maximum number of ended jobs that are kept.
    pub kept: usize,
    /// Time for which ended jobs are kept, in milliseconds.
    pub kept_ms: u64,
    /// Maximum bytes of results and logs of ended jobs.
    pub kept_bytes: usize,
}

impl JobLimits {
    /// Returns the default limits of a machine with this many processors.
    #[must_use]
    pub const fn for_cores(cores: usize) -> Self {
        Self {
            per_user: JOBS_PER_USER,
            running: JOBS_PER_CORE * cores,
            queued: JOBS_QUEUED,
            kept: JOBS_KEPT,
            kept_ms: JOBS_KEPT_MS,
            kept_bytes: JOBS_KEPT_BYTES,
        }
    }
}

/// The user part of an AUDIT field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct JobUser(pub [u8; USER_LEN]);

impl JobUser {
    /// Returns the user of an AUDIT field.
    #[must_use]
    pub(crate) fn of_audit(audit: &[u8; 20]) -> Self {
        let mut user = [0; USER_LEN];
        user.copy_from_slice(&audit[..USER_LEN]);
        Self(user)
    }
}

/// The owner of a job: the user that started it, and the function object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct JobOwner {
    /// The user.
    pub(crate) user: JobUser,
    /// The function object.
    pub(crate) function: ObjectId,
}

/// Resources that a run used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobUsage {
    /// Bytes read from objects.
    pub bytes_read: u64,
    /// Bytes written to objects and to the result.
    pub bytes_written: u64,
    /// CPU time in microseconds.
    pub cpu_us: u64,
    /// Wall time in microseconds.
    pub wall_us: u64,
    /// Highest memory use in bytes.
    pub peak_memory: u64,
    /// Calls of the function to the device.
    pub calls: u64,
}

/// Result bytes, in memory or in an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobResult {
    /// Bytes of the whole result.
    pub(crate) length: u64,
    /// The result, if it is not in an object.
    pub(crate) bytes: Vec<u8>,
    /// The object with the result.
    pub(crate) object: Option<ObjectId>,
    /// The receipt.
    pub(crate) receipt: Vec<u8>,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobEnd {
    /// The reason.
    pub(crate) exit: ExitReason,
    /// The code that the function returned, or the signal of a trap.
    pub(crate) error: i32,
    /// Resources that the run used.
    pub(crate) usage: JobUsage,
    /// The result.
    pub(crate) result: JobResult,
}

impl JobEnd {
    /// Returns an end without usage or result.
    #[must_use]
    pub(crate) fn without_result(exit: ExitReason) -> Self {
        Self { exit, error: 0, usage: JobUsage::default(), result: JobResult::default() }
    }
}

/// Returns the final state for an exit reason.
#[must_use]
pub(crate) const fn final_state(exit: ExitReason) -> JobState {
    match exit {
        ExitReason::Success => JobState::Done,
        ExitReason::WallTime => JobState::TimedOut,
        ExitReason::Cancelled => JobState::Cancelled,
        ExitReason::Lost => JobState::Lost,
        ExitReason::Trap
        | ExitReason::CpuTime
        | ExitReason::Memory
        | ExitReason::Output
        | ExitReason::Killed
        | ExitReason::EngineMissing
        | ExitReason::ProtocolViolation
        | ExitReason::FunctionError => JobState::Failed,
    }
}

/// One job.
#[derive(Debug)]
pub(crate) struct JobEntry {
    owner: JobOwner,
    state: JobState,
    progress: (u64, u64),
    log: LogRing,
    end: JobEnd,
    changed_ms: u64,
}

impl JobEntry {
    /// Returns the state.
    #[must_use]
    pub(crate) const fn state(&self) -> JobState {
        self.state
    }

    /// Returns the progress and its end value, 0 if that is unknown.
    #[must_use]
    pub(crate) const fn progress(&self) -> (u64, u64) {
        self.progress
    }

    /// Returns the log.
    #[must_use]
    pub(crate) const fn log(&self) -> &LogRing {
        &self.log
    }

    /// Returns usage and result; those of a running job are partial.
    #[must_use]
    pub(crate) const fn end(&self) -> &JobEnd {
        &self.end
    }

    fn kept_bytes(&self) -> usize {
        ENTRY_BYTES + self.log.len() + self.end.result.bytes.len() + self.end.result.receipt.len()
    }
}

/// Why a job was not admitted: TASK SET FULL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum AdmitError {
    /// The user has the maximum number of jobs.
    #[error("the user has {0} jobs, the maximum")]
    UserFull(usize),
    /// The device has the maximum number of jobs.
    #[error("the device has {0} queued jobs, the maximum")]
    DeviceFull(usize),
    /// The random id is in use or zero; another one is needed.
    #[error("the job id is in use")]
    IdInUse,
}

/// Effect of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelEffect {
    /// The job was queued and has ended.
    Ended,
    /// The job runs and must be stopped.
    MustStop,
    /// The job had ended before.
    NoEffect,
}

/// Numbers of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// Queued jobs.
    pub queued: usize,
    /// Running jobs.
    pub running: usize,
    /// Ended jobs that are kept.
    pub kept: usize,
    /// Ended jobs since the start, by state and exit reason.
    pub ended: BTreeMap<(JobState, ExitReason), u64>,
    /// Jobs that were not admitted.
    pub refused: u64,
}

/// The jobs of one device.
#[derive(Debug)]
pub(crate) struct JobTable {
    limits: JobLimits,
    jobs: HashMap<JobId, JobEntry>,
    queue: VecDeque<JobId>,
    running: usize,
    active: HashMap<JobUser, usize>,
    /// Ended jobs, the oldest first.
    ended: VecDeque<JobId>,
    ended_bytes: usize,
    counts: BTreeMap<(JobState, ExitReason), u64>,
    refused: u64,
}

impl JobTable {
    /// Returns a table without jobs.
    #[must_use]
    pub(crate) fn new(limits: JobLimits) -> Self {
        Self {
            limits,
            jobs: HashMap::new(),
            queue: VecDeque::new(),
            running: 0,
            active: HashMap::new(),
            ended: VecDeque::new(),
            ended_bytes: 0,
            counts: BTreeMap::new(),
            refused: 0,
        }
    }

    /// Adds a queued job; [`start_next`](Self::start_next) starts it. `id` is 16 unpredictable
    /// bytes.
    ///
    /// # Errors
    /// See [`AdmitError`].
    pub(crate) fn admit(&mut self, id: JobId, owner: JobOwner, now_ms: u64) -> Result<(), AdmitError> {
        self.expire(now_ms);
        if id == JobId::NONE || self.jobs.contains_key(&id) {
            return Err(AdmitError::IdInUse);
        }
        self.check_limits(owner)?;
        *self.active.entry(owner.user).or_default() += 1;
        self.queue.push_back(id);
        self.jobs.insert(
            id,
            JobEntry {
                owner,
                state: JobState::Queued,
                progress: (0, 0),
                log: LogRing::default(),
                end: JobEnd::without_result(ExitReason::Success),
                changed_ms: now_ms,
            },
        );
        Ok(())
    }

    /// Checks whether one more job of this owner would be admitted now; counts a refusal.
    ///
    /// # Errors
    /// See [`AdmitError`].
    pub(crate) fn check_limits(&mut self, owner: JobOwner) -> Result<(), AdmitError> {
        let active = self.active.get(&owner.user).copied().unwrap_or(0);
        if active >= self.limits.per_user {
            self.refused += 1;
            return Err(AdmitError::UserFull(active));
        }
        let waiting = self.queue.len();
        if self.running + waiting >= self.limits.running + self.limits.queued {
            self.refused += 1;
            return Err(AdmitError::DeviceFull(waiting));
        }
        Ok(())
    }

    /// Counts a job that a limit outside of this table refused.
    pub(crate) fn count_refusal(&mut self) {
        self.refused += 1;
    }

    /// Starts the job that has been queued for the longest time, if another one may run.
    pub(crate) fn start_next(&mut self, now_ms: u64) -> Option<JobId> {
        if self.running >= self.limits.running {
            return None;
        }
        let id = self.queue.pop_front()?;
        let job = self.jobs.get_mut(&id)?;
        job.state = JobState::Running;
        job.changed_ms = now_ms;
        self.running += 1;
        Some(id)
    }

    /// Appends a message to the log of a running job.
    pub(crate) fn log(&mut self, id: JobId, message: &[u8]) {
        if let Some(job) = self.running_job(id) {
            job.log.push(message);
        }
    }

    /// Sets progress and partial usage of a running job.
    pub(crate) fn report(&mut self, id: JobId, progress: (u64, u64), usage: JobUsage) {
        if let Some(job) = self.running_job(id) {
            job.progress = progress;
            job.end.usage = usage;
        }
    }

    /// Ends a queued or running job; an ended one stays as it is.
    pub(crate) fn finish(&mut self, id: JobId, end: JobEnd, now_ms: u64) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.state.is_final()) else { return };
        let state = final_state(end.exit);
        match job.state {
            JobState::Running => self.running -= 1,
            _ => self.queue.retain(|queued| *queued != id),
        }
        *self.counts.entry((state, end.exit)).or_default() += 1;
        job.state = state;
        job.end = end;
        job.changed_ms = now_ms;
        self.ended.push_back(id);
        self.ended_bytes += job.kept_bytes();
        let user = job.owner.user;
        if let Some(active) = self.active.get_mut(&user) {
            *active -= 1;
            if *active == 0 {
                self.active.remove(&user);
            }
        }
        self.expire(now_ms);
    }

    /// Adds a job of an earlier start of the device as lost.
    pub(crate) fn add_lost(&mut self, id: JobId, owner: JobOwner, now_ms: u64) {
        if id == JobId::NONE || self.jobs.contains_key(&id) {
            return;
        }
        let entry = JobEntry {
            owner,
            state: JobState::Lost,
            progress: (0, 0),
            log: LogRing::default(),
            end: JobEnd::without_result(ExitReason::Lost),
            changed_ms: now_ms,
        };
        *self.counts.entry((JobState::Lost, ExitReason::Lost)).or_default() += 1;
        self.ended.push_back(id);
        self.ended_bytes += entry.kept_bytes();
        self.jobs.insert(id, entry);
        self.expire(now_ms);
    }

    /// Returns a job of this owner; `None` for an unknown job and for those of others.
    #[must_use]
    pub(crate) fn get(&self, id: JobId, owner: JobOwner) -> Option<&JobEntry> {
        self.jobs.get(&id).filter(|job| job.owner == owner)
    }

    /// Cancels a job of this owner; `None` as for [`get`](Self::get).
    pub(crate) fn cancel(&mut self, id: JobId, owner: JobOwner, now_ms: u64) -> Option<CancelEffect> {
        let job = self.jobs.get(&id).filter(|job| job.owner == owner)?;
        Some(match job.state {
            JobState::Queued => {
                self.finish(id, JobEnd::without_result(ExitReason::Cancelled), now_ms);
                CancelEffect::Ended
            }
            JobState::Running => CancelEffect::MustStop,
            _ => CancelEffect::NoEffect,
        })
    }

    /// Removes ended jobs that are too old or too many.
    pub(crate) fn expire(&mut self, now_ms: u64) {
        while let Some(oldest) = self.ended.front() {
            let Some(job) = self.jobs.get(oldest) else {
                self.ended.pop_front();
                continue;
            };
            let is_old = now_ms.saturating_sub(job.changed_ms) >= self.limits.kept_ms;
            let is_excess = self.ended.len() > self.limits.kept || self.ended_bytes > self.limits.kept_bytes;
            if !is_old && !is_excess {
                return;
            }
            self.ended_bytes -= job.kept_bytes();
            self.jobs.remove(oldest);
            self.ended.pop_front();
        }
    }

    /// Returns the state of a job of any owner, for the service itself.
    #[must_use]
    pub(crate) fn state_of(&self, id: JobId) -> Option<JobState> {
        self.jobs.get(&id).map(JobEntry::state)
    }

    /// Returns numbers of jobs.
    #[must_use]
    pub(crate) fn counts(&self) -> JobCounts {
        JobCounts {
            queued: self.queue.len(),
            running: self.running,
            kept: self.ended.len(),
            ended: self.counts.clone(),
            refused: self.refused,
        }
    }

    fn running_job(&mut self, id: JobId) -> Option<&mut JobEntry> {
        self.jobs.get_mut(&id).filter(|job| job.state == JobState::Running)
    }
}

#[cfg(test)]
mod tests;
