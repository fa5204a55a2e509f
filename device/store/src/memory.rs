//! A store in memory: for tests and experiments, and as the oracle that the disk store is compared
//! with.
//!
//! Does: implements the whole contract, block for block as the disk store (holes, space, refusals).
//! Does not: survive the process. `flush` only returns.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound::{Included, Unbounded};
use std::ops::RangeBounds;
use std::sync::Arc;

use parking_lot::Mutex;
use sealstone_digest::Profile;
use sealstone_osd::{ObjectId, ObjectType};

use crate::compare::ObjectComparer;
use crate::store::{attribute_budget, check_transfer, end_of, push_extent};
use crate::{
    AttributeId, BLOCK, ExtentKind, GroupScope, MAP_PIECES_MAX, MAX_EXTENTS, MAX_LIST, MAX_MEMBERSHIPS,
    Memberships, ObjectComparison, ObjectExtent, ObjectStat, ObjectStore, PIECE, Space, StoreError,
};

mod digests;
mod examine;

/// Members of collections, in both directions, with the slots.
#[derive(Clone, Default)]
struct MembershipTable {
    members: BTreeMap<ObjectId, BTreeMap<u64, u32>>,
    memberships: BTreeMap<ObjectId, BTreeMap<u64, u32>>,
}

/// One block's bytes; objects that share it hold one reference each.
type Block = Arc<[u8]>;

/// A store in memory.
pub struct MemoryStore {
    inner: Mutex<MemoryInner>,
}

struct MemoryInner {
    objects: BTreeMap<ObjectId, MemoryObject>,
    ties: MembershipTable,
    /// Partitions whose digest profile is not the default.
    profiles: BTreeMap<u64, Option<Profile>>,
    used_blocks: u64,
    capacity_blocks: u64,
    /// Changes of all objects.
    changes: u64,
}

struct MemoryObject {
    kind: ObjectType,
    length: u64,
    blocks: BTreeMap<u64, Block>,
    attributes: BTreeMap<AttributeId, Vec<u8>>,
    attribute_weight: u64,
}

impl MemoryStore {
    /// Creates an empty store of `capacity` bytes, rounded down to whole blocks.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        let capacity_blocks = capacity / BLOCK;
        Self {
            inner: Mutex::new(MemoryInner {
                objects: BTreeMap::new(),
                ties: MembershipTable::default(),
                profiles: BTreeMap::new(),
                used_blocks: 0,
                capacity_blocks,
                changes: 0,
            }),
        }
    }

    /// Runs `change` on one object and updates the used space. The change keeps shared blocks
    /// shared, so the difference in the object's own blocks is that of the whole store.
    fn change<T>(
        &self,
        id: ObjectId,
        change: impl FnOnce(&mut MemoryObject, u64) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut inner = self.inner.lock();
        inner.changes += 1;
        let free = inner.capacity_blocks - inner.used_blocks;
        let object = inner.objects.get_mut(&id).ok_or(StoreError::NotFound(id))?;
        let before = object.own(..);
        let result = change(object, free);
        let after = object.own(..);
        inner.used_blocks = inner.used_blocks + after - before;
        result
    }

    fn with_object<T>(&self, id: ObjectId, read: impl FnOnce(&MemoryObject) -> T) -> Result<T, StoreError> {
        self.inner.lock().objects.get(&id).map(read).ok_or(StoreError::NotFound(id))
    }
}

impl Clone for MemoryStore {
    /// Returns an independent store: blocks shared in this one are shared in the copy, but none
    /// between the two.
    fn clone(&self) -> Self {
        let inner = self.inner.lock();
        let mut copies: HashMap<*const u8, Block> = HashMap::new();
        let mut copy = |block: &Block| -> Block {
            copies.entry(block.as_ptr()).or_insert_with(|| Arc::from(&block[..])).clone()
        };
        let objects = inner.objects.iter().map(|(id, object)| {
            let blocks = object.blocks.iter().map(|(at, block)| (*at, copy(block))).collect();
            (*id, MemoryObject { blocks, attributes: object.attributes.clone(), ..*object })
        });
        let objects = objects.collect();
        let (used_blocks, capacity_blocks) = (inner.used_blocks, inner.capacity_blocks);
        let (ties, profiles) = (inner.ties.clone(), inner.profiles.clone());
        drop(copies);
        let changes = inner.changes;
        let copy = MemoryInner { objects, ties, profiles, used_blocks, capacity_blocks, changes };
        Self { inner: Mutex::new(copy) }
    }
}

/// Whether no other object has the block.
fn is_own(block: &Block) -> bool {
    Arc::strong_count(block) == 1
}

impl MemoryObject {
    /// Returns how many blocks of a range this object has alone.
    fn own(&self, range: impl RangeBounds<u64>) -> u64 {
        self.blocks.range(range).filter(|(_, block)| is_own(block)).count() as u64
    }

    /// Returns the bytes of a block for writing, after copying the block if it is shared.
    fn bytes(&mut self, block: u64) -> &mut [u8] {
        Arc::make_mut(self.blocks.entry(block).or_insert_with(empty_block))
    }

    /// Returns how many blocks `zero` allocates: shared blocks that it writes partially.
    fn zero_growth(&self, offset: u64, end: u64) -> u64 {
        let edges = [offset, end].into_iter().filter(|at| at % BLOCK != 0 && offset < end);
        let blocks: BTreeSet<u64> = edges.map(|at| at / BLOCK).collect();
        let shared = |block: &u64| self.blocks.get(block).is_some_and(|block| !is_own(block));
        blocks.iter().filter(|block| shared(block)).count() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        let length = self.length.saturating_sub(offset).min(into.len() as u64) as usize;
        for piece in pieces(offset, length as u64) {
            let target = &mut into[(piece.start - offset) as usize..][..piece.length];
            match self.blocks.get(&piece.block) {
                Some(block) => target.copy_from_slice(&block[piece.within..][..piece.length]),
                None => target.fill(0),
            }
        }
        length
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        for piece in pieces(offset, data.len() as u64) {
            self.bytes(piece.block)[piece.within..][..piece.length]
                .copy_from_slice(&data[(piece.start - offset) as usize..][..piece.length]);
        }
        self.length = self.length.max(offset + data.len() as u64);
    }

    /// Zeroes a range; whole blocks become holes. Does not change the length.
    fn zero(&mut self, offset: u64, end: u64) {
        let whole = offset.div_ceil(BLOCK)..end / BLOCK;
        if whole.start < whole.end {
            let mut tail = self.blocks.split_off(&whole.start);
            self.blocks.append(&mut tail.split_off(&whole.end));
        }
        let edges =
            [(offset, end.min(offset.next_multiple_of(BLOCK))), (offset.max(end / BLOCK * BLOCK), end)];
        for (from, to) in edges {
            if from < to && self.blocks.contains_key(&(from / BLOCK)) {
                self.bytes(from / BLOCK)[(from % BLOCK) as usize..][..(to - from) as usize].fill(0);
            }
        }
    }

    fn resize(&mut self, length: u64, free: u64) -> Result<(), StoreError> {
        if length < self.length {
            let end = self.length.next_multiple_of(BLOCK);
            if self.zero_growth(length, end) > free {
                return Err(StoreError::NoSpace);
            }
            self.zero(length, end);
        }
        self.length = length;
        Ok(())
    }

    /// Returns the blocks from that of `offset` on, after removing `gap` bytes at `offset`. Whole
    /// blocks only move.
    fn punched(&self, offset: u64, gap: u64) -> BTreeMap<u64, Block> {
        if offset.is_multiple_of(BLOCK) && gap.is_multiple_of(BLOCK) {
            let moved = self.blocks.range((offset + gap) / BLOCK..);
            return moved.map(|(at, block)| (at - gap / BLOCK, block.clone())).collect();
        }
        let mut blocks: BTreeMap<u64, Block> = BTreeMap::new();
        let mut put = |position: u64, bytes: &[u8]| {
            for piece in pieces(position, bytes.len() as u64) {
                let block = blocks.entry(piece.block).or_insert_with(empty_block);
                Arc::make_mut(block)[piece.within..][..piece.length]
                    .copy_from_slice(&bytes[(piece.start - position) as usize..][..piece.length]);
            }
        };
        for (&index, block) in self.blocks.range(offset / BLOCK..) {
            let start = index * BLOCK;
            let end = (start + BLOCK).min(self.length);
            if start < offset {
                put(start, &block[..(offset.min(end) - start) as usize]);
            }
            let from = start.max(offset + gap);
            if from < end {
                put(from - gap, &block[(from - start) as usize..(end - start) as usize]);
            }
        }
        blocks
    }
}

impl ObjectStore for MemoryStore {
    fn begin(&self) -> GroupScope<'_> {
        GroupScope::none()
    }

    fn create(&self, id: ObjectId, kind: ObjectType) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        if inner.objects.contains_key(&id) {
            return Err(StoreError::Exists(id));
        }
        inner.changes += 1;
        let (blocks, attributes) = (BTreeMap::new(), BTreeMap::new());
        if kind == ObjectType::Collection {
            inner.ties.members.insert(id, BTreeMap::new());
        }
        inner.objects.insert(id, MemoryObject { kind, length: 0, blocks, attributes, attribute_weight: 0 });
        Ok(())
    }

    fn remove(&self, id: ObjectId) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        if inner.ties.members.get(&id).is_some_and(|members| !members.is_empty()) {
            return Err(StoreError::HasMembers(id));
        }
        inner.changes += 1;
        let object = inner.objects.remove(&id).ok_or(StoreError::NotFound(id))?;
        inner.ties.members.remove(&id);
        if id.object == 0 {
            inner.profiles.remove(&id.partition);
        }
        for collection in inner.ties.memberships.remove(&id).unwrap_or_default().into_keys() {
            let collection = ObjectId::new(id.partition, collection);
            inner.ties.members.entry(collection).or_default().remove(&id.object);
        }
        inner.used_blocks -= object.own(..);
        Ok(())
    }

    fn stat(&self, id: ObjectId) -> Result<ObjectStat, StoreError> {
        self.with_object(id, |object| ObjectStat {
            kind: object.kind,
            length: object.length,
            used_bytes: object.blocks.len() as u64 * BLOCK,
        })
    }

    fn read(&self, id: ObjectId, offset: u64, into: &mut [u8]) -> Result<usize, StoreError> {
        self.with_object(id, |object| object.read(offset, into))
    }

    fn write(&self, id: ObjectId, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        self.change(id, |object, free| {
            check_transfer(data.len())?;
            let end = end_of(offset, data.len() as u64)?;
            if data.is_empty() {
                return Ok(());
            }
            let touched = offset / BLOCK..end.div_ceil(BLOCK);
            if touched.end - touched.start - object.own(touched) > free {
                return Err(StoreError::NoSpace);
            }
            object.write(offset, data);
            Ok(())
        })
    }

    fn resize(&self, id: ObjectId, length: u64) -> Result<(), StoreError> {
        self.change(id, |object, free| object.resize(end_of(length, 0)?, free))
    }

    fn clear(&self, id: ObjectId, offset: u64, length: u64) -> Result<(), StoreError> {
        self.change(id, |object, free| {
            let end = end_of(offset, length)?;
            if length > 0 {
                // The last block may be a partial one: bytes past the end of the object must be
                // zero.
                let zero_to = if end >= object.length { end.next_multiple_of(BLOCK) } else { end };
                if object.zero_growth(offset, zero_to) > free {
                    return Err(StoreError::NoSpace);
                }
                object.zero(offset, zero_to);
                object.length = object.length.max(end);
            }
            Ok(())
        })
    }

    fn punch(&self, id: ObjectId, offset: u64, length: u64) -> Result<(), StoreError> {
        self.change(id, |object, free| {
            if offset >= object.length || length == 0 {
                return Ok(());
            }
            let gap = length.min(object.length - offset);
            if offset + gap == object.length {
                return object.resize(offset, free);
            }
            let aligned = offset.is_multiple_of(BLOCK) && gap.is_multiple_of(BLOCK);
            let own = object.own(offset / BLOCK..);
            let moved = object.punched(offset, gap);
            if !aligned && (moved.len() as u64).saturating_sub(own) > free {
                return Err(StoreError::NoSpace);
            }
            object.blocks.split_off(&(offset / BLOCK));
            object.blocks.extend(moved);
            object.length -= gap;
            Ok(())
        })
    }

    fn share(&self, from: ObjectId, to: ObjectId) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        inner.changes += 1;
        let source = inner.objects.get(&from).ok_or(StoreError::NotFound(from))?;
        let (blocks, length) = (source.blocks.clone(), source.length);
        let target = inner.objects.get_mut(&to).ok_or(StoreError::NotFound(to))?;
        // Blocks that only the target had, not those that it shared with the source.
        let before = std::mem::replace(&mut target.blocks, blocks);
        target.length = length;
        inner.used_blocks -= before.values().filter(|block| is_own(block)).count() as u64;
        Ok(())
    }

    fn map(&self, id: ObjectId, offset: u64, max: usize) -> Result<Vec<ObjectExtent>, StoreError> {
        self.with_object(id, |object| {
            let mut map = Vec::new();
            let mut at = offset;
            let mut stop = object.length;
            let (mut pieces, mut last) = (0, None);
            for (index, block) in object.blocks.range(offset / BLOCK..) {
                let (start, end) = ((index * BLOCK).max(at), ((index + 1) * BLOCK).min(object.length));
                if start < end {
                    let piece = index * BLOCK / PIECE;
                    if last.replace(piece) != Some(piece) {
                        if pieces == MAP_PIECES_MAX {
                            break;
                        }
                        pieces += 1;
                    }
                    // The last permitted piece ends the range.
                    stop = if pieces == MAP_PIECES_MAX { (piece + 1) * PIECE } else { object.length };
                    push_extent(&mut map, at, start, ExtentKind::Hole);
                    push_extent(&mut map, start, end, ExtentKind::Data { shared: !is_own(block) });
                    at = end;
                }
            }
            push_extent(&mut map, at, stop.min(object.length), ExtentKind::Hole);
            map.truncate(max.min(MAX_EXTENTS));
            map
        })
    }

    fn compare(
        &self,
        id: ObjectId,
        other: ObjectId,
        offset: u64,
        max: usize,
    ) -> Result<ObjectComparison, StoreError> {
        let inner = self.inner.lock();
        let object = |id| inner.objects.get(&id).ok_or(StoreError::NotFound(id));
        let (one, two) = (object(id)?, object(other)?);
        let blocks: BTreeSet<u64> = one
            .blocks
            .range(offset / BLOCK..)
            .chain(two.blocks.range(offset / BLOCK..))
            .map(|(at, _)| *at)
            .collect();
        let mut found = ObjectComparer::new(offset, one.length, two.length, max);
        for at in blocks {
            let (mine, theirs) = (one.blocks.get(&at), two.blocks.get(&at));
            let same = mine.zip(theirs).is_some_and(|(mine, theirs)| Arc::ptr_eq(mine, theirs));
            let kind = mine.map(|block| ExtentKind::Data { shared: !is_own(block) });
            if !found.block(at, kind, same) {
                break;
            }
        }
        Ok(found.end())
    }

    fn attribute(&self, id: ObjectId, attribute: AttributeId) -> Result<Option<Vec<u8>>, StoreError> {
        self.with_object(id, |object| object.attributes.get(&attribute).cloned())
    }

    fn set_attribute(&self, id: ObjectId, attribute: AttributeId, value: &[u8]) -> Result<(), StoreError> {
        self.change(id, |object, _| {
            let old = object.attributes.get(&attribute).map_or(0, Vec::len);
            object.attribute_weight = attribute_budget(object.attribute_weight, old, value.len())?;
            if value.is_empty() {
                object.attributes.remove(&attribute);
            } else {
                object.attributes.insert(attribute, value.to_vec());
            }
            Ok(())
        })
    }

    fn change_count(&self, _: ObjectId) -> u64 {
        self.inner.lock().changes
    }

    fn attributes(&self, id: ObjectId, page: Option<u32>) -> Result<Vec<(AttributeId, Vec<u8>)>, StoreError> {
        let (first, last) = page.map_or((0, u32::MAX), |page| (page, page));
        let range = AttributeId { page: first, number: 0 }..=AttributeId { page: last, number: u32::MAX };
        self.with_object(id, |object| {
            object.attributes.range(range).map(|(id, value)| (*id, value.clone())).collect()
        })
    }

    fn list(&self, from: ObjectId, max: usize) -> Result<Vec<(ObjectId, ObjectType)>, StoreError> {
        let inner = self.inner.lock();
        let found = inner.objects.range((Included(from), Unbounded));
        Ok(found.take(max.min(MAX_LIST)).map(|(id, object)| (*id, object.kind)).collect())
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn space(&self) -> Space {
        let inner = self.inner.lock();
        Space {
            total: inner.capacity_blocks * BLOCK,
            used: inner.used_blocks * BLOCK,
            available: inner.capacity_blocks.saturating_sub(inner.used_blocks) * BLOCK,
            objects: inner.objects.len() as u64,
            shared: None,
        }
    }
}

impl MemoryInner {
    fn members(&self, collection: ObjectId) -> Result<&BTreeMap<u64, u32>, StoreError> {
        self.ties.members.get(&collection).ok_or(StoreError::NotFound(collection))
    }
}

impl Memberships for MemoryStore {
    fn join(&self, collection: ObjectId, member: u64, slot: u32) -> Result<bool, StoreError> {
        let mut inner = self.inner.lock();
        let object = ObjectId::new(collection.partition, member);
        let is_member = inner.members(collection)?.contains_key(&member);
        if inner.objects.get(&object).is_none_or(|found| found.kind != ObjectType::User) {
            return Err(StoreError::NotFound(object));
        }
        if is_member {
            return Ok(false);
        }
        let memberships = inner.ties.memberships.entry(object).or_default();
        if memberships.len() >= MAX_MEMBERSHIPS {
            let limit = MAX_MEMBERSHIPS as u64;
            return Err(StoreError::TooLarge { what: "collections of one object", limit });
        }
        memberships.insert(collection.object, slot);
        inner.ties.members.entry(collection).or_default().insert(member, slot);
        Ok(true)
    }

    fn leave(&self, collection: ObjectId, member: u64) -> Result<Option<u32>, StoreError> {
        let mut inner = self.inner.lock();
        inner.members(collection)?;
        let slot = inner.ties.members.entry(collection).or_default().remove(&member);
        let object = ObjectId::new(collection.partition, member);
        if let Some(memberships) = inner.ties.memberships.get_mut(&object) {
            memberships.remove(&collection.object);
        }
        Ok(slot)
    }

    fn membership(&self, collection: ObjectId, member: u64) -> Result<Option<u32>, StoreError> {
        let inner = self.inner.lock();
        Ok(inner.ties.members.get(&collection).and_then(|members| members.get(&member).copied()))
    }

    fn members(&self, collection: ObjectId, from: u64, max: usize) -> Result<Vec<(u64, u32)>, StoreError> {
        let inner = self.inner.lock();
        let found = inner.members(collection)?.range(from..).take(max.min(MAX_LIST));
        Ok(found.map(|(&member, &slot)| (member, slot)).collect())
    }

    fn member_count(&self, collection: ObjectId) -> Result<u64, StoreError> {
        Ok(self.inner.lock().members(collection)?.len() as u64)
    }

    fn memberships(&self, member: ObjectId) -> Result<Vec<(u64, u32)>, StoreError> {
        let inner = self.inner.lock();
        inner.objects.get(&member).ok_or(StoreError::NotFound(member))?;
        let found = inner.ties.memberships.get(&member).into_iter().flatten();
        Ok(found.map(|(&collection, &slot)| (collection, slot)).collect())
    }

    fn collections(&self, from: ObjectId, max: usize) -> Result<Vec<ObjectId>, StoreError> {
        let inner = self.inner.lock();
        Ok(inner.ties.members.range(from..).take(max.min(MAX_LIST)).map(|(&id, _)| id).collect())
    }
}

fn empty_block() -> Block {
    vec![0; BLOCK as usize].into()
}

/// The part of a byte range that lies in one block.
struct BlockPiece {
    block: u64,
    start: u64,
    within: usize,
    length: usize,
}

/// Splits a byte range at block boundaries.
fn pieces(offset: u64, length: u64) -> impl Iterator<Item = BlockPiece> {
    let end = offset + length;
    let mut start = offset;
    std::iter::from_fn(move || {
        if start >= end {
            return None;
        }
        let block = start / BLOCK;
        let stop = end.min((block + 1) * BLOCK);
        let piece =
            BlockPiece { block, start, within: (start % BLOCK) as usize, length: (stop - start) as usize };
        start = stop;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_keeps_the_contract() {
        crate::contract::contract(MemoryStore::new);
    }
}
