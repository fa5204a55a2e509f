//! Why a command of a block unit failed.

use core::time::Duration;

use sealstone_initiator::SessionError;
use sealstone_scsi::{AdditionalSense, Sense, SenseKey, Status, additional};

/// Why a command of a block unit failed, or why the unit cannot be opened.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// No session could be established, and further attempts are useless.
    #[error("no session with the target: {0}")]
    Session(#[from] SessionError),
    /// The target was unavailable for the whole recovery timeout.
    #[error("the target was unavailable for {} s: {cause}", .waited.as_secs())]
    Unavailable {
        /// Time since the command was first sent.
        waited: Duration,
        /// The last error.
        cause: SessionError,
    },
    /// The unit stayed busy for the whole recovery timeout.
    #[error("the unit is busy")]
    Busy,
    /// The target has no such logical unit.
    #[error("the target has no such logical unit")]
    NoUnit,
    /// The logical unit is not a disk.
    #[error("the logical unit is not a disk (peripheral device type {0:#04x})")]
    NotADisk(u8),
    /// After a reconnect the logical unit is another disk, or smaller than before.
    #[error("after a reconnect the logical unit has another {0}")]
    Changed(&'static str),
    /// The target lost writes that it had acknowledged and that were not flushed. Check the data
    /// above, such as a file system.
    #[error("the target lost acknowledged writes that were not flushed")]
    LostWrites,
    /// The extent is not within the unit.
    #[error("bytes {offset} to {} are not within the unit", .offset.saturating_add(*.length))]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Offset or length is not a multiple of the block size.
    #[error("offset or length is not a multiple of {block} bytes")]
    Unaligned {
        /// Bytes of a block.
        block: u32,
    },
    /// The unit has no space for the data.
    #[error("the unit has no space left")]
    NoSpace,
    /// The unit is write protected.
    #[error("the unit is write protected")]
    WriteProtected,
    /// A session was established again since the last flush: a power failure between the two may
    /// have lost earlier writes. Nothing was sent over the new session.
    #[error("a session with the target was replaced since the last flush; the order of writes is unknown")]
    SessionReplaced,
    /// Another initiator has reserved the unit.
    #[error("another initiator has reserved the unit")]
    Reserved,
    /// The unit cannot read back its data.
    #[error("medium error: {sense}")]
    Medium {
        /// The sense data.
        sense: Box<Sense>,
    },
    /// A block was changed on its way or on the medium, and no authentic version of it is left.
    #[error("block {0} is not authentic")]
    NotAuthentic(u64),
    /// The target does not support the command.
    #[error("the target does not support {0}")]
    Unsupported(&'static str),
    /// The target refused the command or failed.
    #[error("the target reports {sense}")]
    Failed {
        /// The sense data.
        sense: Box<Sense>,
    },
    /// A status without valid sense data.
    #[error("unexpected status {0:#04x} without sense data")]
    Status(u8),
    /// Parameter data of the target is malformed, or a READ returned too few bytes.
    #[error("malformed answer: {0}")]
    Malformed(&'static str),
}

/// The meaning of the status of a command.
#[derive(Clone, Debug)]
pub(crate) enum StatusClass {
    /// The command is done.
    Done,
    /// To be sent again after a pause: the unit is busy or becoming ready.
    Retry,
    /// To be sent again at once: a unit attention with this code.
    Attention(AdditionalSense),
    /// The command has failed.
    Failed(BlockError),
}

/// Classifies status and sense data of `command`.
pub(crate) fn classify(status: u8, sense: &[u8], command: &'static str) -> StatusClass {
    match Status::from_byte(status) {
        Some(Status::Good | Status::ConditionMet) => StatusClass::Done,
        Some(Status::Busy | Status::TaskSetFull | Status::TaskAborted) => StatusClass::Retry,
        Some(Status::ReservationConflict) => StatusClass::Failed(BlockError::Reserved),
        Some(Status::CheckCondition) => match Sense::parse(sense) {
            Ok(sense) => classify_sense(sense, command),
            Err(_) => StatusClass::Failed(BlockError::Status(status)),
        },
        Some(Status::AcaActive) | None => StatusClass::Failed(BlockError::Status(status)),
    }
}

fn classify_sense(sense: Sense, command: &'static str) -> StatusClass {
    use additional::{
        BECOMING_READY, INVALID_COMMAND_OPERATION_CODE, INVALID_FIELD_IN_CDB, LOGICAL_UNIT_NOT_SUPPORTED,
        SPACE_ALLOCATION_FAILED, WRITE_ERROR,
    };
    let code = sense.code;
    let sense = Box::new(sense);
    StatusClass::Failed(match (sense.key, code) {
        (SenseKey::NoSense | SenseKey::RecoveredError | SenseKey::Completed, _) => return StatusClass::Done,
        (SenseKey::UnitAttention, code) => return StatusClass::Attention(code),
        (SenseKey::NotReady, BECOMING_READY) | (SenseKey::AbortedCommand, _) => return StatusClass::Retry,
        (SenseKey::DataProtect, SPACE_ALLOCATION_FAILED) => BlockError::NoSpace,
        (SenseKey::DataProtect, _) => BlockError::WriteProtected,
        (SenseKey::HardwareError, WRITE_ERROR) if command == SYNCHRONIZE => BlockError::LostWrites,
        (SenseKey::MediumError, _) => BlockError::Medium { sense },
        (SenseKey::IllegalRequest, LOGICAL_UNIT_NOT_SUPPORTED) => BlockError::NoUnit,
        (SenseKey::IllegalRequest, INVALID_COMMAND_OPERATION_CODE | INVALID_FIELD_IN_CDB)
            if OPTIONAL.contains(&command) =>
        {
            BlockError::Unsupported(command)
        }
        _ => BlockError::Failed { sense },
    })
}

/// Names of commands, for errors.
pub(crate) const SYNCHRONIZE: &str = "SYNCHRONIZE CACHE";
pub(crate) const WRITE_SAME: &str = "WRITE SAME";
pub(crate) const UNMAP: &str = "UNMAP";
pub(crate) const LBA_STATUS: &str = "GET LBA STATUS";
/// Commands that a target may lack.
const OPTIONAL: [&str; 4] = [WRITE_SAME, UNMAP, LBA_STATUS, "MODE SENSE"];

#[cfg(test)]
mod tests {
    use super::*;

    fn of(key: SenseKey, code: AdditionalSense, command: &'static str) -> StatusClass {
        classify(2, &Sense::new(key, code).encode_fixed(), command)
    }

    #[test]
    fn write_error_of_a_flush_means_lost_writes() {
        let class = of(SenseKey::HardwareError, additional::WRITE_ERROR, SYNCHRONIZE);
        assert!(matches!(class, StatusClass::Failed(BlockError::LostWrites)));
        let class = of(SenseKey::HardwareError, additional::WRITE_ERROR, "WRITE");
        assert!(matches!(class, StatusClass::Failed(BlockError::Failed { .. })));
    }

    #[test]
    fn each_status_has_its_class() {
        let failed = |class| match class {
            StatusClass::Failed(error) => error.to_string(),
            other => panic!("{other:?}"),
        };
        assert!(matches!(classify(0, &[], "READ"), StatusClass::Done));
        assert!(matches!(classify(8, &[], "READ"), StatusClass::Retry));
        assert!(matches!(classify(0x28, &[], "READ"), StatusClass::Retry));
        assert_eq!(failed(classify(0x18, &[], "READ")), "another initiator has reserved the unit");
        assert_eq!(failed(classify(2, &[], "READ")), "unexpected status 0x02 without sense data");
        assert_eq!(failed(classify(0x77, &[], "READ")), "unexpected status 0x77 without sense data");
        let full = of(SenseKey::DataProtect, additional::SPACE_ALLOCATION_FAILED, "WRITE");
        assert_eq!(failed(full), "the unit has no space left");
        let protected = of(SenseKey::DataProtect, additional::WRITE_PROTECTED, "WRITE");
        assert_eq!(failed(protected), "the unit is write protected");
        let unknown = of(SenseKey::IllegalRequest, additional::INVALID_COMMAND_OPERATION_CODE, UNMAP);
        assert_eq!(failed(unknown), "the target does not support UNMAP");
        let attention = of(SenseKey::UnitAttention, additional::POWER_ON_OCCURRED, "READ");
        assert!(matches!(attention, StatusClass::Attention(additional::POWER_ON_OCCURRED)));
    }
}
