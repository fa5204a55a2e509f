//! Snapshots and clones of partitions: cheap, complete, read-only where required, also after
//! interruptions.

use std::sync::Arc;

use crate::support::{Answer, Bench, ListPair, PID, value};
use sealstone_osd::cdb::*;
use sealstone_osd::{AttributeId, Command, ObjectId, ObjectType};
use sealstone_osd_device::OsdConfig;
use sealstone_scsi::Status;
use sealstone_store::sim::{DiskFault, SimMedium};
use sealstone_store::{BLOCK, DiskStore, FormatOptions, MemoryStore, StoreOptions, format};

const OID: u64 = 0x10000;
const SNAP: u64 = 0x20000;
const CLONE: u64 = 0x30000;
/// The vendor page Partition Duplicates.
const DUPLICATES: u32 = 0x3000_F004;
const ILLEGAL: u8 = 5;

fn duplicate(partition: u64, source: u64) -> Duplicate {
    Duplicate { partition, source, method: 0 }
}

fn id(partition: u64, object: u64) -> ObjectId {
    ObjectId::new(partition, object)
}

fn create(bench: &Bench, object: ObjectId) -> Answer {
    bench.run(Command::Create(Create { object, count: 1 }), ListPair::default(), &[])
}

fn write(bench: &Bench, object: ObjectId, start: u64, data: &[u8]) -> Answer {
    bench.run(Command::Write(Extent { object, start, length: data.len() as u64 }), ListPair::default(), data)
}

fn read(bench: &Bench, object: ObjectId, length: u64) -> Answer {
    bench.run(Command::Read(Extent { object, start: 0, length }), ListPair::default(), &[])
}

fn get(bench: &Bench, object: ObjectId, page: u32, number: u32) -> Vec<u8> {
    let command = Command::GetAttributes(Target { object });
    value(&bench.run(command, ListPair::get(&[(page, number)]), &[]).good().attributes)
}

fn run(bench: &Bench, command: Command) -> Answer {
    bench.run(command, ListPair::default(), &[])
}

/// Runs a command that creates a partition, and updates the bench's keys.
fn make(bench: &Bench, command: Command) {
    run(bench, command).good();
    bench.keys.lock().add_partition(command.object().partition).unwrap();
}

#[track_caller]
fn refused(answer: &Answer, key: u8, code: u16, byte: Option<u16>) {
    assert_eq!(answer.sense(), (key, code));
    assert_eq!(answer.sense.as_ref().unwrap().field.map(|field| field.byte), byte);
}

/// Creates a partition of three objects with 100 000 bytes each.
fn bench() -> Bench {
    let bench = Bench::with_partition();
    for object in 0..3 {
        create(&bench, id(PID, OID + object)).good();
        write(&bench, id(PID, OID + object), 0, &[object as u8 + 1; 100_000]).good();
    }
    let set = Command::SetAttributes(Target { object: id(PID, OID) });
    bench.run(set, ListPair::set(&[(1, 9, b"name"), (0x1_0000, 7, b"inode")]), &[]).good();
    bench
}

#[test]
fn snapshot_equals_source_without_copying() {
    let bench = bench();
    let used = bench.store.space().used;
    make(&bench, Command::CreateSnapshot(duplicate(SNAP, PID)));
    assert_eq!(bench.store.space().used, used, "no data is copied");
    write(&bench, id(PID, OID), 5, b"changed").good();
    run(&bench, Command::Remove(Target { object: id(PID, OID + 1) })).good();
    create(&bench, id(PID, OID + 9)).good();
    for object in 0..3 {
        assert_eq!(read(&bench, id(SNAP, OID + object), 100_000).good().data, [object as u8 + 1; 100_000]);
    }
    assert_eq!(read(&bench, id(SNAP, OID + 9), 1).sense(), (ILLEGAL, 0x2400));
    assert_eq!(get(&bench, id(SNAP, OID), 1, 9), b"name");
    assert_eq!(get(&bench, id(SNAP, OID), 0x1_0000, 7), b"inode");
    assert_eq!(get(&bench, ObjectId::of_partition(SNAP), 0x3000_0001, 0xC1), 3u64.to_be_bytes());
}

#[test]
fn duplicate_and_source_record_lineage() {
    let bench = bench();
    make(&bench, Command::CreateSnapshot(duplicate(SNAP, PID)));
    make(&bench, Command::CreateClone(duplicate(CLONE, SNAP)));
    let page = |partition, number| get(&bench, ObjectId::of_partition(partition), DUPLICATES, number);
    assert_eq!((page(PID, 1), page(SNAP, 1), page(CLONE, 1)), (vec![0], vec![1], vec![2]));
    assert_eq!((page(SNAP, 2), page(CLONE, 2)), (PID.to_be_bytes().to_vec(), SNAP.to_be_bytes().to_vec()));
    assert_eq!(page(SNAP, 3), crate::support::START_MS.to_be_bytes()[2..]);
    assert_eq!((page(SNAP, 4), page(CLONE, 5)), (vec![1], 2u32.to_be_bytes().to_vec()));
    assert_eq!((page(PID, 7), page(PID, 8)), (1u32.to_be_bytes().to_vec(), 0u32.to_be_bytes().to_vec()));
    assert_eq!((page(PID, 9), page(SNAP, 0xA)), (SNAP.to_be_bytes().to_vec(), CLONE.to_be_bytes().to_vec()));
    // The source of duplicates stays until they are removed.
    let remove =
        |partition| run(&bench, Command::RemovePartition(RemovePartition { partition, with_contents: true }));
    assert_eq!(remove(PID).sense(), (ILLEGAL, 0x2C00));
    assert_eq!(remove(SNAP).sense(), (ILLEGAL, 0x2C00));
    run(&bench, Command::DetachClone(duplicate(CLONE, 0))).good();
    assert_eq!(page(CLONE, 1), [0]);
    remove(SNAP).good();
    assert_eq!(page(PID, 9), [0u8; 0]);
    remove(PID).good();
    assert_eq!(read(&bench, id(CLONE, OID), 100_000).good().data, [1; 100_000], "an original of its own");
}

#[test]
fn snapshot_contents_are_readonly() {
    let bench = bench();
    make(&bench, Command::CreateSnapshot(duplicate(SNAP, PID)));
    let before = bench.state_hash();
    let object = id(SNAP, OID);
    let extent = Extent { object, start: 0, length: 3 };
    let (protect, code) = (7, 0x2700);
    assert_eq!(write(&bench, object, 0, b"abc").sense(), (protect, code));
    assert_eq!(
        bench.run(Command::Append(Append { object, length: 1 }), ListPair::default(), b"x").sense(),
        (protect, code)
    );
    assert_eq!(
        bench
            .run(
                Command::CreateAndWrite(Extent { object: id(SNAP, 0), ..extent }),
                ListPair::default(),
                b"abc"
            )
            .sense(),
        (protect, code)
    );
    for command in [
        Command::Clear(extent),
        Command::Punch(extent),
        Command::Remove(Target { object }),
        Command::Create(Create { object: id(SNAP, 0), count: 1 }),
        Command::Create(Create { object: id(SNAP, OID + 5), count: 1 }),
    ] {
        assert_eq!(run(&bench, command).sense(), (protect, code), "{command:?}");
    }
    let set = bench.run(Command::SetAttributes(Target { object }), ListPair::set(&[(1, 9, b"x")]), &[]);
    assert_eq!(set.sense(), (protect, code));
    let set = bench.run(Command::Read(extent), ListPair::set(&[(1, 9, b"x")]), &[]);
    assert_eq!(set.sense(), (protect, code), "nor as a side effect");
    read(&bench, object, 3).good();
    assert_eq!(bench.state_hash(), before);
    // The partition itself may be named and removed.
    let named = Command::SetAttributes(Target { object: ObjectId::of_partition(SNAP) });
    bench.run(named, ListPair::set(&[(0x3000_0001, 9, b"monday")]), &[]).good();
    run(&bench, Command::RemovePartition(RemovePartition { partition: SNAP, with_contents: true })).good();
}

#[test]
fn clone_diverges_from_source() {
    let bench = bench();
    make(&bench, Command::CreateClone(duplicate(CLONE, PID)));
    let used = bench.store.space().used;
    write(&bench, id(CLONE, OID), 0, b"clone").good();
    assert_eq!(bench.store.space().used, used + BLOCK, "one block is no longer shared");
    write(&bench, id(PID, OID + 1), 0, b"source").good();
    create(&bench, id(CLONE, OID + 7)).good();
    assert_eq!(read(&bench, id(PID, OID), 5).good().data, [1; 5]);
    assert_eq!(read(&bench, id(CLONE, OID), 5).good().data, b"clone");
    assert_eq!(read(&bench, id(CLONE, OID + 1), 5).good().data, [2; 5]);
}

#[test]
fn restore_replaces_contents_but_not_authority() {
    let bench = bench();
    make(&bench, Command::CreateSnapshot(duplicate(SNAP, PID)));
    let created = get(&bench, id(PID, OID), 3, 1);
    bench.fake.ms.fetch_add(1000, std::sync::atomic::Ordering::SeqCst);
    write(&bench, id(PID, OID), 0, b"later").good();
    let set = Command::SetAttributes(Target { object: id(PID, OID) });
    let tag = [(1, 9, &b"renamed"[..]), (0x1_0000, 8, b"new"), (5, 0x4000_0001, &[0, 0, 0, 9])];
    bench.run(set, ListPair::set(&tag), &[]).good();
    run(&bench, Command::Remove(Target { object: id(PID, OID + 1) })).good();
    create(&bench, id(PID, OID + 9)).good();
    write(&bench, id(PID, OID + 2), 200_000, b"longer").good();
    bench.fake.ms.fetch_add(1000, std::sync::atomic::Ordering::SeqCst);

    run(&bench, Command::RestorePartition(duplicate(PID, SNAP))).good();
    for object in 0..3 {
        assert_eq!(read(&bench, id(PID, OID + object), 100_000).good().data, [object as u8 + 1; 100_000]);
    }
    assert_eq!(get(&bench, id(PID, OID + 2), 1, 0x82), 100_000u64.to_be_bytes());
    assert_eq!(get(&bench, id(PID, OID), 1, 9), b"name");
    assert_eq!(get(&bench, id(PID, OID), 0x1_0000, 8), [0u8; 0]);
    assert_eq!(read(&bench, id(PID, OID + 9), 1).sense(), (ILLEGAL, 0x2400), "it did not exist");
    assert_eq!(get(&bench, ObjectId::of_partition(PID), 0x3000_0001, 0xC1), 3u64.to_be_bytes());
    // A revocation stays, and a removed object is restored as a new object.
    assert_eq!(get(&bench, id(PID, OID), 5, 0x4000_0001), [0, 0, 0, 9]);
    assert_eq!(get(&bench, id(PID, OID), 3, 1), created);
    assert!(get(&bench, id(PID, OID + 1), 3, 1) > created);
    // It can be changed again, and the snapshot did not change.
    write(&bench, id(PID, OID), 0, b"again").good();
    assert_eq!(read(&bench, id(SNAP, OID), 5).good().data, [1; 5]);
}

#[test]
fn refresh_copies_current_source() {
    let bench = bench();
    make(&bench, Command::CreateSnapshot(duplicate(SNAP, PID)));
    make(&bench, Command::CreateClone(duplicate(CLONE, PID)));
    write(&bench, id(PID, OID), 0, b"newer").good();
    run(&bench, Command::Remove(Target { object: id(PID, OID + 1) })).good();
    write(&bench, id(CLONE, OID + 2), 0, b"lost").good();
    for target in [SNAP, CLONE] {
        run(&bench, Command::RefreshSnapshotOrClone(duplicate(target, 0))).good();
        assert_eq!(read(&bench, id(target, OID), 6).good().data, b"newer\x01");
        assert_eq!(read(&bench, id(target, OID + 1), 1).sense(), (ILLEGAL, 0x2400));
        assert_eq!(read(&bench, id(target, OID + 2), 4).good().data, [3; 4]);
        assert_eq!(
            get(&bench, ObjectId::of_partition(target), DUPLICATES, 6),
            crate::support::START_MS.to_be_bytes()[2..]
        );
    }
    assert_eq!(write(&bench, id(SNAP, OID), 0, b"x").sense(), (7, 0x2700), "read-only again");
    write(&bench, id(CLONE, OID), 0, b"x").good();
}

#[test]
fn invalid_duplication_points_to_field() {
    let bench = bench();
    bench.create_partition(PID + 1);
    make(&bench, Command::CreateSnapshot(duplicate(SNAP, PID)));
    make(&bench, Command::CreateClone(duplicate(CLONE, PID)));
    let snapshot =
        |partition, source, method| Command::CreateSnapshot(Duplicate { partition, source, method });
    let cases = [
        (snapshot(SNAP + 1, 0x99999, 0), 24),
        (snapshot(SNAP + 1, 0, 0), 24),
        (snapshot(SNAP + 1, SNAP, 0), 24),
        (snapshot(SNAP, PID, 0), 16),
        (snapshot(PID + 1, PID, 0), 16),
        (snapshot(5, PID, 0), 16),
        (snapshot(SNAP + 1, PID, 0x41), 14),
        (snapshot(SNAP + 1, PID, 0x81), 14),
        (Command::CreateClone(Duplicate { partition: SNAP + 1, source: PID, method: 2 }), 14),
        (Command::DetachClone(duplicate(SNAP, 0)), 16),
        (Command::DetachClone(duplicate(PID, 0)), 16),
        (Command::DetachClone(duplicate(CLONE, PID + 1)), 24),
        (Command::RefreshSnapshotOrClone(duplicate(PID, 0)), 16),
        (Command::RefreshSnapshotOrClone(duplicate(SNAP, CLONE)), 24),
        (Command::RefreshSnapshotOrClone(Duplicate { partition: SNAP, source: PID, method: 0x81 }), 14),
        (Command::RestorePartition(duplicate(PID, CLONE)), 24),
        (Command::RestorePartition(duplicate(PID, 0)), 24),
        (Command::RestorePartition(duplicate(PID + 1, SNAP)), 24),
    ];
    let before = bench.state_hash();
    for (command, byte) in cases {
        refused(&run(&bench, command), ILLEGAL, 0x2400, Some(byte));
    }
    assert_eq!(bench.state_hash(), before);
    for method in [1, 0xFD, 0xFF] {
        let partition = SNAP + 0x100 + u64::from(method);
        make(&bench, snapshot(partition, PID, method));
        assert_eq!(get(&bench, ObjectId::of_partition(partition), DUPLICATES, 4), [1]);
    }
}

#[test]
fn device_chooses_id_if_requested() {
    let bench = bench();
    let command = Command::CreateClone(duplicate(0, PID));
    let answer = bench.run(command, ListPair::get(&[(0xFFFF_FFFE, 3), (DUPLICATES, 2)]), &[]).good();
    let values = crate::support::values(&answer.attributes);
    assert_eq!(values[0].1, (PID + 1).to_be_bytes());
    assert_eq!(values[1].1, PID.to_be_bytes());
}

#[test]
fn snapshot_includes_collections_and_members() {
    let bench = bench();
    let collection = id(PID, 0x11000);
    bench.store.create(collection, ObjectType::Collection).unwrap();
    bench.store.join(collection, OID, 1).unwrap();
    bench.store.join(collection, OID + 2, 7).unwrap();
    make(&bench, Command::CreateSnapshot(duplicate(SNAP, PID)));
    bench.store.leave(collection, OID).unwrap();
    bench.store.create(id(PID, 0x11001), ObjectType::Collection).unwrap();
    assert_eq!(bench.store.members(id(SNAP, 0x11000), 0, 9).unwrap(), [(OID, 1), (OID + 2, 7)]);
    run(&bench, Command::RestorePartition(duplicate(PID, SNAP))).good();
    assert_eq!(bench.store.members(collection, 0, 9).unwrap(), [(OID, 1), (OID + 2, 7)]);
    assert!(bench.store.stat(id(PID, 0x11001)).is_err());
}

#[test]
fn restore_keeps_collection_tags_and_restores_memberships() {
    let bench = bench();
    let (tag, born) = (AttributeId::new(0x6000_0005, 0x4000_0001), AttributeId::new(0x6000_0003, 1));
    let membership = AttributeId::new(4, 1);
    let [kept, removed] = [id(PID, 0x11000), id(PID, 0x11001)];
    for collection in [kept, removed] {
        bench.store.create(collection, ObjectType::Collection).unwrap();
        bench.store.set_attribute(collection, tag, &[0, 0, 0, 1]).unwrap();
        bench.store.set_attribute(collection, born, &[0, 0, 0, 0, 0, 9]).unwrap();
    }
    bench.store.join(kept, OID, 1).unwrap();
    bench.store.set_attribute(id(PID, OID), membership, &kept.object.to_be_bytes()).unwrap();
    make(&bench, Command::CreateSnapshot(duplicate(SNAP, PID)));
    let named = |partition| bench.store.attribute(id(partition, OID), membership).unwrap();
    assert_eq!(named(SNAP), Some(kept.object.to_be_bytes().to_vec()));
    bench.store.leave(kept, OID).unwrap();
    bench.store.set_attribute(id(PID, OID), membership, &[]).unwrap();
    bench.store.set_attribute(kept, tag, &[0, 0, 0, 2]).unwrap();
    bench.store.remove(removed).unwrap();
    run(&bench, Command::RestorePartition(duplicate(PID, SNAP))).good();
    let value = |collection, attribute| bench.store.attribute(collection, attribute).unwrap();
    assert_eq!(value(kept, tag), Some(vec![0, 0, 0, 2]), "what was revoked stays revoked");
    assert_eq!(value(kept, born), Some(vec![0, 0, 0, 0, 0, 9]));
    assert_eq!(value(removed, tag), None);
    assert_ne!(value(removed, born), Some(vec![0, 0, 0, 0, 0, 9]));
    assert_eq!(bench.store.members(kept, 0, 9).unwrap(), [(OID, 1)]);
    assert_eq!(named(PID), Some(kept.object.to_be_bytes().to_vec()));
}

#[test]
fn restore_replaces_collection_by_user_object() {
    let bench = bench();
    make(&bench, Command::CreateSnapshot(duplicate(SNAP, PID)));
    run(&bench, Command::Remove(Target { object: id(PID, OID + 1) })).good();
    bench.store.create(id(PID, OID + 1), ObjectType::Collection).unwrap();
    run(&bench, Command::RestorePartition(duplicate(PID, SNAP))).good();
    assert_eq!(read(&bench, id(PID, OID + 1), 5).good().data, [2; 5]);
}

/// Creates a device on a simulated disk.
fn on_disk(seed: u64) -> SimMedium {
    let medium = SimMedium::new(seed);
    format(&medium, &FormatOptions { segment: Some(4 << 20), ..FormatOptions::new(16 << 20, [7; 16]) })
        .unwrap();
    medium
}

fn start(medium: &SimMedium, epoch: u16) -> Bench {
    let store = DiskStore::open(Arc::new(medium.clone()), StoreOptions::default()).unwrap();
    Bench::start(OsdConfig::default(), Arc::new(store), epoch, 0)
}

/// Returns the objects of a partition by id; `None` if there is no such partition.
fn contents(bench: &Bench, partition: u64) -> Option<Vec<(u64, Vec<u8>, Vec<u8>)>> {
    bench.store.stat(ObjectId::of_partition(partition)).ok()?;
    let objects = bench.store.list(id(partition, 1), 1000).unwrap();
    let inside = objects.into_iter().filter(|(id, _)| id.partition == partition);
    Some(
        inside
            .map(|(id, _)| {
                let mut bytes = vec![0; bench.store.stat(id).unwrap().length as usize];
                bench.store.read(id, 0, &mut bytes).unwrap();
                let name = bench.store.attribute(id, AttributeId::new(1, 9)).unwrap().unwrap_or_default();
                (id.object, bytes, name)
            })
            .collect(),
    )
}

/// The power fails at each write and sync of CREATE SNAPSHOT: after the next start the snapshot is
/// complete or does not exist.
#[test]
fn no_half_snapshot_survives_a_crash() {
    let medium = on_disk(1);
    let bench = start(&medium, 1);
    bench.create_partition(PID);
    for object in 0..5 {
        create(&bench, id(PID, OID + object)).good();
        write(&bench, id(PID, OID + object), 0, &[object as u8 + 1; 9000]).good();
    }
    run(
        &bench,
        Command::FlushOsd(FlushContainer { object: ObjectId::ROOT, scope: ContainerScope::Everything }),
    )
    .good();
    let whole = contents(&bench, PID);
    drop(bench);
    let (mut whole_ones, mut none) = (0, 0);
    let mut point = 1;
    loop {
        let medium = medium.fork();
        let bench = start(&medium, 2);
        bench.keys.lock().add_partition(PID).unwrap();
        let calls = medium.calls();
        medium.fault(DiskFault::Power(calls.writes + calls.syncs + point));
        // Each operation is its own group: many states that a crash could leave.
        let answer = {
            let store = &bench.store;
            std::thread::scope(|scope| {
                let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
                let seen = Arc::clone(&stop);
                scope.spawn(move || {
                    while !seen.load(std::sync::atomic::Ordering::Relaxed) {
                        let _ = store.flush();
                    }
                });
                let answer = run(&bench, Command::CreateSnapshot(duplicate(SNAP, PID)));
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
                answer
            })
        };
        let dead = medium.is_dead();
        drop(bench);
        let after = start(&medium.crash(), 3);
        assert_eq!(contents(&after, PID), whole, "point {point}");
        match contents(&after, SNAP) {
            Some(found) => {
                assert_eq!(Some(found), whole, "point {point}");
                whole_ones += 1;
            }
            None => {
                assert_ne!(answer.status, Status::Good, "point {point}: an acknowledged snapshot is there");
                none += 1;
            }
        }
        if !dead {
            break;
        }
        point += 1;
    }
    assert!(whole_ones >= 1 && none > 3, "{whole_ones} whole, {none} none");
}

/// The same for RESTORE: after the next start the partition has the old contents or those of the
/// snapshot.
#[test]
fn no_half_restore_survives_a_crash() {
    let medium = on_disk(2);
    let bench = start(&medium, 1);
    bench.create_partition(PID);
    for object in 0..4 {
        create(&bench, id(PID, OID + object)).good();
        write(&bench, id(PID, OID + object), 0, &[object as u8 + 1; 9000]).good();
    }
    make(&bench, Command::CreateSnapshot(duplicate(SNAP, PID)));
    let old = contents(&bench, PID);
    for object in 0..4 {
        write(&bench, id(PID, OID + object), 0, b"changed").good();
    }
    run(&bench, Command::Remove(Target { object: id(PID, OID + 1) })).good();
    create(&bench, id(PID, OID + 7)).good();
    run(
        &bench,
        Command::FlushOsd(FlushContainer { object: ObjectId::ROOT, scope: ContainerScope::Everything }),
    )
    .good();
    let new = contents(&bench, PID);
    drop(bench);
    let (mut restored, mut kept) = (0, 0);
    let mut point = 1;
    loop {
        let medium = medium.fork();
        let bench = start(&medium, 2);
        for partition in [PID, SNAP] {
            bench.keys.lock().add_partition(partition).unwrap();
        }
        let calls = medium.calls();
        medium.fault(DiskFault::Power(calls.writes + calls.syncs + point));
        let answer = run(&bench, Command::RestorePartition(duplicate(PID, SNAP)));
        let dead = medium.is_dead();
        drop(bench);
        let after = start(&medium.crash(), 3);
        assert_eq!(contents(&after, SNAP), old, "point {point}");
        let found = contents(&after, PID);
        if found == old {
            restored += 1;
        } else {
            assert_eq!(found, new, "point {point}");
            assert_ne!(answer.status, Status::Good, "point {point}");
            kept += 1;
        }
        if !dead {
            break;
        }
        point += 1;
    }
    assert!(restored >= 1 && kept > 3, "{restored} restored, {kept} kept");
}

#[test]
fn duplicating_many_objects_copies_no_data() {
    let bench = Bench::with(OsdConfig::default(), Arc::new(MemoryStore::new(64 << 20)));
    bench.create_partition(PID);
    let create = Command::Create(Create { object: id(PID, 0), count: 5000 });
    run(&bench, create).good();
    let used = bench.store.space().used;
    make(&bench, Command::CreateSnapshot(duplicate(SNAP, PID)));
    assert_eq!(bench.store.space().used, used);
    assert_eq!(get(&bench, ObjectId::of_partition(SNAP), 0x3000_0001, 0xC1), 5000u64.to_be_bytes());
}
