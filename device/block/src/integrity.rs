//! Integrity failures of block units: blocks, keys or versions that are not what was stored.
//!
//! Does: selects the failures that show damage or a forgery.
//! Does not: count or record them; the unit does. The audit log limits their rate.

use sealstone_block_lazy::LazyError;
use sealstone_store::StoreError;

use crate::failure::BlockFailure;

/// Kind of an integrity failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntegrityFailureKind {
    /// Acknowledged writes were not authentic and were deleted.
    WriteRejected,
    /// A write that had to be verified before its status was not authentic; nothing was written.
    WriteRefused,
    /// Blocks, keys or versions on the medium are damaged.
    Damaged,
    /// The keys or versions of the unit cannot be opened: the unit is unavailable.
    KeysUnavailable,
    /// A record of the unit is damaged: the unit is unavailable.
    RecordDamaged,
}

impl IntegrityFailureKind {
    /// Returns the reason in the audit log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteRejected => "write_rejected",
            Self::WriteRefused => "write_refused",
            Self::Damaged => "damaged",
            Self::KeysUnavailable => "keys_unavailable",
            Self::RecordDamaged => "record_damaged",
        }
    }
}

/// Blocks of a unit that are not what their writers stored.
#[derive(Clone, Copy, Debug)]
pub struct IntegrityFailure<'a> {
    /// Name of the block unit.
    pub unit: &'a str,
    /// Logical unit number.
    pub lun: u16,
    /// iSCSI name of the initiator that wrote or read; empty if it is unknown.
    pub initiator: &'a str,
    /// The kind of the failure.
    pub kind: IntegrityFailureKind,
    /// First block, if it is known.
    pub block: Option<u64>,
    /// Number of blocks, or of failed commands.
    pub count: u64,
}

/// Returns the kind and the block of a failed command that shows damage or a forgery.
pub(crate) const fn kind_of(failure: &BlockFailure) -> Option<(IntegrityFailureKind, Option<u64>)> {
    use IntegrityFailureKind::{Damaged, KeysUnavailable, WriteRefused};
    match failure {
        BlockFailure::KeysUnavailable => Some((KeysUnavailable, None)),
        BlockFailure::Read(StoreError::Damaged { offset, .. }, shift) => {
            Some((Damaged, Some(*offset >> *shift)))
        }
        BlockFailure::Read(StoreError::IndexDamaged { .. }, _)
        | BlockFailure::Write(StoreError::Damaged { .. } | StoreError::IndexDamaged { .. }) => {
            Some((Damaged, None))
        }
        BlockFailure::LazyRead(error) | BlockFailure::LazyWrite(error) => match error {
            LazyError::NotAuthentic(lba) => Some((WriteRefused, Some(*lba))),
            LazyError::KeyPageDamaged(lba) => Some((Damaged, Some(*lba))),
            LazyError::LogDamaged { .. }
            | LazyError::UnitKeysDamaged
            | LazyError::WrongPageSecret
            | LazyError::Store(StoreError::Damaged { .. } | StoreError::IndexDamaged { .. }) => {
                Some((Damaged, None))
            }
            _ => None,
        },
        _ => None,
    }
}
