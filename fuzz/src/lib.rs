//! Fuzz targets for every parser, and a smoke run over them that needs no special toolchain.
//!
//! A target takes any bytes and must return: no panic, no hang, no allocation beyond its limits. Where a format
//! can be encoded too, what parses must encode and parse to the same value.

mod mutate;

pub use mutate::{Random, mutate};
