//! Objects that go to another device, one after the other: since theirs is being drained, or fuller than the others; and
//! files that go to other objects, since they have outgrown theirs.
//!
//! Contract: nothing is read before the old device has answered that it refuses all who could write. Whatever is interrupted
//! here is begun anew, with another object in the new place: a command of before that comes late changes nothing that
//! counts. A copy counts when it is durable in one life of its device. Of several servers on one store the leader alone does
//! it.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use sealstone_mds::{DeviceAddress, DrainPass, Mds, MoveOrder, MoveStart, ServerPurpose};
use sealstone_mds_protocol::{DeviceId, Drain, ObjectRef};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::Housekeeper;
use crate::devices::{Copied, CopyStep, DeviceError};

mod balancer;
mod carrier;

use carrier::Carrier;

/// Between two looks whether a device is to be drained, or what is left can be moved.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest rest between two passes that found files in use.
const REST_MAX: Duration = Duration::from_secs(10);
/// Objects that could not be moved for other reasons than that somebody has them, until a pass only counts the others.
const PROBLEMS_MAX: usize = 16;
/// Bytes of one command.
const CHUNK: usize = 1 << 20;
/// Between two looks whether a device has answered that nobody writes any more.
const FENCE_LOOK_EVERY: Duration = Duration::from_millis(5);

/// Why an object stays where it is for now.
enum Stays {
    /// Somebody has it, or got it meanwhile.
    InUse,
    /// Something went wrong, which also holds for others.
    Problem(String),
}

impl From<DeviceError> for Stays {
    fn from(error: DeviceError) -> Self {
        Self::Problem(error.to_string())
    }
}

/// An object that moved.
struct Carried {
    order: MoveOrder,
    /// Bytes that it takes on its device.
    bytes: u64,
}

/// Bytes of an object that was copied.
#[derive(Clone, Copy, Default)]
struct Copy {
    /// Holes among them.
    length: u64,
    /// Those that were read.
    stored: u64,
}

/// The extents of an object that have data, read page by page: a byte far behind the others costs nothing.
struct Extents {
    object: ObjectRef,
    data: VecDeque<Range<u64>>,
    /// Up to where they were listed; the object's length when all were.
    known: u64,
    ended: bool,
}

impl Extents {
    const fn new(object: ObjectRef) -> Self {
        Self { object, data: VecDeque::new(), known: 0, ended: false }
    }
}

/// Not more than so many bytes a second.
struct Pace {
    rate: u64,
    next: Instant,
}

impl Pace {
    /// Waits until so many bytes may go.
    async fn take(&mut self, bytes: usize) {
        if self.rate > 0 {
            sleep_until(self.next).await;
            // What was not used before is not made up for.
            let begin = self.next.max(Instant::now());
            self.next = begin + Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        }
    }
}

impl Housekeeper {
    /// Works until told to stop; beside [`Housekeeper::run`].
    pub async fn run_mover(self, mut stop: watch::Receiver<bool>) {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut carrier = Carrier::default();
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
                    self.carry_outgrown(&mut carrier).await;
                    sleep(rest).await;
                } => {}
            }
        }
    }

    /// Goes once through the devices that are being drained; says how long to rest after that.
    pub async fn drain(&self) -> Duration {
        let begun = Instant::now();
        // All files are looked at each time: what is in use now is not asked for all the time.
        if self.drain_all().await { (begun.elapsed() * 4).min(REST_MAX) } else { Duration::ZERO }
    }

    /// Is anything left that could not be moved?
    async fn drain_all(&self) -> bool {
        if !self.leads() {
            return false;
        }
        // None is under way but those that a server before had.
        if let Err(error) = self.blocking(|mds| mds.abandon_moves(self.environment.now_ms())) {
            tracing::error!(%error, "moves that were interrupted are not given up");
            return true;
        }
        let draining = match self.blocking(Mds::draining) {
            Ok(draining) => draining,
            Err(error) => {
                tracing::error!(%error, "devices to be drained are not known");
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
                tracing::warn!(device = device.0, problem = %pass.problem, "device not drained yet");
            }
            if let Err(error) = self.blocking(|mds| mds.drain_passed(device, drain.began_ms, &pass, now_ms)) {
                tracing::error!(%error, "how far a device is drained is not stored");
            }
        }
        left
    }

    /// Looks through all files, and moves what it can; none if that ended early.
    async fn pass(&self, device: DeviceId, drain: &Drain) -> Option<DrainPass> {
        let mut pace = Pace { rate: drain.rate, next: Instant::now() };
        let mut pass = DrainPass::default();
        if drain.moved_objects == 0 && drain.left_objects == 0 {
            // So that there is something to measure progress by.
            self.count(device, drain.began_ms).await?;
        }
        // Before the files: what is a create no longer when we come to it is a file by then.
        let creates = self.heard(self.blocking(|mds| mds.creates_on(device)))?;
        pass.objects += creates;
        pass.in_use += creates;
        let (mut after, mut problems) = (None, 0);
        loop {
            let page = self.heard(self.blocking(|mds| mds.next_moves(device, after)))?;
            for item in page.items {
                if !self.leads() {
                    return None;
                }
                // Said anew meanwhile, or taken back.
                let draining = self.heard(self.blocking(Mds::draining))?;
                let now = draining.into_iter().find(|(id, _)| *id == device)?.1;
                pace.rate = now.rate;
                if problems >= PROBLEMS_MAX {
                    // The others would wait for the same.
                    pass.objects += 1;
                    pass.bytes += item.bytes;
                    continue;
                }
                let begin = |mds: &Mds, now_ms| mds.begin_move(item.inode, device, now_ms);
                match self.carry(begin, &mut pace).await {
                    Ok(_) => {}
                    Err(Stays::InUse) => {
                        pass.objects += 1;
                        pass.bytes += item.bytes;
                        pass.in_use += 1;
                    }
                    Err(Stays::Problem(problem)) => {
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
            self.heard(self.blocking(|mds| mds.removals_on(device, self.environment.now_ms())))?;
        Some(pass)
    }

    /// How much there is, before anything moves.
    async fn count(&self, device: DeviceId, began_ms: u64) -> Option<()> {
        let (mut all, mut after) = (DrainPass::default(), None);
        loop {
            let page = self.heard(self.blocking(|mds| mds.next_moves(device, after)))?;
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
            self.heard(self.blocking(|mds| mds.drain_passed(device, began_ms, &all, now_ms)))?;
        }
        Some(())
    }

    fn heard<T>(&self, answer: sealstone_mds::Result<T>) -> Option<T> {
        answer.inspect_err(|error| tracing::error!(%error, "files on a device are not known")).ok()
    }

    /// Moves one object, if there is one to be moved.
    async fn carry(
        &self,
        begin: impl FnOnce(&Mds, u64) -> sealstone_mds::Result<MoveStart>,
        pace: &mut Pace,
    ) -> Result<Option<Carried>, Stays> {
        let problem = |error: sealstone_mds::MdsError| Stays::Problem(error.to_string());
        let now_ms = self.environment.now_ms();
        let order = match self.blocking(|mds| begin(mds, now_ms)).map_err(problem)? {
            MoveStart::Started(order) => order,
            MoveStart::InUse => return Err(Stays::InUse),
            MoveStart::NothingToMove => return Ok(None),
        };
        self.wake_revoker();
        let copied = self.copy(&order, pace).await;
        let now_ms = self.environment.now_ms();
        match copied {
            Ok(Copy { length, stored }) => {
                let finished =
                    self.blocking(|mds| mds.finish_move(&order, length, now_ms)).map_err(problem)?;
                if !finished {
                    return Err(Stays::InUse);
                }
                // It is queued as well; but whoever is revoked next should find nothing under his older credential.
                if !order.stays
                    && let Err(error) = self.remove(order.from).await
                {
                    tracing::debug!(object = %order.from.object, %error, "an object that moved is not removed yet");
                }
                Ok(Some(Carried { order, bytes: stored }))
            }
            Err(stays) => {
                self.blocking(|mds| mds.abandon_move(&order, now_ms)).map_err(problem)?;
                Err(stays)
            }
        }
    }

    /// Copies an object, durably: the extents that have data, whatever its length.
    async fn copy(&self, order: &MoveOrder, pace: &mut Pace) -> Result<Copy, Stays> {
        let begun = Instant::now();
        let fenced = |mds: &Mds| mds.is_fenced(order).map_err(|error| Stays::Problem(error.to_string()));
        while !self.blocking(fenced)? {
            if begun.elapsed() > self.limits.device_timeout {
                return Err(Stays::Problem("the device does not answer to a change of tags".to_owned()));
            }
            sleep(FENCE_LOOK_EVERY).await;
        }
        let mut extents = Extents::new(order.from);
        // Nobody wrote to it yet: it is made when somebody does, in the new place.
        if !self.list_extents(&mut extents, order.filled).await? {
            return Ok(Copy::default());
        }
        let purpose = ServerPurpose::CopyTo(order.to.object);
        // Before the first byte: whatever is written is of a life that is known.
        self.step(order.to, CopyStep::Create, purpose).await?;
        let life = Some(self.step(order.to, CopyStep::Life, purpose).await?);
        // Where what was written ends: zeros at the end of a chunk's length are a hole of the copy too.
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
        let length = extents.known;
        if written < length {
            // It is as long as the old one.
            let last = CopyStep::Write { offset: length - 1, data: Bytes::from_static(&[0]) };
            self.step(order.to, last, purpose).await?;
        }
        self.step(order.to, CopyStep::Flush, purpose).await?;
        if Some(self.step(order.to, CopyStep::Life, purpose).await?) != life {
            return Err(Stays::Problem("a device restarted while it was written to".to_owned()));
        }
        Ok(Copy { length, stored })
    }

    /// Reads the next page of an object's extents; false if nobody made the object. `filled`: a file needs it.
    async fn list_extents(&self, extents: &mut Extents, filled: bool) -> Result<bool, Stays> {
        let at = extents.object;
        let map = CopyStep::Map { offset: extents.known };
        match self.step(at, map, ServerPurpose::CopyFrom(at.object)).await? {
            Copied::Extents { data, next } => {
                extents.data.extend(data);
                extents.ended = next.is_none();
                extents.known = next.unwrap_or(extents.known);
                Ok(true)
            }
            Copied::Missing if extents.known == 0 && !filled => Ok(false),
            _ => Err(Stays::Problem("an object that a file needs is not there".to_owned())),
        }
    }

    /// Returns the next bytes with data, one command of them at most; none at the object's end.
    async fn next_chunk(&self, extents: &mut Extents) -> Result<Option<Range<u64>>, Stays> {
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

    async fn read_chunk(&self, at: ObjectRef, chunk: &Range<u64>) -> Result<Vec<u8>, Stays> {
        let length = usize::try_from(chunk.end - chunk.start).unwrap_or(CHUNK);
        let read = CopyStep::Read { offset: chunk.start, length };
        match self.step(at, read, ServerPurpose::CopyFrom(at.object)).await? {
            Copied::Data(data) if data.len() == length => Ok(data),
            Copied::Data(_) => Err(Stays::Problem("an object is shorter than its extents".to_owned())),
            _ => Err(Stays::Problem("an object that a file needs is not there".to_owned())),
        }
    }

    async fn step(
        &self,
        at: ObjectRef,
        step: CopyStep,
        purpose: ServerPurpose,
    ) -> Result<Copied, DeviceError> {
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
