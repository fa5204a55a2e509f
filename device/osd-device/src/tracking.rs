//! Commands followed by a tracking collection, and those that continue after their status was sent.
//!
//! Does: store the results of tracked commands, keep the queue of immediate commands.
//! Does not: run anything by itself; [`crate::OsdUnit::work`] is called for that.
//! Contract: one command at a time per collection. A command that is stored as active but not
//! running was interrupted by a restart, and is reported as ended with ABORTED COMMAND.
//! Truth: docs/design/t10-osd.md 1.3 (IMMED_TR), 3.5 (C+4); docs/standards/osd.md, "Collections".

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use sealstone_crypto::RustCrypto;
use sealstone_osd::{Cdb, Generation, ObjectId, ObjectType};
use sealstone_scsi::Sense;
use sealstone_scsi::lu::NexusId;
use sealstone_seal::Admitted;
use sealstone_store::StoreError;

use crate::attributes::engine::AttributeRequest;
use crate::catalog;
use crate::commands::{CommandResult, CommandRun, ListEntries, MultiPlan, StepControl, multi};
use crate::continued;
use crate::device::OsdDevice;
use crate::execute::require_object;
use crate::failure::{self, OsdFailure};
use crate::locks::LockScope;
use crate::partition_locks::PartitionUse;
use crate::report::OsdRefusal;
use crate::running::{RunningCommands, WalkProgress};
use crate::source::SourceAccess;
use crate::tracking_page::{aborted, attribute, number};

/// An immediate command whose status was sent.
pub(crate) struct ImmediateJob {
    pub(crate) cdb: Cdb,
    pub(crate) admitted: Admitted<RustCrypto>,
    /// Authority for a second collection.
    pub(crate) source_access: Option<SourceAccess>,
    pub(crate) data_out: Vec<u8>,
    pub(crate) now_ms: u64,
    pub(crate) plan: MultiPlan,
    /// Nexus and initiator for the audit record.
    pub(crate) nexus: NexusId,
    pub(crate) initiator: String,
}

impl ImmediateJob {
    /// Returns the partition claim that it needs while it runs.
    pub(crate) fn claim(&self) -> PartitionUse {
        PartitionUse::Change(self.cdb.command.object().partition)
    }

    /// Runs the command to its end.
    pub(crate) fn run(&self, device: &OsdDevice) -> Result<CommandResult, OsdRefusal> {
        let (cdb, plan) = (&self.cdb, &self.plan);
        let _place = QueueSlot(&device.running);
        let authority = || {
            if device.running.is_stopping() {
                return Err(OsdFailure::Stopping.into());
            }
            authority(device, &self.admitted, self.source_access.as_ref(), cdb)
        };
        let steps = StepControl::new(device, false, &authority);
        follow(&steps, plan.tracked, cdb.generation, |progress| {
            let parts = self.admitted.authenticate(cdb, &self.data_out)?;
            let continued = continued::read(cdb, parts.continuation(), device.config.paper_functions)?;
            let attribute_request = AttributeRequest::parse(cdb, &parts)?;
            let permit = self.admitted.permit(cdb, device)?;
            require_object(&permit)?;
            let mut run = CommandRun {
                device,
                cdb,
                now_ms: self.now_ms,
                data_out: parts.data(),
                covered: None,
                digests_wanted: None,
                data_out_whole: self.data_out.len(),
                data_in: &mut [],
                scattered: None,
                segment: &continued.segment,
                entries: ListEntries { attribute_request: &attribute_request, permit },
                signed: self.admitted.signed_by(),
                nexus: self.nexus,
                origin: None,
                claim: self.claim(),
                steps: &steps,
            };
            let done = multi::perform(&mut run, plan, progress)?;
            // As for other commands: before the end of the command is reported.
            if cdb.options.fua || attribute_request.sets_security(ObjectType::User) {
                device.flush()?;
            }
            Ok(done)
        })
    }
}

/// Place of a job in the queue, released when dropped, also by a panic.
struct QueueSlot<'a>(&'a RunningCommands);

impl Drop for QueueSlot<'_> {
    fn drop(&mut self) {
        self.0.leave_queue();
    }
}

/// Reports a command that panicked as interrupted, because it does not run any more.
struct PanicCleanup<'a> {
    running: &'a RunningCommands,
    collection: ObjectId,
}

impl Drop for PanicCleanup<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.running.remove(self.collection);
        }
    }
}

/// Checks whether an admitted command may continue: its key may have been replaced, or the tag of
/// an object changed.
pub(crate) fn authority(
    device: &OsdDevice,
    admitted: &Admitted<RustCrypto>,
    source_access: Option<&SourceAccess>,
    cdb: &Cdb,
) -> Result<(), OsdRefusal> {
    if !device.guard.still_signed(admitted.signed_by()) {
        return Err(OsdFailure::KeysChanged.into());
    }
    admitted.check_unfrozen(device)?;
    require_object(&admitted.permit(cdb, device)?)?;
    source_access.map_or(Ok(()), |source_access| source_access.check(device))
}

/// Immediate commands that wait.
#[derive(Default)]
pub(crate) struct JobQueue {
    jobs: Mutex<VecDeque<ImmediateJob>>,
    /// Whether a job was queued since the last wait.
    fresh: AtomicBool,
    /// Wakes the thread that waits for a job.
    pushed: Condvar,
}

impl JobQueue {
    /// Appends a job.
    pub(crate) fn push(&self, job: ImmediateJob) {
        let mut jobs = self.jobs.lock();
        jobs.push_back(job);
        self.fresh.store(true, Ordering::Relaxed);
        self.pushed.notify_one();
    }

    /// Takes the first job for which `may` returns a value. The others keep their order.
    pub(crate) fn take<T>(
        &self,
        mut may: impl FnMut(&ImmediateJob) -> Option<T>,
    ) -> Option<(ImmediateJob, T)> {
        let mut jobs = self.jobs.lock();
        let (at, right) = jobs.iter().enumerate().find_map(|(at, job)| Some((at, may(job)?)))?;
        Some((jobs.remove(at)?, right))
    }

    /// Waits until a job is queued, the device shuts down, or the time is over.
    pub(crate) fn wait(&self, running: &RunningCommands, at_most: Duration) {
        let mut jobs = self.jobs.lock();
        // Does not sleep if a job was queued since the last call.
        if !running.is_stopping() && !self.fresh.swap(false, Ordering::Relaxed) {
            self.pushed.wait_for(&mut jobs, at_most);
        }
    }

    /// Wakes the thread that waits for a job, after a change of the device's state.
    pub(crate) fn wake(&self) {
        // A thread that has read the old state waits by now.
        drop(self.jobs.lock());
        self.pushed.notify_all();
    }
}

/// Starts a tracked command.
pub(crate) fn begin(
    steps: &StepControl<'_>,
    collection: ObjectId,
    action: u16,
    total: u64,
) -> Result<(), OsdFailure> {
    let device = steps.device;
    let _guards = steps.acquire(LockScope::Change(collection));
    if !device.running.add(collection, action, total) {
        return Err(OsdFailure::Field(failure::OBJECT));
    }
    let scope = device.store.begin();
    let cleared = [number::ENDED, number::SENSE, number::PROCESSED, number::NEWER, number::MISSING]
        .map(|n| (n, Vec::new()));
    let stored = store(
        device,
        collection,
        cleared.into_iter().chain([(number::ACTIVE, action.to_be_bytes().to_vec())]),
    );
    let stored = stored.and_then(|()| Ok(scope.end()?));
    if stored.is_err() {
        device.running.remove(collection);
    }
    stored
}

/// Stores the end of a tracked command.
fn end(
    steps: &StepControl<'_>,
    collection: ObjectId,
    progress: WalkProgress,
    sense: Option<&Sense>,
) -> Result<(), OsdFailure> {
    let device = steps.device;
    let _guards = steps.acquire(LockScope::Change(collection));
    let Some(running) = device.running.remove(collection) else { return Ok(()) };
    let scope = device.store.begin();
    store(
        device,
        collection,
        [
            (number::ACTIVE, Vec::new()),
            (number::ENDED, running.action.to_be_bytes().to_vec()),
            (number::SENSE, sense.map(Sense::encode).unwrap_or_default()),
            (number::PROCESSED, progress.processed.to_be_bytes().to_vec()),
            // A reused id is not a member, so there is never a newer one.
            (number::NEWER, 0_u64.to_be_bytes().to_vec()),
            (number::MISSING, progress.missing.to_be_bytes().to_vec()),
        ],
    )?;
    Ok(scope.end()?)
}

fn store(
    device: &OsdDevice,
    collection: ObjectId,
    values: impl IntoIterator<Item = (u32, Vec<u8>)>,
) -> Result<(), OsdFailure> {
    for (number, value) in values {
        catalog::set(&*device.store, collection, attribute(number), &value)?;
    }
    Ok(())
}

/// Abandons a command after its first part.
pub(crate) fn abandon(steps: &StepControl<'_>, plan: &MultiPlan, sense: Option<&Sense>) {
    steps.device.running.leave_queue();
    if let Some(collection) = plan.tracked
        && let Err(error) = end(steps, collection, WalkProgress::default(), sense)
    {
        tracing::warn!(%error, %collection, "cannot store the end of a tracked command");
    }
}

/// Runs the remaining work of a command, and stores its result in its tracking collection.
pub(crate) fn follow(
    steps: &StepControl<'_>,
    collection: Option<ObjectId>,
    generation: Generation,
    work: impl FnOnce(&Cell<WalkProgress>) -> Result<CommandResult, OsdRefusal>,
) -> Result<CommandResult, OsdRefusal> {
    let progress = Cell::new(WalkProgress::default());
    steps.track(collection);
    let running = &steps.device.running;
    let unwound = collection.map(|collection| PanicCleanup { running, collection });
    let result = work(&progress);
    drop(unwound);
    if let Some(collection) = collection {
        // A temporary condition has no sense data. The command is not retried here, so it counts as
        // aborted.
        let sense = |refusal: &OsdRefusal| refusal.sense(generation).unwrap_or_else(aborted);
        let sense = result.as_ref().err().map(sense);
        match end(steps, collection, progress.get(), sense.as_ref()) {
            // The collection was removed meanwhile, with its partition.
            Ok(()) | Err(OsdFailure::Store(StoreError::NotFound(_))) => {}
            Err(failure) if result.is_ok() => return Err(failure.into()),
            Err(_) => {}
        }
    }
    result
}
