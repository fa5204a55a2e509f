//! What the kernel knows of us by number: nodes that it has looked up, files and directories that it has open.
//!
//! Contract: a node stays as long as the kernel counts on it; each answer that names a node counts once, and a forget
//! takes back as many as it says.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sealstone_mds_protocol::{InodeId, Node, Stat};

/// The kernel's number of the root of a mount.
const ROOT: u64 = 1;

/// Nodes by the kernel's numbers: their own, but the root of the mount is always 1.
#[derive(Debug)]
pub(crate) struct Nodes {
    root: Node,
    known: Mutex<HashMap<u64, Known>>,
}

#[derive(Debug)]
struct Known {
    node: Node,
    lookups: u64,
    /// Version of the content that the kernel's pages are of.
    pages: Option<u64>,
    /// The attributes that the kernel was sent last.
    sent: Option<SentAttributes>,
}

/// What tells attributes of one moment from those of another one: version, size, time of change.
type SentAttributes = (u64, u64, i64);

fn sent_attributes(stat: &Stat) -> SentAttributes {
    (stat.version, stat.size, stat.ctime_ns)
}

impl Nodes {
    pub(crate) fn new(root: Node) -> Self {
        Self { root, known: Mutex::default() }
    }

    /// The kernel's number of a node.
    pub(crate) fn ino(&self, node: Node) -> u64 {
        self.number(node.inode)
    }

    /// The same, of a node that is not more than seen in a list.
    pub(crate) fn number(&self, inode: InodeId) -> u64 {
        if inode == self.root.inode { ROOT } else { inode.0 }
    }

    /// The node that the kernel means.
    pub(crate) fn node(&self, ino: u64) -> Option<Node> {
        if ino == ROOT {
            return Some(self.root);
        }
        self.known.lock().get(&ino).map(|known| known.node)
    }

    /// The kernel is told of a node once more.
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

    /// The kernel forgets a node so many times; true: it does not know it any more.
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

    /// Whether the kernel may have other attributes than these, for as long as it was let keep them.
    pub(crate) fn has_other_attributes(&self, ino: u64, stat: &Stat) -> bool {
        let known = self.known.lock();
        let sent = known.get(&ino).and_then(|known| known.sent);
        sent.is_some_and(|sent| sent != sent_attributes(stat))
    }

    /// Are the kernel's pages of this version? They are from here on; none is a version that nobody knows.
    pub(crate) fn pages_are_of(&self, ino: u64, version: Option<u64>) -> bool {
        let mut known = self.known.lock();
        let Some(known) = known.get_mut(&ino) else { return false };
        let before = core::mem::replace(&mut known.pages, version);
        before.is_some() && before == version
    }
}

/// Things that are open, by a number that is never used twice.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<T>>>,
}

impl<T> Handles<T> {
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
