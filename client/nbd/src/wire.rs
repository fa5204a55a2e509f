//! Layouts of the NBD protocol.
//!
//! Does: parses headers of options and requests, encodes replies.
//! Does not: keep state.
//! Truth: doc/proto.md of the NBD project.

use core::fmt;

use crate::{NbdError, StatusExtent};

pub(crate) const GREETING: [u8; 8] = *b"NBDMAGIC";
pub(crate) const OPTION_MAGIC: [u8; 8] = *b"IHAVEOPT";
const OPTION_REPLY_MAGIC: u64 = 0x0003_E889_0455_65A9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_MAGIC: u32 = 0x668E_33EF;

/// Handshake flags of the server, and those that a client may set: fixed newstyle, no zeroes.
pub(crate) const FIXED_NEWSTYLE: u16 = 1;
pub(crate) const NO_ZEROES: u16 = 2;

/// Bytes of the header of an option, and of a request.
pub(crate) const OPTION_BYTES: usize = 16;
/// Bytes of the header of a request.
pub const REQUEST_BYTES: usize = 28;
/// Maximum bytes of data of one READ or WRITE.
pub const TRANSFER_MAX: u32 = 32 << 20;

/// Option codes.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub(crate) mod reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const ERR_UNSUPPORTED: u32 = 0x8000_0001;
    pub(crate) const ERR_POLICY: u32 = 0x8000_0002;
    pub(crate) const ERR_INVALID: u32 = 0x8000_0003;
    pub(crate) const ERR_UNKNOWN: u32 = 0x8000_0006;
    pub(crate) const ERR_BLOCK_SIZE_REQUIRED: u32 = 0x8000_0008;
    pub(crate) const ERR_TOO_BIG: u32 = 0x8000_0009;
}

/// Types of information about an export.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags.
pub(crate) mod flag {
    pub(crate) const HAS_FLAGS: u16 = 1;
    pub(crate) const READ_ONLY: u16 = 2;
    pub(crate) const SEND_FLUSH: u16 = 4;
    pub(crate) const SEND_FUA: u16 = 8;
    pub(crate) const SEND_TRIM: u16 = 0x20;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 0x40;
    pub(crate) const SEND_DF: u16 = 0x80;
    pub(crate) const CAN_MULTI_CONN: u16 = 0x100;
    pub(crate) const SEND_FAST_ZERO: u16 = 0x800;
}

/// Flags of requests.
pub(crate) mod command_flag {
    pub(crate) const FUA: u16 = 1;
    pub(crate) const NO_HOLE: u16 = 2;
    pub(crate) const DF: u16 = 4;
    pub(crate) const REQ_ONE: u16 = 8;
    pub(crate) const FAST_ZERO: u16 = 0x10;
}

/// Types of structured replies, and their flag of the last chunk.
mod chunk {
    pub(crate) const DONE: u16 = 1;
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const ERROR: u16 = 0x8001;
}

/// Why a connection is closed: the peer does not speak the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NbdViolation {
    /// Client flags that the server did not offer.
    #[error("unknown client flags {0:#x}")]
    ClientFlags(u32),
    /// An option does not begin with its magic number.
    #[error("an option without its magic number")]
    OptionMagic,
    /// An option is too long to be skipped.
    #[error("an option of {0} bytes")]
    OptionLength(u32),
    /// Too many options.
    #[error("more than {0} options")]
    OptionCount(u32),
    /// `EXPORT_NAME` names an export that does not exist; the protocol has no error reply.
    #[error("the requested export does not exist, or its block size requires GO")]
    UnknownExport,
    /// A request does not begin with its magic number.
    #[error("a request without its magic number")]
    RequestMagic,
    /// A WRITE is too long to be skipped.
    #[error("a write of {0} bytes")]
    WriteLength(u32),
}

/// The header of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// Its code.
    pub code: u32,
    /// Bytes of its data.
    pub length: u32,
}

/// Parses the header of an option.
///
/// # Errors
/// `OptionMagic`.
pub fn parse_option_header(bytes: &[u8; 16]) -> Result<OptionHeader, NbdViolation> {
    let [magic, rest] = [&bytes[..8], &bytes[8..]];
    if magic != OPTION_MAGIC {
        return Err(NbdViolation::OptionMagic);
    }
    let word = |at: usize| u32::from_be_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
    Ok(OptionHeader { code: word(0), length: word(4) })
}

/// The command of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdCommand {
    /// Returns data.
    Read,
    /// Stores the data that follow it.
    Write,
    /// Ends the connection.
    Disconnect,
    /// Makes acknowledged writes durable.
    Flush,
    /// Frees space.
    Trim,
    /// Writes zeros.
    WriteZeroes,
    /// Returns the allocation.
    BlockStatus,
    /// A command that the server did not offer.
    Unknown(u16),
}

impl NbdCommand {
    const fn from_code(code: u16) -> Self {
        match code {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            other => Self::Unknown(other),
        }
    }
}

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdRequest {
    /// Its flags.
    pub flags: u16,
    /// Its command.
    pub command: NbdCommand,
    /// Repeated in the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u32,
}

/// Parses the header of a request.
///
/// # Errors
/// `RequestMagic`; `WriteLength` for a WRITE above [`TRANSFER_MAX`].
pub fn parse_request(bytes: &[u8; REQUEST_BYTES]) -> Result<NbdRequest, NbdViolation> {
    let [a, b, c, d, e, f, g, h, rest @ ..] = bytes;
    if u32::from_be_bytes([*a, *b, *c, *d]) != REQUEST_MAGIC {
        return Err(NbdViolation::RequestMagic);
    }
    let (cookie, rest) = rest.split_at(8);
    let (offset, length) = rest.split_at(8);
    let long = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    let request = NbdRequest {
        flags: u16::from_be_bytes([*e, *f]),
        command: NbdCommand::from_code(u16::from_be_bytes([*g, *h])),
        cookie: long(cookie),
        offset: long(offset),
        length: length.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes)),
    };
    match request.command {
        NbdCommand::Write if request.length > TRANSFER_MAX => Err(NbdViolation::WriteLength(request.length)),
        _ => Ok(request),
    }
}

/// Appends a reply to an option.
pub(crate) fn option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(data);
}

/// Appends an error reply to an option, with a message.
pub(crate) fn option_error(out: &mut Vec<u8>, option: u32, kind: u32, message: impl fmt::Display) {
    option_reply(out, option, kind, message.to_string().as_bytes());
}

/// Returns a simple reply; the data of a READ follow it.
pub(crate) fn simple_reply(cookie: u64, error: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(16);
    out.extend(SIMPLE_MAGIC.to_be_bytes());
    out.extend(error.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out
}

fn structured(cookie: u64, kind: u16, length: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.extend(STRUCTURED_MAGIC.to_be_bytes());
    out.extend(chunk::DONE.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(length.to_be_bytes());
    out
}

/// Returns a structured reply without data.
pub(crate) fn structured_done(cookie: u64) -> Vec<u8> {
    structured(cookie, chunk::NONE, 0)
}

/// Returns the head of a structured reply to a READ; the data follow it.
pub(crate) fn structured_data(cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut out = structured(cookie, chunk::OFFSET_DATA, length.saturating_add(8));
    out.extend(offset.to_be_bytes());
    out
}

/// Maximum bytes of the message of an error.
const MESSAGE_MAX: usize = 1024;

/// Returns a structured reply with an error and its message.
pub(crate) fn structured_error(cookie: u64, error: &NbdError) -> Vec<u8> {
    let message = error.to_string();
    let message = &message.as_bytes()[..message.len().min(MESSAGE_MAX)];
    let mut out = structured(cookie, chunk::ERROR, 6 + message.len() as u32);
    out.extend(error.code().to_be_bytes());
    out.extend((message.len() as u16).to_be_bytes());
    out.extend_from_slice(message);
    out
}

/// Identifier of the context `base:allocation`.
pub(crate) const ALLOCATION_CONTEXT: u32 = 1;
/// Name of that context.
pub(crate) const ALLOCATION_NAME: &[u8] = b"base:allocation";
/// Flags of an extent that takes no space and reads as zeros.
const HOLE: u32 = 1;
const ZERO: u32 = 2;

/// Returns the reply to `BLOCK_STATUS`.
pub(crate) fn block_status(cookie: u64, extents: &[StatusExtent]) -> Vec<u8> {
    let length = u32::try_from(4 + 8 * extents.len()).unwrap_or(u32::MAX);
    let mut out = structured(cookie, chunk::BLOCK_STATUS, length);
    out.extend(ALLOCATION_CONTEXT.to_be_bytes());
    for extent in extents {
        let flags = if extent.is_hole { HOLE } else { 0 } | if extent.is_zero { ZERO } else { 0 };
        out.extend(extent.length.to_be_bytes());
        out.extend(flags.to_be_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(command: u16, length: u32) -> [u8; REQUEST_BYTES] {
        let mut bytes = Vec::new();
        bytes.extend(REQUEST_MAGIC.to_be_bytes());
        bytes.extend(command_flag::FUA.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(7_u64.to_be_bytes());
        bytes.extend(4096_u64.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.try_into().expect("28 bytes")
    }

    #[test]
    fn request_header_parses_every_command() {
        for code in 0..=u16::MAX {
            let parsed = parse_request(&request(code, 512)).expect("right");
            assert_eq!((parsed.cookie, parsed.offset, parsed.length), (7, 4096, 512));
            assert_eq!(matches!(parsed.command, NbdCommand::Unknown(_)), code == 5 || code > 7);
        }
    }

    #[test]
    fn write_above_limit_is_violation() {
        assert!(parse_request(&request(1, TRANSFER_MAX)).is_ok());
        let refused = parse_request(&request(1, TRANSFER_MAX + 1));
        assert_eq!(refused, Err(NbdViolation::WriteLength(TRANSFER_MAX + 1)));
        assert!(parse_request(&request(4, u32::MAX)).is_ok(), "a trim has no data");
    }

    #[test]
    fn replies_have_the_layout_of_the_protocol() {
        assert_eq!(simple_reply(2, 5)[..], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 2]);
        let data = structured_data(2, 3, 512);
        assert_eq!(data[..8], [0x66, 0x8E, 0x33, 0xEF, 0, 1, 0, 1]);
        assert_eq!(data[16..], [0, 0, 2, 8, 0, 0, 0, 0, 0, 0, 0, 3]);
        let error = structured_error(2, &NbdError::NoSpace);
        assert_eq!(error[6..8], [0x80, 1]);
        assert_eq!(error[20..24], 28_u32.to_be_bytes());
        assert_eq!(error.len(), 26 + usize::from(u16::from_be_bytes([error[24], error[25]])));
        let extents = [StatusExtent { length: 512, is_hole: true, is_zero: true }];
        assert_eq!(block_status(2, &extents)[20..], [0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 3]);
    }

    proptest! {
        #[test]
        fn arbitrary_headers_never_panic(bytes in any::<[u8; REQUEST_BYTES]>(), magic in any::<bool>()) {
            let mut bytes = bytes;
            if magic {
                bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
            }
            if let Ok(request) = parse_request(&bytes) {
                prop_assert!(request.command != NbdCommand::Write || request.length <= TRANSFER_MAX);
            }
            let mut header = [0; OPTION_BYTES];
            header.copy_from_slice(&bytes[..OPTION_BYTES]);
            let _ = parse_option_header(&header);
        }
    }
}
