//! Data buffers that return to their pool when dropped.
//!
//! Does: defines the trait [`Pool`], which the shells implement with their memory limits, and the
//! buffer that owns bytes of a pool.
//! Does not: limit memory; the pool does.

use alloc::{sync::Arc, vec::Vec};
use core::{fmt, mem};

/// A page of memory, in bytes.
const PAGE: usize = 4096;
/// Size of a large buffer, in bytes: such data is aligned to a page, because writes past the page
/// cache would otherwise copy it.
const ALIGNED_MIN: usize = 64 * 1024;

/// Source of data buffers: a bounded pool owned by the shell.
pub trait Pool: Send + Sync {
    /// Returns exactly `len` initialised bytes of unspecified contents; `None` if that would exceed
    /// the budget.
    fn take(&self, len: usize) -> Option<Vec<u8>>;
    /// Returns a buffer to the pool.
    fn give(&self, buffer: Vec<u8>);
}

/// Initialised bytes; a pooled buffer returns to its pool when dropped.
#[derive(Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    /// Offset of the first byte.
    start: usize,
    home: Option<Arc<dyn Pool>>,
}

impl Buffer {
    /// Takes a buffer from `pool`; `None` if it would exceed the budget (or the pool returned a
    /// wrong length).
    #[must_use]
    pub fn take(pool: &Arc<dyn Pool>, len: usize) -> Option<Self> {
        if len == 0 {
            return Some(Self::default());
        }
        let bytes = pool.take(len)?;
        let buffer = Self { bytes, start: 0, home: Some(Arc::clone(pool)) };
        (buffer.bytes.len() == len).then_some(buffer)
    }

    /// Like `take`; a large buffer begins on a page of memory, if the pool's vector has spare
    /// capacity, so that it need not grow. The same vector returns to the pool, with the bytes
    /// anywhere in it.
    #[must_use]
    pub fn take_on_page(pool: &Arc<dyn Pool>, len: usize) -> Option<Self> {
        let mut buffer = Self::take(pool, len)?;
        let start = buffer.bytes.as_ptr().align_offset(PAGE);
        let end = len.saturating_add(start);
        if len >= ALIGNED_MIN && end <= buffer.bytes.capacity() {
            buffer.bytes.resize(end, 0);
            buffer.start = start;
        }
        Some(buffer)
    }

    /// Shares the first `len` bytes without copying; the buffer returns to the pool when the last
    /// share is dropped.
    #[must_use]
    pub fn freeze(self, len: usize) -> bytes::Bytes {
        if self.bytes.is_empty() {
            return bytes::Bytes::new();
        }
        let mut shared = bytes::Bytes::from_owner(self);
        shared.truncate(len);
        shared
    }

    /// Returns the vector of a buffer that was created from one, without copying.
    ///
    /// # Errors
    /// A pooled buffer is returned as it is: its bytes are counted until it is dropped.
    pub fn into_vec(mut self) -> Result<Vec<u8>, Self> {
        if self.home.is_some() {
            return Err(self);
        }
        Ok(mem::take(&mut self.bytes))
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Returns the bytes, to be filled.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, start: 0, home: None }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.give(mem::take(&mut self.bytes));
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns buffers with this much spare capacity.
    struct Roomy(usize);

    impl Pool for Roomy {
        fn take(&self, len: usize) -> Option<Vec<u8>> {
            let mut bytes = Vec::with_capacity(len + self.0);
            bytes.resize(len, 7);
            Some(bytes)
        }

        fn give(&self, buffer: Vec<u8>) {
            assert!(buffer.capacity() < 2 * ALIGNED_MIN + self.0, "it has not grown");
        }
    }

    #[test]
    fn large_buffer_is_page_aligned_and_never_grows() {
        for (len, room) in [(ALIGNED_MIN, PAGE), (ALIGNED_MIN + 1, 0), (100, PAGE), (0, 0)] {
            let pool: Arc<dyn Pool> = Arc::new(Roomy(room));
            let mut buffer = Buffer::take_on_page(&pool, len).expect("a buffer");
            assert_eq!((buffer.len(), buffer.as_slice().len()), (len, len));
            let aligned = buffer.as_slice().as_ptr().align_offset(PAGE) == 0;
            assert!(aligned || len < ALIGNED_MIN || room < PAGE);
            buffer.as_mut_slice().fill(9);
            assert!(buffer.freeze(len).iter().all(|byte| *byte == 9));
        }
    }
}
