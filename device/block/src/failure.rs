//! Errors of block commands, and their sense data.
//!
//! Contract: no `_` arm over our own variants: a new variant must choose its sense data.
//! Truth: SBC-3 §4.10 (errors), SPC-4 §4.5 (sense data); `docs/standards/block.md`.

use sealstone_block_lazy::LazyError;
use sealstone_scsi::{FieldPointer, Sense, SenseKey, Status, additional};
use sealstone_store::StoreError;
use thiserror::Error;

/// Why a command failed.
#[derive(Debug, Error)]
pub(crate) enum BlockFailure {
    /// Unknown operation code.
    #[error("unknown operation code or service action")]
    OperationCode,
    /// Unknown service action of a known operation code.
    #[error("unknown service action")]
    ServiceAction,
    /// A field of the CDB has an invalid value.
    #[error("invalid field in CDB: {0:?}")]
    Field(FieldPointer),
    /// A field of the parameter list has an invalid value.
    #[error("invalid field in parameter list: {0:?}")]
    Parameter(FieldPointer),
    /// The parameter list has the wrong length.
    #[error("parameter list length error")]
    ParameterLength,
    /// The Data-Out Buffer does not have the length in the CDB.
    #[error("data-out does not have the {0} bytes of the CDB")]
    DataOutLength(u64),
    /// The first block beyond the capacity.
    #[error("block {0} is out of range")]
    OutOfRange(u64),
    /// The comparison failed. Offset of the first difference, if reported.
    #[error("miscompare")]
    Miscompare(Option<u64>),
    /// Another nexus has a conflicting reservation.
    #[error("reservation conflict")]
    Conflict,
    /// RELEASE with a type that differs from the reservation's.
    #[error("invalid release of a persistent reservation")]
    InvalidRelease,
    /// The limit of registrations is reached.
    #[error("too many registrations")]
    Registrations,
    /// SWP is set.
    #[error("software write protect")]
    WriteProtected,
    /// The medium is ejected.
    #[error("no medium")]
    NoMedium,
    /// Medium removal is prevented.
    #[error("medium removal prevented")]
    RemovalPrevented,
    /// The unit was removed.
    #[error("the unit was removed")]
    Gone,
    /// No buffer for the data. The initiator retries.
    #[error("no buffer")]
    NoBuffer,
    /// Acknowledged writes of the initiator may be lost after a power failure.
    #[error("unflushed writes may be lost after a power failure")]
    WritesLost,
    /// Keys and MACs are missing, or are not those of exactly the written blocks.
    #[error("keys and MACs of the written blocks are missing or do not fit")]
    NoSeals,
    /// The session has no keys of the unit, or those of an earlier epoch.
    #[error("the session does not have the current keys of the unit")]
    StaleUnitKeys,
    /// The keys of the unit cannot be used.
    #[error("the keys of the unit are unavailable")]
    KeysUnavailable,
    /// Reading blocks with keys failed.
    #[error("read failed")]
    LazyRead(#[source] LazyError),
    /// Writing blocks with keys failed, or verifying them.
    #[error("write failed")]
    LazyWrite(#[source] LazyError),
    /// Reading from the store failed. With the block shift for the sense data.
    #[error("read failed")]
    Read(#[source] StoreError, u32),
    /// Writing to the store failed.
    #[error("write failed")]
    Write(#[source] StoreError),
}

impl BlockFailure {
    /// Returns an error about a field of the CDB.
    pub(crate) const fn field(byte: u16) -> Self {
        Self::Field(FieldPointer::cdb(byte))
    }

    /// Returns an error about one bit of the CDB, or a field whose highest bit this is.
    pub(crate) const fn bit(byte: u16, bit: u8) -> Self {
        Self::Field(FieldPointer { in_cdb: true, byte, bit: Some(bit) })
    }

    /// Returns an error about a field of the parameter list.
    pub(crate) fn parameter(byte: usize) -> Self {
        Self::Parameter(FieldPointer::parameter(u16::try_from(byte).unwrap_or(u16::MAX)))
    }

    /// Returns a constructor of read errors for blocks of `1 << shift` bytes.
    pub(crate) const fn read(shift: u32) -> impl Fn(StoreError) -> Self {
        move |error| Self::Read(error, shift)
    }

    /// Returns the bytes of data-out that the command would have used, for the residual count.
    pub(crate) const fn data_out_wanted(&self) -> u64 {
        match self {
            Self::DataOutLength(wanted) => *wanted,
            _ => 0,
        }
    }

    /// Returns the status of the reply.
    pub(crate) const fn status(&self) -> Status {
        match self {
            Self::Conflict => Status::ReservationConflict,
            Self::NoBuffer => Status::Busy,
            _ => Status::CheckCondition,
        }
    }

    /// Returns the sense data of CHECK CONDITION.
    pub(crate) fn sense(&self) -> Sense {
        use SenseKey::{DataProtect, HardwareError, IllegalRequest, Miscompare, NotReady, UnitAttention};
        let illegal = |code| Sense::new(IllegalRequest, code);
        match self {
            Self::OperationCode => illegal(additional::INVALID_COMMAND_OPERATION_CODE),
            Self::ServiceAction => illegal(additional::INVALID_FIELD_IN_CDB).with_field(FieldPointer {
                in_cdb: true,
                byte: 1,
                bit: Some(4),
            }),
            Self::Field(field) => illegal(additional::INVALID_FIELD_IN_CDB).with_field(*field),
            Self::Parameter(field) => illegal(additional::INVALID_FIELD_IN_PARAMETER_LIST).with_field(*field),
            Self::ParameterLength => illegal(additional::PARAMETER_LIST_LENGTH_ERROR),
            Self::DataOutLength(_) | Self::NoSeals => {
                illegal(additional::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)
            }
            Self::StaleUnitKeys => Sense::new(UnitAttention, additional::UNIT_KEYS_CHANGED),
            Self::OutOfRange(lba) => {
                Sense { information: Some(*lba), ..illegal(additional::LBA_OUT_OF_RANGE) }
            }
            Self::Miscompare(offset) => {
                Sense { information: *offset, ..Sense::new(Miscompare, additional::MISCOMPARE_DURING_VERIFY) }
            }
            Self::InvalidRelease => illegal(additional::INVALID_RELEASE_OF_PERSISTENT_RESERVATION),
            Self::Registrations => illegal(additional::INSUFFICIENT_REGISTRATION_RESOURCES),
            Self::WriteProtected => Sense::new(DataProtect, additional::WRITE_PROTECTED),
            Self::NoMedium => Sense::new(NotReady, additional::MEDIUM_NOT_PRESENT),
            Self::RemovalPrevented => illegal(additional::MEDIUM_REMOVAL_PREVENTED),
            Self::Gone => illegal(additional::LOGICAL_UNIT_NOT_SUPPORTED),
            // These have a status without sense data.
            Self::Conflict | Self::NoBuffer => Sense::new(SenseKey::NoSense, additional::NO_ADDITIONAL_SENSE),
            Self::Read(StoreError::Damaged { offset, .. }, shift) => Sense {
                information: Some(offset >> shift),
                ..Sense::new(SenseKey::MediumError, additional::UNRECOVERED_READ_ERROR)
            },
            Self::Read(StoreError::IndexDamaged { .. }, _) => {
                Sense::new(SenseKey::MediumError, additional::UNRECOVERED_READ_ERROR)
            }
            Self::Read(_, _) => Sense::new(HardwareError, additional::INTERNAL_TARGET_FAILURE),
            Self::KeysUnavailable => Sense::new(NotReady, additional::MANUAL_INTERVENTION_REQUIRED),
            Self::LazyRead(error) => Sense {
                information: error.block(),
                ..Sense::new(SenseKey::MediumError, additional::UNRECOVERED_READ_ERROR)
            },
            Self::LazyWrite(error) => Sense {
                information: error.block(),
                ..Sense::new(SenseKey::MediumError, additional::WRITE_ERROR)
            },
            // Not MEDIUM ERROR: Linux would retry the command, and the retry would succeed.
            Self::WritesLost => Sense::new(HardwareError, additional::WRITE_ERROR),
            Self::Write(StoreError::NoSpace) => Sense::new(DataProtect, additional::SPACE_ALLOCATION_FAILED),
            // A partial rewrite of a damaged block: the remainder cannot be read.
            Self::Write(StoreError::Damaged { .. } | StoreError::IndexDamaged { .. }) => {
                Sense::new(SenseKey::MediumError, additional::WRITE_ERROR)
            }
            Self::Write(_) => Sense::new(HardwareError, additional::WRITE_ERROR),
        }
    }
}
