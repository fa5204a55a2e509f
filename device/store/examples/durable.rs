//! Cost of durability: `cargo run --release -p sealstone-store --example durable [FOLDER [ROUNDS
//! [KINDS]]]`; kinds are `files`, `device`, `files_direct`, `device_direct`, separated by commas.
//!
//! Prints one JSON object: durable 4 KiB writes per second of 1 and of 16 writers, and sequential
//! writes beside a plain file that is written and synced in the same way. Rounds alternate, so that
//! other load affects both sides; medians, and the ratio of each round.
#![allow(clippy::print_stdout)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::contract::SeededRandom;
use sealstone_store::{
    BlockDevice, DeviceMedium, DiskStore, FileMedium, FormatOptions, IoMode, Medium, ObjectStore,
    StoreOptions, format,
};

const WRITERS: u64 = 16;
const OBJECT: u64 = 16 << 20;
const SEQUENTIAL: u64 = 256 << 20;
const PIECE: usize = 1 << 20;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let scratch = tempfile::tempdir()?;
    let folder = std::env::args().nth(1).map_or_else(|| scratch.path().to_path_buf(), PathBuf::from);
    let rounds: usize = std::env::args().nth(2).map_or(Ok(3), |text| text.parse())?;
    let mut parts = Vec::new();
    let kinds =
        std::env::args().nth(3).unwrap_or_else(|| "files,device,files_direct,device_direct".to_owned());
    for kind in kinds.split(',') {
        let store = store(&folder, kind)?;
        parts.push(format!(
            "\"{kind}\":{{{},{}}}",
            group_commit(&store, rounds)?,
            sequential(&store, &folder, rounds)?
        ));
    }
    println!("{{{}}}", parts.join(","));
    Ok(())
}

fn store(folder: &Path, kind: &str) -> Result<DiskStore, Failure> {
    let io = if kind.ends_with("direct") { IoMode::Direct } else { IoMode::Cached };
    let medium: Arc<dyn Medium> = if kind.starts_with("files") {
        Arc::new(FileMedium::open_with(folder.join(kind), io)?)
    } else {
        let path = folder.join(format!("raw-{kind}"));
        File::create(&path)?.set_len(4 << 30)?;
        let device = Arc::new(BlockDevice::open_with(&path, io)?);
        DeviceMedium::format(device.clone(), [1; 16], false)?;
        let data = device.data();
        Arc::new(DeviceMedium::open_with(device, data)?)
    };
    format(&*medium, &FormatOptions::new(3 << 30, *b"what syncs cost."))?;
    Ok(DiskStore::open(medium, StoreOptions::default())?)
}

/// Writes and flushes one write at a time, for this time, with this many threads; returns writes
/// per second.
fn durable_writes(store: &DiskStore, writers: u64, time: Duration) -> Result<f64, Failure> {
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        let work = |writer: u64| {
            let (stop, count) = (&stop, &count);
            move || -> Result<(), sealstone_store::StoreError> {
                let mut random = SeededRandom::new(writer);
                let id = ObjectId::new(0x1_0000, 0x1_0000 + writer);
                while !stop.load(Ordering::Relaxed) {
                    let block = random.below(OBJECT / 4096) * 4096;
                    store.write(id, block, &[random.next() as u8; 4096])?;
                    store.flush()?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }
        };
        let threads: Vec<_> = (0..writers).map(|writer| scope.spawn(work(writer))).collect();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| thread.join().expect("a writer does not panic"))
    })?;
    Ok(count.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64())
}

fn group_commit(store: &DiskStore, rounds: usize) -> Result<String, Failure> {
    for writer in 0..WRITERS {
        let id = ObjectId::new(0x1_0000, 0x1_0000 + writer);
        store.create(id, ObjectType::User)?;
        store.write(id, 0, &vec![1; OBJECT as usize])?;
        store.flush()?;
    }
    let (mut ones, mut manies, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let one = durable_writes(store, 1, Duration::from_millis(700))?;
        let many = durable_writes(store, WRITERS, Duration::from_millis(700))?;
        ones.push(one);
        manies.push(many);
        ratios.push(many / one);
    }
    Ok(format!(
        "\"durable_4k_writes_per_s\":{{\"one\":{:.0},\"sixteen\":{:.0},\"ratio\":{:.2},\"ratios\":{}}}",
        middle(&ones),
        middle(&manies),
        middle(&ratios),
        list(&ratios)
    ))
}

fn sequential(store: &DiskStore, folder: &Path, rounds: usize) -> Result<String, Failure> {
    let data = vec![0x5A; PIECE];
    let plain = folder.join("plain");
    let mut text = Vec::new();
    for (name, overwrite) in [("new", false), ("overwritten", true)] {
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..rounds as u64 {
            let id = ObjectId::new(0x1_0001, 0x1_0000 + if overwrite { 0 } else { round });
            let fresh = store.stat(id).is_err();
            if fresh {
                store.create(id, ObjectType::User)?;
            }
            let start = Instant::now();
            for part in 0..SEQUENTIAL / PIECE as u64 {
                store.write(id, part * PIECE as u64, &data)?;
            }
            store.flush()?;
            let our = start.elapsed().as_secs_f64();
            if !overwrite {
                let _ = std::fs::remove_file(&plain);
            }
            let file = File::options().write(true).create(true).truncate(false).open(&plain)?;
            let start = Instant::now();
            for part in 0..SEQUENTIAL / PIECE as u64 {
                file.write_all_at(&data, part * PIECE as u64)?;
            }
            file.sync_data()?;
            let their = start.elapsed().as_secs_f64();
            if !overwrite && round > 0 {
                store.remove(id)?;
                store.flush()?;
            }
            ours.push(rate(our));
            theirs.push(rate(their));
            ratios.push(their / our);
        }
        text.push(format!(
            "\"{name}\":{{\"store\":{:.0},\"plain\":{:.0},\"ratio\":{:.2},\"ratios\":{}}}",
            middle(&ours),
            middle(&theirs),
            middle(&ratios),
            list(&ratios)
        ));
    }
    Ok(format!("\"sequential_mib_per_s\":{{{}}}", text.join(",")))
}

fn rate(seconds: f64) -> f64 {
    (SEQUENTIAL >> 20) as f64 / seconds
}

fn middle(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn list(values: &[f64]) -> String {
    format!("[{}]", values.iter().map(|value| format!("{value:.2}")).collect::<Vec<_>>().join(","))
}
