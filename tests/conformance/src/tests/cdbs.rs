//! Invalid CDBs, and their sense data.

use crate::cdb;
use crate::device::{CHECK, Device, ILLEGAL, INVALID_FIELD};
use crate::sense::Sense;
use crate::suite::behaviours;

behaviours! { "CDBs and sense data";
    Osd "t10-osd 5.3" unknown_service_action_is_refused_at_byte_8;
    Osd "t10-osd 1.1" wrong_additional_cdb_length_is_refused;
    Osd "t10-osd T1" osd1_cdb_of_open_osd_length_is_accepted;
    Osd "t10-osd 1.5" a_reserved_attribute_format_is_refused;
    Osd "t10-osd 1.1 TIMESTAMPS CONTROL" reserved_timestamps_controls_are_refused;
    Osd2 "t10-osd 1.1 ISOLATION" reserved_isolation_methods_are_refused;
    Osd "t10-osd 1.6" unused_offset_of_nonempty_part_is_refused;
    Osd "t10-osd 1.7" parts_that_overlap_are_refused;
    Osd "t10-osd 5.2" sense_data_name_the_object_and_the_functions;
    Osd "t10-osd 5.2" failed_set_reports_an_unstarted_command;
    Osd "t10-osd 5.1" sense_data_are_in_descriptor_format;
    Osd2 "t10-osd 1.2" commands_that_osd1_has_not_are_unknown_there;
    Osd "SPC-4 4.2" a_cdb_that_is_too_short_is_refused;
}

/// Sends a CDB with changed bytes 8-9, which needs no signature.
fn raw(device: &mut Device, cdb: &[u8]) -> Sense {
    let reply = device.connection.command(cdb, &[], 0);
    assert_eq!(reply.status, CHECK);
    Sense::parse(&reply.sense)
}

fn unknown_service_action_is_refused_at_byte_8(device: &mut Device) {
    for code in [0x0000_u16, 0x8800, 0x888D, 0x88FF, 0xFFFF] {
        let mut request = device.own(cdb::LIST);
        request.cdb[8..10].copy_from_slice(&code.to_be_bytes());
        let cdb = request.cdb.clone();
        let sense = raw(device, &cdb);
        assert_eq!(
            (sense.key, sense.code, sense.field),
            (ILLEGAL, INVALID_FIELD, Some((true, 8))),
            "{code:04x}"
        );
    }
}

fn wrong_additional_cdb_length_is_refused(device: &mut Device) {
    for length in [0, 12, 100, 252] {
        let mut request = device.own(cdb::LIST);
        request.cdb[7] = length;
        let cdb = request.cdb.clone();
        let sense = raw(device, &cdb);
        assert_eq!(sense.key, ILLEGAL);
        assert!(matches!(sense.code, 0x2000 | 0x2400), "{sense:04x?}");
    }
}

fn osd1_cdb_of_open_osd_length_is_accepted(device: &mut Device) {
    if device.osd2() {
        return;
    }
    let request = device.own(cdb::LIST).fetches(64).patched(7, &[228]);
    device.run(request).good();
}

fn malformed(device: &mut Device, request: cdb::Request, byte: usize) {
    let answer = device.run(request).refused(ILLEGAL, INVALID_FIELD);
    // An unauthenticated client does not learn which byte.
    if !device.secured() {
        answer.points_at(byte);
    }
}

fn a_reserved_attribute_format_is_refused(device: &mut Device) {
    let request = device.own(cdb::LIST).fetches(64).patched(11, &[0]);
    malformed(device, request, 11);
    if !device.osd2() {
        let request = device.own(cdb::LIST).fetches(64).patched(11, &[0x10]);
        malformed(device, request, 11);
    }
}

fn reserved_timestamps_controls_are_refused(device: &mut Device) {
    for control in [0x01, 0x7E, 0x80, 0xDF] {
        let request = device.own(cdb::LIST).fetches(64).timestamps(control);
        malformed(device, request, 12);
    }
}

fn reserved_isolation_methods_are_refused(device: &mut Device) {
    for isolation in [3, 6] {
        let request = device.own(cdb::LIST).fetches(64).options(isolation);
        malformed(device, request, 10);
    }
}

fn unused_offset_of_nonempty_part_is_refused(device: &mut Device) {
    let object = device.create();
    let request = device.user(cdb::GET_ATTRIBUTES, object).gets(&[(1, 1)]).patched(56, &[0xFF; 4]);
    let answer = device.run(request).refused(ILLEGAL, INVALID_FIELD);
    if !device.secured() {
        answer.points_at(56);
    }
}

fn parts_that_overlap_are_refused(device: &mut Device) {
    let object = device.create();
    // The set list and the get list at the same place.
    let request = device.user(cdb::SET_ATTRIBUTES, object).sets(1, 9, b"over").gets(&[(1, 9)]);
    let request = request.patched(56, &[0; 4]).patched(72, &[0; 4]);
    let answer = device.run(request);
    assert_eq!(answer.status, CHECK, "not refused");
    assert_eq!(answer.sense.unwrap().key, ILLEGAL);
    assert!(device.get(object, 1, 9).is_empty());
}

const COMMAND: u32 = 0x1000_0000;
const VALIDATION: u32 = 0x8000_0000;

fn sense_data_name_the_object_and_the_functions(device: &mut Device) {
    let answer = device.read(0x55_5555, 0, 4).refused(ILLEGAL, INVALID_FIELD);
    let (not_initiated, completed, partition, object) =
        answer.sense.unwrap().osd.expect("OSD error identification");
    assert_eq!((partition, object), (device.partition, 0x55_5555));
    assert_ne!(completed & VALIDATION, 0, "validation was completed: {completed:08x}");
    assert_eq!(completed & COMMAND, 0, "the command was not: {completed:08x}");
    assert_eq!(not_initiated & completed, 0);
}

fn failed_set_reports_an_unstarted_command(device: &mut Device) {
    let object = device.object(b"unchanged");
    let request = device.user(cdb::WRITE, object).sends(b"CHANGED").sets(1, 2, &[0; 8]);
    let answer = device.run(request);
    assert_eq!(answer.status, CHECK);
    let (not_initiated, completed, ..) = answer.sense.unwrap().osd.expect("OSD error identification");
    assert_eq!(completed & COMMAND, 0);
    assert_ne!(not_initiated & COMMAND, 0, "{not_initiated:08x}");
    device.holds(object, b"unchanged");
}

fn sense_data_are_in_descriptor_format(device: &mut Device) {
    let answer = device.read(0x55_5555, 0, 4);
    assert_eq!(answer.reply.sense[0] & 0x7F, 0x72);
    assert!(answer.reply.sense.len() <= 252);
}

fn commands_that_osd1_has_not_are_unknown_there(device: &mut Device) {
    for code in [0x8800_u16, 0x8804, 0x8809, 0x8820] {
        let mut cdb = vec![0; 200];
        (cdb[0], cdb[7], cdb[11]) = (0x7F, 192, 0x30);
        cdb[8..10].copy_from_slice(&code.to_be_bytes());
        let sense = raw(device, &cdb);
        assert_eq!((sense.code, sense.field), (INVALID_FIELD, Some((true, 8))), "{code:04x}");
    }
}

fn a_cdb_that_is_too_short_is_refused(device: &mut Device) {
    let cdb = device.own(cdb::LIST).cdb;
    for length in [16, 32, cdb.len() - 36] {
        let sense = raw(device, &cdb[..length]);
        assert_eq!(sense.key, ILLEGAL, "{sense:04x?}");
    }
}
