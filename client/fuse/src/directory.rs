//! Open directories: pages of entries, and the numbers by which the kernel goes on.
//!
//! Contract: memory does not grow with the directory but for one name in each page; a number that was given leads back to
//! the same place as long as the directory is open. While the kernel works on a page the next one is asked for. What nodes are is
//! shown only if it was told just now, and nothing was changed here since: the kernel takes it for what is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sealstone_client::ClientError;
use sealstone_client::nodes::{Edition, Listed, Nodes};
use sealstone_mds_protocol::{DirEntry, FileKind, InodeId, Name, Node, Stat};
use tokio::sync::{Mutex, oneshot};

use crate::listings::Listings;

/// Numbers before the first entry: `.` and `..`.
pub(crate) const DOTS: u64 = 2;

/// Entries in a page that nobody is asked for.
const PAGE: usize = 256;
/// What nodes are is shown for so long after it was told, or as long as it is believed if that is shorter.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// What the kernel is shown of an entry.
pub(crate) struct Shown<'a> {
    pub(crate) name: &'a Name,
    pub(crate) inode: InodeId,
    pub(crate) kind: FileKind,
    /// None: nothing more is known, or wanted.
    pub(crate) stat: Option<&'a Stat>,
}

type Page = (Vec<DirEntry>, bool);

/// When a page was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    when: Instant,
    changes: u64,
}

impl Asked {
    fn now(nodes: &Nodes) -> Self {
        Self { when: Instant::now(), changes: nodes.changes() }
    }

    /// Is what it told of nodes to be shown?
    fn is_fresh(&self, nodes: &Nodes) -> bool {
        let fresh_for = FRESH_FOR.min(nodes.options().attributes_for);
        self.when.elapsed() < fresh_for && self.changes == nodes.changes()
    }
}

/// A directory that is open.
#[derive(Debug)]
pub(crate) struct Directory {
    node: Node,
    /// The kernel keeps what it is told through this, which was this edition when it was opened.
    kept: Option<Edition>,
    /// It is among those that are read.
    reads: AtomicBool,
    place: Mutex<Place>,
}

#[derive(Debug)]
struct Place {
    /// For the number of each page's first entry, the name before it.
    pages: BTreeMap<u64, Option<Name>>,
    /// Number of the first entry of the page that is here.
    first: u64,
    entries: Vec<DirEntry>,
    more: bool,
    asked: Asked,
    /// The page after this one, on its way.
    next: Option<Next>,
}

#[derive(Debug)]
struct Next {
    after: Name,
    asked: Asked,
    page: oneshot::Receiver<Result<Page, ClientError>>,
}

impl Place {
    fn turn_to(&mut self, first: u64, entries: Vec<DirEntry>, more: bool) {
        (self.first, self.entries, self.more) = (first, entries, more);
    }

    /// Lets go of the page, so that it is asked for again from this number on.
    fn doubt(&mut self, at: u64) {
        let before = at.checked_sub(self.first + 1).and_then(|index| self.entries.get(index as usize));
        if let Some(before) = before {
            self.pages.insert(at, Some(before.name.clone()));
        }
        self.turn_to(DOTS, Vec::new(), true);
        self.next = None;
    }
}

impl Directory {
    pub(crate) fn new(nodes: &Nodes, node: Node, kept: Option<Edition>) -> Self {
        let pages = BTreeMap::from([(DOTS, None)]);
        let asked = Asked::now(nodes);
        let place = Place { pages, first: DOTS, entries: Vec::new(), more: true, asked, next: None };
        Self { node, kept, reads: AtomicBool::new(false), place: Mutex::new(place) }
    }

    /// Is what it told kept?
    pub(crate) fn is_kept(&self) -> bool {
        self.reads.load(Ordering::Relaxed)
    }

    /// Is what was told through this up to now to be dropped?
    pub(crate) fn is_over(&self, nodes: &Nodes) -> bool {
        self.kept.is_some() && nodes.edition(self.node) != self.kept
    }

    /// It is read, `anew` from the beginning. True: what is told is to be dropped.
    pub(crate) fn begin(&self, nodes: &Nodes, listings: &Listings, (ino, anew): (u64, bool)) -> bool {
        let Some(opened) = self.kept else { return false };
        if self.is_over(nodes) || (!self.is_kept() && !listings.read(ino, opened)) {
            return true;
        }
        self.reads.store(true, Ordering::Relaxed);
        if anew {
            listings.begin(ino, opened);
        }
        false
    }

    /// Shows entries from number `from` on, with the number after each, until `take` has enough: then it did not take the last
    /// one. With `plus` all that is known of them is shown.
    pub(crate) async fn read(
        &self,
        nodes: &Nodes,
        from: u64,
        plus: bool,
        mut take: impl FnMut(u64, Shown<'_>) -> bool,
    ) -> Result<(), ClientError> {
        let place = &mut *self.place.lock().await;
        let mut at = from.max(DOTS);
        if at == DOTS {
            // Who begins anew sees it as it is now.
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
                if take(at + 1, Shown { name, inode: *inode, kind: *kind, stat }) {
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
                    full = number >= at && take(number + 1, Shown { name, inode, kind, stat: None });
                    number += u64::from(!full);
                    full
                });
                at = at.max(number);
                match listed {
                    Listed::End => {
                        place.turn_to(at, Vec::new(), false);
                        return Ok(());
                    }
                    Listed::Upto(Some(last)) => {
                        place.pages.insert(number, Some(last));
                        place.turn_to(number, Vec::new(), true);
                        if full {
                            return Ok(());
                        }
                        // What comes next is asked for.
                        continue;
                    }
                    Listed::Upto(None) if full => return Ok(()),
                    Listed::Upto(None) => {}
                }
            }
            let (entries, more) = self.page(nodes, place, after.clone(), plus).await?;
            if entries.is_empty() || (at >= first + entries.len() as u64 && !more) {
                // It became shorter than it was.
                place.turn_to(at, Vec::new(), false);
                return Ok(());
            }
            place.pages.insert(first, after);
            let end = first + entries.len() as u64;
            let last = entries.last().map(|entry| entry.name.clone());
            place.turn_to(first, entries, more);
            if let Some(last) = last {
                place.pages.insert(end, Some(last.clone()));
                if more && !nodes.lists(self.node) {
                    place.next = Some(self.ask(nodes, last));
                }
            }
        }
    }

    /// A page that was asked for before, or is now.
    async fn page(
        &self,
        nodes: &Nodes,
        place: &mut Place,
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
        if plus && let Some(page) = nodes.page_known(self.node, after.as_ref(), PAGE) {
            return Ok(page);
        }
        nodes.read_directory(self.node, after).await
    }

    fn ask(&self, nodes: &Nodes, after: Name) -> Next {
        let (mut gives, page) = oneshot::channel();
        let (asked, name) = (Asked::now(nodes), after.clone());
        let (others, node) = (nodes.clone(), self.node);
        nodes.spawn(async move {
            tokio::select! {
                page = others.read_directory(node, Some(name)) => drop(gives.send(page)),
                // Nobody wants it any more.
                () = gives.closed() => {}
            }
        });
        Next { after, asked, page }
    }
}
