//! The credential cache: the MAC keys of authenticated credentials.
//!
//! Does: caches prepared keys by capability and key identity.
//! Does not: cache decisions; expiry, tags and times are checked again for every command.
//! Contract: the caller inserts only after a request check value was verified, so that an
//! unauthenticated peer cannot evict entries. Bounded; the least recently used of eight entries is
//! evicted. An entry of a key that is not set is never found.
//! Source of truth: docs/design/security.md 3.5.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use sealstone_osd::{Capability, CapabilityBytes};

use crate::freshness::CredentialId;
use crate::hierarchy::KeyIdentity;
use crate::icv::IcvKeys;
use crate::provider::{Locks, Mutex, Provider};

/// Default number of cached credentials.
pub const CREDENTIALS_MAX: usize = 65_536;
/// Entries per set.
const WAYS: usize = 8;
const SHARDS: usize = 16;

/// A credential whose possession was proven.
pub(crate) struct ProvenCredential<P: Provider> {
    capability: CapabilityBytes,
    /// The decrypted capability, if it is sealed.
    unsealed: Option<Box<Capability>>,
    identity: KeyIdentity,
    id: CredentialId,
    /// Its MAC keys.
    pub(crate) keys: IcvKeys<P>,
}

impl<P: Provider> ProvenCredential<P> {
    pub(crate) const fn new(
        capability: CapabilityBytes,
        unsealed: Option<Box<Capability>>,
        identity: KeyIdentity,
        id: CredentialId,
        keys: IcvKeys<P>,
    ) -> Self {
        Self { capability, unsealed, identity, id, keys }
    }

    /// Returns the decrypted capability, if it is sealed.
    pub(crate) fn unsealed(&self) -> Option<Capability> {
        self.unsealed.as_deref().copied()
    }

    /// Returns the identity of the key that signed it.
    pub(crate) const fn key(&self) -> KeyIdentity {
        self.identity
    }

    /// Returns the id of the credential in the nonce memory.
    pub(crate) const fn id(&self) -> CredentialId {
        self.id
    }
}

/// The entries of one set, the most recently used first.
type Set<P> = Vec<Arc<ProvenCredential<P>>>;

/// Prepared MAC keys by credential.
pub struct CredentialCache<P: Provider, L: Locks> {
    shards: [L::Mutex<Box<[Set<P>]>>; SHARDS],
    sets: usize,
}

impl<P: Provider, L: Locks> CredentialCache<P, L> {
    /// Bytes of one entry: itself, the two counters of its `Arc`, its place in a set.
    pub const ENTRY_BYTES: usize =
        size_of::<ProvenCredential<P>>() + 2 * size_of::<usize>() + size_of::<Arc<ProvenCredential<P>>>();

    /// Creates an empty cache for about `credentials` entries; it grows as it is used.
    #[must_use]
    pub fn new(credentials: usize) -> Self {
        let sets = (credentials / (SHARDS * WAYS)).next_power_of_two();
        Self {
            shards: core::array::from_fn(|_| L::Mutex::new((0..sets).map(|_| Vec::new()).collect())),
            sets,
        }
    }

    /// Returns the keys of a credential, if possession was proven under the key that is set now.
    #[must_use]
    pub(crate) fn get(
        &self,
        id: CredentialId,
        capability: &CapabilityBytes,
        identity: KeyIdentity,
    ) -> Option<Arc<ProvenCredential<P>>> {
        self.set(id, |set| {
            let at = set.iter().position(|entry| {
                entry.id == id && entry.identity == identity && entry.capability == *capability
            })?;
            set[..=at].rotate_right(1);
            set.first().cloned()
        })
    }

    /// Caches a credential whose request check value has just been verified.
    pub(crate) fn insert(&self, entry: Arc<ProvenCredential<P>>) {
        self.set(entry.id, |set| {
            if set.iter().any(|other| other.id == entry.id && other.identity == entry.identity) {
                return;
            }
            set.truncate(WAYS - 1);
            set.insert(0, entry);
        });
    }

    /// Removes all entries: after a change of the master key, and for a test.
    pub fn clear(&self) {
        for shard in &self.shards {
            shard.with(|sets| sets.iter_mut().for_each(|set| *set = Vec::new()));
        }
    }

    /// Returns the current number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.with(|sets| sets.iter().map(Vec::len).sum::<usize>())).sum()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn set<R>(&self, id: CredentialId, work: impl FnOnce(&mut Set<P>) -> R) -> R {
        let shard = (id.0 >> 60) as usize % SHARDS;
        let at = (id.0 >> 16) as usize & (self.sets - 1);
        self.shards[shard].with(|sets| work(&mut sets[at]))
    }
}
