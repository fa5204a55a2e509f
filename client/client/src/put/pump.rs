//! Bytes of a source, cut into commands and handed to the lanes of a file's objects.
//!
//! Does: read ahead of the devices within the memory budget, write several commands to several devices at once, have
//! what was acknowledged proven before it fills the memory. Does not: talk to devices; [`super::lane`] does.
//! Contract: bytes stay in memory until they are proven durable, at most [`window`] of them for one put; whoever waits
//! for memory, or for a slow source, first has its own bytes proven, so that puts do not wait for each other forever.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use sealstone_mds_protocol::{Checksum, FILE_SIZE_MAX};
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep;

use super::PutOptions;
use super::lane::Lane;
use super::source::Source;
use crate::budget::Lease;
use crate::checksum::Running;
use crate::open::OpenObjects;
use crate::{ClientError, Devices, Metadata, Tuning};

/// Silence of a source after which what it gave is written and proven, so that its memory is free for others.
const SILENCE: Duration = Duration::from_millis(500);

/// Bytes of one object that will be one WRITE.
struct Batch {
    buffer: Vec<u8>,
    lease: Lease,
    /// Where the first byte lies in the object.
    offset: u64,
}

/// Moves bytes from the source into the objects.
pub(super) struct Pump<'a, M, D> {
    objects: Arc<OpenObjects<M, D>>,
    /// One for each object.
    lanes: Vec<Arc<Lane<M, D>>>,
    /// Per object: what is being filled.
    batches: Vec<Option<Batch>>,
    work: JoinSet<Result<Done, ClientError>>,
    /// Per object: is a proof under way?
    proving: Vec<bool>,
    /// Memory was short: prove at once whatever is acknowledged.
    starved: bool,
    position: u64,
    written: u64,
    /// Bytes of holes, for which nothing is written.
    skipped: u64,
    /// Per object: where what was written ends.
    ends: Vec<u64>,
    checksum: Option<Running>,
    progress: Option<&'a mut Box<dyn FnMut(u64) + Send>>,
}

/// What ended.
enum Done {
    /// So many bytes were written.
    Written(usize),
    /// The proof of this object.
    Proven(usize),
}

/// Bytes of one put that are acknowledged and not proven, at which proofs begin.
const fn window(tuning: &Tuning) -> usize {
    tuning.memory_bytes / 4
}

impl<'a, M: Metadata, D: Devices> Pump<'a, M, D> {
    pub(super) fn new(objects: Arc<OpenObjects<M, D>>, options: &'a mut PutOptions) -> Self {
        let width = objects.layout.width();
        Self {
            lanes: (0..width).map(|index| Lane::new(objects.clone(), index)).collect(),
            objects,
            batches: (0..width).map(|_| None).collect(),
            work: JoinSet::new(),
            proving: vec![false; width],
            starved: false,
            position: 0,
            written: 0,
            skipped: 0,
            ends: vec![0; width],
            checksum: options.checksum.and_then(Running::begin),
            progress: options.progress.as_mut(),
        }
    }

    /// The bytes read before the file was created: sliced, not copied.
    pub(super) async fn head(&mut self, head: Vec<u8>, lease: Lease) -> Result<(), ClientError> {
        if let Some(checksum) = &mut self.checksum {
            checksum.update(&head);
        }
        let mut head = self.objects.core.buffers.freeze(head, lease);
        let command_bytes = self.objects.core.tuning.command_bytes;
        let layout = self.objects.layout.clone();
        for extent in layout.extents(0..head.len() as u64) {
            let mut offset = extent.object_offset;
            let mut piece =
                head.split_to(usize::try_from(extent.length).unwrap_or(usize::MAX).min(head.len()));
            self.position += piece.len() as u64;
            while piece.has_remaining() {
                let data = piece.split_to(piece.len().min(command_bytes));
                let next = offset + data.len() as u64;
                self.write(extent.index, offset, data);
                offset = next;
            }
        }
        while let Some(done) = self.work.try_join_next() {
            self.ended(done)?;
        }
        Ok(())
    }

    /// Everything that the source still gives.
    pub(super) async fn rest(&mut self, source: &mut impl Source) -> Result<(), ClientError> {
        loop {
            if source.is_sparse() {
                let hole = source.skip_hole().await.map_err(ClientError::Source)?;
                if hole > 0 {
                    self.skip(hole);
                    continue;
                }
            }
            let Some(extent) = self.objects.layout.extents(self.position..FILE_SIZE_MAX).next() else {
                return Err(ClientError::TooLarge { max: FILE_SIZE_MAX });
            };
            self.ready_batch(extent.index, extent.object_offset).await?;
            let Self { batches, work, .. } = self;
            let batch = batches
                .get_mut(extent.index)
                .and_then(Option::as_mut)
                .ok_or(ClientError::Protocol("an object outside the layout"))?;
            let filled = batch.buffer.len();
            let room = batch_room(batch, self.objects.core.tuning.command_bytes);
            let room = room.min(usize::try_from(extent.length).unwrap_or(usize::MAX));
            let mut space = (&mut batch.buffer).limit(room);
            let count = tokio::select! {
                biased;
                Some(done) = work.join_next() => {
                    self.ended(done)?;
                    continue;
                }
                count = source.read_buf(&mut space) => count.map_err(ClientError::Source)?,
                () = sleep(SILENCE) => {
                    (0..self.batches.len()).for_each(|index| self.dispatch(index));
                    self.prove(0);
                    continue;
                }
            };
            if count == 0 {
                return Ok(());
            }
            if let Some(checksum) = &mut self.checksum {
                checksum.update(&batch.buffer[filled..]);
            }
            self.position += count as u64;
            if count == room && batch_room(batch, self.objects.core.tuning.command_bytes) == 0 {
                self.dispatch(extent.index);
            }
        }
    }

    /// Makes sure that object `index` has a batch with room at `offset`.
    async fn ready_batch(&mut self, index: usize, offset: u64) -> Result<(), ClientError> {
        if self.batches.get(index).is_some_and(Option::is_some) {
            return Ok(());
        }
        let size = self.objects.core.tuning.command_bytes;
        let budget = self.objects.core.budget.clone();
        let lease = match budget.try_take(size) {
            Some(lease) => lease,
            None => {
                // Whoever waits for memory must not sit on some: what is half full goes out as it is, and what is
                // acknowledged is proven.
                (0..self.batches.len()).for_each(|index| self.dispatch(index));
                self.starved = true;
                self.prove(0);
                let lease = self.take_or_fail(&budget, size).await;
                self.starved = false;
                lease?
            }
        };
        let mut buffer = self.objects.core.buffers.take(size);
        buffer.clear();
        buffer.reserve(size);
        if let Some(slot) = self.batches.get_mut(index) {
            *slot = Some(Batch { buffer, lease, offset });
        }
        Ok(())
    }

    async fn take_or_fail(
        &mut self,
        budget: &crate::MemoryBudget,
        size: usize,
    ) -> Result<Lease, ClientError> {
        loop {
            tokio::select! {
                biased;
                Some(done) = self.work.join_next() => self.ended(done)?,
                lease = budget.take(size) => return Ok(lease),
            }
        }
    }

    /// Sends off the batch of object `index`, if there is one.
    fn dispatch(&mut self, index: usize) {
        let Some(Batch { buffer, lease, offset }) = self.batches.get_mut(index).and_then(Option::take) else {
            return;
        };
        if buffer.is_empty() {
            self.objects.core.buffers.give(buffer);
            return;
        }
        let data = self.objects.core.buffers.freeze(buffer, lease);
        self.write(index, offset, data);
    }

    /// Leaves a hole: nothing is written for it.
    fn skip(&mut self, hole: u64) {
        // What is behind the hole does not follow what was gathered before it.
        (0..self.batches.len()).for_each(|index| self.dispatch(index));
        if let Some(checksum) = &mut self.checksum {
            checksum.zeros(hole);
        }
        self.position = self.position.saturating_add(hole);
        self.skipped = self.skipped.saturating_add(hole);
    }

    /// Makes each object as long as the file needs it where its end is in a hole: what is missing at the end of an object
    /// counts as lost.
    fn write_tails(&mut self, size: u64) {
        if self.skipped == 0 {
            return;
        }
        for index in 0..self.lanes.len() {
            let length = self.objects.layout.object_length(index, size);
            if self.ends[index] < length {
                self.skipped -= 1;
                self.write(index, length - 1, Bytes::from_static(&[0]));
            }
        }
    }

    fn write(&mut self, index: usize, offset: u64, data: Bytes) {
        let lane = self.lanes[index].clone();
        let length = data.len();
        self.ends[index] = self.ends[index].max(offset + length as u64);
        let number = lane.hold(offset, data);
        self.work.spawn(async move {
            lane.send(number).await?;
            Ok(Done::Written(length))
        });
    }

    /// Begins a proof of every object with unproven bytes, if they are more than `more_than` together.
    fn prove(&mut self, more_than: usize) {
        if self.lanes.iter().map(|lane| lane.unproven()).sum::<usize>() > more_than {
            for index in 0..self.lanes.len() {
                if self.lanes[index].unproven() > 0 {
                    self.begin_proof(index);
                }
            }
        }
    }

    fn begin_proof(&mut self, index: usize) {
        if !core::mem::replace(&mut self.proving[index], true) {
            let lane = self.lanes[index].clone();
            self.work.spawn(async move {
                lane.prove().await?;
                Ok(Done::Proven(index))
            });
        }
    }

    fn ended(&mut self, done: Result<Result<Done, ClientError>, JoinError>) -> Result<(), ClientError> {
        match super::joined(done)? {
            Done::Written(length) => {
                self.written += length as u64;
                if let Some(progress) = &mut self.progress {
                    progress(self.written + self.skipped);
                }
            }
            Done::Proven(index) => self.proving[index] = false,
        }
        let more_than = if self.starved { 0 } else { window(&self.objects.core.tuning) };
        self.prove(more_than);
        Ok(())
    }

    /// Waits until nothing is under way.
    async fn settle(&mut self) -> Result<(), ClientError> {
        while let Some(done) = self.work.join_next().await {
            self.ended(done)?;
        }
        Ok(())
    }

    /// Waits for all writes, makes objects that got no bytes, has everything proven durable.
    pub(super) async fn finish(
        mut self,
        announced: Option<u64>,
    ) -> Result<(u64, Option<Checksum>), ClientError> {
        let size = self.position;
        if let Some(announced) = announced.filter(|announced| *announced != size) {
            return Err(ClientError::SourceLength { announced, actual: size });
        }
        (0..self.batches.len()).for_each(|index| self.dispatch(index));
        self.write_tails(size);
        self.settle().await?;
        if self.written + self.skipped != size {
            return Err(ClientError::DataMissing { offset: self.written });
        }
        for index in 0..self.lanes.len() {
            if self.lanes[index].is_open() {
                self.begin_proof(index);
            }
        }
        self.settle().await?;
        Ok((size, self.checksum.take().map(Running::finish)))
    }
}

/// Commands end at multiples of their size in the object, so that later reads of the same size meet whole ones.
fn batch_room(batch: &Batch, command_bytes: usize) -> usize {
    let misaligned = usize::try_from(batch.offset % command_bytes as u64).unwrap_or(0);
    command_bytes - misaligned - batch.buffer.len().min(command_bytes - misaligned)
}
