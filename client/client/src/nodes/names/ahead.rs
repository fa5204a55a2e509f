//! Local changes of cached names under a directory delegation.
//!
//! Contract: each function changes the cache only if the entries are certain, and otherwise does
//! nothing. Answers to earlier requests are not cached after it.

use sealstone_mds_protocol::{DirLeaseId, FileKind, InodeId, Name, Node, NodeLease, Stat};

use super::super::shared::lock;
use super::{Book, Known, Names, Under, number, way};

/// A name in a directory with a delegation.
#[derive(Clone, Copy)]
pub(in super::super) struct Place<'a> {
    pub(in super::super) directory: DirLeaseId,
    pub(in super::super) name: &'a Name,
}

impl Book {
    /// Returns the certain entry of a name; none if it is being changed or has to be looked up.
    fn sure(&self, place: Place<'_>) -> Option<Option<(Node, FileKind)>> {
        let Place { directory: DirLeaseId { inode, epoch, lease }, name } = place;
        let one = self.directories.get(&inode).filter(|one| one.lease == (epoch, lease))?;
        if self.pending.contains_key(&(inode, name.clone())) {
            return None;
        }
        match one.names.get(name) {
            Some(Known::There(node, kind)) => Some(Some((*node, *kind))),
            Some(Known::Nothing) => Some(None),
            Some(Known::Unknown) => None,
            None if one.whole => Some(None),
            None => None,
        }
    }

    /// Records a change in a directory, with the attributes that the server will set.
    fn touch(&mut self, DirLeaseId { inode, .. }: DirLeaseId, at_ms: u64) {
        self.ways[way(inode)].count += 1;
        self.all.count += 1;
        if let Some((_, stat)) = self.nodes.get_mut(&inode) {
            stat.mtime_ns = Stat::ns(at_ms);
            stat.ctime_ns = Stat::changed_ns(stat.ctime_ns, at_ms);
            stat.version += 1;
        }
    }

    /// Records a change of a node, which makes results of changes in progress outdated.
    fn changed(&mut self, node: InodeId, at_ms: u64) {
        self.of_nodes += 1;
        if let Some((_, stat)) = self.nodes.get_mut(&node) {
            stat.ctime_ns = Stat::changed_ns(stat.ctime_ns, at_ms);
        }
    }
}

impl Names {
    /// Returns the certain entry of a name.
    pub(in super::super) fn sure(&self, place: Place<'_>) -> Option<Option<(Node, FileKind)>> {
        lock(&self.0).sure(place)
    }

    /// Caches a node that is created locally; false if it has to be created by a request.
    pub(in super::super) fn make_ahead(&self, place: Place<'_>, stat: &Stat, at_ms: u64) -> bool {
        let book = &mut *lock(&self.0);
        if book.sure(place) != Some(None) {
            return false;
        }
        let DirLeaseId { inode, epoch, lease } = place.directory;
        book.put(inode, place.name, Known::of(stat));
        book.touch(place.directory, at_ms);
        book.make_room(stat.inode);
        book.nodes.insert(stat.inode, (Under::Made(inode, (epoch, lease)), stat.clone()));
        true
    }

    /// Removes the name of a node locally; false if that needs a request.
    pub(in super::super) fn remove_ahead(&self, place: Place<'_>, node: InodeId, at_ms: u64) -> bool {
        let book = &mut *lock(&self.0);
        if book.sure(place).flatten().is_none_or(|(found, _)| found.inode != node) {
            return false;
        }
        book.put(place.directory.inode, place.name, Known::Nothing);
        book.touch(place.directory, at_ms);
        book.nodes.remove(&node);
        true
    }

    /// Renames a node locally, over `replaced` if there is one; false if that needs a request.
    pub(in super::super) fn rename_ahead(
        &self,
        (from, to): (Place<'_>, Place<'_>),
        (node, replaced): (InodeId, Option<InodeId>),
        at_ms: u64,
    ) -> bool {
        let book = &mut *lock(&self.0);
        let Some(Some((found, kind))) = book.sure(from) else { return false };
        let Some(old) = book.sure(to) else { return false };
        if found.inode != node || old.map(|(old, _)| old.inode) != replaced {
            return false;
        }
        book.put(from.directory.inode, from.name, Known::Nothing);
        book.put(to.directory.inode, to.name, Known::There(found, kind));
        book.touch(from.directory, at_ms);
        if from.directory != to.directory {
            book.touch(to.directory, at_ms);
        }
        if let Some(replaced) = replaced {
            book.nodes.remove(&replaced);
        }
        book.changed(node, at_ms);
        if let Some((Under::Made(directory, lease), _)) = book.nodes.get_mut(&node) {
            let DirLeaseId { inode, epoch, lease: led } = to.directory;
            (*directory, *lease) = (inode, (epoch, led));
        }
        true
    }

    /// Moves cached entries to the lease that replaced `before` without a gap.
    pub(in super::super) fn go_on(&self, directory: InodeId, before: u64, lease: &NodeLease) {
        let book = &mut *lock(&self.0);
        let (before, now) = ((lease.epoch, before), number(lease));
        if let Some(one) = book.directories.get_mut(&directory).filter(|one| one.lease == before) {
            one.lease = now;
        }
        if let Some((under, _)) =
            book.nodes.get_mut(&directory).filter(|(under, _)| *under == Under::Own(before))
        {
            *under = Under::Own(now);
        }
    }

    /// Drops the cache of a directory and of nodes, since local changes in it were refused.
    pub(in super::super) fn doubt(&self, directory: InodeId, nodes: impl IntoIterator<Item = InodeId>) {
        let book = &mut *lock(&self.0);
        book.ways[way(directory)].count += 1;
        book.all.count += 1;
        book.drop_directory(directory);
        book.nodes.remove(&directory);
        for node in nodes {
            book.nodes.remove(&node);
        }
    }
}
