//! Names that were looked up, believed for as long as their directory is leased.
//!
//! Does: remember what a name leads to, that nothing has it, and that a directory is known as a whole; remember what nodes are that
//! nobody has open here. Does not: ask; `Nodes` does. Does not: say whether a lease is believed in; whoever asks says which one is.
//! Contract: what the server answered is remembered under the lease that it was told with, and only if nothing was changed here that
//! it may be older than: whoever changes something here says so before, and from then on until the answer the names that it is about
//! are not known. After a change of which nobody knows whether it was done nothing is remembered for [`WITHOUT`], in which it
//! is done or never will be. At most [`NAMES_MAX`] names and [`NODES_MAX`] nodes, some 200 and 350 bytes each.
//! Truth: docs/adr/0046-leases.md.

mod ahead;
mod list;

use core::time::Duration;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use sealstone_mds_protocol::{DirEntry, FileKind, InodeId, Lease, Name, Node, Stat};
use tokio::time::Instant;

use super::shared::lock;

pub(super) use ahead::Place;
pub use list::{Edition, Listed};

/// Names of all directories together at most.
pub(super) const NAMES_MAX: usize = 65_536;
/// Nodes that nobody has open at most.
pub(super) const NODES_MAX: usize = 8_192;
/// After a change whose outcome is not known.
const WITHOUT: Duration = Duration::from_secs(60);
/// Directories share so many counts of changes; two that share one are taken for one.
const WAYS: usize = 256;
/// Looked for in vain so often, a directory is listed, so that what it has not is known.
const VAIN_MAX: u8 = 2;

/// What is known of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It leads there, to something of this kind.
    There(Node, FileKind),
    /// Nothing has it.
    Nothing,
    /// It has to be looked up.
    Unknown,
}

impl Known {
    /// It leads to this.
    pub(super) const fn of(stat: &Stat) -> Self {
        Self::There(stat.node(), stat.kind)
    }
}

/// A lease, told from those of other lives of the server.
type Number = (u64, u64);

const fn number(lease: &Lease) -> Number {
    (lease.era, lease.number)
}

/// Why what is known of a node is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Under {
    /// By the lease on it.
    Own(Number),
    /// It was made here since this directory was leased, and nobody else was led to it.
    Made(InodeId, Number),
}

/// A list of a directory that is being fetched.
#[derive(Debug)]
struct Listing {
    mark: Mark,
    after: Name,
}

#[derive(Debug)]
struct Directory {
    lease: Number,
    names: BTreeMap<Name, Known>,
    /// What is not here is nowhere.
    whole: bool,
    /// It may be listed.
    shown: bool,
    listing: Option<Listing>,
    vain: u8,
    used: Instant,
}

/// Changes of some directories, made here.
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
    /// Those that are about nodes, whatever their names.
    of_nodes: u64,
    /// Names that are being changed: by how many, and whether there were ever two since the first of them.
    pending: HashMap<(InodeId, Name), (u32, bool)>,
    without_until: Option<Instant>,
}

/// When a question was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    directory: InodeId,
    count: u64,
    all: u64,
    /// Nothing is being changed.
    names: bool,
    nodes: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Names(Mutex<Book>);

fn way(directory: InodeId) -> usize {
    // Numbers are given one after the other.
    directory.0 as usize % WAYS
}

impl Book {
    fn drop_directory(&mut self, id: InodeId) {
        if let Some(gone) = self.directories.remove(&id) {
            self.names -= gone.names.len();
        }
    }

    /// Puts a name, if there is room.
    fn put(&mut self, id: InodeId, name: &Name, known: Known) {
        let Some(directory) = self.directories.get_mut(&id) else { return };
        if directory.whole && known == Known::Nothing {
            // What is not there is nowhere.
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

    /// The directory under this lease, emptied if it is another one than before. None: a newer one is known.
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
            // Most of them are under leases that were given back.
            self.nodes.clear();
        }
    }

    fn note_node(&mut self, lease: &Lease, stat: &Stat) {
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

    /// What is known of a name, under the lease that is believed in.
    pub(super) fn known(&self, directory: InodeId, lease: &Lease, name: &Name) -> Known {
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

    /// What a node is that nobody has open here, under the lease that is believed in.
    pub(super) fn node(&self, inode: InodeId, lease: &Lease) -> Option<Stat> {
        let book = lock(&self.0);
        let (under, stat) = book.nodes.get(&inode)?;
        (*under == Under::Own(number(lease))).then(|| stat.clone())
    }

    /// The directory by whose lease it is known what a node is that was made here.
    pub(super) fn made_in(&self, inode: InodeId) -> Option<InodeId> {
        match lock(&self.0).nodes.get(&inode)?.0 {
            Under::Made(directory, _) => Some(directory),
            Under::Own(_) => None,
        }
    }

    /// What a node is that was made here, under the lease on its directory that is believed in.
    pub(super) fn made(&self, inode: InodeId, (directory, lease): (InodeId, &Lease)) -> Option<Stat> {
        let book = lock(&self.0);
        let (under, stat) = book.nodes.get(&inode)?;
        (*under == Under::Made(directory, number(lease))).then(|| stat.clone())
    }

    /// Before a question about names in a directory is sent.
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

    /// A name was looked up. True: others were in vain before, and a list of the whole directory may be worth it.
    pub(super) fn looked_up(&self, mark: &Mark, lease: &Lease, name: &Name, found: Known) -> bool {
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

    /// A node was looked at that nobody has open here.
    pub(super) fn seen(&self, mark: &Mark, lease: &Lease, stat: &Stat) {
        let book = &mut *lock(&self.0);
        // By another name it may have been changed meanwhile.
        if (stat.links == 1 || stat.kind == FileKind::Directory) && book.nodes_are_as_at(mark) {
            book.note_node(lease, stat);
        }
    }

    /// A page of a directory was fetched, after this name.
    pub(super) fn listed(
        &self,
        mark: &Mark,
        lease: &Lease,
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
            // Nothing was changed here since its first page.
            (Some(after), Some(listing)) if listing.after == *after && listing.mark.count == mark.count => {
                Some(listing.mark)
            }
            _ => None,
        };
        directory.has_no_others(after, entries, more);
        for entry in entries {
            // Without attributes it may not be looked up.
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

    /// A lease is given back, or is no more.
    pub(super) fn forget(&self, inode: InodeId) {
        let book = &mut *lock(&self.0);
        book.drop_directory(inode);
        book.nodes.remove(&inode);
    }

    /// Something is about to be changed here: names in directories, or what nodes are.
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
                // Who may pass it may be others from here on, ourselves among them.
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

/// A change that is made here.
pub(super) struct Own<'a> {
    names: &'a Names,
    parts: Vec<(InodeId, Option<&'a Name>, Option<Number>)>,
    /// The count of all changes when it began.
    alone: u64,
    of_nodes: u64,
    /// Whether it was done is known.
    known: bool,
}

impl Own<'_> {
    /// It was not done.
    pub(super) fn refused(mut self) {
        self.known = true;
    }

    /// May what it made have been changed here before its answer came?
    pub(super) fn is_overtaken(&self) -> bool {
        let book = lock(&self.names.0);
        let several = |(inode, name): (&InodeId, &Name)| {
            book.pending.get(&(*inode, name.clone())).is_some_and(|(_, several)| *several)
        };
        let mut named = self.parts.iter().filter_map(|(inode, name, _)| Some((inode, (*name)?)));
        book.of_nodes != self.of_nodes || named.any(several)
    }

    /// It was done: what its names lead to now, in the order in which they were given, and what else is not as it was.
    pub(super) fn done(mut self, now: &[Known], others: &[InodeId]) {
        self.known = true;
        let book = &mut *lock(&self.names.0);
        for inode in others {
            book.nodes.remove(inode);
        }
        for ((inode, name, lease), known) in self.parts.iter().zip(now) {
            let same = lease.is_some() && book.directories.get(inode).map(|one| one.lease) == *lease;
            let Some(name) = name.filter(|_| same) else { continue };
            // Two changes of one name may overtake each other: it is looked up.
            if book.pending.get(&(*inode, name.clone())).is_some_and(|(_, several)| !several) {
                book.put(*inode, name, *known);
            }
        }
    }

    /// It made a directory, which is leased: nothing is in it, unless something was put there before this was known.
    /// `lists`: whoever made it may list it.
    pub(super) fn made(&self, lease: &Lease, stat: &Stat, lists: bool) {
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
