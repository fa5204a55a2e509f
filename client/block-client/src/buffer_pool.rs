//! Buffers that are used again, so that large transfers do not fault in fresh pages.
//!
//! Does: keeps returned buffers up to a limit.
//! Does not: limit buffers in use; the caller's limit for bytes in flight does.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Smallest buffer that is kept, in bytes: the allocator serves smaller ones without the kernel.
const KEPT_MIN: usize = 32 << 10;
/// Maximum bytes of all kept buffers.
const KEPT_MAX: usize = 32 << 20;
/// Maximum number of kept buffers.
const KEPT_COUNT_MAX: usize = 64;
/// A kept buffer is used for requests down to this part of its size.
const WASTE_MAX: usize = 4;

/// Buffers for data of requests. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct BufferPool(Arc<Mutex<KeptBuffers>>);

#[derive(Debug, Default)]
struct KeptBuffers {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl BufferPool {
    /// Returns a buffer of `length` initialized bytes with arbitrary content, such as that of an
    /// earlier request.
    #[must_use]
    pub fn take(&self, length: usize) -> Vec<u8> {
        let mut kept = self.0.lock();
        let fits = |buffer: &Vec<u8>| buffer.len() >= length && buffer.len() / WASTE_MAX <= length;
        let Some(index) = kept.buffers.iter().rposition(fits) else {
            drop(kept);
            return vec![0; length];
        };
        let mut buffer = kept.buffers.swap_remove(index);
        kept.bytes -= buffer.len();
        buffer.truncate(length);
        buffer
    }

    /// Keeps a buffer for later, or frees it.
    pub fn give(&self, buffer: Vec<u8>) {
        let mut kept = self.0.lock();
        if buffer.len() >= KEPT_MIN
            && kept.bytes + buffer.len() <= KEPT_MAX
            && kept.buffers.len() < KEPT_COUNT_MAX
        {
            kept.bytes += buffer.len();
            kept.buffers.push(buffer);
        }
    }

    /// Returns the buffer as shared bytes; the last reference returns it to the pool.
    #[must_use]
    pub fn share(&self, buffer: Vec<u8>) -> Bytes {
        Bytes::from_owner(PooledBuffer { buffer, pool: self.clone() })
    }
}

/// A buffer that returns to its pool.
struct PooledBuffer {
    buffer: Vec<u8>,
    pool: BufferPool,
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        self.pool.give(core::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_buffer_is_used_again() {
        let pool = BufferPool::default();
        let buffer = pool.take(1 << 20);
        let address = buffer.as_ptr();
        let shared = pool.share(buffer);
        drop((shared.slice(7..), shared));
        let small = pool.take(1 << 16);
        assert_ne!(small.as_ptr(), address, "it would waste most of it");
        let again = pool.take(1 << 19);
        assert_eq!((again.as_ptr(), again.len()), (address, 1 << 19));
    }

    #[test]
    fn kept_bytes_are_limited() {
        let pool = BufferPool::default();
        (0..100).for_each(|_| pool.give(vec![0; 1 << 20]));
        assert_eq!(pool.0.lock().bytes, KEPT_MAX);
        let pool = BufferPool::default();
        (0..100).for_each(|_| pool.give(vec![0; KEPT_MIN]));
        pool.give(vec![0; KEPT_MIN - 1]);
        assert_eq!(pool.0.lock().buffers.len(), KEPT_COUNT_MAX);
        assert_eq!(pool.0.lock().bytes, KEPT_COUNT_MAX * KEPT_MIN);
    }
}
