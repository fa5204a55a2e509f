//! Cold and warm random reads through the page cache and past it: `cargo run --release -p
//! sealstone-store --example direct [FOLDER]`.
//!
//! Prints one JSON object: reads per second by size and by number of threads, each of which waits
//! for one read at a time, as the store's callers do. Rounds alternate; medians of three. To
//! compare with io_uring on the same file: `fio --name=r --filename=FILE --rw=randread --bs=4k
//! --direct=1 --ioengine=io_uring --iodepth=32`.
#![allow(clippy::print_stdout)]

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use sealstone_store::contract::SeededRandom;
use sealstone_store::{FileMedium, IoMode, Medium as _, MediumFile};

const SIZE: u64 = 512 << 20;
const TIME: Duration = Duration::from_millis(250);

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let scratch = tempfile::tempdir()?;
    let folder = std::env::args().nth(1).map_or_else(|| scratch.path().to_path_buf(), PathBuf::from);
    {
        let file = FileMedium::open(&folder)?.open("data", true)?;
        let piece = vec![0x5A; 1 << 20];
        (0..SIZE >> 20).try_for_each(|part| file.write_at(part << 20, &piece))?;
        file.sync()?;
    }
    let opened = |io| -> Result<Arc<dyn MediumFile>, Failure> {
        // The lock is released at once, so that both modes can be opened.
        Ok(FileMedium::open_with(&folder, io)?.open_data("data")?)
    };
    let (cached, direct) = (opened(IoMode::Cached)?, opened(IoMode::Direct)?);
    let plain = File::open(folder.join("data"))?;
    let mut rows = Vec::new();
    for (size, threads) in
        [(4 << 10, 1), (4 << 10, 8), (4 << 10, 32), (64 << 10, 1), (64 << 10, 8), (1 << 20, 1), (1 << 20, 8)]
    {
        let (mut cold, mut past, mut warm) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..3 {
            fadvise(&plain, 0, None, Advice::DontNeed)?;
            past.push(reads(&*direct, size, threads, round)?);
            cold.push(reads(&*cached, size, threads, round)?);
            let mut all = vec![0; 1 << 20];
            (0..SIZE >> 20).try_for_each(|part| cached.read_at(part << 20, &mut all))?;
            warm.push(reads(&*cached, size, threads, round)?);
        }
        let [cold, past, warm] = [cold, past, warm].map(middle);
        rows.push(format!(
            "{{\"bytes\":{size},\"threads\":{threads},\"cold\":{cold:.0},\"direct\":{past:.0},\"warm\":{warm:.0},\
             \"direct_to_cold\":{:.2}}}",
            past / cold
        ));
    }
    println!("{{\"reads_per_s\":[{}]}}", rows.join(","));
    Ok(())
}

fn reads(file: &dyn MediumFile, size: usize, threads: u64, round: u64) -> Result<f64, Failure> {
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        let work = |thread: u64| {
            let (stop, count) = (&stop, &count);
            move || -> std::io::Result<()> {
                let mut random = SeededRandom::new(1 + thread + 1000 * round);
                let mut buffer = vec![0; size];
                while !stop.load(Ordering::Relaxed) {
                    file.read_at(random.below(SIZE / size as u64) * size as u64, &mut buffer)?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }
        };
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(work(thread))).collect();
        std::thread::sleep(TIME);
        stop.store(true, Ordering::Relaxed);
        running.into_iter().try_for_each(|thread| thread.join().expect("a reader does not panic"))
    })?;
    Ok(count.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64())
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
