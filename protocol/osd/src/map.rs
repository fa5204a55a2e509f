//! The response to READ MAP (OSD-2 §6.21).

use alloc::vec::Vec;

use crate::bytes::{u16_at, u32_at, u64_at};
use crate::sink::TruncatingSink;

/// Minimum allocation length that is not 0, in bytes.
pub const ALLOCATION_MIN: u64 = 24;
/// Map type in a request: every type.
pub const ALL: u16 = 0x0000;
/// Written data.
pub const WRITTEN: u16 = 0x0001;
/// A hole.
pub const HOLE: u16 = 0x0002;
/// Damaged data.
pub const DAMAGED_DATA: u16 = 0x0003;
/// Damaged attributes.
pub const DAMAGED_ATTRIBUTES: u16 = 0x8000;

/// Bytes of ADDITIONAL LENGTH, and of a descriptor.
const HEADER: usize = 8;
const DESCRIPTOR: usize = 16;
/// Maximum bytes of an object that one descriptor covers.
const SPLIT_BYTES: u64 = 1 << 31;

/// One extent of a user object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapExtent {
    /// One of the map types above.
    pub kind: u16,
    /// Its length in bytes; a longer one takes several descriptors.
    pub length: u32,
    /// Its first byte.
    pub offset: u64,
}

/// ADDITIONAL LENGTH of a map whose full length is not known.
pub const LENGTH_UNKNOWN: u64 = u64::MAX;

/// Writes a map, possibly truncated: complete descriptors, and the full length.
pub struct MapWriter<'a> {
    sink: TruncatingSink<'a>,
    count: u64,
    fit: u64,
}

impl<'a> MapWriter<'a> {
    /// Starts a map of at most `room` bytes.
    pub fn new(out: &'a mut Vec<u8>, room: usize) -> Self {
        let mut sink = TruncatingSink::new(out, room);
        sink.push(&[0; HEADER]);
        Self { sink, count: 0, fit: 0 }
    }

    /// Adds an extent, if it fits completely; it is counted either way.
    pub fn push(&mut self, extent: &MapExtent) {
        self.count += 1;
        if self.count == self.fit + 1 && self.sink.fits(DESCRIPTOR) {
            self.fit += 1;
            self.sink.push(&[0, 0]);
            self.sink.push(&extent.kind.to_be_bytes());
            self.sink.push(&extent.length.to_be_bytes());
            self.sink.push(&extent.offset.to_be_bytes());
        }
    }

    /// Adds an extent of any length as descriptors of 32-bit lengths. O(descriptors that fit).
    pub fn push_long(&mut self, kind: u16, offset: u64, length: u64) {
        let mut left = length.div_ceil(SPLIT_BYTES);
        for extent in split(kind, offset, length) {
            if self.count > self.fit {
                break;
            }
            self.push(&extent);
            left -= 1;
        }
        self.count = self.count.saturating_add(left);
    }

    /// Returns the number of extents that did not fit.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.count - self.fit
    }

    /// Writes the full length, or that it is unknown; returns it in bytes.
    pub fn finish(mut self, complete: bool) -> u64 {
        let additional = self.count.saturating_mul(DESCRIPTOR as u64);
        let stated_length = if complete { additional } else { LENGTH_UNKNOWN };
        self.sink.patch(0, &stated_length.to_be_bytes());
        stated_length.saturating_add(HEADER as u64)
    }
}

/// Encodes a map truncated to `allocation` bytes at a complete descriptor; returns its full length.
pub fn encode(extents: &[MapExtent], out: &mut Vec<u8>, allocation: usize) -> u64 {
    let mut writer = MapWriter::new(out, allocation);
    extents.iter().for_each(|extent| writer.push(extent));
    writer.finish(true)
}

/// Splits a long extent into extents of a 32-bit length.
pub fn split(kind: u16, offset: u64, length: u64) -> impl Iterator<Item = MapExtent> {
    (0..length.div_ceil(SPLIT_BYTES)).map(move |step| MapExtent {
        kind,
        length: SPLIT_BYTES.min(length - step * SPLIT_BYTES) as u32,
        offset: offset.saturating_add(step * SPLIT_BYTES),
    })
}

/// Parses a map, as far as it is present, with its full length in bytes; `None` without a header.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<(Vec<MapExtent>, u64)> {
    let additional = u64_at(bytes, 0)?;
    let received = bytes.get(HEADER..)?;
    let received = &received[..usize::try_from(additional).unwrap_or(usize::MAX).min(received.len())];
    let extents = received.chunks_exact(DESCRIPTOR).filter_map(|entry| {
        Some(MapExtent { kind: u16_at(entry, 2)?, length: u32_at(entry, 4)?, offset: u64_at(entry, 8)? })
    });
    Some((extents.collect(), additional.saturating_add(HEADER as u64)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_map_is_cut_at_whole_descriptors() {
        let extents: Vec<_> = split(WRITTEN, 0, 5 << 31).chain(split(HOLE, 5 << 31, 7)).collect();
        assert_eq!(extents.len(), 6);
        let mut out = Vec::new();
        assert_eq!(encode(&extents, &mut out, 45), 8 + 96);
        assert_eq!(out.len(), 40);
        assert_eq!(parse(&out), Some((extents[..2].to_vec(), 104)));
        assert_eq!(out[8..24], [0, 0, 0, 1, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn long_stretch_counts_descriptors_without_room() {
        let mut out = Vec::new();
        let mut writer = MapWriter::new(&mut out, 45);
        writer.push_long(HOLE, 0, 1 << 62);
        writer.push_long(WRITTEN, 1 << 62, 16);
        assert_eq!(writer.left_out(), (1 << 31) - 1);
        assert_eq!(writer.finish(true), 8 + 16 * ((1 << 31) + 1));
        assert_eq!(parse(&out).unwrap().0, split(HOLE, 0, 1 << 62).take(2).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(&bytes);
        }
    }
}
