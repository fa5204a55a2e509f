//! T10 OSD-1 and OSD-2 wire layouts: CDBs, capabilities, attribute lists and pages.
//!
//! Does: converts bytes into typed values once, and back.
//! Does not: decide anything; `seal` and the device do.
//! Contract: no input panics; for any input that a parser accepts, the encoder of the same type
//! produces the canonical form.
//! Source of truth: T10/1355-D (OSD-1) and T10/1729-D (OSD-2) as recorded in
//! `docs/standards/osd.md`.

#![no_std]

extern crate alloc;

#[cfg(test)]
extern crate std;

pub mod attribute;
mod bytes;
pub mod capability;
pub mod cdb;
pub mod continuation;
pub mod function;
mod generation;
mod id;
pub mod integrity;
pub mod listing;
pub mod map;
pub mod master_key;
pub mod offset;
mod permissions;
pub mod query;
pub mod rewrite;
mod sink;
pub mod table;
pub mod task;

pub use attribute::AttributeId;
pub use capability::{Capability, CapabilityBytes, CapabilityError, ClearFields, Descriptor};
pub use cdb::{AttributeParameters, Cdb, CdbBytes, CdbError, Command, SecurityParameters};
pub use generation::{Generation, SecurityMethod};
pub use id::{ObjectId, ObjectType};
pub use permissions::Permissions;
