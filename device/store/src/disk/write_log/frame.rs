//! Encoding of the write log: its header, its records, and the changes in a record.
//!
//! Does: encodes and parses; parsing stops at a torn, stale or foreign record.
//! Does not: read files, or know what a change means.
//! Source of truth: docs/design/store.md, "Write log".

use std::ops::Range;

use sealstone_osd::ObjectId;

use crate::disk::chunk::ChunkPatch;
use crate::disk::record::{CorruptRecord, Key, RecordTag, RecordValue, object_of};

/// First bytes of the header.
const MAGIC: &[u8; 8] = b"SEALWLOG";
/// Version of header and records.
const VERSION: u32 = 1;
/// Length of the header in bytes: one sector, so that a write of it is not torn.
pub(super) const HEADER: usize = 512;
/// First bytes of a record.
const RECORD_MAGIC: [u8; 4] = *b"SLOG";
/// Length of a record before its changes, in bytes.
pub(super) const RECORD_HEADER: usize = 48;
/// Offset in a record at which the part covered by its checksum begins.
const CHECKED_FROM: usize = 8;
/// Length of a step before its changes, in bytes.
const STEP_HEADER: usize = 12;
/// Length of a key in bytes.
const KEY: usize = size_of::<Key>();

/// Kinds of changes: the key has no value any more,
const REMOVE: u8 = 0;
/// it has this value,
const PUT: u8 = 1;
/// its chunk changes as in the patch,
const PATCH: u8 = 2;
/// or a chunk of holes changes as in the patch.
const PATCH_HOLES: u8 = 3;

/// Contents of the log header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogHeader {
    /// Whether the store was closed, with all of its changes committed.
    pub(crate) is_closed: bool,
    /// The store's uuid.
    pub(crate) uuid: [u8; 16],
    /// Boot id of the kernel whose memory holds the data that is not durable; zeros if unknown.
    pub(crate) boot: [u8; 16],
    /// Random number of this opening of the store.
    pub(crate) opening: u64,
}

impl LogHeader {
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(MAGIC);
        put(&VERSION.to_le_bytes());
        put(&u32::from(self.is_closed).to_le_bytes());
        put(&self.uuid);
        put(&self.boot);
        put(&self.opening.to_le_bytes());
        let sum = crate::crc::crc32c(&bytes[..HEADER - 4]);
        bytes[HEADER - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8; HEADER]) -> Option<Self> {
        let sum = u32::from_le_bytes(*bytes.last_chunk()?);
        let mut rest = ByteReader(bytes.strip_prefix(MAGIC)?);
        if sum != crate::crc::crc32c(&bytes[..HEADER - 4]) || rest.u32().ok()? != VERSION {
            return None;
        }
        let is_closed = rest.u32().ok()? == 1;
        let uuid = rest.array().ok()?;
        let boot = rest.array().ok()?;
        Some(Self { is_closed, uuid, boot, opening: rest.u64().ok()? })
    }
}

/// The group that precedes a record's group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PreviousGroup {
    /// Its number.
    pub(crate) group: u64,
    /// Number of its records in the log; [`PreviousGroup::INCOMPLETE`] if some of its changes have
    /// none.
    pub(crate) records: u32,
}

impl PreviousGroup {
    /// Not all changes of the group are in the log.
    pub(crate) const INCOMPLETE: u32 = u32::MAX;
}

/// Header of a record, before its changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) group: u64,
    pub(super) opening: u64,
    /// The record's number within its group.
    pub(super) number: u32,
    pub(super) previous: PreviousGroup,
}

impl RecordHeader {
    /// Writes the header of a record into `out`, which has space for it before the changes.
    pub(super) fn fill(&self, out: &mut [u8]) {
        let length = (out.len() - RECORD_HEADER) as u32;
        let mut at = 0;
        let mut put = |field: &[u8]| {
            out[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&RECORD_MAGIC);
        put(&[0; 4]);
        put(&length.to_le_bytes());
        put(&self.number.to_le_bytes());
        put(&self.group.to_le_bytes());
        put(&self.opening.to_le_bytes());
        put(&self.previous.group.to_le_bytes());
        put(&self.previous.records.to_le_bytes());
        put(&[0; 4]);
        let sum = crate::crc::crc32c(&out[CHECKED_FROM..]);
        out[4..CHECKED_FROM].copy_from_slice(&sum.to_le_bytes());
    }

    /// Returns the length of the record at the start of `bytes`, including its header; `None` if
    /// there is none.
    fn length(bytes: &[u8]) -> Option<usize> {
        let mut rest = ByteReader(bytes.strip_prefix(&RECORD_MAGIC)?);
        rest.u32().ok()?;
        RECORD_HEADER.checked_add(rest.u32().ok()? as usize)
    }

    /// Parses the record at the start of `bytes`, if it is complete: its header, and its length
    /// including the header.
    fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let end = Self::length(bytes)?;
        let checked = bytes.get(CHECKED_FROM..end)?;
        let mut rest = ByteReader(&bytes[4..]);
        let (sum, _) = (rest.u32().ok()?, rest.u32().ok()?);
        let (number, group, opening) = (rest.u32().ok()?, rest.u64().ok()?, rest.u64().ok()?);
        let previous = PreviousGroup { group: rest.u64().ok()?, records: rest.u32().ok()? };
        (sum == crate::crc::crc32c(checked)).then_some((Self { group, opening, number, previous }, end))
    }
}

/// The complete records of one group.
#[derive(Debug)]
pub(crate) struct LoggedGroup {
    pub(crate) number: u64,
    pub(crate) opening: u64,
    pub(crate) previous: PreviousGroup,
    bytes: Vec<u8>,
    records: Vec<Range<usize>>,
}

impl LoggedGroup {
    /// Reads the group at the start of one half of the log, if there is any. `read_to` appends
    /// bytes of the half until there are this many, or to its end; no more are requested than there
    /// are records.
    pub(crate) fn read<E>(
        mut read_to: impl FnMut(&mut Vec<u8>, usize) -> Result<(), E>,
    ) -> Result<Option<Self>, E> {
        let mut bytes = Vec::new();
        let mut first: Option<RecordHeader> = None;
        let mut records = Vec::new();
        let mut at: usize = 0;
        loop {
            read_to(&mut bytes, at.saturating_add(RECORD_HEADER))?;
            let Some(length) = bytes.get(at..).and_then(RecordHeader::length) else { break };
            read_to(&mut bytes, at.saturating_add(length))?;
            let Some((header, length)) = RecordHeader::parse(&bytes[at..]) else { break };
            let expected = RecordHeader { number: records.len() as u32, ..first.unwrap_or(header) };
            if header != expected {
                break;
            }
            first = Some(header);
            records.push(at + RECORD_HEADER..at + length);
            at += length;
        }
        Ok(first.map(|first| Self {
            number: first.group,
            opening: first.opening,
            previous: first.previous,
            bytes,
            records,
        }))
    }

    /// Like [`read`](Self::read), for bytes in memory.
    #[cfg(test)]
    fn parse(all: &[u8]) -> Option<Self> {
        let read = |bytes: &mut Vec<u8>, wanted: usize| {
            bytes.extend_from_slice(&all[bytes.len()..wanted.clamp(bytes.len(), all.len())]);
            Ok::<_, std::convert::Infallible>(())
        };
        match Self::read(read) {
            Ok(group) => group,
            Err(never) => match never {},
        }
    }

    /// Returns the encoded changes of each record.
    pub(crate) fn records(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.records.iter().map(|range| &self.bytes[range.clone()])
    }
}

/// One change of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoggedChange<'a> {
    pub(crate) key: Key,
    pub(crate) to: NewValue<'a>,
}

/// The value of a key after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewValue<'a> {
    /// No value.
    Nothing,
    /// This encoded value.
    Value(&'a [u8]),
    /// The chunk that results from applying a patch to the previous one, or to holes.
    Patched { is_based: bool, patch: &'a [u8] },
}

/// Changes that are applied together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoggedStep<'a> {
    /// Steps are replayed in the order of their stamps, not of their records.
    pub(crate) stamp: u64,
    pub(crate) changes: Vec<LoggedChange<'a>>,
}

/// An encoded step, and the objects that it changes.
#[derive(Default)]
pub(crate) struct EncodedStep {
    pub(crate) bytes: Vec<u8>,
    pub(crate) objects: Vec<ObjectId>,
}

impl EncodedStep {
    /// Encodes the changes of one step; a patch for a key replaces the last change of that key.
    pub(crate) fn encode(&mut self, changes: &[(Key, Option<RecordValue>)], patches: &[(Key, ChunkPatch)]) {
        self.bytes.clear();
        self.objects.clear();
        self.bytes.resize(STEP_HEADER, 0);
        for (number, (key, value)) in changes.iter().enumerate() {
            let patch = match value {
                Some(RecordValue::Chunk(_)) | None => patches.iter().find(|(patched, _)| patched == key),
                _ => None,
            };
            if patch.is_some() && changes[number + 1..].iter().any(|(later, _)| later == key) {
                continue;
            }
            let start = self.bytes.len();
            self.bytes.push(REMOVE);
            self.bytes.extend_from_slice(key);
            match (value, patch) {
                (None, _) => {}
                (Some(_), Some((_, patch))) => {
                    self.bytes[start] = if patch.is_based { PATCH } else { PATCH_HOLES };
                    self.put(&patch.bytes);
                }
                (Some(value), None) => {
                    self.bytes[start] = PUT;
                    self.put(&value.encode(key));
                }
            }
            let is_shared = [RecordTag::Store as u8, RecordTag::Inline as u8].contains(&key[0]);
            let object = object_of(key);
            if !is_shared && !self.objects.contains(&object) {
                self.objects.push(object);
            }
        }
        let length = (self.bytes.len() - STEP_HEADER) as u32;
        self.bytes[8..STEP_HEADER].copy_from_slice(&length.to_le_bytes());
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(bytes);
    }

    /// Sets the step's position among all steps.
    pub(crate) fn stamp(&mut self, stamp: u64) {
        self.bytes[..8].copy_from_slice(&stamp.to_le_bytes());
    }
}

/// Parses the steps of a record.
pub(crate) fn parse_steps(record: &[u8]) -> Result<Vec<LoggedStep<'_>>, CorruptRecord> {
    let mut rest = ByteReader(record);
    let mut steps = Vec::new();
    while !rest.0.is_empty() {
        let stamp = rest.u64()?;
        let length = rest.u32()? as usize;
        let mut inner = ByteReader(rest.take(length)?);
        let mut changes = Vec::new();
        while !inner.0.is_empty() {
            let [kind] = inner.array()?;
            let key = inner.array::<KEY>()?;
            let to = match kind {
                REMOVE => NewValue::Nothing,
                PUT => NewValue::Value(inner.counted()?),
                PATCH | PATCH_HOLES => NewValue::Patched { is_based: kind == PATCH, patch: inner.counted()? },
                _ => return Err(CorruptRecord),
            };
            changes.push(LoggedChange { key, to });
        }
        steps.push(LoggedStep { stamp, changes });
    }
    Ok(steps)
}

/// Bytes that are parsed front to back.
struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], CorruptRecord> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(CorruptRecord)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CorruptRecord> {
        self.take(N)?.try_into().map_err(|_| CorruptRecord)
    }

    fn u32(&mut self) -> Result<u32, CorruptRecord> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, CorruptRecord> {
        self.array().map(u64::from_le_bytes)
    }

    fn counted(&mut self) -> Result<&'a [u8], CorruptRecord> {
        let length = self.u32()? as usize;
        self.take(length)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use sealstone_osd::AttributeId;

    use super::*;
    use crate::disk::record::attribute_key;

    const FIRST: RecordHeader = RecordHeader {
        group: 7,
        opening: 0x0123_4567_89AB_CDEF,
        number: 0,
        previous: PreviousGroup { group: 6, records: 3 },
    };

    /// Encodes records with these steps, one after the other; returns the offset of each.
    fn encode(records: &[Vec<(u64, Vec<u8>)>]) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        for (number, record) in records.iter().enumerate() {
            let mut one = vec![0; RECORD_HEADER];
            for (stamp, value) in record {
                let key = attribute_key(ObjectId::new(1, *stamp), AttributeId { page: 1, number: 2 });
                let value = (!value.is_empty()).then(|| RecordValue::Attribute(Arc::from(&value[..])));
                let mut step = EncodedStep::default();
                step.encode(&[(key, value)], &[]);
                step.stamp(*stamp);
                one.extend_from_slice(&step.bytes);
            }
            RecordHeader { number: number as u32, ..FIRST }.fill(&mut one);
            starts.push(bytes.len());
            bytes.extend(one);
        }
        (bytes, starts)
    }

    proptest! {
        /// After any change of a byte, the records before it are found, and only records that were
        /// written.
        #[test]
        fn damage_ends_the_records(
            records in proptest::collection::vec(
                proptest::collection::vec((any::<u64>(), proptest::collection::vec(any::<u8>(), 0..40)), 1..4), 1..6,
            ),
            at in any::<prop::sample::Index>(),
            bits: u8,
        ) {
            let (sound, starts) = encode(&records);
            let mut bytes = sound.clone();
            let at = at.index(bytes.len());
            bytes[at] ^= bits;
            bytes.resize(bytes.len() + 100, 0);
            let whole = match bits {
                0 => records.len(),
                _ => starts.iter().filter(|start| **start <= at).count() - 1,
            };
            let found = LoggedGroup::parse(&bytes);
            prop_assert_eq!(found.as_ref().map_or(0, |group| group.records().len()), whole);
            let Some(group) = found else { return Ok(()) };
            prop_assert_eq!((group.number, group.opening, group.previous), (7, FIRST.opening, FIRST.previous));
            for (record, expected) in group.records().zip(&records) {
                let steps = parse_steps(record).unwrap();
                let stamps: Vec<u64> = steps.iter().map(|step| step.stamp).collect();
                prop_assert_eq!(stamps, expected.iter().map(|(stamp, _)| *stamp).collect::<Vec<_>>());
                for (step, (_, value)) in steps.iter().zip(expected) {
                    let [LoggedChange { key, to }] = step.changes[..] else { panic!("one change each") };
                    match to {
                        NewValue::Nothing => prop_assert!(value.is_empty()),
                        NewValue::Value(bytes) => {
                            let value = RecordValue::Attribute(Arc::from(&value[..]));
                            prop_assert_eq!(RecordValue::parse(&key, bytes), Ok(value));
                        }
                        NewValue::Patched { .. } => panic!("no patch was written"),
                    }
                }
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = parse_steps(&bytes);
            let _ = LoggedGroup::parse(&bytes);
            let mut record = vec![0; RECORD_HEADER];
            record.extend(bytes);
            FIRST.fill(&mut record);
            let group = LoggedGroup::parse(&record).unwrap();
            group.records().for_each(|record| drop(parse_steps(record)));
        }

        #[test]
        fn headers_round_trip_and_damage_is_seen(uuid: [u8; 16], boot: [u8; 16], opening: u64, is_closed: bool, bit in 0..HEADER * 8) {
            let header = LogHeader { is_closed, uuid, boot, opening };
            let mut bytes = header.encode();
            prop_assert_eq!(LogHeader::parse(&bytes), Some(header));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(LogHeader::parse(&bytes), None);
        }
    }

    #[test]
    fn patch_replaces_last_change_of_its_key() {
        let key = crate::disk::record::chunk_key(ObjectId::new(1, 2), 3);
        let patch = ChunkPatch { is_based: true, bytes: vec![1, 2, 3] };
        let chunk = || Some(RecordValue::Chunk(Arc::default()));
        let mut step = EncodedStep::default();
        step.encode(&[(key, None), (key, chunk())], &[(key, patch)]);
        let steps = parse_steps(&step.bytes).unwrap();
        let patched = NewValue::Patched { is_based: true, patch: &[1, 2, 3] };
        assert_eq!(steps[0].changes, [LoggedChange { key, to: patched }]);
        assert_eq!(step.objects, [ObjectId::new(1, 2)]);
    }
}
