//! `sealstone-store`: opens and uses a changed medium.
//!
//! Property beyond the absence of panics: if only segments were changed, reads return the written
//! bytes.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use redb::{Builder, ReadableDatabase as _, ReadableTable as _, StorageBackend, TableDefinition};
use sealstone_iscsi::crc32c_append;
use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sealstone_store::{DiskStore, FormatOptions, Medium, MediumFile, ObjectStore, StoreOptions, format};

use crate::Target;
use crate::input::{Input, fitted};

const CAPACITY: u64 = 1 << 20;
/// The table and the files of a store, as in docs/design/store.md.
const TABLE: TableDefinition<'static, &[u8; 25], &[u8]> = TableDefinition::new("sealstone");
const INDEX_FILE: &str = "index.redb";
/// Length of the header's copy at the end of the file, in bytes.
const COPY_LEN: u64 = 4096;
const SUPERBLOCK: &str = "superblock";
const LOG_FILE: &str = "write-log";
/// Alignment of records in the write log, in bytes.
const LOG_PAGE: usize = 4096;
/// Length of a record header, in bytes.
const RECORD_HEADER: usize = 48;
/// Maximum length of the steps in a record, in bytes: less than half of the smallest log.
const STEPS_MAX: usize = 256 << 10;
const SUPERBLOCK_LEN: usize = 512;
/// Maximum number of objects to read in an opened store.
const OBJECTS_MAX: usize = 32;
/// Maximum file length for a changed store, in bytes.
const FILE_MAX: u64 = 64 << 20;
const SECTOR: usize = 512;

/// Files in memory. A copy shares their bytes until one side writes.
#[derive(Default)]
struct RamMedium(Mutex<BTreeMap<String, Arc<RamFile>>>);

#[derive(Default)]
struct RamFile(Mutex<Arc<Vec<u8>>>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic of the tested code must not poison later runs.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RamMedium {
    fn copy(&self) -> Self {
        let files = locked(&self.0);
        let copies = files
            .iter()
            .map(|(name, file)| (name.clone(), Arc::new(RamFile(Mutex::new(Arc::clone(&locked(&file.0)))))));
        Self(Mutex::new(copies.collect()))
    }

    fn names(&self) -> Vec<String> {
        locked(&self.0).keys().cloned().collect()
    }

    fn file(&self, name: &str) -> Option<Arc<RamFile>> {
        locked(&self.0).get(name).cloned()
    }
}

impl Medium for RamMedium {
    fn open(&self, name: &str, create: bool) -> io::Result<Arc<dyn MediumFile>> {
        let mut files = locked(&self.0);
        if !create && !files.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let file = Arc::clone(files.entry(name.to_owned()).or_default());
        Ok(file)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        locked(&self.0).remove(name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }
}

impl RamFile {
    fn change(&self, change: impl FnOnce(&mut Vec<u8>)) {
        change(Arc::make_mut(&mut locked(&self.0)));
    }
}

fn end(offset: u64, length: usize) -> io::Result<usize> {
    let end = offset.checked_add(length as u64).filter(|end| *end <= FILE_MAX);
    end.map(|end| end as usize).ok_or_else(|| io::ErrorKind::StorageFull.into())
}

impl MediumFile for RamFile {
    fn length(&self) -> io::Result<u64> {
        Ok(locked(&self.0).len() as u64)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let length = end(length, 0)?;
        self.change(|bytes| bytes.resize(length, 0));
        Ok(())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let bytes = locked(&self.0);
        let eof = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let end = end(offset, into.len()).map_err(|_| eof())?;
        into.copy_from_slice(bytes.get(end - into.len()..end).ok_or_else(eof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = end(offset, data.len())?;
        self.change(|bytes| {
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[end - data.len()..end].copy_from_slice(data);
        });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// A backend of the index database, for changing records under correct checksums.
#[derive(Debug)]
struct IndexBackend(Arc<RamFile>);

impl std::fmt::Debug for RamFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RamFile")
    }
}

impl StorageBackend for IndexBackend {
    fn len(&self) -> io::Result<u64> {
        // The last page is the store's copy of the header.
        Ok(self.0.length()?.saturating_sub(COPY_LEN))
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, out)
    }
    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.as_ref().set_len(length + COPY_LEN)
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }
}

fn options() -> StoreOptions {
    StoreOptions {
        record_cache: 8 << 10,
        index_cache: 64 << 10,
        discard_blocks_min: 4,
        ..StoreOptions::default()
    }
}

fn open(medium: RamMedium) -> Option<DiskStore> {
    DiskStore::open(Arc::new(medium), options()).ok()
}

const PARTITION: ObjectId = ObjectId::of_partition(0x1_0000);

const fn object(number: u64) -> ObjectId {
    ObjectId::new(0x1_0000, 0x1_0000 + number)
}

/// Contents of an object of the base store.
fn contents(number: u64) -> Vec<u8> {
    let length = [0, 10, 4096, 30_000, 150_000][number as usize % 5];
    (0..length).map(|at: u64| (at * 7 + number) as u8).collect()
}

/// A small store with objects of every kind.
struct BaseStore {
    medium: RamMedium,
    /// Nonzero sectors of each file.
    places: BTreeMap<String, Vec<usize>>,
    /// Keys and values of the index.
    records: Vec<([u8; 25], Vec<u8>)>,
}

fn base() -> &'static BaseStore {
    static BASE: OnceLock<BaseStore> = OnceLock::new();
    BASE.get_or_init(|| {
        let medium = Arc::new(RamMedium::default());
        let wanted =
            FormatOptions { segment: Some(1 << 20), ..FormatOptions::new(CAPACITY, *b"0123456789abcdef") };
        format(&*medium, &wanted).expect("an empty medium");
        let shared = Arc::clone(&medium);
        let store = DiskStore::open(shared, options()).expect("a new store");
        let must = "a healthy store works";
        store.create(PARTITION, ObjectType::Partition).expect(must);
        for number in 0..10 {
            store.create(object(number), ObjectType::User).expect(must);
            store.write(object(number), 0, &contents(number)).expect(must);
            store.set_attribute(object(number), AttributeId::new(1, 1), b"a value").expect(must);
            store.set_attribute(object(number), AttributeId::new(2, 1), &[7; 300]).expect(must);
        }
        store.write(object(9), 5 << 20, &[1; 5000]).expect(must);
        store.clear(object(4), 8192, 8192).expect(must);
        store.punch(object(3), 4096, 4096).expect(must);
        store.remove(object(8)).expect(must);
        store.flush().expect(must);
        drop(store);
        let medium = medium.copy();
        let places = medium.names().into_iter().map(|name| {
            let file = medium.file(&name).expect("listed");
            let bytes = Arc::clone(&locked(&file.0));
            let used =
                bytes.chunks(SECTOR).enumerate().filter(|(_, sector)| sector.iter().any(|byte| *byte != 0));
            (name, used.map(|(at, _)| at * SECTOR).collect())
        });
        let places = places.collect();
        let records = records(&medium);
        BaseStore { medium, places, records }
    })
}

fn records(medium: &RamMedium) -> Vec<([u8; 25], Vec<u8>)> {
    let must = "a healthy index reads";
    let file = medium.copy().file(INDEX_FILE).expect("the index");
    let engine = Builder::new().create_with_backend(IndexBackend(file)).expect(must);
    let table = engine.begin_read().expect(must).open_table(TABLE).expect(must);
    let all = table.iter().expect(must).map(|entry| {
        let (key, value) = entry.expect(must);
        (*key.value(), value.value().to_vec())
    });
    all.collect()
}

/// Expected contents of the object after the operations of `base`.
fn expected(number: u64) -> Vec<u8> {
    let mut bytes = contents(number);
    match number {
        3 => drop(bytes.drain(4096..8192)),
        4 => bytes[8192..16384].fill(0),
        9 => {
            bytes.resize(5 << 20, 0);
            bytes.extend([1; 5000]);
        }
        _ => {}
    }
    bytes
}

/// Uses all operations. With `sound`, reads must return the written bytes.
fn exercise(store: &DiskStore, sound: bool) {
    let mut buffer = vec![0; 64 << 10];
    let listed = store.list_known(ObjectId::ROOT, OBJECTS_MAX).unwrap_or_default();
    for (id, _) in &listed {
        let stat = store.stat(*id);
        let offsets =
            [0, 4000, 8000, 60_000, (5 << 20) - 100, stat.map_or(0, |stat| stat.length.saturating_sub(100))];
        for offset in offsets {
            let Ok(count) = store.read(*id, offset, &mut buffer) else { continue };
            if sound && id.object != 0 {
                let whole = expected(id.object - 0x1_0000);
                let from = whole.len().min(offset as usize);
                let to = whole.len().min(from + buffer.len());
                assert!(buffer[..count] == whole[from..to], "{id:?} at {offset} is not what was written");
            }
        }
        let _ = store.attributes(*id, None);
        let _ = store.attribute(*id, AttributeId::new(1, 1));
        let _ = store.verify(*id);
    }
    let _ = store.space();
    for (at, (id, _)) in listed.iter().enumerate() {
        let id = *id;
        let _ = match at % 6 {
            0 => store.write(id, 100, &[3; 9000]),
            1 => store.punch(id, 10, 5000),
            2 => store.clear(id, 0, 20_000),
            3 => store.resize(id, 5),
            4 => store.set_attribute(id, AttributeId::new(1, 1), &[9; 4000]),
            _ => store.remove(id),
        };
    }
    let _ = store.create(object(77), ObjectType::User);
    let _ = store.write(object(77), 0, &[8; 10_000]);
    let _ = store.flush();
    for (id, _) in listed {
        let _ = store.remove(id);
    }
    let _ = store.flush();
}

/// One change: file, kind, position, value.
fn edit(medium: &RamMedium, names: &[String], input: &mut Input<'_>) -> Option<String> {
    let (which, kind) = (input.byte(), input.byte());
    let (sector, within, value) = (usize::from(input.short()), usize::from(input.short()), input.byte());
    let name = names.get(usize::from(which) % names.len().max(1))?;
    let places = base().places.get(name).map_or(&[][..], Vec::as_slice);
    // Most of an index file is empty, so positions refer to nonzero sectors.
    let at = places.get(sector % places.len().max(1)).copied().unwrap_or(0) + within % SECTOR;
    let file = medium.file(name)?;
    match kind % 8 {
        // Another target changes index pages.
        0..=5 if name == INDEX_FILE && names.len() > 1 => return None,
        6 => {
            let _ = medium.delete(name);
        }
        7 => file.change(|bytes| bytes.truncate(at)),
        kind => file.change(|bytes| {
            let left = bytes.len().saturating_sub(at);
            let Some(slot) = bytes.get_mut(at) else { return };
            match kind {
                0 | 1 => *slot ^= value,
                2 => *slot = value,
                3 => bytes[at..at + left.min(8)].fill(value),
                4 => bytes[at - at % SECTOR..][..SECTOR.min(left)].fill(0),
                _ => bytes.copy_within(0..left.min(SECTOR).min(at), at - at % SECTOR),
            }
        }),
    }
    Some(name.clone())
}

fn opened(input: &[u8]) {
    let mut input = Input::new(input);
    let medium = base().medium.copy();
    let mut sound = true;
    while !input.is_empty() {
        let names = medium.names();
        let changed = edit(&medium, &names, &mut input);
        sound &= changed.is_none_or(|name| name.starts_with("segment-"));
    }
    let Some(store) = open(medium) else { return };
    exercise(&store, sound);
}

pub(crate) const OPEN: Target = Target {
    name: "store-open",
    about: "changes to the files of a small store (file, kind, sector, byte, value); then it is opened and used",
    run: opened,
    seeds: || {
        let names = base().medium.names().len() as u8;
        let mut seeds = vec![Vec::new()];
        for file in 0..names {
            for kind in 0..8 {
                seeds.push(vec![file, kind, 0, 1, 0, 20, 0x10]);
                seeds.push(vec![file, kind, 0, 0, 1, 0, 0xFF]);
            }
        }
        seeds
    },
    cost: 1500,
    quarantine: None,
    covers: &["store::DiskStore::open"],
};

fn index_pages(input: &[u8]) {
    let mut input = Input::new(input);
    let medium = base().medium.copy();
    while !input.is_empty() {
        let _ = edit(&medium, &[INDEX_FILE.to_owned()], &mut input);
    }
    if let Some(store) = open(medium) {
        exercise(&store, false);
    }
}

pub(crate) const INDEX_PAGES: Target = Target {
    name: "store-index",
    about: "changes to the index file (0, kind, sector, byte, value); then the store is opened and used",
    run: index_pages,
    seeds: || {
        let sectors = base().places[INDEX_FILE].len() as u16;
        let all = (0..sectors).flat_map(|sector| (0..6).map(move |kind| (sector.to_be_bytes(), kind)));
        all.map(|([high, low], kind)| vec![0, kind, high, low, 0, 20, 0x10]).collect()
    },
    cost: 1500,
    quarantine: None,
    covers: &["store::DiskStore::open"],
};

fn superblock(input: &[u8]) {
    let medium = base().medium.copy();
    let mut bytes = fitted(input, SUPERBLOCK_LEN);
    let crc = crc32c_append(0, &bytes[..SUPERBLOCK_LEN - 4]);
    bytes[SUPERBLOCK_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
    medium.file(SUPERBLOCK).expect("the superblock").change(|file| *file = bytes);
    if let Some(store) = open(medium) {
        exercise(&store, false);
    }
}

pub(crate) const WHOLE_SUPERBLOCK: Target = Target {
    name: "store-superblock",
    about: "a superblock, which gets a right checksum; then the store is opened and used",
    run: superblock,
    seeds: || {
        let file = base().medium.file(SUPERBLOCK).expect("the superblock");
        let bytes = locked(&file.0).to_vec();
        vec![bytes]
    },
    cost: 1500,
    quarantine: None,
    covers: &["store::DiskStore::open"],
};

fn record_seeds() -> Vec<Vec<u8>> {
    let one = |(at, (_, value)): (usize, &([u8; 25], Vec<u8>))| {
        let body = &value[..value.len() - 4];
        [&[at as u8][..], &(body.len() as u16).to_be_bytes(), body].concat()
    };
    base().records.iter().enumerate().map(one).collect()
}

fn record(input: &[u8]) {
    let base = base();
    let medium = base.medium.copy();
    let file = medium.file(INDEX_FILE).expect("the index");
    let must = "a healthy index is written";
    let engine = Builder::new().create_with_backend(IndexBackend(file)).expect(must);
    let transaction = engine.begin_write().expect(must);
    let mut table = transaction.open_table(TABLE).expect(must);
    let mut input = Input::new(input);
    while !input.is_empty() {
        let (key, _) = &base.records[usize::from(input.byte()) % base.records.len()];
        let length = usize::from(input.short());
        let mut value = input.take(length).to_vec();
        let crc = crc32c_append(crc32c_append(0, key), &value);
        value.extend_from_slice(&crc.to_le_bytes());
        table.insert(key, &value[..]).expect(must);
    }
    drop(table);
    transaction.commit().expect(must);
    drop(engine);
    if let Some(store) = open(medium) {
        exercise(&store, false);
    }
}

pub(crate) const RECORDS: Target = Target {
    name: "store-records",
    about: "which index record, length, value; each gets a right checksum; then the store is opened and used",
    run: record,
    seeds: record_seeds,
    cost: 2500,
    quarantine: None,
    covers: &["store::DiskStore::open"],
};

/// Steps of a write log after a crash, with the position of their record.
struct OpenLog {
    medium: RamMedium,
    at: usize,
    steps: Vec<u8>,
}

fn open_log() -> &'static OpenLog {
    static OPEN_LOG: OnceLock<OpenLog> = OnceLock::new();
    OPEN_LOG.get_or_init(|| {
        let medium = Arc::new(base().medium.copy());
        let shared = Arc::clone(&medium);
        let store = DiskStore::open(shared, options()).expect("a healthy store");
        let must = "a healthy store works";
        // One scope makes one record.
        let scope = store.begin();
        store.create(object(20), ObjectType::User).expect(must);
        store.write(object(20), 100, &[5; 20_000]).expect(must);
        store.write(object(20), 4096, &[6; 4096]).expect(must);
        store.write(object(1), 3, b"inline").expect(must);
        store.set_attribute(object(2), AttributeId::new(1, 1), b"another").expect(must);
        store.remove(object(3)).expect(must);
        scope.end().expect(must);
        let medium = medium.copy();
        drop(store);
        let file = medium.file(LOG_FILE).expect("the write log");
        let bytes = Arc::clone(&locked(&file.0));
        let at = (LOG_PAGE..bytes.len()).step_by(LOG_PAGE).find(|at| bytes[*at..].starts_with(b"SLOG"));
        let at = at.expect("a record");
        let length = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().expect("four bytes")) as usize;
        let steps = bytes[at + RECORD_HEADER..][..length].to_vec();
        OpenLog { medium, at, steps }
    })
}

fn write_log(input: &[u8]) {
    let OpenLog { medium, at, .. } = open_log();
    let medium = medium.copy();
    let steps = &input[..input.len().min(STEPS_MAX)];
    medium.file(LOG_FILE).expect("the write log").change(|bytes| {
        let record = &mut bytes[*at..];
        record[8..12].copy_from_slice(&(steps.len() as u32).to_le_bytes());
        record[RECORD_HEADER..][..steps.len()].copy_from_slice(steps);
        record[RECORD_HEADER + steps.len()..][..RECORD_HEADER].fill(0);
        let crc = crc32c_append(0, &record[8..RECORD_HEADER + steps.len()]);
        record[4..8].copy_from_slice(&crc.to_le_bytes());
    });
    if let Some(store) = open(medium) {
        exercise(&store, false);
    }
}

pub(crate) const WRITE_LOG: Target = Target {
    name: "store-log",
    about: "the steps of a record of the write log, which gets a right checksum; then the store is opened and used",
    run: write_log,
    seeds: || vec![Vec::new(), open_log().steps.clone()],
    cost: 2500,
    quarantine: None,
    covers: &["store::DiskStore::open"],
};
