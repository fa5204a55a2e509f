//! Real daemons on real folders, killed under load again and again, beside an oracle of what they promised.
//!
//! Does: start `sealstone osd serve`, have several clients create, write, append, clear, cut, rewrite, copy, remove, set
//! attributes, put objects into collections, and make, refresh, restore and remove snapshots and clones, under all four
//! methods, with FUA and FLUSH of every scope; kill the daemon at a moment of the seed's choice, also while it comes back;
//! then compare everything with what was acknowledged, flushed or not, and have `osd check` read everything. On a roomy
//! disk, at the end of the capacity, on a file system that is full, and on a raw device. Besides: a metadata server and
//! two devices that are killed while files are put; and two metadata servers on one database that are killed while eight clients
//! change the same names.
//! Does not: cut the power; what a disk keeps then is the matter of the store's crash simulator.
//! Truth: docs/design/store.md, "Groups and the order of writes"; HACKING.md, "Tests".

#![allow(clippy::missing_panics_doc, reason = "a harness fails by panicking, that is its purpose")]

pub mod device;
pub mod keys;
pub mod linear;
pub mod names;
pub mod oracle;
pub mod system;
pub mod worker;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::Serialize;

pub use device::Ground;
use device::Rig;
use names::Crowd;
use system::Drill;
use worker::Tally;

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Every choice comes from it; the moments at which processes are scheduled do not.
    pub seed: u64,
    /// How long, about.
    pub time: Duration,
    /// Clients of a device.
    pub workers: usize,
    /// With metadata servers, too.
    pub system: bool,
    /// Nothing but names.
    pub names_alone: bool,
}

/// What was done.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// How long it took.
    pub seconds: f64,
    /// Starts of a device after which everything was compared.
    pub lives: u64,
    /// Processes killed under load.
    pub kills: u64,
    /// Devices killed while they came back.
    pub kills_at_start: u64,
    /// Devices read at rest by `osd check`.
    pub checks: u64,
    /// Commands that changed something and were acknowledged.
    pub steps: u64,
    /// Such that were promised to be durable, and flushes.
    pub durable: u64,
    /// REWRITEs among the steps.
    pub rewrites: u64,
    /// Changes of collections and of who is in them, among the steps.
    pub memberships: u64,
    /// Steps that made, refreshed, restored or removed snapshots and clones.
    pub duplicates: u64,
    /// Commands refused for want of space.
    pub refused: u64,
    /// Objects compared while a device ran.
    pub reads: u64,
    /// Objects compared after a restart.
    pub compared: u64,
    /// Rounds of a whole system.
    pub rounds: u64,
    /// Files put there.
    pub puts: u64,
    /// Puts that ended with an error, because the metadata server was killed.
    pub puts_failed: u64,
    /// Rounds in which clients changed the same names.
    pub names_rounds: u64,
    /// Operations of theirs, all of which one order explains.
    pub names_operations: u64,
    /// Of them, those whose clients were told nothing.
    pub names_unknown: u64,
    /// Rounds for which it took too long to find an order.
    pub names_undecided: u64,
    /// What could not be done here.
    pub left_out: Vec<&'static str>,
}

/// A promise was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Where.
    pub place: &'static str,
    /// How.
    pub what: String,
    /// The device's folder, kept.
    pub folder: Option<PathBuf>,
}

/// Parts of the time for each ground; the rest is the system's.
const SHARES: [(Ground, f64); 4] =
    [(Ground::Roomy, 0.25), (Ground::Full, 0.1), (Ground::Tight, 0.1), (Ground::Raw, 0.15)];
/// Of what is the system's, the part of those who change the same names.
const NAMES_SHARE: f64 = 0.5;

/// Does it. `tell` hears what is being done.
///
/// # Errors
/// A promise was broken.
pub fn run(wish: &Wish, mut tell: impl FnMut(&'static str)) -> Result<Report, Violation> {
    let mut report = Report { seed: wish.seed, ..Report::default() };
    let began = Instant::now();
    let tally = Arc::new(Tally::default());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the system gives threads");
    let all = if wish.system { 1.0 } else { SHARES.iter().map(|(_, share)| share).sum() };
    for (number, (ground, share)) in SHARES.into_iter().enumerate() {
        if wish.names_alone {
            break;
        }
        tell(ground.name());
        let seed = wish.seed.wrapping_add((number as u64) << 32);
        let Some(mut rig) = Rig::new(ground, wish.workers, seed) else {
            report.left_out.push(ground.name());
            continue;
        };
        let until = Instant::now() + wish.time.mul_f64(share / all);
        if let Err(what) = rig.torture(&runtime, until, &tally, &mut report) {
            return Err(Violation { place: ground.name(), what, folder: rig.keep() });
        }
    }
    if wish.system {
        tell("names");
        let wrong = |what: String| Violation { place: "names", what, folder: None };
        let share = 1.0 - SHARES.iter().map(|(_, share)| share).sum::<f64>();
        let share = if wish.names_alone { 1.0 } else { share * NAMES_SHARE };
        let until = Instant::now() + wish.time.mul_f64(share);
        let mut crowd = Crowd::new(&runtime, wish.seed).map_err(wrong)?;
        crowd.torture(&runtime, until, &mut report).map_err(wrong)?;
    }
    if wish.system && !wish.names_alone {
        tell("system");
        let mut drill = Drill::new(wish.seed);
        // Whatever is left of the time, and one round in any case.
        let until = began + wish.time;
        drill
            .torture(until.max(Instant::now() + Duration::from_millis(1)), &mut report)
            .map_err(|what| Violation { place: "system", what, folder: None })?;
    }
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    report.seconds = began.elapsed().as_secs_f64();
    report.steps = count(&tally.steps);
    report.durable = count(&tally.durable);
    report.rewrites = count(&tally.rewrites);
    report.memberships = count(&tally.memberships);
    report.duplicates = count(&tally.duplicates);
    report.refused = count(&tally.refused);
    report.reads = count(&tally.reads);
    report.compared = count(&tally.compared);
    Ok(report)
}
