//! Key types, so that a key cannot be used to sign what another key signs.
//!
//! Does: holds key bytes and wipes them.
//! Does not: implement `Debug`, comparison or serialization of any of them.
//! Contract: bytes leave a key only through `expose`, which is easy to search for.
//! Source of truth: docs/design/security.md 3.6, 3.7.

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::Tag;
use crate::algorithm::Hash;

/// Maximum bytes of a key.
pub const KEY_MAX: usize = 32;

/// Key bytes, 20 or 32 of them.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
struct KeyBytes {
    bytes: [u8; KEY_MAX],
    len: u8,
}

impl KeyBytes {
    fn new(value: &[u8]) -> Option<Self> {
        if value.len() != Hash::Sha1.tag_len() && value.len() != Hash::Sha256.tag_len() {
            return None;
        }
        let mut bytes = [0; KEY_MAX];
        bytes[..value.len()].copy_from_slice(value);
        Some(Self { bytes, len: value.len() as u8 })
    }

    fn expose(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name(KeyBytes);

        impl $name {
            /// Creates a key from 20 or 32 bytes; `None` for any other number.
            #[must_use]
            pub fn new(bytes: &[u8]) -> Option<Self> {
                KeyBytes::new(bytes).map(Self)
            }

            /// Returns the secret bytes.
            #[must_use]
            pub fn expose(&self) -> &[u8] {
                self.0.expose()
            }

            #[allow(dead_code, reason = "not every kind of key is a MAC value")]
            pub(crate) fn from_tag(mut tag: Tag) -> Self {
                let secret = KeyBytes::new(tag.as_bytes()).expect("a tag is 20 or 32 bytes");
                tag.zeroize();
                Self(secret)
            }
        }
    )*};
}

keys! {
    /// Shared by an owner and a device since enrolment; all other keys derive from it.
    InitialKey;
    /// Signs capabilities of its level, which yields the capability key.
    AuthenticationKey;
    /// Derives the keys of the level below: never signs.
    GenerationKey;
    /// The credential's integrity check value: signs the requests of its bearer.
    CapabilityKey;
}

/// The two keys of the master, of the root, or of a partition.
#[derive(Clone)]
pub struct KeyPair {
    /// Signs the credentials with which the level below is set.
    pub authentication: AuthenticationKey,
    /// Derives the keys of the level below.
    pub generation: GenerationKey,
}

/// Bytes of a key identifier; it is public and chosen by the security manager.
pub type KeyIdentifier = [u8; 7];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_20_or_32_bytes() {
        for len in 0..64 {
            assert_eq!(CapabilityKey::new(&[1; 64][..len]).is_some(), len == 20 || len == 32, "{len}");
        }
    }

    #[test]
    fn a_wiped_key_is_zero() {
        let mut secret = KeyBytes::new(&[0xA5; 32]).expect("32 bytes");
        secret.zeroize();
        assert_eq!(secret.bytes, [0; 32]);
    }
}
