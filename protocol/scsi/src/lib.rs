//! SAM, SPC and sense data layouts, common to all SCSI device servers.
//!
//! Does: status codes, sense data in both directions, the SPC commands of every logical unit and
//! their engine, the trait of logical units.
//! Does not: implement a transport (`sealstone-iscsi`) or the commands of a device type.
//! Source of truth: SAM-5, SPC-4 as recorded in `docs/standards/scsi.md`.

#![no_std]

extern crate alloc;

#[cfg(test)]
extern crate std;

pub mod additional;
mod attention;
pub mod lu;
pub mod primary;
mod sense;
pub mod spc;
mod status;

pub use additional::AdditionalSense;
pub use attention::{ATTENTIONS_MAX, Attentions};
pub use sense::{FieldPointer, Functions, OsdError, ResponseIcv, SENSE_MAX, Sense, SenseError};
pub use status::{SenseKey, Status};
