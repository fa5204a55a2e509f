//! The initiator with targets that break the rules: their PDUs are built by hand.

use alloc::vec::Vec;

use bytes::Bytes;

use super::{
    InitiatorClosed, InitiatorConfig, InitiatorConnection, InitiatorEvent, ManagementFunction,
    SubmittedCommand, TaskFailure, Violation,
};
use crate::{
    Buffer, Cdb, Gather, TaskAttribute, TextError,
    pdu::{self, BHS_LEN, Bhs, NO_TAG, flag, opcode},
};

struct Bench {
    initiator: InitiatorConnection,
    stat_sn: u32,
}

fn segment(mut bhs: Bhs, data: &[u8]) -> Vec<u8> {
    bhs[5..8].copy_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes()[1..]);
    let mut bytes = bhs.to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(BHS_LEN + data.len().next_multiple_of(4), 0);
    bytes
}

impl Bench {
    fn new() -> Self {
        let config = InitiatorConfig::new("iqn.x:i".into(), Some("iqn.x:t".into()), [0; 6]);
        Self { initiator: InitiatorConnection::new(config, 0), stat_sn: 50 }
    }

    fn sent(&mut self) -> Vec<Bhs> {
        let stream: Vec<u8> = core::iter::from_fn(|| self.initiator.poll_transmit()).flatten().collect();
        let mut rest = &stream[..];
        let mut headers = Vec::new();
        while let Some((bhs, tail)) = rest.split_first_chunk::<BHS_LEN>() {
            headers.push(*bhs);
            rest = &tail[pdu::ahs_length(bhs) + (pdu::data_length(bhs) as usize).next_multiple_of(4)..];
        }
        headers
    }

    fn receive(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut count = 0;
            for slice in self.initiator.rx_space() {
                let part = slice.len().min(rest.len());
                slice[..part].copy_from_slice(&rest[..part]);
                rest = &rest[part..];
                count += part;
            }
            if count == 0 {
                return;
            }
            self.initiator.received(count, 0);
        }
    }

    fn login_response(&mut self, flags: u8, keys: &str) -> Vec<u8> {
        let tag = self.sent().last().map_or(0, pdu::tag_of);
        let mut pdu = pdu::LoginResponse::new(opcode::LOGIN_RESPONSE, flags);
        pdu.tag.set(tag);
        pdu.tsih.set(4);
        pdu.stat_sn.set(self.stat_sn);
        pdu.exp_cmd_sn.set(1);
        pdu.max_cmd_sn.set(32);
        self.stat_sn += 1;
        segment(pdu.wire(), keys.replace('|', "\0").as_bytes())
    }

    fn logged_in(keys: &str) -> Self {
        let mut bench = Self::new();
        let first = bench.login_response(0x81, "AuthMethod=None|");
        bench.receive(&first);
        let second = bench.login_response(0x87, keys);
        bench.receive(&second);
        let event = bench.initiator.poll_event();
        assert!(matches!(event, Some(InitiatorEvent::LoggedIn(_))), "{event:?}");
        bench
    }

    fn submit(&mut self, out: usize, read: usize) -> u32 {
        let command = SubmittedCommand {
            lun: 0,
            cdb: Cdb::new(&[0; 16]).unwrap(),
            attribute: TaskAttribute::Simple,
            data_out: Gather::from(Bytes::from(alloc::vec![1; out])),
            data_in: Buffer::from(alloc::vec![0; read]),
        };
        self.initiator.submit(command).unwrap();
        pdu::tag_of(&self.sent()[0])
    }

    fn violates(mut self, bytes: &[u8], expected: Violation) {
        self.receive(bytes);
        let last = core::iter::from_fn(|| self.initiator.poll_event()).last();
        assert!(
            matches!(last, Some(InitiatorEvent::Closed(InitiatorClosed::Violation(v))) if v == expected),
            "{last:?}"
        );
    }
}

#[test]
fn logins_that_break_rules_are_left() {
    for (flags, keys, expected) in [
        (0x81, "AuthMethod=CHAP|", Violation::Selection),
        (0x81, "rubbish|", Violation::Text(TextError::Form)),
        (0xC1, "", Violation::Negotiation),
        (0x87, "", Violation::Negotiation),
        (0x83, "", Violation::Negotiation),
    ] {
        let mut bench = Bench::new();
        let response = bench.login_response(flags, keys);
        bench.violates(&response, expected);
    }
    let mut bench = Bench::new();
    let first = bench.login_response(0x81, "");
    bench.receive(&first);
    let more_than_offered = bench.login_response(0x87, "MaxBurstLength=16777215|");
    bench.violates(&more_than_offered, Violation::Selection);
    let mut bench = Bench::new();
    let endless: Vec<u8> = (0..40).flat_map(|_| bench.login_response(0x40, "")).collect();
    for bytes in endless.chunks(48) {
        let _ = bench.sent();
        bench.receive(bytes);
    }
    assert!(matches!(
        bench.initiator.poll_event(),
        Some(InitiatorEvent::Closed(InitiatorClosed::Violation(_)))
    ));
}

#[test]
fn redirection_names_the_new_address() {
    let mut bench = Bench::new();
    let tag = bench.sent().last().map_or(0, pdu::tag_of);
    let mut pdu = pdu::LoginResponse::new(opcode::LOGIN_RESPONSE, 0);
    pdu.tag.set(tag);
    (pdu.class, pdu.detail) = (1, 1);
    bench.receive(&segment(pdu.wire(), b"TargetAddress=10.0.0.7:3260\0"));
    let Some(InitiatorEvent::Closed(InitiatorClosed::Refused(refusal))) = bench.initiator.poll_event() else {
        panic!()
    };
    assert_eq!(refusal.redirect.as_deref(), Some("10.0.0.7:3260"));
}

#[test]
fn data_in_out_of_order_is_a_violation() {
    for (offset, sn, length) in [(4, 0, 8), (0, 1, 8), (0, 0, 20)] {
        let mut bench = Bench::logged_in("");
        let mut pdu = pdu::DataIn::new(opcode::DATA_IN, flag::FINAL);
        pdu.tag.set(bench.submit(0, 16));
        pdu.offset.set(offset);
        pdu.data_sn.set(sn);
        let bytes = segment(pdu.wire(), &alloc::vec![0; length]);
        bench.violates(&bytes, Violation::DataSequence);
    }
}

#[test]
fn data_in_is_visible_exactly_as_received() {
    let mut bench = Bench::logged_in("");
    let data: Vec<u8> = (0..200_u8).collect();
    let tag = bench.submit(0, data.len());
    let mut stream = Vec::new();
    for (sn, (offset, piece)) in [(0, &data[..120]), (120, &data[120..])].into_iter().enumerate() {
        let mut pdu = pdu::DataIn::new(opcode::DATA_IN, 0);
        pdu.tag.set(tag);
        pdu.offset.set(offset);
        pdu.data_sn.set(u32::try_from(sn).unwrap());
        stream.extend(segment(pdu.wire(), piece));
    }
    let mut shown = 0;
    for byte in stream {
        bench.receive(&[byte]);
        let so_far = bench.initiator.data_in_so_far().map_or(&[][..], |(_, so_far)| so_far);
        assert!(so_far.len() >= shown && so_far == &data[..so_far.len()]);
        shown = so_far.len();
    }
    assert_eq!(shown, data.len());
    // Another PDU with its own segment is received in between.
    let mut text = pdu::TextResponse::new(opcode::TEXT_RESPONSE, flag::FINAL);
    text.tag.set(NO_TAG);
    bench.receive(&segment(text.wire(), &[7; 40])[..BHS_LEN + 20]);
    assert_eq!(bench.initiator.data_in_so_far().map(|(_, so_far)| so_far), Some(&data[..]));

    // No data is returned for a finished command.
    let mut bench = Bench::logged_in("");
    let mut pdu = pdu::DataIn::new(opcode::DATA_IN, flag::FINAL | flag::STATUS);
    pdu.tag.set(bench.submit(0, 16));
    pdu.stat_sn.set(bench.stat_sn);
    bench.receive(&segment(pdu.wire(), &[1; 16]));
    assert!(bench.initiator.data_in_so_far().is_none());
}

#[test]
fn r2t_must_request_the_next_existing_data() {
    let keys = "ImmediateData=No|InitialR2T=Yes|MaxBurstLength=1024|MaxOutstandingR2T=1|";
    for (offset, length, sn) in [(1, 100, 0), (0, 0, 0), (0, 1025, 0), (0, 100, 1), (0, 513, 0)] {
        let mut bench = Bench::logged_in(keys);
        let mut pdu = pdu::R2t::new(opcode::R2T, flag::FINAL);
        pdu.tag.set(bench.submit(512, 0));
        pdu.offset.set(offset);
        pdu.desired.set(length);
        pdu.r2t_sn.set(sn);
        bench.violates(&pdu.wire(), Violation::ReadyToTransfer);
    }
    let mut bench = Bench::logged_in(keys);
    let mut pdu = pdu::R2t::new(opcode::R2T, flag::FINAL);
    pdu.tag.set(bench.submit(512, 0));
    pdu.desired.set(256);
    bench.receive(&pdu.wire());
    pdu.offset.set(256);
    pdu.r2t_sn.set(1);
    bench.violates(&pdu.wire(), Violation::ReadyToTransfer);
}

#[test]
fn strange_tags_numbers_and_opcodes_are_violations() {
    let bench = Bench::logged_in("");
    let mut pdu = pdu::ScsiResponse::new(opcode::SCSI_RESPONSE, flag::FINAL);
    pdu.stat_sn.set(bench.stat_sn);
    pdu.tag.set(7);
    bench.violates(&pdu.wire(), Violation::UnknownTask(7));

    let mut bench = Bench::logged_in("");
    pdu.tag.set(bench.submit(0, 0));
    pdu.stat_sn.set(bench.stat_sn + 1);
    bench.violates(&pdu.wire(), Violation::StatusSequence);

    let mut bench = Bench::logged_in("");
    pdu.tag.set(bench.submit(0, 0));
    pdu.stat_sn.set(bench.stat_sn);
    let bytes = segment(pdu.wire(), &[0, 9, 1]);
    bench.violates(&bytes, Violation::ResponseData);

    let mut bhs = [0; 48];
    bhs[0] = 0x3A;
    let bench = Bench::logged_in("");
    bhs[24..28].copy_from_slice(&bench.stat_sn.to_be_bytes());
    bench.violates(&bhs, Violation::UnexpectedPdu(0x3A));
    bhs[4] = 1;
    Bench::logged_in("").violates(&[&bhs[..], &[0; 4]].concat(), Violation::AdditionalHeader);
    bhs[4..8].copy_from_slice(&[0, 0xFF, 0, 0]);
    Bench::logged_in("").violates(&bhs, Violation::LongSegment(0xFF_0000));
    Bench::new().violates(&bhs, Violation::UnexpectedPdu(0x3A));
}

#[test]
fn reject_and_target_failure_end_only_the_command() {
    let mut bench = Bench::logged_in("");
    bench.initiator.manage(ManagementFunction::LogicalUnitReset(0)).unwrap();
    let _ = bench.sent();
    let tag = bench.submit(0, 0);
    let mut header = [0; 48];
    header[0] = opcode::SCSI_COMMAND;
    header[16..20].copy_from_slice(&tag.to_be_bytes());
    let mut reject = pdu::Reject::new(opcode::REJECT, flag::FINAL);
    reject.reason = 9;
    reject.tag.set(NO_TAG);
    reject.stat_sn.set(bench.stat_sn);
    bench.receive(&segment(reject.wire(), &header));
    let event = bench.initiator.poll_event();
    assert!(
        matches!(event, Some(InitiatorEvent::Completed { outcome: Err(TaskFailure::Rejected(9)), .. })),
        "{event:?}"
    );

    let mut response = pdu::ScsiResponse::new(opcode::SCSI_RESPONSE, flag::FINAL);
    response.tag.set(bench.submit(0, 0));
    response.response = 1;
    response.stat_sn.set(bench.stat_sn + 1);
    bench.receive(&response.wire());
    let event = bench.initiator.poll_event();
    assert!(
        matches!(event, Some(InitiatorEvent::Completed { outcome: Err(TaskFailure::Target(1)), .. })),
        "{event:?}"
    );
    assert!(bench.initiator.poll_event().is_none());
}

#[test]
fn rejected_data_out_leaves_command_to_its_response() {
    let mut bench = Bench::logged_in("");
    let tag = bench.submit(100, 0);
    let mut header = [0; 48];
    header[0] = opcode::DATA_OUT;
    header[16..20].copy_from_slice(&tag.to_be_bytes());
    let mut reject = pdu::Reject::new(opcode::REJECT, flag::FINAL);
    reject.reason = 9;
    reject.tag.set(NO_TAG);
    reject.stat_sn.set(bench.stat_sn);
    bench.receive(&segment(reject.wire(), &header));
    assert!(bench.initiator.poll_event().is_none());

    let mut response = pdu::ScsiResponse::new(opcode::SCSI_RESPONSE, flag::FINAL);
    response.tag.set(tag);
    response.status = 2;
    response.stat_sn.set(bench.stat_sn + 1);
    bench.receive(&response.wire());
    let event = bench.initiator.poll_event();
    assert!(
        matches!(&event, Some(InitiatorEvent::Completed { outcome: Ok(response), .. }) if response.status == 2),
        "{event:?}"
    );
}

#[test]
fn session_dropped_by_target_ends() {
    for event in [2, 3] {
        let mut bench = Bench::logged_in("");
        let mut pdu = pdu::Async::new(opcode::ASYNC, flag::FINAL);
        pdu.event = event;
        pdu.tag.set(NO_TAG);
        pdu.stat_sn.set(bench.stat_sn);
        bench.receive(&pdu.wire());
        assert!(matches!(
            bench.initiator.poll_event(),
            Some(InitiatorEvent::Closed(InitiatorClosed::Dropped))
        ));
    }
}
