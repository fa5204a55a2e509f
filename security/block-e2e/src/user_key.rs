//! Wraps the key of a unit for a user: X25519, HKDF-SHA256 and AES-256-GCM-SIV.
//!
//! ```text
//! version 1 | zero 1 | key epoch 2 | ephemeral public key 32 | sealed key 32 | tag 16
//! ```
//!
//! The wrapping key is HKDF of the shared secret, with both public keys as salt. Its info is the
//! unit, the key epoch and the name of the user. A key is wrapped under it once, so its nonce is
//! zero.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use crate::aead::{BlockAead, KEY_LEN, NONCE_LEN, TAG_LEN, portable_aead};
use crate::keys::{KeyEpoch, UnitKey, derive_key};
use crate::sealer::UnitId;

use alloc::boxed::Box;

const VERSION: u8 = 1;
const HEAD_LEN: usize = 4;
const EPHEMERAL: core::ops::Range<usize> = HEAD_LEN..HEAD_LEN + 32;
/// Bytes of a wrapped key.
pub const WRAPPED_KEY_LEN: usize = HEAD_LEN + 32 + KEY_LEN + TAG_LEN;

/// Why a key could not be wrapped or unwrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrapError {
    /// Bytes that are no wrapped key.
    #[error("the wrapped key is malformed")]
    Malformed,
    /// The public key would make the secret predictable.
    #[error("the public key is weak")]
    WeakKey,
    /// Wrapped for another user, unit or key, or damaged.
    #[error("the wrapped key does not open: it is damaged, or for another user, disk or user key")]
    Tag,
}

/// The public key of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserPublicKey(pub [u8; 32]);

/// The secret key of a user, which never leaves the client.
#[derive(Clone)]
pub struct UserSecretKey(StaticSecret);

impl UserSecretKey {
    /// Returns the key with these random bytes.
    #[must_use]
    pub fn new(bytes: [u8; KEY_LEN]) -> Self {
        Self(StaticSecret::from(bytes))
    }

    /// Returns the secret bytes, to store them.
    #[must_use]
    pub fn expose(&self) -> &[u8; KEY_LEN] {
        self.0.as_bytes()
    }

    /// Returns the public key.
    #[must_use]
    pub fn public(&self) -> UserPublicKey {
        UserPublicKey(PublicKey::from(&self.0).to_bytes())
    }

    /// Unwraps the key of a unit.
    ///
    /// # Errors
    /// [`WrapError`].
    pub fn unwrap(
        &self,
        unit: &UnitId,
        user: &[u8],
        wrapped: &[u8; WRAPPED_KEY_LEN],
    ) -> Result<(KeyEpoch, UnitKey), WrapError> {
        if wrapped[..2] != [VERSION, 0] {
            return Err(WrapError::Malformed);
        }
        let key_epoch = KeyEpoch(u16::from_be_bytes([wrapped[2], wrapped[3]]));
        let ephemeral: [u8; 32] = wrapped[EPHEMERAL].try_into().map_err(|_| WrapError::Malformed)?;
        let ephemeral = PublicKey::from(ephemeral);
        let tag = wrapped.last_chunk().ok_or(WrapError::Malformed)?;
        let sealed = &wrapped[EPHEMERAL.end..EPHEMERAL.end + KEY_LEN];
        let aead = wrapping_cipher(
            &self.0,
            &ephemeral,
            [&ephemeral, &PublicKey::from(&self.0)],
            unit,
            key_epoch,
            user,
        )?;
        let mut key = Zeroizing::new([0; KEY_LEN]);
        aead.open(&[0; NONCE_LEN], &wrapped[..HEAD_LEN], sealed, tag, &mut *key)
            .map_err(|_| WrapError::Tag)?;
        Ok((key_epoch, UnitKey::new(*key)))
    }
}

impl core::fmt::Debug for UserSecretKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("UserSecretKey(..)")
    }
}

impl UserPublicKey {
    /// Wraps the key of a unit for the user with this public key. `random` is used for nothing
    /// else.
    ///
    /// # Errors
    /// [`WrapError::WeakKey`].
    pub fn wrap(
        &self,
        unit: &UnitId,
        user: &[u8],
        key_epoch: KeyEpoch,
        key: &UnitKey,
        random: [u8; 32],
    ) -> Result<[u8; WRAPPED_KEY_LEN], WrapError> {
        let secret = StaticSecret::from(random);
        let (ephemeral, user_key) = (PublicKey::from(&secret), PublicKey::from(self.0));
        let aead = wrapping_cipher(&secret, &user_key, [&ephemeral, &user_key], unit, key_epoch, user)?;
        let mut wrapped = [0; WRAPPED_KEY_LEN];
        wrapped[0] = VERSION;
        wrapped[2..HEAD_LEN].copy_from_slice(&key_epoch.0.to_be_bytes());
        wrapped[EPHEMERAL].copy_from_slice(ephemeral.as_bytes());
        let (head, sealed) = wrapped.split_at_mut(EPHEMERAL.end);
        sealed[..KEY_LEN].copy_from_slice(key.expose());
        let tag = aead.seal(&[0; NONCE_LEN], &head[..HEAD_LEN], &mut sealed[..KEY_LEN]);
        sealed[KEY_LEN..].copy_from_slice(&tag);
        Ok(wrapped)
    }
}

fn wrapping_cipher(
    secret: &StaticSecret,
    peer: &PublicKey,
    [ephemeral, user_key]: [&PublicKey; 2],
    unit: &UnitId,
    key_epoch: KeyEpoch,
    user: &[u8],
) -> Result<Box<dyn BlockAead>, WrapError> {
    let shared = secret.diffie_hellman(peer);
    if !shared.was_contributory() {
        return Err(WrapError::WeakKey);
    }
    let salt = [*ephemeral.as_bytes(), *user_key.as_bytes()];
    let mut extract =
        Hmac::<Sha256>::new_from_slice(salt.as_flattened()).expect("HMAC takes keys of any length");
    extract.update(shared.as_bytes());
    let extracted: Zeroizing<[u8; 32]> = Zeroizing::new(extract.finalize().into_bytes().into());
    let key =
        derive_key(&*extracted, &[b"sealstone e2e user key\0", &unit.0, &key_epoch.0.to_be_bytes(), user]);
    Ok(portable_aead(&key))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: UnitId = UnitId([3; 16]);

    #[test]
    fn wrapped_key_opens_for_its_user_only() {
        let user = UserSecretKey::new([1; 32]);
        let key = UnitKey::new([9; 32]);
        let wrapped = user.public().wrap(&UNIT, b"ann", KeyEpoch(4), &key, [2; 32]).expect("a good key");
        let (epoch, opened) = user.unwrap(&UNIT, b"ann", &wrapped).expect("it is for ann");
        assert_eq!((epoch, opened.expose()), (KeyEpoch(4), key.expose()));
        assert!(user.unwrap(&UNIT, b"bob", &wrapped).is_err());
        assert!(user.unwrap(&UnitId([4; 16]), b"ann", &wrapped).is_err());
        assert!(UserSecretKey::new([7; 32]).unwrap(&UNIT, b"ann", &wrapped).is_err());
        for at in 0..WRAPPED_KEY_LEN {
            let mut changed = wrapped;
            changed[at] ^= 2;
            assert!(user.unwrap(&UNIT, b"ann", &changed).is_err(), "{at}");
        }
    }

    #[test]
    fn weak_public_key_is_refused() {
        let key = UnitKey::new([9; 32]);
        let weak = UserPublicKey([0; 32]).wrap(&UNIT, b"ann", KeyEpoch(1), &key, [2; 32]);
        assert_eq!(weak, Err(WrapError::WeakKey));
    }
}
