//! The embedded store: a file, a journal before it, one writer at a time, readers that never wait.
//!
//! Does: keep changes in memory and in the journal until a thread of its own has brought them into
//! the file; durable commits (the medium has them when `commit` returns; those that meet share one
//! wait for it), lazy ones (in memory until the next durable one), a version marker, refusal of
//! foreign files. Contract: after a failed commit nothing more is read or written until the store
//! is opened again. What a crash leaves is the file and the journal together; a store that was
//! closed is the file alone. Truth: redb 4 file format; docs/standards/mds/store.md §8;
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
use journal::{Journal, Medium};
use layer::Layer;
use view::EmbeddedTransaction;

const DATA: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("metadata");
const MARKER: TableDefinition<'_, &str, u64> = TableDefinition::new("sealstone");
const FORMAT: &str = "metadata-format";
/// Version of the tables in the file when all is in it; what is inside has its own (see `sealstone-mds`).
const FORMAT_VERSION: u64 = 1;
/// The same while there is a journal beside it, without which the file is not whole.
const FORMAT_JOURNAL: u64 = 2;
/// A number that was drawn when the store was opened.
const EPOCH: &str = "journal-epoch";
/// The last commit that is in the file.
const APPLIED: &str = "journal-applied";
/// First bytes of every redb file.
const REDB_MAGIC: &[u8; 9] = b"redb\x1A\x0A\xA9\x0D\x0A";
/// Memory for cached pages, bytes.
const CACHE_BYTES: usize = 64 << 20;

/// Bytes of a journal's file from which on its changes are brought into the store's file.
const APPLY_AT: u64 = 8 << 20;
/// Bytes of it at which writers wait until that is done. The changes in memory are twice as much at most, and what they need
/// besides.
const JOURNAL_MAX: u64 = 64 << 20;
/// Bytes that are free on the medium before that begins, and four times what the journal has.
const APPLY_ROOM: u64 = 16 << 20;
/// Bytes that are free on the medium before changes are accepted that add something.
const ADDITION_ROOM: u64 = 8 << 20;
/// Bytes of a journal's file from which on its changes are brought into the store's file while the medium is short.
const APPLY_AT_SHORT: u64 = 1 << 20;
/// Bytes of it at which writers wait until that is done while the medium is short: half of what it has reserved.
const JOURNAL_MAX_SHORT: u64 = journal::RESERVED / 2;
/// Keys that are brought into the file with one commit of the engine while the medium is short,
const CHUNK_KEYS: usize = 128;
/// and bytes that have space behind the file's last page before each of them: five pages of 4 KiB for a key.
const CHUNK_ROOM: u64 = 4 << 20;
/// How often who waits for that looks whether the store still works.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Why a file cannot be used as the metadata store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be opened or created.
    #[error("cannot open {}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Others may read the file, and it holds keys.
    #[error("{} has mode {mode:o}: it holds keys, so only its owner may have access (chmod 600)", path.display())]
    Exposed {
        /// Which file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another process has the file open.
    #[error("{} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The file is something else.
    #[error("{} is not a metadata store", .0.display())]
    Foreign(PathBuf),
    /// Another release wrote the file.
    #[error("{} has metadata format {found}, this release reads {FORMAT_JOURNAL}", path.display())]
    Version {
        /// Which file.
        path: PathBuf,
        /// The version found.
        found: u64,
    },
    /// The store was not closed, and a part of what it has is in a file that is not there.
    #[error("{} is missing: the metadata store was not closed, and has its last changes there", .0.display())]
    NoJournal(PathBuf),
    /// The file is damaged.
    #[error("{} is damaged; restore it from a backup", path.display())]
    Corrupt {
        /// Which file.
        path: PathBuf,
        /// What the engine says.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

/// The store's file as it was at some moment.
type Base = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// What can be seen.
struct State {
    base: Arc<Base>,
    /// Changes that are being brought into the file, with the number of the last commit among them.
    frozen: Option<(Arc<Layer>, u64)>,
    /// Those after them.
    active: Arc<Layer>,
    /// Commits so far.
    number: u64,
    /// Views in use, by the number that they see.
    views: BTreeMap<u64, usize>,
}

/// What the thread is to do that brings changes into the file.
#[derive(Default)]
struct Wish {
    apply: bool,
    stop: bool,
}

struct Core {
    database: Database,
    /// None: each commit goes into the file.
    journal: Option<Journal>,
    /// Where the file is, if it is one of this machine's.
    folder: Option<PathBuf>,
    /// The space of its file.
    space: Option<Arc<FileSpace>>,
    poisoned: AtomicBool,
    /// Whoever writes has it.
    turn: Mutex<()>,
    state: Mutex<State>,
    /// The last commit that somebody waits for.
    awaited: AtomicU64,
    /// Layers whose changes are in the file, and which a view may still see.
    retired: Mutex<Vec<Arc<Layer>>>,
    wish: Mutex<Wish>,
    wished: Condvar,
    /// Something was brought into the file, or failed to be.
    applied: Condvar,
    /// Keys that scans have stepped over, removed ones included.
    visited: AtomicU64,
}

/// The metadata store in a file.
pub struct EmbeddedMeta {
    core: Arc<Core>,
    keeper: Option<JoinHandle<()>>,
}

impl EmbeddedMeta {
    /// Opens the store at `path`, or makes an empty one there with mode 0600, for a work that ends: each commit goes into
    /// the file, which may be renamed meanwhile.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::start(path, false)
    }

    /// The same for a server: commits go into a journal of two files beside it, named after it, and from there into the
    /// file, by a thread of its own. When it is closed the file has everything.
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
                OpenError::Version { path: path.to_owned(), found: u64::from(found) }
            }
            DatabaseError::Storage(StorageError::Io(source)) => {
                OpenError::Io { path: path.to_owned(), source }
            }
            other => OpenError::Corrupt { path: path.to_owned(), source: Box::new(other) },
        })?;
        let trouble = |trouble| match trouble {
            Trouble::Io(source) => io(source),
            Trouble::Damage(source) => OpenError::Corrupt { path: path.to_owned(), source },
        };
        let marks = Marks::read(&database).map_err(trouble)?;
        if ![FORMAT_VERSION, FORMAT_JOURNAL].contains(&marks.format) {
            return Err(OpenError::Version { path: path.to_owned(), found: marks.format });
        }
        let left = if marks.format == FORMAT_JOURNAL { Some(read_journal(path)?) } else { None };
        let media = if journaled {
            // Where the store was closed, what is in files of that name does not count.
            let files = journal::open_files(path).map_err(io)?;
            Some(files.map(|file| Box::new(file) as Box<dyn Medium>))
        } else {
            None
        };
        let folder = journal::folder_of(path).to_owned();
        // Of what a crash left, no more than the medium surely has room for at once.
        let bytes: usize = left.iter().flatten().map(Vec::len).sum();
        let keys_max = if free_of(&folder).is_none_or(|free| free >= APPLY_ROOM + 4 * bytes as u64) {
            usize::MAX
        } else {
            CHUNK_KEYS
        };
        let mut core = Core::begin(database, marks, left.as_ref(), media, keys_max).map_err(trouble)?;
        (core.folder, core.space) = (Some(folder), Some(space));
        let core = Arc::new(core);
        if !journaled {
            journal::remove_files(path).map_err(io)?;
        }
        let keeper = journaled.then(|| core.clone().keep()).transpose().map_err(io)?;
        Ok(Self { core, keeper })
    }

    /// Gives a store that nobody has open another name, with its journal if it has one.
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

    /// Brings everything into the file, and does without the journal from here on.
    fn close(&mut self) -> Result<(), Box<dyn Error + Send + Sync>> {
        let Some(keeper) = self.keeper.take() else { return Ok(()) };
        self.core.wish.lock().stop = true;
        self.core.wished.notify_all();
        keeper.join().map_err(|_| "the thread that brings changes into the file panicked")?;
        self.core.apply()?;
        let tx = self.core.database.begin_write()?;
        tx.open_table(MARKER)?.insert(FORMAT, FORMAT_VERSION)?;
        tx.commit()?;
        // The journal's files stay, with their space: the next start may find the disk full.
        Ok(())
    }
}

impl Drop for EmbeddedMeta {
    fn drop(&mut self) {
        // What could not be brought into the file is in the journal, which the next start reads.
        if let Err(error) = self.close() {
            tracing::error!(error, "the metadata store needs its journal at the next start");
        }
    }
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// What the file says of itself.
struct Marks {
    format: u64,
    epoch: u64,
    applied: u64,
}

impl Marks {
    /// As they are; those of a new file are written first.
    fn read(database: &Database) -> Result<Self, Trouble> {
        let tx = database.begin_write()?;
        let marks = {
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
        Ok(marks)
    }
}

/// What lies in the journal's files.
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

/// Bytes that are free on the file system of a folder.
fn free_of(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

fn failed(error: impl Into<redb::Error>) -> MetaError {
    MetaError::Failed(Box::new(error.into()))
}

impl Core {
    /// Takes over a file, with what a crash left in a journal; `media`: goes on with a journal there.
    fn begin(
        database: Database,
        marks: Marks,
        left: Option<&[Vec<u8>; 2]>,
        media: Option<[Box<dyn Medium>; 2]>,
        keys_max: usize,
    ) -> Result<Self, Trouble> {
        let records = match left {
            Some(left) => journal::replay(left, marks.epoch, marks.applied)
                .map_err(|unfit| Trouble::Damage(unfit.into()))?,
            None => Vec::new(),
        };
        let number = records.last().map_or(marks.applied, |record| record.number);
        // No record of before counts again, wherever it lies.
        let mut epoch = [0; 8];
        getrandom::fill(&mut epoch).map_err(|error| Trouble::Io(io::Error::other(error.to_string())))?;
        let epoch = u64::from_be_bytes(epoch);
        // Whatever a crash leaves of the chunks, all records are there to be brought in again.
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
        let journal = media.map(|media| Journal::new(media, epoch, number)).transpose()?;
        if journal.is_some() {
            // Both files are there and say whose they are.
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
            turn: Mutex::default(),
            state: Mutex::new(State { base, frozen: None, active, number, views: BTreeMap::new() }),
            awaited: AtomicU64::new(number),
            retired: Mutex::default(),
            wish: Mutex::default(),
            wished: Condvar::new(),
            applied: Condvar::new(),
            visited: AtomicU64::new(0),
        })
    }

    fn check(&self) -> Result<(), MetaError> {
        if self.poisoned.load(Ordering::Acquire) { Err(MetaError::Poisoned) } else { Ok(()) }
    }

    /// Does what must not fail half way: if it does, nothing is known any more.
    fn surely<T, E>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<T, MetaError>
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

    /// Returns when this commit is durable.
    fn wait_for(&self, number: u64) -> Result<(), MetaError> {
        match &self.journal {
            Some(journal) if journal.durable() < number => self.surely(|| journal.sync(number)),
            _ => self.check(),
        }
    }

    /// Waits while there is more in memory than is good.
    fn wait_for_room(&self) -> Result<(), MetaError> {
        let Some(journal) = &self.journal else { return Ok(()) };
        if journal.used() < JOURNAL_MAX_SHORT {
            return Ok(());
        }
        let most = || if self.accepts_additions() { JOURNAL_MAX } else { JOURNAL_MAX_SHORT };
        let mut wish = self.wish.lock();
        while journal.used() >= most() {
            self.check()?;
            if !self.has_room(journal) && !self.has_room_for_chunk() {
                return Err(full());
            }
            wish.apply = true;
            self.wished.notify_all();
            self.applied.wait_for(&mut wish, LOOK_EVERY);
        }
        Ok(())
    }

    /// Makes changes visible and queues them for the journal. Whoever calls it has the turn.
    fn publish(&self, journal: &Journal, changes: Overlay, waits: bool) -> u64 {
        let mut state = self.state.lock();
        let number = state.number + 1;
        journal.append(number, changes.iter());
        if waits {
            // Before anybody can see it: who answers from it has to know that it is not durable. After it is queued: whoever
            // waits for it finds it there.
            self.awaited.fetch_max(number, Ordering::AcqRel);
        }
        let oldest = state.views.keys().next().map_or(state.number, |oldest| (*oldest).min(state.number));
        state.active.put(changes, number, oldest);
        state.number = number;
        drop(state);
        let used = journal.used();
        if used >= APPLY_AT || (used >= APPLY_AT_SHORT && !self.accepts_additions()) {
            self.wish.lock().apply = true;
            self.wished.notify_all();
        }
        number
    }

    /// Brings changes into the file at once. Whoever calls it has the turn.
    fn write_through(&self, changes: &Overlay) -> Result<(), MetaError> {
        self.surely(|| {
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

    /// Is there room on the medium for what the journal has? The engine does not get over a medium that is full.
    fn has_room(&self, journal: &Journal) -> bool {
        self.free().is_none_or(|free| free >= APPLY_ROOM + 4 * journal.used())
    }

    /// Is there space behind the last page of the file for a commit of a few keys?
    fn has_room_for_chunk(&self) -> bool {
        self.space.as_ref().is_some_and(|space| space.headroom() >= CHUNK_ROOM)
    }

    /// Bytes that are free on the medium; `None` where that is not known.
    fn free(&self) -> Option<u64> {
        self.folder.as_deref().and_then(free_of)
    }

    /// Is there space for changes that add something?
    fn accepts_additions(&self) -> bool {
        self.free().is_none_or(|free| free >= ADDITION_ROOM)
    }

    /// Brings everything committed so far into the file; puts that off while the medium is full.
    fn apply(&self) -> Result<(), MetaError> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let keys_max = if self.has_room(journal) { usize::MAX } else { CHUNK_KEYS };
        if keys_max != usize::MAX && !self.has_room_for_chunk() {
            return Err(full());
        }
        let begun = self.state.lock().frozen.clone();
        let (frozen, number) = match begun {
            // The disk was full before all of them were in the file.
            Some(begun) => begun,
            None => {
                let _turn = self.turn.lock();
                if self.state.lock().active.is_empty() {
                    return self.check();
                }
                self.surely(|| journal.switch())?;
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

    /// Brings some changes into the file with one commit; with `last` they are the last ones up to that number. Views see
    /// them in the layer above until then, so that the file may have a part of them.
    fn apply_chunk(
        &self,
        chunk: Vec<(Vec<u8>, Option<Vec<u8>>)>,
        last: Option<u64>,
    ) -> Result<(), MetaError> {
        let is_whole = self.journal.as_ref().is_none_or(|journal| self.has_room(journal));
        if !is_whole && !self.has_room_for_chunk() {
            return Err(full());
        }
        self.surely(|| {
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
            // With the old one the pages come free that this commit replaced.
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

    /// Frees the layers that no view sees any more; whether some are left. Freeing takes long, so
    /// no writer does it.
    fn free_retired(&self) -> bool {
        let mut retired = self.retired.lock();
        let (used, unused) = retired.drain(..).partition(|layer| Arc::strong_count(layer) > 1);
        *retired = used;
        let are_left = !retired.is_empty();
        drop(retired);
        drop::<Vec<_>>(unused);
        are_left
    }

    /// Begins the thread that brings changes into the file.
    fn keep(self: Arc<Self>) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("metadata".to_owned()).spawn(move || {
            let _watch = Watch(&self);
            loop {
                {
                    let mut are_left = self.free_retired();
                    let mut wish = self.wish.lock();
                    while !wish.apply && !wish.stop {
                        if are_left {
                            self.wished.wait_for(&mut wish, LOOK_EVERY);
                            are_left = MutexGuard::unlocked(&mut wish, || self.free_retired());
                        } else {
                            self.wished.wait(&mut wish);
                        }
                    }
                    if wish.stop {
                        return;
                    }
                    wish.apply = false;
                }
                if let Err(error) = self.apply() {
                    tracing::error!(%error, "the journal of the metadata store is not brought into its file");
                    if self.check().is_err() {
                        // Whoever asks next is told.
                        return;
                    }
                }
            }
        })
    }
}

/// If the thread that brings changes into the file ends by a panic, nobody waits for it.
struct Watch<'a>(&'a Core);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.poisoned.store(true, Ordering::Release);
            self.0.applied.notify_all();
        }
    }
}

/// Why a store cannot be taken over.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    /// The medium, which may be full, or the system.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What is there is not what was written.
    #[error("{0}")]
    Damage(Box<dyn Error + Send + Sync>),
}

/// Those of the engine.
macro_rules! troubles {
    ($($error:ty),*) => {
        $(impl From<$error> for Trouble {
            fn from(error: $error) -> Self {
                match error.into() {
                    redb::Error::Io(error) => Self::Io(error),
                    error => Self::Damage(error.into()),
                }
            }
        })*
    };
}

troubles!(redb::Error, redb::TransactionError, redb::TableError, redb::CommitError, StorageError);

fn base(database: &Database) -> Result<Base, redb::Error> {
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
        core.wait_for_room()?;
        let turn = core.turn.lock();
        // While we waited for our turn the commit before may have failed.
        core.check()?;
        Ok(Box::new(EmbeddedTransaction { view: core.view(), changes: Overlay::default(), turn }))
    }

    fn settle(&self) -> Result<(), MetaError> {
        let number = self.core.state.lock().number;
        self.core.wait_for(number)
    }

    fn accepts_additions(&self) -> bool {
        self.core.accepts_additions()
    }

    fn wait_for_medium(&self) -> Result<(), MetaError> {
        self.core.wait_for(self.core.awaited.load(Ordering::Acquire))
    }

    fn answers_at_once(&self) -> bool {
        let awaited = self.core.awaited.load(Ordering::Acquire);
        self.core.journal.as_ref().is_none_or(|journal| journal.durable() >= awaited)
    }

    fn keys_visited(&self) -> u64 {
        self.core.visited.load(Ordering::Relaxed)
    }
}
