//! Attributes through the logical unit: formats, order, access, lengths, wildcards, timestamps,
//! quotas.

use crate::support::{Answer, Bench, ListPair, PID, START_MS, user, value, values};
use sealstone_osd::cdb::*;
use sealstone_osd::{AttributeId, Command, ObjectId, Permissions, SecurityMethod};
use sealstone_scsi::Functions;

const OID: u64 = 0x10000;
const APP: u32 = 0x1_0003;

fn bench() -> Bench {
    let bench = Bench::with_partition();
    bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
    bench
}

fn set(bench: &Bench, object: ObjectId, page: u32, number: u32, bytes: &[u8]) -> Answer {
    bench.run(Command::SetAttributes(Target { object }), ListPair::set(&[(page, number, bytes)]), &[])
}

fn get(bench: &Bench, object: ObjectId, page: u32, number: u32) -> Vec<u8> {
    value(
        &bench
            .run(Command::GetAttributes(Target { object }), ListPair::get(&[(page, number)]), &[])
            .good()
            .attributes,
    )
}

fn write(bench: &Bench, start: u64, data: &[u8]) -> Answer {
    let extent = Extent { object: user(OID), start, length: data.len() as u64 };
    bench.run(Command::Write(extent), ListPair::default(), data)
}

#[test]
fn set_attribute_reads_back_and_empty_removes() {
    let bench = bench();
    for object in [user(OID), ObjectId::of_partition(PID), ObjectId::ROOT] {
        set(&bench, object, 0xF000_0003, 1, b"sixteen bytes 16").good();
        assert_eq!(get(&bench, object, 0xF000_0003, 1), b"sixteen bytes 16");
        set(&bench, object, 0xF000_0003, 1, b"").good();
        assert_eq!(get(&bench, object, 0xF000_0003, 1), b"");
    }
    let long = vec![7; 0xFFFE];
    set(&bench, user(OID), APP, 2, &long).good();
    let lists = ListPair { allocation: 70_000, ..ListPair::get(&[(APP, 2)]) };
    let answer = bench.run(Command::GetAttributes(Target { object: user(OID) }), lists, &[]).good();
    assert_eq!(value(&answer.attributes), long);
}

#[test]
fn set_precedes_get_except_in_get_attributes() {
    let bench = bench();
    let both = |bytes: &[u8]| ListPair {
        get: vec![AttributeId::new(APP, 1)],
        allocation: 64,
        ..ListPair::set(&[(APP, 1, bytes)])
    };
    let target = Target { object: user(OID) };
    let answer = bench.run(Command::SetAttributes(target), both(b"new"), &[]).good();
    assert_eq!(value(&answer.attributes), b"new");
    let answer = bench.run(Command::GetAttributes(target), both(b"newer"), &[]).good();
    assert_eq!(value(&answer.attributes), b"new");
    let read = Extent { object: user(OID), start: 0, length: 0 };
    let answer = bench.run(Command::Read(read), both(b"newest"), &[]).good();
    assert_eq!(value(&answer.attributes), b"newest");
}

#[test]
fn one_attribute_is_set_by_the_cdb_alone() {
    let bench = bench();
    let command = Command::SetAttributes(Target { object: user(OID) });
    let capability = bench.capability(&command, SecurityMethod::NoSec);
    let _ = capability;
    let mut cdb = Cdb::new(sealstone_osd::Generation::Osd2, command);
    let mut bytes = [0; ONE_VALUE_MAX];
    bytes[..5].copy_from_slice(b"value");
    cdb.attributes = AttributeParameters::One { id: AttributeId::new(APP, 9), length: 5, value: bytes };
    let config = sealstone_osd_device::OsdConfig { insecure_nosec: true, ..Default::default() };
    let open = Bench::with(config, bench.store.clone());
    let mut capability = bench.capability(&command, SecurityMethod::NoSec);
    capability.permissions = Permissions::ALL_OSD1;
    cdb.capability = capability.encode();
    let reply = open.raw(crate::support::NEXUS, &cdb.encode().unwrap(), &[], 0);
    // The partition was created under CMDRSP and keeps its floor, whatever the configuration says
    // now.
    assert_eq!(reply.status.byte(), 2);
    cdb.command = Command::SetAttributes(Target { object: ObjectId::ROOT });
    cdb.attributes =
        AttributeParameters::One { id: AttributeId::new(0x9001_0000, 9), length: 5, value: bytes };
    let reply = open.raw(crate::support::NEXUS, &cdb.encode().unwrap(), &[], 0);
    assert_eq!(reply.status.byte(), 0, "{:?}", reply.sense);
    assert_eq!(get(&bench, ObjectId::ROOT, 0x9001_0000, 9), b"value");
}

#[test]
fn get_list_answers_in_order_with_empty_undefined() {
    let bench = bench();
    let ids = [4, 5, 6, 7, 8, 9, 0x80, 0x81, 0xC0, 0x100, 3, 0x7F].map(|number| (0x9000_0001, number));
    let command = Command::GetAttributes(Target { object: ObjectId::ROOT });
    let found = values(&bench.run(command, ListPair::get(&ids), &[]).good().attributes);
    assert_eq!(found.iter().map(|(id, _)| (id.page, id.number)).collect::<Vec<_>>(), ids);
    assert_eq!(found[10].1, crate::support::SYSTEM_ID);
    assert_eq!(found[9].1, START_MS.to_be_bytes()[2..]);
    assert_eq!(found[5].1, b"bench");
    assert!(found[11].1.is_empty());
}

#[test]
fn wildcards_return_defined_and_permitted_attributes() {
    let bench = bench();
    set(&bench, user(OID), APP, 1, b"a").good();
    set(&bench, user(OID), APP, 7, b"b").good();
    let command = Command::GetAttributes(Target { object: user(OID) });
    let page = values(&bench.run(command, ListPair::get(&[(APP, !0)]), &[]).good().attributes);
    assert_eq!(page.iter().map(|(id, _)| id.number).collect::<Vec<_>>(), [1, 7]);
    let all = values(&bench.run(command, ListPair::get(&[(!0, !0)]), &[]).good().attributes);
    let pages = |all: &[(AttributeId, Vec<u8>)]| {
        let mut pages: Vec<_> = all.iter().map(|(id, _)| id.page).collect();
        pages.dedup();
        pages
    };
    assert_eq!(pages(&all), [0, 1, 2, 3, 4, 5, 6, 0xF001, 0xF002, 0xF003, 0xF008, APP]);
    let mut capability = bench.capability(&command, SecurityMethod::AllData);
    capability.permissions = Permissions::GET_ATTR;
    let some = bench.run_with(command, ListPair::get(&[(!0, !0)]), &[], &capability).good();
    assert_eq!(pages(&values(&some.attributes)), [0, 1, 2, 3, 4, 6, 0xF002, 0xF003, 0xF008, APP]);
    let named = bench.run_with(command, ListPair::get(&[(5, 0x4000_0001)]), &[], &capability);
    let osd = named.sense.unwrap().osd.unwrap();
    assert!(!osd.completed.contains(Functions::GET_CAPABILITY));
    assert!(!osd.not_initiated.contains(Functions::GET_CAPABILITY));
    let identifications = values(&bench.run(command, ListPair::get(&[(!0, 0)]), &[]).good().attributes);
    assert_eq!(&identifications[1].1[..31], b"INCITS  T10 User Object Informa");
}

#[test]
fn directory_lists_existing_pages() {
    let bench = bench();
    set(&bench, user(OID), APP, 1, b"a").good();
    let mut name = [b' '; 40];
    name[8..12].copy_from_slice(b"mine");
    set(&bench, user(OID), APP + 1, 0, &name).good();
    let command = Command::GetAttributes(Target { object: user(OID) });
    let directory = values(&bench.run(command, ListPair::get(&[(0, !0)]), &[]).good().attributes);
    let entry = |page: u32| directory.iter().find(|(id, _)| id.number == page).unwrap().1.clone();
    assert_eq!(&entry(APP)[8..36], b"unidentified attributes page");
    assert_eq!(entry(APP + 1), name);
    assert_eq!(&entry(1)[..12], b"INCITS  T10 ");
    assert!(directory.iter().all(|(_, value)| value.len() == 40));
}

#[test]
fn unsettable_attribute_is_named_and_changes_nothing() {
    let bench = bench();
    let before = bench.state_hash();
    for (object, page, number, bytes) in [
        (user(OID), 1, 1, &[0; 8][..]),
        (user(OID), 3, 1, &[0; 6]),
        (user(OID), 1, 0x82, &[0; 7]),
        (user(OID), 0x3000_0001, 9, b"x"),
        (user(OID), 0x80, 1, b"x"),
        (ObjectId::ROOT, 0x9000_0001, 3, &[0; 20]),
        (ObjectId::of_partition(PID), 0x3000_0005, 1, &[9]),
    ] {
        let lists = ListPair::set(&[(0xF000_0001, 1, b"first"), (page, number, bytes)]);
        let answer = bench.run(Command::SetAttributes(Target { object }), lists, &[]);
        assert_eq!(answer.sense(), (5, 0x2600), "{page:#x}/{number:#x}");
        assert_eq!(answer.sense.unwrap().attributes, [(page, number)]);
        assert_eq!(bench.state_hash(), before);
    }
}

#[test]
fn write_with_unsettable_attribute_does_not_write() {
    let bench = bench();
    let before = bench.state_hash();
    let command = Command::Write(Extent { object: user(OID), start: 0, length: 4 });
    let answer = bench.run(command, ListPair::set(&[(1, 1, &[0; 8])]), b"data");
    let osd = answer.sense.unwrap().osd.unwrap();
    assert!(osd.not_initiated.contains(Functions::COMMAND));
    assert_eq!(bench.state_hash(), before);
}

#[test]
fn short_allocation_truncates_list_keeps_length() {
    let bench = bench();
    let ids = [(1, 1), (1, 2), (1, 0x82)];
    let command = Command::GetAttributes(Target { object: user(OID) });
    let whole = bench.run(command, ListPair::get(&ids), &[]).good().attributes;
    assert_eq!(whole.len(), 8 + 3 * 24);
    for allocation in [1, 7, 8, 20, 32, 79] {
        let lists = ListPair { allocation, ..ListPair::get(&ids) };
        let cut = bench.run(command, lists, &[]).good().attributes;
        assert_eq!(cut, whole[..allocation as usize]);
    }
    let page = bench.run(command, ListPair { allocation: 10, ..ListPair::page(3) }, &[]).good().attributes;
    assert_eq!(page, [0, 0, 0, 3, 0, 0, 0, 0x1E, 0x01, 0x9B]);
}

#[test]
fn pages_without_format_return_null_page() {
    let bench = bench();
    let page = |object, page: u32| {
        bench.run(Command::GetAttributes(Target { object }), ListPair::page(page), &[]).good().attributes
    };
    assert_eq!(page(user(OID), 1), [0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(page(user(OID), 2)[8..], [0xFF; 8]);
    assert_eq!(page(ObjectId::ROOT, 0x9000_0005).len(), 8 + 0x42);
    assert_eq!(page(ObjectId::ROOT, 0x9000_0005)[39..41], [0x01, 0xF1]);
    assert_eq!(page(ObjectId::ROOT, 0x9000_0005)[72..74], [0, 1]);
    assert_eq!(page(ObjectId::of_partition(PID), 0x3000_0005)[11], 2);
    assert_eq!(page(user(OID), 6).len(), 8 + 0x0E);
    let set = ListPair { set: vec![(AttributeId::new(1, 9), b"name".to_vec())], ..ListPair::page(3) };
    bench.run(Command::SetAttributes(Target { object: user(OID) }), set, &[]).good();
    assert_eq!(get(&bench, user(OID), 1, 9), b"name");
}

#[test]
fn malformed_lists_are_refused_before_anything_happens() {
    let bench = bench();
    let command = Command::SetAttributes(Target { object: user(OID) });
    let capability = bench.capability(&command, SecurityMethod::CmdRsp);
    let before = bench.state_hash();
    let lists = ListPair {
        get: vec![AttributeId::new(1, 1)],
        allocation: 64,
        ..ListPair::set(&[(APP, 1, b"abcdefgh")])
    };
    // Under CMDRSP the data is not covered, so the list itself is checked.
    for (byte, change, sense) in [(0, 0x01, 0x2600), (23, 0xFF, 0x1A00), (8, 0xFF, 0x2600)] {
        let mut ready = bench.ready(command, &lists, &[], &capability);
        if byte == 8 {
            ready.data_out[8..12].fill(0xFF);
        } else {
            ready.data_out[byte] = change;
        }
        let reply = bench.send(&ready);
        assert_eq!(bench.verify(&ready, &reply).unwrap().sense(), (5, sense), "byte {byte}");
    }
    assert_eq!(bench.state_hash(), before);
}

#[test]
fn a_million_names_are_refused_unread() {
    let bench = bench();
    let command = Command::GetAttributes(Target { object: user(OID) });
    let lists =
        ListPair { get: vec![AttributeId::new(1, 1); 1_000_000], allocation: 64, ..ListPair::default() };
    assert_eq!(bench.run(command, lists, &[]).sense(), (5, 0x1A00));
    let lists = ListPair { get: vec![AttributeId::new(1, 1); 8000], allocation: 64, ..ListPair::default() };
    bench.run(command, lists, &[]).good();
}

#[test]
fn setting_the_logical_length_cuts_and_extends() {
    let bench = bench();
    write(&bench, 0, b"0123456789").good();
    set(&bench, user(OID), 1, 0x82, &4u64.to_be_bytes()).good();
    set(&bench, user(OID), 1, 0x82, &6u64.to_be_bytes()).good();
    let read = Command::Read(Extent { object: user(OID), start: 0, length: 6 });
    assert_eq!(bench.run(read, ListPair::default(), &[]).good().data, b"0123\0\0");
    set(&bench, user(OID), 2, 1, &10u64.to_be_bytes()).good();
    let quota = set(&bench, user(OID), 1, 0x82, &11u64.to_be_bytes());
    assert_eq!(quota.sense(), (7, 0x5507));
    assert_eq!(write(&bench, 8, b"abc").sense(), (7, 0x5507));
    write(&bench, 8, b"ab").good();
}

fn time(bench: &Bench, number: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[2..].copy_from_slice(&get(bench, user(OID), 3, number));
    u64::from_be_bytes(bytes)
}

#[test]
fn timestamps_follow_operations_unless_disabled() {
    let bench = bench();
    let at = |ms: u64| bench.fake.ms.store(START_MS + ms, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(time(&bench, 1), START_MS);
    at(10);
    write(&bench, 0, b"x").good();
    at(20);
    let read = Command::Read(Extent { object: user(OID), start: 0, length: 1 });
    bench.run(read, ListPair::default(), &[]).good();
    at(30);
    set(&bench, user(OID), APP, 1, b"x").good();
    at(40);
    assert_eq!(time(&bench, 5), START_MS + 10);
    assert_eq!(time(&bench, 4), START_MS + 20);
    assert_eq!(time(&bench, 3), START_MS + 30);
    assert_eq!(time(&bench, 2), START_MS + 40);
    assert_eq!(time(&bench, 1), START_MS);
    // Set explicitly.
    set(&bench, user(OID), 3, 4, &[0, 0, 0, 0, 0, 9]).good();
    assert_eq!(time(&bench, 4), 9);
    // A flush stores the access times; a restart reads them.
    at(50);
    bench.run(read, ListPair::default(), &[]).good();
    let flush = Flush { object: user(OID), scope: FlushScope::Everything, start: 0, length: 0 };
    bench.run(Command::Flush(flush), ListPair::default(), &[]).good();
    let again = Bench::start(sealstone_osd_device::OsdConfig::default(), bench.store.clone(), 2, 0);
    again.keys.lock().add_partition(PID).unwrap();
    assert_eq!(time(&again, 4), START_MS + 50);
    // The bypass attribute of the partition stops timestamps.
    set(&bench, ObjectId::of_partition(PID), 0x3000_0003, 0xFFFF_FFFE, &[0x7F]).good();
    at(60);
    write(&bench, 0, b"y").good();
    bench.run(read, ListPair::default(), &[]).good();
    assert_eq!((time(&bench, 5), time(&bench, 4)), (START_MS + 10, START_MS + 50));
}

#[test]
fn quotas_bind() {
    let bench = bench();
    let partition = ObjectId::of_partition(PID);
    set(&bench, partition, 0x3000_0002, 0x10002, &2u64.to_be_bytes()).good();
    let create = |count| Command::Create(Create { object: user(0), count });
    assert_eq!(bench.run(create(2), ListPair::default(), &[]).sense(), (7, 0x5507));
    bench.run(create(1), ListPair::default(), &[]).good();
    assert_eq!(bench.run(create(1), ListPair::default(), &[]).sense(), (7, 0x5507));
    set(&bench, partition, 0x3000_0002, 0x10001, &8192u64.to_be_bytes()).good();
    write(&bench, 0, &[1; 8192]).good();
    assert_eq!(write(&bench, 8192, b"x").sense(), (7, 0x5507));
    write(&bench, 4096, &[2; 4096]).good();
    let read = Command::Read(Extent { object: user(OID), start: 8191, length: 1 });
    assert_eq!(bench.run(read, ListPair::default(), &[]).good().data, [2]);
    // The quota counts existing partitions.
    set(&bench, ObjectId::ROOT, 0x9000_0002, 0x20002, &1u64.to_be_bytes()).good();
    let another = Command::CreatePartition(CreatePartition { partition: 0 });
    assert_eq!(bench.run(another, ListPair::default(), &[]).sense(), (7, 0x5507));
}

#[test]
fn full_store_allows_read_and_remove() {
    let bench =
        Bench::with(Default::default(), std::sync::Arc::new(sealstone_store::MemoryStore::new(1 << 20)));
    bench.create_partition(PID);
    bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
    write(&bench, 0, &vec![3; 1 << 19]).good();
    let full = Extent { object: user(OID), start: 1 << 19, length: 1 << 20 };
    let before = bench.state_hash();
    assert_eq!(bench.run(Command::Write(full), ListPair::default(), &vec![4; 1 << 20]).sense(), (7, 0x5507));
    assert_eq!(bench.state_hash(), before);
    let read = Command::Read(Extent { object: user(OID), start: 0, length: 3 });
    assert_eq!(bench.run(read, ListPair::default(), &[]).good().data, [3; 3]);
    bench.run(Command::Remove(Target { object: user(OID) }), ListPair::default(), &[]).good();
    let used = get(&bench, ObjectId::of_partition(PID), 0x3000_0001, 0x81);
    assert_eq!(used, 0u64.to_be_bytes());
}

#[test]
fn new_objects_take_over_the_partitions_defaults() {
    let bench = Bench::with_partition();
    let partition = ObjectId::of_partition(PID);
    set(&bench, partition, 0x3000_0005, 0x4000_0002, &[0, 0, 0, 9]).good();
    set(&bench, partition, 0x3000_0002, 1, &100u64.to_be_bytes()).good();
    bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
    assert_eq!(get(&bench, user(OID), 5, 0x4000_0001), [0, 0, 0, 9]);
    assert_eq!(get(&bench, user(OID), 2, 1), 100u64.to_be_bytes());
}
