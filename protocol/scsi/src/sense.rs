//! Sense data in descriptor format, with the descriptors of OSD (SPC-4 §4.5, OSD-2 §4.16).
//!
//! Does: converts between bytes and typed fields; reads fixed format as well.
//! Does not: choose what to report.
//! Contract: encodes at most [`SENSE_MAX`] bytes; attribute identifications that do not fit are
//! omitted.
//! Source of truth: `docs/standards/scsi.md`, sense data.

use alloc::vec::Vec;
use core::fmt;
use core::ops::BitOr;

use thiserror::Error;

use crate::{AdditionalSense, SenseKey};

/// Maximum bytes of sense data.
pub const SENSE_MAX: usize = 252;

/// Parsed sense data. There is at most one descriptor of each type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sense {
    /// About an earlier command (73h) instead of this one (72h).
    pub deferred: bool,
    /// Class of the condition.
    pub key: SenseKey,
    /// The condition.
    pub code: AdditionalSense,
    /// Information descriptor (00h).
    pub information: Option<u64>,
    /// Command specific descriptor (01h); bytes transferred with READ PAST END.
    pub command_specific: Option<u64>,
    /// Sense key specific descriptor (02h) as field pointer.
    pub field: Option<FieldPointer>,
    /// OSD error identification descriptor (06h).
    pub osd: Option<OsdError>,
    /// OSD response integrity check value descriptor (07h).
    pub response_icv: Option<ResponseIcv>,
    /// OSD attribute identification descriptor (08h): pages and numbers in error.
    pub attributes: Vec<(u32, u32)>,
}

/// The wrong field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPointer {
    /// Whether it is in the CDB, or else in parameter data.
    pub in_cdb: bool,
    /// First byte of the field.
    pub byte: u16,
    /// Its most significant bit, if a single bit or nibble is wrong.
    pub bit: Option<u8>,
}

impl FieldPointer {
    /// Returns a field of the CDB.
    #[must_use]
    pub const fn cdb(byte: u16) -> Self {
        Self { in_cdb: true, byte, bit: None }
    }

    /// Returns a field of parameter data.
    #[must_use]
    pub const fn parameter(byte: u16) -> Self {
        Self { in_cdb: false, byte, bit: None }
    }
}

/// Progress of a command: a function in neither set has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OsdError {
    /// Functions that were not started.
    pub not_initiated: Functions,
    /// Functions that were completed.
    pub completed: Functions,
    /// PARTITION_ID of the object in error.
    pub partition: u64,
    /// Number of the object in error.
    pub object: u64,
}

/// A set of command functions.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Functions(pub u32);

impl Functions {
    /// No function.
    pub const NONE: Self = Self(0);
    /// Validation of the command.
    pub const VALIDATION: Self = Self(0x8000_0000);
    /// Capability check of the command.
    pub const COMMAND_CAPABILITY: Self = Self(0x2000_0000);
    /// The command's own work.
    pub const COMMAND: Self = Self(0x1000_0000);
    /// Implicit setting of attributes, timestamps and lengths.
    pub const IMPLICIT_SET: Self = Self(0x0010_0000);
    /// Capability check of setting attributes.
    pub const SET_CAPABILITY: Self = Self(0x0000_2000);
    /// Setting attributes.
    pub const SET_ATTRIBUTES: Self = Self(0x0000_1000);
    /// Capability check of getting attributes.
    pub const GET_CAPABILITY: Self = Self(0x0000_0020);
    /// Getting attributes.
    pub const GET_ATTRIBUTES: Self = Self(0x0000_0010);
    /// All functions, in the order in which they run.
    pub const ALL: [Self; 8] = [
        Self::VALIDATION,
        Self::COMMAND_CAPABILITY,
        Self::COMMAND,
        Self::IMPLICIT_SET,
        Self::SET_CAPABILITY,
        Self::SET_ATTRIBUTES,
        Self::GET_CAPABILITY,
        Self::GET_ATTRIBUTES,
    ];

    /// Whether every bit of `other` is set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Functions {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// A response integrity check value: 20 bytes in OSD-1, 32 in OSD-2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseIcv {
    /// The value of OSD-1.
    Short([u8; 20]),
    /// The value of OSD-2.
    Long([u8; 32]),
}

impl ResponseIcv {
    /// Returns the bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short(bytes) => bytes,
            Self::Long(bytes) => bytes,
        }
    }
}

/// Why bytes are not sense data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SenseError {
    /// It ends within a field.
    #[error("sense data ends after {0} bytes")]
    Truncated(usize),
    /// Neither descriptor (72h, 73h) nor fixed format (70h, 71h).
    #[error("unknown sense response code {0:#04x}")]
    ResponseCode(u8),
    /// Sense key Ch.
    #[error("reserved sense key")]
    Key,
    /// A descriptor with an invalid length for its type.
    #[error("sense descriptor {kind:#04x} of length {length}")]
    Descriptor {
        /// Its type.
        kind: u8,
        /// Its additional length.
        length: u8,
    },
}

/// Type and additional length of the descriptors.
const INFORMATION: (u8, u8) = (0x00, 0x0A);
const COMMAND_SPECIFIC: (u8, u8) = (0x01, 0x0A);
const KEY_SPECIFIC: (u8, u8) = (0x02, 0x06);
const OSD_ERROR: (u8, u8) = (0x06, 0x1E);
const RESPONSE_ICV: u8 = 0x07;
const ATTRIBUTES: u8 = 0x08;

/// INFORMATION field is valid.
const VALID: u8 = 0x80;
/// SKSV, C/D and BPV of a field pointer.
const KEY_SPECIFIC_VALID: u8 = 0x80;
const IN_CDB: u8 = 0x40;
const BIT_VALID: u8 = 0x08;

/// Bytes before the descriptors.
const HEADER: usize = 8;
/// Bytes of fixed format sense data.
const FIXED: usize = 18;

impl Sense {
    /// Returns a current condition without descriptors.
    #[must_use]
    pub const fn new(key: SenseKey, code: AdditionalSense) -> Self {
        Self {
            deferred: false,
            key,
            code,
            information: None,
            command_specific: None,
            field: None,
            osd: None,
            response_icv: None,
            attributes: Vec::new(),
        }
    }

    /// Sets the wrong field.
    #[must_use]
    pub fn with_field(self, field: FieldPointer) -> Self {
        Self { field: Some(field), ..self }
    }

    /// Sets the number of bytes transferred.
    #[must_use]
    pub fn with_command_specific(self, value: u64) -> Self {
        Self { command_specific: Some(value), ..self }
    }

    /// Sets the progress of the command.
    #[must_use]
    pub fn with_osd(self, osd: OsdError) -> Self {
        Self { osd: Some(osd), ..self }
    }

    /// Adds an attribute in error.
    #[must_use]
    pub fn with_attribute(mut self, page: u32, number: u32) -> Self {
        self.attributes.push((page, number));
        self
    }

    /// Sets the response check value.
    #[must_use]
    pub fn with_response_icv(self, icv: ResponseIcv) -> Self {
        Self { response_icv: Some(icv), ..self }
    }

    /// Encodes in descriptor format.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SENSE_MAX);
        let response_code = if self.deferred { 0x73 } else { 0x72 };
        let (code, qualifier) = (self.code.code(), self.code.qualifier());
        out.extend([response_code, self.key.nibble(), code, qualifier, 0, 0, 0, 0]);
        if let Some(value) = self.information {
            out.extend([INFORMATION.0, INFORMATION.1, VALID, 0]);
            out.extend(value.to_be_bytes());
        }
        if let Some(value) = self.command_specific {
            out.extend([COMMAND_SPECIFIC.0, COMMAND_SPECIFIC.1, 0, 0]);
            out.extend(value.to_be_bytes());
        }
        if let Some(field) = self.field {
            let [high, low] = field.byte.to_be_bytes();
            out.extend([KEY_SPECIFIC.0, KEY_SPECIFIC.1, 0, 0, field.flags(), high, low, 0]);
        }
        if let Some(osd) = self.osd {
            out.extend([OSD_ERROR.0, OSD_ERROR.1, 0, 0, 0, 0, 0, 0]);
            out.extend(osd.not_initiated.0.to_be_bytes());
            out.extend(osd.completed.0.to_be_bytes());
            out.extend(osd.partition.to_be_bytes());
            out.extend(osd.object.to_be_bytes());
        }
        if let Some(icv) = &self.response_icv {
            let bytes = icv.as_bytes();
            out.extend([RESPONSE_ICV, bytes.len() as u8]);
            out.extend_from_slice(bytes);
        }
        let room = SENSE_MAX.saturating_sub(out.len() + 4) / 8;
        let shown = &self.attributes[..self.attributes.len().min(room)];
        if !shown.is_empty() {
            out.extend([ATTRIBUTES, (2 + 8 * shown.len()) as u8, 0, 0]);
            for (page, number) in shown {
                out.extend(page.to_be_bytes());
                out.extend(number.to_be_bytes());
            }
        }
        out[7] = (out.len() - HEADER) as u8;
        out
    }

    /// Encodes in fixed format: information that fits 32 bits, command specific information
    /// likewise, a field pointer; no other descriptors.
    #[must_use]
    pub fn encode_fixed(&self) -> Vec<u8> {
        let mut out = alloc::vec![0; FIXED];
        out[0] = if self.deferred { 0x71 } else { 0x70 };
        out[2] = self.key.nibble();
        if let Some(information) = self.information.and_then(|value| u32::try_from(value).ok()) {
            out[0] |= VALID;
            out[3..7].copy_from_slice(&information.to_be_bytes());
        }
        out[7] = (FIXED - HEADER) as u8;
        if let Some(specific) = self.command_specific.and_then(|value| u32::try_from(value).ok()) {
            out[8..12].copy_from_slice(&specific.to_be_bytes());
        }
        (out[12], out[13]) = (self.code.code(), self.code.qualifier());
        if let Some(field) = self.field {
            out[15] = field.flags();
            out[16..18].copy_from_slice(&field.byte.to_be_bytes());
        }
        out
    }

    /// Parses descriptor or fixed format. Unknown descriptors are skipped; of two equal ones the
    /// first counts.
    ///
    /// # Errors
    /// See [`SenseError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, SenseError> {
        match bytes.first().map(|byte| byte & 0x7F) {
            None => Err(SenseError::Truncated(0)),
            Some(code @ (0x70 | 0x71)) => Self::parse_fixed(code == 0x71, bytes),
            Some(code @ (0x72 | 0x73)) => Self::parse_descriptors(code == 0x73, bytes),
            Some(other) => Err(SenseError::ResponseCode(other)),
        }
    }

    fn parse_fixed(deferred: bool, bytes: &[u8]) -> Result<Self, SenseError> {
        let key = bytes.get(2).ok_or(SenseError::Truncated(bytes.len()))?;
        let key = SenseKey::from_nibble(*key).ok_or(SenseError::Key)?;
        let code = match bytes.get(12..14) {
            Some(&[code, qualifier]) => AdditionalSense::from_bytes(code, qualifier),
            _ => AdditionalSense(0),
        };
        let field = match bytes.get(15..18) {
            Some(&[flags, high, low]) => FieldPointer::read(flags, high, low),
            _ => None,
        };
        // A zero may also mean absent command specific information: zero counts as absent.
        let number =
            |at: usize| bytes.get(at..)?.first_chunk().map(|four| u64::from(u32::from_be_bytes(*four)));
        let information = number(3).filter(|_| bytes[0] & VALID != 0);
        let command_specific = number(8).filter(|value| *value != 0);
        Ok(Self { deferred, field, information, command_specific, ..Self::new(key, code) })
    }

    fn parse_descriptors(deferred: bool, bytes: &[u8]) -> Result<Self, SenseError> {
        let truncated = SenseError::Truncated(bytes.len());
        let &[_, key, code, qualifier, _, _, _, additional] = bytes.first_chunk().ok_or(truncated)?;
        let key = SenseKey::from_nibble(key).ok_or(SenseError::Key)?;
        let mut sense = Self { deferred, ..Self::new(key, AdditionalSense::from_bytes(code, qualifier)) };
        let mut rest = bytes.get(HEADER..HEADER + usize::from(additional)).ok_or(truncated)?;
        while let [kind, length, tail @ ..] = rest {
            let (body, next) = tail.split_at_checked(usize::from(*length)).ok_or(truncated)?;
            sense.descriptor(*kind, body).ok_or(SenseError::Descriptor { kind: *kind, length: *length })?;
            rest = next;
        }
        if rest.is_empty() { Ok(sense) } else { Err(truncated) }
    }

    /// Parses one descriptor; `None` if its length is wrong for its type.
    fn descriptor(&mut self, kind: u8, body: &[u8]) -> Option<()> {
        let long = |at: usize| body.get(at..)?.first_chunk().copied().map(u64::from_be_bytes);
        let word = |at: usize| body.get(at..)?.first_chunk().copied().map(u32::from_be_bytes);
        match kind {
            0x00 => {
                let value = long(2)?;
                if body[0] & VALID != 0 {
                    self.information.get_or_insert(value);
                }
            }
            0x01 => {
                self.command_specific.get_or_insert(long(2)?);
            }
            0x02 => {
                let &[flags, high, low] = body.get(2..)?.first_chunk()?;
                self.field = self.field.or(FieldPointer::read(flags, high, low));
            }
            0x06 => {
                self.osd.get_or_insert(OsdError {
                    not_initiated: Functions(word(6)?),
                    completed: Functions(word(10)?),
                    partition: long(14)?,
                    object: long(22)?,
                });
            }
            RESPONSE_ICV => {
                let short = body.try_into().map(ResponseIcv::Short);
                self.response_icv.get_or_insert(short.or(body.try_into().map(ResponseIcv::Long)).ok()?);
            }
            ATTRIBUTES => {
                let pairs = body.get(2..).filter(|pairs| pairs.len() % 8 == 0)?;
                if self.attributes.is_empty() {
                    let number = |at: &[u8]| at.first_chunk().copied().map_or(0, u32::from_be_bytes);
                    self.attributes
                        .extend(pairs.chunks_exact(8).map(|pair| (number(pair), number(&pair[4..]))));
                }
            }
            _ => {}
        }
        Some(())
    }
}

impl FieldPointer {
    const fn flags(self) -> u8 {
        let place = if self.in_cdb { IN_CDB } else { 0 };
        let bit = match self.bit {
            Some(bit) => BIT_VALID | bit & 0x07,
            None => 0,
        };
        KEY_SPECIFIC_VALID | place | bit
    }

    const fn read(flags: u8, high: u8, low: u8) -> Option<Self> {
        if flags & KEY_SPECIFIC_VALID == 0 {
            return None;
        }
        let bit = if flags & BIT_VALID != 0 { Some(flags & 0x07) } else { None };
        Some(Self { in_cdb: flags & IN_CDB != 0, byte: u16::from_be_bytes([high, low]), bit })
    }
}

impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.code)?;
        if let Some(field) = self.field {
            write!(f, ", {} byte {}", if field.in_cdb { "CDB" } else { "parameter" }, field.byte)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::additional::{INVALID_FIELD_IN_CDB, NO_ADDITIONAL_SENSE, READ_PAST_END_OF_USER_OBJECT};

    #[test]
    fn descriptors_stand_as_the_standard_lays_them_out() {
        let sense = Sense::new(SenseKey::IllegalRequest, INVALID_FIELD_IN_CDB)
            .with_field(FieldPointer::cdb(0x0110))
            .with_osd(OsdError {
                not_initiated: Functions::SET_ATTRIBUTES | Functions::GET_ATTRIBUTES,
                completed: Functions::VALIDATION,
                partition: 0x1_0000,
                object: 0x1_0001,
            })
            .with_attribute(5, 6);
        let wire = sense.encode();
        assert_eq!(wire[..16], [0x72, 5, 0x24, 0, 0, 0, 0, 52, 2, 6, 0, 0, 0xC0, 1, 0x10, 0]);
        assert_eq!(wire[16..32], [6, 0x1E, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0x10, 0x80, 0, 0, 0]);
        assert_eq!(wire[48..], [8, 10, 0, 0, 0, 0, 0, 5, 0, 0, 0, 6]);
        assert_eq!(Sense::parse(&wire), Ok(sense));
    }

    #[test]
    fn short_read_sense_has_transferred_length() {
        let sense =
            Sense::new(SenseKey::RecoveredError, READ_PAST_END_OF_USER_OBJECT).with_command_specific(4096);
        let wire = sense.encode();
        assert_eq!(wire[..8], [0x72, 1, 0x3B, 0x17, 0, 0, 0, 12]);
        assert_eq!(wire[8..], [1, 0x0A, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0]);
    }

    #[test]
    fn more_attributes_than_fit_are_left_out() {
        let mut sense = Sense::new(SenseKey::NoSense, NO_ADDITIONAL_SENSE)
            .with_response_icv(ResponseIcv::Long([7; 32]))
            .with_command_specific(1);
        sense.attributes = (0..100).map(|number| (1, number)).collect();
        let wire = sense.encode();
        assert!(wire.len() <= SENSE_MAX && wire.len() + 8 > SENSE_MAX);
        let back = Sense::parse(&wire).unwrap();
        assert_eq!(back.attributes[..], sense.attributes[..back.attributes.len()]);
        assert_eq!(back.response_icv, sense.response_icv);
    }

    #[test]
    fn a_response_icv_has_20_or_32_bytes() {
        for (length, good) in [(20, true), (32, true), (12, false), (31, false)] {
            let mut wire = std::vec![0x72, 0, 0, 0, 0, 0, 0, length + 2, RESPONSE_ICV, length];
            wire.resize(wire.len() + usize::from(length), 9);
            assert_eq!(Sense::parse(&wire).is_ok(), good, "{length}");
        }
    }

    #[test]
    fn fixed_format_keeps_information_that_fits() {
        let sense = Sense {
            information: Some(0x1234),
            ..Sense::new(SenseKey::IllegalRequest, INVALID_FIELD_IN_CDB).with_command_specific(7)
        };
        let wire = sense.encode_fixed();
        assert_eq!((wire[0], &wire[3..7], wire[11]), (0xF0, &[0, 0, 0x12, 0x34][..], 7));
        assert_eq!(Sense::parse(&wire), Ok(sense.clone()));
        let long = Sense { information: Some(1 << 40), ..sense };
        assert_eq!(Sense::parse(&long.encode_fixed()).map(|sense| sense.information), Ok(None));
    }

    #[test]
    fn fixed_format_keeps_key_code_and_field() {
        let sense =
            Sense::new(SenseKey::IllegalRequest, INVALID_FIELD_IN_CDB).with_field(FieldPointer::parameter(3));
        let wire = sense.encode_fixed();
        assert_eq!((wire.len(), wire[0], wire[7]), (18, 0x70, 10));
        assert_eq!(Sense::parse(&wire), Ok(sense));
    }

    fn any_sense() -> impl Strategy<Value = Sense> {
        let field = (any::<bool>(), any::<u16>(), proptest::option::of(0_u8..8));
        let osd = (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>());
        let icv = prop_oneof![
            any::<[u8; 20]>().prop_map(ResponseIcv::Short),
            any::<[u8; 32]>().prop_map(ResponseIcv::Long)
        ];
        let head = (any::<bool>(), proptest::sample::select(&[0_u8, 1, 5, 6, 7, 0xB]), any::<u16>());
        let numbers = (proptest::option::of(any::<u64>()), proptest::option::of(any::<u64>()));
        let parts = (proptest::option::of(field), proptest::option::of(osd), proptest::option::of(icv));
        (head, numbers, parts, proptest::collection::vec(any::<(u32, u32)>(), 0..17)).prop_map(
            |(
                (deferred, key, code),
                (information, command_specific),
                (field, osd, response_icv),
                attributes,
            )| {
                Sense {
                    deferred,
                    key: SenseKey::from_nibble(key).unwrap(),
                    code: AdditionalSense(code),
                    information,
                    command_specific,
                    field: field.map(|(in_cdb, byte, bit)| FieldPointer { in_cdb, byte, bit }),
                    osd: osd.map(|(not_initiated, completed, partition, object)| OsdError {
                        not_initiated: Functions(not_initiated),
                        completed: Functions(completed),
                        partition,
                        object,
                    }),
                    response_icv,
                    attributes,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn sense_data_round_trips(sense in any_sense()) {
            let wire = sense.encode();
            prop_assert!(wire.len() <= SENSE_MAX);
            prop_assert_eq!(Sense::parse(&wire), Ok(sense));
        }

        #[test]
        fn arbitrary_bytes_never_panic(code in 0x70_u8..0x75, bytes in proptest::collection::vec(any::<u8>(), 0..260)) {
            let _ = Sense::parse(&bytes);
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = code;
            }
            let _ = Sense::parse(&bytes);
        }
    }
}
