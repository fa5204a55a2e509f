//! The scrub of a running device, and the offline check: corruption is found, reported once,
//! remembered over a restart, and cleared when it was rewritten.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::faulty::Faulty;
use crate::support::{Answer, Bench, ListPair, PID, START_MS, user, value};
use sealstone_digest::{CoveredDigests, DigestCover, Profile};
use sealstone_osd::cdb::*;
use sealstone_osd::{Command, ObjectId, ObjectType};
use sealstone_osd_device::inspect::inspect;
use sealstone_osd_device::{Damage, OsdConfig, Range, ScrubStep};
use sealstone_store::sim::SimMedium;
use sealstone_store::{BLOCK, DiskStore, FormatOptions, Medium as _, ObjectStore, StoreOptions, format};

const OID: u64 = 0x10000;
/// Interval at which the position is saved.
const SAVE_EVERY_MS: u64 = 5_000;

struct Disk {
    medium: SimMedium,
    starts: u16,
}

impl Disk {
    fn new() -> Self {
        let medium = SimMedium::new(1);
        format(&medium, &FormatOptions { segment: Some(8 << 20), ..FormatOptions::new(16 << 20, [7; 16]) })
            .unwrap();
        Self { medium, starts: 0 }
    }

    fn disk_store(&self) -> DiskStore {
        DiskStore::open(Arc::new(self.medium.clone()), StoreOptions::default()).unwrap()
    }

    fn store(&self) -> Arc<dyn ObjectStore> {
        Arc::new(self.disk_store())
    }

    fn start(&mut self) -> Bench {
        self.starts += 1;
        let lease_ms = if self.starts == 1 { 0 } else { START_MS - 1 };
        let bench = Bench::start(OsdConfig::default(), self.store(), self.starts, lease_ms);
        if self.starts == 1 {
            bench.create_partition(PID);
        } else {
            bench.keys.lock().add_partition(PID).unwrap();
        }
        bench
    }

    /// Corrupts a block. The first data written is at the start of the first segment.
    fn rot(&self, block: u64) {
        self.medium.rot("segment-00000", block * BLOCK + 100, 0x10);
    }
}

fn run(bench: &Bench, command: Command) -> Answer {
    bench.run(command, ListPair::default(), &[])
}

fn write(bench: &Bench, oid: u64, start: u64, data: &[u8]) {
    let extent = Extent { object: user(oid), start, length: data.len() as u64 };
    bench.run(Command::Write(extent), ListPair::default(), data).good();
}

fn make(bench: &Bench, oid: u64, blocks: u64) {
    run(bench, Command::Create(Create { object: user(oid), count: 1 })).good();
    write(bench, oid, 0, &vec![oid as u8; (blocks * BLOCK) as usize]);
}

fn get(bench: &Bench, object: ObjectId, page: u32, number: u32) -> Vec<u8> {
    let command = Command::GetAttributes(Target { object });
    value(&bench.run(command, ListPair::get(&[(page, number)]), &[]).good().attributes)
}

/// Steps until nothing is left to do; returns the bytes read.
fn scrub(bench: &Bench) -> u64 {
    let mut bytes = 0;
    loop {
        match bench.unit.scrub_step().unwrap() {
            ScrubStep::Worked { bytes: read } => bytes += read,
            ScrubStep::Ended => {}
            ScrubStep::Idle => return bytes,
        }
    }
}

fn blocks(first: u64, count: u64) -> Damage {
    Damage { ranges: vec![Range { offset: first * BLOCK, length: count * BLOCK }], attributes: false }
}

/// Returns the audit log entries about scrubs.
fn audit_lines(bench: &Bench) -> Vec<String> {
    let log = bench.log.0.lock();
    log.iter().filter(|line| line.contains("SCRUB")).cloned().collect()
}

#[test]
fn scrub_reports_corruption_once_and_clears_repair() {
    let mut disk = Disk::new();
    let bench = disk.start();
    for oid in [OID, OID + 1] {
        make(&bench, oid, 10);
    }
    bench.unit.scrub_begin().unwrap();
    assert_eq!(scrub(&bench), 20 * BLOCK);
    let state = bench.unit.scrub_state();
    assert!(!state.running && state.damaged == 0 && state.ended_ms == START_MS, "{state:?}");
    assert_eq!((state.objects, state.objects_total, state.bytes), (4, 4, 20 * BLOCK), "{state:?}");
    assert_eq!(audit_lines(&bench), [""; 0]);

    disk.rot(5);
    disk.rot(6);
    for _ in 0..2 {
        bench.unit.scrub_begin().unwrap();
        scrub(&bench);
    }
    assert_eq!(bench.unit.damaged(), [(user(OID), blocks(5, 2))]);
    assert_eq!(bench.unit.scrub_state().damaged, 1);
    assert_eq!(get(&bench, user(OID), 6, 1), [1]);
    assert_eq!(get(&bench, ObjectId::of_partition(PID), 0x3000_0006, 6), 1u64.to_be_bytes());
    assert_eq!(get(&bench, ObjectId::ROOT, 0x9000_0006, 6), 1u64.to_be_bytes());
    let lines = audit_lines(&bench);
    assert_eq!(lines.len(), 1, "reported once: {lines:?}");
    assert!(lines[0].contains("failed Some(\"damaged\") Some((3, 17, 0))"), "{lines:?}");

    // A partial write of a damaged block fails; writing the whole block repairs it without another
    // pass.
    let part = Command::Write(Extent { object: user(OID), start: 5 * BLOCK, length: 10 });
    assert_eq!(bench.run(part, ListPair::default(), &[0; 10]).sense(), (3, 0x1100));
    write(&bench, OID, 5 * BLOCK, &[8; BLOCK as usize]);
    scrub(&bench);
    assert_eq!(bench.unit.damaged(), [(user(OID), blocks(6, 1))]);
    write(&bench, OID, 6 * BLOCK, &[8; BLOCK as usize]);
    scrub(&bench);
    assert_eq!(bench.unit.damaged(), []);
    assert_eq!(get(&bench, user(OID), 6, 1), [0]);
    assert_eq!(get(&bench, ObjectId::of_partition(PID), 0x3000_0006, 6), [0; 8]);
    assert_eq!(get(&bench, ObjectId::ROOT, 0x9000_0006, 6), [0; 8]);
    assert!(audit_lines(&bench).last().unwrap().contains("done"), "{:?}", audit_lines(&bench));
}

#[test]
fn failed_read_records_damage_without_pass() {
    let mut disk = Disk::new();
    let bench = disk.start();
    make(&bench, OID, 10);
    disk.rot(7);
    // A part of a unit. Clients verify whole units with digests.
    let read = Command::Read(Extent { object: user(OID), start: 7 * BLOCK + 1, length: 100 });
    assert_eq!(run(&bench, read).sense(), (3, 0x1100));
    scrub(&bench);
    assert_eq!(bench.unit.damaged(), [(user(OID), blocks(7, 1))]);
    assert!(!bench.unit.scrub_state().running);
    // A removed object is not damaged any more.
    run(&bench, Command::Remove(Target { object: user(OID) })).good();
    scrub(&bench);
    assert_eq!(bench.unit.damaged(), []);
    assert_eq!(get(&bench, ObjectId::of_partition(PID), 0x3000_0006, 2), [0]);
}

#[test]
fn restart_keeps_damage_and_resumes_pass() {
    let mut disk = Disk::new();
    let bench = disk.start();
    make(&bench, OID, 1024);
    make(&bench, OID + 1, 512);
    disk.rot(3);
    disk.rot(1000);
    bench.unit.scrub_begin().unwrap();
    let mut before = 0;
    // Root, partition, and two pieces of the first object; then the position is saved.
    while before < 2 * (1 << 20) {
        let ScrubStep::Worked { bytes } = bench.unit.scrub_step().unwrap() else { panic!("ended early") };
        before += bytes;
    }
    bench.fake.ms.fetch_add(SAVE_EVERY_MS, Ordering::SeqCst);
    let ScrubStep::Worked { bytes } = bench.unit.scrub_step().unwrap() else { panic!("ended early") };
    before += bytes;
    assert_eq!(bench.unit.damaged(), [(user(OID), blocks(3, 1))], "damage of half an object is recorded too");
    bench.store.flush().unwrap();
    drop(bench);

    let bench = disk.start();
    let state = bench.unit.scrub_state();
    assert!(state.running && state.bytes == before, "{state:?}");
    assert_eq!(bench.unit.damaged(), [(user(OID), blocks(3, 1))]);
    assert_eq!(before + scrub(&bench), 1537 * BLOCK, "nothing is read twice but the damaged block");
    let both = Damage { ranges: vec![blocks(3, 1).ranges[0], blocks(1000, 1).ranges[0]], attributes: false };
    assert_eq!(bench.unit.damaged(), [(user(OID), both)]);
    let state = bench.unit.scrub_state();
    assert!(!state.running && state.bytes == 1536 * BLOCK && state.objects == 4, "{state:?}");
}

#[test]
fn stopped_pass_stays_stopped_after_restart() {
    let mut disk = Disk::new();
    let bench = disk.start();
    make(&bench, OID, 1024);
    bench.unit.scrub_begin().unwrap();
    for _ in 0..3 {
        bench.unit.scrub_step().unwrap();
    }
    bench.unit.scrub_stop().unwrap();
    assert_eq!(scrub(&bench), 0);
    bench.store.flush().unwrap();
    drop(bench);
    let bench = disk.start();
    assert!(!bench.unit.scrub_state().running);
    bench.unit.scrub_begin().unwrap();
    assert_eq!(scrub(&bench), 1024 * BLOCK, "the next pass starts at the beginning");
}

#[test]
fn scrub_with_writers_reports_no_false_damage() {
    let bench = Bench::with_partition();
    make(&bench, OID, 1024);
    make(&bench, OID + 1, 16);
    std::thread::scope(|scope| {
        let scrubbing = scope.spawn(|| {
            for _ in 0..20 {
                bench.unit.scrub_begin().unwrap();
                scrub(&bench);
            }
        });
        let mut round = 0u64;
        while !scrubbing.is_finished() {
            write(&bench, OID, round % 1000 * BLOCK + 17, b"in the middle of it");
            let punch = Extent { object: user(OID + 1), start: 0, length: 1 };
            run(&bench, Command::Punch(punch)).good();
            write(&bench, OID + 1, 15 * BLOCK, &[1; 4096]);
            round += 1;
        }
        scrubbing.join().unwrap();
    });
    assert_eq!(bench.unit.damaged(), []);
}

#[test]
fn offline_check_needs_no_keys() {
    let mut disk = Disk::new();
    let bench = disk.start();
    make(&bench, OID, 10);
    make(&bench, OID + 1, 10);
    bench.store.flush().unwrap();
    drop(bench);
    disk.rot(12);
    let store = disk.disk_store();
    let found = inspect(&store, None, |_| {}).unwrap();
    assert_eq!((found.objects, found.bytes, found.noted, found.read_only), (4, 20 * BLOCK, 0, false));
    assert_eq!((found.findings.len(), &found.faults[..]), (1, &[][..]));
    assert_eq!((found.findings[0].id, found.findings[0].kind), (user(OID + 1), Some(ObjectType::User)));
    assert_eq!(found.findings[0].damage(), blocks(2, 1));
    let again = inspect(&store, None, |_| {}).unwrap();
    assert_eq!(again, found, "the check changes nothing");
    let noted = inspect(&store, Some(START_MS), |_| {}).unwrap();
    assert_eq!((noted.noted, noted.findings), (1, found.findings));
    assert_eq!(inspect(&store, Some(START_MS), |_| {}).unwrap().noted, 0, "recorded once");
    drop(store);

    let bench = disk.start();
    assert_eq!(bench.unit.damaged(), [(user(OID + 1), blocks(2, 1))]);
    assert_eq!(get(&bench, user(OID + 1), 6, 1), [1]);
    write(&bench, OID + 1, 0, &[9; 10 * BLOCK as usize]);
    scrub(&bench);
    assert_eq!(bench.unit.damaged(), []);
}

/// Whichever page of the index is corrupt: the device starts if it can read its own state, serves
/// intact data, and its scrub names every object that it cannot serve.
#[test]
fn corrupt_index_page_scrub_names_every_loss() {
    const OBJECTS: u64 = 40;
    let mut disk = Disk::new();
    let bench = disk.start();
    for number in 0..OBJECTS {
        make(&bench, OID + number, 1 + number % 3);
        let name = ListPair::set(&[(0x10000, 1, &[number as u8 + 1; 200])]);
        bench.run(Command::SetAttributes(Target { object: user(OID + number) }), name, &[]).good();
    }
    bench.store.flush().unwrap();
    drop(bench);
    let index = disk.medium.open("index.redb", false).unwrap();
    let mut bytes = vec![0; index.length().unwrap() as usize];
    index.read_at(0, &mut bytes).unwrap();
    let pages = bytes.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|&byte| byte != 0));
    let (mut started, mut lossy) = (0, 0);
    for (page, _) in pages.skip(1) {
        let rotten = Disk { medium: disk.medium.fork(), starts: disk.starts };
        for at in [8, 40, 200, 1000, 2500] {
            rotten.medium.rot("index.redb", page as u64 * 4096 + at, 0x20);
        }
        let Ok(store) = DiskStore::open(Arc::new(rotten.medium.clone()), StoreOptions::default()) else {
            continue;
        };
        let store: Arc<dyn ObjectStore> = Arc::new(store);
        let Some(bench) = Bench::try_start(Arc::clone(&store), 2, START_MS - 1) else { continue };
        started += 1;
        bench.unit.scrub_begin().unwrap();
        scrub(&bench);
        assert!(!bench.unit.scrub_state().running, "page {page}");
        let damaged: Vec<ObjectId> = bench.unit.damaged().into_iter().map(|(id, _)| id).collect();
        let listed = store.list_known(user(0), 1000).unwrap_or_default();
        for id in listed.into_iter().map(|(id, _)| id).filter(|id| id.object >= OID) {
            let number = id.object - OID;
            let mut buffer = vec![0; (1 + number as usize % 3) * BLOCK as usize];
            let data = store.read(id, 0, &mut buffer);
            let name = store.attribute(id, sealstone_store::AttributeId { page: 0x10000, number: 1 });
            let sound = data.is_ok() && name.is_ok() && store.attributes(id, None).is_ok();
            if data.is_ok() {
                assert!(buffer.iter().all(|&byte| byte == id.object as u8), "page {page}: {id}: wrong bytes");
            }
            assert!(sound || damaged.contains(&id), "page {page}: {id} is not reported: {damaged:?}");
            lossy += u64::from(!sound);
        }
    }
    assert!(started > 0 && lossy > 0, "{started} started, {lossy} losses");
}

/// A digest that does not match the data is damage, even if all checksums match.
#[test]
fn scrub_finds_mismatched_digests() {
    let mut disk = Disk::new();
    let bench = disk.start();
    make(&bench, OID, 600);
    make(&bench, OID + 1, 10);
    let data = vec![3; 600 * BLOCK as usize];
    let mut other = data.clone();
    other[2_000_000] ^= 1;
    let length = data.len() as u64;
    let covered = CoveredDigests::of(DigestCover::new(Profile::DEFAULT, 0, length, length), &other);
    bench.store.write_digested(user(OID), 0, &data, &covered).unwrap();
    bench.unit.scrub_begin().unwrap();
    scrub(&bench);
    let unit = 2_000_000 / (4 * BLOCK) * 4;
    assert_eq!(bench.unit.damaged(), [(user(OID), blocks(unit, 4))]);
    assert_eq!(get(&bench, user(OID), 6, 1), [1]);
    assert_eq!(audit_lines(&bench).len(), 1);
    // OBJECT STRUCTURE CHECK finds it too, and READ MAP shows it.
    let check = Command::ObjectStructureCheck(Target { object: ObjectId::of_partition(PID) });
    run(&bench, check).good();
    assert_eq!(bench.unit.damaged(), [(user(OID), blocks(unit, 4))]);
    write(&bench, OID, unit * BLOCK, &[9; 4 * BLOCK as usize]);
    scrub(&bench);
    assert_eq!(bench.unit.damaged(), []);
}

/// Data moved by PUNCH has no digests. The next pass computes them once, and counts the bytes read
/// for that.
#[test]
fn a_pass_makes_the_digests_that_are_missing() {
    let mut disk = Disk::new();
    let bench = disk.start();
    make(&bench, OID, 600);
    run(&bench, Command::Punch(Extent { object: user(OID), start: 0, length: BLOCK })).good();
    let known = || {
        let known = bench.store.digests(user(OID), 0, 599 * BLOCK).unwrap();
        known.values.iter().flatten().count()
    };
    assert!(known() < 150);
    bench.unit.scrub_begin().unwrap();
    let read = scrub(&bench);
    assert_eq!(known(), 150);
    let state = bench.unit.scrub_state();
    assert_eq!((state.bytes, state.damaged), (599 * BLOCK, 0), "{state:?}");
    assert!(state.digested > 0 && read >= state.bytes + state.digested * 4 * BLOCK, "{read} {state:?}");
    bench.unit.scrub_begin().unwrap();
    assert_eq!(scrub(&bench), 599 * BLOCK);
    assert_eq!(bench.unit.scrub_state().digested, 0);
}

/// Steps until nothing is left to do; returns the number of failures.
fn scrub_over_failures(bench: &Bench) -> usize {
    let mut failures = 0;
    loop {
        match bench.unit.scrub_step() {
            Ok(ScrubStep::Worked { .. } | ScrubStep::Ended) => {}
            Ok(ScrubStep::Idle) => return failures,
            Err(_) => failures += 1,
        }
        assert!(failures < 100, "the scrub does not continue after an object");
    }
}

#[test]
fn unreadable_object_does_not_stop_scrub() {
    let store = Arc::new(Faulty::new());
    let bench = Bench::start(OsdConfig::default(), store.clone(), 1, 0);
    bench.create_partition(PID);
    for oid in OID..OID + 5 {
        make(&bench, oid, 3);
    }
    store.sicken(Some(user(OID + 2)));
    for round in 0..2 {
        bench.unit.scrub_begin().unwrap();
        assert_eq!(scrub_over_failures(&bench), 1, "round {round}: tried twice");
        let state = bench.unit.scrub_state();
        assert!(!state.running && state.unread == 1 && state.damaged == 1, "{state:?}");
        assert_eq!((state.objects, state.bytes), (state.objects_total, 4 * 3 * BLOCK), "{state:?}");
        assert_eq!(bench.unit.damaged(), [(user(OID + 2), blocks(0, 3))]);
        let unread = bench.unit.unread();
        assert_eq!((unread[0].id, unread[0].at, unread.len()), (user(OID + 2), 0, 1));
        assert!(unread[0].error.contains("reading data"), "{unread:?}");
    }
    assert_eq!(audit_lines(&bench).len(), 1, "reported once");
    // An early examination ends, too.
    let read = Command::Read(Extent { object: user(OID + 2), start: 0, length: 1 });
    run(&bench, read).good();
    assert_eq!(scrub_over_failures(&bench), 0);
    store.sicken(None);
    bench.unit.scrub_begin().unwrap();
    assert_eq!(scrub_over_failures(&bench), 0);
    assert_eq!((bench.unit.damaged(), bench.unit.scrub_state().unread), (vec![], 0));
}

/// An object with the maximum of attributes cannot record its damage. It is still reported once,
/// and the pass continues.
#[test]
fn unrecordable_damage_is_still_reported() {
    let mut disk = Disk::new();
    let bench = disk.start();
    make(&bench, OID, 10);
    make(&bench, OID + 1, 10);
    let value = vec![1; 0xFFFE];
    let mut number = 0;
    let name = |number| sealstone_store::AttributeId { page: 0x1_0000, number };
    while bench.store.set_attribute(user(OID), name(number), &value).is_ok() {
        number += 1;
    }
    while bench.store.set_attribute(user(OID), name(number), &[1]).is_ok() {
        number += 1;
    }
    bench.store.flush().unwrap();
    disk.rot(5);
    for _ in 0..3 {
        bench.unit.scrub_begin().unwrap();
        assert_eq!(scrub_over_failures(&bench), 0);
        assert_eq!(bench.unit.damaged(), [(user(OID), blocks(5, 1))]);
    }
    assert_eq!(audit_lines(&bench).len(), 1, "{:?}", audit_lines(&bench));
    write(&bench, OID, 5 * BLOCK, &[8; BLOCK as usize]);
    assert_eq!(scrub_over_failures(&bench), 0);
    assert_eq!(bench.unit.damaged(), []);
}
