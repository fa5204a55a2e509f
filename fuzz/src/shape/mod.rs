//! Structured mutations: fields of a CDB, entries of a list, PDUs of a stream, keys of a text.
//!
//! Does: changes one part of a structure and keeps the rest valid, lengths included, or makes
//! exactly one length wrong.
//! Does not: replace the plain mutator; the two alternate, here and under libFuzzer.
//! Contract: accepts any bytes; the same input and random numbers give the same result.

mod cdb;
mod list;
mod segment;
mod stream;
mod text;

use crate::Random;

/// A mutation that preserves the structure of a target's input.
pub type StructuredMutation = fn(&[u8], &mut Random) -> Vec<u8>;

/// Targets with structured mutations.
static SHAPES: &[(&str, StructuredMutation)] = &[
    ("osd-cdb", cdb::cdb),
    ("osd-capability", cdb::capability),
    ("osd-attribute-lists", list::lists),
    ("osd-continuation", segment::continuation),
    ("iscsi-target", stream::stream),
    ("iscsi-initiator", stream::stream),
    ("iscsi-login", text::login),
];

/// The structured mutation of a target, if it has one.
#[must_use]
pub fn of(target: &str) -> Option<StructuredMutation> {
    SHAPES.iter().find(|(name, _)| *name == target).map(|(_, shape)| *shape)
}

/// A field of a structure: offset and width.
#[derive(Clone, Copy)]
struct FieldPosition {
    at: usize,
    width: usize,
}

const fn field(at: usize, width: usize) -> FieldPosition {
    FieldPosition { at, width }
}

/// Boundary values of ids, lengths and offsets.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    7,
    8,
    0x7F,
    0xFF,
    0xFFFF,
    0x1_0000,
    0x1_0001,
    0x7FFF_FFFF,
    0xFFFF_FFFF,
    0x1_0000_0000,
    0x7FFF_FFFF_FFFF_FFFF,
    0xFFFF_FFFF_FFFF_FFFE,
    u64::MAX,
];

/// Sets one field to a value that is likely to reveal errors.
fn edit(bytes: &mut [u8], place: FieldPosition, random: &mut Random) {
    let Some(slot) = bytes.get_mut(place.at..place.at + place.width) else { return };
    let width = slot.len().min(8);
    let (high, low) = slot.split_at_mut(slot.len() - width);
    let now = low.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
    let next = match random.below(7) {
        0 | 1 => EDGES[random.below(EDGES.len())],
        2 => now.wrapping_add(1),
        3 => now.wrapping_sub(1),
        4 => now ^ 1 << random.below(8 * width),
        5 => now << 1,
        _ => random.draw(),
    };
    low.copy_from_slice(&next.to_be_bytes()[8 - width..]);
    if !high.is_empty() && random.below(4) == 0 {
        high[random.below(high.len())] ^= 1 << random.below(8);
    }
}

fn pick<'a, T>(from: &'a [T], random: &mut Random) -> Option<&'a T> {
    from.get(random.below(from.len()))
}

/// Removes, duplicates, swaps or moves one of several parts.
fn rearrange<T: Clone>(parts: &mut Vec<T>, random: &mut Random) {
    if parts.is_empty() {
        return;
    }
    let (at, to) = (random.below(parts.len()), random.below(parts.len()));
    match random.below(4) {
        0 => drop(parts.remove(at)),
        1 => parts.insert(to, parts[at].clone()),
        2 => parts.swap(at, to),
        _ => {
            let part = parts.remove(at);
            parts.insert(to.min(parts.len()), part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find;

    #[test]
    fn every_shape_belongs_to_a_target() {
        assert!(SHAPES.iter().all(|(name, _)| find(name).is_some()));
    }

    /// Structured mutations often keep the input valid.
    #[test]
    fn shaped_mutations_of_cdbs_mostly_stay_cdbs() {
        let seeds = (find("osd-cdb").unwrap().seeds)();
        let shape = of("osd-cdb").unwrap();
        let mut random = Random::new(3);
        let whole = (0..2000)
            .filter(|at| {
                let input = shape(&seeds[at % seeds.len()], &mut random);
                sealstone_osd::Cdb::parse(&input).is_ok()
            })
            .count();
        assert!(whole > 500, "{whole} of 2000");
    }

    #[test]
    fn any_bytes_are_taken_and_stay_bounded() {
        let mut random = Random::new(5);
        for (_, shape) in SHAPES {
            let mut input = Vec::new();
            for round in 0..3000 {
                input = shape(&input, &mut random);
                assert!(input.len() <= crate::mutate::INPUT_BYTES_MAX);
                if round % 100 == 0 {
                    input = (0..random.below(600)).map(|_| random.draw() as u8).collect();
                }
            }
        }
    }
}
