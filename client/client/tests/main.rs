//! All integration tests of the crate in one program: linking many takes longer than running them.
//!
//! `cargo run -p xtask -- tests` runs each module as a process of its own.

#![allow(clippy::unwrap_used, reason = "helpers of tests, outside of test functions")]

mod ahead;
mod capkey;
mod carries;
mod closing;
mod collections;
mod copies;
mod damage;
mod device;
mod files;
mod flight;
mod keys;
mod leases;
mod moves;
mod names;
mod nodes;
mod restarts;
mod server;
mod shares;
mod world;
