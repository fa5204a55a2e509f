//! The numbers of inline blocks: those whose bytes lie in the index and not on the medium.
//!
//! Does: hand out numbers, take them back, and count what the blocks take of the index, with a bound. Does not: store
//! anything; like the free map it is rebuilt at open. Where a block is expected, a number stands as a place beyond all
//! blocks of any medium.
//! Contract: a number is free, or belongs to one block, which several objects may share.
//! Costs: two bytes a number, four more while it is free; there are as many as there ever were inline blocks at once.

/// Set in the place of an inline block.
const INLINE: u64 = 1 << 63;
/// What an inline block takes of the index beside its bytes, about, in bytes: key, ends and checksums of its record.
const RECORD: u64 = 64;

/// Does a mapped block with this place lie in the index?
pub(crate) fn is_inline(place: u64) -> bool {
    place & INLINE != 0
}

/// The number of an inline block.
pub(crate) fn number_of(place: u64) -> u64 {
    place & !INLINE
}

/// What inline blocks take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InlineUse {
    /// Blocks whose bytes lie in the index.
    pub blocks: u64,
    /// What they take of the index, their records with them, in bytes.
    pub bytes: u64,
    /// How much of the index they may take, in bytes.
    pub bytes_max: u64,
}

/// The numbers.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// By number: 0 if it is free, else the length of its bytes and 1.
    lengths: Vec<u16>,
    /// Free numbers among those.
    free: Vec<u32>,
    numbers_max: u64,
    usage: InlineUse,
}

impl Pool {
    /// No block, of which there may be `numbers_max`.
    pub(crate) fn new(numbers_max: u64) -> Self {
        Self { numbers_max: numbers_max.min(u64::from(u32::MAX)), ..Self::default() }
    }

    /// From now on they may take so many bytes of the index.
    pub(crate) fn limit(&mut self, bytes_max: u64) {
        self.usage.bytes_max = bytes_max;
    }

    pub(crate) fn usage(&self) -> InlineUse {
        self.usage
    }

    fn length(&self, place: u64) -> Option<u64> {
        let entry = self.lengths.get(usize::try_from(number_of(place)).ok()?)?;
        entry.checked_sub(1).map(u64::from)
    }

    /// May a block have so many bytes: a new one, or one that has a place?
    pub(crate) fn fits(&self, place: Option<u64>, length: u64) -> bool {
        match place.and_then(|place| self.length(place)) {
            Some(old) => length <= old || self.usage.bytes - old + length <= self.usage.bytes_max,
            None => self.usage.bytes + RECORD + length <= self.usage.bytes_max,
        }
    }

    /// The place of a new block without bytes; `None` if there are no more numbers.
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

    /// A block has so many bytes from now on.
    pub(crate) fn set(&mut self, place: u64, length: usize) {
        if let Some(old) = self.length(place) {
            self.usage.bytes = self.usage.bytes - old + length as u64;
            self.lengths[number_of(place) as usize] = length as u16 + 1;
        }
    }

    /// A block is gone: its number may be had again.
    pub(crate) fn release(&mut self, place: u64) {
        debug_assert!(self.length(place).is_some(), "released twice");
        if let Some(length) = self.length(place) {
            self.usage.blocks -= 1;
            self.usage.bytes -= RECORD + length;
            self.lengths[number_of(place) as usize] = 0;
            self.free.push(number_of(place) as u32);
        }
    }

    /// Claims a block found in the index, still without bytes. Gives whether it was not claimed yet; `None` for a number
    /// that cannot be. [`claimed`](Self::claimed) is called after the last one.
    pub(crate) fn claim(&mut self, place: u64) -> Option<bool> {
        let number = number_of(place);
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

    /// All blocks are claimed: the other numbers are free.
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
        /// Against a plain map; and a pool that is claimed anew counts the same.
        #[test]
        fn numbers_are_had_once_and_their_bytes_are_counted(
            steps in proptest::collection::vec((0_u8..3, 0_usize..4096, any::<prop::sample::Index>()), 0..80),
        ) {
            let mut pool = Pool::new(20);
            pool.limit(40_000);
            let mut model: BTreeMap<u64, usize> = BTreeMap::new();
            for (step, length, which) in steps {
                let some = (!model.is_empty()).then(|| *model.keys().nth(which.index(model.len())).unwrap());
                match (step, some) {
                    (0, _) => match pool.take() {
                        Some(place) => {
                            prop_assert!(is_inline(place));
                            prop_assert_eq!(model.insert(place, 0), None, "had twice");
                        }
                        None => prop_assert_eq!(model.len(), 20),
                    },
                    (1, Some(place)) => {
                        let total = pool.usage().bytes + length as u64 - model[&place] as u64;
                        let fits = length <= model[&place] || total <= 40_000;
                        prop_assert_eq!(pool.fits(Some(place), length as u64), fits);
                        pool.set(place, length);
                        model.insert(place, length);
                    }
                    (_, Some(place)) => {
                        pool.release(place);
                        model.remove(&place);
                    }
                    _ => {}
                }
                let bytes = model.values().map(|length| *length as u64 + RECORD).sum();
                let expected = InlineUse { blocks: model.len() as u64, bytes, bytes_max: 40_000 };
                prop_assert_eq!(pool.usage(), expected);
                prop_assert_eq!(pool.fits(None, 100), bytes + RECORD + 100 <= 40_000);
            }
            let mut again = Pool::new(20);
            again.limit(40_000);
            for (&place, &length) in model.iter().rev() {
                prop_assert_eq!(again.claim(place), Some(true));
                prop_assert_eq!(again.claim(place), Some(false));
                again.set(place, length);
            }
            again.claimed();
            prop_assert_eq!(again.usage(), pool.usage());
            while let Some(place) = again.take() {
                prop_assert_eq!(model.insert(place, 0), None);
            }
            prop_assert_eq!(model.len(), 20);
            prop_assert_eq!(again.claim(INLINE | 20), None);
        }
    }
}
