//! Numbers of writes, from which the keys of blocks of M-lazy are derived.
//!
//! Contract: the target numbers sessions and never repeats a number. A session uses each of its
//! generations once.
//! Truth: `docs/standards/block-protection.md`, "Blocks of M-lazy".

/// Bytes of a generation.
pub const GENERATION_LEN: usize = 8;

/// Number of a write of a block: session 32 bits, blocks of this session before it 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u64);

impl Generation {
    /// Generation of a block that was never written.
    pub const UNWRITTEN: Self = Self(0);

    /// Returns the generation with this number of a session.
    #[must_use]
    pub const fn new(session: u32, count: u32) -> Self {
        Self((session as u64) << 32 | count as u64)
    }

    /// Returns the number of the session.
    #[must_use]
    pub const fn session(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns the generation as bytes.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; GENERATION_LEN] {
        self.0.to_be_bytes()
    }

    /// Returns the generation of these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; GENERATION_LEN]) -> Self {
        Self(u64::from_be_bytes(bytes))
    }
}

/// Generations of one session, each used once.
#[derive(Debug)]
pub struct GenerationCounter {
    session: u32,
    next: Option<u32>,
}

impl GenerationCounter {
    /// Creates the counter of a session.
    #[must_use]
    pub const fn new(session: u32) -> Self {
        Self { session, next: Some(0) }
    }

    /// Returns the next generation; `None` after 2^32.
    pub fn next_generation(&mut self) -> Option<Generation> {
        let count = self.next?;
        self.next = count.checked_add(1);
        Some(Generation::new(self.session, count))
    }

    /// Leaves one generation.
    #[cfg(test)]
    pub(crate) const fn skip_to_last(&mut self) {
        self.next = Some(u32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_are_used_once_and_end() {
        let mut counter = GenerationCounter::new(9);
        assert_eq!(counter.next_generation(), Some(Generation::new(9, 0)));
        assert_eq!(counter.next_generation(), Some(Generation::new(9, 1)));
        counter.skip_to_last();
        assert_eq!(counter.next_generation(), Some(Generation::new(9, u32::MAX)));
        assert_eq!(counter.next_generation(), None);
        assert_eq!(Generation::new(9, 1).session(), 9);
    }
}
