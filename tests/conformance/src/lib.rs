//! Conformance tests of an object-based storage device, through its socket only.
//!
//! Does: implements iSCSI and T10 OSD independently from the standards, against any target; one
//! behaviour per test, each with its clause.
//! Does not: use crates of the product, whose errors it would share.
//! Contract: without an address it starts the real device twice, secured and open, and no test may
//! fail or be skipped. The tests use partitions that they create and remove; never use a target
//! with valuable data.
//! Truth: docs/design/t10-osd.md, RFC 7143, SPC-4; the list of tests is
//! docs/standards/conformance.md.

#![allow(clippy::missing_panics_doc, reason = "a test fails by panicking, that is its purpose")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod cdb;
mod device;
mod dh;
mod iscsi;
mod list;
mod page;
mod runner;
mod seal;
mod sense;
mod suite;
mod target;
mod tests;

pub use page::page;
pub use runner::{RunOptions, RunReport, run};
pub use suite::{TESTS, Test};
pub use target::Target;
