//! SAM, SPC and sense data layouts: what every SCSI device server says, whatever its type.
//!
//! Does: status codes, sense data both ways, the SPC commands every logical unit answers and their engine, the seam to
//! logical units.
//! Does not: transport (`sealstone-iscsi`) nor any device type's own commands.
//! Truth: SAM-5, SPC-4 as recorded in `docs/standards/scsi.md`.

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
