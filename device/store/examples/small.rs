//! Cost of small objects in the index and in blocks: `small [FOLDER] [OBJECTS] [ROUNDS] [LENGTH]`.
//!
//! Prints one JSON object for each length: durable puts per second of 1 and of 16 writers, bytes on
//! disk per object, reads per second (of all, and of few), time to open. Compares two stores in
//! alternating rounds: one that keeps small objects in the index, and one that does not.
#![allow(clippy::print_stdout, reason = "an example that prints what it measured")]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::contract::SeededRandom;
use sealstone_store::{
    DiskStore, FileMedium, FormatOptions, MAX_INLINE, ObjectStore as _, StoreOptions, format,
};

const WRITERS: u64 = 16;
const TURN: Duration = Duration::from_millis(700);
/// Object lengths in bytes, unless one is given as the last argument.
const LENGTHS: [usize; 3] = [512, 1024, 2048];
/// Number of objects that are read so often that all of them stay in memory.
const HOT: u64 = 1000;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let scratch = tempfile::tempdir()?;
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().map_or_else(|| scratch.path().to_path_buf(), PathBuf::from);
    let objects: u64 = arguments.next().map_or(Ok(100_000), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let lengths =
        arguments.next().map_or(Ok(LENGTHS.to_vec()), |text| text.parse().map(|length| vec![length]))?;
    for length in lengths {
        let [blocks, index] = [0, MAX_INLINE].map(|inline_max| Side::new(&folder, inline_max, objects));
        let sides = [blocks?, index?];
        let mut one = [Vec::new(), Vec::new()];
        let mut many = [Vec::new(), Vec::new()];
        for round in 0..rounds as u64 {
            for at in [0, 1] {
                one[at].push(sides[at].durable_puts(1, round, length)?);
                many[at].push(sides[at].durable_puts(WRITERS, round, length)?);
            }
        }
        let mut disk = [0, 0];
        let (mut cold, mut hot) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for at in [0, 1] {
            let before = sides[at].bytes_on_disk()?;
            sides[at].fill(objects, length)?;
            disk[at] = sides[at].bytes_on_disk()?.saturating_sub(before) / objects.max(1);
        }
        for round in 0..rounds as u64 {
            for at in [0, 1] {
                cold[at].push(sides[at].reads(objects, length, round)?);
                hot[at].push(sides[at].reads(HOT, length, round)?);
            }
        }
        let ways = sides.map(|side| (side.folder, side.options));
        let mut opened = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for at in [0, 1] {
                let (folder, options) = &ways[at];
                let start = Instant::now();
                let store = DiskStore::open(Arc::new(FileMedium::open(folder)?), options.clone())?;
                opened[at].push(start.elapsed().as_secs_f64() * 1000.0);
                drop(store);
            }
        }
        println!(
            "{{\"length\":{length},\"durable_puts_per_s\":{{\"one\":{},\"sixteen\":{}}},\"bytes_on_disk\":{{\"blocks\":{},\"index\":{}}},\"reads_per_s\":{{\"all\":{},\"hot\":{}}},\"open_ms\":{}}}",
            pair(&one),
            pair(&many),
            disk[0],
            disk[1],
            pair(&cold),
            pair(&hot),
            pair(&opened),
        );
    }
    Ok(())
}

/// Returns the medians of both sides, and the median of the ratios of the rounds.
fn pair(sides: &[Vec<f64>; 2]) -> String {
    let ratios: Vec<f64> = sides[0].iter().zip(&sides[1]).map(|(blocks, index)| index / blocks).collect();
    let [blocks, index] = [middle(&sides[0]), middle(&sides[1])];
    format!("{{\"blocks\":{blocks:.0},\"index\":{index:.0},\"ratio\":{:.2}}}", middle(&ratios))
}

fn middle(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

struct Side {
    folder: PathBuf,
    options: StoreOptions,
    store: DiskStore,
}

fn id(number: u64) -> ObjectId {
    ObjectId::new(0x1_0000, 0x1_0000 + number)
}

impl Side {
    fn new(folder: &Path, inline_max: u64, objects: u64) -> Result<Self, Failure> {
        let folder = folder.join(format!("inline-{inline_max}"));
        let _ = std::fs::remove_dir_all(&folder);
        let medium = FileMedium::open(&folder)?;
        format(&medium, &FormatOptions::new((objects * 8192).max(1 << 30), [7; 16]))?;
        let options =
            StoreOptions { inline_max, inline_bytes_max: Some(u64::MAX >> 1), ..StoreOptions::default() };
        Ok(Self { store: DiskStore::open(Arc::new(medium), options.clone())?, folder, options })
    }

    /// Creates objects and flushes after each, with this many threads; returns objects per second.
    fn durable_puts(&self, writers: u64, round: u64, length: usize) -> Result<f64, Failure> {
        let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
        let base = (1 << 40) + (round << 33) + (writers << 28);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let work = |writer: u64| {
                let (stop, count) = (&stop, &count);
                move || -> Result<(), sealstone_store::StoreError> {
                    let data = vec![writer as u8 + 1; length];
                    for number in 0.. {
                        let id = id(base + (writer << 20) + number);
                        let whole = self.store.begin();
                        self.store.create(id, ObjectType::User)?;
                        self.store.write(id, 0, &data)?;
                        drop(whole);
                        self.store.flush()?;
                        count.fetch_add(1, Ordering::Relaxed);
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                    Ok(())
                }
            };
            let threads: Vec<_> = (0..writers).map(|writer| scope.spawn(work(writer))).collect();
            std::thread::sleep(TURN);
            stop.store(true, Ordering::Relaxed);
            threads.into_iter().try_for_each(|thread| thread.join().expect("a writer does not panic"))
        })?;
        Ok(count.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64())
    }

    fn fill(&self, objects: u64, length: usize) -> Result<(), Failure> {
        let data: Vec<u8> = (0..length).map(|at| at as u8 | 1).collect();
        for number in 0..objects {
            self.store.create(id(number), ObjectType::User)?;
            self.store.write(id(number), 0, &data)?;
            if number % 10_000 == 0 {
                self.store.flush()?;
            }
        }
        Ok(self.store.flush()?)
    }

    /// Reads objects at random; returns reads per second. Most records are not in the store's
    /// cache, but all pages are in the system's.
    fn reads(&self, objects: u64, length: usize, seed: u64) -> Result<f64, Failure> {
        let mut random = SeededRandom::new(seed);
        let mut into = vec![0; length];
        let start = Instant::now();
        let mut count = 0;
        while start.elapsed() < TURN {
            for _ in 0..100 {
                assert_eq!(self.store.read(id(random.below(objects)), 0, &mut into)?, length);
                count += 1;
            }
        }
        Ok(f64::from(count) / start.elapsed().as_secs_f64())
    }

    fn bytes_on_disk(&self) -> Result<u64, Failure> {
        let mut bytes = 0;
        for file in std::fs::read_dir(&self.folder)? {
            bytes += file?.metadata()?.blocks() * 512;
        }
        Ok(bytes)
    }
}
