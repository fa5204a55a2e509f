//! End-to-end protected disks on a real unit, whose store loses power.
//!
//! The whole path is real: client, iSCSI session, target, block unit and store. The store's medium
//! is simulated: it loses power at any write or sync, and then each unsynced piece is lost or kept.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "e2e_support/history.rs"]
mod history;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use history::{BLOCK, Disk, Oracle, SimRng, UNIT_BLOCKS, keys, workload};
use sealstone_block::{BlockSize, BlockUnits, NewUnit};
use sealstone_block_client::e2e::{E2eOptions, MemoryRootStore, UnitMedium};
use sealstone_block_client::{BlockUnitClient, UnitClientOptions};
use sealstone_initiator::{Dial, Dialed, Dialing, SystemEnvironment, TargetUrl};
use sealstone_iscsi_target::{IscsiTarget, TargetConfig};
use sealstone_scsi::lu::LogicalUnit;
use sealstone_store::sim::{DiskFault, SimMedium};
use sealstone_store::{DiskStore, FormatOptions, ObjectStore, StoreOptions, format};

const NAME: &str = "iqn.2026-11.org.sealstone:osd.test";

/// Connects to a target in memory.
struct TargetDial(Arc<IscsiTarget>);

impl Dial for TargetDial {
    fn dial(&self) -> Dialing<'_> {
        Box::pin(async move {
            let (near, far) = tokio::io::duplex(64 << 10);
            let target = Arc::clone(&self.0);
            tokio::spawn(async move {
                target.serve_stream(far, "m:3260".to_owned(), "m:1".to_owned(), None).await;
            });
            Ok(Dialed::plain(Box::new(near)))
        })
    }
}

/// A device whose medium loses power, and the record of its disk.
struct PowerBench {
    medium: SimMedium,
    roots: MemoryRootStore,
}

impl PowerBench {
    async fn new(seed: u64) -> Self {
        let medium = SimMedium::new(seed);
        format(&medium, &FormatOptions::new(24 << 20, [7; 16])).unwrap();
        let mut bench = Self { medium, roots: MemoryRootStore::default() };
        let units = BlockUnits::open(bench.store().unwrap(), NAME).unwrap();
        units.create(NewUnit::new("disk", BlockSize::B4096, UNIT_BLOCKS * BLOCK, [3; 16])).unwrap();
        drop(units);
        Disk::format(&bench.unit().await.unwrap(), &bench.roots, &keys()).await.unwrap();
        // One device at a time: the tasks of this one may still run.
        bench.power_cycle();
        bench
    }

    /// Returns the result of a step, or `None` if it failed because the power failed.
    fn unless_dead<T, E: Debug>(&self, outcome: Result<T, E>) -> Option<T> {
        outcome.map_err(|error| assert!(self.medium.is_dead(), "{error:?}")).ok()
    }

    fn store(&self) -> Option<Arc<dyn ObjectStore>> {
        let store = DiskStore::open(Arc::new(self.medium.clone()), StoreOptions::default());
        self.unless_dead(store).map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
    }

    /// Starts the device, and connects to its unit. `None` if the power fails.
    async fn unit(&self) -> Option<UnitMedium> {
        let units = self.unless_dead(BlockUnits::open(self.store()?, NAME))?.units();
        let offered = units.into_iter().map(|unit| (1, unit as Arc<dyn LogicalUnit>)).collect();
        let target = IscsiTarget::new(TargetConfig::new(NAME), offered).unwrap();
        let url: TargetUrl = format!("iscsi://m/{NAME}/1").parse().unwrap();
        let options = UnitClientOptions::new(&SystemEnvironment);
        let dial = Arc::new(TargetDial(Arc::new(target)));
        let unit = BlockUnitClient::open(dial, &url, &SystemEnvironment, &options).await;
        self.unless_dead(unit).map(UnitMedium::new)
    }

    /// Opens the disk. `None` if the power fails.
    async fn disk(&self) -> Option<Disk<UnitMedium>> {
        let options = E2eOptions { publish_interval: Duration::ZERO, ..E2eOptions::default() };
        let opened = Disk::open(self.unit().await?, self.roots.clone(), keys(), options).await;
        self.unless_dead(opened.map(|(disk, _)| disk))
    }

    /// The power fails in the write or sync after the next `steps`.
    fn fail_after(&self, steps: u64) {
        let calls = self.medium.calls();
        self.medium.fault(DiskFault::Power(calls.writes + calls.syncs + steps + 1));
    }

    /// The power returns, if it failed, or fails now and returns.
    fn power_cycle(&mut self) {
        self.medium = self.medium.crash();
    }

    /// Reads all blocks, before and after another failure.
    async fn verify(&mut self, oracle: &mut Oracle, context: &str) {
        for _ in 0..2 {
            self.power_cycle();
            let disk = self.disk().await.unwrap_or_else(|| panic!("{context}: no power"));
            oracle.verify(&disk, context).await;
        }
    }
}

/// The power fails at each single write and sync of a short history.
#[tokio::test]
async fn flushed_blocks_survive_every_crash_of_store() {
    let mut step = 0;
    loop {
        let context = format!("step {step}");
        let mut bench = PowerBench::new(step).await;
        let mut oracle = Oracle::default();
        let disk = bench.disk().await.unwrap();
        bench.fail_after(step);
        let ended = workload(&disk, &mut oracle, &mut SimRng::new(7), 12).await;
        assert!(ended || bench.medium.is_dead(), "{context}: a request failed with power");
        drop(disk);
        bench.verify(&mut oracle, &context).await;
        if ended && !bench.medium.is_dead() {
            break;
        }
        step += 1;
    }
    assert!(step > 20, "{step} steps");
}

/// Long histories, whose failures also happen while the device or the disk recovers.
#[tokio::test]
async fn long_histories_survive_crashes_of_store() {
    for seed in 0..4 {
        let mut bench = PowerBench::new(seed).await;
        let (mut oracle, mut random) = (Oracle::default(), SimRng::new(seed));
        for round in 0..12 {
            bench.fail_after(random.below(120));
            if let Some(disk) = bench.disk().await {
                let ended = workload(&disk, &mut oracle, &mut random, 30).await;
                assert!(ended || bench.medium.is_dead(), "seed {seed}, round {round}");
            }
            bench.verify(&mut oracle, &format!("seed {seed}, round {round}")).await;
        }
    }
}
