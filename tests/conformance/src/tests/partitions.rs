//! FORMAT OSD, CREATE PARTITION, REMOVE PARTITION, FLUSH of containers.

use crate::cdb::{self, PARTITION};
use crate::device::{Device, GOOD, ILLEGAL, number};
use crate::runner::free_partition;
use crate::suite::behaviours;

behaviours! { "Partitions";
    Osd "t10-osd 1.10 CREATE PARTITION" a_requested_partition_id_is_taken;
    Osd "t10-osd 1.10 CREATE PARTITION" device_assigns_a_missing_partition_id;
    Osd "t10-osd 1.10 CREATE PARTITION" a_partition_that_exists_is_not_created_again;
    Osd "t10-osd 1.10 CREATE PARTITION" reserved_partition_ids_are_refused;
    Osd "t10-osd 3.5 P+1" new_partition_is_empty_and_has_id;
    Osd "t10-osd 3.5 P+2" quotas_of_a_partition_come_from_the_root;
    Osd "t10-osd 1.10 REMOVE PARTITION" an_empty_partition_is_removed;
    Osd "t10-osd 1.10 REMOVE PARTITION" a_partition_with_objects_is_not_removed;
    Osd2 "t10-osd 1.3 REMOVE SCOPE" a_partition_is_removed_with_its_contents;
    Osd2 "t10-osd 1.3 REMOVE SCOPE" a_reserved_remove_scope_is_refused;
    Osd "t10-osd 1.10 REMOVE PARTITION" removal_of_a_missing_partition_is_refused;
    Osd "t10-osd 1.10 FLUSH PARTITION" flush_partition_succeeds_with_every_scope;
    Osd "t10-osd 1.10 FLUSH OSD" flush_osd_succeeds_with_every_scope;
    Osd "t10-osd 1.10 FLUSH PARTITION" flush_of_a_missing_partition_is_refused;
    Osd "t10-osd 3.5 R+1/C0h" the_root_counts_its_partitions;
    Osd "t10-osd 3.5 P+1/C1h" a_partition_counts_its_objects;
    Whole "t10-osd 1.10 FORMAT OSD" format_removes_every_partition;
    Whole "t10-osd 1.10 FORMAT OSD" format_beyond_the_capacity_is_refused;
}

fn partition(device: &Device, action: cdb::ServiceAction, id: u64) -> cdb::Request {
    device.request(action).at(PARTITION, id, 0)
}

fn a_requested_partition_id_is_taken(device: &mut Device) {
    let id = free_partition();
    let request = partition(device, cdb::CREATE_PARTITION, id).gets(&[(0xFFFF_FFFE, 3)]);
    assert_eq!(device.run(request).good().number(), id);
    let request = partition(device, cdb::REMOVE_PARTITION, id);
    device.run(request).good();
}

fn device_assigns_a_missing_partition_id(device: &mut Device) {
    let request = partition(device, cdb::CREATE_PARTITION, 0).gets(&[(0xFFFF_FFFE, 3)]);
    let id = device.run(request).good().number();
    assert!(id >= 0x1_0000, "{id:#x}");
    let request = partition(device, cdb::REMOVE_PARTITION, id);
    device.run(request).good();
}

fn a_partition_that_exists_is_not_created_again(device: &mut Device) {
    let request = device.own(cdb::CREATE_PARTITION);
    device.run(request).invalid(16);
}

fn reserved_partition_ids_are_refused(device: &mut Device) {
    for id in [1, 0xFFFF] {
        let request = partition(device, cdb::CREATE_PARTITION, id);
        device.run(request).invalid(16);
    }
}

fn new_partition_is_empty_and_has_id(device: &mut Device) {
    assert_eq!(number(&device.of_partition(0x3000_0001, 1)), device.partition);
    assert_eq!(number(&device.of_partition(0x3000_0001, 0xC1)), 0);
    assert!(device.list().is_empty());
}

fn quotas_of_a_partition_come_from_the_root(device: &mut Device) {
    for quota in [1, 0x1_0001, 0x1_0002, 0x1_0081] {
        let root = device.of_root(0x9000_0002, quota);
        assert_eq!(device.of_partition(0x3000_0002, quota), root, "quota {quota:#x}");
    }
}

fn an_empty_partition_is_removed(device: &mut Device) {
    let request = device.own(cdb::REMOVE_PARTITION);
    device.run(request).good();
    let request = device.own(cdb::GET_ATTRIBUTES).gets(&[(0x3000_0001, 1)]);
    assert_ne!(device.run(request).status, GOOD, "it is gone");
}

fn a_partition_with_objects_is_not_removed(device: &mut Device) {
    let object = device.create();
    let request = device.own(cdb::REMOVE_PARTITION);
    device.run(request).refused(ILLEGAL, 0x2C0A);
    assert_eq!(device.list(), [object]);
}

fn a_partition_is_removed_with_its_contents(device: &mut Device) {
    let object = device.object(b"contents");
    let request = device.own(cdb::REMOVE_PARTITION).specific(1);
    device.run(request).good();
    let request = device.user(cdb::GET_ATTRIBUTES, object).gets(&[(1, 1)]);
    assert_ne!(device.run(request).status, GOOD, "the object is gone too");
}

fn a_reserved_remove_scope_is_refused(device: &mut Device) {
    let request = device.own(cdb::REMOVE_PARTITION).specific(2);
    let answer = device.run(request).refused(ILLEGAL, 0x2400);
    // An unauthenticated client need not learn which byte of a CDB is invalid.
    if !device.secured() {
        answer.points_at(11);
    }
}

fn removal_of_a_missing_partition_is_refused(device: &mut Device) {
    let request = partition(device, cdb::REMOVE_PARTITION, free_partition());
    device.run(request).refused(ILLEGAL, 0x2400);
}

/// Sets FLUSH SCOPE, which is in byte 10 in OSD-1 and in byte 11 in OSD-2.
fn scope(device: &Device, request: cdb::Request, scope: u8) -> cdb::Request {
    if device.osd2() { request.specific(scope) } else { request.options(scope) }
}

fn flush_partition_succeeds_with_every_scope(device: &mut Device) {
    device.object(b"to be flushed");
    for bits in 0..3 {
        let request = scope(device, device.own(cdb::FLUSH_PARTITION), bits);
        device.run(request).good();
    }
}

fn flush_osd_succeeds_with_every_scope(device: &mut Device) {
    for bits in 0..3 {
        let request = scope(device, device.request(cdb::FLUSH_OSD), bits);
        device.run(request).good();
    }
}

fn flush_of_a_missing_partition_is_refused(device: &mut Device) {
    let request = partition(device, cdb::FLUSH_PARTITION, free_partition());
    device.run(request).refused(ILLEGAL, 0x2400);
}

fn the_root_counts_its_partitions(device: &mut Device) {
    let before = number(&device.of_root(0x9000_0001, 0xC0));
    let id = free_partition();
    let request = partition(device, cdb::CREATE_PARTITION, id);
    device.run(request).good();
    assert_eq!(number(&device.of_root(0x9000_0001, 0xC0)), before + 1);
    let request = partition(device, cdb::REMOVE_PARTITION, id);
    device.run(request).good();
    assert_eq!(number(&device.of_root(0x9000_0001, 0xC0)), before);
}

fn a_partition_counts_its_objects(device: &mut Device) {
    let object = device.create();
    device.create();
    assert_eq!(number(&device.of_partition(0x3000_0001, 0xC1)), 2);
    let request = device.user(cdb::REMOVE, object);
    device.run(request).good();
    assert_eq!(number(&device.of_partition(0x3000_0001, 0xC1)), 1);
}

fn format_removes_every_partition(device: &mut Device) {
    device.object(b"formatted away");
    let request = device.request(cdb::FORMAT).sets(0x9000_0001, 9, b"formatted");
    device.run(request).good();
    assert_eq!(number(&device.of_root(0x9000_0001, 0xC0)), 0);
    assert_eq!(device.of_root(0x9000_0001, 9), b"formatted");
}

fn format_beyond_the_capacity_is_refused(device: &mut Device) {
    let request = device.request(cdb::FORMAT).length(u64::MAX);
    let at = request.length_at();
    device.run(request).invalid(at);
}
