//! A credential prepared for use: the capability, and the signing keys with their precomputed
//! midstates.
//!
//! Contract: key bytes are never printed or returned.

use core::fmt;
use std::sync::Arc;

use sealstone_crypto::RustCrypto;
use sealstone_osd::{Capability, CapabilityBytes, Generation, SecurityMethod};
use sealstone_seal::signer::{SignError, Signer};
use sealstone_seal::{AlgorithmSlots, CapabilityKey, Credential};

/// A capability with its key: its holder has the rights of the capability, with the method of the
/// capability. Clones share it.
#[derive(Clone)]
pub struct Bearer(Arc<BearerState>);

struct BearerState {
    bytes: CapabilityBytes,
    capability: Option<Capability>,
    signer: Signer<RustCrypto>,
}

/// Why bytes are not a usable credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BearerError {
    /// Not 80 or 104 bytes, or not a capability.
    #[error("not a capability")]
    Capability,
    /// The key does not have the length that the capability's algorithm requires.
    #[error("not a capability key of the right length")]
    Key,
    /// The client has no algorithm for this slot.
    #[error("unknown integrity check value algorithm slot {0}")]
    Slot(u8),
}

impl Bearer {
    /// Creates it from a capability of 80 (OSD-1) or 104 bytes (OSD-2) and its key of 20 or 32
    /// bytes; NOSEC needs no key. Uses the default algorithm slots of Sealstone devices.
    ///
    /// # Errors
    /// See [`BearerError`].
    pub fn new(capability: &[u8], key: &[u8]) -> Result<Self, BearerError> {
        Self::from_parts(capability, key, &AlgorithmSlots::DEFAULT)
    }

    fn from_parts(capability: &[u8], key: &[u8], slots: &AlgorithmSlots) -> Result<Self, BearerError> {
        let generation = [Generation::Osd1, Generation::Osd2]
            .into_iter()
            .find(|generation| generation.capability_len() == capability.len())
            .ok_or(BearerError::Capability)?;
        let bytes = CapabilityBytes::new(generation, capability).ok_or(BearerError::Capability)?;
        let clear = bytes.clear().map_err(|_| BearerError::Capability)?;
        let capability = match bytes.is_sealed() {
            true => None,
            false => Some(bytes.parse().map_err(|_| BearerError::Capability)?),
        };
        let key = match clear.method {
            SecurityMethod::NoSec => CapabilityKey::new(&[0; 32]),
            _ => CapabilityKey::new(key),
        }
        .ok_or(BearerError::Key)?;
        let signer =
            Signer::new(&Credential { capability: bytes, key }, slots).map_err(|error| match error {
                SignError::Algorithm(slot) => BearerError::Slot(slot),
                _ => BearerError::Capability,
            })?;
        Ok(Self(Arc::new(BearerState { bytes, capability, signer })))
    }

    /// Creates it from a credential that this process issued itself.
    ///
    /// # Errors
    /// See [`BearerError`].
    pub fn of(credential: &Credential) -> Result<Self, BearerError> {
        Self::new(&credential.capability, credential.key.expose())
    }

    /// As [`Self::of`], for a device with additional algorithm slots:
    /// [`AlgorithmSlots::WITH_BROKEN`] if its administrator and the user of this client enabled
    /// broken algorithms.
    ///
    /// # Errors
    /// See [`BearerError`].
    pub fn in_slots(credential: &Credential, slots: &AlgorithmSlots) -> Result<Self, BearerError> {
        Self::from_parts(&credential.capability, credential.key.expose(), slots)
    }

    /// Returns the capability; `None` if it is sealed, so that only the device can read it.
    #[must_use]
    pub fn capability(&self) -> Option<&Capability> {
        self.0.capability.as_ref()
    }

    /// Returns the capability as encoded in a CDB.
    #[must_use]
    pub fn capability_bytes(&self) -> &CapabilityBytes {
        &self.0.bytes
    }

    /// Returns the security method.
    #[must_use]
    pub fn method(&self) -> SecurityMethod {
        self.0.signer.method()
    }

    /// Returns the generation of its commands.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.0.bytes.generation()
    }

    /// Whether stored digests are verified instead of the bytes.
    pub(super) fn trusts_digests(&self) -> bool {
        self.method() >= SecurityMethod::AllData && self.signer().algorithm().digest().is_some()
    }

    pub(super) fn signer(&self) -> &Signer<RustCrypto> {
        &self.0.signer
    }
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bearer").field(&self.0.bytes).finish()
    }
}
