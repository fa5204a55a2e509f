//! PERFORM SCSI COMMAND and PERFORM TASK MANAGEMENT FUNCTION (t10-osd 1.4, 1.9).

use crate::cdb;
use crate::device::{Device, ILLEGAL, VerifiedReply};
use crate::suite::behaviours;

behaviours! { "Performed commands and functions";
    Osd "t10-osd 1.4 PERFORM SCSI COMMAND" an_embedded_inquiry_answers_as_the_plain_one;
    Osd "t10-osd 1.4 PERFORM SCSI COMMAND" an_embedded_unknown_command_is_refused;
    Osd "t10-osd 1.4 PERFORM SCSI COMMAND" an_embedded_test_unit_ready_succeeds;
    Osd "t10-osd 1.4 PERFORM SCSI COMMAND" embedded_command_has_data_and_length;
    Osd "t10-osd 1.4 PERFORM SCSI COMMAND" an_osd_command_is_not_embedded;
    Secured "t10-osd 4.2 PERFORM" performing_needs_dev_mgmt;
    Osd "t10-osd 1.9 PERFORM TASK MANAGEMENT FUNCTION" task_set_of_the_session_is_abortable;
    Osd "device: PERFORM TASK MANAGEMENT FUNCTION" functions_on_all_sessions_need_the_root;
    Osd "t10-osd 1.9 PERFORM TASK MANAGEMENT FUNCTION" missing_task_is_reported;
    Osd "t10-osd 1.9 PERFORM TASK MANAGEMENT FUNCTION" the_logical_unit_is_reset_at_the_root;
    Osd "t10-osd 1.9 PERFORM TASK MANAGEMENT FUNCTION" an_unknown_function_is_rejected;
}

fn embedded(device: &Device, cdb: &[u8], data_in: usize) -> cdb::Request {
    let mut request = device.request(cdb::PERFORM_SCSI);
    request.cdb[32..32 + cdb.len()].copy_from_slice(cdb);
    request.data_in = data_in;
    request
}

fn an_embedded_inquiry_answers_as_the_plain_one(device: &mut Device) {
    let inquiry = [0x12, 0, 0, 0, 96, 0];
    let plain = device.connection.command(&inquiry, &[], 96).data_in;
    let request = embedded(device, &inquiry, 96);
    assert_eq!(device.run(request).good().data[..36], plain[..36]);
}

fn an_embedded_unknown_command_is_refused(device: &mut Device) {
    let request = embedded(device, &[0xEE, 0, 0, 0, 0, 0], 0);
    let answer = device.run(request);
    if answer.is_not_there() {
        answer.good();
        return;
    }
    assert_eq!(answer.sense.expect("refused").key, ILLEGAL);
}

fn an_embedded_test_unit_ready_succeeds(device: &mut Device) {
    let request = embedded(device, &[0; 6], 0);
    device.run(request).good();
}

fn embedded_command_has_data_and_length(device: &mut Device) {
    // INQUIRY, VPD page 00h: complete, and truncated to its allocation length.
    for length in [4_u8, 255] {
        let inquiry = [0x12, 1, 0, 0, length, 0];
        let plain = device.connection.command(&inquiry, &[], 255).data_in;
        let request = embedded(device, &inquiry, 255);
        let received = device.run(request).good().data;
        assert!(received.starts_with(&plain), "{received:x?} {plain:x?}");
        assert!(received[plain.len()..].iter().all(|byte| *byte == 0), "and nothing behind it");
    }
}

fn an_osd_command_is_not_embedded(device: &mut Device) {
    let request = embedded(device, &[0x7F, 0, 0, 0, 0, 0, 0, 192, 0x88, 0x05], 0);
    let answer = device.run(request);
    assert_eq!(answer.sense.expect("refused").key, ILLEGAL);
}

fn performing_needs_dev_mgmt(device: &mut Device) {
    for action in [cdb::PERFORM_SCSI, cdb::PERFORM_TASK] {
        let mut request = device.request(action);
        // Everything but DEV_MGMT: byte 50 of the capability, bit 7.
        request.capability_patches.push((49, vec![0xFF, 0x7F]));
        request.cdb[39] = if action == cdb::PERFORM_TASK { 0x80 } else { 0 };
        device.run(request).refused(ILLEGAL, 0x2400).points_at(80 + 49);
    }
}

/// Sends a task management function for the test's partition.
fn of_partition(device: &mut Device, code: u8) -> VerifiedReply {
    let mut request = device.own(cdb::PERFORM_TASK);
    request.cdb[32..34].copy_from_slice(&8_u16.to_be_bytes());
    request.cdb[39] = code;
    request.data_in = 8;
    device.run(request)
}

fn task_set_of_the_session_is_abortable(device: &mut Device) {
    let data = of_partition(device, 0x02).good().data;
    assert_eq!((&data[..2], data[4]), (&[0, 6][..], 0x00), "complete");
    let object = device.object(b"still here");
    device.holds(object, b"still here");
}

fn functions_on_all_sessions_need_the_root(device: &mut Device) {
    for code in [0x04, 0x08] {
        let answer = of_partition(device, code);
        match &answer.sense {
            Some(sense) => assert_eq!(sense.key, ILLEGAL, "{code:02x}"),
            None => assert_eq!(answer.data[4], 0x08, "{code:02x}: rejected"),
        }
    }
}

/// Sends a task management function and returns its answer.
fn function(device: &mut Device, code: u8, tag: u64) -> VerifiedReply {
    let mut request = device.request(cdb::PERFORM_TASK);
    request.cdb[32..34].copy_from_slice(&8_u16.to_be_bytes());
    request.cdb[39] = code;
    request.cdb[40..48].copy_from_slice(&tag.to_be_bytes());
    request.data_in = 8;
    device.run(request)
}

fn missing_task_is_reported(device: &mut Device) {
    // QUERY TASK: function complete, the task does not exist.
    let data = function(device, 0x80, 0x7777_7777).good().data;
    assert_eq!((&data[..2], data[4]), (&[0, 6][..], 0x00));
}

fn the_logical_unit_is_reset_at_the_root(device: &mut Device) {
    let data = function(device, 0x08, 0).good().data;
    assert_eq!(data[4], 0x00, "complete");
}

fn an_unknown_function_is_rejected(device: &mut Device) {
    let answer = function(device, 0x33, 0);
    if answer.is_not_there() {
        answer.good();
        return;
    }
    match &answer.sense {
        Some(sense) => assert_eq!(sense.key, ILLEGAL),
        None => assert_eq!(answer.data[4], 0x08, "rejected"),
    }
}
