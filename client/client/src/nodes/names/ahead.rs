//! Names that are changed here, and told of later.
//!
//! Contract: each of these changes what is known of names if that is for certain, and else does nothing. What was asked for before,
//! and is answered after it, is not remembered.

use sealstone_mds_protocol::{AheadIn, FileKind, InodeId, Lease, Name, Node, Stat};

use super::super::shared::lock;
use super::{Book, Known, Names, Under, number, way};

/// One place among names, in a directory that is led.
#[derive(Clone, Copy)]
pub(in super::super) struct Place<'a> {
    pub(in super::super) directory: AheadIn,
    pub(in super::super) name: &'a Name,
}

impl Book {
    /// What is known of a name for certain; none: it is being changed, or has to be looked up.
    fn sure(&self, place: Place<'_>) -> Option<Option<(Node, FileKind)>> {
        let Place { directory: AheadIn { inode, era, lease }, name } = place;
        let one = self.directories.get(&inode).filter(|one| one.lease == (era, lease))?;
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

    /// Something changed in a directory; as the server does it.
    fn touch(&mut self, AheadIn { inode, .. }: AheadIn, at_ms: u64) {
        self.ways[way(inode)].count += 1;
        self.all.count += 1;
        if let Some((_, stat)) = self.nodes.get_mut(&inode) {
            stat.mtime_ns = Stat::ns(at_ms);
            stat.ctime_ns = Stat::changed_ns(stat.ctime_ns, at_ms);
            stat.version += 1;
        }
    }

    /// A node changed: what a change that is under way made of it may be older.
    fn changed(&mut self, node: InodeId, at_ms: u64) {
        self.of_nodes += 1;
        if let Some((_, stat)) = self.nodes.get_mut(&node) {
            stat.ctime_ns = Stat::changed_ns(stat.ctime_ns, at_ms);
        }
    }
}

impl Names {
    /// What a name leads to, for certain.
    pub(in super::super) fn sure(&self, place: Place<'_>) -> Option<Option<(Node, FileKind)>> {
        lock(&self.0).sure(place)
    }

    /// A node is made here; false: it has to be asked for.
    pub(in super::super) fn make_ahead(&self, place: Place<'_>, stat: &Stat, at_ms: u64) -> bool {
        let book = &mut *lock(&self.0);
        if book.sure(place) != Some(None) {
            return false;
        }
        let AheadIn { inode, era, lease } = place.directory;
        book.put(inode, place.name, Known::of(stat));
        book.touch(place.directory, at_ms);
        book.make_room(stat.inode);
        book.nodes.insert(stat.inode, (Under::Made(inode, (era, lease)), stat.clone()));
        true
    }

    /// A name is taken away here from this.
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

    /// Something is given another name here, which `replaced` has until now.
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
            let AheadIn { inode, era, lease: led } = to.directory;
            (*directory, *lease) = (inode, (era, led));
        }
        true
    }

    /// A lease took the place of another one, without a moment in between: what was known is known.
    pub(in super::super) fn go_on(&self, directory: InodeId, before: u64, lease: &Lease) {
        let book = &mut *lock(&self.0);
        let (before, now) = ((lease.era, before), number(lease));
        if let Some(one) = book.directories.get_mut(&directory).filter(|one| one.lease == before) {
            one.lease = now;
        }
        if let Some((under, _)) =
            book.nodes.get_mut(&directory).filter(|(under, _)| *under == Under::Own(before))
        {
            *under = Under::Own(now);
        }
    }

    /// What was done in a directory here was refused: nothing of it is known any more.
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
