//! The functions that Sealstone ships: pure code over the host calls of `sealstone-function-host`.
//!
//! Does: the functions, their typed results as JSON lines, the reduction of results over devices,
//! and a runner for local files.
//! Does not: talk to a device, or choose one.
//! Contract: a function run on a whole file gives the same reduced result as the same function run
//! on each object of the striped file.
//! Source of truth: docs/reference/shipped-functions.md.

mod catalogue;
mod compression;
mod count;
mod digest;
pub mod filter;
mod grep;
#[cfg(unix)]
pub mod local;
mod parquet_join;
mod reduce;
mod result;
mod search;
pub mod template;
pub mod thrift;
mod transform;

/// The functions themselves. A module names the one that it exports, so that it contains no other.
pub mod entry {
    pub use crate::compression::{run_compress, run_decompress};
    pub use crate::count::{run_count, run_wordcount};
    pub use crate::digest::{run_blake3, run_sha256};
    pub use crate::filter::run_filter;
    pub use crate::grep::run_grep;
    pub use crate::transform::{run_aes, run_copy};
}

pub use catalogue::{
    FunctionOutput, FunctionParameter, SHIPPED_FUNCTIONS, ShippedFunction, find_function, has_argument,
};
pub use compression::WINDOW_BYTES_MAX;
pub use grep::{PATTERN_BYTES_MAX, PATTERN_PROGRAM_BYTES_MAX};
pub use parquet_join::{JoinError, join_parquet};
pub use reduce::{
    FileReduction, JobPart, PartObject, ReduceError, ReducedFile, reduce_files, reduce_parts, total_of,
};
pub use result::{
    ByteCountLine, CountLine, DATA_LINE_BYTES, DataLine, DigestLine, EdgeLine, MatchCountLine, MatchLine,
    OutputLine, RecordText, ResultLine, ResultLineError, SubtreeLine, emit, emit_data, parse_result,
};
pub use sealstone_function_host::{FunctionErrno, StripeGeometry};
