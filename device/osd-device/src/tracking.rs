//! Commands followed by a tracking collection, and those that continue after their status was sent.
//!
//! Does: track running commands, store their results, hold the queue of immediate commands.
//! Does not: run anything by itself; [`crate::OsdUnit::work`] is called for that.
//! Contract: one command at a time per collection. A command that is stored as active but not
//! running was interrupted by a restart, and is reported as ended with ABORTED COMMAND.
//! Truth: docs/design/t10-osd.md 1.3 (IMMED_TR), 3.5 (C+4); docs/standards/osd.md, "Collections".

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use sealstone_crypto::RustCrypto;
use sealstone_osd::{AttributeId, Cdb, Generation, ObjectId, ObjectType};
use sealstone_scsi::lu::NexusId;
use sealstone_scsi::{Sense, SenseKey, additional};
use sealstone_seal::Admitted;
use sealstone_store::StoreError;

use crate::attributes::engine::AttributeRequest;
use crate::attributes::rows::{COLLECTION, page};
use crate::catalog;
use crate::commands::{CommandResult, CommandRun, ListEntries, MultiPlan, StepControl, WalkProgress, multi};
use crate::continued;
use crate::device::OsdDevice;
use crate::execute::require_object;
use crate::failure::{self, OsdFailure};
use crate::locks::LockScope;
use crate::partition_locks::PartitionUse;
use crate::report::OsdRefusal;
use crate::source::SourceAccess;

/// Immediate commands that wait or run. Beyond that the initiator gets BUSY.
pub(crate) const QUEUE_MAX: usize = 16;

/// Attribute numbers of the Command Tracking page.
pub(crate) mod number {
    pub(crate) const PERCENT: u32 = 0x1;
    pub(crate) const ACTIVE: u32 = 0x2;
    pub(crate) const ENDED: u32 = 0x3;
    pub(crate) const SENSE: u32 = 0x4;
    pub(crate) const PROCESSED: u32 = 0x11;
    pub(crate) const NEWER: u32 = 0x12;
    pub(crate) const MISSING: u32 = 0x13;
}

const fn attribute(number: u32) -> AttributeId {
    AttributeId::new(COLLECTION + page::TRACKING, number)
}

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
        let _place = QueueSlot(&device.tracking);
        let authority = || {
            if device.tracking.is_stopping() {
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
struct QueueSlot<'a>(&'a Tracking);

impl Drop for QueueSlot<'_> {
    fn drop(&mut self) {
        self.0.leave_queue();
    }
}

/// Reports a command that panicked as interrupted, because it does not run any more.
struct PanicCleanup<'a> {
    tracking: &'a Tracking,
    collection: ObjectId,
}

impl Drop for PanicCleanup<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tracking.running.lock().remove(&self.collection);
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

/// A running command.
#[derive(Clone, Copy, Debug)]
struct RunningCommand {
    action: u16,
    total: u64,
    progress: WalkProgress,
}

/// Command tracking of a device.
#[derive(Default)]
pub(crate) struct Tracking {
    running: Mutex<BTreeMap<ObjectId, RunningCommand>>,
    queue: Mutex<VecDeque<ImmediateJob>>,
    /// Immediate commands that have not ended.
    immediate: Mutex<usize>,
    /// Immediate commands that have ended since the start, with any result.
    ended: AtomicU64,
    /// Whether a job was queued since the last wait.
    fresh: AtomicBool,
    /// Wakes the thread that waits for a job.
    pushed: Condvar,
    /// Whether the device is shutting down.
    stopping: AtomicBool,
}

impl Tracking {
    /// Whether a running command is tracked by this collection.
    pub(crate) fn is_active(&self, collection: ObjectId) -> bool {
        self.running.lock().contains_key(&collection)
    }

    /// Takes a place in the queue, which [`Tracking::leave_queue`] releases.
    pub(crate) fn enter_queue(&self) -> Result<(), OsdFailure> {
        let mut immediate = self.immediate.lock();
        if *immediate >= QUEUE_MAX {
            return Err(OsdFailure::NoBuffer);
        }
        *immediate += 1;
        Ok(())
    }

    pub(crate) fn leave_queue(&self) {
        let mut immediate = self.immediate.lock();
        *immediate = immediate.saturating_sub(1);
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many immediate commands have not ended, and how many have.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (*self.immediate.lock() as u64, self.ended.load(Ordering::Relaxed))
    }

    pub(crate) fn push(&self, job: ImmediateJob) {
        let mut queue = self.queue.lock();
        queue.push_back(job);
        self.fresh.store(true, Ordering::Relaxed);
        self.pushed.notify_one();
    }

    /// Takes the first job for which `may` returns a value. The others keep their order.
    pub(crate) fn take<T>(
        &self,
        mut may: impl FnMut(&ImmediateJob) -> Option<T>,
    ) -> Option<(ImmediateJob, T)> {
        let mut queue = self.queue.lock();
        let (at, right) = queue.iter().enumerate().find_map(|(at, job)| Some((at, may(job)?)))?;
        Some((queue.remove(at)?, right))
    }

    /// Waits until a job is queued, the device shuts down, or the time is over.
    pub(crate) fn wait(&self, at_most: Duration) {
        let mut queue = self.queue.lock();
        // Does not sleep if a job was queued since the last call.
        if !self.is_stopping() && !self.fresh.swap(false, Ordering::Relaxed) {
            self.pushed.wait_for(&mut queue, at_most);
        }
    }

    /// Shuts down: no job takes another step.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        drop(self.queue.lock());
        self.pushed.notify_all();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Updates the progress of a command.
    pub(crate) fn note(&self, collection: ObjectId, progress: WalkProgress) {
        if let Some(running) = self.running.lock().get_mut(&collection) {
            running.progress = progress;
        }
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
    {
        let mut running = device.tracking.running.lock();
        if running.contains_key(&collection) {
            return Err(OsdFailure::Field(failure::OBJECT));
        }
        running.insert(collection, RunningCommand { action, total, progress: WalkProgress::default() });
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
        device.tracking.running.lock().remove(&collection);
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
    let Some(running) = device.tracking.running.lock().remove(&collection) else { return Ok(()) };
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

/// Returns one attribute of the Command Tracking page; `None` if it is undefined.
pub(crate) fn value(
    device: &OsdDevice,
    collection: ObjectId,
    wanted: u32,
) -> Result<Option<Vec<u8>>, OsdFailure> {
    let stored = |number: u32| catalog::get(&*device.store, collection, attribute(number));
    let running = device.tracking.running.lock().get(&collection).copied();
    let cut_off = || -> Result<Option<Vec<u8>>, OsdFailure> { Ok(stored(number::ACTIVE)?) };
    if let Some(RunningCommand { action, total, progress }) = running {
        let done = progress.processed.saturating_add(progress.missing);
        return Ok(match wanted {
            number::PERCENT => Some(vec![percent(done, total)]),
            number::ACTIVE => Some(action.to_be_bytes().to_vec()),
            number::ENDED => Some(vec![0; 2]),
            number::PROCESSED => Some(progress.processed.to_be_bytes().to_vec()),
            number::NEWER => Some(vec![0; 8]),
            number::MISSING => Some(progress.missing.to_be_bytes().to_vec()),
            _ => None,
        });
    }
    match wanted {
        number::PERCENT => Ok(Some(vec![100])),
        number::ACTIVE => Ok(Some(vec![0; 2])),
        number::ENDED => Ok(cut_off()?.or(stored(number::ENDED)?).or(Some(vec![0; 2]))),
        number::SENSE if cut_off()?.is_some() => Ok(Some(aborted().encode())),
        number::SENSE | number::PROCESSED | number::NEWER | number::MISSING => Ok(stored(wanted)?),
        _ => Ok(None),
    }
}

fn aborted() -> Sense {
    Sense::new(SenseKey::AbortedCommand, additional::NO_ADDITIONAL_SENSE)
}

/// Returns the percentage, which is below 100 while the command runs.
fn percent(done: u64, total: u64) -> u8 {
    let hundredths = u128::from(done) * 100 / u128::from(total.max(1));
    u8::try_from(hundredths).unwrap_or(u8::MAX).min(99)
}

/// Abandons a command after its first part.
pub(crate) fn abandon(steps: &StepControl<'_>, plan: &MultiPlan, sense: Option<&Sense>) {
    steps.device.tracking.leave_queue();
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
    let tracking = &steps.device.tracking;
    let unwound = collection.map(|collection| PanicCleanup { tracking, collection });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_under_way_is_never_complete() {
        assert_eq!(percent(0, 0), 0);
        assert_eq!(percent(1, 2), 50);
        assert_eq!(percent(7, 7), 99);
        assert_eq!(percent(u64::MAX, 1), 99);
    }
}
