//! Tests of the embedded store: the contract of stores, crashes at every write, and full disks.

#![allow(clippy::unwrap_used, reason = "tests")]

mod power;

use std::fs;

use proptest::prelude::*;
use sealstone_mds::store::{MemoryMeta, Pair, contract};

use super::*;
use power::{SimDisk, UnsyncedData};

fn path(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join("meta.redb")
}

/// A store that keeps its folder until it is dropped.
struct ScratchStore(EmbeddedMeta, #[allow(dead_code, reason = "dropped last")] tempfile::TempDir);

impl MetaStore for ScratchStore {
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
fn embedded_store_fulfils_the_contract() {
    for start in [EmbeddedMeta::open, EmbeddedMeta::serve] {
        contract::check(&|| {
            let dir = tempfile::tempdir().unwrap();
            Box::new(ScratchStore(start(&path(&dir)).unwrap(), dir))
        });
    }
}

/// Copies the files as the kernel has them now, as the next process finds them after a kill.
fn after_a_kill(from: &tempfile::TempDir) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(from.path()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

impl contract::Crash for ScratchStore {
    fn store(&self) -> &dyn MetaStore {
        &self.0
    }

    fn crash(self: Box<Self>) -> Box<dyn contract::Crash> {
        let dir = after_a_kill(&self.1);
        Box::new(Self(EmbeddedMeta::serve(&path(&dir)).unwrap(), dir))
    }
}

#[test]
fn embedded_store_fulfils_the_contract_after_crashes() {
    for start in [EmbeddedMeta::open, EmbeddedMeta::serve] {
        contract::check_crashes(&|| {
            let dir = tempfile::tempdir().unwrap();
            Box::new(ScratchStore(start(&path(&dir)).unwrap(), dir))
        });
    }
}

fn put(store: &EmbeddedMeta, key: &[u8], value: &[u8]) -> Result<(), MetaError> {
    let mut tx = store.begin()?;
    tx.put(key, value)?;
    tx.commit()
}

fn all(store: &EmbeddedMeta) -> Vec<Pair> {
    store.snapshot().unwrap().scan(b"", b"\xFF", usize::MAX).unwrap()
}

#[test]
fn closed_store_is_complete_without_its_journal() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedMeta::serve(&path(&dir)).unwrap();
    put(&store, b"a", b"1").unwrap();
    let killed = after_a_kill(&dir);
    drop(store);
    // The journal files keep their space, but their content is not needed.
    let alone = tempfile::tempdir().unwrap();
    fs::copy(path(&dir), path(&alone)).unwrap();
    assert_eq!(all(&EmbeddedMeta::open(&path(&alone)).unwrap()), [(b"a".to_vec(), b"1".to_vec())]);
    assert_eq!(all(&EmbeddedMeta::open(&path(&dir)).unwrap()), [(b"a".to_vec(), b"1".to_vec())]);
    let journal = journal::paths(&path(&killed));
    fs::rename(&journal[0], killed.path().join("elsewhere")).unwrap();
    let missing = EmbeddedMeta::open(&path(&killed)).err().unwrap();
    assert!(matches!(&missing, OpenError::NoJournal(path) if *path == journal[0]), "{missing}");
    fs::rename(killed.path().join("elsewhere"), &journal[0]).unwrap();
    let store = EmbeddedMeta::open(&path(&killed)).unwrap();
    assert_eq!(all(&store), [(b"a".to_vec(), b"1".to_vec())]);
    assert_eq!(fs::read_dir(killed.path()).unwrap().count(), 1, "the journal is not needed any more");
}

#[test]
fn lazy_commits_are_written_at_close() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedMeta::serve(&path(&dir)).unwrap();
    let files = || {
        let mut paths = journal::paths(&path(&dir)).to_vec();
        paths.push(path(&dir));
        paths.into_iter().map(|path| fs::read(path).unwrap()).collect::<Vec<_>>()
    };
    // The first commit grows the journal file.
    put(&store, b"first", b"1").unwrap();
    let before = files();
    for n in 0..10u8 {
        let mut tx = store.begin().unwrap();
        tx.put(&[n], b"lazy").unwrap();
        tx.commit_lazily().unwrap();
    }
    assert!(files() == before, "nothing was written that somebody waited for");
    drop(store);
    assert_eq!(all(&EmbeddedMeta::open(&path(&dir)).unwrap()).len(), 11);
}

#[test]
fn concurrent_commits_share_one_sync() {
    const WRITERS: u8 = 24;
    let disk = SimDisk::default();
    let store = disk.start().unwrap();
    put(&store, b"first", b"1").unwrap();
    let before = disk.syncs();
    // The first writer waits for the disk until all others have committed.
    let busy = disk.hold();
    std::thread::scope(|scope| {
        for n in 0..WRITERS {
            let store = &store;
            scope.spawn(move || put(store, &[n], b"1").unwrap());
        }
        while store.core.state.lock().number <= u64::from(WRITERS) {
            std::thread::yield_now();
        }
        drop(busy);
    });
    assert!(disk.syncs() - before <= 2, "{} syncs", disk.syncs() - before);
    let left = disk.crash(UnsyncedData::Nothing).start().unwrap();
    assert_eq!(all(&left).len(), usize::from(WRITERS) + 1);
}

#[test]
fn reader_waits_until_its_data_is_durable() {
    let disk = SimDisk::default();
    let store = disk.start().unwrap();
    put(&store, b"first", b"1").unwrap();
    let busy = disk.hold();
    std::thread::scope(|scope| {
        scope.spawn(|| put(&store, b"a", b"1").unwrap());
        while store.snapshot().unwrap().get(b"a").unwrap().is_none() {
            std::thread::yield_now();
        }
        assert!(!store.answers_at_once(), "seen, and not durable");
        let answers = scope.spawn(|| {
            store.wait_for_medium().unwrap();
            disk.crash(UnsyncedData::Nothing)
        });
        drop(busy);
        let left = answers.join().unwrap().start().unwrap();
        assert_eq!(all(&left).len(), 2);
    });
    assert!(store.answers_at_once());
}

#[test]
fn readers_get_no_errors_during_commits() {
    let disk = SimDisk::default();
    let store = disk.start().unwrap();
    let writing = AtomicU64::new(4);
    std::thread::scope(|scope| {
        for n in 0..4u8 {
            let (store, writing) = (&store, &writing);
            scope.spawn(move || {
                (0..500u16).for_each(|i| put(store, &[n], &i.to_be_bytes()).unwrap());
                writing.fetch_sub(1, Ordering::Relaxed);
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while writing.load(Ordering::Relaxed) > 0 {
                    store.wait_for_medium().unwrap();
                    store.settle().unwrap();
                    store.core.apply().unwrap();
                }
            });
        }
    });
    assert_eq!(all(&store).len(), 4);
}

#[test]
fn failed_write_poisons_store_until_reopened() {
    let disk = SimDisk::default();
    let store = disk.start().unwrap();
    put(&store, b"a", b"1").unwrap();
    disk.fail_after(0);
    assert!(matches!(put(&store, b"b", b"1"), Err(MetaError::Failed(_))));
    for refused in [
        put(&store, b"c", b"1").unwrap_err(),
        store.snapshot().err().unwrap(),
        store.settle().unwrap_err(),
        store.wait_for_medium().unwrap_err(),
    ] {
        assert!(matches!(refused, MetaError::Poisoned), "{refused}");
    }
    drop(store);
    let store = disk.crash(UnsyncedData::Everything).start().unwrap();
    assert_eq!(store.snapshot().unwrap().get(b"a").unwrap(), Some(b"1".to_vec()));
}

#[test]
fn failed_write_fails_all_waiting_and_later_commits() {
    const WRITERS: u8 = 8;
    let disk = SimDisk::default();
    let store = disk.start().unwrap();
    put(&store, b"first", b"1").unwrap();
    let busy = disk.hold();
    disk.fail_after(1);
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let writers = (0..WRITERS).map(|n| {
            let store = &store;
            scope.spawn(move || put(store, &[n], b"1"))
        });
        let writers: Vec<_> = writers.collect();
        // All have committed; one of them writes for all.
        while store.core.state.lock().number <= u64::from(WRITERS) {
            std::thread::yield_now();
        }
        drop(busy);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
    let journal = store.core.journal.as_ref().unwrap();
    assert!(journal.sync(1 + u64::from(WRITERS)).is_err() && journal.durable() == 1);
    let left = disk.crash(UnsyncedData::Nothing).start().unwrap();
    assert_eq!(all(&left).len(), 1);
}

#[test]
fn foreign_journal_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    drop(EmbeddedMeta::open(&path(&dir)).unwrap());
    let stopped = after_a_kill(&dir);
    let store = EmbeddedMeta::serve(&path(&dir)).unwrap();
    put(&store, b"a", b"1").unwrap();
    let killed = after_a_kill(&dir);
    drop(store);
    // An older complete file was put back beside the journal: the journal is ignored and removed.
    fs::copy(path(&stopped), path(&dir)).unwrap();
    for (from, to) in journal::paths(&path(&killed)).iter().zip(journal::paths(&path(&dir))) {
        fs::copy(from, to).unwrap();
    }
    let again = EmbeddedMeta::serve(&path(&dir)).unwrap();
    assert_eq!(all(&again), []);
    put(&again, b"b", b"1").unwrap();
    let later = after_a_kill(&dir);
    // A file beside the journal of another opening.
    fs::copy(path(&killed), path(&later)).unwrap();
    let refused = EmbeddedMeta::open(&path(&later)).err().unwrap();
    let OpenError::Corrupt { source, .. } = &refused else { panic!("{refused}") };
    assert!(source.to_string().contains("journal-0 does not belong"), "{source}");
    // Under another name the store is still complete.
    let renamed = killed.path().join("renamed.redb");
    EmbeddedMeta::rename(&path(&killed), &renamed).unwrap();
    assert_eq!(all(&EmbeddedMeta::open(&renamed).unwrap()).len(), 1);
}

#[test]
fn value_that_imitates_a_record_is_ignored() {
    // A guess of the secret epoch would be accepted: the last case shows that the forgery is
    // otherwise valid.
    for (guess, taken) in [(0, false), (1, false), (u64::MAX, false), (u64::MAX - 1, true)] {
        let disk = SimDisk::default();
        let store = disk.start().unwrap();
        let drawn = store.core.journal.as_ref().unwrap().epoch();
        let epoch = if taken { drawn } else { guess };
        let forged = journal::forged(epoch, 1, [(&b"role"[..], Some(&b"admin"[..]))].into_iter());
        // Aligned to the start of a block, behind header, lengths and key.
        put(&store, b"v", &[vec![0; 4096 - 48 - 6 - 1], forged].concat()).unwrap();
        let left = disk.crash(UnsyncedData::Nothing);
        left.damage("journal-0", 4096);
        let role = left.start().unwrap().snapshot().unwrap().get(b"role").unwrap();
        assert_eq!(role.is_some(), taken);
    }
}

#[test]
fn full_disk_refuses_commit_without_damage() {
    let disk = SimDisk::default();
    let store = disk.start().unwrap();
    put(&store, b"a", b"1").unwrap();
    disk.is_full(true);
    let large = vec![7; sealstone_mds::store::VALUE_MAX];
    let refused = loop {
        if let Err(error) = put(&store, b"large", &large) {
            break error;
        }
    };
    assert!(matches!(refused, MetaError::Full { .. }), "{refused}");
    // Changes that fit are still accepted.
    assert_eq!(store.snapshot().unwrap().get(b"a").unwrap(), Some(b"1".to_vec()));
    disk.is_full(false);
    put(&store, b"b", b"1").unwrap();
    let store = disk.crash(UnsyncedData::Nothing).start().unwrap();
    assert_eq!(all(&store).len(), 3);
}

#[test]
fn changes_are_applied_during_reads_and_writes() {
    let disk = SimDisk::default();
    let store = disk.start().unwrap();
    let old = store.snapshot().unwrap();
    for n in 0..40u8 {
        put(&store, &[n % 8], &[n]).unwrap();
        if n % 8 == 7 {
            let before = store.snapshot().unwrap();
            let seen = before.scan(b"", b"\xFF", 99).unwrap();
            store.core.apply().unwrap();
            put(&store, &[n % 8], b"later").unwrap();
            assert_eq!(before.scan(b"", b"\xFF", 99).unwrap(), seen);
        }
    }
    assert_eq!(old.scan(b"", b"\xFF", 99).unwrap(), []);
    drop(old);
    assert!(store.core.state.lock().views.is_empty());
}

#[test]
fn journal_damage_is_reported_except_torn_end() {
    let disk = SimDisk::default();
    let store = disk.start().unwrap();
    for n in 0..9u8 {
        put(&store, &[n], b"1").unwrap();
    }
    // Each commit has its own block after the first. The fifth is damaged, and later records report
    // it as durable.
    let damaged = disk.crash(UnsyncedData::Nothing);
    damaged.damage("journal-0", 5 * 4096 + 50);
    let error = damaged.start().err().unwrap().to_string();
    assert!(error.contains("record 5 of the journal was durable and is damaged"), "{error}");
    // The last record, which no other record reports as durable.
    let torn = disk.crash(UnsyncedData::Nothing);
    torn.damage("journal-0", 9 * 4096 + 50);
    assert_eq!(all(&torn.start().unwrap()).len(), 8);
}

#[test]
fn reopened_store_has_exactly_the_commits() {
    for start in [EmbeddedMeta::open, EmbeddedMeta::serve] {
        let dir = tempfile::tempdir().unwrap();
        {
            let store = start(&path(&dir)).unwrap();
            put(&store, b"kept", b"1").unwrap();
            let mut tx = store.begin().unwrap();
            tx.put(b"lost", b"1").unwrap();
            drop(tx);
        }
        let store = start(&path(&dir)).unwrap();
        assert_eq!(all(&store), [(b"kept".to_vec(), b"1".to_vec())]);
    }
}

#[test]
fn new_files_are_private_and_exposed_ones_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedMeta::serve(&path(&dir)).unwrap();
    put(&store, b"a", b"1").unwrap();
    let [first, second] = journal::paths(&path(&dir));
    for file in [&path(&dir), &first, &second] {
        let mode = fs::metadata(file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", file.display());
    }
    let killed = after_a_kill(&dir);
    drop(store);
    let exposed = journal::paths(&path(&killed))[1].clone();
    fs::set_permissions(&exposed, fs::Permissions::from_mode(0o640)).unwrap();
    let refused = EmbeddedMeta::serve(&path(&killed)).err().unwrap();
    assert!(matches!(&refused, OpenError::Exposed { path, mode: 0o640 } if *path == exposed), "{refused}");
    fs::set_permissions(path(&dir), fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(EmbeddedMeta::open(&path(&dir)), Err(OpenError::Exposed { mode: 0o640, .. })));
}

#[test]
fn foreign_files_and_versions_are_rejected() {
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
        let tx = store.core.database.begin_write().unwrap();
        tx.open_table(MARKER).unwrap().insert(FORMAT, 9).unwrap();
        tx.commit().unwrap();
    }
    assert!(matches!(EmbeddedMeta::serve(&path(&dir)), Err(OpenError::KeyVersion { found: 9, .. })));
}

#[test]
fn second_server_on_a_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _first = EmbeddedMeta::serve(&path(&dir)).unwrap();
    for start in [EmbeddedMeta::open, EmbeddedMeta::serve] {
        assert!(matches!(start(&path(&dir)), Err(OpenError::InUse(_))));
    }
}

type Step = Vec<(u8, Option<u8>)>;

fn step() -> impl Strategy<Value = Step> {
    prop::collection::vec((0..16u8, prop::option::of(any::<u8>())), 1..8)
}

fn change(store: &dyn MetaStore, step: &Step, waits: bool) -> Result<(), MetaError> {
    let mut tx = store.begin()?;
    for (key, value) in step {
        match value {
            Some(value) => tx.put(&[*key], &[*value])?,
            None => tx.delete(&[*key])?,
        }
    }
    if waits { tx.commit() } else { tx.commit_lazily() }
}

#[derive(Clone, Debug)]
enum StoreOperation {
    Change(Step),
    Lazily(Step),
    Settle,
    Apply,
}

fn store_operation() -> impl Strategy<Value = StoreOperation> {
    prop_oneof![
        4 => step().prop_map(StoreOperation::Change),
        2 => step().prop_map(StoreOperation::Lazily),
        1 => Just(StoreOperation::Settle),
        2 => Just(StoreOperation::Apply),
    ]
}

/// Expected states after each commit, and how many are durable.
struct ExpectedStates {
    states: Vec<Vec<Pair>>,
    durable: usize,
}

impl ExpectedStates {
    /// Runs acts until one fails; after a power cut all do.
    fn run(&mut self, store: &EmbeddedMeta, acts: &[StoreOperation]) {
        for store_operation in acts {
            let (step, waits) = match store_operation {
                StoreOperation::Change(step) => (Some(step), true),
                StoreOperation::Lazily(step) => (Some(step), false),
                StoreOperation::Settle | StoreOperation::Apply => (None, false),
            };
            if let Some(step) = step {
                // The commit may be stored even if it returned an error.
                let model = MemoryMeta::new();
                let mut tx = model.begin().unwrap();
                for (key, value) in self.states.last().into_iter().flatten() {
                    tx.put(key, value).unwrap();
                }
                tx.commit().unwrap();
                change(&model, step, true).unwrap();
                self.states.push(model.snapshot().unwrap().scan(b"", b"\xFF", 99).unwrap());
            }
            let done = match store_operation {
                StoreOperation::Change(step) | StoreOperation::Lazily(step) => change(store, step, waits),
                StoreOperation::Settle => store.settle(),
                StoreOperation::Apply => store.core.apply(),
            };
            match done {
                Ok(()) if matches!(store_operation, StoreOperation::Lazily(_)) => {}
                Ok(()) => self.durable = self.states.len() - 1,
                Err(_) => return,
            }
        }
    }

    /// Checks that the content found is a known state and not older than the last durable one. It
    /// becomes the current state.
    fn check(&mut self, found: Vec<Pair>) -> Result<(), TestCaseError> {
        let at = self.states.iter().rposition(|state| *state == found);
        prop_assert!(
            at.is_some_and(|at| at >= self.durable),
            "found {found:?}, which is state {at:?} of {:?}, {} durable",
            self.states,
            self.durable
        );
        (self.states, self.durable) = (vec![found], 0);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn behaves_like_the_memory_store(
        steps in prop::collection::vec((step(), any::<bool>(), 0..20u8, 0..20u8, 0..9usize), 1..24),
    ) {
        let disk = SimDisk::default();
        let (embedded, memory) = (disk.start().unwrap(), MemoryMeta::new());
        for (step, applies, from, until, limit) in steps {
            for store in [&embedded as &dyn MetaStore, &memory] {
                change(store, &step, true).unwrap();
            }
            if applies {
                embedded.core.apply().unwrap();
            }
            let seen = |store: &dyn MetaStore| store.snapshot().unwrap().scan(&[from], &[until], limit).unwrap();
            prop_assert_eq!(seen(&embedded), seen(&memory));
            let inside = |store: &dyn MetaStore| {
                let mut tx = store.begin().unwrap();
                tx.put(&[from], b"inside").unwrap();
                tx.delete(&[until]).unwrap();
                (tx.scan(&[0], &[99], limit).unwrap(), tx.get(&[until]).unwrap())
            };
            prop_assert_eq!(inside(&embedded), inside(&memory));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Cuts power after any number of writes and syncs, with any part of the unsynced data kept,
    /// repeatedly.
    #[test]
    fn power_cut_leaves_a_durable_state(
        lives in prop::collection::vec((prop::collection::vec(store_operation(), 0..16), 0..60usize, any::<u64>()), 1..5),
    ) {
        let mut disk = SimDisk::default();
        // The creator of a new file renames it when it is complete.
        drop(disk.start().unwrap());
        let mut known = ExpectedStates { states: vec![Vec::new()], durable: 0 };
        for (acts, operations, seed) in lives {
            disk.fail_after(operations);
            if let Ok(store) = disk.start() {
                known.run(&store, &acts);
            }
            disk = disk.crash(UnsyncedData::Some(seed));
            known.check(all(&disk.start().unwrap()))?;
            disk = disk.crash(UnsyncedData::Everything);
        }
    }
}
