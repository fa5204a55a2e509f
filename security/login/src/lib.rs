//! Password login as state machines: OPAQUE (RFC 9807) bound to the channel.

#![no_std]

extern crate alloc;
