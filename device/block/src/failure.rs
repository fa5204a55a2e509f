//! Why a command failed, and what the initiator hears.
//!
//! Contract: no `_` arm over our own variants: a new one must choose what it says.
//! Truth: SBC-3 §4.10 (errors), SPC-4 §4.5 (sense data); `docs/standards/block.md`.

use sealstone_scsi::{FieldPointer, Sense, SenseKey, Status, additional};
use sealstone_store::StoreError;
use thiserror::Error;

/// Why a command failed.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// No command of this unit.
    #[error("unknown operation code or service action")]
    OperationCode,
    /// No service action of this operation code.
    #[error("unknown service action")]
    ServiceAction,
    /// A field of the CDB has a value it must not have.
    #[error("invalid field in CDB: {0:?}")]
    Field(FieldPointer),
    /// A field of the parameter list has a value it must not have.
    #[error("invalid field in parameter list: {0:?}")]
    Parameter(FieldPointer),
    /// The parameter list is shorter or longer than it has to be.
    #[error("parameter list length error")]
    ParameterLength,
    /// The Data-Out Buffer is not as long as the command says: the transport and the CDB contradict each other.
    #[error("data-out does not have the {0} bytes that the command says")]
    DataOutLength(u64),
    /// The first block beyond the capacity.
    #[error("block {0} is out of range")]
    OutOfRange(u64),
    /// The comparison failed; bytes before the first that differ, where that is told.
    #[error("miscompare")]
    Miscompare(Option<u64>),
    /// Another nexus has it reserved.
    #[error("reservation conflict")]
    Conflict,
    /// RELEASE with another type than the reservation's.
    #[error("invalid release of a persistent reservation")]
    InvalidRelease,
    /// More registrations than are kept.
    #[error("too many registrations")]
    Registrations,
    /// SWP is set.
    #[error("software write protect")]
    WriteProtected,
    /// Ejected.
    #[error("no medium")]
    NoMedium,
    /// Ejecting is prevented.
    #[error("medium removal prevented")]
    RemovalPrevented,
    /// The unit was removed.
    #[error("the unit is gone")]
    Gone,
    /// No buffer for the data: the initiator tries again.
    #[error("no buffer")]
    NoBuffer,
    /// Acknowledged writes of the initiator may be lost after a power failure.
    #[error("unflushed writes may be lost after a power failure")]
    WritesLost,
    /// The store failed while reading.
    #[error("reading")]
    Read(#[source] StoreError, u32),
    /// The store failed while writing.
    #[error("writing")]
    Write(#[source] StoreError),
}

impl Failure {
    /// A field of the CDB.
    pub(crate) const fn field(byte: u16) -> Self {
        Self::Field(FieldPointer::cdb(byte))
    }

    /// One bit of the CDB, or a field whose highest bit this is.
    pub(crate) const fn bit(byte: u16, bit: u8) -> Self {
        Self::Field(FieldPointer { in_cdb: true, byte, bit: Some(bit) })
    }

    /// A field of the parameter list.
    pub(crate) fn parameter(byte: usize) -> Self {
        Self::Parameter(FieldPointer::parameter(u16::try_from(byte).unwrap_or(u16::MAX)))
    }

    /// A failure of reading blocks of `1 << shift` bytes.
    pub(crate) const fn read(shift: u32) -> impl Fn(StoreError) -> Self {
        move |error| Self::Read(error, shift)
    }

    /// Bytes of data-out that the command would have used: the residual tells.
    pub(crate) const fn data_out_wanted(&self) -> u64 {
        match self {
            Self::DataOutLength(wanted) => *wanted,
            _ => 0,
        }
    }

    /// CHECK CONDITION, or the status that stands alone.
    pub(crate) const fn status(&self) -> Status {
        match self {
            Self::Conflict => Status::ReservationConflict,
            Self::NoBuffer => Status::Busy,
            _ => Status::CheckCondition,
        }
    }

    /// What CHECK CONDITION comes with.
    pub(crate) fn sense(&self) -> Sense {
        use SenseKey::{DataProtect, HardwareError, IllegalRequest, Miscompare, NotReady};
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
            Self::DataOutLength(_) => illegal(additional::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT),
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
            // Told by their status alone.
            Self::Conflict | Self::NoBuffer => Sense::new(SenseKey::NoSense, additional::NO_ADDITIONAL_SENSE),
            Self::Read(StoreError::Damaged { offset, .. }, shift) => Sense {
                information: Some(offset >> shift),
                ..Sense::new(SenseKey::MediumError, additional::UNRECOVERED_READ_ERROR)
            },
            Self::Read(StoreError::IndexDamaged { .. }, _) => {
                Sense::new(SenseKey::MediumError, additional::UNRECOVERED_READ_ERROR)
            }
            Self::Read(_, _) => Sense::new(HardwareError, additional::INTERNAL_TARGET_FAILURE),
            // Not MEDIUM ERROR: Linux repeats the command then, and the repetition succeeds.
            Self::WritesLost => Sense::new(HardwareError, additional::WRITE_ERROR),
            Self::Write(StoreError::NoSpace) => Sense::new(DataProtect, additional::SPACE_ALLOCATION_FAILED),
            // A rewrite of a part of a damaged block: the rest cannot be read.
            Self::Write(StoreError::Damaged { .. } | StoreError::IndexDamaged { .. }) => {
                Sense::new(SenseKey::MediumError, additional::WRITE_ERROR)
            }
            Self::Write(_) => Sense::new(HardwareError, additional::WRITE_ERROR),
        }
    }
}
