//! Attribute lists of both generations (t10-osd 3.2, 3.3).

use crate::cdb::Generation;

pub(crate) type Attribute = (u32, u32);

fn header(generation: Generation, kind: u8, length: usize) -> Vec<u8> {
    match generation {
        Generation::Osd1 => [&[kind, 0][..], &(length as u16).to_be_bytes()].concat(),
        Generation::Osd2 => [&[kind, 0, 0, 0][..], &(length as u32).to_be_bytes()].concat(),
    }
}

/// Builds a list of names (type 1); the embedded length is zero, as the standard permits.
pub(crate) fn names(generation: Generation, attributes: &[Attribute]) -> Vec<u8> {
    let mut list = header(generation, 1, 0);
    for (page, number) in attributes {
        list.extend_from_slice(&page.to_be_bytes());
        list.extend_from_slice(&number.to_be_bytes());
    }
    list
}

/// Builds a list of values to set (type 9).
pub(crate) fn values(generation: Generation, attributes: &[(u32, u32, Vec<u8>)]) -> Vec<u8> {
    let mut list = header(generation, 9, 0);
    for (page, number, value) in attributes {
        list.extend_from_slice(&page.to_be_bytes());
        list.extend_from_slice(&number.to_be_bytes());
        if generation == Generation::Osd2 {
            list.extend_from_slice(&[0; 6]);
        }
        list.extend_from_slice(&(value.len() as u16).to_be_bytes());
        list.extend_from_slice(value);
        if generation == Generation::Osd2 {
            list.resize(list.len().next_multiple_of(8), 0);
        }
    }
    list
}

/// A retrieved list: its full length, and the received entries.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RetrievedList {
    pub(crate) full: usize,
    pub(crate) entries: Vec<(Attribute, Vec<u8>)>,
}

/// Parses a retrieved list (type 9). An undefined attribute has no bytes.
pub(crate) fn retrieved(generation: Generation, bytes: &[u8]) -> RetrievedList {
    let head = generation.pick(4, 8);
    assert!(bytes.len() >= head, "a list header, got {} bytes", bytes.len());
    assert_eq!(bytes[0] & 0x0F, 9, "list type");
    let full = match generation {
        Generation::Osd1 => usize::from(u16::from_be_bytes([bytes[2], bytes[3]])),
        Generation::Osd2 => u32::from_be_bytes(bytes[4..8].try_into().unwrap()) as usize,
    };
    let end = bytes.len().min(head + full);
    RetrievedList { full, entries: entries(generation, &bytes[head..end]) }
}

/// Parses type-9 entries up to the last complete one.
pub(crate) fn entries(generation: Generation, mut rest: &[u8]) -> Vec<(Attribute, Vec<u8>)> {
    let mut found = Vec::new();
    let (at, value_at) = (generation.pick(8, 14), generation.pick(10, 16));
    while rest.len() >= value_at {
        let word = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap());
        let length = match u16::from_be_bytes([rest[at], rest[at + 1]]) {
            0xFFFF if generation == Generation::Osd1 => 0,
            length => usize::from(length),
        };
        if rest.len() < value_at + length {
            break;
        }
        found.push(((word(0), word(4)), rest[value_at..value_at + length].to_vec()));
        let whole = match generation {
            Generation::Osd1 => value_at + length,
            Generation::Osd2 => (value_at + length).next_multiple_of(8),
        };
        rest = &rest[whole.min(rest.len())..];
    }
    found
}
