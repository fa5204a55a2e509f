//! How many commits serve how many flushes, on a disk that takes its time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{format_options, options};
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::sim::SimMedium;
use sealstone_store::{DiskStore, Medium, MediumFile, ObjectStore, format};

/// A disk whose syncs take a few milliseconds, as real ones do.
struct Slow {
    disk: SimMedium,
    syncs: Arc<AtomicU64>,
}

struct SlowFile {
    file: Arc<dyn MediumFile>,
    syncs: Arc<AtomicU64>,
}

impl Medium for Slow {
    fn open(&self, name: &str, create: bool) -> io::Result<Arc<dyn MediumFile>> {
        Ok(Arc::new(SlowFile { file: self.disk.open(name, create)?, syncs: Arc::clone(&self.syncs) }))
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
        std::thread::sleep(Duration::from_millis(4));
        self.file.sync()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.file.discard(offset, length)
    }
}

#[test]
fn whoever_was_served_does_not_wait_for_the_next_commit() {
    const WRITERS: u64 = 16;
    const WRITES: u64 = 25;
    let syncs = Arc::new(AtomicU64::new(0));
    let medium = Arc::new(Slow { disk: SimMedium::new(1), syncs: Arc::clone(&syncs) });
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
    // Each commit syncs at least one segment and the index. A served waiter behind the next commit's leader would make
    // about one commit for two or three flushes.
    let commits = (syncs.load(Ordering::Relaxed) - before) / 2;
    assert!(commits * 4 <= WRITERS * WRITES, "{commits} commits for {} flushes", WRITERS * WRITES);
}

/// A store that fails its commit tells all who wait, and none of them hangs.
#[test]
fn a_failed_commit_ends_all_waiting() {
    let disk = SimMedium::new(1);
    let medium = Arc::new(Slow { disk: disk.clone(), syncs: Arc::default() });
    format(&*medium, &format_options(8 << 20)).unwrap();
    let store = DiskStore::open(medium, options()).unwrap();
    for writer in 0..8 {
        store.create(ObjectId::new(1, writer), ObjectType::User).unwrap();
    }
    store.flush().unwrap();
    disk.fault(sealstone_store::sim::Fault::Sync(disk.calls().syncs + 9));
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
