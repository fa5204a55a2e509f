//! Parameter data truncated to an allocation length, while the full length is still counted.

use alloc::vec::Vec;

/// Appends to a vector up to a limit and counts all bytes, including dropped ones.
#[derive(Debug)]
pub(crate) struct TruncatingSink<'a> {
    out: &'a mut Vec<u8>,
    base: usize,
    limit: usize,
    full: u64,
}

impl<'a> TruncatingSink<'a> {
    /// Writes at most `limit` bytes after the present content of `out`.
    pub(crate) fn new(out: &'a mut Vec<u8>, limit: usize) -> Self {
        let base = out.len();
        Self { out, base, limit, full: 0 }
    }

    /// Returns the bytes pushed so far, written or not.
    pub(crate) const fn full(&self) -> u64 {
        self.full
    }

    /// Whether `more` bytes would still be written completely.
    pub(crate) fn fits(&self, more: usize) -> bool {
        self.full.saturating_add(more as u64) <= self.limit as u64
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let room = self.limit.saturating_sub(self.out.len() - self.base);
        self.out.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.full = self.full.saturating_add(bytes.len() as u64);
    }

    /// Counts bytes that are known not to fit.
    pub(crate) fn skip(&mut self, bytes: u64) {
        debug_assert!(self.full >= self.limit as u64, "they would have been written");
        self.full = self.full.saturating_add(bytes);
    }

    /// Overwrites bytes pushed before, as far as they were written.
    pub(crate) fn patch(&mut self, at: usize, bytes: &[u8]) {
        for (slot, byte) in self.out.iter_mut().skip(self.base + at).zip(bytes) {
            *slot = *byte;
        }
    }
}
