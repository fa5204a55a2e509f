//! The keys of a device, in memory and in stable storage, and their changes.
//!
//! Does: change keys so that an acknowledged change is durable and a failed one has no effect; one
//! SET MASTER KEY exchange at a time.
//! Does not: check credentials; admission does, with these keys.
//! Contract: a change is made on a copy, stored, and then put into use. It is refused if the key
//! that signed it was changed meanwhile. After a failed store the durable keys are unknown, so
//! further changes are refused until the device is reopened. Everything else continues under the
//! old keys.
//! Truth: docs/design/security.md 3.6, 3.7; docs/design/t10-osd.md 4.7 to 4.9.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use sealstone_crypto::RustCrypto;
use sealstone_scsi::lu::NexusId;
use sealstone_seal::{Hash, InitialKey, KeyError, KeyHierarchy, SignedBy};
use sealstone_store::StoreError;
use zeroize::Zeroizing;

use crate::failure::OsdFailure;
use crate::provision::ProvisionError;

/// Hash for key derivation on this device.
pub(crate) const KEY_HASH: Hash = Hash::Sha256;

/// All keys of a device.
pub(crate) type Keys = KeyHierarchy<RustCrypto>;

/// Stores keys across restarts.
pub trait KeyStore: Send + Sync {
    /// Replaces the stored keys durably before returning. The bytes are secret.
    ///
    /// # Errors
    /// After a restart either the old or the new keys are stored.
    fn persist_keys(&self, keys: &[u8]) -> Result<(), ProvisionError>;
}

/// Stores nothing. For tests, and for devices whose objects do not survive a restart either.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolatileKeys;

impl KeyStore for VolatileKeys {
    fn persist_keys(&self, _: &[u8]) -> Result<(), ProvisionError> {
        Ok(())
    }
}

/// Initial keys of a device, and where changes are stored.
pub struct KeyRecord {
    /// The last stored keys; `None` for a device that still has its factory keys.
    pub stored: Option<Zeroizing<Vec<u8>>>,
    /// Receives changed keys.
    pub store: Box<dyn KeyStore>,
}

impl KeyRecord {
    /// Returns a record without storage: factory keys at every start.
    #[must_use]
    pub fn volatile() -> Self {
        Self { stored: None, store: Box::new(VolatileKeys) }
    }
}

/// A seed exchange that waits for its change step.
pub(crate) struct MasterKeyExchange {
    pub(crate) nexus: NexusId,
    /// Expiry by the device's clock, in milliseconds.
    pub(crate) until_ms: u64,
    pub(crate) client: Vec<u8>,
    pub(crate) device: Vec<u8>,
}

struct KeyStorage {
    store: Box<dyn KeyStore>,
    /// Whether a store failed, so that the durable keys are unknown.
    poisoned: bool,
    exchange: Option<MasterKeyExchange>,
}

/// The keys in use, and their storage.
pub(crate) struct Keyring {
    keys: RwLock<Keys>,
    storage: Mutex<KeyStorage>,
    /// Number of changes of the keys in use.
    version: AtomicU64,
}

impl Keyring {
    /// Opens the keys at a start. Each of `partitions` gets an entry for keys. Keys of others, left
    /// by an interrupted CREATE or REMOVE PARTITION, are dropped unless `may_exist`.
    ///
    /// # Errors
    /// [`KeyringError`] if the stored keys are invalid or cannot be stored.
    pub(crate) fn open(
        record: KeyRecord,
        initial: &InitialKey,
        system_id: [u8; 20],
        partitions: &BTreeSet<u64>,
        may_exist: impl Fn(u64) -> bool,
    ) -> Result<Self, KeyringError> {
        let factory = record.stored.is_none();
        let mut keys = match &record.stored {
            Some(stored) => Keys::decode(stored).map_err(|_| KeyringError::Damaged)?,
            None => Keys::factory(KEY_HASH, initial, system_id),
        };
        if *keys.system_id() != system_id || keys.hash() != KEY_HASH {
            return Err(KeyringError::AnotherDevice);
        }
        let known: BTreeSet<u64> = keys.partitions().collect();
        let mut changed = factory;
        for &orphan in known.difference(partitions).filter(|id| **id != 0 && !may_exist(**id)) {
            // Already retired if REMOVE PARTITION was interrupted.
            keys.forget_partition(orphan);
            changed = true;
        }
        for &id in partitions.difference(&known) {
            // Only a device that never stored its keys has partitions without entries: they have
            // factory keys. Otherwise it is damage, and keys that may have been revoked must not
            // become valid.
            let added = if factory { keys.add_partition(id) } else { keys.add_partition_unset(id) };
            added.map_err(|error| KeyringError::Partition(id, error))?;
            changed = true;
        }
        if changed {
            record.store.persist_keys(&keys.encode()).map_err(KeyringError::Persist)?;
        }
        let storage = KeyStorage { store: record.store, poisoned: false, exchange: None };
        Ok(Self { keys: RwLock::new(keys), storage: Mutex::new(storage), version: AtomicU64::new(0) })
    }

    /// Returns the keys in use.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read()
    }

    /// Returns the number of changes. While it is unchanged, every key is.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    /// Changes keys: on a copy, then in stable storage, then in use. `signed` is the key that
    /// signed the command.
    ///
    /// # Errors
    /// The error of `work`, [`OsdFailure::KeysChanged`], [`OsdFailure::KeyStore`] or `NoSpace`.
    /// After an error the keys are unchanged.
    pub(crate) fn change(
        &self,
        signed: Option<SignedBy>,
        work: impl FnOnce(&mut Keys) -> Result<(), OsdFailure>,
    ) -> Result<(), OsdFailure> {
        self.change_with(signed, |keys, _| work(keys))
    }

    fn change_with(
        &self,
        signed: Option<SignedBy>,
        work: impl FnOnce(&mut Keys, &mut Option<MasterKeyExchange>) -> Result<(), OsdFailure>,
    ) -> Result<(), OsdFailure> {
        let mut storage = self.storage.lock();
        if storage.poisoned {
            return Err(OsdFailure::KeyStore);
        }
        let mut next = self.keys.read().clone();
        // Another change may have been made while this one waited.
        if signed.is_some_and(|signed| !signed.holds(&next)) {
            return Err(OsdFailure::KeysChanged);
        }
        work(&mut next, &mut storage.exchange)?;
        if let Err(error) = storage.store.persist_keys(&next.encode()) {
            if is_disk_full(&error) {
                tracing::error!(%error, "disk full, keys not stored; free space and repeat the change");
                return Err(OsdFailure::Store(StoreError::NoSpace));
            }
            tracing::error!(%error, "keys could not be stored; key changes are refused until the device restarts");
            storage.poisoned = true;
            return Err(OsdFailure::KeyStore);
        }
        self.publish(next);
        Ok(())
    }

    fn publish(&self, next: Keys) {
        *self.keys.write() = next;
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes a partition's keys from use and from stable storage, after the partition was
    /// removed.
    ///
    /// # Errors
    /// [`OsdFailure::KeyStore`]: the keys may reappear at a restart, and are then dropped as
    /// orphans.
    pub(crate) fn forget(&self, work: impl FnOnce(&mut Keys)) -> Result<(), OsdFailure> {
        self.change(None, |keys| {
            work(keys);
            Ok(())
        })
    }

    /// Starts a SET MASTER KEY exchange. `propose` proposes the key pair and returns the values
    /// that the change step must send.
    ///
    /// # Errors
    /// [`OsdFailure::Sequence`] while another exchange is in progress, [`OsdFailure::KeysChanged`],
    /// or the error of `propose`.
    pub(crate) fn begin_exchange(
        &self,
        signed: Option<SignedBy>,
        now_ms: u64,
        propose: impl FnOnce(&mut Keys) -> Result<MasterKeyExchange, OsdFailure>,
    ) -> Result<(), OsdFailure> {
        let mut storage = self.storage.lock();
        if storage.exchange.as_ref().is_some_and(|exchange| now_ms <= exchange.until_ms) {
            return Err(OsdFailure::Sequence);
        }
        let mut next = self.keys.read().clone();
        if signed.is_some_and(|signed| !signed.holds(&next)) {
            return Err(OsdFailure::KeysChanged);
        }
        storage.exchange = Some(propose(&mut next)?);
        // Not stored: a proposal does not survive a restart, and signs nothing but its own
        // acceptance.
        *self.keys.write() = next;
        Ok(())
    }

    /// Runs the change step, which ends the exchange in any case.
    ///
    /// # Errors
    /// [`OsdFailure::Sequence`] if there is no exchange of this nexus, or the error of `check` or
    /// [`Self::change`].
    pub(crate) fn end_exchange(
        &self,
        signed: Option<SignedBy>,
        nexus: NexusId,
        now_ms: u64,
        identifier: [u8; 7],
        check: impl FnOnce(&MasterKeyExchange) -> Result<(), OsdFailure>,
    ) -> Result<(), OsdFailure> {
        let changed = self.change_with(signed, |keys, exchange| {
            let pending = exchange.take().filter(|exchange| exchange.nexus == nexus);
            let pending =
                pending.filter(|exchange| now_ms <= exchange.until_ms).ok_or(OsdFailure::Sequence)?;
            check(&pending)?;
            if keys.accept_master(identifier) { Ok(()) } else { Err(OsdFailure::Sequence) }
        });
        if changed.is_err() {
            self.abandon(|_| true);
        }
        changed
    }

    /// Whether there is an unexpired exchange of this nexus.
    pub(crate) fn awaits_change(&self, nexus: NexusId, now_ms: u64) -> bool {
        let storage = self.storage.lock();
        storage
            .exchange
            .as_ref()
            .is_some_and(|exchange| exchange.nexus == nexus && now_ms <= exchange.until_ms)
    }

    /// Wipes an expired exchange.
    pub(crate) fn expire_exchange(&self, now_ms: u64) {
        self.abandon(|exchange| exchange.until_ms < now_ms);
    }

    /// Wipes the exchange of a lost nexus.
    pub(crate) fn lose(&self, nexus: NexusId) {
        self.abandon(|exchange| exchange.nexus == nexus);
    }

    /// Wipes any exchange: LOGICAL UNIT RESET.
    pub(crate) fn reset(&self) {
        self.abandon(|_| true);
    }

    fn abandon(&self, which: impl FnOnce(&MasterKeyExchange) -> bool) {
        let mut storage = self.storage.lock();
        if storage.exchange.as_ref().is_none_or(which) {
            storage.exchange = None;
            let mut keys = self.keys.write();
            keys.abandon_master();
        }
    }
}

/// Why the keys of a device cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    /// The stored bytes are not a valid key hierarchy.
    #[error("the stored keys are damaged")]
    Damaged,
    /// The stored keys belong to another device.
    #[error("the stored keys belong to another device")]
    AnotherDevice,
    /// The keys of a partition could not be created.
    #[error("cannot create the keys of partition {0:#x}")]
    Partition(u64, #[source] KeyError),
    /// The keys could not be stored.
    #[error("the keys could not be stored")]
    Persist(#[source] ProvisionError),
}

/// Whether keys were not stored because the disk is full, so that the old ones are still stored.
fn is_disk_full(error: &ProvisionError) -> bool {
    let ProvisionError::Io { source, .. } = error else { return false };
    matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sealstone_seal::KeySelector;

    use super::*;

    const SYSTEM: [u8; 20] = [7; 20];

    /// Records every stored version.
    #[derive(Default)]
    struct RecordedKeys(Mutex<Vec<Vec<u8>>>);

    impl KeyStore for Arc<RecordedKeys> {
        fn persist_keys(&self, keys: &[u8]) -> Result<(), ProvisionError> {
            self.0.lock().push(keys.to_vec());
            Ok(())
        }
    }

    fn open(stored: Option<&[u8]>, kept: &Arc<RecordedKeys>, partitions: &[u64]) -> Keyring {
        let record = KeyRecord {
            stored: stored.map(|stored| Zeroizing::new(stored.to_vec())),
            store: Box::new(Arc::clone(kept)),
        };
        let initial = InitialKey::new(&[1; 32]).expect("32 bytes");
        let partitions = partitions.iter().copied().collect();
        Keyring::open(record, &initial, SYSTEM, &partitions, |_| false).expect("keys that open")
    }

    fn has_key(keyring: &Keyring, partition: u64) -> bool {
        keyring.read().signing_key(KeySelector::Working { partition, version: 0 }).is_some()
    }

    #[test]
    fn keys_survive_any_order_of_partitions() {
        let kept = Arc::new(RecordedKeys::default());
        // In the order of a start: visible partitions, then unfinished ones.
        let first = open(None, &kept, &[0x10000, 0x10002, 0x10005, 0x10001, 0x10003]);
        let stored = first.read().encode();
        let again = open(Some(&stored), &kept, &[0x10005, 0x10002, 0x10000, 0x10003, 0x10001]);
        assert!((0x10000..0x10004).chain([0, 0x10005]).all(|partition| has_key(&again, partition)));
        assert_eq!(kept.0.lock().len(), 1, "nothing changed, so nothing was stored");
    }

    /// A disk that is full for this many more calls.
    struct FullDisk(Mutex<u32>);

    impl KeyStore for FullDisk {
        fn persist_keys(&self, _: &[u8]) -> Result<(), ProvisionError> {
            let mut left = self.0.lock();
            let is_full = *left > 0;
            *left = left.saturating_sub(1);
            let source = io::Error::from(io::ErrorKind::StorageFull);
            if is_full { Err(ProvisionError::Io { path: "keys".into(), source }) } else { Ok(()) }
        }
    }

    #[test]
    fn full_disk_refuses_keys_until_space_returns() {
        let keyring = open(None, &Arc::new(RecordedKeys::default()), &[0x10000]);
        keyring.storage.lock().store = Box::new(FullDisk(Mutex::new(2)));
        let add = || keyring.change(None, |keys| keys.add_partition(0x10001).map_err(OsdFailure::Keys));
        for _ in 0..2 {
            assert!(matches!(add(), Err(OsdFailure::Store(StoreError::NoSpace))));
            assert!(!has_key(&keyring, 0x10001));
        }
        assert!(add().is_ok() && has_key(&keyring, 0x10001));
    }

    #[test]
    fn orphan_keys_dropped_and_missing_keys_stay_unset() {
        let kept = Arc::new(RecordedKeys::default());
        let stored = open(None, &kept, &[0x10000, 0x10001]).read().encode();
        let again = open(Some(&stored), &kept, &[0x10001, 0x10002]);
        assert!(!again.read().partitions().any(|partition| partition == 0x10000));
        assert!(has_key(&again, 0x10001) && !has_key(&again, 0x10002));
        let set = again
            .change(None, |keys| keys.set_partition(0x10002, &[1; 20], [1; 7]).map_err(OsdFailure::Keys));
        assert!(set.is_ok(), "SET KEY partition repairs it");
        assert_eq!(kept.0.lock().len(), 3);
    }

    #[test]
    fn foreign_or_damaged_keys_are_refused() {
        let kept = Arc::new(RecordedKeys::default());
        let stored = open(None, &kept, &[]).read().encode();
        let initial = InitialKey::new(&[1; 32]).expect("32 bytes");
        let attempt = |stored: &[u8], system| {
            let stored = Some(Zeroizing::new(stored.to_vec()));
            let record = KeyRecord { stored, store: Box::new(VolatileKeys) };
            Keyring::open(record, &initial, system, &BTreeSet::new(), |_| false).err()
        };
        assert!(matches!(attempt(&stored, [8; 20]), Some(KeyringError::AnotherDevice)));
        assert!(matches!(attempt(&stored[1..], SYSTEM), Some(KeyringError::Damaged)));
    }
}
