//! Conformance tests of an object-based storage device, through a socket and nothing else.
//!
//! Does: speak iSCSI and T10 OSD from the standards' layouts, by code of its own, to any target; one behaviour per
//! test, each with its clause. Does not: use a crate of the product, whose mistakes it would share.
//! Contract: without an address it starts the real device twice, secured and open, and nothing may fail or be
//! skipped. The tests work in partitions that they make and remove; never name a target whose data matter.
//! Truth: docs/design/t10-osd.md, RFC 7143, SPC-4; the list of tests is docs/standards/conformance.md.

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
pub use runner::{Options, Report, run};
pub use suite::{TESTS, Test};
pub use target::Target;
