//! Directories listed from what is known of them.
//!
//! Contract: only what the server let be listed under the same lease, or was made here: whoever may look names up may not be told them. An
//! edition stays the same only while nothing in the directory changes, here or elsewhere, or what is listed might be older.

use core::ops::Bound;

use sealstone_mds_protocol::{DirEntry, FileKind, InodeId, Lease, Name};

use super::super::shared::lock;
use super::{Directory, Known, Names, number, way};

/// What a directory is listed as: under one lease, with nothing in it changed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edition {
    era: u64,
    lease: u64,
    changes: u64,
}

impl Edition {
    /// Under this lease, after so many changes.
    #[must_use]
    pub const fn new(lease: &Lease, changes: u64) -> Self {
        Self { era: lease.era, lease: lease.number, changes }
    }
}

/// How far a list came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// What comes next is not known, or whoever took it has enough. The last name that was taken, if there was one.
    Upto(Option<Name>),
    /// There is no more.
    End,
}

impl Directory {
    /// A page was told: what is not known of names in its range is that there is nothing.
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
    /// The edition of a directory under the lease that is believed in.
    pub(in super::super) fn edition(&self, directory: InodeId, lease: &Lease) -> Edition {
        Edition::new(lease, lock(&self.0).ways[way(directory)].count)
    }

    /// How many changes of anything were made here.
    pub(in super::super) fn changes(&self) -> u64 {
        lock(&self.0).all.count
    }

    /// Is all of a directory known, and may it be listed, under the lease that is believed in?
    pub(in super::super) fn lists(&self, directory: InodeId, lease: &Lease) -> bool {
        let book = lock(&self.0);
        let one = book.directories.get(&directory).filter(|one| one.lease == number(lease));
        one.is_some_and(|one| one.whole && one.shown)
    }

    /// Shows names after this one, in byte order, until `take` has enough: then it did not take the last one. It must not come
    /// back here.
    pub(in super::super) fn list(
        &self,
        (directory, lease): (InodeId, &Lease),
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
