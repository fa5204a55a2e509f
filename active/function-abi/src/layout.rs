//! Offsets of the two shared memory regions.
//!
//! The engine writes region A and only reads region B. Each word that one side writes while the
//! other one reads it has a cache line of its own.

use crate::limits::{ARGUMENT_BYTES_MAX, METHOD_BYTES_MAX, OBJECTS_MAX, RING_SLOTS};

/// Bytes of a submission entry.
pub const SUBMISSION_BYTES: usize = 64;
/// Bytes of a completion entry.
pub const COMPLETION_BYTES: usize = 32;

/// Region A: written by the engine.
pub mod engine {
    use super::{RING_SLOTS, SUBMISSION_BYTES};

    /// Number of submitted entries, modulo 2^32; the host sleeps on this word.
    pub const SUBMISSION_TAIL: usize = 0;
    /// 1 while the engine sleeps, or is about to.
    pub const SLEEPING: usize = 64;
    /// The submission ring.
    pub const SUBMISSIONS: usize = 4096;
    /// The heap, up to the end of the region.
    pub const HEAP: usize = 64 << 10;

    /// Returns the size of the region with a heap of so many bytes.
    #[must_use]
    pub const fn region_bytes(heap_bytes: u64) -> u64 {
        HEAP as u64 + heap_bytes
    }

    const _: () = assert!(SUBMISSIONS + RING_SLOTS as usize * SUBMISSION_BYTES <= HEAP);
}

/// Region B: written by the host, and read-only in the engine.
pub mod host {
    use super::{ARGUMENT_BYTES_MAX, COMPLETION_BYTES, METHOD_BYTES_MAX, OBJECTS_MAX, RING_SLOTS};

    /// The fixed header: magic, layout version and size of the heap.
    pub const HEADER: usize = 0;
    /// Number of completed entries, modulo 2^32; the engine sleeps on this word.
    pub const COMPLETION_TAIL: usize = 64;
    /// 1 while the host sleeps, or is about to.
    pub const SLEEPING: usize = 128;
    /// Number of the call; the engine sleeps on this word between calls.
    pub const GENERATION: usize = 192;
    /// Number of the latest call that was cancelled.
    pub const CANCELLED: usize = 256;
    /// Time of the host in milliseconds since 1970, 8 bytes.
    pub const CLOCK_MS: usize = 320;
    /// 1 if the engine must exit instead of waiting for a call.
    pub const STOP: usize = 384;
    /// Time in nanoseconds for which a side polls before it sleeps; 0 to sleep at once.
    pub const SPIN_NS: usize = 448;
    /// The completion ring.
    pub const COMPLETIONS: usize = 4096;
    /// The fixed part of the call descriptor.
    pub const DESCRIPTOR: usize = 8192;
    /// Bytes of the fixed part of the call descriptor.
    pub const DESCRIPTOR_BYTES: usize = 64;
    /// Object descriptions of the call.
    pub const OBJECTS: usize = DESCRIPTOR + DESCRIPTOR_BYTES;
    /// The method of the call.
    pub const METHOD: usize = OBJECTS + OBJECTS_MAX * crate::GUEST_OBJECT_BYTES;
    /// The arguments of the call.
    pub const ARGUMENTS: usize = 12288;
    /// Size of the region.
    pub const REGION_BYTES: usize = ARGUMENTS + ARGUMENT_BYTES_MAX + 4096;

    const _: () = assert!(COMPLETIONS + RING_SLOTS as usize * COMPLETION_BYTES <= DESCRIPTOR);
    const _: () = assert!(METHOD + METHOD_BYTES_MAX <= ARGUMENTS);
    const _: () = assert!(REGION_BYTES.is_multiple_of(4096));
}

/// First bytes of region B: `OSDF`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"OSDF");
/// Version of this layout; the two sides must agree.
pub const LAYOUT_VERSION: u32 = 1;
/// Bytes of the header of region B.
pub const HEADER_BYTES: usize = 16;

/// Returns the header of region B: magic, layout version, size of the heap.
#[must_use]
pub fn encode_header(heap_bytes: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC.to_le_bytes());
    header[4..8].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
    header[8..].copy_from_slice(&heap_bytes.to_le_bytes());
    header
}

/// Parses the header of region B into the size of the heap; `None` for another layout.
#[must_use]
pub fn parse_header(header: [u8; HEADER_BYTES]) -> Option<u64> {
    let [m0, m1, m2, m3, v0, v1, v2, v3, heap @ ..] = header;
    let heap_bytes = u64::from_le_bytes(heap);
    let is_ours = u32::from_le_bytes([m0, m1, m2, m3]) == MAGIC
        && u32::from_le_bytes([v0, v1, v2, v3]) == LAYOUT_VERSION
        && is_heap_size(heap_bytes);
    is_ours.then_some(heap_bytes)
}

/// Whether a heap can have so many bytes.
#[must_use]
pub const fn is_heap_size(heap_bytes: u64) -> bool {
    use crate::limits::{BUFFER_BYTES, HEAP_BYTES_MAX, HEAP_BYTES_MIN};
    heap_bytes >= HEAP_BYTES_MIN
        && heap_bytes <= HEAP_BYTES_MAX
        && heap_bytes.is_multiple_of(BUFFER_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{HEAP_BYTES, HEAP_BYTES_MAX, HEAP_BYTES_MIN};

    #[test]
    fn header_parses_to_its_heap_size() {
        for bytes in [HEAP_BYTES, HEAP_BYTES_MIN, HEAP_BYTES_MAX] {
            assert_eq!(parse_header(encode_header(bytes)), Some(bytes));
        }
        for bytes in [0, HEAP_BYTES_MIN - 1, HEAP_BYTES + 1, HEAP_BYTES_MAX + 1] {
            assert_eq!(parse_header(encode_header(bytes)), None);
        }
        let mut other = encode_header(HEAP_BYTES);
        other[4] = 2;
        assert_eq!(parse_header(other), None);
    }
}
