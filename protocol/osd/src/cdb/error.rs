//! Why bytes are no CDB, and which sense data says so.

use sealstone_scsi::{AdditionalSense, FieldPointer, Sense, SenseKey, additional};
use thiserror::Error;

/// A CDB that cannot be read; [`CdbError::sense`] is what the initiator hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CdbError {
    /// Not the variable-length operation code 7Fh: the SPC commands may know it.
    #[error("operation code {0:#04x} is not an OSD command")]
    OperationCode(u8),
    /// Fewer bytes than the service action's layout has.
    #[error("a CDB of {actual} bytes where {expected} belong")]
    Length {
        /// Bytes given.
        actual: usize,
        /// Bytes of the layout.
        expected: usize,
    },
    /// ADDITIONAL CDB LENGTH does not fit the service action.
    #[error("additional CDB length {actual} where {expected} belongs")]
    AdditionalLength {
        /// Byte 7.
        actual: u8,
        /// What it should be.
        expected: u8,
    },
    /// A service action that is in no row of the table.
    #[error("unknown service action {0:#06x}")]
    ServiceAction(u16),
    /// A field with a value that its command does not allow.
    #[error("{fault} at CDB byte {at}")]
    Field {
        /// First byte of the field.
        at: u16,
        /// What is wrong.
        fault: Fault,
    },
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// A code that is reserved.
    #[error("reserved value")]
    Reserved,
    /// An offset that is finer than the granularity, or unused where one is needed.
    #[error("unusable buffer offset")]
    Offset,
    /// A length that its command does not allow.
    #[error("wrong length")]
    Length,
    /// A page or number that stands for many, where one is needed.
    #[error("not one attribute")]
    Wildcard,
    /// Two fields exclude each other.
    #[error("contradicts another field")]
    Conflict,
}

impl CdbError {
    /// A reserved code at `at`.
    pub(crate) const fn reserved(at: u16) -> Self {
        Self::Field { at, fault: Fault::Reserved }
    }

    /// The additional sense code: a wrong frame is no OSD command at all, anything else a wrong field.
    #[must_use]
    pub const fn code(&self) -> AdditionalSense {
        match self {
            Self::OperationCode(_) | Self::Length { .. } | Self::AdditionalLength { .. } => {
                additional::INVALID_COMMAND_OPERATION_CODE
            }
            Self::ServiceAction(_) | Self::Field { .. } => additional::INVALID_FIELD_IN_CDB,
        }
    }

    /// First byte of the offending field.
    #[must_use]
    pub const fn field_pointer(&self) -> u16 {
        match self {
            Self::OperationCode(_) => 0,
            Self::Length { .. } | Self::AdditionalLength { .. } => super::pointer::ADDITIONAL_LENGTH,
            Self::ServiceAction(_) => super::pointer::SERVICE_ACTION,
            Self::Field { at, .. } => *at,
        }
    }

    /// ILLEGAL REQUEST with the code and a pointer to the field.
    #[must_use]
    pub fn sense(&self) -> Sense {
        Sense::new(SenseKey::IllegalRequest, self.code()).with_field(FieldPointer::cdb(self.field_pointer()))
    }
}
