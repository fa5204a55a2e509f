//! Runs through the real engine program for C, with functions that gcc builds.
//!
//! A test needs gcc. Without root, layers of isolation may be missing; the service then uses those
//! of the machine, as with `--isolation best-effort`.

#![allow(clippy::unwrap_used, reason = "helpers of tests, outside of test functions")]

mod collections;
mod escapes;
mod functions;
mod objects;
