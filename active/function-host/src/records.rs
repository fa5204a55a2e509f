//! Whole records of striped files: no record is lost or seen twice at the edge of a stripe unit.
//!
//! Does: cut the records out of one unit ([`scan_unit`]), and join the fragments at the edges of
//! all units ([`StripeJoiner`]).
//! Does not: read another device. A function sees only the units of its own object. It processes
//! the records that lie within a unit, and returns the bytes before the first and after the last
//! of them. The client joins the end of a unit with the start of the next one, and processes these
//! few records itself.
//! Source of truth: docs/reference/shipped-functions.md, striped files.

use alloc::vec::Vec;

use crate::{CHUNK_BYTES, FunctionCall, FunctionErrno, FunctionFailure, StripeUnit};

/// Maximum length of a record within a unit, bytes.
pub const RECORD_BYTES_MAX: usize = 8 << 20;
/// Maximum length of a fragment at the edge of a unit, bytes. It is part of the result.
pub const FRAGMENT_BYTES_MAX: usize = 1 << 20;

/// Form of the records of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFormat {
    /// Lines that end with a line feed; the last one may lack it.
    Lines,
    /// Records of a fixed number of bytes; the last one may be shorter.
    Fixed(u32),
}

impl RecordFormat {
    /// Returns the position in `bytes` after the end of the first record that ends there.
    fn first_end(self, bytes: &[u8], file_offset: u64) -> Option<usize> {
        match self {
            Self::Lines => memchr::memchr(b'\n', bytes).map(|position| position + 1),
            Self::Fixed(size) => {
                let size = u64::from(size.max(1));
                let end = (size - file_offset % size) as usize;
                (end <= bytes.len()).then_some(end)
            }
        }
    }

    /// Returns the position in `bytes` after the end of the last record that ends there.
    fn last_end(self, bytes: &[u8], file_offset: u64) -> Option<usize> {
        match self {
            Self::Lines => memchr::memrchr(b'\n', bytes).map(|position| position + 1),
            Self::Fixed(size) => {
                let excess = ((file_offset + bytes.len() as u64) % u64::from(size.max(1))) as usize;
                bytes.len().checked_sub(excess).filter(|end| *end > 0)
            }
        }
    }

    /// Whether a record begins at this offset, whatever is before it.
    const fn is_start(self, file_offset: u64) -> bool {
        match self {
            Self::Lines => file_offset == 0,
            Self::Fixed(0) => true,
            Self::Fixed(size) => file_offset.is_multiple_of(size as u64),
        }
    }

    /// Returns the number of records that end within these bytes.
    fn count_ends(self, bytes: &[u8], file_offset: u64) -> u64 {
        match self {
            Self::Lines => memchr::memchr_iter(b'\n', bytes).count() as u64,
            Self::Fixed(size) => {
                let size = u64::from(size.max(1));
                (file_offset + bytes.len() as u64) / size - file_offset / size
            }
        }
    }
}

/// Complete records that follow each other in a file.
#[derive(Clone, Copy, Debug)]
pub struct RecordBlock<'b> {
    /// Offset of the first byte in the file.
    pub file_offset: u64,
    /// Number of records that end within the unit before this block.
    pub ends_before: u64,
    /// The records. Only the last record of the file may lack its end.
    pub bytes: &'b [u8],
}

/// Receiver of the records of a unit.
pub trait RecordSink {
    /// Processes a block of records.
    fn records(&mut self, call: &mut FunctionCall<'_>, block: RecordBlock<'_>)
    -> Result<(), FunctionFailure>;
}

/// Bytes at the edges of a unit that belong to records of two units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EdgeFragments {
    /// Number of the unit in the file.
    pub unit: u64,
    /// Number of records that end within the unit, also within the head.
    pub ends: u64,
    /// Bytes up to the end of the record that began in an earlier unit.
    pub head: Vec<u8>,
    /// Bytes of the record that ends in a later unit. Empty if `is_open`.
    pub tail: Vec<u8>,
    /// Whether no record ends within the unit: `head` is the whole unit.
    pub is_open: bool,
}

/// Reads one unit of an object, passes its records to the sink and returns its edges.
pub fn scan_unit(
    call: &mut FunctionCall<'_>,
    object: u32,
    unit: StripeUnit,
    format: RecordFormat,
    sink: &mut dyn RecordSink,
) -> Result<EdgeFragments, FunctionFailure> {
    let mut edges = EdgeFragments { unit: unit.number, ..EdgeFragments::default() };
    let mut in_head = !format.is_start(unit.file_offset);
    let mut buffer: Vec<u8> = Vec::new();
    // `buffer` holds the bytes of the file from `start` that are not processed yet.
    let mut start = unit.file_offset;
    let mut position = 0;
    call.read_ahead(object, unit.object_offset, unit.length);
    while position < unit.length {
        let count = (unit.length - position).min(CHUNK_BYTES as u64) as usize;
        let kept = buffer.len();
        buffer.resize(kept + count, 0);
        call.read_zero_filled(object, unit.object_offset + position, &mut buffer[kept..])?;
        position += count as u64;
        if in_head {
            // Only the new bytes can contain the end.
            if let Some(end) = format.first_end(&buffer[kept..], start + kept as u64) {
                edges.head.extend_from_slice(&buffer[..kept + end]);
                edges.ends = 1;
                start += (kept + end) as u64;
                buffer.drain(..kept + end);
                in_head = false;
            }
        }
        if !in_head && let Some(end) = format.last_end(&buffer, start) {
            let bytes = &buffer[..end];
            sink.records(call, RecordBlock { file_offset: start, ends_before: edges.ends, bytes })?;
            edges.ends += format.count_ends(bytes, start);
            start += end as u64;
            buffer.drain(..end);
        }
        let limit = if in_head { FRAGMENT_BYTES_MAX } else { RECORD_BYTES_MAX };
        check_length(buffer.len(), limit, start)?;
    }
    if in_head {
        edges.is_open = true;
        edges.head = buffer;
    } else if unit.is_last {
        if !buffer.is_empty() {
            let block = RecordBlock { file_offset: start, ends_before: edges.ends, bytes: &buffer };
            sink.records(call, block)?;
        }
    } else {
        edges.tail = buffer;
    }
    check_length(edges.head.len().max(edges.tail.len()), FRAGMENT_BYTES_MAX, start)?;
    Ok(edges)
}

fn check_length(length: usize, limit: usize, offset: u64) -> Result<(), FunctionFailure> {
    if length <= limit {
        return Ok(());
    }
    let message = alloc::format!("record near offset {offset} is longer than {limit} bytes");
    Err(FunctionFailure::new(FunctionErrno::TOO_LARGE, message))
}

/// A record that lies in several units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedRecord {
    /// Offset of the record in the file, bytes.
    pub file_offset: u64,
    /// Number of records of the file that end before this one.
    pub ends_before: u64,
    /// The record with its end, if it has one.
    pub bytes: Vec<u8>,
}

/// Joins the edges of all units of a file, in their order.
#[derive(Clone, Debug, Default)]
pub struct StripeJoiner {
    next_unit: u64,
    pending: Vec<u8>,
    pending_offset: u64,
    ends: u64,
}

impl StripeJoiner {
    /// Returns a joiner at the start of a file.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of records that end before the unit that is added next.
    #[must_use]
    pub const fn ends_before(&self) -> u64 {
        self.ends
    }

    /// Adds the edges of the next unit; returns the record that ends at its start. Fails if the
    /// unit is not the next one, or a record is too long.
    pub fn add(
        &mut self,
        edges: EdgeFragments,
        unit: StripeUnit,
    ) -> Result<Option<JoinedRecord>, FunctionFailure> {
        if edges.unit != unit.number || unit.number != self.next_unit {
            let message = alloc::format!("edges of unit {} follow unit {}", edges.unit, self.next_unit);
            return Err(FunctionFailure::new(FunctionErrno::BAD_DATA, message));
        }
        let known = edges.head.len() as u64 + edges.tail.len() as u64;
        if known > unit.length || (edges.is_open && (known != unit.length || !edges.tail.is_empty())) {
            let message = alloc::format!("edges of unit {} do not fit its length", edges.unit);
            return Err(FunctionFailure::new(FunctionErrno::BAD_DATA, message));
        }
        self.next_unit += 1;
        check_length(self.pending.len() + edges.head.len(), RECORD_BYTES_MAX, self.pending_offset)?;
        if self.pending.is_empty() {
            self.pending_offset = unit.file_offset;
        }
        self.pending.extend_from_slice(&edges.head);
        if edges.is_open {
            return Ok(None);
        }
        let bytes = core::mem::replace(&mut self.pending, edges.tail);
        let record = (!bytes.is_empty()).then_some(JoinedRecord {
            file_offset: self.pending_offset,
            ends_before: self.ends,
            bytes,
        });
        self.pending_offset = unit.file_offset + unit.length - self.pending.len() as u64;
        self.ends = self.ends.saturating_add(edges.ends);
        Ok(record)
    }

    /// Returns the last record of the file, if no unit contained it completely.
    #[must_use]
    pub fn finish(self) -> Option<JoinedRecord> {
        let Self { pending: bytes, pending_offset: file_offset, ends: ends_before, .. } = self;
        (!bytes.is_empty()).then_some(JoinedRecord { file_offset, ends_before, bytes })
    }

    /// Returns the number of units that were added.
    #[must_use]
    pub const fn unit_count(&self) -> u64 {
        self.next_unit
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;
    use crate::{MemoryHost, StripeGeometry};

    impl RecordSink for Vec<(u64, u64, Vec<u8>)> {
        fn records(
            &mut self,
            _: &mut FunctionCall<'_>,
            block: RecordBlock<'_>,
        ) -> Result<(), FunctionFailure> {
            self.push((block.file_offset, block.ends_before, block.bytes.to_vec()));
            Ok(())
        }
    }

    /// Distributes a file over `width` objects, as the client stores it.
    fn distribute(file: &[u8], unit: usize, width: usize) -> Vec<Vec<u8>> {
        let mut objects = vec![Vec::new(); width];
        for (number, part) in file.chunks(unit).enumerate() {
            objects[number % width].extend_from_slice(part);
        }
        objects
    }

    /// Splits blocks into records with their numbers.
    fn split(
        format: RecordFormat,
        offset: u64,
        ends: u64,
        bytes: &[u8],
        out: &mut BTreeMap<u64, (u64, Vec<u8>)>,
    ) {
        let (mut start, mut ends) = (0, ends);
        while start < bytes.len() {
            let rest = &bytes[start..];
            let end = format.first_end(rest, offset + start as u64).unwrap_or(rest.len());
            let previous = out.insert(offset + start as u64, (ends, rest[..end].to_vec()));
            assert_eq!(previous, None, "a record was seen twice");
            start += end;
            ends += 1;
        }
    }

    /// Scans each object by itself and joins the edges.
    fn scan_striped(
        file: &[u8],
        unit: usize,
        width: usize,
        format: RecordFormat,
    ) -> BTreeMap<u64, (u64, Vec<u8>)> {
        let mut host = MemoryHost::new(distribute(file, unit, width));
        let mut edges = Vec::new();
        let mut blocks = Vec::new();
        FunctionCall::new(&mut host, "", b"", width as u32)
            .run(|call| {
                for object in 0..width as u32 {
                    let geometry =
                        StripeGeometry::new(unit as u64, width as u64, u64::from(object), file.len() as u64)
                            .unwrap();
                    for part in geometry.units() {
                        let mut sink: Vec<(u64, u64, Vec<u8>)> = Vec::new();
                        edges.push((part, scan_unit(call, object, part, format, &mut sink)?));
                        blocks.push((part.number, sink));
                    }
                }
                Ok(())
            })
            .unwrap();
        edges.sort_by_key(|(part, _)| part.number);
        let mut records = BTreeMap::new();
        let mut joiner = StripeJoiner::new();
        for (part, fragments) in edges {
            let before = joiner.ends_before();
            for (_, sink) in blocks.iter().filter(|(number, _)| *number == part.number) {
                for (offset, ends, bytes) in sink {
                    split(format, *offset, before + ends, bytes, &mut records);
                }
            }
            if let Some(joined) = joiner.add(fragments, part).unwrap() {
                split(format, joined.file_offset, joined.ends_before, &joined.bytes, &mut records);
            }
        }
        if let Some(joined) = joiner.finish() {
            split(format, joined.file_offset, joined.ends_before, &joined.bytes, &mut records);
        }
        records
    }

    fn any_format() -> impl Strategy<Value = RecordFormat> {
        prop_oneof![Just(RecordFormat::Lines), (1u32..9).prop_map(RecordFormat::Fixed)]
    }

    proptest! {
        #[test]
        fn striped_records_equal_records_of_file(
            file in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'a'), any::<u8>()], 0..300),
            unit in 1usize..40,
            width in 1usize..5,
            format in any_format(),
        ) {
            let mut expected = BTreeMap::new();
            split(format, 0, 0, &file, &mut expected);
            prop_assert_eq!(scan_striped(&file, unit, width, format), expected);
        }
    }

    #[test]
    fn record_of_many_units_is_joined() {
        let mut file = vec![b'x'; 100];
        file.push(b'\n');
        file.extend_from_slice(b"end");
        let records = scan_striped(&file, 7, 3, RecordFormat::Lines);
        assert_eq!(records.len(), 2);
        assert_eq!(records[&101], (1, b"end".to_vec()));
    }

    #[test]
    fn record_over_limit_is_refused() {
        let size = RECORD_BYTES_MAX + CHUNK_BYTES + 1;
        let mut host = MemoryHost::new(vec![vec![b'x'; size]]);
        let unit = StripeGeometry::whole(size as u64).units().next().unwrap();
        let failure = FunctionCall::new(&mut host, "", b"", 1)
            .run(|call| scan_unit(call, 0, unit, RecordFormat::Lines, &mut Vec::new()).map(drop))
            .unwrap_err();
        assert_eq!(failure.errno, FunctionErrno::TOO_LARGE);
        assert_eq!(failure.message, "record near offset 0 is longer than 8388608 bytes");
    }

    #[test]
    fn edges_out_of_order_are_refused() {
        let unit = StripeGeometry::new(4, 2, 1, 8).unwrap().units().next().unwrap();
        let edges = EdgeFragments { unit: 1, ..EdgeFragments::default() };
        assert!(StripeJoiner::new().add(edges, unit).is_err());
        let unit = StripeGeometry::new(4, 2, 0, 8).unwrap().units().next().unwrap();
        let edges = EdgeFragments { head: vec![0; 5], ..EdgeFragments::default() };
        assert!(StripeJoiner::new().add(edges, unit).is_err());
    }
}
