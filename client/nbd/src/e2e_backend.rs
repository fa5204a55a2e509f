//! The backend that exports an end-to-end protected disk.

use bytes::Bytes;
use sealstone_block_client::FlushCursor;
use sealstone_block_client::e2e::{E2eDisk, E2eError, RootStore, SealedMedium};

use crate::{BlockBackend, ExportProperties, NbdError, StatusExtent};

/// Bytes of a block of the disk.
const BLOCK: u32 = 4096;

/// A protected disk, optionally read-only.
pub struct E2eBackend<M, R> {
    disk: E2eDisk<M, R>,
    is_read_only: bool,
    /// Receives the text of each integrity failure.
    report: Box<dyn Fn(String) + Send + Sync>,
}

impl<M: SealedMedium, R: RootStore> E2eBackend<M, R> {
    /// Exports `disk`. `report` is called for each integrity failure, with its text.
    pub fn new(
        disk: E2eDisk<M, R>,
        is_read_only: bool,
        report: impl Fn(String) + Send + Sync + 'static,
    ) -> Self {
        Self { disk, is_read_only, report: Box::new(report) }
    }

    fn failed(&self, error: E2eError) -> NbdError {
        if error.is_integrity_failure() {
            (self.report)(error.to_string());
        }
        match error {
            E2eError::Unit(error) => error.into(),
            E2eError::Extent { .. } => NbdError::Invalid("an extent that is not whole blocks of the disk"),
            error => {
                tracing::error!(%error, "NBD request failed");
                NbdError::Failed(error.to_string())
            }
        }
    }
}

impl<M: SealedMedium, R: RootStore> BlockBackend for E2eBackend<M, R> {
    fn properties(&self) -> ExportProperties {
        ExportProperties {
            bytes: self.disk.bytes(),
            block_min: BLOCK,
            block_preferred: BLOCK,
            is_read_only: self.is_read_only,
            can_trim: true,
            has_fast_zero: true,
        }
    }

    fn flush_cursor(&self) -> FlushCursor {
        self.disk.flush_cursor()
    }

    async fn read(&self, offset: u64, buffer: Vec<u8>) -> Result<Vec<u8>, NbdError> {
        self.disk.read_into(offset, buffer).await.map_err(|error| self.failed(error))
    }

    async fn write(&self, offset: u64, data: Bytes, durable: bool) -> Result<(), NbdError> {
        self.disk.write(offset, data, durable).await.map_err(|error| self.failed(error))
    }

    async fn flush(&self, cursor: &FlushCursor) -> Result<(), NbdError> {
        self.disk.flush(cursor).await.map_err(|error| self.failed(error))
    }

    async fn trim(&self, offset: u64, length: u32, durable: bool) -> Result<(), NbdError> {
        self.disk.unmap(offset, u64::from(length), durable).await.map_err(|error| self.failed(error))
    }

    /// Zeros take no space, whether or not they may be unmapped: the tree has them.
    async fn write_zeros(&self, offset: u64, length: u32, _: bool, durable: bool) -> Result<(), NbdError> {
        self.trim(offset, length, durable).await
    }

    async fn status(&self, offset: u64, length: u32) -> Result<Vec<StatusExtent>, NbdError> {
        let extents =
            self.disk.extents(offset, u64::from(length)).await.map_err(|error| self.failed(error))?;
        Ok(extents
            .into_iter()
            .map(|extent| StatusExtent {
                // No extent is longer than the request.
                length: u32::try_from(extent.length).unwrap_or(length),
                is_hole: !extent.is_written,
                is_zero: !extent.is_written,
            })
            .collect())
    }
}
