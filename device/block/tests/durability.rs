//! Data acknowledged as durable survives power loss, on the store's simulated medium.

use std::sync::Arc;

use crate::support::{Bench, TARGET, disk, sense, sixteen, ten, unmap, what};
use proptest::prelude::*;
use sealstone_block::{BlockSize, BlockUnits, IntegrityFailure, LossSink, LostWrites, NewUnit, UnitOptions};
use sealstone_osd::ObjectId;
use sealstone_scsi::lu::{Cost, LogicalUnit as _, NexusId};
use sealstone_scsi::{SenseKey, Status, additional};
use sealstone_store::sim::{DiskFault, SimMedium};
use sealstone_store::{DiskStore, FormatOptions, ObjectStore, StoreOptions, format};

const BLOCKS: u64 = 64;
/// Number of histories; each ends with a power failure.
const SEEDS: u64 = 40;

fn fresh(seed: u64) -> SimMedium {
    let medium = SimMedium::new(seed);
    format(&medium, &FormatOptions::new(8 << 20, [7; 16])).expect("formats");
    medium
}

fn open(medium: &SimMedium) -> Arc<dyn ObjectStore> {
    Arc::new(DiskStore::open(Arc::new(medium.clone()), StoreOptions::default()).expect("opens"))
}

/// A small deterministic random generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn stamp(lba: u64, version: u64) -> Vec<u8> {
    let mut block = vec![0x5A; 512];
    block[..8].copy_from_slice(&lba.to_be_bytes());
    block[8..16].copy_from_slice(&version.to_be_bytes());
    block[504..].copy_from_slice(&version.to_be_bytes());
    block
}

/// Returns the version of a block; 0 if it is unmapped. Panics if the block is torn or belongs to
/// another address.
#[track_caller]
fn version(lba: u64, block: &[u8]) -> u64 {
    let version = u64::from_be_bytes(block[8..16].try_into().expect("8 bytes"));
    assert!(
        block == stamp(lba, version) || (version == 0 && block.iter().all(|&byte| byte == 0)),
        "block {lba}"
    );
    version
}

/// Each block reads as it was at the last flush or after a later write, never older and never torn.
#[test]
fn synchronized_writes_survive_power_loss() {
    for seed in 0..SEEDS {
        let mut dice = Dice(seed);
        let mut medium = fresh(seed);
        let mut bench = Bench::on(open(&medium), disk("disk", BlockSize::B512, BLOCKS * 512));
        // For each block, the last durable version and those written since.
        let mut durable = vec![0_u64; BLOCKS as usize];
        let mut since: Vec<Vec<u64>> = vec![Vec::new(); BLOCKS as usize];
        let mut next = 1;
        for _life in 0..4 {
            for _step in 0..30 {
                let lba = dice.below(BLOCKS);
                let count = 1 + dice.below((BLOCKS - lba).min(9));
                let range = lba as usize..(lba + count) as usize;
                match dice.below(8) {
                    0 => {
                        let (cdb, list) = unmap(&[(lba, count as u32)]);
                        bench.put(&cdb, &list);
                        since[range].iter_mut().for_each(|versions| versions.push(0));
                    }
                    1 => {
                        bench.put(&ten(0x35, 0, 0, 0), &[]);
                        for (durable, since) in durable.iter_mut().zip(&mut since) {
                            *durable = since.drain(..).next_back().unwrap_or(*durable);
                        }
                    }
                    kind => {
                        let data: Vec<u8> = (lba..lba + count).flat_map(|lba| stamp(lba, next)).collect();
                        // FUA in one of six.
                        let flags = if kind == 2 { 0x08 } else { 0 };
                        bench.put(&sixteen(0x8A, flags, lba, count as u32), &data);
                        since[range.clone()].iter_mut().for_each(|versions| versions.push(next));
                        if flags != 0 {
                            durable[range.clone()].fill(next);
                            since[range].iter_mut().for_each(Vec::clear);
                        }
                        next += 1;
                    }
                }
            }
            medium = medium.crash();
            bench = Bench::open(open(&medium));
            // May report that writes were lost.
            bench.send(&SYNCHRONIZE, &[], 0);
            for lba in 0..BLOCKS {
                let at = lba as usize;
                let found = version(lba, &bench.read(lba, 1));
                assert!(
                    found == durable[at] || since[at].contains(&found),
                    "seed {seed}, block {lba}: {found}"
                );
                durable[at] = found;
                since[at].clear();
            }
        }
    }
}

/// Without any flush, what survives is a prefix of the acknowledged writes.
#[test]
fn unflushed_writes_survive_power_loss_in_order() {
    let mut survivors = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let mut dice = Dice(seed);
        let medium = fresh(seed);
        let bench = Bench::on(open(&medium), disk("disk", BlockSize::B512, BLOCKS * 512));
        let mut history = vec![vec![0; BLOCKS as usize]];
        for step in 1..=40 {
            let (lba, mut next) = (dice.below(BLOCKS - 8), history[history.len() - 1].clone());
            let count = 1 + dice.below(8);
            let range = lba as usize..(lba + count) as usize;
            if dice.below(6) == 0 {
                let (cdb, list) = unmap(&[(lba, count as u32)]);
                bench.put(&cdb, &list);
                next[range].fill(0);
            } else {
                let data: Vec<u8> = (lba..lba + count).flat_map(|lba| stamp(lba, step)).collect();
                bench.put(&sixteen(0x8A, 0, lba, count as u32), &data);
                next[range].fill(step);
            }
            history.push(next);
        }
        let bench = Bench::open(open(&medium.crash()));
        let found: Vec<u64> = (0..BLOCKS).map(|lba| version(lba, &bench.read(lba, 1))).collect();
        let at = history.iter().position(|state| *state == found);
        survivors.insert(at.unwrap_or_else(|| panic!("seed {seed}: {found:?} is no state of the history")));
    }
    assert!(survivors.len() > 5, "the power failures lose different parts: {survivors:?}");
}

/// Making and removing a unit, and registering with APTPL, are there or not there, whole.
#[test]
fn units_and_durable_registrations_survive_power_loss() {
    for seed in 0..SEEDS {
        let medium = fresh(seed);
        let bench = Bench::on(open(&medium), disk("disk", BlockSize::B512, 1 << 20));
        let mut list = [[0; 8], 9_u64.to_be_bytes(), [0; 8]].concat();
        list[20] = 1;
        bench.put(&[0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list);
        let reserve = [9_u64.to_be_bytes(), [0; 8], [0; 8]].concat();
        bench.put(&[0x5F, 1, 3, 0, 0, 0, 0, 0, 24, 0], &reserve);
        bench.units.create(disk("second", BlockSize::B4096, 1 << 20)).expect("made");
        let after = medium.crash();
        let bench = Bench::open(open(&after));
        bench.login(2);
        assert_eq!(
            bench.from(2, &ten(0x28, 0, 0, 1), &[], 512).status,
            Status::ReservationConflict,
            "{seed}"
        );
        assert_eq!(bench.units.list().expect("listed").len(), 2);
        bench.units.remove("second", false).expect("removed");
        let units = BlockUnits::open(open(&after.crash()), TARGET).expect("opens");
        assert_eq!(units.units().len(), 1);
    }
}

/// FUA, of a write or of a read of what was written, has it on the medium; DPO makes no difference.
#[test]
fn fua_is_durable_and_dpo_is_ignored() {
    const FUA: u8 = 0x08;
    const DPO: u8 = 0x10;
    for (write, read, survives) in [
        (0, 0, false),
        (DPO, DPO, false),
        (FUA, 0, true),
        (FUA | DPO, 0, true),
        (0, FUA, true),
        (DPO, FUA | DPO, true),
    ] {
        for form in 0..3 {
            let medium = fresh(u64::from(write) << 8 | u64::from(read));
            let bench = Bench::on(open(&medium), disk("disk", BlockSize::B512, BLOCKS * 512));
            // The mark of unflushed writes is set here.
            bench.write(7, &stamp(7, 1));
            bench.put(&ten(0x35, 0, 0, 0), &[]);
            let syncs = medium.calls().syncs;
            let cdb = |code: [u8; 3], flags: u8| match form {
                0 => ten(code[0], flags, 5, 1).to_vec(),
                1 => [&[code[1], flags, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0][..]].concat(),
                _ => sixteen(code[2], flags, 5, 1).to_vec(),
            };
            bench.put(&cdb([0x2A, 0xAA, 0x8A], write), &stamp(5, 1));
            assert_eq!(bench.get(&cdb([0x28, 0xA8, 0x88], read)), stamp(5, 1));
            let what = format!("write {write:#x}, read {read:#x}, form {form}");
            assert_eq!(medium.calls().syncs > syncs, survives, "{what}");
            let found = version(5, &Bench::open(open(&medium.crash())).read(5, 1));
            assert!(found == 1 || !survives, "{what}");
        }
    }
}

/// WCE 0 promises that nothing is in the cache only: where that cannot be had it stays 1.
#[test]
fn write_cache_stays_on_if_flush_fails() {
    let medium = fresh(1);
    let bench = Bench::on(open(&medium), disk("disk", BlockSize::B512, BLOCKS * 512));
    bench.write(1, &stamp(1, 1));
    medium.fault(DiskFault::Sync(medium.calls().syncs + 1));
    let mut select = [0, 0, 0, 0, 0x08, 18].to_vec();
    select.extend([0; 18]);
    bench.refused(&[0x15, 0x10, 0, 0, 24, 0], &select);
    let page = bench.get(&[0x1A, 0x08, 0x08, 0, 255, 0]);
    assert_eq!(page[4 + 2] & 0x04, 0x04, "WCE as before");
}

const SYNCHRONIZE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// MODE SELECT(6) of the caching page, and SP.
const SELECT: [u8; 6] = [0x15, 0x10, 0, 0, 24, 0];
const SELECT_AND_SAVE: [u8; 6] = [0x15, 0x11, 0, 0, 24, 0];

/// A parameter list that sets WCE.
fn caching(write_cache: bool) -> Vec<u8> {
    let mut list = vec![0, 0, 0, 0, 0x08, 18];
    list.extend([if write_cache { 0x04 } else { 0 }].iter().chain(&[0; 17]));
    list
}

/// WCE as MODE SENSE with a page control returns it to a nexus.
fn write_cache(bench: &Bench, nexus: u64, control: u8) -> bool {
    let reply = bench.from(nexus, &[0x1A, 0x08, control << 6 | 0x08, 0, 255, 0], &[], 255);
    assert_eq!(reply.data_in[4], 0x88, "PS, caching page");
    reply.data_in[6] & 0x04 != 0
}

#[test]
fn write_cache_turned_off_stays_off_without_sp() {
    let mut medium = fresh(1);
    let mut bench = Bench::on(open(&medium), disk("disk", BlockSize::B512, BLOCKS * 512));
    bench.put(&SELECT, &caching(false));
    bench.unit.reset();
    assert_eq!(what(&bench.refused(&[0; 6], &[])).1, additional::BUS_DEVICE_RESET_OCCURRED);
    assert!(!write_cache(&bench, 1, 0), "after a reset");
    for version in 1..4 {
        bench.write(5, &stamp(5, version));
        medium = medium.crash();
        bench = Bench::open(open(&medium));
        assert!(!write_cache(&bench, 1, 0), "after a restart");
        assert_eq!(self::version(5, &bench.read(5, 1)), version, "durable before GOOD");
    }
    // WCE 1 without SP lasts until the reset, which every nexus is informed of.
    bench.put(&SELECT, &caching(true));
    assert!(write_cache(&bench, 1, 0) && !write_cache(&bench, 1, 3) && write_cache(&bench, 1, 2));
    bench.unit.reset();
    let codes = [additional::BUS_DEVICE_RESET_OCCURRED, additional::MODE_PARAMETERS_CHANGED];
    assert_eq!(codes.map(|_| what(&bench.refused(&[0; 6], &[])).1), codes);
    assert!(!write_cache(&bench, 1, 0));
}

#[test]
fn saved_mode_pages_survive_power_loss() {
    let medium = fresh(1);
    let bench = Bench::on(open(&medium), disk("disk", BlockSize::B512, BLOCKS * 512));
    bench.put(&SELECT_AND_SAVE, &caching(false));
    let mut control = vec![0, 0, 0, 0, 0x0A, 10];
    control.extend(&bench.get(&[0x1A, 0x08, 0x0A, 0, 255, 0])[6..]);
    control[6] |= 0x04;
    bench.put(&[0x15, 0x11, 0, 0, 16, 0], &control);
    let medium = medium.crash();
    let bench = Bench::open(open(&medium));
    assert!(!write_cache(&bench, 1, 0) && !write_cache(&bench, 1, 3));
    assert_eq!(bench.get(&[0x1A, 0x08, 0xCA, 0, 255, 0])[6] & 0x04, 0x04, "saved D_SENSE");
    assert_eq!(bench.send(&sixteen(0x88, 0, 1 << 40, 1), &[], 0).sense[0], 0x72, "D_SENSE in effect");
    bench.put(&SELECT_AND_SAVE, &caching(true));
    drop(bench);
    let bench = Bench::open(open(&medium.crash()));
    assert!(write_cache(&bench, 1, 0));
}

/// An initiator that was informed of WCE 0 does not flush, and does not read the mode page for a
/// unit attention.
#[test]
fn informed_initiator_keeps_write_through_until_mode_sense() {
    let medium = fresh(1);
    let bench = Bench::on(open(&medium), disk("disk", BlockSize::B512, BLOCKS * 512));
    bench.login(2);
    bench.login(3);
    bench.put(&SELECT, &caching(false));
    assert_eq!(what(&sense(&bench.from(2, &[0; 6], &[], 0))).1, additional::MODE_PARAMETERS_CHANGED);
    assert_eq!(what(&sense(&bench.from(3, &[0; 6], &[], 0))).1, additional::MODE_PARAMETERS_CHANGED);
    assert!(!write_cache(&bench, 2, 0));
    bench.put(&SELECT_AND_SAVE, &caching(true));
    let write = |bench: &Bench, nexus, lba, version| {
        let data = stamp(lba, version);
        let reply = bench.from(nexus, &sixteen(0x8A, 0, lba, 1), &data, 0);
        assert_eq!(reply.status, Status::Good);
    };
    for nexus in [2, 3] {
        assert_eq!(sense(&bench.from(nexus, &[0; 6], &[], 0)).key, SenseKey::UnitAttention);
    }
    // The other one was never informed of WCE 0. Its mark comes first, and with it all that was
    // written before.
    write(&bench, 3, 3, 1);
    write(&bench, 2, 2, 1);
    let waits = |bench: &Bench, nexus| bench.unit.cost(NexusId(nexus), &ten(0x2A, 0, 1, 1)) == Cost::Blocking;
    assert!(waits(&bench, 2) && !waits(&bench, 3), "informed of WCE 0, and never");
    let medium = medium.crash();
    let bench = Bench::open(open(&medium));
    assert_eq!(version(2, &bench.read(2, 1)), 1, "informed of WCE 0");
    // The same port in a later start of the device.
    bench.login(2);
    write(&bench, 2, 2, 2);
    let medium = medium.crash();
    let bench = Bench::open(open(&medium));
    assert_eq!(version(2, &bench.read(2, 1)), 2);
    bench.login(2);
    assert!(write_cache(&bench, 2, 0), "informed of WCE 1");
    write(&bench, 2, 5, 1);
    assert!(!waits(&bench, 2));
}

#[test]
fn write_through_unit_refuses_a_write_cache() {
    let medium = fresh(1);
    let new = NewUnit { write_through: true, ..disk("disk", BlockSize::B512, BLOCKS * 512) };
    let bench = Bench::on(open(&medium), new);
    let refusal = bench.refused(&SELECT, &caching(true));
    assert_eq!(what(&refusal).1, additional::INVALID_FIELD_IN_PARAMETER_LIST);
    bench.write(1, &stamp(1, 1));
    let medium = medium.crash();
    let bench = Bench::open(open(&medium));
    assert_eq!(version(1, &bench.read(1, 1)), 1);
    assert!(!write_cache(&bench, 1, 0));
    bench.units.set_write_through("disk", false).expect("set");
    assert_eq!(what(&bench.refused(&[0; 6], &[])).1, additional::MODE_PARAMETERS_CHANGED);
    assert!(write_cache(&bench, 1, 0) && bench.units.list().expect("listed")[0].write_cache);
    bench.units.set_write_through("disk", true).expect("set");
    bench.refused(&[0; 6], &[]);
    assert!(!write_cache(&bench, 1, 0));
    assert!(bench.units.list().expect("listed")[0].description.write_through);
    // Device-wide write-through overrides the setting of its units.
    bench.units.set_write_through("disk", false).expect("set");
    let options = UnitOptions { write_through: true, ..UnitOptions::default() };
    let bench = Bench::open_with(open(&medium.crash()), options);
    assert!(!write_cache(&bench, 1, 0) && !write_cache(&bench, 1, 2));
}

/// Collects reports: unit, LUN and initiator.
#[derive(Default)]
struct Reports(parking_lot::Mutex<Vec<String>>);

impl LossSink for Reports {
    fn record(&self, lost: &LostWrites<'_>) {
        self.0.lock().push(format!("{} {} {}", lost.unit, lost.lun, lost.initiator));
    }

    fn record_integrity(&self, failure: &IntegrityFailure<'_>) {
        self.0.lock().push(format!("{} {}", failure.unit, failure.kind.name()));
    }
}

fn boot(id: u8, losses: &Arc<Reports>) -> UnitOptions {
    let losses = Arc::clone(losses) as Arc<dyn LossSink>;
    UnitOptions { boot_id: [id; 16], losses, ..UnitOptions::default() }
}

#[test]
fn first_synchronize_after_power_failure_fails_once() {
    let reports = Arc::new(Reports::default());
    let medium = fresh(2);
    Bench::on(open(&medium), disk("disk", BlockSize::B512, BLOCKS * 512)).units.close();
    let bench = Bench::open_with(open(&medium), boot(1, &reports));
    bench.login(2);
    bench.login(3);
    bench.write(1, &stamp(1, 1));
    assert_eq!(bench.from(2, &ten(0x2A, 0x08, 2, 1), &stamp(2, 1), 0).status, Status::Good, "FUA");
    // Another boot of the machine.
    let medium = medium.crash();
    let bench = Bench::open_with(open(&medium), boot(2, &reports));
    for nexus in [2, 3] {
        bench.login(nexus);
        assert_eq!(bench.from(nexus, &SYNCHRONIZE, &[], 0).status, Status::Good, "had none unflushed");
    }
    let refusal = bench.refused(&SYNCHRONIZE, &[]);
    assert_eq!(what(&refusal), (SenseKey::HardwareError, additional::WRITE_ERROR));
    assert_eq!(*reports.0.lock(), ["disk 1 iqn.test:1"]);
    // The session broke before the status arrived: the next one of the port fails as well.
    bench.login_as(4, 1, None);
    assert_eq!(what(&sense(&bench.from(4, &SYNCHRONIZE, &[], 0))).1, additional::WRITE_ERROR);
    assert_eq!(bench.from(4, &SYNCHRONIZE, &[], 0).status, Status::Good);
    bench.login_as(5, 1, None);
    assert_eq!(bench.from(5, &SYNCHRONIZE, &[], 0).status, Status::Good);
    drop(bench);
    let bench = Bench::open_with(open(&medium), boot(2, &reports));
    bench.put(&SYNCHRONIZE, &[]);
}

#[test]
fn lost_writes_are_reported_after_a_second_restart() {
    let reports = Arc::new(Reports::default());
    let medium = fresh(1);
    Bench::on(open(&medium), disk("disk", BlockSize::B512, BLOCKS * 512)).write(1, &stamp(1, 1));
    let medium = medium.crash();
    // The port does not log in before the device shuts down cleanly and starts again.
    let units = BlockUnits::open_with(open(&medium), TARGET, boot(1, &reports)).expect("opens");
    units.close();
    drop(units);
    let bench = Bench::open_with(open(&medium), boot(1, &reports));
    assert_eq!(what(&bench.refused(&SYNCHRONIZE, &[])).1, additional::WRITE_ERROR);
    bench.put(&SYNCHRONIZE, &[]);
}

#[test]
fn process_death_fails_no_synchronize() {
    let reports = Arc::new(Reports::default());
    let medium = fresh(1);
    Bench::on(open(&medium), disk("disk", BlockSize::B512, BLOCKS * 512)).units.close();
    let bench = Bench::open_with(open(&medium), boot(1, &reports));
    bench.write(1, &stamp(1, 1));
    drop(bench);
    let bench = Bench::open_with(open(&medium), boot(1, &reports));
    bench.put(&SYNCHRONIZE, &[]);
    bench.write(1, &stamp(1, 2));
    drop(bench);
    // The store itself reports that power may have failed.
    let bench = Bench::open_with(open(&medium.crash()), boot(1, &reports));
    assert_eq!(what(&bench.refused(&SYNCHRONIZE, &[])).1, additional::WRITE_ERROR);
}

#[test]
fn idle_and_clean_shutdown_remove_dirty_marks() {
    let reports = Arc::new(Reports::default());
    let medium = fresh(1);
    Bench::on(open(&medium), disk("disk", BlockSize::B512, BLOCKS * 512)).units.close();
    let bench = Bench::open_with(open(&medium), boot(1, &reports));
    bench.login(2);
    let seconds = |s| std::time::Duration::from_secs(s);
    bench.units.tick(seconds(100));
    bench.write(1, &stamp(1, 1));
    bench.from(2, &ten(0x2A, 0, 2, 1), &stamp(2, 1), 0);
    let syncs = medium.calls().syncs;
    bench.write(1, &stamp(1, 2));
    bench.units.tick(seconds(104));
    assert_eq!(medium.calls().syncs, syncs, "a mark that is already set costs no flush");
    bench.write(1, &stamp(1, 3));
    // Nexus 2 is idle, nexus 1 is not.
    bench.units.tick(seconds(106));
    let medium = medium.crash();
    let after = Bench::open_with(open(&medium), boot(2, &reports));
    after.login(2);
    assert_eq!(after.from(2, &SYNCHRONIZE, &[], 0).status, Status::Good);
    assert_eq!(what(&after.refused(&SYNCHRONIZE, &[])).1, additional::WRITE_ERROR);
    assert_eq!(version(2, &after.read(2, 1)), 1, "flushed before the mark was removed");
    after.put(&SYNCHRONIZE, &[]);
    after.from(2, &ten(0x2A, 0, 3, 1), &stamp(3, 1), 0);
    after.units.close();
    let after = Bench::open_with(open(&medium.crash()), boot(3, &reports));
    after.login(2);
    assert_eq!(after.from(2, &SYNCHRONIZE, &[], 0).status, Status::Good);
    after.put(&SYNCHRONIZE, &[]);
    assert_eq!(version(3, &after.read(3, 1)), 1);
}

/// A failed removal removes nothing.
#[test]
fn failed_removal_keeps_block_unit() {
    let medium = fresh(1);
    let bench = Bench::on(open(&medium), disk("disk", BlockSize::B512, BLOCKS * 512));
    bench.write(1, &stamp(1, 1));
    medium.fault(DiskFault::Sync(medium.calls().syncs + 1));
    assert!(bench.units.remove("disk", true).is_err());
    assert_eq!(bench.get(&[0x12, 0, 0, 0, 96, 0])[0], 0, "a disk, not an absent unit");
    assert_eq!(bench.units.units().len(), 1);
}

/// An object without a record is a unit whose creation was interrupted.
#[test]
fn unfinished_block_unit_is_removed_at_start() {
    let medium = fresh(1);
    let store = open(&medium);
    let id = ObjectId::new(sealstone_block::BLOCK_PARTITION, 3);
    store.create(id, sealstone_osd::ObjectType::User).expect("made");
    store.write(id, 0, &[0; 8192]).expect("written");
    let units = BlockUnits::open(Arc::clone(&store), TARGET).expect("opens");
    assert!(units.units().is_empty());
    assert_eq!(store.space().used, 0);
}

/// A change of a history: kind, first block, blocks, byte.
type Change = (u8, u64, u64, u8);

/// Applies a change to a plain array. Returns false if the command must be refused for its
/// comparison.
fn apply(model: &mut [u8], (kind, lba, count, byte): Change) -> bool {
    let range = (lba * 512) as usize..((lba + count) * 512) as usize;
    match kind {
        0 => model[range].fill(byte),
        1 => model[range].fill(0),
        2 => model[range].iter_mut().for_each(|there| *there |= byte),
        3 => {
            let equal = model[range.clone()].iter().all(|there| *there == byte);
            if equal {
                model[range].fill(!byte);
            }
            return equal;
        }
        _ => model[range].fill(byte),
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// After any writes, unmaps, fills, compares and ORs, the unit reads like a plain array.
    #[test]
    fn unit_reads_like_plain_array(
        changes in proptest::collection::vec((0_u8..5, 0..BLOCKS, 1_u64..16, any::<u8>()), 1..60),
    ) {
        let bench = Bench::with(disk("disk", BlockSize::B512, BLOCKS * 512));
        let mut model = vec![0; (BLOCKS * 512) as usize];
        for (kind, lba, count, byte) in changes {
            let count = count.min(BLOCKS - lba);
            let byte = if kind == 3 { byte % 2 } else { byte };
            let data = vec![byte; (count * 512) as usize];
            let length = count as u32;
            let (cdb, data_out) = match kind {
                0 => (sixteen(0x8A, 0, lba, length), data),
                1 => {
                    let (short, list) = unmap(&[(lba, length)]);
                    let mut cdb = [0; 16];
                    cdb[..10].copy_from_slice(&short);
                    (cdb, list)
                }
                2 => (sixteen(0x8B, 0, lba, length), data),
                3 => {
                    let mut cdb = sixteen(0x89, 0, lba, 0);
                    cdb[13] = count as u8;
                    (cdb, [data.clone(), data.iter().map(|byte| !byte).collect()].concat())
                }
                _ => (sixteen(0x93, 0x08, lba, length), vec![byte; 512]),
            };
            let status = bench.send(&cdb, &data_out, 0).status;
            prop_assert_eq!(status == Status::Good, apply(&mut model, (kind, lba, count, byte)));
        }
        prop_assert!(bench.read(0, BLOCKS as u32) == model);
    }
}
