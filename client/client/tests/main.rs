//! All integration tests of the crate in one program: linking many takes longer than running them.
//!
//! `cargo run -p xtask -- tests` runs each module as a process of its own.

#![allow(clippy::unwrap_used, reason = "helpers of tests, outside of test functions")]

mod async_close;
mod capkey;
mod collections;
mod copies;
mod damage;
mod dentry_cache;
mod device;
mod files;
mod flight;
mod function_calls;
mod functions;
mod keys;
mod leases;
mod migrations;
mod name_writeback;
mod nodes;
mod object_moves;
mod restarts;
mod server;
mod shared_files;
mod world;
