//! Cost of attributes in the disk store: `cargo run --release -p sealstone-store --example
//! attributes`.
//!
//! Prints medians of one get, one set and one page of ten, in a store with few attributes and in
//! one with many: the difference is the cost of the index. Takes a few seconds.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sealstone_store::contract::SeededRandom;
use sealstone_store::{DiskStore, FileMedium, FormatOptions, ObjectStore, StoreOptions, format};

type Failure = Box<dyn std::error::Error>;

/// Attributes of each object: ten pages of ten.
const PAGES: u32 = 10;
const PER_PAGE: u32 = 10;
const FIRST_PAGE: u32 = 0x1_0000;
/// Numbers of objects; each has a hundred attributes of 16 bytes.
const OBJECTS: [u64; 3] = [10, 100, 1000];
const SAMPLES: usize = 2000;

fn main() -> Result<(), Failure> {
    let scratch = tempfile::tempdir()?;
    let medium = FileMedium::open(scratch.path())?;
    format(&medium, &FormatOptions::new(1 << 30, *b"attribute prices"))?;
    let store = DiskStore::open(Arc::new(medium), StoreOptions::default())?;
    let mut random = SeededRandom::new(1);
    let mut there = 0;
    println!("attributes | get | set | page of {PER_PAGE} | index bytes an attribute");
    for objects in OBJECTS {
        for object in there..objects {
            let id = ObjectId::new(0x1_0000, 0x1_0000 + object);
            store.create(id, ObjectType::User)?;
            for page in 0..PAGES {
                for number in 0..PER_PAGE {
                    store.set_attribute(id, name(page, number), &[7; 16])?;
                }
            }
        }
        there = objects;
        store.flush()?;
        let mut pick = || {
            let id = ObjectId::new(0x1_0000, 0x1_0000 + random.below(objects));
            (id, random.below(u64::from(PAGES)) as u32, random.below(u64::from(PER_PAGE)) as u32)
        };
        let get = median(|| {
            let (id, page, number) = pick();
            store.attribute(id, name(page, number)).map(drop)
        })?;
        let page = median(|| {
            let (id, page, _) = pick();
            store.attributes(id, Some(FIRST_PAGE + page)).map(drop)
        })?;
        let set = median(|| {
            let (id, page, number) = pick();
            store.set_attribute(id, name(page, number), &[8; 16])
        })?;
        store.flush()?;
        let count = objects * u64::from(PAGES * PER_PAGE);
        let index = std::fs::metadata(scratch.path().join("index.redb"))?.len();
        println!("{count} | {get:?} | {set:?} | {page:?} | {}", index / count);
    }
    Ok(())
}

fn name(page: u32, number: u32) -> AttributeId {
    AttributeId::new(FIRST_PAGE + page, 1 + number)
}

fn median<E>(mut one: impl FnMut() -> Result<(), E>) -> Result<Duration, E> {
    let mut times = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        let begin = Instant::now();
        one()?;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    Ok(times[SAMPLES / 2])
}
