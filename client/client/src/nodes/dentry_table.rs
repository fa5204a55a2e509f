//! Dentries and attributes that leases keep valid.
//!
//! Does: keeps the node of a name, that a name does not exist, complete directories, and attributes
//! of nodes that are not open.
//! Does not: send requests, lock, or read a clock; `dentry_cache` locks it.
//! Does not: check whether a lease is valid; the caller passes the valid lease.
//! Contract: an answer is cached under the lease that came with it, and only if no local change may
//! be newer. A local change is announced before its request is sent; until its answer its names are
//! not cached. Answers to requests that are sent within [`UNCERTAIN_FOR`] after a change with an
//! unknown outcome are not cached; by then the change has been done or never will be. At most
//! [`NAMES_MAX`] names and [`NODES_MAX`] nodes, of about 200 and 350 bytes each.
//! Truth: docs/adr/0046-leases.md.

mod listing;
mod local_changes;
#[cfg(test)]
mod tests;

use core::time::Duration;
use std::collections::{BTreeMap, HashMap};

use sealstone_mds_protocol::{DirEntry, FileKind, InodeId, Name, Node, NodeLease, Stat};
use tokio::time::Instant;

pub use listing::{CacheListing, ListEdition};
pub(super) use local_changes::DelegatedName;

/// Maximum cached names of all directories.
pub(super) const NAMES_MAX: usize = 65_536;
/// Maximum cached nodes that are not open.
pub(super) const NODES_MAX: usize = 8_192;
/// Time after a change with an unknown outcome in which the server may still do it.
const UNCERTAIN_FOR: Duration = Duration::from_secs(60);
/// Number of change counters. Directories that share a counter are invalidated together.
const CHANGE_STRIPES: usize = 256;
/// Lookups without success after which a whole directory is listed.
const MISSES_MAX: u8 = 2;

/// A cached directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dentry {
    /// The name leads to this node, of this kind.
    Present(Node, FileKind),
    /// The name does not exist (negative entry).
    Absent,
    /// The name has to be looked up.
    NotCached,
}

impl Dentry {
    /// Returns the entry that leads to this node.
    pub(super) const fn of(stat: &Stat) -> Self {
        Self::Present(stat.node(), stat.kind)
    }
}

/// A lease number with the epoch of the lease.
type LeaseId = (u64, u64);

const fn lease_id(lease: &NodeLease) -> LeaseId {
    (lease.epoch, lease.number)
}

/// The lease that keeps cached attributes valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValidUnder {
    /// The lease on the node itself.
    OwnLease(LeaseId),
    /// The lease on the directory in which this client created the node; no other client has looked
    /// it up.
    CreatedIn(InodeId, LeaseId),
}

#[derive(Debug)]
struct CachedDirectory {
    lease: LeaseId,
    names: BTreeMap<Name, Dentry>,
    /// Whether names that are not cached do not exist.
    complete: bool,
    /// Whether the user may list the directory.
    listable: bool,
    /// The last name of a listing so far, whose pages are all cached.
    listed_upto: Option<Name>,
    misses: u8,
    used: Instant,
}

impl CachedDirectory {
    fn entry(&self, name: &Name) -> Dentry {
        match self.names.get(name) {
            Some(known) => *known,
            None if self.complete => Dentry::Absent,
            None => Dentry::NotCached,
        }
    }
}

/// Counts local changes in some directories.
#[derive(Clone, Copy, Debug, Default)]
struct ChangeCounter {
    /// Increases when a change begins or ends.
    count: u64,
    in_progress: u32,
}

impl ChangeCounter {
    fn count_if_idle(self) -> Option<u64> {
        (self.in_progress == 0).then_some(self.count)
    }
}

/// The cached dentries and attributes of a file system.
#[derive(Debug)]
pub(super) struct DentryTable {
    directories: HashMap<InodeId, CachedDirectory>,
    names: usize,
    nodes: HashMap<InodeId, (ValidUnder, Stat)>,
    counters: Vec<ChangeCounter>,
    /// Changes of anything.
    all: ChangeCounter,
    /// Number of changes of attributes.
    attr_changes: u64,
    /// Names that are being changed: the number of changes, and whether two of them overlapped.
    pending: HashMap<(InodeId, Name), (u32, bool)>,
    uncertain_until: Option<Instant>,
}

/// The change counters before a request, to detect changes until its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheSnapshot {
    directory: InodeId,
    sent: Instant,
    /// Number of changes in the directory. None if one was in progress.
    directory_changes: Option<u64>,
    /// Number of changes of anything. None if one was in progress.
    all_changes: Option<u64>,
}

/// A local change whose request is in progress.
#[derive(Debug)]
pub(super) struct LocalChange<'a> {
    /// Each directory with the changed name, or node without a name.
    parts: Vec<(InodeId, Option<&'a Name>)>,
    sent: Instant,
    /// The counter of all changes when it began.
    count_at_start: u64,
    attr_changes: u64,
}

/// Outcome of a local change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeOutcome<'a> {
    /// It was done. `entries` has the new entries in the order of its names, `others` the further
    /// nodes that it changed.
    Done { entries: &'a [Dentry], others: &'a [InodeId] },
    /// It was not done.
    Refused,
    /// It may have been done, or be done within [`UNCERTAIN_FOR`].
    Unknown,
}

fn stripe(directory: InodeId) -> usize {
    // Inode numbers are consecutive.
    directory.0 as usize % CHANGE_STRIPES
}

impl DentryTable {
    fn drop_directory(&mut self, id: InodeId) {
        if let Some(gone) = self.directories.remove(&id) {
            self.names -= gone.names.len();
        }
    }

    /// Caches an entry; evicts the least recently used directories above the limit.
    fn insert_entry(&mut self, id: InodeId, name: &Name, known: Dentry) {
        let Some(directory) = self.directories.get_mut(&id) else { return };
        if directory.complete && known == Dentry::Absent {
            // Names that are not cached do not exist.
            self.names -= usize::from(directory.names.remove(name).is_some());
            return;
        }
        if directory.names.insert(name.clone(), known).is_none() {
            self.names += 1;
        }
        while self.names > NAMES_MAX {
            let oldest = self.directories.iter().min_by_key(|(_, one)| one.used).map(|(id, _)| *id);
            let Some(oldest) = oldest else { return };
            self.drop_directory(oldest);
        }
    }

    fn names_unchanged_since(&self, snapshot: &CacheSnapshot) -> bool {
        let count = self.counters[stripe(snapshot.directory)].count;
        snapshot.directory_changes == Some(count) && self.may_cache_answer(snapshot.sent)
    }

    fn attrs_unchanged_since(&self, snapshot: &CacheSnapshot) -> bool {
        snapshot.all_changes == Some(self.all.count) && self.may_cache_answer(snapshot.sent)
    }

    /// Whether a request that was sent at this time follows all changes with an unknown outcome.
    fn may_cache_answer(&self, sent: Instant) -> bool {
        self.uncertain_until.is_none_or(|until| sent >= until)
    }

    /// Returns the directory under this lease, emptied if the lease is a new one. None if a newer
    /// lease is known.
    fn directory_under(&mut self, id: InodeId, lease: LeaseId, now: Instant) -> Option<&mut CachedDirectory> {
        if let Some(known) = self.directories.get(&id) {
            if known.lease.0 == lease.0 && known.lease.1 > lease.1 {
                return None;
            }
            if known.lease != lease {
                self.drop_directory(id);
            }
        }
        Some(self.directories.entry(id).or_insert_with(|| CachedDirectory {
            lease,
            names: BTreeMap::new(),
            complete: false,
            listable: false,
            listed_upto: None,
            misses: 0,
            used: now,
        }))
    }

    fn evict_nodes(&mut self, inode: InodeId) {
        if self.nodes.len() >= NODES_MAX && !self.nodes.contains_key(&inode) {
            // Most entries belong to returned leases.
            self.nodes.clear();
        }
    }

    fn cache_node(&mut self, lease: &NodeLease, stat: &Stat) {
        self.evict_nodes(stat.inode);
        self.nodes.insert(stat.inode, (ValidUnder::OwnLease(lease_id(lease)), stat.clone()));
    }
}

impl DentryTable {
    pub(super) fn new() -> Self {
        Self {
            directories: HashMap::new(),
            names: 0,
            nodes: HashMap::new(),
            counters: vec![ChangeCounter::default(); CHANGE_STRIPES],
            all: ChangeCounter::default(),
            attr_changes: 0,
            pending: HashMap::new(),
            uncertain_until: None,
        }
    }

    /// Returns the cached entry of a name under a valid lease.
    pub(super) fn lookup(
        &mut self,
        directory: InodeId,
        lease: &NodeLease,
        name: &Name,
        now: Instant,
    ) -> Dentry {
        let Some(one) = self.directories.get_mut(&directory).filter(|one| one.lease == lease_id(lease))
        else {
            return Dentry::NotCached;
        };
        one.used = now;
        one.entry(name)
    }

    /// Returns the cached attributes of a node that is not open, under a valid lease.
    pub(super) fn cached_node(&self, inode: InodeId, lease: &NodeLease) -> Option<Stat> {
        let (under, stat) = self.nodes.get(&inode)?;
        (*under == ValidUnder::OwnLease(lease_id(lease))).then(|| stat.clone())
    }

    /// Returns the directory whose lease keeps the attributes of a node valid that was created
    /// here.
    pub(super) fn created_in(&self, inode: InodeId) -> Option<InodeId> {
        match self.nodes.get(&inode)?.0 {
            ValidUnder::CreatedIn(directory, _) => Some(directory),
            ValidUnder::OwnLease(_) => None,
        }
    }

    /// Returns the cached attributes of a node that was created here, under the valid lease of its
    /// directory.
    pub(super) fn created_node(
        &self,
        inode: InodeId,
        (directory, lease): (InodeId, &NodeLease),
    ) -> Option<Stat> {
        let (under, stat) = self.nodes.get(&inode)?;
        (*under == ValidUnder::CreatedIn(directory, lease_id(lease))).then(|| stat.clone())
    }

    /// Returns the change counters before a request about names in a directory is sent.
    pub(super) fn snapshot(&self, directory: InodeId, now: Instant) -> CacheSnapshot {
        CacheSnapshot {
            directory,
            sent: now,
            directory_changes: self.counters[stripe(directory)].count_if_idle(),
            all_changes: self.all.count_if_idle(),
        }
    }

    /// Caches the result of a lookup. Returns whether to list the whole directory, after repeated
    /// misses.
    pub(super) fn record_lookup(
        &mut self,
        snapshot: &CacheSnapshot,
        lease: &NodeLease,
        (name, found): (&Name, Dentry),
        now: Instant,
    ) -> bool {
        if !self.names_unchanged_since(snapshot) {
            return false;
        }
        let Some(directory) = self.directory_under(snapshot.directory, lease_id(lease), now) else {
            return false;
        };
        let mut lists_directory = false;
        if found == Dentry::Absent && !directory.complete && directory.misses < MISSES_MAX {
            directory.misses += 1;
            lists_directory = directory.misses == MISSES_MAX;
        }
        self.insert_entry(snapshot.directory, name, found);
        lists_directory
    }

    /// Caches attributes of a node that is not open.
    pub(super) fn record_attributes(&mut self, snapshot: &CacheSnapshot, lease: &NodeLease, stat: &Stat) {
        // A node with several names may have been changed under another one.
        if (stat.links == 1 || stat.kind == FileKind::Directory) && self.attrs_unchanged_since(snapshot) {
            self.cache_node(lease, stat);
        }
    }

    /// Caches a page of a directory that follows `after`.
    pub(super) fn record_listing(
        &mut self,
        snapshot: &CacheSnapshot,
        lease: &NodeLease,
        after: Option<&Name>,
        (entries, more): (&[DirEntry], bool),
        now: Instant,
    ) {
        if !self.names_unchanged_since(snapshot) {
            return;
        }
        let Some(directory) = self.directory_under(snapshot.directory, lease_id(lease), now) else { return };
        directory.listable = true;
        // Changes since an earlier page do not matter: their names are cached as well.
        let listed_upto = directory.listed_upto.take();
        let continues = after.is_none() || after == listed_upto.as_ref();
        directory.mark_absent(after, entries, more);
        for entry in entries {
            // Without attributes the user may not be able to look it up.
            let known = entry.stat.as_ref().map_or(Dentry::NotCached, Dentry::of);
            self.insert_entry(snapshot.directory, &entry.name, known);
        }
        let Some(directory) = self.directories.get_mut(&snapshot.directory) else { return };
        if continues && more {
            directory.listed_upto = entries.last().map(|last| last.name.clone());
        } else if continues {
            directory.complete = true;
        }
    }

    /// Drops everything under a lease that is returned or void.
    pub(super) fn invalidate(&mut self, inode: InodeId) {
        self.drop_directory(inode);
        self.nodes.remove(&inode);
    }

    /// Announces a local change of names, or of attributes (without a name). Its outcome is passed
    /// to [`Self::end_change`].
    pub(super) fn begin_change<'a>(
        &mut self,
        parts: &[(InodeId, Option<&'a Name>)],
        now: Instant,
    ) -> LocalChange<'a> {
        self.all.in_progress += 1;
        self.all.count += 1;
        self.attr_changes += u64::from(parts.iter().any(|(_, name)| name.is_none()));
        for (inode, name) in parts {
            let counter = &mut self.counters[stripe(*inode)];
            counter.in_progress += 1;
            counter.count += 1;
            self.nodes.remove(inode);
            if name.is_none() {
                // The change may affect who can search the directory, this user included.
                self.drop_directory(*inode);
            }
            if let Some(name) = name {
                self.insert_entry(*inode, name, Dentry::NotCached);
                let (count, several) = self.pending.entry((*inode, (*name).clone())).or_default();
                *count += 1;
                *several |= *count > 1;
            }
        }
        LocalChange {
            parts: parts.to_vec(),
            sent: now,
            count_at_start: self.all.count,
            attr_changes: self.attr_changes,
        }
    }

    /// Whether the node that a change creates may have been changed here before its answer arrived.
    pub(super) fn may_be_outdated(&self, change: &LocalChange<'_>) -> bool {
        let several = |(inode, name): (&InodeId, &Name)| {
            self.pending.get(&(*inode, name.clone())).is_some_and(|(_, several)| *several)
        };
        let mut named = change.parts.iter().filter_map(|(inode, name)| Some((inode, (*name)?)));
        self.attr_changes != change.attr_changes || named.any(several)
    }

    /// Caches a new leased directory as complete and empty, unless something was changed since.
    /// `is_listable`: whether its creator may list it.
    pub(super) fn record_created_directory(
        &mut self,
        change: &LocalChange<'_>,
        lease: &NodeLease,
        (stat, is_listable): (&Stat, bool),
        now: Instant,
    ) {
        if self.all.count == change.count_at_start
            && self.may_cache_answer(change.sent)
            && let Some(directory) = self.directory_under(stat.inode, lease_id(lease), now)
        {
            (directory.complete, directory.listable) = (true, is_listable);
            self.cache_node(lease, stat);
        }
    }

    /// Ends a change with its outcome.
    pub(super) fn end_change(&mut self, change: &LocalChange<'_>, outcome: ChangeOutcome<'_>, now: Instant) {
        if let ChangeOutcome::Done { entries, others } = outcome {
            self.apply_change(change, entries, others);
        }
        self.all.in_progress -= 1;
        self.all.count += 1;
        for (inode, name) in &change.parts {
            if let Some(name) = name {
                let key = (*inode, (*name).clone());
                if let Some((count, _)) = self.pending.get_mut(&key) {
                    *count -= 1;
                    if *count == 0 {
                        self.pending.remove(&key);
                    }
                }
            }
            let counter = &mut self.counters[stripe(*inode)];
            counter.in_progress -= 1;
            counter.count += 1;
            self.nodes.remove(inode);
        }
        if outcome == ChangeOutcome::Unknown {
            // Without cached directories, results of other changes are not cached: this one may be
            // done after them.
            self.directories.clear();
            self.names = 0;
            self.nodes.clear();
            self.uncertain_until = Some(now + UNCERTAIN_FOR);
        }
    }

    fn apply_change(&mut self, change: &LocalChange<'_>, entries: &[Dentry], others: &[InodeId]) {
        for inode in others {
            self.nodes.remove(inode);
        }
        // A directory that is cached now was cached when the change began, since answers are not
        // cached in a directory that is being changed.
        for ((inode, name), known) in change.parts.iter().zip(entries) {
            let Some(name) = *name else { continue };
            // Two concurrent changes of one name may have been done in either order.
            if self.pending.get(&(*inode, name.clone())).is_some_and(|(_, several)| !several) {
                self.insert_entry(*inode, name, *known);
            }
        }
    }
}
