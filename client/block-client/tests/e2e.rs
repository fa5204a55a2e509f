//! End-to-end protected disks on a simulated unit: power failures, attacks, lost writes.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "e2e_support/history.rs"]
mod history;
#[path = "e2e_support/simulated_unit.rs"]
mod simulated_unit;

use std::sync::Arc;

use history::{BLOCK, Oracle, SimRng, UNIT_BLOCKS, USED, keys, keys_of, put, value, workload};
use sealstone_block_client::e2e::{
    DiskKeys, E2eError, E2eOptions, MemoryRootStore, RootStoreError, fast_aead,
};
use sealstone_block_e2e::{KeyEpoch, RootError, UnitId, UnitKey, UnitKeyRing};
use simulated_unit::SimulatedUnit;

type Disk = history::Disk<SimulatedUnit>;

/// A unit and its record.
struct TestDisk {
    unit: SimulatedUnit,
    roots: MemoryRootStore,
}

impl TestDisk {
    /// With odd seeds, the unit keeps the order of its writes.
    async fn new(seed: u64) -> Self {
        let unit = SimulatedUnit::new(UNIT_BLOCKS, seed, seed % 2 == 1);
        let roots = MemoryRootStore::default();
        Disk::format(&unit, &roots, &keys()).await.unwrap();
        Self { unit, roots }
    }

    async fn open(&self) -> Result<Disk, E2eError> {
        let options = E2eOptions { publish_interval: std::time::Duration::ZERO, ..E2eOptions::default() };
        self.open_with(options).await
    }

    async fn open_with(&self, options: E2eOptions) -> Result<Disk, E2eError> {
        self.open_as(keys(), options).await
    }

    async fn open_as(&self, keys: DiskKeys, options: E2eOptions) -> Result<Disk, E2eError> {
        let (unit, roots) = (self.unit.clone(), self.roots.clone());
        Ok(Disk::open(unit, roots, keys, options).await?.0)
    }
}

#[tokio::test]
async fn flushed_blocks_survive_every_crash_point() {
    for seed in 0..6 {
        let mut crash_at = 0;
        loop {
            let context = format!("seed {seed}, step {crash_at}");
            let test = TestDisk::new(seed).await;
            let mut oracle = Oracle::default();
            let disk = test.open().await.unwrap();
            test.unit.fail_after(crash_at);
            let ended = workload(&disk, &mut oracle, &mut SimRng::new(seed), 40).await;
            drop(disk);
            test.unit.power_failure();
            // The second failure happens while the disk recovers.
            test.unit.fail_after(crash_at % 17);
            let _ = test.open().await;
            test.unit.power_failure();
            let disk = test.open().await.unwrap_or_else(|error| panic!("{context}: {error}"));
            oracle.verify(&disk, &context).await;
            drop(disk);
            // The recovered state does not change any more.
            test.unit.power_failure();
            let disk = test.open().await.unwrap_or_else(|error| panic!("{context}: {error}"));
            oracle.verify(&disk, &context).await;
            assert!(workload(&disk, &mut oracle, &mut SimRng::new(seed + 1), 10).await, "{context}");
            if ended {
                break;
            }
            crash_at += 1;
        }
    }
}

#[tokio::test]
async fn long_histories_survive_crashes() {
    for seed in 100..108 {
        let test = TestDisk::new(seed).await;
        let (mut oracle, mut random) = (Oracle::default(), SimRng::new(seed));
        for round in 0..25 {
            let disk = test.open().await.unwrap_or_else(|error| panic!("seed {seed}, {round}: {error}"));
            oracle.verify(&disk, &format!("seed {seed}, round {round}")).await;
            test.unit.fail_after(random.below(250));
            workload(&disk, &mut oracle, &mut random, 60).await;
            drop(disk);
            test.unit.power_failure();
        }
    }
}

#[tokio::test]
async fn client_survives_power_failures_of_the_unit() {
    for seed in 200..230 {
        let test = TestDisk::new(seed).await;
        let (mut oracle, mut random) = (Oracle::default(), SimRng::new(seed));
        let disk = test.open().await.unwrap();
        let cursor = disk.flush_cursor();
        for _ in 0..8 {
            assert!(workload(&disk, &mut oracle, &mut random, 12).await, "seed {seed}");
            test.unit.power_cycle();
            // Requests that find the loss at the same time as the flush.
            let [one, two] = [0, 1].map(|_| 1 + random.below(200) as u8);
            oracle.begin(0, one);
            oracle.begin(USED - 1, two);
            let (flushed, first, second) =
                tokio::join!(disk.flush(&cursor), put(&disk, 0, one), put(&disk, USED - 1, two));
            first.unwrap();
            second.unwrap();
            let has_lost = matches!(flushed, Err(E2eError::LostWrites));
            assert!(has_lost || flushed.is_ok(), "{flushed:?}");
            if !has_lost {
                oracle.flushed();
            }
            oracle.verify(&disk, &format!("seed {seed}")).await;
            disk.flush(&cursor).await.unwrap();
            // The workload has a cursor of its own.
            oracle.flushed();
        }
    }
}

/// The unit loses power, and the client dies before a flush that would report it.
#[tokio::test]
async fn client_death_after_power_failure_loses_no_block() {
    for seed in 300..320 {
        let test = TestDisk::new(seed).await;
        let (mut oracle, mut random) = (Oracle::default(), SimRng::new(seed));
        for round in 0..8 {
            let context = format!("seed {seed}, round {round}");
            let disk = test.open().await.unwrap_or_else(|error| panic!("{context}: {error}"));
            oracle.verify(&disk, &context).await;
            workload(&disk, &mut oracle, &mut random, 20).await;
            test.unit.power_cycle();
            for _ in 0..1 + random.below(6) {
                let (lba, value) = (random.below(USED), 1 + random.below(200) as u8);
                oracle.begin(lba, value);
                put(&disk, lba, value).await.unwrap();
            }
            drop(disk);
            test.unit.power_failure();
        }
    }
}

/// A client dies with unflushed writes, and the unit loses power while another one opens the disk.
#[tokio::test]
async fn power_failure_during_open_loses_no_block() {
    for (seed, commands) in (400..420).flat_map(|seed| (0..8).map(move |commands| (seed, commands))) {
        let context = format!("seed {seed}, {commands} commands");
        let test = TestDisk::new(seed).await;
        let (mut oracle, mut random) = (Oracle::default(), SimRng::new(seed));
        let disk = test.open().await.unwrap();
        assert!(workload(&disk, &mut oracle, &mut random, 30).await, "{context}");
        drop(disk);
        test.unit.cycle_after(commands);
        let disk = match test.open().await {
            // Its own writes of the checkpoint.
            Err(E2eError::LostWrites) => test.open().await,
            opened => opened,
        };
        let disk = disk.unwrap_or_else(|error| panic!("{context}: {error}"));
        oracle.verify(&disk, &context).await;
    }
}

/// Reads find the loss at the same time as a flush, which opens the disk again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_beside_flush_recover_after_power_failure() {
    for seed in 500..540 {
        let test = TestDisk::new(seed).await;
        let (mut oracle, mut random) = (Oracle::default(), SimRng::new(seed));
        let disk = test.open().await.unwrap();
        let cursor = disk.flush_cursor();
        for _ in 0..8 {
            assert!(workload(&disk, &mut oracle, &mut random, 12).await, "seed {seed}");
            test.unit.power_cycle();
            let read = |lba| {
                let disk = disk.clone();
                async move { tokio::spawn(async move { value(&disk, lba).await }).await.unwrap() }
            };
            let reads = futures_util::future::join_all((0..USED).map(read));
            let (_, found) = tokio::join!(disk.flush(&cursor), reads);
            for (lba, found) in (0..).zip(found) {
                let found = found.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                assert!(oracle.of(lba).contains(&found), "seed {seed}: block {lba} is {found}");
            }
            oracle.verify(&disk, &format!("seed {seed}")).await;
        }
    }
}

#[tokio::test]
async fn ordered_writes_force_no_record() {
    let mut forced = [0, 0];
    for seed in [0, 1] {
        let test = TestDisk::new(seed).await;
        let disk = test.open().await.unwrap();
        for value in 1..4 {
            for lba in 0..USED {
                put(&disk, lba, value).await.unwrap();
            }
        }
        forced[seed as usize] = test.unit.forced();
    }
    assert!(forced[0] >= 2 * USED - 1 && forced[1] == 0, "{forced:?}");
}

#[tokio::test]
async fn reads_after_power_failure_recover_before_flush() {
    let test = TestDisk::new(1).await;
    let disk = test.open().await.unwrap();
    let cursor = disk.flush_cursor();
    for lba in 0..USED {
        put(&disk, lba, 1).await.unwrap();
    }
    disk.flush(&cursor).await.unwrap();
    for lba in 0..USED {
        put(&disk, lba, 2).await.unwrap();
    }
    test.unit.power_cycle();
    for lba in 0..USED {
        let found = value(&disk, lba).await;
        assert!(matches!(found, Ok(1 | 2)), "block {lba}: {found:?}");
    }
    assert!(matches!(disk.flush(&cursor).await, Err(E2eError::LostWrites)));
    disk.flush(&cursor).await.unwrap();
}

#[tokio::test]
async fn disk_equals_an_array() {
    let test = TestDisk::new(3).await;
    let disk = test.open().await.unwrap();
    let blocks = disk.bytes() / BLOCK;
    let (mut array, mut random) = (vec![0_u8; blocks as usize], SimRng::new(3));
    for step in 0..400 {
        let lba = random.below(blocks);
        let count = 1 + random.below(60).min(blocks - lba - 1);
        let range = lba as usize..(lba + count) as usize;
        match random.below(4) {
            0 => {
                disk.unmap(lba * BLOCK, count * BLOCK, step % 5 == 0).await.unwrap();
                array[range].fill(0);
            }
            1 => {
                let data = disk.read(lba * BLOCK, count * BLOCK).await.unwrap();
                let values: Vec<u8> = data.chunks(BLOCK as usize).map(|block| block[7]).collect();
                assert_eq!(values, array[range]);
            }
            _ => {
                array[range.clone()].fill_with(|| random.below(255) as u8);
                let data: Vec<u8> =
                    array[range].iter().flat_map(|value| vec![*value; BLOCK as usize]).collect();
                disk.write(lba * BLOCK, data.into(), step % 7 == 0).await.unwrap();
            }
        }
    }
    let extents = disk.extents(0, disk.bytes()).await.unwrap();
    assert_eq!(extents.iter().map(|extent| extent.length).sum::<u64>(), disk.bytes());
    for extent in extents.iter().filter(|extent| !extent.is_written) {
        let start = (extent.offset / BLOCK) as usize;
        assert!(array[start..start + (extent.length / BLOCK) as usize].iter().all(|value| *value == 0));
    }
    disk.close().await.unwrap();
    let disk = test.open().await.unwrap();
    let data = disk.read(0, disk.bytes()).await.unwrap();
    assert_eq!(data.chunks(BLOCK as usize).map(|block| block[9]).collect::<Vec<_>>(), array);
}

/// Returns a disk whose used blocks have the value 2, and the unit when they had the value 1.
async fn disk_with_history() -> (TestDisk, SimulatedUnit) {
    let test = TestDisk::new(4).await;
    let disk = test.open().await.unwrap();
    for lba in 0..USED {
        put(&disk, lba, 1).await.unwrap();
    }
    disk.close().await.unwrap();
    let old = test.unit.copy();
    for lba in 0..USED {
        put(&disk, lba, 2).await.unwrap();
    }
    disk.flush(&disk.flush_cursor()).await.unwrap();
    (test, old)
}

#[tokio::test]
async fn changed_bytes_anywhere_give_no_wrong_data() {
    let (test, _) = disk_with_history().await;
    let mut detected = 0;
    for place in 0..UNIT_BLOCKS {
        for at in [0, 17, 40, 2048 + place as usize, 4095] {
            let attacked = TestDisk { unit: test.unit.copy(), roots: test.roots.copy() };
            attacked.unit.change(place, |block| block[at] ^= 0x20);
            let Ok(disk) = attacked.open().await else {
                detected += 1;
                continue;
            };
            for lba in 0..USED {
                match value(&disk, lba).await {
                    Ok(found) => assert_eq!(found, 2, "byte {at} of block {place}"),
                    Err(error) => {
                        assert!(error.is_integrity_failure(), "{error}");
                        detected += 1;
                    }
                }
            }
        }
    }
    assert!(detected > 5 * USED, "blocks of data, journal and tree were changed: {detected}");
}

#[tokio::test]
async fn unit_copied_back_is_detected() {
    let (test, old) = disk_with_history().await;
    test.unit.restore(&old);
    let refused = test.open().await.err().expect("an old unit is refused");
    assert!(matches!(refused, E2eError::UnitRolledBack(_) | E2eError::Mismatch(_)), "{refused}");
    assert!(refused.is_integrity_failure());
}

#[tokio::test]
async fn closed_unit_copied_back_is_refused_at_once() {
    let (test, old) = disk_with_history().await;
    test.open().await.unwrap().close().await.unwrap();
    test.unit.restore(&old);
    let refused = test.open().await.err().expect("an old unit is refused");
    assert!(refused.is_integrity_failure(), "{refused}");
}

#[tokio::test]
async fn single_blocks_copied_back_are_detected() {
    let (test, old) = disk_with_history().await;
    for place in 0..UNIT_BLOCKS {
        let attacked = TestDisk { unit: test.unit.copy(), roots: test.roots.copy() };
        attacked.unit.change(place, |block| *block = old.stored(place));
        let Ok(disk) = attacked.open().await else { continue };
        for lba in 0..USED {
            assert!(!matches!(value(&disk, lba).await, Ok(found) if found != 2), "block {place}");
        }
    }
}

#[tokio::test]
async fn old_record_is_detected_by_a_client_that_saw_newer() {
    let (test, _) = disk_with_history().await;
    let old_roots = test.roots.copy();
    let old_unit = test.unit.copy();
    let disk = test.open().await.unwrap();
    put(&disk, 0, 3).await.unwrap();
    disk.close().await.unwrap();
    let options = E2eOptions { seen_root: Some(disk.root()), ..E2eOptions::default() };
    test.open_with(options.clone()).await.unwrap();
    // Unit and record are both of last week.
    let attacked = TestDisk { unit: old_unit, roots: old_roots };
    let refused = attacked.open_with(options).await.err().expect("an old record is refused");
    assert!(matches!(refused, E2eError::RootRolledBack { .. }), "{refused}");
}

#[tokio::test]
async fn wrong_and_lost_keys_open_nothing() {
    let (test, _) = disk_with_history().await;
    let (unit, roots) = (test.unit.clone(), test.roots.clone());
    let wrong = Disk::open(unit, roots, keys_of(1, 9), E2eOptions::default()).await.err();
    assert!(matches!(wrong, Some(E2eError::Root(RootError::Tag))), "{wrong:?}");
    let (unit, roots) = (test.unit.clone(), test.roots.clone());
    let other = Disk::open(unit, roots, keys_of(2, 2), E2eOptions::default()).await.err();
    assert!(matches!(other, Some(E2eError::OtherDisk)), "{other:?}");
}

/// Gives old blocks the new key. Returns false if the unit failed.
async fn rewrite(disk: &Disk) -> bool {
    let mut from = 0;
    while from < disk.data_blocks() {
        match disk.rewrite_step(from).await {
            Ok(step) => {
                assert_eq!(step.unreadable, 0);
                from = step.next;
            }
            Err(_) => return false,
        }
    }
    disk.end_rewrite().await.is_ok()
}

/// Whenever the power fails: all blocks are readable, and a pass that ended needs the old key no
/// more.
#[tokio::test]
async fn rewrite_replaces_old_keys_and_survives_crashes() {
    let key = || UnitKey::new([77; 32]);
    let mut ring = UnitKeyRing::new(UnitId([1; 16]), KeyEpoch(1), UnitKey::new([2; 32]), fast_aead).unwrap();
    ring.rotate(key()).unwrap();
    let both: DiskKeys = Arc::new(ring);
    let newest = || Arc::new(UnitKeyRing::new(UnitId([1; 16]), KeyEpoch(2), key(), fast_aead).unwrap());
    let mut crash_at = 0;
    loop {
        let (test, _) = disk_with_history().await;
        let open = async |keys: DiskKeys| test.open_as(keys, E2eOptions::default()).await;
        let disk = open(Arc::clone(&both)).await.unwrap();
        assert!(disk.has_old_keys());
        test.unit.fail_after(crash_at);
        // One block is written by a user meanwhile.
        let _ = put(&disk, 3, 9).await;
        let ended = rewrite(&disk).await;
        drop(disk);
        test.unit.power_failure();
        let disk = open(Arc::clone(&both)).await.unwrap();
        assert!(ended || disk.has_old_keys(), "step {crash_at}: the end is recorded after the blocks");
        assert!(rewrite(&disk).await && !disk.has_old_keys());
        drop(disk);
        assert!(matches!(test.open().await, Err(E2eError::Root(RootError::UnknownKey(2)))));
        let disk = open(newest()).await.unwrap();
        for lba in 0..USED {
            let found = value(&disk, lba).await.unwrap();
            // The write of the user was not flushed, unless the pass ended.
            let is_right = if lba == 3 { found == 9 || !ended && found == 2 } else { found == 2 };
            assert!(is_right, "step {crash_at}: block {lba} is {found}");
        }
        if ended {
            break;
        }
        crash_at += 1;
    }
}

#[tokio::test]
async fn second_writer_fences_the_first() {
    let test = TestDisk::new(5).await;
    let first = test.open().await.unwrap();
    put(&first, 0, 1).await.unwrap();
    first.flush(&first.flush_cursor()).await.unwrap();
    let second = test.open().await.unwrap();
    put(&second, 1, 5).await.unwrap();
    second.flush(&second.flush_cursor()).await.unwrap();
    // The first client has not noticed: it overwrites a block of the second one.
    let _ = put(&first, 1, 6).await;
    let fenced = first.flush(&first.flush_cursor()).await;
    assert!(matches!(fenced, Err(E2eError::RootStore(RootStoreError::LeaseLost))), "{fenced:?}");
    for outcome in [put(&first, 2, 7).await, value(&first, 0).await.map(drop)] {
        assert!(matches!(outcome, Err(E2eError::RootStore(RootStoreError::LeaseLost))), "{outcome:?}");
    }
    assert!(!matches!(value(&second, 1).await, Ok(found) if found != 5), "no bytes of the first client");
    assert_eq!(value(&second, 0).await.unwrap(), 1);
}

#[tokio::test]
async fn reopened_disk_is_fenced_after_another_writer() {
    let test = TestDisk::new(5).await;
    let first = test.open().await.unwrap();
    put(&first, 0, 1).await.unwrap();
    let second = test.open().await.unwrap();
    put(&second, 0, 5).await.unwrap();
    second.close().await.unwrap();
    // The unit loses power, so the first client opens the disk again.
    put(&first, 1, 2).await.unwrap();
    test.unit.power_cycle();
    let _ = first.flush(&first.flush_cursor()).await;
    let fenced = value(&first, 0).await;
    assert!(matches!(fenced, Err(E2eError::RootStore(RootStoreError::LeaseLost))), "{fenced:?}");
}

#[tokio::test]
async fn extents_beyond_the_disk_are_refused() {
    let test = TestDisk::new(6).await;
    let disk = test.open().await.unwrap();
    for (offset, length) in [(disk.bytes(), BLOCK), (1, BLOCK), (0, 512), (u64::MAX - 4095, BLOCK)] {
        assert!(matches!(disk.read(offset, length).await, Err(E2eError::Extent { .. })));
    }
    assert!(disk.read(disk.bytes(), 0).await.unwrap().is_empty());
}
