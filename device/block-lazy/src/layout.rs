//! Objects and layouts of keys and versions.
//!
//! ```text
//! slot of a block, 64: BEK 24 | BAK 16 | MAC 16 | flags 2 | version 6
//! slot of M-lazy, 32:  generation 8 | tag 16 | flags 2 | version 6
//! record of the log:   LBA 8 | version 6 | length 2 | CRC-32C 4 | BEK, BAK, MAC 56 | data
//! record of M-lazy:    LBA 8 | version 6 | length 2 | CRC-32C 4 | generation, tag 24 |
//!                      CRC-32C of the first 16 bytes 4 | data
//! ```
//! With a secret, the 56 bytes of a record are sealed (85 bytes), and so is each page of slots. The
//! 24 bytes of M-lazy are not secret, and are not sealed.
//! The CRC covers all other bytes of the record.
//!
//! Source of truth: `docs/design/block-lazy.md`.

use sealstone_block_protection::{BlockSeal, KeyScheme};
use sealstone_osd::ObjectId;
use zeroize::Zeroizing;

/// The partition of keys and versions. T10 reserves ids below 10000h, and OSD commands refuse them.
pub const LAZY_PARTITION: u64 = 0xB10D;

const _: () = assert!(LAZY_PARTITION < ObjectId::FIRST_ASSIGNABLE);

/// Blocks whose keys share an object.
pub(crate) const BLOCKS_PER_KEY_FILE: u64 = 1 << 16;
/// Segments of a log have numbers from here on.
const FIRST_SEGMENT: u64 = 1 << 31;
/// Segment number limit: 31 bits.
pub(crate) const SEGMENTS_MAX: u32 = 1 << 31;
/// Maximum number of objects with keys of a unit, enough for 2^47 blocks.
pub(crate) const KEY_FILES_MAX: u64 = FIRST_SEGMENT - 1;
/// Number of the object that has the unit's state as attributes.
const STATE: u64 = FIRST_SEGMENT - 1;

/// Bytes of a slot after its seal: flags and version.
const SLOT_REST: usize = 8;
/// Bytes of a record before its keys.
pub(crate) const RECORD_HEAD: usize = 20;
/// Bytes of the CRC of a head alone, in records without sealed keys.
pub(crate) const HEAD_CRC: usize = 4;

const _: () = assert!(slot_len(KeyScheme::Both) == 64 && slot_len(KeyScheme::Generation) == 32);

/// Returns the bytes of a slot.
pub(crate) const fn slot_len(scheme: KeyScheme) -> usize {
    scheme.seal_len() + SLOT_REST
}

/// Number of a version. Later writes of a unit have higher ones; 0 is a block never written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VersionNumber(u64);

impl VersionNumber {
    /// Version numbers have 48 bits.
    const MAX: u64 = (1 << 48) - 1;

    /// Returns the number as an integer.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the version of a number; `None` above 48 bits.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        if number <= Self::MAX { Some(Self(number)) } else { None }
    }

    fn encode(self) -> [u8; 6] {
        *self.0.to_be_bytes().last_chunk().expect("6 of 8 bytes")
    }

    fn decode(bytes: [u8; 6]) -> Self {
        let [a, b, c, d, e, f] = bytes;
        Self(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }
}

/// State of a committed block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeySlot {
    pub(crate) seal: BlockSeal,
    /// An acknowledged write of the block was deleted, because it was not authentic.
    pub(crate) write_lost: bool,
    /// Versions up to this one are committed, superseded or deleted.
    pub(crate) version: VersionNumber,
}

impl KeySlot {
    const WRITE_LOST: u16 = 1;

    /// Writes the slot to its bytes. Panics unless there are [`slot_len`] of them.
    pub(crate) fn encode(&self, scheme: KeyScheme, into: &mut [u8]) {
        let flags = if self.write_lost { Self::WRITE_LOST } else { 0 };
        let mut bytes = Zeroizing::new(Vec::with_capacity(slot_len(scheme)));
        self.seal.append_to(scheme, &mut bytes);
        bytes.extend_from_slice(&flags.to_be_bytes());
        bytes.extend_from_slice(&self.version.encode());
        into.copy_from_slice(&bytes);
    }

    /// Returns the slot of these bytes. Panics unless there are [`slot_len`] of them.
    pub(crate) fn decode(scheme: KeyScheme, bytes: &[u8]) -> Self {
        let (seal, rest) = bytes.split_last_chunk::<SLOT_REST>().expect("a slot is longer");
        let [high, low, version @ ..] = rest;
        Self {
            seal: BlockSeal::decode(scheme, seal).expect("a slot has the length of its scheme"),
            write_lost: u16::from_be_bytes([*high, *low]) & Self::WRITE_LOST != 0,
            version: VersionNumber::decode(*version),
        }
    }
}

/// Head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHead {
    pub(crate) lba: u64,
    pub(crate) version: VersionNumber,
    pub(crate) length: u16,
    pub(crate) crc: u32,
}

impl RecordHead {
    pub(crate) fn encode(&self) -> [u8; RECORD_HEAD] {
        let mut out = [0; RECORD_HEAD];
        out[..8].copy_from_slice(&self.lba.to_be_bytes());
        out[8..14].copy_from_slice(&self.version.encode());
        out[14..16].copy_from_slice(&self.length.to_be_bytes());
        out[16..].copy_from_slice(&self.crc.to_be_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8; RECORD_HEAD]) -> Self {
        let part = |from: usize, length: usize| &bytes[from..from + length];
        Self {
            lba: u64::from_be_bytes(part(0, 8).try_into().expect("8 bytes")),
            version: VersionNumber::decode(part(8, 6).try_into().expect("6 bytes")),
            length: u16::from_be_bytes(part(14, 2).try_into().expect("2 bytes")),
            crc: u32::from_be_bytes(part(16, 4).try_into().expect("4 bytes")),
        }
    }

    /// Returns the CRC of a record with this head.
    pub(crate) fn checksum(&self, seal: &[u8], data: &[u8]) -> u32 {
        let head = crc32c::crc32c(&self.encode()[..16]);
        crc32c::crc32c_append(crc32c::crc32c_append(head, seal), data)
    }

    /// Returns the CRC of the head without that of the record, as it is stored.
    pub(crate) fn own_checksum(&self) -> [u8; HEAD_CRC] {
        crc32c::crc32c(&self.encode()[..16]).to_be_bytes()
    }
}

/// Returns the object with the keys of a block.
pub(crate) fn key_file(lun: u16, lba: u64) -> ObjectId {
    object(lun, lba / BLOCKS_PER_KEY_FILE)
}

/// Returns the first block whose keys an object has; `None` for other objects than those of keys.
pub(crate) fn first_block_of_key_file(lun: u16, id: ObjectId) -> Option<u64> {
    let number = number_in_unit(lun, id)?;
    (number < KEY_FILES_MAX).then(|| number * BLOCKS_PER_KEY_FILE)
}

/// Returns the object of a segment.
pub(crate) fn segment(lun: u16, number: u32) -> ObjectId {
    object(lun, FIRST_SEGMENT + u64::from(number))
}

/// Returns the number of a segment's object; `None` for other objects of the unit.
pub(crate) fn segment_number(lun: u16, id: ObjectId) -> Option<u32> {
    u32::try_from(number_in_unit(lun, id)?.checked_sub(FIRST_SEGMENT)?).ok()
}

/// Returns the object of the unit's state.
pub(crate) fn state_object(lun: u16) -> ObjectId {
    object(lun, STATE)
}

fn object(lun: u16, number: u64) -> ObjectId {
    ObjectId::new(LAZY_PARTITION, (u64::from(lun) + 1) << 32 | number)
}

/// Returns the number of an object within a unit; `None` for objects that are not of the unit.
fn number_in_unit(lun: u16, id: ObjectId) -> Option<u64> {
    is_of_unit(lun, id).then_some(id.object & u64::from(u32::MAX))
}

/// Whether an object belongs to a unit.
pub(crate) fn is_of_unit(lun: u16, id: ObjectId) -> bool {
    id.partition == LAZY_PARTITION && id.object >> 32 == u64::from(lun) + 1
}

/// Returns the lowest id that an object of the unit can have.
pub(crate) fn first_object(lun: u16) -> ObjectId {
    object(lun, 0)
}

#[cfg(test)]
mod tests {
    use sealstone_block_protection::{BAK_LEN, BEK_LEN, BlockKeys, Generation, MAC_LEN};

    use super::*;

    #[test]
    fn slots_and_heads_read_back() {
        let random =
            BlockKeys { encryption: [1; BEK_LEN], authentication: [2; BAK_LEN], ..BlockKeys::UNWRITTEN };
        let generation = BlockKeys::of_generation(Generation::new(4, 5));
        let version = VersionNumber::new((1 << 48) - 1).unwrap();
        for (scheme, keys) in [(KeyScheme::Both, random), (KeyScheme::Generation, generation)] {
            for write_lost in [false, true] {
                let seal = BlockSeal { keys: keys.clone(), mac: [3; MAC_LEN] };
                let slot = KeySlot { seal, write_lost, version };
                let mut bytes = vec![0; slot_len(scheme)];
                slot.encode(scheme, &mut bytes);
                assert_eq!(KeySlot::decode(scheme, &bytes), slot);
            }
            let empty = KeySlot::decode(scheme, &vec![0; slot_len(scheme)]);
            assert!(empty.seal.keys.is_unwritten() && empty.version.get() == 0 && !empty.write_lost);
        }
        let head = RecordHead { lba: 1 << 40, version, length: 4096, crc: 0x0102_0304 };
        assert_eq!(RecordHead::decode(&head.encode()), head);
        assert_eq!(VersionNumber::new(1 << 48), None);
    }

    #[test]
    fn objects_of_units_are_disjoint() {
        let mut ids = Vec::new();
        for lun in [0, 1, 255] {
            ids.extend([key_file(lun, 0), key_file(lun, 1 << 46), segment(lun, 0), state_object(lun)]);
            ids.push(segment(lun, SEGMENTS_MAX - 1));
            assert_eq!(segment_number(lun, segment(lun, 7)), Some(7));
            assert_eq!(segment_number(lun, key_file(lun, 1 << 20)), None);
            assert_eq!(segment_number(lun, state_object(lun)), None);
            assert_eq!(segment_number(lun, segment(lun + 1, 0)), None);
            let last = KEY_FILES_MAX * BLOCKS_PER_KEY_FILE - 1;
            assert_eq!(first_block_of_key_file(lun, key_file(lun, last)), Some(last - 0xFFFF));
            for other in [state_object(lun), segment(lun, 0), key_file(lun + 1, 0)] {
                assert_eq!(first_block_of_key_file(lun, other), None);
            }
            // The next objects in a list may be those of a user.
            let of_user = |id: ObjectId| ObjectId { partition: 1 << 16, ..id };
            assert_eq!(segment_number(lun, of_user(segment(lun, 7))), None);
            assert_eq!(first_block_of_key_file(lun, of_user(key_file(lun, 0))), None);
        }
        for (at, id) in ids.iter().enumerate() {
            assert!(!ids[..at].contains(id));
            assert_eq!((0..=255).filter(|lun| is_of_unit(*lun, *id)).count(), 1);
        }
    }
}
