//! Blocks of M-lazy: keys of a unit, seals of blocks.
//!
//! Does: derives the key of each block from the key of its unit, its address and the generation of
//! its write; seals, opens and verifies blocks; encodes the keys for sessions and storage.
//! Does not: number sessions, or store anything; the target does.
//! Contract: a generation is used for one write of one block. The target numbers sessions and never
//! repeats a number; a session counts its blocks. A block opens only at its address, in its unit,
//! with its generation.
//! Truth: `docs/standards/block-protection.md`, "Blocks of M-lazy"; ADR 81.
//!
//! ```text
//! key of a block:  HMAC-SHA256(key of the unit, label ‖ LBA 8 ‖ generation 8)
//! block:           AES-256-GCM-SIV, nonce of zeros, associated data
//!                  unit 16 ‖ LBA 8 ‖ generation 8 ‖ epoch 4
//! keys of a unit:  1 | zeros 3 | session 4 | epochs n 4 | zeros 4 | unit 16
//!                  n times { epoch 4 | first session 4 | key 32 }
//! ```

use alloc::vec::Vec;

use aes_gcm_siv::aead::AeadInOut as _;
use aes_gcm_siv::aead::inout::InOutBuf;
use aes_gcm_siv::{Aes256GcmSiv, KeyInit as _, Nonce};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, Zeroizing};

use crate::block_keys::BlockKeys;
use crate::cipher::{MAC_LEN, MacTag};
use crate::generation::{Generation, GenerationCounter};
use crate::key_list::BlockKeyList;

/// Bytes of the key of a unit.
pub const UNIT_KEY_LEN: usize = 32;
/// Maximum number of epochs whose keys a unit keeps.
pub const EPOCHS_MAX: usize = 64;
const LABEL: &[u8] = b"sealstone M-lazy block v1";
/// Version of the encoded keys.
const VERSION: u8 = 1;
const FIXED: usize = 32;
const EPOCH_LEN: usize = 8 + UNIT_KEY_LEN;
/// Maximum bytes of the encoded keys of a unit.
pub const UNIT_KEYS_BYTES_MAX: usize = FIXED + EPOCHS_MAX * EPOCH_LEN;

/// Why encoded keys of a unit were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitKeysError {
    /// Length, version or reserved bytes are wrong.
    #[error("keys of the unit are malformed")]
    Malformed,
    /// There is no epoch, or more than [`EPOCHS_MAX`].
    #[error("keys of the unit have {0} epochs")]
    EpochCount(usize),
    /// Epochs or their first sessions are not in ascending order.
    #[error("epochs of the unit are out of order")]
    Order,
}

/// Key of a unit from one session on.
struct EpochKey {
    epoch: u32,
    first_session: u32,
    key: Zeroizing<[u8; UNIT_KEY_LEN]>,
    /// HMAC under the key; a copy of it derives the key of each block.
    mac: Hmac<Sha256>,
}

impl EpochKey {
    fn new(epoch: u32, first_session: u32, key: Zeroizing<[u8; UNIT_KEY_LEN]>) -> Self {
        let mac = <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(&*key).expect("HMAC takes any key");
        Self { epoch, first_session, key, mac }
    }

    fn cipher(&self, lba: u64, generation: Generation) -> Aes256GcmSiv {
        let mut mac = self.mac.clone();
        mac.update(LABEL);
        mac.update(&lba.to_be_bytes());
        mac.update(&generation.to_bytes());
        let mut key = mac.finalize().into_bytes();
        let cipher = Aes256GcmSiv::new(&key);
        key.as_mut_slice().zeroize();
        cipher
    }
}

/// Keys of a unit in all epochs. Wiped when dropped.
pub struct UnitKeys {
    unit: [u8; 16],
    /// At least one, in ascending order. Has space for all: growth would leave keys in freed
    /// memory.
    epochs: Vec<EpochKey>,
}

impl core::fmt::Debug for UnitKeys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("UnitKeys").field("epoch", &self.epoch()).finish_non_exhaustive()
    }
}

impl UnitKeys {
    /// Creates the keys of a unit with its first epoch. `unit` identifies the unit.
    #[must_use]
    pub fn new(unit: [u8; 16], key: Zeroizing<[u8; UNIT_KEY_LEN]>) -> Self {
        let mut epochs = Vec::with_capacity(EPOCHS_MAX);
        epochs.push(EpochKey::new(1, 1, key));
        Self { unit, epochs }
    }

    /// Begins the next epoch: sessions from `first_session` on use its key.
    ///
    /// # Errors
    /// `EpochCount` if there are [`EPOCHS_MAX`]; `Order` if a session of the current epoch has this
    /// or a higher number.
    pub fn rotate(
        &mut self,
        first_session: u32,
        key: Zeroizing<[u8; UNIT_KEY_LEN]>,
    ) -> Result<(), UnitKeysError> {
        let last = self.current();
        if self.epochs.len() >= EPOCHS_MAX {
            return Err(UnitKeysError::EpochCount(self.epochs.len() + 1));
        }
        let epoch = last.epoch.checked_add(1).ok_or(UnitKeysError::Order)?;
        if first_session <= last.first_session {
            return Err(UnitKeysError::Order);
        }
        self.epochs.push(EpochKey::new(epoch, first_session, key));
        Ok(())
    }

    /// Reverts [`Self::rotate`], if its keys could not be stored.
    pub fn revert_rotation(&mut self) {
        if self.epochs.len() > 1 {
            self.epochs.pop();
        }
    }

    fn current(&self) -> &EpochKey {
        self.epochs.last().expect("a unit has an epoch")
    }

    /// Returns the current epoch.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.current().epoch
    }

    /// Returns the number of epochs whose keys are kept.
    #[must_use]
    pub fn epoch_count(&self) -> usize {
        self.epochs.len()
    }

    /// Whether writes of a session have the key of the current epoch.
    #[must_use]
    pub fn is_current(&self, session: u32) -> bool {
        session >= self.current().first_session
    }

    /// Returns the key of a generation; `None` if no epoch has it.
    fn epoch_of(&self, generation: Generation) -> Option<&EpochKey> {
        self.epochs.iter().rev().find(|epoch| epoch.first_session <= generation.session())
    }

    fn associated(&self, epoch: u32, lba: u64, generation: Generation) -> [u8; 36] {
        let mut data = [0; 36];
        data[..16].copy_from_slice(&self.unit);
        data[16..24].copy_from_slice(&lba.to_be_bytes());
        data[24..32].copy_from_slice(&generation.to_bytes());
        data[32..].copy_from_slice(&epoch.to_be_bytes());
        data
    }

    /// Encrypts a block in place and returns its tag; `None` if no epoch has the generation.
    pub fn seal_block(&self, lba: u64, generation: Generation, block: &mut [u8]) -> Option<MacTag> {
        let epoch = self.epoch_of(generation)?;
        let associated = self.associated(epoch.epoch, lba, generation);
        let cipher = epoch.cipher(lba, generation);
        let tag = cipher.encrypt_inout_detached(&Nonce::default(), &associated, InOutBuf::from(block));
        tag.ok().map(Into::into)
    }

    /// Verifies and decrypts a block in place. Returns false, with unspecified data, if it is not
    /// authentic. A block that was never written is zero and has a tag of zeros.
    #[must_use]
    pub fn open_block(&self, lba: u64, generation: Generation, tag: &MacTag, block: &mut [u8]) -> bool {
        if generation == Generation::UNWRITTEN {
            return bool::from(tag.ct_eq(&[0; MAC_LEN])) && block.iter().all(|byte| *byte == 0);
        }
        let Some(epoch) = self.epoch_of(generation) else { return false };
        let associated = self.associated(epoch.epoch, lba, generation);
        let cipher = epoch.cipher(lba, generation);
        let block = InOutBuf::from(block);
        cipher.decrypt_inout_detached(&Nonce::default(), &associated, block, &(*tag).into()).is_ok()
    }

    /// Whether a stored block is authentic. `scratch` is a buffer for its plain data, which is
    /// wiped.
    #[must_use]
    pub fn verify_block(
        &self,
        lba: u64,
        keys: &BlockKeys,
        stored: &[u8],
        tag: &MacTag,
        scratch: &mut Vec<u8>,
    ) -> bool {
        scratch.clear();
        scratch.extend_from_slice(stored);
        let is_authentic = self.open_block(lba, keys.generation, tag, scratch);
        // As a slice at once; a vector is wiped byte by byte.
        scratch.as_mut_slice().zeroize();
        is_authentic
    }

    /// Seals whole blocks in place, each with the next generation; `None` if the generations are
    /// used up. Panics if the length is no multiple of a block.
    pub fn seal(
        &self,
        first_lba: u64,
        block: usize,
        data: &mut [u8],
        generations: &mut GenerationCounter,
    ) -> Option<(BlockKeyList, Vec<MacTag>)> {
        assert_eq!(data.len() % block, 0, "whole blocks are sealed");
        let count = data.len() / block;
        let mut list = BlockKeyList { first_lba, keys: Vec::with_capacity(count) };
        let mut tags = Vec::with_capacity(count);
        for (lba, block) in (first_lba..).zip(data.chunks_exact_mut(block)) {
            let generation = generations.next_generation()?;
            tags.push(self.seal_block(lba, generation, block)?);
            list.keys.push(BlockKeys::of_generation(generation));
        }
        Some((list, tags))
    }

    /// Encodes all keys, with the number of a session: that which receives them, or the next one
    /// of a stored unit.
    #[must_use]
    pub fn encode(&self, session: u32) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::with_capacity(FIXED + self.epochs.len() * EPOCH_LEN));
        out.extend_from_slice(&[VERSION, 0, 0, 0]);
        out.extend_from_slice(&session.to_be_bytes());
        out.extend_from_slice(&u32::try_from(self.epochs.len()).unwrap_or(u32::MAX).to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.unit);
        for EpochKey { epoch, first_session, key, .. } in &self.epochs {
            out.extend_from_slice(&epoch.to_be_bytes());
            out.extend_from_slice(&first_session.to_be_bytes());
            out.extend_from_slice(&**key);
        }
        out
    }

    /// Parses encoded keys. Returns them with the number of the session.
    ///
    /// # Errors
    /// See [`UnitKeysError`].
    pub fn parse(bytes: &[u8]) -> Result<(Self, u32), UnitKeysError> {
        let (fixed, rest) = bytes.split_first_chunk::<FIXED>().ok_or(UnitKeysError::Malformed)?;
        let word = |at: usize| u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        if fixed[..4] != [VERSION, 0, 0, 0] || word(12) != 0 {
            return Err(UnitKeysError::Malformed);
        }
        let count = usize::try_from(word(8)).map_err(|_| UnitKeysError::Malformed)?;
        if count == 0 || count > EPOCHS_MAX {
            return Err(UnitKeysError::EpochCount(count));
        }
        let (entries, excess) = rest.as_chunks::<EPOCH_LEN>();
        if entries.len() != count || !excess.is_empty() {
            return Err(UnitKeysError::Malformed);
        }
        let mut epochs: Vec<EpochKey> = Vec::with_capacity(EPOCHS_MAX);
        for entry in entries {
            let number =
                |at: usize| u32::from_be_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
            let (epoch, first_session) = (number(0), number(4));
            let (last_epoch, last_session) =
                epochs.last().map_or((0, 0), |last| (last.epoch, last.first_session));
            if epoch <= last_epoch || first_session <= last_session {
                return Err(UnitKeysError::Order);
            }
            let mut key = Zeroizing::new([0; UNIT_KEY_LEN]);
            key.copy_from_slice(&entry[8..]);
            epochs.push(EpochKey::new(epoch, first_session, key));
        }
        let session = word(4);
        if epochs.last().is_none_or(|last| session < last.first_session) {
            return Err(UnitKeysError::Order);
        }
        let unit = fixed[16..].try_into().expect("16 of 32 bytes");
        Ok((Self { unit, epochs }, session))
    }

    /// Returns the identifier of the unit.
    #[must_use]
    pub const fn unit(&self) -> &[u8; 16] {
        &self.unit
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec;

    use super::*;

    fn keys() -> UnitKeys {
        let mut keys = UnitKeys::new([7; 16], Zeroizing::new([1; 32]));
        keys.rotate(5, Zeroizing::new([2; 32])).unwrap();
        keys
    }

    #[test]
    fn block_opens_only_as_it_was_sealed() {
        let keys = keys();
        let plain = vec![0x5A; 512];
        let (lba, generation) = (40, Generation::new(5, 1));
        let mut sealed = plain.clone();
        let tag = keys.seal_block(lba, generation, &mut sealed).unwrap();
        assert!(sealed != plain);
        let opens = |lba, generation, tag: &MacTag, data: &[u8]| {
            let mut data = data.to_vec();
            let is_open = keys.open_block(lba, generation, tag, &mut data);
            assert!(!is_open || data == plain);
            is_open
        };
        assert!(opens(lba, generation, &tag, &sealed));
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(!opens(lba, generation, &tag, &changed), "byte {at}");
        }
        for at in 0..MAC_LEN {
            let mut changed = tag;
            changed[at] ^= 0x80;
            assert!(!opens(lba, generation, &changed, &sealed));
        }
        for other in
            [Generation::new(4, 1), Generation::new(5, 2), Generation::new(6, 1), Generation::new(0, 1)]
        {
            assert!(!opens(lba, other, &tag, &sealed), "{other:?}");
        }
        assert!(!opens(lba + 1, generation, &tag, &sealed));
        let other_unit = UnitKeys { unit: [8; 16], ..self::keys() };
        assert!(!other_unit.open_block(lba, generation, &tag, &mut sealed.clone()));
    }

    #[test]
    fn unwritten_block_must_be_zero() {
        let keys = keys();
        let mut block = vec![0; 512];
        assert!(keys.open_block(3, Generation::UNWRITTEN, &[0; 16], &mut block));
        assert!(!keys.open_block(3, Generation::UNWRITTEN, &[1; 16], &mut block));
        block[9] = 1;
        assert!(!keys.open_block(3, Generation::UNWRITTEN, &[0; 16], &mut block));
    }

    /// Blocks of an earlier epoch stay readable, and each epoch has other keys.
    #[test]
    fn rotation_keeps_earlier_epochs() {
        let mut before = UnitKeys::new([7; 16], Zeroizing::new([1; 32]));
        let mut old = vec![0x5A; 512];
        let tag = before.seal_block(1, Generation::new(4, 0), &mut old).unwrap();
        assert!(before.is_current(4) && before.epoch() == 1);
        assert_eq!(before.rotate(1, Zeroizing::new([2; 32])), Err(UnitKeysError::Order));
        before.rotate(5, Zeroizing::new([2; 32])).unwrap();
        assert!(!before.is_current(4) && before.is_current(5) && before.epoch() == 2);
        assert!(before.open_block(1, Generation::new(4, 0), &tag, &mut old));
        for first in 6..4 + EPOCHS_MAX as u32 {
            before.rotate(first, Zeroizing::new([3; 32])).unwrap();
        }
        let full = before.rotate(1000, Zeroizing::new([3; 32]));
        assert_eq!(full, Err(UnitKeysError::EpochCount(EPOCHS_MAX + 1)));
    }

    #[test]
    fn each_broken_field_of_keys_is_refused() {
        let good = keys().encode(6).to_vec();
        let (parsed, session) = UnitKeys::parse(&good).unwrap();
        assert_eq!((session, parsed.epoch(), parsed.unit()), (6, 2, &[7; 16]));
        let changed = |at: usize, to: u8| {
            let mut bytes = good.clone();
            bytes[at] = to;
            UnitKeys::parse(&bytes).unwrap_err()
        };
        assert_eq!(changed(0, 2), UnitKeysError::Malformed);
        assert_eq!(changed(3, 1), UnitKeysError::Malformed);
        assert_eq!(changed(15, 1), UnitKeysError::Malformed);
        assert_eq!(changed(7, 4), UnitKeysError::Order);
        assert_eq!(changed(11, 0), UnitKeysError::EpochCount(0));
        assert_eq!(changed(11, 65), UnitKeysError::EpochCount(65));
        assert_eq!(changed(11, 1), UnitKeysError::Malformed);
        assert_eq!(changed(FIXED + EPOCH_LEN + 3, 1), UnitKeysError::Order);
        assert_eq!(changed(FIXED + EPOCH_LEN + 7, 1), UnitKeysError::Order);
        for cut in 0..good.len() {
            assert!(UnitKeys::parse(&good[..cut]).is_err(), "{cut}");
        }
        assert_eq!(std::format!("{:?}", keys()), "UnitKeys { epoch: 2, .. }");
    }

    #[test]
    fn exhausted_generations_seal_nothing() {
        let mut counter = GenerationCounter::new(9);
        counter.skip_to_last();
        let mut data = vec![0; 1024];
        assert!(keys().seal(0, 512, &mut data, &mut counter).is_none());
    }

    proptest! {
        #[test]
        fn any_blocks_open_as_sealed(seed: u8, blocks in 1..5_usize, lba in 0..1_u64 << 40, session in 1..9_u32) {
            let keys = keys();
            let plain: Vec<u8> = (0..blocks * 512).map(|at| (at as u8).wrapping_mul(seed)).collect();
            let mut data = plain.clone();
            let mut counter = GenerationCounter::new(session);
            let (list, tags) = keys.seal(lba, 512, &mut data, &mut counter).unwrap();
            let mut scratch = Vec::new();
            for (at, ((block, entry), tag)) in data.chunks_exact_mut(512).zip(&list.keys).zip(&tags).enumerate() {
                let lba = lba + at as u64;
                prop_assert!(keys.verify_block(lba, entry, block, tag, &mut scratch));
                prop_assert!(keys.open_block(lba, entry.generation, tag, block));
            }
            prop_assert_eq!(data, plain);
        }

        #[test]
        fn parsed_keys_encode_to_themselves(bytes: Vec<u8>, count in 0..3_u8, session: u32) {
            let mut image = vec![0; FIXED + usize::from(count) * EPOCH_LEN];
            let length = image.len().min(bytes.len());
            image[..length].copy_from_slice(&bytes[..length]);
            image[..4].copy_from_slice(&[VERSION, 0, 0, 0]);
            image[4..8].copy_from_slice(&session.to_be_bytes());
            image[8..16].copy_from_slice(&[0, 0, 0, count, 0, 0, 0, 0]);
            for image in [&image, &bytes] {
                if let Ok((keys, session)) = UnitKeys::parse(image) {
                    prop_assert_eq!(&keys.encode(session)[..], &image[..]);
                }
            }
        }
    }
}
