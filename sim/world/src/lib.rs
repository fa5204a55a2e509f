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
//! - Nobody reads what its owner shut, changes what is another's, logs in with a guess or over a spliced channel, or
//!   goes on with a session that was ended.
//! - Blocks that rotted are errors, never bytes. A device or a disk that is full refuses and goes on; when files are
//!   removed there is room again.
//! - Devices whose clocks drift and follow the metadata server refuse nothing fresh for its time, and take nothing that
//!   has expired, beyond a few seconds ([`drift`]).
//! - In a world without faults no operation fails.
//!
//! `cargo run -p sealstone-world -- --seeds 1000` hunts; a failing run prints the seed that replays it.
//!
//! Does not: simulate TLS and TCP (streams arrive or break, and a login is bound to a number in the place of TLS's
//! exporter; TLS is not pure and is tested where it is), or rot of the index. Clocks that are set wrong and are lied to have
//! days of their own ([`timekeeping`], [`steps`]).

pub mod attacker;
pub mod audit;
pub mod chance;
pub mod clock;
pub mod device;
pub mod drift;
pub mod faults;
pub mod history;
pub mod metadata;
pub mod model;
pub mod network;
pub mod plan;
pub mod steps;
pub mod tasks;
pub mod timekeeping;
pub mod wiretap;
pub mod workload;
mod world;

pub use world::{Report, run, trace};
