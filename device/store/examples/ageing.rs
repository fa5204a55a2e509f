//! The block allocator in a full and aged store: `cargo run --release -p sealstone-store --example
//! ageing [GIB]`.
//!
//! Fills a map to 95 % with objects of 4 KiB to 4 MiB, overwrites and replaces them at random for
//! many rounds, and prints one JSON object for each stage: time of an allocation by its size, and
//! the number of runs per MiB of new data. The map is the store's own source, without a disk below
//! it.
#![allow(clippy::print_stdout)]

#[path = "../src/disk/pool.rs"]
#[allow(dead_code, missing_docs, unreachable_pub)]
mod pool;
#[path = "../src/disk/shares.rs"]
#[allow(dead_code, missing_docs, unreachable_pub)]
mod shares;
#[path = "../src/disk/space.rs"]
#[allow(dead_code, missing_docs, unreachable_pub)]
mod space;
#[path = "../src/disk/unbacked.rs"]
#[allow(dead_code, missing_docs, unreachable_pub)]
mod unbacked;

use std::time::{Duration, Instant};

use sealstone_store::contract::SeededRandom;
use space::{BlockRun, BlockTurnover, FreeMap};

/// Number of freed blocks that are held back before they become free, as in a commit group.
const GROUP: u64 = 16 << 10;
const SIZES: [(&str, u64); 4] = [("4k", 1), ("64k", 16), ("1m", 256), ("64m", 16384)];

fn main() {
    let gib: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(64);
    let capacity = gib << 18;
    let blocks = capacity + (capacity / 16).min(64 << 10);
    let mut aged = Aged {
        map: FreeMap::new(blocks, capacity, 256 << 10),
        objects: Vec::new(),
        freed: Vec::new(),
        random: SeededRandom::new(1),
    };
    while aged.map.used() < capacity / 100 * 95 {
        let size = aged.size();
        aged.create(size);
    }
    println!("{}", aged.report("filled"));
    for round in 1..=4 {
        for _ in 0..aged.objects.len() * 2 {
            aged.step();
        }
        println!("{}", aged.report(&format!("aged {round}")));
    }
}

struct Aged {
    map: FreeMap,
    objects: Vec<Vec<BlockRun>>,
    freed: Vec<BlockRun>,
    random: SeededRandom,
}

impl Aged {
    /// Draws 1 to 1024 blocks, each power of two with the same probability.
    fn size(&mut self) -> u64 {
        let top = 1 << self.random.below(11);
        1 + self.random.below(top)
    }

    fn take(&mut self, blocks: u64, hint: Option<u64>) -> Vec<BlockRun> {
        match self.map.take(blocks, blocks, hint) {
            Ok(runs) => runs,
            Err(_) => {
                self.commit();
                self.map.take(blocks, blocks, hint).expect("there is the reserve")
            }
        }
    }

    fn create(&mut self, size: u64) {
        let runs = self.take(size, None);
        self.map.turn_over(&BlockTurnover { taken: size, reserved: size, ..BlockTurnover::default() });
        self.objects.push(runs);
    }

    fn drop_blocks(&mut self, runs: Vec<BlockRun>) {
        let freed = self.map.turn_over(&BlockTurnover { dropped: runs, ..BlockTurnover::default() });
        self.freed.extend(freed);
        if self.freed.iter().map(|run| run.count).sum::<u64>() > GROUP {
            self.commit();
        }
    }

    fn commit(&mut self) {
        self.map.recycle(&std::mem::take(&mut self.freed));
    }

    /// Replaces an object by one of another size, or overwrites a part of it.
    fn step(&mut self) {
        let at = self.random.below(self.objects.len() as u64) as usize;
        if self.random.below(3) == 0 {
            let gone = self.objects.swap_remove(at);
            self.drop_blocks(gone);
            let (size, full) = (self.size(), self.map.used());
            if full + size < self.map.capacity() / 100 * 95 {
                self.create(size);
            }
            return;
        }
        let run = self.random.below(self.objects[at].len() as u64) as usize;
        let old = self.objects[at][run];
        let count = 1 + self.random.below(old.count.min(16));
        let from = self.random.below(old.count - count + 1);
        let cut = |from: u64, count: u64| BlockRun { location: old.location + from, count };
        let new = self.take(count, from.checked_sub(1).map(|before| old.location + before + 1));
        self.map.turn_over(&BlockTurnover { taken: count, reserved: count, ..BlockTurnover::default() });
        let rest = [cut(0, from), cut(from + count, old.count - from - count)];
        self.objects[at].swap_remove(run);
        self.objects[at].extend(rest.into_iter().filter(|run| run.count > 0).chain(new));
        self.drop_blocks(vec![cut(from, count)]);
    }

    /// Measures allocations, and frees them again.
    fn report(&mut self, stage: &str) -> String {
        self.commit();
        let runs: usize = self.objects.iter().map(Vec::len).sum();
        let mut rows = Vec::new();
        for (name, blocks) in SIZES {
            let (mut times, mut pieces) = (Vec::new(), 0);
            for _ in 0..400 {
                let hint = self.random.below(self.map.capacity());
                let start = Instant::now();
                let Ok(taken) = self.map.take(blocks, blocks, (blocks < 256).then_some(hint)) else { break };
                times.push(start.elapsed());
                pieces += taken.len();
                self.map.give_back(&taken, blocks);
            }
            times.sort();
            let micros = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_nanos() as f64 / 1000.0);
            let per_mib = pieces as f64 * 256.0 / (times.len().max(1) as u64 * blocks) as f64;
            rows.push(format!(
                "\"{name}\":{{\"p50_us\":{:.2},\"p99_us\":{:.2},\"max_us\":{:.1},\"runs_per_mib\":{per_mib:.1}}}",
                micros(times.get(times.len() / 2)),
                micros(times.get(times.len() * 99 / 100)),
                micros(times.last())
            ));
        }
        format!(
            "{{\"stage\":\"{stage}\",\"used\":{:.3},\"runs_per_mib\":{:.2},{}}}",
            self.map.used() as f64 / self.map.capacity() as f64,
            runs as f64 * 256.0 / self.map.used() as f64,
            rows.join(",")
        )
    }
}
