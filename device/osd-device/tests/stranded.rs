//! Failures and loss of authority in the middle of a duplication leave neither partial results nor
//! lost data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::faulty::Faulty;
use crate::support::{Answer, Bench, ListPair, PID, value};
use sealstone_osd::capability::Scope;
use sealstone_osd::cdb::*;
use sealstone_osd::{Command, Descriptor, ObjectId, SecurityMethod};
use sealstone_osd_device::OsdConfig;
use sealstone_scsi::Status;
use sealstone_store::ObjectStore;

const SNAP: u64 = 0x20000;
const OID: u64 = 0x10000;
const OBJECTS: u64 = 6;

fn duplicate(partition: u64, source: u64) -> Duplicate {
    Duplicate { partition, source, method: 0 }
}

fn run(bench: &Bench, command: Command) -> Answer {
    bench.run(command, ListPair::default(), &[])
}

fn id(object: u64) -> ObjectId {
    ObjectId::new(PID, object)
}

fn read(bench: &Bench, object: u64) -> Answer {
    run(bench, Command::Read(Extent { object: id(object), start: 0, length: 3 }))
}

/// Creates a partition with objects, a snapshot of it, and later changes: two objects are removed
/// and one is new.
fn bench() -> (Bench, Arc<Faulty>) {
    let store = Arc::new(Faulty::new());
    let bench = Bench::with(OsdConfig::default(), Arc::clone(&store) as Arc<dyn ObjectStore>);
    bench.create_partition(PID);
    for object in OID..OID + OBJECTS {
        run(&bench, Command::Create(Create { object: id(object), count: 1 })).good();
        let write = Command::Write(Extent { object: id(object), start: 0, length: 3 });
        bench.run(write, ListPair::set(&[(0x1_0000, 1, b"was")]), b"old").good();
    }
    run(&bench, Command::CreateSnapshot(duplicate(SNAP, PID))).good();
    bench.keys.lock().add_partition(SNAP).unwrap();
    for object in OID..OID + OBJECTS {
        let write = Command::Write(Extent { object: id(object), start: 0, length: 3 });
        bench.run(write, ListPair::set(&[(0x1_0000, 1, b"is")]), b"new").good();
    }
    for object in [OID + 1, OID + 4] {
        run(&bench, Command::Remove(Target { object: id(object) })).good();
    }
    run(&bench, Command::Create(Create { object: id(OID + 9), count: 1 })).good();
    (bench, store)
}

fn is_restored(bench: &Bench) {
    for object in OID..OID + OBJECTS {
        assert_eq!(read(bench, object).good().data, b"old", "{object:x}");
        let get = Command::GetAttributes(Target { object: id(object) });
        let get = bench.run(get, ListPair::get(&[(0x1_0000, 1)]), &[]).good();
        assert_eq!(value(&get.attributes), b"was");
    }
    assert_eq!(read(bench, OID + 9).sense(), (5, 0x2400));
    let count = Command::GetAttributes(Target { object: ObjectId::of_partition(PID) });
    let count = bench.run(count, ListPair::get(&[(0x3000_0001, 0xC1)]), &[]).good();
    assert_eq!(value(&count.attributes), OBJECTS.to_be_bytes());
}

#[test]
fn failed_restore_is_busy_until_completed() {
    let mut midway = 0;
    for nth in 1..200 {
        let (bench, store) = bench();
        store.fail(nth, u64::MAX);
        let answer = run(&bench, Command::RestorePartition(duplicate(PID, SNAP)));
        if answer.status == Status::Good {
            is_restored(&bench);
            assert!(midway > 10, "{midway}");
            return;
        }
        assert_eq!(answer.sense(), (7, 0x5507), "{nth}");
        if bench.unit.work_counts().stranded == 0 {
            // Before anything was replaced: nothing has changed.
            store.heal();
            assert_eq!(read(&bench, OID).good().data, b"new");
            run(&bench, Command::RestorePartition(duplicate(PID, SNAP))).good();
            is_restored(&bench);
            continue;
        }
        midway += 1;
        // The partial state is hidden, also from a repetition of the command.
        assert_eq!(read(&bench, OID).status, Status::Busy, "{nth}");
        assert_eq!(run(&bench, Command::RestorePartition(duplicate(PID, SNAP))).status, Status::Busy);
        // The snapshot that it needs cannot be removed.
        let remove = RemovePartition { partition: SNAP, with_contents: true };
        assert_eq!(run(&bench, Command::RemovePartition(remove)).sense(), (5, 0x2C00), "{nth}");
        assert!(bench.unit.work(), "the first attempt is due at once");
        assert!(!bench.unit.work(), "the next one after a pause");
        assert_eq!(read(&bench, OID).status, Status::Busy, "there is no free space yet");
        store.heal();
        bench.fake.ms.fetch_add(1000, Ordering::SeqCst);
        assert!(bench.unit.work());
        assert_eq!(bench.unit.work_counts().stranded, 0, "{nth}");
        is_restored(&bench);
        run(&bench, Command::RemovePartition(remove)).good();
        is_restored(&bench);
    }
    panic!("it was never completed");
}

#[test]
fn failed_restore_recreates_object_as_new() {
    let tag = (5_u32, 0x4000_0001_u32);
    let mut seen = 0;
    for nth in 1..60 {
        let (bench, store) = bench();
        // New user objects get tag 9.
        let set = Command::SetAttributes(Target { object: ObjectId::of_partition(PID) });
        bench.run(set, ListPair::set(&[(0x3000_0005, 0x4000_0002, &[0, 0, 0, 9])]), &[]).good();
        store.fail(nth, 0);
        let _ = run(&bench, Command::RestorePartition(duplicate(PID, SNAP)));
        if bench.unit.work_counts().stranded > 0 {
            seen += 1;
            assert!(bench.unit.work());
        }
        if bench.store.stat(id(OID + 1)).is_ok() {
            let get = Command::GetAttributes(Target { object: id(OID + 1) });
            let born = |object| {
                let born = bench.store.attribute(object, sealstone_osd::AttributeId::new(3, 1)).unwrap();
                born.expect("a created time")
            };
            let received = bench.run(get, ListPair::get(&[tag]), &[]).good();
            assert_eq!(value(&received.attributes), [0, 0, 0, 9], "{nth}");
            assert!(born(id(OID + 1)) >= born(id(OID)), "{nth}");
        }
    }
    assert!(seen > 10, "{seen}");
}

#[test]
fn failed_snapshot_leaves_nothing() {
    const NEW: u64 = 0x30000;
    for nth in 1..200 {
        let (bench, store) = bench();
        let before = bench.state_hash();
        // So much fails that it cannot be undone at first either.
        store.fail(nth, 3);
        let answer = run(&bench, Command::CreateSnapshot(duplicate(NEW, PID)));
        if answer.status == Status::Good {
            return;
        }
        store.heal();
        bench.fake.ms.fetch_add(100_000, Ordering::SeqCst);
        while bench.unit.work() {}
        assert_eq!(bench.unit.work_counts().stranded, 0, "{nth}");
        assert_eq!(bench.state_hash(), before, "{nth}");
        run(&bench, Command::CreateSnapshot(duplicate(NEW, PID))).good();
    }
    panic!("it was never completed");
}

/// SET KEY in the middle of a long command ends the command's authority.
fn revoked(command: Command, at: u64) -> (Bench, Answer) {
    let (bench, store) = bench();
    for extra in 0..200 {
        run(&bench, Command::Create(Create { object: id(OID + 100 + extra), count: 1 })).good();
    }
    // Paused at the step: the command does not continue until SET KEY is in progress, which waits
    // for the step.
    let zero = !matches!(command, Command::ObjectStructureCheck(_));
    let partition = if zero { 0 } else { PID };
    let set = SetKey { partition, key: KeyToSet::Working(0), identifier: [4; 7], seed: [4; 20] };
    let begun = Arc::new(AtomicBool::new(false));
    let answer = std::thread::scope(|scope| {
        let (bench, reported) = (&bench, Arc::clone(&begun));
        store.after(move |number| {
            if number == at {
                reported.store(true, Ordering::SeqCst);
                // Time for SET KEY to change the keys.
                std::thread::sleep(std::time::Duration::from_millis(300));
            }
        });
        let setting = scope.spawn(move || {
            while !begun.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            run(bench, Command::SetKey(set)).good();
        });
        let answer = run(bench, command);
        setting.join().unwrap();
        answer
    });
    (bench, answer)
}

#[test]
fn key_change_aborts_running_snapshot() {
    const NEW: u64 = 0x30000;
    let (bench, answer) = revoked(Command::CreateSnapshot(duplicate(NEW, PID)), 40);
    assert_eq!(answer.status, Status::Busy, "a retry is refused permanently");
    assert!(bench.store.stat(ObjectId::of_partition(NEW)).is_err(), "and it does not exist");
    assert!(bench.store.list(ObjectId::new(NEW, 1), 1).unwrap().iter().all(|(id, _)| id.partition != NEW));
    let again = run(&bench, Command::CreateSnapshot(duplicate(NEW, PID)));
    assert_eq!(again.sense(), (5, 0x2400));
}

/// After its point of no return the device completes a restore by itself.
#[test]
fn restore_completes_after_key_change() {
    let (bench, store) = bench();
    let restore = Command::RestorePartition(duplicate(PID, SNAP));
    let mut capability = bench.capability(&restore, SecurityMethod::AllData);
    capability.descriptor =
        Descriptor::Partition { scope: Scope { policy_access_tag: 5, ..Scope::default() }, partition: PID };
    let set = |tag: u8| {
        let set = Command::SetAttributes(Target { object: ObjectId::of_partition(PID) });
        bench.run(set, ListPair::set(&[(0x3000_0005, 0x4000_0001, &[0, 0, 0, tag])]), &[]).good();
    };
    set(6);
    assert_eq!(bench.run_with(restore, ListPair::default(), &[], &capability).sense(), (5, 0x2400));
    assert_eq!(read(&bench, OID).good().data, b"new");
    set(5);
    bench.run_with(restore, ListPair::default(), &[], &capability).good();
    is_restored(&bench);
    drop(store);
}
