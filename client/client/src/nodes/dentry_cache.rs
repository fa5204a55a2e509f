//! The dentry table of a mount, with its lock.
//!
//! Does: locks the table; ends local changes whose requests are cancelled.
//! Does not: decide what is cached; `dentry_table` does.
//! Contract: the lock is acquired after the locks of the lease table and of the name queue.

use parking_lot::Mutex;
use sealstone_mds_protocol::{InodeId, Name, NodeLease, Stat};
use tokio::time::Instant;

use super::dentry_table::{ChangeOutcome, Dentry, DentryTable, LocalChange};

/// The cache of a file system.
#[derive(Debug)]
pub(super) struct DentryCache(Mutex<DentryTable>);

impl DentryCache {
    pub(super) fn new() -> Self {
        Self(Mutex::new(DentryTable::new()))
    }

    /// Runs `work` under the lock.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut DentryTable) -> T) -> T {
        work(&mut self.0.lock())
    }

    /// Announces a local change of names, or of attributes (without a name).
    pub(super) fn begin_change<'a>(&'a self, parts: &[(InodeId, Option<&'a Name>)]) -> LocalChangeGuard<'a> {
        let change = self.with(|table| table.begin_change(parts, Instant::now()));
        LocalChangeGuard { cache: self, change, is_ended: false }
    }
}

/// A local change whose request is in progress. Its outcome is unknown if it is dropped.
pub(super) struct LocalChangeGuard<'a> {
    cache: &'a DentryCache,
    change: LocalChange<'a>,
    is_ended: bool,
}

impl LocalChangeGuard<'_> {
    /// Records that the change was not done.
    pub(super) fn refused(self) {
        self.end(ChangeOutcome::Refused);
    }

    /// Records that the change was done: `entries` has the new entries in the order of the names,
    /// `others` the nodes to drop.
    pub(super) fn done(self, entries: &[Dentry], others: &[InodeId]) {
        self.end(ChangeOutcome::Done { entries, others });
    }

    fn end(mut self, outcome: ChangeOutcome<'_>) {
        self.is_ended = true;
        self.cache.with(|table| table.end_change(&self.change, outcome, Instant::now()));
    }

    /// Whether the created node may have been changed here before the answer arrived.
    pub(super) fn may_be_outdated(&self) -> bool {
        self.cache.with(|table| table.may_be_outdated(&self.change))
    }

    /// Caches a new leased directory as complete and empty, unless something was changed since.
    /// `is_listable`: whether its creator may list it.
    pub(super) fn record_created_directory(&self, lease: &NodeLease, stat: &Stat, is_listable: bool) {
        let (stat, now) = ((stat, is_listable), Instant::now());
        self.cache.with(|table| table.record_created_directory(&self.change, lease, stat, now));
    }
}

impl Drop for LocalChangeGuard<'_> {
    fn drop(&mut self) {
        if !self.is_ended {
            let (outcome, now) = (ChangeOutcome::Unknown, Instant::now());
            self.cache.with(|table| table.end_change(&self.change, outcome, now));
        }
    }
}
