//! Errors of a lazily protected unit.

use sealstone_store::StoreError;
use thiserror::Error;

/// Why an operation on a lazily protected unit failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LazyError {
    /// The unit's level keeps no keys at the target.
    #[error("level {0} stores no block keys")]
    Level(&'static str),
    /// Keys, MACs and data of a write are not for the same number of blocks, or there are none.
    #[error("write of {data} bytes has {keys} keys and {macs} MACs")]
    Shape {
        /// Bytes of data.
        data: usize,
        /// Number of keys.
        keys: usize,
        /// Number of MACs.
        macs: usize,
    },
    /// Blocks beyond the end of the unit, or more than one operation may have.
    #[error("{count} blocks at {lba} are not within the unit, or too many")]
    Range {
        /// First block.
        lba: u64,
        /// Number of blocks.
        count: u64,
    },
    /// A write used the keys of a block that was never written.
    #[error("keys of block {0} are zero")]
    ZeroKeys(u64),
    /// A verified write is not authentic; nothing was written.
    #[error("block {0} of the write is not authentic")]
    NotAuthentic(u64),
    /// An acknowledged write of this block was not authentic and was deleted. The block is readable
    /// again after the next write.
    #[error("an acknowledged write of block {0} was lost: it was not authentic")]
    WriteLost(u64),
    /// The block has no version of this age.
    #[error("block {lba} has no version {back} before the newest")]
    NoVersion {
        /// The block.
        lba: u64,
        /// Requested number of versions before the newest.
        back: usize,
    },
    /// The version log is full until versions are verified.
    #[error("version log is full: {used} of {max} bytes; retry")]
    Busy {
        /// Bytes in use.
        used: u64,
        /// Capacity of the log.
        max: u64,
    },
    /// The version log of the unit could never accept its longest write.
    #[error("version log of {max} bytes is too small: the longest write of the unit takes {needed}")]
    LogTooSmall {
        /// Capacity of the log.
        max: u64,
        /// Bytes of the records of the longest write.
        needed: u64,
    },
    /// Keys were changed or moved on the medium, or were sealed under another secret. Verification
    /// fails too, so that a wrong secret deletes no version.
    #[error("keys of block {0} are damaged")]
    KeyPageDamaged(u64),
    /// A record of the version log is damaged.
    #[error("version log is damaged at {offset} of segment {segment}")]
    LogDamaged {
        /// Number of the segment.
        segment: u32,
        /// Offset of the record.
        offset: u64,
    },
    /// All version numbers were used.
    #[error("version numbers of the unit are exhausted")]
    VersionsExhausted,
    /// The unit's secret for keys at rest is missing or superfluous for its profile.
    #[error("profile {0} and the secret for stored keys do not match: only paper+safe and modern have one")]
    PageSecret(&'static str),
    /// The stored keys of blocks were sealed under another secret, or what shows this is damaged.
    #[error("keys of blocks are damaged or were sealed under another secret")]
    WrongPageSecret,
    /// The generation of a block is not of the session that writes, or of an earlier epoch.
    #[error("generation of block {0} is not one of the session: request the keys of the unit")]
    StaleGeneration(u64),
    /// The unit has no key of its own.
    #[error("profile {0} derives no keys from a key of the unit")]
    NoUnitKeys(&'static str),
    /// The stored keys of the unit were changed, removed, or sealed under another secret.
    #[error("keys of the unit are damaged or were sealed under another secret")]
    UnitKeysDamaged,
    /// The unit keeps the keys of as many epochs as it can.
    #[error("limit of {0} key epochs reached: copy the data to a new unit")]
    EpochsExhausted(usize),
    /// All numbers of sessions were used.
    #[error("session numbers of the unit are exhausted: copy the data to a new unit")]
    SessionsExhausted,
    /// The store failed.
    #[error("store failed")]
    Store(#[from] StoreError),
}

impl LazyError {
    /// Returns the block of the error, if it concerns one.
    #[must_use]
    pub const fn block(&self) -> Option<u64> {
        match self {
            Self::ZeroKeys(lba)
            | Self::NotAuthentic(lba)
            | Self::WriteLost(lba)
            | Self::StaleGeneration(lba)
            | Self::KeyPageDamaged(lba)
            | Self::NoVersion { lba, .. } => Some(*lba),
            _ => None,
        }
    }

    /// Whether only the blocks of one page or record are damaged.
    pub(crate) const fn is_local_damage(&self) -> bool {
        matches!(
            self,
            Self::KeyPageDamaged(_)
                | Self::Store(StoreError::Damaged { .. } | StoreError::IndexDamaged { .. })
        )
    }
}
