//! Errors of OSD commands other than missing authority, and their sense data.
//!
//! Does: one variant per failure; status, sense key and code of each.
//! Does not: denials of authority; those are `sealstone_seal::Denial`.
//! Contract: no `_` arm over our own variants: a new variant must choose its sense data.
//! Truth: docs/design/t10-osd.md 5.3.

use sealstone_osd::AttributeId;
use sealstone_scsi::additional::{self, AdditionalSense};
use sealstone_scsi::{Sense, SenseKey, Status};
use sealstone_seal::{ClockBehind, KeyError};
use sealstone_store::StoreError;
use thiserror::Error;

use crate::function_fields::{API_FIELD, JOB_FIELD, OPERATION_FIELD, TIMEOUT_FIELD};
use crate::function_runner::FunctionRefusal;

/// Position of an error in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorPointer {
    /// Byte of the CDB.
    Cdb(u16),
    /// Byte of the Data-Out Buffer.
    DataOut(u16),
}

/// Why a command failed.
#[derive(Debug, Error)]
pub(crate) enum OsdFailure {
    /// A field of the CDB has an invalid value.
    #[error("invalid field in CDB, byte {0}")]
    Field(u16),
    /// The CDB continuation segment has an invalid value at this byte of the Data-Out Buffer.
    #[error("invalid field in CDB continuation segment, byte {0}")]
    Continuation(u16),
    /// The service action is unknown, or not implemented on this device.
    #[error("unsupported service action")]
    UnsupportedAction,
    /// The length or position of a list or segment differs from the CDB.
    #[error("parameter list length error")]
    ListLength,
    /// The command exceeds the work limit of one command.
    #[error("too much work for one command")]
    TooMuchWork,
    /// A list has an invalid entry at this byte of the Data-Out Buffer.
    #[error("invalid field in parameter list, byte {0}")]
    Parameter(u16),
    /// The attribute cannot be accessed or set on this object.
    #[error("attribute {0} cannot be accessed or set on this object")]
    Attribute(AttributeId),
    /// The partition contains user objects.
    #[error("partition not empty")]
    NotEmpty,
    /// A quota would be exceeded.
    #[error("quota exceeded: {0}")]
    Quota(&'static str),
    /// No buffer for the data. The initiator retries.
    #[error("no buffer")]
    NoBuffer,
    /// The device's clock is behind the lease of an earlier start.
    #[error("clock not set")]
    ClockNotSet,
    /// The store failed.
    #[error("store failed")]
    Store(#[from] StoreError),
    /// A required key is not set.
    #[error("required key is not set")]
    Keys(#[source] KeyError),
    /// The key of the credential changed while the command waited. A retry is refused, or runs
    /// under the new key.
    #[error("keys changed while the command waited")]
    KeysChanged,
    /// The keys could not be stored. Their durable state may be unknown until the next start.
    #[error("keys could not be stored")]
    KeyStore,
    /// SET MASTER KEY: another exchange is in progress, or there is none to end.
    #[error("command sequence error")]
    Sequence,
    /// The device was restarted several times within seconds, and will be ready shortly.
    #[error("clock settling")]
    ClockSettling,
    /// An embedded command failed with this sense data.
    #[error("embedded command failed: {0:?}")]
    Embedded(Box<Sense>),
    /// Ended tasks have not finished in time.
    #[error("tasks have not ended")]
    TasksUnfinished,
    /// FORMAT OSD is running.
    #[error("format in progress")]
    Formatting,
    /// Another command duplicates or replaces the partition, or checks the structure. The initiator
    /// retries.
    #[error("the partition is in use by another command")]
    PartitionBusy,
    /// The object's bytes or attributes do not match a condition. The first byte that differs.
    #[error("miscompare at byte {0}")]
    Miscompare(u64),
    /// The partition is a snapshot, whose contents cannot change.
    #[error("a snapshot is read-only")]
    ReadOnly,
    /// The device is shutting down and abandons unfinished work.
    #[error("the device is shutting down")]
    Stopping,
    /// The device runs no functions.
    #[error("no function service")]
    NoFunctions,
    /// The service did not create a job, or does not know it.
    #[error("function refused: {0}")]
    Function(#[source] FunctionRefusal),
    /// The function page names no engine, and the request neither.
    #[error("no engine type in request or attributes")]
    FunctionAttributes,
    /// The function does not work with the requested API version.
    #[error("the function does not support the API version")]
    FunctionVersion,
    /// The code of a function is longer than the device runs.
    #[error("code of {0} bytes is too long")]
    CodeTooLong(u64),
    /// The policy of the partition excludes the function.
    #[error("the policy of the partition excludes the function")]
    FunctionPolicy,
    /// The boot record with the lease could not be written.
    #[error("boot record could not be written")]
    BootRecord,
}

impl From<ClockBehind> for OsdFailure {
    fn from(behind: ClockBehind) -> Self {
        match behind {
            ClockBehind::Wrong { .. } => Self::ClockNotSet,
            ClockBehind::Settling { .. } => Self::ClockSettling,
        }
    }
}

impl OsdFailure {
    /// Returns a short name for audit and logs.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Field(_) | Self::Continuation(_) => "invalid_field_in_cdb",
            Self::UnsupportedAction => "unsupported_service_action",
            Self::ListLength => "parameter_list_length",
            Self::TooMuchWork => "too_much_work",
            Self::Parameter(_) | Self::Attribute(_) => "invalid_field_in_parameter_list",
            Self::NotEmpty => "partition_not_empty",
            Self::Quota(_) => "quota",
            Self::NoBuffer => "no_buffer",
            Self::ClockNotSet => "clock_not_set",
            Self::BootRecord => "boot_record",
            Self::Keys(_) => "keys",
            Self::KeysChanged => "keys_changed",
            Self::KeyStore => "key_store",
            Self::Sequence => "command_sequence",
            Self::ClockSettling => "clock_settling",
            Self::Formatting => "format_in_progress",
            Self::PartitionBusy => "partition_taken",
            Self::ReadOnly => "read_only",
            Self::Stopping => "stopping",
            Self::Embedded(_) => "embedded_command",
            Self::TasksUnfinished => "tasks_unfinished",
            Self::Miscompare(_) => "miscompare",
            Self::NoFunctions => "no_functions",
            Self::FunctionAttributes => "function_attributes",
            Self::FunctionVersion => "function_version",
            Self::CodeTooLong(_) => "code_too_long",
            Self::FunctionPolicy => "function_policy",
            Self::Function(refusal) => match refusal {
                FunctionRefusal::EngineMissing(_) => "engine_missing",
                FunctionRefusal::ApiUnsupported { .. } => "api_unsupported",
                FunctionRefusal::CodeRejected(_) => "code_rejected",
                FunctionRefusal::UnknownMethod => "unknown_method",
                FunctionRefusal::TooManyJobs => "too_many_jobs",
                FunctionRefusal::UnknownJob => "unknown_job",
                FunctionRefusal::JobIdInUse => "job_id_in_use",
                FunctionRefusal::ResultExpires => "result_expires",
                FunctionRefusal::Stopping => "stopping",
                FunctionRefusal::ServiceFailed => "function_service",
            },
            Self::Store(error) => match error {
                StoreError::Exists(_) => "exists",
                StoreError::NotFound(_) => "not_found",
                StoreError::NoSpace => "no_space",
                StoreError::TooLarge { .. } => "too_large",
                StoreError::Damaged { .. } | StoreError::IndexDamaged { .. } | StoreError::ListGap { .. } => {
                    "damaged"
                }
                StoreError::Poisoned => "store_poisoned",
                _ => "store_failed",
            },
        }
    }

    /// Returns BUSY for temporary conditions, CHECK CONDITION otherwise.
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::NoBuffer
            | Self::KeysChanged
            | Self::PartitionBusy
            | Self::TasksUnfinished
            | Self::Stopping
            | Self::Function(FunctionRefusal::Stopping) => Status::Busy,
            Self::Function(FunctionRefusal::TooManyJobs) => Status::TaskSetFull,
            _ => Status::CheckCondition,
        }
    }

    /// Returns sense key, code and position of the error.
    pub(crate) fn sense(&self) -> (SenseKey, AdditionalSense, Option<ErrorPointer>) {
        use SenseKey::{DataProtect, HardwareError, IllegalRequest, MediumError, NotReady};
        match self {
            Self::Field(byte) => {
                (IllegalRequest, additional::INVALID_FIELD_IN_CDB, Some(ErrorPointer::Cdb(*byte)))
            }
            Self::Continuation(byte) => {
                (IllegalRequest, additional::INVALID_FIELD_IN_CDB, Some(ErrorPointer::DataOut(*byte)))
            }
            Self::UnsupportedAction => {
                (IllegalRequest, additional::INVALID_FIELD_IN_CDB, Some(ErrorPointer::Cdb(SERVICE_ACTION)))
            }
            Self::ListLength => (IllegalRequest, additional::PARAMETER_LIST_LENGTH_ERROR, None),
            Self::TooMuchWork => (IllegalRequest, additional::SYSTEM_RESOURCE_FAILURE, None),
            Self::Parameter(byte) => (
                IllegalRequest,
                additional::INVALID_FIELD_IN_PARAMETER_LIST,
                Some(ErrorPointer::DataOut(*byte)),
            ),
            Self::Attribute(_) => (IllegalRequest, additional::INVALID_FIELD_IN_PARAMETER_LIST, None),
            Self::NotEmpty => (IllegalRequest, additional::CONTAINS_USER_OBJECTS, None),
            Self::Quota(_) => (DataProtect, additional::QUOTA_ERROR, None),
            Self::NoBuffer
            | Self::KeysChanged
            | Self::PartitionBusy
            | Self::TasksUnfinished
            | Self::Stopping
            | Self::Function(FunctionRefusal::Stopping | FunctionRefusal::TooManyJobs) => {
                (SenseKey::NoSense, additional::NO_ADDITIONAL_SENSE, None)
            }
            Self::Embedded(sense) => (sense.key, sense.code, None),
            Self::ClockNotSet => (NotReady, additional::MANUAL_INTERVENTION_REQUIRED, None),
            Self::ClockSettling => (NotReady, additional::BECOMING_READY, None),
            Self::Sequence => (IllegalRequest, additional::COMMAND_SEQUENCE_ERROR, None),
            Self::Formatting => (NotReady, additional::FORMAT_IN_PROGRESS, None),
            Self::BootRecord | Self::Keys(_) | Self::KeyStore => {
                (HardwareError, additional::INTERNAL_TARGET_FAILURE, None)
            }
            Self::NoFunctions | Self::Function(FunctionRefusal::EngineMissing(_)) => {
                (IllegalRequest, additional::INVALID_COMMAND_OPERATION_CODE, None)
            }
            Self::FunctionAttributes
            | Self::FunctionVersion
            | Self::CodeTooLong(_)
            | Self::Function(FunctionRefusal::CodeRejected(_) | FunctionRefusal::UnknownMethod) => {
                (IllegalRequest, additional::INVALID_FIELD_IN_PARAMETER_LIST, None)
            }
            Self::FunctionPolicy => {
                let pointer = ErrorPointer::DataOut(OPERATION_FIELD);
                (IllegalRequest, additional::INVALID_FIELD_IN_CDB, Some(pointer))
            }
            Self::Function(FunctionRefusal::UnknownJob | FunctionRefusal::JobIdInUse) => {
                (IllegalRequest, additional::INVALID_FIELD_IN_CDB, Some(ErrorPointer::DataOut(JOB_FIELD)))
            }
            Self::Function(FunctionRefusal::ResultExpires) => {
                (IllegalRequest, additional::INVALID_FIELD_IN_CDB, Some(ErrorPointer::DataOut(TIMEOUT_FIELD)))
            }
            Self::Function(FunctionRefusal::ApiUnsupported { .. }) => {
                (IllegalRequest, additional::INVALID_FIELD_IN_CDB, Some(ErrorPointer::DataOut(API_FIELD)))
            }
            Self::Function(FunctionRefusal::ServiceFailed) => {
                (HardwareError, additional::INTERNAL_TARGET_FAILURE, None)
            }
            Self::Miscompare(_) => (SenseKey::Miscompare, additional::MISCOMPARE_DURING_VERIFY, None),
            Self::ReadOnly => (DataProtect, additional::WRITE_PROTECTED, None),
            Self::Store(error) => match error {
                StoreError::NoSpace => (DataProtect, additional::QUOTA_ERROR, None),
                StoreError::TooLarge { .. } => (IllegalRequest, additional::INVALID_FIELD_IN_CDB, None),
                StoreError::Exists(_) => {
                    (IllegalRequest, additional::INVALID_FIELD_IN_CDB, Some(ErrorPointer::Cdb(OBJECT)))
                }
                StoreError::NotFound(id) => {
                    let field = if id.object == 0 { PARTITION } else { OBJECT };
                    (IllegalRequest, additional::INVALID_FIELD_IN_CDB, Some(ErrorPointer::Cdb(field)))
                }
                StoreError::Damaged { .. } | StoreError::IndexDamaged { .. } | StoreError::ListGap { .. } => {
                    (MediumError, additional::UNRECOVERED_READ_ERROR, None)
                }
                // Another kind of store may have errors of its own.
                _ => (HardwareError, additional::INTERNAL_TARGET_FAILURE, None),
            },
        }
    }
}

/// CDB byte of SERVICE ACTION.
pub(crate) const SERVICE_ACTION: u16 = 8;
/// CDB byte of PARTITION_ID.
pub(crate) const PARTITION: u16 = 16;
/// CDB byte of USER_OBJECT_ID.
pub(crate) const OBJECT: u16 = 24;
/// CDB byte of the attribute parameters.
pub(crate) const ATTRIBUTES: u16 = 52;
