//! Joins Parquet files of one schema: row groups are copied, pages are not decoded.
//!
//! Does: the client makes one table of those that devices selected.
//! Contract: the parts are untrusted. An offset outside of its part is an error.
//! Source of truth: the Parquet format, `FileMetaData`.

use std::io::{self, Write};

use crate::thrift::{ThriftError, ThriftFields, ThriftReader, ThriftValue, field_of, write_structure};

/// The first and last bytes of a file.
const MAGIC: &[u8; 4] = b"PAR1";
/// Maximum bytes of the footer of a part.
const PART_FOOTER_BYTES_MAX: usize = 8 << 20;
/// Fields of `FileMetaData`.
const SCHEMA: i16 = 2;
const ROWS: i16 = 3;
const ROW_GROUPS: i16 = 4;
/// Fields of `RowGroup`.
const COLUMNS: i16 = 1;
const GROUP_OFFSET: i16 = 5;
const ORDINAL: i16 = 7;
/// Fields of `ColumnChunk`: an offset, and `ColumnMetaData`.
const CHUNK_OFFSET: i16 = 2;
const CHUNK_METADATA: i16 = 3;
/// Fields of `ColumnMetaData` that are offsets: data, index and dictionary pages.
const PAGE_OFFSETS: [i16; 3] = [9, 10, 11];
/// Other fields with offsets, which the function writes in no part: indexes of pages and filters.
const CHUNK_INDEXES: core::ops::RangeInclusive<i16> = 4..=7;
const FILTER_OFFSETS: core::ops::RangeInclusive<i16> = 14..=15;

/// Parts that cannot be joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// A part is not a Parquet file of the function.
    #[error("its selected rows are not a valid Parquet file: {reason}")]
    Malformed {
        /// Number of the part, from 0.
        part: usize,
        /// The violated rule.
        reason: String,
    },
    /// A part has another schema than the first one.
    #[error("its columns differ from those of the first file")]
    Schema {
        /// Number of the part, from 0.
        part: usize,
    },
    /// The destination cannot be written.
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// A part: the bytes of its row groups, and its footer.
struct ParquetPart<'p> {
    body: &'p [u8],
    footer: ThriftFields,
}

impl<'p> ParquetPart<'p> {
    fn parse(bytes: &'p [u8]) -> Result<Self, String> {
        let invalid = || "it has no valid start and end".to_owned();
        let inner =
            bytes.strip_prefix(MAGIC).and_then(|rest| rest.strip_suffix(MAGIC)).ok_or_else(invalid)?;
        let (inner, length) = inner.split_last_chunk().ok_or_else(invalid)?;
        let length = u32::from_le_bytes(*length) as usize;
        if length > PART_FOOTER_BYTES_MAX {
            return Err(format!("its footer has {length} bytes; at most {PART_FOOTER_BYTES_MAX}"));
        }
        let start = inner.len().checked_sub(length).ok_or_else(invalid)?;
        let (body, footer) = inner.split_at(start);
        let mut reader = ThriftReader::new(footer);
        let footer = reader.structure().map_err(|error: ThriftError| format!("footer: {error}"))?;
        Ok(Self { body, footer })
    }
}

/// Adds `shift` to an offset, which must be within the part.
fn shift_offset(value: &mut ThriftValue, shift: i64, body: &[u8]) -> Result<(), String> {
    let start = MAGIC.len() as i64;
    match value {
        ThriftValue::Number(_, offset) if (start..=start + body.len() as i64).contains(offset) => {
            *offset += shift;
            Ok(())
        }
        _ => Err("an offset is outside of it".to_owned()),
    }
}

fn shift_chunk(chunk: &mut ThriftFields, shift: i64, body: &[u8]) -> Result<(), String> {
    for (number, value) in chunk {
        match (*number, &mut *value) {
            (CHUNK_OFFSET, ThriftValue::Number(_, 0)) => {}
            (CHUNK_OFFSET, value) => shift_offset(value, shift, body)?,
            (CHUNK_METADATA, ThriftValue::Struct(fields)) => {
                for (number, value) in fields {
                    if PAGE_OFFSETS.contains(number) {
                        shift_offset(value, shift, body)?;
                    } else if FILTER_OFFSETS.contains(number) {
                        return Err("it has filters".to_owned());
                    }
                }
            }
            (number, _) if CHUNK_INDEXES.contains(&number) => {
                return Err("it has indexes of pages".to_owned());
            }
            _ => return Err("it has unknown fields of columns".to_owned()),
        }
    }
    Ok(())
}

fn shift_group(group: &mut ThriftFields, ordinal: usize, shift: i64, body: &[u8]) -> Result<(), String> {
    // Numbers above 32767 have no form; readers need none.
    group.retain(|(number, _)| *number != ORDINAL || i16::try_from(ordinal).is_ok());
    for (number, value) in group {
        match (*number, &mut *value) {
            (GROUP_OFFSET, value) => shift_offset(value, shift, body)?,
            (ORDINAL, ThriftValue::Number(_, number)) => *number = ordinal as i64,
            (COLUMNS, ThriftValue::List(_, columns)) => {
                for column in columns {
                    match column {
                        ThriftValue::Struct(chunk) => shift_chunk(chunk, shift, body)?,
                        _ => return Err("a column is no structure".to_owned()),
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes one file with the row groups of all parts in their order; returns its length.
///
/// # Errors
/// For a part that is no Parquet file or has other columns, with its number; for failed writes.
pub fn join_parquet(parts: &[Vec<u8>], out: &mut dyn Write) -> Result<u64, JoinError> {
    out.write_all(MAGIC)?;
    let mut written = MAGIC.len() as u64;
    let mut joined: Option<ThriftFields> = None;
    let (mut groups, mut rows): (Vec<ThriftValue>, i64) = (Vec::new(), 0);
    for (number, bytes) in parts.iter().enumerate() {
        let malformed = |reason: String| JoinError::Malformed { part: number, reason };
        let ParquetPart { body, mut footer } = ParquetPart::parse(bytes).map_err(malformed)?;
        if joined.as_ref().is_some_and(|first| field_of(first, SCHEMA) != field_of(&footer, SCHEMA)) {
            return Err(JoinError::Schema { part: number });
        }
        let count = field_of(&footer, ROWS).and_then(ThriftValue::number).filter(|count| *count >= 0);
        let count = count.ok_or_else(|| malformed("it has no number of rows".to_owned()))?;
        rows = rows.saturating_add(count);
        let shift = i64::try_from(written).unwrap_or(i64::MAX) - MAGIC.len() as i64;
        let own = footer.iter_mut().find(|(number, _)| *number == ROW_GROUPS);
        let Some((_, ThriftValue::List(_, own))) = own else {
            return Err(malformed("it has no list of row groups".to_owned()));
        };
        for mut group in own.drain(..) {
            match &mut group {
                ThriftValue::Struct(fields) => {
                    shift_group(fields, groups.len(), shift, body).map_err(malformed)?;
                }
                _ => return Err(malformed("a row group is no structure".to_owned())),
            }
            groups.push(group);
        }
        out.write_all(body)?;
        written += body.len() as u64;
        joined.get_or_insert(footer);
    }
    let mut footer = joined.unwrap_or_default();
    for (number, value) in &mut footer {
        match (*number, value) {
            (ROWS, ThriftValue::Number(_, count)) => *count = rows,
            (ROW_GROUPS, ThriftValue::List(_, all)) => *all = std::mem::take(&mut groups),
            _ => {}
        }
    }
    let mut bytes = Vec::new();
    write_structure(&footer, &mut bytes);
    let length = u32::try_from(bytes.len()).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(MAGIC);
    out.write_all(&bytes)?;
    Ok(written + bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const I32: u8 = 5;
    const I64: u8 = 6;

    /// Returns a file with these bytes as the only column chunk.
    fn part(schema: &[u8], body: &[u8], offset: i64) -> Vec<u8> {
        let column = vec![
            (CHUNK_OFFSET, ThriftValue::Number(I64, 0)),
            (CHUNK_METADATA, ThriftValue::Struct(vec![(9, ThriftValue::Number(I64, offset))])),
        ];
        let group = vec![
            (COLUMNS, ThriftValue::List(12, vec![ThriftValue::Struct(column)])),
            (3, ThriftValue::Number(I64, 5)),
            (ORDINAL, ThriftValue::Number(4, 0)),
        ];
        let footer = vec![
            (1, ThriftValue::Number(I32, 2)),
            (SCHEMA, ThriftValue::Binary(schema.to_vec())),
            (ROWS, ThriftValue::Number(I64, 5)),
            (ROW_GROUPS, ThriftValue::List(12, vec![ThriftValue::Struct(group)])),
        ];
        let mut bytes = [&MAGIC[..], body].concat();
        let start = bytes.len();
        write_structure(&footer, &mut bytes);
        let length = (bytes.len() - start) as u32;
        [&bytes[..], &length.to_le_bytes(), MAGIC].concat()
    }

    fn join(parts: &[Vec<u8>]) -> Result<Vec<u8>, JoinError> {
        let mut out = Vec::new();
        let length = join_parquet(parts, &mut out)?;
        assert_eq!(length, out.len() as u64);
        Ok(out)
    }

    #[test]
    fn offsets_and_rows_are_those_of_joined_file() {
        let joined = join(&[part(b"s", b"aaaa", 5), part(b"s", b"bb", 4)]).unwrap();
        let found = ParquetPart::parse(&joined).unwrap();
        assert_eq!(found.body, b"aaaabb");
        assert_eq!(field_of(&found.footer, ROWS).unwrap().number(), Some(10));
        let Some(ThriftValue::List(_, groups)) = field_of(&found.footer, ROW_GROUPS) else {
            panic!("groups")
        };
        let offset = |group: &ThriftValue| -> Option<i64> {
            let Some(ThriftValue::List(_, columns)) = field_of(group.fields()?, COLUMNS) else { return None };
            let chunk = field_of(columns[0].fields()?, CHUNK_METADATA)?;
            field_of(chunk.fields()?, 9)?.number()
        };
        assert_eq!(groups.iter().map(offset).collect::<Vec<_>>(), [Some(5), Some(8)]);
        let ordinal = |group: &ThriftValue| field_of(group.fields()?, ORDINAL)?.number();
        assert_eq!(groups.iter().map(ordinal).collect::<Vec<_>>(), [Some(0), Some(1)]);
    }

    #[test]
    fn part_without_row_groups_is_refused() {
        let mut bytes = MAGIC.to_vec();
        let footer = vec![(SCHEMA, ThriftValue::Binary(b"s".to_vec())), (ROWS, ThriftValue::Number(I64, 5))];
        write_structure(&footer, &mut bytes);
        let length = (bytes.len() - MAGIC.len()) as u32;
        let bad = [&bytes[..], &length.to_le_bytes(), MAGIC].concat();
        for parts in [[bad.clone(), part(b"s", b"a", 4)], [part(b"s", b"a", 4), bad]] {
            let error = join(&parts).unwrap_err();
            assert!(error.to_string().contains("it has no list of row groups"), "{error}");
        }
    }

    #[test]
    fn foreign_parts_are_refused() {
        let good = part(b"s", b"aaaa", 4);
        let error = join(&[good.clone(), part(b"t", b"a", 4)]).unwrap_err();
        assert!(matches!(error, JoinError::Schema { part: 1 }), "{error}");
        for bad in
            [part(b"s", b"aaaa", 9), part(b"s", b"aaaa", 0), good[1..].to_vec(), vec![], b"PAR1PAR1".to_vec()]
        {
            let error = join(&[good.clone(), bad]).unwrap_err();
            assert!(matches!(error, JoinError::Malformed { part: 1, .. }), "{error}");
        }
    }

    proptest! {
        #[test]
        fn damaged_parts_never_panic(at: proptest::sample::Index, byte: u8) {
            let mut bad = part(b"schema", b"some bytes", 6);
            let at = at.index(bad.len());
            bad[at] = byte;
            let _ = join(&[part(b"schema", b"a", 4), bad]);
        }
    }
}
