//! The engine's allocator state, built from the pages that the walk at open found in use.
//!
//! Does: after an unclean shutdown, writes the tables that the engine writes on a clean close, so
//! that it loads them instead of walking over the whole file two more times.
//! Does not: change a page that any commit refers to.
//! Contract: only a walk that saw every page of the commit yields an allocator state. Without one
//! the engine recovers on its own. With a guard, the last unit of the file is marked as used, so
//! that the engine never shortens the file.
//! Source of truth: docs/design/store.md, "The engine's file".

use crate::{CommitSlot, PageRef, REGION_PAGES, UNIT, sum_of};

/// Orders of pages, from one page to a whole region.
pub const ORDERS: u32 = 21;
/// Free or required pages, by order.
pub type PagesByOrder = [u64; ORDERS as usize];
/// Minimum capacity of the engine's region tracker,
const REGIONS_MIN: u32 = 1000;
/// and the number of regions that determines the levels of its bitmaps.
const REGIONS_CAPACITY: u32 = 1 << 20;
/// Maximum regions of a file that gets an allocator state: 256 GiB. Larger ones would need branches
/// of several levels.
const REGIONS_MAX: u64 = 64;
/// Longest file that gets an allocator state, in bytes.
pub const MAX_LENGTH: u64 = (REGIONS_MAX * REGION_PAGES + 1) * UNIT;
/// Maximum size of a leaf besides the values of two pairs.
const ENTRY: usize = 64;
/// The engine's name of the table,
const TABLE: &[u8] = b"allocator_state";
/// and of the types of its keys and values, each preceded by a byte that means "built in".
const KEY_TYPE: &[u8] = b"\x01redb::AllocatorStateKey";
const VALUE_TYPE: &[u8] = b"\x01&[u8]";

/// A bitmap.
#[derive(Clone, Debug, Default)]
struct BitSet(Vec<u64>);

impl BitSet {
    fn get(&self, at: u64) -> bool {
        self.0.get((at / 64) as usize).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    fn set(&mut self, at: u64, value: bool) {
        let word = (at / 64) as usize;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let bit = 1 << (at % 64);
        if value { self.0[word] |= bit } else { self.0[word] &= !bit }
    }

    fn first(&self) -> Option<u64> {
        let word = self.0.iter().position(|word| *word != 0)?;
        Some(word as u64 * 64 + u64::from(self.0[word].trailing_zeros()))
    }
}

/// The pages of a commit that a walk saw.
#[derive(Debug, Default)]
pub struct RecordedPages {
    /// Units of 4 KiB, counted from the end of the header, of pages that something refers to.
    taken: BitSet,
    /// First units of the loaded pages.
    loaded: BitSet,
    /// Number of pages referred to, minus those that were loaded.
    open: u64,
    /// Whether two pages share a unit, or one lies outside the file.
    clash: bool,
}

impl RecordedPages {
    fn units(page: PageRef) -> Option<std::ops::Range<u64>> {
        let (offset, length) = page.location()?;
        let first = (offset - UNIT) / UNIT;
        Some(first..first + length / UNIT)
    }

    /// Records a reference to this page.
    pub(crate) fn refer(&mut self, page: PageRef) {
        let Some(units) = Self::units(page) else {
            self.clash = true;
            return;
        };
        for unit in units {
            self.clash |= self.taken.get(unit);
            self.taken.set(unit, true);
        }
        self.open += 1;
    }

    /// Records that this page was loaded. Returns whether it is the first time.
    pub(crate) fn load(&mut self, page: PageRef) -> bool {
        let Some(units) = Self::units(page) else { return false };
        if self.loaded.get(units.start) {
            return false;
        }
        self.loaded.set(units.start, true);
        self.open = self.open.wrapping_sub(1);
        true
    }

    /// Whether every referenced page was loaded, and no two overlap.
    fn is_whole(&self) -> bool {
        self.open == 0 && !self.clash
    }
}

/// The free pages of one region, by order, as in the engine's allocator: never both halves of a
/// larger page.
#[derive(Clone, Debug)]
pub struct RegionPages {
    pages: u32,
    free: Vec<BitSet>,
}

impl RegionPages {
    /// `guard`: a unit of the file that no page uses.
    fn new(recorded: &RecordedPages, region: u64, pages: u32, guard: Option<u64>) -> Self {
        let mut free = vec![BitSet::default(); ORDERS as usize];
        let first = region * REGION_PAGES;
        let is_free = |page: &u64| !recorded.taken.get(first + page) && guard != Some(first + page);
        for page in (0..u64::from(pages)).filter(is_free) {
            free[0].set(page, true);
        }
        for order in 1..ORDERS as usize {
            for page in 0..u64::from(pages) >> order {
                let below = &mut free[order - 1];
                if below.get(2 * page) && below.get(2 * page + 1) {
                    below.set(2 * page, false);
                    below.set(2 * page + 1, false);
                    free[order].set(page, true);
                }
            }
        }
        Self { pages, free }
    }

    /// Takes a free page of this order.
    fn take(&mut self, order: u32) -> Option<u64> {
        let (found, mut page) = (order..ORDERS).find_map(|at| Some((at, self.free[at as usize].first()?)))?;
        self.free[found as usize].set(page, false);
        for order in (order..found).rev() {
            page *= 2;
            self.free[order as usize].set(page + 1, true);
        }
        Some(page)
    }

    /// Encodes as the engine does: highest order (1), zeros (3), pages (4), ends of the bitmaps (4
    /// each), bitmaps.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![(ORDERS - 1) as u8, 0, 0, 0];
        bytes.extend(self.pages.to_le_bytes());
        let bitmaps = (0..ORDERS).map(|order| {
            let capacity = (REGION_PAGES >> order) as u32;
            bitmap(self.pages >> order, capacity, |page| !self.free[order as usize].get(page))
        });
        let bitmaps: Vec<Vec<u8>> = bitmaps.collect();
        append_with_ends(&mut bytes, &bitmaps);
        bytes
    }

    /// Returns a region whose pages are all free.
    #[must_use]
    pub fn all_free(pages: u32) -> Self {
        Self::new(&RecordedPages::default(), 0, pages, None)
    }

    /// Marks the page of this order at unit `first` as used, whatever of it was free. `blocks` are
    /// the free pages by order.
    pub fn occupy(&mut self, first: u64, order: u32, blocks: &mut PagesByOrder) {
        let mut change = |at: u32, page: u64, free: bool| {
            let at = at as usize;
            if self.free[at].get(page) != free {
                self.free[at].set(page, free);
                blocks[at] = if free { blocks[at] + 1 } else { blocks[at].saturating_sub(1) };
                return true;
            }
            false
        };
        for at in order..ORDERS {
            if change(at, first >> at, false) {
                // Its halves without those units stay free.
                for below in (order..at).rev() {
                    change(below, (first >> below) ^ 1, true);
                }
                return;
            }
        }
        for below in 0..order {
            for page in (first >> below)..((first + (1 << order)) >> below) {
                change(below, page, false);
            }
        }
    }

    /// Returns the number of free pages of each order.
    #[must_use]
    pub fn blocks(&self) -> PagesByOrder {
        std::array::from_fn(|order| self.free[order].0.iter().map(|word| u64::from(word.count_ones())).sum())
    }

    fn highest(&self) -> Option<u32> {
        (0..ORDERS).rev().find(|order| self.free[*order as usize].first().is_some())
    }
}

/// Appends parts after a table of their ends, which count from the start of `bytes`.
fn append_with_ends(bytes: &mut Vec<u8>, parts: &[Vec<u8>]) {
    let mut end = bytes.len() + 4 * parts.len();
    for part in parts {
        end += part.len();
        bytes.extend((end as u32).to_le_bytes());
    }
    parts.iter().for_each(|part| bytes.extend(part));
}

/// Encodes a bitmap of the engine. Its lowest level has a bit for each of `count` items; each other
/// level has a bit for each word below, set if all bits of that word are. It has as many levels as
/// `capacity` items need. Bits beyond the end are set.
fn bitmap(count: u32, capacity: u32, get: impl Fn(u64) -> bool) -> Vec<u8> {
    let mut depth = 1;
    let mut index_space = capacity;
    while index_space > 64 {
        index_space = index_space.div_ceil(64);
        depth += 1;
    }
    let mut levels: Vec<Vec<u8>> = Vec::new();
    let mut words: Vec<u64> = Vec::new();
    let mut length = count;
    for level in 0..depth {
        let below = std::mem::take(&mut words);
        words = vec![u64::MAX; length.div_ceil(64) as usize];
        for at in 0..u64::from(length) {
            let set = if level == 0 { get(at) } else { below[at as usize] == u64::MAX };
            if !set {
                words[(at / 64) as usize] &= !(1 << (at % 64));
            }
        }
        let mut bytes = length.to_le_bytes().to_vec();
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        levels.push(bytes);
        length = length.div_ceil(64);
    }
    levels.reverse();
    let mut bytes = u32::to_le_bytes(depth).to_vec();
    append_with_ends(&mut bytes, &levels);
    bytes
}

/// Encodes the engine's region tracker: number of orders (4), lengths of the bitmaps (4 each), for
/// each order a bitmap of the regions that have no free page of it.
fn tracker(regions: &[RegionPages]) -> Vec<u8> {
    let count = REGIONS_MIN.max(regions.len() as u32);
    let highest: Vec<Option<u32>> = regions.iter().map(RegionPages::highest).collect();
    let full = |order: u32, region: u64| {
        highest.get(region as usize).copied().flatten().is_none_or(|highest| highest < order)
    };
    let bitmaps: Vec<Vec<u8>> =
        (0..ORDERS).map(|order| bitmap(count, REGIONS_CAPACITY, |region| full(order, region))).collect();
    let mut bytes = ORDERS.to_le_bytes().to_vec();
    bitmaps.iter().for_each(|bitmap| bytes.extend((bitmap.len() as u32).to_le_bytes()));
    bitmaps.iter().for_each(|bitmap| bytes.extend(bitmap));
    bytes
}

/// Encodes a leaf of pairs; keys have one width if `fixed`.
fn leaf(pairs: &[(&[u8], &[u8])], fixed: bool) -> Vec<u8> {
    let mut bytes = vec![1, 0];
    bytes.extend((pairs.len() as u16).to_le_bytes());
    let keys = 4 + pairs.len() * if fixed { 4 } else { 8 };
    let mut end = keys;
    let mut ends = Vec::new();
    for (key, _) in pairs {
        end += key.len();
        ends.extend((end as u32).to_le_bytes());
    }
    if !fixed {
        bytes.append(&mut ends);
    }
    for (_, value) in pairs {
        end += value.len();
        bytes.extend((end as u32).to_le_bytes());
    }
    pairs.iter().for_each(|(key, _)| bytes.extend(*key));
    pairs.iter().for_each(|(_, value)| bytes.extend(*value));
    bytes
}

/// Encodes a branch over leaves, with the last key of each but the last.
fn branch(children: &[PageRef], keys: &[[u8; 5]]) -> Vec<u8> {
    let mut bytes = vec![2, 0];
    bytes.extend((keys.len() as u16).to_le_bytes());
    bytes.extend([0; 4]);
    children.iter().for_each(|child| bytes.extend(child.sum.to_le_bytes()));
    children.iter().for_each(|child| bytes.extend(child.number.to_le_bytes()));
    keys.iter().for_each(|key| bytes.extend(key));
    bytes
}

/// Encodes a table's definition, as in the engine's tree of tables.
fn definition(root: PageRef, pairs: u64) -> Vec<u8> {
    let mut bytes = vec![3];
    bytes.extend(pairs.to_le_bytes());
    bytes.push(1);
    bytes.extend(root.number.to_le_bytes());
    bytes.extend(root.sum.to_le_bytes());
    bytes.extend(pairs.to_le_bytes());
    bytes.push(1);
    bytes.extend(5_u32.to_le_bytes());
    bytes.extend([0; 5]);
    // Alignment of keys and of values.
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend((KEY_TYPE.len() as u32).to_le_bytes());
    bytes.extend(KEY_TYPE);
    bytes.extend(VALUE_TYPE);
    bytes
}

fn key(tag: u8, region: u32) -> [u8; 5] {
    let [a, b, c, d] = region.to_le_bytes();
    [tag, a, b, c, d]
}

/// Pages to be written to free locations, and the commit that refers to them.
pub struct AllocatorState {
    /// Offset in the file, and bytes, of each page.
    pub pages: Vec<(u64, Vec<u8>)>,
    /// The commit that refers to the pages.
    pub commit: CommitSlot,
    /// The pages that remain free.
    pub free: Vec<RegionPages>,
}

/// Returns the pages of the allocator state for a file of `length` bytes, by order; the engine
/// writes the same when it closes.
pub fn allocator_state_pages(length: u64) -> PagesByOrder {
    let mut blocks = [0; ORDERS as usize];
    let mut add = |bytes: usize, count: u64| blocks[order_of(bytes) as usize] += count;
    let units = (length / UNIT).saturating_sub(1);
    let regions = units.div_ceil(REGION_PAGES);
    let region =
        RegionPages { pages: units.min(REGION_PAGES) as u32, free: vec![BitSet::default(); ORDERS as usize] };
    add(region.encode().len() + ENTRY, regions);
    add(tracker(&[]).len() + ENTRY, 1);
    // The branch above them, and the leaf of the table's definition.
    add(0, 2);
    blocks
}

/// Returns the order of a page for this many bytes.
pub fn order_of(bytes: usize) -> u32 {
    (bytes as u64).div_ceil(UNIT).max(1).next_power_of_two().trailing_zeros()
}

impl AllocatorState {
    /// Builds the allocator state of a commit in a file of `length` bytes; `None` if the walk did
    /// not see all of it, or there is no space.
    pub fn of(recorded: &RecordedPages, commit: &CommitSlot, length: u64, guard: bool) -> Option<Self> {
        let units = (length / UNIT).checked_sub(1)?;
        let count = units.div_ceil(REGION_PAGES);
        if !recorded.is_whole() || !(1..=REGIONS_MAX).contains(&count) {
            return None;
        }
        let last = guard.then(|| units - 1);
        let in_region = |region: u64| (units - region * REGION_PAGES).min(REGION_PAGES) as u32;
        let mut regions: Vec<RegionPages> =
            (0..count).map(|region| RegionPages::new(recorded, region, in_region(region), last)).collect();
        // Their lengths do not depend on what is free: so all pages get their locations before they
        // are encoded.
        let mut location = |length: usize| {
            let order = order_of(length);
            let found = regions
                .iter_mut()
                .enumerate()
                .find_map(|(region, free)| Some((region as u64, free.take(order)?)));
            found.map(|(region, page)| u64::from(order) << 59 | region << 20 | page)
        };
        let leaf_length = |value: usize| leaf(&[(&[0; 5], &[])], true).len() + value;
        let region_lengths: Vec<usize> = (0..count)
            .map(|region| {
                RegionPages { pages: in_region(region), free: vec![BitSet::default(); ORDERS as usize] }
                    .encode()
                    .len()
            })
            .collect();
        let mut locations = Vec::new();
        for length in &region_lengths {
            locations.push(location(leaf_length(*length))?);
        }
        let rest_length = leaf(&[(&[0; 5], &tracker(&[])), (&[0; 5], &[0; 8])], true).len();
        let rest_location = location(rest_length)?;
        let keys: Vec<[u8; 5]> = (0..count as u32).map(|region| key(3, region)).collect();
        let none = PageRef { number: 0, sum: 0 };
        let root_location = location(branch(&vec![none; locations.len() + 1], &keys).len())?;
        let table_location = location(leaf(&[(TABLE, &definition(none, 0))], false).len())?;

        let mut pages = Vec::new();
        let mut put = |number: u64, mut bytes: Vec<u8>| -> Option<PageRef> {
            let page = PageRef { number, sum: sum_of(&bytes) };
            let (offset, length) = page.location()?;
            if bytes.len() as u64 > length {
                return None;
            }
            bytes.resize(length as usize, 0);
            pages.push((offset, bytes));
            Some(page)
        };
        let mut leaves = Vec::new();
        for ((region, number), key) in regions.iter().zip(locations).zip(&keys) {
            leaves.push(put(number, leaf(&[(key, &region.encode())], true))?);
        }
        let (tracked, id) = (tracker(&regions), commit.id.to_le_bytes());
        leaves.push(put(rest_location, leaf(&[(&key(4, 0), &tracked), (&key(5, 0), &id)], true))?);
        let root = put(root_location, branch(&leaves, &keys))?;
        let table = put(table_location, leaf(&[(TABLE, &definition(root, count + 2))], false))?;
        Some(Self { pages, commit: commit.with_system(table, 1), free: regions })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns each unit that lies in a free page.
    fn units(region: &RegionPages) -> Vec<u64> {
        let mut units = Vec::new();
        for order in 0..ORDERS as usize {
            for page in (0..u64::from(region.pages) >> order).filter(|page| region.free[order].get(*page)) {
                units.extend(page << order..(page + 1) << order);
            }
        }
        units.sort_unstable();
        units
    }

    proptest! {
        #[test]
        fn occupied_pages_are_used_and_others_free(
            pages in 1_u64..600,
            taken in prop::collection::vec(any::<prop::sample::Index>(), 0..100),
            occupied in prop::collection::vec((any::<prop::sample::Index>(), 0_u32..7), 0..60),
        ) {
            let mut recorded = RecordedPages::default();
            for page in taken {
                recorded.taken.set(page.index(pages as usize) as u64, true);
            }
            let mut region = RegionPages::new(&recorded, 0, pages as u32, Some(pages - 1));
            let mut blocks = region.blocks();
            let mut expected = units(&region);
            for (first, order) in occupied {
                let first = first.index(pages as usize) as u64 >> order << order;
                region.occupy(first, order, &mut blocks);
                expected.retain(|unit| !(first..first + (1 << order)).contains(unit));
                prop_assert_eq!(&units(&region), &expected);
                prop_assert_eq!(region.blocks(), blocks);
            }
        }
    }
}
