//! Moves objects to other devices, one at a time, for a drain or a rebalance, and files with
//! outgrown layouts to new objects.
//!
//! Contract: nothing is read before the old device has confirmed that it rejects all credentials to
//! write. An interrupted move starts again with another target object, so a late command has no
//! effect. A copy is complete when all of it is durable within one boot epoch of its device. Of
//! several servers on one store only the leader moves objects.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use sealstone_mds::{DeviceAddress, DrainPass, Mds, MoveOrder, MoveStart, ServerPurpose};
use sealstone_mds_protocol::{DeviceId, Drain, ObjectRef};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::Housekeeper;
use crate::devices::{CopyResult, CopyStep, DeviceError};

mod balancer;
mod relayout;

use relayout::RelayoutState;

/// Interval of looking for devices to drain and for remaining objects.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum pause between two passes that found files in use.
const REST_MAX: Duration = Duration::from_secs(10);
/// Number of failed moves, other than of objects in use, after which a pass only counts.
const PROBLEMS_MAX: usize = 16;
/// Maximum bytes of one command.
const CHUNK: usize = 1 << 20;
/// Interval of checking whether a device has confirmed the fence.
const FENCE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Reason why an object is not moved now.
enum MoveError {
    /// A client uses it, or opened it meanwhile.
    InUse,
    /// A failure that concerns other objects too.
    Problem(String),
}

impl From<DeviceError> for MoveError {
    fn from(error: DeviceError) -> Self {
        Self::Problem(error.to_string())
    }
}

/// A moved object.
struct MovedObject {
    order: MoveOrder,
    /// Bytes that it takes on its device.
    bytes: u64,
}

/// Size of a copied object.
#[derive(Clone, Copy, Default)]
struct CopiedSize {
    /// Length in bytes, holes included.
    length: u64,
    /// Bytes read.
    stored: u64,
}

/// Extents of an object that have data, read page by page, so that holes cost nothing.
struct ExtentList {
    object: ObjectRef,
    data: VecDeque<Range<u64>>,
    /// Offset up to which extents were listed; the object's length once all were.
    known: u64,
    ended: bool,
}

impl ExtentList {
    const fn new(object: ObjectRef) -> Self {
        Self { object, data: VecDeque::new(), known: 0, ended: false }
    }
}

/// Rate limit in bytes per second; 0 is no limit.
struct RateLimit {
    rate: u64,
    next: Instant,
}

impl RateLimit {
    /// Waits until this many bytes may be sent.
    async fn take(&mut self, bytes: usize) {
        if self.rate > 0 {
            sleep_until(self.next).await;
            // Unused time is not credited.
            let begin = self.next.max(Instant::now());
            self.next = begin + Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        }
    }
}

impl Housekeeper {
    /// Moves objects until `stop` is set. Runs beside [`Housekeeper::run`].
    pub async fn run_mover(self, mut stop: watch::Receiver<bool>) {
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut relayout = RelayoutState::default();
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                _ = ticks.tick() => {}
            }
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                () = async {
                    let rest = self.drain().await;
                    self.rebalance().await;
                    self.relayout_outgrown(&mut relayout).await;
                    sleep(rest).await;
                } => {}
            }
        }
    }

    /// Runs one pass over all devices that are being drained. Returns the pause before the next.
    pub async fn drain(&self) -> Duration {
        let begun = Instant::now();
        // A pass reads all files: pause, so that files in use are not checked continuously.
        if self.drain_all().await { (begun.elapsed() * 4).min(REST_MAX) } else { Duration::ZERO }
    }

    /// Runs the pass. Returns whether objects are left.
    async fn drain_all(&self) -> bool {
        if !self.is_leader() {
            return false;
        }
        // Moves in the store were started by an earlier leader: this one has none in flight.
        if let Err(error) = self.blocking(|mds| mds.abandon_moves(self.environment.now_ms())) {
            tracing::error!(%error, "interrupted moves could not be cancelled");
            return true;
        }
        let draining = match self.blocking(Mds::draining) {
            Ok(draining) => draining,
            Err(error) => {
                tracing::error!(%error, "devices to drain could not be read");
                return true;
            }
        };
        let mut left = false;
        for (device, drain) in draining {
            let Some(pass) = self.pass(device, &drain).await else { return true };
            let now_ms = self.environment.now_ms();
            left |= pass.objects > 0;
            if pass.removing > 0 {
                self.wake();
            } else if pass.objects == 0 {
                tracing::info!(device = device.0, "device drained");
            } else if !pass.problem.is_empty() {
                tracing::warn!(device = device.0, problem = %pass.problem, "drain incomplete; retrying");
            }
            if let Err(error) = self.blocking(|mds| mds.drain_passed(device, drain.began_ms, &pass, now_ms)) {
                tracing::error!(%error, "drain progress could not be stored");
            }
        }
        left
    }

    /// Reads all files and moves those that can be moved. Returns `None` if it ended early.
    async fn pass(&self, device: DeviceId, drain: &Drain) -> Option<DrainPass> {
        let mut pace = RateLimit { rate: drain.rate, next: Instant::now() };
        let mut pass = DrainPass::default();
        if drain.moved_objects == 0 && drain.left_objects == 0 {
            // Progress is reported relative to this count.
            self.count(device, drain.began_ms).await?;
        }
        // Creates first: one that is committed meanwhile is found as a file afterwards.
        let creates = self.log_error(self.blocking(|mds| mds.creates_on(device)))?;
        pass.objects += creates;
        pass.in_use += creates;
        let (mut after, mut problems) = (None, 0);
        loop {
            let page = self.log_error(self.blocking(|mds| mds.next_moves(device, after)))?;
            for item in page.items {
                if !self.is_leader() {
                    return None;
                }
                // The drain may have been changed or cancelled meanwhile.
                let draining = self.log_error(self.blocking(Mds::draining))?;
                let now = draining.into_iter().find(|(id, _)| *id == device)?.1;
                pace.rate = now.rate;
                if problems >= PROBLEMS_MAX {
                    // Further moves would probably fail for the same reason.
                    pass.objects += 1;
                    pass.bytes += item.bytes;
                    continue;
                }
                let begin = |mds: &Mds, now_ms| mds.begin_move(item.inode, device, now_ms);
                match self.move_object(begin, &mut pace).await {
                    Ok(_) => {}
                    Err(MoveError::InUse) => {
                        pass.objects += 1;
                        pass.bytes += item.bytes;
                        pass.in_use += 1;
                    }
                    Err(MoveError::Problem(problem)) => {
                        pass.objects += 1;
                        pass.bytes += item.bytes;
                        problems += 1;
                        if pass.problem.is_empty() {
                            pass.problem = problem;
                        }
                    }
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
            tokio::task::yield_now().await;
        }
        pass.removing =
            self.log_error(self.blocking(|mds| mds.removals_on(device, self.environment.now_ms())))?;
        Some(pass)
    }

    /// Counts all objects before the first move.
    async fn count(&self, device: DeviceId, began_ms: u64) -> Option<()> {
        let (mut all, mut after) = (DrainPass::default(), None);
        loop {
            let page = self.log_error(self.blocking(|mds| mds.next_moves(device, after)))?;
            all.objects += page.items.len() as u64;
            all.bytes += page.items.iter().map(|item| item.bytes).sum::<u64>();
            after = page.next;
            if after.is_none() {
                break;
            }
            tokio::task::yield_now().await;
        }
        if all.objects > 0 {
            let now_ms = self.environment.now_ms();
            self.log_error(self.blocking(|mds| mds.drain_passed(device, began_ms, &all, now_ms)))?;
        }
        Some(())
    }

    fn log_error<T>(&self, answer: sealstone_mds::Result<T>) -> Option<T> {
        answer.inspect_err(|error| tracing::error!(%error, "files to move could not be read")).ok()
    }

    /// Moves one object, if `begin` finds one to be moved.
    async fn move_object(
        &self,
        begin: impl FnOnce(&Mds, u64) -> sealstone_mds::Result<MoveStart>,
        pace: &mut RateLimit,
    ) -> Result<Option<MovedObject>, MoveError> {
        let problem = |error: sealstone_mds::MdsError| MoveError::Problem(error.to_string());
        let now_ms = self.environment.now_ms();
        let order = match self.blocking(|mds| begin(mds, now_ms)).map_err(problem)? {
            MoveStart::Started(order) => order,
            MoveStart::InUse => return Err(MoveError::InUse),
            MoveStart::NothingToMove => return Ok(None),
        };
        self.wake_revoker();
        let copied = self.copy(&order, pace).await;
        let now_ms = self.environment.now_ms();
        match copied {
            Ok(CopiedSize { length, stored }) => {
                let finished =
                    self.blocking(|mds| mds.finish_move(&order, length, now_ms)).map_err(problem)?;
                if !finished {
                    return Err(MoveError::InUse);
                }
                // The old object is queued for removal as well. Removing it now lets revoked
                // clients find nothing under an older credential.
                if !order.stays
                    && let Err(error) = self.remove(order.from).await
                {
                    tracing::debug!(object = %order.from.object, %error, "moved object not removed from its old device; retrying later");
                }
                Ok(Some(MovedObject { order, bytes: stored }))
            }
            Err(error) => {
                self.blocking(|mds| mds.abandon_move(&order, now_ms)).map_err(problem)?;
                Err(error)
            }
        }
    }

    /// Copies an object durably. Reads only extents that have data, whatever its length.
    async fn copy(&self, order: &MoveOrder, pace: &mut RateLimit) -> Result<CopiedSize, MoveError> {
        let begun = Instant::now();
        let fenced = |mds: &Mds| mds.is_fenced(order).map_err(|error| MoveError::Problem(error.to_string()));
        while !self.blocking(fenced)? {
            if begun.elapsed() > self.limits.device_timeout {
                return Err(MoveError::Problem(
                    "the device did not confirm new policy access tags in time".to_owned(),
                ));
            }
            sleep(FENCE_POLL_INTERVAL).await;
        }
        let mut extents = ExtentList::new(order.from);
        // Nothing was written to the object: the first write creates it on the new device.
        if !self.list_extents(&mut extents, order.filled).await? {
            return Ok(CopiedSize::default());
        }
        let purpose = ServerPurpose::CopyTo(order.to.object);
        // The epoch is read before the first write, so that a restart during the copy is detected.
        self.step(order.to, CopyStep::Create, purpose).await?;
        let boot_epoch = Some(self.step(order.to, CopyStep::BootEpoch, purpose).await?);
        // End of the written bytes: chunks of zeros become holes of the copy.
        let (mut written, mut stored) = (0u64, 0u64);
        while let Some(chunk) = self.next_chunk(&mut extents).await? {
            let data = self.read_chunk(order.from, &chunk).await?;
            pace.take(data.len()).await;
            stored += data.len() as u64;
            if data.iter().any(|byte| *byte != 0) {
                let data = Bytes::from(data);
                self.step(order.to, CopyStep::Write { offset: chunk.start, data }, purpose).await?;
                written = chunk.end;
            }
        }
        // A copy without it could not be run. The device checks it when the function is run.
        let described = ServerPurpose::MeasureObject(order.from.object);
        if let CopyResult::Description(description) =
            self.step(order.from, CopyStep::ReadDescription, described).await?
            && !description.is_empty()
        {
            let describing = ServerPurpose::DescribeObject(order.to.object);
            self.step(order.to, CopyStep::Describe(description), describing).await?;
        }
        let length = extents.known;
        if written < length {
            // Extends the copy to the length of the original.
            let last = CopyStep::Write { offset: length - 1, data: Bytes::from_static(&[0]) };
            self.step(order.to, last, purpose).await?;
        }
        self.step(order.to, CopyStep::Flush, purpose).await?;
        if Some(self.step(order.to, CopyStep::BootEpoch, purpose).await?) != boot_epoch {
            return Err(MoveError::Problem("a device restarted during the copy".to_owned()));
        }
        Ok(CopiedSize { length, stored })
    }

    /// Reads the next page of an object's extents; returns `false` if the object was never created.
    /// `filled`: the file has data in it.
    async fn list_extents(&self, extents: &mut ExtentList, filled: bool) -> Result<bool, MoveError> {
        let at = extents.object;
        let map = CopyStep::Map { offset: extents.known };
        match self.step(at, map, ServerPurpose::CopyFrom(at.object)).await? {
            CopyResult::Extents { data, next } => {
                extents.data.extend(data);
                extents.ended = next.is_none();
                extents.known = next.unwrap_or(extents.known);
                Ok(true)
            }
            CopyResult::Missing if extents.known == 0 && !filled => Ok(false),
            _ => Err(MoveError::Problem("an object with file data is missing".to_owned())),
        }
    }

    /// Returns the next bytes with data, at most one command; `None` at the object's end.
    async fn next_chunk(&self, extents: &mut ExtentList) -> Result<Option<Range<u64>>, MoveError> {
        while extents.data.is_empty() && !extents.ended {
            self.list_extents(extents, true).await?;
        }
        let Some(first) = extents.data.front_mut() else { return Ok(None) };
        let chunk = first.start..first.end.min(first.start.saturating_add(CHUNK as u64));
        first.start = chunk.end;
        if first.is_empty() {
            extents.data.pop_front();
        }
        Ok(Some(chunk))
    }

    async fn read_chunk(&self, at: ObjectRef, chunk: &Range<u64>) -> Result<Vec<u8>, MoveError> {
        let length = usize::try_from(chunk.end - chunk.start).unwrap_or(CHUNK);
        let read = CopyStep::Read { offset: chunk.start, length };
        match self.step(at, read, ServerPurpose::CopyFrom(at.object)).await? {
            CopyResult::Data(data) if data.len() == length => Ok(data),
            CopyResult::Data(_) => {
                Err(MoveError::Problem("an object is shorter than its extents".to_owned()))
            }
            _ => Err(MoveError::Problem("an object with file data is missing".to_owned())),
        }
    }

    async fn step(
        &self,
        at: ObjectRef,
        step: CopyStep,
        purpose: ServerPurpose,
    ) -> Result<CopyResult, DeviceError> {
        let device = self.address(at.device)?;
        let credential = self.credential(at.device, purpose)?;
        self.in_time(self.devices.copy(&device, at.object, step, credential)).await
    }

    async fn remove(&self, at: ObjectRef) -> Result<(), DeviceError> {
        let device = self.address(at.device)?;
        let credential = self.credential(at.device, ServerPurpose::RemoveObject(at.object))?;
        self.in_time(self.devices.remove(&device, at.object, credential)).await
    }

    fn address(&self, id: DeviceId) -> Result<DeviceAddress, DeviceError> {
        let mut known = self.mds.devices().into_iter().map(|(device, _)| device);
        known.find(|device| device.id == id).ok_or_else(|| DeviceError::Refused("no such device".to_owned()))
    }
}
