//! The requests to an end-to-end protected disk: reads, writes, unmaps, flushes.
//!
//! Does: locks the blocks of a request, seals or verifies them, and hands changes to the journal
//! (`commit`). NBD and FUSE exports call it.
//! Does not: write the tree or publish roots; `checkpoint` does.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sealstone_block_e2e::{
    BLOCK_LEN, BlockEntry, DiskRoot, DiskSealer, JournalChange, UNMAP_BLOCKS_MAX, WRITE_BLOCKS_MAX,
};
use tokio::sync::{RwLock, RwLockReadGuard};

use super::cipher::{open_blocks, seal_blocks};
use super::commit::JournalQueue;
use super::open::{self, DiskKeys, OpenReport};
use super::range_lock::RangeLocks;
use super::state::DiskState;
use super::{E2eError, RootStore, RootStoreError, SealedMedium};
use crate::flush::LossCounter;
use crate::{BufferPool, FlushCursor};

const BLOCK: u64 = BLOCK_LEN as u64;
/// Default nodes of the tree in memory: 16 MiB, for 2 GiB of data in use.
const CACHE_NODES_DEFAULT: usize = 4096;
/// Default time between two roots: the time in which the server can take back what was flushed.
const PUBLISH_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
/// Times that a request opens the disk again after a fault of the unit.
const REOPENS_MAX: u32 = 3;

/// Options of a disk.
#[derive(Clone, Debug)]
pub struct E2eOptions {
    /// Nodes of the tree in memory, 4 KiB each; changed nodes count until the next checkpoint.
    pub cache_nodes: usize,
    /// Minimum time between two roots that flushes publish; 0: each flush publishes.
    pub publish_interval: Duration,
    /// The last root that this client has seen, to detect older ones.
    pub seen_root: Option<DiskRoot>,
}

impl Default for E2eOptions {
    fn default() -> Self {
        Self { cache_nodes: CACHE_NODES_DEFAULT, publish_interval: PUBLISH_INTERVAL_DEFAULT, seen_root: None }
    }
}

/// Consecutive bytes that are all written, or all read as zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskExtent {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Whether they were written.
    pub is_written: bool,
}

/// A disk whose blocks the unit's server can neither read nor change. Clones share it.
pub struct E2eDisk<M, R>(pub(super) Arc<DiskInner<M, R>>);

impl<M, R> Clone for E2eDisk<M, R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

pub(super) struct DiskInner<M, R> {
    pub(super) medium: M,
    pub(super) roots: R,
    pub(super) keys: DiskKeys,
    pub(super) options: E2eOptions,
    pub(super) state: Mutex<DiskState>,
    pub(super) queue: JournalQueue,
    pub(super) publisher: tokio::sync::Mutex<()>,
    pub(super) flushing: tokio::sync::Mutex<()>,
    pub(super) losses: LossCounter,
    pub(super) ranges: RangeLocks,
    /// Buffers of sealed blocks.
    pub(super) buffers: BufferPool,
    /// Requests share it; checkpoints and recovery exclude requests.
    pub(super) gate: RwLock<()>,
    pub(super) data_blocks: u64,
}

/// A request in progress, with records that it may begin.
pub(super) struct RequestGuard<'a, M, R> {
    disk: &'a DiskInner<M, R>,
    records: u64,
    _gate: RwLockReadGuard<'a, ()>,
}

impl<M, R> Drop for RequestGuard<'_, M, R> {
    fn drop(&mut self) {
        self.disk.state.lock().reserved -= self.records;
    }
}

impl<M: SealedMedium, R: RootStore> E2eDisk<M, R> {
    /// Makes a disk of a unit and of a record without root. All data on the unit are lost.
    ///
    /// # Errors
    /// [`E2eError`].
    pub async fn format(medium: &M, roots: &R, keys: &DiskKeys) -> Result<(), E2eError> {
        open::format(medium, roots, keys).await
    }

    /// Takes the lease, verifies the disk and recovers what was written last.
    ///
    /// # Errors
    /// [`E2eError`].
    pub async fn open(
        medium: M,
        roots: R,
        keys: DiskKeys,
        options: E2eOptions,
    ) -> Result<(Self, OpenReport), E2eError> {
        let load = || open::load(&medium, &roots, &keys, &options);
        let (state, report) = match load().await {
            // A loss of earlier clients: this one has written nothing.
            Err(E2eError::LostWrites) => load().await?,
            loaded => loaded?,
        };
        let data_blocks = state.tree.layout().data_blocks();
        let disk = Self(Arc::new(DiskInner {
            medium,
            roots,
            keys,
            options,
            state: Mutex::new(state),
            queue: JournalQueue::default(),
            publisher: tokio::sync::Mutex::default(),
            flushing: tokio::sync::Mutex::default(),
            losses: LossCounter::default(),
            ranges: RangeLocks::default(),
            buffers: BufferPool::default(),
            gate: RwLock::default(),
            data_blocks,
        }));
        disk.0.checkpoint(false).await?;
        Ok((disk, report))
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.data_blocks * BLOCK
    }

    /// Returns the unit below.
    #[must_use]
    pub fn medium(&self) -> &M {
        &self.0.medium
    }

    /// Returns the record of the disk.
    #[must_use]
    pub fn roots(&self) -> &R {
        &self.0.roots
    }

    /// Returns the keys.
    #[must_use]
    pub fn keys(&self) -> DiskKeys {
        Arc::clone(&self.0.keys)
    }

    /// Returns the last published root, to detect older ones later.
    #[must_use]
    pub fn root(&self) -> DiskRoot {
        self.0.state.lock().root
    }

    /// Returns the cursor of a new user, for [`E2eDisk::flush`].
    #[must_use]
    pub fn flush_cursor(&self) -> FlushCursor {
        self.0.losses.cursor()
    }

    /// Reads blocks.
    ///
    /// # Errors
    /// [`E2eError`]; then no byte of the range is returned.
    pub async fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>, E2eError> {
        let (_, blocks) = self.blocks(offset, length)?;
        self.read_into(offset, buffer_of(blocks)).await
    }

    /// Fills a buffer from `offset` on and returns it.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn read_into(&self, offset: u64, buffer: Vec<u8>) -> Result<Vec<u8>, E2eError> {
        let (lba, blocks) = self.blocks(offset, buffer.len() as u64)?;
        if blocks <= WRITE_BLOCKS_MAX as u64 {
            return self.read_piece(lba, buffer).await;
        }
        let mut data = Vec::with_capacity(buffer.len());
        for (lba, blocks) in pieces(lba, blocks, WRITE_BLOCKS_MAX as u64) {
            data.extend(self.read_piece(lba, buffer_of(blocks)).await?);
        }
        Ok(data)
    }

    async fn read_piece(&self, lba: u64, buffer: Vec<u8>) -> Result<Vec<u8>, E2eError> {
        let blocks = buffer.len() as u64 / BLOCK;
        let losses = self.0.losses.count();
        let piece = match self.0.read(lba, buffer).await {
            Err(E2eError::Mismatch(_)) if self.0.has_lost_writes_since(losses).await => {
                self.0.read(lba, buffer_of(blocks)).await
            }
            outcome => outcome,
        };
        if let Err(error) = piece.as_ref()
            && error.is_integrity_failure()
        {
            tracing::error!(lba, blocks, %error, "integrity failure; the read is refused");
        }
        piece
    }

    /// Writes blocks; `durable`: they are flushed before it returns.
    ///
    /// # Errors
    /// [`E2eError`]. After an error each block has its old or its new content.
    pub async fn write(&self, offset: u64, data: Bytes, durable: bool) -> Result<(), E2eError> {
        let (lba, blocks) = self.blocks(offset, data.len() as u64)?;
        let losses = self.0.losses.count();
        for (at, piece) in pieces(lba, blocks, WRITE_BLOCKS_MAX as u64) {
            let start = usize::try_from((at - lba) * BLOCK).unwrap_or(usize::MAX);
            let end = start + usize::try_from(piece * BLOCK).unwrap_or(usize::MAX);
            let bytes = data.slice(start..end);
            let write = || {
                let bytes = bytes.clone();
                self.run(move |disk| async move { disk.write(at, bytes).await })
            };
            match write().await {
                // A loss of earlier writes: the next flush reports it.
                Err(E2eError::LostWrites | E2eError::Reopening) => write().await?,
                outcome => outcome?,
            }
        }
        if durable { self.harden(losses).await } else { Ok(()) }
    }

    /// Makes blocks read as zeros and frees their space; `durable` is that of [`E2eDisk::write`].
    ///
    /// # Errors
    /// [`E2eError`].
    pub async fn unmap(&self, offset: u64, length: u64, durable: bool) -> Result<(), E2eError> {
        let (lba, blocks) = self.blocks(offset, length)?;
        let losses = self.0.losses.count();
        for (lba, piece) in pieces(lba, blocks, u64::from(UNMAP_BLOCKS_MAX)) {
            let unmap = || self.run(move |disk| async move { disk.unmap(lba, piece).await });
            match unmap().await {
                Err(E2eError::LostWrites | E2eError::Reopening) => unmap().await?,
                outcome => outcome?,
            }
        }
        if durable { self.harden(losses).await } else { Ok(()) }
    }

    /// Makes all acknowledged writes durable, and publishes them if the last root is old enough.
    ///
    /// # Errors
    /// `LostWrites` if acknowledged writes were lost, once for each cursor; another [`E2eError`].
    pub async fn flush(&self, cursor: &FlushCursor) -> Result<(), E2eError> {
        let outcome = self.run(|disk| async move { disk.flush().await }).await;
        let lost = self.0.losses.check(cursor).is_err();
        if lost { outcome.and(Err(E2eError::LostWrites)) } else { outcome }
    }

    async fn harden(&self, losses: u64) -> Result<(), E2eError> {
        self.run(|disk| async move { disk.flush().await }).await?;
        if self.0.losses.count() == losses { Ok(()) } else { Err(E2eError::LostWrites) }
    }

    /// Publishes what was flushed. The caller calls it once for each publish interval.
    ///
    /// # Errors
    /// [`E2eError`].
    pub async fn publish(&self) -> Result<(), E2eError> {
        self.run(|disk| async move {
            let _request = disk.begin(0).await?;
            disk.publish_durable().await
        })
        .await
    }

    /// Flushes and publishes everything, as the end of a use in order.
    ///
    /// # Errors
    /// [`E2eError`].
    pub async fn close(&self) -> Result<(), E2eError> {
        self.run(|disk| async move {
            drop(disk.begin(0).await?);
            let _gate = disk.gate.write().await;
            disk.checkpoint(true).await
        })
        .await
    }

    /// Returns which parts of an extent were written.
    ///
    /// # Errors
    /// [`E2eError`].
    pub async fn extents(&self, offset: u64, length: u64) -> Result<Vec<DiskExtent>, E2eError> {
        let (lba, blocks) = self.blocks(offset, length)?;
        let blocks = blocks.min(u64::from(UNMAP_BLOCKS_MAX));
        let _request = self.0.begin(0).await?;
        let entries = self.0.entries(lba, blocks).await?;
        let mut extents: Vec<DiskExtent> = Vec::new();
        for (at, entry) in (lba..).zip(entries) {
            let is_written = !entry.is_unwritten();
            match extents.last_mut().filter(|last| last.is_written == is_written) {
                Some(last) => last.length += BLOCK,
                None => extents.push(DiskExtent { offset: at * BLOCK, length: BLOCK, is_written }),
            }
        }
        Ok(extents)
    }

    /// Runs a request as a task of its own: it ends even if its caller does not wait for it.
    pub(super) async fn run<F>(&self, request: impl FnOnce(Arc<DiskInner<M, R>>) -> F) -> Result<(), E2eError>
    where
        F: Future<Output = Result<(), E2eError>> + Send + 'static,
    {
        let task = tokio::spawn(request(Arc::clone(&self.0)));
        task.await.unwrap_or(Err(E2eError::Internal("a request panicked")))
    }

    fn blocks(&self, offset: u64, length: u64) -> Result<(u64, u64), E2eError> {
        let is_aligned = offset.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK);
        match offset.checked_add(length) {
            Some(end) if is_aligned && end <= self.bytes() => Ok((offset / BLOCK, length / BLOCK)),
            _ => Err(E2eError::Extent { offset, length }),
        }
    }
}

impl<M: SealedMedium, R: RootStore> DiskInner<M, R> {
    /// Begins a request that may begin `records` records.
    pub(super) async fn begin(&self, records: u64) -> Result<RequestGuard<'_, M, R>, E2eError> {
        let mut reopens = 0;
        loop {
            if self.state.lock().is_fenced {
                return Err(RootStoreError::LeaseLost.into());
            }
            if self.state.lock().has_fault {
                if reopens == REOPENS_MAX {
                    return Err(E2eError::Internal("the disk could not be reopened"));
                }
                reopens += 1;
                self.reopen().await?;
            } else if self.needs_maintenance() && !self.maintain().await? {
                continue;
            }
            let gate = self.gate.read().await;
            {
                let mut state = self.state.lock();
                let is_free =
                    state.used_records() + state.reserved + records <= state.tree.layout().journal_blocks();
                if !state.has_fault && is_free {
                    state.reserved += records;
                    return Ok(RequestGuard { disk: self, records, _gate: gate });
                }
            }
            drop(gate);
            self.maintain().await?;
        }
    }

    /// Makes space in journal and memory. Returns whether the state can be used; false: the unit
    /// lost writes, which the next flush reports.
    async fn maintain(&self) -> Result<bool, E2eError> {
        let _gate = self.gate.write().await;
        let (is_usable, is_due) = {
            let state = self.state.lock();
            (!state.has_fault, state.used_records() > 0)
        };
        // Another request may have done it meanwhile.
        if is_usable && is_due {
            match self.checkpoint(false).await {
                Err(E2eError::LostWrites | E2eError::Reopening) => return Ok(false),
                outcome => outcome?,
            }
        }
        self.state.lock().tree.shrink();
        Ok(true)
    }

    /// Reads the state from the unit again, after it may differ from that in memory.
    async fn reopen(&self) -> Result<(), E2eError> {
        let _gate = self.gate.write().await;
        if !self.state.lock().has_fault {
            return Ok(());
        }
        let (options, own_leases) = {
            let state = self.state.lock();
            let options = E2eOptions { seen_root: Some(state.root), ..self.options.clone() };
            (options, [state.root.lease_epoch, state.sealer.lease()])
        };
        let loaded = {
            let _flushing = self.flushing.lock().await;
            open::load(&self.medium, &self.roots, &self.keys, &options).await
        };
        if matches!(loaded, Err(E2eError::LostWrites)) {
            self.losses.record();
        }
        let (state, report) = loaded?;
        if !own_leases.contains(&state.root.lease_epoch) {
            // Another client has written: caches above this disk are old.
            self.state.lock().is_fenced = true;
            return Err(RootStoreError::LeaseLost.into());
        }
        tracing::warn!(
            records = report.records,
            recovered_blocks = report.recovered_blocks,
            unreadable_blocks = report.unreadable_blocks,
            "disk reopened after the unit lost acknowledged writes"
        );
        *self.state.lock() = state;
        self.checkpoint(false).await
    }

    /// Whether the unit has lost writes since `losses` were counted. The next request opens the
    /// disk again, unless another one has done so.
    async fn has_lost_writes_since(&self, losses: u64) -> bool {
        let (has_fault, has_unflushed) = {
            let state = self.state.lock();
            (state.has_fault, state.has_unflushed())
        };
        let is_lost = has_fault
            || has_unflushed
                && matches!(self.flush_medium().await, Err(E2eError::LostWrites | E2eError::Reopening));
        is_lost || self.losses.count() != losses
    }

    /// Returns the entries of a range.
    pub(super) async fn entries(&self, lba: u64, blocks: u64) -> Result<Vec<BlockEntry>, E2eError> {
        loop {
            let (reads, sealer) = {
                let mut state = self.state.lock();
                let reads = state.tree.missing(lba, blocks)?;
                if reads.is_empty() {
                    let mut entries = Vec::new();
                    state.tree.entries(lba, blocks, &mut entries)?;
                    return Ok(entries);
                }
                (reads, state.sealer.clone())
            };
            for read in reads {
                let sealed = self.medium.read(read.block, 1).await?;
                self.state.lock().tree.insert(&read, &sealed, &sealer)?;
            }
        }
    }

    async fn read(&self, lba: u64, mut buffer: Vec<u8>) -> Result<Vec<u8>, E2eError> {
        let blocks = buffer.len() as u64 / BLOCK;
        let _request = self.begin(0).await?;
        let _range = self.ranges.lock(lba, blocks, false).await;
        let entries = self.entries(lba, blocks).await?;
        if entries.iter().all(BlockEntry::is_unwritten) {
            buffer.fill(0);
            return Ok(buffer);
        }
        let (sealer, place) = self.sealer_and_place(lba);
        let sealed = self.medium.read_into(place, self.buffers.take(buffer.len())).await?;
        if sealed.len() != buffer.len() {
            return Err(E2eError::Internal("the unit returned another number of bytes"));
        }
        Ok(open_blocks(&sealer, lba, entries, sealed, buffer, &self.buffers).await?)
    }

    pub(super) fn sealer_and_place(&self, lba: u64) -> (Arc<DiskSealer>, u64) {
        let state = self.state.lock();
        (state.sealer.clone(), state.tree.layout().data_block(lba))
    }

    async fn write(&self, lba: u64, data: Bytes) -> Result<(), E2eError> {
        let blocks = data.len() as u64 / BLOCK;
        let _request = self.begin(1).await?;
        let _range = self.ranges.lock(lba, blocks, true).await;
        self.write_locked(lba, data).await
    }

    /// Writes blocks of a range that the caller has locked, within its request.
    pub(super) async fn write_locked(&self, lba: u64, data: Bytes) -> Result<(), E2eError> {
        let blocks = data.len() as u64 / BLOCK;
        let is_overwrite = self.entries(lba, blocks).await?.iter().any(|entry| !entry.is_unwritten());
        let (sealer, place) = self.sealer_and_place(lba);
        let counter = self.state.lock().take_counters(blocks);
        let (sealed, tags) = seal_blocks(&sealer, lba, counter, &data, &self.buffers).await;
        let change = JournalChange::Write { lba, counter, tags: tags.clone() };
        let sequence = if is_overwrite {
            // The old or the new entry matches at any time.
            let sequence = self.journal(change, true).await?;
            self.write_data(place, sealed).await?;
            sequence
        } else {
            let (sequence, written) =
                tokio::join!(self.journal(change, false), self.write_data(place, sealed));
            written?;
            sequence?
        };
        let template = BlockEntry {
            key_epoch: sealer.ring().newest(),
            lease_epoch: sealer.lease(),
            ..BlockEntry::UNWRITTEN
        };
        let entries =
            tags.into_iter().zip(counter..).map(|(tag, counter)| BlockEntry { counter, tag, ..template });
        self.end_change(sequence, lba, entries)
    }

    /// Writes blocks after the records on which they depend. For blocks that read as zeros, that
    /// may be the record of an unmap.
    async fn write_data(&self, place: u64, sealed: Bytes) -> Result<(), E2eError> {
        let outcome = self.write_in_order(place, sealed).await;
        if outcome.is_err() {
            self.state.lock().has_fault = true;
        }
        outcome
    }

    async fn unmap(&self, lba: u64, blocks: u64) -> Result<(), E2eError> {
        let _request = self.begin(1).await?;
        let _range = self.ranges.lock(lba, blocks, true).await;
        if self.entries(lba, blocks).await?.iter().all(BlockEntry::is_unwritten) {
            return Ok(());
        }
        let count = u32::try_from(blocks).map_err(|_| E2eError::Internal("an unmap is too long"))?;
        let sequence = self.journal(JournalChange::Unmap { lba, blocks: count }, true).await?;
        let (_, place) = self.sealer_and_place(lba);
        if let Err(error) = self.medium.unmap(place, blocks).await {
            // The content does not matter any more.
            tracing::warn!(%error, "the unit did not free the space of blocks");
        }
        let zeros = std::iter::repeat_n(BlockEntry::UNWRITTEN, usize::try_from(blocks).unwrap_or_default());
        self.end_change(sequence, lba, zeros)
    }

    fn end_change(
        &self,
        sequence: u64,
        lba: u64,
        entries: impl Iterator<Item = BlockEntry>,
    ) -> Result<(), E2eError> {
        let mut state = self.state.lock();
        for (lba, entry) in (lba..).zip(entries) {
            state.tree.set_entry(lba, &entry)?;
        }
        state.end_change(sequence);
        Ok(())
    }

    async fn flush(&self) -> Result<(), E2eError> {
        let mut reopens = 0;
        let _request = loop {
            let request = self.begin(0).await?;
            match self.flush_medium().await {
                // Opening again finds all acknowledged writes that the unit has.
                Err(E2eError::Reopening) if reopens < REOPENS_MAX => reopens += 1,
                outcome => {
                    outcome?;
                    break request;
                }
            }
        };
        let is_due = self.state.lock().published.elapsed() >= self.options.publish_interval;
        if is_due { self.publish_durable().await } else { Ok(()) }
    }
}

fn buffer_of(blocks: u64) -> Vec<u8> {
    vec![0; usize::try_from(blocks * BLOCK).unwrap_or_default()]
}

/// Splits a range of blocks.
fn pieces(start: u64, blocks: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..blocks.div_ceil(most)).map(move |index| {
        let at = index * most;
        (start + at, most.min(blocks - at))
    })
}
