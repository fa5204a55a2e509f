//! SAM, SPC and sense data layouts: what every SCSI device server says, whatever its type.
//!
//! Does: status codes, sense data both ways, the SPC commands every logical unit answers, the seam to logical units.
//! Does not: transport (`sealstone-iscsi`) nor any device type's own commands.
//! Truth: SAM-5, SPC-4 as recorded in `docs/standards/scsi.md`.

#![no_std]

extern crate alloc;

#[cfg(test)]
extern crate std;

pub mod additional;
pub mod lu;
mod sense;
pub mod spc;
mod status;

pub use additional::AdditionalSense;
pub use sense::{FieldPointer, Functions, OsdError, ResponseIcv, SENSE_MAX, Sense, SenseError};
pub use status::{SenseKey, Status};
