//! A store that seals each secret record.
//!
//! Does: seal secret records on the way into any store and open them on the way out, selected by
//! the first byte of the key.
//! Does not: keep the key of the seal; the server's keystore does.
//! Contract: no secret reaches the store below in plain text. A record that was changed, copied to
//! another key or taken from another store does not open: the transaction fails as `Damaged`. An
//! older value of the same key opens; [`adopt`] says which rollbacks are detected.
//! Truth: docs/standards/mds/store.md §8.

use std::sync::Arc;

use sealstone_crypto::record::{RECORD_OVERHEAD, RecordSeal, STORE_ID_LEN};
use sealstone_mds_protocol::record;
use zeroize::Zeroizing;

use super::{MetaError, MetaStore, Pair, Snapshot, Transaction, VALUE_MAX};
use crate::keys;
use crate::records::{load, save};

const MARK: &str = "keystore";

record! {
    /// The keystore that sealed the store, with a record that only its key opens.
    #[derive(Clone, PartialEq, Eq)]
    pub struct KeystoreMark {
        /// Id of the keystore.
        pub id: [u8; STORE_ID_LEN],
        /// Generation of the keystore.
        pub generation: u64,
        /// An empty record, sealed.
        pub proof: [u8; RECORD_OVERHEAD],
    }
}

/// Fills a buffer with random bytes good enough for nonces.
pub type RandomFill = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

/// Identity of a keystore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeystoreId {
    /// Random number, chosen when the keystore was created.
    pub id: [u8; STORE_ID_LEN],
    /// Grows each time the keystore is sealed again.
    pub generation: u64,
}

/// Reasons why a store cannot be used with a keystore.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The store was sealed by another keystore.
    #[error("the keystore belongs to another metadata store")]
    Other,
    /// The keystore is an old copy.
    #[error("the keystore is an old copy: it has generation {found}, the metadata store expects {least}")]
    KeystoreOld {
        /// Generation of the keystore.
        found: u64,
        /// Generation that the store saw last.
        least: u64,
    },
    /// The store is an old copy.
    #[error(
        "the metadata store is an old copy: it expects generation {found} of the keystore, which has {least}"
    )]
    StoreOld {
        /// Generation that the store saw last.
        found: u64,
        /// Generation of the keystore.
        least: u64,
    },
    /// The store failed.
    #[error("the metadata store cannot be used")]
    Store(#[from] MetaError),
}

/// A store with sealed secrets on top of another store.
pub struct SealedStore {
    inner: Arc<dyn MetaStore>,
    seal: RecordSeal,
    fill: RandomFill,
}

/// Opens a store with a keystore. The store is new, was sealed by this keystore before, or is older
/// than sealing: then all its secrets are sealed in one transaction. Their plain text stays in free
/// pages of the file until those are reused: change the devices' master keys afterwards.
///
/// Generations detect old copies. The keystore's is written first, so it may be one ahead after a
/// crash.
///
/// # Errors
/// [`AdoptError`].
pub fn adopt(
    inner: Arc<dyn MetaStore>,
    seal: RecordSeal,
    keystore: KeystoreId,
    fill: RandomFill,
) -> Result<SealedStore, AdoptError> {
    let this = SealedStore { inner, seal, fill };
    let name = keys::meta(MARK);
    let mark = load::<KeystoreMark, _>(&*this.inner.snapshot()?, &name)?;
    let is_first = mark.is_none();
    if let Some(mark) = mark {
        if mark.id != keystore.id || this.seal.open(&name, &mark.proof).is_err() {
            return Err(AdoptError::Other);
        }
        let (found, recorded) = (keystore.generation, mark.generation);
        if found < recorded {
            return Err(AdoptError::KeystoreOld { found, least: recorded });
        }
        if found > recorded + 1 {
            return Err(AdoptError::StoreOld { found: recorded, least: found });
        }
        if found == recorded {
            return Ok(this);
        }
    }
    let mut tx = this.inner.begin()?;
    if is_first {
        this.seal_all(&mut *tx)?;
    }
    let proof = this.sealed(&name, &[]);
    let proof = proof.try_into().map_err(|_| MetaError::Damaged("proof of the keystore"))?;
    save(&mut *tx, &name, &KeystoreMark { id: keystore.id, generation: keystore.generation, proof })?;
    tx.commit()?;
    Ok(this)
}

/// Whether the secrets of the store are sealed.
///
/// # Errors
/// Those of the store.
pub fn is_sealed(store: &dyn MetaStore) -> Result<bool, MetaError> {
    Ok(load::<KeystoreMark, _>(&*store.snapshot()?, &keys::meta(MARK))?.is_some())
}

/// Removes the mark of the keystore from a store whose setup was interrupted: nothing in it is
/// sealed yet.
///
/// # Errors
/// Those of the store.
pub fn clear_mark(store: &dyn MetaStore) -> Result<(), MetaError> {
    let mut tx = store.begin()?;
    tx.delete(&keys::meta(MARK))?;
    tx.commit()
}

impl SealedStore {
    fn sealed(&self, key: &[u8], value: &[u8]) -> Vec<u8> {
        self.seal.seal(key, value, &mut |into: &mut [u8]| (self.fill)(into))
    }

    fn opened(&self, key: &[u8], value: Vec<u8>) -> Result<Vec<u8>, MetaError> {
        if !keys::is_secret(key) {
            return Ok(value);
        }
        let opened = self.seal.open(key, &value).map_err(|_| {
            MetaError::Damaged("sealed record does not open: changed, moved, or of another keystore")
        })?;
        Ok(opened.to_vec())
    }

    /// Seals all secrets that the store below has in plain text.
    fn seal_all(&self, tx: &mut dyn Transaction) -> Result<(), MetaError> {
        for (from, until) in keys::secrets() {
            for (key, value) in tx.scan(&from, &until, usize::MAX)? {
                let value = Zeroizing::new(value);
                tx.put(&key, &self.sealed(&key, &value))?;
            }
        }
        Ok(())
    }
}

impl MetaStore for SealedStore {
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, MetaError> {
        Ok(Box::new(SealedSnapshot { inner: self.inner.snapshot()?, store: self }))
    }

    fn begin(&self) -> Result<Box<dyn Transaction + '_>, MetaError> {
        Ok(Box::new(SealedTransaction { inner: self.inner.begin()?, store: self }))
    }

    fn settle(&self) -> Result<(), MetaError> {
        self.inner.settle()
    }

    fn accepts_additions(&self) -> bool {
        self.inner.accepts_additions()
    }

    fn wait_for_medium(&self) -> Result<(), MetaError> {
        self.inner.wait_for_medium()
    }

    fn answers_at_once(&self) -> bool {
        self.inner.answers_at_once()
    }

    fn keys_visited(&self) -> u64 {
        self.inner.keys_visited()
    }
}

struct SealedSnapshot<'a> {
    inner: Box<dyn Snapshot + 'a>,
    store: &'a SealedStore,
}

struct SealedTransaction<'a> {
    inner: Box<dyn Transaction + 'a>,
    store: &'a SealedStore,
}

fn get(
    store: &SealedStore,
    view: &(impl Snapshot + ?Sized),
    key: &[u8],
) -> Result<Option<Vec<u8>>, MetaError> {
    view.get(key)?.map(|value| store.opened(key, value)).transpose()
}

fn scan(
    store: &SealedStore,
    view: &(impl Snapshot + ?Sized),
    from: &[u8],
    until: &[u8],
    limit: usize,
) -> Result<Vec<Pair>, MetaError> {
    let pairs = view.scan(from, until, limit)?;
    pairs
        .into_iter()
        .map(|(key, value)| {
            let value = store.opened(&key, value)?;
            Ok((key, value))
        })
        .collect()
}

impl Snapshot for SealedSnapshot<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        get(self.store, &*self.inner, key)
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError> {
        scan(self.store, &*self.inner, from, until, limit)
    }
}

impl Snapshot for SealedTransaction<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        get(self.store, &*self.inner, key)
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError> {
        scan(self.store, &*self.inner, from, until, limit)
    }
}

impl Transaction for SealedTransaction<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), MetaError> {
        if !keys::is_secret(key) {
            return self.inner.put(key, value);
        }
        if value.len() > VALUE_MAX {
            return Err(MetaError::TooLong { limit: VALUE_MAX });
        }
        if value.len() + RECORD_OVERHEAD > VALUE_MAX {
            return Err(MetaError::TooLong { limit: VALUE_MAX - RECORD_OVERHEAD });
        }
        self.inner.put(key, &self.store.sealed(key, value))
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), MetaError> {
        self.inner.delete(key)
    }

    fn commit(self: Box<Self>) -> Result<(), MetaError> {
        self.inner.commit()
    }

    fn commit_lazily(self: Box<Self>) -> Result<(), MetaError> {
        self.inner.commit_lazily()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryMeta;
    use sealstone_mds_protocol::DeviceId;
    use std::sync::atomic::{AtomicU8, Ordering};

    const ID: KeystoreId = KeystoreId { id: [7; STORE_ID_LEN], generation: 1 };

    fn fill() -> RandomFill {
        let next = AtomicU8::new(0);
        Arc::new(move |into| into.fill_with(|| next.fetch_add(29, Ordering::Relaxed)))
    }

    fn seal(secret: u8, id: KeystoreId) -> RecordSeal {
        RecordSeal::new(&[secret; 32], id.id)
    }

    fn sealed(disk: &MemoryMeta) -> SealedStore {
        adopt(Arc::new(disk.clone()), seal(1, ID), ID, fill()).unwrap()
    }

    fn put(store: &dyn MetaStore, pairs: &[(&[u8], &[u8])]) {
        let mut tx = store.begin().unwrap();
        for (key, value) in pairs {
            tx.put(key, value).unwrap();
        }
        tx.commit().unwrap();
    }

    #[test]
    fn sealed_store_passes_contract() {
        // Without the mark of the keystore, because the contract begins with an empty store.
        let fresh = || SealedStore { inner: Arc::new(MemoryMeta::new()), seal: seal(1, ID), fill: fill() };
        super::super::contract::check(&|| Box::new(fresh()));
    }

    #[test]
    fn secrets_are_sealed_in_inner_store() {
        let disk = MemoryMeta::new();
        let store = sealed(&disk);
        let secret = b"the keys of a device, in full";
        let names = [keys::device_key(DeviceId(3)), keys::session(&[4; 16]), keys::meta("login-keys")];
        for name in &names {
            put(&store, &[(name, secret)]);
            assert_eq!(store.snapshot().unwrap().get(name).unwrap().unwrap(), secret);
        }
        put(&store, &[(b"i0", b"an inode is no secret")]);
        let dump = disk.dump();
        assert!(dump.iter().all(|(_, value)| !value.windows(10).any(|bytes| bytes == &secret[..10])));
        assert!(dump.iter().any(|(_, value)| value == b"an inode is no secret"));
        let all = store.snapshot().unwrap().scan(&names[0], &keys::after_prefix(b"k"), 9).unwrap();
        assert_eq!(all, [(names[0].clone(), secret.to_vec())]);
    }

    #[test]
    fn moved_or_changed_sealed_record_is_damaged() {
        let disk = MemoryMeta::new();
        let store = sealed(&disk);
        let [one, other] = [1, 2].map(|id| keys::device_key(DeviceId(id)));
        put(&store, &[(&one, b"key of one"), (&other, b"key of other")]);
        let value = disk.dump().into_iter().find(|(key, _)| *key == one).unwrap().1;
        put(&disk, &[(&other, &value)]);
        let view = store.snapshot().unwrap();
        assert!(matches!(view.get(&other), Err(MetaError::Damaged(_))));
        assert!(view.get(&one).is_ok());
        assert!(matches!(view.scan(b"k", b"l", 9), Err(MetaError::Damaged(_))));
    }

    #[test]
    fn adopt_seals_existing_plain_secrets() {
        let disk = MemoryMeta::new();
        let names = [keys::device_key(DeviceId(3)), keys::session(&[4; 16]), keys::meta("login-keys")];
        for name in &names {
            put(&disk, &[(name, b"an old secret")]);
        }
        disk.fail_after(Some(0));
        assert!(adopt(Arc::new(disk.clone()), seal(1, ID), ID, fill()).is_err());
        disk.fail_after(None);
        for _ in 0..2 {
            let store = sealed(&disk);
            for name in &names {
                assert_eq!(store.snapshot().unwrap().get(name).unwrap().unwrap(), b"an old secret");
            }
        }
        assert!(disk.dump().iter().all(|(_, value)| !value.ends_with(b"secret")));
    }

    #[test]
    fn foreign_keystore_and_old_copies_are_refused() {
        let disk = MemoryMeta::new();
        drop(sealed(&disk));
        let attempt =
            |secret, id: KeystoreId| adopt(Arc::new(disk.clone()), seal(secret, id), id, fill()).err();
        assert!(matches!(attempt(2, ID), Some(AdoptError::Other)));
        assert!(matches!(attempt(1, KeystoreId { id: [8; 16], ..ID }), Some(AdoptError::Other)));
        // A crash leaves the keystore one generation ahead; after that the previous generation is
        // old.
        assert!(attempt(1, KeystoreId { generation: 2, ..ID }).is_none());
        assert!(matches!(attempt(1, ID), Some(AdoptError::KeystoreOld { found: 1, least: 2 })));
        let far = KeystoreId { generation: 5, ..ID };
        assert!(matches!(attempt(1, far), Some(AdoptError::StoreOld { found: 2, least: 5 })));
    }
}
