//! Behaviours of LIST.

use crate::cdb;
use crate::device::{Device, ILLEGAL, VerifiedReply, number};
use crate::list;
use crate::suite::behaviours;

behaviours! { "LIST";
    Osd "t10-osd 1.9 LIST" objects_are_listed_in_ascending_order;
    Osd "t10-osd 1.9 LIST" partitions_are_listed_at_the_root;
    Osd "t10-osd 1.9 LIST" short_list_has_whole_entries_and_continuation;
    Osd "t10-osd 1.9 LIST" continued_lists_cover_all_objects;
    Osd "t10-osd 1.9 LIST" a_list_starts_at_its_initial_id;
    Osd "t10-osd 1.9 LIST, LSTCHG" continued_list_reports_concurrent_changes;
    Osd "t10-osd 1.9 LIST" an_allocation_of_nothing_is_no_error;
    Osd "t10-osd 1.9 LIST" an_allocation_below_the_header_is_refused;
    Osd "t10-osd 1.9 LIST" unknown_list_identifier_is_refused;
    Osd "t10-osd 1.9 LIST" a_reserved_sort_order_is_refused;
    Osd "t10-osd 1.9 LIST" descriptor_format_identifies_listed_objects;
    Osd2 "t10-osd 1.9 LIST_ATTR" list_entries_include_attributes;
    Osd "t10-osd 1.9 LIST" listing_a_missing_partition_is_refused;
}

fn list_of(device: &mut Device, allocation: usize, initial: u64) -> VerifiedReply {
    let request = device.own(cdb::LIST).fetches(allocation).start(initial);
    device.run(request).good()
}

fn ids(data: &[u8]) -> Vec<u64> {
    data[24..].chunks_exact(8).map(number).collect()
}

fn numbered(device: &mut Device, count: u64) -> Vec<u64> {
    let all: Vec<u64> = (0..count).map(|at| 0x2_0000 + 3 * at).collect();
    for object in all.iter().rev() {
        let request = device.user(cdb::CREATE, *object);
        device.run(request).good();
    }
    all
}

fn objects_are_listed_in_ascending_order(device: &mut Device) {
    let all = numbered(device, 20);
    let data = list_of(device, 24 + 8 * 20, 0).data;
    assert_eq!(ids(&data), all);
    assert_eq!((number(&data[..8]), number(&data[8..16])), (16 + 8 * 20, 0), "length, and no continuation");
}

fn partitions_are_listed_at_the_root(device: &mut Device) {
    let request = device.request(cdb::LIST).fetches(24 + 8 * 1000).start(device.partition);
    let data = device.run(request).good().data;
    assert_eq!(ids(&data[..32]), [device.partition]);
    let format = data[23];
    assert_eq!(format, if device.osd2() { 0x04 } else { format & 0x03 | 1 });
}

fn short_list_has_whole_entries_and_continuation(device: &mut Device) {
    let all = numbered(device, 10);
    let data = list_of(device, 24 + 8 * 4 + 5, 0).data;
    let end = 24 + 8 * 4;
    assert_eq!(ids(&data[..end.min(data.len())]), all[..4]);
    assert_eq!(number(&data[8..16]), all[4]);
    let reported = number(&data[..8]);
    assert!(
        reported == 16 + 80 || reported == u64::MAX,
        "the length of the whole list, or unknown: {reported:#x}"
    );
}

fn continued_lists_cover_all_objects(device: &mut Device) {
    let all = numbered(device, 23);
    let (mut found, mut initial) = (Vec::<u64>::new(), 0);
    for _ in 0..12 {
        let data = list_of(device, 24 + 8 * 5, initial).data;
        initial = number(&data[8..16]);
        let took = if initial == 0 { all.len() - found.len() } else { 5 };
        found.extend(&ids(&data)[..took]);
        if initial == 0 {
            break;
        }
    }
    assert_eq!(found, all);
}

fn a_list_starts_at_its_initial_id(device: &mut Device) {
    let all = numbered(device, 6);
    let data = list_of(device, 24 + 8 * 10, all[3]).data;
    assert_eq!(number(&data[24..32]), all[3]);
    let data = list_of(device, 24 + 8 * 10, all[3] + 1).data;
    assert_eq!(number(&data[24..32]), all[4]);
}

/// The list identifier of the first part, if there is one, binds a series; zero binds nothing.
fn continued_list_reports_concurrent_changes(device: &mut Device) {
    numbered(device, 10);
    let first = list_of(device, 24 + 8 * 4, 0).data;
    let (initial, id) = (number(&first[8..16]), first[16..20].to_vec());
    if id == [0; 4] {
        return;
    }
    let at = device.generation.pick(32, 48);
    let part = |device: &mut Device| {
        let request = device.own(cdb::LIST).fetches(24 + 8 * 4).start(initial).with(at, &id);
        let data = device.run(request).good().data;
        assert_eq!(number(&data[24..32]), initial);
        data[23] & 0x02
    };
    assert_eq!(part(device), 0x00, "nothing changed");
    let object = device.create();
    assert_eq!(part(device), 0x02, "LSTCHG: one came");
    let again = list_of(device, 24 + 8 * 4, 0).data;
    assert_eq!(again[23] & 0x02, 0, "a new series begins anew");
    let remove = device.user(cdb::REMOVE, object);
    device.run(remove).good();
    assert_eq!(part(device), 0x02, "LSTCHG: one went");
}

fn an_allocation_of_nothing_is_no_error(device: &mut Device) {
    numbered(device, 2);
    assert!(list_of(device, 0, 0).data.is_empty());
}

fn an_allocation_below_the_header_is_refused(device: &mut Device) {
    for allocation in [1, 23] {
        let request = device.own(cdb::LIST).fetches(allocation);
        let at = request.length_at();
        device.run(request).invalid(at);
    }
}

fn unknown_list_identifier_is_refused(device: &mut Device) {
    let at = device.generation.pick(32, 48);
    let request = device.own(cdb::LIST).fetches(64).with(at, &0x1234_u32.to_be_bytes());
    device.run(request).invalid(at);
}

fn a_reserved_sort_order_is_refused(device: &mut Device) {
    let request = device.own(cdb::LIST).fetches(64).specific(1);
    let answer = device.run(request).refused(ILLEGAL, 0x2400);
    if !device.secured() {
        answer.points_at(11);
    }
}

fn descriptor_format_identifies_listed_objects(device: &mut Device) {
    numbered(device, 1);
    let format = list_of(device, 64, 0).data[23];
    assert_eq!(format & device.generation.pick(0x01, 0xFC), device.generation.pick(0x00, 0x84));
}

fn list_entries_include_attributes(device: &mut Device) {
    let all = numbered(device, 3);
    for object in &all {
        device.set(*object, 1, 9, format!("object {object:x}").as_bytes()).good();
    }
    let request = device.own(cdb::LIST).fetches(2048).specific(0x40).gets(&[(1, 9), (1, 2)]);
    let data = device.run(request).good().data;
    assert_eq!(data[23] & 0xFC, 0x88, "user objects with attributes");
    let mut rest = &data[24..];
    for object in &all {
        let length = usize::from(u16::from_be_bytes([rest[14], rest[15]]));
        assert_eq!((number(&rest[..8]), rest[8]), (*object, cdb::USER));
        let entries = list::entries(device.generation, &rest[16..16 + length]);
        assert_eq!(entries[0].1, format!("object {object:x}").into_bytes());
        assert_eq!(number(&entries[1].1), *object);
        rest = &rest[16 + length..];
    }
}

fn listing_a_missing_partition_is_refused(device: &mut Device) {
    let request =
        device.request(cdb::LIST).at(cdb::PARTITION, crate::runner::free_partition(), 0).fetches(64);
    device.run(request).refused(ILLEGAL, 0x2400);
}
