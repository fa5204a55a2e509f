//! Secrets at rest: a byte string sealed under a key file.
//!
//! Does: encrypt and authenticate, with what kind of key and which generation it is in the clear but under the tag.
//! Does not: files. Contract: [`open`] gives back exactly what was sealed or nothing.
//! Truth: docs/design/security.md 3.7; RFC 8452 (AES-256-GCM-SIV).
//!
//! Layout: `"OSDKS01\0"`, kind of key 1, zero 16, salt 16, nonce 12, generation 8, then ciphertext and tag 16. All up to
//! the ciphertext is associated data. The sealing key is `HMAC-SHA256(secret, label ‖ salt ‖ 01h)`.

use alloc::vec::Vec;

use aes_gcm_siv::aead::AeadInOut as _;
use aes_gcm_siv::aead::inout::InOutBuf;
use aes_gcm_siv::{Aes256GcmSiv, KeyInit as _};
use sealstone_seal::{Hash, Provider as _, Random};
use thiserror::Error;
use zeroize::{Zeroize as _, Zeroizing};

use crate::RustCrypto;

const MAGIC: &[u8; 8] = b"OSDKS01\0";
/// The secret is in a file of its own.
const KIND_KEY_FILE: u8 = 5;
const LABEL: &[u8] = b"sealstone keystore v1";
const SALT: core::ops::Range<usize> = 25..41;
const NONCE: core::ops::Range<usize> = 41..53;
const GENERATION: core::ops::Range<usize> = 53..61;
/// Bytes before the ciphertext.
const HEAD_LEN: usize = GENERATION.end;
const TAG_LEN: usize = 16;
/// Bytes that sealing adds.
pub const OVERHEAD: usize = HEAD_LEN + TAG_LEN;
/// Bytes of the secret that seals.
pub const SECRET_LEN: usize = 32;

/// Why sealed bytes were not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum VaultError {
    /// Something else, or another version of the layout.
    #[error("not a sealed key store of this version")]
    Magic,
    /// Sealed under a kind of key that this program does not know.
    #[error("sealed under a key of kind {0}")]
    Kind(u8),
    /// Changed, cut off, or sealed under another secret.
    #[error("damaged, or sealed under another key")]
    Tag,
}

/// What was sealed, and how many times something was.
pub struct Opened {
    /// The secret bytes.
    pub content: Zeroizing<Vec<u8>>,
    /// Counts up with every sealing: an older copy shows by it.
    pub generation: u64,
}

fn cipher(secret: &[u8; SECRET_LEN], salt: &[u8]) -> Aes256GcmSiv {
    let mac = RustCrypto::mac_key(Hash::Sha256, secret);
    let mut key = RustCrypto::tag(&mac, &[LABEL, salt, &[0x01]]);
    let cipher = Aes256GcmSiv::new_from_slice(key.as_bytes()).expect("a SHA-256 tag is a key of 32 bytes");
    key.zeroize();
    cipher
}

/// Seals; salt and nonce are drawn anew every time.
#[must_use]
pub fn seal(secret: &[u8; SECRET_LEN], generation: u64, content: &[u8], random: &mut dyn Random) -> Vec<u8> {
    let mut out = Vec::with_capacity(OVERHEAD + content.len());
    out.extend_from_slice(MAGIC);
    out.push(KIND_KEY_FILE);
    out.resize(HEAD_LEN, 0);
    random.fill(&mut out[SALT]);
    random.fill(&mut out[NONCE]);
    out[GENERATION].copy_from_slice(&generation.to_be_bytes());
    out.extend_from_slice(content);
    let (head, body) = out.split_at_mut(HEAD_LEN);
    let nonce = nonce(head);
    let tag = cipher(secret, &head[SALT])
        .encrypt_inout_detached(&nonce.into(), head, InOutBuf::from(body))
        .expect("a key store is shorter than 64 GiB");
    out.extend_from_slice(&tag);
    out
}

/// Opens what [`seal`] made.
///
/// # Errors
/// [`VaultError`].
pub fn open(secret: &[u8; SECRET_LEN], sealed: &[u8]) -> Result<Opened, VaultError> {
    let (head, rest) = sealed.split_at_checked(HEAD_LEN).ok_or(VaultError::Magic)?;
    if !head.starts_with(MAGIC) {
        return Err(VaultError::Magic);
    }
    if head[8] != KIND_KEY_FILE {
        return Err(VaultError::Kind(head[8]));
    }
    let at = rest.len().checked_sub(TAG_LEN).ok_or(VaultError::Tag)?;
    let (body, tag) = rest.split_at(at);
    let tag: [u8; TAG_LEN] = tag.try_into().map_err(|_| VaultError::Tag)?;
    let mut content = Zeroizing::new(body.to_vec());
    cipher(secret, &head[SALT])
        .decrypt_inout_detached(
            &nonce(head).into(),
            head,
            InOutBuf::from(content.as_mut_slice()),
            &tag.into(),
        )
        .map_err(|_| VaultError::Tag)?;
    let generation = head[GENERATION].try_into().map_or(0, u64::from_be_bytes);
    Ok(Opened { content, generation })
}

fn nonce(head: &[u8]) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce.copy_from_slice(&head[NONCE]);
    nonce
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
    fn what_was_sealed_comes_back_and_no_bit_of_it_can_change() {
        let secret = [7; SECRET_LEN];
        let sealed = seal(&secret, 9, b"keys", &mut random());
        assert_eq!(sealed.len(), OVERHEAD + 4);
        let opened = open(&secret, &sealed).unwrap();
        assert_eq!((&opened.content[..], opened.generation), (&b"keys"[..], 9));
        for at in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[at / 8] ^= 1 << (at % 8);
            assert!(open(&secret, &changed).is_err(), "bit {at}");
        }
        for cut in 0..sealed.len() {
            assert!(open(&secret, &sealed[..cut]).is_err(), "{cut}");
        }
        assert_eq!(open(&[8; SECRET_LEN], &sealed).err(), Some(VaultError::Tag));
    }

    #[test]
    fn the_same_keys_sealed_twice_look_different() {
        let mut random = random();
        let [a, b] = [0; 2].map(|_| seal(&[1; SECRET_LEN], 1, &[0; 100], &mut random));
        assert_ne!(a[SALT], b[SALT]);
        assert_ne!(a[HEAD_LEN..], b[HEAD_LEN..]);
    }
}
