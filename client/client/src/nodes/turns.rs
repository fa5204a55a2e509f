//! Request slots for exactly-once requests, as in NFSv4.1 sessions.
//!
//! Contract: a slot has one request in flight, and sequence numbers only grow.
//! Truth: docs/standards/mds/nodes.md §5.8.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use sealstone_mds_protocol::{ClientId, RequestId, SLOTS_MAX};
use tokio::sync::{Semaphore, SemaphorePermit};

/// The slots of one client.
pub(super) struct Turns {
    client_id: ClientId,
    room: Semaphore,
    /// Free slots, the last released one on top.
    free: Mutex<Vec<u16>>,
    last: AtomicU64,
}

/// A slot in use; the drop frees it.
pub(super) struct Place<'a> {
    turns: &'a Turns,
    turn: RequestId,
    _room: Option<SemaphorePermit<'a>>,
}

impl Turns {
    pub(super) fn new(client_id: ClientId) -> Self {
        Self {
            client_id,
            room: Semaphore::new(usize::from(SLOTS_MAX)),
            free: Mutex::new((0..SLOTS_MAX).rev().collect()),
            last: AtomicU64::new(0),
        }
    }

    /// Waits for a free slot.
    pub(super) async fn take(&self) -> Place<'_> {
        // The semaphore is never closed.
        let room = self.room.acquire().await.ok();
        let place = self.free().pop().unwrap_or_default();
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        Place {
            turns: self,
            turn: RequestId { client_id: self.client_id, slot: place, sequence: number },
            _room: room,
        }
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<u16>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place<'_> {
    pub(super) const fn turn(&self) -> RequestId {
        self.turn
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.turns.free().push(self.turn.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_place_is_one_changes_at_a_time_and_its_numbers_grow() {
        let turns = Turns::new(ClientId { number: 7 });
        let mut held = Vec::new();
        for _ in 0..SLOTS_MAX {
            held.push(turns.take().await);
        }
        let mut places: Vec<u16> = held.iter().map(|place| place.turn().slot).collect();
        places.sort_unstable();
        assert_eq!(places, (0..SLOTS_MAX).collect::<Vec<_>>());
        let waiting = tokio::time::timeout(std::time::Duration::from_millis(5), turns.take()).await;
        assert!(waiting.is_err(), "a slot in use is not given again");
        let before = held.swap_remove(9).turn();
        let after = turns.take().await.turn();
        assert!(after.slot == before.slot && after.sequence > before.sequence);
    }
}
