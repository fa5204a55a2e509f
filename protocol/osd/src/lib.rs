//! T10 OSD-1 and OSD-2 wire layouts: CDBs, capabilities, attribute lists and pages.
//!
//! Does: turn bytes into typed values once, and back. Does not: decide anything; `seal` and the device do.
//! Truth: T10/1355-D (OSD-1) and T10/1729-D (OSD-2) as recorded in `docs/standards/osd.md`.

#![no_std]

extern crate alloc;

mod id;

pub use id::{ObjectId, ObjectType};
