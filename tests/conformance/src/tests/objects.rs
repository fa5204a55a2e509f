//! CREATE, CREATE AND WRITE, REMOVE, FLUSH.

use crate::cdb;
use crate::device::{Device, GOOD, ILLEGAL, number};
use crate::suite::behaviours;

behaviours! { "User objects";
    Osd "t10-osd 1.10 CREATE" device_assigns_a_missing_object_id;
    Osd "t10-osd 1.10 CREATE" a_requested_object_id_is_taken;
    Osd "t10-osd 1.10 CREATE" an_object_that_exists_is_not_created_again;
    Osd "t10-osd 1.10 CREATE" reserved_object_ids_are_refused;
    Osd "t10-osd 1.10 CREATE" several_objects_are_created_at_once;
    Osd "t10-osd 1.10 CREATE" a_number_with_a_requested_id_is_refused;
    Osd "t10-osd 1.10 CREATE" attributes_apply_to_every_object_created;
    Osd "t10-osd 1.10 CREATE" create_in_a_missing_partition_is_refused;
    Osd "t10-osd 3.5 U+1" new_object_is_empty_and_has_ids;
    Osd "t10-osd 3.5 U+3" new_object_has_its_creation_time;
    Osd "t10-osd 1.10 CREATE AND WRITE" an_object_is_created_with_its_data;
    Osd "t10-osd 1.10 CREATE AND WRITE" create_and_write_may_leave_a_hole;
    Osd "t10-osd 1.10 CREATE AND WRITE" create_and_write_of_existing_object_fails;
    Osd "t10-osd 1.7" attributes_travel_with_create_and_write;
    Osd "t10-osd 1.10 REMOVE" removed_object_does_not_exist;
    Osd "t10-osd 1.10 REMOVE" removal_of_a_missing_object_is_refused;
    Osd "t10-osd 1.7" attributes_are_fetched_before_the_object_is_removed;
    Osd "t10-osd 1.10 FLUSH" flush_succeeds_with_every_scope;
    Osd2 "t10-osd 1.3 FLUSH SCOPE" a_byte_range_is_flushed;
    Osd "t10-osd 1.10 FLUSH" flush_of_a_missing_object_is_refused;
    Osd "t10-osd 2" ids_are_numbered_in_each_partition_for_itself;
}

fn device_assigns_a_missing_object_id(device: &mut Device) {
    let (one, other) = (device.create(), device.create());
    assert!(one >= 0x1_0000 && other >= 0x1_0000 && one != other, "{one:#x} {other:#x}");
    let mut listed = device.list();
    listed.sort_unstable();
    assert_eq!(listed, {
        let mut both = [one, other];
        both.sort_unstable();
        both
    });
}

fn a_requested_object_id_is_taken(device: &mut Device) {
    for id in [0x1_0000, 0x1234_5678_9ABC, u64::MAX - 1] {
        let request = device.user(cdb::CREATE, id).gets(&[(0xFFFF_FFFE, 4)]);
        assert_eq!(device.run(request).good().number(), id);
    }
}

fn an_object_that_exists_is_not_created_again(device: &mut Device) {
    let object = device.object(b"the first");
    let request = device.user(cdb::CREATE, object);
    device.run(request).invalid(24);
    device.holds(object, b"the first");
}

fn reserved_object_ids_are_refused(device: &mut Device) {
    for id in [1, 0xFFFF] {
        let request = device.user(cdb::CREATE, id);
        device.run(request).invalid(24);
    }
}

/// Sets the number of objects, in the first two bytes of the LENGTH field.
fn counted(request: cdb::Request, count: u16) -> cdb::Request {
    let at = request.length_at();
    request.with(at, &count.to_be_bytes())
}

fn several_objects_are_created_at_once(device: &mut Device) {
    let request = counted(device.user(cdb::CREATE, 0), 5);
    device.run(request).good();
    assert_eq!(device.list().len(), 5);
}

fn a_number_with_a_requested_id_is_refused(device: &mut Device) {
    let request = counted(device.user(cdb::CREATE, 0x2_0000), 2);
    let at = request.length_at();
    let answer = device.run(request).refused(ILLEGAL, 0x2400);
    if !device.secured() {
        answer.points_at(at);
    }
    assert!(device.list().is_empty());
}

fn attributes_apply_to_every_object_created(device: &mut Device) {
    let request = counted(device.user(cdb::CREATE, 0), 3).sets(1, 9, b"one of three");
    device.run(request).good();
    let all = device.list();
    assert_eq!(all.len(), 3);
    for object in all {
        assert_eq!(device.get(object, 1, 9), b"one of three");
    }
}

fn create_in_a_missing_partition_is_refused(device: &mut Device) {
    let request = device.request(cdb::CREATE).user(device.partition + 0x77_0000, 0);
    device.run(request).refused(ILLEGAL, 0x2400);
}

fn new_object_is_empty_and_has_ids(device: &mut Device) {
    let object = device.create();
    assert_eq!(device.length(object), 0);
    assert_eq!(number(&device.get(object, 1, 1)), device.partition);
    assert_eq!(number(&device.get(object, 1, 2)), object);
}

fn new_object_has_its_creation_time(device: &mut Device) {
    let clock = number(&device.of_root(0x9000_0001, 0x100));
    let object = device.create();
    let created = device.get(object, 3, 1);
    assert_eq!(created.len(), 6);
    let after = number(&device.of_root(0x9000_0001, 0x100));
    // Clocks of an object and of the root may differ by their precision.
    assert!(
        (clock.saturating_sub(1000)..=after + 1000).contains(&number(&created)),
        "{created:02x?} {clock}"
    );
}

fn an_object_is_created_with_its_data(device: &mut Device) {
    let request = device.user(cdb::CREATE_AND_WRITE, 0x3_0000).sends(b"born with data");
    device.run(request).good();
    device.holds(0x3_0000, b"born with data");
}

fn create_and_write_may_leave_a_hole(device: &mut Device) {
    let request = device.user(cdb::CREATE_AND_WRITE, 0x3_0000).sends(b"late").start(6);
    device.run(request).good();
    device.holds(0x3_0000, b"\0\0\0\0\0\0late");
}

fn create_and_write_of_existing_object_fails(device: &mut Device) {
    let object = device.object(b"the first");
    let request = device.user(cdb::CREATE_AND_WRITE, object).sends(b"the second");
    device.run(request).invalid(24);
    device.holds(object, b"the first");
}

fn attributes_travel_with_create_and_write(device: &mut Device) {
    let request = device.user(cdb::CREATE_AND_WRITE, 0).sends(b"data").sets(1, 9, b"named").gets(&[
        (0xFFFF_FFFE, 4),
        (1, 9),
        (1, 0x82),
    ]);
    let entries = device.run(request).good().entries();
    assert_eq!(entries.len(), 3, "{entries:02x?}");
    assert_eq!((&entries[1].1[..], number(&entries[2].1)), (&b"named"[..], 4));
    assert_eq!(device.get(number(&entries[0].1), 1, 9), b"named");
}

fn removed_object_does_not_exist(device: &mut Device) {
    let object = device.object(b"soon gone");
    let request = device.user(cdb::REMOVE, object);
    device.run(request).good();
    assert!(device.list().is_empty());
    assert_ne!(device.read(object, 0, 4).status, GOOD);
    // The id can be reused, and the new object has nothing of the old one.
    let request = device.user(cdb::CREATE, object);
    device.run(request).good();
    device.holds(object, b"");
}

fn removal_of_a_missing_object_is_refused(device: &mut Device) {
    let request = device.user(cdb::REMOVE, 0x55_5555);
    device.run(request).invalid(24);
}

fn attributes_are_fetched_before_the_object_is_removed(device: &mut Device) {
    let object = device.object(b"twelve bytes");
    let request = device.user(cdb::REMOVE, object).gets(&[(1, 0x82)]);
    assert_eq!(device.run(request).good().number(), 12);
    assert!(device.list().is_empty());
}

fn flush_succeeds_with_every_scope(device: &mut Device) {
    let object = device.object(b"to be flushed");
    for scope in 0..2 {
        let request = device.user(cdb::FLUSH, object);
        let request = if device.osd2() { request.specific(scope) } else { request.options(scope) };
        device.run(request).good();
    }
}

fn a_byte_range_is_flushed(device: &mut Device) {
    let object = device.object(b"to be flushed");
    let request = device.user(cdb::FLUSH, object).specific(2).length(4).start(2);
    device.run(request).good();
}

fn flush_of_a_missing_object_is_refused(device: &mut Device) {
    let request = device.user(cdb::FLUSH, 0x55_5555);
    device.run(request).invalid(24);
}

fn ids_are_numbered_in_each_partition_for_itself(device: &mut Device) {
    let other = crate::runner::free_partition();
    let request = device.request(cdb::CREATE_PARTITION).at(cdb::PARTITION, other, 0);
    device.run(request).good();
    for partition in [device.partition, other] {
        let request = device.request(cdb::CREATE).user(partition, 0x4_0000);
        device.run(request).good();
    }
    let request = device.request(cdb::REMOVE).user(other, 0x4_0000);
    device.run(request).good();
    assert_eq!(device.list(), [0x4_0000], "the other one is still there");
    let request = device.request(cdb::REMOVE_PARTITION).at(cdb::PARTITION, other, 0);
    device.run(request).good();
}
