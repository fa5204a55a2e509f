//! Single records at rest, each sealed separately.
//!
//! Does: encrypts and authenticates a value together with the name that it is stored under.
//! Does not: store anything.
//! Contract: [`RecordSeal::open`] returns exactly what was sealed under the same name by the same
//! seal, or fails. A record that was moved to another name or another store does not open. An older
//! value of the same name does.
//! Source of truth: docs/standards/mds/store.md §8; RFC 8452 (AES-256-GCM-SIV: a repeated nonce
//! reveals only equality).
//!
//! Layout: `E1h`, nonce 12, ciphertext, tag 16. Associated data: label, store id 16, name.

use alloc::vec::Vec;

use aes_gcm_siv::aead::AeadInOut as _;
use aes_gcm_siv::aead::inout::InOutBuf;
use aes_gcm_siv::{Aes256GcmSiv, KeyInit as _};
use sealstone_seal::{Hash, Provider as _, Random};
use zeroize::{Zeroize as _, Zeroizing};

use crate::RustCrypto;
use crate::vault::{SECRET_LEN, VaultError};

const MARK: u8 = 0xE1;
const LABEL: &[u8] = b"sealstone record v1";
const NONCE_LEN: usize = 12;
const TAG_LEN: usize = 16;
/// Bytes that sealing adds to a record.
pub const RECORD_OVERHEAD: usize = 1 + NONCE_LEN + TAG_LEN;
/// Bytes of a store's id.
pub const STORE_ID_LEN: usize = 16;

/// Seals the records of one store.
pub struct RecordSeal {
    cipher: Aes256GcmSiv,
    store: [u8; STORE_ID_LEN],
}

impl RecordSeal {
    /// Creates the seal of a store; its key is `HMAC-SHA256(secret, label ‖ store id ‖ 01h)`.
    #[must_use]
    pub fn new(secret: &[u8; SECRET_LEN], store: [u8; STORE_ID_LEN]) -> Self {
        let mac = RustCrypto::mac_key(Hash::Sha256, secret);
        let mut key = RustCrypto::tag(&mac, &[LABEL, &store, &[0x01]]);
        let cipher =
            Aes256GcmSiv::new_from_slice(key.as_bytes()).expect("a SHA-256 tag is a key of 32 bytes");
        key.zeroize();
        Self { cipher, store }
    }

    fn associated(&self, name: &[u8]) -> Vec<u8> {
        [LABEL, &self.store, name].concat()
    }

    /// Seals a value under its name, with a fresh nonce.
    #[must_use]
    pub fn seal(&self, name: &[u8], value: &[u8], random: &mut dyn Random) -> Vec<u8> {
        let mut nonce = [0; NONCE_LEN];
        random.fill(&mut nonce);
        let mut out = Vec::with_capacity(RECORD_OVERHEAD + value.len());
        out.push(MARK);
        out.extend_from_slice(&nonce);
        out.extend_from_slice(value);
        let tag = self
            .cipher
            .encrypt_inout_detached(
                &nonce.into(),
                &self.associated(name),
                InOutBuf::from(&mut out[1 + NONCE_LEN..]),
            )
            .expect("a record is shorter than 64 GiB");
        out.extend_from_slice(&tag);
        out
    }

    /// Opens a record.
    ///
    /// # Errors
    /// `Magic` if it is not sealed, `Tag` if it was changed, moved, or sealed by another seal.
    pub fn open(&self, name: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, VaultError> {
        let [MARK, rest @ ..] = sealed else { return Err(VaultError::Magic) };
        let (nonce, rest) = rest.split_first_chunk::<NONCE_LEN>().ok_or(VaultError::Tag)?;
        let (body, tag) = rest.split_last_chunk::<TAG_LEN>().ok_or(VaultError::Tag)?;
        let mut value = Zeroizing::new(body.to_vec());
        self.cipher
            .decrypt_inout_detached(
                &(*nonce).into(),
                &self.associated(name),
                InOutBuf::from(value.as_mut_slice()),
                &(*tag).into(),
            )
            .map_err(|_| VaultError::Tag)?;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random() -> impl FnMut(&mut [u8]) {
        let mut next = 0u8;
        move |into: &mut [u8]| {
            for byte in into {
                next = next.wrapping_mul(77).wrapping_add(31);
                *byte = next;
            }
        }
    }

    #[test]
    fn record_opens_only_unchanged_under_its_name() {
        let seal = RecordSeal::new(&[1; SECRET_LEN], [2; STORE_ID_LEN]);
        let sealed = seal.seal(b"k1", b"a key", &mut random());
        assert_eq!(sealed.len(), RECORD_OVERHEAD + 5);
        assert_eq!(&seal.open(b"k1", &sealed).unwrap()[..], b"a key");
        assert_eq!(seal.open(b"k2", &sealed).err(), Some(VaultError::Tag));
        for other in [
            RecordSeal::new(&[9; SECRET_LEN], [2; STORE_ID_LEN]),
            RecordSeal::new(&[1; SECRET_LEN], [9; STORE_ID_LEN]),
        ] {
            assert_eq!(other.open(b"k1", &sealed).err(), Some(VaultError::Tag));
        }
        for at in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[at / 8] ^= 1 << (at % 8);
            assert!(seal.open(b"k1", &changed).is_err(), "bit {at}");
        }
        for cut in 0..sealed.len() {
            assert!(seal.open(b"k1", &sealed[..cut]).is_err(), "{cut}");
        }
        assert!(!sealed.windows(5).any(|bytes| bytes == b"a key"));
        let empty = seal.seal(b"", b"", &mut random());
        assert!(seal.open(b"", &empty).unwrap().is_empty());
    }
}
