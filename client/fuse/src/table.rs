//! Numbers that the kernel uses: nodes that it looked up, and open files and directories.
//!
//! Contract: a node stays while the kernel has references to it. Each answer that names a node adds
//! one, and a forget removes the given number.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sealstone_mds_protocol::{InodeId, Node, Stat};

/// The kernel's inode number of the root of a mount.
const ROOT: u64 = 1;

/// Nodes by the kernel's inode number: their own, except that the root of the mount is 1.
#[derive(Debug)]
pub(crate) struct NodeTable {
    root: Node,
    known: Mutex<HashMap<u64, Known>>,
}

#[derive(Debug)]
struct Known {
    node: Node,
    lookups: u64,
    /// The version of the content in the kernel's page cache.
    pages: Option<u64>,
    /// The attributes that the kernel was sent last.
    sent: Option<SentAttributes>,
}

/// Identifies a state of the attributes: version, size, change time.
type SentAttributes = (u64, u64, i64);

fn sent_attributes(stat: &Stat) -> SentAttributes {
    (stat.version, stat.size, stat.ctime_ns)
}

impl NodeTable {
    pub(crate) fn new(root: Node) -> Self {
        Self { root, known: Mutex::default() }
    }

    /// Returns the kernel's number of a node.
    pub(crate) fn ino(&self, node: Node) -> u64 {
        self.number(node.inode)
    }

    /// As [`Self::ino`], for an entry without a node proof.
    pub(crate) fn number(&self, inode: InodeId) -> u64 {
        if inode == self.root.inode { ROOT } else { inode.0 }
    }

    /// Returns the node with this number.
    pub(crate) fn node(&self, ino: u64) -> Option<Node> {
        if ino == ROOT {
            return Some(self.root);
        }
        self.known.lock().get(&ino).map(|known| known.node)
    }

    /// Adds a reference of the kernel to a node.
    pub(crate) fn count(&self, stat: &Stat) -> u64 {
        let ino = self.ino(stat.node());
        let mut known = self.known.lock();
        let entry = known.entry(ino).or_insert_with(|| Known {
            node: stat.node(),
            lookups: 0,
            pages: None,
            sent: None,
        });
        entry.lookups += 1;
        ino
    }

    /// Removes references of the kernel; returns whether none is left.
    pub(crate) fn forget(&self, ino: u64, count: u64) -> bool {
        let mut known = self.known.lock();
        let Some(entry) = known.get_mut(&ino) else { return false };
        entry.lookups = entry.lookups.saturating_sub(count);
        let gone = entry.lookups == 0;
        if gone {
            known.remove(&ino);
        }
        gone
    }

    /// Records the attributes that the kernel is sent.
    pub(crate) fn note_sent(&self, ino: u64, stat: &Stat) {
        if let Some(known) = self.known.lock().get_mut(&ino) {
            known.sent = Some(sent_attributes(stat));
        }
    }

    /// Whether the kernel may have cached other attributes than these.
    pub(crate) fn has_other_attributes(&self, ino: u64, stat: &Stat) -> bool {
        let known = self.known.lock();
        let sent = known.get(&ino).and_then(|known| known.sent);
        sent.is_some_and(|sent| sent != sent_attributes(stat))
    }

    /// Whether the kernel's pages have this version. From now on they have; none stands for an
    /// unknown version.
    pub(crate) fn pages_are_of(&self, ino: u64, version: Option<u64>) -> bool {
        let mut known = self.known.lock();
        let Some(known) = known.get_mut(&ino) else { return false };
        let before = core::mem::replace(&mut known.pages, version);
        before.is_some() && before == version
    }
}

/// Open files or directories, by a number that is never reused.
#[derive(Debug)]
pub(crate) struct HandleTable<T> {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<T>>>,
}

impl<T> HandleTable<T> {
    pub(crate) fn new() -> Self {
        Self { next: AtomicU64::new(1), open: Mutex::default() }
    }

    pub(crate) fn insert(&self, thing: T) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(number, Arc::new(thing));
        number
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<T>> {
        self.open.lock().get(&number).cloned()
    }

    pub(crate) fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.open.lock().remove(&number)
    }
}
