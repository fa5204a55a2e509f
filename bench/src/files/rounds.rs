//! Rounds of measurement: all file systems take turns, each with a whole scenario in a turn.
//!
//! Contract: in every round each file system has one turn, in random order; a ratio compares turns
//! of one round. Names and attributes that a kernel caches for a second are older than that when
//! they are read.

use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::job::{ClientGroup, FileOperation, Subject};
use crate::Outcome;
use crate::process::whole_cpu_s;

/// Slightly longer than the default cache time of names and attributes.
const STALE: Duration = Duration::from_millis(1100);
/// Pause before a stream is written, for all file systems alike. Some release the space and page
/// cache of removed files at once, Sealstone after ten seconds. A virtual machine writes several
/// times faster to recently freed memory than to memory from its host.
const LET_GO: Duration = Duration::from_secs(13);

/// Result of one file system in one turn.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ScenarioSample {
    pub(crate) round: usize,
    pub(crate) subject: String,
    /// Name, as in `create` or `stream write`.
    pub(crate) workload: &'static str,
    pub(crate) clients: usize,
    /// Operations, entries or MiB.
    pub(crate) operations: u64,
    pub(crate) seconds: f64,
    /// CPU seconds of servers, mounts and clients together.
    pub(crate) cpu_s: f64,
}

impl ScenarioSample {
    pub(crate) fn per_s(&self) -> f64 {
        self.operations as f64 / self.seconds
    }
}

/// Workloads that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// Create, stat, readdir, rename, unlink of empty files.
    Metadata,
    /// Put and get of 4 KiB files.
    Small,
    /// Create, rename, unlink, and put of 4 KiB files, each synced with its directory before the
    /// next one.
    Durable,
    /// One large file written, written and synced, read.
    Stream,
    /// Streams over increasing numbers of devices.
    Devices,
    /// Stat and open by depth of the directory, with and without caches.
    Depth,
    /// Very many files: listed, and the metadata server restarted.
    Million,
}

/// Names of the measurements of a scenario, in order.
pub(crate) const METADATA: [&str; 5] = ["create", "stat", "readdir", "rename", "unlink"];
pub(crate) const SMALL: [&str; 2] = ["put 4 KiB", "get 4 KiB"];
pub(crate) const DURABLE: [&str; 4] =
    ["create, durable", "rename, durable", "unlink, durable", "put 4 KiB, durable"];
pub(crate) const STREAM: [&str; 3] = ["stream write", "stream write, synced", "stream read"];
pub(crate) const DEVICES: [&str; 3] =
    ["stream write over devices", "stream write over devices, synced", "stream read over devices"];

/// Amount of work.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct WorkAmount {
    /// Files of all clients together.
    pub(crate) files: u64,
    /// MiB of a stream.
    pub(crate) mib: u64,
    /// Time limit of one step, in seconds.
    pub(crate) step_s: f64,
}

/// Measures one turn of one file system.
struct ScenarioTurn<'a> {
    subject: &'a dyn Subject,
    crew: ClientGroup,
    clients: usize,
    round: usize,
    samples: &'a mut Vec<ScenarioSample>,
}

impl ScenarioTurn<'_> {
    fn measured(&mut self, workload: &'static str, step: FileOperation, letter: char) -> Outcome {
        let before = self.cpu_s()?;
        let (operations, seconds) = self.crew.step(step, letter)?;
        let cpu_s = self.cpu_s()? - before;
        let (round, clients) = (self.round, self.clients);
        let subject = self.subject.name().to_owned();
        self.samples.push(ScenarioSample { round, subject, workload, clients, operations, seconds, cpu_s });
        Ok(())
    }

    fn cpu_s(&self) -> Outcome<f64> {
        let all = self.subject.processes().into_iter().chain([std::process::id()]);
        Ok(all.map(whole_cpu_s).sum::<std::io::Result<f64>>()?)
    }
}

/// Runs one turn of one file system.
pub(crate) fn turn(
    subject: &dyn Subject,
    scenario: Scenario,
    clients: usize,
    round: usize,
    extent: WorkAmount,
    samples: &mut Vec<ScenarioSample>,
) -> Outcome {
    let stream = matches!(scenario, Scenario::Stream | Scenario::Devices);
    let count = if stream { extent.mib } else { extent.files };
    let each = count.div_ceil(clients as u64).max(1);
    let name = format!("t{round}-{clients}-{scenario:?}");
    let at_most = Duration::from_secs_f64(extent.step_s);
    let crew = ClientGroup::new(subject, clients, &name, each, at_most)?;
    let mut turn = ScenarioTurn { subject, crew, clients, round, samples };
    turn.crew.aside(FileOperation::MakeDirectory, 'f', true)?;
    match scenario {
        Scenario::Metadata => {
            turn.measured(METADATA[0], FileOperation::Create, 'f')?;
            thread::sleep(STALE);
            turn.measured(METADATA[1], FileOperation::Stat, 'f')?;
            thread::sleep(STALE);
            turn.measured(METADATA[2], FileOperation::List, 'f')?;
            thread::sleep(STALE);
            turn.measured(METADATA[3], FileOperation::Rename, 'f')?;
            turn.measured(METADATA[4], FileOperation::Unlink, 'r')?;
        }
        Scenario::Small => {
            turn.measured(SMALL[0], FileOperation::Put, 'f')?;
            thread::sleep(STALE);
            turn.measured(SMALL[1], FileOperation::Get, 'f')?;
            turn.crew.aside(FileOperation::Unlink, 'f', false)?;
        }
        Scenario::Durable => {
            turn.crew.be_durable();
            turn.measured(DURABLE[0], FileOperation::Create, 'f')?;
            turn.measured(DURABLE[1], FileOperation::Rename, 'f')?;
            turn.measured(DURABLE[2], FileOperation::Unlink, 'r')?;
            turn.measured(DURABLE[3], FileOperation::Put, 'p')?;
            turn.crew.aside(FileOperation::Unlink, 'p', false)?;
        }
        Scenario::Stream | Scenario::Devices => {
            let names = if scenario == Scenario::Stream { STREAM } else { DEVICES };
            thread::sleep(LET_GO);
            turn.measured(names[0], FileOperation::Write, 'w')?;
            turn.crew.aside(FileOperation::Unlink, 'w', true)?;
            thread::sleep(LET_GO);
            turn.measured(names[1], FileOperation::WriteSync, 's')?;
            turn.measured(names[2], FileOperation::Read, 's')?;
            turn.crew.aside(FileOperation::Unlink, 's', true)?;
        }
        Scenario::Depth | Scenario::Million => return Err("it has no turns".into()),
    }
    turn.crew.aside(FileOperation::RemoveDirectory, 'f', true)
}
