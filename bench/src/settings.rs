//! Options of a run.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tempfile::TempDir;

use crate::Outcome;
use crate::contender::Contender;
use crate::workload::{Workload, algorithm_grid, grid};

/// Runs of a normal and of a quick measurement.
const RUNS: usize = 5;
const RUNS_QUICK: usize = 3;
/// Seconds for each contender in each workload of each run.
const SECONDS: f64 = 0.4;
const SECONDS_QUICK: f64 = 0.06;
/// Longest turn of a contender, in seconds.
const TURN_MAX: f64 = 0.05;
/// Starts of each daemon.
const STARTS: usize = 5;
const STARTS_QUICK: usize = 3;
/// Idle seconds of a daemon before its memory is measured.
const IDLE_S: u64 = 3;
/// Bytes of each of the two objects, one read and one written.
const OBJECT_BYTES: u64 = 128 << 20;

#[derive(Args)]
pub(crate) struct Aims {
    /// Folder with the result files of a run.
    #[arg(value_name = "DIR", default_value = "target/bench")]
    pub(crate) folder: PathBuf,
}

/// Options of every part.
#[derive(Args)]
pub(crate) struct Common {
    /// Write all results, raw samples included, to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// The program to measure [default: `sealstone` beside this one].
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

impl Common {
    /// Returns the program to measure.
    pub(crate) fn binary(&self) -> Outcome<PathBuf> {
        let binary = match &self.binary {
            Some(binary) => binary.clone(),
            None => std::env::current_exe()?.with_file_name("sealstone"),
        };
        if binary.is_file() {
            return Ok(binary);
        }
        Err(format!("{} is not there; build it, or use --binary", binary.display()).into())
    }

    /// Writes the results of a part, if requested.
    pub(crate) fn save(&self, findings: &impl Serialize) -> Outcome {
        let Some(file) = &self.json else { return Ok(()) };
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(file, serde_json::to_vec_pretty(findings)?)?;
        eprintln!("everything: {}", file.display());
        Ok(())
    }
}

/// Environment of a part.
#[derive(Args)]
pub(crate) struct Stage {
    /// Let idle cores sleep while measuring; otherwise they are kept awake, which needs root.
    #[arg(long)]
    pub(crate) let_sleep: bool,
    /// Folder of the daemons' data, on a disk whose sync cost counts [default: the system's folder
    /// for temporary files].
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

impl Stage {
    /// Creates a temporary folder there, removed when dropped.
    pub(crate) fn scratch(&self) -> Outcome<TempDir> {
        Ok(match &self.folder {
            Some(parent) => tempfile::tempdir_in(parent)?,
            None => tempfile::tempdir()?,
        })
    }
}

/// Folder of a device's data without the cost of syncs.
#[derive(Args)]
pub(crate) struct InMemory {
    /// A file system in memory.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub(crate) memory_folder: PathBuf,
}

#[derive(Args)]
pub(crate) struct Logins {
    /// Logins of each kind.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) samples: usize,
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) stage: Stage,
}

#[derive(Args)]
pub(crate) struct Stores {
    /// Samples of each operation.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) samples: usize,
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) stage: Stage,
}

#[derive(Args)]
pub(crate) struct Trust {
    /// Samples of each command; file operations half as many.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) samples: usize,
    /// File that `logins --json` wrote [default: logins.json beside the file of --json].
    #[arg(long, value_name = "FILE")]
    pub(crate) logins: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) stage: Stage,
    #[command(flatten)]
    pub(crate) memory: InMemory,
}

#[derive(Args)]
pub(crate) struct Commands {
    /// Samples of each command.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub(crate) samples: usize,
    /// Objects that are created, listed, and left cold.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(crate) objects: u64,
    /// Objects that are queried.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) queried: u64,
    /// Connections that are opened and left idle.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) connections: usize,
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) stage: Stage,
    #[command(flatten)]
    pub(crate) memory: InMemory,
}

#[derive(Args)]
pub(crate) struct Run {
    /// Fewer and shorter runs: under a minute, less precise.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Runs; results are their medians [default: 5, quick: 3].
    #[arg(long, value_name = "N")]
    runs: Option<usize>,
    /// Seconds for each method in each workload of each run [default: 0.4, quick: 0.06].
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) stage: Stage,
    /// Starts of each daemon [default: 5, quick: 3].
    #[arg(long, value_name = "N")]
    starts: Option<usize>,
    /// Only workloads whose name contains this, as in `read-sequential-64k`; `$` stands for the end
    /// of the name.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Measure ALLDATA with each of its algorithms, aligned and unaligned, beside NOSEC.
    #[arg(long)]
    pub(crate) algorithms: bool,
    /// Measure each method in plain text and inside TLS.
    #[arg(long, conflicts_with = "algorithms")]
    pub(crate) tls: bool,
    /// Draw the results of `--algorithms` into this folder, as SVG.
    #[arg(long, value_name = "DIR", requires = "algorithms")]
    pub(crate) plots: Option<PathBuf>,
    /// Only these, as in `NOSEC,CMDRSP` [default: TCP and all four methods; with --algorithms NOSEC
    /// and all algorithms].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = Contender::parse)]
    contenders: Vec<Contender>,
}

/// Options with defaults filled in.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Settings {
    pub(crate) binary: PathBuf,
    pub(crate) runs: usize,
    pub(crate) seconds: f64,
    pub(crate) turn_s: f64,
    pub(crate) starts: usize,
    pub(crate) idle_s: u64,
    pub(crate) object_bytes: u64,
    pub(crate) only: String,
    pub(crate) contenders: Vec<Contender>,
    /// Included in each sample.
    #[serde(skip)]
    pub(crate) grid: Vec<Workload>,
}

impl Run {
    pub(crate) fn settings(&self) -> Outcome<Settings> {
        let binary = self.common.binary()?;
        let pick = |quick, usual| if self.quick { quick } else { usual };
        let seconds = self.seconds.unwrap_or(if self.quick { SECONDS_QUICK } else { SECONDS });
        if !(0.001..=3600.0).contains(&seconds) {
            return Err("--seconds is not between 0.001 and 3600".into());
        }
        Ok(Settings {
            binary,
            runs: self.runs.unwrap_or(pick(RUNS_QUICK, RUNS)).max(1),
            seconds,
            turn_s: seconds / (seconds / TURN_MAX).ceil(),
            starts: self.starts.unwrap_or(pick(STARTS_QUICK, STARTS)).max(1),
            idle_s: IDLE_S,
            object_bytes: OBJECT_BYTES,
            only: self.only.clone().unwrap_or_default(),
            contenders: match &self.contenders[..] {
                [] if self.algorithms => Contender::ALGORITHMS.to_vec(),
                [] if self.tls => Contender::TLS.to_vec(),
                [] => Contender::ALL.to_vec(),
                some => some.to_vec(),
            },
            grid: if self.algorithms { algorithm_grid().collect() } else { grid().collect() },
        })
    }
}

impl Settings {
    /// Returns the length of a turn.
    pub(crate) fn turn(&self) -> Duration {
        Duration::from_secs_f64(self.turn_s)
    }

    /// Whether this workload is selected.
    pub(crate) fn wants(&self, workload: &Workload) -> bool {
        format!("{}$", workload.name()).contains(&self.only)
    }

    /// Returns the turns of each contender in each workload of each run.
    pub(crate) fn turns(&self) -> usize {
        (self.seconds / self.turn_s).round() as usize
    }
}
