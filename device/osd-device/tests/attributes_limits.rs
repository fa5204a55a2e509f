//! Cost limits of attributes: repeated lists, large wildcards, many objects at once; and the actual
//! cost.

use std::time::{Duration, Instant};

use crate::plain::{Plain, create, get_attributes, triple, values};
use crate::support::{NEXUS, PID, user};
use sealstone_osd::attribute::list::ObjectValues;
use sealstone_osd::cdb::{AttributeParameters, CreatePartition, RemovePartition, Target};
use sealstone_osd::{AttributeId, Command, Generation, ObjectId};
use sealstone_scsi::lu::{Cost, LogicalUnit as _};

const OID: u64 = 0x10000;
const APP: u32 = 0x1_0000;
const ALL: u32 = AttributeId::ALL;

/// Creates an object with the maximum number of attributes, and nearly the maximum of bytes.
fn laden() -> Plain {
    let plain = Plain::with_object(Generation::Osd2);
    for page in 0..60u32 {
        plain.set(user(OID), APP + page, 1, &vec![7; 0xFFF0]);
    }
    plain
}

/// No list makes a command process more than a few times what an object can hold.
#[test]
fn no_list_costs_more_than_its_share() {
    let plain = laden();
    let list = |id: AttributeId, count: usize| {
        let (cdb, out) = plain.with_lists(get_attributes(user(OID)), &[], &[], &vec![id; count]);
        let begin = Instant::now();
        let reply = plain.send(&cdb, &out);
        let time = begin.elapsed();
        assert!(time < Duration::from_secs(20), "{id:?}: {time:?}");
        (!reply.sense.is_empty()).then(|| triple(&crate::plain::sense(&reply)))
    };
    let refused = Some((5, 0x5500));
    assert_eq!(list(AttributeId::new(ALL, ALL), 1), None, "everything, requested once");
    assert_eq!(list(AttributeId::new(ALL, ALL), 8191), refused);
    assert_eq!(list(AttributeId::new(ALL, 0x1234), 8191), refused);
    assert_eq!(list(AttributeId::new(APP, ALL), 8191), refused);
    assert_eq!(list(AttributeId::new(APP, 1), 8191), refused);
    assert_eq!(list(AttributeId::new(0, ALL), 8191), refused);
    assert_eq!(list(AttributeId::new(0, APP), 8191), refused);
    assert_eq!(list(AttributeId::new(0, APP), 30), None);
    assert_eq!(list(AttributeId::new(1, 1), 8191), None, "short values may be requested often");
}

#[test]
fn create_reports_full_length_for_many_objects() {
    let plain = Plain::with_object(Generation::Osd2);
    let names = [AttributeId::new(1, 2), AttributeId::new(APP, 1), AttributeId::new(3, ALL)];
    let set = [(AttributeId::new(APP, 1), b"given".to_vec())];
    let run = |allocation: u32| {
        let (mut cdb, out) = plain.with_lists(create(0, 50), &[], &set, &names);
        let AttributeParameters::List { get: Some(get), .. } = &mut cdb.attributes else { unreachable!() };
        get.retrieved.length = allocation;
        let reply = plain.good(&cdb, &out);
        plain.attributes(&cdb, &reply).to_vec()
    };
    let whole = run(1 << 20);
    let objects: Vec<_> = ObjectValues::parse(&whole).unwrap().collect();
    assert_eq!(objects.len(), 50);
    assert!(objects.iter().all(|one| one.values.iter().count() == 1 + 1 + 6));
    for allocation in [8, 100, 5000] {
        let cut = run(allocation);
        assert_eq!(cut.len(), allocation as usize);
        assert_eq!(cut[..8], whole[..8], "the full length, though most were not read");
    }
}

#[test]
fn create_limits_objects_times_attributes() {
    let plain = Plain::with_object(Generation::Osd2);
    let set: Vec<_> = (0..8).map(|number| (AttributeId::new(APP, number + 1), vec![1; 4])).collect();
    let (cdb, out) = plain.with_lists(create(0, 0xFFFF), &[], &set, &[]);
    let before = plain.bench.state_hash();
    assert_eq!(triple(&plain.sense(&cdb, &out)), (5, 0x5500));
    let set = [(AttributeId::new(APP, 1), vec![1; 0x8000])];
    let (cdb, out) = plain.with_lists(create(0, 0xFFFF), &[], &set, &[]);
    assert_eq!(triple(&plain.sense(&cdb, &out)), (5, 0x5500));
    assert_eq!(plain.bench.state_hash(), before);
}

#[test]
fn long_work_reports_long_cost() {
    let plain = Plain::with_object(Generation::Osd2);
    let cost = |count: usize| {
        let (cdb, _) =
            plain.with_lists(get_attributes(user(OID)), &[], &[], &vec![AttributeId::new(1, 1); count]);
        plain.bench.unit.cost(NEXUS, &cdb.encode().unwrap())
    };
    assert_eq!((cost(11), cost(1000)), (Cost::Inline, Cost::Blocking));
    for generation in [Generation::Osd1, Generation::Osd2] {
        let plain = Plain::new(generation);
        let cost = |count| plain.bench.unit.cost(NEXUS, &plain.cdb(create(0, count)).encode().unwrap());
        assert_eq!((cost(1), cost(0xFFFF)), (Cost::Inline, Cost::Blocking));
    }
}

#[test]
fn removal_reports_freed_capacity() {
    let plain = Plain::with_object(Generation::Osd2);
    let change = AttributeId::new(0xFFFF_FFFE, 6);
    let of = |command: Command, data: &[u8]| {
        let (cdb, out) = plain.with_lists(command, data, &[], &[change]);
        let reply = plain.good(&cdb, &out);
        let value = values(Generation::Osd2, plain.attributes(&cdb, &reply)).remove(0).1;
        i64::from_be_bytes(value.try_into().unwrap())
    };
    let extent = sealstone_osd::cdb::Extent { object: user(OID), start: 0, length: 5000 };
    assert_eq!(of(Command::Write(extent), &[1; 5000]), 8192);
    assert_eq!(of(Command::Write(extent), &[1; 5000]), 0);
    assert_eq!(of(Command::Remove(Target { object: user(OID) }), &[]), -8192);
    assert_eq!(of(Command::CreatePartition(CreatePartition { partition: PID + 1 }), &[]), 0);
    let other = sealstone_osd::cdb::Extent { object: ObjectId::new(PID + 1, OID), start: 0, length: 1 };
    assert_eq!(of(Command::CreateAndWrite(other), &[1]), 4096);
    assert_eq!(
        of(Command::RemovePartition(RemovePartition { partition: PID + 1, with_contents: true }), &[]),
        -4096
    );
}
