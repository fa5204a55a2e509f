//! Limits of runs and of the service, with their defaults; the daemon sets them from its
//! configuration.

use std::time::Duration;

use sealstone_osd::function::WAIT_MAX_MS;
use sealstone_sandbox::MEMORY_BYTES_MIN;
use thiserror::Error;

use crate::job_table::JobLimits;

/// Time that a cancelled function has to return before its engine is killed.
pub(crate) const CANCEL_GRACE: Duration = Duration::from_millis(10);
/// Maximum bytes of an object whose digest a receipt has without a request. Hashing takes 2 us.
pub(crate) const UNREQUESTED_DIGEST_BYTES_MAX: u64 = 8 << 10;
/// Default maximum wall time of a run, in seconds.
const WALL_S: u64 = 30;
/// Default maximum CPU time of a run, in seconds.
const CPU_S: u64 = 10;
/// Default maximum memory of an engine, in bytes.
const MEMORY_BYTES: u64 = 256 << 20;
/// Default maximum bytes of a result, and of staged output.
const OUTPUT_BYTES: u64 = 16 << 20;
/// Default maximum number of calls of a run to the device.
const CALLS: u64 = 1_000_000;
/// Default maximum bytes that a run reads and writes.
const TRANSFER_BYTES: u64 = 10 << 30;
/// Default number of idle engines that are kept for reuse.
const WARM_ENGINES: usize = 8;
/// Default time for which an idle engine is kept.
const WARM_TIME: Duration = Duration::from_secs(60);
/// Default time after which an idle engine is stopped. Calls in quick succession do not pay for it.
const PAUSE_AFTER: Duration = Duration::from_millis(20);
/// Highest limit of output: a result is in the memory of the device until its run ends.
const OUTPUT_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of commands that wait for the end of a job, each on a thread of the device: half
/// of its threads for long commands.
pub(crate) const COMMAND_THREADS_MAX: usize = 16;
/// Maximum number of such commands of one user.
pub(crate) const COMMAND_THREADS_PER_USER_MAX: usize = COMMAND_THREADS_MAX / 2;
/// Maximum bytes of code of all calls that wait for an engine, queued or not. A copy of the code
/// has at most 64 MiB.
pub(crate) const CODE_BYTES_MAX: u64 = 256 << 20;
/// Maximum bytes of such code of one user.
pub(crate) const CODE_BYTES_PER_USER_MAX: u64 = CODE_BYTES_MAX / 2;
/// CPU time after which an engine is not used again: the limit of its process is higher than that
/// of one run by this much.
pub(crate) const REUSE_CPU_S: u64 = 5;

/// Limits of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// Wall time.
    pub wall: Duration,
    /// CPU time in seconds.
    pub cpu_s: u64,
    /// Memory of the engine in bytes.
    pub memory: u64,
    /// Bytes of the result, and of output that is staged until success.
    pub output: u64,
    /// Calls to the device.
    pub calls: u64,
    /// Bytes read from and written to objects.
    pub bytes: u64,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            wall: Duration::from_secs(WALL_S),
            cpu_s: CPU_S,
            memory: MEMORY_BYTES,
            output: OUTPUT_BYTES,
            calls: CALLS,
            bytes: TRANSFER_BYTES,
        }
    }
}

/// Why limits cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LimitError {
    /// An engine does not start with so little memory.
    #[error("functions get {0} bytes of memory; engines need at least {MEMORY_BYTES_MIN}")]
    Memory(u64),
    /// Results of this size do not fit into the memory of a device.
    #[error("functions may return {0} bytes; the highest limit is {OUTPUT_BYTES_MAX}")]
    Output(u64),
}

/// Limits of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceLimits {
    /// Limits of each run.
    pub run: RunLimits,
    /// Limits of jobs.
    pub jobs: JobLimits,
    /// Idle engines that are kept for reuse.
    pub warm_engines: usize,
    /// Time for which an idle engine is kept.
    pub warm_time: Duration,
    /// Time after which the threads of an idle engine are stopped, until its next call.
    pub pause_after: Duration,
    /// Longest wait of one command for the end of a job.
    pub wait: Duration,
}

impl ServiceLimits {
    /// Checks the limits that engines and the memory of the device impose.
    ///
    /// # Errors
    /// [`LimitError`].
    pub const fn check(&self) -> Result<(), LimitError> {
        if self.run.memory < MEMORY_BYTES_MIN {
            return Err(LimitError::Memory(self.run.memory));
        }
        if self.run.output > OUTPUT_BYTES_MAX {
            return Err(LimitError::Output(self.run.output));
        }
        Ok(())
    }

    /// Returns the default limits of a machine with this many processors.
    #[must_use]
    pub fn for_cores(cores: usize) -> Self {
        Self {
            run: RunLimits::default(),
            jobs: JobLimits::for_cores(cores),
            warm_engines: WARM_ENGINES,
            warm_time: WARM_TIME,
            pause_after: PAUSE_AFTER,
            wait: Duration::from_millis(WAIT_MAX_MS as u64),
        }
    }
}
