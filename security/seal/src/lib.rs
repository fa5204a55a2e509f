//! Keys, capabilities, integrity check values, nonces and the permit: the OSD security model.

#![no_std]

extern crate alloc;
