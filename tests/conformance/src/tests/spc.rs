//! Commands of every logical unit (SPC-4), on the OSD logical unit.

use crate::iscsi::{Connection, ScsiReply};
use crate::runner::skip;
use crate::sense::{self, Sense};
use crate::suite::behaviours;
use crate::target::Portal;

behaviours! { "SPC commands";
    Iscsi "SPC-4 6.6.2" standard_inquiry_reports_osd_type;
    Iscsi "SPC-4 6.6.2" inquiry_is_cut_at_its_allocation_length;
    Iscsi "SPC-4 7.8.2" supported_pages_are_listed_in_ascending_order;
    Iscsi "SPC-4 7.8.2" every_supported_page_can_be_had;
    Iscsi "SPC-4 7.8.6" the_identification_page_names_the_logical_unit;
    Iscsi "SPC-4 7.8.17" the_serial_number_page_is_printable;
    Iscsi "t10-osd 6.2" the_security_token_differs_from_nexus_to_nexus;
    Iscsi "SPC-4 6.6.1" an_unknown_page_is_refused;
    Iscsi "SPC-4 6.6.1" a_page_without_evpd_is_refused;
    Iscsi "SPC-4 6.33" report_luns_lists_the_logical_unit;
    Iscsi "SPC-4 6.33" report_luns_needs_room_for_its_header;
    Iscsi "SPC-4 6.39" request_sense_returns_pending_sense;
    Iscsi "SPC-4 6.39" request_sense_returns_fixed_format_on_request;
    Iscsi "SPC-4 6.47" test_unit_ready_succeeds;
    Iscsi "SAM-5 5.14" new_nexus_gets_one_unit_attention;
    Iscsi "SAM-5 5.14" inquiry_and_report_luns_bypass_unit_attention;
    Iscsi "SPC-4 4.3" an_unknown_operation_code_is_refused;
    Iscsi "SAM-5 4.12" absent_unit_answers_inquiry;
    Iscsi "SAM-5 4.12" an_absent_logical_unit_refuses_commands;
    Iscsi "SPC-4 6.35" supported_operation_codes_are_reported;
}

/// Device type of an object-based storage device.
const OSD: u8 = 0x11;

fn inquiry(page: Option<u8>, allocation: u16) -> [u8; 6] {
    let [high, low] = allocation.to_be_bytes();
    [0x12, u8::from(page.is_some()), page.unwrap_or(0), high, low, 0]
}

fn ask(connection: &mut Connection, cdb: &[u8], length: usize) -> ScsiReply {
    connection.command(cdb, &[], length)
}

fn page(connection: &mut Connection, page: u8) -> Vec<u8> {
    let reply = ask(connection, &inquiry(Some(page), 512), 512);
    assert_eq!(reply.status, 0, "page {page:#04x}: {:02x?}", reply.sense);
    let data = reply.data_in;
    assert_eq!(data[1], page);
    assert_eq!(usize::from(u16::from_be_bytes([data[2], data[3]])), data.len() - 4, "page length");
    data
}

fn illegal(reply: &ScsiReply, code: u16) {
    assert_eq!(reply.status, 2);
    assert_eq!(sense::codes(&reply.sense), (5, code), "{:02x?}", reply.sense);
}

/// Returns the PERIPHERAL DEVICE TYPE of the logical unit.
fn device_type(connection: &mut Connection) -> u8 {
    ask(connection, &inquiry(None, 96), 96).data_in[0]
}

/// Skips the test for another device type.
fn needs_osd(connection: &mut Connection) {
    if device_type(connection) != OSD {
        skip("the logical unit is no OSD");
    }
}

fn standard_inquiry_reports_osd_type(portal: &Portal) {
    let mut connection = Connection::session(portal);
    needs_osd(&mut connection);
    let data = ask(&mut connection, &inquiry(None, 96), 96).data_in;
    assert!(data.len() >= 36, "{} bytes", data.len());
    assert_eq!(data[0], OSD, "connected, object-based storage");
    assert_eq!(data[3] & 0x0F, 2, "response data format");
    assert_eq!(usize::from(data[4]) + 5, data.len(), "additional length");
    assert!(data[8..36].iter().all(|byte| (0x20..0x7F).contains(byte)), "vendor, product, revision");
}

fn inquiry_is_cut_at_its_allocation_length(portal: &Portal) {
    let mut connection = Connection::session(portal);
    let whole = ask(&mut connection, &inquiry(None, 96), 96).data_in;
    for allocation in [0, 5, 36] {
        let cut = ask(&mut connection, &inquiry(None, allocation), 96).data_in;
        assert_eq!(cut, whole[..usize::from(allocation)]);
    }
}

fn supported_pages_are_listed_in_ascending_order(portal: &Portal) {
    let data = page(&mut Connection::session(portal), 0);
    let pages = &data[4..];
    assert!(pages.windows(2).all(|pair| pair[0] < pair[1]), "{pages:02x?}");
    assert!(pages.contains(&0x00) && pages.contains(&0x83));
}

fn every_supported_page_can_be_had(portal: &Portal) {
    let mut connection = Connection::session(portal);
    let kind = device_type(&mut connection);
    let pages = page(&mut connection, 0)[4..].to_vec();
    for number in pages {
        let data = page(&mut connection, number);
        assert_eq!(data[0], kind);
    }
}

fn the_identification_page_names_the_logical_unit(portal: &Portal) {
    let data = page(&mut Connection::session(portal), 0x83);
    let mut rest = &data[4..];
    let mut of_the_unit = 0;
    while rest.len() >= 4 {
        let length = usize::from(rest[3]);
        assert!(rest.len() >= 4 + length, "a whole designator");
        of_the_unit += usize::from(rest[1] & 0x30 == 0);
        rest = &rest[4 + length..];
    }
    assert!(rest.is_empty() && of_the_unit > 0);
}

fn the_serial_number_page_is_printable(portal: &Portal) {
    let data = page(&mut Connection::session(portal), 0x80);
    assert!(data.len() > 4 && data[4..].iter().all(|byte| (0x20..0x7F).contains(byte)));
}

fn the_security_token_differs_from_nexus_to_nexus(portal: &Portal) {
    let (mut one, mut other) = (Connection::session(portal), Connection::session(portal));
    needs_osd(&mut one);
    let (token, again) = (page(&mut one, 0xB1), page(&mut one, 0xB1));
    assert!(token.len() >= 4 + 16 && token == again, "one token for one nexus");
    assert_ne!(page(&mut other, 0xB1), token);
}

fn an_unknown_page_is_refused(portal: &Portal) {
    let reply = ask(&mut Connection::session(portal), &inquiry(Some(0x7E), 255), 255);
    illegal(&reply, 0x2400);
}

fn a_page_without_evpd_is_refused(portal: &Portal) {
    let reply = ask(&mut Connection::session(portal), &[0x12, 0, 0x83, 0, 255, 0], 255);
    illegal(&reply, 0x2400);
}

fn report_luns(select: u8, allocation: u32) -> [u8; 12] {
    let mut cdb = [0; 12];
    (cdb[0], cdb[2]) = (0xA0, select);
    cdb[6..10].copy_from_slice(&allocation.to_be_bytes());
    cdb
}

fn report_luns_lists_the_logical_unit(portal: &Portal) {
    let mut connection = Connection::session(portal);
    let data = ask(&mut connection, &report_luns(0, 4096), 4096).data_in;
    let length = u32::from_be_bytes(data[..4].try_into().unwrap()) as usize;
    assert_eq!(data.len(), 8 + length);
    let lun = connection.lun();
    assert!(data[8..].chunks_exact(8).any(|one| one == lun), "{data:02x?}");
}

fn report_luns_needs_room_for_its_header(portal: &Portal) {
    let reply = ask(&mut Connection::session(portal), &report_luns(0, 15), 15);
    assert_eq!(reply.status, 2);
    assert_eq!(sense::codes(&reply.sense), (5, 0x2400));
}

fn request_sense_returns_pending_sense(portal: &Portal) {
    let reply = ask(&mut Connection::session(portal), &[0x03, 1, 0, 0, 252, 0], 252);
    assert_eq!(reply.status, 0);
    let sense = Sense::parse(&reply.data_in);
    assert_eq!((sense.key, sense.code), (0, 0), "nothing");
}

fn request_sense_returns_fixed_format_on_request(portal: &Portal) {
    let reply = ask(&mut Connection::session(portal), &[0x03, 0, 0, 0, 252, 0], 252);
    assert_eq!((reply.status, reply.data_in[0] & 0x7F), (0, 0x70));
    assert!(reply.data_in.len() >= 18);
}

fn test_unit_ready_succeeds(portal: &Portal) {
    assert_eq!(ask(&mut Connection::session(portal), &[0; 6], 0).status, 0);
}

/// Opens a session without commands so far.
fn fresh(portal: &Portal) -> Connection {
    let mut connection = Connection::open(portal);
    connection.log_in("conformance-attention", &[]);
    connection
}

fn new_nexus_gets_one_unit_attention(portal: &Portal) {
    let mut connection = fresh(portal);
    let mut received = 0;
    loop {
        let reply = ask(&mut connection, &[0; 6], 0);
        if reply.status == 0 {
            break;
        }
        let (key, code) = sense::codes(&reply.sense);
        assert_eq!((key, code >> 8), (6, 0x29), "{:02x?}", reply.sense);
        received += 1;
        assert!(received < 4);
    }
    assert!(received >= 1, "power on, reset or nexus loss");
}

fn inquiry_and_report_luns_bypass_unit_attention(portal: &Portal) {
    let mut connection = fresh(portal);
    assert_eq!(ask(&mut connection, &inquiry(None, 96), 96).status, 0);
    assert_eq!(ask(&mut connection, &report_luns(0, 64), 64).status, 0);
    assert_eq!(ask(&mut connection, &[0; 6], 0).status, 2, "it is still there");
}

fn an_unknown_operation_code_is_refused(portal: &Portal) {
    let mut connection = Connection::session(portal);
    // The first two are commands of other device types.
    let codes: &[u8] =
        if device_type(&mut connection) == OSD { &[0x01, 0x42, 0xC0, 0xFF] } else { &[0xC0, 0xFF] };
    for &code in codes {
        let reply = ask(&mut connection, &[code, 0, 0, 0, 0, 0], 0);
        illegal(&reply, 0x2000);
    }
}

fn absent(portal: &Portal) -> Connection {
    let mut connection = Connection::session(portal);
    connection.portal.lun = 200;
    connection
}

fn absent_unit_answers_inquiry(portal: &Portal) {
    let reply = ask(&mut absent(portal), &inquiry(None, 96), 96);
    assert_eq!((reply.status, reply.data_in[0]), (0, 0x7F));
}

fn an_absent_logical_unit_refuses_commands(portal: &Portal) {
    let reply = ask(&mut absent(portal), &[0; 6], 0);
    assert_eq!(reply.status, 2);
    assert_eq!(sense::codes(&reply.sense), (5, 0x2500));
}

fn supported_operation_codes_are_reported(portal: &Portal) {
    let mut connection = Connection::session(portal);
    let mut cdb = [0; 12];
    (cdb[0], cdb[1]) = (0xA3, 0x0C);
    cdb[6..10].copy_from_slice(&4096_u32.to_be_bytes());
    let reply = ask(&mut connection, &cdb, 4096);
    if reply.status != 0 {
        illegal(&reply, 0x2000);
        skip("the device does not report its operation codes");
    }
    let length = u32::from_be_bytes(reply.data_in[..4].try_into().unwrap()) as usize;
    assert!(length > 0 && reply.data_in.len() <= 4 + length);
    assert!(reply.data_in[4..].chunks(8).any(|one| one[0] == 0x12), "INQUIRY among them");
}
