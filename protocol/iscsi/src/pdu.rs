//! Basic header segments: 48 bytes of every PDU (RFC 7143 §11), and additional header segments.

use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned,
    byteorder::big_endian::{U16, U32, U64},
};

use crate::{Cdb, limits};

/// Length of a basic header segment.
pub(crate) const BHS_LEN: usize = 48;
/// A basic header segment in wire form.
pub(crate) type Bhs = [u8; BHS_LEN];

/// The reserved tag: no task, no transfer.
pub(crate) const NO_TAG: u32 = 0xFFFF_FFFF;

pub(crate) mod opcode {
    pub(crate) const NOP_OUT: u8 = 0x00;
    pub(crate) const SCSI_COMMAND: u8 = 0x01;
    pub(crate) const TASK_MANAGEMENT: u8 = 0x02;
    pub(crate) const LOGIN: u8 = 0x03;
    pub(crate) const TEXT: u8 = 0x04;
    pub(crate) const DATA_OUT: u8 = 0x05;
    pub(crate) const LOGOUT: u8 = 0x06;
    pub(crate) const SNACK: u8 = 0x10;
    pub(crate) const NOP_IN: u8 = 0x20;
    pub(crate) const SCSI_RESPONSE: u8 = 0x21;
    pub(crate) const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    pub(crate) const LOGIN_RESPONSE: u8 = 0x23;
    pub(crate) const TEXT_RESPONSE: u8 = 0x24;
    pub(crate) const DATA_IN: u8 = 0x25;
    pub(crate) const LOGOUT_RESPONSE: u8 = 0x26;
    pub(crate) const R2T: u8 = 0x31;
    pub(crate) const ASYNC: u8 = 0x32;
    pub(crate) const REJECT: u8 = 0x3F;
    /// Byte 0 of an immediate request.
    pub(crate) const IMMEDIATE: u8 = 0x40;
    /// The opcode proper within byte 0.
    pub(crate) const MASK: u8 = 0x3F;
}

/// Bits of byte 1.
pub(crate) mod flag {
    pub(crate) const FINAL: u8 = 0x80;
    /// Login: transit to the next stage.
    pub(crate) const TRANSIT: u8 = 0x80;
    /// Login and text: the text continues in the next PDU.
    pub(crate) const CONTINUE: u8 = 0x40;
    pub(crate) const READ: u8 = 0x40;
    pub(crate) const WRITE: u8 = 0x20;
    /// Data-In: status is in this PDU.
    pub(crate) const STATUS: u8 = 0x01;
    pub(crate) const BIDI_OVERFLOW: u8 = 0x10;
    pub(crate) const BIDI_UNDERFLOW: u8 = 0x08;
    pub(crate) const OVERFLOW: u8 = 0x04;
    pub(crate) const UNDERFLOW: u8 = 0x02;
}

/// Reasons of a Reject (RFC 7143 §11.17.1).
pub(crate) mod reason {
    pub(crate) const DATA_DIGEST: u8 = 0x02;
    pub(crate) const SNACK: u8 = 0x03;
    pub(crate) const PROTOCOL: u8 = 0x04;
    pub(crate) const NOT_SUPPORTED: u8 = 0x05;
    pub(crate) const TOO_MANY_IMMEDIATE: u8 = 0x06;
    pub(crate) const TASK_IN_PROGRESS: u8 = 0x07;
    pub(crate) const INVALID_FIELD: u8 = 0x09;
    pub(crate) const OUT_OF_RESOURCES: u8 = 0x0A;
}

macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        pub(crate) struct $name {
            pub(crate) opcode: u8,
            pub(crate) flags: u8,
            $(pub(crate) $field: $kind),*
        }
        const _: () = assert!(size_of::<$name>() == BHS_LEN);

        #[allow(dead_code, reason = "each layout is read by one end and written by the other; tests do both")]
        impl $name {
            /// Creates a header of zeros except for the first two bytes.
            pub(crate) fn new(opcode: u8, flags: u8) -> Self {
                Self { opcode, flags, ..Self::new_zeroed() }
            }

            /// Interprets a header; all values of the 48 bytes are valid.
            pub(crate) fn of(bhs: &Bhs) -> Self {
                zerocopy::transmute!(*bhs)
            }

            /// Returns the wire form.
            pub(crate) fn wire(self) -> Bhs {
                zerocopy::transmute!(self)
            }
        }
    )*};
}

layouts! {
    /// Layout of RFC 7143 §11.3.
    ScsiCommand {
        reserved: [u8; 2], ahs: u8, length: [u8; 3], lun: U64, tag: U32, expected: U32,
        cmd_sn: U32, exp_stat_sn: U32, cdb: [u8; 16],
    }
    /// Layout of RFC 7143 §11.4.
    ScsiResponse {
        response: u8, status: u8, ahs: u8, length: [u8; 3], reserved: [u8; 8], tag: U32, snack: U32,
        stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32, exp_data_sn: U32, bidi_residual: U32, residual: U32,
    }
    /// Layout of RFC 7143 §11.5.
    TaskManagement {
        reserved: [u8; 2], ahs: u8, length: [u8; 3], lun: U64, tag: U32, referenced: U32,
        cmd_sn: U32, exp_stat_sn: U32, ref_cmd_sn: U32, exp_data_sn: U32, reserved_2: [u8; 8],
    }
    /// Layout of RFC 7143 §11.6.
    TaskManagementResponse {
        response: u8, reserved: u8, ahs: u8, length: [u8; 3], reserved_2: [u8; 8], tag: U32, reserved_3: [u8; 4],
        stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32, reserved_4: [u8; 12],
    }
    /// Layout of RFC 7143 §11.7.
    DataOut {
        reserved: [u8; 2], ahs: u8, length: [u8; 3], lun: U64, tag: U32, transfer: U32, reserved_2: [u8; 4],
        exp_stat_sn: U32, reserved_3: [u8; 4], data_sn: U32, offset: U32, reserved_4: [u8; 4],
    }
    /// Layout of RFC 7143 §11.7.
    DataIn {
        reserved: u8, status: u8, ahs: u8, length: [u8; 3], lun: U64, tag: U32, transfer: U32,
        stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32, data_sn: U32, offset: U32, residual: U32,
    }
    /// Layout of RFC 7143 §11.8.
    R2t {
        reserved: [u8; 2], ahs: u8, length: [u8; 3], lun: U64, tag: U32, transfer: U32,
        stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32, r2t_sn: U32, offset: U32, desired: U32,
    }
    /// Layout of RFC 7143 §11.9.
    Async {
        reserved: [u8; 2], ahs: u8, length: [u8; 3], lun: U64, tag: U32, reserved_2: [u8; 4],
        stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32, event: u8, vendor: u8, parameter_1: U16,
        parameter_2: U16, parameter_3: U16, reserved_3: [u8; 4],
    }
    /// §11.10; also NOP-Out (§11.18), whose layout is the same.
    Text {
        reserved: [u8; 2], ahs: u8, length: [u8; 3], lun: U64, tag: U32, transfer: U32,
        cmd_sn: U32, exp_stat_sn: U32, reserved_2: [u8; 16],
    }
    /// §11.11; also NOP-In (§11.19), whose layout is the same.
    TextResponse {
        reserved: [u8; 2], ahs: u8, length: [u8; 3], lun: U64, tag: U32, transfer: U32,
        stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32, reserved_2: [u8; 12],
    }
    /// Layout of RFC 7143 §11.12.
    Login {
        version_max: u8, version_min: u8, ahs: u8, length: [u8; 3], isid: [u8; 6], tsih: U16, tag: U32,
        cid: U16, reserved: [u8; 2], cmd_sn: U32, exp_stat_sn: U32, reserved_2: [u8; 16],
    }
    /// Layout of RFC 7143 §11.13.
    LoginResponse {
        version_max: u8, version_active: u8, ahs: u8, length: [u8; 3], isid: [u8; 6], tsih: U16, tag: U32,
        reserved: [u8; 4], stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32, class: u8, detail: u8,
        reserved_2: [u8; 10],
    }
    /// Layout of RFC 7143 §11.14.
    Logout {
        reserved: [u8; 2], ahs: u8, length: [u8; 3], reserved_2: [u8; 8], tag: U32, cid: U16,
        reserved_3: [u8; 2], cmd_sn: U32, exp_stat_sn: U32, reserved_4: [u8; 16],
    }
    /// Layout of RFC 7143 §11.15.
    LogoutResponse {
        response: u8, reserved: u8, ahs: u8, length: [u8; 3], reserved_2: [u8; 8], tag: U32,
        reserved_3: [u8; 4], stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32, reserved_4: [u8; 4],
        time2wait: U16, time2retain: U16, reserved_5: [u8; 4],
    }
    /// Layout of RFC 7143 §11.17.
    Reject {
        reason: u8, reserved: u8, ahs: u8, length: [u8; 3], reserved_2: [u8; 8], tag: U32, reserved_3: [u8; 4],
        stat_sn: U32, exp_cmd_sn: U32, max_cmd_sn: U32, data_sn: U32, reserved_4: [u8; 8],
    }
}

/// Returns the opcode without the immediate bit.
pub(crate) const fn opcode_of(bhs: &Bhs) -> u8 {
    bhs[0] & opcode::MASK
}

/// Returns DataSegmentLength, in bytes.
pub(crate) const fn data_length(bhs: &Bhs) -> u32 {
    u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]])
}

/// Returns TotalAHSLength, in bytes.
pub(crate) const fn ahs_length(bhs: &Bhs) -> usize {
    bhs[4] as usize * 4
}

/// Returns InitiatorTaskTag.
pub(crate) const fn tag_of(bhs: &Bhs) -> u32 {
    u32::from_be_bytes([bhs[16], bhs[17], bhs[18], bhs[19]])
}

/// Returns the bytes of padding behind a segment of `len` bytes.
pub(crate) const fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

const AHS_EXTENDED_CDB: u8 = 1;
const AHS_BIDI_READ_LENGTH: u8 = 2;

/// Contents of the additional headers of a SCSI command (§11.2.2).
pub(crate) struct CommandExtras {
    pub(crate) cdb: Cdb,
    pub(crate) bidi_read: Option<u32>,
}

/// Parses the AHSs of a SCSI command; `None` for a malformed, repeated or unknown one.
pub(crate) fn parse_ahs(cdb: &[u8; 16], mut ahs: &[u8]) -> Option<CommandExtras> {
    let mut extension: Option<&[u8]> = None;
    let mut bidi_read = None;
    while !ahs.is_empty() {
        let (head, rest) = ahs.split_at_checked(4)?;
        let specific = usize::from(u16::from_be_bytes([head[0], head[1]]));
        // AHSLength also counts the type-specific byte at offset 3.
        let length = specific.checked_sub(1)?;
        let (body, rest) = rest.split_at_checked(length)?;
        ahs = rest.get(padding(length)..)?;
        match head[2] & 0x3F {
            AHS_EXTENDED_CDB if extension.is_none() && !body.is_empty() => extension = Some(body),
            AHS_BIDI_READ_LENGTH if bidi_read.is_none() => {
                bidi_read = Some(u32::from_be_bytes(body.try_into().ok()?));
            }
            _ => return None,
        }
    }
    let cdb = Cdb::joined(cdb, extension.unwrap_or_default()).ok()?;
    Some(CommandExtras { cdb, bidi_read })
}

/// Writes the additional headers of a SCSI command; returns their length in `into`.
pub(crate) fn write_ahs(cdb: &Cdb, bidi_read: Option<u32>, into: &mut [u8; limits::AHS_MAX]) -> usize {
    let mut at = 0;
    let mut put = |kind: u8, body: &[u8]| {
        let length = u16::try_from(body.len() + 1).expect("a CDB is at most CDB_MAX long");
        into[at..at + 2].copy_from_slice(&length.to_be_bytes());
        into[at + 2..at + 4].copy_from_slice(&[kind, 0]);
        into[at + 4..at + 4 + body.len()].copy_from_slice(body);
        at += 4 + body.len() + padding(body.len());
    };
    if let Some(extension) = cdb.as_slice().get(16..).filter(|rest| !rest.is_empty()) {
        put(AHS_EXTENDED_CDB, extension);
    }
    if let Some(length) = bidi_read {
        put(AHS_BIDI_READ_LENGTH, &length.to_be_bytes());
    }
    at
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn osd_commands_take_the_documented_words() {
        let words = |len: usize, bidi| {
            write_ahs(&Cdb::new(&std::vec![0x7F; len]).unwrap(), bidi, &mut [0; limits::AHS_MAX]) / 4
        };
        assert_eq!((words(200, None), words(236, None), words(236, Some(9))), (47, 56, 58));
        assert_eq!((words(16, None), words(6, None)), (0, 0));
    }

    proptest! {
        #[test]
        fn additional_headers_round_trip(
            bytes in proptest::collection::vec(any::<u8>(), 16..=limits::CDB_MAX),
            bidi: Option<u32>,
        ) {
            let cdb = Cdb::new(&bytes).unwrap();
            let mut area = [0; limits::AHS_MAX];
            let used = write_ahs(&cdb, bidi, &mut area);
            let back = parse_ahs(&bytes[..16].try_into().unwrap(), &area[..used]).unwrap();
            prop_assert_eq!((back.cdb.as_slice(), back.bidi_read), (&bytes[..], bidi));
        }

        #[test]
        fn arbitrary_additional_headers_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..=limits::AHS_MAX)) {
            let _ = parse_ahs(&[0; 16], &bytes);
        }
    }
}
