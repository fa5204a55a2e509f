//! Reuse of buffers, so that commands do not allocate new ones.
//!
//! Does: keeps a bounded number of bytes of idle buffers.
//! Does not: limit buffers in use; [`crate::MemoryBudget`] does.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Idle buffers, shared by the transfers of one client.
#[derive(Clone, Debug)]
pub(crate) struct Buffers {
    idle: Arc<Mutex<Idle>>,
}

#[derive(Debug)]
struct Idle {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
    bytes_max: usize,
}

impl Buffers {
    /// Keeps at most `bytes_max` bytes of idle buffers.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { idle: Arc::new(Mutex::new(Idle { buffers: Vec::new(), bytes: 0, bytes_max })) }
    }

    /// Returns an idle buffer of at least this capacity, with old contents, or else an empty one.
    pub(crate) fn take(&self, capacity: usize) -> Vec<u8> {
        let mut idle = self.idle.lock();
        // A client uses few sizes of buffers; the newest that fits is likely in the CPU cache.
        match idle.buffers.iter().rposition(|buffer| buffer.capacity() >= capacity) {
            Some(at) => {
                let buffer = idle.buffers.swap_remove(at);
                idle.bytes -= buffer.capacity();
                buffer
            }
            None => Vec::new(),
        }
    }

    /// Returns a buffer.
    pub(crate) fn give(&self, buffer: Vec<u8>) {
        let mut idle = self.idle.lock();
        if buffer.capacity() != 0 && idle.bytes + buffer.capacity() <= idle.bytes_max {
            idle.bytes += buffer.capacity();
            idle.buffers.push(buffer);
        }
    }

    /// Makes a buffer shareable. When the last clone is dropped, it is returned here and `held` is
    /// dropped.
    pub(crate) fn freeze<T: Send + 'static>(&self, buffer: Vec<u8>, held: T) -> Bytes {
        Bytes::from_owner(Lent { buffer, home: self.clone(), _held: held })
    }
}

struct Lent<T> {
    buffer: Vec<u8>,
    home: Buffers,
    _held: T,
}

impl<T> AsRef<[u8]> for Lent<T> {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        self.home.give(core::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_returned_when_last_clone_drops() {
        let buffers = Buffers::new(100);
        let shared = buffers.freeze(Vec::with_capacity(64), ());
        let slice = shared.slice(..);
        drop(shared);
        drop(slice);
        assert!(buffers.take(64).capacity() >= 64);
        assert_eq!(buffers.take(1).capacity(), 0);
    }

    #[test]
    fn idle_bytes_are_bounded() {
        let buffers = Buffers::new(100);
        buffers.give(Vec::with_capacity(60));
        buffers.give(Vec::with_capacity(60));
        assert!(buffers.take(1).capacity() >= 60);
        assert_eq!(buffers.take(1).capacity(), 0);
    }
}
