//! The index: committed records in redb, with the changes of the open group layered above.
//!
//! Does: returns the newest value of a key; scans a merged view; writes the open group to redb in
//! one commit.
//! Does not: decide when to commit, or know blocks and files.
//! Contract: an object's keys are changed by one thread at a time, and not while another reads them
//! (the object's lock). So a value found in no layer above redb is the one in redb, and may be
//! cached.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::ops::Bound::Included;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sealstone_redb_format::{CursorStep, LostKeys, TreeCursor, TreeReader};

use super::backend::{IndexFile, LiveBackend};
use super::cache::RecordCache;
use super::index_space::{FreePages, PageDemand};
use super::record::{
    CorruptRecord, Key, RecordTag, RecordValue, group_key, is_inline_key, is_object, object_of, seal,
    store_key, sub_of,
};
use super::space::BlockRun;
use super::verified_file::VerifiedFile;
use crate::medium::MediumFile;
use crate::{FormatError, StoreError};
use parking_lot::RwLock;
use redb::{Builder, Database, ReadableDatabase, TableDefinition};
use sealstone_osd::ObjectId;

/// Name of the only table.
pub(crate) const NAME: &str = "sealstone";
/// Definition of the only table.
const TABLE: TableDefinition<'static, &[u8; 25], &[u8]> = TableDefinition::new(NAME);
/// Approximate memory of a change besides its value, in bytes.
const ENTRY: usize = 72;

/// Part of the record memory that is for bytes of small objects.
const INLINE_PART: usize = 4;

/// The changes of one group: key to new value, or `None` if removed.
#[derive(Default)]
pub(crate) struct GroupOverlay {
    changes: BTreeMap<Key, Option<RecordValue>>,
    /// Approximate memory of the changes, in bytes.
    pub(crate) weight: usize,
    /// Demand of the changes for index pages.
    pub(crate) load: PageDemand,
    /// Blocks that no object uses any more once the group is committed.
    pub(crate) freed: Vec<BlockRun>,
}

impl GroupOverlay {
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Adds a change. `leaves`: maximum number of leaf pages that it takes, if it is the first
    /// change of its record.
    fn put(&mut self, key: Key, value: Option<RecordValue>, leaves: u64) {
        let leaves = match (self.changes.get(&key), &value) {
            (Some(Some(_)), _) | (Some(None), None) => 0,
            _ => leaves,
        };
        self.load.add(&key, leaves, value.as_ref());
        let weight = |value: &Option<RecordValue>| ENTRY + value.as_ref().map_or(0, RecordValue::weight);
        self.weight += weight(&value);
        if let Some(old) = self.changes.insert(key, value) {
            self.weight -= weight(&old);
        }
    }
}

/// Returns the maximum number of leaf pages that a change takes after another one of the same
/// operation; for each, whether it is a removal.
fn leaves_of(before: Option<(Key, bool)>, key: &Key, is_removal: bool) -> u64 {
    match before {
        // An operation that removes several records of an object removes all between them: whole
        // leaves become free.
        Some((before, true)) if is_removal && before[..17] == key[..17] => 0,
        // Each leaf that a sequence of records ends up in has at least one of them.
        Some((before, false))
            if !is_removal
                && before[..17] == key[..17]
                && sub_of(&before).checked_add(1) == Some(sub_of(key)) =>
        {
            1
        }
        // The leaf that it is in, and the one that is split off or merged.
        _ => 2,
    }
}

/// How a scan treats a range in which records may be lost.
enum LostRecordPolicy {
    PassBy,
    Give(Found),
    End,
}

/// A record found by a scan.
pub(crate) type Found = (Key, Result<RecordValue, CorruptRecord>);

#[derive(Default)]
struct IndexLayers {
    open: GroupOverlay,
    committing: Option<Arc<GroupOverlay>>,
    /// Number of operations applied.
    applied: u64,
}

impl IndexLayers {
    /// Returns up to `max` records of `range`, in order: those of `below`, overridden by the
    /// layers.
    fn merge<E>(
        &self,
        range: &RangeInclusive<Key>,
        max: usize,
        mut below: impl FnMut() -> Result<Option<Found>, E>,
    ) -> Result<Vec<Found>, E> {
        let bounds = (Included(*range.start()), Included(*range.end()));
        let mut found = Vec::new();
        let mut middle = self.committing.as_ref().map(|layer| layer.changes.range(bounds).peekable());
        let mut top = self.open.changes.range(bounds).peekable();
        let mut lowest = below()?;
        while found.len() < max {
            let keys = [
                top.peek().map(|(key, _)| **key),
                middle.as_mut().and_then(|middle| middle.peek().map(|(key, _)| **key)),
                lowest.as_ref().map(|(key, _)| *key),
            ];
            let Some(key) = keys.into_iter().flatten().min() else { break };
            let mut value = None;
            if keys[2] == Some(key) {
                value = lowest.take().map(|(_, value)| value);
                lowest = below()?;
            }
            if keys[1] == Some(key) {
                value = middle.as_mut().and_then(Iterator::next).and_then(|(_, value)| value.clone()).map(Ok);
            }
            if keys[0] == Some(key) {
                value = top.next().and_then(|(_, value)| value.clone()).map(Ok);
            }
            found.extend(value.map(|value| (key, value)));
        }
        Ok(found)
    }
}

/// Runs the engine on a file with arbitrary content: it panics on some of it.
fn guarded<T>(work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(redb::Error::Corrupted("the engine panicked over the index file".to_owned())))
}

/// redb, as opened; our own reader after a failure, or where redb may not use the file.
struct IndexEngine {
    live: Option<LiveDatabase>,
    frozen: Option<Arc<TreeReader>>,
}

/// A redb database that can be dropped over any file: closing it writes, and may panic on a damaged
/// one.
struct LiveDatabase {
    database: Option<Database>,
    /// Set when another owner has the file: no access by this engine reaches it any more.
    detached: Arc<AtomicBool>,
}

impl LiveDatabase {
    /// Starts the engine on the file.
    fn open(pages: &Arc<IndexFile>, cache: usize) -> Result<Self, redb::Error> {
        let detached = Arc::new(AtomicBool::new(false));
        let backend = LiveBackend { pages: pages.clone(), detached: detached.clone() };
        let mut builder = Builder::new();
        builder.set_cache_size(cache);
        guarded(|| Ok(Self { database: Some(builder.create_with_backend(backend)?), detached }))
    }

    fn get(&self) -> &Database {
        self.database.as_ref().expect("taken by drop alone")
    }

    /// Ends the engine without writing anything.
    fn abandon(self) {
        self.detached.store(true, Ordering::Release);
    }
}

impl Drop for LiveDatabase {
    fn drop(&mut self) {
        let database = self.database.take();
        let detached = self.detached.load(Ordering::Acquire);
        let closed = guarded(move || {
            drop(database);
            Ok(())
        });
        if closed.is_err() && !detached {
            tracing::error!("closing the index failed");
        }
    }
}

/// The index of an open store.
pub(crate) struct RecordIndex {
    layers: RwLock<IndexLayers>,
    cache: RecordCache,
    /// Bytes of small objects have a separate part of the memory: many of them would evict the
    /// records of all other objects.
    inline: RecordCache,
    /// Held for reading during use, so that the engine is not replaced meanwhile.
    engine: RwLock<IndexEngine>,
    engine_cache: usize,
    pages: Arc<IndexFile>,
    stopped: Arc<AtomicBool>,
    /// Objects that lack records, if all of them are known. Other objects lost nothing.
    incomplete: Option<HashSet<ObjectId>>,
}

fn store_error(doing: &'static str) -> impl Fn(redb::Error) -> StoreError {
    move |source| StoreError::Index { doing, source: Box::new(source) }
}

fn format_error(doing: &'static str) -> impl Fn(redb::Error) -> FormatError {
    move |source| FormatError::Index { doing, source: Box::new(source) }
}

impl RecordIndex {
    /// Creates the index of a new store in an empty file, durably.
    pub(crate) fn format(file: Arc<dyn MediumFile>, uuid: &[u8; 16]) -> Result<(), FormatError> {
        let write = || -> Result<(), redb::Error> {
            let pages = IndexFile::fresh(file.clone(), *uuid);
            let engine = Builder::new().create_with_backend(LiveBackend::new(pages))?;
            let transaction = engine.begin_write()?;
            let value = seal(&store_key(), uuid.to_vec());
            transaction.open_table(TABLE)?.insert(&store_key(), &value[..])?;
            transaction.commit()?;
            Ok(())
        };
        write().map_err(format_error("creating the index"))
    }

    /// Opens an index that was verified and whose records were all read. `writable`: the engine may
    /// use the file; otherwise `incomplete` are the objects that lack records.
    pub(crate) fn open(
        mut proof: VerifiedFile,
        writable: bool,
        incomplete: Option<HashSet<ObjectId>>,
        engine_cache: usize,
        cache: usize,
    ) -> Result<(Self, Option<FreePages>), FormatError> {
        let stopped: Arc<AtomicBool> = Arc::new(AtomicBool::new(!writable));
        let mut free_pages = None;
        if writable {
            let allocator = proof
                .hand_over(true)
                .map_err(redb::Error::Io)
                .map_err(format_error("repairing the index"))?;
            let shape = proof.reader.outline();
            free_pages =
                allocator.zip(shape).map(|(free, shape)| FreePages { free, shape, length: proof.end });
        }
        let pages = IndexFile::verified(&proof, stopped.clone());
        // A file that was just created, or has no free page, has no space for the allocator state.
        if writable && free_pages.is_none() {
            let grown = pages.grow(0, u64::MAX).and_then(|grown| {
                let Some((allocator, larger)) = pages.inspect(NAME).filter(|_| grown) else {
                    return Ok(None);
                };
                pages.start_from(&allocator).map(|()| Some(larger))
            });
            free_pages = grown.map_err(redb::Error::Io).map_err(format_error("growing the index"))?;
        }
        let engine = if writable {
            let live = LiveDatabase::open(&pages, engine_cache).map_err(format_error("opening the index"))?;
            IndexEngine { live: Some(live), frozen: None }
        } else {
            IndexEngine { live: None, frozen: Some(Arc::new(proof.reader)) }
        };
        // In a store that is written to, this would be outdated soon.
        let incomplete = incomplete.filter(|_| !writable);
        let (layers, engine) = (RwLock::default(), RwLock::new(engine));
        let (inline, cache) =
            (RecordCache::new(cache / INLINE_PART), RecordCache::new(cache - cache / INLINE_PART));
        Ok((Self { layers, cache, inline, engine, engine_cache, pages, stopped, incomplete }, free_pages))
    }

    fn cache(&self, key: &Key) -> &RecordCache {
        if is_inline_key(key) { &self.inline } else { &self.cache }
    }

    /// Whether a record of this key may exist on a page that is lost.
    fn may_be(&self, key: &Key) -> bool {
        is_object(key)
            || is_inline_key(key)
            || self.incomplete.as_ref().is_none_or(|objects| objects.contains(&object_of(key)))
    }

    /// Reads from the engine. A failure is permanent: the store is stopped, and our own reader
    /// replaces the engine.
    fn try_read<T>(
        &self,
        doing: &'static str,
        live: impl FnOnce(&Database) -> Result<T, redb::Error>,
        frozen: impl FnOnce(&TreeReader) -> T,
    ) -> Result<T, StoreError> {
        let engine = self.engine.read();
        let failed = match (&engine.live, &engine.frozen) {
            (Some(engine), None) => match guarded(|| live(engine.get())) {
                Ok(found) => return Ok(found),
                Err(error) => Some(error),
            },
            _ => None,
        };
        drop(engine);
        if let Some(error) = failed {
            tracing::error!(%error, doing, "the index engine failed; the store refuses writes until opened again");
            self.stop(true);
        }
        let reader = self.engine.read().frozen.clone();
        let reader = reader.ok_or(redb::Error::PreviousIo).map_err(store_error(doing))?;
        Ok(frozen(&reader))
    }

    /// Returns the newest value of a key. The caller holds the object's lock.
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Result<RecordValue, CorruptRecord>>, StoreError> {
        {
            let layers = self.layers.read();
            let above = layers.open.changes.get(key);
            let above = above.or_else(|| layers.committing.as_ref().and_then(|layer| layer.changes.get(key)));
            if let Some(value) = above {
                return Ok(value.clone().map(Ok));
            }
        }
        if let Some(value) = self.cache(key).get(key) {
            return Ok(value.map(Ok));
        }
        let found = self.try_read(
            "reading a record",
            |engine| {
                let table = engine.begin_read()?.open_table(TABLE)?;
                Ok(table.get(key)?.map(|value| RecordValue::parse(key, value.value())))
            },
            |reader| match reader.get(key) {
                Ok(value) => value.map(|value| RecordValue::parse(key, &value)),
                // Whether it exists is unknown, so it counts as a corrupt record.
                Err(_) => self.may_be(key).then_some(Err(CorruptRecord)),
            },
        )?;
        match found {
            Some(Err(CorruptRecord)) => Ok(Some(Err(CorruptRecord))),
            found => {
                let value = found.and_then(Result::ok);
                self.cache(key).put(*key, value.clone());
                Ok(value.map(Ok))
            }
        }
    }

    /// Returns up to `max` records of one object of the merged view, in order. If records may be
    /// lost, one corrupt record stands for them.
    pub(crate) fn scan(&self, range: RangeInclusive<Key>, max: usize) -> Result<Vec<Found>, StoreError> {
        let may_exist = self.may_be(range.start());
        let corrupt = |lost: LostKeys| {
            let first = lost.after.unwrap_or(*range.start()).max(*range.start());
            Some((first, Err(CorruptRecord)))
        };
        self.scan_all(&range, max, |lost| {
            corrupt(lost).filter(|_| may_exist).map_or(LostRecordPolicy::PassBy, LostRecordPolicy::Give)
        })
    }

    /// Like [`scan`](Self::scan), without lost records.
    pub(crate) fn scan_known(
        &self,
        range: RangeInclusive<Key>,
        max: usize,
    ) -> Result<Vec<Found>, StoreError> {
        self.scan_all(&range, max, |_| LostRecordPolicy::PassBy)
    }

    /// Returns up to `max` records of the merged view, in order, up to a range where records may be
    /// lost; and that range.
    pub(crate) fn scan_to_gap(
        &self,
        range: RangeInclusive<Key>,
        max: usize,
    ) -> Result<(Vec<Found>, Option<LostKeys>), StoreError> {
        let gap = Cell::new(None);
        let mut found = self.scan_all(&range, max, |lost| {
            gap.set(Some(lost));
            LostRecordPolicy::End
        })?;
        let gap = gap.into_inner();
        // Records changed since may be behind it.
        if let Some(after) = gap.and_then(|lost: LostKeys| lost.after) {
            found.retain(|(key, _)| *key <= after);
        } else if gap.is_some() {
            found.clear();
        }
        Ok((found, gap))
    }

    fn scan_all(
        &self,
        range: &RangeInclusive<Key>,
        max: usize,
        on_lost: impl Fn(LostKeys) -> LostRecordPolicy,
    ) -> Result<Vec<Found>, StoreError> {
        // The layers stay locked, so that the view is consistent.
        let layers = self.layers.read();
        let live = |engine: &Database| {
            let table = engine.begin_read()?.open_table(TABLE)?;
            let mut below = table.range::<&[u8; 25]>(range.start()..=range.end())?;
            layers.merge(range, max, || match below.next().transpose()? {
                Some((key, value)) => {
                    Ok(Some((*key.value(), RecordValue::parse(key.value(), value.value()))))
                }
                None => Ok(None),
            })
        };
        let frozen = |reader: &TreeReader| {
            let mut cursor = TreeCursor::new(reader, *range.start(), *range.end());
            let mut ended = false;
            let next = || {
                while !ended {
                    let found = match cursor.current() {
                        None => return Ok::<_, std::convert::Infallible>(None),
                        Some(CursorStep::Record(key, value)) => Some((*key, RecordValue::parse(key, value))),
                        Some(CursorStep::Lost(lost)) => match on_lost(lost) {
                            LostRecordPolicy::PassBy => None,
                            LostRecordPolicy::Give(found) => Some(found),
                            LostRecordPolicy::End => {
                                ended = true;
                                None
                            }
                        },
                    };
                    cursor.pass();
                    if found.is_some() {
                        return Ok(found);
                    }
                }
                Ok(None)
            };
            match layers.merge(range, max, next) {
                Ok(found) => found,
                Err(never) => match never {},
            }
        };
        self.try_read("scanning records", live, frozen)
    }

    /// Puts the changes of one operation into the open group, atomically; returns their sequence
    /// number.
    pub(crate) fn apply(&self, changes: Vec<(Key, Option<RecordValue>)>, freed: &[BlockRun]) -> u64 {
        let mut layers = self.layers.write();
        layers.applied += 1;
        if layers.open.is_empty() && !changes.is_empty() {
            // The commit also writes its group's number.
            layers.open.load = layers.open.load.with_leaves(RecordTag::Store, 2, 16);
        }
        let mut before: Option<(Key, bool)> = None;
        for (key, value) in changes {
            let leaves = leaves_of(before, &key, value.is_none());
            before = Some((key, value.is_none()));
            layers.open.put(key, value, leaves);
        }
        for &run in freed {
            BlockRun::push(&mut layers.open.freed, run);
        }
        layers.applied
    }

    /// Adds blocks that become free when the open group is committed.
    pub(crate) fn free_later(&self, runs: &[BlockRun]) {
        let mut layers = self.layers.write();
        for &run in runs {
            BlockRun::push(&mut layers.open.freed, run);
        }
    }

    /// Whether a commit would write anything.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.layers.read().open.is_empty()
    }

    /// Whether writes to the index may not be on the medium, whatever the system reports.
    pub(crate) fn is_unsynced(&self) -> bool {
        self.pages.is_unsynced()
    }

    /// Returns the approximate memory of the open group's changes, in bytes.
    pub(crate) fn open_weight(&self) -> usize {
        self.layers.read().open.weight
    }

    /// Returns the open group's demand for index pages.
    pub(crate) fn open_load(&self) -> PageDemand {
        self.layers.read().open.load
    }

    /// Turns the open group into the committing one and opens a new one. There must be no
    /// concurrent changes.
    pub(crate) fn rotate(&self) -> Arc<GroupOverlay> {
        let mut layers = self.layers.write();
        let group = Arc::new(std::mem::take(&mut layers.open));
        layers.committing = Some(group.clone());
        group
    }

    /// Writes a group to redb, durably and atomically, with its number if the store has a write
    /// log. `on_written` receives the pages written since the last call, by offset and length in
    /// bytes, before any new inspection of the file.
    pub(crate) fn commit(
        &self,
        group: &GroupOverlay,
        number: Option<u64>,
        on_written: impl FnOnce(&[(u64, u64)]),
    ) -> Result<(), StoreError> {
        let write = |engine: &Database| -> Result<(), redb::Error> {
            let transaction = engine.begin_write()?;
            {
                let mut table = transaction.open_table(TABLE)?;
                if let Some(number) = number {
                    let key = group_key();
                    table.insert(&key, &seal(&key, number.to_le_bytes().to_vec())[..])?;
                }
                for (key, value) in &group.changes {
                    match value {
                        Some(value) => table.insert(key, &value.encode(key)[..])?,
                        None => table.remove(key)?,
                    };
                }
            }
            transaction.commit()?;
            Ok(())
        };
        let engine = self.engine.read();
        let live = engine.live.as_ref().ok_or(StoreError::Poisoned)?;
        guarded(|| write(live.get())).map_err(store_error("committing a group"))?;
        on_written(&self.pages.take_written());
        Ok(())
    }

    /// Inspects the file again: used pages are those that the last commit refers to. The engine
    /// gets all others, and if that does not suffice, a longer file: by `wanted` bytes, or what the
    /// medium has of that, but at most `growth_max`. Reads and commits wait until `found` has
    /// received the result. Returns false and changes nothing if the file cannot be inspected, or
    /// if it cannot grow and nothing `is_touched` since the last inspection.
    ///
    /// # Errors
    /// If the engine could not be started again: the caller then poisons the store.
    pub(crate) fn reinspect(
        &self,
        wanted: u64,
        growth_max: u64,
        is_touched: impl FnOnce() -> bool,
        suffices: impl Fn(&FreePages) -> bool,
        found: impl FnOnce(FreePages),
    ) -> Result<bool, StoreError> {
        let failed = |error| store_error("inspecting the index file")(redb::Error::Io(error));
        let mut engine = self.engine.write();
        if engine.live.is_none() || engine.frozen.is_some() || self.stopped.load(Ordering::Acquire) {
            return Err(StoreError::Poisoned);
        }
        let mut grown = false;
        if !is_touched() {
            grown = self.pages.grow(wanted, growth_max).map_err(failed)?;
            if !grown {
                return Ok(false);
            }
        }
        let Some((mut allocator, mut free_pages)) = self.pages.inspect(NAME) else { return Ok(false) };
        if !grown && !suffices(&free_pages) && self.pages.grow(wanted, growth_max).map_err(failed)? {
            let Some(larger) = self.pages.inspect(NAME) else { return Ok(false) };
            (allocator, free_pages) = larger;
        }
        tracing::debug!(
            length = free_pages.length,
            units = free_pages.shape.units,
            "inspected the index file for free pages"
        );
        if let Some(live) = engine.live.take() {
            live.abandon();
        }
        self.pages.start_from(&allocator).map_err(failed)?;
        let live = LiveDatabase::open(&self.pages, self.engine_cache)
            .map_err(store_error("inspecting the index file"))?;
        engine.live = Some(live);
        found(free_pages);
        Ok(true)
    }

    /// Ends the committing group, which is in redb now: its records may be cached.
    pub(crate) fn settle(&self, group: &GroupOverlay) {
        let mut layers = self.layers.write();
        for (key, value) in &group.changes {
            self.cache(key).put(*key, value.clone());
        }
        layers.committing = None;
    }

    /// Stops all writes permanently. If the engine failed, our own reader continues on the last
    /// synced commit: the last group or the one before. The layers above hold newer changes in
    /// either case.
    pub(crate) fn stop(&self, engine_failed: bool) {
        self.stopped.store(true, Ordering::Release);
        if !engine_failed {
            return;
        }
        let mut engine = self.engine.write();
        engine.frozen.get_or_insert_with(|| Arc::new(self.pages.frozen(NAME)));
    }

    /// Returns the flag that is set when nothing may be written any more.
    pub(crate) fn stopped(&self) -> Arc<AtomicBool> {
        self.stopped.clone()
    }
}
