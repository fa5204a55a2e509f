//! FUA: acknowledged commands survive a power failure without a flush, and an interrupted command
//! is atomic (R+1/120h to 123h).

use std::sync::Arc;

use crate::support::{Bench, ListPair, PID, user, value};
use sealstone_osd::cdb::*;
use sealstone_osd::{AttributeId, Command, ObjectId};
use sealstone_osd_device::OsdConfig;
use sealstone_scsi::Status;
use sealstone_store::sim::{DiskFault, SimMedium};
use sealstone_store::{DiskStore, FormatOptions, ObjectStore, StoreOptions, format};

const OID: u64 = 0x10000;
const GONE: u64 = 0x10001;
const NEW: u64 = 0x10002;

fn open(medium: &SimMedium) -> Arc<dyn ObjectStore> {
    Arc::new(DiskStore::open(Arc::new(medium.clone()), StoreOptions::default()).unwrap())
}

fn start(medium: &SimMedium) -> Bench {
    let bench = Bench::with(OsdConfig::default(), open(medium));
    if !bench.keys.lock().partitions().any(|id| id == PID) {
        let _ = bench.keys.lock().add_partition(PID);
    }
    bench
}

/// Creates a device with two objects, all of it durable.
fn prepared(seed: u64) -> SimMedium {
    let medium = SimMedium::new(seed);
    format(&medium, &FormatOptions::new(64 << 20, [7; 16])).unwrap();
    let bench = Bench::with(OsdConfig::default(), open(&medium));
    bench.create_partition(PID);
    for object in [OID, GONE] {
        bench
            .run(Command::Create(Create { object: user(object), count: 1 }), ListPair::default(), &[])
            .good();
        let write = Command::Write(Extent { object: user(object), start: 0, length: 10 });
        bench.run(write, ListPair::default(), b"0123456789").good();
    }
    bench.unit.shut_down().unwrap();
    medium
}

/// Returns every command that changes a partition, with an attribute set where an object remains.
fn changes() -> Vec<(Command, &'static [u8], bool)> {
    let object = user(OID);
    let extent = |start, length| Extent { object, start, length };
    vec![
        (Command::Write(extent(5, 10)), b"durable!!!", true),
        (Command::Append(Append { object, length: 4 }), b"tail", true),
        (Command::Clear(extent(2, 3)), b"", true),
        (Command::Punch(extent(2, 3)), b"", true),
        (Command::SetAttributes(Target { object }), b"", true),
        (Command::Create(Create { object: user(NEW), count: 1 }), b"", true),
        (Command::CreateAndWrite(Extent { object: user(NEW), start: 0, length: 3 }), b"new", true),
        (Command::Remove(Target { object: user(GONE) }), b"", false),
        (Command::CreateCollection(Target { object: user(NEW) }), b"", false),
    ]
}

fn lists(with_attribute: bool, fua: bool) -> ListPair {
    let lists = if with_attribute { ListPair::set(&[(0x1_0000, 1, b"kept")]) } else { ListPair::default() };
    ListPair { fua, ..lists }
}

#[test]
fn fua_write_survives_power_loss_without_flush() {
    let mut unsynced = 0;
    for (command, data, with_attribute) in changes() {
        for fua in [true, false] {
            let medium = prepared(3);
            let bench = start(&medium);
            let before = bench.state_hash();
            let syncs = medium.calls().syncs;
            bench.run(command, lists(with_attribute, fua), data).good();
            unsynced += u32::from(medium.calls().syncs == syncs);
            let after = bench.state_hash();
            assert_ne!(before, after, "{command:?}");
            let survivor = medium.crash();
            drop(bench);
            let survived = start(&survivor).state_hash();
            assert!(!fua || survived == after, "{command:?}");
        }
    }
    // The write log may keep a change without FUA, so only the number of syncs shows the
    // difference.
    assert!(unsynced > 0, "without FUA some commands sync nothing, or this shows nothing");
}

#[test]
fn fua_read_makes_data_durable() {
    let medium = prepared(4);
    let bench = start(&medium);
    let write = Command::Write(Extent { object: user(OID), start: 0, length: 4 });
    bench.run(write, ListPair::default(), b"seen").good();
    let read = Command::Read(Extent { object: user(OID), start: 0, length: 4 });
    let seen = bench.run(read, ListPair { fua: true, ..ListPair::default() }, &[]).good().data;
    let survivor = medium.crash();
    drop(bench);
    assert_eq!(start(&survivor).run(read, ListPair::default(), &[]).good().data, seen);
}

/// Data and attributes of one command are stored together, whenever the power fails. Acknowledged
/// ones are stored.
#[test]
fn interrupted_command_is_atomic() {
    let (old, new) = (vec![0x11; 300_000], vec![0x22; 300_000]);
    let extent = Extent { object: user(OID), start: 0, length: 300_000 };
    let version = AttributeId::new(0x1_0000, 1);
    let prepared = {
        let medium = prepared(5);
        let bench = start(&medium);
        let set = |value: &[u8]| ListPair::set(&[(version.page, version.number, value)]);
        bench.run(Command::Write(extent), set(b"old"), &old).good();
        bench.unit.shut_down().unwrap();
        medium
    };
    let mut cut = 0;
    for seed in 0..3 {
        for step in 1..80 {
            let medium = prepared.fork();
            let bench = start(&medium);
            let calls = medium.calls();
            medium.fault(DiskFault::Power(calls.writes + calls.syncs + step));
            let lists = ListPair { fua: true, ..ListPair::set(&[(version.page, version.number, b"new")]) };
            let command = Command::Write(extent);
            let capability = bench.capability(&command, sealstone_osd::SecurityMethod::CmdRsp);
            let ready = bench.ready(command, &lists, &new, &capability);
            let acknowledged = bench.send(&ready).status == Status::Good;
            let survivor = medium.crash();
            drop(bench);
            let again = start(&survivor);
            let read = Command::Read(extent);
            let data = again.run(read, ListPair::default(), &[]).good().data;
            let stored = again.store.attribute(user(OID), version).unwrap().unwrap();
            let whole = if data == new { b"new" } else { b"old" };
            assert!(data == new || data == old, "seed {seed} step {step}: torn data");
            assert_eq!(stored, whole, "seed {seed} step {step}: data and attribute of different commands");
            assert!(!acknowledged || data == new, "seed {seed} step {step}: acknowledged and lost");
            cut += u32::from(!acknowledged);
            if acknowledged {
                break;
            }
        }
    }
    assert!(cut > 0);
}

/// Attributes of the root: bytes of data, their alignment, bytes of attributes, both together.
#[test]
fn reported_atomicity_covers_one_command() {
    let medium = prepared(6);
    let bench = start(&medium);
    let tell = |number| {
        let get = Command::GetAttributes(Target { object: ObjectId::ROOT });
        value(&bench.run(get, ListPair::get(&[(0x9000_0001, number)]), &[]).good().attributes)
    };
    assert_eq!(tell(0x120), (16_u64 << 20).to_be_bytes());
    assert_eq!(tell(0x121), 1_u64.to_be_bytes());
    assert_eq!(tell(0x122), (1_u64 << 20).to_be_bytes());
    assert_eq!(tell(0x123), [1]);
}
