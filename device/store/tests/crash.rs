//! Crash tests. After a power failure everything flushed is present, and of the rest a prefix of
//! whole scopes. After the death of the process everything acknowledged is present.

use crate::support::{Fresh, MEDIA, fresh, fresh_device, open, seeds};
use sealstone_store::contract::{self, ModelOp, SeededRandom};
use sealstone_store::sim::{DiskFault, SimMedium};
use sealstone_store::{MemoryStore, ObjectStore, PreviousShutdown, StoreError, StoreFault};

const CAPACITY: u64 = 6 << 20;

/// One run of a random workload with power failures.
struct World {
    random: SeededRandom,
    medium: SimMedium,
    /// The state of the last acknowledged flush.
    durable: MemoryStore,
    /// Operations acknowledged since, by scope.
    since: Vec<Vec<ModelOp>>,
    /// The scope during which the medium failed: it may be present, as a whole.
    unanswered: Option<Vec<ModelOp>>,
}

/// How a session ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Unsynced data may be lost.
    PowerLoss,
    /// All written data is present.
    ProcessDeath,
}

impl World {
    /// Creates a run on a new store, whose partitions have different profiles.
    fn new(seed: u64, fresh: Fresh) -> Self {
        let (medium, store) = fresh(seed, CAPACITY);
        let mut random = SeededRandom::new(seed);
        let durable = MemoryStore::new(CAPACITY);
        for op in contract::random_profiles(&mut random) {
            contract::apply(&store, &op);
            contract::apply(&durable, &op);
        }
        store.flush().unwrap();
        Self { random, medium, durable, since: Vec::new(), unanswered: None }
    }

    /// Works until the power fails. Results of operations are not checked here; the model test does
    /// that.
    fn work(&mut self, steps: u64) {
        let Ok(store) = open(&self.medium) else {
            assert!(self.medium.is_dead(), "a store opens unless the power fails");
            return;
        };
        let mut now = 0;
        for _ in 0..steps {
            let count = if self.random.below(3) == 0 { self.random.below(6) } else { 1 };
            let mut ops: Vec<ModelOp> = (0..count).map(|_| contract::random_op(&mut self.random)).collect();
            ops.retain(|op| !matches!(op, ModelOp::Flush));
            let flush = self.random.below(12) == 0;
            now += self.random.below(200);
            {
                let _scope = store.begin();
                for op in &ops {
                    contract::apply(&store, op);
                }
            }
            if self.medium.is_dead() {
                self.unanswered = Some(ops);
                return;
            }
            self.since.push(ops);
            match self.random.below(4) {
                0 if store.tick(std::time::Duration::from_millis(now)).is_err() => return,
                _ => {}
            }
            if flush {
                match store.flush() {
                    Ok(()) => {
                        for op in self.since.drain(..).flatten() {
                            contract::apply(&self.durable, &op);
                        }
                    }
                    Err(_) => return,
                }
            }
        }
    }

    /// Fails the power, if it did not fail; the reopened store must have the state at the end of a
    /// scope, not before the last flush.
    fn crash(&mut self, seed: u64) {
        self.end(seed, End::PowerLoss);
    }

    /// Ends the session. After the death of the process every acknowledged scope must be present.
    fn end(&mut self, seed: u64, end: End) {
        self.medium = match end {
            End::PowerLoss => self.medium.crash(),
            End::ProcessDeath => {
                for op in self.since.drain(..).flatten() {
                    contract::apply(&self.durable, &op);
                }
                self.medium.kill()
            }
        };
        let store = open(&self.medium).unwrap_or_else(|error| panic!("seed {seed}: reopen: {error:?}"));
        let faults = store.health().faults;
        assert!(faults.is_empty() || faults == [StoreFault::Superblock], "seed {seed}: {faults:?}");
        if end == End::ProcessDeath {
            assert_ne!(store.previous_shutdown(), PreviousShutdown::PossiblePowerLoss, "seed {seed}");
        }
        let found = contract::snapshot(&store).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let mut scopes = std::mem::take(&mut self.since).into_iter().chain(self.unanswered.take());
        loop {
            if contract::snapshot(&self.durable).unwrap() == found {
                assert_eq!(store.space(), self.durable.space(), "seed {seed}");
                return;
            }
            let Some(ops) = scopes.next() else {
                panic!(
                    "seed {seed}: what came back is no state between the last flush and the crash: {found:?}"
                );
            };
            for op in ops {
                contract::apply(&self.durable, &op);
            }
        }
    }
}

#[test]
fn flushed_data_and_whole_groups_survive_every_crash() {
    seeds(60).into_iter().for_each(|seed| crash_six_times(seed, fresh));
}

#[test]
fn flushed_data_survives_every_crash_on_raw_device() {
    seeds(25).into_iter().for_each(|seed| crash_six_times(seed, fresh_device));
}

/// Wherever the process dies, and however often, also during a replay of the log.
#[test]
fn acknowledged_scopes_survive_process_death() {
    for (seed, fresh) in seeds(15).into_iter().flat_map(|seed| MEDIA.map(|fresh| (seed, fresh))) {
        let mut world = World::new(seed, fresh);
        for _ in 0..6 {
            let calls = world.medium.calls();
            let soon = [20, 200, 2000][world.random.below(3) as usize];
            let when = calls.writes + calls.syncs + 1 + world.random.below(soon);
            world.medium.fault(DiskFault::Power(when));
            world.work(120);
            let end = if world.random.below(4) == 0 { End::PowerLoss } else { End::ProcessDeath };
            world.end(seed, end);
        }
    }
}

/// The process dies in each single write and sync of a short workload.
#[test]
fn short_workload_survives_every_death_point() {
    for (seed, fresh) in seeds(1).into_iter().flat_map(|seed| MEDIA.map(|fresh| (seed, fresh))) {
        let mut point = 1;
        loop {
            let mut world = World::new(seed, fresh);
            let calls = world.medium.calls();
            world.medium.fault(DiskFault::Power(calls.writes + calls.syncs + point));
            world.work(25);
            let done = !world.medium.is_dead();
            world.end(seed, End::ProcessDeath);
            if done {
                break;
            }
            point += 1;
        }
    }
}

fn crash_six_times(seed: u64, fresh: Fresh) {
    let mut world = World::new(seed, fresh);
    for _ in 0..6 {
        let calls = world.medium.calls();
        let soon = [20, 200, 2000][world.random.below(3) as usize];
        let when = calls.writes + calls.syncs + 1 + world.random.below(soon);
        world.medium.fault(DiskFault::Power(when));
        world.work(120);
        world.crash(seed);
    }
}

/// The power fails in each single write and sync of a short workload.
#[test]
fn short_workload_survives_every_crash_point() {
    for (seed, fresh) in seeds(2).into_iter().flat_map(|seed| MEDIA.map(|fresh| (seed, fresh))) {
        let mut point = 1;
        loop {
            let mut world = World::new(seed, fresh);
            let calls = world.medium.calls();
            world.medium.fault(DiskFault::Power(calls.writes + calls.syncs + point));
            world.work(25);
            let done = !world.medium.is_dead();
            world.crash(seed);
            if done {
                println!("seed {seed}: {point} crash points");
                break;
            }
            point += 1;
        }
    }
}

/// A scope of many operations is present as a whole or not at all, even if the store commits on its
/// own.
#[test]
fn scope_stays_atomic_when_groups_close_automatically() {
    use sealstone_osd::{ObjectId, ObjectType};
    for seed in seeds(40) {
        let mut random = SeededRandom::new(seed);
        let (medium, store) = fresh(seed, CAPACITY);
        let ids = [ObjectId::new(1, 1), ObjectId::new(2, 2)];
        for id in ids {
            store.create(id, ObjectType::User).unwrap();
        }
        store.flush().unwrap();
        let calls = medium.calls();
        medium.fault(DiskFault::Power(calls.writes + calls.syncs + 1 + random.below(60)));
        let mut round = 0_u8;
        let mut flushed = 0;
        while !medium.is_dead() {
            round += 1;
            let result = (|| -> Result<(), StoreError> {
                {
                    let _scope = store.begin();
                    for id in ids {
                        store.write(id, 0, &[round; 10_000])?;
                    }
                }
                store.tick(std::time::Duration::from_secs(u64::from(round)))?;
                if random.below(5) == 0 {
                    store.flush()?;
                    flushed = round;
                }
                Ok(())
            })();
            assert!(result.is_ok() || medium.is_dead(), "seed {seed}: {result:?}");
        }
        drop(store);
        let store = open(&medium.crash()).unwrap();
        let found = ids.map(|id| {
            let mut bytes = vec![0; 10_000];
            let read = store.read(id, 0, &mut bytes).unwrap();
            assert!(read == 0 || bytes.iter().all(|&byte| byte == bytes[0]), "seed {seed}: torn");
            bytes[0]
        });
        assert_eq!(found[0], found[1], "seed {seed}: half a scope");
        assert!((flushed..=round).contains(&found[0]), "seed {seed}: {found:?} after flush of {flushed}");
    }
}

/// As above with many threads: one scope is never split over two groups, whichever thread flushes.
#[test]
fn a_scope_is_atomic_when_others_flush() {
    use sealstone_osd::{ObjectId, ObjectType};
    const THREADS: u64 = 4;
    for seed in seeds(25) {
        let (medium, store) = fresh(seed, 16 << 20);
        for thread in 0..THREADS {
            for object in 0..2 {
                store.create(ObjectId::new(thread, object), ObjectType::User).unwrap();
            }
        }
        store.flush().unwrap();
        let calls = medium.calls();
        let mut random = SeededRandom::new(seed);
        medium.fault(DiskFault::Power(calls.writes + calls.syncs + 1 + random.below(400)));
        let flushed: Vec<u8> = std::thread::scope(|scope| {
            let work = |thread: u64| {
                let (store, medium) = (&store, &medium);
                move || {
                    let mut flushed = 0;
                    for round in 1..=u8::MAX {
                        let result = (|| -> Result<(), StoreError> {
                            {
                                let _scope = store.begin();
                                for object in 0..2 {
                                    store.write(ObjectId::new(thread, object), 0, &[round; 5_000])?;
                                    std::thread::yield_now();
                                }
                            }
                            store.flush()
                        })();
                        match result {
                            Ok(()) => flushed = round,
                            Err(_) if medium.is_dead() => break,
                            Err(error) => panic!("seed {seed}: {error}"),
                        }
                    }
                    flushed
                }
            };
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(work(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        drop(store);
        let store = open(&medium.crash()).unwrap();
        for (thread, flushed) in (0..THREADS).zip(flushed) {
            let found = [0, 1].map(|object| {
                let mut bytes = [0; 5_000];
                let read = store.read(ObjectId::new(thread, object), 0, &mut bytes).unwrap();
                assert!(bytes[..read].iter().all(|&byte| byte == bytes[0]), "seed {seed}: torn");
                bytes[0]
            });
            assert_eq!(found[0], found[1], "seed {seed}: half a scope");
            assert!(found[0] >= flushed, "seed {seed}: {} after flush of {flushed}", found[0]);
        }
    }
}

/// Many short sessions: a few operations, a power failure somewhere, and again.
#[test]
fn many_short_sessions_lose_no_flushed_data() {
    let start = MEDIA.map(|fresh| {
        let (medium, store) = fresh(1, CAPACITY);
        drop(store);
        medium
    });
    for seed in seeds(2000) {
        let random = SeededRandom::new(seed ^ 0x5EED);
        let medium = start[seed as usize % start.len()].fork_with(seed);
        let durable = MemoryStore::new(CAPACITY);
        let mut world = World { random, medium, durable, since: Vec::new(), unanswered: None };
        for _ in 0..2 {
            let calls = world.medium.calls();
            let when = calls.writes + calls.syncs + 1 + world.random.below(60);
            world.medium.fault(DiskFault::Power(when));
            world.work(12);
            world.crash(seed);
        }
    }
}
