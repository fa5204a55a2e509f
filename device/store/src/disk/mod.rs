//! The disk store: copy-on-write extents in segment files, and their index.
//!
//! Does: implements [`ObjectStore`] on a [`Medium`]; survives power loss at any moment; never
//! returns bytes that fail their checksum.
//! Does not: start threads or read clocks, unless [`BackgroundThread`] is used.
//! Contract: as the trait; `group.rs` describes the order of writes.
//! Source of truth: docs/design/store.md.

mod admit;
#[cfg(test)]
mod allocator_tests;
mod backend;
mod background;
mod backing;
mod cache;
mod check;
mod chunk;
mod cross_checks;
mod digested;
mod digests;
mod examine;
mod format;
mod group;
mod header_copy;
mod index;
mod index_space;
mod inline;
mod memberships;
mod open;
mod page_checksums;
mod pages;
mod paper;
mod pool;
mod prepared;
mod punch;
mod read;
mod reconcile;
mod record;
mod segments;
mod share;
mod shares;
mod space;
mod stage;
mod sums;
mod superblock;
mod survey;
mod unbacked;
mod verified_file;
mod write;
mod write_log;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use sealstone_digest::Profile;
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_redb_format::LostKeys;

pub use background::BackgroundThread;
pub use check::{ScrubProgress, ScrubStep, StoreScrub};
pub use format::{FormatOptions, bytes_with_reserve, format, preallocate};
pub use pool::InlineUse;
pub use space::{FreeRuns, HandedOut};
pub use superblock::{MAX_CAPACITY, MIN_CAPACITY};
pub use write_log::PreviousShutdown;

pub(crate) use format::is_unfinished;
pub(crate) use group::GroupGuard;
pub(crate) use sums::SumCourse;
pub(crate) use superblock::reserve_of;
pub(crate) use write_log::length_for as log_length_for;

use group::{AnswerWait, CommitGroups};
use index::RecordIndex;
use index_space::{IndexSpace, PageDemand, ReserveClass};
use record::{
    CorruptRecord, Key, ObjectRecord, RecordValue, all_objects, attribute_key, attribute_of, collection_key,
    object_key, object_of,
};
use segments::SegmentFiles;
use space::FreeMap;
use stage::{StageError, StagedChanges, stop_error};
use write_log::WriteLog;

use crate::damage::{Damage, DamageBook, StoreFault};
use crate::medium::{IoMode, Medium};
use crate::store::{attribute_budget, attribute_weight, end_of};
use crate::{
    AttributeId, BLOCK, GroupScope, MAX_EXTENTS, MAX_LIST, MAX_OBJECT_LENGTH, ObjectComparison, ObjectExtent,
    ObjectStat, ObjectStore, SharedSpace, Space, StoreError,
};

/// Number of object locks; objects share them by hash.
const LOCKS: usize = 1024;
/// Bytes of an object that one chunk covers.
const CHUNK_BYTES: u64 = chunk::CHUNK_BLOCKS * BLOCK;
/// Upper limit of [`StoreOptions::inline_max`], in bytes.
pub const MAX_INLINE: u64 = BLOCK;
/// Default of [`StoreOptions::inline_max`], in bytes.
const INLINE_MAX: u64 = 1024;
/// Maximum number of attributes that one object can have within its size limit.
const MAX_ATTRIBUTES: usize = (crate::MAX_ATTRIBUTES_PER_OBJECT / 17) as usize;

/// Options of an open store. None of them is stored.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Memory for index records that were read or written lately, in bytes.
    pub record_cache: usize,
    /// Memory for pages of the index file, in bytes.
    pub index_cache: usize,
    /// Data written in a group before `tick` commits it, in bytes.
    pub group_bytes_max: u64,
    /// Memory of a group's index changes before `tick` commits it, in bytes. At twice that, the
    /// next operation commits it.
    pub group_weight_max: usize,
    /// Age of a group before `tick` commits it.
    pub group_age_max: Duration,
    /// Freed runs of at least this many blocks are discarded on the medium. That takes time, and
    /// more when they are written again. Default: `u64::MAX`, never.
    pub discard_blocks_min: u64,
    /// How data is transferred to the medium. The store receives a medium that was opened this way;
    /// the option is here for programs that open both.
    pub io: IoMode,
    /// Whether a partial write of a unit leaves the digest to be computed on the next request for
    /// it, instead of reading the rest of the unit at once.
    pub digest_lazily: bool,
    /// Partitions whose objects get no digests, whatever their profile says, such as those of block
    /// units. Their blocks have checksums like all others.
    pub undigested: BTreeSet<u64>,
    /// Longest object whose bytes are kept in the index rather than in a block, in bytes; at most
    /// [`MAX_INLINE`], 0 for none. An object stays there until it is written again.
    pub inline_max: u64,
    /// Limit of the index space of such objects in bytes, beyond which objects use blocks. `None`,
    /// the default: a share of the capacity that the medium has space for.
    pub inline_bytes_max: Option<u64>,
    /// Whether every change is durable before it is answered: each waits for a commit, and waiting
    /// changes share it.
    pub write_through: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            record_cache: 32 << 20,
            index_cache: 16 << 20,
            group_bytes_max: 64 << 20,
            group_weight_max: 16 << 20,
            group_age_max: Duration::from_secs(1),
            discard_blocks_min: u64::MAX,
            io: IoMode::Auto,
            digest_lazily: false,
            undigested: BTreeSet::new(),
            inline_max: INLINE_MAX,
            inline_bytes_max: None,
            write_through: false,
        }
    }
}

/// A store on a medium.
pub struct DiskStore {
    index: RecordIndex,
    segments: SegmentFiles,
    space: Mutex<FreeMap>,
    objects: AtomicU64,
    /// Records contradicted each other at open: the store is read-only, and a record that is not
    /// found may be lost.
    salvage: bool,
    /// Damage of the store itself, found at open.
    faults: Vec<StoreFault>,
    /// Known damage of objects.
    book: Mutex<DamageBook>,
    locks: Box<[RwLock<()>]>,
    /// Changes of the objects that share a lock.
    change_counts: Box<[AtomicU64]>,
    hasher: RandomState,
    groups: CommitGroups,
    /// The free pages of the index.
    index_space: IndexSpace,
    /// Held while the index file is inspected for more free pages.
    renewing: Mutex<()>,
    /// Held while space of free blocks is allocated or returned.
    backing: Mutex<()>,
    /// Whether others take space of the medium, too.
    is_bounded: bool,
    /// Partitions whose digest profile is not the default.
    profiles: RwLock<BTreeMap<u64, Option<Profile>>>,
    options: StoreOptions,
    capacity_blocks: u64,
    /// Changes that are acknowledged but not committed. `None`: every change is committed before it
    /// is answered.
    log: Option<WriteLog>,
    /// Whether commits write their group numbers.
    numbers_groups: bool,
    previous_shutdown: PreviousShutdown,
    /// Number of free blocks below which a group that holds back freed blocks is closed.
    low_water: u64,
    /// Also holds its lock.
    medium: Arc<dyn Medium>,
}

impl std::fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskStore").field("space", &self.space()).finish_non_exhaustive()
    }
}

impl DiskStore {
    /// Whether every change is committed before it is answered: by option, or because there is no
    /// space for a write log.
    #[must_use]
    pub fn is_write_through(&self) -> bool {
        self.options.write_through || self.log.is_none()
    }

    /// Returns the fragmentation of the free blocks, and of the blocks allocated since the store
    /// was opened. Reads the whole free map, a bit per block; allocations wait meanwhile.
    #[must_use]
    pub fn fragmentation(&self) -> (FreeRuns, HandedOut) {
        let space = self.space.lock();
        (space.free_runs(), space.handed_out())
    }

    /// Returns the number of objects with their bytes in the index, and their use of index space.
    #[must_use]
    pub fn inline_use(&self) -> InlineUse {
        self.space.lock().inline.usage()
    }

    fn lock(&self, id: ObjectId) -> &RwLock<()> {
        &self.locks[self.lock_number(id)]
    }

    fn lock_number(&self, id: ObjectId) -> usize {
        self.hasher.hash_one(id) as usize % LOCKS
    }

    /// Reads an object's record. The caller holds its lock.
    fn record(&self, id: ObjectId) -> Result<ObjectRecord, StoreError> {
        match self.index.get(&object_key(id))? {
            None => Err(StoreError::NotFound(id)),
            Some(Ok(RecordValue::Object(record))) => Ok(record),
            Some(Ok(_) | Err(CorruptRecord)) => Err(StoreError::IndexDamaged { object: id }),
        }
    }

    /// Checks that a chunk or attribute record that was not found really does not exist. In a
    /// damaged index that is certain only if all others of its kind are present, by the object's
    /// own record. The caller holds the object's lock.
    fn check_absence(&self, key: &Key) -> Result<(), StoreError> {
        if !self.salvage {
            return Ok(());
        }
        let id = object_of(key);
        let record = self.record(id)?;
        let all = |sub| [&key[..17], &u64::to_be_bytes(sub)].concat().try_into().expect("17 bytes and 8");
        let (mut blocks, mut weight) = (0, 0);
        for (found, value) in self.index.scan(all(0)..=all(u64::MAX), usize::MAX)? {
            match value {
                _ if found == *key => return Err(StoreError::IndexDamaged { object: id }),
                Ok(RecordValue::Chunk(chunk)) => {
                    blocks += chunk.extents().map(|(_, sums)| sums.len() as u64).sum::<u64>()
                }
                Ok(RecordValue::Attribute(value)) => weight += attribute_weight(value.len()),
                Ok(_) | Err(CorruptRecord) => return Err(StoreError::IndexDamaged { object: id }),
            }
        }
        let chunk = *key == record::chunk_key(id, record::chunk_of(key));
        let complete = if chunk { blocks == record.blocks } else { weight == record.attribute_weight };
        if complete { Ok(()) } else { Err(StoreError::IndexDamaged { object: id }) }
    }

    /// In a damaged index: checks that all attributes of an object are present. The caller holds
    /// the object's lock.
    fn check_attributes(&self, id: ObjectId) -> Result<(), StoreError> {
        let never_set = attribute_key(id, AttributeId { page: u32::MAX, number: u32::MAX });
        self.check_absence(&never_set)
    }

    /// Like `remove`, for an object whose own record may be damaged.
    fn try_remove(&self, id: ObjectId) -> Result<AnswerWait, StageError> {
        let _inside = self.groups.gate.enter();
        self.groups.check()?;
        let (_locks, memberships) = self.lock_for_removal(id)?;
        let record = match self.record(id) {
            Err(StoreError::IndexDamaged { .. }) => ObjectRecord::empty(ObjectType::User),
            record => record?,
        };
        let mut stage = StagedChanges::new(self, id, record);
        stage.unmap(0..MAX_OBJECT_LENGTH / BLOCK)?;
        let attributes = self.index.scan(attribute_range(id, None), MAX_ATTRIBUTES)?;
        stage.changes.extend(attributes.into_iter().map(|(key, _)| (key, None)));
        stage.changes.extend(memberships);
        stage.changes.extend(self.digest_records(id)?.into_iter().map(|key| (key, None)));
        let ack = stage.finish(true);
        self.forget_profile(id);
        self.objects.fetch_sub(1, Ordering::Relaxed);
        Ok(ack)
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        if let Some(log) = &self.log
            && !self.is_poisoned()
            && !self.index.is_dirty()
            && let Err(error) = log.close()
        {
            tracing::warn!(%error, "closing the write log failed; the next start replays it");
        }
    }
}

/// Returns the records found, or an error if ids may be missing from the list.
fn list_to_gap(
    found: Vec<(ObjectId, ObjectType)>,
    gap: Option<LostKeys>,
    range: &RangeInclusive<Key>,
) -> Result<Vec<(ObjectId, ObjectType)>, StoreError> {
    let Some(gap) = gap else { return Ok(found) };
    let (first, last) = (range.start(), range.end());
    let behind = |id: ObjectId| match id.object.checked_add(1) {
        Some(object) => ObjectId::new(id.partition, object),
        None => ObjectId::new(id.partition.saturating_add(1), 0),
    };
    let from =
        gap.after.filter(|after| after >= first).map_or(object_of(first), |after| behind(object_of(&after)));
    let to =
        gap.through.filter(|through| through < last).map_or(object_of(last), |through| object_of(&through));
    Err(StoreError::ListGap { before: found, from, to })
}

/// Returns the key range of an object's attributes, of all pages or of one.
fn attribute_range(id: ObjectId, page: Option<u32>) -> RangeInclusive<Key> {
    let (first, last) = page.map_or((0, u32::MAX), |page| (page, page));
    attribute_key(id, AttributeId { page: first, number: 0 })
        ..=attribute_key(id, AttributeId { page: last, number: u32::MAX })
}

impl ObjectStore for DiskStore {
    fn begin(&self) -> GroupScope<'_> {
        self.commit_if_full();
        self.reserve_for_scope();
        GroupScope::inside(self, self.groups.gate.enter())
    }

    fn create(&self, id: ObjectId, kind: ObjectType) -> Result<(), StoreError> {
        let _room = self.admit(PageDemand::membership(), ReserveClass::Addition)?;
        let inside = self.groups.gate.enter();
        self.groups.check()?;
        let lock = self.lock(id).write();
        match self.record(id) {
            Ok(_) | Err(StoreError::IndexDamaged { .. }) => return Err(StoreError::Exists(id)),
            Err(StoreError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
        let mut changes = vec![(object_key(id), Some(RecordValue::Object(ObjectRecord::empty(kind))))];
        if kind == ObjectType::Collection {
            changes.push((collection_key(id), Some(RecordValue::Count(0))));
        }
        let ack = self.apply(changes, &[], &[], Vec::new());
        self.objects.fetch_add(1, Ordering::Relaxed);
        drop((lock, inside));
        self.acknowledge(ack)
    }

    fn remove(&self, id: ObjectId) -> Result<(), StoreError> {
        let _room = self.admit_removal(id)?;
        let ack = self.try_remove(id).map_err(stop_error)?;
        self.changed(id, 0..u64::MAX, true);
        self.acknowledge(ack)
    }

    fn stat(&self, id: ObjectId) -> Result<ObjectStat, StoreError> {
        let _lock = self.lock(id).read();
        let record = self.record(id)?;
        Ok(ObjectStat { kind: record.kind, length: record.length, used_bytes: record.blocks * BLOCK })
    }

    fn read(&self, id: ObjectId, offset: u64, into: &mut [u8]) -> Result<usize, StoreError> {
        self.read_whole(id, offset, into).map(|(count, _)| count)
    }

    fn write(&self, id: ObjectId, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        self.write_with(id, offset, data, None)
    }

    fn resize(&self, id: ObjectId, length: u64) -> Result<(), StoreError> {
        let _room = self.admit(PageDemand::bytes(0, 0), ReserveClass::Overwrite)?;
        self.change(id, Some(0..0), |stage| {
            end_of(length, 0)?;
            stage.cut_or_extend(length)
        })
    }

    fn clear(&self, id: ObjectId, offset: u64, length: u64) -> Result<(), StoreError> {
        let _room = self.admit(PageDemand::bytes(0, 0), ReserveClass::Overwrite)?;
        self.change(id, Some(offset..offset.saturating_add(length)), |stage| {
            let end = end_of(offset, length)?;
            if length > 0 {
                // Bytes past the end of the object must be zero: the last block is zeroed to its
                // end.
                let zero_to = if end >= stage.record.length { end.next_multiple_of(BLOCK) } else { end };
                stage.set_length(stage.record.length.max(end))?;
                stage.zero(offset, zero_to)?;
            }
            Ok(())
        })
    }

    fn punch(&self, id: ObjectId, offset: u64, length: u64) -> Result<(), StoreError> {
        // The tail moves. Its holes have no records, and each of its blocks can end up in at most
        // two chunks.
        let ObjectStat { length: end, used_bytes, .. } = self.stat(id)?;
        let moved = (used_bytes / BLOCK).saturating_mul(2 * CHUNK_BYTES);
        let tail = end.saturating_sub(offset).min(moved);
        let _room = self.admit(PageDemand::bytes(tail, 0), ReserveClass::Overwrite)?;
        self.change(id, Some(offset..u64::MAX), |stage| {
            let old = stage.record.length;
            if offset >= old || length == 0 {
                return Ok(());
            }
            let gap = length.min(old - offset);
            if offset + gap < old {
                return stage.punch(offset, gap);
            }
            stage.cut_or_extend(offset)
        })
    }

    fn share(&self, from: ObjectId, to: ObjectId) -> Result<(), StoreError> {
        let ObjectStat { length, used_bytes, .. } = self.stat(from)?;
        // Its own records may be rewritten, too.
        let chunks = (length / CHUNK_BYTES + 1).min(used_bytes / BLOCK);
        let _room = self.admit(PageDemand::bytes(2 * chunks * CHUNK_BYTES, BLOCK), ReserveClass::Addition)?;
        let ack = self.try_share(from, to).map_err(stop_error)?;
        self.changed(to, 0..u64::MAX, false);
        self.acknowledge(ack)
    }

    fn map(&self, id: ObjectId, offset: u64, max: usize) -> Result<Vec<ObjectExtent>, StoreError> {
        self.extent_map(id, offset, max.min(MAX_EXTENTS))
    }

    fn compare(
        &self,
        id: ObjectId,
        other: ObjectId,
        offset: u64,
        max: usize,
    ) -> Result<ObjectComparison, StoreError> {
        self.differences(id, other, offset, max)
    }

    fn attribute(&self, id: ObjectId, attribute: AttributeId) -> Result<Option<Vec<u8>>, StoreError> {
        let _lock = self.lock(id).read();
        self.record(id)?;
        let key = attribute_key(id, attribute);
        match self.index.get(&key)? {
            None => self.check_absence(&key).map(|()| None),
            Some(Ok(RecordValue::Attribute(value))) => Ok(Some(value.to_vec())),
            Some(Ok(_) | Err(CorruptRecord)) => Err(StoreError::IndexDamaged { object: id }),
        }
    }

    fn set_attribute(&self, id: ObjectId, attribute: AttributeId, value: &[u8]) -> Result<(), StoreError> {
        let key = attribute_key(id, attribute);
        let load = PageDemand::attribute(value.len());
        let _room = if value.is_empty() {
            self.admit(load, ReserveClass::Removal)?
        } else {
            self.admit_change(load, || {
                // The leaf that it is in has space for a value of the same length.
                let old = self.attribute_length(id, attribute)?;
                Ok(old.filter(|old| value.len() <= *old).map(|_| PageDemand::attribute(0)))
            })?
        };
        self.change(id, None, |stage| {
            let old = match self.index.get(&key)? {
                Some(Ok(RecordValue::Attribute(old))) => old.len(),
                // Its old length is unknown: the other attributes are counted again.
                Some(_) => {
                    let all = self.index.scan(attribute_range(id, None), MAX_ATTRIBUTES)?;
                    let weight = |(_, value): &index::Found| match value {
                        Ok(RecordValue::Attribute(value)) => attribute_weight(value.len()),
                        _ => 0,
                    };
                    stage.record.attribute_weight = all.iter().map(weight).sum();
                    0
                }
                None => 0,
            };
            stage.record.attribute_weight =
                attribute_budget(stage.record.attribute_weight, old, value.len())?;
            let value = (!value.is_empty()).then(|| RecordValue::Attribute(value.into()));
            stage.changes.push((key, value));
            self.forget_page(stage, attribute.page)?;
            Ok(())
        })
    }

    fn attributes(&self, id: ObjectId, page: Option<u32>) -> Result<Vec<(AttributeId, Vec<u8>)>, StoreError> {
        let _lock = self.lock(id).read();
        self.record(id)?;
        let found = self.index.scan(attribute_range(id, page), MAX_ATTRIBUTES)?;
        self.check_attributes(id)?;
        let one = |(key, value): (Key, _)| match value {
            Ok(RecordValue::Attribute(value)) => Ok((attribute_of(&key), value.to_vec())),
            Ok(_) | Err(CorruptRecord) => Err(StoreError::IndexDamaged { object: id }),
        };
        found.into_iter().map(one).collect()
    }

    fn change_count(&self, id: ObjectId) -> u64 {
        let _lock = self.lock(id).read();
        self.change_counts[self.lock_number(id)].load(Ordering::Relaxed)
    }

    fn list(&self, from: ObjectId, max: usize) -> Result<Vec<(ObjectId, ObjectType)>, StoreError> {
        let range = object_key(from)..=all_objects().1;
        let (found, gap) = self.index.scan_to_gap(range.clone(), max.min(MAX_LIST))?;
        let kind = |value| match value {
            Ok(RecordValue::Object(record)) => record.kind,
            // An object with a damaged record is listed, so that it can be removed.
            Ok(_) | Err(CorruptRecord) => ObjectType::User,
        };
        let found = found.into_iter().map(|(key, value)| (object_of(&key), kind(value))).collect();
        list_to_gap(found, gap, &range)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.flush_groups()
    }

    fn space(&self) -> Space {
        let beneath = if self.is_bounded { self.medium.free_space() } else { None };
        let free = beneath.as_ref().map(backing::allowance);
        let (used, available, own) = {
            let space = self.space.lock();
            (space.used(), space.available(free.unwrap_or(u64::MAX) / BLOCK), space.available(0))
        };
        let shared =
            beneath.zip(free).map(|(beneath, free)| SharedSpace { id: beneath.id, free, own: own * BLOCK });
        Space {
            total: self.capacity_blocks * BLOCK,
            used: used * BLOCK,
            available: available * BLOCK,
            objects: self.objects.load(Ordering::Relaxed),
            shared,
        }
    }

    fn known_damage(&self, id: ObjectId) -> Vec<Damage> {
        self.damage_of(id)
    }

    fn previous_shutdown(&self) -> PreviousShutdown {
        self.previous_shutdown
    }
}
