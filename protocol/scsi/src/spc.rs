//! The SPC commands of every logical unit (SPC-4 §6), and their parameter data.
//!
//! Does: parses the CDBs into typed values, builds responses.
//! Does not: run them; [`primary`](crate::primary) does.
//! Source of truth: `docs/standards/scsi.md`, SPC commands.

use alloc::vec::Vec;

use thiserror::Error;

use crate::{AdditionalSense, FieldPointer, Sense, SenseKey, additional};
use mode::{ModeSelect, ModeSense, PageControl};
use supported::Reporting;

pub mod mode;
pub mod supported;

/// Operation codes of the commands.
pub mod opcode {
    /// TEST UNIT READY.
    pub const TEST_UNIT_READY: u8 = 0x00;
    /// REQUEST SENSE.
    pub const REQUEST_SENSE: u8 = 0x03;
    /// The INQUIRY command.
    pub const INQUIRY: u8 = 0x12;
    /// MODE SELECT(6).
    pub const MODE_SELECT_6: u8 = 0x15;
    /// MODE SENSE(6).
    pub const MODE_SENSE_6: u8 = 0x1A;
    /// MODE SELECT(10).
    pub const MODE_SELECT_10: u8 = 0x55;
    /// MODE SENSE(10).
    pub const MODE_SENSE_10: u8 = 0x5A;
    /// REPORT LUNS.
    pub const REPORT_LUNS: u8 = 0xA0;
    /// MAINTENANCE IN, whose service actions are separate commands.
    pub const MAINTENANCE_IN: u8 = 0xA3;
    /// REPORT SUPPORTED OPERATION CODES, a service action of MAINTENANCE IN.
    pub const REPORT_OPERATION_CODES: u8 = 0x0C;
    /// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS, a service action of MAINTENANCE IN.
    pub const REPORT_TASK_FUNCTIONS: u8 = 0x0D;
}

/// A command that every logical unit supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpcCommand {
    /// TEST UNIT READY.
    TestUnitReady,
    /// REQUEST SENSE.
    RequestSense {
        /// DESC: descriptor format, else fixed.
        descriptor: bool,
        /// ALLOCATION LENGTH in bytes.
        allocation: u8,
    },
    /// The INQUIRY command.
    Inquiry {
        /// The vital product data page, or standard data.
        page: Option<u8>,
        /// ALLOCATION LENGTH in bytes.
        allocation: u16,
    },
    /// REPORT LUNS.
    ReportLuns {
        /// SELECT REPORT: the logical units to report.
        select: Select,
        /// ALLOCATION LENGTH in bytes, at least 16.
        allocation: u32,
    },
    /// MODE SENSE, both lengths.
    ModeSense {
        /// The request.
        sense: ModeSense,
        /// ALLOCATION LENGTH in bytes.
        allocation: u16,
    },
    /// MODE SELECT, both lengths.
    ModeSelect(ModeSelect),
    /// REPORT SUPPORTED OPERATION CODES.
    ReportOperationCodes {
        /// The commands to report.
        reporting: Reporting,
        /// RCTD: with timeouts.
        timeouts: bool,
        /// ALLOCATION LENGTH in bytes.
        allocation: u32,
    },
    /// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
    ReportTaskFunctions {
        /// REPD: the longer form.
        extended: bool,
        /// ALLOCATION LENGTH in bytes, at least 4.
        allocation: u32,
    },
}

/// SELECT REPORT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// All except well-known ones.
    Addressable,
    /// Only well-known ones.
    WellKnown,
    /// Both kinds.
    All,
}

/// Why a CDB is not a supported SPC command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SpcError {
    /// The operation code is not in this table.
    #[error("unknown operation code {0:#04x}")]
    OperationCode(u8),
    /// An empty CDB.
    #[error("empty CDB")]
    Empty,
    /// Fewer bytes than the operation code's group has.
    #[error("a CDB of {0} bytes is too short")]
    Length(usize),
    /// A field with a value that is not supported.
    #[error("invalid field at CDB byte {at}")]
    Field {
        /// Its first byte.
        at: u16,
    },
}

impl SpcError {
    /// Returns ILLEGAL REQUEST with the matching code.
    #[must_use]
    pub fn sense(&self) -> Sense {
        let (code, at) = match self {
            Self::OperationCode(_) | Self::Empty | Self::Length(_) => {
                (additional::INVALID_COMMAND_OPERATION_CODE, 0)
            }
            Self::Field { at } => (additional::INVALID_FIELD_IN_CDB, *at),
        };
        Sense::new(SenseKey::IllegalRequest, code).with_field(FieldPointer::cdb(at))
    }
}

/// Minimum ALLOCATION LENGTH of REPORT LUNS in bytes.
const REPORT_LUNS_MIN: u32 = 16;
/// EVPD of INQUIRY, DESC of REQUEST SENSE; the bit beside it is obsolete and must be zero.
const BIT_0: u8 = 0x01;
/// Minimum ALLOCATION LENGTH of REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS in bytes.
const TASK_FUNCTIONS_MIN: u32 = 4;
/// DBD and LLBAA of MODE SENSE.
const DBD: u8 = 0x08;
const LLBAA: u8 = 0x10;
/// PF of MODE SELECT; without it pages would have a vendor-specific format.
const PF: u8 = 0x10;
/// SP of MODE SELECT: save the pages.
const SP: u8 = 0x01;
/// RCTD, REPD.
const BIT_7: u8 = 0x80;

impl SpcCommand {
    /// Parses a CDB; bytes after the command's own are transport padding and ignored.
    ///
    /// # Errors
    /// See [`SpcError`].
    pub fn parse(cdb: &[u8]) -> Result<Self, SpcError> {
        let short = SpcError::Length(cdb.len());
        match *cdb.first().ok_or(SpcError::Empty)? {
            opcode::TEST_UNIT_READY => cdb.get(..6).map(|_| Self::TestUnitReady).ok_or(short),
            opcode::REQUEST_SENSE => {
                let &[_, flags, _, _, allocation, _] = cdb.first_chunk().ok_or(short)?;
                Ok(Self::RequestSense { descriptor: flags & BIT_0 != 0, allocation })
            }
            opcode::INQUIRY => {
                let &[_, flags, page, high, low, _] = cdb.first_chunk().ok_or(short)?;
                let page = match (flags, page) {
                    (0, 0) => None,
                    (BIT_0, page) => Some(page),
                    (0, _) => return Err(SpcError::Field { at: 2 }),
                    _ => return Err(SpcError::Field { at: 1 }),
                };
                Ok(Self::Inquiry { page, allocation: u16::from_be_bytes([high, low]) })
            }
            opcode::REPORT_LUNS => {
                let &[_, _, select, _, _, _, a, b, c, d, _, _] = cdb.first_chunk().ok_or(short)?;
                let select = match select {
                    0 => Select::Addressable,
                    1 => Select::WellKnown,
                    2 => Select::All,
                    _ => return Err(SpcError::Field { at: 2 }),
                };
                let allocation = u32::from_be_bytes([a, b, c, d]);
                if allocation < REPORT_LUNS_MIN {
                    return Err(SpcError::Field { at: 6 });
                }
                Ok(Self::ReportLuns { select, allocation })
            }
            opcode::MODE_SENSE_6 => {
                let &[_, flags, page, subpage, allocation, _] = cdb.first_chunk().ok_or(short)?;
                let sense = mode_sense(false, flags & !LLBAA, page, subpage)?;
                Ok(Self::ModeSense { sense, allocation: u16::from(allocation) })
            }
            opcode::MODE_SENSE_10 => {
                let &[_, flags, page, subpage, _, _, _, high, low, _] = cdb.first_chunk().ok_or(short)?;
                let sense = mode_sense(true, flags, page, subpage)?;
                Ok(Self::ModeSense { sense, allocation: u16::from_be_bytes([high, low]) })
            }
            opcode::MODE_SELECT_6 => {
                let &[_, flags, _, _, length, _] = cdb.first_chunk().ok_or(short)?;
                mode_select(false, flags, u16::from(length))
            }
            opcode::MODE_SELECT_10 => {
                let &[_, flags, _, _, _, _, _, high, low, _] = cdb.first_chunk().ok_or(short)?;
                mode_select(true, flags, u16::from_be_bytes([high, low]))
            }
            opcode::MAINTENANCE_IN => maintenance_in(cdb.first_chunk().ok_or(short)?),
            other => Err(SpcError::OperationCode(other)),
        }
    }

    /// Returns ALLOCATION LENGTH in bytes: replies are truncated to it.
    #[must_use]
    pub const fn allocation(&self) -> usize {
        match *self {
            Self::TestUnitReady => 0,
            Self::RequestSense { allocation, .. } => allocation as usize,
            Self::Inquiry { allocation, .. } => allocation as usize,
            Self::ReportLuns { allocation, .. }
            | Self::ReportOperationCodes { allocation, .. }
            | Self::ReportTaskFunctions { allocation, .. } => allocation as usize,
            Self::ModeSense { allocation, .. } => allocation as usize,
            Self::ModeSelect(_) => 0,
        }
    }

    /// Whether it is answered although a unit attention is pending, or the logical unit does not
    /// exist.
    #[must_use]
    pub const fn ignores_unit_attention(&self) -> bool {
        matches!(self, Self::Inquiry { .. } | Self::ReportLuns { .. } | Self::RequestSense { .. })
    }
}

fn mode_sense(ten: bool, flags: u8, page: u8, subpage: u8) -> Result<ModeSense, SpcError> {
    if flags & !(DBD | LLBAA) != 0 {
        return Err(SpcError::Field { at: 1 });
    }
    Ok(ModeSense {
        ten,
        no_block: flags & DBD != 0,
        long_block: flags & LLBAA != 0,
        control: match page >> 6 {
            0 => PageControl::Current,
            1 => PageControl::Changeable,
            2 => PageControl::Default,
            _ => PageControl::Saved,
        },
        page: page & 0x3F,
        subpage,
    })
}

fn mode_select(ten: bool, flags: u8, length: u16) -> Result<SpcCommand, SpcError> {
    if flags & !(PF | SP) != 0 || (flags & PF == 0 && length > 0) {
        return Err(SpcError::Field { at: 1 });
    }
    Ok(SpcCommand::ModeSelect(ModeSelect { ten, save: flags & SP != 0, length }))
}

fn maintenance_in(cdb: &[u8; 12]) -> Result<SpcCommand, SpcError> {
    let &[_, action, options, operation, high, low, a, b, c, d, _, _] = cdb;
    let allocation = u32::from_be_bytes([a, b, c, d]);
    match action {
        opcode::REPORT_OPERATION_CODES => {
            let action = u16::from_be_bytes([high, low]);
            let reporting = match options & !BIT_7 {
                0 => Reporting::All,
                1 => Reporting::Opcode(operation),
                2 => Reporting::Action(operation, action),
                3 => Reporting::Either(operation, action),
                _ => return Err(SpcError::Field { at: 2 }),
            };
            Ok(SpcCommand::ReportOperationCodes { reporting, timeouts: options & BIT_7 != 0, allocation })
        }
        opcode::REPORT_TASK_FUNCTIONS => match options {
            0 | BIT_7 if allocation >= TASK_FUNCTIONS_MIN => {
                Ok(SpcCommand::ReportTaskFunctions { extended: options == BIT_7, allocation })
            }
            0 | BIT_7 => Err(SpcError::Field { at: 6 }),
            _ => Err(SpcError::Field { at: 2 }),
        },
        _ => Err(SpcError::Field { at: 1 }),
    }
}

/// T10 VENDOR IDENTIFICATION of every logical unit of this target.
pub const VENDOR: &str = "SEALSTON";
/// Peripheral device type of a direct access block device.
pub const DEVICE_TYPE_BLOCK: u8 = 0x00;
/// Peripheral device type of an OSD.
pub const DEVICE_TYPE_OSD: u8 = 0x11;
/// Peripheral qualifier and device type of a logical unit that does not exist.
pub const NOT_THERE: u8 = 0x7F;

/// Version descriptors: the standards that a logical unit follows.
pub mod version {
    /// Descriptor of SAM-3.
    pub const SAM_3: u16 = 0x0060;
    /// Descriptor of SPC-3.
    pub const SPC_3: u16 = 0x0300;
    /// OSD (T10/1355-D).
    pub const OSD: u16 = 0x0340;
    /// OSD-2 (T10/1729-D).
    pub const OSD_2: u16 = 0x0440;
    /// Descriptor of SAM-5.
    pub const SAM_5: u16 = 0x00A0;
    /// Descriptor of SPC-4.
    pub const SPC_4: u16 = 0x0460;
    /// Descriptor of SBC-3.
    pub const SBC_3: u16 = 0x04C0;
    /// Descriptor of iSCSI.
    pub const ISCSI: u16 = 0x0960;
}

/// Bytes of standard INQUIRY data.
const STANDARD_LEN: usize = 96;
/// Maximum number of version descriptors.
const VERSIONS_MAX: usize = 8;
/// VERSION: SPC-3.
const SPC_3_VERSION: u8 = 0x05;
/// RESPONSE DATA FORMAT, and HISUP: hierarchical LUN addressing.
const RESPONSE_FORMAT: u8 = 0x12;
/// The RMB bit.
const RMB: u8 = 0x80;
/// CMDQUE: commands are queued.
const CMDQUE: u8 = 0x02;

/// Identification of a logical unit; texts are ASCII, truncated or padded with blanks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity<'a> {
    /// Peripheral qualifier and device type: [`DEVICE_TYPE_OSD`], or [`NOT_THERE`].
    pub device_type: u8,
    /// T10 VENDOR IDENTIFICATION, 8 bytes.
    pub vendor: &'a str,
    /// PRODUCT IDENTIFICATION, 16 bytes.
    pub product: &'a str,
    /// PRODUCT REVISION LEVEL, 4 bytes.
    pub revision: &'a str,
    /// Version descriptors, at most 8.
    pub versions: &'a [u16],
    /// RMB: whether the medium is removable.
    pub removable: bool,
}

/// Copies text left-justified into a field, padded with blanks; characters other than printable
/// ASCII become blanks.
fn text(field: &mut [u8], text: &str) {
    field.fill(b' ');
    for (slot, byte) in field.iter_mut().zip(text.bytes()) {
        *slot = if byte.is_ascii_graphic() { byte } else { b' ' };
    }
}

/// Encodes standard INQUIRY data.
#[must_use]
pub fn standard_inquiry(identity: &Identity<'_>) -> Vec<u8> {
    let mut out = alloc::vec![0; STANDARD_LEN];
    out[0] = identity.device_type;
    out[1] = if identity.removable { RMB } else { 0 };
    out[2] = SPC_3_VERSION;
    out[3] = RESPONSE_FORMAT;
    out[4] = (STANDARD_LEN - 5) as u8;
    out[7] = CMDQUE;
    text(&mut out[8..16], identity.vendor);
    text(&mut out[16..32], identity.product);
    text(&mut out[32..36], identity.revision);
    for (slot, version) in out[58..74].chunks_exact_mut(2).zip(identity.versions.iter().take(VERSIONS_MAX)) {
        slot.copy_from_slice(&version.to_be_bytes());
    }
    out
}

/// Vital product data pages.
pub mod vpd {
    use super::{AdditionalSense, FieldPointer, Sense, SenseKey, Vec, additional};

    /// Supported pages.
    pub const SUPPORTED: u8 = 0x00;
    /// Unit serial number.
    pub const SERIAL: u8 = 0x80;
    /// Device identification.
    pub const IDENTIFICATION: u8 = 0x83;
    /// OSD information.
    pub const OSD_INFORMATION: u8 = 0xB0;
    /// Security token of the nexus.
    pub const SECURITY_TOKEN: u8 = 0xB1;
    /// The pages an OSD has, ascending.
    pub const OSD_PAGES: [u8; 5] = [SUPPORTED, SERIAL, IDENTIFICATION, OSD_INFORMATION, SECURITY_TOKEN];
    /// Public key of the cipher that conceals methods in transit; vendor specific.
    pub const METHOD_CIPHER: u8 = 0xC0;
    /// The pages of an OSD that has one, ascending.
    pub const OSD_CIPHER_PAGES: [u8; 6] =
        [SUPPORTED, SERIAL, IDENTIFICATION, OSD_INFORMATION, SECURITY_TOKEN, METHOD_CIPHER];

    /// Bytes of a page's header.
    const HEADER: usize = 4;

    /// Encodes a page with this content; bytes beyond its length field are dropped.
    #[must_use]
    pub fn page(device_type: u8, page: u8, content: &[u8]) -> Vec<u8> {
        let content = &content[..content.len().min(usize::from(u16::MAX))];
        let mut out = Vec::with_capacity(HEADER + content.len());
        out.extend([device_type, page]);
        out.extend((content.len() as u16).to_be_bytes());
        out.extend_from_slice(content);
        out
    }

    /// Returns the content of a page; `None` if it is another page, or truncated.
    #[must_use]
    pub fn content(page: u8, bytes: &[u8]) -> Option<&[u8]> {
        match bytes {
            [_, number, high, low, rest @ ..] if *number == page => {
                rest.get(..usize::from(u16::from_be_bytes([*high, *low])))
            }
            _ => None,
        }
    }

    /// Returns the sense data for an unsupported page.
    #[must_use]
    pub fn unsupported() -> Sense {
        const CODE: AdditionalSense = additional::INVALID_FIELD_IN_CDB;
        Sense::new(SenseKey::IllegalRequest, CODE).with_field(FieldPointer::cdb(2))
    }

    /// Type of a designator in the device identification page.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u8)]
    pub enum DesignatorType {
        /// T10 vendor identification and a vendor-specific part.
        T10Vendor = 0x1,
        /// An EUI-64 identifier.
        Eui64 = 0x2,
        /// An NAA identifier.
        Naa = 0x3,
        /// SCSI name string, UTF-8, zero-terminated.
        ScsiName = 0x8,
    }

    /// CODE SET.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u8)]
    pub enum CodeSet {
        /// Binary data.
        Binary = 0x1,
        /// ASCII text.
        Ascii = 0x2,
        /// UTF-8 text.
        Utf8 = 0x3,
    }

    /// Encodes a designation descriptor of the logical unit; its first 20 bytes, padded with zeros,
    /// are the OSD SYSTEM ID. A designator is truncated to 255 bytes.
    #[must_use]
    pub fn designation(kind: DesignatorType, code_set: CodeSet, designator: &[u8]) -> Vec<u8> {
        let designator = &designator[..designator.len().min(usize::from(u8::MAX))];
        let mut out = Vec::with_capacity(HEADER + designator.len());
        out.extend([code_set as u8, kind as u8, 0, designator.len() as u8]);
        out.extend_from_slice(designator);
        out
    }

    /// Returns the locally assigned designator of a logical unit: NAA 3 and 60 of these bits.
    #[must_use]
    pub fn local_naa(unique: &[u8; 8]) -> Vec<u8> {
        const LOCALLY_ASSIGNED: u8 = 0x30;
        let mut naa = *unique;
        naa[0] = LOCALLY_ASSIGNED | naa[0] & 0x0F;
        designation(DesignatorType::Naa, CodeSet::Binary, &naa)
    }

    /// Returns the designator of a logical unit by its vendor and serial number.
    #[must_use]
    pub fn vendor_designation(serial: &str) -> Vec<u8> {
        let text = [super::VENDOR.as_bytes(), serial.as_bytes()].concat();
        designation(DesignatorType::T10Vendor, CodeSet::Ascii, &text)
    }

    /// ASSOCIATION of a designator, with PIV.
    const OF_TARGET_PORT: u8 = 0x90;
    const OF_TARGET: u8 = 0xA0;
    /// PROTOCOL IDENTIFIER of iSCSI, in the first byte of a designator.
    const ISCSI: u8 = 0x50;
    /// Relative target port identifier, a designator type.
    const RELATIVE_PORT: u8 = 0x4;
    /// Longest SCSI name string, bytes, a multiple of four.
    const NAME_MAX: usize = 252;

    /// Encodes the designators of an iSCSI target port and its target: relative identifier and SCSI
    /// name strings.
    #[must_use]
    pub fn iscsi_designations(target: &str, port: u16) -> Vec<u8> {
        let [high, low] = port.to_be_bytes();
        let relative = [ISCSI | CodeSet::Binary as u8, OF_TARGET_PORT | RELATIVE_PORT, 0, 4, 0, 0, high, low];
        let mut content = relative.to_vec();
        for (association, name) in [
            (OF_TARGET_PORT, alloc::format!("{target},t,0x{port:04x}")),
            (OF_TARGET, alloc::string::String::from(target)),
        ] {
            // Zero-terminated, a multiple of four.
            let mut text = name.into_bytes();
            text.resize((text.len() + 1).next_multiple_of(4).min(NAME_MAX), 0);
            let mut descriptor = designation(DesignatorType::ScsiName, CodeSet::Utf8, &text);
            descriptor[0] |= ISCSI;
            descriptor[1] |= association;
            content.extend(descriptor);
        }
        content
    }

    /// Parses the designation descriptors of a device identification page's content: code set,
    /// type, designator. Ends at the first truncated one.
    pub fn designations(content: &[u8]) -> impl Iterator<Item = (u8, u8, &[u8])> {
        let mut rest = content;
        core::iter::from_fn(move || {
            let [code_set, kind, _, length, tail @ ..] = rest else { return None };
            let (designator, next) = tail.split_at_checked(usize::from(*length))?;
            rest = next;
            Some((code_set & 0x0F, kind & 0x0F, designator))
        })
    }
}

/// Encodes REPORT LUNS data: logical unit numbers below 16384, each in single-level form.
///
/// Below 256 peripheral device addressing is used, flat space addressing above.
#[must_use]
pub fn report_luns(luns: &[u16]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + 8 * luns.len());
    out.extend((8 * luns.len() as u32).to_be_bytes());
    out.extend([0; 4]);
    for lun in luns {
        let flat = if *lun < 0x100 { *lun } else { FLAT_SPACE | lun & LUN_MASK };
        out.extend(flat.to_be_bytes());
        out.extend([0; 6]);
    }
    out
}

/// Flat space addressing method, and the bits of the number.
const FLAT_SPACE: u16 = 0x4000;
const LUN_MASK: u16 = 0x3FFF;

/// Returns the number of a single-level LUN field; `None` for other levels or addressing methods.
#[must_use]
pub const fn flat_lun(lun: [u8; 8]) -> Option<u64> {
    let [high, low, rest @ ..] = lun;
    let first = u16::from_be_bytes([high, low]);
    match (first & !LUN_MASK, rest) {
        (0, [0, 0, 0, 0, 0, 0]) if first < 0x100 => Some(first as u64),
        (FLAT_SPACE, [0, 0, 0, 0, 0, 0]) => Some((first & LUN_MASK) as u64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cdbs_parse_to_their_fields() {
        let parse = SpcCommand::parse;
        assert_eq!(parse(&[0; 6]), Ok(SpcCommand::TestUnitReady));
        assert_eq!(parse(&[0x12, 0, 0, 1, 0, 0]), Ok(SpcCommand::Inquiry { page: None, allocation: 256 }));
        let page = SpcCommand::Inquiry { page: Some(0xB1), allocation: 64 };
        assert_eq!(parse(&[0x12, 1, 0xB1, 0, 64, 0, 0, 0]), Ok(page));
        let sense = SpcCommand::RequestSense { descriptor: true, allocation: 252 };
        assert_eq!(parse(&[3, 1, 0, 0, 252, 0]), Ok(sense));
        let luns = SpcCommand::ReportLuns { select: Select::All, allocation: 4096 };
        assert_eq!(parse(&[0xA0, 0, 2, 0, 0, 0, 0, 0, 0x10, 0, 0, 0]), Ok(luns));
    }

    #[test]
    fn unsupported_fields_are_refused_with_their_byte() {
        let parse = |cdb: &[u8]| SpcCommand::parse(cdb).unwrap_err();
        assert_eq!(parse(&[0x28; 10]), SpcError::OperationCode(0x28));
        assert_eq!(parse(&[0x28; 10]).sense().code, additional::INVALID_COMMAND_OPERATION_CODE);
        assert_eq!(parse(&[0x12, 0, 0x80, 0, 64, 0]), SpcError::Field { at: 2 });
        assert_eq!(parse(&[0x12, 2, 0, 0, 64, 0]), SpcError::Field { at: 1 });
        assert_eq!(parse(&[0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 15, 0, 0]), SpcError::Field { at: 6 });
        assert_eq!(parse(&[0xA0, 0, 0, 0, 0, 0]), SpcError::Length(6));
        assert_eq!(parse(&[]), SpcError::Empty);
        assert_eq!(vpd::unsupported().field, Some(FieldPointer::cdb(2)));
    }

    #[test]
    fn inquiry_data_follows_the_standard_layout() {
        let identity = Identity {
            device_type: DEVICE_TYPE_OSD,
            vendor: "SEALSTN",
            product: "Object store\n",
            revision: "0.1.0",
            versions: &[version::OSD, version::OSD_2, version::ISCSI, version::SPC_3],
            removable: false,
        };
        let data = standard_inquiry(&identity);
        assert_eq!((data.len(), data[0], data[4]), (96, 0x11, 91));
        assert_eq!(&data[8..36], b"SEALSTN Object store    0.1.");
        assert_eq!(data[58..68], [3, 0x40, 4, 0x40, 9, 0x60, 3, 0, 0, 0]);
    }

    #[test]
    fn vpd_pages_and_designators_read_back() {
        let naa = vpd::designation(vpd::DesignatorType::Naa, vpd::CodeSet::Binary, &[5; 16]);
        let name = vpd::designation(vpd::DesignatorType::ScsiName, vpd::CodeSet::Utf8, b"iqn\0");
        let page = vpd::page(DEVICE_TYPE_OSD, vpd::IDENTIFICATION, &[&naa[..], &name[..]].concat());
        assert_eq!(page[..8], [0x11, 0x83, 0, 28, 1, 3, 0, 16]);
        let content = vpd::content(vpd::IDENTIFICATION, &page).unwrap();
        let seen: Vec<_> = vpd::designations(content).collect();
        assert_eq!(seen, [(1, 3, &[5; 16][..]), (3, 8, &b"iqn\0"[..])]);
        assert_eq!(vpd::content(vpd::SERIAL, &page), None);
        assert!(vpd::OSD_PAGES.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn luns_read_back() {
        let data = report_luns(&[0, 255, 256, 16383]);
        assert_eq!(data[..4], 32_u32.to_be_bytes());
        let back: Vec<_> = data[8..].chunks_exact(8).map(|lun| flat_lun(lun.try_into().unwrap())).collect();
        assert_eq!(back, [Some(0), Some(255), Some(256), Some(16383)]);
        assert_eq!(flat_lun([0xC1, 1, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(flat_lun([0, 1, 0, 1, 0, 0, 0, 0]), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = SpcCommand::parse(&bytes).map_err(|error| error.sense());
            let _ = vpd::content(0x83, &bytes).map(|content| vpd::designations(content).count());
            let _ = vpd::designations(&bytes).count();
        }
    }
}
