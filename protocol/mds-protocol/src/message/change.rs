//! The request that an exactly-once request ([`Request::Once`]) wraps: only changes of names or of
//! extended attributes may be wrapped.

use alloc::boxed::Box;

use super::Request;
use crate::wire::{Wire, WireError, WireReader, WireWriter};

/// A request inside [`Request::Once`]: one that changes names or extended attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeRequest(Box<Request>);

impl ChangeRequest {
    /// MakeNode, LinkNode, RemoveNode, RenameNode, SetXattr, RemoveXattr, NameBatch.
    const OPERATIONS: [u16; 7] = [0x0063, 0x0064, 0x0065, 0x0066, 0x006E, 0x0070, 0x007A];

    /// Wraps a request. Any other kind is returned as the error.
    ///
    /// # Errors
    /// The request.
    pub fn new(request: Request) -> Result<Self, Request> {
        if Self::OPERATIONS.contains(&request.operation()) {
            Ok(Self(Box::new(request)))
        } else {
            Err(request)
        }
    }

    /// Returns the request.
    #[must_use]
    pub fn into_request(self) -> Request {
        *self.0
    }

    /// Returns a reference to the request.
    #[must_use]
    pub const fn request(&self) -> &Request {
        &self.0
    }
}

impl Wire for ChangeRequest {
    fn put(&self, out: &mut WireWriter) {
        self.0.operation().put(out);
        self.0.put_fields(out);
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        let operation = u16::get(input)?;
        // Checked before the fields, so that requests cannot be nested.
        if !Self::OPERATIONS.contains(&operation) {
            return Err(WireError::UnknownCode { what: "change", code: u32::from(operation) });
        }
        Request::get_fields(operation, input).map(|request| Self(Box::new(request)))
    }
}
