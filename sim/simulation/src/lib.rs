//! Deterministic simulation of client, MDS and devices with faults from one seed.
//!
//! # Simulation
//!
//! The real parts of the system (device, target, store; metadata server and housekeeper; client)
//! run in one thread on a paused clock. Everything else is simulated: the network ([`network`]),
//! the disks ([`sealstone_store::sim`]), clocks, random bytes, power. One seed determines the
//! topology, the work, and what fails and when ([`plan`], [`faults`]); the same seed gives the same
//! history, byte for byte ([`history`]).
//!
//! Properties that are checked ([`workload`], [`final_checks`], [`wiretap`]):
//!
//! - An acknowledged put reads back its exact bytes after all devices lost power. A failed one
//!   changed nothing; one   with unknown outcome did either.
//! - A get returns the bytes of one version, or an error; never other bytes or a mix.
//! - Acknowledged renames, removals and listings are correct.
//! - At the end devices have exactly the objects of the files, and the metadata server's counts
//!   agree.
//! - No device executes a command that an attacker replayed or modified.
//! - No account reads a closed folder, changes another's files, logs in with a guess or over a
//!   spliced channel, or uses   an ended session.
//! - Corrupt blocks give errors, never bytes. A full device or disk refuses and continues, and
//!   accepts files again   after others are removed.
//! - Devices with drifting clocks that follow the metadata server refuse nothing fresh and accept
//!   nothing expired,   within a few seconds ([`drift`]).
//! - Without faults no operation fails.
//!
//! `cargo run -p sealstone-simulation -- --seeds 1000` searches; a failing run prints the seed that
//! replays it.
//!
//! Does not: simulate TLS and TCP (streams arrive or break, and a login is bound to a number
//! instead of TLS's exporter; TLS is tested elsewhere), or corruption of the index. Clocks that are
//! set wrong or attacked have their own simulations ([`timekeeping`], [`clock_steps`]).

pub mod attacker;
pub mod clock;
pub mod clock_steps;
pub mod device;
pub mod drift;
pub mod faults;
pub mod final_checks;
pub mod history;
pub mod metadata;
pub mod model;
pub mod network;
pub mod plan;
pub mod random;
pub mod tasks;
pub mod timekeeping;
pub mod wiretap;
pub mod workload;
mod world;

pub use world::{RunReport, run, trace};
