//! Ed25519 signatures of publishers.
//!
//! Does: sign a message, and verify it strictly: keys of small order and malleable signatures are
//! refused.
//! Does not: define the message; `sealstone-osd` does for functions.
//! Source of truth: RFC 8032 §5.1; a test holds its vectors.

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};

/// Bytes of a public key, and of the seed of a private one.
pub const KEY_LEN: usize = 32;
/// Bytes of a signature.
pub const SIGNATURE_LEN: usize = 64;

/// A private key of a publisher; it is cleared when dropped.
pub struct PublisherKey(SigningKey);

impl PublisherKey {
    /// Returns the key of a seed, which must be random and secret.
    #[must_use]
    pub fn from_seed(seed: &[u8; KEY_LEN]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// Returns the public key.
    #[must_use]
    pub fn public(&self) -> [u8; KEY_LEN] {
        self.0.verifying_key().to_bytes()
    }

    /// Signs a message.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_LEN] {
        self.0.sign(message).to_bytes()
    }
}

impl core::fmt::Debug for PublisherKey {
    /// Omits the key.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("PublisherKey")
    }
}

/// Whether a signature of this public key over a message is valid.
#[must_use]
pub fn verify(public: &[u8; KEY_LEN], message: &[u8], signature: &[u8; SIGNATURE_LEN]) -> bool {
    let Ok(key) = VerifyingKey::from_bytes(public) else { return false };
    key.verify_strict(message, &Signature::from_bytes(signature)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unhex<const N: usize>(text: &str) -> [u8; N] {
        core::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
    }

    #[test]
    fn signatures_match_rfc_8032_vectors() {
        let seed = unhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb");
        let public: [u8; 32] = unhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c");
        let signature: [u8; 64] = unhex(concat!(
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da",
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        ));
        let key = PublisherKey::from_seed(&seed);
        assert_eq!((key.public(), key.sign(&[0x72])), (public, signature));
        assert!(verify(&public, &[0x72], &signature));
        assert!(!verify(&public, &[0x73], &signature));
    }

    #[test]
    fn any_changed_bit_fails_verification() {
        let key = PublisherKey::from_seed(&[7; 32]);
        let (public, signature) = (key.public(), key.sign(b"message"));
        for bit in 0..512 {
            let mut wrong = signature;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify(&public, b"message", &wrong), "bit {bit}");
        }
    }

    #[test]
    fn small_order_keys_verify_nothing() {
        let mut identity = [0; 32];
        identity[0] = 1;
        let mut signature = [0; 64];
        signature[0] = 1;
        assert!(!verify(&identity, b"message", &signature));
    }
}
