//! Room in the index's file: what a commit may need of it, and what is free for sure.
//!
//! Does: count changes before they are made, and refuse with `NoSpace` those that the engine might find no pages for; so
//! the engine never asks for more than there is, which it does not survive. Keep enough for removals, for a while of
//! overwriting, and for the engine's own book. Does not: make the file longer, `Index::renew` does.
//! Contract: the engine takes the smallest free page that is large enough, the halves of it that are left over stay free,
//! and what a commit lets go of only adds to that. So the pages that were free when the file was looked at, less those that
//! were written since, are some of those that are free.
//! Costs: an addition of 21 numbers for each change.
//! Truth: docs/adr/0031-index-space-reserved-before-changes.md.

use parking_lot::Mutex;

use super::record::{Key, TAGS, Tag, Value};
use super::tree::{Blocks, ORDERS, Outline, REGION_PAGES, Region, UNIT, book_blocks, order_of};

/// Pages that the engine's own tables take in a commit, each with room for two of its lists: paths to four tables, copied
/// twice, and
const SYSTEM: u64 = 24;
/// pages of two units for lists of the pages that were taken and let go: each holds 400, and is written up to four times.
const LISTED: u64 = 100;
/// Order of those pages.
const SYSTEM_ORDER: usize = 1;
/// Pairs of at most so many bytes fill pages of one unit, however they are split.
const SMALL: usize = UNIT as usize / 3;
/// What a pair takes in a leaf besides its value, in bytes: key and ends.
const PAIR: usize = 33;
/// The largest order of a leaf: three of the longest values.
const LEAF_ORDER_MAX: u32 = 6;
/// Pages below a branch, at least, where there are many.
const FANOUT_MIN: u64 = 16;
/// The file is made longer for a group that counts for at most so many bytes, or for an eighth of the file.
const LARGE_GROUP: u64 = 8 << 20;
/// A part of the file that is kept for what comes after an addition that needed a look, which reads a part of it.
const LATE: u64 = 64;
/// A part of the pages in use that is kept for overwriting what is there, when nothing new is let in any more.
const OVERWRITES: u64 = 32;

/// What changes of records take, by their tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Pages of records that they take, at most.
    leaves: [u64; TAGS],
    /// The longest value, in bytes.
    longest: [usize; TAGS],
}

impl Load {
    /// One more change, which takes so many leaves.
    pub(crate) fn add(&mut self, key: &Key, leaves: u64, value: Option<&Value>) {
        self.add_many(usize::from(key[0]), leaves, value.map_or(0, Value::weight));
    }

    fn add_many(&mut self, tag: usize, leaves: u64, longest: usize) {
        let tag = tag.min(TAGS - 1);
        self.leaves[tag] = self.leaves[tag].saturating_add(leaves);
        self.longest[tag] = self.longest[tag].max(longest);
    }

    /// So many leaves of a tag, for values up to `longest` bytes.
    #[must_use]
    pub(crate) fn and(mut self, tag: Tag, leaves: u64, longest: usize) -> Self {
        self.add_many(tag as usize, leaves, longest);
        self
    }

    fn join(mut self, other: &Self) -> Self {
        for tag in 0..TAGS {
            self.add_many(tag, other.leaves[tag], other.longest[tag]);
        }
        self
    }

    fn part(&mut self, other: &Self) {
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

/// The order of leaves that hold values of so many bytes, beside others of at most that order.
fn leaf_order(known: u8, longest: usize) -> u32 {
    let pair = longest + PAIR;
    let own = if pair <= SMALL { 0 } else { order_of(3 * pair) };
    own.max(u32::from(known)).min(LEAF_ORDER_MAX)
}

/// The pages that a commit of these changes takes, at most.
fn demand(load: &Load, shape: &Outline) -> Blocks {
    let mut blocks = [0_u64; ORDERS as usize];
    let total = load.total();
    if total == 0 {
        return blocks;
    }
    let mut largest = 0;
    let mut pages = 0_u64;
    for tag in 0..TAGS {
        if load.leaves[tag] == 0 {
            continue;
        }
        let leaves = load.leaves[tag].saturating_add(2);
        let order = leaf_order(shape.orders[tag], load.longest[tag]) as usize;
        blocks[order] = blocks[order].saturating_add(leaves);
        pages = pages.saturating_add(leaves);
        largest = largest.max(order);
    }
    for (order, count) in shape.joint.iter().enumerate() {
        blocks[order] = blocks[order].saturating_add(2 * count);
    }
    blocks[largest] += 2;
    // Each branch is copied, joined or split once; every sixteenth leaf may need a new one.
    let copied = total.saturating_mul(shape.depth + 1).min(shape.branches);
    let branches = copied.saturating_mul(2).saturating_add(total / 16 + 2 * shape.depth + 6);
    blocks[0] = blocks[0].saturating_add(branches);
    pages = pages.saturating_add(branches);
    blocks[SYSTEM_ORDER] = blocks[SYSTEM_ORDER].saturating_add(SYSTEM + pages / LISTED);
    blocks
}

fn sum(one: &Blocks, other: &Blocks) -> Blocks {
    std::array::from_fn(|order| one[order].saturating_add(other[order]))
}

/// Are there such pages in one region?
fn fits(free: &Blocks, wanted: &Blocks) -> bool {
    let mut split = 0_u64;
    for (free, wanted) in free.iter().zip(wanted) {
        let wanted = wanted.saturating_add(split);
        split = wanted.saturating_sub(*free).div_ceil(2);
    }
    split == 0
}

fn bytes_of(blocks: &Blocks) -> u64 {
    let bytes = |(order, count): (usize, &u64)| count.saturating_mul(UNIT << order);
    blocks.iter().enumerate().map(bytes).fold(0, u64::saturating_add)
}

/// For what room is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// Taking something away.
    Removal,
    /// Changing what is there, which then takes no more than before, or hardly.
    Overwrite,
    /// Making something new.
    Addition,
    /// That, right after a look: unless there is room for many such, each would need a look of its own.
    LateAddition,
}

impl Purpose {
    /// The same right after a look.
    pub(crate) fn late(self) -> Self {
        if self == Self::Addition { Self::LateAddition } else { self }
    }
}

/// What is known of the index's file since it was last looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ground {
    /// Free pages of each region.
    pub(crate) free: Vec<Region>,
    pub(crate) shape: Outline,
    /// Length of the engine's part, in bytes.
    pub(crate) length: u64,
}

/// A ground with what is kept free in it.
struct Known {
    ground: Ground,
    /// Pages of each region that were free then and were not written since, by order.
    free: Vec<Blocks>,
    /// Pages that led to the leaves when the tree was as deep as it says.
    branches: u64,
    /// The book, which is written when the engine closes.
    book: Blocks,
    /// That, and one removal with all that it may let go.
    removal: Blocks,
    /// That, and some overwriting.
    overwrites: Blocks,
    /// That, and a part of the file.
    late: Blocks,
    /// Was anything written since?
    touched: bool,
}

impl Known {
    fn of(mut ground: Ground) -> Self {
        // A split puts at most half of a leaf and one pair more into one page.
        ground.shape.orders.iter_mut().filter(|order| **order > 0).for_each(|order| *order += 1);
        for order in (1..ground.shape.joint.len() - 1).rev() {
            ground.shape.joint[order + 1] += std::mem::take(&mut ground.shape.joint[order]);
        }
        let shape = &ground.shape;
        let mut book = book_blocks(ground.length);
        book[SYSTEM_ORDER] += SYSTEM;
        let mut each = Load::default();
        (1..TAGS).for_each(|tag| each.add_many(tag, 2, 0));
        let mut removal = sum(&book, &demand(&each, shape));
        removal[SYSTEM_ORDER] += shape.units / LISTED;
        let mut overwrites = sum(&removal, &demand(&Load::scope(), shape));
        let order = usize::from(shape.orders.iter().copied().max().unwrap_or(0));
        overwrites[order] += (shape.units / OVERWRITES) >> order;
        overwrites[0] += 16;
        let mut late = overwrites;
        late[0] += ground.length / UNIT / LATE;
        let free = ground.free.iter().map(Region::blocks).collect();
        let branches = shape.branches.max(1);
        Self { ground, free, branches, book, removal, overwrites, late, touched: false }
    }

    fn kept(&self, purpose: Purpose) -> &Blocks {
        match purpose {
            Purpose::Removal => &self.book,
            Purpose::Overwrite => &self.removal,
            Purpose::Addition => &self.overwrites,
            Purpose::LateAddition => &self.late,
        }
    }
}

/// What is known and what is under way.
#[derive(Default)]
struct State {
    known: Option<Known>,
    /// Operations that were let in and did not end.
    under_way: Load,
    /// The group that is being committed.
    committing: Load,
}

impl State {
    /// `before`: of the open group, and under way.
    fn fits(&self, known: &Known, load: &Load, purpose: Purpose, before: &Load) -> bool {
        let wanted = self.wanted(known, load, purpose, before);
        known.free.iter().any(|free| fits(free, &wanted))
    }

    /// The pages that have to be free in one region.
    fn wanted(&self, known: &Known, load: &Load, purpose: Purpose, before: &Load) -> Blocks {
        let shape = &known.ground.shape;
        let mut load = *load;
        if purpose == Purpose::Removal {
            // It touches no more leaves than there are.
            let there = 2 * (shape.units + before.total()) + 2;
            load.leaves.iter_mut().for_each(|leaves| *leaves = (*leaves).min(there));
        }
        let mut open = before.join(&load);
        // The shape does not know yet how long the values are that are being committed.
        for (mine, theirs) in open.longest.iter_mut().zip(&self.committing.longest) {
            *mine = (*mine).max(*theirs);
        }
        let open = demand(&open, shape);
        sum(&sum(&open, &demand(&self.committing, shape)), known.kept(purpose))
    }
}

/// The account of the index's room.
#[derive(Default)]
pub(crate) struct Room(Mutex<State>);

/// An operation's part of the room; it is in the open group, or given up, when this is dropped.
pub(crate) struct Admitted<'a> {
    room: &'a Room,
    load: Load,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.room.0.lock().under_way.part(&self.load);
    }
}

impl Room {
    /// `None`: nothing bounds it, or nobody knows.
    pub(crate) fn new(ground: Option<Ground>) -> Self {
        Self(Mutex::new(State { known: ground.map(Known::of), ..State::default() }))
    }

    /// The file was looked at.
    pub(crate) fn set(&self, ground: Ground) {
        let known = Known::of(ground);
        self.0.lock().known = Some(known);
    }

    /// Lets an operation in if its changes fit, beside the open group's, as `open` tells them.
    pub(crate) fn admit(
        &self,
        load: Load,
        purpose: Purpose,
        open: impl FnOnce() -> Load,
    ) -> Option<Admitted<'_>> {
        // Whoever comes after this counts it; who came before and ends meanwhile counts twice, not never.
        let before = {
            let mut state = self.0.lock();
            let before = state.under_way;
            state.under_way = before.join(&load);
            before
        };
        let admitted = Admitted { room: self, load };
        // Not under the lock: who reads the group may wait for the engine, and that for the lock. A group that is closed
        // after this is the committing one below.
        let before = before.join(&open());
        let fits = {
            let state = self.0.lock();
            state.known.as_ref().is_none_or(|known| state.fits(known, &load, purpose, &before))
        };
        fits.then_some(admitted)
    }

    /// Would it be let in on such a ground, with an eighth of it to spare?
    pub(crate) fn suffices(&self, ground: &Ground, load: &Load, purpose: Purpose, open: &Load) -> bool {
        let known = Known::of(ground.clone());
        let free = known.free.iter().map(bytes_of).fold(0, u64::saturating_add);
        let state = self.0.lock();
        free >= ground.length / 8 && state.fits(&known, load, purpose, &open.join(&state.under_way))
    }

    /// Could it be let in if the file were as long as it may be? What wants more than a whole region never finds that.
    pub(crate) fn is_possible(&self, load: &Load, purpose: Purpose, open: &Load) -> bool {
        let state = self.0.lock();
        state.known.as_ref().is_none_or(|known| {
            let wanted = state.wanted(known, load, purpose, &open.join(&state.under_way));
            bytes_of(&wanted) <= REGION_PAGES * UNIT
        })
    }

    /// Does the open group count for so much that it is to be committed before the file is made longer for it?
    pub(crate) fn is_large(&self, open: Load) -> bool {
        let state = self.0.lock();
        let large = |known: &Known| {
            let limit = (known.ground.length / 8).max(LARGE_GROUP);
            bytes_of(&demand(&open, &known.ground.shape)) > limit
        };
        state.known.as_ref().is_some_and(large)
    }

    /// By how many bytes the file would have to be longer, to be on the safe side.
    pub(crate) fn wanted_bytes(&self, load: Load, open: Load) -> u64 {
        let state = self.0.lock();
        let Some(known) = &state.known else { return 0 };
        let all = state.under_way.join(&load).join(&open);
        let blocks = sum(&demand(&all, &known.ground.shape), &known.late);
        bytes_of(&blocks)
    }

    /// Was anything written since the file was looked at? Then a look may find more.
    pub(crate) fn is_touched(&self) -> bool {
        self.0.lock().known.as_ref().is_some_and(|known| known.touched)
    }

    /// Is a group being committed that changes something?
    pub(crate) fn is_committing(&self) -> bool {
        self.0.lock().committing.total() > 0
    }

    /// A group is being committed.
    pub(crate) fn commits(&self, load: Load) {
        self.0.lock().committing = load;
    }

    /// It was committed: these pages were written meanwhile, by their places and lengths in bytes.
    pub(crate) fn committed(&self, written: &[(u64, u64)]) {
        let mut state = self.0.lock();
        let load = std::mem::take(&mut state.committing);
        let Some(known) = &mut state.known else { return };
        let shape = &mut known.ground.shape;
        let order_of = |length: u64| (length / UNIT).trailing_zeros().min(ORDERS - 1);
        if cfg!(debug_assertions) && !written.is_empty() {
            let granted = demand(&load, shape);
            let mut all = [0; ORDERS as usize];
            written.iter().for_each(|(_, length)| all[order_of(*length) as usize] += 1);
            assert!(fits(&granted, &all), "wrote {all:?}, counted {granted:?} for {load:?}, {shape:?}");
        }
        for (place, length) in written {
            known.touched = true;
            let unit = place / UNIT - 1;
            let region = (unit / REGION_PAGES) as usize;
            if let (Some(free), Some(blocks)) =
                (known.ground.free.get_mut(region), known.free.get_mut(region))
            {
                free.occupy(unit % REGION_PAGES, order_of(*length), blocks);
            }
        }
        for (known, new) in shape.orders.iter_mut().zip(written_orders(&load)) {
            *known = (*known).max(new);
        }
        // Branches that came with it, and at last a level more of them.
        shape.branches += load.total() / 16 + u64::from(load.total() > 0);
        if shape.branches > FANOUT_MIN * known.branches {
            known.branches = shape.branches;
            shape.depth += 1;
        }
    }
}

/// The orders of leaves that a committed group may have left behind.
fn written_orders(load: &Load) -> [u8; TAGS] {
    std::array::from_fn(|tag| match load.leaves[tag] {
        0 => 0,
        _ => leaf_order(0, load.longest[tag]) as u8,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(pages: u32) -> Room {
        let length = (u64::from(pages) + 1) * UNIT;
        let shape = Outline { branches: 1000, depth: 2, units: 100, ..Outline::default() };
        Room::new(Some(Ground { free: vec![Region::all_free(pages)], shape, length }))
    }

    /// How many such changes are let in while none of them ends.
    fn count(room: &Room, purpose: Purpose) -> usize {
        let load = Load::default().and(Tag::Object, 2, 48);
        let admitted = || room.admit(load, purpose, Load::default);
        std::iter::from_fn(admitted).collect::<Vec<_>>().len()
    }

    #[test]
    fn larger_pages_are_split_and_smaller_ones_not_joined() {
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
        let room = room(2000);
        let counts =
            [Purpose::Addition, Purpose::Overwrite, Purpose::Removal].map(|purpose| count(&room, purpose));
        assert!(0 < counts[0] && counts[0] < counts[1] && counts[1] < counts[2], "{counts:?}");
        // What ended without a change counts no more.
        assert_eq!(count(&room, Purpose::Addition), counts[0]);
    }

    #[test]
    fn what_is_written_is_taken_once_and_only_from_what_was_free() {
        let room = room(2000);
        let before = count(&room, Purpose::Addition);
        room.commits(Load::default().and(Tag::Object, 40, 48));
        assert!(count(&room, Purpose::Addition) < before, "a group that is being committed counts");
        let written: Vec<(u64, u64)> = (1..=20).map(|page| (page * UNIT, UNIT)).collect();
        room.committed(&written);
        let after = count(&room, Purpose::Addition);
        assert!(after < before);
        // What it let go of it writes again.
        room.commits(Load::default().and(Tag::Object, 40, 48));
        room.committed(&written);
        assert!(count(&room, Purpose::Addition).abs_diff(after) <= 1, "the same pages");
        assert!(room.is_touched());
    }

    #[test]
    fn what_no_region_can_hold_is_known_before_the_file_is_made_longer_for_it() {
        let room = room(2000);
        let possible = |bytes| {
            room.is_possible(&Load::bytes(bytes, 0), Purpose::Addition, &Load::default())
                && room.is_possible(&Load::bytes(bytes, 0), Purpose::Removal, &Load::default())
        };
        assert!(possible(1 << 30) && possible(100 << 30));
        assert!(!possible(1 << 38));
        assert!(!possible(1 << 49));
    }

    #[test]
    fn nothing_bounds_what_nobody_knows() {
        let room = Room::new(None);
        let load = Load::default().and(Tag::Chunk, 1 << 40, 3600);
        assert!(room.admit(load, Purpose::Addition, Load::default).is_some());
    }
}
