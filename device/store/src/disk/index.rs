//! The index: committed records in redb, changes of the open group above them.
//!
//! Does: give the newest value of a key; scan a merged view; move the open group into redb in one commit.
//! Does not: decide when to commit, or know blocks and files.
//! Contract: an object's keys are changed by one thread at a time, and not while another reads them (the
//! object's lock); then a value found nowhere above redb is the one in redb, and may be cached.

use std::collections::BTreeMap;
use std::ops::Bound::Included;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use redb::{Builder, Database, ReadableDatabase, TableDefinition};

use super::backend::{FrozenBackend, LiveBackend};
use super::cache::Cache;
use super::record::{Key, Rotten, Value, seal, store_key, unseal};
use super::space::Run;
use crate::medium::MediumFile;
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

/// redb, as opened; and after it failed, as read from a frozen copy.
struct Engine {
    live: Arc<Database>,
    frozen: Option<Arc<Database>>,
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
        let backend = LiveBackend { file: file.clone(), stopped: stopped.clone() };
        let open = || -> Result<_, redb::Error> {
            let engine = Builder::new().set_cache_size(engine_cache).create_with_backend(backend)?;
            let table = engine.begin_read()?.open_table(TABLE)?;
            let value = table.get(&store_key())?.map(|value| value.value().to_vec());
            Ok((engine, value))
        };
        let (engine, value) = open().map_err(format_error("opening the index"))?;
        if value.as_deref().map(|value| unseal(&store_key(), value)) != Some(Ok(uuid)) {
            return Err(FormatError::Foreign);
        }
        let engine = RwLock::new(Engine { live: Arc::new(engine), frozen: None });
        let layers = RwLock::default();
        Ok(Self { layers, cache: Cache::new(cache), engine, file, stopped, engine_cache })
    }

    /// Calls `visit` with each committed record in the range.
    pub(crate) fn visit(
        &self,
        range: RangeInclusive<Key>,
        mut visit: impl FnMut(&Key, Result<Value, Rotten>) -> Result<(), FormatError>,
    ) -> Result<(), FormatError> {
        let error = |error: redb::Error| format_error("reading the index")(error);
        let table = self.engine().begin_read().map_err(|e| error(e.into()))?;
        let table = table.open_table(TABLE).map_err(|e| error(e.into()))?;
        for entry in table.range::<&[u8; 25]>(range.start()..=range.end()).map_err(|e| error(e.into()))? {
            let (key, value) = entry.map_err(|e| error(e.into()))?;
            visit(key.value(), Value::parse(key.value(), value.value()))?;
        }
        Ok(())
    }

    /// The engine to read from.
    fn engine(&self) -> Arc<Database> {
        let engine = self.engine.read();
        engine.frozen.as_ref().unwrap_or(&engine.live).clone()
    }

    /// Reads from the engine. If that fails it has failed for good: the store is stopped, and the frozen copy
    /// is asked.
    fn try_read<T>(
        &self,
        doing: &'static str,
        mut read: impl FnMut(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        match read(&self.engine()) {
            Ok(found) => Ok(found),
            Err(error) => {
                tracing::error!(%error, doing, "the index engine failed; the store refuses writes until opened again");
                self.stop(true);
                read(&self.engine()).map_err(store_error(doing))
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
        let engine = self.engine.read().live.clone();
        write(&engine).map_err(store_error("committing a group"))
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
        let open =
            |backend| Builder::new().set_cache_size(self.engine_cache).create_with_backend(backend).ok();
        engine.frozen = backend.and_then(open).map(Arc::new);
    }

    /// Set when nothing may be written any more.
    pub(crate) fn stopped(&self) -> Arc<AtomicBool> {
        self.stopped.clone()
    }
}
