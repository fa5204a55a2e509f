//! The reply data of EXECUTE FUNCTION: a header, inline bytes and a receipt.

use alloc::vec::Vec;
use core::mem::size_of;

use thiserror::Error;
use zerocopy::byteorder::big_endian::{I32, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ExitReason, INLINE_MAX, JobId, JobState, RECEIPT_MAX, REPLY_HEADER_LEN};
use crate::ObjectId;

/// The only format.
const FORMAT: u8 = 0x01;
/// FLAGS: RESULT OBJECT is valid.
const HAS_OBJECT: u8 = 0x01;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeaderWire {
    format: u8,
    state: u8,
    exit: u8,
    flags: u8,
    error: I32,
    job: [u8; 16],
    total_length: U64,
    offset: U64,
    inline_length: U32,
    receipt_length: U32,
    bytes_read: U64,
    bytes_written: U64,
    cpu_us: U64,
    wall_us: U64,
    peak_memory: U64,
    calls: U64,
    progress_done: U64,
    progress_total: U64,
    result_partition: U64,
    result_object: U64,
}

const _: () = assert!(size_of::<HeaderWire>() == REPLY_HEADER_LEN);

/// State of a job, and what the bytes after the header are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The job.
    pub job: JobId,
    /// Its state.
    pub state: JobState,
    /// Why it ended; [`ExitReason::Success`] while it has not.
    pub exit: ExitReason,
    /// The code that the function returned, or the signal number of a trap.
    pub error: i32,
    /// Bytes of the whole result, or of the whole log for a log request.
    pub total_length: u64,
    /// Offset of the inline bytes in the result or log.
    pub offset: u64,
    /// Bytes that the function read from objects.
    pub bytes_read: u64,
    /// Bytes that the function wrote to objects and to its result.
    pub bytes_written: u64,
    /// CPU time in microseconds.
    pub cpu_us: u64,
    /// Time from start to end, or until now, in microseconds.
    pub wall_us: u64,
    /// Highest memory use in bytes.
    pub peak_memory: u64,
    /// Number of calls of the function to the device.
    pub calls: u64,
    /// Progress that the function reported.
    pub progress_done: u64,
    /// Its end value; 0 if unknown.
    pub progress_total: u64,
    /// The result object, if the result does not fit inline.
    pub result_object: Option<ObjectId>,
}

impl ReplyHeader {
    /// Returns the header of a job without any figures.
    #[must_use]
    pub const fn new(job: JobId, state: JobState) -> Self {
        Self {
            job,
            state,
            exit: ExitReason::Success,
            error: 0,
            total_length: 0,
            offset: 0,
            bytes_read: 0,
            bytes_written: 0,
            cpu_us: 0,
            wall_us: 0,
            peak_memory: 0,
            calls: 0,
            progress_done: 0,
            progress_total: 0,
            result_object: None,
        }
    }
}

/// A whole reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyParts {
    /// The header.
    pub header: ReplyHeader,
    /// Result or log bytes, at most [`INLINE_MAX`].
    pub inline: Vec<u8>,
    /// The receipt, at most [`RECEIPT_MAX`] bytes; empty if there is none.
    pub receipt: Vec<u8>,
}

/// Why bytes are not a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReplyError {
    /// Shorter than the header says.
    #[error("the reply has {0} bytes, fewer than its header says")]
    Short(usize),
    /// A reserved code or value.
    #[error("reserved value at byte {0} of the reply")]
    Reserved(usize),
    /// A length beyond its limit.
    #[error("length at byte {0} of the reply exceeds its limit")]
    Limit(usize),
}

impl ReplyParts {
    /// Parses a reply; bytes after the receipt are ignored.
    ///
    /// # Errors
    /// See [`ReplyError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ReplyError> {
        let short = ReplyError::Short(bytes.len());
        let (wire, rest) = HeaderWire::read_from_prefix(bytes).map_err(|_| short)?;
        if wire.format != FORMAT {
            return Err(ReplyError::Reserved(0));
        }
        if wire.flags & !HAS_OBJECT != 0 {
            return Err(ReplyError::Reserved(3));
        }
        let object = ObjectId::new(wire.result_partition.get(), wire.result_object.get());
        let result_object = (wire.flags & HAS_OBJECT != 0).then_some(object);
        if result_object.is_none() && object != ObjectId::ROOT {
            return Err(ReplyError::Reserved(112));
        }
        let bounded = |length: U32, max: usize, at: usize| {
            usize::try_from(length.get()).ok().filter(|length| *length <= max).ok_or(ReplyError::Limit(at))
        };
        let inline_length = bounded(wire.inline_length, INLINE_MAX, 40)?;
        let receipt_length = bounded(wire.receipt_length, RECEIPT_MAX, 44)?;
        let (inline, rest) = rest.split_at_checked(inline_length).ok_or(short)?;
        let receipt = rest.get(..receipt_length).ok_or(short)?;
        let header = ReplyHeader {
            job: JobId(wire.job),
            state: JobState::from_code(wire.state).ok_or(ReplyError::Reserved(1))?,
            exit: ExitReason::from_code(wire.exit).ok_or(ReplyError::Reserved(2))?,
            error: wire.error.get(),
            total_length: wire.total_length.get(),
            offset: wire.offset.get(),
            bytes_read: wire.bytes_read.get(),
            bytes_written: wire.bytes_written.get(),
            cpu_us: wire.cpu_us.get(),
            wall_us: wire.wall_us.get(),
            peak_memory: wire.peak_memory.get(),
            calls: wire.calls.get(),
            progress_done: wire.progress_done.get(),
            progress_total: wire.progress_total.get(),
            result_object,
        };
        Ok(Self { header, inline: inline.to_vec(), receipt: receipt.to_vec() })
    }

    /// Returns the wire form; `None` if a part exceeds its limit.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        if self.inline.len() > INLINE_MAX || self.receipt.len() > RECEIPT_MAX {
            return None;
        }
        let header = &self.header;
        let object = header.result_object.unwrap_or(ObjectId::ROOT);
        let wire = HeaderWire {
            format: FORMAT,
            state: header.state.code(),
            exit: header.exit.code(),
            flags: if header.result_object.is_some() { HAS_OBJECT } else { 0 },
            error: header.error.into(),
            job: header.job.0,
            total_length: header.total_length.into(),
            offset: header.offset.into(),
            inline_length: u32::try_from(self.inline.len()).ok()?.into(),
            receipt_length: u32::try_from(self.receipt.len()).ok()?.into(),
            bytes_read: header.bytes_read.into(),
            bytes_written: header.bytes_written.into(),
            cpu_us: header.cpu_us.into(),
            wall_us: header.wall_us.into(),
            peak_memory: header.peak_memory.into(),
            calls: header.calls.into(),
            progress_done: header.progress_done.into(),
            progress_total: header.progress_total.into(),
            result_partition: object.partition.into(),
            result_object: object.object.into(),
        };
        Some([wire.as_bytes(), &self.inline, &self.receipt].concat())
    }
}
