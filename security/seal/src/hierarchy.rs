//! The key hierarchy of one device: master, root, partitions, working keys.
//!
//! Does: derive keys from factory seeds and from SET KEY seeds, invalidate what hangs below a changed key, choose
//! the key that signs a capability. Does not: store itself; [`crate::keystore`] gives and takes bytes.
//! Contract: device and MDS run the same functions on the same seeds, so they agree without exchanging a key.
//! Truth: docs/design/security.md 3.6; t10-osd 4.7, 4.8; choices in `docs/standards/security.md`.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use sealstone_osd::{Capability, CapabilityBytes, Descriptor};
use thiserror::Error;

use crate::algorithm::{Algorithm, Hash};
use crate::key::{AuthenticationKey, CapabilityKey, GenerationKey, InitialKey, KeyIdentifier, KeyPair};
use crate::provider::Provider;

/// Bytes of a SET KEY seed, in both generations.
pub const SEED_LEN: usize = 20;
/// Working keys of a partition; the key version nibble of a capability names one.
pub const WORKING_KEYS: usize = 16;
/// Most partitions whose keys one device keeps, partition zero included.
pub const PARTITIONS_MAX: usize = 65_536;
/// The working key version that exists from the factory on.
pub const FACTORY_KEY_VERSION: u8 = 0;
/// First bytes of a factory seed; then level (1 master, 2 root, 3 partition, 4 working), key version, partition id
/// (8 bytes), zero.
pub const FACTORY_SEED: &[u8; 9] = b"sealstone";

/// OSD SYSTEM ID (attribute R+1, 3).
pub type SystemId = [u8; 20];
/// A SET KEY seed.
pub type Seed = [u8; SEED_LEN];

/// Which part of a pair a seed makes: its last bit. The one place where the polarity is chosen.
const GENERATION_BIT: u8 = 0;
const AUTHENTICATION_BIT: u8 = 1;

/// Which key signs a capability (t10-osd 4.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySelector {
    /// The master authentication key: SET KEY root, SET MASTER KEY.
    Master,
    /// The root authentication key: SET KEY partition.
    Root,
    /// A partition's authentication key: SET KEY working.
    Partition(u64),
    /// A working key; partition zero for commands on the root, CREATE PARTITION and REMOVE PARTITION.
    Working {
        /// Partition id, 0 for the root.
        partition: u64,
        /// Key version, 0 to 15.
        version: u8,
    },
}

impl KeySelector {
    /// The working key of the partition that the capability is about.
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
    /// The key above is not set, so nothing can be derived from it.
    #[error("the key one level up is not set")]
    ParentUnset,
    /// No such partition.
    #[error("no partition {0:#x}")]
    NoPartition(u64),
    /// The partition's keys exist already.
    #[error("partition {0:#x} exists")]
    PartitionExists(u64),
    /// Key version above 15.
    #[error("no key version {0}")]
    Version(u8),
    /// [`PARTITIONS_MAX`] reached.
    #[error("no room for the keys of another partition")]
    Full,
}

/// An authentication key ready to sign capabilities.
pub struct SigningKey<P: Provider> {
    pub(crate) secret: AuthenticationKey,
    sha1: P::MacKey,
    sha256: P::MacKey,
    instance: u64,
}

impl<P: Provider> SigningKey<P> {
    /// Prepares the midstates. `instance` is unique within a run: whatever was derived from another instance is void.
    pub(crate) fn new(secret: AuthenticationKey, instance: u64) -> Self {
        let [sha1, sha256] = [Hash::Sha1, Hash::Sha256].map(|hash| P::mac_key(hash, secret.expose()));
        Self { secret, sha1, sha256, instance }
    }

    /// The capability key: MAC over capability and OSD SYSTEM ID.
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

    /// Changes whenever the key is set.
    #[must_use]
    pub const fn instance(&self) -> u64 {
        self.instance
    }
}

/// The master, root or partition key pair in its place.
pub(crate) struct Level<P: Provider> {
    pub(crate) signing: SigningKey<P>,
    pub(crate) generation: GenerationKey,
    pub(crate) identifier: Option<KeyIdentifier>,
}

/// A working key in its place.
pub(crate) struct Working<P: Provider> {
    pub(crate) signing: SigningKey<P>,
    pub(crate) identifier: Option<KeyIdentifier>,
}

/// The keys of one partition.
pub(crate) struct PartitionKeys<P: Provider> {
    pub(crate) pair: Option<Level<P>>,
    pub(crate) working: [Option<Box<Working<P>>>; WORKING_KEYS],
}

impl<P: Provider> PartitionKeys<P> {
    pub(crate) const fn unset() -> Self {
        Self { pair: None, working: [const { None }; WORKING_KEYS] }
    }
}

/// All keys of one device, as the device and its MDS both hold them.
pub struct KeyHierarchy<P: Provider> {
    pub(crate) system_id: SystemId,
    pub(crate) hash: Hash,
    pub(crate) master: Level<P>,
    pub(crate) root: Option<Level<P>>,
    pub(crate) partitions: BTreeMap<u64, PartitionKeys<P>>,
    pub(crate) instances: u64,
}

/// The pair that a seed makes under a generation key.
#[must_use]
pub fn derive_pair<P: Provider>(hash: Hash, parent: &GenerationKey, seed: &Seed) -> KeyPair {
    derive_with::<P>(hash, parent.expose(), seed, &[])
}

/// The working key that a seed makes under a partition's generation key: the authentication part of the pair.
#[must_use]
pub fn derive_working<P: Provider>(hash: Hash, parent: &GenerationKey, seed: &Seed) -> AuthenticationKey {
    derive_pair::<P>(hash, parent, seed).authentication
}

/// The master pair of the factory: both ends know the initial key and the system id.
#[must_use]
pub fn derive_master<P: Provider>(hash: Hash, initial: &InitialKey, system_id: &SystemId) -> KeyPair {
    derive_with::<P>(hash, initial.expose(), &factory_seed(LEVEL_MASTER, 0, 0), system_id)
}

fn derive_with<P: Provider>(hash: Hash, parent: &[u8], seed: &Seed, suffix: &[u8]) -> KeyPair {
    let parent = P::mac_key(hash, parent);
    let tag = |bit: u8| {
        let mut seed = *seed;
        seed[SEED_LEN - 1] = seed[SEED_LEN - 1] & 0xFE | bit;
        P::tag(&parent, &[&seed, suffix])
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

/// The seed that the factory uses in place of a security manager's: public, different for every key.
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
    /// The hierarchy as the device leaves the factory: master, root, partition zero with working key 0.
    #[must_use]
    pub fn factory(hash: Hash, initial: &InitialKey, system_id: SystemId) -> Self {
        let master = derive_master::<P>(hash, initial, &system_id);
        let mut this = Self::bare(hash, system_id, master);
        this.factory_root();
        this.add_partition(0).expect("the root key was just set and no partition exists");
        this
    }

    pub(crate) fn bare(hash: Hash, system_id: SystemId, master: KeyPair) -> Self {
        let master = Level {
            signing: SigningKey::new(master.authentication, 0),
            generation: master.generation,
            identifier: None,
        };
        Self { system_id, hash, master, root: None, partitions: BTreeMap::new(), instances: 1 }
    }

    fn factory_root(&mut self) {
        let pair = derive_pair::<P>(self.hash, &self.master.generation, &factory_seed(LEVEL_ROOT, 0, 0));
        self.root = Some(self.level(pair, None));
    }

    /// OSD SYSTEM ID.
    #[must_use]
    pub const fn system_id(&self) -> &SystemId {
        &self.system_id
    }

    /// The hash with which keys are derived; sets their length.
    #[must_use]
    pub const fn hash(&self) -> Hash {
        self.hash
    }

    /// The key that a selector names; `None` if it is not set.
    #[must_use]
    pub fn signing_key(&self, selector: KeySelector) -> Option<&SigningKey<P>> {
        match selector {
            KeySelector::Master => Some(&self.master.signing),
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

    /// A key to compute with where the right one is not set, so that both refusals cost the same work.
    pub(crate) const fn stand_in(&self) -> &SigningKey<P> {
        &self.master.signing
    }

    /// The identifier of a key (attributes R+5 7FFDh and 7FFEh, P+5 7FFFh and 8000h + version); `None` if it is
    /// unset or still the factory's.
    #[must_use]
    pub fn identifier(&self, selector: KeySelector) -> Option<KeyIdentifier> {
        match selector {
            KeySelector::Master => self.master.identifier,
            KeySelector::Root => self.root.as_ref()?.identifier,
            KeySelector::Partition(partition) => self.partitions.get(&partition)?.pair.as_ref()?.identifier,
            KeySelector::Working { partition, version } => {
                self.partitions.get(&partition)?.working.get(usize::from(version))?.as_ref()?.identifier
            }
        }
    }

    /// A new partition: factory partition pair and working key 0, under the present root key.
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
        let pair =
            derive_pair::<P>(self.hash, &root.generation, &factory_seed(LEVEL_PARTITION, 0, partition));
        let working = derive_working::<P>(
            self.hash,
            &pair.generation,
            &factory_seed(LEVEL_WORKING, FACTORY_KEY_VERSION, partition),
        );
        let mut keys = PartitionKeys::unset();
        keys.pair = Some(self.level(pair, None));
        keys.working[usize::from(FACTORY_KEY_VERSION)] = Some(self.working(working, None));
        self.partitions.insert(partition, keys);
        Ok(())
    }

    /// Forgets the keys of a partition; nothing happens if there are none, or for partition zero.
    pub fn remove_partition(&mut self, partition: u64) {
        if partition != 0 {
            self.partitions.remove(&partition);
        }
    }

    /// Back to the factory's keys below the master: FORMAT OSD. All partitions but zero are gone.
    pub fn format(&mut self) {
        self.partitions.clear();
        self.factory_root();
        self.add_partition(0).expect("the root key was just set and no partition exists");
    }

    /// SET KEY root. All partition and working keys become invalid.
    pub fn set_root(&mut self, seed: &Seed, identifier: KeyIdentifier) {
        let pair = derive_pair::<P>(self.hash, &self.master.generation, seed);
        self.root = Some(self.level(pair, Some(identifier)));
        self.invalidate_partitions();
    }

    /// SET KEY partition. The partition's working keys become invalid.
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
        if !self.partitions.contains_key(&partition) {
            return Err(KeyError::NoPartition(partition));
        }
        let mut keys = PartitionKeys::unset();
        keys.pair = Some(self.level(pair, Some(identifier)));
        self.partitions.insert(partition, keys);
        Ok(())
    }

    /// SET KEY working. Credentials under the old key of this version become invalid.
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
        let keys = self.partitions.get(&partition).ok_or(KeyError::NoPartition(partition))?;
        let parent = keys.pair.as_ref().ok_or(KeyError::ParentUnset)?;
        let key = derive_working::<P>(self.hash, &parent.generation, seed);
        let working = self.working(key, Some(identifier));
        if let Some(keys) = self.partitions.get_mut(&partition) {
            keys.working[usize::from(version)] = Some(working);
        }
        Ok(())
    }

    /// SET MASTER KEY, its last step. Root, partition and working keys become invalid.
    pub fn set_master(&mut self, pair: KeyPair, identifier: KeyIdentifier) {
        self.master = self.level(pair, Some(identifier));
        self.root = None;
        self.invalidate_partitions();
    }

    fn invalidate_partitions(&mut self) {
        self.partitions.values_mut().for_each(|keys| *keys = PartitionKeys::unset());
    }

    pub(crate) fn level(&mut self, pair: KeyPair, identifier: Option<KeyIdentifier>) -> Level<P> {
        Level { signing: self.sign_with(pair.authentication), generation: pair.generation, identifier }
    }

    pub(crate) fn working(
        &mut self,
        key: AuthenticationKey,
        identifier: Option<KeyIdentifier>,
    ) -> Box<Working<P>> {
        Box::new(Working { signing: self.sign_with(key), identifier })
    }

    fn sign_with(&mut self, key: AuthenticationKey) -> SigningKey<P> {
        let instance = self.instances;
        self.instances += 1;
        SigningKey::new(key, instance)
    }
}
