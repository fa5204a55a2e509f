//! Attribute lists of types 1h, 9h, Eh and Fh in both generations (OSD-2 §7.1.3).
//!
//! Does: iterates over the entries without allocating; writes with truncation that keeps full
//! lengths.
//! Does not: interpret values.
//! Contract: a set or get list is checked completely before the first entry is returned. A
//! retrieved list may be truncated anywhere; iteration ends at the last complete entry.
//! Source of truth: `docs/standards/osd.md`, attribute lists.

use alloc::vec::Vec;

use sealstone_scsi::{AdditionalSense, FieldPointer, Sense, SenseKey, additional};
use thiserror::Error;

use crate::bytes::{u16_at, u32_at, u64_at};
use crate::sink::TruncatingSink;
use crate::{AttributeId, Generation, ObjectType};

/// Longest value of an attribute, in bytes.
pub const VALUE_MAX: usize = 0xFFFE;

/// LIST TYPE: names to get.
const GET: u8 = 0x1;
/// LIST TYPE: names with values.
const VALUES: u8 = 0x9;
/// LIST TYPE: values of several objects, by object (OSD-2).
const OBJECTS: u8 = 0xE;
/// LIST TYPE: values of several objects, by attribute (OSD-1).
const OBJECTS_OSD1: u8 = 0xF;
/// Length of an undefined attribute in OSD-1.
const UNDEFINED: u16 = 0xFFFF;

/// Bytes of a name.
const NAME: usize = 8;

/// Returns the bytes of a list's header.
#[must_use]
pub const fn header_len(generation: Generation) -> usize {
    generation.select([4, 8])
}

/// Returns the bytes before the value of a type-9 entry.
const fn entry_head(generation: Generation) -> usize {
    generation.select([10, 16])
}

/// Returns the alignment of type-9 entries in bytes.
const fn entry_unit(generation: Generation) -> usize {
    generation.select([1, 8])
}

/// Returns the bytes that one value takes in a type-9 list.
#[must_use]
pub const fn entry_len(generation: Generation, value_len: usize) -> usize {
    (entry_head(generation) + value_len).next_multiple_of(entry_unit(generation))
}

/// Why bytes are not a list; `at` counts from the start of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ListError {
    /// Shorter than its header, or ends within an entry.
    #[error("attribute list ends within the entry at byte {at}")]
    Length {
        /// First byte of the entry.
        at: usize,
    },
    /// Another type than the expected one.
    #[error("attribute list has type {actual:#x}, expected {expected:#x}")]
    Type {
        /// LIST TYPE given.
        actual: u8,
        /// Expected LIST TYPE.
        expected: u8,
    },
    /// A wildcard page or number in a set list.
    #[error("wildcard in the set list at byte {at}")]
    Wildcard {
        /// First byte of the entry.
        at: usize,
    },
}

impl ListError {
    /// Returns the additional sense code.
    #[must_use]
    pub const fn code(&self) -> AdditionalSense {
        match self {
            Self::Length { .. } => additional::PARAMETER_LIST_LENGTH_ERROR,
            Self::Type { .. } | Self::Wildcard { .. } => additional::INVALID_FIELD_IN_PARAMETER_LIST,
        }
    }

    /// Returns ILLEGAL REQUEST with the code; `base` is the offset of the list in the Data-Out
    /// Buffer.
    #[must_use]
    pub fn sense(&self, base: u64) -> Sense {
        let at = match self {
            Self::Length { at } | Self::Wildcard { at } => *at as u64,
            Self::Type { .. } => 0,
        };
        let sense = Sense::new(SenseKey::IllegalRequest, self.code());
        match u16::try_from(base.saturating_add(at)) {
            Ok(byte) => sense.with_field(FieldPointer::parameter(byte)),
            Err(_) => sense,
        }
    }
}

/// Returns the bytes after the header of a list of this type.
fn body(generation: Generation, bytes: &[u8], expected: u8) -> Result<&[u8], ListError> {
    let body = bytes.get(header_len(generation)..).ok_or(ListError::Length { at: 0 })?;
    match bytes[0] & 0x0F {
        actual if actual == expected => Ok(body),
        actual => Err(ListError::Type { actual, expected }),
    }
}

/// Returns the entries of a retrieved list, as far as they are present, and the full length of the
/// list with header.
fn retrieved_body(generation: Generation, bytes: &[u8], expected: u8) -> Result<(&[u8], u64), ListError> {
    let body = body(generation, bytes, expected)?;
    let length = match generation {
        Generation::Osd1 => u16_at(bytes, 2).map(u64::from),
        Generation::Osd2 => u32_at(bytes, 4).map(u64::from),
    }
    .unwrap_or(0);
    let present = usize::try_from(length).unwrap_or(usize::MAX).min(body.len());
    Ok((&body[..present], length + header_len(generation) as u64))
}

/// A type-1 list: names to get.
#[derive(Clone, Copy, Debug)]
pub struct GetNames<'a> {
    entries: &'a [u8],
}

impl<'a> GetNames<'a> {
    /// Parses all of `bytes`: the length is the CDB's, since senders leave the embedded one zero.
    ///
    /// # Errors
    /// See [`ListError`].
    pub fn parse(generation: Generation, bytes: &'a [u8]) -> Result<Self, ListError> {
        let entries = body(generation, bytes, GET)?;
        if !entries.len().is_multiple_of(NAME) {
            return Err(ListError::Length { at: bytes.len() - entries.len() % NAME });
        }
        Ok(Self { entries })
    }

    /// Returns the names, including wildcards.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = AttributeId> + use<'a> {
        self.entries.chunks_exact(NAME).map(|entry| name(entry, 0).unwrap_or(AttributeId::new(0, 0)))
    }
}

fn name(bytes: &[u8], at: usize) -> Option<AttributeId> {
    Some(AttributeId::new(u32_at(bytes, at)?, u32_at(bytes, at + 4)?))
}

/// A type-9 list: names with values. An empty value is an undefined attribute; in a set list it
/// removes the attribute.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    generation: Generation,
    entries: &'a [u8],
    full_len: u64,
}

impl<'a> Values<'a> {
    /// Parses all of `bytes` as a set list and checks every entry. The last one may lack its
    /// padding.
    ///
    /// # Errors
    /// See [`ListError`].
    pub fn parse_set(generation: Generation, bytes: &'a [u8]) -> Result<Self, ListError> {
        let entries = body(generation, bytes, VALUES)?;
        let list = Self { generation, entries, full_len: bytes.len() as u64 };
        let mut iter = list.iter();
        loop {
            let at = bytes.len() - iter.rest.len();
            let undefined = u16_at(iter.rest, entry_head(generation) - 2) == Some(UNDEFINED);
            match iter.next() {
                Some((id, _)) if id.is_wildcard() => return Err(ListError::Wildcard { at }),
                Some(_) if !undefined => {}
                None if iter.rest.is_empty() => return Ok(list),
                Some(_) | None => return Err(ListError::Length { at }),
            }
        }
    }

    /// Parses a retrieved list, which may be truncated.
    ///
    /// # Errors
    /// See [`ListError`]; only for the header.
    pub fn parse_retrieved(generation: Generation, bytes: &'a [u8]) -> Result<Self, ListError> {
        let (entries, full_len) = retrieved_body(generation, bytes, VALUES)?;
        Ok(Self { generation, entries, full_len })
    }

    /// Returns the bytes of the complete list, including its header; more than were passed if it is
    /// truncated.
    #[must_use]
    pub const fn full_len(&self) -> u64 {
        self.full_len
    }

    /// Returns the complete entries.
    #[must_use]
    pub const fn iter(&self) -> ValuesIter<'a> {
        ValuesIter { generation: self.generation, rest: self.entries }
    }
}

/// Iterator over names and values.
#[derive(Clone, Debug)]
pub struct ValuesIter<'a> {
    generation: Generation,
    rest: &'a [u8],
}

impl<'a> Iterator for ValuesIter<'a> {
    type Item = (AttributeId, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let head = entry_head(self.generation);
        let id = name(self.rest, 0)?;
        let length = match u16_at(self.rest, head - 2)? {
            UNDEFINED => 0,
            length => usize::from(length),
        };
        let value = self.rest.get(head..head + length)?;
        self.rest = self.rest.get(entry_len(self.generation, length)..).unwrap_or(&[]);
        Some((id, value))
    }
}

/// A type-E list: the values of several objects (OSD-2).
#[derive(Clone, Debug)]
pub struct ObjectValues<'a> {
    rest: &'a [u8],
}

/// Bytes before the values of a type-E entry.
const OBJECT_HEAD: usize = 16;

impl<'a> ObjectValues<'a> {
    /// Parses a retrieved list, which may be truncated.
    ///
    /// # Errors
    /// See [`ListError`]; only for the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ListError> {
        Ok(Self { rest: retrieved_body(Generation::Osd2, bytes, OBJECTS)?.0 })
    }

    /// Parses entries without a list header, as in LIST with attributes.
    #[must_use]
    pub const fn entries(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

/// One object of a type-E list; its values may be truncated.
#[derive(Clone, Copy, Debug)]
pub struct ObjectEntry<'a> {
    /// Number of the object within its partition.
    pub object: u64,
    /// Its type byte.
    pub kind: u8,
    /// Its attributes.
    pub values: Values<'a>,
}

impl<'a> Iterator for ObjectValues<'a> {
    type Item = ObjectEntry<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let object = u64_at(self.rest, 0)?;
        let kind = *self.rest.get(8)?;
        let length = usize::from(u16_at(self.rest, 14)?);
        let tail = self.rest.get(OBJECT_HEAD..)?;
        let (entries, rest) = tail.split_at(length.min(tail.len()));
        self.rest = rest;
        let full_len = length as u64;
        Some(ObjectEntry { object, kind, values: Values { generation: Generation::Osd2, entries, full_len } })
    }
}

/// A type-F list: object, name and value per entry (OSD-1).
#[derive(Clone, Debug)]
pub struct ObjectValuesOsd1<'a> {
    rest: &'a [u8],
}

impl<'a> ObjectValuesOsd1<'a> {
    /// Parses a retrieved list, which may be truncated.
    ///
    /// # Errors
    /// See [`ListError`]; only for the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ListError> {
        Ok(Self { rest: retrieved_body(Generation::Osd1, bytes, OBJECTS_OSD1)?.0 })
    }
}

impl<'a> Iterator for ObjectValuesOsd1<'a> {
    type Item = (u64, AttributeId, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let object = u64_at(self.rest, 0)?;
        let mut entry = ValuesIter { generation: Generation::Osd1, rest: self.rest.get(8..)? };
        let (id, value) = entry.next()?;
        self.rest = entry.rest;
        Some((object, id, value))
    }
}

/// Returns a header with length 0; OSD-1 uses the first half of it.
const fn header(kind: u8) -> [u8; 8] {
    [kind, 0, 0, 0, 0, 0, 0, 0]
}

/// Encodes a get list as an initiator sends it: its embedded length is 0.
#[must_use]
pub fn encode_get(generation: Generation, names: &[AttributeId]) -> Vec<u8> {
    let mut out = Vec::with_capacity(header_len(generation) + NAME * names.len());
    out.extend_from_slice(&header(GET)[..header_len(generation)]);
    for id in names {
        out.extend(id.page.to_be_bytes());
        out.extend(id.number.to_be_bytes());
    }
    out
}

/// Encodes a set list as an initiator sends it: its embedded length is 0. Values are truncated to
/// [`VALUE_MAX`].
#[must_use]
pub fn encode_set<'v>(
    generation: Generation,
    values: impl IntoIterator<Item = (AttributeId, &'v [u8])>,
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut sink = TruncatingSink::new(&mut out, usize::MAX);
    sink.push(&header(VALUES)[..header_len(generation)]);
    for (id, value) in values {
        push_value(&mut sink, generation, id, value);
    }
    out
}

/// Appends one type-9 entry.
fn push_value(sink: &mut TruncatingSink<'_>, generation: Generation, id: AttributeId, value: &[u8]) {
    let value = &value[..value.len().min(VALUE_MAX)];
    sink.push(&id.page.to_be_bytes());
    sink.push(&id.number.to_be_bytes());
    sink.push(&[0; 6][..entry_head(generation) - NAME - 2]);
    sink.push(&(value.len() as u16).to_be_bytes());
    sink.push(value);
    let written = entry_head(generation) + value.len();
    sink.push(&[0; 8][..entry_len(generation, value.len()) - written]);
}

/// Writes a retrieved list: types 9, E or F.
///
/// Entries beyond the allocation length are dropped but counted: the header has the length of the
/// complete list.
#[derive(Debug)]
pub struct RetrievedWriter<'a> {
    sink: TruncatingSink<'a>,
    generation: Generation,
    by_object: bool,
}

impl<'a> RetrievedWriter<'a> {
    /// Starts a list of one object's attributes (type 9), appended to `out`.
    #[must_use]
    pub fn new(generation: Generation, out: &'a mut Vec<u8>, allocation: usize) -> Self {
        Self::start(generation, out, allocation, VALUES, false)
    }

    /// Starts a list of several objects' attributes (type E, in OSD-1 type F), appended to `out`.
    #[must_use]
    pub fn by_object(generation: Generation, out: &'a mut Vec<u8>, allocation: usize) -> Self {
        Self::start(generation, out, allocation, generation.select([OBJECTS_OSD1, OBJECTS]), true)
    }

    fn start(
        generation: Generation,
        out: &'a mut Vec<u8>,
        allocation: usize,
        kind: u8,
        by_object: bool,
    ) -> Self {
        let mut sink = TruncatingSink::new(out, allocation);
        sink.push(&header(kind)[..header_len(generation)]);
        Self { sink, generation, by_object }
    }

    /// Adds an attribute; an empty value is an undefined one. Only for [`RetrievedWriter::new`].
    pub fn push(&mut self, id: AttributeId, value: &[u8]) {
        debug_assert!(!self.by_object, "a list by object needs the object");
        push_value(&mut self.sink, self.generation, id, value);
    }

    /// Adds all attributes of one object. Only for [`RetrievedWriter::by_object`].
    ///
    /// Values that would overflow the entry's 16-bit length are left out.
    pub fn push_object(&mut self, object: u64, kind: ObjectType, values: &[(AttributeId, &[u8])]) {
        debug_assert!(self.by_object, "a list of one object has no object ids");
        match self.generation {
            Generation::Osd1 => {
                for (id, value) in values {
                    self.sink.push(&object.to_be_bytes());
                    push_value(&mut self.sink, Generation::Osd1, *id, value);
                }
            }
            Generation::Osd2 => push_object_entry(&mut self.sink, object, kind, values),
        }
    }

    /// Returns the bytes of the list so far, including its header, written or not.
    #[must_use]
    pub const fn full(&self) -> u64 {
        self.sink.full()
    }

    /// Counts `bytes` of entries without writing them. Only where nothing more fits.
    pub fn skip(&mut self, bytes: u64) {
        self.sink.skip(bytes);
    }

    /// Writes the length of the complete list into the header; returns it, including the header.
    ///
    /// OSD-1 has 16 bits for it; a longer list has FFFFh.
    pub fn finish(mut self) -> u64 {
        let full = self.sink.full();
        let length = full - header_len(self.generation) as u64;
        match self.generation {
            Generation::Osd1 => {
                self.sink.patch(2, &u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes());
            }
            Generation::Osd2 => {
                self.sink.patch(4, &u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
            }
        }
        full
    }
}

/// Appends one type-E entry; values beyond its 16-bit length are left out.
pub(crate) fn push_object_entry(
    sink: &mut TruncatingSink<'_>,
    object: u64,
    kind: ObjectType,
    values: &[(AttributeId, &[u8])],
) {
    let mut length = 0;
    let fitting = values.iter().take_while(|(_, value)| {
        length += entry_len(Generation::Osd2, value.len().min(VALUE_MAX));
        length <= usize::from(u16::MAX)
    });
    let shown = &values[..fitting.count()];
    let length: usize = shown.iter().map(|(_, value)| entry_len(Generation::Osd2, value.len())).sum();
    sink.push(&object.to_be_bytes());
    sink.push(&[kind as u8, 0, 0, 0, 0, 0]);
    sink.push(&(length as u16).to_be_bytes());
    for (id, value) in shown {
        push_value(sink, Generation::Osd2, *id, value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use Generation::{Osd1, Osd2};

    const ID: AttributeId = AttributeId::new(0x9000_0001, 9);

    /// T3: OSD-1 entries have 10 bytes of header and no padding, OSD-2 entries 16 and padding to 8.
    #[test]
    fn entries_follow_the_layout_of_each_generation() {
        let osd1 = encode_set(Osd1, [(ID, &b"abc"[..])]);
        assert_eq!(osd1, [9, 0, 0, 0, 0x90, 0, 0, 1, 0, 0, 0, 9, 0, 3, b'a', b'b', b'c']);
        let osd2 = encode_set(Osd2, [(ID, &b"abc"[..])]);
        let head = [9, 0, 0, 0, 0, 0, 0, 0, 0x90, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 3];
        assert_eq!(osd2[..24], head);
        assert_eq!(osd2[24..], [b'a', b'b', b'c', 0, 0, 0, 0, 0]);
        assert_eq!(encode_get(Osd2, &[ID])[..], [&[1, 0, 0, 0, 0, 0, 0, 0][..], &head[8..16]].concat());
    }

    /// T8: OSD-1 peers write FFFFh for an undefined attribute; we accept that and write 0.
    #[test]
    fn an_undefined_attribute_is_an_empty_value() {
        let wire = [9, 0, 0, 21, 0, 0, 0, 1, 0, 0, 0, 9, 0xFF, 0xFF, 0, 0, 0, 1, 0, 0, 0, 2, 0, 1, 7];
        let list = Values::parse_retrieved(Osd1, &wire).unwrap();
        let seen: Vec<_> = list.iter().collect();
        assert_eq!(seen, [(AttributeId::new(1, 9), &[][..]), (AttributeId::new(1, 2), &[7][..])]);
        assert_eq!(Values::parse_set(Osd1, &wire).unwrap_err(), ListError::Length { at: 4 });
        let mut out = Vec::new();
        let mut writer = RetrievedWriter::new(Osd2, &mut out, 64);
        writer.push(ID, &[]);
        assert_eq!((writer.finish(), out[7], out[22..24].to_vec()), (24, 16, std::vec![0, 0]));
    }

    #[test]
    fn malformed_lists_are_refused_with_the_right_code() {
        let wrong_type = Values::parse_set(Osd2, &encode_get(Osd2, &[ID])).unwrap_err();
        assert_eq!(wrong_type.code(), additional::INVALID_FIELD_IN_PARAMETER_LIST);
        let short = GetNames::parse(Osd2, &[1, 0, 0, 0, 0, 0, 0, 0, 9]).unwrap_err();
        assert_eq!(
            (short, short.code()),
            (ListError::Length { at: 8 }, additional::PARAMETER_LIST_LENGTH_ERROR)
        );
        let mut set = encode_set(Osd2, [(ID, &[1][..]), (ID, &[2; 30][..])]);
        set.truncate(60);
        assert_eq!(Values::parse_set(Osd2, &set).unwrap_err(), ListError::Length { at: 32 });
        let wildcard = encode_set(Osd2, [(AttributeId::new(1, AttributeId::ALL), &[1][..])]);
        assert_eq!(Values::parse_set(Osd2, &wildcard).unwrap_err(), ListError::Wildcard { at: 8 });
    }

    #[test]
    fn the_last_padding_may_be_missing() {
        let mut set = encode_set(Osd2, [(ID, &b"abc"[..])]);
        set.truncate(27);
        assert_eq!(Values::parse_set(Osd2, &set).unwrap().iter().collect::<Vec<_>>(), [(ID, &b"abc"[..])]);
    }

    /// T9: OSD-2 groups by object, OSD-1 repeats the object.
    #[test]
    fn lists_of_several_objects_read_back() {
        let values = [(ID, &b"one"[..]), (AttributeId::new(2, 3), &b""[..])];
        let mut out = Vec::new();
        let mut writer = RetrievedWriter::by_object(Osd2, &mut out, 4096);
        writer.push_object(5, ObjectType::User, &values);
        writer.push_object(6, ObjectType::Collection, &values[..1]);
        assert_eq!(writer.finish(), out.len() as u64);
        let seen: Vec<_> = ObjectValues::parse(&out).unwrap().collect();
        assert_eq!((seen[0].object, seen[0].kind, seen[1].object, seen[1].kind), (5, 0x80, 6, 0x40));
        assert_eq!(seen[0].values.iter().collect::<Vec<_>>(), values);
        let mut out = Vec::new();
        let mut writer = RetrievedWriter::by_object(Osd1, &mut out, 4096);
        writer.push_object(5, ObjectType::User, &values);
        writer.finish();
        let seen: Vec<_> = ObjectValuesOsd1::parse(&out).unwrap().collect();
        assert_eq!(seen, [(5, ID, &b"one"[..]), (5, AttributeId::new(2, 3), &b""[..])]);
    }

    fn any_values() -> impl Strategy<Value = Vec<(AttributeId, Vec<u8>)>> {
        let id = (0_u32..0xFFFF_0000, 0_u32..0xFFFF_0000)
            .prop_map(|(page, number)| AttributeId::new(page, number));
        proptest::collection::vec((id, proptest::collection::vec(any::<u8>(), 0..40)), 0..12)
    }

    proptest! {
        #[test]
        fn set_lists_read_back(values in any_values(), osd2 in any::<bool>()) {
            let generation = if osd2 { Osd2 } else { Osd1 };
            let wire = encode_set(generation, values.iter().map(|(id, value)| (*id, &value[..])));
            let back: Vec<_> = Values::parse_set(generation, &wire).unwrap().iter().map(|(id, value)| (id, value.to_vec())).collect();
            prop_assert_eq!(back, values);
        }

        /// T12: with any allocation length, the header has the full length and only complete
        /// entries are returned.
        #[test]
        fn truncation_keeps_full_lengths(values in any_values(), osd2 in any::<bool>(), allocation in 0_usize..600) {
            let generation = if osd2 { Osd2 } else { Osd1 };
            let write = |allocation| {
                let mut out = std::vec![0xEE; 3];
                let mut writer = RetrievedWriter::new(generation, &mut out, allocation);
                for (id, value) in &values {
                    writer.push(*id, value);
                }
                let full = writer.finish();
                (out.split_off(3), full)
            };
            let (whole, full) = write(usize::MAX);
            prop_assert_eq!(whole.len() as u64, full);
            let (cut, reported) = write(allocation);
            prop_assert_eq!(reported, full);
            prop_assert_eq!(&cut[..], &whole[..whole.len().min(allocation)]);
            if let Ok(list) = Values::parse_retrieved(generation, &cut) {
                prop_assert_eq!(list.full_len(), full);
                prop_assert!(list.iter().zip(&values).all(|((id, value), (want, bytes))| id == *want && value == &bytes[..]));
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(kind in 0_u8..16, mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            for generation in [Osd1, Osd2] {
                let _ = GetNames::parse(generation, &bytes).map(|names| names.iter().count());
                let _ = Values::parse_set(generation, &bytes).map(|values| values.iter().count());
                let _ = Values::parse_retrieved(generation, &bytes).map(|values| values.iter().count());
            }
            let _ = ObjectValues::parse(&bytes).map(|objects| objects.map(|one| one.values.iter().count()).sum::<usize>());
            let _ = ObjectValuesOsd1::parse(&bytes).map(Iterator::count);
        }
    }
}
