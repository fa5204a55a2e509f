//! Command descriptor blocks of both generations.
//!
//! Does: `Cdb::parse` converts 200 or 236 bytes into a typed command; `Cdb::encode` converts back.
//! Does not: check anything that needs keys or the device's state, nor the bytes of the data
//! buffers.
//! Contract: check values cover the wire bytes, including reserved ones, so keep those beside a
//! parsed [`Cdb`]. The result of `encode` parses to an equal value.
//! Source of truth: `docs/standards/osd.md`, CDB.

mod attributes;
mod command;
mod error;
mod flush;
mod function;
mod keys;
mod operands;
mod rewrite;
#[cfg(test)]
mod tests;
mod wire;

use core::fmt;
use core::ops::Deref;

use thiserror::Error;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

pub use attributes::{AttributeParameters, GetList, GetPage, ONE_VALUE_MAX, Segment, SetValue};
pub use command::{Action, BytesNeeded, Command, SERVICE_ACTIONS};
pub use error::{CdbError, Fault};
pub use flush::{ContainerScope, Flush, FlushContainer, FlushScope};
pub use function::ExecuteFunction;
pub use keys::{DhStep, KeyIdentifier, KeyToSet, SetKey, SetMasterKey};
pub use operands::{
    Append, CopyObjects, Create, CreatePartition, CreateTracking, Duplicate, Extent, FormatOsd, List,
    Members, PerformScsi, PerformTask, Query, ReadMap, RemoveCollection, RemovePartition, Target,
};
pub use rewrite::{Rewrite, RewriteReturn};
pub(crate) use wire::CdbWire;

use crate::continuation::{SEGMENT_MIN, SEGMENT_UNIT};
use crate::offset::{self, Decoded};
use crate::table::{self, Continuation};
use crate::{CapabilityBytes, Generation};

/// Operation code of every OSD command: variable-length CDB.
pub const OPERATION_CODE: u8 = 0x7F;

/// A whole CDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cdb {
    /// The layout; for a parsed CDB it follows from the service action.
    pub generation: Generation,
    /// The service action and its operands.
    pub command: Command,
    /// DPO, FUA, isolation.
    pub options: Options,
    /// The timestamps that the command need not update.
    pub timestamps: Timestamps,
    /// Attributes to get and set.
    pub attributes: AttributeParameters,
    /// The capability's bytes, not yet parsed.
    pub capability: CapabilityBytes,
    /// Check value, nonce and the locations of the data's check values.
    pub security: SecurityParameters,
    /// CDB CONTINUATION LENGTH in bytes, a multiple of 8; 0 without a segment, always in OSD-1.
    pub continuation_length: u32,
}

/// OPTIONS, byte 10.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Disable page out: the data should not be cached.
    pub dpo: bool,
    /// Force unit access: stable storage before GOOD.
    pub fua: bool,
    /// ISOLATION (OSD-2).
    pub isolation: Isolation,
}

/// ISOLATION: what concurrent commands may see of each other (OSD-2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// As in the default isolation attribute.
    #[default]
    Default,
    /// No isolation.
    None,
    /// Strict isolation.
    Strict,
    /// Isolation by ranges.
    Range,
    /// Functional isolation.
    Functional,
    /// Vendor specific.
    Vendor,
}

impl Isolation {
    const CODES: [(u8, Self); 6] = [
        (0, Self::Default),
        (1, Self::None),
        (2, Self::Strict),
        (4, Self::Range),
        (5, Self::Functional),
        (7, Self::Vendor),
    ];

    fn from_bits(bits: u8) -> Option<Self> {
        Self::CODES.iter().find(|(code, _)| *code == bits).map(|(_, isolation)| *isolation)
    }

    fn bits(self) -> u8 {
        Self::CODES.iter().find(|(_, isolation)| *isolation == self).map_or(0, |(code, _)| *code)
    }
}

const DPO: u8 = 0x10;
const FUA: u8 = 0x08;
const ISOLATION: u8 = 0x07;

/// TIMESTAMPS CONTROL, byte 12.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timestamps {
    /// Timestamps are updated.
    #[default]
    Update,
    /// They are not.
    Bypass,
    /// Vendor specific, E0h–FFh.
    Vendor(u8),
}

/// The last part of a CDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecurityParameters {
    /// REQUEST INTEGRITY CHECK VALUE; OSD-1 has 20 bytes, then zeros.
    pub request_icv: [u8; 32],
    /// REQUEST NONCE: six bytes of time in milliseconds, six random bytes.
    pub nonce: [u8; 12],
    /// Location of the data-in check value in the Data-In Buffer.
    pub data_in_icv_offset: Option<u64>,
    /// Location of the data-out check value in the Data-Out Buffer.
    pub data_out_icv_offset: Option<u64>,
}

impl SecurityParameters {
    /// All zero, no offsets: for NOSEC.
    pub const NONE: Self =
        Self { request_icv: [0; 32], nonce: [0; 12], data_in_icv_offset: None, data_out_icv_offset: None };
}

/// First bytes of CDB fields, for field pointers.
pub mod pointer {
    use core::ops::Range;

    use crate::Generation;

    /// ADDITIONAL CDB LENGTH.
    pub const ADDITIONAL_LENGTH: u16 = 7;
    /// SERVICE ACTION.
    pub const SERVICE_ACTION: u16 = 8;
    /// The OPTIONS byte.
    pub const OPTIONS: u16 = 10;
    /// GET/SET CDBFMT and the command's own bits.
    pub const SPECIFIC_BITS: u16 = 11;
    /// TIMESTAMPS CONTROL.
    pub const TIMESTAMPS: u16 = 12;
    /// The PARTITION_ID field.
    pub const PARTITION: u16 = 16;
    /// `USER_OBJECT_ID` or `COLLECTION_ID`; key version of SET KEY.
    pub const OBJECT: u16 = 24;
    /// The embedded CDB of PERFORM SCSI COMMAND.
    pub const EMBEDDED: u16 = 32;
    /// The function of PERFORM TASK MANAGEMENT FUNCTION.
    pub const TASK_FUNCTION: u16 = 39;
    /// CDB CONTINUATION LENGTH (OSD-2).
    pub const CONTINUATION: u16 = 48;
    /// Get and set attributes parameters.
    pub const ATTRIBUTES: u16 = 52;
    /// The capability.
    pub const CAPABILITY: u16 = 80;
    /// PERMISSIONS BIT MASK.
    pub const PERMISSIONS: u16 = CAPABILITY + crate::capability::offset::PERMISSIONS;

    /// LENGTH, allocation length, number of objects.
    #[must_use]
    pub const fn length(generation: Generation) -> u16 {
        generation.select([36, 32])
    }

    /// STARTING BYTE, initial object id.
    #[must_use]
    pub const fn start(generation: Generation) -> u16 {
        generation.select([44, 40])
    }

    /// LIST IDENTIFIER.
    #[must_use]
    pub const fn list_id(generation: Generation) -> u16 {
        generation.select([32, 48])
    }

    /// FLUSH SCOPE.
    #[must_use]
    pub const fn flush_scope(generation: Generation) -> u16 {
        generation.select([OPTIONS, SPECIFIC_BITS])
    }

    /// REQUEST INTEGRITY CHECK VALUE.
    #[must_use]
    pub const fn request_icv(generation: Generation) -> u16 {
        generation.select([160, 184])
    }

    /// REQUEST NONCE.
    #[must_use]
    pub const fn nonce(generation: Generation) -> u16 {
        generation.select([180, 216])
    }

    /// DATA-IN INTEGRITY CHECK VALUE OFFSET.
    #[must_use]
    pub const fn data_in_icv_offset(generation: Generation) -> u16 {
        generation.select([192, 228])
    }

    /// DATA-OUT INTEGRITY CHECK VALUE OFFSET.
    #[must_use]
    pub const fn data_out_icv_offset(generation: Generation) -> u16 {
        generation.select([196, 232])
    }

    /// Returns the bytes of the request ICV, which are zero while it is computed.
    #[must_use]
    pub const fn request_icv_bytes(generation: Generation) -> Range<usize> {
        let start = request_icv(generation) as usize;
        start..start + generation.icv_len()
    }
}

/// A value that the wire cannot carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// The command is not in this generation.
    #[error("{command} is not in {generation}")]
    Generation {
        /// The command's name.
        command: &'static str,
        /// The requested generation.
        generation: Generation,
    },
    /// A buffer offset that no mantissa and exponent can express; see [`offset::align_up`].
    #[error("buffer offset {0} cannot be encoded")]
    Offset(u64),
    /// A value that the parser would refuse.
    #[error(transparent)]
    Refused(#[from] CdbError),
    /// A field that this generation or layout cannot carry: it would be lost.
    #[error("a field does not exist in this layout")]
    Unfit,
}

/// Maximum bytes that a transport may add to a CDB to fill a word.
const PADDING_MAX: usize = 3;

/// Returns ADDITIONAL CDB LENGTH of a layout.
const fn additional_length(generation: Generation) -> u8 {
    (generation.cdb_len() - 8) as u8
}

impl Cdb {
    /// Creates a command without attributes, capability or security.
    #[must_use]
    pub const fn new(generation: Generation, command: Command) -> Self {
        Self {
            generation,
            command,
            options: Options { dpo: false, fua: false, isolation: Isolation::Default },
            timestamps: Timestamps::Update,
            attributes: AttributeParameters::NONE,
            capability: CapabilityBytes::absent(generation),
            security: SecurityParameters::NONE,
            continuation_length: 0,
        }
    }

    /// Parses a CDB. The service action determines the layout: open-osd sends 228 additional bytes
    /// with 200-byte OSD-1 CDBs too. Up to three bytes after the layout are transport padding and
    /// ignored.
    ///
    /// # Errors
    /// See [`CdbError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, CdbError> {
        let code = frame(bytes)?;
        let (row, generation) = table::find(code).ok_or(CdbError::ServiceAction(code))?;
        let osd2_length = additional_length(Generation::Osd2);
        let expected = additional_length(generation);
        let actual = bytes[usize::from(pointer::ADDITIONAL_LENGTH)];
        if actual != expected && actual != osd2_length {
            return Err(CdbError::AdditionalLength { actual, expected });
        }
        let length = CdbError::Length { actual: bytes.len(), expected: generation.cdb_len() };
        if bytes.len() > generation.cdb_len() + PADDING_MAX {
            return Err(length);
        }
        let (wire, tail) = match generation {
            Generation::Osd1 => wire::Osd1::read_from_prefix(bytes).ok().map(|(cdb, _)| Tail::osd1(cdb)),
            Generation::Osd2 => wire::Osd2::read_from_prefix(bytes).ok().map(|(cdb, _)| Tail::osd2(cdb)),
        }
        .ok_or(length)?;
        let head = &wire.head;
        let command = (row.read)(&wire)?;
        if wire.has_immediate_tracking() && !command.can_be_tracked() {
            return Err(CdbError::reserved(pointer::SPECIFIC_BITS));
        }
        Ok(Self {
            generation,
            command,
            options: options(&wire)?,
            timestamps: timestamps(head.timestamps)?,
            attributes: AttributeParameters::read(generation, head.specific_bits, head.attributes)?,
            continuation_length: continuation_length(&wire, row.continuation)?,
            capability: tail.capability,
            security: tail.parse(generation)?,
        })
    }

    /// Encodes a CDB; reserved fields are zero.
    ///
    /// # Errors
    /// See [`EncodeError`].
    pub fn encode(&self) -> Result<CdbBytes, EncodeError> {
        let generation = self.generation;
        let row = self.command.row();
        let unfit = EncodeError::Generation { command: row.name, generation };
        let mut wire = CdbWire { generation, head: wire::CdbHead::new_zeroed() };
        wire.head.opcode = OPERATION_CODE;
        wire.head.additional_length = additional_length(generation);
        wire.head.service_action = row.code(generation).ok_or(unfit)?.into();
        wire.head.timestamps = match self.timestamps {
            Timestamps::Update => 0,
            Timestamps::Bypass => BYPASS,
            Timestamps::Vendor(value) => value,
        };
        wire.head.options = if self.options.dpo { DPO } else { 0 }
            | if self.options.fua { FUA } else { 0 }
            | if wire.is_osd2() { self.options.isolation.bits() } else { 0 };
        self.command.write(&mut wire);
        let (format, attributes) = self.attributes.write(generation)?;
        wire.head.specific_bits |= format;
        wire.head.attributes = attributes;
        if self.continuation_length != 0 {
            let mut generic = wire.generic();
            generic.tail = self.continuation_length;
            wire.set_generic(generic);
        }
        let bytes = Tail::write(wire, self)?;
        // Parsing again decides what is legal: a CDB that would be altered or refused is not
        // returned.
        if Self::parse(&bytes)? == *self { Ok(bytes) } else { Err(EncodeError::Unfit) }
    }

    /// Returns the offset of command data in the Data-Out Buffer: after the continuation segment.
    #[must_use]
    pub const fn data_out_offset(&self) -> u64 {
        self.continuation_length as u64
    }
}

/// Returns the service action, after checking operation code and length.
fn frame(bytes: &[u8]) -> Result<u16, CdbError> {
    match *bytes {
        [OPERATION_CODE, _, _, _, _, _, _, _, high, low, ..] => Ok(u16::from_be_bytes([high, low])),
        [OPERATION_CODE, ..] | [] => {
            Err(CdbError::Length { actual: bytes.len(), expected: Generation::Osd1.cdb_len() })
        }
        [other, ..] => Err(CdbError::OperationCode(other)),
    }
}

fn options(wire: &CdbWire) -> Result<Options, CdbError> {
    let byte = wire.head.options;
    let isolation = if wire.is_osd2() { byte & ISOLATION } else { 0 };
    Ok(Options {
        dpo: byte & DPO != 0,
        fua: byte & FUA != 0,
        isolation: Isolation::from_bits(isolation).ok_or(CdbError::reserved(pointer::OPTIONS))?,
    })
}

/// TIMESTAMPS CONTROL that leaves timestamps unchanged.
const BYPASS: u8 = 0x7F;

const fn timestamps(byte: u8) -> Result<Timestamps, CdbError> {
    match byte {
        0 => Ok(Timestamps::Update),
        BYPASS => Ok(Timestamps::Bypass),
        0xE0..=0xFF => Ok(Timestamps::Vendor(byte)),
        _ => Err(CdbError::reserved(pointer::TIMESTAMPS)),
    }
}

fn continuation_length(wire: &CdbWire, kind: Continuation) -> Result<u32, CdbError> {
    let wrong = Err(CdbError::Field { at: pointer::CONTINUATION, fault: Fault::Length });
    if !wire.is_osd2() || kind == Continuation::NotThere {
        return Ok(0);
    }
    match (wire.generic().tail, kind) {
        (
            0,
            Continuation::Query | Continuation::CopySource | Continuation::Rewrite | Continuation::Function,
        ) => wrong,
        (0, _) => Ok(0),
        (_, Continuation::Refused | Continuation::NotThere) => wrong,
        (length, _) if length < SEGMENT_MIN || !length.is_multiple_of(SEGMENT_UNIT) => wrong,
        (length, _) => Ok(length),
    }
}

/// Everything after byte 79.
struct Tail {
    capability: CapabilityBytes,
    request_icv: [u8; 32],
    nonce: [u8; 12],
    data_in_icv_offset: U32,
    data_out_icv_offset: U32,
}

impl Tail {
    fn osd1(cdb: wire::Osd1) -> (CdbWire, Self) {
        let mut request_icv = [0; 32];
        request_icv[..cdb.request_icv.len()].copy_from_slice(&cdb.request_icv);
        let tail = Self {
            capability: CapabilityBytes::from(cdb.capability),
            request_icv,
            nonce: cdb.nonce,
            data_in_icv_offset: cdb.data_in_icv_offset,
            data_out_icv_offset: cdb.data_out_icv_offset,
        };
        (CdbWire { generation: Generation::Osd1, head: cdb.head }, tail)
    }

    fn osd2(cdb: wire::Osd2) -> (CdbWire, Self) {
        let tail = Self {
            capability: CapabilityBytes::from(cdb.capability),
            request_icv: cdb.request_icv,
            nonce: cdb.nonce,
            data_in_icv_offset: cdb.data_in_icv_offset,
            data_out_icv_offset: cdb.data_out_icv_offset,
        };
        (CdbWire { generation: Generation::Osd2, head: cdb.head }, tail)
    }

    fn parse(&self, generation: Generation) -> Result<SecurityParameters, CdbError> {
        let place = |field: U32, at| match offset::decode(generation, field.get()) {
            Decoded::Unused => Ok(None),
            Decoded::At(offset) => Ok(Some(offset)),
            Decoded::Reserved => Err(CdbError::Field { at, fault: Fault::Offset }),
        };
        Ok(SecurityParameters {
            request_icv: self.request_icv,
            nonce: self.nonce,
            data_in_icv_offset: place(self.data_in_icv_offset, pointer::data_in_icv_offset(generation))?,
            data_out_icv_offset: place(self.data_out_icv_offset, pointer::data_out_icv_offset(generation))?,
        })
    }

    fn write(CdbWire { generation, head }: CdbWire, cdb: &Cdb) -> Result<CdbBytes, EncodeError> {
        let security = &cdb.security;
        let place = |offset: Option<u64>| match offset {
            None => Ok(U32::new(offset::UNUSED)),
            Some(at) => offset::encode(generation, at).map(U32::new).ok_or(EncodeError::Offset(at)),
        };
        let data_in_icv_offset = place(security.data_in_icv_offset)?;
        let data_out_icv_offset = place(security.data_out_icv_offset)?;
        let nonce = security.nonce;
        let mut bytes = CdbBytes { generation, bytes: [0; Generation::Osd2.cdb_len()] };
        match generation {
            Generation::Osd1 => {
                let [icv @ .., _, _, _, _, _, _, _, _, _, _, _, _] = security.request_icv;
                let capability = cdb.capability.to_array().ok_or(EncodeError::Unfit)?;
                let request_icv = icv;
                bytes.fill(
                    wire::Osd1 {
                        head,
                        capability,
                        request_icv,
                        nonce,
                        data_in_icv_offset,
                        data_out_icv_offset,
                    }
                    .as_bytes(),
                );
            }
            Generation::Osd2 => {
                let capability = cdb.capability.to_array().ok_or(EncodeError::Unfit)?;
                let request_icv = security.request_icv;
                bytes.fill(
                    wire::Osd2 {
                        head,
                        capability,
                        request_icv,
                        nonce,
                        data_in_icv_offset,
                        data_out_icv_offset,
                    }
                    .as_bytes(),
                );
            }
        }
        Ok(bytes)
    }
}

/// The wire bytes of a CDB, 200 or 236, which a request check value covers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CdbBytes {
    generation: Generation,
    bytes: [u8; Generation::Osd2.cdb_len()],
}

impl CdbBytes {
    /// Returns the generation, which sets the length.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// Sets the request check value, left-justified, zero-padded; excess bytes are dropped.
    pub fn set_request_icv(&mut self, icv: &[u8]) {
        let field = &mut self.bytes[pointer::request_icv_bytes(self.generation)];
        let used = icv.len().min(field.len());
        field[..used].copy_from_slice(&icv[..used]);
        field[used..].fill(0);
    }

    fn fill(&mut self, wire: &[u8]) {
        self.bytes[..wire.len()].copy_from_slice(wire);
    }
}

impl Deref for CdbBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.generation.cdb_len()]
    }
}

impl AsRef<[u8]> for CdbBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for CdbBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
