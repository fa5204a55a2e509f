//! Why an archive is refused.

use alloc::string::String;

use crate::limits::{
    ARCHIVE_BYTES_MAX, CONTENT_BYTES_MAX, ENTRIES_MAX, ENTRY_BYTES_MAX, MANIFEST_BYTES_MAX, NAME_BYTES_MAX,
};
use crate::manifest::FUNCTION_ATTRIBUTE;

/// Why an archive is refused, before a virtual machine sees it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// The bytes are not a ZIP archive.
    #[error("it is not a JAR file: the first bytes are not PK\\x03\\x04")]
    NotArchive,
    /// The archive is too long.
    #[error("JAR file of {0} bytes, at most {ARCHIVE_BYTES_MAX}")]
    Length(usize),
    /// The record at the end of an archive is absent.
    #[error("truncated JAR file: it has no end record")]
    Truncated,
    /// The archive uses the extension for large archives, or has several parts.
    #[error("a JAR file in ZIP64 format or in several parts; a function has at most {ENTRIES_MAX} entries")]
    Zip64,
    /// The archive has too many entries.
    #[error("{0} entries, at most {ENTRIES_MAX}")]
    Count(usize),
    /// A record of the archive is malformed.
    #[error("malformed JAR file at byte {0}")]
    Malformed(usize),
    /// The name of an entry is too long.
    #[error("the entry at byte {0} has a name above {NAME_BYTES_MAX} bytes")]
    NameLength(usize),
    /// Two entries have the same name.
    #[error("two entries are named {0}")]
    Duplicate(String),
    /// An entry is compressed in another way, or encrypted.
    #[error("the entry {0} is neither stored nor deflated, or is encrypted")]
    Method(String),
    /// An entry is too long.
    #[error("the entry {name} has {bytes} bytes, at most {ENTRY_BYTES_MAX}")]
    EntryLength {
        /// Name of the entry.
        name: String,
        /// Its decompressed size.
        bytes: u32,
    },
    /// All entries together are too long.
    #[error("the entries have more than {CONTENT_BYTES_MAX} bytes together")]
    ContentLength,
    /// The compressed data does not give the declared bytes.
    #[error("the entry {0} is damaged: its data does not match its size and checksum")]
    Damaged(String),
    /// The archive has no manifest.
    #[error("it has no META-INF/MANIFEST.MF")]
    NoManifest,
    /// The manifest is malformed.
    #[error("line {0} of the manifest is malformed")]
    ManifestLine(usize),
    /// The manifest is not UTF-8, or too long.
    #[error("the manifest is not UTF-8, or has more than {MANIFEST_BYTES_MAX} bytes")]
    ManifestText,
    /// The manifest does not name the class of the function.
    #[error("the manifest has no attribute {FUNCTION_ATTRIBUTE}: it names the class of the function")]
    NoAttribute,
    /// The attribute is not the name of a class.
    #[error("{FUNCTION_ATTRIBUTE} in the manifest is not the name of a class: {0}")]
    ClassName(String),
    /// The class of the function is absent.
    #[error("the manifest names the class {0}, which the JAR file does not contain")]
    NoClass(String),
    /// The class of the function is not a class file.
    #[error("the entry {0} is not a class file")]
    NotClass(String),
}
