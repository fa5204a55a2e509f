//! Copy-on-write sharing of blocks between objects, and the maps of an object: data, holes, and
//! differences from another object.
//!
//! Does: lets two objects refer to the same blocks; a write to one of them leaves the others
//! unchanged.
//! Contract: a shared block becomes free only with a commit, even in the group that allocated it:
//! sharing makes it count as committed.
//! Costs: O(chunks) of both objects; a chunk record in the group for each chunk of the source.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLockWriteGuard;
use sealstone_osd::ObjectId;

use super::DiskStore;
use super::chunk::{CHUNK_BLOCKS, Chunk, FlatChunk};
use super::group::AnswerWait;
use super::record::{CorruptRecord, Key, RecordValue, chunk_key, chunk_of};
use super::space::BlockRun;
use super::stage::{StageError, StagedChanges, WALK};
use crate::compare::ObjectComparer;
use crate::store::{ExtentKind, ObjectExtent, push_extent};
use crate::{BLOCK, MAP_PIECES_MAX, MAX_OBJECT_LENGTH, ObjectComparison, StoreError};

impl DiskStore {
    /// Locks two objects, in a global order. They may share one lock.
    fn lock_both(&self, one: ObjectId, other: ObjectId) -> [Option<RwLockWriteGuard<'_, ()>>; 2] {
        let (first, second) = (self.lock_number(one), self.lock_number(other));
        let (low, high) = (first.min(second), first.max(second));
        [Some(self.locks[low].write()), (low != high).then(|| self.locks[high].write())]
    }

    /// Replaces the bytes of `to` with those of `from`.
    pub(crate) fn try_share(&self, from: ObjectId, to: ObjectId) -> Result<AnswerWait, StageError> {
        let _inside = self.groups.gate.enter();
        self.groups.check()?;
        let _locks = self.lock_both(from, to);
        let source = self.record(from)?;
        let mut stage = StagedChanges::new(self, to, self.record(to)?);
        if from == to {
            return Ok(AnswerWait::Done);
        }
        stage.unmap(0..MAX_OBJECT_LENGTH / BLOCK)?;
        let mut next = Some(0);
        while let Some(first) = next {
            let (chunks, more) = self.some_chunks(from, first)?;
            next = more;
            for (number, mut chunk) in chunks {
                if chunk.extents().any(|(extent, _)| extent.born == stage.open) {
                    chunk = Arc::new(chunk.settled());
                    stage.changes.push((chunk_key(from, number), Some(RecordValue::Chunk(chunk.clone()))));
                }
                for (extent, sums) in chunk.extents() {
                    BlockRun::push(
                        &mut stage.newly_shared,
                        BlockRun { location: extent.location, count: sums.len() as u64 },
                    );
                }
                stage.replace(number, chunk);
            }
        }
        stage.count(source.blocks, 0);
        stage.record.length = source.length;
        Ok(stage.finish(false))
    }

    /// Returns up to `WALK` chunks of an object from `first` on, and where to continue.
    fn some_chunks(
        &self,
        id: ObjectId,
        first: u64,
    ) -> Result<(Vec<(u64, Arc<Chunk>)>, Option<u64>), StoreError> {
        let found = self.index.scan(chunk_key(id, first)..=chunk_key(id, u64::MAX), WALK)?;
        let next = found.last().filter(|_| found.len() == WALK).map(|(key, _)| chunk_of(key) + 1);
        let chunk = |(key, value): (Key, _)| match value {
            Ok(RecordValue::Chunk(chunk)) => Ok((chunk_of(&key), chunk)),
            Ok(_) | Err(CorruptRecord) => Err(StoreError::IndexDamaged { object: id }),
        };
        Ok((found.into_iter().map(chunk).collect::<Result<_, _>>()?, next))
    }

    /// Returns the number of blocks mapped by readable records of an object. The caller holds its
    /// lock.
    pub(crate) fn sound_blocks(&self, id: ObjectId) -> Result<u64, StoreError> {
        let (mut blocks, mut from) = (0, 0);
        loop {
            let found = self.index.scan(chunk_key(id, from)..=chunk_key(id, u64::MAX), WALK)?;
            let chunks = found.iter().filter_map(|(_, value)| match value {
                Ok(RecordValue::Chunk(chunk)) => Some(chunk),
                _ => None,
            });
            blocks +=
                chunks.flat_map(|chunk| chunk.extents()).map(|(_, sums)| sums.len() as u64).sum::<u64>();
            match found.last() {
                Some((key, _)) if found.len() == WALK => from = chunk_of(key) + 1,
                _ => return Ok(blocks),
            }
        }
    }

    /// Returns the map of an object from `offset` on: at most `max` extents.
    pub(crate) fn extent_map(
        &self,
        id: ObjectId,
        offset: u64,
        max: usize,
    ) -> Result<Vec<ObjectExtent>, StoreError> {
        let _lock = self.lock(id).read();
        let end = self.record(id)?.length;
        let mut map: Vec<ObjectExtent> = Vec::new();
        // The map is complete up to `at`.
        let mut at = offset;
        let mut examined = 0;
        let mut next = Some(offset / BLOCK / CHUNK_BLOCKS);
        while let Some(first) = next {
            let (chunks, more) = self.some_chunks(id, first)?;
            next = more;
            for (number, chunk) in chunks {
                let before = at;
                for (extent, sums) in chunk.extents() {
                    let base = number * CHUNK_BLOCKS + u64::from(extent.first);
                    for (block, location) in (base..).zip(extent.location..).take(sums.len()) {
                        let (start, stop) = ((block * BLOCK).max(at), ((block + 1) * BLOCK).min(end));
                        if start < stop {
                            push_extent(&mut map, at, start, ExtentKind::Hole);
                            push_extent(&mut map, start, stop, self.data_at(location));
                            at = stop;
                        }
                    }
                }
                if map.len() > max {
                    map.truncate(max);
                    return Ok(map);
                }
                examined += usize::from(at > before);
                if examined == MAP_PIECES_MAX {
                    let stop = end.min((number + 1) * CHUNK_BLOCKS * BLOCK);
                    push_extent(&mut map, at, stop, ExtentKind::Hole);
                    map.truncate(max);
                    return Ok(map);
                }
            }
        }
        push_extent(&mut map, at, end, ExtentKind::Hole);
        map.truncate(max);
        Ok(map)
    }

    fn data_at(&self, location: u64) -> ExtentKind {
        ExtentKind::Data { shared: self.space.lock().shares().contains(location) }
    }

    /// Returns where an object differs from another from `offset` on: at most `max` extents.
    pub(crate) fn differences(
        &self,
        id: ObjectId,
        other: ObjectId,
        offset: u64,
        max: usize,
    ) -> Result<ObjectComparison, StoreError> {
        let (first, second) = (self.lock_number(id), self.lock_number(other));
        let _low = self.locks[first.min(second)].read();
        let _high = (first != second).then(|| self.locks[first.max(second)].read());
        let (mine, theirs) = (self.record(id)?.length, self.record(other)?.length);
        let mut found = ObjectComparer::new(offset, mine, theirs, max);
        let mut next = [Some(offset / BLOCK / CHUNK_BLOCKS); 2];
        let mut waiting: [BTreeMap<u64, Arc<Chunk>>; 2] = Default::default();
        loop {
            for (side, object) in [id, other].into_iter().enumerate() {
                if waiting[side].is_empty()
                    && let Some(first) = next[side]
                {
                    let (chunks, more) = self.some_chunks(object, first)?;
                    next[side] = more;
                    waiting[side].extend(chunks);
                }
            }
            let lowest = waiting.iter().filter_map(|chunks| chunks.keys().next().copied()).min();
            let Some(number) = lowest else { break };
            let flats = waiting.each_mut().map(|chunks| {
                chunks
                    .remove(&number)
                    .map_or_else(|| FlatChunk::empty(None), |chunk| FlatChunk::of(&chunk, None))
            });
            let more = (0..CHUNK_BLOCKS).all(|block| {
                let locations = [0, 1].map(|side| flats[side].slot(block).location());
                let mine = locations[0].map(|location| self.data_at(location));
                locations == [None; 2]
                    || found.block(number * CHUNK_BLOCKS + block, mine, locations[0] == locations[1])
            });
            if !more {
                break;
            }
        }
        Ok(found.end())
    }
}
