//! EXECUTE FUNCTION, our own command: the request in descriptor FF01h and the reply data.
//!
//! Does: converts requests, replies and attribute values of functions from and to bytes.
//! Does not: run functions, or check that a capability covers an object.
//! Contract: a parsed request is within every limit of this module, and its unused fields are
//! zero.
//! Source of truth: `docs/standards/active.md`.

pub mod attributes;
mod codes;
pub mod paper;
mod reply;
mod request;

use core::fmt;

pub use codes::{EngineType, ExitReason, JobState};
pub use reply::{ReplyError, ReplyHeader, ReplyParts};
pub use request::{ExecuteRequest, FunctionObject, JobAction, JobRequest, RunRequest};

/// Bytes of the fixed part of descriptor FF01h.
pub const REQUEST_HEADER_LEN: usize = 80;
/// Bytes of one object entry of descriptor FF01h.
pub const OBJECT_ENTRY_LEN: usize = 24;
/// Maximum number of object entries of one request.
pub const OBJECTS_MAX: usize = 64;
/// Maximum bytes of a method name.
pub const METHOD_MAX: usize = 64;
/// Maximum bytes of arguments.
pub const ARGUMENTS_MAX: usize = 64 << 10;
/// Maximum timeout, in milliseconds: one day.
pub const TIMEOUT_MAX_MS: u32 = 24 * 60 * 60 * 1000;
/// Longest wait of one command for the end of a job, in milliseconds. A device answers then, and
/// the client repeats its request.
pub const WAIT_MAX_MS: u32 = 20_000;

/// Bytes of the reply header.
pub const REPLY_HEADER_LEN: usize = 128;
/// Maximum bytes of a result or log in one reply.
pub const INLINE_MAX: usize = 64 << 10;
/// Maximum bytes of a receipt.
pub const RECEIPT_MAX: usize = 16 << 10;
/// Maximum bytes of a reply: LENGTH of the CDB cannot be larger.
pub const REPLY_MAX: usize = REPLY_HEADER_LEN + INLINE_MAX + RECEIPT_MAX;

/// Bytes of a code digest: BLAKE3-256.
pub const CODE_DIGEST_LEN: usize = 32;
/// Bytes of a job id.
pub const JOB_ID_LEN: usize = 16;

/// Identifies a job of a device: random bytes that cannot be guessed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub [u8; JOB_ID_LEN]);

impl JobId {
    /// The value that stands for "no job" on the wire.
    pub const NONE: Self = Self([0; JOB_ID_LEN]);
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A version of the function API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApiVersion {
    /// Incompatible versions differ here.
    pub major: u16,
    /// Later minor versions only add calls.
    pub minor: u16,
}

impl ApiVersion {
    /// The version of this source tree.
    pub const CURRENT: Self = Self { major: 1, minor: 1 };
    /// The first minor version of it. Clients request it: engines of later ones run its functions.
    pub const FIRST: Self = Self { major: 1, minor: 0 };
    /// Bytes of its wire form.
    pub const LEN: usize = 4;

    /// Returns the wire form.
    #[must_use]
    pub const fn bytes(self) -> [u8; Self::LEN] {
        let [a, b] = self.major.to_be_bytes();
        let [c, d] = self.minor.to_be_bytes();
        [a, b, c, d]
    }

    /// Parses the wire form.
    #[must_use]
    pub const fn from_bytes([a, b, c, d]: [u8; Self::LEN]) -> Self {
        Self { major: u16::from_be_bytes([a, b]), minor: u16::from_be_bytes([c, d]) }
    }
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests;
