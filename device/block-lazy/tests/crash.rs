//! Power failures on the store's simulated medium, at random and at each single step.
//!
//! L9: after a failure each block reads as it was at the last synchronize or after a later write,
//! verified by its keys. A version that was deleted does not appear again.

use std::sync::Arc;

use sealstone_block_lazy::{LazyError, LazyUnit, ReadVerdict};
use sealstone_block_protection::ProtectionProfile;
use sealstone_osd::ObjectType;
use sealstone_store::contract::SeededRandom;
use sealstone_store::sim::{DiskFault, SimMedium};
use sealstone_store::{DiskStore, FormatOptions, ObjectStore, StoreOptions, format};

use crate::support::{BLOCK, Bench, MODERN, PAPER, S2_5, SAFE, stamped, unit};

const BLOCKS: u64 = 130;
/// Number of histories for each profile; `SEALSTONE_SEED` selects one.
const SEEDS: u64 = 12;

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("SEALSTONE_SEED") {
        Ok(seed) => vec![seed.parse().expect("SEALSTONE_SEED is a number")],
        Err(_) => (0..count).collect(),
    }
}

fn open_store(medium: &SimMedium) -> Option<Arc<dyn ObjectStore>> {
    let store = DiskStore::open(Arc::new(medium.clone()), StoreOptions::default());
    store.ok().map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
}

/// States that a block may have after a crash.
#[derive(Clone, Default)]
struct BlockModel {
    /// State of the last synchronize.
    durable: u64,
    /// Later states, oldest first. The last one is the current state.
    since: Vec<u64>,
}

impl BlockModel {
    fn current(&self) -> u64 {
        self.since.last().copied().unwrap_or(self.durable)
    }
}

struct CrashWorld {
    seed: u64,
    random: SeededRandom,
    medium: SimMedium,
    unit: LazyUnit,
    blocks: Vec<BlockModel>,
    next: u64,
    now_ms: u64,
}

impl CrashWorld {
    fn new(seed: u64, profile: ProtectionProfile) -> Self {
        let medium = SimMedium::new(seed);
        format(&medium, &FormatOptions::new(24 << 20, [7; 16])).expect("succeeds");
        let mut unit = unit(S2_5, profile, BLOCKS);
        unit.limits.log_bytes_max = 512 << 10;
        unit.limits.log_bytes_due = 300 << 10;
        unit.limits.cached_pages = 2;
        let store = open_store(&medium).expect("succeeds");
        store.create(unit.data, ObjectType::User).expect("succeeds");
        store.resize(unit.data, BLOCKS * BLOCK as u64).expect("succeeds");
        drop(Bench::open(Arc::clone(&store), unit.clone()).expect("succeeds"));
        store.flush().expect("succeeds");
        drop(store);
        let blocks = vec![BlockModel::default(); BLOCKS as usize];
        Self { seed, random: SeededRandom::new(seed), medium, unit, blocks, next: 1, now_ms: 0 }
    }

    /// Works until the power fails or the steps are done.
    fn work(&mut self, steps: u64) {
        let Some(store) = open_store(&self.medium) else { return };
        let Ok(bench) = Bench::open(store, self.unit.clone()) else {
            assert!(self.medium.is_dead(), "seed {}: a unit opens unless the power fails", self.seed);
            return;
        };
        for _ in 0..steps {
            self.step(&bench);
            if self.medium.is_dead() {
                return;
            }
        }
    }

    fn step(&mut self, bench: &Bench) {
        self.now_ms += self.random.below(300);
        let lba = self.random.below(BLOCKS);
        let count = 1 + self.random.below((BLOCKS - lba).min(40));
        let range = lba as usize..(lba + count) as usize;
        let outcome = match self.random.below(10) {
            0 => {
                // It is in flight until it ends.
                self.blocks[range].iter_mut().for_each(|block| block.since.push(0));
                bench.volume.discard(lba, count)
            }
            1 => bench.volume.synchronize(self.now_ms).inspect(|()| self.synchronized()),
            2 => bench.volume.verify_due(self.now_ms),
            3 => self.read_and_report(bench, lba),
            kind => {
                let (number, durable) = (self.next, kind == 4);
                self.next += 1;
                let written = bench.send(&bench.seal(lba, count, number), durable, self.now_ms);
                if !matches!(written, Err(LazyError::Busy { .. })) {
                    self.blocks[range].iter_mut().for_each(|block| block.since.push(number));
                }
                if durable && written.is_ok() {
                    self.synchronized();
                }
                written
            }
        };
        match outcome {
            Ok(()) | Err(LazyError::Busy { .. }) => {}
            Err(error) => assert!(self.medium.is_dead(), "seed {}: {error}", self.seed),
        }
    }

    /// Everything so far is durable.
    fn synchronized(&mut self) {
        for block in &mut self.blocks {
            block.durable = block.since.drain(..).next_back().unwrap_or(block.durable);
        }
    }

    fn read_and_report(&mut self, bench: &Bench, lba: u64) -> Result<(), LazyError> {
        let read = bench.volume.read(lba, 1, 0)?;
        let version = read.versions[0];
        let block = bench.verify(lba, read).expect("no write was changed");
        assert_eq!(stamped(lba, &block), self.blocks[lba as usize].current(), "seed {}", self.seed);
        bench.volume.report(lba, version, ReadVerdict::Authentic, self.now_ms)
    }

    /// The power fails, if it did not fail before.
    fn crash(&mut self) {
        self.medium = self.medium.crash();
        let store = open_store(&self.medium).expect("the store opens after a crash");
        let bench = Bench::open(store, self.unit.clone())
            .unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
        self.check(&bench);
        // The values read are the state from here on. Verification changes none of them.
        bench.volume.verify_due(u64::MAX).expect("succeeds");
        assert_eq!(bench.volume.status(0).unverified, 0);
        assert_eq!(bench.rejected(), [], "seed {}", self.seed);
        self.check(&bench);
        bench.volume.synchronize(self.now_ms).expect("succeeds");
    }

    fn check(&mut self, bench: &Bench) {
        let read = bench.volume.read(0, BLOCKS, 0).expect("succeeds");
        let data = bench.verify(0, read).unwrap_or_else(|| panic!("seed {}: not authentic", self.seed));
        for (lba, block) in data.chunks_exact(BLOCK).enumerate() {
            let (found, model) = (stamped(lba as u64, block), &mut self.blocks[lba]);
            assert!(
                found == model.durable || model.since.contains(&found),
                "seed {}, block {lba}: {found}, expected {} or {:?}",
                self.seed,
                model.durable,
                model.since
            );
            *model = BlockModel { durable: found, since: Vec::new() };
        }
    }
}

#[test]
fn synchronized_blocks_survive_every_crash() {
    for (seed, profile) in
        seeds(SEEDS).into_iter().flat_map(|seed| [(seed, PAPER), (seed, SAFE), (seed, MODERN)])
    {
        let mut world = CrashWorld::new(seed, profile);
        for _ in 0..4 {
            let calls = world.medium.calls();
            let soon = [20, 100, 600][world.random.below(3) as usize];
            let when = calls.writes + calls.syncs + 1 + world.random.below(soon);
            world.medium.fault(DiskFault::Power(when));
            world.work(60);
            world.crash();
        }
    }
}

/// The power fails in each single write and sync of commits, slots and log segments.
#[test]
fn short_history_survives_every_crash_point() {
    for profile in [PAPER, SAFE, MODERN] {
        let mut point = 1;
        loop {
            let mut world = CrashWorld::new(3, profile);
            let calls = world.medium.calls();
            world.medium.fault(DiskFault::Power(calls.writes + calls.syncs + point));
            world.work(16);
            let done = !world.medium.is_dead();
            world.crash();
            if done {
                break;
            }
            point += 1;
        }
        assert!(point > 10, "{point} crash points");
    }
}
