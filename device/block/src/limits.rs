//! Limits that commands enforce and INQUIRY reports.

/// Bytes of one transfer: MAXIMUM TRANSFER LENGTH, and the longest data-out that the target
/// accepts.
pub(crate) const TRANSFER_MAX: u64 = 16 << 20;
/// Blocks of one COMPARE AND WRITE, limited by its length field.
pub(crate) const COMPARE_BLOCKS_MAX: u8 = 255;
/// Blocks that one UNMAP can free: MAXIMUM UNMAP LBA COUNT.
pub(crate) const UNMAP_BLOCKS_MAX: u32 = 1 << 20;
/// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT.
pub(crate) const UNMAP_DESCRIPTORS_MAX: u32 = 256;
/// Bytes of one WRITE SAME: MAXIMUM WRITE SAME LENGTH.
pub(crate) const WRITE_SAME_MAX: u64 = 16 << 20;
/// RELATIVE TARGET PORT IDENTIFIER of the only port.
pub(crate) const TARGET_PORT: u16 = 1;
