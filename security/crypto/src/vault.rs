//! Secrets at rest: a byte string sealed under a key file, a passphrase or a credential of the
//! system.
//!
//! Does: encrypts and authenticates; the kind of key and the generation are in the clear but
//! covered by the tag.
//! Does not: read files, or stretch passphrases.
//! Contract: [`open`] returns exactly what was sealed, or fails.
//! Source of truth: docs/design/security.md 3.7; RFC 8452 (AES-256-GCM-SIV).
//!
//! Layout: `"OSDKS01\0"`, kind of key 1, parameters 16, salt 16, nonce 12, generation 8, then
//! ciphertext and tag 16. All bytes before the ciphertext are associated data. The sealing key is
//! `HMAC-SHA256(secret, label ‖ salt ‖ 01h)`. Parameters are zero except for a passphrase: memory
//! in KiB 4, passes 4, lanes 4, zero 4; there the secret is Argon2id of the passphrase with the
//! salt.

use alloc::vec::Vec;

use aes_gcm_siv::aead::AeadInOut as _;
use aes_gcm_siv::aead::inout::InOutBuf;
use aes_gcm_siv::{Aes256GcmSiv, KeyInit as _};
use sealstone_seal::{Hash, Provider as _, Random};
use thiserror::Error;
use zeroize::{Zeroize as _, Zeroizing};

use crate::RustCrypto;

const MAGIC: &[u8; 8] = b"OSDKS01\0";
/// The secret is Argon2id of a passphrase.
const KIND_PASSPHRASE: u8 = 1;
/// The secret is a credential that systemd passes to the process.
const KIND_CREDENTIAL: u8 = 3;
/// The secret is in a file of its own.
const KIND_KEY_FILE: u8 = 5;
const PARAMETERS: core::ops::Range<usize> = 9..25;
const LABEL: &[u8] = b"sealstone keystore v1";
const SALT: core::ops::Range<usize> = 25..41;
const NONCE: core::ops::Range<usize> = 41..53;
const GENERATION: core::ops::Range<usize> = 53..61;
/// Bytes before the ciphertext.
const HEAD_LEN: usize = GENERATION.end;
const TAG_LEN: usize = 16;
/// Bytes that sealing adds.
pub const OVERHEAD: usize = HEAD_LEN + TAG_LEN;
/// Bytes of the sealing secret.
pub const SECRET_LEN: usize = 32;

/// Why sealed bytes were not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum VaultError {
    /// Other content, or another version of the layout.
    #[error("not a sealed key store of this version")]
    Magic,
    /// Sealed under a kind of key that this program does not know.
    #[error("sealed under a key of kind {0}")]
    Kind(u8),
    /// Changed, truncated, or sealed under another secret.
    #[error("damaged, or sealed under another key")]
    Tag,
    /// The parameters do not belong to the kind of key.
    #[error("invalid parameters for this kind of key")]
    Parameters,
}

/// Bytes of the salt.
pub const SALT_LEN: usize = 16;

/// Source of the sealing secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealingKeyKind {
    /// Argon2id of a passphrase, with these parameters. The caller that stretches checks them
    /// against its limits.
    Passphrase {
        /// Memory, KiB.
        memory_kib: u32,
        /// Number of passes.
        passes: u32,
        /// Number of lanes.
        lanes: u32,
    },
    /// A credential of systemd.
    Credential,
    /// A key file.
    KeyFile,
}

impl SealingKeyKind {
    const fn code(self) -> u8 {
        match self {
            Self::Passphrase { .. } => KIND_PASSPHRASE,
            Self::Credential => KIND_CREDENTIAL,
            Self::KeyFile => KIND_KEY_FILE,
        }
    }

    fn parameters(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        if let Self::Passphrase { memory_kib, passes, lanes } = self {
            for (at, number) in [memory_kib, passes, lanes].into_iter().enumerate() {
                bytes[at * 4..at * 4 + 4].copy_from_slice(&number.to_be_bytes());
            }
        }
        bytes
    }

    fn parse(code: u8, parameters: &[u8]) -> Result<Self, VaultError> {
        let mut words = [0u32; 4];
        for (word, bytes) in words.iter_mut().zip(parameters.chunks_exact(4)) {
            *word = bytes.try_into().map_or(0, u32::from_be_bytes);
        }
        let [memory_kib, passes, lanes, zero] = words;
        let kind = match code {
            KIND_PASSPHRASE => Self::Passphrase { memory_kib, passes, lanes },
            KIND_CREDENTIAL => Self::Credential,
            KIND_KEY_FILE => Self::KeyFile,
            other => return Err(VaultError::Kind(other)),
        };
        let fits = zero == 0 && (kind.parameters() == *parameters);
        if fits { Ok(kind) } else { Err(VaultError::Parameters) }
    }
}

/// Header of a sealed store, readable without the secret. It is authenticated only when the store
/// is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VaultHeader {
    /// Kind of the secret.
    pub kind: SealingKeyKind,
    /// Salt of the stretching.
    pub salt: [u8; SALT_LEN],
    /// Generation of the content.
    pub generation: u64,
}

/// Reads the header.
///
/// # Errors
/// `Magic`, `SealingKeyKind`, `Parameters`.
pub fn header(sealed: &[u8]) -> Result<VaultHeader, VaultError> {
    let head = sealed.get(..HEAD_LEN).ok_or(VaultError::Magic)?;
    if !head.starts_with(MAGIC) {
        return Err(VaultError::Magic);
    }
    let kind = SealingKeyKind::parse(head[8], &head[PARAMETERS])?;
    let mut salt = [0; SALT_LEN];
    salt.copy_from_slice(&head[SALT]);
    let generation = head[GENERATION].try_into().map_or(0, u64::from_be_bytes);
    Ok(VaultHeader { kind, salt, generation })
}

/// The opened content, with its generation.
pub struct OpenedVault {
    /// The secret bytes.
    pub content: Zeroizing<Vec<u8>>,
    /// Incremented with every sealing, so that an older copy is recognised.
    pub generation: u64,
}

fn cipher(secret: &[u8; SECRET_LEN], salt: &[u8]) -> Aes256GcmSiv {
    let mac = RustCrypto::mac_key(Hash::Sha256, secret);
    let mut key = RustCrypto::tag(&mac, &[LABEL, salt, &[0x01]]);
    let cipher = Aes256GcmSiv::new_from_slice(key.as_bytes()).expect("a SHA-256 tag is a key of 32 bytes");
    key.zeroize();
    cipher
}

/// Seals under a key file; salt and nonce are drawn every time.
#[must_use]
pub fn seal(secret: &[u8; SECRET_LEN], generation: u64, content: &[u8], random: &mut dyn Random) -> Vec<u8> {
    let mut salt = [0; SALT_LEN];
    random.fill(&mut salt);
    seal_as(&VaultHeader { kind: SealingKeyKind::KeyFile, salt, generation }, secret, content, random)
}

/// Seals under a secret of any kind. The caller passes the salt that it used for stretching; it
/// must be fresh.
#[must_use]
pub fn seal_as(
    header: &VaultHeader,
    secret: &[u8; SECRET_LEN],
    content: &[u8],
    random: &mut dyn Random,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(OVERHEAD + content.len());
    out.extend_from_slice(MAGIC);
    out.push(header.kind.code());
    out.extend_from_slice(&header.kind.parameters());
    out.extend_from_slice(&header.salt);
    out.resize(HEAD_LEN, 0);
    random.fill(&mut out[NONCE]);
    out[GENERATION].copy_from_slice(&header.generation.to_be_bytes());
    out.extend_from_slice(content);
    let (head, body) = out.split_at_mut(HEAD_LEN);
    let nonce = nonce(head);
    let tag = cipher(secret, &head[SALT])
        .encrypt_inout_detached(&nonce.into(), head, InOutBuf::from(body))
        .expect("a key store is shorter than 64 GiB");
    out.extend_from_slice(&tag);
    out
}

/// Opens the result of [`seal`].
///
/// # Errors
/// [`VaultError`]; `SealingKeyKind` if it is not sealed under a key file.
pub fn open(secret: &[u8; SECRET_LEN], sealed: &[u8]) -> Result<OpenedVault, VaultError> {
    match header(sealed)?.kind {
        SealingKeyKind::KeyFile => open_as(secret, sealed),
        other => Err(VaultError::Kind(other.code())),
    }
}

/// Opens the result of [`seal_as`]; [`header`] says which secret is needed.
///
/// # Errors
/// [`VaultError`].
pub fn open_as(secret: &[u8; SECRET_LEN], sealed: &[u8]) -> Result<OpenedVault, VaultError> {
    let generation = header(sealed)?.generation;
    let (head, rest) = sealed.split_at_checked(HEAD_LEN).ok_or(VaultError::Magic)?;
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
    Ok(OpenedVault { content, generation })
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
    fn sealed_content_round_trips_and_changes_are_detected() {
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
    fn secret_kinds_are_distinct_in_the_header() {
        let secret = [7; SECRET_LEN];
        let kinds = [
            SealingKeyKind::Passphrase { memory_kib: 65536, passes: 3, lanes: 4 },
            SealingKeyKind::Credential,
            SealingKeyKind::KeyFile,
        ];
        for kind in kinds {
            let wanted = VaultHeader { kind, salt: [5; SALT_LEN], generation: 3 };
            let sealed = seal_as(&wanted, &secret, b"keys", &mut random());
            assert_eq!(header(&sealed), Ok(wanted));
            assert_eq!(&open_as(&secret, &sealed).unwrap().content[..], b"keys");
            assert_eq!(open(&secret, &sealed).is_ok(), kind == SealingKeyKind::KeyFile);
            for code in [1, 3, 5].into_iter().filter(|code| *code != kind.code()) {
                let mut other = sealed.clone();
                other[8] = code;
                assert!(open_as(&secret, &other).is_err(), "{kind:?} as {code}");
            }
        }
    }

    #[test]
    fn the_same_keys_sealed_twice_look_different() {
        let mut random = random();
        let [a, b] = [0; 2].map(|_| seal(&[1; SECRET_LEN], 1, &[0; 100], &mut random));
        assert_ne!(a[SALT], b[SALT]);
        assert_ne!(a[HEAD_LEN..], b[HEAD_LEN..]);
    }
}
