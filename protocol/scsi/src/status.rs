//! Status and sense key: the two codes of every reply (SAM-5 §5.3, SPC-4 §4.5.6).

use core::fmt;

/// The status byte of a SCSI reply; other codes are reserved or obsolete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// The command completed successfully.
    Good = 0x00,
    /// Sense data has the details; with RECOVERED ERROR the command still completed.
    CheckCondition = 0x02,
    /// The reply to PRE-FETCH; no OSD command returns it.
    ConditionMet = 0x04,
    /// No resource at the moment: retry.
    Busy = 0x08,
    /// Another nexus holds a reservation.
    ReservationConflict = 0x18,
    /// This nexus has too many commands in progress.
    TaskSetFull = 0x28,
    /// Auto contingent allegiance is in force.
    AcaActive = 0x30,
    /// Ended by another nexus.
    TaskAborted = 0x40,
}

impl Status {
    /// Returns the status of a wire byte; `None` for a reserved one.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x00 => Self::Good,
            0x02 => Self::CheckCondition,
            0x04 => Self::ConditionMet,
            0x08 => Self::Busy,
            0x18 => Self::ReservationConflict,
            0x28 => Self::TaskSetFull,
            0x30 => Self::AcaActive,
            0x40 => Self::TaskAborted,
            _ => return None,
        })
    }

    /// Returns the wire byte.
    #[must_use]
    pub const fn byte(self) -> u8 {
        self as u8
    }
}

/// The class of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SenseKey {
    /// Nothing to report; also the carrier of a response ICV with GOOD status.
    NoSense = 0x0,
    /// Completed, with a note.
    RecoveredError = 0x1,
    /// The logical unit cannot be used at the moment.
    NotReady = 0x2,
    /// The medium lost data.
    MediumError = 0x3,
    /// The device failed, not the medium.
    HardwareError = 0x4,
    /// The request is wrong; the same bytes will fail again.
    IllegalRequest = 0x5,
    /// Something changed since the last command of the nexus.
    UnitAttention = 0x6,
    /// The access is not permitted; also for quotas.
    DataProtect = 0x7,
    /// Blank or unexpectedly written medium.
    BlankCheck = 0x8,
    /// Vendor specific.
    VendorSpecific = 0x9,
    /// A copy operation failed.
    CopyAborted = 0xA,
    /// The device server ended the command; a retry may help.
    AbortedCommand = 0xB,
    /// Partition end reached with data still buffered.
    VolumeOverflow = 0xD,
    /// The comparison failed.
    Miscompare = 0xE,
    /// The command completed; the sense data is informational.
    Completed = 0xF,
}

impl SenseKey {
    /// Returns the key in the low four bits of a wire byte; `None` for the reserved one.
    #[must_use]
    pub const fn from_nibble(byte: u8) -> Option<Self> {
        Some(match byte & 0x0F {
            0x0 => Self::NoSense,
            0x1 => Self::RecoveredError,
            0x2 => Self::NotReady,
            0x3 => Self::MediumError,
            0x4 => Self::HardwareError,
            0x5 => Self::IllegalRequest,
            0x6 => Self::UnitAttention,
            0x7 => Self::DataProtect,
            0x8 => Self::BlankCheck,
            0x9 => Self::VendorSpecific,
            0xA => Self::CopyAborted,
            0xB => Self::AbortedCommand,
            0xD => Self::VolumeOverflow,
            0xE => Self::Miscompare,
            0xF => Self::Completed,
            _ => return None,
        })
    }

    /// Returns the wire nibble.
    #[must_use]
    pub const fn nibble(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Good => "GOOD",
            Self::CheckCondition => "CHECK CONDITION",
            Self::ConditionMet => "CONDITION MET",
            Self::Busy => "BUSY",
            Self::ReservationConflict => "RESERVATION CONFLICT",
            Self::TaskSetFull => "TASK SET FULL",
            Self::AcaActive => "ACA ACTIVE",
            Self::TaskAborted => "TASK ABORTED",
        })
    }
}

impl fmt::Display for SenseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSense => "NO SENSE",
            Self::RecoveredError => "RECOVERED ERROR",
            Self::NotReady => "NOT READY",
            Self::MediumError => "MEDIUM ERROR",
            Self::HardwareError => "HARDWARE ERROR",
            Self::IllegalRequest => "ILLEGAL REQUEST",
            Self::UnitAttention => "UNIT ATTENTION",
            Self::DataProtect => "DATA PROTECT",
            Self::BlankCheck => "BLANK CHECK",
            Self::VendorSpecific => "VENDOR SPECIFIC",
            Self::CopyAborted => "COPY ABORTED",
            Self::AbortedCommand => "ABORTED COMMAND",
            Self::VolumeOverflow => "VOLUME OVERFLOW",
            Self::Miscompare => "MISCOMPARE",
            Self::Completed => "COMPLETED",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_byte_round_trips() {
        for byte in 0..=u8::MAX {
            assert!(Status::from_byte(byte).is_none_or(|status| status.byte() == byte));
            assert!(SenseKey::from_nibble(byte).is_none_or(|key| key.nibble() == byte & 0x0F));
        }
        assert_eq!(SenseKey::from_nibble(0x0C), None);
    }
}
