//! Limits of an archive. Each has its unit in its name or documentation.

/// Maximum size of an archive in bytes.
pub const ARCHIVE_BYTES_MAX: usize = 32 << 20;
/// Maximum number of entries.
pub const ENTRIES_MAX: usize = 16_384;
/// Maximum size of one entry in bytes, decompressed.
pub const ENTRY_BYTES_MAX: u32 = 16 << 20;
/// Maximum size of all entries together in bytes, decompressed.
pub const CONTENT_BYTES_MAX: u64 = 128 << 20;
/// Maximum length of the name of an entry, and of a class, in bytes.
pub const NAME_BYTES_MAX: usize = 1024;
/// Maximum size of the manifest in bytes, decompressed.
pub const MANIFEST_BYTES_MAX: u32 = 64 << 10;
