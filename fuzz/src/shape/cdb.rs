//! Structured mutations of CDBs and capabilities (t10-osd 1.1, 1.4–1.6, 4.1).

use sealstone_osd::{Generation, table};

use super::{FieldPosition, edit, field, pick};
use crate::Random;

/// Fields at the same position in both generations.
const COMMON: [FieldPosition; 14] = [
    field(1, 1),
    field(7, 1),
    field(10, 1),
    field(11, 1),
    field(12, 1),
    field(16, 8),
    field(24, 8),
    field(52, 4),
    field(56, 4),
    field(60, 4),
    field(64, 4),
    field(68, 4),
    field(72, 4),
    field(76, 4),
];
const OSD1: [FieldPosition; 7] =
    [field(32, 4), field(36, 8), field(44, 8), field(160, 20), field(180, 12), field(192, 4), field(196, 4)];
const OSD2: [FieldPosition; 7] =
    [field(32, 8), field(40, 8), field(48, 4), field(184, 32), field(216, 12), field(228, 4), field(232, 4)];
const CAPABILITY: [FieldPosition; 10] = [
    field(0, 1),
    field(1, 1),
    field(2, 1),
    field(4, 6),
    field(10, 20),
    field(30, 12),
    field(42, 6),
    field(48, 1),
    field(49, 5),
    field(55, 1),
];
const CAPABILITY_OSD1: [FieldPosition; 3] = [field(56, 4), field(60, 8), field(68, 8)];
const CAPABILITY_OSD2: [FieldPosition; 7] =
    [field(56, 4), field(60, 4), field(64, 2), field(72, 8), field(80, 8), field(88, 8), field(96, 8)];
/// Offset of the capability in a CDB.
const CAPABILITY_AT: usize = 80;

fn own(generation: Generation) -> &'static [FieldPosition] {
    match generation {
        Generation::Osd1 => &CAPABILITY_OSD1,
        Generation::Osd2 => &CAPABILITY_OSD2,
    }
}

/// The layout for a CDB of this length.
fn generation(length: usize) -> Generation {
    if length <= Generation::Osd1.cdb_len() + 3 { Generation::Osd1 } else { Generation::Osd2 }
}

pub(super) fn cdb(input: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    bytes.truncate(Generation::Osd2.cdb_len() + 3);
    let mut layout = generation(bytes.len());
    for _ in 0..=random.below(3) {
        match random.below(10) {
            0 => action(&mut bytes, layout, random),
            1 => {
                layout = relayout(&mut bytes, layout);
            }
            2 | 3 => {
                let place = pick(&CAPABILITY, random).into_iter().chain(pick(own(layout), random));
                let places: Vec<FieldPosition> =
                    place.map(|place| field(CAPABILITY_AT + place.at, place.width)).collect();
                if let Some(place) = pick(&places, random) {
                    edit(&mut bytes, *place, random);
                }
            }
            4 => attributes(&mut bytes, random),
            5 | 6 => {
                let place = *pick(layout.select([&OSD1, &OSD2]), random).expect("not empty");
                edit(&mut bytes, place, random);
            }
            _ => edit(&mut bytes, *pick(&COMMON, random).expect("not empty"), random),
        }
    }
    bytes
}

/// Changes the service action to another one of the same generation.
fn action(bytes: &mut [u8], layout: Generation, random: &mut Random) {
    let codes: Vec<u16> = table::SERVICE_ACTIONS.iter().filter_map(|row| row.code(layout)).collect();
    if let (Some(slot), Some(code)) = (bytes.get_mut(8..10), pick(&codes, random)) {
        slot.copy_from_slice(&code.to_be_bytes());
    }
}

/// Converts the command to the other generation's layout, for fields that both have.
fn relayout(bytes: &mut Vec<u8>, from: Generation) -> Generation {
    let Some(code) = bytes.get(8..10).map(|code| u16::from_be_bytes([code[0], code[1]])) else { return from };
    let to = match from {
        Generation::Osd1 => Generation::Osd2,
        Generation::Osd2 => Generation::Osd1,
    };
    let Some(code) = table::find(code).and_then(|(row, _)| row.code(to)) else { return from };
    let moved: Vec<u8> = {
        let part = |at: usize, length: usize| bytes.get(at..at + length).unwrap_or_default().to_vec();
        match from {
            Generation::Osd1 => part(36, 16),
            Generation::Osd2 => part(32, 16),
        }
    };
    bytes.resize(to.cdb_len(), 0);
    bytes[7] = (to.cdb_len() - 8) as u8;
    bytes[8..10].copy_from_slice(&code.to_be_bytes());
    bytes[32..52].fill(0);
    let at = match to {
        Generation::Osd1 => 36,
        Generation::Osd2 => 32,
    };
    bytes[at..at + moved.len()].copy_from_slice(&moved);
    bytes[CAPABILITY_AT] = bytes[CAPABILITY_AT] & 0xF0 | if to == Generation::Osd1 { 1 } else { 2 };
    to
}

/// Changes the format of the attribute parameters, with plausible lengths.
fn attributes(bytes: &mut [u8], random: &mut Random) {
    let Some(slot) = bytes.get_mut(52..80) else { return };
    let words: [u32; 7] = core::array::from_fn(|_| match random.below(4) {
        0 => 0,
        1 => 0xFFFF_FFFF,
        2 => random.below(64) as u32,
        _ => (random.below(16) as u32) << 28 | random.below(256) as u32,
    });
    for (word, value) in slot.chunks_exact_mut(4).zip(words) {
        word.copy_from_slice(&value.to_be_bytes());
    }
    bytes[11] = bytes[11] & 0xCF | (random.below(4) as u8) << 4;
}

pub(super) fn capability(input: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    let length = if random.below(8) == 0 { random.below(108) } else { bytes.len().clamp(80, 104) };
    bytes.resize(length, 0);
    for _ in 0..=random.below(3) {
        let layout = if random.below(2) == 0 { Generation::Osd1 } else { Generation::Osd2 };
        match random.below(4) {
            // Valid codes, so that the fields after them are parsed.
            0 if bytes.len() > 55 => {
                bytes[0] = 1 + random.below(2) as u8;
                bytes[2] = random.below(5) as u8;
                bytes[48] = [1, 2, 0x40, 0x80, 3][random.below(5)];
                bytes[55] = (random.below(4) as u8) << 4;
            }
            1 => edit(&mut bytes, *pick(own(layout), random).expect("not empty"), random),
            _ => edit(&mut bytes, *pick(&CAPABILITY, random).expect("not empty"), random),
        }
    }
    bytes
}
