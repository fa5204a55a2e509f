//! Structured mutations of login and text negotiation (RFC 7143 §6, §13): requests with stages and
//! keys.
//!
//! The input of the target: choices (1), then requests: flags (1), length of the text (2), text.

use super::{edit, field, pick, rearrange};
use crate::Random;

/// Maximum number of requests of one login.
const REQUESTS_MAX: usize = 12;

/// Every key of RFC 7143, the protocol level of RFC 7144, and two unknown keys.
const KEYS: [&str; 36] = [
    "HeaderDigest",
    "DataDigest",
    "MaxConnections",
    "SendTargets",
    "TargetName",
    "InitiatorName",
    "TargetAlias",
    "InitiatorAlias",
    "TargetAddress",
    "TargetPortalGroupTag",
    "InitialR2T",
    "ImmediateData",
    "MaxRecvDataSegmentLength",
    "MaxBurstLength",
    "FirstBurstLength",
    "DefaultTime2Wait",
    "DefaultTime2Retain",
    "MaxOutstandingR2T",
    "DataPDUInOrder",
    "DataSequenceInOrder",
    "ErrorRecoveryLevel",
    "SessionType",
    "TaskReporting",
    "iSCSIProtocolLevel",
    "AuthMethod",
    "CHAP_A",
    "CHAP_I",
    "CHAP_C",
    "CHAP_N",
    "CHAP_R",
    "OFMarker",
    "IFMarker",
    "OFMarkInt",
    "IFMarkInt",
    "X-com.example.key",
    "Nobody",
];
const VALUES: [&str; 34] = [
    "",
    "Yes",
    "No",
    "None",
    "CRC32C",
    "CRC32C,None",
    "None,CRC32C",
    "CHAP",
    "CHAP,None",
    "KRB5,SRP,CHAP,None",
    "Normal",
    "Discovery",
    "All",
    "0",
    "1",
    "2",
    "3",
    "511",
    "512",
    "8192",
    "65536",
    "262144",
    "16777215",
    "16777216",
    "4294967296",
    "0x2000",
    "0X",
    "5,7",
    "NotUnderstood",
    "Irrelevant",
    "Reject",
    "0b/////w==",
    "RFC3720,RFC5048,FastAbort",
    "iqn.2026-11.org.sealstone:osd.fuzz",
];

#[derive(Clone)]
struct NegotiationRequest {
    flags: u8,
    pairs: Vec<Vec<u8>>,
}

pub(super) fn login(input: &[u8], random: &mut Random) -> Vec<u8> {
    let mut choices = input.first().copied().unwrap_or(0);
    let mut requests = requests(input.get(1..).unwrap_or_default());
    for _ in 0..=random.below(4) {
        match random.below(10) {
            0 => choices ^= 1 << random.below(8),
            1 => rearrange(&mut requests, random),
            2 => requests.push(NegotiationRequest { flags: random.draw() as u8, pairs: vec![pair(random)] }),
            3 => {
                if let Some(request) = some(&mut requests, random) {
                    request.flags =
                        [0x00, 0x01, 0x04, 0x81, 0x83, 0x87, 0x40, 0x44, 0x80, 0xC7][random.below(10)];
                }
            }
            4 => {
                if let Some(request) = some(&mut requests, random) {
                    rearrange(&mut request.pairs, random);
                }
            }
            5 => {
                if let Some(pair) =
                    some(&mut requests, random).and_then(|request| some(&mut request.pairs, random))
                {
                    let width = pair.len();
                    edit(pair, field(random.below(width), 1), random);
                }
            }
            6 => {
                if let Some(pair) =
                    some(&mut requests, random).and_then(|request| some(&mut request.pairs, random))
                {
                    let key = pair.split(|byte| *byte == b'=').next().unwrap_or_default().to_vec();
                    *pair = [&key[..], b"=", value(random).as_bytes()].concat();
                }
            }
            _ => {
                let new = pair(random);
                if let Some(request) = some(&mut requests, random) {
                    request.pairs.insert(random.below(request.pairs.len() + 1), new);
                }
            }
        }
    }
    requests.truncate(REQUESTS_MAX);
    let mut out = vec![choices];
    for request in requests {
        let mut text = Vec::new();
        for pair in &request.pairs {
            text.extend_from_slice(pair);
            text.push(0);
        }
        text.truncate(2000);
        out.push(request.flags);
        out.extend_from_slice(&(text.len() as u16).to_be_bytes());
        out.extend_from_slice(&text);
    }
    out.truncate(crate::mutate::INPUT_BYTES_MAX);
    out
}

fn some<'a, T>(from: &'a mut [T], random: &mut Random) -> Option<&'a mut T> {
    let at = random.below(from.len());
    from.get_mut(at)
}

fn value(random: &mut Random) -> String {
    match random.below(6) {
        0 => format!("{}", random.draw() as u32),
        1 => "x".repeat([255, 256, 223, 224, 1000][random.below(5)]),
        _ => (*pick(&VALUES, random).expect("not empty")).to_owned(),
    }
}

fn pair(random: &mut Random) -> Vec<u8> {
    format!("{}={}", pick(&KEYS, random).expect("not empty"), value(random)).into_bytes()
}

fn requests(mut bytes: &[u8]) -> Vec<NegotiationRequest> {
    let mut found = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<3>() {
        let length = usize::from(u16::from_be_bytes([head[1], head[2]])).min(rest.len());
        let (text, rest) = rest.split_at(length);
        let pairs =
            text.split(|byte| *byte == 0).filter(|pair| !pair.is_empty()).map(<[u8]>::to_vec).collect();
        found.push(NegotiationRequest { flags: head[0], pairs });
        bytes = rest;
        if found.len() == REQUESTS_MAX {
            break;
        }
    }
    found
}
