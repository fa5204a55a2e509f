//! Listing directories, by requests and from the cache, and detecting changes of a list.

use sealstone_mds_protocol::{DirEntry, FileKind, InodeId, Name, Node, PAGE_MAX, Request, Response, Stat};
use tokio::time::Instant;

use super::{CacheListing, ListEdition, Nodes};
use crate::{ClientError, Devices, Metadata};

/// Maximum pages that [`Nodes::list_in_background`] fetches of a directory after lookups that found
/// nothing.
const LISTED_PAGES_MAX: usize = 16;

impl<M: Metadata, D: Devices> Nodes<M, D> {
    /// Reads a page of a directory in byte order of names, starting after `after`; the flag says
    /// whether there may be more.
    ///
    /// # Errors
    /// `Refused` with `NotFound`, `NotADirectory` or `Denied` among others.
    pub async fn read_directory(
        &self,
        directory: Node,
        after: Option<Name>,
    ) -> Result<(Vec<DirEntry>, bool), ClientError> {
        let snapshot = self.shared.dentries.with(|table| table.snapshot(directory.inode, Instant::now()));
        let client_id = self.shared.client_id_for_leases();
        let request = Request::ReadNodes { directory, after: after.clone(), limit: PAGE_MAX, client_id };
        let (mut entries, more) = match self.shared.call(&request).await? {
            Response::Directory { entries, more } => (entries, more),
            Response::Listed { entries, more, lease } => {
                self.shared.record_grant(directory.inode, lease);
                let (page, now) = ((entries.as_slice(), more), Instant::now());
                self.shared.dentries.with(|table| {
                    table.record_listing(&snapshot, &lease, after.as_ref(), page, now);
                });
                (entries, more)
            }
            _ => return Err(ClientError::OTHER_ANSWER),
        };
        for entry in &mut entries {
            if let Some(stat) = &mut entry.stat
                && let Some(open_inode) = self.shared.open_inode(stat.inode)
            {
                *stat = open_inode.overlay(stat.clone());
            }
        }
        let more = more && !entries.is_empty();
        Ok((entries, more))
    }

    /// Lists the whole directory in the background after repeated misses, so that later misses need
    /// no request. Stops after [`LISTED_PAGES_MAX`] pages.
    pub(super) fn list_in_background(&self, directory: Node) {
        let nodes = self.clone();
        self.shared.runtime.spawn(async move {
            let mut after = None;
            for _ in 0..LISTED_PAGES_MAX {
                let Ok((entries, more)) = nodes.read_directory(directory, after).await else { return };
                after = entries.into_iter().next_back().map(|entry| entry.name);
                if !more || after.is_none() {
                    return;
                }
            }
        });
    }

    /// Passes cached entries after `after` to `take`, in byte order, until `take` returns true.
    pub fn list(
        &self,
        directory: Node,
        after: Option<&Name>,
        take: impl FnMut(&Name, InodeId, FileKind) -> bool,
    ) -> CacheListing {
        match self.shared.valid_lease(directory.inode) {
            Some(lease) => self
                .shared
                .dentries
                .with(|table| table.list((directory.inode, &lease), after, Instant::now(), take)),
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
        lease.is_some_and(|lease| {
            self.shared.dentries.with(|table| table.is_listable(directory.inode, &lease))
        })
    }

    /// A counter of local changes of names or attributes.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.shared.dentries.with(|table| table.changes())
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
        Some(self.shared.dentries.with(|table| table.edition(directory.inode, &lease)))
    }
}
