//! The embedded store: one file, one writer at a time, readers that never wait.
//!
//! Does: durable commits (the medium has them when `commit` returns; those that meet share one wait for it), lazy ones (in
//! memory until the next durable one), a version marker, refusal of foreign files.
//! Contract: after a failed commit nothing more is read or written until the store is opened again.
//! Truth: redb 4 file format; docs/standards/mds.md §8.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redb::{
    Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, StorageError, TableDefinition,
    TableError, WriteTransaction,
};
use sealstone_mds::store::{MetaError, MetaStore, Pair, Snapshot, Transaction, check_limits};

const DATA: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("metadata");
const MARKER: TableDefinition<'_, &str, u64> = TableDefinition::new("sealstone");
const FORMAT: &str = "metadata-format";
/// Version of the tables in the file; what is inside has its own (see `sealstone-mds`).
const FORMAT_VERSION: u64 = 1;
/// First bytes of every redb file.
const REDB_MAGIC: &[u8; 9] = b"redb\x1A\x0A\xA9\x0D\x0A";
/// Memory for cached pages, bytes.
const CACHE_BYTES: usize = 64 << 20;

/// Commits that share one wait for the medium at most; who waits for his is not put off for ever.
const SHARED_MAX: u64 = 64;
/// Who waits for the medium, and nobody seems to ask it, asks it himself after this.
const SHARED_WAIT_MAX: Duration = Duration::from_secs(1);

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
    #[error("{} has metadata format {found}, this release reads {FORMAT_VERSION}", path.display())]
    Version {
        /// Which file.
        path: PathBuf,
        /// The version found.
        found: u64,
    },
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

/// The metadata store in a file.
pub struct EmbeddedMeta {
    database: Database,
    poisoned: AtomicBool,
    /// Lazy commits begun; grows under the engine's turn to write.
    lazy: AtomicU64,
    /// As many of them are durable.
    settled: AtomicU64,
    /// Of the lazy commits, the last one that somebody waits for.
    awaited: AtomicU64,
    /// Transactions that were begun, or wait for their turn.
    writers: Mutex<usize>,
    /// There are no writers any more, or something became durable.
    moved: Condvar,
}

/// One of the writers.
struct Writer<'a>(&'a EmbeddedMeta);

impl<'a> Writer<'a> {
    fn new(store: &'a EmbeddedMeta) -> Self {
        *store.writers() += 1;
        Self(store)
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        *self.0.writers() -= 1;
        self.0.moved.notify_all();
    }
}

impl EmbeddedMeta {
    /// Opens the store at `path`, or makes an empty one there with mode 0600.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let file = open_private(path)?;
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE_BYTES);
        let database = builder.create_file(file).map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => OpenError::InUse(path.to_owned()),
            DatabaseError::UpgradeRequired(found) => {
                OpenError::Version { path: path.to_owned(), found: u64::from(found) }
            }
            DatabaseError::Storage(StorageError::Io(source)) => {
                OpenError::Io { path: path.to_owned(), source }
            }
            other => OpenError::Corrupt { path: path.to_owned(), source: Box::new(other) },
        })?;
        let store = Self {
            database,
            poisoned: AtomicBool::new(false),
            lazy: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            awaited: AtomicU64::new(0),
            writers: Mutex::default(),
            moved: Condvar::new(),
        };
        match store.marker() {
            Ok(FORMAT_VERSION) => Ok(store),
            Ok(found) => Err(OpenError::Version { path: path.to_owned(), found }),
            Err(source) => Err(OpenError::Corrupt { path: path.to_owned(), source }),
        }
    }

    /// The version marker; written first if the file is new.
    fn marker(&self) -> Result<u64, Box<dyn Error + Send + Sync>> {
        let tx = self.database.begin_write()?;
        let version = {
            let mut marker = tx.open_table(MARKER)?;
            tx.open_table(DATA)?;
            let found = marker.get(FORMAT)?.map(|value| value.value());
            match found {
                Some(version) => version,
                None => {
                    marker.insert(FORMAT, FORMAT_VERSION)?;
                    FORMAT_VERSION
                }
            }
        };
        tx.commit()?;
        Ok(version)
    }

    /// Commits; the number of lazy commits up to this one.
    fn finish(&self, tx: WriteTransaction, lazily: bool) -> Result<u64, MetaError> {
        let number = self.lazy.fetch_add(u64::from(lazily), Ordering::AcqRel) + u64::from(lazily);
        tx.commit().map_err(|error| {
            self.poisoned.store(true, Ordering::Release);
            failed(error)
        })?;
        if !lazily {
            self.settled.fetch_max(number, Ordering::AcqRel);
        }
        Ok(number)
    }

    fn writers(&self) -> MutexGuard<'_, usize> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is somebody else at it who will ask the medium after us, so that it need not be asked for each of us?
    fn is_shared(&self) -> bool {
        let waiting = self.lazy.load(Ordering::Acquire) - self.settled.load(Ordering::Acquire);
        waiting < SHARED_MAX && *self.writers() > 1
    }

    /// Waits until the lazy commit of this number is durable: whoever comes last among those who write now sees to it.
    fn wait_for(&self, number: u64) -> Result<(), MetaError> {
        let mut writers = self.writers();
        loop {
            self.check()?;
            if self.settled.load(Ordering::Acquire) >= number {
                return Ok(());
            }
            if *writers == 0 {
                break;
            }
            let (held, over) =
                self.moved.wait_timeout(writers, SHARED_WAIT_MAX).unwrap_or_else(PoisonError::into_inner);
            writers = held;
            if over.timed_out() {
                break;
            }
        }
        // Counted before anybody else looks: the others wait for this one.
        *writers += 1;
        drop(writers);
        let _writer = Writer(self);
        self.make_durable(number)
    }

    /// Makes lazy commits up to this one durable, if nobody else did meanwhile.
    fn make_durable(&self, number: u64) -> Result<(), MetaError> {
        let tx = self.database.begin_write().map_err(failed)?;
        self.check()?;
        if self.settled.load(Ordering::Acquire) >= number {
            return tx.abort().map_err(failed);
        }
        // A durable commit writes the root that all lazy ones before it have led to.
        self.finish(tx, false).map(drop)
    }

    fn check(&self) -> Result<(), MetaError> {
        if self.poisoned.load(Ordering::Acquire) { Err(MetaError::Poisoned) } else { Ok(()) }
    }
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
    let mode = metadata.permissions().mode() & 0o7777;
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

fn failed(error: impl Into<redb::Error>) -> MetaError {
    MetaError::Failed(Box::new(error.into()))
}

impl MetaStore for EmbeddedMeta {
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, MetaError> {
        self.check()?;
        let view = self.database.begin_read().map_err(failed)?;
        let table = view.open_table(DATA).map_err(failed)?;
        Ok(Box::new(View(table)))
    }

    fn begin(&self) -> Result<Box<dyn Transaction + '_>, MetaError> {
        self.check()?;
        let writer = Writer::new(self);
        let tx = self.database.begin_write().map_err(failed)?;
        // While we waited for our turn the commit before may have failed.
        self.check()?;
        Ok(Box::new(Changes { tx, changed: false, writer }))
    }

    fn settle(&self) -> Result<(), MetaError> {
        self.check()?;
        let number = self.lazy.load(Ordering::Acquire);
        if self.settled.load(Ordering::Acquire) >= number {
            return Ok(());
        }
        let _writer = Writer::new(self);
        self.make_durable(number)
    }

    fn wait_for_medium(&self) -> Result<(), MetaError> {
        let number = self.awaited.load(Ordering::Acquire);
        if self.settled.load(Ordering::Acquire) >= number { self.check() } else { self.wait_for(number) }
    }

    fn answers_at_once(&self) -> bool {
        *self.writers() == 0
    }
}

fn get(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
) -> Result<Option<Vec<u8>>, MetaError> {
    Ok(table.get(key).map_err(failed)?.map(|value| value.value().to_vec()))
}

fn scan(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    from: &[u8],
    until: &[u8],
    limit: usize,
) -> Result<Vec<Pair>, MetaError> {
    if from >= until {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for pair in table.range(from..until).map_err(failed)?.take(limit) {
        let (key, value) = pair.map_err(failed)?;
        found.push((key.value().to_vec(), value.value().to_vec()));
    }
    Ok(found)
}

struct View(redb::ReadOnlyTable<&'static [u8], &'static [u8]>);

impl Snapshot for View {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        get(&self.0, key)
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError> {
        scan(&self.0, from, until, limit)
    }
}

struct Changes<'a> {
    // Before the writer: its turn is over when it is not counted any more.
    tx: WriteTransaction,
    changed: bool,
    writer: Writer<'a>,
}

impl Changes<'_> {
    fn table(&self) -> Result<redb::Table<'_, &'static [u8], &'static [u8]>, MetaError> {
        self.tx.open_table(DATA).map_err(|error: TableError| failed(error))
    }
}

impl Snapshot for Changes<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        get(&self.table()?, key)
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError> {
        scan(&self.table()?, from, until, limit)
    }
}

impl Transaction for Changes<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), MetaError> {
        check_limits(key, value)?;
        self.table()?.insert(key, value).map_err(failed)?;
        self.changed = true;
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), MetaError> {
        self.table()?.remove(key).map_err(failed)?;
        self.changed = true;
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), MetaError> {
        let Self { mut tx, changed, writer } = *self;
        if !changed {
            return tx.abort().map_err(failed);
        }
        let store = writer.0;
        if !store.is_shared() {
            return store.finish(tx, false).map(drop);
        }
        tx.set_durability(Durability::None).map_err(failed)?;
        // Before anybody can see it: who answers from it has to know that it is not durable.
        store.awaited.fetch_max(store.lazy.load(Ordering::Acquire) + 1, Ordering::AcqRel);
        let number = store.finish(tx, true)?;
        drop(writer);
        store.wait_for(number)
    }

    fn commit_lazily(self: Box<Self>) -> Result<(), MetaError> {
        let Self { mut tx, changed, writer } = *self;
        if !changed {
            return tx.abort().map_err(failed);
        }
        tx.set_durability(Durability::None).map_err(failed)?;
        writer.0.finish(tx, true).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sealstone_mds::store::contract;
    use std::fs;

    fn path(dir: &tempfile::TempDir) -> PathBuf {
        dir.path().join("meta.redb")
    }

    /// Keeps its folder alive as long as it is open.
    struct Scratch(EmbeddedMeta, #[allow(dead_code, reason = "dropped last")] tempfile::TempDir);

    impl MetaStore for Scratch {
        fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, MetaError> {
            self.0.snapshot()
        }
        fn begin(&self) -> Result<Box<dyn Transaction + '_>, MetaError> {
            self.0.begin()
        }
        fn settle(&self) -> Result<(), MetaError> {
            self.0.settle()
        }
    }

    #[test]
    fn the_embedded_store_keeps_the_contract() {
        contract::check(&|| {
            let dir = tempfile::tempdir().unwrap();
            Box::new(Scratch(EmbeddedMeta::open(&path(&dir)).unwrap(), dir))
        });
    }

    impl contract::Crash for Scratch {
        fn store(&self) -> &dyn MetaStore {
            &self.0
        }

        /// What the kernel has of the file at this moment is what the next process finds after a kill.
        fn crash(self: Box<Self>) -> Box<dyn contract::Crash> {
            let dir = tempfile::tempdir().unwrap();
            fs::copy(path(&self.1), path(&dir)).unwrap();
            Box::new(Self(EmbeddedMeta::open(&path(&dir)).unwrap(), dir))
        }
    }

    #[test]
    fn the_embedded_store_keeps_the_contract_when_it_crashes() {
        contract::check_crashes(&|| {
            let dir = tempfile::tempdir().unwrap();
            Box::new(Scratch(EmbeddedMeta::open(&path(&dir)).unwrap(), dir))
        });
    }

    #[test]
    fn lazy_commits_do_not_write_and_closing_settles_them() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedMeta::open(&path(&dir)).unwrap();
        let before = fs::read(path(&dir)).unwrap();
        for n in 0..10u8 {
            let mut tx = store.begin().unwrap();
            tx.put(&[n], b"lazy").unwrap();
            tx.commit_lazily().unwrap();
        }
        assert!(fs::read(path(&dir)).unwrap() == before, "nothing was written that somebody waited for");
        drop(store);
        let store = EmbeddedMeta::open(&path(&dir)).unwrap();
        assert_eq!(store.snapshot().unwrap().scan(b"", b"\xFF", 99).unwrap().len(), 10);
    }

    /// What the medium has of the store right now, as after a kill.
    fn after_a_kill(from: &Path) -> (EmbeddedMeta, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        fs::copy(from, path(&dir)).unwrap();
        (EmbeddedMeta::open(&path(&dir)).unwrap(), dir)
    }

    #[test]
    fn commits_that_meet_share_one_wait_for_the_medium_and_all_are_durable() {
        const WRITERS: u8 = 24;
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedMeta::open(&path(&dir)).unwrap();
        let mut first = store.begin().unwrap();
        first.put(b"first", b"1").unwrap();
        std::thread::scope(|scope| {
            for n in 0..WRITERS {
                let store = &store;
                scope.spawn(move || {
                    let mut tx = store.begin().unwrap();
                    tx.put(&[n], b"1").unwrap();
                    tx.commit().unwrap();
                });
            }
            // All of them wait for their turn when the first one commits.
            while *store.writers() <= usize::from(WRITERS) {
                std::thread::yield_now();
            }
            first.commit().unwrap();
        });
        store.wait_for_medium().unwrap();
        let lazy = store.lazy.load(Ordering::Acquire);
        assert!(lazy > 0, "some did not ask the medium themselves");
        assert_eq!(store.settled.load(Ordering::Acquire), lazy, "and nobody returned before it had his");
        assert_eq!(*store.writers(), 0);
        // A copy of the file of a store that is still open is what a kill leaves.
        let (left, _dir) = after_a_kill(&path(&dir));
        let pairs = left.snapshot().unwrap().scan(b"", b"\xFF", 99).unwrap();
        assert_eq!(pairs.len(), usize::from(WRITERS) + 1);
    }

    #[test]
    fn who_commits_alone_waits_for_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedMeta::open(&path(&dir)).unwrap();
        for n in 0..3u8 {
            let mut tx = store.begin().unwrap();
            tx.put(&[n], b"1").unwrap();
            tx.commit().unwrap();
            // Given up: its turn is over, too.
            drop(store.begin().unwrap());
        }
        assert_eq!(store.lazy.load(Ordering::Acquire), 0);
        assert_eq!(*store.writers(), 0);
    }

    #[test]
    fn what_was_read_before_it_was_durable_is_durable_when_the_reader_answers() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedMeta::open(&path(&dir)).unwrap();
        std::thread::scope(|scope| {
            let mut first = store.begin().unwrap();
            first.put(b"a", b"1").unwrap();
            scope.spawn(|| {
                // It holds its turn after the first one and so keeps the medium from being asked.
                let mut second = store.begin().unwrap();
                second.put(b"b", b"1").unwrap();
                while store.lazy.load(Ordering::Acquire) == 0
                    || store.snapshot().unwrap().get(b"a").unwrap().is_none()
                {
                    std::thread::yield_now();
                }
                assert_eq!(store.settled.load(Ordering::Acquire), 0, "seen, and not durable");
                second.commit().unwrap();
            });
            while *store.writers() < 2 {
                std::thread::yield_now();
            }
            first.commit().unwrap();
        });
        store.wait_for_medium().unwrap();
        // The second one's commit was lazy too if it came while the first one's turn was just ending.
        let lazy = store.lazy.load(Ordering::Acquire);
        assert!((1..=2).contains(&lazy) && store.settled.load(Ordering::Acquire) == lazy, "{lazy}");
        let (left, _dir) = after_a_kill(&path(&dir));
        assert_eq!(left.snapshot().unwrap().scan(b"", b"\xFF", 9).unwrap().len(), 2);
    }

    #[test]
    fn whoever_shares_a_wait_that_fails_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedMeta::open(&path(&dir)).unwrap();
        let mut lazily = store.begin().unwrap();
        lazily.put(b"a", b"1").unwrap();
        lazily.commit_lazily().unwrap();
        store.poisoned.store(true, Ordering::Release);
        assert!(matches!(store.wait_for(1), Err(MetaError::Poisoned)));
        assert!(matches!(store.settle(), Err(MetaError::Poisoned)));
        assert!(matches!(store.wait_for_medium(), Err(MetaError::Poisoned)));
    }

    #[test]
    fn what_was_committed_is_there_after_reopening_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        {
            let store = EmbeddedMeta::open(&path(&dir)).unwrap();
            let mut tx = store.begin().unwrap();
            tx.put(b"kept", b"1").unwrap();
            tx.commit().unwrap();
            let mut tx = store.begin().unwrap();
            tx.put(b"lost", b"1").unwrap();
            drop(tx);
        }
        let store = EmbeddedMeta::open(&path(&dir)).unwrap();
        let pairs = store.snapshot().unwrap().scan(b"", b"\xFF", 9).unwrap();
        assert_eq!(pairs, [(b"kept".to_vec(), b"1".to_vec())]);
    }

    #[test]
    fn a_new_file_is_private_and_an_exposed_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(EmbeddedMeta::open(&path(&dir)).unwrap());
        let mode = fs::metadata(path(&dir)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        fs::set_permissions(path(&dir), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(EmbeddedMeta::open(&path(&dir)), Err(OpenError::Exposed { mode: 0o640, .. })));
    }

    #[test]
    fn foreign_files_and_other_versions_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let write = |bytes: &[u8]| {
            fs::write(path(&dir), bytes).unwrap();
            fs::set_permissions(path(&dir), fs::Permissions::from_mode(0o600)).unwrap();
        };
        write(b"SQLite format 3\0");
        assert!(matches!(EmbeddedMeta::open(&path(&dir)), Err(OpenError::Foreign(_))));
        write(b"red");
        assert!(matches!(EmbeddedMeta::open(&path(&dir)), Err(OpenError::Foreign(_))));
        fs::remove_file(path(&dir)).unwrap();
        {
            let store = EmbeddedMeta::open(&path(&dir)).unwrap();
            let tx = store.database.begin_write().unwrap();
            tx.open_table(MARKER).unwrap().insert(FORMAT, 9).unwrap();
            tx.commit().unwrap();
        }
        assert!(matches!(EmbeddedMeta::open(&path(&dir)), Err(OpenError::Version { found: 9, .. })));
    }

    #[test]
    fn a_second_server_on_the_same_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let _first = EmbeddedMeta::open(&path(&dir)).unwrap();
        assert!(matches!(EmbeddedMeta::open(&path(&dir)), Err(OpenError::InUse(_))));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn it_does_what_the_store_in_memory_does(steps in prop::collection::vec(
            prop::collection::vec((any::<u8>(), prop::option::of(any::<u8>())), 1..8), 1..8)) {
            let dir = tempfile::tempdir().unwrap();
            let stores: [Box<dyn MetaStore>; 2] = [
                Box::new(EmbeddedMeta::open(&path(&dir)).unwrap()),
                Box::new(sealstone_mds::store::MemoryMeta::new()),
            ];
            for step in steps {
                for store in &stores {
                    let mut tx = store.begin().unwrap();
                    for (key, value) in &step {
                        match value {
                            Some(value) => tx.put(&[key % 16], &[*value]).unwrap(),
                            None => tx.delete(&[key % 16]).unwrap(),
                        }
                    }
                    tx.commit().unwrap();
                }
                let [embedded, memory] = stores.each_ref().map(|s| s.snapshot().unwrap().scan(b"", b"\xFF", 99).unwrap());
                prop_assert_eq!(embedded, memory);
            }
        }
    }
}
