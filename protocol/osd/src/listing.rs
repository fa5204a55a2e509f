//! The responses to LIST, LIST COLLECTION and QUERY (OSD-2 §6.13, §6.14, §6.20).
//!
//! Does: writes complete entries up to the allocation length, with the length of the complete list
//! in the header.
//! Source of truth: `docs/standards/osd.md`, parameter data.

use alloc::vec::Vec;

use crate::attribute::list::{ObjectEntry, ObjectValues, push_object_entry};
use crate::bytes::{u8_at, u32_at, u64_at};
use crate::sink::TruncatingSink;
use crate::{AttributeId, Generation, ObjectType};

/// Bytes before the entries.
pub const HEADER: usize = 24;
/// Minimum allocation length that is not 0, in bytes.
pub const ALLOCATION_MIN: u64 = HEADER as u64;
/// ADDITIONAL LENGTH counts from here.
const AFTER_LENGTH: u64 = 8;
/// ADDITIONAL LENGTH of a list whose full length is unknown.
const UNKNOWN: u64 = u64::MAX;
/// Bytes of an entry without attributes.
const ID: usize = 8;

/// The kind of entries in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// A list of partitions.
    Partitions,
    /// A list of collections.
    Collections,
    /// User objects.
    Objects,
}

impl Listed {
    /// Returns OBJECT DESCRIPTOR FORMAT without attributes.
    const fn format(self) -> u8 {
        match self {
            Self::Partitions => 0x01,
            Self::Collections => 0x11,
            Self::Objects => 0x21,
        }
    }

    const fn object_type(self) -> ObjectType {
        match self {
            Self::Partitions => ObjectType::Partition,
            Self::Collections => ObjectType::Collection,
            Self::Objects => ObjectType::User,
        }
    }
}

/// LSTCHG: the list changed during the series.
const CHANGED: u8 = 0x02;
/// OSD-1: entries are partitions or collections.
const ROOT_OR_COLLECTION: u8 = 0x01;

/// How a list ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The list is complete.
    Complete,
    /// The list ends before this id, with which the next request starts.
    Continued {
        /// CONTINUATION OBJECT_ID.
        next: u64,
        /// Number of entries of the complete list from the initial id on, if known and without
        /// attributes.
        total: Option<u64>,
        /// LIST IDENTIFIER of the series; 0 for none.
        list_id: u32,
    },
}

/// Writes a list.
#[derive(Debug)]
pub struct ListingWriter<'a> {
    sink: TruncatingSink<'a>,
    generation: Generation,
    listed: Listed,
    with_attributes: bool,
}

impl<'a> ListingWriter<'a> {
    /// Starts a list appended to `out`; `with_attributes` is LIST_ATTR (OSD-2).
    #[must_use]
    pub fn new(
        generation: Generation,
        listed: Listed,
        with_attributes: bool,
        out: &'a mut Vec<u8>,
        allocation: usize,
    ) -> Self {
        let mut sink = TruncatingSink::new(out, allocation);
        sink.push(&[0; HEADER]);
        let with_attributes = with_attributes && generation == Generation::Osd2;
        Self { sink, generation, listed, with_attributes }
    }

    /// Adds an entry; returns `false` if there is no space: it is not added, and no further one may
    /// be.
    #[must_use]
    pub fn push(&mut self, id: u64, values: &[(AttributeId, &[u8])]) -> bool {
        if !self.with_attributes {
            let room = self.sink.fits(ID);
            if room {
                self.sink.push(&id.to_be_bytes());
            }
            return room;
        }
        let entry = entry_with_attributes(id, self.listed, values);
        let room = self.sink.fits(entry.len());
        if room {
            self.sink.push(&entry);
        }
        room
    }

    /// Fills in the header; returns the bytes of the complete list, or those written if that is
    /// unknown.
    pub fn finish(mut self, changed: bool, end: End) -> u64 {
        let written = self.sink.full();
        let head =
            Head { generation: self.generation, listed: self.listed, with_attributes: self.with_attributes };
        self.sink.patch(0, &head.encode(written, changed, end));
        match head.additional(written, end) {
            UNKNOWN => written,
            additional => additional.saturating_add(AFTER_LENGTH),
        }
    }
}

/// The header fields of a list that concern all its entries.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Layout of the list.
    pub generation: Generation,
    /// The kind of entries.
    pub listed: Listed,
    /// LIST_ATTR (OSD-2).
    pub with_attributes: bool,
}

impl Head {
    fn carries_attributes(&self) -> bool {
        self.with_attributes && self.generation == Generation::Osd2
    }

    fn additional(&self, written: u64, end: End) -> u64 {
        match end {
            End::Complete => written.saturating_sub(AFTER_LENGTH),
            End::Continued { total, .. } => {
                let known = total
                    .filter(|_| !self.carries_attributes())
                    .and_then(|count| count.checked_mul(ID as u64));
                known.and_then(|bytes| bytes.checked_add(HEADER as u64 - AFTER_LENGTH)).unwrap_or(UNKNOWN)
            }
        }
    }

    /// Encodes the header of a list of `written` bytes, including the header.
    #[must_use]
    pub fn encode(&self, written: u64, changed: bool, end: End) -> [u8; HEADER] {
        let (next, list_id) = match end {
            End::Complete => (0, 0),
            End::Continued { next, list_id, .. } => (next, list_id),
        };
        let kind = match self.generation {
            Generation::Osd1 if self.listed != Listed::Objects => ROOT_OR_COLLECTION,
            Generation::Osd1 => 0,
            Generation::Osd2 => (self.listed.format() + u8::from(self.with_attributes)) << 2,
        };
        let mut out = [0; HEADER];
        out[..8].copy_from_slice(&self.additional(written, end).to_be_bytes());
        out[8..16].copy_from_slice(&next.to_be_bytes());
        out[16..20].copy_from_slice(&list_id.to_be_bytes());
        out[23] = kind | if changed { CHANGED } else { 0 };
        out
    }
}

/// Encodes an entry of a list with LIST_ATTR.
#[must_use]
pub fn entry_with_attributes(id: u64, listed: Listed, values: &[(AttributeId, &[u8])]) -> Vec<u8> {
    let mut entry = Vec::new();
    push_object_entry(&mut TruncatingSink::new(&mut entry, usize::MAX), id, listed.object_type(), values);
    entry
}

/// A received list.
#[derive(Clone, Copy, Debug)]
pub struct Listing<'a> {
    /// Bytes of the complete list; `None` if the device does not know.
    pub full_len: Option<u64>,
    /// CONTINUATION OBJECT_ID: start of the next request; 0 if the list is complete.
    pub next: u64,
    /// LIST IDENTIFIER of the series.
    pub list_id: u32,
    /// The list changed during the series.
    pub changed: bool,
    /// OSD-2: the kind of entries. OSD-1 only distinguishes user objects from others: then
    /// partitions.
    pub listed: Listed,
    /// Entries carry attributes.
    pub with_attributes: bool,
    entries: &'a [u8],
}

impl<'a> Listing<'a> {
    /// Parses a list, which may be truncated; `None` if its header is, or the object descriptor
    /// format is unknown.
    #[must_use]
    pub fn parse(generation: Generation, bytes: &'a [u8]) -> Option<Self> {
        let additional = u64_at(bytes, 0)?;
        let kind = u8_at(bytes, 23)?;
        let (listed, with_attributes) = match (generation, kind >> 2) {
            (Generation::Osd1, _) if kind & ROOT_OR_COLLECTION != 0 => (Listed::Partitions, false),
            (Generation::Osd1, _) => (Listed::Objects, false),
            (_, format @ (0x01 | 0x02)) => (Listed::Partitions, format == 0x02),
            (_, format @ (0x11 | 0x12)) => (Listed::Collections, format == 0x12),
            (_, format @ (0x21 | 0x22)) => (Listed::Objects, format == 0x22),
            _ => return None,
        };
        let entries = bytes.get(HEADER..)?;
        let stated_length = additional.saturating_sub(HEADER as u64 - AFTER_LENGTH);
        let received = usize::try_from(stated_length).unwrap_or(usize::MAX).min(entries.len());
        Some(Self {
            full_len: (additional != UNKNOWN).then(|| additional.saturating_add(AFTER_LENGTH)),
            next: u64_at(bytes, 8)?,
            list_id: u32_at(bytes, 16)?,
            changed: kind & CHANGED != 0,
            listed,
            with_attributes,
            entries: &entries[..received],
        })
    }

    /// Returns the ids, if entries carry no attributes; else none.
    pub fn ids(&self) -> impl Iterator<Item = u64> + use<'a> {
        let entries = if self.with_attributes { &[] } else { self.entries };
        entries.chunks_exact(ID).filter_map(|id| u64_at(id, 0))
    }

    /// Returns the entries with their attributes, if they carry any; else none. The last entry of a
    /// truncated list may have truncated values.
    pub fn entries(&self) -> impl Iterator<Item = ObjectEntry<'a>> + use<'a> {
        ObjectValues::entries(if self.with_attributes { self.entries } else { &[] })
    }
}

/// Bytes before the ids of a QUERY response as we write it: the last draft's. Revisions 1 to 4 have
/// 13.
pub const MATCHES_HEADER: usize = 12;

/// Returns the header of a QUERY response with this many matches, however many of them follow.
#[must_use]
pub fn matches_header(count: u64) -> [u8; MATCHES_HEADER] {
    let additional = count.saturating_mul(ID as u64).saturating_add(MATCHES_HEADER as u64 - AFTER_LENGTH);
    let mut out = [0; MATCHES_HEADER];
    out[..8].copy_from_slice(&additional.to_be_bytes());
    out[11] = Listed::Objects.format() << 2;
    out
}

/// Encodes a QUERY response, truncated to `allocation` bytes; returns its full length.
pub fn encode_matches(ids: &[u64], out: &mut Vec<u8>, allocation: usize) -> u64 {
    let mut sink = TruncatingSink::new(out, allocation);
    sink.push(&matches_header(ids.len() as u64));
    for id in ids {
        sink.push(&id.to_be_bytes());
    }
    sink.full()
}

/// Parses a QUERY response, as far as it is present. T11: the additional length determines where
/// ids start, 4 + 8n bytes in the last draft, 5 + 8n before. `None` for anything else.
#[must_use]
pub fn parse_matches(bytes: &[u8]) -> Option<Vec<u64>> {
    let additional = u64_at(bytes, 0)?;
    let start = match additional % ID as u64 {
        4 => MATCHES_HEADER,
        5 => MATCHES_HEADER + 1,
        _ => return None,
    };
    let ids = bytes.get(start..)?;
    let stated_length = usize::try_from(additional + AFTER_LENGTH - start as u64).unwrap_or(usize::MAX);
    Some(ids[..stated_length.min(ids.len())].chunks_exact(ID).filter_map(|id| u64_at(id, 0)).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use Generation::{Osd1, Osd2};

    /// Writes ids as a device does: until one does not fit.
    fn write(generation: Generation, ids: &[u64], allocation: usize) -> (Vec<u8>, u64) {
        let mut out = Vec::new();
        let mut writer = ListingWriter::new(generation, Listed::Objects, false, &mut out, allocation);
        let end = ids.iter().find(|id| !writer.push(**id, &[])).map_or(End::Complete, |next| {
            End::Continued { next: *next, total: Some(ids.len() as u64), list_id: 0 }
        });
        let full = writer.finish(false, end);
        (out, full)
    }

    #[test]
    fn header_follows_the_standard_layout() {
        let (wire, full) = write(Osd2, &[0x1_0000, 0x1_0001, 0x1_0002], 45);
        assert_eq!((wire.len(), full), (40, 48));
        assert_eq!(wire[..8], 40_u64.to_be_bytes());
        assert_eq!(wire[8..16], 0x1_0002_u64.to_be_bytes());
        assert_eq!(wire[16..24], [0, 0, 0, 0, 0, 0, 0, 0x84]);
        assert_eq!(write(Osd1, &[], 24).0[23], 0);
        let mut out = Vec::new();
        let writer = ListingWriter::new(Osd1, Listed::Partitions, true, &mut out, 24);
        assert_eq!((writer.finish(true, End::Complete), out[23]), (24, 3));
    }

    #[test]
    fn list_entries_include_attributes() {
        let id = AttributeId::new(1, 0x82);
        let mut out = Vec::new();
        let mut writer = ListingWriter::new(Osd2, Listed::Objects, true, &mut out, 100);
        assert!(writer.push(7, &[(id, &[1; 8])]) && !writer.push(8, &[(id, &[2; 8])]));
        let end = End::Continued { next: 8, total: None, list_id: 3 };
        assert_eq!(writer.finish(false, end), 24 + 16 + 24);
        let list = Listing::parse(Osd2, &out).unwrap();
        assert_eq!((list.full_len, list.next, list.list_id, list.ids().count()), (None, 8, 3, 0));
        let entry = list.entries().next().unwrap();
        assert_eq!((entry.object, entry.kind), (7, 0x80));
        assert_eq!(entry.values.iter().collect::<Vec<_>>(), [(id, &[1; 8][..])]);
    }

    #[test]
    fn matches_of_both_drafts_are_read() {
        let mut out = Vec::new();
        assert_eq!(encode_matches(&[5, 6], &mut out, 20), 28);
        assert_eq!(parse_matches(&out), Some(std::vec![5]));
        let mut old = 21_u64.to_be_bytes().to_vec();
        old.extend([0, 0, 0, 0, 0x84, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6]);
        assert_eq!(parse_matches(&old), Some(std::vec![5, 6]));
    }

    proptest! {
        /// T12: the continuation id is where to continue, and the length is that of the complete
        /// list.
        #[test]
        fn continued_lists_cover_all_objects(
            ids in proptest::collection::btree_set(1_u64..1000, 0..40),
            allocation in 32_usize..200,
            osd2 in any::<bool>(),
        ) {
            let generation = if osd2 { Osd2 } else { Osd1 };
            let ids: Vec<u64> = ids.into_iter().collect();
            let (mut seen, mut from) = (Vec::new(), 0);
            loop {
                let rest: Vec<u64> = ids.iter().copied().filter(|id| *id >= from).collect();
                let (wire, full) = write(generation, &rest, allocation);
                let list = Listing::parse(generation, &wire).unwrap();
                prop_assert_eq!(list.full_len, Some(full));
                prop_assert_eq!(full, 24 + 8 * rest.len() as u64);
                seen.extend(list.ids());
                from = list.next;
                if from == 0 { break }
            }
            prop_assert_eq!(seen, ids);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            for generation in [Osd1, Osd2] {
                if let Some(list) = Listing::parse(generation, &bytes) {
                    let _ = (list.ids().count(), list.entries().map(|one| one.values.iter().count()).sum::<usize>());
                }
            }
            let _ = parse_matches(&bytes);
        }
    }
}
