//! The unit below an end-to-end protected disk, in blocks of 4 KiB.

use bytes::Bytes;
use sealstone_block_e2e::BLOCK_LEN;

use crate::{BlockError, BlockUnitClient, FlushCursor};

const BLOCK: u64 = BLOCK_LEN as u64;

/// A unit in blocks of 4 KiB. After a power failure each block has its old or its new content.
pub trait SealedMedium: Send + Sync + 'static {
    /// Returns the number of blocks.
    fn blocks(&self) -> u64;

    /// Reads blocks.
    fn read(&self, block: u64, blocks: u64) -> impl Future<Output = Result<Vec<u8>, BlockError>> + Send;

    /// Writes blocks; `durable`: they are on stable storage before it returns.
    fn write(
        &self,
        block: u64,
        data: Bytes,
        durable: bool,
    ) -> impl Future<Output = Result<(), BlockError>> + Send;

    /// Frees the space of blocks; a hint.
    fn unmap(&self, block: u64, blocks: u64) -> impl Future<Output = Result<(), BlockError>> + Send;

    /// Makes all acknowledged writes durable, or reports once that some were lost.
    fn flush(&self) -> impl Future<Output = Result<(), BlockError>> + Send;
}

/// A block unit as the medium of a protected disk.
pub struct UnitMedium {
    unit: BlockUnitClient,
    cursor: FlushCursor,
}

impl UnitMedium {
    /// Uses `unit`.
    #[must_use]
    pub fn new(unit: BlockUnitClient) -> Self {
        let cursor = unit.flush_cursor();
        Self { unit, cursor }
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

    async fn read(&self, block: u64, blocks: u64) -> Result<Vec<u8>, BlockError> {
        self.unit.read(block * BLOCK, blocks * BLOCK).await
    }

    async fn write(&self, block: u64, data: Bytes, durable: bool) -> Result<(), BlockError> {
        self.unit.write(block * BLOCK, data, durable).await
    }

    async fn unmap(&self, block: u64, blocks: u64) -> Result<(), BlockError> {
        self.unit.unmap(block * BLOCK, blocks * BLOCK, false).await
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.unit.flush(&self.cursor).await
    }
}
