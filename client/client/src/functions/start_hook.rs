//! The moment before an asynchronous job starts, at which its caller records it.

use std::sync::Arc;

use sealstone_mds_protocol::IntentId;
use sealstone_osd::function::JobId;

use super::{CallPart, JobHandle};

/// An asynchronous job that is about to start.
#[derive(Clone, Debug)]
pub struct StartingJob {
    /// The job, with an id that the client chose.
    pub handle: JobHandle,
    /// The objects of the job, in the order of its handles.
    pub parts: Vec<CallPart>,
    /// Reservation of the object for a long result.
    pub reserved: Option<IntentId>,
}

/// Records an asynchronous job before it starts.
#[derive(Clone)]
pub struct JobStartHook {
    pub(super) record: Arc<RecordStart>,
    pub(super) forget: Arc<ForgetStart>,
}

type RecordStart = dyn Fn(&StartingJob) -> Result<(), String> + Send + Sync;
type ForgetStart = dyn Fn(JobId) + Send + Sync;

impl JobStartHook {
    /// Returns a hook that calls `record` before a job starts, whose error keeps it from starting,
    /// and `forget` for a job that was certainly not started.
    pub fn new(
        record: impl Fn(&StartingJob) -> Result<(), String> + Send + Sync + 'static,
        forget: impl Fn(JobId) + Send + Sync + 'static,
    ) -> Self {
        Self { record: Arc::new(record), forget: Arc::new(forget) }
    }
}

impl core::fmt::Debug for JobStartHook {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("JobStartHook")
    }
}
