//! The CDB continuation segment: scatter/gather lists, and invalid content.

use crate::cdb::{self, pieces, segment};
use crate::device::{Device, ILLEGAL};
use crate::suite::behaviours;

behaviours! { "Continuation segments";
    Osd2 "t10-osd 1.8" scattered_write_stores_each_piece;
    Osd2 "t10-osd 1.8" gathered_read_returns_pieces_in_order;
    Osd2 "t10-osd 1.8" an_object_is_created_with_scattered_data;
    Osd2 "t10-osd 1.8" pieces_count_from_the_starting_byte;
    Osd2 "t10-osd 1.8" attributes_stand_behind_a_segment;
    Osd2 "t10-osd 1.8" lengths_that_do_not_add_up_are_refused;
    Osd2 "t10-osd 1.8" a_segment_of_another_service_action_is_refused;
    Osd2 "t10-osd 1.8" a_segment_of_an_unknown_format_is_refused;
    Osd2 "t10-osd 1.8" a_descriptor_that_does_not_belong_is_refused;
    Osd2 "t10-osd 1.8" a_list_twice_is_refused;
    Osd2 "t10-osd 1.8" descriptor_past_the_end_is_refused;
    Osd2 "t10-osd 1.8" commands_without_continuation_refuse_a_segment;
    Osd2 "t10-osd 3.5 R+1/Ah" a_segment_beyond_the_limit_is_refused;
}

fn scattered(device: &Device, object: u64, data: &[u8], list: &[(u64, u64)]) -> cdb::Request {
    device.user(cdb::WRITE, object).sends(data).continues(segment(cdb::WRITE, &[(1, pieces(list))]))
}

fn scattered_write_stores_each_piece(device: &mut Device) {
    let object = device.object(b"..........");
    let request = scattered(device, object, b"abcdef", &[(8, 2), (0, 3), (5, 1)]);
    device.run(request).good();
    device.holds(object, b"cde..f..ab");
}

fn gathered_read_returns_pieces_in_order(device: &mut Device) {
    let object = device.object(b"0123456789");
    let list = segment(cdb::READ, &[(1, pieces(&[(7, 3), (0, 2), (4, 1)]))]);
    let request = device.user(cdb::READ, object).fetches(6).continues(list);
    assert_eq!(device.run(request).good().data, b"789014");
}

fn an_object_is_created_with_scattered_data(device: &mut Device) {
    let list = segment(cdb::CREATE_AND_WRITE, &[(1, pieces(&[(4, 2), (0, 2)]))]);
    let request = device.user(cdb::CREATE_AND_WRITE, 0x5_0000).sends(b"abcd").continues(list);
    device.run(request).good();
    device.holds(0x5_0000, b"cd\0\0ab");
}

fn pieces_count_from_the_starting_byte(device: &mut Device) {
    let object = device.object(b"..........");
    let request = scattered(device, object, b"abcd", &[(0, 2), (4, 2)]).start(3);
    device.run(request).good();
    device.holds(object, b"...ab..cd.");
}

fn attributes_stand_behind_a_segment(device: &mut Device) {
    let object = device.create();
    let request = scattered(device, object, b"abcd", &[(0, 4)]).sets(1, 9, b"name").gets(&[(1, 9)]);
    assert_eq!(device.run(request).good().value(), b"name");
    device.holds(object, b"abcd");
}

/// Sends an invalid segment: refused at CDB CONTINUATION LENGTH, or at a byte of the segment, and
/// nothing is written.
fn broken(device: &mut Device, object: u64, request: cdb::Request) {
    let answer = device.run(request);
    let sense = answer.sense.clone().expect("sense data");
    assert_eq!(sense.key, ILLEGAL, "{sense:04x?}");
    assert!(matches!(sense.code, 0x2400 | 0x2600), "{sense:04x?}");
    let (in_cdb, byte) = sense.field.expect("a field pointer");
    assert!(!in_cdb || byte == 48, "{sense:04x?}");
    device.holds(object, b"..........");
}

fn lengths_that_do_not_add_up_are_refused(device: &mut Device) {
    let object = device.object(b"..........");
    for list in [&[(0, 3)][..], &[(0, 2), (4, 3)], &[(0, u64::MAX), (1, 5)], &[]] {
        let request = scattered(device, object, b"abcd", list);
        broken(device, object, request);
    }
}

fn a_segment_of_another_service_action_is_refused(device: &mut Device) {
    let object = device.object(b"..........");
    let list = segment(cdb::READ, &[(1, pieces(&[(0, 4)]))]);
    let request = device.user(cdb::WRITE, object).sends(b"abcd").continues(list);
    broken(device, object, request);
}

fn a_segment_of_an_unknown_format_is_refused(device: &mut Device) {
    let object = device.object(b"..........");
    let mut list = segment(cdb::WRITE, &[(1, pieces(&[(0, 4)]))]);
    list[0] = 2;
    let request = device.user(cdb::WRITE, object).sends(b"abcd").continues(list);
    broken(device, object, request);
}

fn a_descriptor_that_does_not_belong_is_refused(device: &mut Device) {
    let object = device.object(b"..........");
    for kind in [2, 0x0101, 0xFFEE, 0x7777] {
        let list = segment(cdb::WRITE, &[(kind, vec![0; 104])]);
        let request = device.user(cdb::WRITE, object).sends(b"abcd").continues(list);
        broken(device, object, request);
    }
}

fn a_list_twice_is_refused(device: &mut Device) {
    let object = device.object(b"..........");
    let one = (1, pieces(&[(0, 4)]));
    let list = segment(cdb::WRITE, &[one.clone(), one]);
    let request = device.user(cdb::WRITE, object).sends(b"abcd").continues(list);
    broken(device, object, request);
}

fn descriptor_past_the_end_is_refused(device: &mut Device) {
    let object = device.object(b"..........");
    let mut list = segment(cdb::WRITE, &[(1, pieces(&[(0, 4)]))]);
    list[47] += 16;
    let request = device.user(cdb::WRITE, object).sends(b"abcd").continues(list);
    broken(device, object, request);
}

fn commands_without_continuation_refuse_a_segment(device: &mut Device) {
    let object = device.object(b"..........");
    for action in [cdb::APPEND, cdb::CLEAR, cdb::REMOVE, cdb::GET_ATTRIBUTES] {
        let list = segment(action, &[(1, pieces(&[(0, 0)]))]);
        let request = device.user(action, object).continues(list);
        let answer = device.run(request).refused(ILLEGAL, 0x2400);
        if !device.secured() {
            answer.points_at(48);
        }
    }
    device.holds(object, b"..........");
}

fn a_segment_beyond_the_limit_is_refused(device: &mut Device) {
    let limit = crate::device::number(&device.of_root(0x9000_0001, 0xA)) as usize;
    assert!(limit >= 48, "{limit}");
    let object = device.object(b"..........");
    let mut list = segment(cdb::WRITE, &[(1, pieces(&[(0, 4)]))]);
    list.resize((limit + 8).next_multiple_of(8), 0);
    let request = device.user(cdb::WRITE, object).sends(b"abcd").continues(list);
    broken(device, object, request);
}
