//! Messages between client and metadata server: framing, requests, responses.

#![no_std]

extern crate alloc;
