//! All integration tests of the crate in one program: linking many takes longer than running them.
//!
//! `cargo run -p xtask -- tests` runs each module as a process of its own.

mod data;
mod durability;
mod identity;
mod provisioning;
mod reservations;
mod support;
