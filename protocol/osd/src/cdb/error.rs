//! Why bytes are not a CDB, and the sense data for it.

use sealstone_scsi::{AdditionalSense, FieldPointer, Sense, SenseKey, additional};
use thiserror::Error;

/// A CDB that cannot be parsed; [`CdbError::sense`] is what the initiator receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CdbError {
    /// Not the variable-length operation code 7Fh: it may be an SPC command.
    #[error("operation code {0:#04x} is not an OSD command")]
    OperationCode(u8),
    /// Fewer bytes than the service action's layout has.
    #[error("CDB has {actual} bytes, expected {expected}")]
    Length {
        /// Bytes given.
        actual: usize,
        /// Bytes of the layout.
        expected: usize,
    },
    /// ADDITIONAL CDB LENGTH does not fit the service action.
    #[error("additional CDB length is {actual}, expected {expected}")]
    AdditionalLength {
        /// Byte 7.
        actual: u8,
        /// Expected value.
        expected: u8,
    },
    /// A service action without a row in the table.
    #[error("unknown service action {0:#06x}")]
    ServiceAction(u16),
    /// A field with a value that its command does not permit.
    #[error("{fault} at CDB byte {at}")]
    Field {
        /// First byte of the field.
        at: u16,
        /// The kind of error.
        fault: Fault,
    },
}

/// The kind of error of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// A code that is reserved.
    #[error("reserved value")]
    Reserved,
    /// An offset that is finer than the granularity, or unused where one is needed.
    #[error("unusable buffer offset")]
    Offset,
    /// A length that its command does not permit.
    #[error("wrong length")]
    Length,
    /// A wildcard page or number where a single one is needed.
    #[error("wildcard instead of a single attribute")]
    Wildcard,
    /// Two fields exclude each other.
    #[error("contradicts another field")]
    Conflict,
}

impl CdbError {
    /// Returns a reserved code at `at`.
    pub(crate) const fn reserved(at: u16) -> Self {
        Self::Field { at, fault: Fault::Reserved }
    }

    /// Returns the additional sense code: a wrong header means that this is not an OSD command,
    /// anything else a wrong field.
    #[must_use]
    pub const fn code(&self) -> AdditionalSense {
        match self {
            Self::OperationCode(_) | Self::Length { .. } | Self::AdditionalLength { .. } => {
                additional::INVALID_COMMAND_OPERATION_CODE
            }
            Self::ServiceAction(_) | Self::Field { .. } => additional::INVALID_FIELD_IN_CDB,
        }
    }

    /// Returns the offset of the wrong field.
    #[must_use]
    pub const fn field_pointer(&self) -> u16 {
        match self {
            Self::OperationCode(_) => 0,
            Self::Length { .. } | Self::AdditionalLength { .. } => super::pointer::ADDITIONAL_LENGTH,
            Self::ServiceAction(_) => super::pointer::SERVICE_ACTION,
            Self::Field { at, .. } => *at,
        }
    }

    /// Returns ILLEGAL REQUEST with the code and a pointer to the field.
    #[must_use]
    pub fn sense(&self) -> Sense {
        Sense::new(SenseKey::IllegalRequest, self.code()).with_field(FieldPointer::cdb(self.field_pointer()))
    }
}
