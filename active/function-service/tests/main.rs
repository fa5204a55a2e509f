//! Runs through the real engine program for C, with functions that gcc builds.
//!
//! A test needs gcc. Without root, layers of isolation may be missing; the service then uses those
//! of the machine, as with `--isolation best-effort`.

mod functions;
mod objects;
