//! Leases that were given back: an answer that names one comes too late.
//!
//! Contract: what was given back is known as such for the rest of its era, however late an answer names it. Some 50 bytes each, about
//! [`GONE_MAX`] of them.

use core::time::Duration;
use std::collections::BTreeMap;

use sealstone_mds_protocol::InodeId;
use tokio::time::Instant;

use super::OVERTAKEN;

/// For so long they are remembered one by one; an answer that comes even later is known by its number.
pub(super) const GONE_FOR: Duration = Duration::from_secs(120);
/// So many are, about; of more only those of the last second are.
const GONE_MAX: usize = 16_384;

/// See the module. All are of one era, in which numbers grow.
#[derive(Debug, Default)]
pub(super) struct Gone {
    /// The last one of each node, and when it was given back.
    each: BTreeMap<InodeId, (u64, Instant)>,
    /// The greatest number of those that are remembered no more: what is not greater, and not here, was given back, or is
    /// given back at once.
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

    /// Remembers one by one only those that were given back within this time.
    pub(super) fn forget(&mut self, within: Duration) {
        let upto = &mut self.upto;
        self.each.retain(|_, (number, when)| {
            let stays = when.elapsed() < within;
            *upto = if stays { *upto } else { (*upto).max(*number) };
            stays
        });
    }

    /// Was this one given back? Then whether that is long ago.
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
        // One of before that is told of late.
        gone.note(InodeId(1), 5);
        assert_eq!(gone.knows(InodeId(1), 7), Some(false), "it may be on its way back");
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
