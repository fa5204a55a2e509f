//! Block units as disks of this machine, and end-to-end protected disks of users.
//!
//! Does: finds and opens units, serves them as an NBD server or a mounted file; creates protected
//! disks, grants and replaces their keys, and keeps their leases.
//! Does not: speak iSCSI, NBD or FUSE, or seal data: `sealstone-block-client`, `sealstone-nbd` and
//! `sealstone-fuse` do. Parse arguments, print, or take signals.
//! Contract: the metadata server and the device see neither the key of a disk nor the secret key of
//! a user. Writes that were acknowledged are flushed when a served unit ends, or the failure says
//! so.
//! Truth: docs/how-to/attach-block-units.md, docs/how-to/protect-block-units.md.

mod attach;
mod create;
mod disk;
mod disk_report;
mod lease;
mod mounted_file;
mod record;
mod rewrite;
mod unit;
mod unit_report;
mod user_disks;

pub use attach::{AttachOptions, ReadyPlace, ReadyUnit, UnitPlace, attach};
pub use create::{create_protected_unit, create_unit};
pub use disk_report::{disk_json, disk_line};
pub use unit::{NO_PAPER_PROFILE, UnitAddress, UnitOptions, UnitProtectionChoice};
pub use unit_report::{protection_text, unit_text, units_text};
pub use user_disks::{DiskStatus, RotatedDisk, UserDisks};
