//! The key hierarchy of one device: master, root, partitions, working keys.
//!
//! Does: derives keys from factory seeds and from SET KEY seeds, invalidates all keys below a
//! changed one, selects the key that signs a capability.
//! Does not: store itself; [`crate::keystore`] converts it to and from bytes.
//! Contract: device and MDS run the same functions on the same seeds, so they agree without
//! exchanging a key.
//! Source of truth: docs/design/security.md 3.6; t10-osd 4.7, 4.8; choices in
//! `docs/standards/security.md`.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use sealstone_osd::{Capability, CapabilityBytes, Descriptor};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::algorithm::{Algorithm, Hash};
use crate::key::{AuthenticationKey, CapabilityKey, GenerationKey, InitialKey, KeyIdentifier, KeyPair};
use crate::provider::Provider;
use crate::retired::RetiredIds;

/// Bytes of a SET KEY seed, in both generations.
pub const SEED_LEN: usize = 20;
/// Working keys of a partition; the key version nibble of a capability selects one.
pub const WORKING_KEYS: usize = 16;
/// Maximum number of partitions whose keys one device keeps, including partition zero.
pub const PARTITIONS_MAX: usize = 65_536;
/// The working key version that exists in the factory state.
pub const FACTORY_KEY_VERSION: u8 = 0;
/// First bytes of a factory seed; then level (1 master, 2 root, 3 partition, 4 working), key
/// version, partition id (8 bytes), zero.
pub const FACTORY_SEED: &[u8; 9] = b"sealstone";

/// OSD SYSTEM ID (attribute R+1, 3).
pub type SystemId = [u8; 20];
/// A SET KEY seed.
pub type Seed = [u8; SEED_LEN];

/// The last bit of a seed that derives the generation key. The only place where the polarity is
/// chosen.
const GENERATION_BIT: u8 = 0;
const AUTHENTICATION_BIT: u8 = 1;

/// The key that signs a capability (t10-osd 4.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySelector {
    /// The master authentication key: SET KEY root, the seed exchange of SET MASTER KEY.
    Master,
    /// The master authentication key agreed on in a seed exchange: the change step of SET MASTER
    /// KEY.
    NextMaster,
    /// The root authentication key: SET KEY partition.
    Root,
    /// A partition's authentication key: SET KEY working.
    Partition(u64),
    /// A working key; partition zero for commands on the root, CREATE PARTITION and REMOVE
    /// PARTITION.
    Working {
        /// Partition id, 0 for the root.
        partition: u64,
        /// Key version, 0 to 15.
        version: u8,
    },
}

impl KeySelector {
    /// Returns the working key of the partition of the capability.
    #[must_use]
    pub fn of_capability(capability: &Capability) -> Self {
        let partition = match capability.descriptor {
            Descriptor::None => 0,
            Descriptor::User { allowed, .. } | Descriptor::Collection { allowed, .. } => allowed.partition,
            Descriptor::Partition { partition, .. } => partition,
        };
        Self::Working { partition, version: capability.key_version }
    }
}

/// Why a key could not be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// The key above it is not set, so nothing can be derived.
    #[error("the key one level up is not set")]
    ParentUnset,
    /// The partition does not exist.
    #[error("no partition {0:#x}")]
    NoPartition(u64),
    /// The partition's keys exist already.
    #[error("partition {0:#x} exists")]
    PartitionExists(u64),
    /// Key version above 15.
    #[error("no key version {0}")]
    Version(u8),
    /// [`PARTITIONS_MAX`] reached.
    #[error("the maximum number of partitions with keys is reached")]
    Full,
}

/// Label of the MAC that yields a key's identity.
const LABEL_IDENTITY: &[u8] = b"sealstone key identity v1";

/// Label of the MAC that yields a key's identifier.
const LABEL_IDENTIFIER: &[u8] = b"sealstone key identifier v1";

/// Label of the key that authenticates the time.
const LABEL_TIME: &[u8] = b"sealstone time key v1";

/// Identifies a key by its bytes: equal keys have equal identities, on every device, before and
/// after a restart.
///
/// It is the start of a MAC under the key itself, so it reveals nothing about the key and cannot be
/// computed without it. State kept under an identity (a nonce, a cached credential) is valid while
/// a key of these very bytes signs, however often it was set in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyIdentity(pub(crate) [u8; KeyIdentity::LEN]);

impl KeyIdentity {
    /// Bytes of an identity.
    pub const LEN: usize = 16;

    /// Returns the bytes; not secret.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

/// An authentication key that is ready to sign capabilities.
pub struct SigningKey<P: Provider> {
    pub(crate) secret: AuthenticationKey,
    sha1: P::MacKey,
    sha256: P::MacKey,
    identity: KeyIdentity,
}

impl<P: Provider> SigningKey<P> {
    /// Prepares the midstates and the identity.
    pub(crate) fn new(secret: AuthenticationKey) -> Self {
        let [sha1, sha256] = [Hash::Sha1, Hash::Sha256].map(|hash| P::mac_key(hash, secret.expose()));
        let name = P::tag(&sha256, &[LABEL_IDENTITY]);
        let mut identity = [0; KeyIdentity::LEN];
        identity.copy_from_slice(&name.as_bytes()[..KeyIdentity::LEN]);
        Self { secret, sha1, sha256, identity: KeyIdentity(identity) }
    }

    /// Returns the capability key: MAC over capability and OSD SYSTEM ID.
    #[must_use]
    pub fn capability_key(
        &self,
        algorithm: Algorithm,
        capability: &CapabilityBytes,
        system_id: &SystemId,
    ) -> CapabilityKey {
        let key = match algorithm.hash() {
            Hash::Sha1 => &self.sha1,
            Hash::Sha256 => &self.sha256,
        };
        CapabilityKey::from_tag(P::tag(key, &[capability, system_id]))
    }

    /// Returns an identifier for the key, to be sent with SET KEY: the start of a MAC under the key
    /// over a counter. It reveals nothing about the key. Two keys, or one key set twice, have
    /// different identifiers except with probability 2^-56.
    #[must_use]
    pub fn identifier(&self, counter: u64) -> KeyIdentifier {
        let tag = P::tag(&self.sha256, &[LABEL_IDENTIFIER, &counter.to_be_bytes()]);
        let mut identifier = KeyIdentifier::default();
        identifier.copy_from_slice(&tag.as_bytes()[..7]);
        identifier
    }

    /// Derives a key of 32 bytes for another purpose: HMAC-SHA256 under this one over label and
    /// context.
    pub(crate) fn derive(&self, parts: &[&[u8]]) -> [u8; 32] {
        let tag = P::tag(&self.sha256, parts);
        let mut key = [0; 32];
        key.copy_from_slice(tag.as_bytes());
        key
    }

    /// Returns the identity of the key.
    #[must_use]
    pub const fn identity(&self) -> KeyIdentity {
        self.identity
    }
}

/// The key pair of the master, the root or a partition.
pub(crate) struct KeyLevel<P: Provider> {
    pub(crate) signing: SigningKey<P>,
    pub(crate) generation: GenerationKey,
    pub(crate) identifier: Option<KeyIdentifier>,
}

/// A working key with its version.
pub(crate) struct WorkingKeySlot<P: Provider> {
    pub(crate) signing: SigningKey<P>,
    pub(crate) identifier: Option<KeyIdentifier>,
}

/// The keys of one partition.
pub(crate) struct PartitionKeys<P: Provider> {
    pub(crate) pair: Option<Arc<KeyLevel<P>>>,
    pub(crate) working: [Option<Arc<WorkingKeySlot<P>>>; WORKING_KEYS],
}

impl<P: Provider> Clone for PartitionKeys<P> {
    fn clone(&self) -> Self {
        Self { pair: self.pair.clone(), working: self.working.clone() }
    }
}

impl<P: Provider> PartitionKeys<P> {
    pub(crate) const fn unset() -> Self {
        Self { pair: None, working: [const { None }; WORKING_KEYS] }
    }
}

/// All keys of one device; the device and its MDS both keep them.
///
/// A clone shares the keys, at the cost of one reference per partition. So a change can be made on
/// a copy, stored, and then replace the original.
pub struct KeyHierarchy<P: Provider> {
    pub(crate) system_id: SystemId,
    pub(crate) hash: Hash,
    pub(crate) master: Arc<KeyLevel<P>>,
    /// Agreed on by a seed exchange. A device never stores it; its manager does, until it knows
    /// which one is in force.
    pub(crate) next_master: Option<Arc<KeyLevel<P>>>,
    pub(crate) root: Option<Arc<KeyLevel<P>>>,
    pub(crate) partitions: BTreeMap<u64, Arc<PartitionKeys<P>>>,
    /// Partition ids that had keys under the present root key.
    pub(crate) retired: Arc<RetiredIds>,
}

impl<P: Provider> Clone for KeyHierarchy<P> {
    fn clone(&self) -> Self {
        Self {
            system_id: self.system_id,
            hash: self.hash,
            master: Arc::clone(&self.master),
            next_master: self.next_master.clone(),
            root: self.root.clone(),
            partitions: self.partitions.clone(),
            retired: Arc::clone(&self.retired),
        }
    }
}

/// Derives a pair from a seed and a generation key.
#[must_use]
pub fn derive_pair<P: Provider>(hash: Hash, parent: &GenerationKey, seed: &Seed) -> KeyPair {
    derive_with::<P>(hash, parent.expose(), seed, &[])
}

/// Derives a working key from a seed and a partition's generation key: the authentication part of
/// the pair.
#[must_use]
pub fn derive_working<P: Provider>(hash: Hash, parent: &GenerationKey, seed: &Seed) -> AuthenticationKey {
    derive_pair::<P>(hash, parent, seed).authentication
}

/// Derives the factory master pair: both ends know the initial key and the system id.
#[must_use]
pub fn derive_master<P: Provider>(hash: Hash, initial: &InitialKey, system_id: &SystemId) -> KeyPair {
    derive_with::<P>(hash, initial.expose(), &factory_seed(LEVEL_MASTER, 0, 0), system_id)
}

/// Derives two keys from a seed of any length; an empty seed counts as one zero byte.
pub(crate) fn derive_with<P: Provider>(hash: Hash, parent: &[u8], seed: &[u8], suffix: &[u8]) -> KeyPair {
    let parent = P::mac_key(hash, parent);
    let (last, head) = seed.split_last().map_or((0, seed), |(last, head)| (*last, head));
    let tag = |bit: u8| {
        let last = Zeroizing::new([last & 0xFE | bit]);
        P::tag(&parent, &[head, &*last, suffix])
    };
    KeyPair {
        authentication: AuthenticationKey::from_tag(tag(AUTHENTICATION_BIT)),
        generation: GenerationKey::from_tag(tag(GENERATION_BIT)),
    }
}

const LEVEL_MASTER: u8 = 1;
const LEVEL_ROOT: u8 = 2;
const LEVEL_PARTITION: u8 = 3;
const LEVEL_WORKING: u8 = 4;

/// Returns the seed that the factory uses instead of a security manager's: public, different for
/// every key.
#[must_use]
pub fn factory_seed(level: u8, version: u8, partition: u64) -> Seed {
    let mut seed = [0; SEED_LEN];
    seed[..9].copy_from_slice(FACTORY_SEED);
    seed[9] = level;
    seed[10] = version;
    seed[11..19].copy_from_slice(&partition.to_be_bytes());
    seed
}

impl<P: Provider> KeyHierarchy<P> {
    /// Creates the factory hierarchy: master, root, partition zero with working key 0.
    #[must_use]
    pub fn factory(hash: Hash, initial: &InitialKey, system_id: SystemId) -> Self {
        let master = derive_master::<P>(hash, initial, &system_id);
        let mut this = Self::bare(hash, system_id, master);
        this.factory_root();
        this.add_partition(0).expect("the root key was just set and no partition exists");
        this
    }

    pub(crate) fn bare(hash: Hash, system_id: SystemId, master: KeyPair) -> Self {
        let master = level(master, None);
        let (partitions, retired) = (BTreeMap::new(), Arc::default());
        Self { system_id, hash, master, next_master: None, root: None, partitions, retired }
    }

    fn factory_root(&mut self) {
        let pair = derive_pair::<P>(self.hash, &self.master.generation, &factory_seed(LEVEL_ROOT, 0, 0));
        self.root = Some(level(pair, None));
    }

    /// Returns the OSD SYSTEM ID.
    #[must_use]
    pub const fn system_id(&self) -> &SystemId {
        &self.system_id
    }

    /// Returns the hash with which keys are derived; it sets their length.
    #[must_use]
    pub const fn hash(&self) -> Hash {
        self.hash
    }

    /// Returns the selected key; `None` if it is not set.
    #[must_use]
    pub fn signing_key(&self, selector: KeySelector) -> Option<&SigningKey<P>> {
        match selector {
            KeySelector::Master => Some(&self.master.signing),
            KeySelector::NextMaster => self.next_master.as_ref().map(|level| &level.signing),
            KeySelector::Root => self.root.as_ref().map(|level| &level.signing),
            KeySelector::Partition(partition) => {
                self.partitions.get(&partition)?.pair.as_ref().map(|level| &level.signing)
            }
            KeySelector::Working { partition, version } => self
                .partitions
                .get(&partition)?
                .working
                .get(usize::from(version))?
                .as_ref()
                .map(|working| &working.signing),
        }
    }

    /// Returns the key that authenticates the time between device and manager. It is derived from
    /// the root authentication key, so that both have it from the first key on and it changes with
    /// the root key. `None` while that is not set.
    #[must_use]
    pub fn time_key(&self) -> Option<Zeroizing<[u8; 32]>> {
        let root = self.signing_key(KeySelector::Root)?;
        Some(Zeroizing::new(root.derive(&[LABEL_TIME, &self.system_id])))
    }

    /// Whether the selected key is still the one with this identity.
    #[must_use]
    pub fn holds(&self, selector: KeySelector, identity: KeyIdentity) -> bool {
        self.signing_key(selector).is_some_and(|key| key.identity == identity)
    }

    /// Returns a key to compute with where the right one is not set, so that both refusals cost the
    /// same work.
    pub(crate) fn stand_in(&self) -> &SigningKey<P> {
        &self.master.signing
    }

    /// Returns the identifier of a key (attributes R+5 7FFDh and 7FFEh, P+5 7FFFh and 8000h +
    /// version); `None` if it is unset or still the factory's.
    #[must_use]
    pub fn identifier(&self, selector: KeySelector) -> Option<KeyIdentifier> {
        match selector {
            KeySelector::Master => self.master.identifier,
            KeySelector::NextMaster => None,
            KeySelector::Root => self.root.as_ref()?.identifier,
            KeySelector::Partition(partition) => self.partitions.get(&partition)?.pair.as_ref()?.identifier,
            KeySelector::Working { partition, version } => {
                self.partitions.get(&partition)?.working.get(usize::from(version))?.as_ref()?.identifier
            }
        }
    }

    /// Adds a partition with factory pair and working key 0, under the present root key. If its id
    /// had keys under that root key before, it has none until SET KEY partition: factory keys would
    /// make old credentials valid again, and anyone who knew the old keys would know them again.
    ///
    /// # Errors
    /// [`KeyError::ParentUnset`], [`KeyError::PartitionExists`], [`KeyError::Full`].
    pub fn add_partition(&mut self, partition: u64) -> Result<(), KeyError> {
        if self.partitions.contains_key(&partition) {
            return Err(KeyError::PartitionExists(partition));
        }
        if self.partitions.len() >= PARTITIONS_MAX {
            return Err(KeyError::Full);
        }
        let root = self.root.as_ref().ok_or(KeyError::ParentUnset)?;
        if self.retired.contains(partition) {
            return self.add_partition_unset(partition);
        }
        let pair =
            derive_pair::<P>(self.hash, &root.generation, &factory_seed(LEVEL_PARTITION, 0, partition));
        let working = derive_working::<P>(
            self.hash,
            &pair.generation,
            &factory_seed(LEVEL_WORKING, FACTORY_KEY_VERSION, partition),
        );
        let mut keys = PartitionKeys::unset();
        keys.pair = Some(level(pair, None));
        keys.working[usize::from(FACTORY_KEY_VERSION)] = Some(working_key(working, None));
        self.partitions.insert(partition, Arc::new(keys));
        Ok(())
    }

    /// Adds a partition whose keys are lost: it has none until SET KEY partition.
    ///
    /// # Errors
    /// [`KeyError::PartitionExists`], [`KeyError::Full`].
    pub fn add_partition_unset(&mut self, partition: u64) -> Result<(), KeyError> {
        if self.partitions.contains_key(&partition) {
            return Err(KeyError::PartitionExists(partition));
        }
        if self.partitions.len() >= PARTITIONS_MAX {
            return Err(KeyError::Full);
        }
        self.partitions.insert(partition, Arc::new(PartitionKeys::unset()));
        Ok(())
    }

    /// Returns the partitions that have a place for keys, including zero, ascending.
    pub fn partitions(&self) -> impl Iterator<Item = u64> {
        self.partitions.keys().copied()
    }

    /// Retires a partition at the start of REMOVE PARTITION: its keys stay until the partition is
    /// removed, but a later partition of the same id does not get the factory keys. Does nothing if
    /// there are no keys, or for partition zero.
    pub fn retire_partition(&mut self, partition: u64) {
        if partition != 0 && self.partitions.contains_key(&partition) {
            Arc::make_mut(&mut self.retired).insert(partition);
        }
    }

    /// Retires all partitions but zero, at the start of FORMAT OSD.
    pub fn retire_all(&mut self) {
        let ids: Vec<u64> = self.partitions.keys().copied().filter(|id| *id != 0).collect();
        ids.into_iter().for_each(|id| self.retire_partition(id));
    }

    /// Whether a new partition of this id starts without keys.
    #[must_use]
    pub fn is_retired(&self, partition: u64) -> bool {
        self.retired.contains(partition)
    }

    /// Removes the keys of a partition permanently; does nothing if there are none, or for
    /// partition zero.
    pub fn remove_partition(&mut self, partition: u64) {
        self.retire_partition(partition);
        self.forget_partition(partition);
    }

    /// Removes the keys of a partition whose creation failed, so that they were never used. A
    /// retired id stays retired.
    pub fn forget_partition(&mut self, partition: u64) {
        if partition != 0 {
            self.partitions.remove(&partition);
        }
    }

    /// Applies FORMAT OSD: removes all partitions but zero. The root key and the keys of partition
    /// zero stay: returning to the factory keys would make credentials valid again that SET KEY
    /// revoked.
    pub fn format(&mut self) {
        self.retire_all();
        self.partitions.retain(|partition, _| *partition == 0);
    }

    /// Applies SET KEY root. All partition and working keys become invalid.
    pub fn set_root(&mut self, seed: &Seed, identifier: KeyIdentifier) {
        let pair = derive_pair::<P>(self.hash, &self.master.generation, seed);
        self.root = Some(level(pair, Some(identifier)));
        self.invalidate_partitions();
    }

    /// Applies SET KEY partition. The partition's working keys become invalid.
    ///
    /// # Errors
    /// [`KeyError::ParentUnset`], [`KeyError::NoPartition`].
    pub fn set_partition(
        &mut self,
        partition: u64,
        seed: &Seed,
        identifier: KeyIdentifier,
    ) -> Result<(), KeyError> {
        let root = self.root.as_ref().ok_or(KeyError::ParentUnset)?;
        let pair = derive_pair::<P>(self.hash, &root.generation, seed);
        let keys = self.partitions.get_mut(&partition).ok_or(KeyError::NoPartition(partition))?;
        *keys =
            Arc::new(PartitionKeys { pair: Some(level(pair, Some(identifier))), ..PartitionKeys::unset() });
        Ok(())
    }

    /// Applies SET KEY working. Credentials under the old key of this version become invalid.
    ///
    /// # Errors
    /// [`KeyError::Version`], [`KeyError::NoPartition`], [`KeyError::ParentUnset`].
    pub fn set_working(
        &mut self,
        partition: u64,
        version: u8,
        seed: &Seed,
        identifier: KeyIdentifier,
    ) -> Result<(), KeyError> {
        if usize::from(version) >= WORKING_KEYS {
            return Err(KeyError::Version(version));
        }
        let keys = self.partitions.get_mut(&partition).ok_or(KeyError::NoPartition(partition))?;
        let parent = keys.pair.as_ref().ok_or(KeyError::ParentUnset)?;
        let key = derive_working::<P>(self.hash, &parent.generation, seed);
        Arc::make_mut(keys).working[usize::from(version)] = Some(working_key(key, Some(identifier)));
        Ok(())
    }

    /// Removes a working key, under which no more credentials are issued.
    pub fn unset_working(&mut self, partition: u64, version: u8) {
        if let Some(keys) = self.partitions.get_mut(&partition)
            && let Some(slot) = Arc::make_mut(keys).working.get_mut(usize::from(version))
        {
            *slot = None;
        }
    }

    /// Applies the last step of SET MASTER KEY. Root, partition and working keys become invalid.
    pub fn set_master(&mut self, pair: KeyPair, identifier: KeyIdentifier) {
        self.put_master(level(pair, Some(identifier)));
    }

    /// Sets the proposed master pair after the seed exchange of SET MASTER KEY: it signs the change
    /// step and nothing else.
    pub fn propose_master(&mut self, pair: KeyPair) {
        self.next_master = Some(level(pair, None));
    }

    /// Wipes the keys of a failed exchange.
    pub fn abandon_master(&mut self) {
        self.next_master = None;
    }

    /// Applies the change step of SET MASTER KEY: the proposed pair becomes the master key. Returns
    /// `false` if there is none.
    pub fn accept_master(&mut self, identifier: KeyIdentifier) -> bool {
        let Some(next) = self.next_master.take() else { return false };
        let pair =
            KeyPair { authentication: next.signing.secret.clone(), generation: next.generation.clone() };
        self.put_master(level(pair, Some(identifier)));
        true
    }

    fn put_master(&mut self, master: Arc<KeyLevel<P>>) {
        self.master = master;
        self.next_master = None;
        self.root = None;
        self.invalidate_partitions();
    }

    /// With a new root key, no key ever derived below the old one can be derived again.
    fn invalidate_partitions(&mut self) {
        self.retired = Arc::default();
        let unset = Arc::new(PartitionKeys::unset());
        self.partitions.values_mut().for_each(|keys| *keys = Arc::clone(&unset));
    }
}

pub(crate) fn level<P: Provider>(pair: KeyPair, identifier: Option<KeyIdentifier>) -> Arc<KeyLevel<P>> {
    let signing = SigningKey::new(pair.authentication);
    Arc::new(KeyLevel { signing, generation: pair.generation, identifier })
}

pub(crate) fn working_key<P: Provider>(
    key: AuthenticationKey,
    identifier: Option<KeyIdentifier>,
) -> Arc<WorkingKeySlot<P>> {
    Arc::new(WorkingKeySlot { signing: SigningKey::new(key), identifier })
}
