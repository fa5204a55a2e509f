//! Structured mutations of CDB continuation segments: header, then descriptors (t10-osd 1.8).
//!
//! The input of the target: command (1), LENGTH (8), segment.

use super::{EDGES, edit, field, pick, rearrange};
use crate::Random;

const CHOICES: usize = 9;
const HEADER: usize = 40;
const DESCRIPTORS_MAX: usize = 8;

struct Descriptor {
    kind: u16,
    pad: u8,
    length: u32,
    data: Vec<u8>,
}

impl Clone for Descriptor {
    fn clone(&self) -> Self {
        Self { data: self.data.clone(), ..*self }
    }
}

impl Descriptor {
    fn new(kind: u16, mut data: Vec<u8>) -> Self {
        let length = data.len() as u32;
        let pad = (8 - data.len() % 8) % 8;
        data.resize(data.len() + pad, 0);
        Self { kind, pad: pad as u8, length, data }
    }
}

pub(super) fn continuation(input: &[u8], random: &mut Random) -> Vec<u8> {
    let mut head = input.to_vec();
    head.resize(CHOICES + HEADER, 0);
    head.truncate(CHOICES + HEADER);
    let mut descriptors = descriptors(input.get(CHOICES + HEADER..).unwrap_or_default());
    for _ in 0..=random.below(3) {
        match random.below(8) {
            0 => descriptors.insert(random.below(descriptors.len() + 1), any(random)),
            1 => rearrange(&mut descriptors, random),
            2 if !descriptors.is_empty() => {
                let at = random.below(descriptors.len());
                let descriptor = &mut descriptors[at];
                match random.below(4) {
                    0 => descriptor.kind = [0, 1, 2, 0x101, 0xFFEE, 3][random.below(6)],
                    1 => descriptor.pad = random.below(9) as u8,
                    2 => {
                        descriptor.length =
                            descriptor.length.wrapping_add([1, u32::MAX, 8, 0x8000_0000][random.below(4)]);
                    }
                    _ => {
                        let fields = descriptor.data.len() / 8;
                        edit(&mut descriptor.data, field(8 * random.below(fields.max(1)), 8), random);
                    }
                }
            }
            3 => {
                // A list whose lengths add up to LENGTH, or differ by one.
                let (data, sum) = pieces(random);
                head[1..9].copy_from_slice(&sum.to_be_bytes());
                descriptors.retain(|descriptor| descriptor.kind != 1);
                descriptors.push(Descriptor::new(1, data));
            }
            4 => edit(&mut head, field(1, 8), random),
            5 => edit(&mut head, field(0, 1), random),
            6 => edit(&mut head, field(CHOICES, 1), random),
            _ => own_action(&mut head),
        }
        descriptors.truncate(DESCRIPTORS_MAX);
    }
    let mut out = head;
    for descriptor in descriptors {
        out.extend_from_slice(&descriptor.kind.to_be_bytes());
        out.extend_from_slice(&[0, descriptor.pad]);
        out.extend_from_slice(&descriptor.length.to_be_bytes());
        out.extend_from_slice(&descriptor.data);
    }
    if random.below(12) == 0 {
        out.extend_from_slice(&[0; 8]);
    }
    out.truncate(crate::mutate::INPUT_BYTES_MAX);
    out
}

/// Sets the service action of the chosen command, and the format.
fn own_action(head: &mut [u8]) {
    let commands = crate::targets::osd::cdbs();
    let row = commands[usize::from(head[0]) % commands.len()].command.row();
    head[CHOICES] = 1;
    head[CHOICES + 2..CHOICES + 4].copy_from_slice(&row.osd2.unwrap_or(0).to_be_bytes());
}

fn descriptors(mut bytes: &[u8]) -> Vec<Descriptor> {
    let mut found = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<8>() {
        let length = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let whole = (length as usize).saturating_add(usize::from(header[3])).min(rest.len());
        let (data, rest) = rest.split_at(whole);
        found.push(Descriptor {
            kind: u16::from_be_bytes([header[0], header[1]]),
            pad: header[3],
            length,
            data: data.to_vec(),
        });
        bytes = rest;
        if found.len() == DESCRIPTORS_MAX {
            break;
        }
    }
    found
}

/// Entries of a scatter/gather list, and the sum of their lengths.
fn pieces(random: &mut Random) -> (Vec<u8>, u64) {
    let mut data = Vec::new();
    let mut sum = 0_u64;
    for _ in 0..random.below(6) {
        let (offset, length) = (*pick(&EDGES, random).expect("not empty"), random.below(1 << 20) as u64);
        data.extend_from_slice(&offset.to_be_bytes());
        data.extend_from_slice(&length.to_be_bytes());
        sum += length;
    }
    (data, sum.wrapping_add(u64::from(random.below(8) == 0)))
}

/// A descriptor of a random type with plausible data.
fn any(random: &mut Random) -> Descriptor {
    match random.below(5) {
        0 => Descriptor::new(1, pieces(random).0),
        1 => {
            let mut data = vec![random.below(3) as u8, 0, 0, 0];
            for _ in 0..random.below(4) {
                let (min, max) = (random.below(12), random.below(12));
                data.extend_from_slice(&(4 + 4 + 4 + min as u16 + max as u16).to_be_bytes());
                data.extend_from_slice(&[0, 0]);
                data.extend_from_slice(&0x1_0003_u32.to_be_bytes());
                data.extend_from_slice(&1_u32.to_be_bytes());
                data.extend_from_slice(&(min as u16).to_be_bytes());
                data.resize(data.len() + min, 0x61);
                data.extend_from_slice(&(max as u16).to_be_bytes());
                data.resize(data.len() + max, 0x7A);
            }
            data.resize(data.len().next_multiple_of(8), 0);
            Descriptor::new(2, data)
        }
        2 => {
            let mut data = [0_u8; 18];
            data[..8].copy_from_slice(&0x1_0000_u64.to_be_bytes());
            data[8..16].copy_from_slice(&EDGES[random.below(EDGES.len())].to_be_bytes());
            data[16..].copy_from_slice(&(random.draw() as u16).to_be_bytes());
            Descriptor::new(0x101, data.to_vec())
        }
        3 => {
            let one = crate::targets::osd::capability(
                sealstone_osd::Generation::Osd2,
                sealstone_osd::SecurityMethod::CmdRsp,
            );
            Descriptor::new(0xFFEE, one.encode().repeat(1 + random.below(18)))
        }
        _ => Descriptor::new(random.draw() as u16, vec![0x5A; random.below(40)]),
    }
}
