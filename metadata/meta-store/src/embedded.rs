//! The embedded store: a redb file with a journal, one writer at a time, and readers that never
//! wait.
//!
//! Does: keeps changes in memory and in the journal until a background thread applies them to the
//! file. Commits are durable (on disk when `commit` returns; concurrent ones share one sync) or
//! lazy (in memory until the next durable one). Rejects foreign files and other versions.
//! Contract: after a failed commit the store is poisoned until it is opened again. After a crash
//! the file and the journal together are the store; after a close the file alone.
//! Truth: redb 4 file format; docs/standards/mds/store.md §8;
//! docs/adr/0049-journal-of-the-embedded-store.md.

mod file;
mod journal;
mod layer;
mod merge;
#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use redb::{
    Builder, Database, DatabaseError, ReadOnlyTable, ReadableDatabase, ReadableTable, StorageError,
    TableDefinition,
};
use sealstone_mds::store::{MetaError, MetaStore, Overlay, Snapshot, Transaction};

use file::{FileSpace, StoreFile};
use journal::{CommitJournal, JournalFile};
use layer::ChangeLayer;
use view::EmbeddedTransaction;

const DATA: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("metadata");
const MARKER: TableDefinition<'_, &str, u64> = TableDefinition::new("sealstone");
const FORMAT: &str = "metadata-format";
/// Version of the tables in a complete file; the records have their own (see `sealstone-mds`).
const FORMAT_VERSION: u64 = 1;
/// Version of the tables while the file is incomplete without its journal.
const FORMAT_JOURNAL: u64 = 2;
/// Marker with a random number chosen when the store was opened.
const EPOCH: &str = "journal-epoch";
/// Marker with the number of the last commit that is in the file.
const APPLIED: &str = "journal-applied";
/// First bytes of every redb file.
const REDB_MAGIC: &[u8; 9] = b"redb\x1A\x0A\xA9\x0D\x0A";
/// Memory for cached pages, in bytes.
const CACHE_BYTES: usize = 64 << 20;

/// Bytes of a journal file from which on its changes are applied to the store's file.
const APPLY_AT: u64 = 8 << 20;
/// Bytes of a journal file at which writers wait until it is applied. The changes in memory are at
/// most twice as much, plus overhead.
const JOURNAL_MAX: u64 = 64 << 20;
/// Free disk space required to apply the journal at once, plus four times the journal's size.
const APPLY_SPACE: u64 = 16 << 20;
/// Free disk space required to accept changes that add data.
const ADDITION_SPACE: u64 = 8 << 20;
/// [`APPLY_AT`] while disk space is short.
const APPLY_AT_SHORT: u64 = 1 << 20;
/// [`JOURNAL_MAX`] while disk space is short: half of the reserved journal space.
const JOURNAL_MAX_SHORT: u64 = journal::RESERVED / 2;
/// Keys applied in one engine commit while disk space is short.
const CHUNK_KEYS: usize = 128;
/// Space required behind the file's last page before each such commit: five pages of 4 KiB for a
/// key.
const CHUNK_SPACE: u64 = 4 << 20;
/// Interval at which waiting threads check whether the store was poisoned.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Reason why a file cannot be used as the metadata store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be opened or created.
    #[error("cannot open {}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// Other users may read the file, which holds keys.
    #[error("{} has mode {mode:o}: it holds keys, so only its owner may have access (chmod 600)", path.display())]
    Exposed {
        /// Path of the file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another process has the file open.
    #[error("{} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The file is not a redb file.
    #[error("{} is not a metadata store", .0.display())]
    Foreign(PathBuf),
    /// Another release wrote the file.
    #[error("{} has metadata format {found}, this release reads {FORMAT_JOURNAL}", path.display())]
    KeyVersion {
        /// Path of the file.
        path: PathBuf,
        /// The version found.
        found: u64,
    },
    /// The store was not closed, and the journal with its last changes is missing.
    #[error("{} is missing: the metadata store was not closed cleanly, and its last changes are in that file", .0.display())]
    NoJournal(PathBuf),
    /// The file is damaged.
    #[error("{} is damaged; restore it from a backup", path.display())]
    Corrupt {
        /// Path of the file.
        path: PathBuf,
        /// Error of the engine.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

/// Snapshot of the store's file.
type FileSnapshot = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// Current content of the store.
struct StoreState {
    base: Arc<FileSnapshot>,
    /// Changes that are being applied to the file, with the number of their last commit.
    frozen: Option<(Arc<ChangeLayer>, u64)>,
    /// Changes of later commits.
    active: Arc<ChangeLayer>,
    /// Number of the last commit.
    number: u64,
    /// Open views, counted by the commit number that they see.
    views: BTreeMap<u64, usize>,
}

/// Requests to the thread that applies changes to the file.
#[derive(Default)]
struct ApplyRequest {
    apply: bool,
    stop: bool,
}

struct StoreCore {
    database: Database,
    /// The journal; if `None`, each commit goes to the file.
    journal: Option<CommitJournal>,
    /// Folder of the file; `None` in tests.
    folder: Option<PathBuf>,
    /// Space allocated to the file.
    space: Option<Arc<FileSpace>>,
    poisoned: AtomicBool,
    /// Lock of the writer.
    writer: Mutex<()>,
    state: Mutex<StoreState>,
    /// Number of the last durable commit that was requested.
    awaited: AtomicU64,
    /// Layers whose changes are in the file, but which a view may still use.
    retired: Mutex<Vec<Arc<ChangeLayer>>>,
    apply_request: Mutex<ApplyRequest>,
    apply_requested: Condvar,
    /// Notified when changes were applied or the store was poisoned.
    applied: Condvar,
    /// Keys visited by scans, removed ones included.
    visited: AtomicU64,
}

/// The metadata store in a file.
pub struct EmbeddedMeta {
    core: Arc<StoreCore>,
    applier: Option<JoinHandle<()>>,
}

impl EmbeddedMeta {
    /// Opens the store at `path`, or creates an empty one with mode 0600, for short work: each
    /// commit goes to the file. The file may be renamed meanwhile.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::start(path, false)
    }

    /// Opens the store for a server: commits go to a journal of two files beside it, and a
    /// background thread applies them to the file. After a close the file is complete.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn serve(path: &Path) -> Result<Self, OpenError> {
        Self::start(path, true)
    }

    fn start(path: &Path, journaled: bool) -> Result<Self, OpenError> {
        let io = |source| OpenError::Io { path: path.to_owned(), source };
        let file = open_private(path)?;
        let (backend, space) =
            StoreFile::open(file).map_err(io)?.ok_or_else(|| OpenError::InUse(path.to_owned()))?;
        let database = builder().create_with_backend(backend).map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => OpenError::InUse(path.to_owned()),
            DatabaseError::UpgradeRequired(found) => {
                OpenError::KeyVersion { path: path.to_owned(), found: u64::from(found) }
            }
            DatabaseError::Storage(StorageError::Io(source)) => {
                OpenError::Io { path: path.to_owned(), source }
            }
            other => OpenError::Corrupt { path: path.to_owned(), source: Box::new(other) },
        })?;
        let start_error = |start_error| match start_error {
            StartError::Io(source) => io(source),
            StartError::Damage(source) => OpenError::Corrupt { path: path.to_owned(), source },
        };
        let markers = StoreMarkers::read(&database).map_err(start_error)?;
        if ![FORMAT_VERSION, FORMAT_JOURNAL].contains(&markers.format) {
            return Err(OpenError::KeyVersion { path: path.to_owned(), found: markers.format });
        }
        let left = if markers.format == FORMAT_JOURNAL { Some(read_journal(path)?) } else { None };
        let media = if journaled {
            // If the store was closed, the content of journal files is ignored.
            let files = journal::open_files(path).map_err(io)?;
            Some(files.map(|file| Box::new(file) as Box<dyn JournalFile>))
        } else {
            None
        };
        let folder = journal::folder_of(path).to_owned();
        // Applies a crash's journal in chunks if the disk may not have space for all of it at once.
        let bytes: usize = left.iter().flatten().map(Vec::len).sum();
        let keys_max = if free_of(&folder).is_none_or(|free| free >= APPLY_SPACE + 4 * bytes as u64) {
            usize::MAX
        } else {
            CHUNK_KEYS
        };
        let mut core =
            StoreCore::begin(database, markers, left.as_ref(), media, keys_max).map_err(start_error)?;
        (core.folder, core.space) = (Some(folder), Some(space));
        let core = Arc::new(core);
        if !journaled {
            journal::remove_files(path).map_err(io)?;
        }
        let applier = journaled.then(|| core.clone().spawn_applier()).transpose().map_err(io)?;
        Ok(Self { core, applier })
    }

    /// Renames a store that no process has open, with its journal if there is one.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
        for (from, to) in journal::paths(from).iter().zip(journal::paths(to)) {
            match std::fs::rename(from, to) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::rename(from, to)
    }

    /// Applies all changes to the file, which is complete without the journal afterwards.
    fn close(&mut self) -> Result<(), Box<dyn Error + Send + Sync>> {
        let Some(applier) = self.applier.take() else { return Ok(()) };
        self.core.apply_request.lock().stop = true;
        self.core.apply_requested.notify_all();
        applier.join().map_err(|_| "the thread that applies the journal panicked")?;
        self.core.apply()?;
        let tx = self.core.database.begin_write()?;
        tx.open_table(MARKER)?.insert(FORMAT, FORMAT_VERSION)?;
        tx.commit()?;
        // The journal files keep their allocated space: the disk may be full at the next start.
        Ok(())
    }
}

impl Drop for EmbeddedMeta {
    fn drop(&mut self) {
        // Changes that could not be applied remain in the journal, which the next start reads.
        if let Err(error) = self.close() {
            tracing::error!(error, "metadata store not closed cleanly; the next start replays the journal");
        }
    }
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Markers of the file.
struct StoreMarkers {
    format: u64,
    epoch: u64,
    applied: u64,
}

impl StoreMarkers {
    /// Reads the markers; writes them first in a new file.
    fn read(database: &Database) -> Result<Self, StartError> {
        let tx = database.begin_write()?;
        let markers = {
            let mut marker = tx.open_table(MARKER)?;
            tx.open_table(DATA)?;
            let mark = |marker: &redb::Table<'_, &str, u64>, name| {
                Ok::<_, StorageError>(marker.get(name)?.map(|value| value.value()))
            };
            let format = match mark(&marker, FORMAT)? {
                Some(format) => format,
                None => {
                    marker.insert(FORMAT, FORMAT_VERSION)?;
                    FORMAT_VERSION
                }
            };
            let (epoch, applied) = (mark(&marker, EPOCH)?, mark(&marker, APPLIED)?);
            Self { format, epoch: epoch.unwrap_or_default(), applied: applied.unwrap_or_default() }
        };
        tx.commit()?;
        Ok(markers)
    }
}

/// Reads the journal files.
fn read_journal(path: &Path) -> Result<[Vec<u8>; 2], OpenError> {
    let read =
        |path: &PathBuf| match File::open(path).and_then(|file| Ok((mode_of(&file)?, file.read_all()?))) {
            Ok((mode, _)) if mode & 0o077 != 0 => Err(OpenError::Exposed { path: path.clone(), mode }),
            Ok((_, bytes)) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(OpenError::NoJournal(path.clone())),
            Err(source) => Err(OpenError::Io { path: path.clone(), source }),
        };
    let [first, second] = journal::paths(path);
    Ok([read(&first)?, read(&second)?])
}

fn mode_of(file: &File) -> io::Result<u32> {
    Ok(file.metadata()?.permissions().mode() & 0o7777)
}

fn open_private(path: &Path) -> Result<File, OpenError> {
    let io = |source| OpenError::Io { path: path.to_owned(), source };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    let mode = mode_of(&file).map_err(io)?;
    if !metadata.is_file() {
        return Err(OpenError::Foreign(path.to_owned()));
    }
    if mode & 0o077 != 0 {
        return Err(OpenError::Exposed { path: path.to_owned(), mode });
    }
    if metadata.len() > 0 {
        let mut magic = [0; REDB_MAGIC.len()];
        if file.read_exact(&mut magic).is_err() || magic != *REDB_MAGIC {
            return Err(OpenError::Foreign(path.to_owned()));
        }
    }
    Ok(file)
}

fn full() -> MetaError {
    MetaError::of_medium(io::ErrorKind::StorageFull.into())
}

/// Returns the free bytes of a folder's file system.
fn free_of(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

fn failed(error: impl Into<redb::Error>) -> MetaError {
    MetaError::Failed(Box::new(error.into()))
}

impl StoreCore {
    /// Opens a store: applies a crash's journal `left`, then starts a new journal on `media`, if
    /// given. Applies up to `keys_max` keys in one engine commit.
    fn begin(
        database: Database,
        markers: StoreMarkers,
        left: Option<&[Vec<u8>; 2]>,
        media: Option<[Box<dyn JournalFile>; 2]>,
        keys_max: usize,
    ) -> Result<Self, StartError> {
        let records = match left {
            Some(left) => journal::replay(left, markers.epoch, markers.applied)
                .map_err(|error| StartError::Damage(error.into()))?,
            None => Vec::new(),
        };
        let number = records.last().map_or(markers.applied, |record| record.number);
        // A new epoch invalidates all older journal records.
        let mut epoch = [0; 8];
        getrandom::fill(&mut epoch).map_err(|error| StartError::Io(io::Error::other(error.to_string())))?;
        let epoch = u64::from_be_bytes(epoch);
        // A crash between chunks is harmless: all records are still in the journal and are applied
        // again.
        let mut changes = records.into_iter().flat_map(|record| record.changes).peekable();
        while changes.peek().is_some() {
            let tx = database.begin_write()?;
            {
                let mut table = tx.open_table(DATA)?;
                for (key, change) in changes.by_ref().take(keys_max) {
                    change_in(&mut table, &key, change.as_deref())?;
                }
            }
            tx.commit()?;
        }
        let tx = database.begin_write()?;
        {
            tx.open_table(DATA)?;
            let mut marker = tx.open_table(MARKER)?;
            marker.insert(FORMAT, FORMAT_VERSION)?;
            marker.insert(EPOCH, epoch)?;
            marker.insert(APPLIED, number)?;
        }
        tx.commit()?;
        let journal = media.map(|media| CommitJournal::new(media, epoch, number)).transpose()?;
        if journal.is_some() {
            // From here on the file needs its journal. Both files are durable and carry the epoch.
            let tx = database.begin_write()?;
            tx.open_table(MARKER)?.insert(FORMAT, FORMAT_JOURNAL)?;
            tx.commit()?;
        }
        let base = Arc::new(base(&database)?);
        let active = Arc::default();
        Ok(Self {
            database,
            journal,
            folder: None,
            space: None,
            poisoned: AtomicBool::new(false),
            writer: Mutex::default(),
            state: Mutex::new(StoreState { base, frozen: None, active, number, views: BTreeMap::new() }),
            awaited: AtomicU64::new(number),
            retired: Mutex::default(),
            apply_request: Mutex::default(),
            apply_requested: Condvar::new(),
            applied: Condvar::new(),
            visited: AtomicU64::new(0),
        })
    }

    fn check(&self) -> Result<(), MetaError> {
        if self.poisoned.load(Ordering::Acquire) { Err(MetaError::Poisoned) } else { Ok(()) }
    }

    /// Runs work that must not fail halfway; an error poisons the store.
    fn poison_on_error<T, E>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<T, MetaError>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.check()?;
        work().map_err(|error| {
            self.poisoned.store(true, Ordering::Release);
            self.applied.notify_all();
            MetaError::Failed(error.into())
        })
    }

    /// Waits until commit `number` is durable.
    fn wait_durable(&self, number: u64) -> Result<(), MetaError> {
        match &self.journal {
            Some(journal) if journal.durable() < number => self.poison_on_error(|| journal.sync(number)),
            _ => self.check(),
        }
    }

    /// Waits while the journal exceeds its maximum.
    fn wait_for_journal_space(&self) -> Result<(), MetaError> {
        let Some(journal) = &self.journal else { return Ok(()) };
        if journal.used() < JOURNAL_MAX_SHORT {
            return Ok(());
        }
        let most = || if self.accepts_additions() { JOURNAL_MAX } else { JOURNAL_MAX_SHORT };
        let mut apply_request = self.apply_request.lock();
        while journal.used() >= most() {
            self.check()?;
            if !self.has_space_to_apply(journal) && !self.has_space_for_chunk() {
                return Err(full());
            }
            apply_request.apply = true;
            self.apply_requested.notify_all();
            self.applied.wait_for(&mut apply_request, CHECK_INTERVAL);
        }
        Ok(())
    }

    /// Makes changes visible and appends them to the journal; `waits` marks a durable commit. The
    /// caller holds the writer lock.
    fn publish(&self, journal: &CommitJournal, changes: Overlay, waits: bool) -> u64 {
        let mut state = self.state.lock();
        let number = state.number + 1;
        journal.append(number, changes.iter());
        if waits {
            // Set before a view can see the commit, because its reader must know that it is not
            // durable. Set after the append, so that a waiter finds the record in the journal.
            self.awaited.fetch_max(number, Ordering::AcqRel);
        }
        let oldest = state.views.keys().next().map_or(state.number, |oldest| (*oldest).min(state.number));
        state.active.put(changes, number, oldest);
        state.number = number;
        drop(state);
        let used = journal.used();
        if used >= APPLY_AT || (used >= APPLY_AT_SHORT && !self.accepts_additions()) {
            self.apply_request.lock().apply = true;
            self.apply_requested.notify_all();
        }
        number
    }

    /// Writes changes to the file directly. The caller holds the writer lock.
    fn write_through(&self, changes: &Overlay) -> Result<(), MetaError> {
        self.poison_on_error(|| {
            let tx = self.database.begin_write()?;
            {
                let mut table = tx.open_table(DATA)?;
                for (key, change) in changes.iter() {
                    change_in(&mut table, key, change)?;
                }
            }
            tx.commit()?;
            let base = Arc::new(base(&self.database)?);
            let mut state = self.state.lock();
            state.base = base;
            state.number += 1;
            Ok::<_, redb::Error>(())
        })
    }

    /// Whether the disk has space to apply the whole journal. The engine does not recover from a
    /// full disk.
    fn has_space_to_apply(&self, journal: &CommitJournal) -> bool {
        self.free().is_none_or(|free| free >= APPLY_SPACE + 4 * journal.used())
    }

    /// Whether there is space behind the file's last page for a commit of a few keys.
    fn has_space_for_chunk(&self) -> bool {
        self.space.as_ref().is_some_and(|space| space.headroom() >= CHUNK_SPACE)
    }

    /// Returns the free bytes of the disk; `None` if unknown.
    fn free(&self) -> Option<u64> {
        self.folder.as_deref().and_then(free_of)
    }

    /// Whether there is space for changes that add data.
    fn accepts_additions(&self) -> bool {
        self.free().is_none_or(|free| free >= ADDITION_SPACE)
    }

    /// Applies all commits so far to the file; fails without a change while the disk is full.
    fn apply(&self) -> Result<(), MetaError> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let keys_max = if self.has_space_to_apply(journal) { usize::MAX } else { CHUNK_KEYS };
        if keys_max != usize::MAX && !self.has_space_for_chunk() {
            return Err(full());
        }
        let begun = self.state.lock().frozen.clone();
        let (frozen, number) = match begun {
            // An earlier run stopped because the disk became full.
            Some(begun) => begun,
            None => {
                let _turn = self.writer.lock();
                if self.state.lock().active.is_empty() {
                    return self.check();
                }
                self.poison_on_error(|| journal.switch())?;
                let mut state = self.state.lock();
                let frozen = std::mem::take(&mut state.active);
                let number = state.number;
                state.frozen = Some((frozen.clone(), number));
                (frozen, number)
            }
        };
        let mut chunk = Vec::new();
        frozen.each(|key, change| {
            chunk.push((key.to_vec(), change.clone()));
            if chunk.len() < keys_max { Ok(()) } else { self.apply_chunk(std::mem::take(&mut chunk), None) }
        })?;
        self.apply_chunk(chunk, Some(number))?;
        if let Some(space) = &self.space {
            space.extend();
        }
        self.applied.notify_all();
        Ok(())
    }

    /// Applies some changes in one engine commit; `last` marks the last chunk, up to that commit
    /// number. Until then views read them from the frozen layer, so the file may have a part of
    /// them.
    fn apply_chunk(
        &self,
        chunk: Vec<(Vec<u8>, Option<Vec<u8>>)>,
        last: Option<u64>,
    ) -> Result<(), MetaError> {
        let is_whole = self.journal.as_ref().is_none_or(|journal| self.has_space_to_apply(journal));
        if !is_whole && !self.has_space_for_chunk() {
            return Err(full());
        }
        self.poison_on_error(|| {
            let tx = self.database.begin_write()?;
            {
                let mut table = tx.open_table(DATA)?;
                for (key, change) in &chunk {
                    change_in(&mut table, key, change.as_deref())?;
                }
                if let Some(number) = last {
                    tx.open_table(MARKER)?.insert(APPLIED, number)?;
                }
            }
            tx.commit()?;
            // Dropping the old snapshot frees the pages that this commit replaced.
            let base = Arc::new(base(&self.database)?);
            let mut state = self.state.lock();
            let before = std::mem::replace(&mut state.base, base);
            let frozen = if last.is_some() { state.frozen.take() } else { None };
            drop(state);
            drop(before);
            self.retired.lock().extend(frozen.map(|(layer, _)| layer));
            Ok::<_, redb::Error>(())
        })
    }

    /// Frees layers that no view uses. Returns whether some are left. Freeing is slow, so writers
    /// do not do it.
    fn free_retired(&self) -> bool {
        let mut retired = self.retired.lock();
        let (used, unused) = retired.drain(..).partition(|layer| Arc::strong_count(layer) > 1);
        *retired = used;
        let are_left = !retired.is_empty();
        drop(retired);
        drop::<Vec<_>>(unused);
        are_left
    }

    /// Starts the thread that applies changes to the file.
    fn spawn_applier(self: Arc<Self>) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("metadata".to_owned()).spawn(move || {
            let _watch = PanicGuard(&self);
            loop {
                {
                    let mut are_left = self.free_retired();
                    let mut apply_request = self.apply_request.lock();
                    while !apply_request.apply && !apply_request.stop {
                        if are_left {
                            self.apply_requested.wait_for(&mut apply_request, CHECK_INTERVAL);
                            are_left = MutexGuard::unlocked(&mut apply_request, || self.free_retired());
                        } else {
                            self.apply_requested.wait(&mut apply_request);
                        }
                    }
                    if apply_request.stop {
                        return;
                    }
                    apply_request.apply = false;
                }
                if let Err(error) = self.apply() {
                    tracing::error!(%error, "journal of the metadata store not applied to its file; retrying");
                    if self.check().is_err() {
                        // The store is poisoned; the next caller gets the error.
                        return;
                    }
                }
            }
        })
    }
}

/// Poisons the store if the applier thread panics, so that no thread waits for it.
struct PanicGuard<'a>(&'a StoreCore);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.poisoned.store(true, Ordering::Release);
            self.0.applied.notify_all();
        }
    }
}

/// Reason why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
enum StartError {
    /// The disk, which may be full, or the system failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The content is not what was written.
    #[error("{0}")]
    Damage(Box<dyn Error + Send + Sync>),
}

/// Converts errors of the engine.
macro_rules! start_errors {
    ($($error:ty),*) => {
        $(impl From<$error> for StartError {
            fn from(error: $error) -> Self {
                match error.into() {
                    redb::Error::Io(error) => Self::Io(error),
                    error => Self::Damage(error.into()),
                }
            }
        })*
    };
}

start_errors!(redb::Error, redb::TransactionError, redb::TableError, redb::CommitError, StorageError);

fn base(database: &Database) -> Result<FileSnapshot, redb::Error> {
    Ok(database.begin_read()?.open_table(DATA)?)
}

fn change_in(
    table: &mut redb::Table<'_, &'static [u8], &'static [u8]>,
    key: &[u8],
    change: Option<&[u8]>,
) -> Result<(), StorageError> {
    match change {
        Some(value) => table.insert(key, value).map(drop),
        None => table.remove(key).map(drop),
    }
}

impl MetaStore for EmbeddedMeta {
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, MetaError> {
        self.core.check()?;
        Ok(Box::new(self.core.view()))
    }

    fn begin(&self) -> Result<Box<dyn Transaction + '_>, MetaError> {
        let core = &*self.core;
        core.check()?;
        core.wait_for_journal_space()?;
        let writer = core.writer.lock();
        // The previous commit may have failed while this thread waited for the lock.
        core.check()?;
        Ok(Box::new(EmbeddedTransaction { view: core.view(), changes: Overlay::default(), writer }))
    }

    fn settle(&self) -> Result<(), MetaError> {
        let number = self.core.state.lock().number;
        self.core.wait_durable(number)
    }

    fn accepts_additions(&self) -> bool {
        self.core.accepts_additions()
    }

    fn wait_for_medium(&self) -> Result<(), MetaError> {
        self.core.wait_durable(self.core.awaited.load(Ordering::Acquire))
    }

    fn answers_at_once(&self) -> bool {
        let awaited = self.core.awaited.load(Ordering::Acquire);
        self.core.journal.as_ref().is_none_or(|journal| journal.durable() >= awaited)
    }

    fn keys_visited(&self) -> u64 {
        self.core.visited.load(Ordering::Relaxed)
    }
}
