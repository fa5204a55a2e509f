//! `sealstone-iscsi`: login and text negotiation, key by key, in valid PDUs with arbitrary text.

use std::collections::BTreeSet;

use super::iscsi::{InitiatorEnd, NAME, TargetEnd, logged_in};
use crate::Target;
use crate::input::Input;

/// Options in the first byte.
mod choice {
    /// Text requests in full feature phase instead of a login.
    pub(super) const TEXT: u8 = 0x01;
    /// Answers of a target to an initiator, instead of requests to a target.
    pub(super) const ANSWERS: u8 = 0x02;
}

const HEADER: usize = 48;
const LOGIN_RESPONSE: u8 = 0x23;
/// Maximum number of requests per input.
const REQUESTS_MAX: usize = 16;
/// Keys that a target declares without a request.
const OF_ITS_OWN: [&str; 8] = [
    "TargetPortalGroupTag",
    "TargetAlias",
    "TargetName",
    "TargetAddress",
    "MaxRecvDataSegmentLength",
    "AuthMethod",
    "CHAP_A",
    "CHAP_I",
];

struct NegotiationRequest<'a> {
    flags: u8,
    text: &'a [u8],
}

fn requests<'a>(input: &mut Input<'a>) -> Vec<NegotiationRequest<'a>> {
    let mut found = Vec::new();
    while !input.is_empty() && found.len() < REQUESTS_MAX {
        let (flags, length) = (input.byte(), usize::from(input.short()));
        found.push(NegotiationRequest { flags, text: input.take(length) });
    }
    found
}

fn framed(mut header: [u8; HEADER], text: &[u8]) -> Vec<u8> {
    header[5..8].copy_from_slice(&(text.len() as u32).to_be_bytes()[1..]);
    let mut pdu = [&header[..], text].concat();
    pdu.resize(pdu.len().next_multiple_of(4), 0);
    pdu
}

/// Header and text of every login response in the output of a target.
fn responses(mut sent: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut found = Vec::new();
    while sent.len() >= HEADER && sent[0] & 0x3F == LOGIN_RESPONSE {
        let length = usize::from(sent[5]) << 16 | usize::from(sent[6]) << 8 | usize::from(sent[7]);
        let end = HEADER + length.next_multiple_of(4);
        assert!(sent.len() >= end, "a response is sent whole");
        found.push((&sent[..HEADER], &sent[HEADER..HEADER + length]));
        sent = &sent[end..];
    }
    found
}

fn keys(text: &[u8]) -> Vec<String> {
    let pairs = text.split(|byte| *byte == 0).filter(|pair| !pair.is_empty());
    pairs.map(|pair| String::from_utf8_lossy(pair).split('=').next().unwrap_or_default().to_owned()).collect()
}

fn asked(requests: &[NegotiationRequest<'_>]) {
    let mut server = TargetEnd::new(0);
    let (mut offered, mut gathered) = (BTreeSet::new(), Vec::new());
    for (number, request) in requests.iter().enumerate() {
        let mut header = [0; HEADER];
        (header[0], header[1]) = (0x43, request.flags);
        header[8] = 0x80;
        header[19] = 9;
        header[31] = number as u8 + 1;
        // A text may be split anywhere, even within a key.
        gathered.extend_from_slice(request.text);
        if request.flags & 0x40 == 0 {
            offered.extend(keys(&std::mem::take(&mut gathered)));
        }
        server.feed(&framed(header, request.text), usize::MAX, 1);
    }
    server.settle();
    let mut answered = BTreeSet::new();
    let sent = std::mem::take(&mut server.sent);
    for (header, text) in responses(&sent) {
        for key in keys(text) {
            assert!(
                offered.contains(&key) || OF_ITS_OWN.contains(&&*key) || key.starts_with("CHAP_"),
                "{key}"
            );
            // Continuation splits at most one value per response; a key is answered once.
            assert!(
                key.len() <= 63 && (answered.insert(key.clone()) || key.starts_with("CHAP_")),
                "{key} twice"
            );
        }
        let (transit, stage, next) = (header[1] & 0x80 != 0, header[1] >> 2 & 3, header[1] & 3);
        if header[36] == 0 {
            assert!(!transit || next == 3 || next > stage, "stages only go on: {:02x}", header[1]);
            // TSIH 0 is not a valid session.
            assert!(!(transit && next == 3) || header[14..16] != [0, 0], "a session has a handle");
        }
    }
    server.end();
}

fn asked_later(requests: &[NegotiationRequest<'_>]) {
    let mut server = logged_in(0).1;
    for (number, request) in requests.iter().enumerate() {
        let mut header = [0; HEADER];
        (header[0], header[1]) = (0x44, request.flags & 0xC0);
        header[19] = number as u8 + 50;
        // TARGET TRANSFER TAG: a new exchange, or one that was never started.
        header[20..24].fill(if request.flags & 1 == 0 { 0xFF } else { request.flags });
        server.feed(&framed(header, request.text), usize::MAX, 1);
    }
    server.end();
}

fn answered(requests: &[NegotiationRequest<'_>]) {
    let mut caller = InitiatorEnd::new(0);
    caller.settle();
    for (number, request) in requests.iter().enumerate() {
        let task = caller.sent.get(16..20).map_or([0; 4], |task| [task[0], task[1], task[2], task[3]]);
        let mut header = [0; HEADER];
        (header[0], header[1]) = (LOGIN_RESPONSE, request.flags);
        header[8] = 0x80;
        header[15] = 1;
        header[16..20].copy_from_slice(&task);
        header[27] = number as u8;
        header[31] = 1;
        header[35] = 32;
        caller.feed(&framed(header, request.text), usize::MAX, 1);
    }
    caller.end();
}

fn login(input: &[u8]) {
    let mut input = Input::new(input);
    let choices = input.byte();
    let requests = requests(&mut input);
    if choices & choice::ANSWERS != 0 {
        answered(&requests);
    } else if choices & choice::TEXT != 0 {
        asked_later(&requests);
    } else {
        asked(&requests);
    }
}

fn input(choices: u8, requests: &[(u8, &str)]) -> Vec<u8> {
    let mut out = vec![choices];
    for (flags, text) in requests {
        out.push(*flags);
        out.extend_from_slice(&(text.len() as u16).to_be_bytes());
        out.extend_from_slice(text.as_bytes());
    }
    out
}

fn seeds() -> Vec<Vec<u8>> {
    let who =
        format!("InitiatorName=iqn.2026-11.org.sealstone:fuzz\0TargetName={NAME}\0SessionType=Normal\0");
    let all = "HeaderDigest=CRC32C,None\0DataDigest=None\0InitialR2T=Yes\0ImmediateData=No\0MaxConnections=8\0\
               MaxRecvDataSegmentLength=8192\0MaxBurstLength=65536\0FirstBurstLength=512\0DefaultTime2Wait=0\0\
               DefaultTime2Retain=20\0MaxOutstandingR2T=9\0DataPDUInOrder=No\0DataSequenceInOrder=No\0\
               ErrorRecoveryLevel=2\0TaskReporting=RFC3720\0iSCSIProtocolLevel=1\0OFMarker=No\0X-org.key=1\0";
    let security = format!("{who}AuthMethod=CHAP,None\0");
    let discovery = "InitiatorName=iqn.2026-11.org.sealstone:fuzz\0SessionType=Discovery\0".to_owned();
    vec![
        input(0, &[(0x87, &format!("{who}{all}"))]),
        input(0, &[(0x81, &security), (0x87, all)]),
        input(0, &[(0x00, &security), (0x81, ""), (0x04, all), (0x87, "")]),
        input(0, &[(0x83, &discovery)]),
        input(0, &[(0x44, &who), (0x04, all), (0x87, "")]),
        input(
            choice::TEXT,
            &[(0x80, "SendTargets=All\0"), (0x80, "SendTargets=\0MaxRecvDataSegmentLength=512\0")],
        ),
        input(choice::TEXT, &[(0x40, "SendTar"), (0x80, "gets=All\0")]),
        input(choice::ANSWERS, &[(0x87, "TargetPortalGroupTag=1\0HeaderDigest=None\0MaxBurstLength=512\0")]),
        input(choice::ANSWERS, &[(0x81, "TargetPortalGroupTag=1\0AuthMethod=None\0"), (0x87, all)]),
    ]
}

pub(crate) const LOGIN: Target = Target {
    name: "iscsi-login",
    about: "choices, then login or text requests, or answers; keys are answered once, stages only go on",
    run: login,
    seeds,
    cost: 20,
    quarantine: None,
    covers: &[
        "iscsi::target_side::TargetConnection::received",
        "iscsi::initiator::InitiatorConnection::received",
    ],
};
