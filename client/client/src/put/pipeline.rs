//! The pipeline of a put: bytes of a source, split into commands for the writers of the objects.
//!
//! Does: reads ahead of the devices within the memory budget, writes to several devices at once,
//! and flushes acknowledged bytes before they fill the memory.
//! Does not: talk to devices; [`super::object_writer`] does.
//! Contract: bytes stay in memory until a flush made them durable, at most [`window`] of them for
//! one put. A put that waits for memory or for a slow source flushes its own bytes first, so that
//! puts do not deadlock.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use sealstone_mds_protocol::{Checksum, FILE_SIZE_MAX};
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep;

use super::PutOptions;
use super::object_writer::ObjectWriter;
use super::source::Source;
use crate::budget::MemoryPermit;
use crate::checksum::RunningChecksum;
use crate::open::OpenObjects;
use crate::{ClientError, Devices, Metadata, Tuning};

/// Pause of a source after which its bytes are written and flushed, so that their memory is free
/// for others.
const SILENCE: Duration = Duration::from_millis(500);

/// Bytes of one object that become one WRITE.
struct Batch {
    buffer: Vec<u8>,
    lease: MemoryPermit,
    /// Offset of the first byte in the object.
    offset: u64,
}

/// Moves bytes from the source into the objects.
pub(super) struct PutPipeline<'a, M, D> {
    objects: Arc<OpenObjects<M, D>>,
    /// One for each object.
    writers: Vec<Arc<ObjectWriter<M, D>>>,
    /// The batch that is being filled, for each object.
    batches: Vec<Option<Batch>>,
    work: JoinSet<Result<Done, ClientError>>,
    /// Whether a flush is in progress, for each object.
    proving: Vec<bool>,
    /// Whether memory is short, so that acknowledged bytes are flushed at once.
    starved: bool,
    position: u64,
    written: u64,
    /// Bytes of holes, which are not written.
    skipped: u64,
    /// End of the written bytes, for each object.
    ends: Vec<u64>,
    checksum: Option<RunningChecksum>,
    progress: Option<&'a mut Box<dyn FnMut(u64) + Send>>,
}

/// A completed task.
enum Done {
    /// A write of this many bytes.
    Written(usize),
    /// A flush of this object.
    Proven(usize),
}

/// Acknowledged unflushed bytes of one put at which flushes begin.
const fn window(tuning: &Tuning) -> usize {
    tuning.memory_bytes / 4
}

impl<'a, M: Metadata, D: Devices> PutPipeline<'a, M, D> {
    pub(super) fn new(objects: Arc<OpenObjects<M, D>>, options: &'a mut PutOptions) -> Self {
        let width = objects.layout.width();
        Self {
            writers: (0..width).map(|index| ObjectWriter::new(objects.clone(), index)).collect(),
            objects,
            batches: (0..width).map(|_| None).collect(),
            work: JoinSet::new(),
            proving: vec![false; width],
            starved: false,
            position: 0,
            written: 0,
            skipped: 0,
            ends: vec![0; width],
            checksum: options.checksum.and_then(RunningChecksum::begin),
            progress: options.progress.as_mut(),
        }
    }

    /// Writes the bytes that were read before the file was created, without a copy.
    pub(super) async fn write_head(&mut self, head: Vec<u8>, lease: MemoryPermit) -> Result<(), ClientError> {
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

    /// Writes everything that the source still returns.
    pub(super) async fn write_rest(&mut self, source: &mut impl Source) -> Result<(), ClientError> {
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
                    self.flush_durable(0);
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

    /// Makes sure that object `index` has a batch with space at `offset`.
    async fn ready_batch(&mut self, index: usize, offset: u64) -> Result<(), ClientError> {
        if self.batches.get(index).is_some_and(Option::is_some) {
            return Ok(());
        }
        let size = self.objects.core.tuning.command_bytes;
        let budget = self.objects.core.budget.clone();
        let lease = match budget.try_take(size) {
            Some(lease) => lease,
            None => {
                // A put that waits for memory must not occupy any: partial batches are sent and
                // acknowledged bytes flushed.
                (0..self.batches.len()).for_each(|index| self.dispatch(index));
                self.starved = true;
                self.flush_durable(0);
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
    ) -> Result<MemoryPermit, ClientError> {
        loop {
            tokio::select! {
                biased;
                Some(done) = self.work.join_next() => self.ended(done)?,
                lease = budget.take(size) => return Ok(lease),
            }
        }
    }

    /// Sends the batch of object `index`, if there is one.
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

    /// Skips a hole, which is not written.
    fn skip(&mut self, hole: u64) {
        // Bytes after the hole do not adjoin those before it.
        (0..self.batches.len()).for_each(|index| self.dispatch(index));
        if let Some(checksum) = &mut self.checksum {
            checksum.zeros(hole);
        }
        self.position = self.position.saturating_add(hole);
        self.skipped = self.skipped.saturating_add(hole);
    }

    /// Extends each object whose end is in a hole to its full length, since missing bytes at the
    /// end of an object count as lost.
    fn write_tails(&mut self, size: u64) {
        if self.skipped == 0 {
            return;
        }
        for index in 0..self.writers.len() {
            let length = self.objects.layout.object_length(index, size);
            if self.ends[index] < length {
                self.skipped -= 1;
                self.write(index, length - 1, Bytes::from_static(&[0]));
            }
        }
    }

    fn write(&mut self, index: usize, offset: u64, data: Bytes) {
        let writer = self.writers[index].clone();
        let length = data.len();
        self.ends[index] = self.ends[index].max(offset + length as u64);
        let number = writer.accept(offset, data);
        self.work.spawn(async move {
            writer.send(number).await?;
            Ok(Done::Written(length))
        });
    }

    /// Starts a flush of every object with unflushed bytes, if they are more than `more_than` in
    /// total.
    fn flush_durable(&mut self, more_than: usize) {
        if self.writers.iter().map(|writer| writer.unflushed_bytes()).sum::<usize>() > more_than {
            for index in 0..self.writers.len() {
                if self.writers[index].unflushed_bytes() > 0 {
                    self.begin_proof(index);
                }
            }
        }
    }

    fn begin_proof(&mut self, index: usize) {
        if !core::mem::replace(&mut self.proving[index], true) {
            let writer = self.writers[index].clone();
            self.work.spawn(async move {
                writer.flush_durable().await?;
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
        self.flush_durable(more_than);
        Ok(())
    }

    /// Waits for all tasks.
    async fn settle(&mut self) -> Result<(), ClientError> {
        while let Some(done) = self.work.join_next().await {
            self.ended(done)?;
        }
        Ok(())
    }

    /// Waits for all writes, creates objects without bytes, and flushes everything.
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
        for index in 0..self.writers.len() {
            if self.writers[index].is_open() {
                self.begin_proof(index);
            }
        }
        self.settle().await?;
        Ok((size, self.checksum.take().map(RunningChecksum::finish)))
    }
}

/// Returns the space left in a batch. Commands end at multiples of their size, so that later reads
/// of the same size match them.
fn batch_room(batch: &Batch, command_bytes: usize) -> usize {
    let misaligned = usize::try_from(batch.offset % command_bytes as u64).unwrap_or(0);
    command_bytes - misaligned - batch.buffer.len().min(command_bytes - misaligned)
}
