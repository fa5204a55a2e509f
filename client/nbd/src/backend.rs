//! The interface of an NBD server to a disk: properties, reads, writes, flushes, unmaps, block
//! status.

use bytes::Bytes;
use sealstone_block_client::FlushCursor;

/// Size and abilities of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportProperties {
    /// Size in bytes.
    pub bytes: u64,
    /// Alignment of all requests, a power of two.
    pub block_min: u32,
    /// Alignment and length of efficient requests, a power of two.
    pub block_preferred: u32,
    /// Whether writes are refused.
    pub is_read_only: bool,
    /// Whether TRIM frees space.
    pub can_trim: bool,
    /// Whether writing zeros without allocation is faster than writing data.
    pub has_fast_zero: bool,
}

/// The status of consecutive bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusExtent {
    /// Number of bytes.
    pub length: u32,
    /// Whether they take no space.
    pub is_hole: bool,
    /// Whether they read as zeros.
    pub is_zero: bool,
}

/// A failure that a client of the export sees.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// A change of a read-only export (EPERM).
    #[error("the export is read-only")]
    ReadOnly,
    /// A failure of the disk, with the cause (EIO).
    #[error("{0}")]
    Failed(String),
    /// A malformed request, with the wrong field (EINVAL).
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// The disk has no space (ENOSPC).
    #[error("no space left on the disk")]
    NoSpace,
    /// A write beyond the end (ENOSPC).
    #[error("a write beyond the end of the export")]
    PastEnd,
    /// A request that the disk cannot fulfil (ENOTSUP).
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// A request after the end of the export (ESHUTDOWN).
    #[error("the server is stopping")]
    Stopping,
}

impl NbdError {
    /// Returns the error number of the protocol.
    #[must_use]
    pub const fn code(&self) -> u32 {
        match self {
            Self::ReadOnly => 1,
            Self::Failed(_) => 5,
            Self::Invalid(_) => 22,
            Self::NoSpace | Self::PastEnd => 28,
            Self::Unsupported(_) => 95,
            Self::Stopping => 108,
        }
    }
}

/// A disk behind an export. Offsets and lengths are multiples of `block_min` and within the size.
pub trait BlockBackend: Send + Sync + 'static {
    /// Returns size and abilities, which do not change.
    fn properties(&self) -> ExportProperties;

    /// Returns the cursor of a new connection, for [`BlockBackend::flush`].
    fn flush_cursor(&self) -> FlushCursor;

    /// Fills `buffer` from `offset` on, and returns it.
    fn read(&self, offset: u64, buffer: Vec<u8>) -> impl Future<Output = Result<Vec<u8>, NbdError>> + Send;

    /// Writes; `durable`: the data are on stable storage before it returns. Its failure does not
    /// count as a report of lost writes by [`BlockBackend::flush`].
    fn write(
        &self,
        offset: u64,
        data: Bytes,
        durable: bool,
    ) -> impl Future<Output = Result<(), NbdError>> + Send;

    /// Makes all acknowledged writes durable. Fails if acknowledged writes were lost, once for each
    /// cursor.
    fn flush(&self, cursor: &FlushCursor) -> impl Future<Output = Result<(), NbdError>> + Send;

    /// Frees the space of an extent; a hint. `durable` is that of [`BlockBackend::write`].
    fn trim(
        &self,
        offset: u64,
        length: u32,
        durable: bool,
    ) -> impl Future<Output = Result<(), NbdError>> + Send;

    /// Writes zeros; `may_unmap`: they need no space. `durable` is that of [`BlockBackend::write`].
    fn write_zeros(
        &self,
        offset: u64,
        length: u32,
        may_unmap: bool,
        durable: bool,
    ) -> impl Future<Output = Result<(), NbdError>> + Send;

    /// Returns the status of at least the first block of an extent, in order and without gaps.
    fn status(
        &self,
        offset: u64,
        length: u32,
    ) -> impl Future<Output = Result<Vec<StatusExtent>, NbdError>> + Send;
}
