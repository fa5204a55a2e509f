//! The store's copy of the engine's header, behind the end of the engine's part of the file.
//!
//! Does: encodes and parses the copy.
//! Contract: everything in it lies in one sector, so that it is not torn.

use sealstone_redb_format::{EngineHeader, HEADER_BYTES, UNIT};

use super::superblock::LENGTH as SECTOR;

/// Length of the copy in bytes: a page, so that it shares no sector with the engine's part.
pub(crate) const COPY: usize = UNIT as usize;
/// Offset of the copy in older stores, in the page of the header.
pub(crate) const OLD_COPY_AT: u64 = SECTOR as u64;
/// Length of that copy.
pub(crate) const OLD_COPY: usize = SECTOR;
const COPY_MAGIC: &[u8; 8] = b"SEALCOPY";
/// Offset, within the copy, of its own offset in the file.
const COPY_LOCATION: usize = 8 + HEADER_BYTES;
/// Offset, within the copy, of the store's uuid.
const COPY_UUID: usize = COPY_LOCATION + 8;

/// Returns the copy of a header, to be written at `location` in the file: magic (8), the header
/// (320), its offset (8), the store's uuid (16), zeros, CRC32C of the first 508 bytes (4), zeros.
pub(crate) fn header_to_copy(header: &EngineHeader, location: u64, uuid: &[u8; 16]) -> [u8; COPY] {
    let mut bytes = [0; COPY];
    bytes[..8].copy_from_slice(COPY_MAGIC);
    bytes[8..8 + HEADER_BYTES].copy_from_slice(&header.0);
    bytes[COPY_LOCATION..COPY_UUID].copy_from_slice(&location.to_le_bytes());
    bytes[COPY_UUID..COPY_UUID + 16].copy_from_slice(uuid);
    let crc = crate::crc::crc32c(&bytes[..SECTOR - 4]);
    bytes[SECTOR - 4..SECTOR].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Parses the result of [`header_to_copy`] for this offset and store.
pub(crate) fn header_of_copy(bytes: &[u8; COPY], location: u64, uuid: &[u8; 16]) -> Option<EngineHeader> {
    let its_own = bytes[COPY_LOCATION..COPY_UUID] == location.to_le_bytes()
        && bytes[COPY_UUID..COPY_UUID + 16] == *uuid;
    header_of_old_copy(bytes.first_chunk()?).filter(|_| its_own)
}

/// Parses a copy in the older format: without its offset and the store's uuid.
pub(crate) fn header_of_old_copy(bytes: &[u8; OLD_COPY]) -> Option<EngineHeader> {
    let (sealed, crc) = bytes.split_last_chunk()?;
    let sound = bytes.starts_with(COPY_MAGIC) && crate::crc::crc32c(sealed) == u32::from_le_bytes(*crc);
    let header = bytes[8..].first_chunk()?;
    sound.then_some(EngineHeader(*header))
}
