//! Open directories: pages of entries, and the offsets by which the kernel continues.
//!
//! Contract: memory grows with the directory only by one name for each page. An offset leads to the
//! same position as long as the directory is open. The next page is requested while the kernel
//! processes one. Attributes are included only if they are fresh and nothing was changed locally
//! since, because the kernel caches them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sealstone_client::ClientError;
use sealstone_client::nodes::{CacheListing, ListEdition, Nodes};
use sealstone_mds_protocol::{DirEntry, FileKind, InodeId, Name, Node, Stat};
use tokio::sync::{Mutex, oneshot};

use crate::listings::CachedListings;

/// Offsets before the first entry: `.` and `..`.
pub(crate) const DOTS: u64 = 2;

/// Entries in a page from the cache.
const PAGE: usize = 256;
/// How long attributes of a page count as fresh, if `attr_timeout` is not shorter.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// An entry as shown to the kernel.
pub(crate) struct ShownEntry<'a> {
    pub(crate) name: &'a Name,
    pub(crate) inode: InodeId,
    pub(crate) kind: FileKind,
    /// None if attributes are not known or not wanted.
    pub(crate) stat: Option<&'a Stat>,
}

type Page = (Vec<DirEntry>, bool);

/// Time of the request for a page.
#[derive(Clone, Copy, Debug)]
struct Asked {
    when: Instant,
    changes: u64,
}

impl Asked {
    fn now(nodes: &Nodes) -> Self {
        Self { when: Instant::now(), changes: nodes.changes() }
    }

    /// Whether the attributes of the page may be shown.
    fn is_fresh(&self, nodes: &Nodes) -> bool {
        let fresh_for = FRESH_FOR.min(nodes.options().attr_timeout);
        self.when.elapsed() < fresh_for && self.changes == nodes.changes()
    }
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    node: Node,
    /// The edition at the open, if the kernel may cache the entries.
    kept: Option<ListEdition>,
    /// Whether it counts as a reader in [`CachedListings`].
    reads: AtomicBool,
    place: Mutex<DirectoryPage>,
}

#[derive(Debug)]
struct DirectoryPage {
    /// The name before the first entry of each page, by the entry's offset.
    pages: BTreeMap<u64, Option<Name>>,
    /// Offset of the first entry of the current page.
    first: u64,
    entries: Vec<DirEntry>,
    more: bool,
    asked: Asked,
    /// The next page, which was requested in advance.
    next: Option<Next>,
}

#[derive(Debug)]
struct Next {
    after: Name,
    asked: Asked,
    page: oneshot::Receiver<Result<Page, ClientError>>,
}

impl DirectoryPage {
    fn turn_to(&mut self, first: u64, entries: Vec<DirEntry>, more: bool) {
        (self.first, self.entries, self.more) = (first, entries, more);
    }

    /// Drops the current page, so that it is requested again from offset `at` on.
    fn doubt(&mut self, at: u64) {
        let before = at.checked_sub(self.first + 1).and_then(|index| self.entries.get(index as usize));
        if let Some(before) = before {
            self.pages.insert(at, Some(before.name.clone()));
        }
        self.turn_to(DOTS, Vec::new(), true);
        self.next = None;
    }
}

impl OpenDirectory {
    pub(crate) fn new(nodes: &Nodes, node: Node, kept: Option<ListEdition>) -> Self {
        let pages = BTreeMap::from([(DOTS, None)]);
        let asked = Asked::now(nodes);
        let place = DirectoryPage { pages, first: DOTS, entries: Vec::new(), more: true, asked, next: None };
        Self { node, kept, reads: AtomicBool::new(false), place: Mutex::new(place) }
    }

    /// Whether the kernel caches what is read through this.
    pub(crate) fn is_kept(&self) -> bool {
        self.reads.load(Ordering::Relaxed)
    }

    /// Whether the cached entries are outdated.
    pub(crate) fn is_over(&self, nodes: &Nodes) -> bool {
        self.kept.is_some() && nodes.edition(self.node) != self.kept
    }

    /// Starts a read, with `from_start` at the beginning. Returns whether the kernel has to drop
    /// the list afterwards.
    pub(crate) fn begin(
        &self,
        nodes: &Nodes,
        listings: &CachedListings,
        (ino, from_start): (u64, bool),
    ) -> bool {
        let Some(opened) = self.kept else { return false };
        if self.is_over(nodes) || (!self.is_kept() && !listings.read(ino, opened)) {
            return true;
        }
        self.reads.store(true, Ordering::Relaxed);
        if from_start {
            listings.begin(ino, opened);
        }
        false
    }

    /// Passes entries from offset `from` on to `take`, each with the next offset, until `take`
    /// returns true; that entry was not taken. With `plus` attributes are included.
    pub(crate) async fn read(
        &self,
        nodes: &Nodes,
        from: u64,
        plus: bool,
        mut take: impl FnMut(u64, ShownEntry<'_>) -> bool,
    ) -> Result<(), ClientError> {
        let place = &mut *self.place.lock().await;
        let mut at = from.max(DOTS);
        if at == DOTS {
            // A read from the beginning shows the current entries.
            place.turn_to(DOTS, Vec::new(), true);
            place.pages.retain(|number, _| *number == DOTS);
            place.next = None;
        }
        if plus && !place.entries.is_empty() && !place.asked.is_fresh(nodes) {
            place.doubt(at);
        }
        loop {
            let here = place.first..place.first + place.entries.len() as u64;
            if here.contains(&at) {
                let DirEntry { name, inode, kind, stat } = &place.entries[(at - place.first) as usize];
                let stat = stat.as_ref().filter(|_| plus);
                if take(at + 1, ShownEntry { name, inode: *inode, kind: *kind, stat }) {
                    return Ok(());
                }
                at += 1;
                continue;
            }
            if at == here.end && !place.more {
                return Ok(());
            }
            let (first, after) = if at == here.end && !here.is_empty() {
                (at, place.entries.last().map(|entry| entry.name.clone()))
            } else {
                let page = place.pages.range(..=at).next_back();
                page.map_or((DOTS, None), |(number, name)| (*number, name.clone()))
            };
            if !plus {
                let mut number = first;
                let mut full = false;
                let listed = nodes.list(self.node, after.as_ref(), |name, inode, kind| {
                    full = number >= at && take(number + 1, ShownEntry { name, inode, kind, stat: None });
                    number += u64::from(!full);
                    full
                });
                at = at.max(number);
                match listed {
                    CacheListing::End => {
                        place.turn_to(at, Vec::new(), false);
                        return Ok(());
                    }
                    CacheListing::Upto(Some(last)) => {
                        place.pages.insert(number, Some(last));
                        place.turn_to(number, Vec::new(), true);
                        if full {
                            return Ok(());
                        }
                        // The entry is not cached and has to be requested.
                        continue;
                    }
                    CacheListing::Upto(None) if full => return Ok(()),
                    CacheListing::Upto(None) => {}
                }
            }
            let (entries, more) = self.page(nodes, place, after.clone(), plus).await?;
            if entries.is_empty() || (at >= first + entries.len() as u64 && !more) {
                // The directory has become shorter.
                place.turn_to(at, Vec::new(), false);
                return Ok(());
            }
            place.pages.insert(first, after);
            let end = first + entries.len() as u64;
            let last = entries.last().map(|entry| entry.name.clone());
            place.turn_to(first, entries, more);
            if let Some(last) = last {
                place.pages.insert(end, Some(last.clone()));
                if more && !nodes.is_listable(self.node) {
                    place.next = Some(self.request_page(nodes, last));
                }
            }
        }
    }

    /// Returns a page that was requested in advance, or requests it.
    async fn page(
        &self,
        nodes: &Nodes,
        place: &mut DirectoryPage,
        after: Option<Name>,
        plus: bool,
    ) -> Result<Page, ClientError> {
        if let Some(next) = place.next.take()
            && Some(&next.after) == after.as_ref()
            && (!plus || next.asked.is_fresh(nodes))
            && let Ok(page) = next.page.await
        {
            place.asked = next.asked;
            return page;
        }
        place.asked = Asked::now(nodes);
        if plus && let Some(page) = nodes.cached_page(self.node, after.as_ref(), PAGE) {
            return Ok(page);
        }
        nodes.read_directory(self.node, after).await
    }

    fn request_page(&self, nodes: &Nodes, after: Name) -> Next {
        let (mut gives, page) = oneshot::channel();
        let (asked, name) = (Asked::now(nodes), after.clone());
        let (others, node) = (nodes.clone(), self.node);
        nodes.spawn(async move {
            tokio::select! {
                page = others.read_directory(node, Some(name)) => drop(gives.send(page)),
                // The directory was closed.
                () = gives.closed() => {}
            }
        });
        Next { after, asked, page }
    }
}
