//! The backend that exports a block unit.

use bytes::Bytes;
use sealstone_block_client::{BlockError, BlockUnitClient, FlushCursor, ZeroMode};

use crate::{BlockBackend, ExportProperties, NbdError, StatusExtent};

/// A block unit, optionally read-only.
pub struct UnitBackend {
    unit: BlockUnitClient,
    is_read_only: bool,
}

impl UnitBackend {
    /// Exports `unit`.
    #[must_use]
    pub fn new(unit: BlockUnitClient, is_read_only: bool) -> Self {
        Self { unit, is_read_only }
    }
}

impl From<BlockError> for NbdError {
    fn from(error: BlockError) -> Self {
        match error {
            BlockError::NoSpace => Self::NoSpace,
            BlockError::WriteProtected => Self::ReadOnly,
            BlockError::OutOfRange { .. } => Self::Invalid("an extent beyond the end of the unit"),
            BlockError::Unaligned { .. } => Self::Invalid("an extent that is not aligned to blocks"),
            BlockError::Unsupported(command) => Self::Unsupported(command),
            error => {
                tracing::error!(%error, "NBD request failed");
                Self::Failed(error.to_string())
            }
        }
    }
}

impl BlockBackend for UnitBackend {
    fn properties(&self) -> ExportProperties {
        let geometry = self.unit.geometry();
        ExportProperties {
            bytes: geometry.bytes,
            block_min: geometry.block_bytes,
            block_preferred: geometry.physical_bytes.max(geometry.block_bytes).max(4096),
            is_read_only: self.is_read_only || geometry.is_read_only,
            can_trim: geometry.unmap_blocks_max > 0,
            has_fast_zero: geometry.unmaps_to_zeros,
        }
    }

    fn flush_cursor(&self) -> FlushCursor {
        self.unit.flush_cursor()
    }

    async fn read(&self, offset: u64, buffer: Vec<u8>) -> Result<Vec<u8>, NbdError> {
        Ok(self.unit.read_into(offset, buffer).await?)
    }

    async fn write(&self, offset: u64, data: Bytes, durable: bool) -> Result<(), NbdError> {
        Ok(self.unit.write(offset, data, durable).await?)
    }

    async fn flush(&self, cursor: &FlushCursor) -> Result<(), NbdError> {
        Ok(self.unit.flush(cursor).await?)
    }

    async fn trim(&self, offset: u64, length: u32, durable: bool) -> Result<(), NbdError> {
        Ok(self.unit.unmap(offset, u64::from(length), durable).await?)
    }

    async fn write_zeros(
        &self,
        offset: u64,
        length: u32,
        may_unmap: bool,
        durable: bool,
    ) -> Result<(), NbdError> {
        let mode = if may_unmap { ZeroMode::MayUnmap } else { ZeroMode::Allocate };
        Ok(self.unit.write_zeros(offset, u64::from(length), mode, durable).await?)
    }

    async fn status(&self, offset: u64, length: u32) -> Result<Vec<StatusExtent>, NbdError> {
        let reads_zeros = self.unit.geometry().unmaps_to_zeros;
        let extents = self.unit.allocation(offset, u64::from(length)).await?;
        Ok(extents
            .into_iter()
            .map(|extent| StatusExtent {
                // No extent is longer than the request.
                length: u32::try_from(extent.length).unwrap_or(length),
                is_hole: !extent.is_allocated,
                is_zero: !extent.is_allocated && reads_zeros,
            })
            .collect())
    }
}
