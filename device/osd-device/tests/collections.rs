//! Collections: create, join, list, remove, and their attributes.

use crate::support::{Answer, Bench, ListPair, PID, user, value, values};
use sealstone_osd::attribute::page::parse_memberships;
use sealstone_osd::capability::Scope;
use sealstone_osd::cdb::*;
use sealstone_osd::listing::{Listed, Listing};
use sealstone_osd::{
    Capability, Command, Descriptor, Generation, ObjectId, ObjectType, Permissions, SecurityMethod,
};
use sealstone_osd_device::OsdConfig;
use sealstone_scsi::Status;
use sealstone_store::MemoryStore;

const OID: u64 = 0x10000;
const CID: u64 = 0x20000;
/// The spontaneous collection: all user objects of a partition.
const EVERYTHING: u64 = 0x1082;

/// Runs a command with a capability of the object's type. The tests use fixed numbers for
/// collections.
fn run(bench: &Bench, command: Command, lists: ListPair) -> Answer {
    let mut capability = bench.capability(&command, SecurityMethod::AllData);
    let object = command.object();
    let several = command.object_types().len() > 1;
    if several && (object.object >= CID || object.object == EVERYTHING) {
        capability.object_type = ObjectType::Collection;
        capability.descriptor = Descriptor::Collection { scope: Scope::default(), allowed: object };
    }
    bench.run_with(command, lists, &[], &capability)
}

fn create(bench: &Bench, first: u64, count: u64) {
    for oid in first..first + count {
        run(bench, Command::Create(Create { object: user(oid), count: 1 }), ListPair::default()).good();
    }
}

fn collection(bench: &Bench, cid: u64) {
    run(bench, Command::CreateCollection(Target { object: user(cid) }), ListPair::default()).good();
}

fn tracking(bench: &Bench, cid: u64, source: u64) -> Answer {
    let create = CreateTracking { object: user(cid), source, immediate: false };
    bench.track(create)
}

/// Sets attribute `number` of the Collections page.
fn put(bench: &Bench, oid: u64, number: u32, value: &[u8]) -> Answer {
    let command = Command::SetAttributes(Target { object: user(oid) });
    run(bench, command, ListPair::set(&[(4, number, value)]))
}

fn join(bench: &Bench, oid: u64, number: u32, cid: u64) -> Answer {
    put(bench, oid, number, &cid.to_be_bytes())
}

fn get(bench: &Bench, object: ObjectId, page: u32, number: u32) -> Vec<u8> {
    let command = Command::GetAttributes(Target { object });
    value(&run(bench, command, ListPair::get(&[(page, number)])).good().attributes)
}

fn number(bench: &Bench, object: ObjectId, page: u32, attribute: u32) -> u64 {
    get(bench, object, page, attribute).iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

fn list_part(bench: &Bench, object: u64, initial: u64, allocation: u64, list_id: u32) -> Answer {
    let list = List { object: user(object), list_id, allocation, initial, with_attributes: false };
    run(bench, Command::ListCollection(list), ListPair::default())
}

fn members(bench: &Bench, cid: u64) -> Vec<u64> {
    let answer = list_part(bench, cid, 0, 1 << 16, 0).good();
    let list = Listing::parse(Generation::Osd2, &answer.data).unwrap();
    assert_eq!(list.next, 0);
    assert_eq!(list.full_len, Some(answer.data.len() as u64));
    assert_eq!(list.listed, if cid == 0 { Listed::Collections } else { Listed::Objects });
    list.ids().collect()
}

fn memberships(bench: &Bench, oid: u64) -> Vec<u64> {
    let command = Command::GetAttributes(Target { object: user(oid) });
    let lists = ListPair { get_page: Some(4), allocation: 4096, ..ListPair::default() };
    parse_memberships(&run(bench, command, lists).good().attributes).unwrap()
}

fn remove(bench: &Bench, cid: u64, force: bool) -> Answer {
    let command = Command::RemoveCollection(RemoveCollection { object: user(cid), force });
    run(bench, command, ListPair::default())
}

/// Checks for ILLEGAL REQUEST, INVALID FIELD IN CDB at this byte.
#[track_caller]
fn refused_at(answer: &Answer, byte: u16) {
    assert_eq!(answer.sense(), (5, 0x2400));
    assert_eq!(answer.sense.as_ref().unwrap().field.unwrap().byte, byte);
}

#[test]
fn collections_page_joins_moves_and_leaves() {
    let bench = Bench::with_partition();
    create(&bench, OID, 2);
    collection(&bench, CID);
    collection(&bench, CID + 1);
    join(&bench, OID, 7, CID).good();
    join(&bench, OID + 1, 1, CID).good();
    join(&bench, OID, 2, CID + 1).good();
    assert_eq!(members(&bench, CID), [OID, OID + 1]);
    assert_eq!(memberships(&bench, OID), [CID + 1, CID], "in the order of the attributes");
    assert_eq!(get(&bench, user(OID), 4, 7), CID.to_be_bytes());
    let all =
        run(&bench, Command::GetAttributes(Target { object: user(OID) }), ListPair::get(&[(4, 0xFFFF_FFFF)]));
    let numbers: Vec<u32> = values(&all.good().attributes).iter().map(|(id, _)| id.number).collect();
    assert_eq!(numbers, [0, 2, 7]);
    // An object joins a collection only once, under any number.
    let twice = join(&bench, OID, 3, CID);
    assert_eq!(twice.sense(), (5, 0x2600));
    assert_eq!(twice.sense.unwrap().attributes, [(4, 3)]);
    // Setting another collection under the same number moves the object; setting the same one
    // changes nothing.
    collection(&bench, CID + 2);
    join(&bench, OID, 7, CID).good();
    join(&bench, OID, 7, CID + 2).good();
    assert_eq!(members(&bench, CID), [OID + 1]);
    assert_eq!(members(&bench, CID + 2), [OID]);
    put(&bench, OID, 7, &[]).good();
    put(&bench, OID, 7, &[]).good();
    assert_eq!(members(&bench, CID + 2), [0; 0]);
    assert_eq!(memberships(&bench, OID), [CID + 1]);
}

#[test]
fn only_linked_collections_of_the_partition_are_joined() {
    let bench = Bench::with_partition();
    create(&bench, OID, 2);
    tracking(&bench, CID + 1, 0).good();
    for (wrong, why) in [
        (CID, "does not exist"),
        (OID + 1, "a user object"),
        (CID + 1, "tracking"),
        (EVERYTHING, "spontaneous"),
        (0, "none"),
    ] {
        let answer = join(&bench, OID, 1, wrong);
        assert_eq!(answer.sense(), (5, 0x2600), "{why}");
    }
    assert_eq!(put(&bench, OID, 1, &[1; 7]).sense(), (5, 0x2600), "a length of 7");
    assert_eq!(put(&bench, OID, 0, &CID.to_be_bytes()).sense(), (5, 0x2600), "the identification");
    assert_eq!(put(&bench, OID, 0xFFFF_FF01, &CID.to_be_bytes()).sense(), (5, 0x2600));
    assert_eq!(memberships(&bench, OID), [0; 0]);
}

#[test]
fn an_object_is_created_into_a_collection() {
    let bench = Bench::with_partition();
    collection(&bench, CID);
    let create = Command::Create(Create { object: user(0), count: 3 });
    let lists = ListPair::set(&[(4, 1, &CID.to_be_bytes())]);
    run(&bench, create, lists).good();
    assert_eq!(members(&bench, CID).len(), 3);
    assert_eq!(number(&bench, user(CID), 0x6000_0004, 0x10), 3, "number of members");
}

#[test]
fn removing_keeps_memberships_exact() {
    let bench = Bench::with_partition();
    create(&bench, OID, 3);
    for cid in [CID, CID + 1] {
        collection(&bench, cid);
        for oid in 0..3 {
            join(&bench, OID + oid, u32::try_from(cid - CID).unwrap() + 1, cid).good();
        }
    }
    run(&bench, Command::Remove(Target { object: user(OID) }), ListPair::default()).good();
    assert_eq!(members(&bench, CID), [OID + 1, OID + 2]);
    let full = remove(&bench, CID, false);
    assert_eq!(full.sense(), (5, 0x2C0A));
    remove(&bench, CID, true).good();
    refused_at(&list_part(&bench, CID, 0, 100, 0), 24);
    assert_eq!(memberships(&bench, OID + 1), [CID + 1]);
    assert_eq!(members(&bench, 0), [CID + 1]);
    // The number is free again, and the new collection is empty.
    collection(&bench, CID);
    assert_eq!(members(&bench, CID), [0; 0]);
    join(&bench, OID + 1, 1, CID).good();
    put(&bench, OID + 1, 1, &[]).good();
    remove(&bench, CID, false).good();
}

#[test]
fn partition_quotas_count_objects_and_collections() {
    let bench = Bench::with_partition();
    let partition = ObjectId::of_partition(PID);
    create(&bench, OID, 2);
    collection(&bench, CID);
    assert_eq!(number(&bench, partition, 0x3000_0001, 0xC1), 3);
    let set = |page, number, value: &[u8]| {
        let command = Command::SetAttributes(Target { object: partition });
        run(&bench, command, ListPair::set(&[(page, number, value)])).good()
    };
    set(0x3000_0002, 0x1_0002, &4_u64.to_be_bytes());
    collection(&bench, CID + 1);
    let beyond = Command::CreateCollection(Target { object: user(0) });
    assert_eq!(run(&bench, beyond, ListPair::default()).sense(), (7, 0x5507));
    set(0x3000_0002, 0x1_0081, &1_u32.to_be_bytes());
    join(&bench, OID, 1, CID).good();
    assert_eq!(join(&bench, OID, 2, CID + 1).sense(), (7, 0x5507), "collections per object");
    join(&bench, OID, 1, CID + 1).good();
    let keep = RemovePartition { partition: PID, with_contents: false };
    assert_eq!(run(&bench, Command::RemovePartition(keep), ListPair::default()).sense(), (5, 0x2C0A));
    let all = RemovePartition { partition: PID, with_contents: true };
    run(&bench, Command::RemovePartition(all), ListPair::default()).good();
    assert_eq!(bench.store.space().objects, 1, "the root remains");
}

#[test]
fn collection_ids_shared_with_objects_reserved_refused() {
    let bench = Bench::with_partition();
    create(&bench, OID, 1);
    let make =
        |cid| run(&bench, Command::CreateCollection(Target { object: user(cid) }), ListPair::default());
    refused_at(&make(OID), 24);
    refused_at(&make(0xFFFF), 24);
    let elsewhere = Command::CreateCollection(Target { object: ObjectId::new(0x7_0000, CID) });
    assert_eq!(run(&bench, elsewhere, ListPair::default()).status, Status::CheckCondition);
    let chosen = Command::CreateCollection(Target { object: user(0) });
    let answer = run(&bench, chosen, ListPair::get(&[(0xFFFF_FFFE, 4), (0x6000_0001, 0xA)])).good();
    let got = values(&answer.attributes);
    assert_eq!(got[0].1, (OID + 1).to_be_bytes());
    assert_eq!(got[1].1, [0], "linked");
    let taken = run(&bench, Command::Create(Create { object: user(OID + 1), count: 1 }), ListPair::default());
    refused_at(&taken, 24);
    // Commands on user objects do not accept collections, and vice versa.
    let read = Command::Read(Extent { object: user(OID + 1), start: 0, length: 1 });
    let capability = bench.capability(&read, SecurityMethod::AllData);
    assert_eq!(bench.run_with(read, ListPair::default(), &[], &capability).status, Status::CheckCondition);
    refused_at(&list_part(&bench, OID, 0, 100, 0), 24);
    refused_at(&remove(&bench, OID, false), 24);
}

#[test]
fn a_collection_has_its_own_pages() {
    let bench = Bench::with_partition();
    collection(&bench, CID);
    let id = user(CID);
    assert_eq!(number(&bench, id, 0x6000_0001, 1), PID);
    assert_eq!(number(&bench, id, 0x6000_0001, 2), CID);
    assert_eq!(get(&bench, id, 0x6000_0001, 0xA), [0]);
    assert!(number(&bench, id, 0x6000_0003, 1) >= crate::support::START_MS);
    let set = Command::SetAttributes(Target { object: id });
    run(&bench, set, ListPair::set(&[(0x6000_0001, 9, b"name"), (0x6001_0000, 5, b"mine")])).good();
    assert_eq!(get(&bench, id, 0x6000_0001, 9), b"name");
    assert_eq!(get(&bench, id, 0x6001_0000, 5), b"mine");
    for (page, attribute) in
        [(0x6000_0001, 0xA), (0x6000_0001, 2), (0x6000_0003, 1), (0x6000_0004, 1), (1, 9)]
    {
        let refused = run(&bench, set, ListPair::set(&[(page, attribute, b"x")]));
        assert_eq!(refused.sense(), (5, 0x2600), "{page:#x} {attribute:#x}");
    }
    let command = Command::GetAttributes(Target { object: id });
    let directory = run(&bench, command, ListPair::get(&[(0x6000_0000, 0xFFFF_FFFF)]));
    let pages: Vec<u32> = values(&directory.good().attributes).iter().map(|(id, _)| id.number).collect();
    for page in [0x6000_0001, 0x6000_0003, 0x6000_0004, 0x6000_0005, 0x6001_0000] {
        assert!(pages.contains(&page), "{page:#x} in {pages:x?}");
    }
}

#[test]
fn spontaneous_collection_contains_all_user_objects() {
    let bench = Bench::with_partition();
    create(&bench, OID, 3);
    collection(&bench, CID);
    assert_eq!(members(&bench, EVERYTHING), [OID, OID + 1, OID + 2]);
    assert_eq!(members(&bench, 0), [CID], "accessible without being listed");
    let id = user(EVERYTHING);
    assert_eq!(get(&bench, id, 0x6000_0001, 0xA), [0xEF]);
    assert_eq!(number(&bench, id, 0x6000_0004, 0x10), 3);
    assert_eq!(get(&bench, id, 0x6000_0001, 9), b"");
    let set = Command::SetAttributes(Target { object: id });
    refused_at(&run(&bench, set, ListPair::set(&[(0x6000_0001, 9, b"x")])), 24);
    refused_at(&remove(&bench, EVERYTHING, true), 24);
    run(&bench, Command::Remove(Target { object: user(OID) }), ListPair::default()).good();
    assert_eq!(members(&bench, EVERYTHING), [OID + 1, OID + 2]);
}

#[test]
fn list_series_is_complete_and_reports_changes() {
    let bench = Bench::with_partition();
    create(&bench, OID, 100);
    collection(&bench, CID);
    for oid in 0..100 {
        join(&bench, OID + oid, 1, CID).good();
    }
    for object in [CID, EVERYTHING] {
        let (mut seen, mut from, mut list_id) = (Vec::new(), 0, 0);
        loop {
            let answer = list_part(&bench, object, from, 24 + 8 * 7, list_id).good();
            let list = Listing::parse(Generation::Osd2, &answer.data).unwrap();
            assert!(!list.changed);
            if from == 0 {
                assert_eq!(list.full_len, Some(24 + 800));
            }
            seen.extend(list.ids());
            (from, list_id) = (list.next, list.list_id);
            if from == 0 {
                break;
            }
            assert_ne!(list_id, 0, "a series has an identifier");
        }
        assert_eq!(seen, (OID..OID + 100).collect::<Vec<_>>());
    }
    let first = list_part(&bench, CID, 0, 40, 0).good();
    let first = Listing::parse(Generation::Osd2, &first.data).unwrap();
    let (next, list_id) = (first.next, first.list_id);
    put(&bench, OID + 50, 1, &[]).good();
    let second = list_part(&bench, CID, next, 40, list_id).good();
    assert!(Listing::parse(Generation::Osd2, &second.data).unwrap().changed);
    refused_at(&list_part(&bench, CID, 0, 40, 5), 48);
    refused_at(&list_part(&bench, CID, 0, 40, 0xFFFF_FFFF), 48);
    refused_at(&list_part(&bench, CID, 0, 23, 0), 32);
    assert_eq!(list_part(&bench, CID, 0, 0, 0).good().data, b"");
}

#[test]
fn members_and_collections_are_listed_with_attributes() {
    let bench = Bench::with_partition();
    create(&bench, OID, 3);
    collection(&bench, CID);
    for oid in 0..3 {
        join(&bench, OID + oid, 1, CID).good();
    }
    let list = |object, lists| {
        let list = List { object, list_id: 0, allocation: 4096, initial: 0, with_attributes: true };
        run(&bench, Command::ListCollection(list), lists)
    };
    let mut lists = ListPair::get(&[(1, 2)]);
    lists.allocation = 0;
    let answer = list(user(CID), lists.clone()).good();
    let listing = Listing::parse(Generation::Osd2, &answer.data).unwrap();
    assert_eq!((listing.listed, listing.with_attributes), (Listed::Objects, true));
    let seen: Vec<(u64, Vec<u8>)> =
        listing.entries().map(|one| (one.object, one.values.iter().next().unwrap().1.to_vec())).collect();
    let expected: Vec<(u64, Vec<u8>)> = (OID..OID + 3).map(|oid| (oid, oid.to_be_bytes().to_vec())).collect();
    assert_eq!(seen, expected);
    lists.get = vec![sealstone_osd::AttributeId::new(0x6000_0001, 2)];
    let answer = list(ObjectId::of_partition(PID), lists.clone()).good();
    let listing = Listing::parse(Generation::Osd2, &answer.data).unwrap();
    let entries: Vec<_> = listing.entries().map(|one| (one.object, one.kind)).collect();
    assert_eq!((listing.listed, entries), (Listed::Collections, vec![(CID, 0x40)]));
    assert_eq!(list(user(CID), lists).status, Status::CheckCondition, "pages of collections, not of members");
}

#[test]
fn tracking_collection_copies_source_members() {
    let bench = Bench::with_partition();
    create(&bench, OID, 300);
    tracking(&bench, CID, EVERYTHING).good();
    assert_eq!(get(&bench, user(CID), 0x6000_0001, 0xA), [1]);
    assert_eq!(members(&bench, CID).len(), 300);
    assert_eq!(memberships(&bench, OID), [0; 0], "no attribute names it");
    // Objects created later are not members; removed objects are removed from it.
    create(&bench, OID + 500, 1);
    run(&bench, Command::Remove(Target { object: user(OID) }), ListPair::default()).good();
    assert_eq!(members(&bench, CID).len(), 299);
    let page = |number: u32| self::number(&bench, user(CID), 0x6000_0004, number);
    assert_eq!((page(1), page(2), page(3)), (100, 0, 0x8894), "ended");
    assert_eq!((page(0x10), page(0x11), page(0x13)), (299, 300, 0));
    assert_eq!(get(&bench, user(CID), 0x6000_0004, 4), b"", "without sense data");
    tracking(&bench, CID + 1, CID).good();
    assert_eq!(members(&bench, CID + 1), members(&bench, CID));
    refused_at(&tracking(&bench, CID + 2, CID + 9), 40);
    refused_at(&tracking(&bench, CID + 2, OID + 1), 40);
    assert_eq!(members(&bench, 0), [CID, CID + 1], "the refused one does not exist");
    remove(&bench, CID, true).good();
    assert_eq!(members(&bench, CID + 1).len(), 299);
}

#[test]
fn flush_collection_requires_collection() {
    let bench = Bench::with_partition();
    create(&bench, OID, 1);
    collection(&bench, CID);
    let flush = |object| {
        let flush = FlushContainer { object, scope: ContainerScope::Everything };
        run(&bench, Command::FlushCollection(flush), ListPair::default())
    };
    flush(user(CID)).good();
    flush(user(EVERYTHING)).good();
    refused_at(&flush(user(OID)), 24);
    refused_at(&flush(user(CID + 1)), 24);
}

#[test]
fn collections_survive_a_restart() {
    let store = std::sync::Arc::new(MemoryStore::new(64 << 20));
    let bench = Bench::with(OsdConfig::default(), store.clone());
    bench.create_partition(PID);
    create(&bench, OID, 3);
    collection(&bench, CID);
    join(&bench, OID, 1, CID).good();
    drop(bench);
    let bench = Bench::start(OsdConfig::default(), store, 2, 0);
    bench.keys.lock().add_partition(PID).unwrap();
    assert_eq!(number(&bench, ObjectId::of_partition(PID), 0x3000_0001, 0xC1), 4);
    assert_eq!(members(&bench, CID), [OID]);
    assert_eq!(memberships(&bench, OID), [CID]);
}

#[test]
fn an_osd1_initiator_uses_collections_too() {
    let config = OsdConfig { allow_osd1: true, ..OsdConfig::default() };
    let bench = Bench::with(config, std::sync::Arc::new(MemoryStore::new(64 << 20)));
    let osd1 = |command: Command, lists: ListPair| {
        let mut capability: Capability = bench.capability(&command, SecurityMethod::CmdRsp);
        capability.generation = Generation::Osd1;
        capability.format = Generation::Osd1;
        capability.icv_algorithm = 0;
        capability.permissions =
            capability.permissions.without(Permissions::M_OBJECT | Permissions::QUERY | Permissions::GBL_REM);
        if let Descriptor::Collection { scope, allowed } = capability.descriptor {
            let range = sealstone_osd::capability::Range::ALL;
            capability.descriptor = Descriptor::User { scope, allowed, range };
        }
        bench.run_with(command, lists, &[], &capability)
    };
    bench.create_partition(PID);
    osd1(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default()).good();
    osd1(Command::CreateCollection(Target { object: user(CID) }), ListPair::default()).good();
    let lists = ListPair::set(&[(4, 1, &CID.to_be_bytes())]);
    osd1(Command::SetAttributes(Target { object: user(OID) }), lists).good();
    let list = |object| {
        let list = List { object, list_id: 0, allocation: 100, initial: 0, with_attributes: false };
        osd1(Command::ListCollection(list), ListPair::default()).good().data
    };
    let data = list(user(CID));
    assert_eq!(Listing::parse(Generation::Osd1, &data).unwrap().ids().collect::<Vec<_>>(), [OID]);
    assert_eq!(data[23], 0);
    let data = list(ObjectId::of_partition(PID));
    assert_eq!(Listing::parse(Generation::Osd1, &data).unwrap().ids().collect::<Vec<_>>(), [CID]);
    assert_eq!(data[23], 1, "COLTN");
    let command = |force| Command::RemoveCollection(RemoveCollection { object: user(CID), force });
    assert_eq!(osd1(command(false), ListPair::default()).sense(), (5, 0x2C0A));
    osd1(command(true), ListPair::default()).good();
}

#[test]
fn collection_commands_check_permission_and_object_type() {
    let bench = Bench::with_partition();
    create(&bench, OID, 1);
    collection(&bench, CID);
    let object = user(CID);
    let list = List { object, list_id: 0, allocation: 100, initial: 0, with_attributes: false };
    let commands = [
        Command::CreateCollection(Target { object: user(CID + 1) }),
        Command::ListCollection(list),
        Command::FlushCollection(FlushContainer { object, scope: ContainerScope::Everything }),
        Command::GetMemberAttributes(Members { object, immediate: false }),
        Command::SetMemberAttributes(Members { object, immediate: false }),
        Command::RemoveMemberObjects(Members { object, immediate: false }),
        Command::RemoveCollection(RemoveCollection { object, force: false }),
    ];
    for command in commands {
        let mut capability = bench.capability(&command, SecurityMethod::AllData);
        capability.permissions = Permissions::ALL_OSD2.without(command.permissions());
        let denied = bench.run_with(command, ListPair::default(), &[], &capability);
        refused_at(&denied, 80 + 49);
        let mut other = bench.capability(&command, SecurityMethod::AllData);
        other.descriptor = Descriptor::Collection { scope: Scope::default(), allowed: user(CID + 7) };
        assert_eq!(bench.run_with(command, ListPair::default(), &[], &other).sense(), (5, 0x2400));
        let mut tagged = bench.capability(&command, SecurityMethod::AllData);
        if let Descriptor::Collection { scope, .. } = &mut tagged.descriptor {
            scope.policy_access_tag = 99;
        }
        assert_eq!(bench.run_with(command, ListPair::default(), &[], &tagged).sense(), (5, 0x2400));
    }
    assert_eq!(members(&bench, 0), [CID]);
}
