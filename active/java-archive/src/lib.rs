//! JAR files of functions: their limits, their manifest and their entries.
//!
//! Does: reads the directory of a ZIP archive, refuses counts and sizes above the [`limits`],
//! compression methods other than stored and deflated, and archives whose manifest names no class.
//! Does not: verify classes; the virtual machine does that, whatever this crate returned.
//! Contract: arbitrary bytes give a [`JavaArchive`] or an [`ArchiveError`], with memory for one row
//! per entry. An entry is decompressed only when it is read, and never above its declared size.
//! Truth: PKWARE's APPNOTE.TXT 6.3.3, sections 4.3 and 4.4, and the JAR File Specification of
//! Java 17.

#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod archive;
mod error;
pub mod limits;
mod manifest;
#[cfg(test)]
mod tests;

pub use archive::JavaArchive;
pub use error::ArchiveError;
pub use manifest::FUNCTION_ATTRIBUTE;

/// First bytes of an archive with at least one entry.
pub const MAGIC: [u8; 4] = *b"PK\x03\x04";

/// Whether bytes are a ZIP archive, by their first four bytes.
#[must_use]
pub fn is_archive(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}
