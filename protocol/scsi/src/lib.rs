//! SAM, SPC and sense data layouts: what every SCSI device server says, whatever its type.

#![no_std]

extern crate alloc;
