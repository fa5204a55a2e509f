//! Descriptor 0003h of the ASF paper, for devices that run its profile.
//!
//! Does: converts between the descriptor and its bytes.
//! Does not: check permissions; the device does.
//! Source of truth: `docs/standards/active.md`, paper descriptor.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use zeroize::Zeroizing;

use super::{ARGUMENTS_MAX, METHOD_MAX, TIMEOUT_MAX_MS};
use crate::bytes::{u16_at, u32_at};

/// Bytes of the fixed part.
const HEADER_LEN: usize = 16;

/// Offsets of its fields.
mod at {
    pub(super) const CODE_BUNDLE: usize = 0;
    pub(super) const TIMEOUT: usize = 4;
    pub(super) const METHOD_LENGTH: usize = 8;
    pub(super) const RESERVED: usize = 10;
    pub(super) const ARGUMENTS_LENGTH: usize = 12;
}

/// A request of the paper. Its objects are those of the extension capabilities of the segment.
#[derive(Clone, PartialEq, Eq)]
pub struct PaperRequest {
    /// CODE BUNDLE OBJECT_ID: the low 32 bits of the function object's number.
    pub code_bundle: u32,
    /// Longest run in milliseconds; 0 starts an asynchronous job.
    pub timeout_ms: u32,
    /// The method, UTF-8, at most [`METHOD_MAX`] bytes.
    pub method: String,
    /// The arguments, at most [`ARGUMENTS_MAX`] bytes.
    pub arguments: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for PaperRequest {
    /// Omits the arguments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PaperRequest")
            .field("code_bundle", &self.code_bundle)
            .field("timeout_ms", &self.timeout_ms)
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

impl PaperRequest {
    /// Parses the data of descriptor 0003h: object id (4), timeout (4), length of the method (2),
    /// zero (2), length of the arguments (4), method, arguments. Fails with the offset of the first
    /// wrong field, which is 0 for data that is too short.
    pub(crate) fn parse(data: &[u8]) -> Result<Self, usize> {
        let header = data.get(..HEADER_LEN).ok_or(0_usize)?;
        let code_bundle = u32_at(header, at::CODE_BUNDLE).ok_or(at::CODE_BUNDLE)?;
        let timeout_ms = u32_at(header, at::TIMEOUT).ok_or(at::TIMEOUT)?;
        if timeout_ms > TIMEOUT_MAX_MS {
            return Err(at::TIMEOUT);
        }
        let method_length = u16_at(header, at::METHOD_LENGTH).map_or(usize::MAX, usize::from);
        if method_length > METHOD_MAX {
            return Err(at::METHOD_LENGTH);
        }
        if u16_at(header, at::RESERVED) != Some(0) {
            return Err(at::RESERVED);
        }
        let arguments_length = u32_at(header, at::ARGUMENTS_LENGTH).and_then(|length| length.try_into().ok());
        let arguments_length = arguments_length.unwrap_or(usize::MAX);
        if arguments_length > ARGUMENTS_MAX || data.len() != HEADER_LEN + method_length + arguments_length {
            return Err(at::ARGUMENTS_LENGTH);
        }
        let (method, arguments) =
            data.get(HEADER_LEN..).and_then(|rest| rest.split_at_checked(method_length)).ok_or(0_usize)?;
        let method = core::str::from_utf8(method).map_err(|_| HEADER_LEN)?;
        if method.chars().any(char::is_control) {
            return Err(HEADER_LEN);
        }
        Ok(Self {
            code_bundle,
            timeout_ms,
            method: method.to_string(),
            arguments: Zeroizing::new(arguments.to_vec()),
        })
    }

    /// Returns the data of descriptor 0003h; `None` if a limit is exceeded.
    #[must_use]
    pub fn encode(&self) -> Option<Zeroizing<Vec<u8>>> {
        let length = HEADER_LEN + self.method.len() + self.arguments.len();
        let mut out = Zeroizing::new(Vec::with_capacity(length));
        out.extend(self.code_bundle.to_be_bytes());
        out.extend(self.timeout_ms.to_be_bytes());
        out.extend(u16::try_from(self.method.len()).ok()?.to_be_bytes());
        out.extend([0; 2]);
        out.extend(u32::try_from(self.arguments.len()).ok()?.to_be_bytes());
        out.extend_from_slice(self.method.as_bytes());
        out.extend_from_slice(&self.arguments);
        (Self::parse(&out).as_ref() == Ok(self)).then_some(out)
    }
}
