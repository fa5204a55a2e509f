//! The footer of a file: its checks before the library decodes it, and after that.

use std::ops::Range;

use parquet::basic::Type as PhysicalType;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader};
use sealstone_function_host::{FunctionCall, FunctionFailure};
use sealstone_functions::thrift::{LIST, STRUCT, ThriftError, ThriftReader};

use super::failure::{bad_data, guarded, too_large};

/// Maximum size of a footer, bytes.
pub const FOOTER_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of row groups of a file.
pub const ROW_GROUPS_MAX: usize = 1 << 15;
/// Maximum number of columns, with those within others.
const COLUMNS_MAX: usize = 1 << 14;
/// Maximum depth of columns within others.
const SCHEMA_DEPTH_MAX: usize = 16;
/// Maximum length of a value of fixed length, bytes.
const FIXED_LENGTH_MAX: i32 = 1 << 16;
/// Maximum number of rows of a row group.
const GROUP_ROWS_MAX: i64 = 1 << 27;
/// Bytes at the end that are read first: most footers are shorter.
const TAIL_BYTES: u64 = 64 << 10;
/// Length of the footer and magic bytes.
const END_BYTES: u64 = 8;
/// Magic bytes at the start.
const START_BYTES: u64 = 4;
/// Numbers of fields: the schema of `FileMetaData`, and the children of `SchemaElement`.
const SCHEMA_FIELD: i16 = 2;
const CHILDREN_FIELD: i16 = 5;

/// Reads and checks the footer of an object.
pub(super) fn read_footer(
    call: &mut FunctionCall<'_>,
    object: u32,
    length: u64,
) -> Result<ParquetMetaData, FunctionFailure> {
    if length < START_BYTES + END_BYTES {
        return Err(bad_data(object, "not a Parquet file: it is too short"));
    }
    let mut tail = vec![0; length.min(TAIL_BYTES) as usize];
    call.read_zero_filled(object, length - tail.len() as u64, &mut tail)?;
    let end = tail.split_off(tail.len() - END_BYTES as usize);
    match &end[4..] {
        b"PAR1" => {}
        b"PARE" => return Err(bad_data(object, "the Parquet file is encrypted")),
        _ => return Err(bad_data(object, "not a Parquet file: it does not end with PAR1")),
    }
    let size = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
    if size > FOOTER_BYTES_MAX {
        return Err(too_large(object, format!("the footer has {size} bytes; at most {FOOTER_BYTES_MAX}")));
    }
    let footer_end = length - END_BYTES;
    if size > footer_end - START_BYTES {
        return Err(bad_data(object, "the footer is longer than the file"));
    }
    let footer = if size <= tail.len() as u64 {
        tail.split_off(tail.len() - size as usize)
    } else {
        let mut footer = vec![0; size as usize];
        call.read_zero_filled(object, footer_end - size, &mut footer)?;
        footer
    };
    check_footer(&footer).map_err(|reason| bad_data(object, format!("footer: {reason}")))?;
    let metadata = guarded((object, &"footer"), || ParquetMetaDataReader::decode_metadata(&footer))?;
    check_metadata(&metadata, footer_end - size).map_err(|reason| bad_data(object, reason))?;
    Ok(metadata)
}

/// Compares the lengths in a footer with its bytes, and the schema with its limits. The library
/// reserves memory by the lengths, and visits the schema by recursion.
fn check_footer(footer: &[u8]) -> Result<(), String> {
    let text = |error: ThriftError| error.to_string();
    let mut reader = ThriftReader::new(footer);
    let mut previous = 0;
    while let Some((number, code)) = reader.field(previous).map_err(text)? {
        match (number, code) {
            (SCHEMA_FIELD, LIST) => check_schema(&mut reader)?,
            _ => reader.skip(code).map_err(text)?,
        }
        previous = number;
    }
    Ok(())
}

fn check_schema(reader: &mut ThriftReader<'_>) -> Result<(), String> {
    let text = |error: ThriftError| error.to_string();
    let (element, count) = reader.list().map_err(text)?;
    if element != STRUCT {
        return Err("its schema is no list of structures".to_owned());
    }
    if count > COLUMNS_MAX {
        return Err(format!("its schema has {count} columns; at most {COLUMNS_MAX}"));
    }
    // Columns that are still expected in each group around the next one.
    let mut open: Vec<i64> = vec![1];
    for _ in 0..count {
        while open.pop_if(|rest| *rest == 0).is_some() {}
        let rest = open.last_mut().ok_or("its schema has columns after its end")?;
        *rest -= 1;
        let (mut children, mut previous) = (0, 0);
        while let Some((number, code)) = reader.field(previous).map_err(text)? {
            match number {
                CHILDREN_FIELD => children = reader.number().map_err(text)?,
                _ => reader.skip(code).map_err(text)?,
            }
            previous = number;
        }
        if children < 0 || children > COLUMNS_MAX as i64 {
            return Err(format!("its schema has a group of {children} columns"));
        }
        if children > 0 {
            open.push(children);
        }
        if open.len() > SCHEMA_DEPTH_MAX + 1 {
            return Err(format!("its schema has more than {SCHEMA_DEPTH_MAX} levels of columns"));
        }
    }
    match open.iter().all(|rest| *rest == 0) {
        true => Ok(()),
        false => Err("its schema lacks columns".to_owned()),
    }
}

fn check_metadata(metadata: &ParquetMetaData, data_end: u64) -> Result<(), String> {
    let columns = metadata.file_metadata().schema_descr().columns();
    for column in columns {
        let is_fixed = column.physical_type() == PhysicalType::FIXED_LEN_BYTE_ARRAY;
        if is_fixed && !(1..=FIXED_LENGTH_MAX).contains(&column.type_length()) {
            let length = column.type_length();
            return Err(format!("column {}: values of {length} bytes", column.path().string()));
        }
    }
    if metadata.num_row_groups() > ROW_GROUPS_MAX {
        return Err(format!("it has {} row groups; at most {ROW_GROUPS_MAX}", metadata.num_row_groups()));
    }
    for (number, group) in metadata.row_groups().iter().enumerate() {
        let rows = group.num_rows();
        if !(0..=GROUP_ROWS_MAX).contains(&rows) {
            return Err(format!("row group {number} has {rows} rows; at most {GROUP_ROWS_MAX}"));
        }
        if group.columns().len() != columns.len() {
            return Err(format!("row group {number} does not have the columns of the schema"));
        }
        for (chunk, column) in group.columns().iter().zip(columns) {
            let path = column.path().string();
            let is_own =
                chunk.file_path().is_none_or(str::is_empty) && chunk.column_type() == column.physical_type();
            let range =
                chunk_range(chunk).filter(|range| range.start >= START_BYTES && range.end <= data_end);
            if !is_own || range.is_none() || chunk.num_values() < 0 {
                return Err(format!("row group {number}, column {path}: its pages are not in the file"));
            }
            if column.max_rep_level() == 0 && chunk.num_values() != rows {
                let values = chunk.num_values();
                return Err(format!("row group {number}, column {path}: {values} values in {rows} rows"));
            }
        }
    }
    Ok(())
}

/// Returns the bytes of a column chunk.
pub(super) fn chunk_range(chunk: &ColumnChunkMetaData) -> Option<Range<u64>> {
    let data = u64::try_from(chunk.data_page_offset()).ok()?;
    // Old writers have 0 where there is no dictionary.
    let dictionary = chunk.dictionary_page_offset().and_then(|offset| u64::try_from(offset).ok());
    let start = dictionary.filter(|offset| *offset > 0 && *offset < data).unwrap_or(data);
    let length = u64::try_from(chunk.compressed_size()).ok()?;
    Some(start..start.checked_add(length)?)
}
