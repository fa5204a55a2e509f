//! Directory lists in the kernel's cache: whether the kernel may reuse one at an open.
//!
//! Contract: the kernel caches only lists that were read under a lease, and reuses one only while
//! its edition is current. Entries of two editions are never mixed in one list: while an older
//! edition is being read, no cached list of a newer one is started. Entries of an outdated edition
//! are dropped right after they were sent. The kernel may drop a list at any time and continue at
//! any of its offsets, so the names of a complete list are kept beside it.
//! Truth: docs/adr/0046-leases.md; fs/fuse/readdir.c of Linux.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use sealstone_client::nodes::ListEdition;
use sealstone_mds_protocol::Name;

use crate::kernel::{CACHE_DIRECTORY, KEEP_CACHE};

/// The cached lists by the kernel's inode number.
#[derive(Debug, Default)]
pub(crate) struct CachedListings(Mutex<HashMap<u64, Kept>>);

/// Maximum bytes of the names of a list that the kernel caches.
const LISTED_BYTES_MAX: usize = 64 << 20;

/// The names of a list in the order in which they were sent.
#[derive(Debug, Default)]
pub(crate) struct ListedNames {
    bytes: Vec<u8>,
    /// End of each name in `bytes`.
    ends: Vec<u32>,
}

impl ListedNames {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    fn end_of(&self, count: usize) -> usize {
        count.checked_sub(1).and_then(|last| self.ends.get(last)).map_or(0, |end| *end as usize)
    }

    /// Appends a name. Returns false, and changes nothing, if the limit is exceeded.
    pub(crate) fn push(&mut self, name: &Name) -> bool {
        if self.bytes.len() + name.as_bytes().len() > LISTED_BYTES_MAX {
            return false;
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.ends.push(self.bytes.len() as u32);
        true
    }

    /// Leaves the first `count` names.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.bytes.truncate(self.end_of(count));
        self.ends.truncate(count);
    }

    /// Returns a name by its index.
    pub(crate) fn get(&self, index: usize) -> Option<Name> {
        let end = *self.ends.get(index)? as usize;
        Name::new(&self.bytes[self.end_of(index)..end]).ok()
    }
}

/// The names of a list of one edition. Set when the list is complete; then None if they exceed the
/// limit.
pub(crate) type ListNamesCell = Arc<OnceLock<Option<ListedNames>>>;

/// A list that the kernel may cache, at the open of its directory.
#[derive(Clone, Debug)]
pub(crate) struct OpenedList {
    pub(crate) edition: ListEdition,
    pub(crate) names: ListNamesCell,
}

impl OpenedList {
    /// Whether the list is too long to be cached.
    pub(crate) fn is_too_long(&self) -> bool {
        self.names.get().is_some_and(Option::is_none)
    }
}

/// A list that the kernel may have cached.
#[derive(Debug)]
struct Kept {
    edition: ListEdition,
    names: ListNamesCell,
    /// Number of open directories that may read it.
    readers: usize,
    /// Whether it was started after the kernel dropped the previous one.
    begun: bool,
}

impl Kept {
    fn new(edition: ListEdition) -> Self {
        Self { edition, names: Arc::default(), readers: 0, begun: false }
    }
}

impl CachedListings {
    /// Returns list and flags for an open: whether the kernel may cache the list, and reuse the one
    /// it has. None if it must not cache. Otherwise the open counts as a reader until it is closed,
    /// because the kernel can serve all its reads from the cache.
    pub(crate) fn open(&self, ino: u64, now: Option<ListEdition>) -> Option<(OpenedList, u32)> {
        let now = now?;
        let mut all = self.0.lock();
        let kept = all.entry(ino).or_insert_with(|| Kept::new(now));
        if kept.edition != now {
            if kept.readers > 0 {
                return None;
            }
            *kept = Kept::new(now);
        }
        let list = OpenedList { edition: now, names: Arc::clone(&kept.names) };
        if list.is_too_long() {
            return None;
        }
        kept.readers += 1;
        Some((list, if kept.begun { CACHE_DIRECTORY | KEEP_CACHE } else { CACHE_DIRECTORY }))
    }

    /// Records that a cacheable list is read from the beginning.
    pub(crate) fn begin(&self, ino: u64, opened: ListEdition) {
        if let Some(kept) = self.0.lock().get_mut(&ino).filter(|kept| kept.edition == opened) {
            kept.begun = true;
        }
    }

    /// Removes a reader.
    pub(crate) fn close(&self, ino: u64) {
        if let Some(kept) = self.0.lock().get_mut(&ino) {
            kept.readers = kept.readers.saturating_sub(1);
        }
    }

    /// Ends the current list when the lease is returned. Returns whether the kernel may have
    /// something cached.
    pub(crate) fn recalled(&self, ino: u64) -> bool {
        let mut all = self.0.lock();
        let Some(kept) = all.get_mut(&ino) else { return false };
        kept.begun = false;
        if kept.readers == 0 {
            all.remove(&ino);
        }
        true
    }

    /// Removes a directory that the kernel has forgotten.
    pub(crate) fn forget(&self, ino: u64) {
        self.0.lock().remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use sealstone_mds_protocol::{LeaseKind, NodeLease};

    use super::*;

    const KEEP: u32 = CACHE_DIRECTORY | KEEP_CACHE;

    fn edition(changes: u64) -> ListEdition {
        ListEdition::new(&NodeLease { kind: LeaseKind::Read, number: 1, epoch: 1 }, changes)
    }

    /// Opens the directory; returns the flags.
    fn open(listings: &CachedListings, changes: u64) -> Option<u32> {
        listings.open(5, Some(edition(changes))).map(|(_, flags)| flags)
    }

    #[test]
    fn kernel_reuses_list_only_in_its_edition() {
        let listings = CachedListings::default();
        assert!(listings.open(5, None).is_none(), "without a lease nothing is kept");
        assert_eq!(open(&listings, 1), Some(CACHE_DIRECTORY));
        assert_eq!(open(&listings, 1), Some(CACHE_DIRECTORY), "nobody read it from its beginning");
        listings.begin(5, edition(1));
        assert_eq!(open(&listings, 1), Some(KEEP));
        (0..3).for_each(|_| listings.close(5));
        assert_eq!(open(&listings, 1), Some(KEEP));
        assert!(listings.open(5, None).is_none());
        listings.close(5);
        assert_eq!(open(&listings, 2), Some(CACHE_DIRECTORY));
        listings.forget(5);
        assert_eq!(open(&listings, 1), Some(CACHE_DIRECTORY), "it is another inode of the kernel's");
    }

    #[test]
    fn no_new_list_while_older_edition_is_open() {
        let listings = CachedListings::default();
        assert_eq!(open(&listings, 1), Some(CACHE_DIRECTORY));
        listings.begin(5, edition(1));
        assert_eq!(open(&listings, 1), Some(KEEP), "the kernel may serve this one alone");
        assert_eq!(open(&listings, 2), None);
        listings.close(5);
        assert_eq!(open(&listings, 2), None);
        listings.close(5);
        assert_eq!(open(&listings, 2), Some(CACHE_DIRECTORY));
        assert_eq!(open(&listings, 2), Some(CACHE_DIRECTORY));
    }

    #[test]
    fn recalled_list_is_not_reused() {
        let listings = CachedListings::default();
        assert!(!listings.recalled(5), "there is nothing to forget");
        assert_eq!(open(&listings, 1), Some(CACHE_DIRECTORY));
        listings.begin(5, edition(1));
        assert!(listings.recalled(5));
        assert_eq!(open(&listings, 1), Some(CACHE_DIRECTORY));
        assert_eq!(open(&listings, 2), None, "a reader may still receive the old list");
        (0..2).for_each(|_| listings.close(5));
        assert!(listings.recalled(5) && !listings.recalled(5));
    }

    #[test]
    fn opens_of_one_edition_share_names() {
        let listings = CachedListings::default();
        let (one, _) = listings.open(5, Some(edition(1))).unwrap();
        let (two, _) = listings.open(5, Some(edition(1))).unwrap();
        let mut names = ListedNames::default();
        for name in ["a", "bc", "d"] {
            assert!(names.push(&Name::new(name).unwrap()));
        }
        names.truncate(2);
        assert!(one.names.set(Some(names)).is_ok());
        let names = two.names.get().and_then(Option::as_ref).unwrap();
        assert_eq!((names.len(), names.get(1), names.get(2)), (2, Name::new("bc").ok(), None));
        (0..2).for_each(|_| listings.close(5));
        let (other, _) = listings.open(5, Some(edition(2))).unwrap();
        assert!(other.names.get().is_none(), "another list");
        assert!(other.names.set(None).is_ok() && other.is_too_long());
        assert_eq!(open(&listings, 2), None, "a list without its names is not cached");
    }
}
