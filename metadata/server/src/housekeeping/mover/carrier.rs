//! Files that have outgrown their layouts, one after the other.
//!
//! Contract: as of the mover ([`super`]): nothing is read before every device has answered that nobody writes, all of it is
//! copied in one life of each new device, and whatever is interrupted begins anew. A drain goes first.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use sealstone_mds::{Mds, MdsError, MigrationOrder, MoveStart, ServerPurpose};
use sealstone_mds_protocol::{InodeId, Layout, ObjectRef};
use tokio::time::{Instant, sleep};

use super::{Extents, FENCE_LOOK_EVERY, Housekeeper, Pace, Stays};
use crate::devices::{Copied, CopyStep};

/// Between two looks at the marks.
const MARKS_EVERY: Duration = Duration::from_secs(10);
/// After a copy that came to nothing a file rests for so long; each time in a row for twice as long, …
const REST_MIN: Duration = Duration::from_secs(60);
/// … up to this.
const REST_MAX: Duration = Duration::from_secs(3600);
/// Files that are remembered to rest; if there are more, all are tried again.
const RESTING_MAX: usize = 4096;
/// Between two looks whether the copy is still wanted.
const WANTED_EVERY: Duration = Duration::from_secs(1);

/// What was tried in vain, so that nothing is copied again and again for nobody.
#[derive(Default)]
pub(super) struct Carrier {
    looked: Option<Instant>,
    resting: BTreeMap<InodeId, (Duration, Instant)>,
}

impl Carrier {
    fn rests(&self, inode: InodeId) -> bool {
        self.resting.get(&inode).is_some_and(|(_, until)| Instant::now() < *until)
    }

    fn failed(&mut self, inode: InodeId) {
        if self.resting.len() >= RESTING_MAX {
            self.resting.clear();
        }
        let rest = self.resting.get(&inode).map_or(REST_MIN, |(rest, _)| (*rest * 2).min(REST_MAX));
        self.resting.insert(inode, (rest, Instant::now() + rest));
    }
}

/// The copy of a file under way.
struct Copying<'a> {
    order: &'a MigrationOrder,
    /// Where what was written to each new object ends.
    written: Vec<u64>,
    /// The life of each new device.
    lives: Vec<Copied>,
    looked: Instant,
}

impl Housekeeper {
    /// Looks at the files that were marked, if it is time to, and carries over those that have outgrown their layouts.
    pub(super) async fn carry_outgrown(&self, carrier: &mut Carrier) {
        let due = carrier.looked.is_none_or(|at| at.elapsed() >= MARKS_EVERY);
        if self.limits.carry_rate == 0 || !due {
            return;
        }
        let mut pace = Pace { rate: self.limits.carry_rate, next: Instant::now() };
        let mut after = None;
        loop {
            let Some(page) = self.heard(self.blocking(|mds| mds.next_outgrown(after))) else { return };
            let Some(last) = page.last() else { break };
            after = Some(*last);
            for inode in page.into_iter().filter(|inode| !carrier.rests(*inode)).collect::<Vec<_>>() {
                if !self.leads() || self.drains() {
                    return;
                }
                match self.carry_file(inode, &mut pace).await {
                    Ok(copied) => {
                        carrier.resting.remove(&inode);
                        if !copied {
                            tracing::debug!(
                                inode = inode.0,
                                "a file has not outgrown its layout, or is in use"
                            );
                        }
                    }
                    Err(stays) => {
                        carrier.failed(inode);
                        match stays {
                            Stays::InUse => tracing::debug!(
                                inode = inode.0,
                                "a file is written to while it is carried over"
                            ),
                            Stays::Problem(problem) => {
                                tracing::warn!(inode = inode.0, %problem, "a file is not carried over yet");
                            }
                        }
                    }
                }
            }
            tokio::task::yield_now().await;
        }
        carrier.looked = Some(Instant::now());
    }

    /// Is a device to be emptied?
    fn drains(&self) -> bool {
        self.blocking(Mds::draining).is_ok_and(|draining| !draining.is_empty())
    }

    /// Carries a file over, if it has outgrown its layout and nobody has it; says whether it did.
    async fn carry_file(&self, inode: InodeId, pace: &mut Pace) -> Result<bool, Stays> {
        let problem = |error: MdsError| Stays::Problem(error.to_string());
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
            Err(stays) => {
                self.blocking(|mds| mds.abandon_migration(&order, now_ms)).map_err(problem)?;
                return Err(stays);
            }
        };
        if !self.blocking(|mds| mds.finish_migration(&order, bytes, now_ms)).map_err(problem)? {
            return Err(Stays::InUse);
        }
        let shape = |layout: &Layout| {
            format!("{} objects, unit {}", layout.width(), layout.stripe_unit().unwrap_or(0))
        };
        let (from, to) = (shape(&order.from), shape(&order.to));
        tracing::info!(inode = inode.0, size = order.size, bytes, %from, %to, "file carried over to another layout");
        // They are queued as well; but who reads them should find soon that they are not there.
        for object in order.from.objects() {
            if let Err(error) = self.remove(*object).await {
                tracing::debug!(object = %object.object, %error, "an object of before is not removed yet");
            }
        }
        Ok(true)
    }

    /// Copies a file, durably; gives its bytes.
    async fn copy_file(&self, order: &MigrationOrder, pace: &mut Pace) -> Result<u64, Stays> {
        let begun = Instant::now();
        let fenced =
            |mds: &Mds| mds.is_migration_fenced(order).map_err(|error| Stays::Problem(error.to_string()));
        while !self.blocking(fenced)? {
            if begun.elapsed() > self.limits.device_timeout {
                return Err(Stays::Problem("a device does not answer to a change of tags".to_owned()));
            }
            sleep(FENCE_LOOK_EVERY).await;
        }
        let lives = Vec::with_capacity(order.to.width());
        let mut copying =
            Copying { order, written: vec![0; order.to.width()], lives, looked: Instant::now() };
        for object in order.to.objects() {
            // Before the first byte: whatever is written is of a life that is known.
            self.step_to(*object, CopyStep::Create).await?;
            copying.lives.push(self.step_to(*object, CopyStep::Life).await?);
        }
        let bytes = self.copy_bytes(&mut copying, pace).await?;
        self.settle_copy(&copying).await?;
        Ok(bytes)
    }

    /// Copies the extents of all old objects, those with the lowest offset in their object first: so a file is copied from
    /// its beginning to its end, and holes cost nothing.
    async fn copy_bytes(&self, copying: &mut Copying<'_>, pace: &mut Pace) -> Result<u64, Stays> {
        let (order, mut bytes) = (copying.order, 0);
        let mut going = Vec::with_capacity(order.from.width());
        for (index, object) in order.from.objects().iter().enumerate() {
            let mut extents = Extents::new(*object);
            // Nobody wrote to one that is missing: all of it is a hole.
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

    /// Bytes of an old object to the new ones; zeros are holes there.
    async fn write_piece(
        &self,
        copying: &mut Copying<'_>,
        (index, offset): (usize, u64),
        data: Bytes,
        pace: &mut Pace,
    ) -> Result<(), Stays> {
        let order = copying.order;
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let Some(file_offset) = order.from.file_offset(index, at) else {
                return Err(Stays::Problem("an object is longer than a file can be".to_owned()));
            };
            // To the end of the stripe unit: from there on the file goes on in another object.
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

    /// Makes each new object as long as it has to be, and durable in the life that it was written in.
    async fn settle_copy(&self, copying: &Copying<'_>) -> Result<(), Stays> {
        let order = copying.order;
        for (index, object) in order.to.objects().iter().enumerate() {
            let needed = order.lengths[index];
            if copying.written[index] < needed {
                let last = CopyStep::Write { offset: needed - 1, data: Bytes::from_static(&[0]) };
                self.step_to(*object, last).await?;
            }
            self.step_to(*object, CopyStep::Flush).await?;
        }
        for (object, life) in order.to.objects().iter().zip(&copying.lives) {
            if self.step_to(*object, CopyStep::Life).await? != *life {
                return Err(Stays::Problem("a device restarted while it was written to".to_owned()));
            }
        }
        Ok(())
    }

    /// Who writes goes first, and so does a drain.
    fn check_wanted(&self, copying: &mut Copying<'_>) -> Result<(), Stays> {
        if copying.looked.elapsed() < WANTED_EVERY {
            return Ok(());
        }
        copying.looked = Instant::now();
        let wanted = self.blocking(|mds| mds.is_migration_pending(copying.order));
        let wanted = wanted.map_err(|error| Stays::Problem(error.to_string()))?;
        if !wanted || !self.leads() || self.drains() {
            return Err(Stays::InUse);
        }
        Ok(())
    }

    async fn step_to(&self, at: ObjectRef, step: CopyStep) -> Result<Copied, Stays> {
        Ok(self.step(at, step, ServerPurpose::CopyTo(at.object)).await?)
    }
}
