//! Copies files that have outgrown their layouts to new objects, one at a time.
//!
//! Contract: as in [`super`]: nothing is read before every device has confirmed the fence, the copy
//! is complete within one boot epoch of each new device, and an interrupted copy starts again. A
//! drain has priority.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use sealstone_mds::{Mds, MdsError, MigrationOrder, MoveStart, ServerPurpose};
use sealstone_mds_protocol::{InodeId, Layout, ObjectRef};
use tokio::time::{Instant, sleep};

use super::{ExtentList, FENCE_POLL_INTERVAL, Housekeeper, MoveError, RateLimit};
use crate::devices::{CopyResult, CopyStep};

/// Interval of reading the marked files.
const MARKS_INTERVAL: Duration = Duration::from_secs(10);
/// Pause of a file after a failed copy; doubles with each consecutive failure up to [`DELAY_MAX`].
const DELAY_MIN: Duration = Duration::from_secs(60);
/// Maximum pause of a file after failed copies.
const DELAY_MAX: Duration = Duration::from_secs(3600);
/// Maximum number of pausing files; above it all are tried again.
const DELAYED_MAX: usize = 4096;
/// Interval of checking whether the copy is still wanted.
const WANTED_INTERVAL: Duration = Duration::from_secs(1);

/// Failed copies, so that a file is not copied repeatedly without success.
#[derive(Default)]
pub(super) struct RelayoutState {
    looked: Option<Instant>,
    delayed: BTreeMap<InodeId, (Duration, Instant)>,
}

impl RelayoutState {
    fn is_retry_delayed(&self, inode: InodeId) -> bool {
        self.delayed.get(&inode).is_some_and(|(_, until)| Instant::now() < *until)
    }

    fn failed(&mut self, inode: InodeId) {
        if self.delayed.len() >= DELAYED_MAX {
            self.delayed.clear();
        }
        let delay = self.delayed.get(&inode).map_or(DELAY_MIN, |(delay, _)| (*delay * 2).min(DELAY_MAX));
        self.delayed.insert(inode, (delay, Instant::now() + delay));
    }
}

/// A running copy of a file.
struct FileCopy<'a> {
    order: &'a MigrationOrder,
    /// End of the bytes written to each new object.
    written: Vec<u64>,
    /// Boot epoch of each new device.
    boot_epochs: Vec<CopyResult>,
    looked: Instant,
}

impl Housekeeper {
    /// Reads the marked files, if due, and copies those that have outgrown their layouts.
    pub(super) async fn relayout_outgrown(&self, relayout: &mut RelayoutState) {
        let due = relayout.looked.is_none_or(|at| at.elapsed() >= MARKS_INTERVAL);
        if self.limits.carry_rate == 0 || !due {
            return;
        }
        let mut pace = RateLimit { rate: self.limits.carry_rate, next: Instant::now() };
        let mut after = None;
        loop {
            let Some(page) = self.log_error(self.blocking(|mds| mds.next_outgrown(after))) else { return };
            let Some(last) = page.last() else { break };
            after = Some(*last);
            for inode in
                page.into_iter().filter(|inode| !relayout.is_retry_delayed(*inode)).collect::<Vec<_>>()
            {
                if !self.is_leader() || self.drains() {
                    return;
                }
                match self.relayout_file(inode, &mut pace).await {
                    Ok(copied) => {
                        relayout.delayed.remove(&inode);
                        if !copied {
                            tracing::debug!(
                                inode = inode.0,
                                "file not copied: layout not outgrown, or file in use"
                            );
                        }
                    }
                    Err(error) => {
                        relayout.failed(inode);
                        match error {
                            MoveError::InUse => tracing::debug!(
                                inode = inode.0,
                                "copy to a larger layout cancelled: file in use"
                            ),
                            MoveError::Problem(problem) => {
                                tracing::warn!(inode = inode.0, %problem, "file not copied to a larger layout; retrying later");
                            }
                        }
                    }
                }
            }
            tokio::task::yield_now().await;
        }
        relayout.looked = Some(Instant::now());
    }

    /// Whether a device is being drained.
    fn drains(&self) -> bool {
        self.blocking(Mds::draining).is_ok_and(|draining| !draining.is_empty())
    }

    /// Copies a file to a new layout, if it has outgrown its own and is not in use. Returns whether
    /// it did.
    async fn relayout_file(&self, inode: InodeId, pace: &mut RateLimit) -> Result<bool, MoveError> {
        let problem = |error: MdsError| MoveError::Problem(error.to_string());
        let now_ms = self.environment.now_ms();
        let order = match self.blocking(|mds| mds.begin_migration(inode, now_ms)).map_err(problem)? {
            MoveStart::Started(order) => order,
            MoveStart::InUse | MoveStart::NothingToMove => return Ok(false),
        };
        self.wake_revoker();
        let copied = self.copy_file(&order, pace).await;
        let now_ms = self.environment.now_ms();
        let bytes = match copied {
            Ok(bytes) => bytes,
            Err(error) => {
                self.blocking(|mds| mds.abandon_migration(&order, now_ms)).map_err(problem)?;
                return Err(error);
            }
        };
        if !self.blocking(|mds| mds.finish_migration(&order, bytes, now_ms)).map_err(problem)? {
            return Err(MoveError::InUse);
        }
        let shape = |layout: &Layout| {
            format!("{} objects, unit {}", layout.width(), layout.stripe_unit().unwrap_or(0))
        };
        let (from, to) = (shape(&order.from), shape(&order.to));
        tracing::info!(inode = inode.0, size = order.size, bytes, %from, %to, "file copied to another layout");
        // The old objects are queued for removal as well. Removing them now lets clients with the
        // old layout notice soon.
        for object in order.from.objects() {
            if let Err(error) = self.remove(*object).await {
                tracing::debug!(object = %object.object, %error, "old object not removed; retrying later");
            }
        }
        Ok(true)
    }

    /// Copies a file durably. Returns its bytes with data.
    async fn copy_file(&self, order: &MigrationOrder, pace: &mut RateLimit) -> Result<u64, MoveError> {
        let begun = Instant::now();
        let fenced =
            |mds: &Mds| mds.is_migration_fenced(order).map_err(|error| MoveError::Problem(error.to_string()));
        while !self.blocking(fenced)? {
            if begun.elapsed() > self.limits.device_timeout {
                return Err(MoveError::Problem(
                    "a device did not confirm new policy access tags in time".to_owned(),
                ));
            }
            sleep(FENCE_POLL_INTERVAL).await;
        }
        let boot_epochs = Vec::with_capacity(order.to.width());
        let mut copying =
            FileCopy { order, written: vec![0; order.to.width()], boot_epochs, looked: Instant::now() };
        for object in order.to.objects() {
            // The epoch is read before the first write, so that a restart during the copy is
            // detected.
            self.step_to(*object, CopyStep::Create).await?;
            copying.boot_epochs.push(self.step_to(*object, CopyStep::BootEpoch).await?);
        }
        let bytes = self.copy_bytes(&mut copying, pace).await?;
        self.settle_copy(&copying).await?;
        Ok(bytes)
    }

    /// Copies the extents of all old objects, lowest object offset first. So a file is copied from
    /// beginning to end, and holes cost nothing.
    async fn copy_bytes(&self, copying: &mut FileCopy<'_>, pace: &mut RateLimit) -> Result<u64, MoveError> {
        let (order, mut bytes) = (copying.order, 0);
        let mut going = Vec::with_capacity(order.from.width());
        for (index, object) in order.from.objects().iter().enumerate() {
            let mut extents = ExtentList::new(*object);
            // A missing object is a hole: nothing was written to it.
            if self.list_extents(&mut extents, order.filled[index]).await?
                && let Some(chunk) = self.next_chunk(&mut extents).await?
            {
                going.push((index, extents, chunk));
            }
        }
        while let Some(first) = (0..going.len()).min_by_key(|at| going[*at].2.start) {
            self.check_wanted(copying)?;
            let (index, mut extents, chunk) = going.swap_remove(first);
            let data = self.read_chunk(extents.object, &chunk).await?;
            bytes += data.len() as u64;
            self.write_piece(copying, (index, chunk.start), Bytes::from(data), pace).await?;
            if let Some(chunk) = self.next_chunk(&mut extents).await? {
                going.push((index, extents, chunk));
            }
        }
        Ok(bytes)
    }

    /// Writes bytes of an old object to the new ones; zeros become holes.
    async fn write_piece(
        &self,
        copying: &mut FileCopy<'_>,
        (index, offset): (usize, u64),
        data: Bytes,
        pace: &mut RateLimit,
    ) -> Result<(), MoveError> {
        let order = copying.order;
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let Some(file_offset) = order.from.file_offset(index, at) else {
                return Err(MoveError::Problem("an object exceeds the maximum file size".to_owned()));
            };
            // Up to the end of the stripe unit: there the file continues in another object.
            let left =
                order.from.stripe_unit().map_or(u64::MAX, |unit| u64::from(unit) - at % u64::from(unit));
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(data.len() - done);
            pace.take(length).await;
            for extent in order.to.extents(file_offset..file_offset + length as u64) {
                let from = done + (extent.file_offset - file_offset) as usize;
                let piece = data.slice(from..from + extent.length as usize);
                if piece.iter().all(|byte| *byte == 0) {
                    continue;
                }
                let write = CopyStep::Write { offset: extent.object_offset, data: piece };
                self.step_to(order.to.objects()[extent.index], write).await?;
                let written = &mut copying.written[extent.index];
                *written = (*written).max(extent.object_offset + extent.length);
            }
            done += length;
        }
        Ok(())
    }

    /// Extends each new object to its length, flushes it, and checks that its device did not
    /// restart.
    async fn settle_copy(&self, copying: &FileCopy<'_>) -> Result<(), MoveError> {
        let order = copying.order;
        for (index, object) in order.to.objects().iter().enumerate() {
            let needed = order.lengths[index];
            if copying.written[index] < needed {
                let last = CopyStep::Write { offset: needed - 1, data: Bytes::from_static(&[0]) };
                self.step_to(*object, last).await?;
            }
            self.step_to(*object, CopyStep::Flush).await?;
        }
        for (object, boot_epoch) in order.to.objects().iter().zip(&copying.boot_epochs) {
            if self.step_to(*object, CopyStep::BootEpoch).await? != *boot_epoch {
                return Err(MoveError::Problem("a device restarted during the copy".to_owned()));
            }
        }
        Ok(())
    }

    /// Fails if a client wants to write the file, another server leads, or a drain began.
    fn check_wanted(&self, copying: &mut FileCopy<'_>) -> Result<(), MoveError> {
        if copying.looked.elapsed() < WANTED_INTERVAL {
            return Ok(());
        }
        copying.looked = Instant::now();
        let wanted = self.blocking(|mds| mds.is_migration_pending(copying.order));
        let wanted = wanted.map_err(|error| MoveError::Problem(error.to_string()))?;
        if !wanted || !self.is_leader() || self.drains() {
            return Err(MoveError::InUse);
        }
        Ok(())
    }

    async fn step_to(&self, at: ObjectRef, step: CopyStep) -> Result<CopyResult, MoveError> {
        Ok(self.step(at, step, ServerPurpose::CopyTo(at.object)).await?)
    }
}
