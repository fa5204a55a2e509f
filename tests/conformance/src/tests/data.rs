//! READ, WRITE, APPEND, CLEAR, PUNCH.

use crate::cdb;
use crate::device::{CHECK, Device, ILLEGAL, number};
use crate::suite::behaviours;

behaviours! { "Data";
    Osd "t10-osd 1.10 WRITE" written_data_is_read;
    Osd "t10-osd 1.10 WRITE" a_write_changes_its_range_and_nothing_else;
    Osd "t10-osd 1.10 WRITE" a_write_extends_the_logical_length;
    Osd "t10-osd 1.10 WRITE" a_hole_reads_as_zeros;
    Osd "t10-osd 1.10 WRITE" a_write_of_nothing_transfers_nothing;
    Osd "t10-osd 1.10 WRITE" write_to_a_missing_object_is_refused;
    Osd "t10-osd 1.10 WRITE" write_ending_beyond_64_bits_is_refused;
    Osd "t10-osd 1.10 WRITE" large_transfers_arrive_whole;
    Osd "t10-osd 1.1 OPTIONS" fua_and_dpo_are_accepted;
    Osd "t10-osd 1.10 READ" a_read_within_the_object_is_exact;
    Osd "t10-osd 1.10 READ, 5.3 3B17" read_past_the_end_reports_its_length;
    Osd "t10-osd 1.10 READ" a_read_at_the_end_reads_nothing;
    Osd "t10-osd 1.10 READ" read_starting_beyond_the_end_is_refused;
    Osd "t10-osd 1.10 READ" a_read_of_nothing_is_good;
    Osd "t10-osd 1.10 READ" read_past_the_end_returns_attributes;
    Osd "t10-osd 1.10 READ" read_of_a_missing_object_is_refused;
    Osd "t10-osd 1.10 APPEND" append_writes_at_the_end;
    Osd "t10-osd 1.10 APPEND, 3.5 FFFFFFFEh/5" append_reports_its_start;
    Osd "t10-osd 1.10 APPEND" an_append_of_nothing_changes_nothing;
    Osd2 "t10-osd 1.10 CLEAR" clear_writes_zeros;
    Osd2 "t10-osd 1.10 CLEAR" clear_beyond_the_end_extends;
    Osd2 "t10-osd 1.10 PUNCH" punch_removes_a_range_and_shifts_the_rest;
    Osd2 "t10-osd 1.10 PUNCH" punch_over_the_end_cuts_at_its_start;
    Osd2 "t10-osd 1.10 PUNCH" punch_beyond_the_end_is_refused;
    Osd2 "t10-osd 1.10 PUNCH" punch_of_nothing_changes_nothing;
    Osd "t10-osd 3.5 U+1/82h" a_set_length_truncates_and_extends_with_zeros;
    Osd "t10-osd 3.5 U+2/1, 5.3 5507" the_maximum_length_of_an_object_binds;
    Osd "t10-osd 3.5 P+2/10002h, 5.3 5507" the_object_count_of_a_partition_binds;
    Osd "t10-osd 3.5 P+2/10001h, 5.3 5507" the_capacity_of_a_partition_binds;
    Osd "t10-osd 1.7" attributes_travel_both_ways_with_data;
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 % 251) as u8).collect()
}

fn written_data_is_read(device: &mut Device) {
    let data = pattern(10_000);
    let object = device.object(&data);
    device.holds(object, &data);
}

fn a_write_changes_its_range_and_nothing_else(device: &mut Device) {
    let object = device.object(b"abcdefghij");
    device.write(object, 3, b"DEF");
    device.holds(object, b"abcDEFghij");
}

fn a_write_extends_the_logical_length(device: &mut Device) {
    let object = device.object(b"abc");
    device.write(object, 2, b"CDE");
    device.holds(object, b"abCDE");
}

fn a_hole_reads_as_zeros(device: &mut Device) {
    let object = device.create();
    device.write(object, 100_000, b"end");
    let data = device.read(object, 0, 100_003).good().data;
    assert!(data[..100_000].iter().all(|byte| *byte == 0) && &data[100_000..] == b"end");
}

fn a_write_of_nothing_transfers_nothing(device: &mut Device) {
    let object = device.object(b"abc");
    let request = device.user(cdb::WRITE, object).sends(b"");
    device.run(request).good();
    device.holds(object, b"abc");
}

fn write_to_a_missing_object_is_refused(device: &mut Device) {
    let request = device.user(cdb::WRITE, 0x55_5555).sends(b"lost");
    device.run(request).invalid(24);
    assert!(device.list().is_empty(), "nothing was made");
}

fn write_ending_beyond_64_bits_is_refused(device: &mut Device) {
    let object = device.create();
    let request = device.user(cdb::WRITE, object).sends(b"overflow").start(u64::MAX - 3);
    device.run(request).refused(ILLEGAL, 0x2400);
    assert_eq!(device.length(object), 0);
}

fn large_transfers_arrive_whole(device: &mut Device) {
    let data = pattern(1_500_003);
    let object = device.object(&data);
    device.holds(object, &data);
}

fn fua_and_dpo_are_accepted(device: &mut Device) {
    let object = device.create();
    let request = device.user(cdb::WRITE, object).sends(b"forced").options(0x18);
    device.run(request).good();
    let request = device.user(cdb::READ, object).fetches(6).options(0x18);
    assert_eq!(device.run(request).good().data, b"forced");
}

fn a_read_within_the_object_is_exact(device: &mut Device) {
    let data = pattern(5000);
    let object = device.object(&data);
    for (at, length) in [(0, 1), (1, 4999), (4096, 904), (4999, 1)] {
        assert_eq!(device.read(object, at, length).good().data, data[at as usize..at as usize + length]);
    }
}

fn read_past_the_end_reports_its_length(device: &mut Device) {
    let object = device.object(b"ten bytes!");
    let answer = device.read(object, 4, 100).refused(1, 0x3B17);
    assert_eq!(answer.sense.as_ref().unwrap().command_specific, Some(6), "bytes transferred");
    assert_eq!(&answer.reply.data_in[..6], b"bytes!");
    assert!(answer.reply.data_in[6..100.min(answer.reply.data_in.len())].iter().all(|byte| *byte == 0));
}

fn a_read_at_the_end_reads_nothing(device: &mut Device) {
    let object = device.object(b"ten bytes!");
    let answer = device.read(object, 10, 5).refused(1, 0x3B17);
    assert_eq!(answer.sense.unwrap().command_specific, Some(0));
}

fn read_starting_beyond_the_end_is_refused(device: &mut Device) {
    let object = device.object(b"ten bytes!");
    let request = device.user(cdb::READ, object).fetches(5).start(11);
    let at = request.start_at();
    device.run(request).invalid(at);
}

fn a_read_of_nothing_is_good(device: &mut Device) {
    let object = device.object(b"ten bytes!");
    assert!(device.read(object, 3, 0).good().data.is_empty());
}

fn read_past_the_end_returns_attributes(device: &mut Device) {
    let object = device.object(b"ten bytes!");
    let request = device.user(cdb::READ, object).fetches(64).gets(&[(1, 0x82)]);
    let answer = device.run(request).refused(1, 0x3B17);
    assert_eq!(answer.number(), 10);
}

fn read_of_a_missing_object_is_refused(device: &mut Device) {
    device.read(0x55_5555, 0, 4).invalid(24);
}

fn append(device: &mut Device, object: u64, data: &[u8]) -> u64 {
    let request = device.user(cdb::APPEND, object).sends(data).gets(&[(0xFFFF_FFFE, 5)]);
    device.run(request).good().number()
}

fn append_writes_at_the_end(device: &mut Device) {
    let object = device.object(b"abc");
    append(device, object, b"def");
    append(device, object, b"ghi");
    device.holds(object, b"abcdefghi");
}

fn append_reports_its_start(device: &mut Device) {
    let object = device.object(b"abc");
    assert_eq!(append(device, object, b"0123456789"), 3);
    assert_eq!(append(device, object, b"x"), 13);
}

fn an_append_of_nothing_changes_nothing(device: &mut Device) {
    let object = device.object(b"abc");
    assert_eq!(append(device, object, b""), 3);
    device.holds(object, b"abc");
}

fn range(device: &Device, action: cdb::ServiceAction, object: u64, start: u64, length: u64) -> cdb::Request {
    device.user(action, object).start(start).length(length)
}

fn clear_writes_zeros(device: &mut Device) {
    let object = device.object(b"abcdefghij");
    let request = range(device, cdb::CLEAR, object, 2, 5);
    device.run(request).good();
    device.holds(object, b"ab\0\0\0\0\0hij");
}

fn clear_beyond_the_end_extends(device: &mut Device) {
    let object = device.object(b"abc");
    let request = range(device, cdb::CLEAR, object, 2, 4);
    device.run(request).good();
    device.holds(object, b"ab\0\0\0\0");
}

fn punch_removes_a_range_and_shifts_the_rest(device: &mut Device) {
    let object = device.object(b"abcdefghij");
    let request = range(device, cdb::PUNCH, object, 2, 5);
    device.run(request).good();
    device.holds(object, b"abhij");
}

fn punch_over_the_end_cuts_at_its_start(device: &mut Device) {
    let object = device.object(b"abcdefghij");
    let request = range(device, cdb::PUNCH, object, 4, 100);
    device.run(request).good();
    device.holds(object, b"abcd");
}

fn punch_beyond_the_end_is_refused(device: &mut Device) {
    let object = device.object(b"abc");
    let request = range(device, cdb::PUNCH, object, 4, 1);
    let at = request.start_at();
    device.run(request).invalid(at);
    device.holds(object, b"abc");
}

fn punch_of_nothing_changes_nothing(device: &mut Device) {
    let object = device.object(b"abc");
    let request = range(device, cdb::PUNCH, object, 1, 0);
    device.run(request).good();
    device.holds(object, b"abc");
}

fn a_set_length_truncates_and_extends_with_zeros(device: &mut Device) {
    let object = device.object(b"abcdef");
    device.set(object, 1, 0x82, &3_u64.to_be_bytes()).good();
    device.holds(object, b"abc");
    device.set(object, 1, 0x82, &6_u64.to_be_bytes()).good();
    device.holds(object, b"abc\0\0\0");
}

fn the_maximum_length_of_an_object_binds(device: &mut Device) {
    let object = device.object(b"abc");
    device.set(object, 2, 1, &8_u64.to_be_bytes()).good();
    let request = device.user(cdb::WRITE, object).sends(b"beyond it").start(3);
    device.run(request).refused(7, 0x5507);
    device.holds(object, b"abc");
    device.write(object, 3, b"fits!");
}

fn the_object_count_of_a_partition_binds(device: &mut Device) {
    let request = device.own(cdb::SET_ATTRIBUTES).sets(0x3000_0002, 0x1_0002, &2_u64.to_be_bytes());
    device.run(request).good();
    device.create();
    device.create();
    let request = device.user(cdb::CREATE, 0);
    device.run(request).refused(7, 0x5507);
    assert_eq!(device.list().len(), 2);
}

fn the_capacity_of_a_partition_binds(device: &mut Device) {
    let request = device.own(cdb::SET_ATTRIBUTES).sets(0x3000_0002, 0x1_0001, &0x4_0000_u64.to_be_bytes());
    device.run(request).good();
    let object = device.create();
    let request = device.user(cdb::WRITE, object).sends(&vec![7; 0x8_0000]);
    device.run(request).refused(7, 0x5507);
    device.holds(object, b"");
}

fn attributes_travel_both_ways_with_data(device: &mut Device) {
    let object = device.create();
    let request =
        device.user(cdb::WRITE, object).sends(b"data").sets(1, 9, b"name").gets(&[(1, 0x82), (1, 9)]);
    let entries = device.run(request).good().entries();
    assert_eq!(
        (number(&entries[0].1), &entries[1].1[..]),
        (4, &b"name"[..]),
        "set before get, after the data"
    );
    let request = device.user(cdb::READ, object).fetches(4).sets(1, 9, b"again").gets(&[(1, 9)]);
    let answer = device.run(request).good();
    assert_eq!((answer.data.as_slice(), answer.value().as_slice()), (&b"data"[..], &b"again"[..]));
    assert_ne!(answer.status, CHECK);
}
