//! Free pages in the index file: how many a commit may need, and how many are certainly free.
//!
//! Does: counts changes before they are made, and refuses with `NoSpace` those for which the engine
//! might find no pages. The engine must never run out of pages, because it does not survive that.
//! Reserves pages for removals, for some overwriting, and for the engine's own allocator state.
//! Does not: extend the file; `RecordIndex::reinspect` does.
//! Contract: the engine takes the smallest free page that is large enough, the remaining halves
//! stay free, and a commit only frees further pages. So the pages that were free at the last
//! inspection of the file, less those written since, are certainly free.
//! Costs: an addition of 21 numbers per change.
//! Source of truth: docs/adr/0031-index-space-reserved-before-changes.md.

use parking_lot::Mutex;
use sealstone_redb_format::{
    ORDERS, PagesByOrder, REGION_PAGES, RegionPages, TreeOutline, UNIT, allocator_state_pages, order_of,
};

use super::record::{Key, RecordTag, RecordValue, TAGS};

/// Pages that the engine's own tables take in a commit, each with space for two of its lists: paths
/// to four tables, copied twice, and
const SYSTEM: u64 = 24;
/// pages of two units for lists of the allocated and freed pages: each holds 400, and is written up
/// to four times.
const LISTED: u64 = 100;
/// Order of these pages.
const SYSTEM_ORDER: usize = 1;
/// Key-value pairs of at most this size fill pages of one unit, however they are split.
const SMALL: usize = UNIT as usize / 3;
/// Size of a pair in a leaf besides its value, in bytes: key and ends.
const PAIR: usize = 33;
/// Largest order of a leaf: three of the longest values.
const LEAF_ORDER_MAX: u32 = 6;
/// Leaves at the two ends of a tag that a change of other tags copies or splits: such a leaf has
/// records of both, or takes those of a leaf that became too small.
const END_LEAVES: u64 = 4;
/// Minimum number of pages below a branch, where there are many.
const FANOUT_MIN: u64 = 16;
/// The file is extended for a group whose demand is at most this many bytes, or an eighth of the
/// file.
const LARGE_GROUP: u64 = 8 << 20;
/// Divisor of the file for the reserve after an addition that needed an inspection, which reads a
/// part of the file.
const LATE: u64 = 64;
/// Divisor of the used pages for the reserve for overwrites when no additions are admitted any
/// more.
const OVERWRITES: u64 = 32;

/// Demand of record changes for leaf pages, by tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageDemand {
    /// Maximum number of leaf pages.
    leaves: [u64; TAGS],
    /// Longest value, in bytes.
    longest: [usize; TAGS],
}

impl PageDemand {
    /// Adds one change, which takes this many leaves.
    pub(crate) fn add(&mut self, key: &Key, leaves: u64, value: Option<&RecordValue>) {
        self.add_many(usize::from(key[0]), leaves, value.map_or(0, RecordValue::weight));
    }

    fn add_many(&mut self, tag: usize, leaves: u64, longest: usize) {
        let tag = tag.min(TAGS - 1);
        self.leaves[tag] = self.leaves[tag].saturating_add(leaves);
        self.longest[tag] = self.longest[tag].max(longest);
    }

    /// Adds leaves of a tag, for values up to `longest` bytes.
    #[must_use]
    pub(crate) fn with_leaves(mut self, tag: RecordTag, leaves: u64, longest: usize) -> Self {
        self.add_many(tag as usize, leaves, longest);
        self
    }

    fn plus(mut self, other: &Self) -> Self {
        for tag in 0..TAGS {
            self.add_many(tag, other.leaves[tag], other.longest[tag]);
        }
        self
    }

    fn subtract(&mut self, other: &Self) {
        for tag in 0..TAGS {
            self.leaves[tag] = self.leaves[tag].saturating_sub(other.leaves[tag]);
            if self.leaves[tag] == 0 {
                self.longest[tag] = 0;
            }
        }
    }

    fn total(&self) -> u64 {
        self.leaves.iter().fold(0, |sum, leaves| sum.saturating_add(*leaves))
    }
}

/// Returns the order of leaves for values of this many bytes, among others of at most the order
/// `known`.
fn leaf_order(known: u8, longest: usize) -> u32 {
    let pair = longest + PAIR;
    let own = if pair <= SMALL { 0 } else { order_of(3 * pair) };
    own.max(u32::from(known)).min(LEAF_ORDER_MAX)
}

/// Returns the maximum pages that a commit of these changes takes.
fn demand(load: &PageDemand, shape: &TreeOutline<TAGS>) -> PagesByOrder {
    let mut blocks = [0_u64; ORDERS as usize];
    let total = load.total();
    if total == 0 {
        return blocks;
    }
    let mut largest = 0;
    let mut pages = 0_u64;
    for tag in 0..TAGS {
        let order = leaf_order(shape.orders[tag], load.longest[tag]) as usize;
        let leaves = match load.leaves[tag] {
            0 => {
                // Others that are small are counted with the changed tags.
                if order > 0 {
                    blocks[order] = blocks[order].saturating_add(END_LEAVES);
                }
                continue;
            }
            leaves => leaves.saturating_add(2),
        };
        blocks[order] = blocks[order].saturating_add(leaves);
        pages = pages.saturating_add(leaves);
        largest = largest.max(order);
    }
    for (order, count) in shape.joint.iter().enumerate() {
        blocks[order] = blocks[order].saturating_add(2 * count);
    }
    blocks[largest] += 2;
    // Each branch is copied, merged or split once; every sixteenth leaf may need a new one.
    let copied = total.saturating_mul(shape.depth + 1).min(shape.branches);
    let branches = copied.saturating_mul(2).saturating_add(total / 16 + 2 * shape.depth + 6);
    blocks[0] = blocks[0].saturating_add(branches);
    pages = pages.saturating_add(branches);
    blocks[SYSTEM_ORDER] = blocks[SYSTEM_ORDER].saturating_add(SYSTEM + pages / LISTED);
    blocks
}

fn sum(one: &PagesByOrder, other: &PagesByOrder) -> PagesByOrder {
    std::array::from_fn(|order| one[order].saturating_add(other[order]))
}

/// Whether one region has these pages free.
fn fits(free: &PagesByOrder, wanted: &PagesByOrder) -> bool {
    let mut split = 0_u64;
    for (free, wanted) in free.iter().zip(wanted) {
        let wanted = wanted.saturating_add(split);
        split = wanted.saturating_sub(*free).div_ceil(2);
    }
    split == 0
}

fn bytes_of(blocks: &PagesByOrder) -> u64 {
    let bytes = |(order, count): (usize, &u64)| count.saturating_mul(UNIT << order);
    blocks.iter().enumerate().map(bytes).fold(0, u64::saturating_add)
}

/// The purpose of a change, which determines the reserve that it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReserveClass {
    /// Removes something.
    Removal,
    /// Changes existing data, which then takes hardly more than before.
    Overwrite,
    /// Creates something new.
    Addition,
    /// An addition right after an inspection: it is admitted only if many more would fit, or each
    /// would need its own inspection.
    AdditionAfterInspection,
}

impl ReserveClass {
    /// Returns the purpose to use right after an inspection.
    pub(crate) fn after_inspection(self) -> Self {
        if self == Self::Addition { Self::AdditionAfterInspection } else { self }
    }
}

/// State of the index file at its last inspection.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreePages {
    /// Free pages of each region.
    pub(crate) free: Vec<RegionPages>,
    pub(crate) shape: TreeOutline<TAGS>,
    /// Length of the engine's part, in bytes.
    pub(crate) length: u64,
}

/// The inspected state, with the reserves in it.
struct InspectedPages {
    free_pages: FreePages,
    /// Pages of each region that were free then and were not written since, by order.
    free: Vec<PagesByOrder>,
    /// Number of branch pages at the inspection, at least 1.
    branches: u64,
    /// Pages of the allocator state, which is written when the engine closes.
    allocator: PagesByOrder,
    /// That, and one removal with everything that it may release.
    removal: PagesByOrder,
    /// That, and some overwriting.
    overwrites: PagesByOrder,
    /// That, and a part of the file.
    after_inspection: PagesByOrder,
    /// Whether anything was written since.
    touched: bool,
}

impl InspectedPages {
    fn of(mut free_pages: FreePages) -> Self {
        // A split puts at most half of a leaf and one more pair into one page.
        free_pages.shape.orders.iter_mut().filter(|order| **order > 0).for_each(|order| *order += 1);
        for order in (1..free_pages.shape.joint.len() - 1).rev() {
            free_pages.shape.joint[order + 1] += std::mem::take(&mut free_pages.shape.joint[order]);
        }
        let shape = &free_pages.shape;
        let mut allocator = allocator_state_pages(free_pages.length);
        allocator[SYSTEM_ORDER] += SYSTEM;
        let mut each = PageDemand::default();
        (1..TAGS).for_each(|tag| each.add_many(tag, 2, 0));
        let mut removal = sum(&allocator, &demand(&each, shape));
        removal[SYSTEM_ORDER] += shape.units / LISTED;
        let mut overwrites = sum(&removal, &demand(&PageDemand::scope(), shape));
        let order = usize::from(shape.orders.iter().copied().max().unwrap_or(0));
        overwrites[order] += (shape.units / OVERWRITES) >> order;
        overwrites[0] += 16;
        let mut after_inspection = overwrites;
        after_inspection[0] += free_pages.length / UNIT / LATE;
        let free = free_pages.free.iter().map(RegionPages::blocks).collect();
        let branches = shape.branches.max(1);
        Self { free_pages, free, branches, allocator, removal, overwrites, after_inspection, touched: false }
    }

    fn kept(&self, purpose: ReserveClass) -> &PagesByOrder {
        match purpose {
            ReserveClass::Removal => &self.allocator,
            ReserveClass::Overwrite => &self.removal,
            ReserveClass::Addition => &self.overwrites,
            ReserveClass::AdditionAfterInspection => &self.after_inspection,
        }
    }
}

/// The known free pages, and the demand in progress.
#[derive(Default)]
struct IndexSpaceState {
    known: Option<InspectedPages>,
    /// Admitted operations that have not ended.
    under_way: PageDemand,
    /// The group that is being committed.
    committing: PageDemand,
}

impl IndexSpaceState {
    /// Whether the demand fits. `before`: demand of the open group and of running operations.
    fn fits(
        &self,
        known: &InspectedPages,
        load: &PageDemand,
        purpose: ReserveClass,
        before: &PageDemand,
    ) -> bool {
        let wanted = self.wanted(known, load, purpose, before);
        known.free.iter().any(|free| fits(free, &wanted))
    }

    /// Returns the pages that must be free in one region.
    fn wanted(
        &self,
        known: &InspectedPages,
        load: &PageDemand,
        purpose: ReserveClass,
        before: &PageDemand,
    ) -> PagesByOrder {
        let shape = &known.free_pages.shape;
        let mut load = *load;
        if purpose == ReserveClass::Removal {
            // It touches no more leaves than exist.
            let there = 2 * (shape.units + before.total()) + 2;
            load.leaves.iter_mut().for_each(|leaves| *leaves = (*leaves).min(there));
        }
        let mut open = before.plus(&load);
        // The shape does not include the value lengths of the group that is being committed.
        for (mine, theirs) in open.longest.iter_mut().zip(&self.committing.longest) {
            *mine = (*mine).max(*theirs);
        }
        let open = demand(&open, shape);
        sum(&sum(&open, &demand(&self.committing, shape)), known.kept(purpose))
    }
}

/// Accounts for the free pages of the index.
#[derive(Default)]
pub(crate) struct IndexSpace(Mutex<IndexSpaceState>);

/// An operation's share of the free pages. When dropped, its changes are in the open group, or were
/// given up.
pub(crate) struct AdmittedDemand<'a> {
    index_space: &'a IndexSpace,
    load: PageDemand,
}

impl Drop for AdmittedDemand<'_> {
    fn drop(&mut self) {
        self.index_space.0.lock().under_way.subtract(&self.load);
    }
}

impl IndexSpace {
    /// `None`: there is no limit, or it is unknown.
    pub(crate) fn new(free_pages: Option<FreePages>) -> Self {
        Self(Mutex::new(IndexSpaceState {
            known: free_pages.map(InspectedPages::of),
            ..IndexSpaceState::default()
        }))
    }

    /// Sets the result of an inspection.
    pub(crate) fn set(&self, free_pages: FreePages) {
        let known = InspectedPages::of(free_pages);
        self.0.lock().known = Some(known);
    }

    /// Admits an operation if its changes fit besides those of the open group, which `open`
    /// returns.
    pub(crate) fn admit(
        &self,
        load: PageDemand,
        purpose: ReserveClass,
        open: impl FnOnce() -> PageDemand,
    ) -> Option<AdmittedDemand<'_>> {
        // Later operations count this one; an earlier one that ends meanwhile counts twice, never
        // zero times.
        let before = {
            let mut state = self.0.lock();
            let before = state.under_way;
            state.under_way = before.plus(&load);
            before
        };
        let admitted = AdmittedDemand { index_space: self, load };
        // Not under the lock: reading the group may wait for the engine, and the engine's user for
        // the lock. A group that is closed after this is the committing one below.
        let before = before.plus(&open());
        let fits = {
            let state = self.0.lock();
            state.known.as_ref().is_none_or(|known| state.fits(known, &load, purpose, &before))
        };
        fits.then_some(admitted)
    }

    /// Whether the operation would be admitted on these pages, with an eighth of the file to spare.
    pub(crate) fn suffices(
        &self,
        free_pages: &FreePages,
        load: &PageDemand,
        purpose: ReserveClass,
        open: &PageDemand,
    ) -> bool {
        let known = InspectedPages::of(free_pages.clone());
        let free = known.free.iter().map(bytes_of).fold(0, u64::saturating_add);
        let state = self.0.lock();
        free >= free_pages.length / 8 && state.fits(&known, load, purpose, &open.plus(&state.under_way))
    }

    /// Whether the operation could be admitted if the file had its maximum length. A demand above
    /// one region never fits.
    pub(crate) fn is_possible(&self, load: &PageDemand, purpose: ReserveClass, open: &PageDemand) -> bool {
        let state = self.0.lock();
        state.known.as_ref().is_none_or(|known| {
            let wanted = state.wanted(known, load, purpose, &open.plus(&state.under_way));
            bytes_of(&wanted) <= REGION_PAGES * UNIT
        })
    }

    /// Whether the open group's demand is so large that it should be committed before the file is
    /// extended for it.
    pub(crate) fn is_large(&self, open: PageDemand) -> bool {
        let state = self.0.lock();
        let large = |known: &InspectedPages| {
            let limit = (known.free_pages.length / 8).max(LARGE_GROUP);
            bytes_of(&demand(&open, &known.free_pages.shape)) > limit
        };
        state.known.as_ref().is_some_and(large)
    }

    /// Returns by how many bytes the file must grow to be certainly sufficient.
    pub(crate) fn wanted_bytes(&self, load: PageDemand, open: PageDemand) -> u64 {
        let state = self.0.lock();
        let Some(known) = &state.known else { return 0 };
        let all = state.under_way.plus(&load).plus(&open);
        let blocks = sum(&demand(&all, &known.free_pages.shape), &known.after_inspection);
        bytes_of(&blocks)
    }

    /// Whether anything was written since the inspection, so that a new one may find more free
    /// pages.
    pub(crate) fn is_touched(&self) -> bool {
        self.0.lock().known.as_ref().is_some_and(|known| known.touched)
    }

    /// Whether a group with changes is being committed.
    pub(crate) fn is_committing(&self) -> bool {
        self.0.lock().committing.total() > 0
    }

    /// Begins the commit of a group with this demand.
    pub(crate) fn commits(&self, load: PageDemand) {
        self.0.lock().committing = load;
    }

    /// Ends the commit; `written` are the pages written meanwhile, by offset and length in bytes.
    pub(crate) fn committed(&self, written: &[(u64, u64)]) {
        let mut state = self.0.lock();
        let load = std::mem::take(&mut state.committing);
        let Some(known) = &mut state.known else { return };
        let shape = &mut known.free_pages.shape;
        let order_of = |length: u64| (length / UNIT).trailing_zeros().min(ORDERS - 1);
        if cfg!(debug_assertions) && !written.is_empty() {
            let granted = demand(&load, shape);
            let mut all = [0; ORDERS as usize];
            written.iter().for_each(|(_, length)| all[order_of(*length) as usize] += 1);
            assert!(fits(&granted, &all), "wrote {all:?}, counted {granted:?} for {load:?}, {shape:?}");
        }
        for (location, length) in written {
            known.touched = true;
            let unit = location / UNIT - 1;
            let region = (unit / REGION_PAGES) as usize;
            if let (Some(free), Some(blocks)) =
                (known.free_pages.free.get_mut(region), known.free.get_mut(region))
            {
                free.occupy(unit % REGION_PAGES, order_of(*length), blocks);
            }
        }
        for (known, new) in shape.orders.iter_mut().zip(written_orders(&load)) {
            *known = (*known).max(new);
        }
        // Branches that were added with it, and possibly a new level of them.
        shape.branches += load.total() / 16 + u64::from(load.total() > 0);
        if shape.branches > FANOUT_MIN * known.branches {
            known.branches = shape.branches;
            shape.depth += 1;
        }
    }
}

/// Returns the orders of leaves that a committed group may have written.
fn written_orders(load: &PageDemand) -> [u8; TAGS] {
    std::array::from_fn(|tag| match load.leaves[tag] {
        0 => 0,
        _ => leaf_order(0, load.longest[tag]) as u8,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index_space(pages: u32) -> IndexSpace {
        let length = (u64::from(pages) + 1) * UNIT;
        let shape = TreeOutline { branches: 1000, depth: 2, units: 100, ..TreeOutline::default() };
        IndexSpace::new(Some(FreePages { free: vec![RegionPages::all_free(pages)], shape, length }))
    }

    /// Returns how many such changes are admitted while none of them ends.
    fn count(index_space: &IndexSpace, purpose: ReserveClass) -> usize {
        let load = PageDemand::default().with_leaves(RecordTag::Object, 2, 48);
        let admitted = || index_space.admit(load, purpose, PageDemand::default);
        std::iter::from_fn(admitted).collect::<Vec<_>>().len()
    }

    #[test]
    fn free_pages_are_split_but_never_merged() {
        let of = |pairs: &[(usize, u64)]| {
            let mut blocks = [0; ORDERS as usize];
            pairs.iter().for_each(|(order, count)| blocks[*order] = *count);
            blocks
        };
        assert!(fits(&of(&[(3, 1)]), &of(&[(0, 4), (1, 2)])));
        assert!(!fits(&of(&[(3, 1)]), &of(&[(0, 5), (1, 2)])));
        assert!(!fits(&of(&[(0, 100)]), &of(&[(1, 1)])));
        assert!(fits(&of(&[]), &of(&[])));
    }

    #[test]
    fn removals_outlast_overwrites_and_those_additions() {
        let index_space = index_space(2000);
        let counts = [ReserveClass::Addition, ReserveClass::Overwrite, ReserveClass::Removal]
            .map(|purpose| count(&index_space, purpose));
        assert!(0 < counts[0] && counts[0] < counts[1] && counts[1] < counts[2], "{counts:?}");
        // An operation that ended without a change is not counted any more.
        assert_eq!(count(&index_space, ReserveClass::Addition), counts[0]);
    }

    #[test]
    fn written_pages_are_taken_once_from_free_ones() {
        let index_space = index_space(2000);
        let before = count(&index_space, ReserveClass::Addition);
        index_space.commits(PageDemand::default().with_leaves(RecordTag::Object, 40, 48));
        assert!(
            count(&index_space, ReserveClass::Addition) < before,
            "a group that is being committed counts"
        );
        let written: Vec<(u64, u64)> = (1..=20).map(|page| (page * UNIT, UNIT)).collect();
        index_space.committed(&written);
        let after = count(&index_space, ReserveClass::Addition);
        assert!(after < before);
        // It writes the pages that it freed again.
        index_space.commits(PageDemand::default().with_leaves(RecordTag::Object, 40, 48));
        index_space.committed(&written);
        assert!(count(&index_space, ReserveClass::Addition).abs_diff(after) <= 1, "the same pages");
        assert!(index_space.is_touched());
    }

    #[test]
    fn change_beside_large_records_counts_their_leaf() {
        let mut shape = TreeOutline { branches: 8, depth: 0, units: 1, ..TreeOutline::default() };
        (shape.orders[RecordTag::Chunk as usize], shape.joint[0]) = (2, 1);
        let free = vec![RegionPages::all_free(2000)];
        let index_space = IndexSpace::new(Some(FreePages { free, shape, length: 2001 * UNIT }));
        let tags = [RecordTag::Store, RecordTag::Object, RecordTag::Attribute];
        let load = tags.iter().fold(PageDemand::default(), |load, tag| load.with_leaves(*tag, 2, 16));
        index_space.commits(load);
        // The leaf of the object has the first chunk too: it is asserted that it was counted.
        let written = [(UNIT, UNIT), (2 * UNIT, 4 * UNIT)];
        index_space.committed(&written);
        assert!(index_space.is_touched());
    }

    #[test]
    fn demand_above_one_region_is_refused_before_growth() {
        let index_space = index_space(2000);
        let possible = |bytes| {
            index_space.is_possible(
                &PageDemand::bytes(bytes, 0),
                ReserveClass::Addition,
                &PageDemand::default(),
            ) && index_space.is_possible(
                &PageDemand::bytes(bytes, 0),
                ReserveClass::Removal,
                &PageDemand::default(),
            )
        };
        assert!(possible(1 << 30) && possible(100 << 30));
        assert!(!possible(1 << 38));
        assert!(!possible(1 << 49));
    }

    #[test]
    fn unknown_index_size_admits_any_demand() {
        let index_space = IndexSpace::new(None);
        let load = PageDemand::default().with_leaves(RecordTag::Chunk, 1 << 40, 3600);
        assert!(index_space.admit(load, ReserveClass::Addition, PageDemand::default).is_some());
    }
}
