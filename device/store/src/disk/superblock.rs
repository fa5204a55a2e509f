//! The superblock: identity and parameters of a store, in one sector, with a copy.
//!
//! Does: encodes and parses it, and derives the geometry of the segments from it.
//! Does not: read or write files.
//! Source of truth: docs/design/store.md, "Superblock".

use super::write_log;
use crate::{BLOCK, FormatError};

/// First bytes of a superblock.
const MAGIC: &[u8; 8] = b"SEALSTOR";
/// Version of the on-disk format that this program writes. 2: blocks may be shared. 3: the
/// superblock and the header of the index have copies, chunk records may hold digests. 4: there may
/// be a write log.
pub(crate) const VERSION: u32 = 4;
/// The newest version that has no write log.
pub(crate) const VERSION_WITHOUT_LOG: u32 = 3;
/// The oldest version that it reads, and upgrades when it opens a store. 1: each block has one
/// owner.
const VERSION_MIN: u32 = 1;
/// Length of the superblock in bytes: one sector, so that a write of it is not torn.
pub(crate) const LENGTH: usize = 512;
/// Offsets of its copies in its file, in bytes: in different physical sectors, even of 4 KiB.
pub(crate) const COPIES: [u64; 2] = [0, 4096];
/// Offset of the mark for failed syncs in its file: a sector of its own.
pub(crate) const MARK_AT: u64 = 8192;
/// Smallest capacity, in bytes.
pub const MIN_CAPACITY: u64 = 1 << 20;
/// Largest capacity, in bytes. The free map takes 32 MiB of memory for each TiB.
pub const MAX_CAPACITY: u64 = 64 << 40;
/// Smallest segment file, in bytes.
const MIN_SEGMENT: u64 = 1 << 20;
/// The reserve that lets overwrites and removals proceed in a full store: a 16th of the capacity,
/// with these lower and upper limits in bytes.
const RESERVE: (u64, u64) = (4 << 20, 256 << 20);

/// Returns the reserve in bytes besides a capacity.
pub(crate) fn reserve_of(capacity: u64) -> u64 {
    (capacity / 16).clamp(RESERVE.0, RESERVE.1)
}

/// Whether the format is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FormatState {
    /// Files are being created; no write was ever acknowledged.
    Formatting = 1,
    /// A complete store.
    Ready = 2,
}

/// Contents of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) version: u32,
    pub(crate) state: FormatState,
    pub(crate) uuid: [u8; 16],
    /// Number of blocks that objects may use.
    pub(crate) capacity_blocks: u64,
    /// Number of reserved blocks.
    pub(crate) reserve_blocks: u64,
    /// Number of blocks of one segment file; the last one may have fewer.
    pub(crate) segment_blocks: u64,
    /// Whether the last page of the index file is our copy of its header.
    pub(crate) index_copy: bool,
    /// Length of the write log in bytes; 0 for none.
    pub(crate) log_bytes: u64,
}

impl Superblock {
    /// Returns the superblock of a new store; sizes are rounded down to blocks.
    pub(crate) fn new(uuid: [u8; 16], capacity: u64, segment: u64) -> Result<Self, FormatError> {
        if !(MIN_CAPACITY..=MAX_CAPACITY).contains(&capacity) {
            return Err(FormatError::Capacity { bytes: capacity, min: MIN_CAPACITY, max: MAX_CAPACITY });
        }
        Ok(Self {
            version: VERSION,
            state: FormatState::Formatting,
            uuid,
            capacity_blocks: capacity / BLOCK,
            reserve_blocks: reserve_of(capacity) / BLOCK,
            segment_blocks: segment.max(MIN_SEGMENT) / BLOCK,
            index_copy: true,
            log_bytes: write_log::length_for(capacity),
        })
    }

    /// Returns the number of blocks of all segments.
    pub(crate) fn blocks(&self) -> u64 {
        self.capacity_blocks + self.reserve_blocks
    }

    /// Returns the number of segment files.
    pub(crate) fn segments(&self) -> u64 {
        self.blocks().div_ceil(self.segment_blocks)
    }

    /// Returns the length of a segment file in bytes.
    pub(crate) fn segment_bytes(&self, segment: u64) -> u64 {
        (self.blocks() - segment * self.segment_blocks).min(self.segment_blocks) * BLOCK
    }

    pub(crate) fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(MAGIC);
        put(&self.version.to_le_bytes());
        put(&(self.state as u32).to_le_bytes());
        put(&self.uuid);
        put(&self.capacity_blocks.to_le_bytes());
        put(&self.reserve_blocks.to_le_bytes());
        put(&self.segment_blocks.to_le_bytes());
        put(&(BLOCK as u32).to_le_bytes());
        put(&u32::from(self.index_copy).to_le_bytes());
        put(&self.log_bytes.to_le_bytes());
        let crc = crate::crc::crc32c(&bytes[..LENGTH - 4]);
        bytes[LENGTH - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Parses the result of [`encode`](Self::encode).
    ///
    /// # Errors
    /// `FormatIncomplete` for an empty or zeroed one, `Version`, or `Superblock` with the reason.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.iter().all(|&byte| byte == 0) {
            return Err(FormatError::FormatIncomplete);
        }
        let bytes: &[u8; LENGTH] =
            bytes.first_chunk().ok_or(FormatError::Superblock("shorter than one sector"))?;
        if !bytes.starts_with(MAGIC) {
            return Err(FormatError::Superblock("not a superblock of ours"));
        }
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if !(VERSION_MIN..=VERSION).contains(&u32_at(8)) {
            return Err(FormatError::Version { found: u32_at(8), supported: VERSION });
        }
        if u32_at(LENGTH - 4) != crate::crc::crc32c(&bytes[..LENGTH - 4]) {
            return Err(FormatError::Superblock("its checksum is wrong"));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[16..32]);
        let superblock = Self {
            version: u32_at(8),
            state: match u32_at(12) {
                1 => FormatState::Formatting,
                2 => FormatState::Ready,
                _ => return Err(FormatError::Superblock("unknown state")),
            },
            uuid,
            capacity_blocks: u64_at(32),
            reserve_blocks: u64_at(40),
            segment_blocks: u64_at(48),
            index_copy: match u32_at(60) {
                0 => false,
                1 => true,
                _ => return Err(FormatError::Superblock("unknown place of the index's copy")),
            },
            log_bytes: u64_at(64),
        };
        if u32_at(56) != BLOCK as u32 {
            return Err(FormatError::Superblock("unknown block size"));
        }
        let sane = superblock.capacity_blocks <= MAX_CAPACITY / BLOCK
            && superblock.reserve_blocks <= RESERVE.1 / BLOCK
            && (MIN_SEGMENT / BLOCK..=MAX_CAPACITY / BLOCK).contains(&superblock.segment_blocks)
            && (superblock.log_bytes == 0
                || (write_log::LENGTH_MIN..=write_log::LENGTH_MAX).contains(&superblock.log_bytes));
        if sane { Ok(superblock) } else { Err(FormatError::Superblock("a size is outside the limits")) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn superblock_round_trips(capacity in MIN_CAPACITY..=MAX_CAPACITY, segment: u64, uuid: [u8; 16], ready: bool) {
            let mut superblock = Superblock::new(uuid, capacity, segment % MAX_CAPACITY).unwrap();
            if ready {
                superblock.state = FormatState::Ready;
            }
            prop_assert_eq!(Superblock::parse(&superblock.encode()).unwrap(), superblock);
            let total: u64 = (0..superblock.segments()).take(1000).map(|s| superblock.segment_bytes(s)).sum();
            prop_assert!(superblock.segments() > 1000 || total == superblock.blocks() * BLOCK);
        }

        #[test]
        fn older_versions_are_read_and_others_refused(version in 0_u32..9) {
            let superblock = Superblock { version, ..Superblock::new([7; 16], 1 << 30, 1 << 20).unwrap() };
            match Superblock::parse(&superblock.encode()) {
                Ok(parsed) => prop_assert!((1..=VERSION).contains(&version) && parsed == superblock),
                Err(FormatError::Version { found, supported: VERSION }) => {
                    prop_assert!(found == version && !(1..=VERSION).contains(&version));
                }
                Err(error) => panic!("{error}"),
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600), magic: bool) {
            let mut bytes = bytes;
            if magic && bytes.len() >= 12 {
                bytes[..8].copy_from_slice(MAGIC);
                bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
            }
            let _ = Superblock::parse(&bytes);
        }

        #[test]
        fn any_flipped_bit_is_seen(bit in 0..LENGTH * 8) {
            let mut bytes = Superblock::new([7; 16], 1 << 30, 1 << 20).unwrap().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Superblock::parse(&bytes).is_err());
        }
    }
}
