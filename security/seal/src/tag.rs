//! Tags: the results of MAC computations, and their only comparison.
//!
//! Does: holds 20 or 32 bytes, writes them into wire fields, compares in constant time.
//! Does not: know what was authenticated.
//! Contract: [`ct_eq`] is the only comparison of secret-derived bytes.
//! Source of truth: docs/design/security.md 1.4 rule 3, 3.2 (field width).

use subtle::ConstantTimeEq as _;
use zeroize::Zeroize;

/// Maximum bytes of a tag.
pub const TAG_MAX: usize = 32;

/// The value of one MAC computation, 1 to 32 bytes; in practice 20 (SHA-1) or 32 (SHA-256).
///
/// Has no `==`: a tag is compared with a wire field by [`Tag::matches`].
#[derive(Clone, Copy)]
pub struct Tag {
    bytes: [u8; TAG_MAX],
    len: u8,
}

impl Tag {
    /// Creates a tag from 1 to 32 bytes; `None` for any other number.
    #[must_use]
    pub fn new(value: &[u8]) -> Option<Self> {
        if value.is_empty() || value.len() > TAG_MAX {
            return None;
        }
        let mut bytes = [0; TAG_MAX];
        bytes[..value.len()].copy_from_slice(value);
        Some(Self { bytes, len: value.len() as u8 })
    }

    /// Creates a tag from the 20 bytes of a SHA-1 MAC.
    #[must_use]
    pub fn from_sha1(value: [u8; 20]) -> Self {
        let mut bytes = [0; TAG_MAX];
        bytes[..20].copy_from_slice(&value);
        Self { bytes, len: 20 }
    }

    /// Creates a tag from the 32 bytes of a SHA-256 MAC.
    #[must_use]
    pub const fn from_sha256(bytes: [u8; 32]) -> Self {
        Self { bytes, len: 32 }
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Writes the tag into a wire field, left aligned, the rest zero. Returns `false`, and writes
    /// nothing, if the field is narrower than the tag: a tag is never truncated.
    #[must_use]
    pub fn place(&self, field: &mut [u8]) -> bool {
        let len = usize::from(self.len);
        match field.split_at_mut_checked(len) {
            Some((head, rest)) => {
                head.copy_from_slice(self.as_bytes());
                rest.fill(0);
                true
            }
            None => false,
        }
    }

    /// Whether a wire field holds this tag, left aligned, with zeros after it. Constant time for
    /// one field width.
    #[must_use]
    pub fn matches(&self, field: &[u8]) -> bool {
        field.len() >= usize::from(self.len)
            && field.len() <= TAG_MAX
            && ct_eq(&self.bytes[..field.len()], field)
    }
}

impl Zeroize for Tag {
    fn zeroize(&mut self) {
        self.bytes.zeroize();
    }
}

/// Compares in a time that depends on the lengths alone. Every comparison of secret-derived bytes
/// uses this function.
#[must_use]
pub fn ct_eq(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_tag_must_be_padded_with_zeros() {
        let tag = Tag::from_sha1([7; 20]);
        let mut field = [0xFF; 32];
        assert!(tag.place(&mut field));
        assert!(tag.matches(&field));
        for at in 0..32 {
            for bit in 0..8 {
                let mut forged = field;
                forged[at] ^= 1 << bit;
                assert!(!tag.matches(&forged));
            }
        }
    }

    #[test]
    fn a_tag_is_never_truncated() {
        let tag = Tag::from_sha256([9; 32]);
        let mut field = [0; 20];
        assert!(!tag.place(&mut field));
        assert_eq!(field, [0; 20]);
        assert!(!tag.matches(&[9; 20]));
        assert!(!tag.matches(&[]));
        assert!(!tag.matches(&[9; 33]));
        assert!(Tag::new(&[]).is_none() && Tag::new(&[0; 33]).is_none());
    }
}
