//! RFC 7143 iSCSI, both ends, as sans-I/O state machines.

#![no_std]

extern crate alloc;
