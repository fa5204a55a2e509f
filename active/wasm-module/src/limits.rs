//! Limits of a module. Each has its unit in its name or documentation.
//!
//! They bound the memory and the time of the compiler before it starts. The limits of memory and
//! processor time of the engine's process apply all the same.

/// Maximum size of a module in bytes.
pub const MODULE_BYTES_MAX: usize = 16 << 20;
/// Maximum number of types.
pub const TYPES_MAX: u32 = 10_000;
/// Maximum number of parameters, and of results, of a type.
pub const TYPE_VALUES_MAX: u32 = 1000;
/// Maximum number of imports.
pub const IMPORTS_MAX: u32 = 256;
/// Maximum number of functions.
pub const FUNCTIONS_MAX: u32 = 50_000;
/// Maximum size of the code of one function in bytes; the compiler needs a multiple of it.
pub const FUNCTION_BYTES_MAX: u32 = 1 << 20;
/// Maximum number of tables.
pub const TABLES_MAX: u32 = 16;
/// Maximum number of entries of a table, at the start and after it has grown.
pub const TABLE_ENTRIES_MAX: u64 = 100_000;
/// Maximum number of global variables.
pub const GLOBALS_MAX: u32 = 10_000;
/// Maximum number of exports.
pub const EXPORTS_MAX: u32 = 10_000;
/// Maximum number of element segments.
pub const ELEMENT_SEGMENTS_MAX: u32 = 10_000;
/// Maximum number of data segments.
pub const DATA_SEGMENTS_MAX: u32 = 100_000;
/// Bytes of a page of memory.
pub const PAGE_BYTES: u64 = 64 << 10;
/// Maximum pages of a memory with addresses of 32 bits.
pub const PAGES_MAX: u64 = 1 << 16;
/// Maximum length of a name that an error quotes, in characters.
pub(crate) const QUOTED_NAME_CHARS_MAX: usize = 64;
