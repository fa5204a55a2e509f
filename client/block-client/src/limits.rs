//! Size, limits and identity of a unit, from READ CAPACITY and vital product data.
//!
//! Does: parses the pages; a missing page gives conservative limits.
//! Does not: send commands.
//! Truth: SBC-3 §6.6.3 (block limits), §6.6.4 (provisioning); SPC-4 §7.8; docs/standards/block.md
//! (promises).

use crate::BlockError;
use crate::command::CapacityData;

/// Maximum bytes of one READ or WRITE if the target states no limit.
const TRANSFER_DEFAULT: u64 = 1 << 20;
/// Maximum bytes of one READ or WRITE, whatever the target allows.
const TRANSFER_MAX: u64 = 16 << 20;
/// Maximum bytes of one WRITE SAME if the target states no limit.
const WRITE_SAME_DEFAULT: u64 = 1 << 20;

/// Vital product data: serial number, device identification, block limits, provisioning.
pub(crate) const SERIAL: u8 = 0x80;
pub(crate) const IDENTIFICATION: u8 = 0x83;
pub(crate) const BLOCK_LIMITS: u8 = 0xB0;
pub(crate) const PROVISIONING: u8 = 0xB2;
/// Vendor-specific page of our units: promises about power failures.
pub(crate) const PROMISES: u8 = 0xC0;
/// ORDERED, in its first byte.
const ORDERED: u8 = 0x01;

/// Size and limits of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitGeometry {
    /// Size in bytes.
    pub bytes: u64,
    /// Bytes of a block: the unit of all offsets and lengths.
    pub block_bytes: u32,
    /// Bytes of a physical block: smaller writes need a read-modify-write.
    pub physical_bytes: u32,
    /// Maximum bytes of one READ or WRITE command, a multiple of the block size.
    pub transfer_max: u64,
    /// Maximum blocks of one UNMAP; 0: the unit has no UNMAP.
    pub unmap_blocks_max: u32,
    /// Maximum blocks of one WRITE SAME.
    pub write_same_blocks_max: u32,
    /// Whether WRITE SAME can unmap, and unmapped blocks read as zeros.
    pub unmaps_to_zeros: bool,
    /// Whether the unit is thin, so that GET LBA STATUS is useful.
    pub is_thin: bool,
    /// Whether the unit is write protected.
    pub is_read_only: bool,
    /// Whether the unit supports FUA; otherwise a durable write is followed by a flush.
    pub has_fua: bool,
    /// Whether a write that survives a power failure has all writes beside it that were
    /// acknowledged before it was sent.
    pub keeps_order: bool,
}

/// WP and DPOFUA of the DEVICE-SPECIFIC PARAMETER of a mode parameter header.
const WP: u8 = 0x80;
const DPOFUA: u8 = 0x10;

/// Names of a unit, to recognize it after a reconnect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitIdentity {
    /// VENDOR IDENTIFICATION and PRODUCT IDENTIFICATION, without trailing spaces.
    pub product: String,
    /// PRODUCT SERIAL NUMBER; empty if the unit has none.
    pub serial: Vec<u8>,
    /// Content of the device identification page; empty if the unit has none.
    pub designators: Vec<u8>,
}

/// Bytes of the standard INQUIRY data that are used.
const INQUIRY_BYTES: usize = 32;

impl UnitIdentity {
    /// Parses standard INQUIRY data and adds the two pages.
    pub(crate) fn new(inquiry: &[u8], serial: Vec<u8>, designators: Vec<u8>) -> Result<Self, BlockError> {
        let inquiry =
            inquiry.get(..INQUIRY_BYTES).ok_or(BlockError::Malformed("INQUIRY data are too short"))?;
        // Peripheral qualifier 011b: no device at this number.
        match inquiry[0] {
            0 => {}
            kind if kind & 0xE0 == 0x60 => return Err(BlockError::NoUnit),
            kind => return Err(BlockError::NotADisk(kind & 0x1F)),
        }
        let product = String::from_utf8_lossy(&inquiry[8..INQUIRY_BYTES]);
        let product = product.split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(Self { product, serial, designators })
    }

    /// Whether the unit is one of ours. A power failure of its target that loses writes makes the
    /// next flush fail with WRITE ERROR. Others are assumed to report POWER ON OCCURRED at most.
    pub(crate) fn is_sealstone(&self) -> bool {
        self.product.starts_with("SEALSTON")
    }
}

/// Parses a page of vital product data; `None` if it is another page.
pub(crate) fn page_content(page: u8, bytes: &[u8]) -> Option<&[u8]> {
    let head: &[u8; 4] = bytes.first_chunk()?;
    let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
    (head[1] == page).then(|| bytes.get(4..(4 + length).min(bytes.len())))?
}

impl UnitGeometry {
    /// Combines capacity, the contents of the pages of block limits and provisioning, and the
    /// DEVICE-SPECIFIC PARAMETER.
    pub(crate) fn new(
        capacity: &CapacityData,
        limits: Option<&[u8]>,
        provisioning: Option<&[u8]>,
        device_specific: u8,
    ) -> Self {
        let block = u64::from(capacity.block_bytes);
        // Offsets count from the start of the page, the content begins at byte 4.
        let word =
            |at: usize| -> Option<u32> { Some(u32::from_be_bytes(*limits?.get(at - 4..)?.first_chunk()?)) };
        let long =
            |at: usize| -> Option<u64> { Some(u64::from_be_bytes(*limits?.get(at - 4..)?.first_chunk()?)) };
        let transfer = word(8).filter(|blocks| *blocks > 0).map(|blocks| u64::from(blocks) * block);
        let transfer_max = transfer.unwrap_or(TRANSFER_DEFAULT).min(TRANSFER_MAX) / block * block;
        let flags = provisioning.and_then(|content| content.get(1)).copied().unwrap_or_default();
        let (can_unmap, can_write_same) = (flags & 0x80 != 0, flags & 0x40 != 0);
        let write_same = long(36).filter(|blocks| *blocks > 0).unwrap_or((WRITE_SAME_DEFAULT / block).max(1));
        Self {
            bytes: capacity.blocks * block,
            block_bytes: capacity.block_bytes,
            physical_bytes: u32::try_from(capacity.physical_bytes).unwrap_or(capacity.block_bytes),
            transfer_max: transfer_max.max(block),
            unmap_blocks_max: if capacity.thin && can_unmap { word(20).unwrap_or_default() } else { 0 },
            write_same_blocks_max: u32::try_from(write_same).unwrap_or(u32::MAX),
            unmaps_to_zeros: capacity.thin && can_write_same && capacity.reads_zeros,
            is_thin: capacity.thin,
            is_read_only: device_specific & WP != 0,
            has_fua: device_specific & DPOFUA != 0,
            keeps_order: false,
        }
    }
}

/// Returns ORDERED of the page of promises.
pub(crate) fn keeps_order(content: &[u8]) -> bool {
    content.first().is_some_and(|flags| flags & ORDERED != 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CAPACITY: CapacityData = CapacityData {
        blocks: 1 << 21,
        block_bytes: 512,
        physical_bytes: 4096,
        thin: true,
        reads_zeros: true,
    };

    #[test]
    fn missing_pages_give_conservative_limits() {
        let geometry = UnitGeometry::new(&CAPACITY, None, None, 0);
        assert_eq!((geometry.bytes, geometry.transfer_max), (1 << 30, 1 << 20));
        assert_eq!((geometry.unmap_blocks_max, geometry.write_same_blocks_max), (0, 2048));
        assert!(!geometry.unmaps_to_zeros && !geometry.is_read_only && !geometry.has_fua);
        assert!(!geometry.keeps_order && !keeps_order(&[]) && !keeps_order(&[0xFE]) && keeps_order(&[1]));
    }

    #[test]
    fn pages_state_limits() {
        let mut limits = vec![0; 60];
        limits[4..8].copy_from_slice(&4096_u32.to_be_bytes());
        limits[16..20].copy_from_slice(&1000_u32.to_be_bytes());
        limits[32..40].copy_from_slice(&77_u64.to_be_bytes());
        let geometry = UnitGeometry::new(&CAPACITY, Some(&limits), Some(&[0, 0xC4, 2, 0]), 0x90);
        assert_eq!((geometry.transfer_max, geometry.unmap_blocks_max), (2 << 20, 1000));
        assert_eq!(geometry.write_same_blocks_max, 77);
        assert!(geometry.unmaps_to_zeros && geometry.is_read_only && geometry.has_fua);
    }

    #[test]
    fn other_devices_are_no_disks() {
        let of = |kind: u8| UnitIdentity::new(&[&[kind][..], &[b' '; 40]].concat(), Vec::new(), Vec::new());
        assert!(of(0).is_ok());
        assert!(matches!(of(0x11), Err(BlockError::NotADisk(0x11))));
        assert!(matches!(of(0x7F), Err(BlockError::NoUnit)));
        assert!(UnitIdentity::new(&[0; 10], Vec::new(), Vec::new()).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_pages_keep_limits_in_blocks(bytes in proptest::collection::vec(any::<u8>(), 0..70)) {
            let geometry = UnitGeometry::new(&CAPACITY, Some(&bytes), Some(&bytes), 0);
            prop_assert!(geometry.transfer_max.is_multiple_of(512) && geometry.transfer_max > 0);
            prop_assert!(geometry.transfer_max <= TRANSFER_MAX && geometry.write_same_blocks_max > 0);
            let _ = page_content(SERIAL, &bytes);
        }
    }
}
