//! SDK for functions that run beside the data, on a device.
//!
//! Does: the host seam that functions call, typed arguments and errors, and the cut of striped
//! files into whole records.
//! Does not: open files or sockets; a function reaches only the objects that its caller granted.
//! Contract: a function reads objects by their index in the call, writes its result with
//! [`FunctionCall::result`], and returns when [`FunctionHost::is_cancelled`] becomes true.
//!
//! One source builds as a shared object for the C engine and as a WebAssembly module.

#![no_std]

extern crate alloc;

mod arguments;
mod call;
mod failure;
mod host;
mod memory;
mod records;
mod stripe;

pub use arguments::{ARGUMENT_BYTES_MAX, ARGUMENTS_MAX, ArgumentError, FunctionArguments, encode_hex};
pub use call::{CHUNK_BYTES, FunctionCall};
pub use failure::{FunctionErrno, FunctionFailure};
pub use host::{FunctionHost, LogLevel};
pub use memory::MemoryHost;
pub use records::{
    EdgeFragments, FRAGMENT_BYTES_MAX, JoinedRecord, RECORD_BYTES_MAX, RecordBlock, RecordFormat, RecordSink,
    StripeJoiner, scan_unit,
};
pub use stripe::{GeometryError, STRIPE_UNIT_BYTES_MAX, StripeGeometry, StripeUnit};
