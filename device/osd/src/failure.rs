//! Why a command failed, apart from want of authority, and what the initiator hears.
//!
//! Does: one variant per thing that can go wrong; status, sense key and code of each.
//! Does not: refusals of authority; those are `sealstone_seal::Denial`.
//! Contract: no `_` arm over our own variants: a new one must choose what it says.
//! Truth: docs/design/t10-osd.md 5.3.

use sealstone_osd::AttributeId;
use sealstone_scsi::additional::{self, AdditionalSense};
use sealstone_scsi::{Sense, SenseKey, Status};
use sealstone_seal::{ClockBehind, KeyError};
use sealstone_store::StoreError;
use thiserror::Error;

/// Where in the request the mistake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pointer {
    /// Byte of the CDB.
    Cdb(u16),
    /// Byte of the Data-Out Buffer.
    DataOut(u16),
}

/// Why a command failed.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// A field of the CDB has a value it must not have.
    #[error("invalid field in CDB, byte {0}")]
    Field(u16),
    /// The CDB continuation segment says what it must not; byte of the Data-Out Buffer.
    #[error("invalid field in CDB continuation segment, byte {0}")]
    Continuation(u16),
    /// This device does not know the service action, or does not implement it.
    #[error("unsupported service action")]
    UnsupportedAction,
    /// A list or segment is shorter, longer or elsewhere than the CDB says.
    #[error("parameter list length error")]
    ListLength,
    /// More than one command does at a time.
    #[error("too much work for one command")]
    TooMuchWork,
    /// An entry of a list must not be what it is; byte of the Data-Out Buffer.
    #[error("invalid field in parameter list, byte {0}")]
    Parameter(u16),
    /// An attribute cannot be had or set on this object.
    #[error("attribute {0:?} is not possible here")]
    Attribute(AttributeId),
    /// The partition still holds user objects.
    #[error("partition not empty")]
    NotEmpty,
    /// A quota would be exceeded.
    #[error("quota: {0}")]
    Quota(&'static str),
    /// No buffer for the data: the initiator tries again.
    #[error("no buffer")]
    NoBuffer,
    /// The device's clock is behind what it promised before it was restarted.
    #[error("clock not set")]
    ClockNotSet,
    /// The store failed.
    #[error("store")]
    Store(#[from] StoreError),
    /// A key that must be there is not.
    #[error("keys")]
    Keys(#[source] KeyError),
    /// The key behind the credential was changed while the command waited for its turn: sent again, it is refused for
    /// good, or runs under the new key.
    #[error("keys changed meanwhile")]
    KeysChanged,
    /// The keys could not be stored; they are as they were, or nobody knows until the next start.
    #[error("key store")]
    KeyStore,
    /// SET MASTER KEY: another exchange is under way, or there is none to end.
    #[error("command sequence")]
    Sequence,
    /// The device was restarted several times within seconds: time itself makes it ready.
    #[error("clock settling")]
    ClockSettling,
    /// A command within this one failed: its own sense data.
    #[error("embedded command: {0:?}")]
    Embedded(Box<Sense>),
    /// Tasks that were ended have not come back in time.
    #[error("tasks have not ended")]
    TasksUnfinished,
    /// FORMAT OSD runs.
    #[error("format in progress")]
    Formatting,
    /// Somebody duplicates or replaces the partition, or checks the structure already: it passes.
    #[error("the partition is taken")]
    Taken,
    /// The object's bytes or attributes are not what a condition says; the first byte of the object that is not.
    #[error("miscompare at byte {0}")]
    Miscompare(u64),
    /// The partition is a snapshot: nothing in it changes.
    #[error("a snapshot is read-only")]
    ReadOnly,
    /// The device ends: what it had not finished is given up.
    #[error("the device ends")]
    Stopping,
    /// What `begin_boot` and the lease are kept in failed.
    #[error("boot record")]
    BootRecord,
}

impl From<ClockBehind> for Failure {
    fn from(behind: ClockBehind) -> Self {
        match behind {
            ClockBehind::Wrong { .. } => Self::ClockNotSet,
            ClockBehind::Settling { .. } => Self::ClockSettling,
        }
    }
}

impl Failure {
    /// A short name, for audit and logs.
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
            Self::Taken => "partition_taken",
            Self::ReadOnly => "read_only",
            Self::Stopping => "stopping",
            Self::Embedded(_) => "embedded_command",
            Self::TasksUnfinished => "tasks_unfinished",
            Self::Miscompare(_) => "miscompare",
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

    /// BUSY for what passes by itself; CHECK CONDITION for the rest.
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::NoBuffer | Self::KeysChanged | Self::Taken | Self::TasksUnfinished | Self::Stopping => {
                Status::Busy
            }
            _ => Status::CheckCondition,
        }
    }

    /// Sense key, code, and where the mistake is.
    pub(crate) fn sense(&self) -> (SenseKey, AdditionalSense, Option<Pointer>) {
        use SenseKey::{DataProtect, HardwareError, IllegalRequest, MediumError, NotReady};
        match self {
            Self::Field(byte) => {
                (IllegalRequest, additional::INVALID_FIELD_IN_CDB, Some(Pointer::Cdb(*byte)))
            }
            Self::Continuation(byte) => {
                (IllegalRequest, additional::INVALID_FIELD_IN_CDB, Some(Pointer::DataOut(*byte)))
            }
            Self::UnsupportedAction => {
                (IllegalRequest, additional::INVALID_FIELD_IN_CDB, Some(Pointer::Cdb(SERVICE_ACTION)))
            }
            Self::ListLength => (IllegalRequest, additional::PARAMETER_LIST_LENGTH_ERROR, None),
            Self::TooMuchWork => (IllegalRequest, additional::SYSTEM_RESOURCE_FAILURE, None),
            Self::Parameter(byte) => {
                (IllegalRequest, additional::INVALID_FIELD_IN_PARAMETER_LIST, Some(Pointer::DataOut(*byte)))
            }
            Self::Attribute(_) => (IllegalRequest, additional::INVALID_FIELD_IN_PARAMETER_LIST, None),
            Self::NotEmpty => (IllegalRequest, additional::CONTAINS_USER_OBJECTS, None),
            Self::Quota(_) => (DataProtect, additional::QUOTA_ERROR, None),
            Self::NoBuffer | Self::KeysChanged | Self::Taken | Self::TasksUnfinished | Self::Stopping => {
                (SenseKey::NoSense, additional::NO_ADDITIONAL_SENSE, None)
            }
            Self::Embedded(sense) => (sense.key, sense.code, None),
            Self::ClockNotSet => (NotReady, MANUAL_INTERVENTION_REQUIRED, None),
            Self::ClockSettling => (NotReady, BECOMING_READY, None),
            Self::Sequence => (IllegalRequest, COMMAND_SEQUENCE_ERROR, None),
            Self::Formatting => (NotReady, additional::FORMAT_IN_PROGRESS, None),
            Self::BootRecord | Self::Keys(_) | Self::KeyStore => {
                (HardwareError, additional::INTERNAL_TARGET_FAILURE, None)
            }
            Self::Miscompare(_) => (SenseKey::Miscompare, additional::MISCOMPARE_DURING_VERIFY, None),
            Self::ReadOnly => (DataProtect, additional::WRITE_PROTECTED, None),
            Self::Store(error) => match error {
                StoreError::NoSpace => (DataProtect, additional::QUOTA_ERROR, None),
                StoreError::TooLarge { .. } => (IllegalRequest, additional::INVALID_FIELD_IN_CDB, None),
                StoreError::Exists(_) => {
                    (IllegalRequest, additional::INVALID_FIELD_IN_CDB, Some(Pointer::Cdb(OBJECT)))
                }
                StoreError::NotFound(id) => {
                    let field = if id.object == 0 { PARTITION } else { OBJECT };
                    (IllegalRequest, additional::INVALID_FIELD_IN_CDB, Some(Pointer::Cdb(field)))
                }
                StoreError::Damaged { .. } | StoreError::IndexDamaged { .. } | StoreError::ListGap { .. } => {
                    (MediumError, additional::UNRECOVERED_READ_ERROR, None)
                }
                // A store of another kind may fail in ways of its own.
                _ => (HardwareError, additional::INTERNAL_TARGET_FAILURE, None),
            },
        }
    }
}

/// LOGICAL UNIT NOT READY, MANUAL INTERVENTION REQUIRED.
pub(crate) const MANUAL_INTERVENTION_REQUIRED: AdditionalSense = AdditionalSense(0x0403);

/// LOGICAL UNIT IS IN PROCESS OF BECOMING READY.
pub(crate) const BECOMING_READY: AdditionalSense = AdditionalSense(0x0401);
/// COMMAND SEQUENCE ERROR.
const COMMAND_SEQUENCE_ERROR: AdditionalSense = AdditionalSense(0x2C00);

/// Byte of the CDB: SERVICE ACTION.
pub(crate) const SERVICE_ACTION: u16 = 8;
/// Byte of the CDB: PARTITION_ID.
pub(crate) const PARTITION: u16 = 16;
/// Byte of the CDB: USER_OBJECT_ID.
pub(crate) const OBJECT: u16 = 24;
/// Byte of the CDB: attribute parameters.
pub(crate) const ATTRIBUTES: u16 = 52;
