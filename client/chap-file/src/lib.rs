//! Files of CHAP accounts: the access file of a device, and the CHAP file of an initiator.
//!
//! Does: reads and checks both files.
//! Does not: authenticate; the protocol machines do.
//! Contract: secrets come from private files only, and no message quotes one.
//! Truth: RFC 7143 §12.1.3; docs/reference/files.md.

mod access;
mod chap_file;

pub use access::{iscsi_name, read_access_file};
pub use chap_file::proofs;
