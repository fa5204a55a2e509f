//! Cache of dentries and attributes that leases keep valid.
//!
//! Does: caches the node of a name, that a name does not exist, complete directories, and
//! attributes of nodes that are not open.
//! Does not: send requests.
//! Does not: check whether a lease is valid; the caller passes the valid lease.
//! Contract: an answer is cached under the lease that came with it, and only if no local change may
//! be newer. A local change is announced before its request is sent; until its answer its names are
//! not cached. After a change with an unknown outcome nothing is cached for [`UNCERTAIN_FOR`]; by
//! then it has been done or never will be. At most [`NAMES_MAX`] names and [`NODES_MAX`] nodes, of
//! about 200 and 350 bytes each.
//! Truth: docs/adr/0046-leases.md.

mod listing;
mod local_changes;

use core::time::Duration;
use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use sealstone_mds_protocol::{DirEntry, FileKind, InodeId, Name, Node, NodeLease, Stat};
use tokio::time::Instant;

pub use listing::{CacheListing, ListEdition};
pub(super) use local_changes::DelegatedName;

/// Maximum cached names of all directories.
pub(super) const NAMES_MAX: usize = 65_536;
/// Maximum cached nodes that are not open.
pub(super) const NODES_MAX: usize = 8_192;
/// How long nothing is cached after a change whose outcome is unknown.
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

/// A listing of a directory that is being fetched page by page.
#[derive(Debug)]
struct PartialListing {
    snapshot: CacheSnapshot,
    after: Name,
}

#[derive(Debug)]
struct CachedDirectory {
    lease: LeaseId,
    names: BTreeMap<Name, Dentry>,
    /// Whether names that are not cached do not exist.
    complete: bool,
    /// Whether the user may list the directory.
    listable: bool,
    listing: Option<PartialListing>,
    misses: u8,
    used: Instant,
}

/// Counts local changes in some directories.
#[derive(Clone, Copy, Debug, Default)]
struct ChangeCounter {
    count: u64,
    in_progress: u32,
}

#[derive(Debug)]
struct CacheState {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CacheSnapshot {
    directory: InodeId,
    count: u64,
    all: u64,
    /// Whether no change of names was in progress.
    names: bool,
    nodes: bool,
}

/// The cache of a file system.
#[derive(Debug)]
pub(super) struct DentryCache(Mutex<CacheState>);

fn stripe(directory: InodeId) -> usize {
    // Inode numbers are consecutive.
    directory.0 as usize % CHANGE_STRIPES
}

impl CacheState {
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
        let counter = self.counters[stripe(snapshot.directory)];
        snapshot.names && counter.in_progress == 0 && counter.count == snapshot.count && self.may_cache()
    }

    fn attrs_unchanged_since(&self, snapshot: &CacheSnapshot) -> bool {
        snapshot.nodes && self.all.in_progress == 0 && self.all.count == snapshot.all && self.may_cache()
    }

    fn may_cache(&self) -> bool {
        self.uncertain_until.is_none_or(|until| Instant::now() >= until)
    }

    /// Returns the directory under this lease, emptied if the lease is a new one. None if a newer
    /// lease is known.
    fn directory_under(&mut self, id: InodeId, lease: LeaseId) -> Option<&mut CachedDirectory> {
        if let Some(known) = self.directories.get(&id) {
            if known.lease.0 == lease.0 && known.lease.1 > lease.1 {
                return None;
            }
            if known.lease != lease {
                self.drop_directory(id);
            }
        }
        let used = Instant::now();
        Some(self.directories.entry(id).or_insert_with(|| CachedDirectory {
            lease,
            names: BTreeMap::new(),
            complete: false,
            listable: false,
            listing: None,
            misses: 0,
            used,
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

impl DentryCache {
    pub(super) fn new() -> Self {
        Self(Mutex::new(CacheState {
            directories: HashMap::new(),
            names: 0,
            nodes: HashMap::new(),
            counters: vec![ChangeCounter::default(); CHANGE_STRIPES],
            all: ChangeCounter::default(),
            attr_changes: 0,
            pending: HashMap::new(),
            uncertain_until: None,
        }))
    }

    /// Returns the cached entry of a name under a valid lease.
    pub(super) fn lookup(&self, directory: InodeId, lease: &NodeLease, name: &Name) -> Dentry {
        let cache = &mut *self.0.lock();
        let Some(one) = cache.directories.get_mut(&directory).filter(|one| one.lease == lease_id(lease))
        else {
            return Dentry::NotCached;
        };
        one.used = Instant::now();
        match one.names.get(name) {
            Some(known) => *known,
            None if one.complete => Dentry::Absent,
            None => Dentry::NotCached,
        }
    }

    /// Returns the cached attributes of a node that is not open, under a valid lease.
    pub(super) fn cached_node(&self, inode: InodeId, lease: &NodeLease) -> Option<Stat> {
        let cache = self.0.lock();
        let (under, stat) = cache.nodes.get(&inode)?;
        (*under == ValidUnder::OwnLease(lease_id(lease))).then(|| stat.clone())
    }

    /// Returns the directory whose lease keeps the attributes of a node valid that was created
    /// here.
    pub(super) fn created_in(&self, inode: InodeId) -> Option<InodeId> {
        match self.0.lock().nodes.get(&inode)?.0 {
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
        let cache = self.0.lock();
        let (under, stat) = cache.nodes.get(&inode)?;
        (*under == ValidUnder::CreatedIn(directory, lease_id(lease))).then(|| stat.clone())
    }

    /// Returns the change counters before a request about names in a directory is sent.
    pub(super) fn snapshot(&self, directory: InodeId) -> CacheSnapshot {
        let cache = self.0.lock();
        let counter = cache.counters[stripe(directory)];
        CacheSnapshot {
            directory,
            count: counter.count,
            all: cache.all.count,
            names: counter.in_progress == 0,
            nodes: cache.all.in_progress == 0,
        }
    }

    /// Caches the result of a lookup. Returns whether to list the whole directory, after repeated
    /// misses.
    pub(super) fn record_lookup(
        &self,
        snapshot: &CacheSnapshot,
        lease: &NodeLease,
        name: &Name,
        found: Dentry,
    ) -> bool {
        let cache = &mut *self.0.lock();
        if !cache.names_unchanged_since(snapshot) {
            return false;
        }
        let Some(directory) = cache.directory_under(snapshot.directory, lease_id(lease)) else {
            return false;
        };
        let mut lists_directory = false;
        if found == Dentry::Absent && !directory.complete && directory.misses < MISSES_MAX {
            directory.misses += 1;
            lists_directory = directory.misses == MISSES_MAX;
        }
        cache.insert_entry(snapshot.directory, name, found);
        lists_directory
    }

    /// Caches attributes of a node that is not open.
    pub(super) fn record_attributes(&self, snapshot: &CacheSnapshot, lease: &NodeLease, stat: &Stat) {
        let cache = &mut *self.0.lock();
        // A node with several names may have been changed under another one.
        if (stat.links == 1 || stat.kind == FileKind::Directory) && cache.attrs_unchanged_since(snapshot) {
            cache.cache_node(lease, stat);
        }
    }

    /// Caches a page of a directory that follows `after`.
    pub(super) fn record_listing(
        &self,
        snapshot: &CacheSnapshot,
        lease: &NodeLease,
        after: Option<&Name>,
        (entries, more): (&[DirEntry], bool),
    ) {
        let cache = &mut *self.0.lock();
        if !cache.names_unchanged_since(snapshot) {
            return;
        }
        let Some(directory) = cache.directory_under(snapshot.directory, lease_id(lease)) else { return };
        directory.listable = true;
        let begun = match (after, directory.listing.take()) {
            (None, _) => Some(*snapshot),
            // Nothing was changed here since the first page.
            (Some(after), Some(listing))
                if listing.after == *after && listing.snapshot.count == snapshot.count =>
            {
                Some(listing.snapshot)
            }
            _ => None,
        };
        directory.mark_absent(after, entries, more);
        for entry in entries {
            // Without attributes the user may not be able to look it up.
            let known = entry.stat.as_ref().map_or(Dentry::NotCached, Dentry::of);
            cache.insert_entry(snapshot.directory, &entry.name, known);
        }
        let Some(directory) = cache.directories.get_mut(&snapshot.directory) else { return };
        match (begun, entries.last()) {
            (Some(_), _) if !more => directory.complete = true,
            (Some(begun), Some(last)) => {
                directory.listing = Some(PartialListing { snapshot: begun, after: last.name.clone() });
            }
            _ => {}
        }
    }

    /// Drops everything under a lease that is returned or void.
    pub(super) fn invalidate(&self, inode: InodeId) {
        let cache = &mut *self.0.lock();
        cache.drop_directory(inode);
        cache.nodes.remove(&inode);
    }

    /// Announces a local change of names, or of attributes (without a name).
    pub(super) fn begin_change<'a>(&'a self, parts: &[(InodeId, Option<&'a Name>)]) -> LocalChangeGuard<'a> {
        let cache = &mut *self.0.lock();
        cache.all.in_progress += 1;
        cache.all.count += 1;
        cache.attr_changes += u64::from(parts.iter().any(|(_, name)| name.is_none()));
        let (count_at_start, attr_changes) = (cache.all.count, cache.attr_changes);
        let mut changed = Vec::with_capacity(parts.len());
        for (inode, name) in parts {
            let counter = &mut cache.counters[stripe(*inode)];
            counter.in_progress += 1;
            counter.count += 1;
            cache.nodes.remove(inode);
            if name.is_none() {
                // The change may affect who can search the directory, this user included.
                cache.drop_directory(*inode);
            }
            let lease = cache.directories.get(inode).map(|one| one.lease);
            if let Some(name) = name {
                cache.insert_entry(*inode, name, Dentry::NotCached);
                let (count, several) = cache.pending.entry((*inode, (*name).clone())).or_default();
                *count += 1;
                *several |= *count > 1;
            }
            changed.push((*inode, *name, lease));
        }
        LocalChangeGuard {
            names: self,
            parts: changed,
            count_at_start,
            attr_changes,
            is_outcome_known: false,
        }
    }
}

/// A local change whose request is in progress.
pub(super) struct LocalChangeGuard<'a> {
    names: &'a DentryCache,
    parts: Vec<(InodeId, Option<&'a Name>, Option<LeaseId>)>,
    /// The counter of all changes when it began.
    count_at_start: u64,
    attr_changes: u64,
    /// Whether the outcome is known.
    is_outcome_known: bool,
}

impl LocalChangeGuard<'_> {
    /// Records that the change was not done.
    pub(super) fn refused(mut self) {
        self.is_outcome_known = true;
    }

    /// Whether the created node may have been changed here before the answer arrived.
    pub(super) fn may_be_outdated(&self) -> bool {
        let cache = self.names.0.lock();
        let several = |(inode, name): (&InodeId, &Name)| {
            cache.pending.get(&(*inode, name.clone())).is_some_and(|(_, several)| *several)
        };
        let mut named = self.parts.iter().filter_map(|(inode, name, _)| Some((inode, (*name)?)));
        cache.attr_changes != self.attr_changes || named.any(several)
    }

    /// Records that the change was done: `now` has the new entries in the order of the names,
    /// `others` the nodes to drop.
    pub(super) fn done(mut self, now: &[Dentry], others: &[InodeId]) {
        self.is_outcome_known = true;
        let cache = &mut *self.names.0.lock();
        for inode in others {
            cache.nodes.remove(inode);
        }
        for ((inode, name, lease), known) in self.parts.iter().zip(now) {
            let same = lease.is_some() && cache.directories.get(inode).map(|one| one.lease) == *lease;
            let Some(name) = name.filter(|_| same) else { continue };
            // Two concurrent changes of one name may have been done in either order.
            if cache.pending.get(&(*inode, name.clone())).is_some_and(|(_, several)| !several) {
                cache.insert_entry(*inode, name, *known);
            }
        }
    }

    /// Caches a new leased directory as complete and empty, unless something was changed since.
    /// `lists`: whether its creator may list it.
    pub(super) fn record_created_directory(&self, lease: &NodeLease, stat: &Stat, is_listable: bool) {
        let cache = &mut *self.names.0.lock();
        if cache.all.count == self.count_at_start
            && cache.may_cache()
            && let Some(directory) = cache.directory_under(stat.inode, lease_id(lease))
        {
            (directory.complete, directory.listable) = (true, is_listable);
            cache.cache_node(lease, stat);
        }
    }
}

impl Drop for LocalChangeGuard<'_> {
    fn drop(&mut self) {
        let cache = &mut *self.names.0.lock();
        cache.all.in_progress -= 1;
        cache.all.count += 1;
        for (inode, name, _) in &self.parts {
            if let Some(name) = name {
                let key = (*inode, (*name).clone());
                if let Some((count, _)) = cache.pending.get_mut(&key) {
                    *count -= 1;
                    if *count == 0 {
                        cache.pending.remove(&key);
                    }
                }
            }
            let counter = &mut cache.counters[stripe(*inode)];
            counter.in_progress -= 1;
            counter.count += 1;
            cache.nodes.remove(inode);
        }
        if !self.is_outcome_known {
            let ids: Vec<InodeId> = cache.directories.keys().copied().collect();
            ids.into_iter().for_each(|id| cache.drop_directory(id));
            cache.nodes.clear();
            cache.uncertain_until = Some(Instant::now() + UNCERTAIN_FOR);
        }
    }
}
