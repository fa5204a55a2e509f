//! Credentials: a capability, and the key that proves its possession.
//!
//! Does: derives the capability key, and issues credentials.
//! Does not: decide who gets what; the MDS does.
//! Source of truth: docs/design/security.md 3.2 (cap_key), 3.5, 3.6.

use sealstone_osd::{Capability, CapabilityBytes};
use thiserror::Error;

use crate::algorithm::AlgorithmSlots;
use crate::hierarchy::{KeyHierarchy, KeySelector, SigningKey};
use crate::key::CapabilityKey;
use crate::provider::Provider;
use crate::sealed;

/// A capability and its key: the bearer of both may do what the capability says.
#[derive(Clone)]
pub struct Credential {
    /// The capability as in a CDB.
    pub capability: CapabilityBytes,
    /// Signs requests; sent only over the protected channel between MDS and client.
    pub key: CapabilityKey,
}

/// Why no credential was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IssueError {
    /// The signing key is not set.
    #[error("no such key is set")]
    KeyUnknown,
    /// Only OSD-2 capabilities have space for a seal.
    #[error("{0} capabilities cannot be sealed")]
    NoRoomForSeal(sealstone_osd::Generation),
    /// The capability's slot is empty.
    #[error("the algorithm slot {0} is empty")]
    SlotEmpty(u8),
    /// A tag of the slot's algorithm does not fit the check value fields of the capability's
    /// generation.
    #[error("the tags of this algorithm do not fit the fields of {0}")]
    TagTooWide(sealstone_osd::Generation),
}

impl Credential {
    /// Signs a capability with the working key of its partition (partition zero for the root).
    ///
    /// # Errors
    /// See [`IssueError`].
    pub fn issue<P: Provider>(
        hierarchy: &KeyHierarchy<P>,
        slots: &AlgorithmSlots,
        capability: &Capability,
    ) -> Result<Self, IssueError> {
        Self::issue_under(hierarchy, slots, KeySelector::of_capability(capability), capability)
    }

    /// Like [`Self::issue`], but sealed: only the device can read the capability. Its discriminator
    /// is left out.
    ///
    /// # Errors
    /// See [`IssueError`].
    pub fn issue_sealed<P: Provider>(
        hierarchy: &KeyHierarchy<P>,
        slots: &AlgorithmSlots,
        capability: &Capability,
    ) -> Result<Self, IssueError> {
        Self::issue_sealed_under(hierarchy, slots, KeySelector::of_capability(capability), capability)
    }

    /// Like [`Self::issue_under`], but sealed.
    ///
    /// # Errors
    /// See [`IssueError`].
    pub fn issue_sealed_under<P: Provider>(
        hierarchy: &KeyHierarchy<P>,
        slots: &AlgorithmSlots,
        selector: KeySelector,
        capability: &Capability,
    ) -> Result<Self, IssueError> {
        let signing = hierarchy.signing_key(selector).ok_or(IssueError::KeyUnknown)?;
        let bytes = sealed::seal(capability, signing, hierarchy.system_id())
            .ok_or(IssueError::NoRoomForSeal(capability.generation))?;
        Self::sign(hierarchy, slots, signing, capability, bytes)
    }

    /// Signs a capability with a chosen key: SET KEY, CREATE PARTITION and REMOVE PARTITION need
    /// that, see [`KeySelector`].
    ///
    /// # Errors
    /// See [`IssueError`].
    pub fn issue_under<P: Provider>(
        hierarchy: &KeyHierarchy<P>,
        slots: &AlgorithmSlots,
        selector: KeySelector,
        capability: &Capability,
    ) -> Result<Self, IssueError> {
        let signing = hierarchy.signing_key(selector).ok_or(IssueError::KeyUnknown)?;
        Self::sign(hierarchy, slots, signing, capability, capability.encode())
    }

    fn sign<P: Provider>(
        hierarchy: &KeyHierarchy<P>,
        slots: &AlgorithmSlots,
        signing: &SigningKey<P>,
        capability: &Capability,
        bytes: CapabilityBytes,
    ) -> Result<Self, IssueError> {
        let slot = capability.icv_algorithm;
        let algorithm = slots.get(slot).ok_or(IssueError::SlotEmpty(slot))?;
        if algorithm.hash().tag_len() > capability.generation.icv_len() {
            return Err(IssueError::TagTooWide(capability.generation));
        }
        Ok(Self { capability: bytes, key: signing.capability_key(algorithm, &bytes, hierarchy.system_id()) })
    }
}
