//! The cipher of all sealed data: AES-256-GCM-SIV (RFC 8452), behind a trait with a portable
//! implementation.

use alloc::boxed::Box;

use aes_gcm_siv::aead::AeadInOut as _;
use aes_gcm_siv::aead::inout::InOutBuf;
use aes_gcm_siv::{Aes256GcmSiv, KeyInit as _};

/// Bytes of a key.
pub const KEY_LEN: usize = 32;
/// Bytes of a nonce.
pub const NONCE_LEN: usize = 12;
/// Bytes of a tag.
pub const TAG_LEN: usize = 16;

/// Data, tag, nonce or associated data differ from those that were sealed, or the key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tag does not match")]
pub struct AeadMismatch;

/// AES-256-GCM-SIV under one key.
pub trait BlockAead: Send + Sync {
    /// Encrypts `data` in place and returns the tag.
    fn seal(&self, nonce: &[u8; NONCE_LEN], associated: &[u8], data: &mut [u8]) -> [u8; TAG_LEN];

    /// Decrypts `sealed` into `data` of the same length. After an error `data` has no plain text.
    ///
    /// # Errors
    /// [`AeadMismatch`].
    fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        associated: &[u8],
        sealed: &[u8],
        tag: &[u8; TAG_LEN],
        data: &mut [u8],
    ) -> Result<(), AeadMismatch>;
}

/// Creates the cipher of a key.
pub type AeadFactory = fn(&[u8; KEY_LEN]) -> Box<dyn BlockAead>;

struct PortableAead(Aes256GcmSiv);

/// Returns the implementation in Rust, which runs everywhere.
#[must_use]
pub fn portable_aead(key: &[u8; KEY_LEN]) -> Box<dyn BlockAead> {
    Box::new(PortableAead(Aes256GcmSiv::new(key.into())))
}

impl BlockAead for PortableAead {
    fn seal(&self, nonce: &[u8; NONCE_LEN], associated: &[u8], data: &mut [u8]) -> [u8; TAG_LEN] {
        self.0
            .encrypt_inout_detached(nonce.into(), associated, InOutBuf::from(data))
            .expect("blocks and associated data are far below 2^36 bytes")
            .into()
    }

    fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        associated: &[u8],
        sealed: &[u8],
        tag: &[u8; TAG_LEN],
        data: &mut [u8],
    ) -> Result<(), AeadMismatch> {
        let buffer = InOutBuf::new(sealed, data).map_err(|_| AeadMismatch)?;
        let opened = self.0.decrypt_inout_detached(nonce.into(), associated, buffer, tag.into());
        opened.map_err(|_| {
            data.fill(0);
            AeadMismatch
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8452, appendix C.2: key 01 00…, nonce 03 00…, plain text 01 00… (8 bytes).
    #[test]
    fn cipher_matches_rfc_8452() {
        let mut key = [0; KEY_LEN];
        key[0] = 1;
        let mut nonce = [0; NONCE_LEN];
        nonce[0] = 3;
        let mut data = [1, 0, 0, 0, 0, 0, 0, 0];
        let aead = portable_aead(&key);
        let tag = aead.seal(&nonce, &[], &mut data);
        assert_eq!(data, [0xC2, 0xEF, 0x32, 0x8E, 0x5C, 0x71, 0xC8, 0x3B]);
        assert_eq!(
            tag,
            [0x84, 0x31, 0x22, 0x13, 0x0F, 0x73, 0x64, 0xB7, 0x61, 0xE0, 0xB9, 0x74, 0x27, 0xE3, 0xDF, 0x28]
        );
        let mut opened = [0; 8];
        aead.open(&nonce, &[], &data, &tag, &mut opened).expect("it was sealed");
        assert_eq!(opened, [1, 0, 0, 0, 0, 0, 0, 0]);
        assert!(aead.open(&nonce, &[0], &data, &tag, &mut opened).is_err());
        assert_eq!(opened, [0; 8], "no plain text after an error");
    }
}
