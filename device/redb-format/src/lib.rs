//! The file format of the redb engine: reads and verifies such a file without the engine.
//!
//! Does: parses the header, the commit slots and the nodes of redb's trees; compares each page with
//! the checksum in its parent (XXH3-128); repairs a page with one wrong bit; after an unclean
//! shutdown, builds the engine's allocator state; builds headers and pages, which the caller
//! writes.
//! Does not: write; trust an unchecked byte; read other tables than one with keys of 25 bytes and
//! values of any length.
//! Contract: no input makes it panic, loop, or allocate more than the file's length.
//! Source of truth: redb's docs/design.md, "File format" (version 3); docs/design/store.md, "The
//! engine's file".

mod allocator_state;
mod header;
mod tree_cursor;
mod tree_outline;
mod tree_reader;

pub use allocator_state::{
    AllocatorState, MAX_LENGTH, ORDERS, PagesByOrder, RecordedPages, RegionPages, allocator_state_pages,
    order_of,
};
pub use header::{CommitSlot, EngineHeader, HEADER_BYTES};
pub use tree_cursor::{CursorStep, LostKeys, TreeCursor};
pub use tree_outline::TreeOutline;
pub use tree_reader::{PageSource, TreeReader};

use twox_hash::XxHash3_128;

/// The engine's page in bytes; larger pages are powers of two of it.
pub const UNIT: u64 = 4096;
/// A key of the table of records.
pub type TableKey = [u8; 25];
/// Pages of one region; the engine's constant for pages of 4 KiB.
pub const REGION_PAGES: u64 = 1 << 20;
/// Largest page: a region.
const ORDER_MAX: u64 = 20;
/// Longest page in which a wrong bit is searched for: the search costs 8 hashes per byte.
const REPAIRABLE: u64 = 2 * UNIT;

fn sum_of(bytes: &[u8]) -> u128 {
    XxHash3_128::oneshot(bytes)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// A page by its number, and its expected checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageRef {
    number: u64,
    sum: u128,
}

impl PageRef {
    /// Parses the form in a slot or a table's definition: number (8), checksum (16).
    fn parse(bytes: &[u8], at: usize) -> Option<Self> {
        let (page, sum) = (number(bytes, at)?, number(bytes, at + 8)?);
        Some(Self { number: u64::from_le_bytes(page), sum: u128::from_le_bytes(sum) })
    }

    /// Returns offset and length in the file. Unused bits are ignored, as the engine does.
    fn location(self) -> Option<(u64, u64)> {
        let order = self.number >> 59;
        if order > ORDER_MAX {
            return None;
        }
        let index = self.number & (0xF_FFFF >> order);
        let region = self.number >> 20 & 0xF_FFFF;
        let length = UNIT << order;
        Some((UNIT + region * REGION_PAGES * UNIT + index * length, length))
    }
}

/// Widths of a tree's keys and values in bytes; `None` is variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeShape {
    key: Option<u32>,
    value: Option<u32>,
}

impl TreeShape {
    /// Trees of tables: names to definitions.
    const TABLES: Self = Self { key: None, value: None };
    /// Our own table.
    const RECORDS: Self = Self { key: Some(size_of::<TableKey>() as u32), value: None };
}

/// A verified page of a tree.
#[derive(Debug)]
pub struct TreeNode {
    bytes: Box<[u8]>,
    leaf: bool,
    /// Number of entries of a leaf, or of keys of a branch, which has one child more.
    count: usize,
    /// Where the offset tables end and the keys begin.
    keys: usize,
    shape: TreeShape,
}

impl TreeNode {
    /// Returns the length of a page's contents, by its own fields; the bytes behind are not covered
    /// by its checksum.
    fn extent(bytes: &[u8], shape: TreeShape) -> Option<(bool, usize, usize, usize)> {
        let count = usize::from(u16::from_le_bytes(number(bytes, 2)?));
        let last = count.checked_sub(1)?;
        let end_at = |table: usize| Some(u32::from_le_bytes(number(bytes, table + 4 * last)?) as usize);
        let tables = |fixed: Option<u32>| if fixed.is_none() { 4 * count } else { 0 };
        let (leaf, keys, end) = match bytes[0] {
            1 => {
                let keys = 4 + tables(shape.key) + tables(shape.value);
                let end = match (shape.key, shape.value) {
                    (Some(key), Some(value)) => keys + (key as usize + value as usize).checked_mul(count)?,
                    (_, None) => end_at(4 + tables(shape.key))?,
                    (None, Some(value)) => end_at(4)?.checked_add((value as usize).checked_mul(count)?)?,
                };
                (true, keys, end)
            }
            2 => {
                let keys = 8 + 24 * (count + 1) + tables(shape.key);
                let end = match shape.key {
                    Some(key) => keys + (key as usize).checked_mul(count)?,
                    None => end_at(keys - 4 * count)?,
                };
                (false, keys, end)
            }
            _ => return None,
        };
        (keys <= end && end <= bytes.len()).then_some((leaf, count, keys, end))
    }

    /// Whether this page's contents have the checksum.
    fn is_sound(bytes: &[u8], shape: TreeShape, sum: u128) -> bool {
        Self::extent(bytes, shape).is_some_and(|(_, _, _, end)| sum_of(&bytes[..end]) == sum)
    }

    /// Searches for a single wrong bit and corrects it. With a checksum of 128 bits a match is the
    /// right one.
    fn repair(bytes: &mut [u8], shape: TreeShape, sum: u128) -> bool {
        if bytes.len() as u64 > REPAIRABLE {
            return false;
        }
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            if Self::is_sound(bytes, shape, sum) {
                return true;
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        false
    }

    /// Parses a page whose checksum was verified.
    fn parse(bytes: Box<[u8]>, shape: TreeShape) -> Option<Self> {
        let (leaf, count, keys, _) = Self::extent(&bytes, shape)?;
        let node = Self { bytes, leaf, count, keys, shape };
        let all = (0..count).all(|at| node.key(at).is_some() && (!leaf || node.value(at).is_some()));
        (all && (leaf || node.child(count).is_some())).then_some(node)
    }

    fn offset(&self, table: usize, at: usize) -> Option<usize> {
        Some(u32::from_le_bytes(number(&self.bytes, table + 4 * at)?) as usize)
    }

    fn key_end(&self, at: usize) -> Option<usize> {
        match self.shape.key {
            Some(width) => Some(self.keys + width as usize * (at + 1)),
            None if self.leaf => self.offset(4, at),
            None => self.offset(8 + 24 * (self.count + 1), at),
        }
    }

    /// Returns the key of an entry, or the greatest key that the child of this number may hold.
    fn key(&self, at: usize) -> Option<&[u8]> {
        if at >= self.count {
            return None;
        }
        let start = if at == 0 { self.keys } else { self.key_end(at - 1)? };
        self.bytes.get(start..self.key_end(at)?)
    }

    fn value_end(&self, at: usize) -> Option<usize> {
        match self.shape.value {
            Some(width) => Some(self.key_end(self.count - 1)? + width as usize * (at + 1)),
            None => self.offset(4 + if self.shape.key.is_none() { 4 * self.count } else { 0 }, at),
        }
    }

    fn value(&self, at: usize) -> Option<&[u8]> {
        if at >= self.count {
            return None;
        }
        let start = if at == 0 { self.key_end(self.count - 1)? } else { self.value_end(at - 1)? };
        self.bytes.get(start..self.value_end(at)?)
    }

    fn child(&self, at: usize) -> Option<PageRef> {
        if self.leaf || at > self.count {
            return None;
        }
        let sum = u128::from_le_bytes(number(&self.bytes, 8 + 16 * at)?);
        let number = u64::from_le_bytes(number(&self.bytes, 8 + 16 * (self.count + 1) + 8 * at)?);
        Some(PageRef { number, sum })
    }

    /// Returns the first entry, or the first child that may hold one, whose key is not below `key`.
    fn position(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            if self.key(middle).is_some_and(|found| found < key) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// Parses a table's definition: its root, and the widths of its keys and values.
fn definition(bytes: &[u8]) -> Option<(Option<PageRef>, TreeShape)> {
    let width = |at: usize| -> Option<Option<u32>> {
        let width = u32::from_le_bytes(number(bytes, at + 1)?);
        Some((bytes.get(at)? != &0).then_some(width))
    };
    // Type 3: a table with one value per key, the only type we use.
    if bytes.first() != Some(&3) {
        return None;
    }
    let root = if bytes.get(9)? == &0 { None } else { Some(PageRef::parse(bytes, 10)?) };
    Some((root, TreeShape { key: width(42)?, value: width(47)? }))
}
