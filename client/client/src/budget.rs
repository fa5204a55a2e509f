//! Memory budget of transfers.
//!
//! Does: gives out bytes of a fixed total, in order of request.
//! Does not: allocate.
//! Contract: code that keeps file data in memory has a [`MemoryPermit`] of at least as many bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Permits are counted in units of this many bytes, rounded up.
const UNIT: usize = 4096;
/// The largest total, in bytes.
pub const BUDGET_MAX: usize = 1 << 40;

/// A total of bytes that permits are taken from.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    units: Arc<Semaphore>,
    total: usize,
    peak: Arc<AtomicUsize>,
}

/// Bytes taken from a budget; the drop returns them.
#[derive(Debug)]
pub struct MemoryPermit {
    permit: OwnedSemaphorePermit,
}

impl MemoryPermit {
    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.permit.num_permits() * UNIT
    }

    /// Adds another permit of the same budget.
    pub fn merge(&mut self, other: Self) {
        self.permit.merge(other.permit);
    }

    /// Splits off `bytes`, rounded up, or all if there are fewer.
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

    /// Total bytes.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total * UNIT
    }

    /// The largest number of bytes that were in use at once.
    #[must_use]
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed) * UNIT
    }

    /// Waits for `bytes` and takes them; a request above the total gets the total.
    pub async fn take(&self, bytes: usize) -> MemoryPermit {
        let units = self.units_of(bytes);
        let permit = self.units.clone().acquire_many_owned(units).await;
        self.permit_of(permit.expect("the semaphore is never closed"))
    }

    /// Takes `bytes` if they are free now.
    #[must_use]
    pub fn try_take(&self, bytes: usize) -> Option<MemoryPermit> {
        let permit = self.units.clone().try_acquire_many_owned(self.units_of(bytes)).ok()?;
        Some(self.permit_of(permit))
    }

    /// Returns a permit of no bytes, to be merged with others.
    pub(crate) fn empty(&self) -> MemoryPermit {
        self.try_take(0).expect("no bytes are always free")
    }

    fn units_of(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT).min(self.total)).unwrap_or(u32::MAX)
    }

    fn permit_of(&self, permit: OwnedSemaphorePermit) -> MemoryPermit {
        let used = self.total.saturating_sub(self.units.available_permits());
        self.peak.fetch_max(used, Ordering::Relaxed);
        MemoryPermit { permit }
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
    async fn permits_split_and_merge() {
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
