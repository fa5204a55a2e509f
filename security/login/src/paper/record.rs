//! The record layer: messages after a login, encrypted and authenticated under the session's keys.
//!
//! With AES-128-CBC: `number 8 ‖ IV 16 ‖ ciphertext (PKCS #7) ‖ HMAC(K_a, header ‖ number ‖ IV ‖
//! ciphertext)`, verified before it is decrypted. With AES-256-GCM: `number 8 ‖ ciphertext ‖ tag
//! 16`, nonce `0000 ‖ number`, associated data `header ‖ number`. Numbers are 1, 2, 3 … in each
//! direction of a connection; a repeat or a gap is refused.

use alloc::vec::Vec;

use aes_gcm::aead::{AeadInOut as _, KeyInit as _};
use aes_gcm::{Aes256Gcm, Nonce as GcmNonce, Tag as GcmTag};
use cbc::cipher::{BlockModeDecrypt as _, BlockModeEncrypt as _, KeyIvInit as _, block_padding::Pkcs7};
use sealstone_mds_protocol::paper::{PaperHeader, PaperType, RECORD_OVERHEAD_MAX};
use sealstone_mds_protocol::{FrameType as _, HEADER_BYTES};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use super::session::{DirectionKeys, mac};
use super::{Encryption, Hash, PaperSession};
use crate::{CryptoRng, RngCore};

const NUMBER_BYTES: usize = 8;
const IV_BYTES: usize = 16;
const BLOCK_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
/// Maximum bytes of records in one direction of a connection. The paper has no change of keys: a
/// client opens a new connection, which has new ones.
pub const REKEY_BYTES: u64 = 64 << 30;

/// Why a record does not open, or cannot be created. The caller then closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordFailure {
    /// Shorter than the minimum record, or not whole blocks.
    #[error("truncated")]
    Truncated,
    /// The check value is wrong: altered, or of another session, direction or type.
    #[error("check value is wrong")]
    Forged,
    /// A repeat or a gap.
    #[error("sequence number {found}, expected {expected}")]
    Sequence {
        /// The number expected.
        expected: u64,
        /// The number found.
        found: u64,
    },
    /// Longer than a frame may be.
    #[error("too long")]
    TooLong,
    /// The connection has reached the limit of its keys.
    #[error("the byte limit of the connection's keys is reached")]
    Exhausted,
}

/// Numbers and bytes of one direction.
#[derive(Default)]
struct RecordProgress {
    number: u64,
    bytes: u64,
}

impl RecordProgress {
    fn next(&self, bytes: usize) -> Result<u64, RecordFailure> {
        let left = REKEY_BYTES - self.bytes;
        let number = self.number + 1;
        // The header has half of the number.
        if bytes as u64 > left || number > u64::from(u32::MAX) {
            return Err(RecordFailure::Exhausted);
        }
        Ok(number)
    }

    const fn advance(&mut self, bytes: usize) {
        self.number += 1;
        self.bytes += bytes as u64;
    }
}

/// Creates the records of one direction.
pub struct Sealer {
    keys: DirectionKeys,
    progress: RecordProgress,
}

/// Opens the records of one direction.
pub struct Opener {
    keys: DirectionKeys,
    progress: RecordProgress,
}

/// Both directions of a connection, seen from one end.
pub struct Channel {
    /// Records that this end sends.
    pub sealer: Sealer,
    /// Records that this end receives.
    pub opener: Opener,
}

impl Channel {
    pub(crate) fn new(session: &PaperSession, is_client: bool, context: &[u8]) -> Self {
        let keys = |to_server| session.direction(to_server, context);
        Self {
            sealer: Sealer { keys: keys(is_client), progress: RecordProgress::default() },
            opener: Opener { keys: keys(!is_client), progress: RecordProgress::default() },
        }
    }
}

const fn check_bytes(hash: Hash) -> usize {
    match hash {
        Hash::Sha1 => 20,
        Hash::Sha256 => 32,
    }
}

fn gcm(keys: &DirectionKeys, number: u64) -> (Aes256Gcm, GcmNonce<cbc::cipher::consts::U12>) {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    (Aes256Gcm::new(&keys.encryption.into()), nonce.into())
}

fn aes128(keys: &DirectionKeys) -> [u8; 16] {
    core::array::from_fn(|at| keys.encryption[at])
}

impl Sealer {
    /// Returns a whole frame with `content` inside.
    ///
    /// # Errors
    /// `TooLong`, `Exhausted`.
    pub fn seal<R: RngCore + CryptoRng + ?Sized>(
        &mut self,
        rng: &mut R,
        kind: PaperType,
        content: &[u8],
    ) -> Result<Vec<u8>, RecordFailure> {
        let algorithms = self.keys.algorithms;
        let body_length = NUMBER_BYTES
            + match algorithms.encryption {
                Encryption::Aes128Cbc => {
                    IV_BYTES
                        + content.len() / BLOCK_BYTES * BLOCK_BYTES
                        + BLOCK_BYTES
                        + check_bytes(algorithms.hash)
                }
                Encryption::Aes256Gcm => content.len() + TAG_BYTES,
            };
        if body_length > kind.body_max() {
            return Err(RecordFailure::TooLong);
        }
        let number = self.progress.next(body_length)?;
        let header = PaperHeader { kind, body_length: body_length as u32, sequence: number as u32 }.encode();
        let mut frame = Vec::with_capacity(HEADER_BYTES + content.len() + RECORD_OVERHEAD_MAX);
        frame.extend_from_slice(&header);
        frame.extend_from_slice(&number.to_be_bytes());
        match algorithms.encryption {
            Encryption::Aes128Cbc => {
                let mut iv = [0; IV_BYTES];
                rng.fill_bytes(&mut iv);
                frame.extend_from_slice(&iv);
                let cipher = cbc::Encryptor::<aes::Aes128>::new(&aes128(&self.keys).into(), &iv.into());
                frame.extend_from_slice(&cipher.encrypt_padded_vec::<Pkcs7>(content));
                let check = mac(algorithms.hash, &self.keys.authentication, &[&frame]);
                frame.extend_from_slice(&check);
            }
            Encryption::Aes256Gcm => {
                let (cipher, nonce) = gcm(&self.keys, number);
                let (associated, _) = frame.split_at(HEADER_BYTES + NUMBER_BYTES);
                let associated = associated.to_vec();
                frame.extend_from_slice(content);
                let text = &mut frame[HEADER_BYTES + NUMBER_BYTES..];
                let tag = cipher
                    .encrypt_inout_detached(&nonce, &associated, text.into())
                    .map_err(|_| RecordFailure::TooLong)?;
                frame.extend_from_slice(&tag);
            }
        }
        self.progress.advance(body_length);
        Ok(frame)
    }
}

impl Opener {
    /// Returns the content of a record, after checking first the check value, then its number, then
    /// decrypting.
    ///
    /// # Errors
    /// Any [`RecordFailure`]; the connection must then be closed.
    pub fn open(&mut self, header: &PaperHeader, body: &[u8]) -> Result<Zeroizing<Vec<u8>>, RecordFailure> {
        let expected = self.progress.next(body.len())?;
        let content = match self.keys.algorithms.encryption {
            Encryption::Aes128Cbc => self.open_cbc(header, body, expected),
            Encryption::Aes256Gcm => self.open_gcm(header, body, expected),
        }?;
        self.progress.advance(body.len());
        Ok(content)
    }

    fn open_cbc(
        &self,
        header: &PaperHeader,
        body: &[u8],
        expected: u64,
    ) -> Result<Zeroizing<Vec<u8>>, RecordFailure> {
        let hash = self.keys.algorithms.hash;
        let sealed = body.len().checked_sub(check_bytes(hash)).ok_or(RecordFailure::Truncated)?;
        let (sealed, check) = body.split_at(sealed);
        let (number, rest) = sealed.split_first_chunk::<NUMBER_BYTES>().ok_or(RecordFailure::Truncated)?;
        let (iv, text) = rest.split_first_chunk::<IV_BYTES>().ok_or(RecordFailure::Truncated)?;
        if text.is_empty() || !text.len().is_multiple_of(BLOCK_BYTES) {
            return Err(RecordFailure::Truncated);
        }
        let wanted = mac(hash, &self.keys.authentication, &[&header.encode(), sealed]);
        if !bool::from(wanted.as_slice().ct_eq(check)) {
            return Err(RecordFailure::Forged);
        }
        in_sequence(header, *number, expected)?;
        let cipher = cbc::Decryptor::<aes::Aes128>::new(&aes128(&self.keys).into(), &(*iv).into());
        // The sender of a valid check value also created the padding.
        cipher.decrypt_padded_vec::<Pkcs7>(text).map(Zeroizing::new).map_err(|_| RecordFailure::Forged)
    }

    fn open_gcm(
        &self,
        header: &PaperHeader,
        body: &[u8],
        expected: u64,
    ) -> Result<Zeroizing<Vec<u8>>, RecordFailure> {
        let (number, rest) = body.split_first_chunk::<NUMBER_BYTES>().ok_or(RecordFailure::Truncated)?;
        let (text, tag) = rest.split_last_chunk::<TAG_BYTES>().ok_or(RecordFailure::Truncated)?;
        let (cipher, nonce) = gcm(&self.keys, u64::from_be_bytes(*number));
        let associated = [&header.encode()[..], number].concat();
        let mut content = Zeroizing::new(text.to_vec());
        cipher
            .decrypt_inout_detached(&nonce, &associated, content.as_mut_slice().into(), &GcmTag::from(*tag))
            .map_err(|_| RecordFailure::Forged)?;
        in_sequence(header, *number, expected)?;
        Ok(content)
    }
}

fn in_sequence(header: &PaperHeader, number: [u8; 8], expected: u64) -> Result<(), RecordFailure> {
    let found = u64::from_be_bytes(number);
    if found == expected && header.sequence == expected as u32 {
        Ok(())
    } else {
        Err(RecordFailure::Sequence { expected, found })
    }
}
