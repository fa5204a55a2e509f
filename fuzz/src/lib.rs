//! Fuzz targets for every parser, and a smoke run over them that needs no special toolchain.
//!
//! Does: one table of targets; the smoke test, the long-running binary and libFuzzer all run its rows.
//! Does not: look for coverage itself; `fuzz/libfuzzer` does.
//! Contract: a target takes any bytes and must return: no panic, no hang, no allocation beyond its limits. Where a
//! format can be encoded too, what parses must encode and parse to the same value.
//! Truth: the module headers of the crates under test; `tests/coverage.rs` finds entry points that no row names.

mod input;
mod mutate;
mod run;
pub mod shape;
mod target;
mod targets;

pub use mutate::{Random, mutate};
pub use run::{Failure, INPUT_SLOW_MAX, Session, attempt, kept, minimise};
pub use target::{TARGETS, Target, find, hex, unhex};
