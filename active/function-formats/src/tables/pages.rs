//! Pages of a column chunk: read, checked and decompressed one after the other.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::Result as ParquetResult;
use sealstone_function_host::{FunctionCall, FunctionFailure};
use sealstone_functions::thrift::{ThriftError, ThriftFields, ThriftReader, field_of};

use super::codec::decompress;
use super::failure::{bad_data, too_large};

/// Maximum size of a page, compressed and decompressed, bytes.
pub const PAGE_BYTES_MAX: usize = 64 << 20;
/// Maximum size of the header of a page, bytes.
const HEADER_BYTES_MAX: usize = 1 << 20;
/// Bytes in which a header is looked for first.
const HEADER_BYTES: usize = 256;
/// Bytes of a chunk that are read at once.
const READ_BYTES: usize = 256 << 10;
/// Maximum number of values of a page with repeated values, whose levels are decoded at once.
const REPEATED_VALUES_MAX: u32 = 1 << 21;
/// Types of pages.
const DATA_PAGE: i64 = 0;
const INDEX_PAGE: i64 = 1;
const DICTIONARY_PAGE: i64 = 2;
const DATA_PAGE_V2: i64 = 3;

/// Pages that the library has not taken yet.
#[derive(Default)]
struct QueuedPages {
    pages: VecDeque<Page>,
    is_last: bool,
}

/// The library's end of a queue of pages.
#[derive(Clone, Default)]
pub(super) struct PageQueue(Arc<Mutex<QueuedPages>>);

impl PageQueue {
    /// Adds a page; `is_last` if no other one follows.
    pub(super) fn push(&self, page: Page, is_last: bool) {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue.pages.push_back(page);
        queue.is_last = is_last;
    }

    /// Whether the library has taken all pages.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pages.is_empty()
    }
}

impl Iterator for PageQueue {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for PageQueue {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).pages.pop_front())
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        Ok(None)
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.get_next_page().map(drop)
    }

    fn at_record_boundary(&mut self) -> ParquetResult<bool> {
        // Before the last page, a record ends where the next one begins.
        let queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(queue.is_last && queue.pages.is_empty())
    }
}

/// The bytes of a column chunk, and what is known about them.
pub(super) struct PageSource {
    object: u32,
    /// Row group and column, for errors.
    place: String,
    codec: Compression,
    is_repeated: bool,
    /// Bytes of the chunk that were not read.
    rest: Range<u64>,
    buffer: Vec<u8>,
    /// Position of the next page in the buffer.
    at: usize,
    values_left: u64,
    has_pages: bool,
}

impl PageSource {
    pub(super) fn new(
        (object, place): (u32, String),
        (codec, is_repeated): (Compression, bool),
        chunk: Range<u64>,
        values: u64,
    ) -> Self {
        let (buffer, at, has_pages) = (Vec::new(), 0, false);
        Self { object, place, codec, is_repeated, rest: chunk, buffer, at, values_left: values, has_pages }
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Whether no page follows.
    pub(super) const fn is_at_end(&self) -> bool {
        self.values_left == 0
    }

    fn bad(&self, reason: impl core::fmt::Display) -> FunctionFailure {
        bad_data(self.object, format!("{}: {reason}", self.place))
    }

    /// Reads until the buffer has `count` bytes after the position, or the chunk ends.
    fn fill(&mut self, call: &mut FunctionCall<'_>, count: usize) -> Result<(), FunctionFailure> {
        if self.buffer.len() - self.at >= count {
            return Ok(());
        }
        self.buffer.drain(..self.at);
        self.at = 0;
        let missing = (count - self.buffer.len()).max(READ_BYTES) as u64;
        let length = missing.min(self.rest.end - self.rest.start) as usize;
        let start = self.buffer.len();
        self.buffer.resize(start + length, 0);
        let read = call.read(self.object, self.rest.start, &mut self.buffer[start..])?;
        if read < length {
            return Err(self.bad("the file ends within it"));
        }
        self.rest.start += length as u64;
        Ok(())
    }

    /// Returns the fields of the next header, and moves behind it.
    fn header(&mut self, call: &mut FunctionCall<'_>) -> Result<ThriftFields, FunctionFailure> {
        let mut size = HEADER_BYTES;
        loop {
            self.fill(call, size)?;
            let bytes = &self.buffer[self.at..];
            let mut reader = ThriftReader::new(&bytes[..bytes.len().min(HEADER_BYTES_MAX)]);
            match reader.structure() {
                Ok(fields) => {
                    self.at += reader.position();
                    return Ok(fields);
                }
                // The header may continue after the buffer.
                Err(ThriftError::Truncated) if size < HEADER_BYTES_MAX && self.rest.start < self.rest.end => {
                    size = (bytes.len() * 2).min(HEADER_BYTES_MAX);
                }
                Err(error) => return Err(self.bad(format!("header of a page: {error}"))),
            }
        }
    }

    /// Returns the next page; `None` at the end of the chunk.
    pub(super) fn next_page(&mut self, call: &mut FunctionCall<'_>) -> Result<Option<Page>, FunctionFailure> {
        while !self.is_at_end() {
            let fields = self.header(call)?;
            let number = |id: i16| field_of(&fields, id).and_then(|value| value.number());
            let size = |id: i16| {
                let size = number(id).and_then(|size| usize::try_from(size).ok());
                let size = size.ok_or_else(|| self.bad("a page without a size"))?;
                match size > PAGE_BYTES_MAX {
                    true => {
                        let text =
                            format!("{}: a page of {size} bytes; at most {PAGE_BYTES_MAX}", self.place);
                        Err(too_large(self.object, text))
                    }
                    false => Ok(size),
                }
            };
            let (uncompressed, compressed) = (size(2)?, size(3)?);
            self.fill(call, compressed)?;
            let end = self.at + compressed;
            if end > self.buffer.len() {
                return Err(self.bad("a page is longer than its column"));
            }
            let start = std::mem::replace(&mut self.at, end);
            let data = &self.buffer[start..end];
            if let Some(stored) = number(4)
                && crc32fast::hash(data) != stored as u32
            {
                return Err(self.bad("the checksum of a page does not match its bytes"));
            }
            if let Some(page) = self.page(&fields, data, uncompressed).map_err(|reason| self.bad(reason))? {
                if page.is_data_page() {
                    let values = u64::from(page.num_values());
                    let left = self.values_left.checked_sub(values);
                    self.values_left = left.ok_or_else(|| self.bad("its pages have too many values"))?;
                }
                self.has_pages = true;
                return Ok(Some(page));
            }
        }
        Ok(None)
    }

    /// Decompresses a page; `None` for one that is not needed.
    fn page(&self, header: &ThriftFields, data: &[u8], size: usize) -> Result<Option<Page>, String> {
        let kind = field_of(header, 1).and_then(|value| value.number());
        let (kind, own) = match kind {
            Some(DATA_PAGE) => (DATA_PAGE, 5),
            Some(DICTIONARY_PAGE) => (DICTIONARY_PAGE, 7),
            Some(DATA_PAGE_V2) => (DATA_PAGE_V2, 8),
            Some(INDEX_PAGE) => return Ok(None),
            _ => return Err("a page of an unknown type".to_owned()),
        };
        let own = field_of(header, own).and_then(|value| value.fields());
        let own = own.ok_or("a page without a header of its type")?;
        let number = |id: i16| -> Result<u32, String> {
            let value = field_of(own, id).and_then(|value| value.number());
            value
                .and_then(|value| u32::try_from(value).ok())
                .ok_or_else(|| format!("a page without field {id}"))
        };
        let is_true = |id: i16, default: bool| match field_of(own, id) {
            Some(sealstone_functions::thrift::ThriftValue::Bool(value)) => *value,
            _ => default,
        };
        let num_values = number(1)?;
        if self.is_repeated && num_values > REPEATED_VALUES_MAX {
            return Err(format!("a page with {num_values} repeated values; at most {REPEATED_VALUES_MAX}"));
        }
        let whole = || decompress(self.codec, data, size).map_err(|reason| format!("a page: {reason}"));
        Ok(Some(match kind {
            DATA_PAGE => Page::DataPage {
                buf: whole()?,
                num_values,
                encoding: encoding(number(2)?)?,
                def_level_encoding: encoding(number(3)?)?,
                rep_level_encoding: encoding(number(4)?)?,
                statistics: None,
            },
            DICTIONARY_PAGE if self.has_pages => return Err("a dictionary after other pages".to_owned()),
            DICTIONARY_PAGE => Page::DictionaryPage {
                buf: whole()?,
                num_values,
                encoding: encoding(number(2)?)?,
                is_sorted: is_true(3, false),
            },
            _ => {
                let (def_levels_byte_len, rep_levels_byte_len) = (number(5)?, number(6)?);
                let levels = def_levels_byte_len as usize + rep_levels_byte_len as usize;
                let buf = self.page_with_levels(data, levels, size, is_true(7, true))?;
                let (num_nulls, num_rows) = (number(2)?, number(3)?);
                if num_nulls > num_values || num_rows > num_values {
                    return Err("a page with more rows or nulls than values".to_owned());
                }
                Page::DataPageV2 {
                    buf,
                    num_values,
                    encoding: encoding(number(4)?)?,
                    num_nulls,
                    num_rows,
                    def_levels_byte_len,
                    rep_levels_byte_len,
                    is_compressed: false,
                    statistics: None,
                }
            }
        }))
    }

    /// Decompresses a page of the second version, whose levels are not compressed.
    fn page_with_levels(
        &self,
        data: &[u8],
        levels: usize,
        size: usize,
        is_compressed: bool,
    ) -> Result<Bytes, String> {
        let (levels, values) =
            data.split_at_checked(levels).ok_or("the levels are longer than their page")?;
        let size = size.checked_sub(levels.len()).ok_or("the levels are longer than their page")?;
        let codec = if is_compressed { self.codec } else { Compression::UNCOMPRESSED };
        // A page without values may have no compressed bytes.
        let values = match values.is_empty() && size == 0 {
            true => Bytes::new(),
            false => decompress(codec, values, size).map_err(|reason| format!("a page: {reason}"))?,
        };
        Ok([levels, &values].concat().into())
    }
}

/// Returns the encoding of a number in a header.
fn encoding(number: u32) -> Result<Encoding, String> {
    #[expect(deprecated, reason = "old files have levels in this encoding")]
    let packed = Encoding::BIT_PACKED;
    Ok(match number {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        4 => packed,
        5 => Encoding::DELTA_BINARY_PACKED,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        _ => return Err(format!("encoding {number} is not supported")),
    })
}
