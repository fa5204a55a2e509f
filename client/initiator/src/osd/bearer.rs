//! A credential made ready for use: capability, and the keys to sign with, their midstates computed.

use core::fmt;
use std::sync::Arc;

use sealstone_crypto::RustCrypto;
use sealstone_osd::{Capability, CapabilityBytes, Generation, SecurityMethod};
use sealstone_seal::signer::{SignError, Signer};
use sealstone_seal::{AlgorithmSlots, CapabilityKey, Credential};

/// Whoever holds this may do what its capability says, by the method its capability says. Clones share it.
#[derive(Clone)]
pub struct Bearer(Arc<Inner>);

struct Inner {
    bytes: CapabilityBytes,
    capability: Option<Capability>,
    signer: Signer<RustCrypto>,
}

/// Why bytes are no usable credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BearerError {
    /// Not 80 or 104 bytes, or not a capability.
    #[error("not a capability")]
    Capability,
    /// Not a key of the length that the capability's algorithm has.
    #[error("not a capability key of the right length")]
    Key,
    /// An algorithm slot that this client has no algorithm for.
    #[error("unknown integrity check value algorithm slot {0}")]
    Slot(u8),
}

impl Bearer {
    /// From a capability of 80 (OSD-1) or 104 bytes (OSD-2) and its key of 20 or 32 bytes; NOSEC needs no key. The
    /// algorithm slots are those of every Sealstone device.
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
        Ok(Self(Arc::new(Inner { bytes, capability, signer })))
    }

    /// From a credential that this process issued itself.
    ///
    /// # Errors
    /// See [`BearerError`].
    pub fn of(credential: &Credential) -> Result<Self, BearerError> {
        Self::new(&credential.capability, credential.key.expose())
    }

    /// The same where a device has more in its slots than others: [`AlgorithmSlots::WITH_BROKEN`] if its administrator
    /// asked for what is broken, and so did whoever runs this client.
    ///
    /// # Errors
    /// See [`BearerError`].
    pub fn in_slots(credential: &Credential, slots: &AlgorithmSlots) -> Result<Self, BearerError> {
        Self::from_parts(&credential.capability, credential.key.expose(), slots)
    }

    /// What the capability says; `None` if it is sealed, so that only the device can read it.
    #[must_use]
    pub fn capability(&self) -> Option<&Capability> {
        self.0.capability.as_ref()
    }

    /// The capability as it stands in a CDB.
    #[must_use]
    pub fn capability_bytes(&self) -> &CapabilityBytes {
        &self.0.bytes
    }

    /// The method it signs by.
    #[must_use]
    pub fn method(&self) -> SecurityMethod {
        self.0.signer.method()
    }

    /// Which generation of commands it is for.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.0.bytes.generation()
    }

    /// Are digests checked that a device stores, and not the bytes?
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
