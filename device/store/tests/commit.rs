//! How many commits serve how many flushes, on a slow disk.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::support::{format_options, open, options};
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::sim::SimMedium;
use sealstone_store::{AttributeId, DiskStore, Medium, MediumFile, ObjectStore, PreviousShutdown, format};

/// A disk whose syncs take a few milliseconds, as on real ones.
struct Slow {
    disk: SimMedium,
    syncs: Arc<AtomicU64>,
    barrier: Arc<SyncBarrier>,
}

struct SlowFile {
    file: Arc<dyn MediumFile>,
    syncs: Arc<AtomicU64>,
    barrier: Arc<SyncBarrier>,
}

/// Blocks syncs of a disk while it is closed.
#[derive(Default)]
struct SyncBarrier {
    state: Mutex<BarrierState>,
    changed: Condvar,
}

#[derive(Default)]
struct BarrierState {
    is_closed: bool,
    waiting: usize,
}

impl SyncBarrier {
    fn set_closed(&self, is_closed: bool) {
        self.state.lock().unwrap().is_closed = is_closed;
        self.changed.notify_all();
    }

    /// Called by each sync: waits while the barrier is closed.
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        if !state.is_closed {
            return;
        }
        state.waiting += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |state| state.is_closed).unwrap();
        state.waiting -= 1;
    }

    /// Waits until a sync is blocked.
    fn wait_for_sync(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.waiting == 0).unwrap());
    }
}

impl Medium for Slow {
    fn open(&self, name: &str, create: bool) -> io::Result<Arc<dyn MediumFile>> {
        let (file, syncs) = (self.disk.open(name, create)?, Arc::clone(&self.syncs));
        Ok(Arc::new(SlowFile { file, syncs, barrier: Arc::clone(&self.barrier) }))
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.disk.delete(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn sync_names(&self) -> io::Result<()> {
        self.disk.sync_names()
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        self.disk.boot_id()
    }
}

impl MediumFile for SlowFile {
    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, data)
    }

    fn sync(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.barrier.pass();
        std::thread::sleep(Duration::from_millis(4));
        self.file.sync()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.file.discard(offset, length)
    }
}

#[test]
fn served_thread_does_not_wait_for_next_commit() {
    const WRITERS: u64 = 16;
    const WRITES: u64 = 25;
    let syncs = Arc::new(AtomicU64::new(0));
    let medium =
        Arc::new(Slow { disk: SimMedium::new(1), syncs: Arc::clone(&syncs), barrier: Arc::default() });
    format(&*medium, &format_options(8 << 20)).unwrap();
    let store = DiskStore::open(medium, options()).unwrap();
    for writer in 0..WRITERS {
        store.create(ObjectId::new(1, writer), ObjectType::User).unwrap();
    }
    store.flush().unwrap();
    let before = syncs.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let store = &store;
            scope.spawn(move || {
                for block in 0..WRITES {
                    store.write(ObjectId::new(1, writer), block << 12, &[1; 4096]).unwrap();
                    store.flush().unwrap();
                }
            });
        }
    });
    // Each commit syncs at least one segment and the index. If a served thread waited behind the
    // next commit's leader, there would be about one commit for two or three flushes.
    let commits = (syncs.load(Ordering::Relaxed) - before) / 2;
    assert!(commits * 4 <= WRITERS * WRITES, "{commits} commits for {} flushes", WRITERS * WRITES);
}

/// A failed commit fails all waiting threads, and none of them hangs.
#[test]
fn a_failed_commit_ends_all_waiting() {
    let disk = SimMedium::new(1);
    let medium = Arc::new(Slow { disk: disk.clone(), syncs: Arc::default(), barrier: Arc::default() });
    format(&*medium, &format_options(8 << 20)).unwrap();
    let store = DiskStore::open(medium, options()).unwrap();
    for writer in 0..8 {
        store.create(ObjectId::new(1, writer), ObjectType::User).unwrap();
    }
    store.flush().unwrap();
    disk.fault(sealstone_store::sim::DiskFault::Sync(disk.calls().syncs + 9));
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let store = &store;
            scope.spawn(move || {
                let mut block = 0;
                while store.write(ObjectId::new(1, writer), block << 12, &[1; 4096]).is_ok()
                    && store.flush().is_ok()
                {
                    block = (block + 1) % 16;
                }
            });
        }
    });
    assert!(store.is_poisoned());
}

/// Upper limit for the early answer of an operation whose answer has to wait.
const EARLY_ANSWER_MAX: Duration = Duration::from_millis(300);

/// A change outlives the process only if the log has all changes before it, or those are committed.
#[test]
fn change_after_overfull_log_waits_for_commit() {
    let disk = SimMedium::new(1);
    let barrier = Arc::new(SyncBarrier::default());
    let medium = Slow { disk: disk.clone(), syncs: Arc::default(), barrier: Arc::clone(&barrier) };
    format(&medium, &format_options(8 << 20)).unwrap();
    let store = DiskStore::open(Arc::new(medium), options()).unwrap();
    let (large, small) = (ObjectId::new(1, 1), ObjectId::new(1, 2));
    // The index gets free pages, so that no change below has to wait for its growth.
    let removed = ObjectId::new(1, 3);
    store.create(removed, ObjectType::User).unwrap();
    for number in 0..40 {
        store.set_attribute(removed, AttributeId { page: 1, number }, &[6; 65_000]).unwrap();
        store.flush().unwrap();
    }
    store.remove(removed).unwrap();
    store.create(large, ObjectType::User).unwrap();
    store.flush().unwrap();
    store.create(small, ObjectType::User).unwrap();
    store.flush().unwrap();
    let is_answered = AtomicBool::new(false);
    let (killed, was_answered) = std::thread::scope(|threads| {
        threads.spawn(|| {
            // More than half of the log, which has 1 MiB. The commit syncs the block first.
            let scope = store.begin();
            store.write(large, 0, &[7; 4096]).unwrap();
            for number in 0..10 {
                let attribute = AttributeId { page: 1, number };
                store.set_attribute(large, attribute, &[7; 65_000]).unwrap();
            }
            barrier.set_closed(true);
            let _ = scope.end();
        });
        barrier.wait_for_sync();
        threads.spawn(|| {
            if store.set_attribute(small, AttributeId { page: 1, number: 1 }, b"changed").is_ok() {
                is_answered.store(true, Ordering::SeqCst);
            }
        });
        let start = Instant::now();
        while !is_answered.load(Ordering::SeqCst) && start.elapsed() < EARLY_ANSWER_MAX {
            std::thread::yield_now();
        }
        let was_answered = is_answered.load(Ordering::SeqCst);
        let killed = disk.kill();
        barrier.set_closed(false);
        (killed, was_answered)
    });
    let reopened = open(&killed).unwrap();
    let found = reopened.attribute(small, AttributeId { page: 1, number: 1 }).unwrap();
    assert!(!was_answered || found.is_some(), "an acknowledged change is lost");
    assert!(!was_answered, "the change is answered before the group that it is built on survives");
    assert_eq!(reopened.previous_shutdown(), PreviousShutdown::ProcessDeath);
}
