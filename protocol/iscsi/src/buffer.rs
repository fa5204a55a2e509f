//! A data buffer that knows its way home.

use alloc::{sync::Arc, vec::Vec};
use core::{fmt, mem};

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
        let buffer = Self { bytes, home: Some(Arc::clone(pool)) };
        (buffer.bytes.len() == len).then_some(buffer)
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
        &self.bytes
    }

    /// The bytes, to fill.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if there is not a byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, home: None }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
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
        write!(f, "Buffer({} bytes)", self.bytes.len())
    }
}
