//! All integration tests of the crate in one program: linking many takes longer than running them.
//!
//! `cargo run -p xtask -- tests` runs each module as a process of its own.

#![allow(clippy::unwrap_used, reason = "helpers of tests, outside of test functions")]

mod common;
mod hash_mac;
mod keys;
mod permissions;
mod receipts;
mod refusals;
mod replies;
mod sealed;
mod vectors;
