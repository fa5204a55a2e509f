//! Directories listed without asking, and whether a list is still the same.

use sealstone_mds_protocol::{DirEntry, FileKind, InodeId, Name, Node, Stat};

use super::{Edition, Listed, Nodes};
use crate::{Devices, Metadata};

impl<M: Metadata, D: Devices> Nodes<M, D> {
    /// Shows what is known of a directory without asking: names after this one, in byte order, until `take` has enough.
    pub fn list(
        &self,
        directory: Node,
        after: Option<&Name>,
        take: impl FnMut(&Name, InodeId, FileKind) -> bool,
    ) -> Listed {
        match self.shared.leased(directory.inode) {
            Some(lease) => self.shared.names.list((directory.inode, &lease), after, take),
            None => Listed::Upto(None),
        }
    }

    /// A page of at most `limit` entries after this name, and whether there may be more, without asking. None: of many of them not
    /// all is known, as it has to be for whoever looks at each; of a few it may not be.
    #[must_use]
    pub fn page_known(
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
            entry.stat = self.known_node(entry.inode);
            unknown += usize::from(entry.stat.is_none());
        }
        let whole = listed == Listed::End;
        let enough = unknown <= entries.len() / 4 && (whole || !entries.is_empty());
        enough.then_some((entries, !whole))
    }

    /// Is a directory listed without asking?
    #[must_use]
    pub fn lists(&self, directory: Node) -> bool {
        let lease = self.shared.leased(directory.inode);
        lease.is_some_and(|lease| self.shared.names.lists(directory.inode, &lease))
    }

    /// A number that grows with each change that is made here of names, or of what nodes are.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.shared.names.changes()
    }

    /// What is known better here of a node that is open, than whoever told of it knew.
    #[must_use]
    pub fn known_better(&self, stat: &Stat) -> Option<Stat> {
        Some(self.shared.body(stat.inode)?.overlay(stat.clone()))
    }

    /// What a directory is listed as, if it is leased.
    #[must_use]
    pub fn edition(&self, directory: Node) -> Option<Edition> {
        let lease = self.shared.leased(directory.inode)?;
        Some(self.shared.names.edition(directory.inode, &lease))
    }
}
