//! The interface between a function and its host, for functions in Rust.
//!
//! Does: the calls that functions make, typed arguments and errors, and the split of striped files
//! into whole records.
//! Does not: implement an engine. `sealstone-fn` has the host of the engines, and
//! `sealstone-functions` the one of local files.
//! Contract: a function reads objects by their index in the call, writes its result with
//! [`FunctionCall::result`], and returns when [`FunctionHost::is_cancelled`] becomes true.

#![no_std]

extern crate alloc;

mod arguments;
mod call;
mod failure;
mod host;
mod memory;
mod records;
mod stripe;

pub use arguments::{
    ARGUMENT_BYTES_MAX, ARGUMENTS_MAX, ArgumentError, FunctionArguments, decode_hex, encode_hex,
};
pub use call::{CHUNK_BYTES, FunctionCall};
pub use failure::{FunctionErrno, FunctionFailure};
pub use host::{FunctionHost, LogLevel};
pub use memory::MemoryHost;
pub use records::{
    EdgeFragments, FRAGMENT_BYTES_MAX, JoinedRecord, RECORD_BYTES_MAX, RecordBlock, RecordFormat, RecordSink,
    StripeJoiner, scan_unit,
};
pub use stripe::{GeometryError, STRIPE_UNIT_BYTES_MAX, StripeGeometry, StripeUnit};
