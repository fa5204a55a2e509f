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

/// A request of the paper: the objects are in the arguments, as the function expects them.
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
    /// zero (2), length of the arguments (4), method, arguments.
    pub(crate) fn parse(data: &[u8]) -> Option<Self> {
        let method_length = usize::from(u16_at(data, 8)?);
        let arguments_length = usize::try_from(u32_at(data, 12)?).ok()?;
        let timeout_ms = u32_at(data, 4)?;
        let lengths = method_length <= METHOD_MAX && arguments_length <= ARGUMENTS_MAX;
        if !lengths || timeout_ms > TIMEOUT_MAX_MS || u16_at(data, 10)? != 0 {
            return None;
        }
        let (method, arguments) = data.get(HEADER_LEN..)?.split_at_checked(method_length)?;
        let method = core::str::from_utf8(method).ok()?;
        if method.chars().any(char::is_control) || arguments.len() != arguments_length {
            return None;
        }
        Some(Self {
            code_bundle: u32_at(data, 0)?,
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
        (Self::parse(&out).as_ref() == Some(self)).then_some(out)
    }
}
