//! Throughput of the disk store on real files: `cargo run --release -p sealstone-store --example
//! rates [FOLDER]`.
//!
//! Prints medians of several rounds: warm reads beside plain pread of the same bytes, writes, and
//! flushes.
#![allow(clippy::print_stdout)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::contract::SeededRandom;
use sealstone_store::{DiskStore, FileMedium, FormatOptions, ObjectStore, StoreOptions, format};

const SIZE: u64 = 256 << 20;
const ROUNDS: usize = 7;
const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let scratch = tempfile::tempdir()?;
    let folder = std::env::args().nth(1).map_or_else(|| scratch.path().to_path_buf(), PathBuf::from);
    let store_folder = folder.join("store");
    let medium = FileMedium::open(&store_folder)?;
    format(&medium, &FormatOptions::new(4 << 30, *b"rates of a store"))?;
    let store = DiskStore::open(Arc::new(medium), StoreOptions::default())?;
    let id = ObjectId::new(0x1_0000, 0x1_0000);
    store.create(id, ObjectType::User)?;

    let plain =
        File::options().read(true).write(true).create(true).truncate(true).open(folder.join("plain"))?;
    let data = vec![0x5A; 1 << 20];
    for part in 0..SIZE >> 20 {
        store.write(id, part << 20, &data)?;
        plain.write_all_at(&data, part << 20)?;
    }
    store.flush()?;
    plain.sync_data()?;

    println!("warm reads of {} MiB, sequential: store, pread, ratio of rates", SIZE >> 20);
    for size in SIZES {
        let mut buffer = vec![0; size];
        let ours = median(|| {
            every(size, |at| {
                assert_eq!(store.read(id, at, &mut buffer)?, size);
                Ok(())
            })
        })?;
        let mut buffer = vec![0; size];
        let theirs = median(|| every(size, |at| Ok(plain.read_exact_at(&mut buffer, at)?)))?;
        println!(
            "{:>8}: {} {} {:.2}",
            label(size),
            rate(ours),
            rate(theirs),
            theirs.as_secs_f64() / ours.as_secs_f64()
        );
    }
    for (name, seed) in [("random 4 KiB reads", 1), ("random 4 KiB unaligned reads", 2)] {
        let mut buffer = vec![0; 4096];
        let count = 100_000_u32;
        let ours = median(|| {
            let mut random = SeededRandom::new(seed);
            for _ in 0..count {
                store.read(id, place(&mut random, seed), &mut buffer)?;
            }
            Ok(())
        })?;
        let theirs = median(|| {
            let mut random = SeededRandom::new(seed);
            for _ in 0..count {
                plain.read_exact_at(&mut buffer, place(&mut random, seed))?;
            }
            Ok(())
        })?;
        println!("{name}: {:?} each; pread {:?}", ours / count, theirs / count);
    }

    println!(
        "sequential overwrites of {} MiB, not flushed, then flushed; plain pwrite and fdatasync",
        SIZE >> 20
    );
    for size in SIZES {
        let (mut writes, mut flushes, mut plains, mut syncs) = (vec![], vec![], vec![], vec![]);
        for _ in 0..3 {
            writes.push(time(|| every(size, |at| Ok(store.write(id, at, &data[..size])?)))?);
            flushes.push(time(|| Ok(store.flush()?))?);
            plains.push(time(|| every(size, |at| Ok(plain.write_all_at(&data[..size], at)?)))?);
            syncs.push(time(|| Ok(plain.sync_data()?))?);
        }
        let [writes, flushes, plains, syncs] = [writes, flushes, plains, syncs].map(middle);
        println!(
            "{:>8}: {} then {flushes:.0?}; {} then {syncs:.0?}",
            label(size),
            rate(writes),
            rate(plains)
        );
    }

    println!("one small change and a flush:");
    for (name, size) in [("4 KiB", 4096), ("64 KiB", 64 << 10), ("attribute", 0)] {
        let mut times = Vec::new();
        let mut random = SeededRandom::new(3);
        for step in 0..200_u64 {
            let at = place(&mut random, 1);
            times.push(time(|| {
                if size == 0 {
                    let attribute = sealstone_store::AttributeId { page: 1, number: (step % 7) as u32 };
                    store.set_attribute(id, attribute, &step.to_le_bytes())?;
                } else {
                    store.write(id, at, &data[..size])?;
                }
                Ok(store.flush()?)
            })?);
        }
        println!("{name:>10}: {:?}", middle(times));
    }
    let mut times = Vec::new();
    for step in 0..200 {
        times.push(time(|| {
            plain.write_all_at(&data[..4096], step << 12)?;
            Ok(plain.sync_data()?)
        })?);
    }
    println!("{:>10}: {:?} (plain 4 KiB pwrite and fdatasync)", "floor", middle(times));

    let count = 20_000_u64;
    let created = time(|| {
        for object in 0..count {
            let id = ObjectId::new(0x1_0001, object);
            let _scope = store.begin();
            store.create(id, ObjectType::User)?;
            store.write(id, 0, &data[..4096])?;
            store.set_attribute(id, sealstone_store::AttributeId { page: 1, number: 1 }, b"name")?;
        }
        Ok(store.flush()?)
    })?;
    println!("{count} objects of 4 KiB with an attribute, one flush: {:?} each", created / count as u32);
    drop(store);
    let opened = Instant::now();
    let store = DiskStore::open(Arc::new(FileMedium::open(&store_folder)?), StoreOptions::default())?;
    println!(
        "open: {:?} for {} objects, {} MiB used",
        opened.elapsed(),
        store.space().objects,
        store.space().used >> 20
    );
    Ok(())
}

/// Aligned for seed 1.
fn place(random: &mut SeededRandom, seed: u64) -> u64 {
    let block = random.below(SIZE / 4096 - 16) * 4096;
    if seed == 1 { block } else { block + 1000 }
}

fn every(size: usize, mut each: impl FnMut(u64) -> Result<(), Failure>) -> Result<(), Failure> {
    (0..SIZE / size as u64).try_for_each(|n| each(n * size as u64))
}

fn time(work: impl FnOnce() -> Result<(), Failure>) -> Result<Duration, Failure> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

fn median(mut work: impl FnMut() -> Result<(), Failure>) -> Result<Duration, Failure> {
    work()?;
    Ok(middle((0..ROUNDS).map(|_| time(&mut work)).collect::<Result<_, _>>()?))
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn rate(time: Duration) -> String {
    format!("{:.0} MiB/s", (SIZE >> 20) as f64 / time.as_secs_f64())
}

fn label(size: usize) -> String {
    if size < 1 << 20 { format!("{} KiB", size >> 10) } else { format!("{} MiB", size >> 20) }
}
