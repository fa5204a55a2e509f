//! Listing directories from the cache, and detecting changes of a list.

use sealstone_mds_protocol::{DirEntry, FileKind, InodeId, Name, Node, Stat};

use super::{CacheListing, ListEdition, Nodes};
use crate::{Devices, Metadata};

impl<M: Metadata, D: Devices> Nodes<M, D> {
    /// Passes cached entries after `after` to `take`, in byte order, until `take` returns true.
    pub fn list(
        &self,
        directory: Node,
        after: Option<&Name>,
        take: impl FnMut(&Name, InodeId, FileKind) -> bool,
    ) -> CacheListing {
        match self.shared.valid_lease(directory.inode) {
            Some(lease) => self.shared.dentries.list((directory.inode, &lease), after, take),
            None => CacheListing::Upto(None),
        }
    }

    /// Returns up to `limit` cached entries after `after`, and whether there may be more. None if
    /// the attributes of more than a quarter are not cached.
    #[must_use]
    pub fn cached_page(
        &self,
        directory: Node,
        after: Option<&Name>,
        limit: usize,
    ) -> Option<(Vec<DirEntry>, bool)> {
        let mut entries = Vec::new();
        let listed = self.list(directory, after, |name, inode, kind| {
            let full = entries.len() == limit;
            if !full {
                entries.push(DirEntry { name: name.clone(), inode, kind, stat: None });
            }
            full
        });
        let mut unknown = 0;
        for entry in &mut entries {
            entry.stat = self.cached_stat(entry.inode);
            unknown += usize::from(entry.stat.is_none());
        }
        let whole = listed == CacheListing::End;
        let enough = unknown <= entries.len() / 4 && (whole || !entries.is_empty());
        enough.then_some((entries, !whole))
    }

    /// Whether the directory can be listed from the cache.
    #[must_use]
    pub fn is_listable(&self, directory: Node) -> bool {
        let lease = self.shared.valid_lease(directory.inode);
        lease.is_some_and(|lease| self.shared.dentries.is_listable(directory.inode, &lease))
    }

    /// A counter of local changes of names or attributes.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.shared.dentries.changes()
    }

    /// Returns the attributes of an open node, with local changes that `stat` lacks.
    #[must_use]
    pub fn with_local_changes(&self, stat: &Stat) -> Option<Stat> {
        Some(self.shared.open_inode(stat.inode)?.overlay(stat.clone()))
    }

    /// Returns the edition of the directory's list, if it is leased.
    #[must_use]
    pub fn edition(&self, directory: Node) -> Option<ListEdition> {
        let lease = self.shared.valid_lease(directory.inode)?;
        Some(self.shared.dentries.edition(directory.inode, &lease))
    }
}
