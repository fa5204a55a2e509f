//! Additional sense codes with qualifiers (SPC-4 annex D), as one table of rows.

use core::fmt;

/// ASC in the high byte, ASCQ in the low one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AdditionalSense(pub u16);

impl AdditionalSense {
    /// Converts from the two wire bytes.
    #[must_use]
    pub const fn from_bytes(code: u8, qualifier: u8) -> Self {
        Self(u16::from_be_bytes([code, qualifier]))
    }

    /// Returns ADDITIONAL SENSE CODE.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0.to_be_bytes()[0]
    }

    /// Returns ADDITIONAL SENSE CODE QUALIFIER.
    #[must_use]
    pub const fn qualifier(self) -> u8 {
        self.0.to_be_bytes()[1]
    }

    /// Returns the standard's name; `None` for a code that is not in the table.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        TABLE.iter().find(|(code, _)| *code == self).map(|(_, name)| *name)
    }
}

impl fmt::Display for AdditionalSense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({:02X}h/{:02X}h)", self.code(), self.qualifier()),
            None => write!(f, "{:02X}h/{:02X}h", self.code(), self.qualifier()),
        }
    }
}

impl fmt::Debug for AdditionalSense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! codes {
    ($($ident:ident = $code:literal, $name:literal;)*) => {
        $(#[doc = concat!($name, " (", stringify!($code), ").")]
        pub const $ident: AdditionalSense = AdditionalSense($code);)*
        /// Every code named here, with the standard's name.
        pub static TABLE: &[(AdditionalSense, &str)] = &[$(($ident, $name)),*];
    };
}

codes! {
    NO_ADDITIONAL_SENSE = 0x0000, "NO ADDITIONAL SENSE INFORMATION";
    LOGICAL_UNIT_NOT_READY = 0x0400, "LOGICAL UNIT NOT READY, CAUSE NOT REPORTABLE";
    BECOMING_READY = 0x0401, "LOGICAL UNIT IS IN PROCESS OF BECOMING READY";
    MANUAL_INTERVENTION_REQUIRED = 0x0403, "LOGICAL UNIT NOT READY, MANUAL INTERVENTION REQUIRED";
    FORMAT_IN_PROGRESS = 0x0404, "LOGICAL UNIT NOT READY, FORMAT IN PROGRESS";
    WRITE_ERROR = 0x0C00, "WRITE ERROR";
    INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT = 0x0E03, "INVALID FIELD IN COMMAND INFORMATION UNIT";
    UNRECOVERED_READ_ERROR = 0x1100, "UNRECOVERED READ ERROR";
    PARAMETER_LIST_LENGTH_ERROR = 0x1A00, "PARAMETER LIST LENGTH ERROR";
    MISCOMPARE_DURING_VERIFY = 0x1D00, "MISCOMPARE DURING VERIFY OPERATION";
    INVALID_COMMAND_OPERATION_CODE = 0x2000, "INVALID COMMAND OPERATION CODE";
    LBA_OUT_OF_RANGE = 0x2100, "LOGICAL BLOCK ADDRESS OUT OF RANGE";
    INVALID_FIELD_IN_CDB = 0x2400, "INVALID FIELD IN CDB";
    SECURITY_AUDIT_VALUE_FROZEN = 0x2404, "SECURITY AUDIT VALUE FROZEN";
    SECURITY_WORKING_KEY_FROZEN = 0x2405, "SECURITY WORKING KEY FROZEN";
    NONCE_NOT_UNIQUE = 0x2406, "NONCE NOT UNIQUE";
    NONCE_TIMESTAMP_OUT_OF_RANGE = 0x2407, "NONCE TIMESTAMP OUT OF RANGE";
    LOGICAL_UNIT_NOT_SUPPORTED = 0x2500, "LOGICAL UNIT NOT SUPPORTED";
    INVALID_FIELD_IN_PARAMETER_LIST = 0x2600, "INVALID FIELD IN PARAMETER LIST";
    PARAMETER_NOT_SUPPORTED = 0x2601, "PARAMETER NOT SUPPORTED";
    PARAMETER_VALUE_INVALID = 0x2602, "PARAMETER VALUE INVALID";
    INVALID_RELEASE_OF_PERSISTENT_RESERVATION = 0x2604, "INVALID RELEASE OF PERSISTENT RESERVATION";
    INVALID_DATA_OUT_BUFFER_ICV = 0x260F, "INVALID DATA-OUT BUFFER INTEGRITY CHECK VALUE";
    WRITE_PROTECTED = 0x2700, "WRITE PROTECTED";
    SPACE_ALLOCATION_FAILED = 0x2707, "SPACE ALLOCATION FAILED WRITE PROTECT";
    POWER_ON_OR_RESET = 0x2900, "POWER ON, RESET, OR BUS DEVICE RESET OCCURRED";
    POWER_ON_OCCURRED = 0x2901, "POWER ON OCCURRED";
    SCSI_BUS_RESET_OCCURRED = 0x2902, "SCSI BUS RESET OCCURRED";
    BUS_DEVICE_RESET_OCCURRED = 0x2903, "BUS DEVICE RESET FUNCTION OCCURRED";
    DEVICE_INTERNAL_RESET = 0x2904, "DEVICE INTERNAL RESET";
    NEXUS_LOSS_OCCURRED = 0x2907, "I_T NEXUS LOSS OCCURRED";
    PARAMETERS_CHANGED = 0x2A00, "PARAMETERS CHANGED";
    MODE_PARAMETERS_CHANGED = 0x2A01, "MODE PARAMETERS CHANGED";
    RESERVATIONS_PREEMPTED = 0x2A03, "RESERVATIONS PREEMPTED";
    RESERVATIONS_RELEASED = 0x2A04, "RESERVATIONS RELEASED";
    REGISTRATIONS_PREEMPTED = 0x2A05, "REGISTRATIONS PREEMPTED";
    ASYMMETRIC_ACCESS_STATE_CHANGED = 0x2A06, "ASYMMETRIC ACCESS STATE CHANGED";
    // The qualifiers from 80h on are vendor-specific.
    ACKNOWLEDGED_WRITE_REJECTED = 0x2A80, "ACKNOWLEDGED WRITE REJECTED (vendor-specific)";
    UNIT_KEYS_CHANGED = 0x2A81, "UNIT KEYS CHANGED (vendor-specific)";
    COMMAND_SEQUENCE_ERROR = 0x2C00, "COMMAND SEQUENCE ERROR";
    CONTAINS_USER_OBJECTS = 0x2C0A, "PARTITION OR COLLECTION CONTAINS USER OBJECTS";
    COMMANDS_CLEARED_BY_ANOTHER_INITIATOR = 0x2F00, "COMMANDS CLEARED BY ANOTHER INITIATOR";
    FORMAT_COMMAND_FAILED = 0x3101, "FORMAT COMMAND FAILED";
    SAVING_PARAMETERS_NOT_SUPPORTED = 0x3900, "SAVING PARAMETERS NOT SUPPORTED";
    MEDIUM_NOT_PRESENT = 0x3A00, "MEDIUM NOT PRESENT";
    READ_PAST_END_OF_USER_OBJECT = 0x3B17, "READ PAST END OF USER OBJECT";
    MICROCODE_CHANGED = 0x3F01, "MICROCODE HAS BEEN CHANGED";
    INQUIRY_DATA_CHANGED = 0x3F03, "INQUIRY DATA HAS CHANGED";
    REPORTED_LUNS_CHANGED = 0x3F0E, "REPORTED LUNS DATA HAS CHANGED";
    INTERNAL_TARGET_FAILURE = 0x4400, "INTERNAL TARGET FAILURE";
    OVERLAPPED_COMMANDS = 0x4E00, "OVERLAPPED COMMANDS ATTEMPTED";
    MEDIUM_REMOVAL_PREVENTED = 0x5302, "MEDIUM REMOVAL PREVENTED";
    SYSTEM_RESOURCE_FAILURE = 0x5500, "SYSTEM RESOURCE FAILURE";
    INSUFFICIENT_RESOURCES = 0x5503, "INSUFFICIENT RESOURCES";
    INSUFFICIENT_REGISTRATION_RESOURCES = 0x5504, "INSUFFICIENT REGISTRATION RESOURCES";
    QUOTA_ERROR = 0x5507, "QUOTA ERROR";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_ascending_and_unique() {
        assert!(TABLE.windows(2).all(|pair| pair[0].0.0 < pair[1].0.0));
    }
}
