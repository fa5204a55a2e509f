//! The target with PDUs that no correct initiator sends, built and parsed by hand.

use alloc::{string::String, sync::Arc, vec, vec::Vec};
use proptest::prelude::*;

use super::{
    CommandReply, PortalConfig, ReceivedCommand, Refusal, SenseFormat, TargetClosed, TargetConnection,
    TargetEntry, TargetEvent, Violation,
};
use crate::{
    Policy, Pool, limits,
    pdu::{self, BHS_LEN, Bhs, NO_TAG, flag, opcode, reason},
};

const NAME: &str = "iqn.2026-11.org.sealstone:osd.test";

pub(super) struct Heap;

impl Pool for Heap {
    fn take(&self, len: usize) -> Option<Vec<u8>> {
        Some(vec![0; len])
    }
    fn give(&self, _: Vec<u8>) {}
}

/// A target with a peer that sends hand-made PDUs.
pub(super) struct Bench {
    pub(super) target: TargetConnection,
    cmd_sn: u32,
}

fn target(policy: Policy) -> TargetConnection {
    pulling(policy, None)
}

fn pulling(policy: Policy, pull_bytes: Option<u32>) -> TargetConnection {
    let mut config =
        PortalConfig::new(vec![TargetEntry { name: NAME.into(), alias: None, addresses: vec![] }]);
    config.policy = policy;
    config.pull_bytes = pull_bytes;
    TargetConnection::new(Arc::new(config), Arc::new(Heap), "host:3260".into(), 0)
}

pub(super) fn login(flags: u8, keys: &str) -> Vec<u8> {
    let mut pdu = pdu::Login::new(opcode::LOGIN | opcode::IMMEDIATE, flags);
    pdu.tag.set(9);
    pdu.cmd_sn.set(100);
    segment(pdu.wire(), keys.replace('|', "\0").as_bytes())
}

fn segment(mut bhs: Bhs, data: &[u8]) -> Vec<u8> {
    bhs[5..8].copy_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes()[1..]);
    let mut bytes = bhs.to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(BHS_LEN + data.len().next_multiple_of(4), 0);
    bytes
}

pub(super) fn feed(target: &mut TargetConnection, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let space = target.rx_space();
        let mut count = 0;
        for slice in space {
            let part = slice.len().min(bytes.len());
            slice[..part].copy_from_slice(&bytes[..part]);
            bytes = &bytes[part..];
            count += part;
        }
        if count == 0 {
            return;
        }
        target.received(count, 0);
    }
}

/// Returns all pending PDUs, as header and data.
pub(super) fn answers(target: &mut TargetConnection) -> Vec<(Bhs, Vec<u8>)> {
    let mut stream: Vec<u8> = Vec::new();
    while let Some(piece) = target.poll_transmit() {
        stream.extend_from_slice(&piece);
    }
    let mut rest = &stream[..];
    let mut pdus = Vec::new();
    while let Some((bhs, tail)) = rest.split_first_chunk::<BHS_LEN>() {
        let length = pdu::data_length(bhs) as usize;
        pdus.push((*bhs, tail[..length].to_vec()));
        rest = &tail[length.next_multiple_of(4)..];
    }
    pdus
}

pub(super) fn closed(target: &mut TargetConnection) -> Option<TargetClosed> {
    core::iter::from_fn(|| target.poll_event()).find_map(|event| match event {
        TargetEvent::Closed(reason) => Some(reason),
        _ => None,
    })
}

const FIRST: &str = "InitiatorName=iqn.x:y|TargetName=iqn.2026-11.org.sealstone:osd.test|SessionType=Normal|";

impl Bench {
    fn new(policy: Policy, keys: &str) -> Self {
        Self::over(target(policy), keys)
    }

    /// Creates a target that requests at most this many bytes at once.
    pub(super) fn pulling(pull_bytes: u32, keys: &str) -> Self {
        Self::over(pulling(Policy::default(), Some(pull_bytes)), keys)
    }

    fn over(mut target: TargetConnection, keys: &str) -> Self {
        feed(&mut target, &login(0x87, &[FIRST, keys].concat()));
        let Some(TargetEvent::Login(request)) = target.poll_event() else {
            panic!("{:?}", closed(&mut target))
        };
        assert_eq!(request.initiator, "iqn.x:y");
        target.admit(3);
        assert_eq!(pdu::LoginResponse::of(&answers(&mut target)[0].0).class, 0);
        Self { target, cmd_sn: 100 }
    }

    fn usual() -> Self {
        Self::new(
            Policy::default(),
            "InitialR2T=No|ImmediateData=Yes|FirstBurstLength=1024|MaxBurstLength=1024|",
        )
    }

    pub(super) fn command(&mut self, tag: u32, flags: u8, expected: u32, data: &[u8]) -> Vec<u8> {
        let mut pdu = pdu::ScsiCommand::new(opcode::SCSI_COMMAND, flags);
        pdu.tag.set(tag);
        pdu.expected.set(expected);
        pdu.cmd_sn.set(self.cmd_sn);
        self.cmd_sn += 1;
        segment(pdu.wire(), data)
    }

    pub(super) fn say(&mut self, bytes: &[u8]) -> Vec<(Bhs, Vec<u8>)> {
        feed(&mut self.target, bytes);
        answers(&mut self.target)
    }

    /// Executes ready commands; returns the responses.
    fn execute(&mut self) -> Vec<(Bhs, Vec<u8>)> {
        while let Some(event) = self.target.poll_event() {
            let TargetEvent::Command(ReceivedCommand { task, .. }) = event else { panic!("{event:?}") };
            self.target.complete(task, CommandReply::default());
        }
        answers(&mut self.target)
    }

    fn expect_reject(&mut self, bytes: &[u8], reason: u8) {
        let sent = self.say(bytes);
        let [(bhs, echo)] = &sent[..] else { panic!("{} answers", sent.len()) };
        let pdu = pdu::Reject::of(bhs);
        assert_eq!((pdu.opcode, pdu.reason, pdu.tag.get()), (opcode::REJECT, reason, NO_TAG));
        assert_eq!(echo[..], bytes[..BHS_LEN], "the header comes back");
        assert!(self.target.poll_event().is_none());
    }

    fn expect_sense(&mut self, sent: &[(Bhs, Vec<u8>)], code: u8, qualifier: u8) {
        let [(bhs, data)] = sent else { panic!("{} answers", sent.len()) };
        let pdu = pdu::ScsiResponse::of(bhs);
        assert_eq!((pdu.opcode, pdu.status), (opcode::SCSI_RESPONSE, 2));
        assert_eq!((data[2 + 2], data[2 + 12], data[2 + 13]), (0x0B, code, qualifier));
    }
}

/// A command that the shell refuses is rejected once, and its tag is free again.
#[test]
fn command_refused_by_shell_is_rejected() {
    let mut bench = Bench::usual();
    for _ in 0..2 {
        let command = bench.command(7, flag::FINAL | flag::WRITE, 4, &[1; 4]);
        assert!(bench.say(&command).is_empty());
        let Some(TargetEvent::Command(ReceivedCommand { task, tag: 7, .. })) = bench.target.poll_event()
        else {
            panic!("a command with its tag")
        };
        bench.target.reject_command(task);
        bench.target.complete(task, CommandReply::default());
        let sent = answers(&mut bench.target);
        let [(bhs, echo)] = &sent[..] else { panic!("{} answers", sent.len()) };
        let (reject, header) = (pdu::Reject::of(bhs), echo.first_chunk().unwrap());
        assert_eq!((reject.opcode, reject.reason), (opcode::REJECT, reason::PROTOCOL));
        assert_eq!((pdu::opcode_of(header), pdu::tag_of(header)), (opcode::SCSI_COMMAND, 7));
    }
    assert_eq!(bench.target.rejects(), 2);
}

pub(super) fn data_out(tag: u32, transfer: u32, flags: u8, sn: u32, offset: u32, data: &[u8]) -> Vec<u8> {
    let mut pdu = pdu::DataOut::new(opcode::DATA_OUT, flags);
    pdu.tag.set(tag);
    pdu.transfer.set(transfer);
    pdu.data_sn.set(sn);
    pdu.offset.set(offset);
    segment(pdu.wire(), data)
}

pub(super) const WRITE: u8 = flag::FINAL | flag::WRITE;

#[test]
fn each_invalid_login_gets_its_status() {
    let refused = |requests: &[Vec<u8>]| {
        let mut target = target(Policy::default());
        for request in requests {
            feed(&mut target, request);
        }
        let status = answers(&mut target)
            .last()
            .map(|(bhs, _)| pdu::LoginResponse::of(bhs))
            .map(|r| (r.class, r.detail));
        (status, closed(&mut target))
    };
    let is = |refusal: Refusal, requests: &[Vec<u8>]| {
        assert_eq!(refused(requests), (Some(refusal.status()), Some(TargetClosed::Refused(refusal))));
    };
    let mut version = login(0x87, FIRST);
    version[3] = 1;
    is(Refusal::Version, &[version]);
    let mut joining = login(0x81, "");
    joining[15] = 1;
    is(Refusal::InvalidDuringLogin, &[login(0x04, FIRST), joining]);
    is(Refusal::MissingParameter, &[login(0x87, "TargetName=x|")]);
    is(Refusal::MissingParameter, &[login(0x87, "InitiatorName=x|")]);
    is(Refusal::NotFound, &[login(0x87, "InitiatorName=x|TargetName=y|")]);
    is(Refusal::SessionType, &[login(0x87, "InitiatorName=x|SessionType=Strange|")]);
    is(Refusal::Authentication, &[login(0x81, &[FIRST, "AuthMethod=CHAP,KRB5|"].concat())]);
    is(Refusal::InitiatorError, &[login(0x87, &[FIRST, "InitiatorName=again|"].concat())]);
    is(Refusal::InitiatorError, &[login(0x87, "no pair|")]);
    is(Refusal::InitiatorError, &[login(0x87, &["InitiatorName=", &"x".repeat(224), "|"].concat())]);
    is(Refusal::InitiatorError, &[login(0xC7, FIRST)]);
    for flags in [0x80, 0x82, 0x84, 0x85, 0x86, 0x08, 0x0C] {
        is(Refusal::InitiatorError, &[login(flags, FIRST)]);
    }
    // Back from the operational stage.
    is(Refusal::InitiatorError, &[login(0x04, FIRST), login(0x81, "")]);
    let mut other_tag = login(0x87, "");
    other_tag[19] = 1;
    is(Refusal::InvalidDuringLogin, &[login(0x04, FIRST), other_tag]);
    let endless: Vec<_> = core::iter::once(login(0x04, FIRST))
        .chain((0..limits::LOGIN_EXCHANGES_MAX).map(|_| login(0x04, "")))
        .collect();
    is(Refusal::InitiatorError, &endless);
    let mut keys = String::from(FIRST);
    for n in 0..limits::KEYS_MAX {
        keys += &std::format!("X-n{n}=1|");
    }
    is(Refusal::InitiatorError, &[login(0x87, &keys)]);
    let long: Vec<_> = (0..3).map(|_| login(0x44, &"a".repeat(8000))).collect();
    is(Refusal::InitiatorError, &long);
}

#[test]
fn keys_may_be_cut_anywhere_by_continuation() {
    for cut in 1..FIRST.len() {
        let mut target = target(Policy::default());
        let (head, tail) = FIRST.split_at(cut);
        feed(&mut target, &login(0x44, head));
        assert_eq!(answers(&mut target)[0].0[1], 0x04, "an empty answer asks for the rest");
        feed(&mut target, &login(0x87, tail));
        assert!(matches!(target.poll_event(), Some(TargetEvent::Login(_))), "cut at {cut}");
    }
}

#[test]
fn unknown_keys_do_not_end_the_login() {
    let mut target = target(Policy::default());
    feed(&mut target, &login(0x87, &[FIRST, "X-org.example.key=1|OFMarker=No|"].concat()));
    assert!(matches!(target.poll_event(), Some(TargetEvent::Login(_))));
    target.admit(1);
    let text = String::from_utf8(answers(&mut target)[0].1.clone()).unwrap();
    assert!(text.contains("X-org.example.key=NotUnderstood\0") && text.contains("OFMarker=Reject\0"));
    assert!(text.contains("TargetPortalGroupTag=1\0"));
}

#[test]
fn every_key_of_the_standard_has_its_answer() {
    let sent = |first: &str, keys: &str| {
        let mut target = target(Policy::default());
        feed(&mut target, &login(0x87, &[first, keys].concat()));
        assert_eq!(closed(&mut target), None, "{keys}");
        target.admit(3);
        String::from_utf8(answers(&mut target).remove(0).1).unwrap().replace('\0', "|")
    };
    for (keys, answer) in [
        ("TaskReporting=RFC3720,FastAbort|", "TaskReporting=RFC3720|"),
        ("TaskReporting=FastAbort|", "TaskReporting=Reject|"),
        ("iSCSIProtocolLevel=31|", "iSCSIProtocolLevel=1|"),
        ("OFMarker=No|IFMarkInt=2~4|", "OFMarker=Reject|IFMarkInt=Reject|"),
        ("SendTargets=All|", "SendTargets=Reject|"),
        ("X-org.example.key=1|", "X-org.example.key=NotUnderstood|"),
        ("ErrorRecoveryLevel=2|MaxConnections=8|", "ErrorRecoveryLevel=0|MaxConnections=1|"),
        ("DataPDUInOrder=No|DataSequenceInOrder=No|", "DataPDUInOrder=Yes|DataSequenceInOrder=Yes|"),
    ] {
        assert!(sent(FIRST, keys).contains(answer), "{keys}: {}", sent(FIRST, keys));
    }
    assert!(!sent(FIRST, "X-a=NotUnderstood|Y-b=Irrelevant|").contains("X-a"), "no answer to an answer");
    let discovery = "InitiatorName=iqn.x:y|SessionType=Discovery|";
    let keys = "MaxConnections=2|InitialR2T=Yes|ImmediateData=Yes|MaxBurstLength=512|FirstBurstLength=512|\
                MaxOutstandingR2T=1|DataPDUInOrder=Yes|DataSequenceInOrder=Yes|TaskReporting=RFC3720|iSCSIProtocolLevel=1|";
    assert_eq!(sent(discovery, keys).matches("=Irrelevant|").count(), 10);
    assert!(
        sent(discovery, "HeaderDigest=None|ErrorRecoveryLevel=0|")
            .contains("HeaderDigest=None|ErrorRecoveryLevel=0|")
    );
}

#[test]
fn text_request_may_have_a_key_once() {
    let mut bench = Bench::usual();
    let ask = |bench: &mut Bench, keys: &str| {
        let mut pdu = pdu::Text::new(opcode::TEXT | opcode::IMMEDIATE, flag::FINAL);
        pdu.tag.set(77);
        pdu.transfer.set(NO_TAG);
        let sent = bench.say(&segment(pdu.wire(), keys.replace('|', "\0").as_bytes()));
        (sent[0].0[0], sent[0].0[2], String::from_utf8_lossy(&sent[0].1).replace('\0', "|"))
    };
    let (opcode, reason, _) = ask(&mut bench, "X-a=1|X-a=2|");
    assert_eq!((opcode, reason), (opcode::REJECT, reason::PROTOCOL));
    assert_eq!(ask(&mut bench, "InitiatorAlias=me|X-a=1|").2, "X-a=NotUnderstood|");
    for key in [
        "InitiatorName",
        "AuthMethod",
        "CHAP_A",
        "MaxConnections",
        "SessionType",
        "OFMarker",
        "TaskReporting",
    ] {
        assert_eq!(ask(&mut bench, &std::format!("{key}=1|")).2, std::format!("{key}=Reject|"));
    }
    // An invalid name is a target that does not exist; an unknown key is NotUnderstood, in a text
    // response.
    for (keys, answer) in [
        ("SendTargetsPlease=All|", "SendTargetsPlease=NotUnderstood|"),
        ("SendTargets=Alle|", "SendTargets=Reject|"),
        ("SendTargets=A|", "SendTargets=Reject|"),
        ("SendTargets=iqn.2026-11.org.example:none|", ""),
    ] {
        assert_eq!(ask(&mut bench, keys), (opcode::TEXT_RESPONSE, 0, answer.into()));
    }
    assert_eq!(ask(&mut bench, "MaxRecvDataSegmentLength=600|").2, "");
    assert_eq!(bench.target.parameters().max_send, 600);
    assert_eq!(ask(&mut bench, "MaxRecvDataSegmentLength=1|").2, "MaxRecvDataSegmentLength=Reject|");
}

fn manage(bench: &mut Bench, function: u8, lun: u64, referenced: u32, ref_cmd_sn: u32) -> Option<u8> {
    let mut pdu =
        pdu::TaskManagement::new(opcode::TASK_MANAGEMENT | opcode::IMMEDIATE, flag::FINAL | function);
    pdu.tag.set(900);
    pdu.lun.set(lun);
    pdu.referenced.set(referenced);
    pdu.ref_cmd_sn.set(ref_cmd_sn);
    pdu.cmd_sn.set(bench.cmd_sn);
    let sent = bench.say(&pdu.wire());
    sent.first().map(|(bhs, _)| pdu::TaskManagementResponse::of(bhs).response)
}

#[test]
fn task_management_answers_as_the_standard_numbers_it() {
    let mut bench = Bench::usual();
    // CLEAR ACA, both target resets unless allowed, TASK REASSIGN, codes that do not exist.
    for (function, response) in [(3, 5), (6, 6), (7, 6), (8, 4), (0, 255), (9, 255), (0x7F, 255)] {
        assert_eq!(manage(&mut bench, function, 0, 0, 0), Some(response), "function {function}");
    }
    let command = bench.command(5, WRITE, 100, b"");
    bench.say(&command);
    assert_eq!(manage(&mut bench, 1, 1 << 48, 5, 0), Some(1), "of another logical unit");
    assert_eq!(manage(&mut bench, 1, 0x40 << 56, 5, 0), Some(0), "flat addressing of the same");
    assert_eq!(manage(&mut bench, 1, 0, 5, 0), Some(1), "ended");
    // A number that was not received yet, in a function behind it.
    let number = bench.cmd_sn;
    bench.cmd_sn += 1;
    assert_eq!(manage(&mut bench, 1, 0, 6, number), Some(0));
    let command = bench.command(7, WRITE, 4, b"1234");
    bench.say(&command);
    assert_eq!(bench.execute().len(), 1, "no hole is left");
    assert_eq!(manage(&mut bench, 1, 0, 6, number), Some(1), "long past");
    assert_eq!(manage(&mut bench, 2, 3 << 48, 0, 0), None, "the shell knows its logical units");
    let Some(TargetEvent::Management { id, function }) = bench.target.poll_event() else { panic!() };
    assert_eq!(function, super::ManagementFunction::AbortTaskSet(3 << 48));
    bench.target.managed(id, super::ManagementResult::NoSuchLun);
    assert_eq!(pdu::TaskManagementResponse::of(&answers(&mut bench.target)[0].0).response, 2);
}

/// Otherwise one response would have a key twice: as an answer, and as our own declaration.
#[test]
fn target_only_keys_and_bad_declarations_end_login() {
    for keys in [
        "TargetPortalGroupTag=1|",
        "TargetAlias=a|",
        "TargetAddress=b|",
        "MaxRecvDataSegmentLength=16777216|",
    ] {
        let mut target = target(Policy::default());
        feed(&mut target, &login(0x87, &[FIRST, keys].concat()));
        assert_eq!(closed(&mut target), Some(TargetClosed::Refused(Refusal::InitiatorError)), "{keys}");
    }
}

#[test]
fn other_pdus_before_login_close_the_connection() {
    let mut target = target(Policy::default());
    feed(&mut target, &[0; 48]);
    assert_eq!(closed(&mut target), Some(TargetClosed::Violation(Violation::NotLoggedIn(0))));
    assert!(answers(&mut target).is_empty());
    let mut bench = Bench::usual();
    bench.say(&login(0x87, FIRST));
    assert_eq!(closed(&mut bench.target), Some(TargetClosed::Violation(Violation::LoginAgain)));
}

#[test]
fn each_wrong_pdu_is_rejected_for_its_reason() {
    let mut bench = Bench::usual();
    for opcode in [0x07, 0x1C, 0x20, 0x25, 0x3F] {
        let mut bhs = [0; 48];
        bhs[0] = opcode;
        bench.expect_reject(&bhs, reason::NOT_SUPPORTED);
    }
    let mut snack = [0; 48];
    snack[0] = opcode::SNACK;
    bench.expect_reject(&snack, reason::SNACK);
    // Additional headers: malformed on a command, any on another PDU.
    let mut command = bench.command(1, flag::FINAL, 0, &[]);
    command[4] = 1;
    command.extend([0, 9, 1, 0]);
    bench.expect_reject(&command, reason::INVALID_FIELD);
    let mut ping = [0_u8; 52];
    ping[0] = opcode::NOP_OUT | opcode::IMMEDIATE;
    ping[4] = 1;
    bench.expect_reject(&ping, reason::INVALID_FIELD);
    // The reserved tag, a reserved task attribute.
    let command = bench.command(NO_TAG, flag::FINAL, 0, &[]);
    bench.expect_reject(&command, reason::INVALID_FIELD);
    let command = bench.command(2, flag::FINAL | 7, 0, &[]);
    bench.expect_reject(&command, reason::INVALID_FIELD);
    // A text that continues and ends, an exchange that was never started, invalid text.
    let mut text = pdu::Text::new(opcode::TEXT | opcode::IMMEDIATE, flag::FINAL | flag::CONTINUE);
    text.transfer.set(NO_TAG);
    bench.expect_reject(&segment(text.wire(), b"a=b\0"), reason::PROTOCOL);
    let mut text = pdu::Text::new(opcode::TEXT | opcode::IMMEDIATE, flag::FINAL);
    text.transfer.set(5);
    bench.expect_reject(&segment(text.wire(), b""), reason::PROTOCOL);
    text.transfer.set(NO_TAG);
    bench.expect_reject(&segment(text.wire(), b"nothing\0"), reason::PROTOCOL);
    // Every rejected command was counted: the next one is in order.
    let command = bench.command(3, flag::FINAL, 0, &[]);
    assert!(bench.say(&command).is_empty());
    assert_eq!(bench.execute().len(), 1);
}

#[test]
fn used_tag_and_excess_immediate_commands_are_rejected() {
    let mut bench = Bench::usual();
    let first = bench.command(1, flag::FINAL, 0, &[]);
    bench.say(&first);
    let again = bench.command(1, flag::FINAL, 0, &[]);
    feed(&mut bench.target, &again);
    assert_eq!(pdu::Reject::of(&answers(&mut bench.target)[0].0).reason, reason::TASK_IN_PROGRESS);
    for n in 0..=u32::from(limits::IMMEDIATE_MAX) {
        let mut command = bench.command(10 + n, flag::FINAL, 0, &[]);
        bench.cmd_sn -= 1;
        command[0] |= opcode::IMMEDIATE;
        let sent = bench.say(&command);
        assert_eq!(sent.len(), usize::from(n == u32::from(limits::IMMEDIATE_MAX)));
        if let Some((bhs, _)) = sent.first() {
            assert_eq!(pdu::Reject::of(bhs).reason, reason::TOO_MANY_IMMEDIATE);
        }
    }
}

#[test]
fn rejects_are_counted_and_end_sometime() {
    let mut bench = Bench::usual();
    let mut bhs = [0; 48];
    bhs[0] = 0x1C;
    for _ in 0..1000 {
        bench.say(&bhs);
    }
    assert_eq!(closed(&mut bench.target), Some(TargetClosed::Violation(Violation::TooManyRejects)));
}

#[test]
fn command_number_gaps_end_the_session() {
    let mut bench = Bench::usual();
    for wrong in [99, 100 + 128, 5000] {
        bench.cmd_sn = wrong;
        let command = bench.command(1, flag::FINAL, 0, &[]);
        assert!(bench.say(&command).is_empty() && bench.target.poll_event().is_none(), "{wrong}");
    }
    bench.cmd_sn = 101;
    let command = bench.command(1, flag::FINAL, 0, &[]);
    bench.say(&command);
    assert_eq!(closed(&mut bench.target), Some(TargetClosed::Violation(Violation::CommandGap)));
}

#[test]
fn a_segment_longer_than_declared_ends_the_connection() {
    let mut bench = Bench::usual();
    let mut command = bench.command(1, WRITE, u32::MAX, &[]);
    command[5..8].copy_from_slice(&[4, 0, 1]);
    bench.say(&command);
    assert_eq!(closed(&mut bench.target), Some(TargetClosed::Violation(Violation::LongSegment(0x4_0001))));
}

/// Replies that the transport sends on behalf of a logical unit have the format of the unit's own
/// sense data.
#[test]
fn transport_error_uses_sense_format_of_lun() {
    struct DescriptorAbove(u64);
    impl SenseFormat for DescriptorAbove {
        fn is_descriptor(&self, lun: u64) -> bool {
            lun > self.0
        }
    }
    for (above, sense) in [(0, &[0x70, 0, 0x0B][..]), (u64::MAX, &[0x70, 0, 0x0B])] {
        let mut bench = Bench::new(Policy::default(), "ImmediateData=No|");
        bench.target = bench.target.with_sense_format(Arc::new(DescriptorAbove(above)));
        let command = bench.command(1, WRITE, 100, &[1; 100]);
        assert_eq!(bench.say(&command)[0].1[2..5], *sense, "LUN 0");
        let mut command = bench.command(2, WRITE, 100, &[1; 100]);
        command[8..16].copy_from_slice(&(1_u64 << 48).to_be_bytes());
        let sent = bench.say(&command);
        let expected: &[u8] =
            if above == 0 { &[0x72, 0x0B, 0x0C, 0x0C, 0, 0, 0, 0] } else { &[0x70, 0, 0x0B] };
        assert_eq!(sent[0].1[2..2 + expected.len()], *expected, "LUN 1");
    }
}

#[test]
fn unexpected_unsolicited_data_fails_the_command() {
    // Immediate data although it was not negotiated, or more than the first burst, or more than
    // announced.
    for (keys, expected, length) in
        [("ImmediateData=No|", 100, 100), ("FirstBurstLength=512|", 900, 600), ("", 10, 100)]
    {
        let mut bench = Bench::new(Policy::default(), keys);
        let command = bench.command(1, WRITE, expected, &vec![1; length]);
        let sent = bench.say(&command);
        bench.expect_sense(&sent, 0x0C, 0x0C);
    }
    // Unsolicited Data-Out although InitialR2T is in force: the response waits for its end.
    let mut bench = Bench::new(Policy::default(), "InitialR2T=Yes|");
    let command = bench.command(1, flag::WRITE, 100, &[]);
    assert!(bench.say(&command).is_empty());
    let sent = bench.say(&data_out(1, NO_TAG, flag::FINAL, 0, 0, &[1; 100]));
    bench.expect_sense(&sent, 0x0C, 0x0C);
}

#[test]
fn data_out_out_of_sequence_fails_the_command() {
    for (sn, offset, length, code, qualifier) in [
        (1, 0, 1024, 0x47, 0x05),
        (0, 4, 1020, 0x47, 0x05),
        (0, 0, 1020, 0x0C, 0x0D),
        (0, 0, 1028, 0x0C, 0x0D),
    ] {
        let mut bench = Bench::usual();
        let command = bench.command(1, WRITE, 3000, &[]);
        let sent = bench.say(&command);
        let asked = pdu::R2t::of(&sent[0].0);
        assert_eq!((asked.opcode, asked.offset.get(), asked.desired.get()), (opcode::R2T, 0, 1024));
        // MaxOutstandingR2T was not offered: one at a time.
        assert_eq!(sent.len(), 1);
        let sent = bench.say(&data_out(1, asked.transfer.get(), flag::FINAL, sn, offset, &vec![1; length]));
        bench.expect_sense(&sent, code, qualifier);
        assert!(bench.target.poll_event().is_none(), "it never reaches the logical unit");
    }
}

#[test]
fn data_out_with_unknown_transfer_tag_is_rejected() {
    let mut bench = Bench::usual();
    let command = bench.command(1, WRITE, 3000, &[]);
    bench.say(&command);
    bench.expect_reject(&data_out(1, 0x7777, flag::FINAL, 0, 0, &[1; 1024]), reason::INVALID_FIELD);
    assert!(
        bench.say(&data_out(55, 1, flag::FINAL, 0, 0, &[1; 64])).is_empty(),
        "ended commands' data is ignored"
    );
    let done = bench.command(2, flag::FINAL, 0, &[]);
    bench.say(&done);
    let late = data_out(2, NO_TAG, flag::FINAL, 0, 0, &[1; 64]);
    assert_eq!(pdu::Reject::of(&bench.say(&late)[0].0).reason, reason::PROTOCOL);
}

#[test]
fn several_r2ts_are_sent_when_negotiated() {
    let mut bench = Bench::new(Policy::default(), "MaxOutstandingR2T=3|MaxBurstLength=512|");
    let command = bench.command(1, WRITE, 2000, &[]);
    let sent = bench.say(&command);
    let asked: Vec<_> = sent.iter().map(|(bhs, _)| pdu::R2t::of(bhs)).collect();
    let ranges: Vec<_> =
        asked.iter().map(|r2t| (r2t.r2t_sn.get(), r2t.offset.get(), r2t.desired.get())).collect();
    assert_eq!(ranges, [(0, 0, 512), (1, 512, 512), (2, 1024, 512)]);
    let sent = bench.say(&data_out(1, asked[0].transfer.get(), flag::FINAL, 0, 0, &[1; 512]));
    let last = pdu::R2t::of(&sent[0].0);
    assert_eq!((last.r2t_sn.get(), last.offset.get(), last.desired.get()), (3, 1536, 464));
    // In two PDUs, with a new count for each sequence.
    bench.say(&data_out(1, asked[1].transfer.get(), 0, 0, 512, &[1; 256]));
    bench.say(&data_out(1, asked[1].transfer.get(), flag::FINAL, 1, 768, &[1; 256]));
    bench.say(&data_out(1, asked[2].transfer.get(), flag::FINAL, 0, 1024, &[1; 512]));
    bench.say(&data_out(1, last.transfer.get(), flag::FINAL, 0, 1536, &[1; 464]));
    let sent = bench.execute();
    assert_eq!(pdu::ScsiResponse::of(&sent[0].0).status, 0);
}

#[test]
fn wrong_data_digest_fails_the_command() {
    let mut bench = Bench::new(Policy::default(), "DataDigest=CRC32C|");
    let mut command = bench.command(1, WRITE, 4, &[1, 2, 3, 4]);
    command.extend([0; 4]);
    feed(&mut bench.target, &command);
    // Responses of both kinds now have digests; their headers suffice.
    let first: Vec<_> = core::iter::from_fn(|| bench.target.poll_transmit()).flatten().collect();
    assert_eq!((first[0], first[2]), (opcode::REJECT, reason::DATA_DIGEST));
    let second = &first[48 + 48 + 4..];
    assert_eq!((second[0], second[3]), (opcode::SCSI_RESPONSE, 2));
    assert!(bench.target.poll_event().is_none());
}

#[test]
fn unsupported_logout_reports_its_reason() {
    let mut bench = Bench::usual();
    for (asked, cid, response) in [(1, 5, 1), (2, 0, 2), (3, 0, 2)] {
        let mut pdu = pdu::Logout::new(opcode::LOGOUT | opcode::IMMEDIATE, flag::FINAL | asked);
        pdu.cid.set(cid);
        let sent = bench.say(&pdu.wire());
        assert_eq!(pdu::LogoutResponse::of(&sent[0].0).response, response);
        assert!(closed(&mut bench.target).is_none());
    }
    let pdu = pdu::Logout::new(opcode::LOGOUT | opcode::IMMEDIATE, flag::FINAL | 1);
    let sent = bench.say(&pdu.wire());
    assert_eq!(pdu::LogoutResponse::of(&sent[0].0).response, 0);
    assert_eq!(closed(&mut bench.target), Some(TargetClosed::LoggedOut));
}

#[test]
fn pings_are_echoed_and_unasked_answers_are_nothing() {
    let mut bench = Bench::usual();
    let mut ping = pdu::Text::new(opcode::NOP_OUT | opcode::IMMEDIATE, flag::FINAL);
    ping.tag.set(77);
    ping.transfer.set(NO_TAG);
    let sent = bench.say(&segment(ping.wire(), b"hello"));
    let pong = pdu::TextResponse::of(&sent[0].0);
    assert_eq!((pong.opcode, pong.tag.get(), pong.transfer.get()), (opcode::NOP_IN, 77, NO_TAG));
    assert_eq!(sent[0].1, b"hello");
    let sent = bench.say(&segment(ping.wire(), &[7; 100_000]));
    assert_eq!(sent[0].1.len(), limits::PING_ECHO_MAX);
    ping.tag.set(NO_TAG);
    assert!(bench.say(&ping.wire()).is_empty());
}

/// A ping longer than its echo, in pieces, with data digests: the rest is dropped, and must not be
/// accessed.
#[test]
fn long_ping_with_digests_is_truncated() {
    let mut bench = Bench::new(Policy::default(), "DataDigest=CRC32C|");
    let mut ping = pdu::Text::new(opcode::NOP_OUT | opcode::IMMEDIATE, flag::FINAL);
    ping.tag.set(77);
    ping.transfer.set(NO_TAG);
    let data = [7; 3 * limits::PING_ECHO_MAX];
    let mut wire = segment(ping.wire(), &data);
    wire.extend_from_slice(&crate::crc32c_append(0, &data).to_le_bytes());
    for piece in wire.chunks(1000) {
        feed(&mut bench.target, piece);
    }
    assert!(closed(&mut bench.target).is_none());
    let mut stream: Vec<u8> = Vec::new();
    while let Some(piece) = bench.target.poll_transmit() {
        stream.extend_from_slice(&piece);
    }
    assert_eq!(stream.len(), BHS_LEN + limits::PING_ECHO_MAX + 4, "a header, the echo, its digest");
}

#[test]
fn status_numbers_are_without_gap() {
    let mut bench = Bench::usual();
    let mut expected = None;
    for tag in 1..20 {
        let command = bench.command(tag, flag::FINAL, 0, &[]);
        feed(&mut bench.target, &command);
        for (bhs, _) in bench.execute() {
            let pdu = pdu::ScsiResponse::of(&bhs);
            assert!(expected.is_none_or(|expected| expected == pdu.stat_sn.get()));
            expected = Some(pdu.stat_sn.get() + 1);
            assert_eq!(pdu.exp_cmd_sn.get(), bench.cmd_sn);
            assert_eq!(pdu.max_cmd_sn.get(), bench.cmd_sn + 127);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any sequence of PDUs with any headers, in full feature phase.
    #[test]
    fn arbitrary_headers_never_panic(
        pdus in proptest::collection::vec(
            (prop_oneof![0..8_u8, 0..64_u8], any::<u8>(), any::<[u8; 8]>(), 0..5_u32, 0..3000_u32, any::<[u8; 20]>(), 0..600_usize, 0..3_u8),
            1..40,
        ),
    ) {
        let mut bench = Bench::usual();
        for (op, flags, lun, tag, field, rest, length, ahs) in pdus {
            let mut bhs = [0; 48];
            bhs[0] = op | (opcode::IMMEDIATE * (rest[0] & 1));
            bhs[1] = flags;
            bhs[4] = if ahs == 2 { 2 } else { 0 };
            bhs[8..16].copy_from_slice(&lun);
            bhs[16..20].copy_from_slice(&tag.to_be_bytes());
            bhs[20..24].copy_from_slice(&field.to_be_bytes());
            bhs[24..28].copy_from_slice(&bench.target.exp_cmd_sn.to_be_bytes());
            bhs[28..48].copy_from_slice(&rest);
            if rest[1] & 1 == 0 {
                bhs[36..44].fill(0); // Data-Out in order
            }
            let mut bytes = segment(bhs, &vec![b'a'; length]);
            if ahs == 2 {
                bytes.splice(48..48, [0, 5, 2, 0, 0, 0, 1, 0]);
            }
            feed(&mut bench.target, &bytes);
            answers(&mut bench.target);
            while let Some(event) = bench.target.poll_event() {
                match event {
                    TargetEvent::Command(command) if rest[2] & 3 != 0 => bench.target.complete(command.task, CommandReply {
                        data_in: bytes::Bytes::from(vec![1; 700]).into(),
                        data_in_wanted: 700,
                        ..CommandReply::default()
                    }),
                    TargetEvent::Management { id, .. } => bench.target.managed(id, super::ManagementResult::Complete),
                    _ => {}
                }
            }
        }
    }
}
