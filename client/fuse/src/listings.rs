//! Lists of directories that the kernel keeps: whether it may go on with one when it opens the directory once more.
//!
//! Contract: the kernel keeps only what was listed under a lease, and goes on with it only as long as it is the same edition. Answers
//! of two editions never come together in one list: while somebody reads the older one nobody begins a list of a newer one that
//! is kept. What is told of an edition that is over is dropped as soon as it was told.
//! Truth: docs/adr/0046-leases.md; fs/fuse/readdir.c of Linux.

use std::collections::HashMap;

use parking_lot::Mutex;
use sealstone_client::nodes::Edition;

use crate::kernel::{CACHE_DIRECTORY, KEEP_CACHE};

/// See the module. By the kernel's numbers.
#[derive(Debug, Default)]
pub(crate) struct Listings(Mutex<HashMap<u64, Kept>>);

/// A list that the kernel may have.
#[derive(Debug)]
struct Kept {
    edition: Edition,
    /// Open directories through which it is told.
    readers: usize,
    /// It was begun since the kernel dropped what it had before.
    begun: bool,
}

impl Listings {
    /// A directory is opened: may the kernel keep what it is told, and what it has? As flags of the answer; none: it keeps nothing.
    pub(crate) fn open(&self, ino: u64, now: Option<Edition>) -> Option<(Edition, u32)> {
        let now = now?;
        match self.0.lock().get(&ino) {
            Some(kept) if kept.edition == now && kept.begun => Some((now, CACHE_DIRECTORY | KEEP_CACHE)),
            Some(kept) if kept.edition != now && kept.readers > 0 => None,
            _ => Some((now, CACHE_DIRECTORY)),
        }
    }

    /// A directory is read through what was opened in this edition, which it still is, for the first time. False: what is told is
    /// to be dropped.
    pub(crate) fn read(&self, ino: u64, opened: Edition) -> bool {
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

    /// It is read from the beginning, through what was let be kept.
    pub(crate) fn begin(&self, ino: u64, opened: Edition) {
        if let Some(kept) = self.0.lock().get_mut(&ino).filter(|kept| kept.edition == opened) {
            kept.begun = true;
        }
    }

    /// What was read through is closed.
    pub(crate) fn close(&self, ino: u64) {
        if let Some(kept) = self.0.lock().get_mut(&ino) {
            kept.readers = kept.readers.saturating_sub(1);
        }
    }

    /// The lease is given back: does the kernel have anything to forget?
    pub(crate) fn recalled(&self, ino: u64) -> bool {
        let mut all = self.0.lock();
        let Some(kept) = all.get_mut(&ino) else { return false };
        kept.begun = false;
        if kept.readers == 0 {
            all.remove(&ino);
        }
        true
    }

    /// The kernel does not know the directory any more.
    pub(crate) fn forget(&self, ino: u64) {
        self.0.lock().remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use sealstone_mds_protocol::{LeaseKind, NodeLease};

    use super::*;

    const KEEP: u32 = CACHE_DIRECTORY | KEEP_CACHE;

    fn edition(changes: u64) -> Edition {
        Edition::new(&NodeLease { kind: LeaseKind::Read, number: 1, epoch: 1 }, changes)
    }

    #[test]
    fn the_kernel_goes_on_with_a_list_only_in_the_edition_that_it_was_begun_in() {
        let listings = Listings::default();
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
    fn nobody_begins_a_list_while_an_older_edition_is_read() {
        let listings = Listings::default();
        assert!(listings.read(5, edition(1)) && listings.read(5, edition(1)));
        listings.begin(5, edition(1));
        assert_eq!(listings.open(5, Some(edition(2))), None);
        assert!(!listings.read(5, edition(2)), "who opened it before is told, and nothing is kept");
        listings.close(5);
        assert_eq!(listings.open(5, Some(edition(2))), None);
        listings.close(5);
        assert_eq!(listings.open(5, Some(edition(2))), Some((edition(2), CACHE_DIRECTORY)));
        assert!(listings.read(5, edition(2)));
        assert_eq!(listings.open(5, Some(edition(2))), Some((edition(2), CACHE_DIRECTORY)));
    }

    #[test]
    fn what_is_called_back_is_not_gone_on_with() {
        let listings = Listings::default();
        assert!(!listings.recalled(5), "there is nothing to forget");
        assert!(listings.read(5, edition(1)));
        listings.begin(5, edition(1));
        assert!(listings.recalled(5));
        assert_eq!(listings.open(5, Some(edition(1))), Some((edition(1), CACHE_DIRECTORY)));
        assert_eq!(listings.open(5, Some(edition(2))), None, "who reads it may be told of it yet");
        listings.close(5);
        assert!(listings.recalled(5) && !listings.recalled(5));
    }
}
