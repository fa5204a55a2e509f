//! The unit below an end-to-end protected disk, in blocks of 4 KiB.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use sealstone_block_e2e::BLOCK_LEN;

use crate::{BlockError, BlockUnitClient, FlushCursor};

const BLOCK: u64 = BLOCK_LEN as u64;

/// The promise about a write after a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteGuarantee {
    /// It may be lost, also if later writes survive.
    Nothing,
    /// It is lost only together with all changes that are sent after its acknowledgement. Such a
    /// change fails with [`BlockError::SessionReplaced`] if earlier ones may have been lost since
    /// the last flush. Only for a unit that keeps the order.
    Ordered,
    /// It survives: it is on stable storage before it is acknowledged.
    Durable,
}

/// A unit in blocks of 4 KiB. After a power failure each block has its old or its new content.
pub trait SealedMedium: Send + Sync + 'static {
    /// Returns the number of blocks.
    fn blocks(&self) -> u64;

    /// Whether the unit supports [`WriteGuarantee::Ordered`].
    fn keeps_order(&self) -> bool;

    /// Fills a buffer from `block` on and returns it.
    fn read_into(
        &self,
        block: u64,
        buffer: Vec<u8>,
    ) -> impl Future<Output = Result<Vec<u8>, BlockError>> + Send;

    /// Reads blocks.
    fn read(&self, block: u64, blocks: u64) -> impl Future<Output = Result<Vec<u8>, BlockError>> + Send {
        self.read_into(block, vec![0; usize::try_from(blocks * BLOCK).unwrap_or_default()])
    }

    /// Writes blocks.
    fn write(
        &self,
        block: u64,
        data: Bytes,
        guarantee: WriteGuarantee,
    ) -> impl Future<Output = Result<(), BlockError>> + Send;

    /// Frees the space of blocks; a hint. It is ordered if the unit keeps the order.
    fn unmap(&self, block: u64, blocks: u64) -> impl Future<Output = Result<(), BlockError>> + Send;

    /// Makes all acknowledged writes durable, or reports once that some were lost.
    fn flush(&self) -> impl Future<Output = Result<(), BlockError>> + Send;
}

/// A block unit as the medium of a protected disk.
pub struct UnitMedium {
    unit: BlockUnitClient,
    cursor: FlushCursor,
    /// Sessions whose changes are in order: those of before the last flush.
    ordered_sessions: AtomicU64,
}

impl UnitMedium {
    /// Uses `unit`.
    #[must_use]
    pub fn new(unit: BlockUnitClient) -> Self {
        let cursor = unit.flush_cursor();
        Self { unit, cursor, ordered_sessions: AtomicU64::new(0) }
    }

    /// Returns the unit.
    #[must_use]
    pub const fn unit(&self) -> &BlockUnitClient {
        &self.unit
    }
}

impl SealedMedium for UnitMedium {
    fn blocks(&self) -> u64 {
        self.unit.geometry().bytes / BLOCK
    }

    fn keeps_order(&self) -> bool {
        self.unit.geometry().keeps_order
    }

    async fn read_into(&self, block: u64, buffer: Vec<u8>) -> Result<Vec<u8>, BlockError> {
        self.unit.read_into(block * BLOCK, buffer).await
    }

    async fn write(&self, block: u64, data: Bytes, guarantee: WriteGuarantee) -> Result<(), BlockError> {
        let offset = block * BLOCK;
        if guarantee == WriteGuarantee::Ordered {
            let sessions = self.ordered_sessions.load(Ordering::SeqCst);
            return self.unit.write_ordered(offset, data, sessions).await;
        }
        self.unit.write(offset, data, guarantee == WriteGuarantee::Durable).await
    }

    async fn unmap(&self, block: u64, blocks: u64) -> Result<(), BlockError> {
        let (offset, length) = (block * BLOCK, blocks * BLOCK);
        if self.keeps_order() {
            let sessions = self.ordered_sessions.load(Ordering::SeqCst);
            return self.unit.unmap_ordered(offset, length, sessions).await;
        }
        self.unit.unmap(offset, length, false).await
    }

    async fn flush(&self) -> Result<(), BlockError> {
        let sessions = self.unit.sessions();
        self.unit.flush(&self.cursor).await?;
        self.ordered_sessions.fetch_max(sessions, Ordering::SeqCst);
        Ok(())
    }
}
