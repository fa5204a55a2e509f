//! Listing directories from the cache.
//!
//! Contract: lists only names that the server listed under the same lease, or that were created
//! here, since the right to look up is not the right to list. An edition is the same only while
//! nothing in the directory changed and the list is current.

use core::ops::Bound;

use sealstone_mds_protocol::{DirEntry, FileKind, InodeId, Name, NodeLease};

use super::super::shared::lock;
use super::{Directory, Known, Names, number, way};

/// Identifies a state of a directory's list: one lease and a number of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edition {
    epoch: u64,
    lease: u64,
    changes: u64,
}

impl Edition {
    /// Creates the edition of this lease after `changes` changes.
    #[must_use]
    pub const fn new(lease: &NodeLease, changes: u64) -> Self {
        Self { epoch: lease.epoch, lease: lease.number, changes }
    }
}

/// Where a listing from the cache ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// Before an entry that is not cached or not taken; with the last name that was taken, if any.
    Upto(Option<Name>),
    /// At the end of the directory.
    End,
}

impl Directory {
    /// Marks the cached names in the range of a listed page that the page lacks as absent.
    pub(super) fn has_no_others(&mut self, after: Option<&Name>, page: &[DirEntry], more: bool) {
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
            if *known == Known::Unknown {
                *known = Known::Nothing;
            }
        }
    }
}

impl Names {
    /// Returns the edition of a directory under a valid lease.
    pub(in super::super) fn edition(&self, directory: InodeId, lease: &NodeLease) -> Edition {
        Edition::new(lease, lock(&self.0).ways[way(directory)].count)
    }

    /// Returns the number of local changes.
    pub(in super::super) fn changes(&self) -> u64 {
        lock(&self.0).all.count
    }

    /// Whether all of a directory is cached and may be listed, under a valid lease.
    pub(in super::super) fn lists(&self, directory: InodeId, lease: &NodeLease) -> bool {
        let book = lock(&self.0);
        let one = book.directories.get(&directory).filter(|one| one.lease == number(lease));
        one.is_some_and(|one| one.whole && one.shown)
    }

    /// Passes names after `after` to `take`, in byte order, until it returns true, which means that
    /// it did not take that one. `take` must not call this cache.
    pub(in super::super) fn list(
        &self,
        (directory, lease): (InodeId, &NodeLease),
        after: Option<&Name>,
        mut take: impl FnMut(&Name, InodeId, FileKind) -> bool,
    ) -> Listed {
        let book = &mut *lock(&self.0);
        let one = book.directories.get_mut(&directory);
        let Some(one) = one.filter(|one| one.lease == number(lease) && one.whole && one.shown) else {
            return Listed::Upto(None);
        };
        one.used = tokio::time::Instant::now();
        let mut last = None;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        for (name, known) in one.names.range::<Name, _>((from, Bound::Unbounded)) {
            match known {
                Known::Nothing => {}
                Known::There(node, kind) if !take(name, node.inode, *kind) => last = Some(name),
                Known::There(..) | Known::Unknown => return Listed::Upto(last.cloned()),
            }
        }
        Listed::End
    }
}
