//! CDBs of the commands that a client of a block unit sends, and parsers of their parameter data.
//!
//! Does: encodes and parses bytes.
//! Does not: send anything.
//! Truth: SBC-3 §5, SPC-4 §6.

use bytes::Bytes;
use sealstone_initiator::RECEIVE_UNIT_KEYS;
pub(crate) use sealstone_initiator::UNIT_KEYS_BYTES_MAX as UNIT_KEYS_BYTES;

/// Bytes of the header of GET LBA STATUS, and of each descriptor.
const STATUS_HEADER: usize = 8;
const STATUS_DESCRIPTOR: usize = 16;
/// Maximum descriptors that one GET LBA STATUS requests.
pub(crate) const STATUS_DESCRIPTORS_MAX: usize = 256;
/// ALLOCATION LENGTH of GET LBA STATUS, in bytes.
pub(crate) const STATUS_BYTES: usize = STATUS_HEADER + STATUS_DESCRIPTORS_MAX * STATUS_DESCRIPTOR;
/// Bytes of parameter data of READ CAPACITY (16).
pub(crate) const CAPACITY_BYTES: usize = 32;
/// FUA of READ and WRITE (16).
const FUA: u8 = 0x08;
/// UNMAP of WRITE SAME (16).
const UNMAP: u8 = 0x08;
/// NDOB of WRITE SAME (16): no data-out, zeros are written.
const NO_DATA_OUT: u8 = 0x01;

/// Returns a CDB of 16 bytes with LBA and number of blocks.
fn sixteen(code: u8, flags: u8, lba: u64, blocks: u32) -> Bytes {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (code, flags);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    Bytes::copy_from_slice(&cdb)
}

pub(crate) fn test_unit_ready() -> Bytes {
    Bytes::from_static(&[0; 6])
}

pub(crate) fn inquiry() -> Bytes {
    Bytes::from_static(&[0x12, 0, 0, 0, 36, 0])
}

/// Returns INQUIRY of a page of vital product data, up to [`PAGE_BYTES`].
pub(crate) fn vital_page(page: u8) -> Bytes {
    let [high, low] = PAGE_BYTES.to_be_bytes();
    Bytes::copy_from_slice(&[0x12, 1, page, high, low, 0])
}

/// ALLOCATION LENGTH of [`vital_page`].
pub(crate) const PAGE_BYTES: u16 = 0x400;

/// Returns MODE SENSE (6) of the control page, whose header has the write protection. The caching
/// page is not requested: a target may derive promises from that.
pub(crate) fn mode_sense() -> Bytes {
    Bytes::from_static(&[0x1A, 0x08, 0x0A, 0, 255, 0])
}

pub(crate) fn read_capacity() -> Bytes {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[13]) = (0x9E, 0x10, CAPACITY_BYTES as u8);
    Bytes::copy_from_slice(&cdb)
}

pub(crate) fn read(lba: u64, blocks: u32) -> Bytes {
    sixteen(0x88, 0, lba, blocks)
}

pub(crate) fn write(lba: u64, blocks: u32, durable: bool) -> Bytes {
    sixteen(0x8A, if durable { FUA } else { 0 }, lba, blocks)
}

/// Returns RECEIVE UNIT KEYS, which only our targets have.
pub(crate) fn receive_unit_keys() -> Bytes {
    let length = u32::try_from(UNIT_KEYS_BYTES).unwrap_or(u32::MAX);
    sixteen(RECEIVE_UNIT_KEYS, 0, 0, length)
}

pub(crate) fn synchronize_cache() -> Bytes {
    sixteen(0x91, 0, 0, 0)
}

/// Returns WRITE SAME (16). Without `has_data` the target writes zeros.
pub(crate) fn write_same(lba: u64, blocks: u32, unmap: bool, has_data: bool) -> Bytes {
    let flags = if unmap { UNMAP } else { 0 } | if has_data { 0 } else { NO_DATA_OUT };
    sixteen(0x93, flags, lba, blocks)
}

pub(crate) fn lba_status(lba: u64) -> Bytes {
    sixteen(0x9E, 0x12, lba, STATUS_BYTES as u32)
}

/// Returns UNMAP and its list of one extent.
pub(crate) fn unmap(lba: u64, blocks: u32) -> (Bytes, Bytes) {
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend(lba.to_be_bytes());
    list.extend(blocks.to_be_bytes());
    list.extend([0; 4]);
    let mut cdb = [0; 10];
    (cdb[0], cdb[8]) = (0x42, list.len() as u8);
    (Bytes::copy_from_slice(&cdb), list.into())
}

/// Parameter data of READ CAPACITY (16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityData {
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Bytes of a physical block.
    pub physical_bytes: u64,
    /// LBPME: the unit is thin.
    pub thin: bool,
    /// LBPRZ: unmapped blocks read as zeros.
    pub reads_zeros: bool,
}

/// Smallest and largest supported block, in bytes.
const BLOCK_BYTES_MIN: u32 = 512;
const BLOCK_BYTES_MAX: u32 = 64 << 10;
/// Maximum number of bytes of a unit: offsets are signed in most interfaces.
const UNIT_BYTES_MAX: u64 = i64::MAX as u64;

/// Parses parameter data of READ CAPACITY (16); `None` if it is too short, or describes a unit that
/// cannot be addressed.
#[must_use]
pub fn parse_capacity(bytes: &[u8]) -> Option<CapacityData> {
    let last = u64::from_be_bytes(*bytes.first_chunk()?);
    let block_bytes = u32::from_be_bytes(*bytes.get(8..)?.first_chunk()?);
    let &[exponent, provisioning] = bytes.get(13..)?.first_chunk()?;
    if !block_bytes.is_power_of_two() || !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes) {
        return None;
    }
    let blocks = last.checked_add(1)?;
    blocks.checked_mul(u64::from(block_bytes)).filter(|bytes| *bytes <= UNIT_BYTES_MAX)?;
    Some(CapacityData {
        blocks,
        block_bytes,
        physical_bytes: u64::from(block_bytes) << (exponent & 0x0F),
        thin: provisioning & 0x80 != 0,
        reads_zeros: provisioning & 0x40 != 0,
    })
}

/// The allocation of consecutive bytes of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationExtent {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Whether the unit stores the bytes; otherwise they take no space.
    pub is_allocated: bool,
}

/// Why parameter data of GET LBA STATUS is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatusListError {
    /// It has no descriptor.
    #[error("no LBA status descriptor")]
    Empty,
    /// The descriptors do not begin at the requested block, or are not consecutive.
    #[error("LBA status descriptors are not consecutive")]
    Order,
    /// A descriptor describes no block, or more than the unit has.
    #[error("an LBA status descriptor has a wrong number of blocks")]
    Length,
}

/// Parses parameter data of GET LBA STATUS from block `lba`, in order, in blocks of the unit:
/// `(first, blocks, is_allocated)`. Equal neighbours are merged.
///
/// # Errors
/// [`StatusListError`].
pub fn parse_lba_status(
    bytes: &[u8],
    lba: u64,
    blocks: u64,
) -> Result<Vec<(u64, u64, bool)>, StatusListError> {
    let listed = bytes.first_chunk().map_or(0, |length| u32::from_be_bytes(*length) as usize);
    // The list may be longer than the allocation length.
    let end = listed.saturating_add(4).min(bytes.len());
    let mut extents: Vec<(u64, u64, bool)> = Vec::new();
    let mut next = lba;
    for descriptor in bytes.get(STATUS_HEADER..end).unwrap_or_default().chunks_exact(STATUS_DESCRIPTOR) {
        let (first, rest) = descriptor.split_first_chunk::<8>().ok_or(StatusListError::Empty)?;
        let first = u64::from_be_bytes(*first);
        let count = u64::from(u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]));
        // PROVISIONING STATUS: deallocated and anchored. SBC-4 adds mapped and unknown.
        let is_allocated = !matches!(rest[4] & 0x0F, 1 | 2);
        let after = first.checked_add(count).filter(|after| *after <= blocks && count > 0);
        let after = after.ok_or(StatusListError::Length)?;
        // The first descriptor may begin before the requested block.
        let start = if extents.is_empty() && first <= lba && lba < after { lba } else { first };
        if start != next {
            return Err(StatusListError::Order);
        }
        match extents.last_mut() {
            Some((_, length, kind)) if *kind == is_allocated => *length += after - start,
            _ => extents.push((start, after - start, is_allocated)),
        }
        next = after;
    }
    if extents.is_empty() { Err(StatusListError::Empty) } else { Ok(extents) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cdbs_match_the_standard() {
        assert_eq!(read(0x0102, 3)[..], [0x88, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3, 0, 0]);
        assert_eq!(write(1, 2, true)[..2], [0x8A, 0x08]);
        assert_eq!(write_same(1, 2, true, false)[..2], [0x93, 0x09]);
        assert_eq!(write_same(1, 2, false, true)[..2], [0x93, 0]);
        let (cdb, list) = unmap(5, 6);
        assert_eq!((cdb[0], cdb[8], list.len()), (0x42, 24, 24));
        assert_eq!(list[..8], [0, 22, 0, 16, 0, 0, 0, 0]);
        assert_eq!((list[15], list[19]), (5, 6));
    }

    #[test]
    fn capacity_with_odd_block_size_is_refused() {
        let data = |last: u64, block: u32| {
            let mut bytes = vec![0; CAPACITY_BYTES];
            bytes[..8].copy_from_slice(&last.to_be_bytes());
            bytes[8..12].copy_from_slice(&block.to_be_bytes());
            (bytes[13], bytes[14]) = (3, 0xC0);
            parse_capacity(&bytes)
        };
        let right = CapacityData {
            blocks: 100,
            block_bytes: 512,
            physical_bytes: 4096,
            thin: true,
            reads_zeros: true,
        };
        assert_eq!(data(99, 512), Some(right));
        for (last, block) in [(u64::MAX, 512), (1 << 60, 512), (9, 0), (9, 520), (9, 256), (9, 1 << 20)] {
            assert_eq!(data(last, block), None, "{last} {block}");
        }
        assert_eq!(parse_capacity(&[0; 14]), None);
    }

    fn list(descriptors: &[(u64, u32, u8)]) -> Vec<u8> {
        let mut bytes = vec![0; STATUS_HEADER];
        for (lba, blocks, status) in descriptors {
            bytes.extend(lba.to_be_bytes());
            bytes.extend(blocks.to_be_bytes());
            bytes.extend([*status, 0, 0, 0]);
        }
        let length = u32::try_from(bytes.len() - 4).expect("short");
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        bytes
    }

    #[test]
    fn only_unmapped_status_is_a_hole() {
        for (status, is_allocated) in [(0, true), (1, false), (2, false), (3, true), (4, true), (15, true)] {
            let parsed = parse_lba_status(&list(&[(8, 2, status)]), 8, 100);
            assert_eq!(parsed, Ok(vec![(8, 2, is_allocated)]), "{status}");
        }
    }

    #[test]
    fn status_descriptors_must_be_consecutive() {
        let parse = |descriptors: &[_]| parse_lba_status(&list(descriptors), 8, 100);
        assert_eq!(parse(&[(8, 2, 0), (10, 3, 0), (13, 1, 1)]), Ok(vec![(8, 5, true), (13, 1, false)]));
        assert_eq!(parse(&[(0, 16, 1)]), Ok(vec![(8, 8, false)]), "it may begin before");
        assert_eq!(parse(&[]), Err(StatusListError::Empty));
        assert_eq!(parse(&[(9, 1, 0)]), Err(StatusListError::Order));
        assert_eq!(parse(&[(8, 1, 0), (10, 1, 0)]), Err(StatusListError::Order));
        assert_eq!(parse(&[(8, 0, 0)]), Err(StatusListError::Length));
        assert_eq!(parse(&[(8, 93, 0)]), Err(StatusListError::Length));
        assert_eq!(parse_lba_status(&[], 8, 100), Err(StatusListError::Empty));
    }

    proptest! {
        #[test]
        fn parsed_status_is_consecutive(bytes in proptest::collection::vec(any::<u8>(), 0..100), lba in 0_u64..9) {
            let _ = parse_capacity(&bytes);
            if let Ok(extents) = parse_lba_status(&bytes, lba, 1 << 40) {
                let mut next = lba;
                for (first, blocks, _) in extents {
                    prop_assert_eq!(first, next);
                    prop_assert!(blocks > 0);
                    next = first + blocks;
                }
                prop_assert!(next <= 1 << 40);
            }
        }
    }
}
