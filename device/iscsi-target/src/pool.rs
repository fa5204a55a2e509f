//! Data buffers: recycled, and limited for the whole target, for each source and for each
//! connection.
//!
//! Contract: a buffer counts against the limits until it is given back or dropped.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use sealstone_scsi::lu::{BlockSeals, Buffers};
use tokio::sync::Notify;

use crate::{Counter, TargetCounters};

/// Smallest size class in bytes.
const CLASS_MIN: usize = 4096;
/// Size classes: 4 KiB, 8 KiB, … 64 GiB.
const CLASSES: usize = 25;
/// Part of the budget that is kept for reuse while idle: one in this many.
const RETAINED_PART: usize = 4;

/// Data buffers of one target.
#[derive(Debug)]
pub struct BufferPool {
    budget: usize,
    used: AtomicUsize,
    free: Mutex<FreeBuffers>,
    counters: Arc<TargetCounters>,
    /// Wakes connections that wait for memory.
    pub(crate) freed: Notify,
}

#[derive(Debug)]
struct FreeBuffers {
    bytes: usize,
    classes: [Vec<Vec<u8>>; CLASSES],
}

const fn class_of(len: usize) -> usize {
    let size = if len < CLASS_MIN { CLASS_MIN } else { len.next_power_of_two() };
    (size / CLASS_MIN).trailing_zeros() as usize
}

impl BufferPool {
    /// Creates a pool of at most `budget` bytes.
    #[must_use]
    pub fn new(budget: usize, counters: Arc<TargetCounters>) -> Arc<Self> {
        let free = Mutex::new(FreeBuffers { bytes: 0, classes: std::array::from_fn(|_| Vec::new()) });
        Arc::new(Self { budget, used: AtomicUsize::new(0), free, counters, freed: Notify::new() })
    }

    /// Returns the number of bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn take(&self, len: usize, size: usize) -> Option<Vec<u8>> {
        reserve(&self.used, size, self.budget)?;
        let recycled = {
            let mut free = self.free.lock();
            let found = free.classes.get_mut(class_of(len)).and_then(Vec::pop);
            free.bytes -= found.as_ref().map_or(0, Vec::capacity);
            found
        };
        let mut bytes = recycled.unwrap_or_else(|| vec![0; size]);
        bytes.resize(len, 0);
        Some(bytes)
    }

    fn give(&self, bytes: Vec<u8>, size: usize) {
        if bytes.capacity() == size {
            let mut free = self.free.lock();
            if free.bytes + size <= self.budget / RETAINED_PART
                && let Some(class) = free.classes.get_mut(class_of(size))
            {
                class.push(bytes);
                free.bytes += size;
            }
        }
        self.release(size);
    }

    fn release(&self, size: usize) {
        self.used.fetch_sub(size, Ordering::AcqRel);
        self.freed.notify_waiters();
    }
}

fn reserve(used: &AtomicUsize, size: usize, most: usize) -> Option<()> {
    let fits = |used: usize| used.checked_add(size).filter(|sum| *sum <= most);
    used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).ok().map(|_| ())
}

/// Limit and usage of one part of [`BufferPool`].
#[derive(Debug)]
pub(crate) struct BufferQuota {
    most: usize,
    used: AtomicUsize,
}

impl BufferQuota {
    pub(crate) const fn new(most: usize) -> Self {
        Self { most, used: AtomicUsize::new(0) }
    }

    fn reserve(&self, size: usize) -> Option<()> {
        reserve(&self.used, size, self.most)
    }

    fn release(&self, size: usize) {
        self.used.fetch_sub(size, Ordering::AcqRel);
    }
}

/// Buffers of one connection within [`BufferPool`].
#[derive(Debug)]
pub struct BufferShare {
    memory: Arc<BufferPool>,
    own: BufferQuota,
    /// Quota that all connections of its source share.
    source: Arc<BufferQuota>,
}

impl BufferShare {
    /// Creates a share of at most `most` bytes, within the whole budget.
    #[must_use]
    pub fn new(memory: Arc<BufferPool>, most: usize) -> Arc<Self> {
        Self::of_source(memory, most, Arc::new(BufferQuota::new(usize::MAX)))
    }

    /// Creates a share that also counts against the quota of its source.
    pub(crate) fn of_source(memory: Arc<BufferPool>, most: usize, source: Arc<BufferQuota>) -> Arc<Self> {
        Arc::new(Self { memory, own: BufferQuota::new(most), source })
    }

    fn size(len: usize) -> Option<usize> {
        (class_of(len.checked_next_power_of_two()?) < CLASSES).then(|| len.next_power_of_two().max(CLASS_MIN))
    }

    fn take(&self, len: usize) -> Option<Vec<u8>> {
        let size = Self::size(len)?;
        let taken = self.reserve(size).and_then(|()| {
            self.memory.take(len, size).or_else(|| {
                self.unreserve(size);
                None
            })
        });
        if taken.is_none() {
            self.memory.counters.add(Counter::MemoryRefusals, 1);
        }
        taken
    }

    fn reserve(&self, size: usize) -> Option<()> {
        self.own.reserve(size)?;
        let reserved = self.source.reserve(size);
        if reserved.is_none() {
            self.own.release(size);
        }
        reserved
    }

    fn unreserve(&self, size: usize) {
        self.source.release(size);
        self.own.release(size);
    }

    fn give(&self, bytes: Vec<u8>, size: usize) {
        self.unreserve(size);
        self.memory.give(bytes, size);
    }

    fn release(&self, size: usize) {
        self.unreserve(size);
        self.memory.release(size);
    }
}

impl sealstone_iscsi::Pool for BufferShare {
    fn take(&self, len: usize) -> Option<Vec<u8>> {
        Self::take(self, len)
    }

    fn give(&self, buffer: Vec<u8>) {
        // The protocol machine never grows a buffer, so the capacity is still the size of its
        // class.
        let size = buffer.capacity();
        Self::give(self, buffer, size);
    }
}

/// Buffers of one command. Buffers that its logical unit took and dropped are freed when the
/// command ends.
pub(crate) struct CommandBuffers {
    share: Arc<BufferShare>,
    taken: Mutex<Vec<usize>>,
    /// Seals of the blocks of data-out, and of data-in.
    written: Mutex<Option<BlockSeals>>,
    read: Mutex<Option<BlockSeals>>,
}

impl CommandBuffers {
    pub(crate) fn new(share: Arc<BufferShare>, written: Option<BlockSeals>) -> Self {
        let (written, read) = (Mutex::new(written), Mutex::default());
        Self { share, taken: Mutex::new(Vec::new()), written, read }
    }

    /// Takes the seals of the blocks of data-in.
    pub(crate) fn take_read(&self) -> Option<BlockSeals> {
        self.read.lock().take()
    }
}

impl Buffers for CommandBuffers {
    fn take(&self, len: usize) -> Option<Vec<u8>> {
        let bytes = self.share.take(len)?;
        self.taken.lock().push(bytes.capacity());
        Some(bytes)
    }

    fn freeze(&self, buffer: Vec<u8>) -> Bytes {
        let mut taken = self.taken.lock();
        let Some(at) = taken.iter().position(|size| *size == buffer.capacity()) else {
            return Bytes::from(buffer); // not ours, or grown: its debit is settled when the command ends
        };
        let size = taken.swap_remove(at);
        Bytes::from_owner(FrozenBuffer { bytes: buffer, size, share: Arc::clone(&self.share) })
    }

    fn take_seals(&self) -> Option<BlockSeals> {
        self.written.lock().take()
    }

    fn put_seals(&self, seals: BlockSeals) {
        *self.read.lock() = Some(seals);
    }
}

impl Drop for CommandBuffers {
    fn drop(&mut self) {
        for size in mem::take(self.taken.get_mut()) {
            self.share.release(size);
        }
    }
}

struct FrozenBuffer {
    bytes: Vec<u8>,
    size: usize,
    share: Arc<BufferShare>,
}

impl AsRef<[u8]> for FrozenBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for FrozenBuffer {
    fn drop(&mut self) {
        self.share.give(mem::take(&mut self.bytes), self.size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(budget: usize, most: usize) -> (Arc<BufferPool>, Arc<BufferShare>) {
        let memory = BufferPool::new(budget, Arc::default());
        (Arc::clone(&memory), BufferShare::new(memory, most))
    }

    #[test]
    fn both_budgets_hold() {
        let (memory, one) = share(64 * 1024, 32 * 1024);
        let two = BufferShare::new(Arc::clone(&memory), 64 * 1024);
        let held = one.take(32 * 1024).unwrap();
        assert!(one.take(1).is_none(), "the connection's budget");
        let other = two.take(32 * 1024).unwrap();
        assert!(two.take(1).is_none(), "the target's budget");
        one.give(held, 32 * 1024);
        two.give(other, 32 * 1024);
        assert_eq!((memory.used(), one.own.used.load(Ordering::SeqCst)), (0, 0));
        assert!(one.take(usize::MAX).is_none() && one.take(1 << 62).is_none());
    }

    #[test]
    fn connections_of_source_share_buffer_quota() {
        let memory = BufferPool::new(64 * 1024, Arc::default());
        let source = Arc::new(BufferQuota::new(32 * 1024));
        let share = || BufferShare::of_source(Arc::clone(&memory), 64 * 1024, Arc::clone(&source));
        let (one, two) = (share(), share());
        let held = one.take(32 * 1024).unwrap();
        assert!(two.take(1).is_none() && one.take(1).is_none(), "the source has all of its part");
        let other = BufferShare::new(Arc::clone(&memory), 64 * 1024);
        let offloaded = other.take(32 * 1024).unwrap();
        one.give(held, 32 * 1024);
        let held = two.take(4096).unwrap();
        two.give(held, 4096);
        other.give(offloaded, 32 * 1024);
        assert_eq!((memory.used(), source.used.load(Ordering::SeqCst)), (0, 0));
    }

    #[test]
    fn buffers_are_freed_however_dropped() {
        let (memory, share) = share(1 << 20, 1 << 20);
        let buffers = CommandBuffers::new(Arc::clone(&share), None);
        let frozen = {
            let kept = buffers.take(5000).unwrap();
            let _lost = buffers.take(6000).unwrap();
            let mut grown = buffers.take(4096).unwrap();
            grown.resize(1 << 19, 1);
            let _ = buffers.freeze(grown);
            buffers.freeze(kept)
        };
        let part = frozen.slice(10..20);
        assert_eq!(frozen.len(), 5000);
        drop((buffers, frozen));
        assert_eq!(memory.used(), 8192, "a slice still references it");
        drop(part);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn recycled_buffer_has_requested_length() {
        let (_, share) = share(1 << 20, 1 << 20);
        let first = share.take(8000).unwrap();
        share.give(first, 8192);
        for len in [1, 4096, 4097, 8192, 5000] {
            let buffer = share.take(len).unwrap();
            assert_eq!(buffer.len(), len);
            let size = buffer.capacity();
            share.give(buffer, size);
        }
    }
}
