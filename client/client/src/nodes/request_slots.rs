//! Request slots for exactly-once requests, as in NFSv4.1 sessions.
//!
//! Contract: a slot has one request in flight, and sequence numbers only grow.
//! Truth: docs/standards/mds/nodes.md §5.8.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use sealstone_mds_protocol::{ClientId, RequestId, SLOTS_MAX};
use tokio::sync::{Semaphore, SemaphorePermit};

/// The slots of one client.
pub(super) struct RequestSlots {
    client_id: ClientId,
    permits: Semaphore,
    /// Free slots, the last released one on top.
    free: Mutex<Vec<u16>>,
    last: AtomicU64,
}

/// A slot in use; the drop frees it.
pub(super) struct SlotGuard<'a> {
    slots: &'a RequestSlots,
    request_id: RequestId,
    _permit: Option<SemaphorePermit<'a>>,
}

impl RequestSlots {
    pub(super) fn new(client_id: ClientId) -> Self {
        Self {
            client_id,
            permits: Semaphore::new(usize::from(SLOTS_MAX)),
            free: Mutex::new((0..SLOTS_MAX).rev().collect()),
            last: AtomicU64::new(0),
        }
    }

    /// Waits for a free slot.
    pub(super) async fn acquire(&self) -> SlotGuard<'_> {
        // The semaphore is never closed.
        let permit = self.permits.acquire().await.ok();
        let slot = self.free().pop().unwrap_or_default();
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        SlotGuard {
            slots: self,
            request_id: RequestId { client_id: self.client_id, slot, sequence: number },
            _permit: permit,
        }
    }

    fn free(&self) -> MutexGuard<'_, Vec<u16>> {
        self.free.lock()
    }
}

impl SlotGuard<'_> {
    pub(super) const fn request_id(&self) -> RequestId {
        self.request_id
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        self.slots.free().push(self.request_id.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn slots_are_exclusive_and_sequences_grow() {
        let slots = RequestSlots::new(ClientId { number: 7 });
        let mut held = Vec::new();
        for _ in 0..SLOTS_MAX {
            held.push(slots.acquire().await);
        }
        let mut slots_used: Vec<u16> = held.iter().map(|guard| guard.request_id().slot).collect();
        slots_used.sort_unstable();
        assert_eq!(slots_used, (0..SLOTS_MAX).collect::<Vec<_>>());
        let waiting = tokio::time::timeout(std::time::Duration::from_millis(5), slots.acquire()).await;
        assert!(waiting.is_err(), "a slot in use is not given again");
        let before = held.swap_remove(9).request_id();
        let after = slots.acquire().await.request_id();
        assert!(after.slot == before.slot && after.sequence > before.sequence);
    }
}
