//! Slot files: small private files that are overwritten in place, so that a full disk cannot refuse
//! the write.
//!
//! Does: keeps two slots of equal length in one file, each with a sequence number and a checksum;
//! writes the slot that does not hold the newest content; reads the newest intact slot.
//! Does not: know what the content means, or seal it.
//! Contract: after a crash at any step the file holds the old or the new content, completely. A
//! write of content that fits the slots needs no space on the file system. A file of an earlier
//! release, which is content alone, is read as it is and becomes a slot file with its next write;
//! that write needs space.
//! Source of truth: docs/adr/0056-full-disks.md; docs/reference/files.md, "Slot files".

mod file;

pub use file::{read, write};

use std::io;

/// Bytes of a slot are a multiple of this, so that no sector and no page belongs to both slots.
pub const SLOT_UNIT: usize = 4096;
/// Longest content, bytes.
pub const CONTENT_MAX: usize = 64 << 20;

const MAGIC: &[u8] = b"sealstone-slot 1 ";
/// Bytes of a slot before its content: magic, sequence number, length, checksum, line feed.
const HEAD: usize = MAGIC.len() + 16 + 1 + 8 + 1 + 8 + 1;

/// How content is stored over the present file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Write these bytes at this offset and sync the file; its length does not change.
    InPlace {
        /// Where the slot begins, in bytes.
        offset: u64,
        /// The slot up to the end of its content, padded to [`SLOT_UNIT`].
        bytes: Vec<u8>,
    },
    /// Write a new file with these bytes, and rename it over the old one.
    Whole(Vec<u8>),
}

/// An intact slot.
struct SlotContent<'a> {
    sequence: u64,
    content: &'a [u8],
}

/// Returns the newest content of a file: that of its newest intact slot, or the file itself if it
/// is of an earlier release.
///
/// # Errors
/// `InvalidData` if it is a slot file and both slots are damaged.
pub fn content(file: &[u8]) -> io::Result<&[u8]> {
    if !is_slot_file(file) {
        return Ok(file);
    }
    match newest(file) {
        Some((_, slot)) => Ok(slot.content),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "both slots of the file are damaged")),
    }
}

/// Whether a file has slots, rather than content alone.
#[must_use]
pub fn is_slot_file(file: &[u8]) -> bool {
    let half = file.len() / 2;
    !file.is_empty()
        && half.is_multiple_of(SLOT_UNIT)
        && file.len() == 2 * half
        && (file.starts_with(MAGIC) || file[half..].starts_with(MAGIC))
}

/// Returns the maximum length of a file with content of at most `content_max` bytes.
#[must_use]
pub const fn file_len_max(content_max: u64) -> u64 {
    4 * (content_max + HEAD as u64) + 2 * SLOT_UNIT as u64
}

/// Decides how `content` is stored, given the present bytes of the file.
#[must_use]
pub fn plan(file: Option<&[u8]>, content: &[u8]) -> Plan {
    let file = file.filter(|file| is_slot_file(file));
    let current = file.and_then(newest);
    let sequence = current.as_ref().map_or(1, |(_, slot)| slot.sequence.saturating_add(1));
    if let (Some(file), Some((index, _))) = (file, &current) {
        let slot_len = file.len() / 2;
        if HEAD + content.len() <= slot_len {
            let offset = if *index == 0 { slot_len } else { 0 };
            let mut bytes = encode(sequence, content);
            bytes.resize(bytes.len().next_multiple_of(SLOT_UNIT), 0);
            return Plan::InPlace { offset: offset as u64, bytes };
        }
    }
    // Twice what is needed: most content that grows stays in its slots.
    let slot_len = (2 * content.len() + HEAD).next_multiple_of(SLOT_UNIT);
    let mut whole = encode(sequence, content);
    whole.resize(2 * slot_len, 0);
    Plan::Whole(whole)
}

fn newest(file: &[u8]) -> Option<(usize, SlotContent<'_>)> {
    let (first, second) = file.split_at(file.len() / 2);
    let slots = [first, second].into_iter().enumerate();
    slots.filter_map(|(index, bytes)| Some((index, decode(bytes)?))).max_by_key(|(_, slot)| slot.sequence)
}

fn head(sequence: u64, content: &[u8]) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend_from_slice(format!("{sequence:016x} {:08x} ", content.len()).as_bytes());
    let sum = crc32c::crc32c_append(crc32c::crc32c(&head), content);
    head.extend_from_slice(format!("{sum:08x}\n").as_bytes());
    head
}

fn encode(sequence: u64, content: &[u8]) -> Vec<u8> {
    let mut slot = Vec::with_capacity((2 * content.len() + HEAD).next_multiple_of(SLOT_UNIT) * 2);
    slot.extend_from_slice(&head(sequence, content));
    slot.extend_from_slice(content);
    slot
}

fn decode(slot: &[u8]) -> Option<SlotContent<'_>> {
    let (found, rest) = slot.split_at_checked(HEAD)?;
    let fields = std::str::from_utf8(found.strip_prefix(MAGIC)?).ok()?;
    let sequence = u64::from_str_radix(fields.get(..16)?, 16).ok()?;
    let length = usize::try_from(u32::from_str_radix(fields.get(17..25)?, 16).ok()?).ok()?;
    let content = rest.get(..length)?;
    (head(sequence, content) == found).then_some(SlotContent { sequence, content })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn apply(file: &[u8], plan: &Plan) -> Vec<u8> {
        match plan {
            Plan::Whole(bytes) => bytes.clone(),
            Plan::InPlace { offset, bytes } => {
                let mut file = file.to_vec();
                file[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
                file
            }
        }
    }

    fn stored(contents: &[&[u8]]) -> Vec<u8> {
        contents.iter().fold(Vec::new(), |file, content| apply(&file, &plan(Some(&file), content)))
    }

    #[test]
    fn torn_write_leaves_old_or_new_content() {
        let histories: [&[&[u8]]; 3] = [&[b"one"], &[b"one", b"two"], &[b"1", b"22", b"333"]];
        for before in histories {
            let file = stored(before);
            let new = b"the next content, longer than before";
            let Plan::InPlace { offset, bytes } = plan(Some(&file), new) else { panic!("it fits") };
            for kept in 0..=bytes.len() {
                let torn = apply(&file, &Plan::InPlace { offset, bytes: bytes[..kept].to_vec() });
                let found = content(&torn).unwrap();
                assert!(found == *before.last().unwrap() || found == new, "{kept} bytes: {found:?}");
                // The next write goes to the slot beside the intact one, whatever the torn one
                // holds.
                let again = apply(&torn, &plan(Some(&torn), b"again"));
                assert_eq!(content(&again).unwrap(), b"again", "{kept} bytes");
            }
        }
    }

    #[test]
    fn damaged_slot_leaves_the_other_one() {
        let file = stored(&[b"one", b"two"]);
        for at in 0..file.len() / 2 {
            for half in [0, file.len() / 2] {
                let mut damaged = file.clone();
                damaged[half + at] ^= 0x40;
                let found = content(&damaged).unwrap();
                assert!(found == b"one" || found == b"two", "{at}");
            }
        }
        let mut both = [MAGIC, &[0; SLOT_UNIT * 2]].concat();
        both.truncate(2 * SLOT_UNIT);
        assert_eq!(content(&both).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn old_file_is_read_and_converted_whole() {
        let old = b"epoch = 7\n";
        assert_eq!(content(old).unwrap(), old);
        let Plan::Whole(file) = plan(Some(old), old) else { panic!("an old file has no slots") };
        assert_eq!((content(&file).unwrap(), file.len()), (&old[..], 2 * SLOT_UNIT));
        assert!(matches!(plan(Some(&file), b"epoch = 8\n"), Plan::InPlace { .. }));
    }

    #[test]
    fn content_that_outgrows_its_slots_is_written_whole() {
        let file = stored(&[b"small"]);
        let large = vec![7; SLOT_UNIT];
        let grown = plan(Some(&file), &large);
        assert!(matches!(grown, Plan::Whole(_)));
        let grown = apply(&file, &grown);
        assert_eq!(content(&grown).unwrap(), large);
        assert!(matches!(plan(Some(&grown), &vec![8; 2 * SLOT_UNIT]), Plan::InPlace { .. }));
        assert!(grown.len() as u64 <= file_len_max(large.len() as u64));
    }

    proptest! {
        #[test]
        fn sequence_of_writes_reads_as_the_last(contents in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..9000), 1..6)) {
            let parts: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
            let file = stored(&parts);
            prop_assert_eq!(content(&file).unwrap(), parts[parts.len() - 1]);
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..20_000), magic: bool, round: bool) {
            if round {
                bytes.resize(bytes.len().next_multiple_of(2 * SLOT_UNIT), 0);
            }
            if magic && bytes.len() >= MAGIC.len() {
                bytes[..MAGIC.len()].copy_from_slice(MAGIC);
            }
            let _ = content(&bytes);
            let _ = plan(Some(&bytes), b"x");
        }
    }
}
