//! The central directory of a ZIP archive, and its entries.
//!
//! Does: finds and reads the directory, checks counts, sizes, names and methods, and decompresses
//! one entry on request.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use miniz_oxide::inflate::decompress_to_vec_with_limit;

use crate::limits::{
    ARCHIVE_BYTES_MAX, CONTENT_BYTES_MAX, ENTRIES_MAX, ENTRY_BYTES_MAX, MANIFEST_BYTES_MAX, NAME_BYTES_MAX,
};
use crate::{ArchiveError, is_archive, manifest};

/// Name of the manifest.
const MANIFEST_NAME: &str = "META-INF/MANIFEST.MF";
/// First bytes of a class file.
const CLASS_MAGIC: [u8; 4] = [0xCA, 0xFE, 0xBA, 0xBE];

const LOCAL_SIGNATURE: [u8; 4] = *b"PK\x03\x04";
const LOCAL_BYTES: usize = 30;
const DIRECTORY_SIGNATURE: [u8; 4] = *b"PK\x01\x02";
const DIRECTORY_BYTES: usize = 46;
const END_SIGNATURE: [u8; 4] = *b"PK\x05\x06";
const END_BYTES: usize = 22;
/// Maximum length of the comment after the end record.
const COMMENT_BYTES_MAX: usize = 0xFFFF;
/// A number of entries that stands for one in a ZIP64 record.
const COUNT_ZIP64: usize = 0xFFFF;
/// A size or offset that stands for one in a ZIP64 record.
const SIZE_ZIP64: u32 = 0xFFFF_FFFF;
/// The flag of an encrypted entry.
const FLAG_ENCRYPTED: u16 = 1;
const METHOD_STORED: u16 = 0;
const METHOD_DEFLATED: u16 = 8;

/// A row of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DirectoryEntry<'a> {
    name: &'a str,
    is_deflated: bool,
    checksum: u32,
    length: u32,
    data: Range<usize>,
}

/// A JAR file with a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JavaArchive<'a> {
    bytes: &'a [u8],
    /// In the order of their names.
    entries: Vec<DirectoryEntry<'a>>,
    function_class: String,
}

impl<'a> JavaArchive<'a> {
    /// Reads the directory and the manifest, and checks that the class of the function exists.
    ///
    /// # Errors
    ///
    /// The first violation of a limit or of the format, as [`ArchiveError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ArchiveError> {
        let mut archive = Self::parse_library(bytes)?;
        let manifest = archive.find(MANIFEST_NAME).ok_or(ArchiveError::NoManifest)?;
        if manifest.length > MANIFEST_BYTES_MAX {
            return Err(ArchiveError::ManifestText);
        }
        let manifest = archive.content(manifest)?;
        let text = core::str::from_utf8(&manifest).map_err(|_| ArchiveError::ManifestText)?;
        let class = manifest::function_class(text)?;
        match archive.class(&class)? {
            Some(code) if code.starts_with(&CLASS_MAGIC) => archive.function_class = class,
            Some(_) => return Err(ArchiveError::NotClass(class)),
            None => return Err(ArchiveError::NoClass(class)),
        }
        Ok(archive)
    }

    /// Reads the directory of a JAR file that is not a function.
    ///
    /// # Errors
    ///
    /// The first violation of a limit or of the format, as [`ArchiveError`].
    pub fn parse_library(bytes: &'a [u8]) -> Result<Self, ArchiveError> {
        if !is_archive(bytes) {
            return Err(ArchiveError::NotArchive);
        }
        if bytes.len() > ARCHIVE_BYTES_MAX {
            return Err(ArchiveError::Length(bytes.len()));
        }
        let entries = read_directory(bytes)?;
        Ok(Self { bytes, entries, function_class: String::new() })
    }

    /// Returns the class that the manifest names, as Java writes it.
    #[must_use]
    pub fn function_class(&self) -> &str {
        &self.function_class
    }

    /// Returns the number of entries.
    #[must_use]
    pub const fn entry_count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the names of all entries.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.entries.iter().map(|entry| entry.name)
    }

    /// Returns the content of an entry, or `None` if there is no entry of this name.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Damaged`] if the data does not give the stated bytes.
    pub fn entry(&self, name: &str) -> Result<Option<Vec<u8>>, ArchiveError> {
        self.find(name).map(|entry| self.content(entry)).transpose()
    }

    /// Returns the bytes of a class, whose packages are separated by `.`.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Damaged`] if the data does not give the stated bytes.
    pub fn class(&self, name: &str) -> Result<Option<Vec<u8>>, ArchiveError> {
        self.entry(&(name.replace('.', "/") + ".class"))
    }

    fn find(&self, name: &str) -> Option<&DirectoryEntry<'a>> {
        let index = self.entries.binary_search_by(|entry| entry.name.cmp(name)).ok()?;
        self.entries.get(index)
    }

    fn content(&self, entry: &DirectoryEntry<'_>) -> Result<Vec<u8>, ArchiveError> {
        let damaged = || ArchiveError::Damaged(quoted(entry.name));
        let data = self.bytes.get(entry.data.clone()).ok_or_else(damaged)?;
        let length = entry.length as usize;
        let content = if entry.is_deflated {
            decompress_to_vec_with_limit(data, length).map_err(|_| damaged())?
        } else {
            data.to_vec()
        };
        if content.len() != length || checksum(&content) != entry.checksum {
            return Err(damaged());
        }
        Ok(content)
    }
}

/// Returns a name for an error.
fn quoted(name: &str) -> String {
    name.chars().take(64).collect()
}

/// Returns a record of a fixed size with its signature.
fn record<'a>(
    bytes: &'a [u8],
    offset: usize,
    length: usize,
    signature: [u8; 4],
) -> Result<RecordReader<'a>, ArchiveError> {
    let record = offset.checked_add(length).and_then(|end| bytes.get(offset..end));
    let record = record.filter(|record| record.starts_with(&signature));
    record.map(RecordReader).ok_or(ArchiveError::Malformed(offset))
}

/// A record whose fields are within its length.
#[derive(Clone, Copy, Debug)]
struct RecordReader<'a>(&'a [u8]);

impl RecordReader<'_> {
    fn half(self, offset: usize) -> u16 {
        let field = self.0.get(offset..offset + 2).and_then(|field| field.try_into().ok());
        field.map_or(0, u16::from_le_bytes)
    }

    fn length(self, offset: usize) -> usize {
        self.half(offset).into()
    }

    fn word(self, offset: usize) -> u32 {
        let field = self.0.get(offset..offset + 4).and_then(|field| field.try_into().ok());
        field.map_or(0, u32::from_le_bytes)
    }
}

/// Returns the position of the end record, which ends with a comment of its stated length.
fn find_end(bytes: &[u8]) -> Result<usize, ArchiveError> {
    let last = bytes.len().checked_sub(END_BYTES).ok_or(ArchiveError::Truncated)?;
    let first = last.saturating_sub(COMMENT_BYTES_MAX);
    let is_end = |&offset: &usize| {
        record(bytes, offset, END_BYTES, END_SIGNATURE).is_ok_and(|end| offset + end.length(20) == last)
    };
    (first..=last).rev().find(is_end).ok_or(ArchiveError::Truncated)
}

fn read_directory(bytes: &[u8]) -> Result<Vec<DirectoryEntry<'_>>, ArchiveError> {
    let end_offset = find_end(bytes)?;
    let end = record(bytes, end_offset, END_BYTES, END_SIGNATURE)?;
    let (count, directory_bytes, start) = (end.length(10), end.word(12), end.word(16));
    let has_parts = end.half(4) != 0 || end.half(6) != 0 || end.length(8) != count;
    if has_parts || count == COUNT_ZIP64 || directory_bytes == SIZE_ZIP64 || start == SIZE_ZIP64 {
        return Err(ArchiveError::Zip64);
    }
    if count > ENTRIES_MAX {
        return Err(ArchiveError::Count(count));
    }
    let start = start as usize;
    if start.checked_add(directory_bytes as usize) != Some(end_offset) {
        return Err(ArchiveError::Malformed(end_offset));
    }
    let mut entries = Vec::with_capacity(count);
    let (mut offset, mut content) = (start, 0u64);
    for _ in 0..count {
        let (entry, next) = read_entry(bytes, offset, start)?;
        content += u64::from(entry.length);
        if content > CONTENT_BYTES_MAX {
            return Err(ArchiveError::ContentLength);
        }
        entries.push(entry);
        offset = next;
    }
    if offset != end_offset {
        return Err(ArchiveError::Malformed(offset));
    }
    entries.sort_unstable_by_key(|entry| entry.name);
    if let Some(pair) = entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(ArchiveError::Duplicate(quoted(pair[0].name)));
    }
    Ok(entries)
}

/// Reads a row of the directory that begins at `start`; returns it and the offset of the next one.
fn read_entry(
    bytes: &[u8],
    offset: usize,
    start: usize,
) -> Result<(DirectoryEntry<'_>, usize), ArchiveError> {
    let malformed = ArchiveError::Malformed(offset);
    let row = record(bytes, offset, DIRECTORY_BYTES, DIRECTORY_SIGNATURE)?;
    let name_start = offset + DIRECTORY_BYTES;
    let name_bytes = row.length(28);
    let name = name_at(bytes, name_start, name_bytes, offset)?;
    let next = name_start + name_bytes + row.length(30) + row.length(32);
    let (compressed, length, local) = (row.word(20), row.word(24), row.word(42));
    if length == SIZE_ZIP64 || compressed == SIZE_ZIP64 || local == SIZE_ZIP64 {
        return Err(ArchiveError::Zip64);
    }
    let is_deflated = match row.half(10) {
        METHOD_STORED => false,
        METHOD_DEFLATED => true,
        _ => return Err(ArchiveError::Method(quoted(name))),
    };
    if row.half(8) & FLAG_ENCRYPTED != 0 {
        return Err(ArchiveError::Method(quoted(name)));
    }
    if length > ENTRY_BYTES_MAX {
        return Err(ArchiveError::EntryLength { name: quoted(name), bytes: length });
    }
    let local_offset = local as usize;
    let local = record(bytes, local_offset, LOCAL_BYTES, LOCAL_SIGNATURE)?;
    let local_name = local_offset + LOCAL_BYTES;
    if name_at(bytes, local_name, local.length(26), local_offset)? != name {
        return Err(ArchiveError::Malformed(local_offset));
    }
    let data_start = local_name + name_bytes + local.length(28);
    let data_end = data_start.checked_add(compressed as usize).filter(|&end| end <= start);
    let data = data_start..data_end.ok_or(malformed)?;
    Ok((DirectoryEntry { name, is_deflated, checksum: row.word(16), length, data }, next))
}

/// Returns the name in a record at `record_offset`.
fn name_at(bytes: &[u8], offset: usize, length: usize, record_offset: usize) -> Result<&str, ArchiveError> {
    if length > NAME_BYTES_MAX {
        return Err(ArchiveError::NameLength(record_offset));
    }
    let name = bytes.get(offset..offset + length).and_then(|name| core::str::from_utf8(name).ok());
    name.ok_or(ArchiveError::Malformed(record_offset))
}

/// Returns the CRC-32 of ZIP.
fn checksum(content: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    const fn table() -> [u32; 256] {
        let mut table = [0; 256];
        let mut index = 0;
        while index < table.len() {
            let mut value = index as u32;
            let mut bit = 0;
            while bit < 8 {
                value = if value & 1 == 1 { value >> 1 ^ 0xEDB8_8320 } else { value >> 1 };
                bit += 1;
            }
            table[index] = value;
            index += 1;
        }
        table
    }
    let step = |value: u32, byte: &u8| TABLE[((value ^ u32::from(*byte)) & 0xFF) as usize] ^ value >> 8;
    !content.iter().fold(u32::MAX, step)
}
