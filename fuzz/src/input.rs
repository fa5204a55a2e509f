//! Splits an input into the choices of a target and the bytes it parses.

use sealstone_osd::Generation;

/// Reads from the front. Missing bytes are zero.
pub(crate) struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `length` bytes, or all that remain.
    pub(crate) fn take(&mut self, length: usize) -> &'a [u8] {
        let (head, rest) = self.rest.split_at(length.min(self.rest.len()));
        self.rest = rest;
        head
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.take(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    pub(crate) fn byte(&mut self) -> u8 {
        u8::from_be_bytes(self.array())
    }

    pub(crate) fn short(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    pub(crate) fn long(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    pub(crate) fn generation(&mut self) -> Generation {
        GENERATIONS[usize::from(self.byte() & 1)]
    }

    /// All remaining bytes.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.rest)
    }
}

pub(crate) const GENERATIONS: [Generation; 2] = [Generation::Osd1, Generation::Osd2];

/// The byte that selects `generation` in [`Input::generation`].
pub(crate) const fn selector(generation: Generation) -> u8 {
    match generation {
        Generation::Osd1 => 0,
        Generation::Osd2 => 1,
    }
}

/// A seed that starts with choices.
pub(crate) fn seed(choices: &[u8], bytes: &[u8]) -> Vec<u8> {
    [choices, bytes].concat()
}

/// Exactly `length` bytes: truncated, or padded with zeros.
pub(crate) fn fitted(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut fitted = bytes[..bytes.len().min(length)].to_vec();
    fitted.resize(length, 0);
    fitted
}

/// Exactly `N` bytes: truncated, or padded with zeros.
pub(crate) fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    Input::new(bytes).array()
}
