//! Why a module is refused.

use alloc::string::String;
use core::fmt;

use crate::limits::MODULE_BYTES_MAX;
use crate::signature::CallSignature;

/// A section of a module that has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionKind {
    /// Types of functions.
    Types,
    /// Calls that the module imports.
    Imports,
    /// Functions that the module defines.
    Functions,
    /// Tables of references.
    Tables,
    /// Memories of the module.
    Memories,
    /// Global variables.
    Globals,
    /// Exports of the module.
    Exports,
    /// The start function.
    Start,
    /// Element segments.
    Elements,
    /// Number of data segments.
    DataCount,
    /// Code of the functions.
    Code,
    /// Data segments.
    Data,
}

impl SectionKind {
    /// Returns the name of the entries.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Types => "types",
            Self::Imports => "imports",
            Self::Functions => "functions",
            Self::Tables => "tables",
            Self::Memories => "memories",
            Self::Globals => "global variables",
            Self::Exports => "exports",
            Self::Start => "start functions",
            Self::Elements => "element segments",
            Self::DataCount => "data counts",
            Self::Code => "function bodies",
            Self::Data => "data segments",
        }
    }
}

impl fmt::Display for SectionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A feature of WebAssembly that functions cannot use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleExtension {
    /// The component model.
    Components,
    /// Types with references, structures or subtypes.
    GarbageCollection,
    /// Memory that threads share.
    Threads,
    /// Memory with addresses of 64 bits.
    Memory64,
    /// Memory with pages of another size.
    PageSizes,
    /// Tables with addresses of 64 bits or an initial expression.
    TableTypes,
    /// Exceptions and their tags.
    Exceptions,
}

impl fmt::Display for ModuleExtension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Components => {
                "it is a component; build a core module, for example with the target wasm32-unknown-unknown"
            }
            Self::GarbageCollection => "it has types of the garbage collection proposal",
            Self::Threads => "its memory is shared by threads; build it without threads",
            Self::Memory64 => "its memory has addresses of 64 bits; build it for wasm32",
            Self::PageSizes => "its memory has pages of an unusual size",
            Self::TableTypes => "a table has addresses of 64 bits or an initial expression",
            Self::Exceptions => "it has exceptions; build it without them",
        })
    }
}

/// Why a module is refused, before anything compiles it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModuleError {
    /// The bytes are not a WebAssembly file.
    #[error("it is not a WebAssembly file: the first bytes are not \\0asm")]
    NotWebAssembly,
    /// The version of the format is unknown.
    #[error("version {0} of the WebAssembly format, not 1")]
    Version(u32),
    /// The module is too long.
    #[error("module of {0} bytes, at most {MODULE_BYTES_MAX}")]
    Length(usize),
    /// The module ends within a section, or a number or name is malformed.
    #[error("malformed module at byte {0}")]
    Malformed(usize),
    /// A section occurs twice or at the wrong position.
    #[error("section {number} at byte {offset} is out of order")]
    Order {
        /// Number of the section.
        number: u8,
        /// Its position.
        offset: usize,
    },
    /// The number of a section is unknown.
    #[error("unknown section {number} at byte {offset}")]
    UnknownSection {
        /// Number of the section.
        number: u8,
        /// Its position.
        offset: usize,
    },
    /// A section has too many entries.
    #[error("{count} {section}, at most {limit}")]
    Count {
        /// The section.
        section: SectionKind,
        /// Number of its entries.
        count: u32,
        /// Maximum number.
        limit: u32,
    },
    /// The code of a function is too long.
    #[error("function {function} has {bytes} bytes of code, at most {limit}")]
    FunctionBytes {
        /// Index of the function.
        function: u32,
        /// Its size.
        bytes: u32,
        /// Maximum size.
        limit: u32,
    },
    /// A type has too many parameters or results.
    #[error("a type has {count} parameters or results, at most {limit}")]
    TypeValues {
        /// Number of values.
        count: u32,
        /// Maximum number.
        limit: u32,
    },
    /// A table is too large.
    #[error("a table of {entries} entries, at most {limit}")]
    TableEntries {
        /// Entries at the start.
        entries: u64,
        /// Maximum number.
        limit: u64,
    },
    /// The memory is larger than addresses can be.
    #[error("memory of {pages} pages, at most {limit}")]
    MemoryPages {
        /// Pages of the memory.
        pages: u64,
        /// Maximum number.
        limit: u64,
    },
    /// The numbers of functions and of their bodies differ.
    #[error("{functions} functions, but {bodies} function bodies")]
    BodyCount {
        /// Number of functions.
        functions: u32,
        /// Number of bodies.
        bodies: u32,
    },
    /// The module uses a feature that functions cannot use.
    #[error("{0}")]
    Extension(ModuleExtension),
    /// An import is not a call of the interface.
    #[error("import {module}.{name} is no call of the interface (docs/reference/function-api.md)")]
    UnknownImport {
        /// Module of the import.
        module: String,
        /// Name of the import.
        name: String,
    },
    /// An import is not a function.
    #[error("import {module}.{name} is a {kind}; only functions can be imported")]
    ImportKind {
        /// Module of the import.
        module: String,
        /// Name of the import.
        name: String,
        /// Kind of the import.
        kind: &'static str,
    },
    /// An import has another type than the call.
    #[error("import {name} has the type {found}, not {expected}")]
    ImportType {
        /// Name of the import.
        name: String,
        /// Type in the module.
        found: CallSignature,
        /// Type of the call.
        expected: CallSignature,
    },
    /// The module has no memory of its own, or several.
    #[error("{0} memories; a function has one, and exports it as `memory`")]
    MemoryCount(u32),
    /// The memory is not exported.
    #[error("it does not export its memory as `memory`")]
    NoMemoryExport,
    /// The module exports no entry point.
    #[error("it exports neither osd_main nor start")]
    NoEntryPoint,
    /// The entry point is not a function of the expected type.
    #[error("the entry point {name} has the type {found}, not {expected}")]
    EntryType {
        /// Name of the entry point.
        name: &'static str,
        /// Type in the module.
        found: CallSignature,
        /// Type of entry points.
        expected: CallSignature,
    },
}
