//! Writes records of the journal: one write for all requests that wait.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use sealstone_block_e2e::{BLOCK_LEN, JournalBuilder, JournalChange};
use tokio::sync::oneshot;

use super::disk::DiskInner;
use super::{E2eError, RootStore, SealedMedium, WriteGuarantee};
use crate::BlockError;

/// Times that an ordered write is sent while sessions are replaced.
const ORDERED_ATTEMPTS_MAX: u32 = 8;

/// A change that waits for its record.
struct PendingChange {
    change: JournalChange,
    /// Whether blocks are overwritten after the record.
    is_ordered: bool,
    sender: oneshot::Sender<Result<u64, E2eError>>,
}

/// Changes that wait, and the right to write the next records.
#[derive(Default)]
pub(super) struct JournalQueue {
    pending: Mutex<VecDeque<PendingChange>>,
    writer: tokio::sync::Mutex<()>,
}

/// Consecutive records that are written together.
struct RecordBatch {
    /// Sequence number of the last record.
    last: u64,
    /// Block and content of each write: two if the ring wraps.
    writes: Vec<(u64, BytesMut)>,
    is_ordered: bool,
    senders: Vec<(u64, oneshot::Sender<Result<u64, E2eError>>)>,
}

impl<M: SealedMedium, R: RootStore> DiskInner<M, R> {
    /// Adds a change to the journal and returns the number of its record. With `is_ordered`,
    /// changes by [`Self::write_in_order`] do not survive a power failure without the record.
    pub(super) async fn journal(&self, change: JournalChange, is_ordered: bool) -> Result<u64, E2eError> {
        let (sender, mut receiver) = oneshot::channel();
        self.queue.pending.lock().push_back(PendingChange { change, is_ordered, sender });
        let _writer = self.queue.writer.lock().await;
        // Another request may have written the record meanwhile.
        if let Ok(outcome) = receiver.try_recv() {
            return outcome;
        }
        if let Some(mut batch) = self.build_batch() {
            let outcome = self.write_batch(&mut batch).await;
            if outcome.is_err() {
                self.state.lock().has_fault = true;
            }
            for (sequence, sender) in batch.senders {
                // The request may have been dropped.
                let _ = sender.send(outcome.clone().map(|()| sequence));
            }
        }
        receiver.try_recv().unwrap_or(Err(E2eError::Internal("a change has no record")))
    }

    /// Builds records of all changes that wait.
    fn build_batch(&self) -> Option<RecordBatch> {
        let mut pending = std::mem::take(&mut *self.queue.pending.lock());
        let mut state = self.state.lock();
        let sealer = state.sealer.clone();
        let mut batch =
            RecordBatch { last: state.last().0, writes: Vec::new(), is_ordered: false, senders: Vec::new() };
        while !pending.is_empty() {
            let (mut builder, mut changes) = (JournalBuilder::default(), 0);
            let sequence = state.last().0 + 1;
            while let Some(next) = pending.pop_front() {
                state.changed_blocks += next.change.range().1;
                if let Some(change) = builder.push(next.change) {
                    state.changed_blocks -= change.range().1;
                    if changes > 0 {
                        pending.push_front(PendingChange { change, ..next });
                        break;
                    }
                    let refused = E2eError::Internal("a change does not fit into a record");
                    let _ = next.sender.send(Err(refused));
                    continue;
                }
                changes += 1;
                batch.is_ordered |= next.is_ordered;
                batch.senders.push((sequence, next.sender));
            }
            if builder.is_empty() {
                break;
            }
            let (record, block) = builder.seal(sequence, state.last().1, &sealer);
            state.begin_record(sequence, record.chain, changes);
            batch.last = sequence;
            let place = state.tree.layout().journal_block(sequence);
            match batch.writes.last_mut() {
                Some((start, bytes)) if *start + (bytes.len() / BLOCK_LEN) as u64 == place => {
                    bytes.extend_from_slice(&block[..]);
                }
                _ => batch.writes.push((place, BytesMut::from(&block[..]))),
            }
        }
        (!batch.senders.is_empty()).then_some(batch)
    }

    async fn write_batch(&self, batch: &mut RecordBatch) -> Result<(), E2eError> {
        if batch.is_ordered && self.medium.keeps_order() {
            for (block, bytes) in batch.writes.drain(..) {
                self.write_in_order(block, bytes.freeze()).await?;
            }
            self.state.lock().records_written(batch.last, false);
            return Ok(());
        }
        // A forced write does not cover the records before it.
        let needs_flush =
            batch.is_ordered && (batch.writes.len() > 1 || self.state.lock().has_unforced_records());
        let is_forced = batch.is_ordered && !needs_flush;
        let guarantee = if is_forced { WriteGuarantee::Durable } else { WriteGuarantee::Nothing };
        for (block, bytes) in batch.writes.drain(..) {
            self.medium.write(block, bytes.freeze(), guarantee).await?;
        }
        self.state.lock().records_written(batch.last, is_forced);
        if needs_flush {
            self.flush_medium().await?;
        }
        Ok(())
    }

    /// Writes blocks that a power failure must not leave without the records before them. On a unit
    /// that does not keep the order, these records are durable already.
    pub(super) async fn write_in_order(&self, block: u64, data: Bytes) -> Result<(), E2eError> {
        if !self.medium.keeps_order() {
            return Ok(self.medium.write(block, data, WriteGuarantee::Nothing).await?);
        }
        for _ in 0..ORDERED_ATTEMPTS_MAX {
            match self.medium.write(block, data.clone(), WriteGuarantee::Ordered).await {
                // The flush fails if records were lost.
                Err(BlockError::SessionReplaced) => self.flush_medium().await?,
                outcome => return Ok(outcome?),
            }
        }
        Err(BlockError::SessionReplaced.into())
    }
}
