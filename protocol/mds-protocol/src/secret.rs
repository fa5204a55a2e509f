//! Key bytes in a message: wiped when dropped, compared in constant time, never printed.

use alloc::vec::Vec;
use core::fmt;

use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::wire::{Wire, WireError, WireReader, WireWriter};

/// A key of at most [`Secret::MAX`] bytes; wiped when dropped, compared in constant time, never
/// printed.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Maximum length of a key in a message.
    pub const MAX: usize = 64;

    /// Wraps key bytes.
    ///
    /// # Errors
    /// `TooLong`; the bytes are wiped.
    pub fn new(mut bytes: Vec<u8>) -> Result<Self, WireError> {
        if bytes.len() > Self::MAX {
            bytes.zeroize();
            return Err(WireError::TooLong { limit: Self::MAX });
        }
        Ok(Self(bytes))
    }

    /// Returns the key; pass it on, do not store it.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Secret {}

impl Wire for Secret {
    fn put(&self, out: &mut WireWriter) {
        out.lv16(&self.0);
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok(Self(input.lv16(Self::MAX)?.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, vec};

    #[test]
    fn debug_output_shows_no_key_bytes() {
        assert_eq!(format!("{:?}", Secret::new(vec![0xAB; 32]).unwrap()), "Secret(32 bytes)");
    }

    #[test]
    fn secret_over_limit_is_refused() {
        assert_eq!(Secret::new(vec![0; 65]).unwrap_err(), WireError::TooLong { limit: 64 });
    }
}
