//! Sessions of a unit of M-lazy, and rotation of its key.
//!
//! Contract: a session receives all keys and a number of its own. After a rotation, sessions that
//! began before cannot write.
//! Truth: `docs/standards/block-protection.md`, "Blocks of M-lazy".

use sealstone_block_protection::UnitKeysError;
use zeroize::Zeroizing;

use crate::error::LazyError;
use crate::unit_keys::StoredUnitKeys;
use crate::volume::LazyVolume;

/// Keys of the unit for one session.
pub struct SessionUnitKeys {
    /// Number of the session, the upper half of its generations.
    pub session: u32,
    /// The keys and the number, as the session receives them.
    pub encoded: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for SessionUnitKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionUnitKeys").field("session", &self.session).finish_non_exhaustive()
    }
}

impl LazyVolume {
    /// Returns the keys of the unit for a new session. Its number is durable.
    ///
    /// # Errors
    /// `NoUnitKeys` unless the profile is `modern`; `SessionsExhausted`; `Store`.
    pub fn begin_session(&self) -> Result<SessionUnitKeys, LazyError> {
        self.with_unit_keys(|stored| {
            let session = stored.take_session(&**self.store(), self.unit())?;
            Ok(SessionUnitKeys { session, encoded: stored.keys.encode(session) })
        })
    }

    /// Begins the next epoch of the unit's key, durably. Sessions that began before cannot write.
    /// Blocks keep their keys until they are written.
    ///
    /// # Errors
    /// `NoUnitKeys` unless the profile is `modern`; `EpochsExhausted`; `SessionsExhausted`;
    /// `Store`.
    pub fn rotate_key(&self) -> Result<u32, LazyError> {
        self.with_unit_keys(|stored| {
            // Each epoch has a session, so that the first sessions of epochs ascend.
            if !stored.keys.is_current(stored.next_session.saturating_sub(1)) {
                stored.take_session(&**self.store(), self.unit())?;
            }
            let (first, key) = (stored.next_session, StoredUnitKeys::new_key(self.unit()));
            first.checked_add(1).ok_or(LazyError::SessionsExhausted)?;
            stored.keys.rotate(first, key).map_err(|error| match error {
                UnitKeysError::EpochCount(_) => LazyError::EpochsExhausted(stored.keys.epoch_count()),
                UnitKeysError::Order | UnitKeysError::Malformed => LazyError::SessionsExhausted,
            })?;
            // The number is used up, so that the next epoch begins at a higher one.
            if let Err(error) = stored.take_session(&**self.store(), self.unit()) {
                // If the epoch was stored nevertheless, the next start begins with it, and no
                // session has used it.
                stored.keys.revert_rotation();
                return Err(error);
            }
            Ok(stored.keys.epoch())
        })
    }
}
