//! Why a request to an end-to-end protected disk failed.

use sealstone_block_e2e::{
    DiskLayoutError, E2eMismatch, HeaderFormatError, JournalRecordError, RootError, TreeError,
};

use crate::BlockError;

/// Why the root could not be read or published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RootStoreError {
    /// Another client has the lease, or has published a root.
    #[error("another client has the lease of the disk; this client can no longer write")]
    LeaseLost,
    /// The store has no such disk.
    #[error("the metadata server has no record of this disk")]
    NotFound,
    /// The store did not answer, or refused; the outcome may be unknown.
    #[error("the root of the disk is unavailable: {0}")]
    Unavailable(String),
}

/// Why a request to an end-to-end protected disk failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum E2eError {
    /// The unit failed.
    #[error(transparent)]
    Unit(#[from] BlockError),
    /// A block is not what was written last.
    #[error("{0}; the unit's server or its medium changed it")]
    Mismatch(#[from] E2eMismatch),
    /// The root does not open.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The root is older than one that this client has seen, or another one of the same number.
    #[error(
        "the metadata server has an older or a forked root: version {found}, but this client has seen {seen}"
    )]
    RootRolledBack {
        /// The version of the root.
        found: u64,
        /// The version that the client has seen.
        seen: u64,
    },
    /// The unit lacks a record that was durable when the root was published.
    #[error("the unit was set back to an older state: {0}")]
    UnitRolledBack(#[from] JournalRecordError),
    /// The unit has no header of a protected disk.
    #[error(transparent)]
    Header(#[from] HeaderFormatError),
    /// The unit belongs to another disk.
    #[error("the unit has another disk than its record at the metadata server")]
    OtherDisk,
    /// The unit has another size than its disk.
    #[error("the unit has {found} blocks of 4 KiB, its disk has {expected}")]
    Size {
        /// Blocks of the unit.
        found: u64,
        /// Blocks of the disk.
        expected: u64,
    },
    /// The unit has an unsupported size.
    #[error(transparent)]
    Layout(#[from] DiskLayoutError),
    /// The root could not be read or published.
    #[error(transparent)]
    RootStore(#[from] RootStoreError),
    /// The unit lost acknowledged writes.
    #[error("the unit lost acknowledged writes that were not flushed")]
    LostWrites,
    /// The unit failed; the next request opens the disk again.
    #[error("the unit failed; the disk is being reopened")]
    Reopening,
    /// The extent is not within the disk, or not in whole blocks.
    #[error("bytes {offset} to {} are not whole blocks of 4 KiB within the disk", .offset.saturating_add(*.length))]
    Extent {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// A node of the tree was needed and not read: an error of this program.
    #[error("internal error: {0}")]
    Internal(&'static str),
}

impl From<TreeError> for E2eError {
    fn from(error: TreeError) -> Self {
        match error {
            TreeError::Mismatch(mismatch) => Self::Mismatch(mismatch),
            TreeError::Absent(_) => Self::Internal("a node of the integrity tree is not in memory"),
        }
    }
}

impl E2eError {
    /// Whether the error shows that data, key or root are not those of the last writer: a matter
    /// for the audit log.
    #[must_use]
    pub const fn is_integrity_failure(&self) -> bool {
        matches!(
            self,
            Self::Mismatch(_)
                | Self::Root(_)
                | Self::RootRolledBack { .. }
                | Self::UnitRolledBack(_)
                | Self::Header(_)
                | Self::OtherDisk
        )
    }
}
