//! How much memory transfers may hold at once.
//!
//! Does: hand out bytes of a fixed total, in order of arrival. Does not: allocate.
//! Contract: whoever holds file data in memory holds a [`Lease`] of at least as many bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Leases are counted in units of this many bytes, rounded up.
const UNIT: usize = 4096;
/// The largest total, in bytes.
pub const BUDGET_MAX: usize = 1 << 40;

/// A total of bytes that leases are taken from.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    units: Arc<Semaphore>,
    total: usize,
    peak: Arc<AtomicUsize>,
}

/// Bytes taken from a budget; they go back when this drops.
#[derive(Debug)]
pub struct Lease {
    permit: OwnedSemaphorePermit,
}

impl Lease {
    /// Bytes that it stands for.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.permit.num_permits() * UNIT
    }

    /// Takes another lease of the same budget in.
    pub fn merge(&mut self, other: Self) {
        self.permit.merge(other.permit);
    }

    /// Gives a part of it away: `bytes`, rounded up, or all that it has.
    #[must_use]
    pub fn split(&mut self, bytes: usize) -> Self {
        let units = bytes.div_ceil(UNIT).min(self.permit.num_permits());
        let permit = self.permit.split(units).expect("no more than it has");
        Self { permit }
    }
}

impl MemoryBudget {
    /// A budget of `bytes`, at least one unit of 4 KiB and at most [`BUDGET_MAX`].
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let total = (bytes.clamp(UNIT, BUDGET_MAX) / UNIT).min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
        Self { units: Arc::new(Semaphore::new(total)), total, peak: Arc::default() }
    }

    /// Bytes in total.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total * UNIT
    }

    /// The most bytes that were ever leased at once.
    #[must_use]
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed) * UNIT
    }

    /// Waits until `bytes` are free and takes them; more than the total is cut to the total.
    pub async fn take(&self, bytes: usize) -> Lease {
        let units = self.units_of(bytes);
        let permit = self.units.clone().acquire_many_owned(units).await;
        self.lease(permit.expect("the semaphore is never closed"))
    }

    /// Takes `bytes` if they are free now.
    #[must_use]
    pub fn try_take(&self, bytes: usize) -> Option<Lease> {
        let permit = self.units.clone().try_acquire_many_owned(self.units_of(bytes)).ok()?;
        Some(self.lease(permit))
    }

    /// A lease of no bytes, to be merged with others.
    pub(crate) fn nothing(&self) -> Lease {
        self.try_take(0).expect("no bytes are always free")
    }

    fn units_of(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT).min(self.total)).unwrap_or(u32::MAX)
    }

    fn lease(&self, permit: OwnedSemaphorePermit) -> Lease {
        let used = self.total.saturating_sub(self.units.available_permits());
        self.peak.fetch_max(used, Ordering::Relaxed);
        Lease { permit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_more_than_the_total_is_ever_leased() {
        let budget = MemoryBudget::new(3 * UNIT);
        let first = budget.take(2 * UNIT).await;
        assert!(budget.try_take(2 * UNIT).is_none());
        let second = budget.take(1).await;
        drop(first);
        drop(second);
        let all = budget.take(usize::MAX).await;
        assert_eq!(budget.peak(), budget.total());
        assert!(budget.try_take(1).is_none());
        drop(all);
        assert!(budget.try_take(1).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_can_be_shared_out_and_put_together_again() {
        let budget = MemoryBudget::new(4 * UNIT);
        let mut pot = budget.take(0).await;
        assert_eq!(pot.bytes(), 0);
        pot.merge(budget.take(3 * UNIT).await);
        let part = pot.split(UNIT + 1);
        assert_eq!((part.bytes(), pot.bytes()), (2 * UNIT, UNIT));
        assert!(budget.try_take(2 * UNIT).is_none());
        drop(part);
        assert!(budget.try_take(2 * UNIT).is_some());
        assert_eq!(pot.split(usize::MAX).bytes(), UNIT);
    }
}
