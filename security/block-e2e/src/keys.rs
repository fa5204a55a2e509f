//! The key of a unit, one for each key epoch, and the ring of all keys that a client has.
//!
//! Does: derives the keys of each purpose, wraps the key of an epoch under that of the next one, so
//! that a client with the newest key has all of them.
//! Does not: generate or store keys.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::aead::{AeadFactory, BlockAead, KEY_LEN, NONCE_LEN, TAG_LEN};
use crate::sealer::UnitId;

/// Number of a key; it grows with each rotation. The first one is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyEpoch(pub u16);

/// The key of a unit in one key epoch.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct UnitKey([u8; KEY_LEN]);

impl UnitKey {
    /// Returns the key with these bytes, which are secret and random.
    #[must_use]
    pub const fn new(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }

    /// Returns the secret bytes, to wrap or store them.
    #[must_use]
    pub const fn expose(&self) -> &[u8; KEY_LEN] {
        &self.0
    }

    /// Derives the key of a purpose: one block of HKDF-Expand (RFC 5869) with the unit in its info.
    pub(crate) fn derive(&self, unit: &UnitId, purpose: &[u8]) -> Zeroizing<[u8; KEY_LEN]> {
        derive_key(&self.0, &[b"sealstone e2e ", purpose, &[0], &unit.0])
    }
}

impl core::fmt::Debug for UnitKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("UnitKey(..)")
    }
}

/// One block of HKDF-Expand with SHA-256.
pub(crate) fn derive_key(secret: &[u8], info: &[&[u8]]) -> Zeroizing<[u8; KEY_LEN]> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    info.iter().for_each(|part| mac.update(part));
    mac.update(&[1]);
    Zeroizing::new(mac.finalize().into_bytes().into())
}

/// Bytes of the key of an epoch, wrapped under that of the next one.
pub const PREVIOUS_KEY_LEN: usize = KEY_LEN + TAG_LEN;

/// Why the keys of a unit cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitKeyError {
    /// Changed, or wrapped under another key.
    #[error("the key of epoch {epoch} does not open: it is damaged, or the newer key is a wrong one")]
    Unwrap {
        /// The epoch of the wrapped key.
        epoch: u16,
    },
    /// Epochs start at 1 and end at 65535.
    #[error("key epoch {epoch} is not supported; rotate at most 65534 times, or copy the data to a new unit")]
    Epoch {
        /// The number.
        epoch: u16,
    },
}

/// The ciphers of one key epoch.
pub(crate) struct EpochCiphers {
    pub(crate) blocks: Box<dyn BlockAead>,
    pub(crate) journal: Box<dyn BlockAead>,
    pub(crate) root: Box<dyn BlockAead>,
}

/// All keys of a unit that a client has.
pub struct UnitKeyRing {
    unit: UnitId,
    factory: AeadFactory,
    newest: KeyEpoch,
    newest_key: UnitKey,
    ciphers: BTreeMap<KeyEpoch, EpochCiphers>,
}

impl UnitKeyRing {
    /// Returns a ring with the newest key alone.
    ///
    /// # Errors
    /// [`UnitKeyError::Epoch`].
    pub fn new(
        unit: UnitId,
        epoch: KeyEpoch,
        key: UnitKey,
        factory: AeadFactory,
    ) -> Result<Self, UnitKeyError> {
        if epoch.0 == 0 {
            return Err(UnitKeyError::Epoch { epoch: 0 });
        }
        let mut ring =
            Self { unit, factory, newest: epoch, newest_key: key.clone(), ciphers: BTreeMap::new() };
        ring.insert(epoch, &key);
        Ok(ring)
    }

    /// Returns a ring with the newest key and all earlier ones. `previous` has the wrapped keys,
    /// starting with that of the epoch before the newest one.
    ///
    /// # Errors
    /// [`UnitKeyError`].
    pub fn with_previous(
        unit: UnitId,
        epoch: KeyEpoch,
        key: UnitKey,
        previous: &[[u8; PREVIOUS_KEY_LEN]],
        factory: AeadFactory,
    ) -> Result<Self, UnitKeyError> {
        let mut ring = Self::new(unit, epoch, key.clone(), factory)?;
        let mut newer = key;
        let mut epoch = epoch.0;
        for wrapped in previous {
            epoch =
                epoch.checked_sub(1).filter(|epoch| *epoch > 0).ok_or(UnitKeyError::Epoch { epoch: 0 })?;
            let (sealed, tag) = wrapped.split_at(KEY_LEN);
            let tag: &[u8; TAG_LEN] = tag.try_into().map_err(|_| UnitKeyError::Unwrap { epoch })?;
            let mut older = Zeroizing::new([0; KEY_LEN]);
            factory(&newer.derive(&unit, b"previous key"))
                .open(&previous_nonce(epoch), &unit.0, sealed, tag, &mut *older)
                .map_err(|_| UnitKeyError::Unwrap { epoch })?;
            newer = UnitKey(*older);
            ring.insert(KeyEpoch(epoch), &newer);
        }
        Ok(ring)
    }

    /// Adds the key of the next epoch, and returns the one before it, wrapped for
    /// [`UnitKeyRing::with_previous`].
    ///
    /// # Errors
    /// [`UnitKeyError::Epoch`].
    pub fn rotate(&mut self, key: UnitKey) -> Result<[u8; PREVIOUS_KEY_LEN], UnitKeyError> {
        let older = self.newest.0;
        let epoch = older.checked_add(1).ok_or(UnitKeyError::Epoch { epoch: older })?;
        let mut wrapped = [0; PREVIOUS_KEY_LEN];
        wrapped[..KEY_LEN].copy_from_slice(self.newest_key.expose());
        let tag = (self.factory)(&key.derive(&self.unit, b"previous key")).seal(
            &previous_nonce(older),
            &self.unit.0,
            &mut wrapped[..KEY_LEN],
        );
        wrapped[KEY_LEN..].copy_from_slice(&tag);
        self.insert(KeyEpoch(epoch), &key);
        (self.newest, self.newest_key) = (KeyEpoch(epoch), key);
        Ok(wrapped)
    }

    /// Returns the unit.
    #[must_use]
    pub const fn unit(&self) -> UnitId {
        self.unit
    }

    /// Returns the newest epoch: that of all new blocks.
    #[must_use]
    pub const fn newest(&self) -> KeyEpoch {
        self.newest
    }

    /// Returns the newest key.
    #[must_use]
    pub const fn newest_key(&self) -> &UnitKey {
        &self.newest_key
    }

    pub(crate) fn ciphers(&self, epoch: KeyEpoch) -> Option<&EpochCiphers> {
        self.ciphers.get(&epoch)
    }

    fn insert(&mut self, epoch: KeyEpoch, key: &UnitKey) {
        let cipher = |purpose| (self.factory)(&key.derive(&self.unit, purpose));
        let ciphers =
            EpochCiphers { blocks: cipher(b"blocks"), journal: cipher(b"journal"), root: cipher(b"root") };
        self.ciphers.insert(epoch, ciphers);
    }
}

impl core::fmt::Debug for UnitKeyRing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("UnitKeyRing")
            .field("unit", &self.unit)
            .field("newest", &self.newest)
            .finish_non_exhaustive()
    }
}

/// The nonce of a wrapped key. Its key is used once.
fn previous_nonce(epoch: u16) -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    nonce[..2].copy_from_slice(&epoch.to_be_bytes());
    nonce
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::{BlockPosition, DiskSealer, E2eMismatch, LeaseEpoch, portable_aead};

    const UNIT: UnitId = UnitId([7; 16]);

    #[test]
    fn newest_key_opens_all_earlier_ones() {
        let mut ring =
            UnitKeyRing::new(UNIT, KeyEpoch(1), UnitKey::new([1; 32]), portable_aead).expect("epoch 1");
        let mut previous: Vec<_> =
            (2..6).map(|byte| ring.rotate(UnitKey::new([byte; 32])).expect("few")).collect();
        previous.reverse();
        let position = BlockPosition::Data { lba: 3 };
        let mut block = [9; 4096];
        let old = UnitKeyRing::new(UNIT, KeyEpoch(1), UnitKey::new([1; 32]), portable_aead).expect("epoch 1");
        let entry = DiskSealer::new(old, LeaseEpoch(1)).seal_block(position, 1, &mut block);
        let key = UnitKey::new([5; 32]);
        let ring = UnitKeyRing::with_previous(UNIT, KeyEpoch(5), key.clone(), &previous, portable_aead);
        let sealer = DiskSealer::new(ring.expect("all open"), LeaseEpoch(2));
        let mut data = [0; 4096];
        sealer.open_block(position, &entry, &block, &mut data).expect("the key of epoch 1 is in the ring");
        assert_eq!(data, [9; 4096]);
        for (at, byte) in [(0, 0), (1, 47), (3, 20)] {
            let mut changed = previous.clone();
            changed[at][byte] ^= 1;
            let ring = UnitKeyRing::with_previous(UNIT, KeyEpoch(5), key.clone(), &changed, portable_aead);
            assert!(matches!(ring, Err(UnitKeyError::Unwrap { .. })));
        }
        let short = UnitKeyRing::with_previous(UNIT, KeyEpoch(5), key, &previous[..2], portable_aead);
        let sealer = DiskSealer::new(short.expect("two open"), LeaseEpoch(2));
        let missing = sealer.open_block(position, &entry, &block, &mut data);
        assert_eq!(missing, Err(E2eMismatch::UnknownKey { position, epoch: 1 }));
    }

    #[test]
    fn epochs_beyond_limits_are_refused() {
        let key = UnitKey::new([1; 32]);
        assert!(UnitKeyRing::new(UNIT, KeyEpoch(0), key.clone(), portable_aead).is_err());
        let mut last =
            UnitKeyRing::new(UNIT, KeyEpoch(u16::MAX), key.clone(), portable_aead).expect("the last");
        assert_eq!(last.rotate(key.clone()), Err(UnitKeyError::Epoch { epoch: u16::MAX }));
        let too_many = UnitKeyRing::with_previous(UNIT, KeyEpoch(1), key, &[[0; 48]], portable_aead);
        assert!(matches!(too_many, Err(UnitKeyError::Epoch { epoch: 0 })));
    }
}
