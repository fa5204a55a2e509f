//! Allocator of inline block numbers. The bytes of an inline block are in the index, not in a
//! segment.
//!
//! Does: allocates and frees numbers, and counts the index space of the blocks, with a limit.
//! Does not: store anything; like the free map it is rebuilt at open. A number takes the place of a
//! block location, beyond all blocks of any medium.
//! Contract: a number is free, or belongs to one block, which several objects may share.
//! Costs: two bytes per number, four more while it is free; there are as many numbers as the
//! maximum of inline blocks so far.

/// Bit that marks the location of an inline block.
const INLINE: u64 = 1 << 63;
/// Approximate index space of an inline block besides its bytes, in bytes: key, ends and checksums
/// of its record.
const RECORD: u64 = 64;

/// Whether a mapped block with this location is in the index.
pub(crate) fn is_inline(location: u64) -> bool {
    location & INLINE != 0
}

/// Returns the number of an inline block.
pub(crate) fn number_of(location: u64) -> u64 {
    location & !INLINE
}

/// Index use of inline blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InlineUse {
    /// Number of blocks whose bytes are in the index.
    pub blocks: u64,
    /// Their use of the index in bytes, including their records.
    pub bytes: u64,
    /// Limit of that use in bytes.
    pub bytes_max: u64,
}

/// Allocates the numbers.
#[derive(Debug, Default)]
pub(crate) struct InlinePool {
    /// By number: 0 if it is free, else the length of its bytes plus 1.
    lengths: Vec<u16>,
    /// Free numbers.
    free: Vec<u32>,
    numbers_max: u64,
    usage: InlineUse,
}

impl InlinePool {
    /// Creates a pool without blocks, with at most `numbers_max` numbers.
    pub(crate) fn new(numbers_max: u64) -> Self {
        Self { numbers_max: numbers_max.min(u64::from(u32::MAX)), ..Self::default() }
    }

    /// Limits the index space to this many bytes.
    pub(crate) fn limit(&mut self, bytes_max: u64) {
        self.usage.bytes_max = bytes_max;
    }

    pub(crate) fn usage(&self) -> InlineUse {
        self.usage
    }

    fn length(&self, location: u64) -> Option<u64> {
        let entry = self.lengths.get(usize::try_from(number_of(location)).ok()?)?;
        entry.checked_sub(1).map(u64::from)
    }

    /// Whether a block of this many bytes fits: a new one, or one that has a location.
    pub(crate) fn fits(&self, location: Option<u64>, length: u64) -> bool {
        match location.and_then(|location| self.length(location)) {
            Some(old) => length <= old || self.usage.bytes - old + length <= self.usage.bytes_max,
            None => self.usage.bytes + RECORD + length <= self.usage.bytes_max,
        }
    }

    /// Allocates the location of a new block without bytes; `None` if there are no more numbers.
    pub(crate) fn take(&mut self) -> Option<u64> {
        let number = match self.free.pop() {
            Some(number) => u64::from(number),
            None if self.lengths.len() as u64 >= self.numbers_max => return None,
            None => {
                self.lengths.push(0);
                self.lengths.len() as u64 - 1
            }
        };
        self.lengths[number as usize] = 1;
        self.usage.blocks += 1;
        self.usage.bytes += RECORD;
        Some(INLINE | number)
    }

    /// Sets the number of bytes of a block.
    pub(crate) fn set(&mut self, location: u64, length: usize) {
        if let Some(old) = self.length(location) {
            self.usage.bytes = self.usage.bytes - old + length as u64;
            self.lengths[number_of(location) as usize] = length as u16 + 1;
        }
    }

    /// Frees the number of a block.
    pub(crate) fn release(&mut self, location: u64) {
        debug_assert!(self.length(location).is_some(), "released twice");
        if let Some(length) = self.length(location) {
            self.usage.blocks -= 1;
            self.usage.bytes -= RECORD + length;
            self.lengths[number_of(location) as usize] = 0;
            self.free.push(number_of(location) as u32);
        }
    }

    /// Claims a block found in the index, still without bytes. Returns whether it was unclaimed;
    /// `None` for an invalid number. [`claimed`](Self::claimed) is called after the last one.
    pub(crate) fn claim(&mut self, location: u64) -> Option<bool> {
        let number = number_of(location);
        if number >= self.numbers_max {
            return None;
        }
        let number = number as usize;
        if self.lengths.len() <= number {
            self.lengths.resize(number + 1, 0);
        }
        let new = self.lengths[number] == 0;
        if new {
            self.lengths[number] = 1;
            self.usage.blocks += 1;
            self.usage.bytes += RECORD;
        }
        Some(new)
    }

    /// Ends claiming: all other numbers are free.
    pub(crate) fn claimed(&mut self) {
        let free = self.lengths.iter().zip(0..).filter(|(length, _)| **length == 0);
        self.free = free.map(|(_, number)| number).collect();
        self.free.reverse();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with a plain map; a pool whose blocks are claimed again counts the same.
        #[test]
        fn inline_numbers_are_unique_and_bytes_counted(
            steps in proptest::collection::vec((0_u8..3, 0_usize..4096, any::<prop::sample::Index>()), 0..80),
        ) {
            let mut pool = InlinePool::new(20);
            pool.limit(40_000);
            let mut model: BTreeMap<u64, usize> = BTreeMap::new();
            for (step, length, which) in steps {
                let some = (!model.is_empty()).then(|| *model.keys().nth(which.index(model.len())).unwrap());
                match (step, some) {
                    (0, _) => match pool.take() {
                        Some(location) => {
                            prop_assert!(is_inline(location));
                            prop_assert_eq!(model.insert(location, 0), None, "had twice");
                        }
                        None => prop_assert_eq!(model.len(), 20),
                    },
                    (1, Some(location)) => {
                        let total = pool.usage().bytes + length as u64 - model[&location] as u64;
                        let fits = length <= model[&location] || total <= 40_000;
                        prop_assert_eq!(pool.fits(Some(location), length as u64), fits);
                        pool.set(location, length);
                        model.insert(location, length);
                    }
                    (_, Some(location)) => {
                        pool.release(location);
                        model.remove(&location);
                    }
                    _ => {}
                }
                let bytes = model.values().map(|length| *length as u64 + RECORD).sum();
                let expected = InlineUse { blocks: model.len() as u64, bytes, bytes_max: 40_000 };
                prop_assert_eq!(pool.usage(), expected);
                prop_assert_eq!(pool.fits(None, 100), bytes + RECORD + 100 <= 40_000);
            }
            let mut again = InlinePool::new(20);
            again.limit(40_000);
            for (&location, &length) in model.iter().rev() {
                prop_assert_eq!(again.claim(location), Some(true));
                prop_assert_eq!(again.claim(location), Some(false));
                again.set(location, length);
            }
            again.claimed();
            prop_assert_eq!(again.usage(), pool.usage());
            while let Some(location) = again.take() {
                prop_assert_eq!(model.insert(location, 0), None);
            }
            prop_assert_eq!(model.len(), 20);
            prop_assert_eq!(again.claim(INLINE | 20), None);
        }
    }
}
