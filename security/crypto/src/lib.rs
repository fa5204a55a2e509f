//! The primitives behind the provider trait of seal.

#![no_std]

extern crate alloc;
