//! A store in memory: for tests, for trying things out, and as the oracle that the disk store is compared to.
//!
//! Does: everything the contract says, block for block as the disk store (holes, space, refusals).
//! Does not: survive the process. `flush` only returns.

use std::collections::BTreeMap;
use std::ops::Bound::{Included, Unbounded};

use parking_lot::Mutex;
use sealstone_osd::{ObjectId, ObjectType};

use crate::store::{attribute_budget, check_transfer, end_of};
use crate::{AttributeId, BLOCK, MAX_LIST, ObjectStore, Scope, Space, Stat, StoreError};

/// One block's bytes.
type Block = Box<[u8]>;

/// A store in memory.
pub struct MemoryStore {
    inner: Mutex<Inner>,
}

#[derive(Clone)]
struct Inner {
    objects: BTreeMap<ObjectId, Object>,
    used_blocks: u64,
    capacity_blocks: u64,
}

#[derive(Clone)]
struct Object {
    kind: ObjectType,
    length: u64,
    blocks: BTreeMap<u64, Block>,
    attributes: BTreeMap<AttributeId, Vec<u8>>,
    attribute_weight: u64,
}

impl MemoryStore {
    /// An empty store of `capacity` bytes, rounded down to whole blocks.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        let capacity_blocks = capacity / BLOCK;
        Self { inner: Mutex::new(Inner { objects: BTreeMap::new(), used_blocks: 0, capacity_blocks }) }
    }

    /// Runs `change` on one object and settles the space it took or gave back.
    fn change<T>(
        &self,
        id: ObjectId,
        change: impl FnOnce(&mut Object, u64) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut inner = self.inner.lock();
        let free = inner.capacity_blocks - inner.used_blocks;
        let object = inner.objects.get_mut(&id).ok_or(StoreError::NotFound(id))?;
        let before = object.blocks.len() as u64;
        let result = change(object, free);
        let after = object.blocks.len() as u64;
        inner.used_blocks = inner.used_blocks + after - before;
        result
    }

    fn look<T>(&self, id: ObjectId, look: impl FnOnce(&Object) -> T) -> Result<T, StoreError> {
        self.inner.lock().objects.get(&id).map(look).ok_or(StoreError::NotFound(id))
    }
}

impl Clone for MemoryStore {
    fn clone(&self) -> Self {
        Self { inner: Mutex::new(self.inner.lock().clone()) }
    }
}

impl Object {
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
            let block = self.blocks.entry(piece.block).or_insert_with(empty_block);
            block[piece.within..][..piece.length]
                .copy_from_slice(&data[(piece.start - offset) as usize..][..piece.length]);
        }
        self.length = self.length.max(offset + data.len() as u64);
    }

    /// Zeros; whole blocks become holes. Does not change the length.
    fn zero(&mut self, offset: u64, end: u64) {
        let whole = offset.div_ceil(BLOCK)..end / BLOCK;
        if whole.start < whole.end {
            let mut tail = self.blocks.split_off(&whole.start);
            self.blocks.append(&mut tail.split_off(&whole.end));
        }
        let edges =
            [(offset, end.min(offset.next_multiple_of(BLOCK))), (offset.max(end / BLOCK * BLOCK), end)];
        for (from, to) in edges {
            if from < to
                && let Some(block) = self.blocks.get_mut(&(from / BLOCK))
            {
                block[(from % BLOCK) as usize..][..(to - from) as usize].fill(0);
            }
        }
    }

    fn resize(&mut self, length: u64) {
        if length < self.length {
            self.zero(length, self.length.next_multiple_of(BLOCK));
        }
        self.length = length;
    }

    /// The blocks from `offset`'s on, after `gap` bytes are taken out at `offset`.
    fn punched(&self, offset: u64, gap: u64) -> BTreeMap<u64, Block> {
        let mut blocks: BTreeMap<u64, Block> = BTreeMap::new();
        let mut put = |position: u64, bytes: &[u8]| {
            for piece in pieces(position, bytes.len() as u64) {
                blocks.entry(piece.block).or_insert_with(empty_block)[piece.within..][..piece.length]
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
    fn begin(&self) -> Scope<'_> {
        Scope::none()
    }

    fn create(&self, id: ObjectId, kind: ObjectType) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        if inner.objects.contains_key(&id) {
            return Err(StoreError::Exists(id));
        }
        let (blocks, attributes) = (BTreeMap::new(), BTreeMap::new());
        inner.objects.insert(id, Object { kind, length: 0, blocks, attributes, attribute_weight: 0 });
        Ok(())
    }

    fn remove(&self, id: ObjectId) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        let object = inner.objects.remove(&id).ok_or(StoreError::NotFound(id))?;
        inner.used_blocks -= object.blocks.len() as u64;
        Ok(())
    }

    fn stat(&self, id: ObjectId) -> Result<Stat, StoreError> {
        self.look(id, |object| Stat {
            kind: object.kind,
            length: object.length,
            used_bytes: object.blocks.len() as u64 * BLOCK,
        })
    }

    fn read(&self, id: ObjectId, offset: u64, into: &mut [u8]) -> Result<usize, StoreError> {
        self.look(id, |object| object.read(offset, into))
    }

    fn write(&self, id: ObjectId, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        self.change(id, |object, free| {
            check_transfer(data.len())?;
            let end = end_of(offset, data.len() as u64)?;
            if data.is_empty() {
                return Ok(());
            }
            let touched = offset / BLOCK..end.div_ceil(BLOCK);
            let present = object.blocks.range(touched.clone()).count() as u64;
            if touched.end - touched.start - present > free {
                return Err(StoreError::NoSpace);
            }
            object.write(offset, data);
            Ok(())
        })
    }

    fn resize(&self, id: ObjectId, length: u64) -> Result<(), StoreError> {
        self.change(id, |object, _| {
            object.resize(end_of(length, 0)?);
            Ok(())
        })
    }

    fn clear(&self, id: ObjectId, offset: u64, length: u64) -> Result<(), StoreError> {
        self.change(id, |object, _| {
            let end = end_of(offset, length)?;
            if length > 0 {
                // The last block may be a partial one: past the end of the object there are only zeros.
                let zero_to = if end >= object.length { end.next_multiple_of(BLOCK) } else { end };
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
                object.resize(offset);
                return Ok(());
            }
            let moved = object.punched(offset, gap);
            let before = object.blocks.range(offset / BLOCK..).count();
            if moved.len().saturating_sub(before) as u64 > free {
                return Err(StoreError::NoSpace);
            }
            object.blocks.split_off(&(offset / BLOCK));
            object.blocks.extend(moved);
            object.length -= gap;
            Ok(())
        })
    }

    fn attribute(&self, id: ObjectId, attribute: AttributeId) -> Result<Option<Vec<u8>>, StoreError> {
        self.look(id, |object| object.attributes.get(&attribute).cloned())
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

    fn attributes(&self, id: ObjectId, page: Option<u32>) -> Result<Vec<(AttributeId, Vec<u8>)>, StoreError> {
        let (first, last) = page.map_or((0, u32::MAX), |page| (page, page));
        let range = AttributeId { page: first, number: 0 }..=AttributeId { page: last, number: u32::MAX };
        self.look(id, |object| {
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
            objects: inner.objects.len() as u64,
        }
    }
}

fn empty_block() -> Block {
    vec![0; BLOCK as usize].into_boxed_slice()
}

/// The part of a byte range that lies in one block.
struct Piece {
    block: u64,
    start: u64,
    within: usize,
    length: usize,
}

/// Cuts a byte range at block boundaries.
fn pieces(offset: u64, length: u64) -> impl Iterator<Item = Piece> {
    let end = offset + length;
    let mut start = offset;
    std::iter::from_fn(move || {
        if start >= end {
            return None;
        }
        let block = start / BLOCK;
        let stop = end.min((block + 1) * BLOCK);
        let piece = Piece { block, start, within: (start % BLOCK) as usize, length: (stop - start) as usize };
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
