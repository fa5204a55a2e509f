//! A data buffer that knows its way home.

use alloc::{sync::Arc, vec::Vec};
use core::{fmt, mem};

/// A page of memory, in bytes.
const PAGE: usize = 4096;
/// A large buffer, in bytes: what goes to a disk past the page cache has to begin on a page, or is copied once more.
const ALIGNED_MIN: usize = 64 * 1024;

/// Whence data buffers come: a bounded pool that the shell owns.
pub trait Pool: Send + Sync {
    /// Exactly `len` initialised bytes of unspecified contents; `None` when that would go over budget.
    fn take(&self, len: usize) -> Option<Vec<u8>>;
    /// Takes a buffer back.
    fn give(&self, buffer: Vec<u8>);
}

/// Initialised bytes; a pooled buffer returns to its pool when dropped.
#[derive(Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    /// Where in them it begins.
    start: usize,
    home: Option<Arc<dyn Pool>>,
}

impl Buffer {
    /// From `pool`; `None` when over its budget (or when the pool broke its contract on length).
    #[must_use]
    pub fn take(pool: &Arc<dyn Pool>, len: usize) -> Option<Self> {
        if len == 0 {
            return Some(Self::default());
        }
        let bytes = pool.take(len)?;
        let buffer = Self { bytes, start: 0, home: Some(Arc::clone(pool)) };
        (buffer.bytes.len() == len).then_some(buffer)
    }

    /// The same; a large one begins on a page of memory, if what the pool gave has room behind: it is not to grow. The pool gets
    /// back what it gave, with the bytes anywhere in it.
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

    /// Shares the first `len` bytes without copying; the pool gets it back when the last share drops.
    #[must_use]
    pub fn freeze(self, len: usize) -> bytes::Bytes {
        if self.bytes.is_empty() {
            return bytes::Bytes::new();
        }
        let mut shared = bytes::Bytes::from_owner(self);
        shared.truncate(len);
        shared
    }

    /// The vector of a buffer that was made from one, uncopied.
    ///
    /// # Errors
    /// A pooled buffer comes back: its bytes stay counted until it is dropped.
    pub fn into_vec(mut self) -> Result<Vec<u8>, Self> {
        if self.home.is_some() {
            return Err(self);
        }
        Ok(mem::take(&mut self.bytes))
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// The bytes, to fill.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// True if there is not a byte.
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

    /// Gives buffers with so much room behind what was asked for.
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
    fn a_large_buffer_begins_on_a_page_where_there_is_room_and_never_grows() {
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
