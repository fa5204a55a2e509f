//! Bytes of the write log for each operation: `cargo run -p sealstone-store --example log_bytes`.
//!
//! Prints the mean length of a record. A store on a simulated disk reports the offset of each write
//! to its log.
#![allow(clippy::print_stdout)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::sim::SimMedium;
use sealstone_store::{
    AttributeId, DiskStore, FormatOptions, Medium, MediumFile, ObjectStore, StoreError, StoreOptions, format,
};

/// Operations of each kind.
const COUNT: u64 = 100;
/// Name of the log file.
const LOG: &str = "write-log";

type Failure = Box<dyn std::error::Error>;

/// A disk that records the offset of the last write to the log.
struct LogMeter {
    disk: SimMedium,
    last: Arc<AtomicU64>,
}

/// The log, or with `None` another file.
struct MeteredFile(Arc<dyn MediumFile>, Option<Arc<AtomicU64>>);

impl Medium for LogMeter {
    fn open(&self, name: &str, create: bool) -> io::Result<Arc<dyn MediumFile>> {
        let last = (name == LOG).then(|| Arc::clone(&self.last));
        Ok(Arc::new(MeteredFile(self.disk.open(name, create)?, last)))
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

impl MediumFile for MeteredFile {
    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if let Some(last) = &self.1 {
            last.store(offset, Ordering::Relaxed);
        }
        self.0.write_at(offset, data)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.0.discard(offset, length)
    }
}

fn main() -> Result<(), Failure> {
    let last = Arc::new(AtomicU64::new(0));
    let medium = LogMeter { disk: SimMedium::new(1), last: Arc::clone(&last) };
    format(&medium, &FormatOptions::new(1 << 30, *b"bytes of the log"))?;
    let store = DiskStore::open(Arc::new(medium), StoreOptions::default())?;
    let written = ObjectId::new(1, 1);
    let attributed = ObjectId::new(1, 2);
    for id in [written, attributed] {
        store.create(id, ObjectType::User)?;
    }
    store.write(written, 0, &vec![1; 8 << 20])?;
    let measure = |what: &str, operation: &dyn Fn(u64) -> Result<(), StoreError>| -> Result<(), Failure> {
        store.flush()?;
        operation(0)?;
        let first = last.load(Ordering::Relaxed);
        for number in 1..=COUNT {
            operation(number)?;
        }
        println!("{what:<40} {:>6}", (last.load(Ordering::Relaxed) - first) / COUNT);
        Ok(())
    };
    let place = |number: u64, length: u64| number * 7919 % ((8 << 20) / length) * length;
    let overwrite = |length: u64| {
        let data = vec![2; length as usize];
        let store = &store;
        move |number: u64| store.write(written, place(number, length), &data)
    };
    measure("overwrite of 4 KiB", &overwrite(4 << 10))?;
    measure("overwrite of 64 KiB", &overwrite(64 << 10))?;
    measure("overwrite of 1 MiB", &overwrite(1 << 20))?;
    let end = |number: u64, length: u64| (8 << 20) + number * length;
    measure("append of 100 bytes", &|number| store.write(written, end(number, 100), &[3; 100]))?;
    measure("append of 4 KiB", &|number| store.write(written, (16 << 20) + (number << 12), &[4; 4096]))?;
    measure("create", &|number| store.create(ObjectId::new(1, 1000 + number), ObjectType::User))?;
    measure("write of 100 bytes to an empty object", &|number| {
        store.write(ObjectId::new(1, 1000 + number), 0, &[5; 100])
    })?;
    let tag = AttributeId { page: 1, number: 1 };
    measure("attribute of 16 bytes", &|_| store.set_attribute(attributed, tag, &[6; 16]))?;
    measure("remove of a small object", &|number| store.remove(ObjectId::new(1, 1000 + number)))?;
    Ok(())
}
