//! Structured mutations of iSCSI PDU streams without digests: header, additional segments, data
//! (RFC 7143 §11).
//!
//! The input of the targets: choices (1), then the stream.

use super::{EDGES, FieldPosition, edit, field, pick, rearrange};
use crate::Random;

const HEADER: usize = 48;
/// Maximum number of PDUs in one stream.
const PDUS_MAX: usize = 40;
/// Header fields to change in any PDU.
const FIELDS: [FieldPosition; 13] = [
    field(0, 1),
    field(1, 1),
    field(2, 2),
    field(8, 8),
    field(16, 4),
    field(20, 4),
    field(24, 4),
    field(28, 4),
    field(32, 4),
    field(36, 4),
    field(40, 4),
    field(44, 4),
    field(32, 16),
];
/// Opcodes of both directions, with and without the immediate bit.
const OPCODES: [u8; 18] = [
    0x00, 0x40, 0x01, 0x41, 0x02, 0x42, 0x43, 0x04, 0x05, 0x06, 0x46, 0x10, 0x20, 0x21, 0x25, 0x26, 0x31,
    0x32,
];

#[derive(Clone)]
struct Pdu {
    header: [u8; HEADER],
    additional: Vec<u8>,
    data: Vec<u8>,
    /// A wrong data length for the header.
    lie: Option<u32>,
}

pub(super) fn stream(input: &[u8], random: &mut Random) -> Vec<u8> {
    let mut choices = input.first().copied().unwrap_or(0);
    let mut pdus = pdus(input.get(1..).unwrap_or_default());
    for _ in 0..=random.below(4) {
        match random.below(12) {
            0 => choices ^= 1 << random.below(8),
            1 | 2 => rearrange(&mut pdus, random),
            3 => pdus.insert(random.below(pdus.len() + 1), fresh(random)),
            kind => {
                let at = random.below(pdus.len());
                let Some(pdu) = pdus.get_mut(at) else { continue };
                match kind {
                    4 => pdu.header[0] = OPCODES[random.below(OPCODES.len())],
                    5 => additional(pdu, random),
                    6 => {
                        let length = [0, 1, 3, 4, 48, 512, 1000, 4096][random.below(8)];
                        pdu.data.resize(length, 0xD0);
                    }
                    7 => pdu.lie = Some(EDGES[random.below(EDGES.len())] as u32 & 0x00FF_FFFF),
                    8 => pdu.header[1] ^= 1 << random.below(8),
                    _ => edit(&mut pdu.header, *pick(&FIELDS, random).expect("not empty"), random),
                }
            }
        }
    }
    pdus.truncate(PDUS_MAX);
    let mut out = vec![choices];
    pdus.iter().for_each(|pdu| write(pdu, &mut out));
    if random.below(16) == 0 {
        out.truncate(random.below(out.len() + 1));
    }
    out.truncate(crate::mutate::INPUT_BYTES_MAX);
    out
}

fn pdus(mut bytes: &[u8]) -> Vec<Pdu> {
    let mut found = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() {
        let (additional, rest) = rest.split_at((4 * usize::from(header[4])).min(rest.len()));
        let length = usize::from(header[5]) << 16 | usize::from(header[6]) << 8 | usize::from(header[7]);
        let data = &rest[..length.min(rest.len())];
        let rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        found.push(Pdu { header: *header, additional: additional.to_vec(), data: data.to_vec(), lie: None });
        bytes = rest;
        if found.len() == PDUS_MAX {
            break;
        }
    }
    found
}

fn write(pdu: &Pdu, out: &mut Vec<u8>) {
    let at = out.len();
    out.extend_from_slice(&pdu.header);
    let mut additional = pdu.additional.clone();
    additional.resize(additional.len().next_multiple_of(4).min(4 * 255), 0);
    out[at + 4] = (additional.len() / 4) as u8;
    let stated_len = pdu.lie.unwrap_or(pdu.data.len() as u32).to_be_bytes();
    out[at + 5..at + 8].copy_from_slice(&stated_len[1..]);
    out.extend_from_slice(&additional);
    out.extend_from_slice(&pdu.data);
    out.resize(out.len() + (4 - pdu.data.len() % 4) % 4, 0);
}

/// A PDU of a random opcode with a plausible header.
fn fresh(random: &mut Random) -> Pdu {
    let mut header = [0; HEADER];
    header[0] = OPCODES[random.below(OPCODES.len())];
    header[1] = [0x80, 0xC1, 0xA1, 0xE1, 0x81, 0x01, 0x85, 0x87][random.below(8)];
    header[16..20].copy_from_slice(&(random.below(12) as u32).to_be_bytes());
    header[20..24].copy_from_slice(&(if random.below(2) == 0 { u32::MAX } else { 4096 }).to_be_bytes());
    header[24..28].copy_from_slice(&(random.below(12) as u32).to_be_bytes());
    header[28..32].copy_from_slice(&(random.below(12) as u32).to_be_bytes());
    header[32] = [0x7F, 0x12, 0xA0, 0x00, 0x28][random.below(5)];
    let mut pdu = Pdu { header, additional: Vec::new(), data: vec![0x41; random.below(64)], lie: None };
    if random.below(3) == 0 {
        additional(&mut pdu, random);
    }
    pdu
}

/// Adds additional header segments: an extended CDB, a bidirectional read length, an unknown type,
/// or a wrong length.
fn additional(pdu: &mut Pdu, random: &mut Random) {
    let segment = match random.below(5) {
        0 => {
            let rest = [184, 220, 1, 0, 244][random.below(5)];
            let mut segment = vec![0; 4 + rest];
            segment[..2].copy_from_slice(&(rest as u16 + 1).to_be_bytes());
            segment[2] = 1;
            segment
        }
        1 => vec![0, 5, 2, 0, 0, 0, (random.draw() & 0x3F) as u8, 0],
        2 => vec![0, 5, random.draw() as u8, 0, 0, 0, 16, 0],
        3 => {
            pdu.additional.clear();
            return;
        }
        _ => vec![random.draw() as u8, random.draw() as u8, 1, 0],
    };
    if random.below(2) == 0 {
        pdu.additional.clear();
    }
    pdu.additional.extend_from_slice(&segment);
    pdu.additional.truncate(4 * 255);
}
