//! Seals blocks of earlier key epochs again, after the key was replaced.
//!
//! Does: one bounded step at a time, between the requests of users; records in the root that no old
//! block is left.
//! Does not: choose the pace; the caller does.
//! Contract: a block has its content before, during and after a step, also after a power failure. A
//! pass that was interrupted begins again, and skips what it has done.

use std::sync::Arc;

use bytes::Bytes;
use sealstone_block_e2e::{BLOCK_LEN, BlockEntry, DiskRoot, FANOUT, KeyEpoch};

use super::cipher::open_blocks;
use super::disk::{DiskInner, E2eDisk};
use super::{E2eError, RootStore, SealedMedium};

/// Parts of the disk without old blocks that one step passes.
const PARTS_MAX: u64 = 256;

/// Outcome of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RewriteStep {
    /// Block at which the next step begins; the end of the disk: the pass is complete.
    pub next: u64,
    /// Blocks that were sealed again.
    pub blocks: u64,
    /// Blocks that do not match their tags. They remain as they are.
    pub unreadable: u64,
}

impl<M: SealedMedium, R: RootStore> E2eDisk<M, R> {
    /// Returns the number of blocks, at which a pass ends.
    #[must_use]
    pub fn data_blocks(&self) -> u64 {
        self.0.data_blocks
    }

    /// Whether blocks of earlier key epochs may be left.
    #[must_use]
    pub fn has_old_keys(&self) -> bool {
        self.0.state.lock().root.oldest_key < self.0.keys.newest() && self.0.keys.newest() > KeyEpoch(1)
    }

    /// Seals the next blocks of earlier key epochs again: at most 128 neighbouring ones.
    ///
    /// # Errors
    /// [`E2eError`].
    pub async fn rewrite_step(&self, from: u64) -> Result<RewriteStep, E2eError> {
        let disk = Arc::clone(&self.0);
        // A step ends even if its caller does not wait for it.
        let task = tokio::spawn(async move { disk.rewrite_step(from).await });
        task.await.unwrap_or(Err(E2eError::Internal("a request panicked")))
    }

    /// Records that no block of an earlier key epoch is left. The caller has completed a pass
    /// without unreadable blocks.
    ///
    /// # Errors
    /// [`E2eError`].
    pub async fn end_rewrite(&self) -> Result<(), E2eError> {
        let oldest_key = self.0.keys.newest();
        self.run(move |disk| async move {
            drop(disk.begin(0).await?);
            let _gate = disk.gate.write().await;
            disk.checkpoint_with(|root| DiskRoot { oldest_key, is_clean: false, ..root }).await
        })
        .await
    }
}

impl<M: SealedMedium, R: RootStore> DiskInner<M, R> {
    async fn rewrite_step(&self, from: u64) -> Result<RewriteStep, E2eError> {
        let newest = self.keys.newest();
        let is_old = |entry: &BlockEntry| !entry.is_unwritten() && entry.key_epoch < newest;
        let mut lba = from;
        for _ in 0..PARTS_MAX {
            if lba >= self.data_blocks {
                break;
            }
            let end = (lba / FANOUT + 1).saturating_mul(FANOUT).min(self.data_blocks);
            let _request = self.begin(1).await?;
            let _range = self.ranges.lock(lba, end - lba, true).await;
            let entries = self.entries(lba, end - lba).await?;
            let Some(skipped) = entries.iter().position(is_old) else {
                lba = end;
                continue;
            };
            let run: Vec<BlockEntry> = entries[skipped..].iter().copied().take_while(is_old).collect();
            let (first, blocks) = (lba + skipped as u64, run.len() as u64);
            let (sealer, place) = self.sealer_and_place(first);
            let sealed = self.medium.read(place, blocks).await?;
            if sealed.len() != run.len() * BLOCK_LEN {
                return Err(E2eError::Internal("the unit returned another number of bytes"));
            }
            let next = first + blocks;
            let buffer = vec![0; sealed.len()];
            return match open_blocks(&sealer, first, run, sealed, buffer, &self.buffers).await {
                Ok(data) => {
                    self.write_locked(first, Bytes::from(data)).await?;
                    Ok(RewriteStep { next, blocks, unreadable: 0 })
                }
                Err(error) => {
                    tracing::error!(first, blocks, %error, "integrity failure while blocks get the new key");
                    Ok(RewriteStep { next, blocks: 0, unreadable: blocks })
                }
            };
        }
        Ok(RewriteStep { next: lba.min(self.data_blocks), ..RewriteStep::default() })
    }
}
