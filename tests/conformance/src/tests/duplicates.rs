//! CREATE SNAPSHOT and CLONE, REFRESH, RESTORE, DETACH, COPY USER OBJECTS.

use crate::cdb::{self, PARTITION, segment};
use crate::device::{Device, GOOD, ILLEGAL, VerifiedReply};
use crate::runner::free_partition;
use crate::suite::behaviours;

behaviours! { "Snapshots, clones, copies";
    Osd2 "t10-osd 1.2 CREATE SNAPSHOT" snapshot_keeps_content_of_its_source;
    Osd2 "device: snapshots" snapshot_contents_are_readonly;
    Osd2 "t10-osd 1.2 CREATE CLONE" clone_diverges_from_source;
    Osd2 "t10-osd 1.2 RESTORE PARTITION FROM SNAPSHOT" a_restore_brings_the_past_back;
    Osd2 "t10-osd 1.2 REFRESH SNAPSHOT OR CLONE" refresh_copies_current_source;
    Osd2 "t10-osd 1.2 DETACH CLONE" detached_clone_survives_removal_of_source;
    Osd2 "device: DETACH CLONE, REMOVE PARTITION" a_source_is_not_removed_before_its_snapshots;
    Osd2 "t10-osd 1.2 CREATE SNAPSHOT" missing_source_is_refused;
    Osd2 "t10-osd 1.2 READ MAPS AND COMPARE" comparison_lists_changes_since_the_snapshot;
    Osd2 "t10-osd 1.2 COPY USER OBJECTS" a_copy_has_the_bytes_of_its_source;
    Osd2 "t10-osd 1.8 CPY_ATTR" copy_includes_attributes_on_request;
    Osd2 "t10-osd 1.8 0101h" a_copy_without_a_source_is_refused;
    Osd2 "t10-osd 1.10" copy_of_a_missing_object_is_refused;
}

/// Builds a command on `partition` that names a source.
fn duplicate(device: &Device, action: cdb::ServiceAction, partition: u64, source: u64) -> cdb::Request {
    let mut request = device.request(action).at(PARTITION, partition, 0);
    request.cdb[24..32].copy_from_slice(&source.to_be_bytes());
    request
}

fn snapshot(device: &mut Device) -> u64 {
    let id = free_partition();
    let request = duplicate(device, cdb::CREATE_SNAPSHOT, id, device.partition);
    device.run(request).good();
    id
}

fn clone(device: &mut Device) -> u64 {
    let id = free_partition();
    let request = duplicate(device, cdb::CREATE_CLONE, id, device.partition);
    device.run(request).good();
    id
}

/// Runs work in another partition.
fn within<T>(device: &mut Device, partition: u64, work: impl FnOnce(&mut Device) -> T) -> T {
    let own = std::mem::replace(&mut device.partition, partition);
    let result = work(device);
    device.partition = own;
    result
}

fn remove(device: &mut Device, partition: u64) {
    let request = device.request(cdb::REMOVE_PARTITION).at(PARTITION, partition, 0).specific(1);
    device.run(request).good();
}

fn snapshot_keeps_content_of_its_source(device: &mut Device) {
    let object = device.object(b"then");
    device.set(object, 1, 9, b"old name").good();
    let id = snapshot(device);
    device.write(object, 0, b"now!");
    device.set(object, 1, 9, b"new name").good();
    device.create();
    within(device, id, |device| {
        device.holds(object, b"then");
        assert_eq!(device.get(object, 1, 9), b"old name");
        assert_eq!(device.list(), [object]);
    });
    device.holds(object, b"now!");
    remove(device, id);
}

fn snapshot_contents_are_readonly(device: &mut Device) {
    let object = device.object(b"then");
    let id = snapshot(device);
    within(device, id, |device| {
        let requests = [
            device.user(cdb::WRITE, object).sends(b"x"),
            device.user(cdb::REMOVE, object),
            device.user(cdb::CREATE, 0),
            device.user(cdb::SET_ATTRIBUTES, object).sets(1, 9, b"x"),
        ];
        for request in requests {
            device.run(request).refused(7, 0x2700);
        }
        device.holds(object, b"then");
    });
    remove(device, id);
}

fn clone_diverges_from_source(device: &mut Device) {
    let object = device.object(b"common");
    let id = clone(device);
    within(device, id, |device| {
        device.write(object, 0, b"CLONE!");
        device.create();
    });
    device.write(object, 0, b"origin");
    device.holds(object, b"origin");
    assert_eq!(device.list(), [object]);
    within(device, id, |device| device.holds(object, b"CLONE!"));
    remove(device, id);
}

fn a_restore_brings_the_past_back(device: &mut Device) {
    let (object, removed) = (device.object(b"then"), device.object(b"removed"));
    let id = snapshot(device);
    device.write(object, 0, b"now and longer");
    let request = device.user(cdb::REMOVE, removed);
    device.run(request).good();
    device.create();
    let request = duplicate(device, cdb::RESTORE, device.partition, id);
    device.run(request).good();
    device.holds(object, b"then");
    device.holds(removed, b"removed");
    assert_eq!(device.list().len(), 2);
    remove(device, id);
}

fn refresh_copies_current_source(device: &mut Device) {
    let object = device.object(b"then");
    let id = snapshot(device);
    device.write(object, 0, b"now!");
    let request = duplicate(device, cdb::REFRESH, id, device.partition);
    device.run(request).good();
    within(device, id, |device| device.holds(object, b"now!"));
    remove(device, id);
}

fn detached_clone_survives_removal_of_source(device: &mut Device) {
    let object = device.object(b"common");
    let id = clone(device);
    let request = device.request(cdb::DETACH_CLONE).at(PARTITION, id, 0);
    device.run(request).good();
    let own = device.partition;
    remove(device, own);
    within(device, id, |device| device.holds(object, b"common"));
    remove(device, id);
}

fn a_source_is_not_removed_before_its_snapshots(device: &mut Device) {
    device.object(b"then");
    let id = snapshot(device);
    let request = device.own(cdb::REMOVE_PARTITION).specific(1);
    device.run(request).refused(ILLEGAL, 0x2C00);
    remove(device, id);
}

fn missing_source_is_refused(device: &mut Device) {
    let request = duplicate(device, cdb::CREATE_SNAPSHOT, free_partition(), free_partition());
    device.run(request).invalid(24);
}

fn comparison_lists_changes_since_the_snapshot(device: &mut Device) {
    let object = device.object(&vec![7; 1 << 20]);
    let id = clone(device);
    within(device, id, |device| {
        device.write(object, 500_000, b"changed");
        let request = device.user(cdb::READ_MAPS_AND_COMPARE, object).fetches(1024);
        let data = device.run(request).good().data;
        let reported = crate::device::number(&data[..8]) as usize;
        assert_eq!(reported, 16, "one stretch differs");
        let (length, at) = (crate::device::number(&data[12..16]), crate::device::number(&data[16..24]));
        assert!(at <= 500_000 && at + length >= 500_007 && length < 1 << 20, "{at} {length}");
    });
    remove(device, id);
}

fn source(partition: u64, object: u64, attributes: bool) -> Vec<u8> {
    let mut data = [partition.to_be_bytes(), object.to_be_bytes()].concat();
    data.extend_from_slice(&[u8::from(attributes), 0]);
    data
}

fn copy(device: &mut Device, object: u64, attributes: bool) -> VerifiedReply {
    let segment = segment(cdb::COPY, &[(0x0101, source(device.partition, object, attributes))]);
    let mut request = device.user(cdb::COPY, 0x0A_0000).continues(segment);
    // A secured device needs a capability for the source too, in an extension of the segment.
    device.reaches(&mut request, (cdb::USER, object, 0x8000));
    device.run(request)
}

fn a_copy_has_the_bytes_of_its_source(device: &mut Device) {
    let object = device.object(b"to be copied");
    copy(device, object, false).good();
    device.holds(0x0A_0000, b"to be copied");
    device.write(object, 0, b"SOURCE");
    device.holds(0x0A_0000, b"to be copied");
}

fn copy_includes_attributes_on_request(device: &mut Device) {
    let object = device.object(b"to be copied");
    device.set(object, 1, 9, b"named").good();
    device.set(object, 0x1_0003, 1, b"ours").good();
    copy(device, object, true).good();
    assert_eq!(device.get(0x0A_0000, 1, 9), b"named");
    assert_eq!(device.get(0x0A_0000, 0x1_0003, 1), b"ours");
}

fn a_copy_without_a_source_is_refused(device: &mut Device) {
    let request = device.user(cdb::COPY, 0);
    let answer = device.run(request).refused(ILLEGAL, 0x2400);
    if !device.secured() {
        answer.points_at(48);
    }
}

fn copy_of_a_missing_object_is_refused(device: &mut Device) {
    let answer = copy(device, 0x55_5555, false).refused(ILLEGAL, 0x2400);
    assert_ne!(answer.status, GOOD);
}
