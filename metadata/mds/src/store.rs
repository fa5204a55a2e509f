//! The metadata seam: ordered keys, ranges, transactions.
//!
//! Does: say what a store promises. Does not: know what is stored; everything above is `namespace` and its siblings.
//! Contract: a transaction sees one state and its own changes; when `commit` returns `Ok` they are durable, when it
//! fails or the transaction is dropped nothing happened. What comes back after a crash is the state after one of the
//! commits, and no older one than the last `commit` or `settle` that returned. [`contract::check`] runs on every
//! implementation, [`contract::check_crashes`] on those that a test can let crash.
//! Truth: docs/standards/mds/store.md §8.

use std::error::Error;

pub mod contract;
mod described;
mod memory;
mod overlay;
mod sealed;

pub use described::{Described, describe};
pub use memory::MemoryMeta;
pub use overlay::Overlay;
pub use sealed::{AdoptError, Fill, KeystoreId, SealedStore, adopt, clear_mark, is_sealed};

/// Bytes of a key at most.
pub const KEY_MAX: usize = 512;
/// Bytes of a value at most.
pub const VALUE_MAX: usize = 65_536;

/// The record that makes a store a server's: written last at setup.
pub const VERSION_KEY: &[u8] = b"mversion";
/// There while a store is being imported.
pub const IMPORTING_KEY: &[u8] = b"mimporting";

/// Key and value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Why the store could not do it.
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    /// Another transaction changed the same keys first: run the transaction again.
    #[error("another transaction changed the same keys")]
    Conflict,
    /// A key or value is over its limit.
    #[error("key or value over the limit of {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// A commit failed before, so what is on disk is not known: reopen the store.
    #[error("the metadata store refuses work after a failed commit until it is reopened")]
    Poisoned,
    /// A record does not parse: damage, or a newer version wrote it.
    #[error("metadata record is damaged: {0}")]
    Damaged(&'static str),
    /// The server behind the store cannot be reached, or does not answer. Nothing was done: ask again later.
    #[error("the metadata store is away")]
    Away(#[source] Box<dyn Error + Send + Sync>),
    /// A disk is full. Nothing was done.
    #[error("no space on the {disk}")]
    Full {
        /// Name of the disk for clients.
        disk: &'static str,
        /// Error of the disk, or of the server behind the store.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The medium or the server behind the store failed.
    #[error("metadata store failed")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
}

/// Name of the disk of the metadata server, for clients.
pub const SERVER_DISK: &str = "disk of the metadata server";

impl MetaError {
    /// An error of the medium of the store.
    #[must_use]
    pub fn of_medium(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                Self::Full { disk: SERVER_DISK, source: Box::new(error) }
            }
            _ => Self::Failed(Box::new(error)),
        }
    }
}

/// One state of the store.
pub trait Snapshot {
    /// The value of a key.
    ///
    /// # Errors
    /// `Away`, `Failed`, `Poisoned`; in a transaction `Conflict`.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError>;

    /// The first `limit` pairs with `from <= key < until`, in byte order of keys.
    ///
    /// # Errors
    /// `Away`, `Failed`, `Poisoned`; in a transaction `Conflict`.
    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError>;
}

/// A state with changes on top; dropped without `commit`, the changes never were.
pub trait Transaction: Snapshot {
    /// Sets a key.
    ///
    /// # Errors
    /// `TooLong`, `Failed`.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), MetaError>;

    /// Removes a key; content if it is not there.
    ///
    /// # Errors
    /// `Failed`.
    fn delete(&mut self, key: &[u8]) -> Result<(), MetaError>;

    /// Makes the changes durable and visible, all at once; others may see them a moment before they are durable, see
    /// [`MetaStore::wait_for_medium`].
    ///
    /// # Errors
    /// `Conflict`, `Failed`, `Poisoned`; nothing happened then, or the store takes no more work until it is known.
    fn commit(self: Box<Self>) -> Result<(), MetaError>;

    /// Makes the changes visible, all at once, without waiting for the medium: a crash may take them, and then takes all
    /// that were committed so after them. The next `commit` or [`MetaStore::settle`] of anybody makes them durable. A
    /// store that has no such way commits.
    ///
    /// # Errors
    /// `Conflict`, `Failed`, `Poisoned`; nothing happened then.
    fn commit_lazily(self: Box<Self>) -> Result<(), MetaError> {
        self.commit()
    }
}

/// A store. Its implementations share one contract.
pub trait MetaStore: Send + Sync {
    /// The state as it is now.
    ///
    /// # Errors
    /// `Away`, `Failed`, `Poisoned`.
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, MetaError>;

    /// Begins changes; may wait for another transaction to end.
    ///
    /// # Errors
    /// `Away`, `Failed`, `Poisoned`.
    fn begin(&self) -> Result<Box<dyn Transaction + '_>, MetaError>;

    /// Makes durable what was committed lazily before. A store that does so by itself, within a second or so, need not do
    /// anything.
    ///
    /// # Errors
    /// `Failed`, `Poisoned`.
    fn settle(&self) -> Result<(), MetaError> {
        Ok(())
    }

    /// Whether changes that add something are accepted. `false` while the disk of the store is short of space: what is left
    /// is for removals, revocations and sessions.
    fn accepts_additions(&self) -> bool {
        true
    }

    /// Returns when everything is durable that may have been seen until now and whose maker waits for `commit`. Whoever
    /// answers from what he read calls it first, so that no answer tells what a crash can take back.
    ///
    /// # Errors
    /// `Failed`, `Poisoned`.
    fn wait_for_medium(&self) -> Result<(), MetaError> {
        Ok(())
    }

    /// Is a key read in microseconds, and nothing waited for, as long as nobody begins to write? A store that asks somebody
    /// else never says so.
    fn answers_at_once(&self) -> bool {
        false
    }

    /// Keys that scans have stepped over since the store was opened, removed ones included; 0 if the store does not count.
    fn keys_visited(&self) -> u64 {
        0
    }
}

/// Records that [`each_record`] reads at once.
const RECORDS_PAGE: usize = 1024;

/// Does something with each record of a state, in order of keys; no key begins with FFh.
///
/// # Errors
/// Those of the store and of `work`, which end it.
pub fn each_record<E: From<MetaError>>(
    view: &dyn Snapshot,
    work: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    each_between(view, &[], &[0xFF], work)
}

/// Does something with each record from one key to before another one, in order of keys; a bounded number is read at once.
///
/// # Errors
/// Those of the store and of `work`, which end it.
pub fn each_between<S: Snapshot + ?Sized, E: From<MetaError>>(
    view: &S,
    from: &[u8],
    until: &[u8],
    mut work: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut from = from.to_vec();
    loop {
        let page = view.scan(&from, until, RECORDS_PAGE)?;
        for (key, value) in &page {
            work(key, value)?;
        }
        match page.last() {
            Some((key, _)) if page.len() == RECORDS_PAGE => from = [&key[..], &[0]].concat(),
            _ => return Ok(()),
        }
    }
}

/// Refuses what no implementation takes.
///
/// # Errors
/// `TooLong`.
pub const fn check_limits(key: &[u8], value: &[u8]) -> Result<(), MetaError> {
    if key.len() > KEY_MAX {
        return Err(MetaError::TooLong { limit: KEY_MAX });
    }
    if value.len() > VALUE_MAX {
        return Err(MetaError::TooLong { limit: VALUE_MAX });
    }
    Ok(())
}
