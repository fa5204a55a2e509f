//! Collections, their members, and QUERY.

use crate::cdb::{self, COLLECTION, segment};
use crate::device::{Device, GOOD, ILLEGAL, VerifiedReply, number};
use crate::list;
use crate::suite::behaviours;

behaviours! { "Collections and QUERY";
    Osd "t10-osd 1.10 collection membership" membership_attribute_joins_and_leaves_a_collection;
    Osd "t10-osd 3.5 U+4" changed_membership_attribute_moves_the_object;
    Osd "t10-osd 3.5 U+4" an_object_is_in_a_collection_once;
    Osd "t10-osd 3.5 U+4" joining_a_missing_collection_is_refused;
    Osd "t10-osd 1.10 CREATE" an_object_is_created_into_a_collection;
    Osd "t10-osd 1.9 LIST COLLECTION" collections_of_a_partition_are_listed;
    Osd "t10-osd 2" collections_and_user_objects_share_their_ids;
    Osd "t10-osd 2" ids_below_10000h_are_refused_for_collections;
    Osd "t10-osd 1.10 REMOVE COLLECTION" a_collection_with_members_is_not_removed;
    Osd "t10-osd 1.10 REMOVE COLLECTION" a_forced_removal_drops_memberships_and_keeps_objects;
    Osd "t10-osd 1.10 REMOVE" a_removed_object_leaves_its_collections;
    Osd "t10-osd 1.9 LIST" a_list_of_objects_has_no_collections;
    Osd "t10-osd 1.10 FLUSH COLLECTION" a_collection_is_flushed;
    Osd "t10-osd 3.5 C+1" collection_has_ids_and_name;
    Osd "t10-osd 3.5 P+2/10081h" collections_of_one_object_are_limited;
    Osd "t10-osd 1.10" commands_on_user_objects_refuse_collections;
    Osd2 "t10-osd 1.10 GET MEMBER ATTRIBUTES" attributes_of_all_members_are_fetched;
    Osd2 "t10-osd 1.10 SET MEMBER ATTRIBUTES" attributes_of_all_members_are_set;
    Osd2 "t10-osd 1.10 REMOVE MEMBER OBJECTS" member_objects_are_removed_and_the_collection_stays;
    Osd2 "t10-osd 2 TRACKING" tracking_collection_copies_members_of_its_source;
    Osd2 "t10-osd 1.9 QUERY" no_criteria_select_all_members;
    Osd2 "t10-osd 1.9 QUERY" bounds_are_inclusive;
    Osd2 "t10-osd 1.9 QUERY" union_takes_any_and_intersection_all;
    Osd2 "t10-osd 1.9 QUERY" an_undefined_attribute_matches_nothing;
    Osd2 "t10-osd 1.9 QUERY" short_allocation_returns_whole_ids_and_length;
    Osd2 "t10-osd 1.9 QUERY" matches_go_into_a_tracking_collection;
    Osd2 "t10-osd 1.9 QUERY" a_query_without_its_list_is_refused;
    Secured "security: extension capabilities" second_collection_requires_its_own_permission;
}

const GRADE: (u32, u32) = (0x1_0000, 1);

fn on(device: &Device, action: cdb::ServiceAction, id: u64) -> cdb::Request {
    device.request(action).at(COLLECTION, device.partition, id)
}

/// Creates a collection.
fn collection(device: &mut Device) -> u64 {
    let request = on(device, cdb::CREATE_COLLECTION, 0).gets(&[(0xFFFF_FFFE, 4)]);
    device.run(request).good().number()
}

fn tracking(device: &mut Device, source: u64) -> u64 {
    let mut request = on(device, cdb::CREATE_TRACKING, 0).start(source).gets(&[(0xFFFF_FFFE, 4)]);
    if source != 0 {
        // READ permission for the source.
        device.reaches(&mut request, (COLLECTION, source, 0x8000));
    }
    device.run(request).good().number()
}

fn join(device: &mut Device, object: u64, attribute: u32, id: u64) -> VerifiedReply {
    device.set(object, 4, attribute, &id.to_be_bytes())
}

fn listed(device: &mut Device, request: cdb::Request) -> Vec<u64> {
    let data = device.run(request.fetches(24 + 8 * 256)).good().data;
    let end = 24 + number(&data[..8]) as usize - 16;
    data[24..end].chunks_exact(8).map(number).collect()
}

fn members(device: &mut Device, id: u64) -> Vec<u64> {
    let request = on(device, cdb::LIST_COLLECTION, id);
    listed(device, request)
}

/// Creates this many objects with grades from 0, all in a new collection.
fn graded(device: &mut Device, count: u8) -> (u64, Vec<u64>) {
    let id = collection(device);
    let objects = (0..count)
        .map(|grade| {
            let object = device.create();
            device.set(object, GRADE.0, GRADE.1, &[grade]).good();
            join(device, object, 1, id).good();
            object
        })
        .collect();
    (id, objects)
}

fn membership_attribute_joins_and_leaves_a_collection(device: &mut Device) {
    let (one, other, id) = (device.create(), device.create(), collection(device));
    join(device, one, 1, id).good();
    join(device, other, 7, id).good();
    assert_eq!(members(device, id), [one, other]);
    assert_eq!(number(&device.get(other, 4, 7)), id);
    device.set(one, 4, 1, b"").good();
    assert_eq!(members(device, id), [other]);
}

fn changed_membership_attribute_moves_the_object(device: &mut Device) {
    let (object, from, to) = (device.create(), collection(device), collection(device));
    join(device, object, 1, from).good();
    join(device, object, 1, to).good();
    assert_eq!((members(device, from), members(device, to)), (vec![], vec![object]));
}

fn an_object_is_in_a_collection_once(device: &mut Device) {
    let (object, id) = (device.create(), collection(device));
    join(device, object, 1, id).good();
    join(device, object, 2, id).refused(ILLEGAL, 0x2600);
    assert_eq!(members(device, id), [object]);
}

fn joining_a_missing_collection_is_refused(device: &mut Device) {
    let (object, other) = (device.create(), device.create());
    collection(device);
    for wrong in [0x77_7777, other] {
        join(device, object, 1, wrong).refused(ILLEGAL, 0x2600);
    }
}

fn an_object_is_created_into_a_collection(device: &mut Device) {
    let id = collection(device);
    let request = device.user(cdb::CREATE, 0x9_0000).sets(4, 1, &id.to_be_bytes());
    device.run(request).good();
    assert_eq!(members(device, id), [0x9_0000]);
}

fn collections_of_a_partition_are_listed(device: &mut Device) {
    let mut all = vec![collection(device), collection(device), collection(device)];
    device.create();
    all.sort_unstable();
    let request = device.own(cdb::LIST_COLLECTION);
    let found = listed(device, request);
    // Well-known collections may precede created ones.
    assert_eq!(found.into_iter().filter(|id| *id >= 0x1_0000).collect::<Vec<_>>(), all);
}

fn collections_and_user_objects_share_their_ids(device: &mut Device) {
    let (object, id) = (device.create(), collection(device));
    let request = on(device, cdb::CREATE_COLLECTION, object);
    device.run(request).invalid(24);
    let request = device.user(cdb::CREATE, id);
    device.run(request).invalid(24);
}

fn ids_below_10000h_are_refused_for_collections(device: &mut Device) {
    let request = on(device, cdb::CREATE_COLLECTION, 0xFFFF);
    device.run(request).invalid(24);
}

fn a_collection_with_members_is_not_removed(device: &mut Device) {
    let (id, objects) = graded(device, 2);
    let request = on(device, cdb::REMOVE_COLLECTION, id);
    device.run(request).refused(ILLEGAL, 0x2C0A);
    assert_eq!(members(device, id), objects);
}

fn a_forced_removal_drops_memberships_and_keeps_objects(device: &mut Device) {
    let (id, objects) = graded(device, 2);
    let request = on(device, cdb::REMOVE_COLLECTION, id).specific(1);
    device.run(request).good();
    assert!(device.get(objects[0], 4, 1).is_empty(), "no membership is left");
    assert_eq!(device.list(), objects);
}

fn a_removed_object_leaves_its_collections(device: &mut Device) {
    let (id, objects) = graded(device, 2);
    let request = device.user(cdb::REMOVE, objects[0]);
    device.run(request).good();
    assert_eq!(members(device, id), objects[1..]);
}

fn a_list_of_objects_has_no_collections(device: &mut Device) {
    let object = device.create();
    collection(device);
    assert_eq!(device.list(), [object]);
}

fn a_collection_is_flushed(device: &mut Device) {
    let (id, _) = graded(device, 1);
    for scope in 0..3 {
        let request = on(device, cdb::FLUSH_COLLECTION, id);
        let request = if device.osd2() { request.specific(scope) } else { request.options(scope) };
        device.run(request).good();
    }
}

fn collection_has_ids_and_name(device: &mut Device) {
    let id = collection(device);
    let request = on(device, cdb::SET_ATTRIBUTES, id).sets(0x6000_0001, 9, b"named");
    device.run(request).good();
    let request =
        on(device, cdb::GET_ATTRIBUTES, id).gets(&[(0x6000_0001, 1), (0x6000_0001, 2), (0x6000_0001, 9)]);
    let entries = device.run(request).good().entries();
    assert_eq!((number(&entries[0].1), number(&entries[1].1)), (device.partition, id));
    assert_eq!(entries[2].1, b"named");
}

fn collections_of_one_object_are_limited(device: &mut Device) {
    let (object, one, other) = (device.create(), collection(device), collection(device));
    let request = device.own(cdb::SET_ATTRIBUTES).sets(0x3000_0002, 0x1_0081, &1_u32.to_be_bytes());
    device.run(request).good();
    join(device, object, 1, one).good();
    join(device, object, 2, other).refused(7, 0x5507);
}

fn commands_on_user_objects_refuse_collections(device: &mut Device) {
    let id = collection(device);
    for request in [device.user(cdb::READ, id).fetches(4), device.user(cdb::WRITE, id).sends(b"data")] {
        let answer = device.run(request);
        assert_ne!(answer.status, GOOD);
    }
    let request = device.user(cdb::REMOVE, id);
    assert_ne!(device.run(request).status, GOOD);
    assert!(members(device, id).is_empty(), "it is still there");
}

/// Parses entries of a type-E list: object, type, attributes.
fn by_object(answer: &VerifiedReply) -> Vec<(u64, Vec<Vec<u8>>)> {
    let bytes = &answer.attributes;
    assert_eq!(bytes[0] & 0x0F, 0x0E, "list type");
    let end = 8 + number(&bytes[4..8]) as usize;
    let mut rest = &bytes[8..end];
    let mut found = Vec::new();
    while rest.len() >= 16 {
        let length = usize::from(u16::from_be_bytes([rest[14], rest[15]]));
        let entries = list::entries(answer.generation, &rest[16..16 + length]);
        found.push((number(&rest[..8]), entries.into_iter().map(|(_, value)| value).collect()));
        rest = &rest[16 + length..];
    }
    found
}

fn attributes_of_all_members_are_fetched(device: &mut Device) {
    let (id, objects) = graded(device, 3);
    let request = on(device, cdb::GET_MEMBERS, id).gets(&[GRADE, (1, 2)]);
    let found = by_object(&device.run(request).good());
    assert_eq!(found.iter().map(|(object, _)| *object).collect::<Vec<_>>(), objects);
    for (grade, (object, values)) in (0_u8..).zip(&found) {
        assert_eq!((&values[0][..], number(&values[1])), (&[grade][..], *object));
    }
}

fn attributes_of_all_members_are_set(device: &mut Device) {
    let (id, objects) = graded(device, 3);
    let stranger = device.create();
    let request = on(device, cdb::SET_MEMBERS, id).sets(0x1_0000, 2, b"member");
    device.run(request).good();
    for object in objects {
        assert_eq!(device.get(object, 0x1_0000, 2), b"member");
    }
    assert!(device.get(stranger, 0x1_0000, 2).is_empty());
}

fn member_objects_are_removed_and_the_collection_stays(device: &mut Device) {
    let (id, _) = graded(device, 3);
    let stranger = device.create();
    let request = on(device, cdb::REMOVE_MEMBERS, id);
    device.run(request).good();
    assert_eq!((device.list(), members(device, id)), (vec![stranger], vec![]));
}

fn tracking_collection_copies_members_of_its_source(device: &mut Device) {
    let (id, objects) = graded(device, 3);
    let copy = tracking(device, id);
    assert_eq!(members(device, copy), objects);
    let request = on(device, cdb::GET_ATTRIBUTES, copy).gets(&[(0x6000_0001, 0xA)]);
    assert_eq!(device.run(request).good().value(), [1], "collection type TRACKING");
}

/// Builds a query list: type, then page, number, bounds of each criterion.
fn criteria(kind: u8, all: &[((u32, u32), &[u8], &[u8])]) -> Vec<u8> {
    let mut list = vec![kind, 0, 0, 0];
    for ((page, number), min, max) in all {
        let length = 4 + 4 + 2 + min.len() + 2 + max.len();
        list.extend_from_slice(&[0, 0]);
        list.extend_from_slice(&(length as u16).to_be_bytes());
        list.extend_from_slice(&page.to_be_bytes());
        list.extend_from_slice(&number.to_be_bytes());
        list.extend_from_slice(&(min.len() as u16).to_be_bytes());
        list.extend_from_slice(min);
        list.extend_from_slice(&(max.len() as u16).to_be_bytes());
        list.extend_from_slice(max);
    }
    list.resize(list.len().next_multiple_of(8), 0);
    list
}

fn query(device: &mut Device, id: u64, allocation: usize, into: u64, list: Vec<u8>) -> VerifiedReply {
    let request = on(device, cdb::QUERY, id).fetches(allocation).start(into);
    let mut request = request.continues(segment(cdb::QUERY, &[(2, list)]));
    if into != 0 {
        // M_OBJECT permission, for matches that are added to a collection.
        device.reaches(&mut request, (COLLECTION, into, 0x0010));
    }
    device.run(request)
}

fn ask(device: &mut Device, id: u64, kind: u8, all: &[((u32, u32), &[u8], &[u8])]) -> Vec<u64> {
    let data = query(device, id, 2048, 0, criteria(kind, all)).good().data;
    let ids = (number(&data[..8]) as usize - 4) / 8;
    assert_eq!(data[11], 0x84, "object descriptor format: user objects");
    data[12..12 + 8 * ids].chunks_exact(8).map(number).collect()
}

const UNION: u8 = 0;
const INTERSECTION: u8 = 1;

fn no_criteria_select_all_members(device: &mut Device) {
    let (id, objects) = graded(device, 4);
    let id = tracking(device, id);
    assert_eq!(ask(device, id, UNION, &[]), objects);
    assert_eq!(ask(device, id, INTERSECTION, &[]), objects);
}

fn bounds_are_inclusive(device: &mut Device) {
    let (id, objects) = graded(device, 6);
    let id = tracking(device, id);
    assert_eq!(ask(device, id, UNION, &[(GRADE, &[2], &[4])]), objects[2..5]);
    assert_eq!(ask(device, id, UNION, &[(GRADE, &[], &[1])]), objects[..2], "no lower bound");
    assert_eq!(ask(device, id, UNION, &[(GRADE, &[4], &[])]), objects[4..], "no upper bound");
}

fn union_takes_any_and_intersection_all(device: &mut Device) {
    let (id, objects) = graded(device, 6);
    let id = tracking(device, id);
    let (low, high): ((_, &[u8], &[u8]), (_, &[u8], &[u8])) = ((GRADE, &[], &[1]), (GRADE, &[5], &[]));
    assert_eq!(ask(device, id, UNION, &[low, high]), [objects[0], objects[1], objects[5]]);
    assert_eq!(ask(device, id, INTERSECTION, &[low, high]), [0; 0]);
    assert_eq!(ask(device, id, INTERSECTION, &[(GRADE, &[1], &[]), (GRADE, &[], &[3])]), objects[1..4]);
}

fn an_undefined_attribute_matches_nothing(device: &mut Device) {
    let (id, _) = graded(device, 3);
    let id = tracking(device, id);
    assert_eq!(ask(device, id, UNION, &[((0x1_0000, 99), &[], &[])]), [0; 0]);
}

fn short_allocation_returns_whole_ids_and_length(device: &mut Device) {
    let (id, objects) = graded(device, 5);
    let id = tracking(device, id);
    let data = query(device, id, 12 + 8 * 2 + 5, 0, criteria(UNION, &[])).good().data;
    assert_eq!(number(&data[..8]), 4 + 8 * 5, "of the complete answer");
    assert_eq!(data[12..28].chunks_exact(8).map(number).collect::<Vec<_>>(), objects[..2]);
    assert!(data[28..].iter().all(|byte| *byte == 0));
}

fn matches_go_into_a_tracking_collection(device: &mut Device) {
    let (id, objects) = graded(device, 5);
    let (from, into) = (tracking(device, id), tracking(device, 0));
    query(device, from, 0, into, criteria(UNION, &[(GRADE, &[3], &[])])).good();
    assert_eq!(members(device, into), objects[3..]);
}

/// All rights on the collection that the command's capability names do not suffice for another
/// collection.
fn second_collection_requires_its_own_permission(device: &mut Device) {
    if !device.osd2() {
        return;
    }
    let (id, _) = graded(device, 2);
    let (from, into) = (tracking(device, id), tracking(device, 0));
    let list = || segment(cdb::QUERY, &[(2, criteria(UNION, &[]))]);
    let ask = |device: &Device| on(device, cdb::QUERY, from).start(into).continues(list());
    let track = |device: &Device| on(device, cdb::CREATE_TRACKING, 0).start(from);
    let everything = 0xFFFC;
    for mut request in [ask(device), track(device)] {
        request.permissions = everything;
        device.run(request).refused(ILLEGAL, 0x2400);
    }
    for (mut request, object) in [(ask(device), into), (track(device), from)] {
        // Every right but the required one, and that right on another collection.
        let needed = if object == into { 0x0010 } else { 0x8000 };
        let mut elsewhere = request.clone();
        request.permissions = everything;
        request.further = Some((COLLECTION, object, everything & !needed));
        device.run(request).refused(ILLEGAL, 0x2400);
        elsewhere.further = Some((COLLECTION, id, everything));
        device.run(elsewhere).refused(ILLEGAL, 0x2400);
    }
    assert!(members(device, into).is_empty());
}

fn a_query_without_its_list_is_refused(device: &mut Device) {
    let (id, _) = graded(device, 1);
    let id = tracking(device, id);
    let request = on(device, cdb::QUERY, id).fetches(256);
    let answer = device.run(request).refused(ILLEGAL, 0x2400);
    if !device.secured() {
        answer.points_at(48);
    }
}
