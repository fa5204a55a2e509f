//! Invalidation of caches of several servers on one store.
//!
//! Does: count changes of users and of devices in the store, in the transaction of the change.
//! Does not: reload what changed; `shared` does.
//! Contract: a change of devices or their keys is based on the store, never on a server's cache: if
//! another server was faster, the transaction fails with `Conflict`.
//! Truth: docs/adr/0038-several-servers-one-database.md.

use std::sync::Arc;

use parking_lot::Mutex;
use sealstone_mds_protocol::record;

use crate::keys;
use crate::records::{load, save};
use crate::store::{MetaError, MetaStore, Pair, Snapshot, Transaction};

/// Name of the record of the counters.
pub(crate) const EPOCHS: &str = "epochs";

record! {
    /// Counters of changes of state that servers cache.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CacheEpochs {
        /// Changes of accounts and groups, and ends of sessions.
        pub accounts: u64,
        /// Changes of devices and their keys.
        pub devices: u64,
    }
}

/// Which caches a transaction invalidates.
#[derive(Clone, Copy, Default)]
struct TouchedCaches {
    accounts: bool,
    devices: bool,
}

impl TouchedCaches {
    fn add(&mut self, key: &[u8], deleted: bool) {
        self.devices |= keys::is_device_record(key);
        // New sessions and their times of use are read when needed, but the end of a session must
        // be noticed.
        self.accounts |= keys::is_account_record(key) || deleted && keys::is_session(key);
    }
}

/// A store that counts changes of cached state.
pub(crate) struct SharedStore {
    inner: Arc<dyn MetaStore>,
    seen: Arc<Mutex<CacheEpochs>>,
}

impl SharedStore {
    pub(crate) fn new(inner: Arc<dyn MetaStore>, seen: Arc<Mutex<CacheEpochs>>) -> Self {
        Self { inner, seen }
    }
}

impl MetaStore for SharedStore {
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, MetaError> {
        self.inner.snapshot()
    }

    fn begin(&self) -> Result<Box<dyn Transaction + '_>, MetaError> {
        // Before anything is read: the cache may be newer than this, never older.
        let based_on = *self.seen.lock();
        let inner = self.inner.begin()?;
        Ok(Box::new(SharedTransaction { inner, store: self, based_on, touched: TouchedCaches::default() }))
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

struct SharedTransaction<'a> {
    inner: Box<dyn Transaction + 'a>,
    store: &'a SharedStore,
    based_on: CacheEpochs,
    touched: TouchedCaches,
}

impl Snapshot for SharedTransaction<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        self.inner.get(key)
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError> {
        self.inner.scan(from, until, limit)
    }
}

impl Transaction for SharedTransaction<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), MetaError> {
        self.touched.add(key, false);
        self.inner.put(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), MetaError> {
        self.touched.add(key, true);
        self.inner.delete(key)
    }

    fn commit(self: Box<Self>) -> Result<(), MetaError> {
        self.commit_by(|inner| inner.commit())
    }

    fn commit_lazily(self: Box<Self>) -> Result<(), MetaError> {
        self.commit_by(|inner| inner.commit_lazily())
    }
}

type CommitResult = Result<(), MetaError>;

impl<'a> SharedTransaction<'a> {
    /// Counts changes of cached state in the same transaction, then commits.
    fn commit_by(self, commit: impl FnOnce(Box<dyn Transaction + 'a>) -> CommitResult) -> CommitResult {
        let Self { mut inner, store, based_on, touched } = self;
        if !touched.accounts && !touched.devices {
            return commit(inner);
        }
        let key = keys::meta(EPOCHS);
        let now: CacheEpochs = load(&*inner, &key)?.unwrap_or_default();
        if touched.devices && now.devices != based_on.devices {
            // Based on state that another server has changed since.
            return Err(MetaError::Conflict);
        }
        let next = CacheEpochs {
            accounts: now.accounts + u64::from(touched.accounts),
            devices: now.devices + u64::from(touched.devices),
        };
        save(&mut *inner, &key, &next)?;
        commit(inner)?;
        // Own changes need not be reloaded, unless another change came before.
        let mut seen = store.seen.lock();
        if seen.accounts == now.accounts {
            seen.accounts = next.accounts;
        }
        if seen.devices == now.devices {
            seen.devices = next.devices;
        }
        Ok(())
    }
}
