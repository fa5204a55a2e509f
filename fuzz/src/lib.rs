//! Fuzz targets for every parser, and a smoke run that needs no special toolchain.
//!
//! Does: one table of targets; the smoke test, the command-line program and libFuzzer all run its
//! rows.
//! Does not: measure coverage; `fuzz/libfuzzer` does.
//! Contract: a target takes any bytes and must return without a panic, a hang, or an allocation
//! beyond its limits. If a format also has an encoder, a parsed value must encode and parse to the
//! same value.
//! Truth: the module headers of the tested crates; `tests/coverage.rs` finds entry points without a
//! target.

mod input;
mod mutate;
mod run;
pub mod shape;
mod target;
mod targets;

pub use mutate::{Random, mutate};
pub use run::{FuzzFailure, FuzzSession, INPUT_SLOW_MAX, attempt, kept, minimise};
pub use target::{TARGETS, Target, find, hex, unhex};
