//! Gives blocks of end-to-end protected disks the new key after a rotation.
//!
//! Does: runs the steps of a pass while the disk is attached, and records its end.
//! Does not: seal blocks; `sealstone-block-client` does.

use std::time::{Duration, Instant};

use sealstone_block_client::e2e::{E2eDisk, E2eError, RootStore, RootStoreError, SealedMedium};
use sealstone_mds_protocol::Name;

/// Minimum pause between two steps; a longer step has a longer one.
const REWRITE_PAUSE: Duration = Duration::from_millis(5);
/// Pause after a step that failed.
const REWRITE_RETRY: Duration = Duration::from_secs(5);

/// Seals blocks of earlier keys again, in at most half of the time.
pub(crate) async fn rewrite<M: SealedMedium, R: RootStore>(disk: &E2eDisk<M, R>, name: &Name) {
    tracing::info!(disk = %name, "blocks of earlier keys get the new key");
    let (mut from, mut blocks, mut unreadable) = (0, 0, 0);
    while from < disk.data_blocks() {
        let began = Instant::now();
        match disk.rewrite_step(from).await {
            Ok(step) => {
                (from, blocks, unreadable) = (step.next, blocks + step.blocks, unreadable + step.unreadable);
                tokio::time::sleep(began.elapsed().max(REWRITE_PAUSE)).await;
            }
            Err(E2eError::RootStore(RootStoreError::LeaseLost)) => return,
            Err(error) => {
                tracing::warn!(disk = %name, %error, "blocks did not get the new key; trying again");
                tokio::time::sleep(REWRITE_RETRY).await;
            }
        }
    }
    if unreadable > 0 {
        tracing::error!(disk = %name, unreadable, "unreadable blocks keep their old key");
        return;
    }
    match disk.end_rewrite().await {
        Ok(()) => tracing::info!(disk = %name, blocks, "all blocks have the new key"),
        Err(error) => tracing::warn!(disk = %name, %error, "the end of the rewrite was not recorded"),
    }
}
