//! The index: committed records in redb, changes of the open group above them.
//!
//! Does: give the newest value of a key; scan a merged view; move the open group into redb in one commit.
//! Does not: decide when to commit, or know blocks and files.
//! Contract: an object's keys are changed by one thread at a time, and not while another reads them (the
//! object's lock); then a value found nowhere above redb is the one in redb, and may be cached.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound::Included;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use redb::{Builder, Database, ReadableDatabase, TableDefinition};
use sealstone_osd::ObjectId;

use super::backend::{FrozenBackend, LiveBackend};
use super::cache::Cache;
use super::chunk::Chunk;
use super::record::{
    Key, Rotten, Value, all_attributes, all_chunks, all_objects, object_of, seal, store_key, unseal,
};
use super::space::Run;
use super::ties::Ties;
use crate::medium::MediumFile;
use crate::store::attribute_weight;
use crate::{FormatError, StoreError};

/// The one table.
const TABLE: TableDefinition<'static, &[u8; 25], &[u8]> = TableDefinition::new("sealstone");
/// What a change costs in memory beside its value, about, in bytes.
const ENTRY: usize = 72;

/// Changes of one group: key to new value, or `None` for removed.
#[derive(Default)]
pub(crate) struct Overlay {
    changes: BTreeMap<Key, Option<Value>>,
    /// Memory that the changes take, about, in bytes.
    pub(crate) weight: usize,
    /// Blocks that no object uses any more once the group is committed.
    pub(crate) freed: Vec<Run>,
}

impl Overlay {
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    fn put(&mut self, key: Key, value: Option<Value>) {
        let weight = |value: &Option<Value>| ENTRY + value.as_ref().map_or(0, Value::weight);
        self.weight += weight(&value);
        if let Some(old) = self.changes.insert(key, value) {
            self.weight -= weight(&old);
        }
    }
}

#[derive(Default)]
struct Layers {
    open: Overlay,
    committing: Option<Arc<Overlay>>,
}

/// What a walk over the whole index found.
#[derive(Default)]
pub(crate) struct Survey {
    pub(crate) objects: u64,
    /// Records that fail their checksum, or whose object is gone.
    pub(crate) damaged: u64,
    /// Objects that miss chunks or attributes.
    pub(crate) incomplete: u64,
}

/// Records by their objects, in order.
pub(crate) struct Owned<'a>(Peekable<redb::Range<'a, &'static [u8; 25], &'static [u8]>>);

impl<'a> Owned<'a> {
    pub(crate) fn new(range: redb::Range<'a, &'static [u8; 25], &'static [u8]>) -> Self {
        Self(range.peekable())
    }

    /// Visits what belongs to objects up to `id`; counts as damaged what is rotten or belongs to one before.
    pub(crate) fn advance(
        &mut self,
        id: ObjectId,
        damaged: &mut u64,
        mut visit: impl FnMut(&Key, Value),
    ) -> Result<(), redb::Error> {
        let is_due = |entry: &Result<(redb::AccessGuard<'_, &[u8; 25]>, _), _>| {
            entry.as_ref().is_err() || entry.as_ref().is_ok_and(|(key, _)| object_of(key.value()) <= id)
        };
        while let Some(entry) = self.0.next_if(is_due) {
            let (key, value) = entry?;
            let owner = object_of(key.value());
            *damaged += u64::from(owner != id);
            match Value::parse(key.value(), value.value()) {
                Ok(value) => visit(key.value(), value),
                Err(Rotten) => *damaged += u64::from(owner == id),
            }
        }
        Ok(())
    }
}

/// Runs the engine on a file that may hold anything: it panics on some of it.
fn guarded<T>(work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(redb::Error::Corrupted("the engine panicked over the index file".to_owned())))
}

/// redb, as opened; and after it failed, as read from a frozen copy.
struct Engine {
    live: Option<Arc<Held>>,
    frozen: Option<Arc<Held>>,
}

impl Engine {
    /// The one to read from.
    fn reading(&self) -> Option<Arc<Held>> {
        self.frozen.as_ref().or(self.live.as_ref()).cloned()
    }
}

/// A redb database that may be dropped over any file: closing it writes, and may panic over a damaged one.
struct Held(Option<Database>);

impl Held {
    fn new(database: Database) -> Self {
        Self(Some(database))
    }

    fn get(&self) -> &Database {
        self.0.as_ref().expect("taken by drop alone")
    }

    /// Checks all pages and the allocator's state.
    fn check(&mut self) -> Result<(), redb::Error> {
        let database = self.0.as_mut().expect("taken by drop alone");
        database.check_integrity()?;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let database = self.0.take();
        if guarded(move || {
            drop(database);
            Ok(())
        })
        .is_err()
        {
            tracing::error!("closing the index failed");
        }
    }
}

/// The index of an open store.
pub(crate) struct Index {
    layers: RwLock<Layers>,
    cache: Cache,
    engine: RwLock<Engine>,
    file: Arc<dyn MediumFile>,
    stopped: Arc<AtomicBool>,
    engine_cache: usize,
}

fn store_error(doing: &'static str) -> impl Fn(redb::Error) -> StoreError {
    move |source| StoreError::Index { doing, source: Box::new(source) }
}

fn format_error(doing: &'static str) -> impl Fn(redb::Error) -> FormatError {
    move |source| FormatError::Index { doing, source: Box::new(source) }
}

impl Index {
    /// Makes the index of a new store in an empty file, durably.
    pub(crate) fn format(file: Arc<dyn MediumFile>, uuid: &[u8; 16]) -> Result<(), FormatError> {
        let write = || -> Result<(), redb::Error> {
            let stopped = Arc::default();
            let engine = Builder::new().create_with_backend(LiveBackend { file: file.clone(), stopped })?;
            let transaction = engine.begin_write()?;
            let value = seal(&store_key(), uuid.to_vec());
            transaction.open_table(TABLE)?.insert(&store_key(), &value[..])?;
            transaction.commit()?;
            Ok(())
        };
        write().map_err(format_error("making the index"))
    }

    /// Opens the index of the store `uuid`.
    pub(crate) fn open(
        file: Arc<dyn MediumFile>,
        uuid: &[u8; 16],
        engine_cache: usize,
        cache: usize,
    ) -> Result<Self, FormatError> {
        let stopped: Arc<AtomicBool> = Arc::default();
        let error = format_error("opening the index");
        let builder = || {
            let mut builder = Builder::new();
            builder.set_cache_size(engine_cache);
            builder
        };
        let name = |engine: &Database| -> Result<_, redb::Error> {
            let table = engine.begin_read()?.open_table(TABLE)?;
            Ok(table.get(&store_key())?.map(|value| value.value().to_vec()))
        };
        // Every page is checked here; the engine itself would trust what it reads later.
        let live = guarded(|| {
            let backend = LiveBackend { file: file.clone(), stopped: stopped.clone() };
            let mut engine = Held::new(builder().create_with_backend(backend)?);
            engine.check()?;
            Ok(engine)
        });
        let (live, frozen) = match live {
            Ok(engine) => (Some(engine), None),
            Err(redb::Error::Io(failure)) => return Err(error(redb::Error::Io(failure))),
            Err(failure) => {
                // Damaged, but other pages can still be read. Writing might destroy more.
                tracing::error!(%failure, "the index is damaged: the store opens for reading only");
                stopped.store(true, Ordering::Release);
                let backend = FrozenBackend::new(file.clone()).map_err(redb::Error::Io).map_err(&error)?;
                let engine =
                    guarded(|| Ok(Held::new(builder().create_with_backend(backend)?))).map_err(&error)?;
                (None, Some(Arc::new(engine)))
            }
        };
        let engine = Engine { live: live.map(Arc::new), frozen };
        let value = match engine.reading() {
            Some(reading) => guarded(|| name(reading.get())).map_err(&error)?,
            None => None,
        };
        if value.as_deref().map(|value| unseal(&store_key(), value)) != Some(Ok(uuid)) {
            return Err(FormatError::Foreign);
        }
        let engine = RwLock::new(engine);
        let layers = RwLock::default();
        Ok(Self { layers, cache: Cache::new(cache), engine, file, stopped, engine_cache })
    }

    /// Walks the whole index: claims every extent, and checks that no object misses chunks or attributes.
    pub(crate) fn survey(
        &self,
        mut claim: impl FnMut(ObjectId, Run) -> Result<(), FormatError>,
    ) -> Result<Survey, FormatError> {
        let mut survey = Survey::default();
        let mut refusal = None;
        let mut walk = |engine: &Database| -> Result<(), redb::Error> {
            let table = engine.begin_read()?.open_table(TABLE)?;
            let range = |(first, last): (Key, Key)| table.range::<&[u8; 25]>(&first..=&last);
            let mut chunks = Owned::new(range(all_chunks())?);
            let mut attributes = Owned::new(range(all_attributes())?);
            let mut ties = Ties::new(&table)?;
            for entry in range(all_objects())? {
                let (key, value) = entry?;
                let (key, id) = (*key.value(), object_of(key.value()));
                let mut blocks = 0;
                chunks.advance(id, &mut survey.damaged, |key, value| {
                    let owner = object_of(key);
                    let Value::Chunk(chunk) = value else { return };
                    for (extent, sums) in chunk.extents() {
                        blocks += if owner == id { sums.len() as u64 } else { 0 };
                        let run = Run { place: extent.place, count: sums.len() as u64 };
                        refusal = refusal.take().or(claim(owner, run).err());
                    }
                })?;
                let mut weight = 0;
                attributes.advance(id, &mut survey.damaged, |key, value| {
                    if let (true, Value::Attribute(value)) = (object_of(key) == id, value) {
                        weight += attribute_weight(value.len());
                    }
                })?;
                survey.objects += 1;
                let tie = ties.advance(id, &mut survey.damaged)?;
                match Value::parse(&key, value.value()) {
                    Ok(Value::Object(record))
                        if (record.blocks, record.attribute_weight) == (blocks, weight)
                            && tie.fits(&record) => {}
                    Ok(Value::Object(_)) => survey.incomplete += 1,
                    _ => survey.damaged += 1,
                }
            }
            // What is left belongs to objects whose own record is gone.
            let end = ObjectId::new(u64::MAX, u64::MAX);
            chunks.advance(end, &mut survey.damaged, |_, _| ())?;
            attributes.advance(end, &mut survey.damaged, |_, _| ())?;
            survey.incomplete += u64::from(!ties.finish(&mut survey.damaged)?);
            Ok(())
        };
        let result = {
            let engine = self.engine.read().reading();
            let walk = || walk(engine.as_ref().ok_or(redb::Error::PreviousIo)?.get());
            guarded(walk).map_err(format_error("reading the index"))
        };
        match refusal {
            Some(refusal) => Err(refusal),
            None => result.map(|()| survey),
        }
    }

    /// Visits every chunk record that is sound, in key order.
    pub(crate) fn each_chunk(&self, mut visit: impl FnMut(ObjectId, &Chunk)) -> Result<(), FormatError> {
        let mut walk = |engine: &Database| -> Result<(), redb::Error> {
            let table = engine.begin_read()?.open_table(TABLE)?;
            let (first, last) = all_chunks();
            for entry in table.range::<&[u8; 25]>(&first..=&last)? {
                let (key, value) = entry?;
                if let Ok(Value::Chunk(chunk)) = Value::parse(key.value(), value.value()) {
                    visit(object_of(key.value()), &chunk);
                }
            }
            Ok(())
        };
        let engine = self.engine.read().reading();
        let walk = || walk(engine.as_ref().ok_or(redb::Error::PreviousIo)?.get());
        guarded(walk).map_err(format_error("reading the index"))
    }

    /// Reads from the engine. If that fails it has failed for good: the store is stopped, and the frozen copy
    /// is asked.
    fn try_read<T>(
        &self,
        doing: &'static str,
        mut read: impl FnMut(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let mut ask = || {
            let engine = self.engine.read().reading().ok_or(redb::Error::PreviousIo)?;
            guarded(|| read(engine.get()))
        };
        match ask() {
            Ok(found) => Ok(found),
            Err(error) => {
                tracing::error!(%error, doing, "the index engine failed; the store refuses writes until opened again");
                self.stop(true);
                ask().map_err(store_error(doing))
            }
        }
    }

    /// The newest value of a key. The caller holds the object's lock.
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Result<Value, Rotten>>, StoreError> {
        {
            let layers = self.layers.read();
            let above = layers.open.changes.get(key);
            let above = above.or_else(|| layers.committing.as_ref().and_then(|layer| layer.changes.get(key)));
            if let Some(value) = above {
                return Ok(value.clone().map(Ok));
            }
        }
        if let Some(value) = self.cache.get(key) {
            return Ok(value.map(Ok));
        }
        let found = self.try_read("reading a record", |engine| {
            let table = engine.begin_read()?.open_table(TABLE)?;
            Ok(table.get(key)?.map(|value| Value::parse(key, value.value())))
        })?;
        match found {
            Some(Err(Rotten)) => Ok(Some(Err(Rotten))),
            found => {
                let value = found.and_then(Result::ok);
                self.cache.put(*key, value.clone());
                Ok(value.map(Ok))
            }
        }
    }

    /// Up to `max` records of the merged view, in order.
    pub(crate) fn scan(
        &self,
        range: RangeInclusive<Key>,
        max: usize,
    ) -> Result<Vec<(Key, Result<Value, Rotten>)>, StoreError> {
        // The layers stay locked, so that the view is one moment's.
        let layers = self.layers.read();
        let bounds = (Included(*range.start()), Included(*range.end()));
        self.try_read("scanning records", |engine| {
            let mut found = Vec::new();
            let table = engine.begin_read()?.open_table(TABLE)?;
            let mut below = table.range::<&[u8; 25]>(range.start()..=range.end())?;
            let mut middle = layers.committing.as_ref().map(|layer| layer.changes.range(bounds).peekable());
            let mut top = layers.open.changes.range(bounds).peekable();
            let mut lowest = below.next().transpose()?;
            while found.len() < max {
                let keys = [
                    top.peek().map(|(key, _)| **key),
                    middle.as_mut().and_then(|middle| middle.peek().map(|(key, _)| **key)),
                    lowest.as_ref().map(|(key, _)| *key.value()),
                ];
                let Some(key) = keys.into_iter().flatten().min() else { break };
                let mut value = None;
                if keys[2] == Some(key) {
                    value = lowest.take().map(|(_, bytes)| Value::parse(&key, bytes.value()));
                    lowest = below.next().transpose()?;
                }
                if keys[1] == Some(key) {
                    value =
                        middle.as_mut().and_then(Iterator::next).and_then(|(_, value)| value.clone()).map(Ok);
                }
                if keys[0] == Some(key) {
                    value = top.next().and_then(|(_, value)| value.clone()).map(Ok);
                }
                found.extend(value.map(|value| (key, value)));
            }
            Ok(found)
        })
    }

    /// Puts changes of one operation into the open group, at once.
    pub(crate) fn apply(&self, changes: Vec<(Key, Option<Value>)>, freed: &[Run]) {
        let mut layers = self.layers.write();
        for (key, value) in changes {
            layers.open.put(key, value);
        }
        for &run in freed {
            Run::push(&mut layers.open.freed, run);
        }
    }

    /// Is there anything that a commit would write?
    pub(crate) fn is_dirty(&self) -> bool {
        !self.layers.read().open.is_empty()
    }

    /// Memory that the open group's changes take, about, in bytes.
    pub(crate) fn open_weight(&self) -> usize {
        self.layers.read().open.weight
    }

    /// The open group becomes the committing one; a new one is open. Nothing may change meanwhile.
    pub(crate) fn rotate(&self) -> Arc<Overlay> {
        let mut layers = self.layers.write();
        let group = Arc::new(std::mem::take(&mut layers.open));
        layers.committing = Some(group.clone());
        group
    }

    /// Writes a group into redb, durably and all at once.
    pub(crate) fn commit(&self, group: &Overlay) -> Result<(), StoreError> {
        let write = |engine: &Database| -> Result<(), redb::Error> {
            let transaction = engine.begin_write()?;
            {
                let mut table = transaction.open_table(TABLE)?;
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
        let engine = self.engine.read().live.clone().ok_or(StoreError::Poisoned)?;
        guarded(|| write(engine.get())).map_err(store_error("committing a group"))
    }

    /// The committing group is in redb: what it changed may be cached, and found there.
    pub(crate) fn settle(&self, group: &Overlay) {
        let mut layers = self.layers.write();
        for (key, value) in &group.changes {
            self.cache.put(*key, value.clone());
        }
        layers.committing = None;
    }

    /// Stops all writing for good. If the engine failed, reading goes on over a frozen copy of its file: it
    /// holds the last group or the one before, and the layers above hold what is newer, either way.
    pub(crate) fn stop(&self, engine_failed: bool) {
        self.stopped.store(true, Ordering::Release);
        if !engine_failed {
            return;
        }
        let mut engine = self.engine.write();
        let backend = FrozenBackend::new(self.file.clone()).ok();
        let open = |backend| {
            let mut builder = Builder::new();
            builder.set_cache_size(self.engine_cache);
            guarded(|| Ok(Held::new(builder.create_with_backend(backend)?))).ok()
        };
        engine.frozen = backend.and_then(open).map(Arc::new);
    }

    /// Set when nothing may be written any more.
    pub(crate) fn stopped(&self) -> Arc<AtomicBool> {
        self.stopped.clone()
    }
}
