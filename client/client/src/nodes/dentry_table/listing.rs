//! Listing directories from the cache.
//!
//! Contract: lists only names that the server listed under the same lease, or that were created
//! here, since the right to look up is not the right to list. An edition is the same only while
//! nothing in the directory changed and the list is current.

use core::ops::Bound;

use sealstone_mds_protocol::{DirEntry, FileKind, InodeId, Name, NodeLease};
use tokio::time::Instant;

use super::{CachedDirectory, Dentry, DentryTable, lease_id, stripe};

/// Identifies a state of a directory's list: one lease and a number of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListEdition {
    epoch: u64,
    lease: u64,
    changes: u64,
}

impl ListEdition {
    /// Creates the edition of this lease after `changes` changes.
    #[must_use]
    pub const fn new(lease: &NodeLease, changes: u64) -> Self {
        Self { epoch: lease.epoch, lease: lease.number, changes }
    }
}

/// Where a listing from the cache ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheListing {
    /// Before an entry that is not cached or not taken; with the last name that was taken, if any.
    Upto(Option<Name>),
    /// At the end of the directory.
    End,
}

impl CachedDirectory {
    /// Marks the cached names in the range of a listed page that the page lacks as absent.
    pub(super) fn mark_absent(&mut self, after: Option<&Name>, page: &[DirEntry], more: bool) {
        let until = match page.last() {
            Some(last) if more => Bound::Included(&last.name),
            _ if more => return,
            _ => Bound::Unbounded,
        };
        if let (Some(after), Bound::Included(last)) = (after, until)
            && after >= last
        {
            return;
        }
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        for (_, known) in self.names.range_mut::<Name, _>((from, until)) {
            if *known == Dentry::NotCached {
                *known = Dentry::Absent;
            }
        }
    }
}

impl DentryTable {
    /// Returns the edition of a directory under a valid lease.
    pub(in super::super) fn edition(&self, directory: InodeId, lease: &NodeLease) -> ListEdition {
        ListEdition::new(lease, self.counters[stripe(directory)].count)
    }

    /// Returns the number of local changes.
    pub(in super::super) fn changes(&self) -> u64 {
        self.all.count
    }

    /// Whether all of a directory is cached and may be listed, under a valid lease.
    pub(in super::super) fn is_listable(&self, directory: InodeId, lease: &NodeLease) -> bool {
        let one = self.directories.get(&directory).filter(|one| one.lease == lease_id(lease));
        one.is_some_and(|one| one.complete && one.listable)
    }

    /// Passes names after `after` to `take`, in byte order, until it returns true, which means that
    /// it did not take that one.
    pub(in super::super) fn list(
        &mut self,
        (directory, lease): (InodeId, &NodeLease),
        after: Option<&Name>,
        now: Instant,
        mut take: impl FnMut(&Name, InodeId, FileKind) -> bool,
    ) -> CacheListing {
        let one = self.directories.get_mut(&directory);
        let Some(one) = one.filter(|one| one.lease == lease_id(lease) && one.complete && one.listable) else {
            return CacheListing::Upto(None);
        };
        one.used = now;
        let mut last = None;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        for (name, known) in one.names.range::<Name, _>((from, Bound::Unbounded)) {
            match known {
                Dentry::Absent => {}
                Dentry::Present(node, kind) if !take(name, node.inode, *kind) => last = Some(name),
                Dentry::Present(..) | Dentry::NotCached => return CacheListing::Upto(last.cloned()),
            }
        }
        CacheListing::End
    }
}
