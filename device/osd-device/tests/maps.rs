//! READ MAP, READ MAPS AND COMPARE, OBJECT STRUCTURE CHECK.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Answer, Bench, ListPair, PID, user, value};
use sealstone_osd::cdb::*;
use sealstone_osd::map::{self, ALL, DAMAGED_DATA, HOLE, MapExtent, WRITTEN};
use sealstone_osd::{Command, ObjectId};
use sealstone_osd_device::OsdConfig;
use sealstone_store::sim::SimMedium;
use sealstone_store::{BLOCK, DiskStore, FormatOptions, StoreOptions, format};

const OID: u64 = 0x10000;
const SNAP: u64 = 0x20000;

fn run(bench: &Bench, command: Command) -> Answer {
    bench.run(command, ListPair::default(), &[])
}

fn write(bench: &Bench, object: ObjectId, start: u64, data: &[u8]) {
    let command = Command::Write(Extent { object, start, length: data.len() as u64 });
    bench.run(command, ListPair::default(), data).good();
}

fn create(bench: &Bench, oid: u64) {
    run(bench, Command::Create(Create { object: user(oid), count: 1 })).good();
}

fn read_map(object: ObjectId, allocation: u64, start: u64, kind: u16) -> Command {
    Command::ReadMap(ReadMap { object, allocation, start, kind })
}

fn stretch(kind: u16, offset: u64, length: u64) -> MapExtent {
    MapExtent { kind, offset, length: length as u32 }
}

/// Creates an object of 20 blocks with data in blocks 2, 3 and 10.
fn sparse() -> Bench {
    let bench = Bench::with_partition();
    create(&bench, OID);
    write(&bench, user(OID), 2 * BLOCK, &[1; 2 * BLOCK as usize]);
    write(&bench, user(OID), 10 * BLOCK + 7, b"x");
    let command = Command::SetAttributes(Target { object: user(OID) });
    bench.run(command, ListPair::set(&[(1, 0x82, &(20 * BLOCK - 5).to_be_bytes())]), &[]).good();
    bench
}

#[test]
fn map_distinguishes_data_and_holes() {
    let bench = sparse();
    let expected = [
        stretch(HOLE, 0, 2 * BLOCK),
        stretch(WRITTEN, 2 * BLOCK, 2 * BLOCK),
        stretch(HOLE, 4 * BLOCK, 6 * BLOCK),
        stretch(WRITTEN, 10 * BLOCK, BLOCK),
        stretch(HOLE, 11 * BLOCK, 9 * BLOCK - 5),
    ];
    let full = 8 + 16 * 5;
    let map = |allocation, start, kind| {
        let answer = run(&bench, read_map(user(OID), allocation, start, kind)).good();
        map::parse(&answer.data).unwrap()
    };
    assert_eq!(map(4096, 0, ALL), (expected.to_vec(), full));
    assert_eq!(
        map(8 + 16 * 2 + 15, 0, ALL),
        (expected[..2].to_vec(), full),
        "whole descriptors, full length"
    );
    assert_eq!(map(4096, 0, WRITTEN), (vec![expected[1], expected[3]], 8 + 32));
    assert_eq!(map(4096, 0, DAMAGED_DATA), (vec![], 8));
    assert_eq!(map(4096, 3 * BLOCK + 5, WRITTEN).0[0], stretch(WRITTEN, 3 * BLOCK + 5, BLOCK - 5));
    assert_eq!(map(4096, 20 * BLOCK - 5, ALL), (vec![], 8), "from the very end");
    assert!(run(&bench, read_map(user(OID), 0, 0, ALL)).good().data.is_empty());
}

#[test]
fn invalid_read_map_points_to_field() {
    let bench = sparse();
    let field = |command| {
        let answer = run(&bench, command);
        assert_eq!(answer.sense(), (5, 0x2400));
        answer.sense.unwrap().field.unwrap().byte
    };
    assert_eq!(field(read_map(user(OID), 4096, 0, 4)), 48);
    assert_eq!(field(read_map(user(OID), 23, 0, ALL)), 32);
    assert_eq!(field(read_map(user(OID), 4096, 20 * BLOCK, ALL)), 40);
    assert_eq!(field(read_map(user(OID + 1), 4096, 0, ALL)), 24);
    let compare =
        |object| Command::ReadMapsAndCompare(ReadMap { object, allocation: 4096, start: 0, kind: ALL });
    assert_eq!(field(compare(user(OID))), 16, "not a duplicate");
}

#[test]
fn compare_maps_uses_duplicate_source() {
    let bench = sparse();
    create(&bench, OID + 1);
    write(&bench, user(OID + 1), 0, b"gone later");
    let make = Command::CreateClone(Duplicate { partition: SNAP, source: PID, method: 0 });
    run(&bench, make).good();
    bench.keys.lock().add_partition(SNAP).unwrap();
    let compare = |object, kind| {
        let command = Command::ReadMapsAndCompare(ReadMap { object, allocation: 4096, start: 0, kind });
        map::parse(&run(&bench, command).good().data).unwrap().0
    };
    let clone = |oid| ObjectId::new(SNAP, oid);
    assert_eq!(compare(clone(OID), ALL), []);
    write(&bench, clone(OID), 2 * BLOCK, b"mine");
    write(&bench, user(OID), 15 * BLOCK, b"theirs");
    assert_eq!(
        compare(clone(OID), ALL),
        [stretch(WRITTEN, 2 * BLOCK, BLOCK), stretch(HOLE, 15 * BLOCK, BLOCK)]
    );
    assert_eq!(compare(clone(OID), HOLE), [stretch(HOLE, 15 * BLOCK, BLOCK)]);
    run(&bench, Command::Remove(Target { object: user(OID + 1) })).good();
    assert_eq!(compare(clone(OID + 1), ALL), [stretch(WRITTEN, 0, 10)], "all of it, if the source has none");
}

fn check(bench: &Bench, object: ObjectId) -> Answer {
    run(bench, Command::ObjectStructureCheck(Target { object }))
}

fn get(bench: &Bench, object: ObjectId, page: u32, number: u32) -> Vec<u8> {
    let command = Command::GetAttributes(Target { object });
    value(&bench.run(command, ListPair::get(&[(page, number)]), &[]).good().attributes)
}

#[test]
fn structure_check_records_and_clears_corruption() {
    let medium = SimMedium::new(1);
    format(&medium, &FormatOptions { segment: Some(8 << 20), ..FormatOptions::new(16 << 20, [7; 16]) })
        .unwrap();
    let store = DiskStore::open(Arc::new(medium.clone()), StoreOptions::default()).unwrap();
    let bench = Bench::with(OsdConfig::default(), Arc::new(store));
    bench.create_partition(PID);
    for oid in [OID, OID + 1] {
        create(&bench, oid);
        write(&bench, user(oid), 0, &[7; 10 * BLOCK as usize]);
    }
    let (partition, root) = (ObjectId::of_partition(PID), ObjectId::ROOT);
    let summary = |object, base: u32| get(&bench, object, base + 6, 1);
    check(&bench, partition).good();
    assert_eq!((summary(user(OID), 0), summary(partition, 0x3000_0000)), (vec![0], vec![0]));
    // The first data written is at the start of the first segment.
    medium.rot("segment-00000", 5 * BLOCK + 100, 0x10);
    medium.rot("segment-00000", 6 * BLOCK, 1);
    check(&bench, partition).good();
    assert_eq!(summary(user(OID), 0), [1]);
    assert_eq!(get(&bench, user(OID), 6, 3), crate::support::START_MS.to_be_bytes()[2..]);
    assert_eq!(summary(user(OID + 1), 0), [0]);
    assert_eq!(get(&bench, partition, 0x3000_0006, 1), [0], "its own list is sound");
    assert_eq!(get(&bench, partition, 0x3000_0006, 2), [1], "what it contains is not");
    assert_eq!(get(&bench, partition, 0x3000_0006, 6), 1u64.to_be_bytes());
    let map = |kind| {
        let answer = run(&bench, read_map(user(OID), 4096, 0, kind)).good();
        map::parse(&answer.data).unwrap().0
    };
    let damaged = stretch(DAMAGED_DATA, 5 * BLOCK, 2 * BLOCK);
    let sound = [stretch(WRITTEN, 0, 5 * BLOCK), damaged, stretch(WRITTEN, 7 * BLOCK, 3 * BLOCK)];
    assert_eq!(map(ALL), sound);
    assert_eq!(map(DAMAGED_DATA), [damaged]);
    check(&bench, root).good();
    assert_eq!(get(&bench, root, 0x9000_0006, 6), 1u64.to_be_bytes(), "one damaged partition");
    assert_eq!(get(&bench, root, 0x9000_0006, 2), [1]);
    // Rewritten data is readable: the map shows it at once, the attributes after the next check.
    write(&bench, user(OID), 5 * BLOCK, &[8; 2 * BLOCK as usize]);
    assert_eq!(map(ALL), [stretch(WRITTEN, 0, 10 * BLOCK)]);
    check(&bench, root).good();
    assert_eq!((summary(user(OID), 0), get(&bench, partition, 0x3000_0006, 6)), (vec![0], vec![0; 8]));
    assert_eq!(get(&bench, root, 0x9000_0006, 6), [0; 8]);
    assert_eq!(check(&bench, ObjectId::of_partition(0x99999)).sense(), (5, 0x2400));
}

#[test]
fn commands_run_during_structure_check() {
    let bench = Bench::with_partition();
    create(&bench, OID);
    create(&bench, OID + 1);
    write(&bench, user(OID), 0, &vec![3; 24 << 20]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let checker = scope.spawn(|| {
            let mut checks = 0;
            while !over.load(Ordering::SeqCst) || checks == 0 {
                check(&bench, ObjectId::of_partition(PID)).good();
                checks += 1;
            }
        });
        for round in 0..200 {
            write(&bench, user(OID), round * 4096, b"while it is checked");
            write(&bench, user(OID + 1), 0, b"and another");
        }
        over.store(true, Ordering::SeqCst);
        checker.join().unwrap();
    });
}
