//! Deterministic simulation of client, MDS and devices with faults from one seed.
//!
//! # Simulation
//!
//! The real parts of the system (device, target, store; metadata server and housekeeper; client) run in one thread on
//! a paused clock. Around them everything is simulated: the network ([`network`]), the disks
//! ([`sealstone_store::sim`]), clocks, random bytes, power. One seed decides the topology, the work, and what fails
//! and when ([`plan`], [`faults`]); the same seed gives the same history, byte for byte ([`history`]).
//!
//! What must hold ([`workload`], [`audit`], [`wiretap`]):
//!
//! - A put that was acknowledged is readable with exactly its bytes after all devices lost power and are up again; one
//!   that failed changed nothing; one whose outcome is unknown did one or the other.
//! - A get gives the bytes of one version that was put, or an error; never others, never a mix.
//! - Renames, removals and listings that were acknowledged are true.
//! - In the end devices hold the objects of the files and no others, and the metadata server's figures agree.
//! - An attacker who replays or changes what he saw on the wire is never obeyed.
//! - In a world without faults no operation fails.
//!
//! `cargo run -p sealstone-world -- --seeds 1000` hunts; a failing run prints the seed that replays it.
//!
//! Does not: simulate TLS and TCP (streams arrive or break; TLS is tested where it is), rot, full disks, or a clock
//! that jumps.

pub mod attacker;
pub mod audit;
pub mod chance;
pub mod clock;
pub mod device;
pub mod faults;
pub mod history;
pub mod metadata;
pub mod model;
pub mod network;
pub mod plan;
pub mod tasks;
pub mod wiretap;
pub mod workload;
mod world;

pub use world::{Report, run, trace};
