//! Local changes of cached names under a directory delegation.
//!
//! Contract: each function changes the cache only if the entries are certain, and otherwise does
//! nothing. Answers to earlier requests are not cached after it.

use sealstone_mds_protocol::{DirLeaseId, FileKind, InodeId, Name, Node, NodeLease, Stat};

use super::{Dentry, DentryTable, ValidUnder, lease_id, stripe};

/// A name in a directory with a delegation.
#[derive(Clone, Copy)]
pub(in super::super) struct DelegatedName<'a> {
    pub(in super::super) directory: DirLeaseId,
    pub(in super::super) name: &'a Name,
}

impl DentryTable {
    /// Returns the certain entry of a name; none if it is being changed or has to be looked up.
    pub(in super::super) fn certain_entry(
        &self,
        entry: DelegatedName<'_>,
    ) -> Option<Option<(Node, FileKind)>> {
        let DelegatedName { directory: DirLeaseId { inode, epoch, lease }, name } = entry;
        let one = self.directories.get(&inode).filter(|one| one.lease == (epoch, lease))?;
        match one.entry(name) {
            Dentry::Present(node, kind) => Some(Some((node, kind))),
            Dentry::Absent => Some(None),
            Dentry::NotCached => None,
        }
    }

    /// Records a change in a directory, with the attributes that the server will set.
    fn record_directory_change(&mut self, DirLeaseId { inode, .. }: DirLeaseId, at_ms: u64) {
        self.counters[stripe(inode)].count += 1;
        self.all.count += 1;
        if let Some((_, stat)) = self.nodes.get_mut(&inode) {
            stat.mtime_ns = Stat::ns(at_ms);
            stat.ctime_ns = Stat::changed_ns(stat.ctime_ns, at_ms);
            stat.version += 1;
        }
    }

    /// Records a change of a node, which makes results of changes in progress outdated.
    fn record_node_change(&mut self, node: InodeId, at_ms: u64) {
        self.attr_changes += 1;
        if let Some((_, stat)) = self.nodes.get_mut(&node) {
            stat.ctime_ns = Stat::changed_ns(stat.ctime_ns, at_ms);
        }
    }

    /// Caches a node that is created locally; false if it has to be created by a request.
    pub(in super::super) fn create_locally(
        &mut self,
        entry: DelegatedName<'_>,
        stat: &Stat,
        at_ms: u64,
    ) -> bool {
        if self.certain_entry(entry) != Some(None) {
            return false;
        }
        let DirLeaseId { inode, epoch, lease } = entry.directory;
        self.insert_entry(inode, entry.name, Dentry::of(stat));
        self.record_directory_change(entry.directory, at_ms);
        self.evict_nodes(stat.inode);
        self.nodes.insert(stat.inode, (ValidUnder::CreatedIn(inode, (epoch, lease)), stat.clone()));
        true
    }

    /// Removes the name of a node locally; false if that needs a request.
    pub(in super::super) fn unlink_locally(
        &mut self,
        entry: DelegatedName<'_>,
        node: InodeId,
        at_ms: u64,
    ) -> bool {
        if self.certain_entry(entry).flatten().is_none_or(|(found, _)| found.inode != node) {
            return false;
        }
        self.insert_entry(entry.directory.inode, entry.name, Dentry::Absent);
        self.record_directory_change(entry.directory, at_ms);
        self.nodes.remove(&node);
        true
    }

    /// Renames a node locally, over `replaced` if there is one; false if that needs a request.
    pub(in super::super) fn rename_locally(
        &mut self,
        (from, to): (DelegatedName<'_>, DelegatedName<'_>),
        (node, replaced): (InodeId, Option<InodeId>),
        at_ms: u64,
    ) -> bool {
        let Some(Some((found, kind))) = self.certain_entry(from) else { return false };
        let Some(old) = self.certain_entry(to) else { return false };
        if found.inode != node || old.map(|(old, _)| old.inode) != replaced {
            return false;
        }
        self.insert_entry(from.directory.inode, from.name, Dentry::Absent);
        self.insert_entry(to.directory.inode, to.name, Dentry::Present(found, kind));
        self.record_directory_change(from.directory, at_ms);
        if from.directory != to.directory {
            self.record_directory_change(to.directory, at_ms);
        }
        if let Some(replaced) = replaced {
            self.nodes.remove(&replaced);
        }
        self.record_node_change(node, at_ms);
        if let Some((ValidUnder::CreatedIn(directory, lease), _)) = self.nodes.get_mut(&node) {
            let DirLeaseId { inode, epoch, lease: new_lease } = to.directory;
            (*directory, *lease) = (inode, (epoch, new_lease));
        }
        true
    }

    /// Moves cached entries to the lease that replaced `before` without a gap.
    pub(in super::super) fn move_to_lease(&mut self, directory: InodeId, before: u64, lease: &NodeLease) {
        let (before, now) = ((lease.epoch, before), lease_id(lease));
        if let Some(one) = self.directories.get_mut(&directory).filter(|one| one.lease == before) {
            one.lease = now;
        }
        if let Some((under, _)) =
            self.nodes.get_mut(&directory).filter(|(under, _)| *under == ValidUnder::OwnLease(before))
        {
            *under = ValidUnder::OwnLease(now);
        }
    }

    /// Drops the cache of a directory and of nodes, since local changes in it were refused.
    pub(in super::super) fn invalidate_refused(
        &mut self,
        directory: InodeId,
        nodes: impl IntoIterator<Item = InodeId>,
    ) {
        self.counters[stripe(directory)].count += 1;
        self.all.count += 1;
        self.drop_directory(directory);
        self.nodes.remove(&directory);
        for node in nodes {
            self.nodes.remove(&node);
        }
    }
}
