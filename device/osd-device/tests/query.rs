//! QUERY and the commands on members; immediate commands and their tracking collections.

use std::sync::Arc;

use crate::support::{Answer, Bench, ListPair, PID, SIGN_HERE, user, value};
use sealstone_osd::attribute::list::ObjectValues;
use sealstone_osd::capability::Scope;
use sealstone_osd::cdb::*;
use sealstone_osd::continuation::Segment as Continuation;
use sealstone_osd::listing::parse_matches;
use sealstone_osd::query::{Criterion, QueryList, QueryType};
use sealstone_osd::{AttributeId, Command, Descriptor, ObjectId, ObjectType, Permissions, SecurityMethod};
use sealstone_osd_device::{OsdConfig, Worker};
use sealstone_scsi::{Sense, Status};
use sealstone_store::MemoryStore;

const OID: u64 = 0x10000;
const CID: u64 = 0x20000;
const EVERYTHING: u64 = 0x1082;
/// An application attribute of one byte.
const GRADE: AttributeId = AttributeId::new(0x1_0000, 1);
const LENGTH: AttributeId = AttributeId::new(1, 0x82);
/// The Command Tracking page.
const TRACKING: u32 = 0x6000_0004;

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

/// Creates objects whose grade is their index.
fn graded(bench: &Bench, count: u8) {
    for place in 0..count {
        let create = Command::Create(Create { object: user(OID + u64::from(place)), count: 1 });
        bench.run(create, ListPair::set(&[(GRADE.page, GRADE.number, &[place])]), &[]).good();
    }
}

fn tracking(bench: &Bench, cid: u64, source: u64) {
    let create = CreateTracking { object: user(cid), source, immediate: false };
    bench.track(create).good();
}

fn collection(bench: &Bench, cid: u64, members: impl IntoIterator<Item = u64>) {
    bench.run(Command::CreateCollection(Target { object: user(cid) }), ListPair::default(), &[]).good();
    for oid in members {
        let set = Command::SetAttributes(Target { object: user(oid) });
        bench.run(set, ListPair::set(&[(4, 1, &cid.to_be_bytes())]), &[]).good();
    }
}

fn members(bench: &Bench, cid: u64) -> Vec<u64> {
    bench.store.members(user(cid), 0, usize::MAX).unwrap().into_iter().map(|(id, _)| id).collect()
}

fn page(bench: &Bench, cid: u64, number: u32) -> Vec<u8> {
    let command = Command::GetAttributes(Target { object: user(cid) });
    value(&run(bench, command, ListPair::get(&[(TRACKING, number)])).good().attributes)
}

/// Sends a QUERY with a list, or with any other bytes.
fn send(
    bench: &Bench,
    query: Query,
    list: &[u8],
    change: impl FnOnce(&mut sealstone_osd::Capability),
) -> Answer {
    let command = Command::Query(query);
    let mut capability = bench.capability(&command, SecurityMethod::AllData);
    change(&mut capability);
    let further = (query.matches != 0).then(|| second(bench, query.matches, Permissions::M_OBJECT));
    send_with(bench, command, Some(list), further.as_slice(), &capability)
}

/// Returns a capability for a second collection.
fn second(bench: &Bench, cid: u64, permissions: Permissions) -> sealstone_osd::Capability {
    let command = Command::RemoveCollection(RemoveCollection { object: user(cid), force: false });
    sealstone_osd::Capability { permissions, ..bench.capability(&command, SecurityMethod::AllData) }
}

fn send_with(
    bench: &Bench,
    command: Command,
    list: Option<&[u8]>,
    further: &[sealstone_osd::Capability],
    capability: &sealstone_osd::Capability,
) -> Answer {
    let segment = Continuation {
        query: list.map(<[u8]>::to_vec),
        extensions: further.iter().map(sealstone_osd::Capability::encode).collect(),
        proofs: vec![SIGN_HERE; further.len()],
        ..Continuation::default()
    };
    let continuation = match (list, further) {
        (None, []) => Vec::new(),
        _ => segment.encode(command.row().osd2.unwrap()).unwrap(),
    };
    let ready = bench.ready_scattered(command, &ListPair::default(), &[], capability, continuation);
    let reply = bench.send(&ready);
    bench.verify(&ready, &reply).unwrap()
}

fn query(bench: &Bench, query: Query, kind: QueryType, criteria: &[(AttributeId, &[u8], &[u8])]) -> Answer {
    let criteria = criteria.iter().map(|&(id, min, max)| Criterion { id, min, max }).collect();
    send(bench, query, &QueryList { kind, criteria }.encode().unwrap(), |_| ())
}

fn ask(cid: u64) -> Query {
    Query { object: user(cid), allocation: 4096, matches: 0, immediate: false }
}

fn matches(answer: Answer) -> Vec<u64> {
    parse_matches(&answer.good().data).unwrap().into_iter().map(|id| id - OID).collect()
}

#[track_caller]
fn refused_at(answer: &Answer, byte: u16) {
    assert_eq!(answer.sense(), (5, 0x2400));
    assert_eq!(answer.sense.as_ref().unwrap().field.unwrap().byte, byte);
}

#[test]
fn union_intersection_and_ranges_select_members() {
    use QueryType::{Intersection, Union};
    let bench = Bench::with_partition();
    graded(&bench, 10);
    let write = Extent { object: user(OID + 4), start: 0, length: 3 };
    bench.run(Command::Write(write), ListPair::default(), b"abc").good();
    collection(&bench, CID, OID + 2..OID + 8);
    tracking(&bench, CID + 1, CID);
    for source in [CID, CID + 1] {
        let ask = |kind, criteria: &[_]| matches(query(&bench, ask(source), kind, criteria));
        assert_eq!(ask(Union, &[]), [2, 3, 4, 5, 6, 7], "no criteria select all members");
        assert_eq!(ask(Intersection, &[]), [2, 3, 4, 5, 6, 7]);
        assert_eq!(ask(Union, &[(GRADE, &[5], &[6])]), [5, 6], "bounds are inclusive");
        assert_eq!(ask(Union, &[(GRADE, &[], &[3])]), [2, 3]);
        assert_eq!(ask(Union, &[(GRADE, &[6], &[])]), [6, 7]);
        assert_eq!(ask(Union, &[(GRADE, &[7], &[]), (GRADE, &[], &[2])]), [2, 7]);
        assert_eq!(ask(Intersection, &[(GRADE, &[3], &[]), (GRADE, &[], &[4])]), [3, 4]);
        let three = 3_u64.to_be_bytes();
        assert_eq!(ask(Union, &[(LENGTH, &three, &[])]), [4], "an attribute that the device computes");
        assert_eq!(ask(Union, &[(AttributeId::new(0x1_0000, 2), &[], &[])]), [0; 0], "an undefined one");
    }
    let all = query(&bench, ask(EVERYTHING), Union, &[]);
    assert_eq!(matches(all), (0..10).collect::<Vec<_>>());
}

#[test]
fn query_truncates_answer_reports_full_length() {
    let bench = Bench::with_partition();
    graded(&bench, 9);
    let short = Query { allocation: 12 + 8 * 4 + 3, ..ask(EVERYTHING) };
    let answer = query(&bench, short, QueryType::Union, &[]).good();
    assert_eq!(answer.data.len(), 12 + 8 * 4, "whole ids");
    assert_eq!(answer.data[..8], (4 + 8 * 9_u64).to_be_bytes());
    assert_eq!(answer.data[11], 0x84);
    let header = query(&bench, Query { allocation: 12, ..ask(EVERYTHING) }, QueryType::Union, &[]);
    assert_eq!(header.good().data.len(), 12);
}

#[test]
fn matches_go_into_a_tracking_collection() {
    let bench = Bench::with_partition();
    graded(&bench, 6);
    tracking(&bench, CID, 0);
    let into = Query { allocation: 0, matches: CID, ..ask(EVERYTHING) };
    assert_eq!(query(&bench, into, QueryType::Union, &[(GRADE, &[4], &[])]).good().data, b"");
    assert_eq!(members(&bench, CID), [OID + 4, OID + 5]);
    query(&bench, into, QueryType::Union, &[(GRADE, &[], &[0])]).good();
    assert_eq!(members(&bench, CID), [OID, OID + 4, OID + 5], "existing members stay");
    assert_eq!(page(&bench, CID, 3), 0x88A0_u16.to_be_bytes());
    assert_eq!(page(&bench, CID, 0x11), 6_u64.to_be_bytes());
    // The result of one query is the input of the next.
    assert_eq!(matches(query(&bench, ask(CID), QueryType::Union, &[(GRADE, &[1], &[4])])), [4]);
}

#[test]
fn query_errors_point_to_field() {
    let bench = Bench::with_partition();
    graded(&bench, 2);
    collection(&bench, CID, [OID]);
    tracking(&bench, CID + 1, 0);
    let plain = |one| query(&bench, one, QueryType::Union, &[]);
    refused_at(&plain(ask(CID + 9)), 24);
    refused_at(&plain(ask(OID)), 24);
    refused_at(&plain(Query { allocation: 0, ..ask(CID) }), 32);
    refused_at(&plain(Query { allocation: 11, ..ask(CID) }), 32);
    refused_at(&plain(Query { matches: CID + 1, ..ask(CID) }), 40);
    let into = |matches| Query { allocation: 0, matches, ..ask(CID) };
    refused_at(&plain(into(CID)), 40);
    refused_at(&plain(into(OID)), 40);
    refused_at(&plain(into(CID + 9)), 40);
    refused_at(&plain(into(EVERYTHING)), 40);
    refused_at(&plain(Query { immediate: true, ..ask(CID) }), 11);
    for malformed in [&[2, 0, 0, 0, 0, 0, 0, 0][..], &[0, 0, 0, 0, 0, 0, 0xFF, 0xFF], &[0; 8 + 8 * 200]] {
        let answer = send(&bench, ask(CID), malformed, |_| ());
        if malformed.iter().all(|&byte| byte == 0) {
            answer.good();
        } else {
            refused_at(&answer, 48);
        }
    }
    let partition_page = [(AttributeId::new(0x3000_0001, 1), &[][..], &[][..])];
    refused_at(&query(&bench, ask(CID), QueryType::Union, &partition_page), 48);
    // Permissions: QUERY for all, M_OBJECT for matches, POL_SEC for security attributes.
    let list = QueryList { kind: QueryType::Union, criteria: Vec::new() }.encode().unwrap();
    let less = |bit: Permissions| {
        move |one: &mut sealstone_osd::Capability| one.permissions = one.permissions.without(bit)
    };
    refused_at(&send(&bench, ask(CID), &list, less(Permissions::QUERY)), 129);
    let tag = Criterion { id: AttributeId::new(5, 0x4000_0001), min: &[], max: &[9; 4] };
    let list = QueryList { kind: QueryType::Union, criteria: vec![tag] }.encode().unwrap();
    refused_at(&send(&bench, ask(CID), &list, less(Permissions::POL_SEC)), 129);
    send(&bench, ask(CID), &list, |_| ()).good();
    assert_eq!(members(&bench, CID + 1), [0; 0]);
}

/// The second collection needs its own capability, whatever the first one allows.
#[test]
fn second_collection_requires_own_capability() {
    let bench = Bench::with_partition();
    graded(&bench, 3);
    collection(&bench, CID, [OID, OID + 1]);
    tracking(&bench, CID + 1, 0);
    let list = QueryList { kind: QueryType::Union, criteria: Vec::new() }.encode().unwrap();
    let fill = Command::Query(Query { allocation: 0, matches: CID + 1, ..ask(CID) });
    let take = CreateTracking { object: user(CID + 2), source: CID, immediate: false };
    let take = Command::CreateTrackingCollection(take);
    let before = bench.state_hash();
    for (command, list, cid, right) in
        [(fill, Some(list.as_slice()), CID + 1, Permissions::M_OBJECT), (take, None, CID, Permissions::READ)]
    {
        let mut first = bench.capability(&command, SecurityMethod::AllData);
        first.permissions = Permissions::ALL_OSD2;
        let sound = second(&bench, cid, right);
        let refused = |further: &[sealstone_osd::Capability], pointer: Option<u16>| {
            let answer = send_with(&bench, command, list, further, &first);
            assert_eq!(answer.sense(), (5, 0x2400), "{further:?}");
            let received = answer.sense.unwrap().field.map(|field| field.byte);
            assert_eq!(received, pointer, "{further:?}");
            assert_eq!(bench.state_hash(), before);
        };
        let is = |allowed, scope| sealstone_osd::Capability {
            descriptor: Descriptor::Collection { scope, allowed },
            ..sound
        };
        let unrestricted = Scope::default();
        refused(&[], Some(48));
        refused(&[sound, sound], Some(48));
        let other = Permissions::ALL_OSD2.without(right);
        refused(&[sealstone_osd::Capability { permissions: other, ..sound }], Some(48));
        refused(&[is(user(CID + 7), unrestricted)], Some(48));
        refused(&[is(ObjectId::new(PID, OID), unrestricted)], Some(48));
        refused(&[is(user(cid), Scope { policy_access_tag: 9, ..unrestricted })], Some(48));
        refused(&[is(user(cid), Scope { boot_epoch: 9, ..unrestricted })], Some(48));
        refused(&[sealstone_osd::Capability { object_created_ms: 9, ..sound }], Some(48));
        refused(&[sealstone_osd::Capability { expires_ms: 1, ..sound }], Some(48));
        refused(&[sealstone_osd::Capability { object_type: ObjectType::User, ..sound }], Some(48));
        // An unauthenticated capability gets no details.
        refused(&[sealstone_osd::Capability { key_version: 3, ..sound }], None);
        refused(&[sealstone_osd::Capability { method: SecurityMethod::NoSec, ..sound }], None);
        refused(&[sealstone_osd::Capability { method: SecurityMethod::CapKey, ..sound }], None);
        send_with(&bench, command, list, &[sound], &first).good();
        if cid == CID + 1 {
            for member in members(&bench, cid) {
                bench.store.leave(user(cid), member).unwrap();
            }
            for number in 1..=0x13 {
                bench.store.set_attribute(user(cid), AttributeId::new(TRACKING, number), &[]).unwrap();
            }
        }
    }
    assert_eq!(members(&bench, CID + 2), [OID, OID + 1]);
}

/// Authority for the second collection is checked again before each step.
#[test]
fn tag_change_stops_filling_second_collection() {
    let bench = Bench::with_partition();
    graded(&bench, 3);
    tracking(&bench, CID, 0);
    let set = |tag: u32| {
        let command = Command::SetAttributes(Target { object: user(CID) });
        run(&bench, command, ListPair::set(&[(0x6000_0005, 0x4000_0001, &tag.to_be_bytes())])).good()
    };
    set(7);
    let list = QueryList { kind: QueryType::Union, criteria: Vec::new() }.encode().unwrap();
    let fill = Query { allocation: 0, matches: CID, immediate: true, ..ask(EVERYTHING) };
    let fill = Command::Query(fill);
    let first = bench.capability(&fill, SecurityMethod::AllData);
    let mut further = second(&bench, CID, Permissions::M_OBJECT);
    if let Descriptor::Collection { scope, .. } = &mut further.descriptor {
        scope.policy_access_tag = 7;
    }
    send_with(&bench, fill, Some(&list), &[further], &first).good();
    set(8);
    assert!(bench.unit.work());
    assert_eq!(members(&bench, CID), [0; 0]);
    let sense = Sense::parse(&page(&bench, CID, 4)).unwrap();
    assert_eq!((sense.key.nibble(), sense.code.0), (5, 0x2400));
}

#[test]
fn attributes_of_all_members_are_fetched_and_set() {
    let bench = Bench::with_partition();
    graded(&bench, 5);
    collection(&bench, CID, OID + 1..OID + 4);
    let members = Members { object: user(CID), immediate: false };
    let set = ListPair::set(&[(0x1_0000, 2, b"both"), (1, 0x82, &100_u64.to_be_bytes())]);
    bench.run(Command::SetMemberAttributes(members), set, &[]).good();
    let lists = ListPair::get(&[(GRADE.page, GRADE.number), (0x1_0000, 2), (0x1_0000, 3)]);
    let answer = bench.run(Command::GetMemberAttributes(members), lists.clone(), &[]).good();
    let seen: Vec<_> = ObjectValues::parse(&answer.attributes).unwrap().collect();
    assert_eq!(seen.iter().map(|one| one.object).collect::<Vec<_>>(), [OID + 1, OID + 2, OID + 3]);
    for (place, one) in (1_u8..).zip(&seen) {
        let values: Vec<_> = one.values.iter().map(|(_, value)| value.to_vec()).collect();
        assert_eq!(values, [vec![place], b"both".to_vec(), Vec::new()]);
    }
    assert_eq!(bench.store.stat(user(OID + 2)).unwrap().length, 100);
    assert_eq!(bench.store.stat(user(OID)).unwrap().length, 0, "no member");
    // Truncated, with its full length; set before get, or get before set, depending on the command.
    let short = ListPair { allocation: 40, ..lists };
    let cut = bench.run(Command::GetMemberAttributes(members), short, &[]).good();
    assert_eq!(cut.attributes.len(), 40);
    assert_eq!(cut.attributes[4..8], answer.attributes[4..8]);
    let both = |value: &[u8]| ListPair {
        set: vec![(GRADE, value.to_vec())],
        ..ListPair::get(&[(GRADE.page, GRADE.number)])
    };
    let first = |answer: Answer| {
        let list = ObjectValues::parse(&answer.attributes).unwrap().next().unwrap();
        list.values.iter().next().unwrap().1.to_vec()
    };
    assert_eq!(first(bench.run(Command::GetMemberAttributes(members), both(&[70]), &[]).good()), [1]);
    assert_eq!(first(bench.run(Command::SetMemberAttributes(members), both(&[71]), &[]).good()), [71]);
    // Only pages of members are allowed, and none in page format.
    let collections =
        bench.run(Command::GetMemberAttributes(members), ListPair::get(&[(0x6000_0001, 2)]), &[]);
    assert_eq!(collections.sense(), (5, 0x2600));
    let in_page_format = bench.run(Command::GetMemberAttributes(members), ListPair::page(3), &[]);
    assert_eq!(in_page_format.sense(), (5, 0x1A00));
    let read_only = bench.run(Command::SetMemberAttributes(members), ListPair::set(&[(1, 2, &[0; 8])]), &[]);
    assert_eq!(read_only.sense(), (5, 0x2600));
}

#[test]
fn member_objects_are_removed_and_the_collection_stays() {
    let bench = Bench::with_partition();
    graded(&bench, 200);
    collection(&bench, CID, OID + 10..OID + 190);
    tracking(&bench, CID + 1, CID);
    let remove = Command::RemoveMemberObjects(Members { object: user(CID), immediate: false });
    bench.run(remove, ListPair::default(), &[]).good();
    assert_eq!(members(&bench, CID), [0; 0]);
    assert_eq!(members(&bench, CID + 1), [0; 0], "removed from every collection");
    assert_eq!(bench.store.space().objects, 1 + 1 + 2 + 20);
    let partition = Command::GetAttributes(Target { object: ObjectId::of_partition(PID) });
    let count = bench.run(partition, ListPair::get(&[(0x3000_0001, 0xC1)]), &[]).good();
    assert_eq!(value(&count.attributes), 22_u64.to_be_bytes());
}

#[test]
fn member_floor_blocks_weaker_method() {
    let bench = Bench::with_partition();
    graded(&bench, 3);
    collection(&bench, CID, OID..OID + 3);
    let set = Command::SetAttributes(Target { object: user(OID + 1) });
    bench.run(set, ListPair::set(&[(0xF001, 1, &[3])]), &[]).good();
    let members = Members { object: user(CID), immediate: false };
    for command in [
        Command::GetMemberAttributes(members),
        Command::SetMemberAttributes(members),
        Command::RemoveMemberObjects(members),
    ] {
        let capability = bench.capability(&command, SecurityMethod::CmdRsp);
        let lists = match command {
            Command::GetMemberAttributes(_) => ListPair::get(&[(1, 0x82)]),
            Command::SetMemberAttributes(_) => ListPair::set(&[(0x1_0000, 9, b"x")]),
            _ => ListPair::default(),
        };
        let refused = bench.run_with(command, lists, &[], &capability);
        assert_eq!((refused.status, refused.sense()), (Status::CheckCondition, (5, 0x2400)));
    }
    assert!(bench.store.stat(user(OID + 1)).is_ok());
    let kept = bench.store.attribute(user(OID + 1), AttributeId::new(0x1_0000, 9)).unwrap();
    assert_eq!(kept, None);
    let list = QueryList { kind: QueryType::Union, criteria: Vec::new() }.encode().unwrap();
    let weaker = send(&bench, ask(EVERYTHING), &list, |one| one.method = SecurityMethod::CmdRsp);
    assert!(!matches(weaker).contains(&1), "it does not match");
}

#[test]
fn immediate_command_continues_and_is_tracked() {
    let bench = Bench::with_partition();
    graded(&bench, 150);
    tracking(&bench, CID, 0);
    let into = Query { allocation: 0, matches: CID, immediate: true, ..ask(EVERYTHING) };
    query(&bench, into, QueryType::Union, &[(GRADE, &[100], &[])]).good();
    assert_eq!(members(&bench, CID), [0; 0], "the status came first");
    assert_eq!((page(&bench, CID, 1), page(&bench, CID, 2)), (vec![0], vec![0x88, 0xA0]));
    assert_eq!(page(&bench, CID, 3), [0, 0]);
    // One command at a time, and the tracking collection stays.
    refused_at(&query(&bench, into, QueryType::Union, &[]), 24);
    let remove = RemoveCollection { object: user(CID), force: true };
    refused_at(&bench.run(Command::RemoveCollection(remove), ListPair::default(), &[]), 24);
    assert!(bench.unit.work());
    assert!(!bench.unit.work());
    assert_eq!(members(&bench, CID).len(), 50);
    assert_eq!((page(&bench, CID, 1), page(&bench, CID, 2)), (vec![100], vec![0, 0]));
    assert_eq!((page(&bench, CID, 3), page(&bench, CID, 4)), (vec![0x88, 0xA0], Vec::new()));
    assert_eq!(page(&bench, CID, 0x11), 150_u64.to_be_bytes());
    // The members of a tracking collection, immediately.
    let members_of = Members { object: user(CID), immediate: true };
    let lists = ListPair::set(&[(0x1_0000, 7, b"done")]);
    bench.run(Command::SetMemberAttributes(members_of), lists, &[]).good();
    while bench.unit.work() {}
    for oid in [OID + 99, OID + 100] {
        let value = bench.store.attribute(user(oid), AttributeId::new(0x1_0000, 7)).unwrap();
        assert_eq!(value.is_some(), oid == OID + 100);
    }
    bench.run(Command::RemoveMemberObjects(members_of), ListPair::default(), &[]).good();
    while bench.unit.work() {}
    assert_eq!((members(&bench, CID).len(), page(&bench, CID, 0x11)), (0, 50_u64.to_be_bytes().to_vec()));
    let create = CreateTracking { object: user(CID + 1), source: EVERYTHING, immediate: true };
    bench.track(create).good();
    assert_eq!(members(&bench, CID + 1), [0; 0]);
    while bench.unit.work() {}
    assert_eq!(members(&bench, CID + 1).len(), 100);
}

/// The worker thread runs jobs as soon as they arrive, ends with them, and reports it.
#[test]
fn worker_runs_immediate_commands_until_shutdown() {
    let bench = Bench::with_partition();
    graded(&bench, 200);
    let unit = Arc::clone(&bench.unit);
    let worker = Worker::start(Arc::clone(&unit)).unwrap();
    for place in 0..3 {
        let create = CreateTracking { object: user(CID + place), source: EVERYTHING, immediate: true };
        bench.track(create).good();
    }
    let patience = std::time::Instant::now();
    while unit.work_counts().immediate > 0 && patience.elapsed().as_secs() < 60 {
        std::thread::yield_now();
    }
    assert_eq!((unit.work_counts().immediate, unit.work_counts().immediate_ended), (0, 3));
    assert_eq!(members(&bench, CID + 2).len(), 200);
    drop(worker);
    // A job queued after the shutdown does not start, and is reported as aborted.
    let create = CreateTracking { object: user(CID + 9), source: EVERYTHING, immediate: true };
    bench.track(create).good();
    assert!(unit.work());
    assert_eq!(members(&bench, CID + 9), [0; 0]);
    let sense = Sense::parse(&page(&bench, CID + 9, 4)).unwrap();
    assert_eq!(sense.key.nibble(), 0xB, "ABORTED COMMAND");
}

#[test]
fn immediate_commands_require_tracking_collection() {
    let bench = Bench::with_partition();
    graded(&bench, 3);
    collection(&bench, CID, [OID]);
    tracking(&bench, CID + 1, CID);
    let immediate = |cid| Members { object: user(cid), immediate: true };
    for cid in [CID, EVERYTHING] {
        refused_at(&bench.run(Command::SetMemberAttributes(immediate(cid)), ListPair::default(), &[]), 11);
        refused_at(&bench.run(Command::RemoveMemberObjects(immediate(cid)), ListPair::default(), &[]), 11);
    }
    let get = Command::GetMemberAttributes(immediate(CID + 1));
    refused_at(&bench.run(get, ListPair::get(&[(1, 2)]), &[]), 11);
    let nothing = CreateTracking { object: user(CID + 2), source: 0, immediate: true };
    refused_at(&bench.track(nothing), 40);
    assert!(!bench.unit.work(), "nothing waits");
}

#[test]
fn the_queue_of_immediate_commands_is_bounded() {
    let bench = Bench::with_partition();
    graded(&bench, 1);
    for place in 0..17 {
        let create = CreateTracking { object: user(CID + place), source: EVERYTHING, immediate: true };
        let answer = bench.track(create);
        assert_eq!(answer.status == Status::Good, place < 16, "{place}: {:?}", answer.status);
    }
    while bench.unit.work() {}
    assert_eq!(members(&bench, CID + 15), [OID]);
    assert!(bench.store.stat(user(CID + 16)).is_err());
    let create = CreateTracking { object: user(CID + 16), source: EVERYTHING, immediate: true };
    bench.track(create).good();
}

#[test]
fn revoked_command_stops_at_next_step() {
    let bench = Bench::with_partition();
    graded(&bench, 3);
    tracking(&bench, CID, EVERYTHING);
    let set = |tag: u32| {
        let command = Command::SetAttributes(Target { object: user(CID) });
        run(&bench, command, ListPair::set(&[(0x6000_0005, 0x4000_0001, &tag.to_be_bytes())])).good()
    };
    set(7);
    let remove = Command::RemoveMemberObjects(Members { object: user(CID), immediate: true });
    let mut capability = bench.capability(&remove, SecurityMethod::AllData);
    if let Descriptor::Collection { scope, .. } = &mut capability.descriptor {
        scope.policy_access_tag = 7;
    }
    bench.run_with(remove, ListPair::default(), &[], &capability).good();
    set(8);
    assert!(bench.unit.work());
    assert_eq!(members(&bench, CID).len(), 3, "nothing removed after the tag changed");
    assert_eq!(page(&bench, CID, 3), [0x88, 0xA1]);
    let sense = Sense::parse(&page(&bench, CID, 4)).unwrap();
    assert_eq!((sense.key.nibble(), sense.code.0), (5, 0x2400));
    assert!(
        bench
            .log
            .0
            .lock()
            .iter()
            .any(|line| line.contains("REMOVE MEMBER OBJECTS") && line.contains("policy"))
    );
}

/// A frozen key, or a frozen audit value of the bearer, stops a command too.
#[test]
fn frozen_key_or_audit_stops_command() {
    let audit = b"auditor-of-the-tests";
    for (object, page, number, value) in [
        (ObjectId::of_partition(PID), 0x3000_0005, 5, &[0, 1][..]),
        (ObjectId::ROOT, 0x9000_F005, 1, &audit[..]),
    ] {
        let bench = Bench::with_partition();
        graded(&bench, 3);
        tracking(&bench, CID, EVERYTHING);
        let remove = Command::RemoveMemberObjects(Members { object: user(CID), immediate: true });
        bench.run(remove, ListPair::default(), &[]).good();
        bench
            .run(Command::SetAttributes(Target { object }), ListPair::set(&[(page, number, value)]), &[])
            .good();
        assert!(bench.unit.work());
        assert_eq!(members(&bench, CID).len(), 3, "nothing was removed after the freeze");
        let log = bench.log.0.lock();
        assert!(
            log.iter().any(|line| line.contains("REMOVE MEMBER OBJECTS") && line.contains("frozen")),
            "{log:?}"
        );
    }
}

#[test]
fn restart_aborts_running_immediate_commands() {
    let store = Arc::new(MemoryStore::new(64 << 20));
    let bench = Bench::with(OsdConfig::default(), store.clone());
    bench.create_partition(PID);
    graded(&bench, 3);
    let create = CreateTracking { object: user(CID), source: EVERYTHING, immediate: true };
    bench.track(create).good();
    drop(bench);
    let bench = Bench::start(OsdConfig::default(), store, 2, 0);
    bench.keys.lock().add_partition(PID).unwrap();
    assert!(!bench.unit.work());
    assert_eq!((page(&bench, CID, 2), page(&bench, CID, 3)), (vec![0, 0], vec![0x88, 0x94]));
    let sense = Sense::parse(&page(&bench, CID, 4)).unwrap();
    assert_eq!(sense.key.nibble(), 0xB, "ABORTED COMMAND");
    let remove = RemoveCollection { object: user(CID), force: true };
    bench.run(Command::RemoveCollection(remove), ListPair::default(), &[]).good();
}
