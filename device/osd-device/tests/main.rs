//! All integration tests of the crate in one program: linking many takes longer than running them.
//!
//! `cargo run -p xtask -- tests` runs each module as a process of its own.

#![allow(clippy::unwrap_used, reason = "helpers of tests, outside of test functions")]

mod attributes;
mod attributes_limits;
mod attributes_order;
mod attributes_pages;
mod authority;
mod block_partition;
mod boot;
mod collections;
mod collections_large;
mod commands;
mod continuation;
mod copies;
mod crash;
mod digests;
mod durable;
mod exofs;
#[path = "support/faulty.rs"]
mod faulty;
mod format;
mod functions;
mod gaps;
mod isolation;
mod keys;
mod maps;
mod membership_model;
mod model;
mod osd1;
mod perform;
mod plain;
mod query;
mod rewrite;
mod scrub;
mod snapshots;
mod stranded;
mod support;
