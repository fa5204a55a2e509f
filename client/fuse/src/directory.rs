//! Open directories: pages of entries, and the offsets by which the kernel continues.
//!
//! Contract: an offset leads to the same position as long as the directory is open, also if entries
//! before it were removed since. For that the names of the last reply are kept, one name for each
//! page before, and all names of a list that the kernel caches ([`crate::listings`]). The next page
//! is requested while the kernel processes one. Attributes are included only if they are fresh and
//! nothing was changed locally since, because the kernel caches them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sealstone_client::ClientError;
use sealstone_client::nodes::{CacheListing, Nodes};
use sealstone_mds_protocol::{DirEntry, FileKind, InodeId, Name, Node, Stat};
use tokio::sync::{Mutex, oneshot};

use crate::listings::{CachedListings, ListedNames, OpenedList};

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
    /// The list at the open, if the kernel may cache the entries.
    kept: Option<OpenedList>,
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
    /// Offset of the first entry of the last reply, and the names in it.
    replied: (u64, ListedNames),
    /// All names since the first one, while the kernel caches what it gets.
    listed: Option<ListedNames>,
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

    /// Returns the name before offset `at` as it was sent, by this open directory or, to the
    /// kernel's cache, by another one. None at the start of a page.
    fn name_before(&self, at: u64, kept: Option<&OpenedList>) -> Option<Name> {
        let index = |first: u64| usize::try_from(at.checked_sub(first + 1)?).ok();
        let (first, replied) = &self.replied;
        let name = index(*first).and_then(|index| replied.get(index));
        if name.is_some() || self.pages.contains_key(&at) {
            return name;
        }
        kept?.names.get()?.as_ref()?.get(index(DOTS)?)
    }

    /// Returns all names before offset `at`, if they are known: those that the kernel caches.
    fn listed_before(&mut self, at: u64) -> Option<ListedNames> {
        let before = usize::try_from(at - DOTS).ok()?;
        let mut listed = self.listed.take().unwrap_or_default();
        listed.truncate(before);
        (listed.len() == before).then_some(listed)
    }
}

impl OpenDirectory {
    pub(crate) fn new(nodes: &Nodes, node: Node, kept: Option<OpenedList>) -> Self {
        let place = DirectoryPage {
            pages: BTreeMap::from([(DOTS, None)]),
            first: DOTS,
            entries: Vec::new(),
            more: true,
            asked: Asked::now(nodes),
            next: None,
            replied: (DOTS, ListedNames::default()),
            listed: None,
        };
        Self { node, kept, place: Mutex::new(place) }
    }

    /// Whether the kernel may cache the entries; then it counts as a reader in [`CachedListings`].
    pub(crate) const fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Whether the cached entries are outdated.
    pub(crate) fn is_over(&self, nodes: &Nodes) -> bool {
        self.kept
            .as_ref()
            .is_some_and(|kept| kept.is_too_long() || nodes.edition(self.node) != Some(kept.edition))
    }

    /// Starts a read, with `from_start` at the beginning. Returns whether the kernel has to drop
    /// the list afterwards.
    pub(crate) fn begin(
        &self,
        nodes: &Nodes,
        listings: &CachedListings,
        (ino, from_start): (u64, bool),
    ) -> bool {
        let Some(opened) = &self.kept else { return false };
        let is_over = self.is_over(nodes);
        if from_start && !is_over {
            listings.begin(ino, opened.edition);
        }
        is_over
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
        let from = from.max(DOTS);
        if from == DOTS {
            // A read from the beginning shows the current entries.
            place.turn_to(DOTS, Vec::new(), true);
            place.pages.retain(|number, _| *number == DOTS);
            place.next = None;
        } else if let Some(name) = place.name_before(from, self.kept.as_ref()) {
            place.pages.insert(from, Some(name));
        }
        let kept = self.kept.as_ref();
        let mut listed = place.listed_before(from).filter(|_| kept.is_some());
        let (mut replied, mut is_full, mut is_too_long) = (ListedNames::default(), false, false);
        let read = self.read_entries(nodes, place, (from, plus), |next, entry| {
            let name = entry.name;
            is_full = take(next, entry);
            if !is_full {
                replied.push(name);
                is_too_long |= listed.as_mut().is_some_and(|listed| !listed.push(name));
            }
            is_full
        });
        let read = read.await;
        let is_end = read.is_ok() && !is_full && replied.len() == 0;
        if let Some(kept) = kept
            && (is_end || is_too_long)
            && !self.is_over(nodes)
            && let Some(listed) = listed.take()
        {
            // Another open directory may have read the same list.
            let _ = kept.names.set((!is_too_long).then_some(listed));
        }
        (place.replied, place.listed) = ((from, replied), listed);
        read
    }

    /// Passes entries from offset `at` on to `take`.
    async fn read_entries(
        &self,
        nodes: &Nodes,
        place: &mut DirectoryPage,
        (mut at, plus): (u64, bool),
        mut take: impl FnMut(u64, ShownEntry<'_>) -> bool,
    ) -> Result<(), ClientError> {
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
