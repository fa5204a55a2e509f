//! Directory lists in the kernel's cache: whether the kernel may reuse one at an open.
//!
//! Contract: the kernel caches only lists that were read under a lease, and reuses one only while
//! its edition is current. Entries of two editions are never mixed in one list: while an older
//! edition is being read, no cached list of a newer one is started. Entries of an outdated edition
//! are dropped right after they were sent.
//! Truth: docs/adr/0046-leases.md; fs/fuse/readdir.c of Linux.

use std::collections::HashMap;

use parking_lot::Mutex;
use sealstone_client::nodes::ListEdition;

use crate::kernel::{CACHE_DIRECTORY, KEEP_CACHE};

/// The cached lists by the kernel's inode number.
#[derive(Debug, Default)]
pub(crate) struct CachedListings(Mutex<HashMap<u64, Kept>>);

/// A list that the kernel may have cached.
#[derive(Debug)]
struct Kept {
    edition: ListEdition,
    /// Number of open directories that read it.
    readers: usize,
    /// Whether it was started after the kernel dropped the previous one.
    begun: bool,
}

impl CachedListings {
    /// Returns edition and flags for an open: whether the kernel may cache the list, and reuse the
    /// one it has. None if it must not cache.
    pub(crate) fn open(&self, ino: u64, now: Option<ListEdition>) -> Option<(ListEdition, u32)> {
        let now = now?;
        match self.0.lock().get(&ino) {
            Some(kept) if kept.edition == now && kept.begun => Some((now, CACHE_DIRECTORY | KEEP_CACHE)),
            Some(kept) if kept.edition != now && kept.readers > 0 => None,
            _ => Some((now, CACHE_DIRECTORY)),
        }
    }

    /// Registers a reader at its first read, whose edition is still current. Returns false if its
    /// entries have to be dropped.
    pub(crate) fn read(&self, ino: u64, opened: ListEdition) -> bool {
        let mut all = self.0.lock();
        let kept = all.entry(ino).or_insert(Kept { edition: opened, readers: 0, begun: false });
        if kept.edition != opened {
            if kept.readers > 0 {
                return false;
            }
            (kept.edition, kept.begun) = (opened, false);
        }
        kept.readers += 1;
        true
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

    #[test]
    fn kernel_reuses_list_only_in_its_edition() {
        let listings = CachedListings::default();
        let flags = |now| listings.open(5, now).map(|(_, flags)| flags);
        assert_eq!(flags(None), None, "without a lease nothing is kept");
        assert_eq!(flags(Some(edition(1))), Some(CACHE_DIRECTORY));
        assert_eq!(flags(Some(edition(1))), Some(CACHE_DIRECTORY), "nobody read it");
        assert!(listings.read(5, edition(1)));
        assert_eq!(flags(Some(edition(1))), Some(CACHE_DIRECTORY), "not from its beginning");
        listings.begin(5, edition(1));
        assert_eq!(flags(Some(edition(1))), Some(KEEP));
        listings.close(5);
        assert_eq!(flags(Some(edition(1))), Some(KEEP));
        assert_eq!(flags(Some(edition(2))), Some(CACHE_DIRECTORY));
        assert_eq!(flags(None), None);
        listings.forget(5);
        assert_eq!(flags(Some(edition(1))), Some(CACHE_DIRECTORY), "it is another inode of the kernel's");
    }

    #[test]
    fn no_new_list_while_older_edition_is_read() {
        let listings = CachedListings::default();
        assert!(listings.read(5, edition(1)) && listings.read(5, edition(1)));
        listings.begin(5, edition(1));
        assert_eq!(listings.open(5, Some(edition(2))), None);
        assert!(!listings.read(5, edition(2)), "the reader may still use it, and nothing is kept");
        listings.close(5);
        assert_eq!(listings.open(5, Some(edition(2))), None);
        listings.close(5);
        assert_eq!(listings.open(5, Some(edition(2))), Some((edition(2), CACHE_DIRECTORY)));
        assert!(listings.read(5, edition(2)));
        assert_eq!(listings.open(5, Some(edition(2))), Some((edition(2), CACHE_DIRECTORY)));
    }

    #[test]
    fn recalled_list_is_not_reused() {
        let listings = CachedListings::default();
        assert!(!listings.recalled(5), "there is nothing to forget");
        assert!(listings.read(5, edition(1)));
        listings.begin(5, edition(1));
        assert!(listings.recalled(5));
        assert_eq!(listings.open(5, Some(edition(1))), Some((edition(1), CACHE_DIRECTORY)));
        assert_eq!(listings.open(5, Some(edition(2))), None, "a reader may still receive the old list");
        listings.close(5);
        assert!(listings.recalled(5) && !listings.recalled(5));
    }
}
