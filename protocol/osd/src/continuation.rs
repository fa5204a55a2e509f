//! The CDB continuation segment at the start of the Data-Out Buffer (OSD-2 §5.4).
//!
//! Does: parses and encodes its header and descriptors; checks which command may have which
//! descriptor.
//! Does not: check its integrity check value; `seal` does.
//! Source of truth: `docs/standards/osd.md`, continuation segment.

use alloc::vec::Vec;
use core::mem::offset_of;

use sealstone_scsi::{FieldPointer, Sense, SenseKey, additional};
use thiserror::Error;
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bytes::{u8_at, u64_at};
use crate::cdb::{self, Command};
use crate::function::{self, ExecuteRequest, paper::PaperRequest};
use crate::rewrite::{self, OPERATION_LEN, OPERATIONS_MAX, RewriteOperation};
use crate::table::Continuation;
use crate::{CapabilityBytes, Generation, ObjectId};

/// Minimum bytes of a segment: its header and that of one descriptor.
pub const SEGMENT_MIN: u32 = 48;
/// Alignment of a segment's length in bytes.
pub const SEGMENT_UNIT: u32 = 8;
/// Maximum number of entries of a scatter/gather list.
pub const SCATTER_GATHER_MAX: usize = 4096;
/// Maximum number of capabilities of an extension descriptor, except for EXECUTE FUNCTION.
pub const EXTENSION_MAX: usize = 16;
/// Maximum number of capabilities of EXECUTE FUNCTION: one for each object entry.
pub const FUNCTION_EXTENSION_MAX: usize = function::OBJECTS_MAX;

/// CONTINUATION ICV: zero while it is computed.
pub const ICV_BYTES: core::ops::Range<usize> =
    offset_of!(SegmentHeader, icv)..offset_of!(SegmentHeader, icv) + 32;

/// The only format.
const FORMAT: u8 = 0x01;
/// PAD LENGTH of a descriptor.
const PAD_MASK: u8 = 0x07;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SegmentHeader {
    format: u8,
    reserved_1: u8,
    service_action: U16,
    reserved_4: [u8; 4],
    icv: [u8; 32],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DescriptorHeader {
    kind: U16,
    reserved_2: u8,
    pad: u8,
    length: U32,
}

const _: () = assert!(size_of::<SegmentHeader>() == 40 && size_of::<DescriptorHeader>() == 8);

/// A parsed segment: at most one descriptor of each type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// CONTINUATION INTEGRITY CHECK VALUE.
    pub icv: [u8; 32],
    /// Scatter/gather list (0001h) of READ, WRITE, CREATE AND WRITE.
    pub scatter_gather: Option<Vec<Piece>>,
    /// Query list (0002h) of QUERY, still encoded; [`crate::query::QueryList::parse`] reads it.
    pub query: Option<Vec<u8>>,
    /// Source (0101h) of COPY USER OBJECTS.
    pub copy_source: Option<CopySource>,
    /// Extension capabilities (FFEEh).
    pub extensions: Vec<CapabilityBytes>,
    /// Proofs that the bearer has the keys of the extension capabilities (FF11h, ours), in their
    /// order.
    pub proofs: Vec<[u8; PROOF_LEN]>,
    /// Operations (FF10h, ours) of REWRITE.
    pub rewrite: Vec<RewriteOperation>,
    /// Request (FF01h, ours) of EXECUTE FUNCTION.
    pub function: Option<ExecuteRequest>,
    /// Request (0003h, of the ASF paper) of EXECUTE FUNCTION.
    pub paper_function: Option<PaperRequest>,
}

/// One entry of a scatter/gather list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the object, relative to STARTING BYTE.
    pub offset: u64,
    /// Bytes to transfer.
    pub length: u64,
}

/// The source of COPY USER OBJECTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySource {
    /// The user object.
    pub object: ObjectId,
    /// CPY_ATTR: attributes too.
    pub attributes: bool,
    /// FREEZE: no writes to the source during the copy.
    pub freeze: bool,
    /// TIME OF DUPLICATION, four bits.
    pub time: u8,
}

/// Descriptor types.
const SCATTER_GATHER: u16 = 0x0001;
const QUERY_LIST: u16 = 0x0002;
const COPY_SOURCE: u16 = 0x0101;
const EXTENSION: u16 = 0xFFEE;
/// Type of the ASF paper; OSD-2 r05a uses it for something else, with other commands.
const PAPER_FUNCTION: u16 = 0x0003;
/// Our own types.
const FUNCTION: u16 = 0xFF01;
const REWRITE: u16 = 0xFF10;
const PROOFS: u16 = 0xFF11;
const NO_MORE: u16 = 0x0000;

/// Bytes of a proof: a request integrity check value.
pub const PROOF_LEN: usize = 32;

/// Bytes of a scatter/gather entry, and of a copy source.
const PIECE_LEN: usize = 16;
const COPY_SOURCE_LEN: usize = 18;

/// Why bytes are not a valid segment for the command; `at` counts from the start of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ContinuationError {
    /// Shorter than 48 bytes, or not a multiple of 8.
    #[error("invalid continuation segment length: {0} bytes")]
    Length(usize),
    /// Not format 1.
    #[error("unknown continuation segment format {0}")]
    Format(u8),
    /// CONTINUED SERVICE ACTION differs from the CDB's.
    #[error("the segment continues {0:#06x}, another service action")]
    ServiceAction(u16),
    /// A descriptor that extends past the end, or whose length is invalid for its type.
    #[error("malformed continuation descriptor at byte {at}")]
    Descriptor {
        /// Its first byte.
        at: usize,
    },
    /// A descriptor that is unknown, or that the command does not take, or takes only once.
    #[error("continuation descriptor {kind:#06x} at byte {at} is not permitted here")]
    NotAllowed {
        /// Its type.
        kind: u16,
        /// Its first byte.
        at: usize,
    },
    /// The descriptor that the command needs is missing.
    #[error("the descriptor that the command needs is missing")]
    Missing,
    /// Lengths of the scatter/gather list do not add up to LENGTH.
    #[error("scatter/gather lengths add up to {sum}, not to {length}")]
    Sum {
        /// Sum of the entries.
        sum: u64,
        /// LENGTH of the CDB.
        length: u64,
    },
}

impl ContinuationError {
    /// Returns the offset of the error in the segment, which is that in the Data-Out Buffer; `None`
    /// if it has no single location.
    #[must_use]
    pub fn segment_byte(&self) -> Option<u16> {
        let at = match *self {
            Self::Format(_) => offset_of!(SegmentHeader, format),
            Self::ServiceAction(_) => offset_of!(SegmentHeader, service_action),
            Self::Descriptor { at } | Self::NotAllowed { at, .. } => at,
            Self::Length(_) | Self::Missing | Self::Sum { .. } => return None,
        };
        Some(u16::try_from(at).unwrap_or(u16::MAX))
    }

    /// Returns ILLEGAL REQUEST, INVALID FIELD IN CDB: the segment is a part of the CDB. The field
    /// pointer refers to the segment, as parameter data, or to CDB CONTINUATION LENGTH.
    #[must_use]
    pub fn sense(&self) -> Sense {
        let field = match self.segment_byte() {
            Some(byte) => FieldPointer::parameter(byte),
            None => FieldPointer::cdb(cdb::pointer::CONTINUATION),
        };
        Sense::new(SenseKey::IllegalRequest, additional::INVALID_FIELD_IN_CDB).with_field(field)
    }
}

impl Segment {
    /// Parses the segment of `command`: exactly CDB CONTINUATION LENGTH bytes.
    ///
    /// # Errors
    /// See [`ContinuationError`].
    pub fn parse(command: &Command, bytes: &[u8]) -> Result<Self, ContinuationError> {
        let length = ContinuationError::Length(bytes.len());
        if bytes.len() < SEGMENT_MIN as usize || !bytes.len().is_multiple_of(SEGMENT_UNIT as usize) {
            return Err(length);
        }
        let (header, _) = SegmentHeader::read_from_prefix(bytes).map_err(|_| length)?;
        if header.format != FORMAT {
            return Err(ContinuationError::Format(header.format));
        }
        let row = command.row();
        let action = header.service_action.get();
        if row.osd2 != Some(action) {
            return Err(ContinuationError::ServiceAction(action));
        }
        let mut segment = Self { icv: header.icv, ..Self::default() };
        let mut at = size_of::<SegmentHeader>();
        while let Some(next) = segment.descriptor(command, bytes, at)? {
            at = next;
        }
        segment.complete(command)?;
        Ok(segment)
    }

    /// Parses the descriptor at `at`; returns the offset of the next one, or `None` after the last.
    fn descriptor(
        &mut self,
        command: &Command,
        bytes: &[u8],
        at: usize,
    ) -> Result<Option<usize>, ContinuationError> {
        let malformed = ContinuationError::Descriptor { at };
        let rest = bytes.get(at..).ok_or(malformed)?;
        if rest.is_empty() {
            return Ok(None);
        }
        let (header, body) = DescriptorHeader::read_from_prefix(rest).map_err(|_| malformed)?;
        let kind = header.kind.get();
        if kind == NO_MORE {
            return Ok(None);
        }
        let length = usize::try_from(header.length.get()).map_err(|_| malformed)?;
        let pad = usize::from(header.pad & PAD_MASK);
        let whole = length
            .checked_add(pad)
            .filter(|whole| whole.is_multiple_of(SEGMENT_UNIT as usize))
            .ok_or(malformed)?;
        let data = body.get(..whole).ok_or(malformed)?.get(..length).ok_or(malformed)?;
        let body_at = at + size_of::<DescriptorHeader>();
        let extension_max = extension_max(command.row().continuation == Continuation::Function);
        let repeated = match kind {
            SCATTER_GATHER => self.scatter_gather.is_some(),
            QUERY_LIST => self.query.is_some(),
            COPY_SOURCE => self.copy_source.is_some(),
            EXTENSION => !self.extensions.is_empty(),
            REWRITE => !self.rewrite.is_empty(),
            FUNCTION | PAPER_FUNCTION => self.function.is_some() || self.paper_function.is_some(),
            PROOFS => !self.proofs.is_empty(),
            _ => true,
        };
        if repeated || !allowed(command, kind) {
            return Err(ContinuationError::NotAllowed { kind, at });
        }
        match kind {
            SCATTER_GATHER => self.scatter_gather = Some(pieces(data, pad).ok_or(malformed)?),
            QUERY_LIST if pad == 0 => self.query = Some(data.to_vec()),
            COPY_SOURCE => self.copy_source = Some(CopySource::read(data).ok_or(malformed)?),
            EXTENSION => self.extensions = extensions(data, extension_max).ok_or(malformed)?,
            PROOFS => self.proofs = proofs(data, extension_max).ok_or(malformed)?,
            FUNCTION => {
                let wrong = |offset| ContinuationError::Descriptor { at: body_at + offset };
                self.function = Some(ExecuteRequest::parse(data).map_err(wrong)?);
            }
            PAPER_FUNCTION => {
                let wrong = |offset| ContinuationError::Descriptor { at: body_at + offset };
                self.paper_function = Some(PaperRequest::parse(data).map_err(wrong)?);
            }
            REWRITE => self.rewrite = operations(command, data, body_at)?,
            _ => return Err(malformed),
        }
        Ok(Some(body_at + whole))
    }

    /// Returns the offset of descriptor 0003h in the bytes of a parsed segment. A device without
    /// the paper profile refuses it there.
    #[must_use]
    pub fn paper_function_at(bytes: &[u8]) -> Option<u16> {
        let mut at = size_of::<SegmentHeader>();
        loop {
            let (header, _) = DescriptorHeader::read_from_prefix(bytes.get(at..)?).ok()?;
            match header.kind.get() {
                PAPER_FUNCTION => return u16::try_from(at).ok(),
                NO_MORE => return None,
                _ => {}
            }
            let length = usize::try_from(header.length.get()).ok()?;
            at = at.checked_add(size_of::<DescriptorHeader>())?.checked_add(length)?;
            at = at.checked_add(usize::from(header.pad & PAD_MASK))?;
        }
    }

    /// Checks that all descriptors that the command needs are present.
    fn complete(&self, command: &Command) -> Result<(), ContinuationError> {
        let missing = match command.row().continuation {
            Continuation::Query => self.query.is_none(),
            Continuation::CopySource => self.copy_source.is_none(),
            Continuation::Rewrite => self.rewrite.is_empty(),
            Continuation::Function => self.function.is_none() && self.paper_function.is_none(),
            Continuation::ScatterGather
            | Continuation::Extensions
            | Continuation::Refused
            | Continuation::NotThere => false,
        };
        if missing {
            return Err(ContinuationError::Missing);
        }
        let (Some(pieces), Some(range)) = (&self.scatter_gather, command.range()) else { return Ok(()) };
        let sum = pieces.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.length));
        if sum == Some(range.length) {
            Ok(())
        } else {
            Err(ContinuationError::Sum { sum: sum.unwrap_or(u64::MAX), length: range.length })
        }
    }

    /// Returns the wire form for a command of service action `action`, with the check value
    /// unchanged.
    ///
    /// `None` if lists are longer than the limits, or the query list is not a multiple of 8.
    #[must_use]
    pub fn encode(&self, action: u16) -> Option<Vec<u8>> {
        let header = SegmentHeader {
            format: FORMAT,
            reserved_1: 0,
            service_action: action.into(),
            reserved_4: [0; 4],
            icv: self.icv,
        };
        let mut out = header.as_bytes().to_vec();
        if let Some(pieces) = &self.scatter_gather {
            if pieces.len() > SCATTER_GATHER_MAX {
                return None;
            }
            let mut data = Vec::with_capacity(pieces.len() * PIECE_LEN);
            for piece in pieces {
                data.extend(piece.offset.to_be_bytes());
                data.extend(piece.length.to_be_bytes());
            }
            push(&mut out, SCATTER_GATHER, &data)?;
        }
        if let Some(query) = &self.query {
            if !query.len().is_multiple_of(SEGMENT_UNIT as usize) {
                return None;
            }
            push(&mut out, QUERY_LIST, query)?;
        }
        if let Some(source) = &self.copy_source {
            push(&mut out, COPY_SOURCE, &source.write())?;
        }
        let extension_max = extension_max(self.function.is_some() || self.paper_function.is_some());
        if let Some(function) = &self.function {
            push(&mut out, FUNCTION, &function.encode()?)?;
        }
        if let Some(function) = &self.paper_function {
            push(&mut out, PAPER_FUNCTION, &function.encode()?)?;
        }
        if !self.extensions.is_empty() {
            let right = |one: &CapabilityBytes| one.generation() == Generation::Osd2;
            if self.extensions.len() > extension_max || !self.extensions.iter().all(right) {
                return None;
            }
            let data: Vec<u8> = self.extensions.iter().flat_map(|one| one.iter().copied()).collect();
            push(&mut out, EXTENSION, &data)?;
        }
        if !self.rewrite.is_empty() {
            if self.rewrite.len() > OPERATIONS_MAX {
                return None;
            }
            let data: Vec<u8> = self.rewrite.iter().flat_map(RewriteOperation::write).collect();
            push(&mut out, REWRITE, &data)?;
        }
        // The last one, so that the signer finds its location.
        if !self.proofs.is_empty() {
            if self.proofs.len() > extension_max {
                return None;
            }
            push(&mut out, PROOFS, &self.proofs.concat())?;
        }
        if out.len() < SEGMENT_MIN as usize {
            push(&mut out, NO_MORE, &[])?;
        }
        Some(out)
    }
}

/// Whether `command` may have a descriptor of this type.
fn allowed(command: &Command, kind: u16) -> bool {
    match (command.row().continuation, kind) {
        (Continuation::ScatterGather, SCATTER_GATHER)
        | (Continuation::Query, QUERY_LIST)
        | (Continuation::CopySource, COPY_SOURCE | EXTENSION | PROOFS)
        | (Continuation::Rewrite, REWRITE)
        | (Continuation::Function, FUNCTION | PAPER_FUNCTION | EXTENSION | PROOFS) => true,
        (Continuation::Query, EXTENSION | PROOFS) => {
            matches!(command, Command::Query(query) if query.matches != 0)
        }
        (Continuation::Extensions, EXTENSION | PROOFS) => {
            matches!(command, Command::CreateTrackingCollection(create) if create.source != 0)
        }
        _ => false,
    }
}

fn pieces(data: &[u8], pad: usize) -> Option<Vec<Piece>> {
    if pad != 0 || !data.len().is_multiple_of(PIECE_LEN) || data.len() / PIECE_LEN > SCATTER_GATHER_MAX {
        return None;
    }
    data.chunks_exact(PIECE_LEN)
        .map(|entry| Some(Piece { offset: u64_at(entry, 0)?, length: u64_at(entry, 8)? }))
        .collect()
}

/// Parses operations; the first byte is byte `base` of the segment.
fn operations(
    command: &Command,
    data: &[u8],
    base: usize,
) -> Result<Vec<RewriteOperation>, ContinuationError> {
    let range = command.range().map_or(0, |range| range.length);
    let wrong = |number: usize| ContinuationError::Descriptor { at: base + number * OPERATION_LEN };
    let operations = rewrite::read(data, range, command.data_out_len()).map_err(wrong)?;
    // A condition must be announced in the CDB, which determines the permission.
    let conditional = matches!(command, Command::Rewrite(rewrite) if rewrite.conditional);
    match operations.iter().position(|operation| operation.action.is_condition() && !conditional) {
        Some(number) => Err(wrong(number)),
        None => Ok(operations),
    }
}

/// Returns the maximum number of extension capabilities and proofs. A segment with a request of
/// EXECUTE FUNCTION, of either type, has the higher one.
const fn extension_max(calls_function: bool) -> usize {
    if calls_function { FUNCTION_EXTENSION_MAX } else { EXTENSION_MAX }
}

fn proofs(data: &[u8], max: usize) -> Option<Vec<[u8; PROOF_LEN]>> {
    let (proofs, rest) = data.as_chunks::<PROOF_LEN>();
    let fits = rest.is_empty() && !proofs.is_empty() && proofs.len() <= max;
    fits.then(|| proofs.to_vec())
}

fn extensions(data: &[u8], max: usize) -> Option<Vec<CapabilityBytes>> {
    let one = Generation::Osd2.capability_len();
    if data.is_empty() || !data.len().is_multiple_of(one) || data.len() / one > max {
        return None;
    }
    data.chunks_exact(one).map(|bytes| CapabilityBytes::new(Generation::Osd2, bytes)).collect()
}

impl CopySource {
    fn read(data: &[u8]) -> Option<Self> {
        if data.len() != COPY_SOURCE_LEN {
            return None;
        }
        let (flags, time) = (u8_at(data, 16)?, u8_at(data, 17)?);
        Some(Self {
            object: ObjectId::new(u64_at(data, 0)?, u64_at(data, 8)?),
            attributes: flags & 0x01 != 0,
            freeze: time & 0x80 != 0,
            time: time & 0x0F,
        })
    }

    fn write(&self) -> [u8; COPY_SOURCE_LEN] {
        let mut data = [0; COPY_SOURCE_LEN];
        data[..8].copy_from_slice(&self.object.partition.to_be_bytes());
        data[8..16].copy_from_slice(&self.object.object.to_be_bytes());
        data[16] = u8::from(self.attributes);
        data[17] = u8::from(self.freeze) << 7 | self.time & 0x0F;
        data
    }
}

/// Appends a descriptor with its padding; `None` if it is too long for its length field.
fn push(out: &mut Vec<u8>, kind: u16, data: &[u8]) -> Option<()> {
    let pad = data.len().next_multiple_of(SEGMENT_UNIT as usize) - data.len();
    let length = u32::try_from(data.len()).ok()?;
    let header = DescriptorHeader { kind: kind.into(), reserved_2: 0, pad: pad as u8, length: length.into() };
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(data);
    out.resize(out.len() + pad, 0);
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cdb::{CopyObjects, CreateTracking, Extent, Query};

    const OBJECT: ObjectId = ObjectId::new(0x1_0000, 0x1_0001);
    const READ: Command = Command::Read(Extent { object: OBJECT, start: 0, length: 30 });
    const COPY: Command =
        Command::CopyUserObjects(CopyObjects { object: OBJECT, method: 0, immediate: false });

    fn scatter() -> Segment {
        let pieces = std::vec![Piece { offset: 0, length: 10 }, Piece { offset: 100, length: 20 }];
        Segment { icv: [9; 32], scatter_gather: Some(pieces), ..Segment::default() }
    }

    #[test]
    fn header_follows_the_standard_layout() {
        let wire = scatter().encode(0x8885).unwrap();
        assert_eq!(wire[..8], [1, 0, 0x88, 0x85, 0, 0, 0, 0]);
        assert_eq!((&wire[ICV_BYTES], &wire[40..48]), (&[9; 32][..], &[0, 1, 0, 0, 0, 0, 0, 32][..]));
        assert_eq!(Segment::parse(&READ, &wire), Ok(scatter()));
    }

    #[test]
    fn every_descriptor_reads_back_where_it_belongs() {
        let source = CopySource { object: OBJECT, attributes: true, freeze: true, time: 5 };
        let extensions = std::vec![CapabilityBytes::absent(Generation::Osd2); 2];
        let proofs = std::vec![[1; 32], [2; 32]];
        let copy = Segment {
            copy_source: Some(source),
            extensions: extensions.clone(),
            proofs,
            ..Segment::default()
        };
        let wire = copy.encode(0x8893).unwrap();
        assert_eq!(wire[43], 6); // 18 bytes and 6 of padding
        assert_eq!(Segment::parse(&COPY, &wire), Ok(copy));
        let ask =
            |matches| Command::Query(Query { object: OBJECT, allocation: 9, matches, immediate: false });
        let query = Segment { query: Some(std::vec![0; 8]), extensions, ..Segment::default() };
        let wire = query.encode(0x88A0).unwrap();
        assert_eq!(Segment::parse(&ask(7), &wire), Ok(query));
        let kind = EXTENSION;
        assert_eq!(Segment::parse(&ask(0), &wire), Err(ContinuationError::NotAllowed { kind, at: 56 }));
        let track = |source| {
            Command::CreateTrackingCollection(CreateTracking { object: OBJECT, source, immediate: false })
        };
        let extensions = std::vec![CapabilityBytes::absent(Generation::Osd2)];
        let one = Segment { extensions, proofs: std::vec![[1; 32]], ..Segment::default() };
        let wire = one.encode(0x8894).unwrap();
        assert_eq!(Segment::parse(&track(7), &wire), Ok(one));
        assert_eq!(Segment::parse(&track(0), &wire), Err(ContinuationError::NotAllowed { kind, at: 40 }));
    }

    #[test]
    fn rewrite_operations_must_fit_range_and_operands() {
        use crate::AttributeId;
        use crate::cdb::{Rewrite, RewriteReturn};
        use crate::rewrite::RewriteAction;
        let rewrite = |length, operands, conditional| {
            let returns = RewriteReturn::Nothing;
            Command::Rewrite(Rewrite {
                object: OBJECT,
                start: 9,
                length,
                operands,
                returns,
                conditional,
                extend: false,
            })
        };
        let version = RewriteAction::CompareAttribute(AttributeId::new(0x1_0000, 1));
        let operations = std::vec![
            RewriteOperation { action: version, offset: 0, length: 4, operand: 8 },
            RewriteOperation { action: RewriteAction::Replace, offset: 2, length: 8, operand: 0 },
        ];
        let segment = Segment { rewrite: operations, ..Segment::default() };
        let wire = segment.encode(0x8F90).unwrap();
        assert_eq!(wire.len(), 40 + 8 + 64);
        assert_eq!(Segment::parse(&rewrite(10, 12, true), &wire), Ok(segment));
        let at = |number: usize| Err(ContinuationError::Descriptor { at: 48 + 32 * number });
        assert_eq!(
            Segment::parse(&rewrite(10, 12, false), &wire),
            at(0),
            "a condition that the CDB does not tell"
        );
        assert_eq!(Segment::parse(&rewrite(9, 12, true), &wire), at(1), "beyond the range");
        assert_eq!(Segment::parse(&rewrite(10, 11, true), &wire), at(0), "beyond the operands");
        assert_eq!(Segment::parse(&READ, &wire).unwrap_err(), ContinuationError::ServiceAction(0x8F90));
        let empty = Segment::default().encode(0x8F90).unwrap();
        assert_eq!(Segment::parse(&rewrite(10, 12, true), &empty), Err(ContinuationError::Missing));
    }

    #[test]
    fn function_descriptor_needs_its_command() {
        use crate::cdb::ExecuteFunction;
        use crate::function::{JobAction, JobId, JobRequest};
        let execute = Command::ExecuteFunction(ExecuteFunction { object: OBJECT, allocation: 128 });
        let request = JobRequest { action: JobAction::Status, job: JobId([1; 16]) };
        let segment = Segment {
            function: Some(ExecuteRequest::Job(request)),
            extensions: std::vec![CapabilityBytes::absent(Generation::Osd2); FUNCTION_EXTENSION_MAX],
            proofs: std::vec![[1; 32]; FUNCTION_EXTENSION_MAX],
            ..Segment::default()
        };
        let wire = segment.encode(0x8F91).unwrap();
        assert_eq!(Segment::parse(&execute, &wire), Ok(segment.clone()));
        let more = Segment { proofs: std::vec![[1; 32]; FUNCTION_EXTENSION_MAX + 1], ..segment.clone() };
        assert!(more.encode(0x8F91).is_none());
        let mut wrong = wire.clone();
        wrong[48 + 1] = 9;
        assert_eq!(Segment::parse(&execute, &wrong), Err(ContinuationError::Descriptor { at: 49 }));
        let wire = segment.encode(0x8893).unwrap();
        assert_eq!(
            Segment::parse(&COPY, &wire),
            Err(ContinuationError::NotAllowed { kind: FUNCTION, at: 40 })
        );
        let empty = Segment::default().encode(0x8F91).unwrap();
        assert_eq!(Segment::parse(&execute, &empty), Err(ContinuationError::Missing));
    }

    #[test]
    fn paper_function_descriptor_reads_back() {
        use crate::cdb::ExecuteFunction;
        let execute = Command::ExecuteFunction(ExecuteFunction { object: OBJECT, allocation: 128 });
        let request = PaperRequest {
            code_bundle: 0x1_0001,
            timeout_ms: 100,
            method: "wordcount".into(),
            arguments: zeroize::Zeroizing::new(std::vec![5; 9]),
        };
        let most = Segment {
            paper_function: Some(request.clone()),
            extensions: std::vec![CapabilityBytes::absent(Generation::Osd2); FUNCTION_EXTENSION_MAX],
            proofs: std::vec![[1; 32]; FUNCTION_EXTENSION_MAX],
            ..Segment::default()
        };
        let wire = most.encode(0x8F91).unwrap();
        assert_eq!(Segment::parse(&execute, &wire), Ok(most));
        let segment = Segment { paper_function: Some(request), ..Segment::default() };
        let wire = segment.encode(0x8F91).unwrap();
        assert_eq!(wire[40..48], [0, 3, 0, 6, 0, 0, 0, 34]);
        assert_eq!(Segment::parse(&execute, &wire), Ok(segment));
        assert_eq!(Segment::paper_function_at(&wire), Some(40));
        let second = [&wire[..40], &[0xFF, 0x11, 0, 0, 0, 0, 0, 32], &[1; 32], &wire[40..]].concat();
        assert!(Segment::parse(&execute, &second).is_ok());
        assert_eq!(Segment::paper_function_at(&second), Some(80));
        assert_eq!(Segment::paper_function_at(&second[..80]), None);
        let mut wrong = second.clone();
        wrong[88 + 10] = 1;
        assert_eq!(Segment::parse(&execute, &wrong), Err(ContinuationError::Descriptor { at: 98 }));
        let twice = [&wire[..], &wire[40..]].concat();
        let kind = PAPER_FUNCTION;
        assert_eq!(Segment::parse(&execute, &twice), Err(ContinuationError::NotAllowed { kind, at: 88 }));
    }

    #[test]
    fn each_deviation_has_its_error() {
        let wire = scatter().encode(0x8885).unwrap();
        let with = |at: usize, byte: u8| {
            let mut wire = wire.clone();
            wire[at] = byte;
            Segment::parse(&READ, &wire).unwrap_err()
        };
        assert_eq!(with(0, 2), ContinuationError::Format(2));
        assert_eq!(with(3, 0x86), ContinuationError::ServiceAction(0x8886));
        assert_eq!(with(41, 2), ContinuationError::NotAllowed { kind: 2, at: 40 });
        assert_eq!(with(41, 3), ContinuationError::NotAllowed { kind: 3, at: 40 });
        assert_eq!(with(43, 1), ContinuationError::Descriptor { at: 40 });
        assert_eq!(with(47, 40), ContinuationError::Descriptor { at: 40 });
        assert_eq!(with(63, 11), ContinuationError::Sum { sum: 31, length: 30 });
        assert_eq!(Segment::parse(&READ, &wire[..47]), Err(ContinuationError::Length(47)));
        let empty = Segment::default().encode(0x8893).unwrap();
        assert_eq!(Segment::parse(&COPY, &empty), Err(ContinuationError::Missing));
        let twice = [&wire[..], &wire[40..]].concat();
        assert_eq!(Segment::parse(&READ, &twice), Err(ContinuationError::NotAllowed { kind: 1, at: 80 }));
        assert_eq!(with(3, 0x86).sense().field, Some(FieldPointer::parameter(2)));
        assert_eq!(ContinuationError::Length(47).sense().field, Some(FieldPointer::cdb(48)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(noise in proptest::collection::vec(any::<u8>(), 0..160), kind in 0_u8..4) {
            let mut wire = scatter().encode(0x8885).unwrap();
            wire.truncate(40);
            wire.extend_from_slice(&noise[..noise.len() / 8 * 8]);
            for byte in wire.iter_mut().skip(44).take(3) { *byte = 0; }
            if let Some(byte) = wire.get_mut(41) { *byte = kind; }
            if let Some(byte) = wire.get_mut(40) { *byte = 0; }
            for command in [READ, COPY] {
                let _ = Segment::parse(&command, &wire);
                let _ = Segment::parse(&command, &noise);
            }
        }
    }
}
