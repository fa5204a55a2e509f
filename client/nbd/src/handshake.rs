//! Negotiation of a connection, as a state machine.
//!
//! Does: answers options, and decides when the transmission begins.
//! Does not: touch sockets.
//! Truth: doc/proto.md of the NBD project, "Fixed newstyle negotiation" and "Metadata querying".

use core::fmt;

use crate::wire::{
    ALLOCATION_CONTEXT, ALLOCATION_NAME, FIXED_NEWSTYLE, GREETING, NO_ZEROES, NbdViolation, OPTION_MAGIC,
    TRANSFER_MAX, flag, info, option, option_error, option_reply, reply,
};
use crate::{ExportProperties, OptionHeader};

/// Maximum bytes of the name of an export.
const NAME_MAX: usize = 4096;
/// Maximum bytes of data of an option that are processed.
const OPTION_DATA_MAX: u32 = 16 << 10;
/// Maximum bytes of data of an option that are skipped.
const OPTION_SKIP_MAX: u32 = 1 << 20;
/// Maximum number of options of a connection.
const OPTIONS_MAX: u32 = 64;
/// Maximum queries of one option about contexts.
const QUERIES_MAX: u32 = 256;
/// Zeros after the answer to `EXPORT_NAME`, unless the client declines them.
const EXPORT_NAME_ZEROS: usize = 124;

/// The name of an export: 1 to 4096 bytes of UTF-8. The empty name is the default export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportName(String);

/// The text is no name of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name of an export has 1 to {NAME_MAX} bytes")]
pub struct ExportNameError;

impl ExportName {
    /// Checks the length of a name.
    ///
    /// # Errors
    /// [`ExportNameError`].
    pub fn new(name: &str) -> Result<Self, ExportNameError> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(ExportNameError);
        }
        Ok(Self(name.to_owned()))
    }

    /// Whether the bytes select this export.
    fn is_selected(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.0.as_bytes()
    }
}

impl fmt::Display for ExportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The next step of a connection after an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeStep {
    /// It sends the replies and reads the next option.
    Continue,
    /// It sends the replies, and requests follow.
    Transmission,
    /// It sends the replies and closes.
    Close,
}

/// The negotiation of one connection.
#[derive(Clone, Debug)]
pub struct Handshake {
    name: ExportName,
    properties: ExportProperties,
    no_zeroes: bool,
    has_structured_replies: bool,
    has_allocation: bool,
    options: u32,
}

impl Handshake {
    /// Begins the negotiation of one export.
    #[must_use]
    pub fn new(name: ExportName, properties: ExportProperties) -> Self {
        Self {
            name,
            properties,
            no_zeroes: false,
            has_structured_replies: false,
            has_allocation: false,
            options: 0,
        }
    }

    /// Returns the first bytes of the server.
    #[must_use]
    pub fn greeting() -> Vec<u8> {
        [&GREETING[..], &OPTION_MAGIC, &(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes()].concat()
    }

    /// Checks and stores the flags of the client.
    ///
    /// # Errors
    /// `ClientFlags` if the server did not offer one.
    pub fn client_flags(&mut self, flags: u32) -> Result<(), NbdViolation> {
        if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
            return Err(NbdViolation::ClientFlags(flags));
        }
        self.no_zeroes = flags & u32::from(NO_ZEROES) != 0;
        Ok(())
    }

    /// Whether the client negotiated structured replies.
    #[must_use]
    pub const fn has_structured_replies(&self) -> bool {
        self.has_structured_replies
    }

    /// Whether the client selected the context `base:allocation`.
    #[must_use]
    pub const fn has_allocation(&self) -> bool {
        self.has_allocation
    }

    /// Checks the header of an option: whether its data are read (`true`) or skipped.
    ///
    /// # Errors
    /// `OptionLength`, `OptionCount`.
    pub fn accept_option(&mut self, header: OptionHeader) -> Result<bool, NbdViolation> {
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(NbdViolation::OptionCount(OPTIONS_MAX));
        }
        match header.length {
            ..=OPTION_DATA_MAX => Ok(true),
            ..=OPTION_SKIP_MAX if header.code != option::EXPORT_NAME => Ok(false),
            length => Err(NbdViolation::OptionLength(length)),
        }
    }

    /// Appends the reply to an option whose data were skipped.
    pub fn skipped_option(&self, header: OptionHeader, out: &mut Vec<u8>) {
        option_error(out, header.code, reply::ERR_TOO_BIG, "the option is too long");
    }

    /// Processes one option and appends its replies.
    ///
    /// # Errors
    /// `UnknownExport` for `EXPORT_NAME`, which has no error reply.
    pub fn option(
        &mut self,
        code: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<HandshakeStep, NbdViolation> {
        let refuse = |out: &mut Vec<u8>, kind: u32, message: &str| {
            option_error(out, code, kind, message);
            Ok(HandshakeStep::Continue)
        };
        match code {
            option::EXPORT_NAME => {
                // A client without the block size could send requests that are refused.
                if !self.name.is_selected(data) || self.properties.block_min > BLOCK_ASSUMED {
                    return Err(NbdViolation::UnknownExport);
                }
                out.extend(self.properties.bytes.to_be_bytes());
                out.extend(self.transmission_flags().to_be_bytes());
                if !self.no_zeroes {
                    out.extend([0; EXPORT_NAME_ZEROS]);
                }
                Ok(HandshakeStep::Transmission)
            }
            option::ABORT => {
                option_reply(out, code, reply::ACK, &[]);
                Ok(HandshakeStep::Close)
            }
            option::LIST if !data.is_empty() => refuse(out, reply::ERR_INVALID, "LIST has no data"),
            option::LIST => {
                let name = self.name.0.as_bytes();
                let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
                option_reply(out, code, reply::SERVER, &[&length.to_be_bytes()[..], name].concat());
                option_reply(out, code, reply::ACK, &[]);
                Ok(HandshakeStep::Continue)
            }
            option::INFO | option::GO => Ok(self.describe(code, data, out)),
            option::STARTTLS => refuse(out, reply::ERR_POLICY, "a Unix socket has no TLS"),
            option::STRUCTURED_REPLY if !data.is_empty() => {
                refuse(out, reply::ERR_INVALID, "STRUCTURED_REPLY has no data")
            }
            option::STRUCTURED_REPLY => {
                self.has_structured_replies = true;
                option_reply(out, code, reply::ACK, &[]);
                Ok(HandshakeStep::Continue)
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.contexts(code, data, out);
                Ok(HandshakeStep::Continue)
            }
            _ => refuse(out, reply::ERR_UNSUPPORTED, "unknown option"),
        }
    }

    /// Answers INFO and GO.
    fn describe(&self, code: u32, data: &[u8], out: &mut Vec<u8>) -> HandshakeStep {
        let Some((name, requests)) = parse_description(data) else {
            option_error(out, code, reply::ERR_INVALID, "malformed data");
            return HandshakeStep::Continue;
        };
        if !self.name.is_selected(name) {
            option_error(out, code, reply::ERR_UNKNOWN, "no such export");
            return HandshakeStep::Continue;
        }
        let has_requested = |kind: u16| requests.chunks_exact(2).any(|request| request == kind.to_be_bytes());
        let is_small = self.properties.block_min <= BLOCK_ASSUMED;
        if code == option::GO && !is_small && !has_requested(info::BLOCK_SIZE) {
            let message = "requests must be aligned to the block size";
            option_error(out, code, reply::ERR_BLOCK_SIZE_REQUIRED, message);
            return HandshakeStep::Continue;
        }
        let mut export = info::EXPORT.to_be_bytes().to_vec();
        export.extend(self.properties.bytes.to_be_bytes());
        export.extend(self.transmission_flags().to_be_bytes());
        option_reply(out, code, reply::INFO, &export);
        if has_requested(info::NAME) {
            let name = [&info::NAME.to_be_bytes()[..], self.name.0.as_bytes()].concat();
            option_reply(out, code, reply::INFO, &name);
        }
        if has_requested(info::BLOCK_SIZE) {
            let mut sizes = info::BLOCK_SIZE.to_be_bytes().to_vec();
            for size in [self.properties.block_min, self.properties.block_preferred, TRANSFER_MAX] {
                sizes.extend(size.to_be_bytes());
            }
            option_reply(out, code, reply::INFO, &sizes);
        }
        option_reply(out, code, reply::ACK, &[]);
        if code == option::GO { HandshakeStep::Transmission } else { HandshakeStep::Continue }
    }

    /// Answers `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
    fn contexts(&mut self, code: u32, data: &[u8], out: &mut Vec<u8>) {
        let is_set = code == option::SET_META_CONTEXT;
        if is_set {
            // A failed request also ends the earlier selection.
            self.has_allocation = false;
            if !self.has_structured_replies {
                return option_error(out, code, reply::ERR_INVALID, "structured replies come first");
            }
        }
        let Some((name, queries)) = parse_queries(data) else {
            return option_error(out, code, reply::ERR_INVALID, "malformed data");
        };
        if !self.name.is_selected(name) {
            return option_error(out, code, reply::ERR_UNKNOWN, "no such export");
        }
        let is_match = |query: &&[u8]| *query == ALLOCATION_NAME || !is_set && *query == b"base:";
        if queries.iter().any(is_match) || !is_set && queries.is_empty() {
            self.has_allocation = is_set || self.has_allocation;
            let id = if is_set { ALLOCATION_CONTEXT } else { 0 };
            option_reply(out, code, reply::META_CONTEXT, &[&id.to_be_bytes()[..], ALLOCATION_NAME].concat());
        }
        option_reply(out, code, reply::ACK, &[]);
    }

    fn transmission_flags(&self) -> u16 {
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN;
        if self.properties.is_read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
            if self.properties.can_trim {
                flags |= flag::SEND_TRIM;
            }
        }
        if self.has_structured_replies {
            flags |= flag::SEND_DF;
        }
        flags
    }
}

/// Block size that a client may assume if it does not request one.
const BLOCK_ASSUMED: u32 = 512;

/// Splits off a name and the length before it.
fn take_name(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    if length > NAME_MAX {
        return None;
    }
    rest.split_at_checked(length)
}

/// Parses the data of INFO and GO: the name, and the requested information, two bytes each.
fn parse_description(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, rest) = take_name(data)?;
    let (count, requests) = rest.split_first_chunk::<2>()?;
    (requests.len() == 2 * usize::from(u16::from_be_bytes(*count))).then_some((name, requests))
}

/// Parses the data of the options about contexts: the name of the export, and the queries.
fn parse_queries(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (name, rest) = take_name(data)?;
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let count = u32::from_be_bytes(*count);
    if count > QUERIES_MAX {
        return None;
    }
    let mut queries = Vec::new();
    for _ in 0..count {
        let (query, after) = take_name(rest)?;
        queries.push(query);
        rest = after;
    }
    rest.is_empty().then_some((name, queries))
}

#[cfg(test)]
mod tests;
