//! Leases that were returned, so that late answers that grant them are ignored.
//!
//! Contract: a returned lease is known as such for the rest of its epoch. Each entry takes about 50
//! bytes; there are about [`RETURNED_MAX`] at most.

use core::time::Duration;
use std::collections::BTreeMap;

use sealstone_mds_protocol::InodeId;
use tokio::time::Instant;

use super::GRANT_DELAY_MAX;

/// How long returned leases are remembered one by one; after that only the highest number is.
pub(super) const RETURNED_KEEP: Duration = Duration::from_secs(120);
/// Number of entries above which only those of the last second are kept.
const RETURNED_MAX: usize = 16_384;

/// Returned leases of one epoch, in which lease numbers grow.
#[derive(Debug, Default)]
pub(super) struct ReturnedLeases {
    /// The last returned lease of each node, with the time.
    each: BTreeMap<InodeId, (u64, Instant)>,
    /// The highest number of the forgotten entries. A lease up to it was returned, or is returned
    /// at once if it is granted late.
    upto: u64,
}

impl ReturnedLeases {
    pub(super) fn record(&mut self, inode: InodeId, number: u64, now: Instant) {
        if self.each.len() >= RETURNED_MAX {
            self.prune(GRANT_DELAY_MAX, now);
        }
        let known = self.each.get(&inode).map_or(0, |(number, _)| *number);
        self.each.insert(inode, (known.max(number), now));
    }

    /// Forgets the entries that are older than `within`.
    pub(super) fn prune(&mut self, within: Duration, now: Instant) {
        let upto = &mut self.upto;
        self.each.retain(|_, (number, when)| {
            let keeps = now.saturating_duration_since(*when) < within;
            *upto = if keeps { *upto } else { (*upto).max(*number) };
            keeps
        });
    }

    /// Whether this lease was returned; if so, whether that is long ago.
    pub(super) fn was_returned(&self, inode: InodeId, number: u64, now: Instant) -> Option<bool> {
        match self.each.get(&inode) {
            Some((last, when)) if *last >= number => {
                Some(now.saturating_duration_since(*when) >= GRANT_DELAY_MAX)
            }
            _ => (number <= self.upto).then_some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pruned_lease_still_counts_as_returned() {
        let start = Instant::now();
        let mut returned = ReturnedLeases::default();
        returned.record(InodeId(1), 7, start);
        // An older one that is recorded late.
        returned.record(InodeId(1), 5, start);
        assert_eq!(returned.was_returned(InodeId(1), 7, start), Some(false), "ReturnLease may be in flight");
        assert_eq!(returned.was_returned(InodeId(2), 6, start), None);
        let later = start + RETURNED_KEEP;
        assert_eq!(returned.was_returned(InodeId(1), 7, later), Some(true));
        for inode in 0..RETURNED_MAX as u64 {
            returned.record(InodeId(100 + inode), 8 + inode, later);
        }
        assert!(returned.each.len() <= RETURNED_MAX && !returned.each.contains_key(&InodeId(1)));
        assert_eq!(returned.was_returned(InodeId(1), 7, later), Some(true));
        assert_eq!(returned.was_returned(InodeId(1), 8, later), None, "a later one");
    }
}
