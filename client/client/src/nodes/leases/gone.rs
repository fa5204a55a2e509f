//! Leases that were returned, so that late answers that grant them are ignored.
//!
//! Contract: a returned lease is known as such for the rest of its epoch. Each entry takes about 50
//! bytes; there are about [`GONE_MAX`] at most.

use core::time::Duration;
use std::collections::BTreeMap;

use sealstone_mds_protocol::InodeId;
use tokio::time::Instant;

use super::OVERTAKEN;

/// How long returned leases are remembered one by one; after that only the highest number is.
pub(super) const GONE_FOR: Duration = Duration::from_secs(120);
/// Number of entries above which only those of the last second are kept.
const GONE_MAX: usize = 16_384;

/// Returned leases of one epoch, in which lease numbers grow.
#[derive(Debug, Default)]
pub(super) struct Gone {
    /// The last returned lease of each node, with the time.
    each: BTreeMap<InodeId, (u64, Instant)>,
    /// The highest number of the forgotten entries. A lease up to it was returned, or is returned
    /// at once if it is granted late.
    upto: u64,
}

impl Gone {
    pub(super) fn note(&mut self, inode: InodeId, number: u64) {
        if self.each.len() >= GONE_MAX {
            self.forget(OVERTAKEN);
        }
        let known = self.each.get(&inode).map_or(0, |(number, _)| *number);
        self.each.insert(inode, (known.max(number), Instant::now()));
    }

    /// Forgets the entries that are older than `within`.
    pub(super) fn forget(&mut self, within: Duration) {
        let upto = &mut self.upto;
        self.each.retain(|_, (number, when)| {
            let stays = when.elapsed() < within;
            *upto = if stays { *upto } else { (*upto).max(*number) };
            stays
        });
    }

    /// Whether this lease was returned; if so, whether that is long ago.
    pub(super) fn knows(&self, inode: InodeId, number: u64) -> Option<bool> {
        match self.each.get(&inode) {
            Some((last, when)) if *last >= number => Some(when.elapsed() >= OVERTAKEN),
            _ => (number <= self.upto).then_some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_given_back_stays_given_back_when_it_is_not_remembered_by_itself() {
        let mut gone = Gone::default();
        gone.note(InodeId(1), 7);
        // An older one that is recorded late.
        gone.note(InodeId(1), 5);
        assert_eq!(gone.knows(InodeId(1), 7), Some(false), "ReturnLease may be in flight");
        assert_eq!(gone.knows(InodeId(2), 6), None);
        sleep(GONE_FOR).await;
        assert_eq!(gone.knows(InodeId(1), 7), Some(true));
        for inode in 0..GONE_MAX as u64 {
            gone.note(InodeId(100 + inode), 8 + inode);
        }
        assert!(gone.each.len() <= GONE_MAX && !gone.each.contains_key(&InodeId(1)));
        assert_eq!(gone.knows(InodeId(1), 7), Some(true));
        assert_eq!(gone.knows(InodeId(1), 8), None, "a later one");
    }
}
