//! Cache of dentries and attributes that leases keep valid.
//!
//! Does: caches the node of a name, that a name does not exist, complete directories, and
//! attributes of nodes that are not open.
//! Does not: send requests. Does not: check whether a lease is valid; the caller passes the valid
//! lease.
//! Contract: an answer is cached under the lease that came with it, and only if no local change may
//! be newer. A local change is announced before its request is sent; until its answer its names are
//! not cached. After a change with an unknown outcome nothing is cached for [`WITHOUT`]; by then it
//! has been done or never will be. At most [`NAMES_MAX`] names and [`NODES_MAX`] nodes, of about
//! 200 and 350 bytes each.
//! Truth: docs/adr/0046-leases.md.

mod ahead;
mod list;

use core::time::Duration;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use sealstone_mds_protocol::{DirEntry, FileKind, InodeId, Name, Node, NodeLease, Stat};
use tokio::time::Instant;

use super::shared::lock;

pub(super) use ahead::Place;
pub use list::{Edition, Listed};

/// Maximum cached names of all directories.
pub(super) const NAMES_MAX: usize = 65_536;
/// Maximum cached nodes that are not open.
pub(super) const NODES_MAX: usize = 8_192;
/// How long nothing is cached after a change whose outcome is unknown.
const WITHOUT: Duration = Duration::from_secs(60);
/// Number of change counters. Directories that share a counter are invalidated together.
const WAYS: usize = 256;
/// Lookups without success after which a whole directory is listed.
const VAIN_MAX: u8 = 2;

/// A cached directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// The name leads to this node, of this kind.
    There(Node, FileKind),
    /// The name does not exist (negative entry).
    Nothing,
    /// The name has to be looked up.
    Unknown,
}

impl Known {
    /// Returns the entry that leads to this node.
    pub(super) const fn of(stat: &Stat) -> Self {
        Self::There(stat.node(), stat.kind)
    }
}

/// A lease number with the epoch of the lease.
type Number = (u64, u64);

const fn number(lease: &NodeLease) -> Number {
    (lease.epoch, lease.number)
}

/// The lease that keeps cached attributes valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Under {
    /// The lease on the node itself.
    Own(Number),
    /// The lease on the directory in which this client created the node; no other client has looked
    /// it up.
    Made(InodeId, Number),
}

/// A listing of a directory that is being fetched page by page.
#[derive(Debug)]
struct Listing {
    mark: Mark,
    after: Name,
}

#[derive(Debug)]
struct Directory {
    lease: Number,
    names: BTreeMap<Name, Known>,
    /// Whether names that are not cached do not exist.
    whole: bool,
    /// Whether the user may list the directory.
    shown: bool,
    listing: Option<Listing>,
    vain: u8,
    used: Instant,
}

/// Counts local changes in some directories.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    count: u64,
    under_way: u32,
}

#[derive(Debug)]
struct Book {
    directories: HashMap<InodeId, Directory>,
    names: usize,
    nodes: HashMap<InodeId, (Under, Stat)>,
    ways: Vec<Way>,
    /// Changes of anything.
    all: Way,
    /// Number of changes of attributes.
    of_nodes: u64,
    /// Names that are being changed: the number of changes, and whether two of them overlapped.
    pending: HashMap<(InodeId, Name), (u32, bool)>,
    without_until: Option<Instant>,
}

/// The change counters before a request, to detect changes until its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    directory: InodeId,
    count: u64,
    all: u64,
    /// Whether no change of names was in progress.
    names: bool,
    nodes: bool,
}

/// The cache of a file system.
#[derive(Debug)]
pub(super) struct Names(Mutex<Book>);

fn way(directory: InodeId) -> usize {
    // Inode numbers are consecutive.
    directory.0 as usize % WAYS
}

impl Book {
    fn drop_directory(&mut self, id: InodeId) {
        if let Some(gone) = self.directories.remove(&id) {
            self.names -= gone.names.len();
        }
    }

    /// Caches an entry; evicts the least recently used directories above the limit.
    fn put(&mut self, id: InodeId, name: &Name, known: Known) {
        let Some(directory) = self.directories.get_mut(&id) else { return };
        if directory.whole && known == Known::Nothing {
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

    fn is_as_at(&self, mark: &Mark) -> bool {
        let way = self.ways[way(mark.directory)];
        mark.names && way.under_way == 0 && way.count == mark.count && self.remembers()
    }

    fn nodes_are_as_at(&self, mark: &Mark) -> bool {
        mark.nodes && self.all.under_way == 0 && self.all.count == mark.all && self.remembers()
    }

    fn remembers(&self) -> bool {
        self.without_until.is_none_or(|until| Instant::now() >= until)
    }

    /// Returns the directory under this lease, emptied if the lease is a new one. None if a newer
    /// lease is known.
    fn under(&mut self, id: InodeId, lease: Number) -> Option<&mut Directory> {
        if let Some(known) = self.directories.get(&id) {
            if known.lease.0 == lease.0 && known.lease.1 > lease.1 {
                return None;
            }
            if known.lease != lease {
                self.drop_directory(id);
            }
        }
        let used = Instant::now();
        Some(self.directories.entry(id).or_insert_with(|| Directory {
            lease,
            names: BTreeMap::new(),
            whole: false,
            shown: false,
            listing: None,
            vain: 0,
            used,
        }))
    }

    fn make_room(&mut self, inode: InodeId) {
        if self.nodes.len() >= NODES_MAX && !self.nodes.contains_key(&inode) {
            // Most entries belong to returned leases.
            self.nodes.clear();
        }
    }

    fn note_node(&mut self, lease: &NodeLease, stat: &Stat) {
        self.make_room(stat.inode);
        self.nodes.insert(stat.inode, (Under::Own(number(lease)), stat.clone()));
    }
}

impl Names {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Book {
            directories: HashMap::new(),
            names: 0,
            nodes: HashMap::new(),
            ways: vec![Way::default(); WAYS],
            all: Way::default(),
            of_nodes: 0,
            pending: HashMap::new(),
            without_until: None,
        }))
    }

    /// Returns the cached entry of a name under a valid lease.
    pub(super) fn known(&self, directory: InodeId, lease: &NodeLease, name: &Name) -> Known {
        let book = &mut *lock(&self.0);
        let Some(one) = book.directories.get_mut(&directory).filter(|one| one.lease == number(lease)) else {
            return Known::Unknown;
        };
        one.used = Instant::now();
        match one.names.get(name) {
            Some(known) => *known,
            None if one.whole => Known::Nothing,
            None => Known::Unknown,
        }
    }

    /// Returns the cached attributes of a node that is not open, under a valid lease.
    pub(super) fn node(&self, inode: InodeId, lease: &NodeLease) -> Option<Stat> {
        let book = lock(&self.0);
        let (under, stat) = book.nodes.get(&inode)?;
        (*under == Under::Own(number(lease))).then(|| stat.clone())
    }

    /// Returns the directory whose lease keeps the attributes of a node valid that was created
    /// here.
    pub(super) fn made_in(&self, inode: InodeId) -> Option<InodeId> {
        match lock(&self.0).nodes.get(&inode)?.0 {
            Under::Made(directory, _) => Some(directory),
            Under::Own(_) => None,
        }
    }

    /// Returns the cached attributes of a node that was created here, under the valid lease of its
    /// directory.
    pub(super) fn made(&self, inode: InodeId, (directory, lease): (InodeId, &NodeLease)) -> Option<Stat> {
        let book = lock(&self.0);
        let (under, stat) = book.nodes.get(&inode)?;
        (*under == Under::Made(directory, number(lease))).then(|| stat.clone())
    }

    /// Returns the change counters before a request about names in a directory is sent.
    pub(super) fn mark(&self, directory: InodeId) -> Mark {
        let book = lock(&self.0);
        let way = book.ways[way(directory)];
        Mark {
            directory,
            count: way.count,
            all: book.all.count,
            names: way.under_way == 0,
            nodes: book.all.under_way == 0,
        }
    }

    /// Caches the result of a lookup. Returns whether to list the whole directory, after repeated
    /// misses.
    pub(super) fn looked_up(&self, mark: &Mark, lease: &NodeLease, name: &Name, found: Known) -> bool {
        let book = &mut *lock(&self.0);
        if !book.is_as_at(mark) {
            return false;
        }
        let Some(directory) = book.under(mark.directory, number(lease)) else { return false };
        let mut vain = false;
        if found == Known::Nothing && !directory.whole && directory.vain < VAIN_MAX {
            directory.vain += 1;
            vain = directory.vain == VAIN_MAX;
        }
        book.put(mark.directory, name, found);
        vain
    }

    /// Caches attributes of a node that is not open.
    pub(super) fn seen(&self, mark: &Mark, lease: &NodeLease, stat: &Stat) {
        let book = &mut *lock(&self.0);
        // A node with several names may have been changed under another one.
        if (stat.links == 1 || stat.kind == FileKind::Directory) && book.nodes_are_as_at(mark) {
            book.note_node(lease, stat);
        }
    }

    /// Caches a page of a directory that follows `after`.
    pub(super) fn listed(
        &self,
        mark: &Mark,
        lease: &NodeLease,
        after: Option<&Name>,
        (entries, more): (&[DirEntry], bool),
    ) {
        let book = &mut *lock(&self.0);
        if !book.is_as_at(mark) {
            return;
        }
        let Some(directory) = book.under(mark.directory, number(lease)) else { return };
        directory.shown = true;
        let begun = match (after, directory.listing.take()) {
            (None, _) => Some(*mark),
            // Nothing was changed here since the first page.
            (Some(after), Some(listing)) if listing.after == *after && listing.mark.count == mark.count => {
                Some(listing.mark)
            }
            _ => None,
        };
        directory.has_no_others(after, entries, more);
        for entry in entries {
            // Without attributes the user may not be able to look it up.
            let known = entry.stat.as_ref().map_or(Known::Unknown, Known::of);
            book.put(mark.directory, &entry.name, known);
        }
        let Some(directory) = book.directories.get_mut(&mark.directory) else { return };
        match (begun, entries.last()) {
            (Some(_), _) if !more => directory.whole = true,
            (Some(begun), Some(last)) => {
                directory.listing = Some(Listing { mark: begun, after: last.name.clone() });
            }
            _ => {}
        }
    }

    /// Drops everything under a lease that is returned or void.
    pub(super) fn forget(&self, inode: InodeId) {
        let book = &mut *lock(&self.0);
        book.drop_directory(inode);
        book.nodes.remove(&inode);
    }

    /// Announces a local change of names, or of attributes (without a name).
    pub(super) fn change<'a>(&'a self, parts: &[(InodeId, Option<&'a Name>)]) -> Own<'a> {
        let book = &mut *lock(&self.0);
        book.all.under_way += 1;
        book.all.count += 1;
        book.of_nodes += u64::from(parts.iter().any(|(_, name)| name.is_none()));
        let (alone, of_nodes) = (book.all.count, book.of_nodes);
        let mut own = Vec::with_capacity(parts.len());
        for (inode, name) in parts {
            let way = &mut book.ways[way(*inode)];
            way.under_way += 1;
            way.count += 1;
            book.nodes.remove(inode);
            if name.is_none() {
                // The change may affect who can search the directory, this user included.
                book.drop_directory(*inode);
            }
            let lease = book.directories.get(inode).map(|one| one.lease);
            if let Some(name) = name {
                book.put(*inode, name, Known::Unknown);
                let (count, several) = book.pending.entry((*inode, (*name).clone())).or_default();
                *count += 1;
                *several |= *count > 1;
            }
            own.push((*inode, *name, lease));
        }
        Own { names: self, parts: own, alone, of_nodes, known: false }
    }
}

/// A local change whose request is in progress.
pub(super) struct Own<'a> {
    names: &'a Names,
    parts: Vec<(InodeId, Option<&'a Name>, Option<Number>)>,
    /// The counter of all changes when it began.
    alone: u64,
    of_nodes: u64,
    /// Whether the outcome is known.
    known: bool,
}

impl Own<'_> {
    /// Records that the change was not done.
    pub(super) fn refused(mut self) {
        self.known = true;
    }

    /// Whether the created node may have been changed here before the answer arrived.
    pub(super) fn is_overtaken(&self) -> bool {
        let book = lock(&self.names.0);
        let several = |(inode, name): (&InodeId, &Name)| {
            book.pending.get(&(*inode, name.clone())).is_some_and(|(_, several)| *several)
        };
        let mut named = self.parts.iter().filter_map(|(inode, name, _)| Some((inode, (*name)?)));
        book.of_nodes != self.of_nodes || named.any(several)
    }

    /// Records that the change was done: `now` has the new entries in the order of the names,
    /// `others` the nodes to drop.
    pub(super) fn done(mut self, now: &[Known], others: &[InodeId]) {
        self.known = true;
        let book = &mut *lock(&self.names.0);
        for inode in others {
            book.nodes.remove(inode);
        }
        for ((inode, name, lease), known) in self.parts.iter().zip(now) {
            let same = lease.is_some() && book.directories.get(inode).map(|one| one.lease) == *lease;
            let Some(name) = name.filter(|_| same) else { continue };
            // Two concurrent changes of one name may have been done in either order.
            if book.pending.get(&(*inode, name.clone())).is_some_and(|(_, several)| !several) {
                book.put(*inode, name, *known);
            }
        }
    }

    /// Caches a new leased directory as complete and empty, unless something was changed since.
    /// `lists`: whether its creator may list it.
    pub(super) fn made(&self, lease: &NodeLease, stat: &Stat, lists: bool) {
        let book = &mut *lock(&self.names.0);
        if book.all.count == self.alone
            && book.remembers()
            && let Some(directory) = book.under(stat.inode, number(lease))
        {
            (directory.whole, directory.shown) = (true, lists);
            book.note_node(lease, stat);
        }
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        let book = &mut *lock(&self.names.0);
        book.all.under_way -= 1;
        book.all.count += 1;
        for (inode, name, _) in &self.parts {
            if let Some(name) = name {
                let key = (*inode, (*name).clone());
                if let Some((count, _)) = book.pending.get_mut(&key) {
                    *count -= 1;
                    if *count == 0 {
                        book.pending.remove(&key);
                    }
                }
            }
            let way = &mut book.ways[way(*inode)];
            way.under_way -= 1;
            way.count += 1;
            book.nodes.remove(inode);
        }
        if !self.known {
            let ids: Vec<InodeId> = book.directories.keys().copied().collect();
            ids.into_iter().for_each(|id| book.drop_directory(id));
            book.nodes.clear();
            book.without_until = Some(Instant::now() + WITHOUT);
        }
    }
}
