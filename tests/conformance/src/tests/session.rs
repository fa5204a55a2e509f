//! iSCSI full feature phase: numbers, data transfer, task management, errors (RFC 7143 §4, §7,
//! §11).

use crate::iscsi::{
    ASYNC, Connection, DATA_IN, IMMEDIATE, LOGOUT, LOGOUT_RESPONSE, NOP_IN, NOP_OUT, Pdu, R2T, REJECT,
    SCSI_RESPONSE, SNACK, TASK_MANAGEMENT, TASK_MANAGEMENT_RESPONSE,
};
use crate::sense;
use crate::suite::behaviours;
use crate::target::Portal;

const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 96, 0];
const TEST_UNIT_READY: [u8; 6] = [0; 6];

behaviours! { "iSCSI full feature phase";
    Iscsi "RFC 7143 11.18" a_ping_is_echoed;
    Iscsi "RFC 7143 11.18" a_ping_without_a_tag_is_not_answered;
    Iscsi "RFC 7143 4.2.2.1" the_window_is_open_and_counts_on;
    Iscsi "RFC 7143 4.2.2.3" status_numbers_count_by_one;
    Iscsi "RFC 7143 4.2.2.1" a_command_outside_the_window_is_ignored;
    Iscsi "RFC 7143 4.2.2.1" an_immediate_command_does_not_advance_the_numbers;
    Iscsi "RFC 7143 11.7" data_in_pieces_respect_declared_length;
    Iscsi "RFC 7143 11.4.5" a_short_answer_leaves_an_underflow;
    Iscsi "RFC 7143 11.4.5" oversized_answer_reports_residual_overflow;
    Iscsi "RFC 7143 11.8" data_beyond_first_burst_is_requested;
    Iscsi "RFC 7143 4.2.4" data_out_is_requested_if_none_is_immediate;
    Iscsi "RFC 7143 7.9" a_gap_in_data_out_fails_the_command;
    Iscsi "RFC 7143 11.8" data_out_of_unknown_transfer_is_rejected;
    Iscsi "RFC 7143 7.8" a_wrong_data_digest_is_rejected;
    Iscsi "RFC 7143 7.8" a_wrong_header_digest_ends_the_connection;
    Iscsi "RFC 7143 11.17" an_unknown_opcode_is_rejected;
    Iscsi "RFC 7143 11.16" a_snack_is_rejected_without_recovery;
    Iscsi "RFC 7143 11.2.2" an_unknown_additional_header_is_rejected;
    Iscsi "RFC 7143 11.2.1" a_segment_longer_than_declared_ends_the_connection;
    Iscsi "RFC 7143 11.5" abort_of_a_missing_task_is_accepted;
    Iscsi "RFC 7143 11.5" a_logical_unit_is_reset;
    Iscsi "RFC 7143 11.5" the_task_set_is_aborted_and_cleared;
    Iscsi "RFC 7143 11.5" an_unknown_function_is_refused;
    Iscsi "RFC 7143 11.14" a_session_is_closed_by_logout;
    Iscsi "RFC 7143 11.14" logout_of_a_missing_connection_is_refused;
    Iscsi "RFC 7143 6.3.5" a_session_is_reinstated_by_a_new_login;
    Iscsi "RFC 7143 11.4.3" check_condition_is_completed_at_target;
    Iscsi "RFC 7143 4.2.2" many_commands_are_answered_each_once;
    Iscsi "RFC 7143 13.12" a_new_segment_length_holds_at_once;
}

fn session(portal: &Portal) -> Connection {
    Connection::session(portal)
}

fn ping(connection: &Connection, tag: u32, data: &[u8]) -> Pdu {
    let mut pdu = Pdu::new(NOP_OUT | IMMEDIATE, 0x80);
    pdu.put(16, tag).put(20, u32::MAX).put(24, connection.command_number).put(28, connection.status_number);
    pdu.data = data.to_vec();
    pdu
}

fn a_ping_is_echoed(portal: &Portal) {
    let mut connection = session(portal);
    for length in [0, 1, 100, 4000] {
        let data: Vec<u8> = (0..length).map(|at| at as u8).collect();
        let request = ping(&connection, 55, &data);
        connection.send(&request);
        let answer = connection.next();
        assert_eq!((answer.opcode(), answer.word(16), answer.word(20)), (NOP_IN, 55, u32::MAX));
        assert_eq!(answer.data, data);
    }
}

fn a_ping_without_a_tag_is_not_answered(portal: &Portal) {
    let mut connection = session(portal);
    let request = ping(&connection, u32::MAX, b"");
    connection.send(&request);
    // The next response belongs to the next request.
    assert_eq!(connection.command(&TEST_UNIT_READY, &[], 0).status, 0);
}

/// Returns ExpCmdSN and MaxCmdSN of the answer to a command.
fn window(connection: &mut Connection) -> (u32, u32) {
    let request = connection.command_pdu(&TEST_UNIT_READY, 0, 0);
    connection.send(&request);
    let answer = connection.next();
    assert_eq!(answer.opcode(), SCSI_RESPONSE);
    (answer.word(28), answer.word(32))
}

fn the_window_is_open_and_counts_on(portal: &Portal) {
    let mut connection = session(portal);
    let (expected, most) = window(&mut connection);
    assert_eq!(expected, connection.command_number);
    assert!(most.wrapping_sub(expected) < 0x8000_0000, "open: {expected}..{most}");
    assert_eq!(window(&mut connection).0, expected + 1);
}

fn status_numbers_count_by_one(portal: &Portal) {
    let mut connection = session(portal);
    let mut numbers = Vec::new();
    for _ in 0..5 {
        let request = connection.command_pdu(&TEST_UNIT_READY, 0, 0);
        connection.send(&request);
        numbers.push(connection.next().word(24));
    }
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1)), "{numbers:?}");
}

fn a_command_outside_the_window_is_ignored(portal: &Portal) {
    let mut connection = session(portal);
    let mut request = connection.command_pdu(&TEST_UNIT_READY, 0, 0);
    connection.command_number -= 1;
    for number in [request.word(24).wrapping_add(100_000), request.word(24).wrapping_sub(2)] {
        request.put(24, number).put(16, 4444);
        connection.send(&request);
    }
    assert_eq!(connection.command(&TEST_UNIT_READY, &[], 0).status, 0, "the answer is to this one");
}

fn an_immediate_command_does_not_advance_the_numbers(portal: &Portal) {
    let mut connection = session(portal);
    let mut request = connection.command_pdu(&TEST_UNIT_READY, 0, 0);
    connection.command_number -= 1;
    request.header[0] |= IMMEDIATE;
    connection.send(&request);
    let answer = connection.next();
    assert_eq!((answer.opcode(), answer.word(28)), (SCSI_RESPONSE, connection.command_number));
}

fn data_in_pieces_respect_declared_length(portal: &Portal) {
    let mut connection = Connection::open(portal);
    connection.log_in("conformance-session", &[("MaxRecvDataSegmentLength", "512")]);
    let request = connection.command_pdu(&[0x12, 1, 0, 0, 255, 0], 0, 255);
    connection.send(&request);
    loop {
        let pdu = connection.next();
        assert!(pdu.data.len() <= 512);
        if pdu.opcode() != DATA_IN || pdu.header[1] & 1 != 0 {
            break;
        }
    }
}

fn a_short_answer_leaves_an_underflow(portal: &Portal) {
    let mut connection = session(portal);
    let reply = connection.command(&[0x12, 0, 0, 1, 0, 0], &[], 4096);
    assert_eq!(reply.status, 0);
    assert_eq!(reply.flags & 0x06, 0x02, "underflow");
    assert_eq!(reply.residual as usize, 4096 - reply.data_in.len());
}

fn oversized_answer_reports_residual_overflow(portal: &Portal) {
    let mut connection = session(portal);
    let whole = connection.command(&INQUIRY, &[], 96).data_in.len();
    let reply = connection.command(&INQUIRY, &[], 20);
    assert_eq!((reply.status, reply.data_in.len()), (0, 20));
    assert_eq!((reply.flags & 0x06, reply.residual as usize), (0x04, whole - 20), "overflow");
}

/// Builds a command that accepts any data before it is parsed: an empty OSD CDB.
fn taking(connection: &mut Connection, length: usize) -> Pdu {
    let mut cdb = vec![0; 236];
    (cdb[0], cdb[7], cdb[11]) = (0x7F, 228, 0x30);
    cdb[8..10].copy_from_slice(&0x8886_u16.to_be_bytes());
    cdb[16..24].copy_from_slice(&0x1_0000_u64.to_be_bytes());
    cdb[24..32].copy_from_slice(&0x1_0000_u64.to_be_bytes());
    cdb[32..40].copy_from_slice(&(length as u64).to_be_bytes());
    connection.command_pdu(&cdb, length, 0)
}

fn data_beyond_first_burst_is_requested(portal: &Portal) {
    let mut connection = session(portal);
    let data = vec![7; 200_000];
    let mut request = taking(&mut connection, data.len());
    let now = connection.first_burst.min(connection.send_max).min(data.len());
    request.data = data[..now].to_vec();
    let tag = request.word(16);
    connection.send(&request);
    let mut at = now;
    loop {
        let pdu = connection.next();
        if pdu.opcode() != R2T {
            assert_eq!(pdu.opcode(), SCSI_RESPONSE);
            break;
        }
        assert_eq!(pdu.word(40) as usize, at, "in order");
        let length = pdu.word(44) as usize;
        assert!(length > 0 && length <= 262_144);
        connection.data_out(tag, pdu.word(20), at, &data[at..at + length]);
        at += length;
    }
    assert_eq!(at, data.len(), "all of it was asked for");
}

fn data_out_is_requested_if_none_is_immediate(portal: &Portal) {
    let mut connection = session(portal);
    let request = taking(&mut connection, 1000);
    let tag = request.word(16);
    connection.send(&request);
    let pdu = connection.next();
    assert_eq!((pdu.opcode(), pdu.word(36), pdu.word(40), pdu.word(44)), (R2T, 0, 0, 1000));
    connection.data_out(tag, pdu.word(20), 0, &[1; 1000]);
    assert_eq!(connection.next().opcode(), SCSI_RESPONSE);
}

fn a_gap_in_data_out_fails_the_command(portal: &Portal) {
    let mut connection = session(portal);
    let request = taking(&mut connection, 1000);
    let tag = request.word(16);
    connection.send(&request);
    let transfer = connection.next().word(20);
    for (number, at, last) in [(0, 0, false), (2, 500, true)] {
        let mut pdu = Pdu::new(crate::iscsi::DATA_OUT, if last { 0x80 } else { 0 });
        pdu.header[8..16].copy_from_slice(&connection.lun());
        pdu.put(16, tag).put(20, transfer).put(28, connection.status_number).put(36, number).put(40, at);
        pdu.data = vec![0; 500];
        connection.send(&pdu);
    }
    let received = connection.answer();
    let aborted = |pdu: &Pdu| {
        // ABORTED COMMAND, in either format: no logical unit has received the command.
        let key = if pdu.data[2] & 0x7F >= 0x72 { pdu.data[3] } else { pdu.data[4] };
        pdu.header[3] == 2 && key & 0x0F == 0x0B
    };
    let fails = received.as_ref().is_none_or(|pdu| match pdu.opcode() {
        SCSI_RESPONSE => aborted(pdu),
        opcode => opcode == REJECT,
    });
    assert!(fails, "{received:?}");
}

fn data_out_of_unknown_transfer_is_rejected(portal: &Portal) {
    let mut connection = session(portal);
    let request = taking(&mut connection, 1000);
    connection.send(&request);
    let transfer = connection.next().word(20);
    let mut pdu = Pdu::new(crate::iscsi::DATA_OUT, 0x80);
    pdu.header[8..16].copy_from_slice(&connection.lun());
    pdu.put(16, request.word(16)).put(20, transfer ^ 0x55);
    pdu.data = vec![0; 8];
    connection.send(&pdu);
    if let Some(answer) = connection.answer() {
        assert_eq!(answer.opcode(), REJECT);
        assert_eq!(answer.data[..48], connection.wire(&pdu)[..48], "the header of what was rejected");
    }
}

fn a_wrong_data_digest_is_rejected(portal: &Portal) {
    let mut connection = Connection::open(portal);
    connection.log_in("conformance-session", &[("DataDigest", "CRC32C")]);
    let mut bytes = connection.wire(&ping(&connection, 5, b"some bytes"));
    let at = bytes.len() - 6;
    bytes[at] ^= 1;
    connection.offer(&bytes);
    if let Some(answer) = connection.answer() {
        assert_eq!((answer.opcode(), answer.header[2]), (REJECT, 2), "data digest error");
    }
}

fn a_wrong_header_digest_ends_the_connection(portal: &Portal) {
    let mut connection = Connection::open(portal);
    connection.log_in("conformance-session", &[("HeaderDigest", "CRC32C")]);
    let mut bytes = connection.wire(&ping(&connection, 5, b""));
    bytes[50] ^= 1;
    connection.offer(&bytes);
    connection.is_closed();
}

fn rejected(connection: &mut Connection, pdu: &Pdu) -> Option<u8> {
    connection.send(pdu);
    let answer = connection.answer()?;
    assert_eq!(answer.opcode(), REJECT, "{answer:?}");
    assert_eq!(answer.data.len(), 48, "with the header of what was rejected");
    Some(answer.header[2])
}

fn an_unknown_opcode_is_rejected(portal: &Portal) {
    let mut connection = session(portal);
    let mut pdu = Pdu::new(0x1C, 0x80);
    pdu.put(16, 5);
    assert!(matches!(rejected(&mut connection, &pdu), None | Some(5 | 4)));
}

fn a_snack_is_rejected_without_recovery(portal: &Portal) {
    let mut connection = session(portal);
    let mut pdu = Pdu::new(SNACK, 0x80);
    pdu.put(16, u32::MAX).put(20, u32::MAX);
    assert!(matches!(rejected(&mut connection, &pdu), None | Some(3..=5)));
}

fn an_unknown_additional_header_is_rejected(portal: &Portal) {
    let mut connection = session(portal);
    let mut pdu = connection.command_pdu(&TEST_UNIT_READY, 0, 0);
    pdu.additional = vec![0, 5, 0x3F, 0, 0, 0, 0, 0];
    assert!(matches!(rejected(&mut connection, &pdu), None | Some(9 | 4)));
}

fn a_segment_longer_than_declared_ends_the_connection(portal: &Portal) {
    let mut connection = session(portal);
    let mut bytes = connection.wire(&ping(&connection, 5, b""));
    bytes[5..8].copy_from_slice(&[0xFF, 0xFF, 0xFF]);
    connection.offer(&bytes);
    connection.offer(&vec![0; 1 << 16]);
    connection.is_closed();
}

fn manage(connection: &mut Connection, function: u8, referenced: u32) -> u8 {
    let mut pdu = Pdu::new(TASK_MANAGEMENT | IMMEDIATE, 0x80 | function);
    pdu.header[8..16].copy_from_slice(&connection.lun());
    pdu.put(16, 0x7000)
        .put(20, referenced)
        .put(24, connection.command_number)
        .put(28, connection.status_number);
    connection.send(&pdu);
    let answer = connection.next();
    assert_eq!((answer.opcode(), answer.word(16)), (TASK_MANAGEMENT_RESPONSE, 0x7000), "{answer:?}");
    answer.header[2]
}

fn abort_of_a_missing_task_is_accepted(portal: &Portal) {
    let mut connection = session(portal);
    // Task does not exist; or complete, since its number has passed already.
    assert!(matches!(manage(&mut connection, 1, 0x4321), 0 | 1));
}

fn a_logical_unit_is_reset(portal: &Portal) {
    let mut connection = session(portal);
    assert_eq!(manage(&mut connection, 5, u32::MAX), 0);
    // The reset is reported as a unit attention, once.
    let reply = connection.command(&TEST_UNIT_READY, &[], 0);
    if reply.status == 2 {
        let (key, code) = sense::codes(&reply.sense);
        assert_eq!((key, code >> 8), (6, 0x29), "{:02x?}", reply.sense);
        assert_eq!(connection.command(&TEST_UNIT_READY, &[], 0).status, 0);
    }
}

fn the_task_set_is_aborted_and_cleared(portal: &Portal) {
    let mut connection = session(portal);
    for function in [2, 4] {
        assert_eq!(manage(&mut connection, function, u32::MAX), 0, "function {function}");
    }
    let mut tries = 0;
    while connection.command(&TEST_UNIT_READY, &[], 0).status != 0 {
        tries += 1;
        assert!(tries < 4, "ready again");
    }
}

fn an_unknown_function_is_refused(portal: &Portal) {
    let mut connection = session(portal);
    assert!(matches!(manage(&mut connection, 0x3F, u32::MAX), 5 | 255));
}

fn logout(connection: &mut Connection, reason: u8, id: u16) -> u8 {
    let mut pdu = Pdu::new(LOGOUT | IMMEDIATE, 0x80 | reason);
    pdu.put(16, 0x6000).put(24, connection.command_number).put(28, connection.status_number);
    pdu.header[20..22].copy_from_slice(&id.to_be_bytes());
    connection.send(&pdu);
    let answer = connection.next();
    assert_eq!((answer.opcode(), answer.word(16)), (LOGOUT_RESPONSE, 0x6000), "{answer:?}");
    answer.header[2]
}

fn a_session_is_closed_by_logout(portal: &Portal) {
    let mut connection = session(portal);
    assert_eq!(logout(&mut connection, 0, 0), 0);
    connection.is_closed();
}

fn logout_of_a_missing_connection_is_refused(portal: &Portal) {
    let mut connection = session(portal);
    assert_eq!(logout(&mut connection, 1, 77), 1, "CID not found");
}

fn a_session_is_reinstated_by_a_new_login(portal: &Portal) {
    let mut first = session(portal);
    let mut second = Connection::open(portal);
    let body = crate::iscsi::text(&second.identity("conformance"));
    let mut request = second.login_request(0x87, &body);
    // The first session's ISID, as in its login.
    let isid = first.login_request(0x87, &[]).header;
    request.header[8..14].copy_from_slice(&isid[8..14]);
    second.send(&request);
    let answer = second.answer().unwrap();
    assert_eq!((answer.header[36], answer.header[1] & 0x87), (0, 0x87), "{answer:?}");
    // The first session ends; an asynchronous message may announce it.
    while let Some(pdu) = first.answer() {
        assert_eq!(pdu.opcode(), ASYNC, "{pdu:?}");
    }
}

fn check_condition_is_completed_at_target(portal: &Portal) {
    let mut connection = session(portal);
    let reply = connection.command(&[0xEE, 0, 0, 0, 0, 0], &[], 0);
    assert_eq!((reply.response, reply.status), (0, 2), "completed at the target, CHECK CONDITION");
    assert_eq!(reply.read_residual, 0);
}

fn many_commands_are_answered_each_once(portal: &Portal) {
    let mut connection = session(portal);
    let (expected, most) = window(&mut connection);
    let count = most.wrapping_sub(expected).wrapping_add(1).min(32);
    let mut tags: Vec<u32> = (0..count)
        .map(|_| {
            let request = connection.command_pdu(&TEST_UNIT_READY, 0, 0);
            connection.send(&request);
            request.word(16)
        })
        .collect();
    for _ in 0..count {
        let answer = connection.next();
        assert_eq!(answer.opcode(), SCSI_RESPONSE);
        let at = tags.iter().position(|tag| *tag == answer.word(16)).expect("an answer to one of ours");
        tags.remove(at);
    }
    assert!(tags.is_empty());
}

fn a_new_segment_length_holds_at_once(portal: &Portal) {
    let mut connection = session(portal);
    let mut request = Pdu::new(crate::iscsi::TEXT | IMMEDIATE, 0x80);
    request.put(16, 9).put(20, u32::MAX).put(24, connection.command_number).put(28, connection.status_number);
    request.data = b"MaxRecvDataSegmentLength=512\0".to_vec();
    connection.send(&request);
    assert_eq!(connection.next().opcode(), crate::iscsi::TEXT_RESPONSE);
    let request = ping(&connection, 55, &[7; 2000]);
    connection.send(&request);
    assert!(connection.next().data.len() <= 512, "a ping's echo is cut at the new length");
}
