//! Publishes roots, and writes the changed nodes of the tree before the journal is full.

use bytes::Bytes;
use sealstone_block_e2e::DiskRoot;
use tokio::time::Instant;

use super::disk::DiskInner;
use super::state::CHANGED_BLOCKS_MAX;
use super::{E2eError, RootStore, RootStoreError, SealedMedium, WriteGuarantee};
use crate::BlockError;

impl<M: SealedMedium, R: RootStore> DiskInner<M, R> {
    /// Flushes the unit. A loss is counted, for the flush of each user, and the state is unusable.
    pub(super) async fn flush_medium(&self) -> Result<(), E2eError> {
        // The unit reports a loss to one flush: another one at the same time would seem to succeed.
        let _flushing = self.flushing.lock().await;
        let scope = {
            let state = self.state.lock();
            if state.has_fault {
                return Err(E2eError::Reopening);
            }
            state.begin_flush()
        };
        match self.medium.flush().await {
            Ok(()) => {
                self.state.lock().end_flush(scope);
                Ok(())
            }
            Err(BlockError::LostWrites) => {
                tracing::error!("the unit lost acknowledged writes; reading its journal again");
                self.state.lock().has_fault = true;
                self.losses.record();
                Err(E2eError::LostWrites)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a checkpoint or less memory is due.
    pub(super) fn needs_maintenance(&self) -> bool {
        let state = self.state.lock();
        state.used_records() * 2 >= state.tree.layout().journal_blocks()
            || state.changed_blocks >= CHANGED_BLOCKS_MAX
            || state.tree.dirty() >= self.options.cache_nodes
            || state.tree.cached() > self.options.cache_nodes * 2
    }

    /// Waits for all requests in progress, and makes the journal empty. The caller holds the gate.
    pub(super) async fn checkpoint(&self, is_clean: bool) -> Result<(), E2eError> {
        self.checkpoint_with(|root| DiskRoot { is_clean, ..root }).await
    }

    /// As [`Self::checkpoint`], with a further change of the root.
    pub(super) async fn checkpoint_with(
        &self,
        change: impl FnOnce(DiskRoot) -> DiskRoot,
    ) -> Result<(), E2eError> {
        let outcome = self.write_checkpoint(change).await;
        if outcome.is_err() {
            // Nodes in memory are marked as unchanged, but are not published.
            self.state.lock().has_fault = true;
        }
        outcome
    }

    async fn write_checkpoint(&self, change: impl FnOnce(DiskRoot) -> DiskRoot) -> Result<(), E2eError> {
        let (writes, top, last) = {
            let mut state = self.state.lock();
            let sealer = state.sealer.clone();
            // Each changed node and each of its ancestors has one counter.
            let nodes = (state.tree.dirty() as u64 + 1) * u64::from(state.tree.layout().top().level);
            let mut counter = state.take_counters(nodes);
            let mut next = || {
                counter += 1;
                counter - 1
            };
            let writes = state.tree.checkpoint(&sealer, &mut next)?;
            (writes, *state.tree.top(), state.last())
        };
        for write in writes {
            let bytes = Bytes::from(write.bytes as Box<[u8]>);
            self.medium.write(write.block, bytes, WriteGuarantee::Nothing).await?;
        }
        self.flush_medium().await?;
        self.publish_root(|root| change(DiskRoot { top, checkpoint: last, journal: last, ..root })).await?;
        let mut state = self.state.lock();
        state.changed_blocks = 0;
        state.tree.shrink();
        Ok(())
    }

    /// Publishes the records that are durable, unless the root has them.
    pub(super) async fn publish_durable(&self) -> Result<(), E2eError> {
        let _publisher = self.publisher.lock().await;
        let (durable, published) = {
            let state = self.state.lock();
            (state.durable(), state.root.journal)
        };
        if durable.0 <= published.0 {
            return Ok(());
        }
        self.publish_root(|root| DiskRoot { journal: durable, is_clean: false, ..root }).await
    }

    /// Publishes a root that follows the last one. The caller excludes others.
    pub(super) async fn publish_root(
        &self,
        change: impl FnOnce(DiskRoot) -> DiskRoot,
    ) -> Result<(), E2eError> {
        let (sealer, before) = {
            let state = self.state.lock();
            (state.sealer.clone(), state.root)
        };
        let root = change(DiskRoot { version: before.version + 1, lease_epoch: sealer.lease(), ..before });
        let sealed = root.seal(&sealer);
        if let Err(error) = self.roots.publish(sealer.lease(), Some(before.version), sealed).await {
            let mut state = self.state.lock();
            // The outcome may be unknown: the root is read again.
            state.has_fault = true;
            state.is_fenced |= error == RootStoreError::LeaseLost;
            return Err(error.into());
        }
        let mut state = self.state.lock();
        (state.root, state.published) = (root, Instant::now());
        Ok(())
    }
}
