//! The interface of a metadata store: ordered keys, range scans, transactions.
//!
//! Does: define what a store guarantees.
//! Does not: know the records; `namespace` and the modules beside it do.
//! Contract: a transaction sees one state and its own changes. When `commit` returns `Ok` they are
//! durable; if it fails, or the transaction is dropped, nothing changed. After a crash the store
//! has the state after one of the commits, and at least that of the last `commit` or `settle` that
//! returned. [`contract::check`] runs on every implementation, [`contract::check_crashes`] on those
//! that a test can crash.
//! Truth: docs/standards/mds/store.md §8.

use std::error::Error;

pub mod contract;
mod described;
mod memory;
mod overlay;
mod sealed;

pub use described::{RecordDescription, describe};
pub use memory::MemoryMeta;
pub use overlay::Overlay;
pub use sealed::{AdoptError, KeystoreId, RandomFill, SealedStore, adopt, clear_mark, is_sealed};

/// Maximum length of a key, bytes.
pub const KEY_MAX: usize = 512;
/// Maximum length of a value, bytes.
pub const VALUE_MAX: usize = 65_536;

/// The record that marks a store as set up: setup writes it last.
pub const VERSION_KEY: &[u8] = b"mversion";
/// Exists while a store is being imported.
pub const IMPORTING_KEY: &[u8] = b"mimporting";

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Whether a commit must be durable before its result is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The commit is durable before its result is reported.
    ForMedium,
    /// A crash may discard the change without harm: only for changes of sessions.
    No,
}

/// Errors of a metadata store.
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    /// Another transaction changed the same keys first: the caller runs the transaction again.
    #[error("another transaction changed the same keys")]
    Conflict,
    /// A key or value is over its limit.
    #[error("key or value over the limit of {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// An earlier commit failed, so the durable state is unknown: the store has to be reopened.
    #[error("the metadata store refuses work after a failed commit until it is reopened")]
    Poisoned,
    /// A record does not parse: it is damaged, or a newer version wrote it.
    #[error("metadata record is damaged: {0}")]
    Damaged(&'static str),
    /// The server behind the store is unreachable or does not answer. Nothing was changed: retry
    /// later.
    #[error("metadata store unavailable")]
    Away(#[source] Box<dyn Error + Send + Sync>),
    /// A disk is full. Nothing was changed.
    #[error("no space on the {disk}")]
    Full {
        /// Name of the disk for clients.
        disk: &'static str,
        /// Error of the disk, or of the server behind the store.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The disk or the server behind the store failed.
    #[error("metadata store failed")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
}

/// Name of the disk of the metadata server, for clients.
pub const SERVER_DISK: &str = "disk of the metadata server";

impl MetaError {
    /// Returns the error for a failed operation on the store's disk.
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
    /// Returns the value of a key.
    ///
    /// # Errors
    /// `Away`, `Failed`, `Poisoned`; in a transaction `Conflict`.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError>;

    /// Returns the first `limit` pairs with `from <= key < until`, in byte order of keys.
    ///
    /// # Errors
    /// `Away`, `Failed`, `Poisoned`; in a transaction `Conflict`.
    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError>;
}

/// A state with changes on top. If it is dropped without `commit`, the changes are discarded.
pub trait Transaction: Snapshot {
    /// Sets a key.
    ///
    /// # Errors
    /// `TooLong`, `Failed`.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), MetaError>;

    /// Removes a key, if it exists.
    ///
    /// # Errors
    /// `Failed`.
    fn delete(&mut self, key: &[u8]) -> Result<(), MetaError>;

    /// Makes the changes durable and visible, all at once. Others may see them shortly before they
    /// are durable: see [`MetaStore::wait_for_medium`].
    ///
    /// # Errors
    /// `Conflict`, `Failed`, `Poisoned`: nothing was changed, or the store refuses work until the
    /// outcome is known.
    fn commit(self: Box<Self>) -> Result<(), MetaError>;

    /// Makes the changes visible, all at once, without waiting for the disk. A crash may discard
    /// them together with all later lazy commits. The next `commit` or [`MetaStore::settle`], by
    /// any caller, makes them durable. The default is `commit`.
    ///
    /// # Errors
    /// `Conflict`, `Failed`, `Poisoned`: nothing was changed.
    fn commit_lazily(self: Box<Self>) -> Result<(), MetaError> {
        self.commit()
    }
}

/// A metadata store. All implementations pass [`contract::check`].
pub trait MetaStore: Send + Sync {
    /// Returns the current state.
    ///
    /// # Errors
    /// `Away`, `Failed`, `Poisoned`.
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, MetaError>;

    /// Begins a transaction; may wait until another transaction ends.
    ///
    /// # Errors
    /// `Away`, `Failed`, `Poisoned`.
    fn begin(&self) -> Result<Box<dyn Transaction + '_>, MetaError>;

    /// Makes earlier lazy commits durable. A store that does so by itself within about a second may
    /// do nothing.
    ///
    /// # Errors
    /// `Failed`, `Poisoned`.
    fn settle(&self) -> Result<(), MetaError> {
        Ok(())
    }

    /// Whether changes that add records are accepted. `false` while the disk is short of space: the
    /// rest is for removals, revocations and sessions.
    fn accepts_additions(&self) -> bool {
        true
    }

    /// Waits until all state that may have been read so far is durable. Called before an answer
    /// that depends on reads, so that no answer reports state that a crash can discard.
    ///
    /// # Errors
    /// `Failed`, `Poisoned`.
    fn wait_for_medium(&self) -> Result<(), MetaError> {
        Ok(())
    }

    /// Whether reads take microseconds without waiting while no write is in progress. Always
    /// `false` for a store on another server.
    fn answers_at_once(&self) -> bool {
        false
    }

    /// Returns how many keys scans have stepped over since the store was opened, removed ones
    /// included; 0 if not counted.
    fn keys_visited(&self) -> u64 {
        0
    }
}

/// Records that [`each_record`] reads at once.
const RECORDS_PAGE: usize = 1024;

/// Calls `work` for each record of a state, in order of keys; no key begins with FFh.
///
/// # Errors
/// Those of the store and of `work`; each ends the loop.
pub fn each_record<E: From<MetaError>>(
    view: &dyn Snapshot,
    work: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    each_between(view, &[], &[0xFF], work)
}

/// Calls `work` for each record with `from <= key < until`, in order of keys; reads
/// `RECORDS_PAGE` records at once.
///
/// # Errors
/// Those of the store and of `work`; each ends the loop.
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

/// Refuses keys and values over the limits of every implementation.
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
