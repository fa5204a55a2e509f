//! Parses the CDB continuation segment of a command for its handler.
//!
//! Does: limit its length, parse it, convert a scatter/gather list to pieces of the transfer.
//! Does not: verify it (`sealstone_seal` did), or decide what the pieces may access (the permit
//! does).
//! Contract: pieces keep the order of the list. They may overlap: a write applies them in order, so
//! the last one wins; a read gives each its own bytes. An empty piece is no error.
//! Truth: docs/design/t10-osd.md 1.8; trap T18.

use sealstone_osd::cdb::{Cdb, Command, pointer};
use sealstone_osd::continuation::Segment;
use sealstone_seal::Denial;

use crate::attributes::rows::{CONTINUATION_MAX, LIST_CONTINUATION_MAX};
use crate::commands::TransferSpan;
use crate::failure::OsdFailure;
use crate::report::OsdRefusal;

/// Byte of the segment where a scatter/gather list starts. No other descriptor can precede it.
const FIRST_PIECE: usize = 48;
/// Bytes of one entry.
const PIECE: usize = 16;

/// A parsed segment.
#[derive(Debug, Default)]
pub(crate) struct Continued {
    /// The pieces of a scatter/gather list.
    pub(crate) spans: Option<Vec<TransferSpan>>,
    /// All descriptors of the segment.
    pub(crate) segment: Segment,
    /// Offset of descriptor 0003h of the ASF paper.
    pub(crate) paper_function_at: Option<u16>,
}

/// Checks the length against attribute R+1/Ah, before any byte is parsed.
///
/// # Errors
/// [`OsdFailure::Field`] at CDB CONTINUATION LENGTH.
pub(crate) fn check_length(cdb: &Cdb) -> Result<(), OsdFailure> {
    let limit = match cdb.command {
        Command::ExecuteFunction(_) => CONTINUATION_MAX,
        _ => LIST_CONTINUATION_MAX,
    };
    if cdb.continuation_length > limit {
        return Err(OsdFailure::Field(pointer::CONTINUATION));
    }
    Ok(())
}

/// Returns the error about entry `index` of a scatter/gather list.
pub(crate) fn piece_failure(index: usize) -> OsdFailure {
    OsdFailure::Continuation(u16::try_from(FIRST_PIECE + PIECE * index).unwrap_or(u16::MAX))
}

/// Parses a segment. Empty input means that there is none. Without `paper_functions` the descriptor
/// of the ASF paper is refused like an unknown one.
///
/// # Errors
/// [`OsdFailure::Field`] at CDB CONTINUATION LENGTH, [`OsdFailure::Continuation`] at the byte in
/// the segment, or [`Denial::Range`] for a piece whose end overflows.
pub(crate) fn read(cdb: &Cdb, bytes: &[u8], paper_functions: bool) -> Result<Continued, OsdRefusal> {
    if bytes.is_empty() {
        return Ok(Continued::default());
    }
    let segment = Segment::parse(&cdb.command, bytes).map_err(|error| match error.segment_byte() {
        Some(byte) => OsdFailure::Continuation(byte),
        None => OsdFailure::Field(pointer::CONTINUATION),
    })?;
    let paper_function_at = segment.paper_function.as_ref().and_then(|_| Segment::paper_function_at(bytes));
    if let (false, Some(at)) = (paper_functions, paper_function_at) {
        return Err(OsdFailure::Continuation(at).into());
    }
    let spans = match (&segment.scatter_gather, cdb.command.range()) {
        (Some(pieces), Some(range)) => {
            let mut from = 0u64;
            let mut spans = Vec::with_capacity(pieces.len());
            for (index, piece) in pieces.iter().enumerate() {
                // Offsets are relative to STARTING BYTE.
                let at = range.start.checked_add(piece.offset).ok_or_else(|| piece_failure(index))?;
                at.checked_add(piece.length).ok_or(Denial::Range)?;
                spans.push(TransferSpan { at, from, length: piece.length });
                from = from.checked_add(piece.length).ok_or_else(|| piece_failure(index))?;
            }
            Some(spans)
        }
        _ => None,
    };
    Ok(Continued { spans, segment, paper_function_at })
}
