//! WebAssembly modules of functions: their limits and their interface.
//!
//! Does: reads the sections of a binary module before anything compiles it, refuses counts and
//! sizes above the [`limits`], features that the engine does not offer, imports that are not in the
//! table of calls, and modules without an entry point.
//! Does not: validate instructions; the compiler of the engine does that, whatever this crate
//! returned.
//! Contract: arbitrary bytes give a [`ModuleSummary`] or a [`ModuleError`], in one pass over the
//! sections, with memory for its types and one number for each function.
//! Truth: WebAssembly 2.0, chapter 5.5 (modules), and `active/function-abi/src/call.rs` (imports).

#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod error;
pub mod limits;
mod reader;
mod signature;
mod summary;
#[cfg(test)]
mod tests;

pub use error::{ModuleError, ModuleExtension, SectionKind};
pub use signature::{CallSignature, ValueType};
pub use summary::{EntryPoint, ModuleSummary};

/// First bytes of a module.
pub const MAGIC: [u8; 4] = *b"\0asm";

/// Modules from which a function may import calls. C compilers use the second one by default.
pub const IMPORT_MODULES: [&str; 2] = ["osd", "env"];

/// Whether bytes are a WebAssembly file, by their first four bytes.
#[must_use]
pub fn is_module(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}
