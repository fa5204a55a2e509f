//! Structured mutations of attribute lists: header, then entries (t10-osd 3.2, 3.3).
//!
//! The input of the target: allocation length (2), generation (1), list.

use sealstone_osd::{AttributeId, Generation, attribute::list};

use super::{edit, field, pick, rearrange};
use crate::Random;

const CHOICES: usize = 3;
/// Maximum number of entries of one list.
const ENTRIES_MAX: usize = 64;

type ListEntry = (AttributeId, Vec<u8>);

/// Page numbers with a meaning, used beside random ones.
const PAGES: [u32; 10] =
    [0, 1, 3, 0x3000_0001, 0x9000_0001, 0xF000_0000, 0xFFFF_FFFE, AttributeId::ALL, 0x1_0003, 0xF001];

pub(super) fn lists(input: &[u8], random: &mut Random) -> Vec<u8> {
    let mut head = input.to_vec();
    head.resize(CHOICES, 0);
    let rest = input.get(CHOICES..).unwrap_or_default();
    if random.below(8) == 0 {
        edit(&mut head, field(random.below(CHOICES), 1), random);
    }
    let generation = if head[2] & 1 == 0 { Generation::Osd1 } else { Generation::Osd2 };
    let mut entries = entries(generation, rest);
    for _ in 0..=random.below(3) {
        match random.below(4) {
            0 => entries.push((name(random), value(random))),
            1 => {
                if let Some(at) = (!entries.is_empty()).then(|| random.below(entries.len())) {
                    entries[at].0 = name(random);
                }
            }
            2 => {
                if let Some(at) = (!entries.is_empty()).then(|| random.below(entries.len())) {
                    entries[at].1 = value(random);
                }
            }
            _ => rearrange(&mut entries, random),
        }
        entries.truncate(ENTRIES_MAX);
    }
    let mut list = write(generation, &entries, usize::from(head[0]) << 8 | usize::from(head[1]), random);
    // Sometimes exactly one field is wrong: the type, the list length, or an entry length.
    if random.below(3) == 0 {
        let at = random.below(list.len().max(1));
        edit(&mut list, field(at & !1, 2), random);
    }
    head.truncate(CHOICES);
    head.extend_from_slice(&list);
    head.truncate(crate::mutate::INPUT_BYTES_MAX);
    head
}

/// The entries that parse as a list of any type.
fn entries(generation: Generation, bytes: &[u8]) -> Vec<ListEntry> {
    let owned = |values: list::Values<'_>| -> Vec<ListEntry> {
        values.iter().take(ENTRIES_MAX).map(|(id, value)| (id, value.to_vec())).collect()
    };
    if let Ok(values) = list::Values::parse_set(generation, bytes) {
        return owned(values);
    }
    if let Ok(values) = list::Values::parse_retrieved(generation, bytes) {
        return owned(values);
    }
    match list::GetNames::parse(generation, bytes) {
        Ok(names) => names.iter().take(ENTRIES_MAX).map(|id| (id, Vec::new())).collect(),
        Err(_) => Vec::new(),
    }
}

fn name(random: &mut Random) -> AttributeId {
    let page =
        if random.below(8) == 0 { random.draw() as u32 } else { *pick(&PAGES, random).expect("not empty") };
    let number = match random.below(4) {
        0 => 0,
        1 => AttributeId::ALL,
        2 => random.draw() as u32,
        _ => random.below(0x90) as u32,
    };
    AttributeId::new(page, number)
}

fn value(random: &mut Random) -> Vec<u8> {
    let length = [0, 1, 4, 6, 7, 8, 9, 18, 20, 255, 1024][random.below(11)];
    vec![random.draw() as u8; length]
}

fn write(generation: Generation, entries: &[ListEntry], allocation: usize, random: &mut Random) -> Vec<u8> {
    let pairs: Vec<(AttributeId, &[u8])> =
        entries.iter().map(|(id, value)| (*id, value.as_slice())).collect();
    match random.below(4) {
        0 => {
            let names: Vec<AttributeId> = entries.iter().map(|(id, _)| *id).collect();
            list::encode_get(generation, &names)
        }
        1 => list::encode_set(generation, pairs),
        2 => {
            let mut out = Vec::new();
            let mut writer = list::RetrievedWriter::new(generation, &mut out, allocation);
            pairs.iter().for_each(|(id, value)| writer.push(*id, value));
            let _ = writer.finish();
            out
        }
        _ => {
            let mut out = Vec::new();
            let mut writer = list::RetrievedWriter::by_object(generation, &mut out, usize::MAX);
            let (one, other) = pairs.split_at(pairs.len() / 2);
            writer.push_object(0x1_0001, sealstone_osd::ObjectType::User, one);
            writer.push_object(random.draw(), sealstone_osd::ObjectType::Collection, other);
            let _ = writer.finish();
            out
        }
    }
}
