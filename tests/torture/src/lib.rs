//! Real daemons in real folders, repeatedly killed under load, with an oracle of their guarantees.
//!
//! Does: starts `sealstone osd serve`, and several clients that create, write, append, clear,
//! truncate, rewrite, copy, remove, set attributes, add objects to collections, and create,
//! refresh, restore and remove snapshots and clones, with all four methods, FUA and FLUSH of every
//! scope. Kills the daemon at random moments, also during its start. Then compares everything with
//! the acknowledged state, flushed or not, and runs `osd check`. Uses a large disk, a nearly full
//! capacity, a full file system, and a raw device. Also kills a metadata server and two devices
//! during puts, and two metadata servers on one database while eight clients change the same names.
//! Does not: cut power; the store's crash simulator does.
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

use device::DeviceRig;
pub use device::DeviceStorage;
use names::ClientCrowd;
use system::SystemDrill;
use worker::WorkerCounters;

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// Seed of every choice; process scheduling is not deterministic.
    pub seed: u64,
    /// Approximate duration.
    pub time: Duration,
    /// Clients of a device.
    pub workers: usize,
    /// Whether metadata servers are tested too.
    pub system: bool,
    /// Whether only concurrent names are tested.
    pub names_alone: bool,
}

/// Counts of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunReport {
    /// The seed.
    pub seed: u64,
    /// Duration of the run.
    pub seconds: f64,
    /// Starts of a device after which everything was compared.
    pub lives: u64,
    /// Processes killed under load.
    pub kills: u64,
    /// Devices killed during their start.
    pub kills_at_start: u64,
    /// Stopped devices checked by `osd check`.
    pub checks: u64,
    /// Acknowledged commands that changed something.
    pub steps: u64,
    /// Of these, durable ones, and flushes.
    pub durable: u64,
    /// Of the steps, REWRITEs.
    pub rewrites: u64,
    /// Of the steps, changes of collections and memberships.
    pub memberships: u64,
    /// Of the steps, those that created, refreshed, restored or removed snapshots and clones.
    pub duplicates: u64,
    /// Commands refused for lack of space.
    pub refused: u64,
    /// Objects compared while a device ran.
    pub reads: u64,
    /// Objects compared after a restart.
    pub compared: u64,
    /// Rounds of a whole system.
    pub rounds: u64,
    /// Files put in them.
    pub puts: u64,
    /// Puts that failed because the metadata server was killed.
    pub puts_failed: u64,
    /// Rounds of concurrent names.
    pub names_rounds: u64,
    /// Operations in them, all linearizable.
    pub names_operations: u64,
    /// Of these, operations without an answer.
    pub names_unknown: u64,
    /// Rounds whose check exceeded its limit.
    pub names_undecided: u64,
    /// Parts that were skipped.
    pub left_out: Vec<&'static str>,
}

/// A violated guarantee.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Part of the test.
    pub place: &'static str,
    /// Details of the violation.
    pub what: String,
    /// Folder of the device, which is kept.
    pub folder: Option<PathBuf>,
}

/// Share of the time for each storage; the rest is for whole systems.
const SHARES: [(DeviceStorage, f64); 4] = [
    (DeviceStorage::Roomy, 0.25),
    (DeviceStorage::Full, 0.1),
    (DeviceStorage::Tight, 0.1),
    (DeviceStorage::Raw, 0.15),
];
/// Share of the systems' time for concurrent names.
const NAMES_SHARE: f64 = 0.5;

/// Runs the test. `show_part` receives the name of each part when it starts.
///
/// # Errors
/// A violation.
pub fn run(options: &RunOptions, mut show_part: impl FnMut(&'static str)) -> Result<RunReport, Violation> {
    let mut report = RunReport { seed: options.seed, ..RunReport::default() };
    let began = Instant::now();
    let tally = Arc::new(WorkerCounters::default());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the system gives threads");
    let all = if options.system { 1.0 } else { SHARES.iter().map(|(_, share)| share).sum() };
    for (number, (ground, share)) in SHARES.into_iter().enumerate() {
        if options.names_alone {
            break;
        }
        show_part(ground.name());
        let seed = options.seed.wrapping_add((number as u64) << 32);
        let Some(mut rig) = DeviceRig::new(ground, options.workers, seed) else {
            report.left_out.push(ground.name());
            continue;
        };
        let until = Instant::now() + options.time.mul_f64(share / all);
        if let Err(what) = rig.torture(&runtime, until, &tally, &mut report) {
            return Err(Violation { place: ground.name(), what, folder: rig.keep() });
        }
    }
    if options.system {
        show_part("names");
        let wrong = |what: String| Violation { place: "names", what, folder: None };
        let share = 1.0 - SHARES.iter().map(|(_, share)| share).sum::<f64>();
        let share = if options.names_alone { 1.0 } else { share * NAMES_SHARE };
        let until = Instant::now() + options.time.mul_f64(share);
        let mut crowd = ClientCrowd::new(&runtime, options.seed).map_err(wrong)?;
        crowd.torture(&runtime, until, &mut report).map_err(wrong)?;
    }
    if options.system && !options.names_alone {
        show_part("system");
        let mut drill = SystemDrill::new(options.seed);
        // For the rest of the time, and at least one round.
        let until = began + options.time;
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
