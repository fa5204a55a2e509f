//! Benchmarks: the cost of protection, relative to the machine's limits.
//!
//! Does: runs one device as a separate process, drives it as a client does, and measures plain TCP
//! beside it.
//! Does not: report failures by its exit code, which is 0 whether targets are reached or not.
//! Contract: compared items are measured in turns of a few dozen milliseconds, so that other load
//! affects all of them alike.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod active;
mod aims;
mod ceiling;
mod client;
mod command_line;
mod commands;
mod contender;
mod copies;
mod credential;
mod daemon;
mod defences;
mod fairness;
mod files;
mod keys;
mod latency;
mod lazy;
mod logins;
mod machine;
mod measure;
mod objects;
mod overhead;
mod pace;
mod plots;
mod process;
mod report;
mod revocation;
mod rotation;
mod settings;
mod statistics;
mod stores;
mod table;
mod targets;
mod trust;
mod workload;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use serde::Serialize;

use crate::client::DeviceClient;
use crate::command_line::BenchCommand;
use crate::daemon::{Osd, StartTimes};
use crate::machine::{CoreWaker, MachineInfo};
use crate::settings::Settings;
use crate::statistics::{MemoryUse, TurnSample, WorkloadResults};
use crate::targets::Verdict;

/// Any error, for display.
type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Benchmarks: the cost of protection, relative to the machine's limits.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: BenchCommand,
}

/// All results of a run.
#[derive(Serialize)]
struct RunResults {
    machine: MachineInfo,
    settings: Settings,
    figures: Vec<WorkloadResults>,
    memory: MemoryUse,
    starts: StartTimes,
    verdicts: Vec<Verdict>,
    /// One sample for each contender, workload and run.
    samples: Vec<TurnSample>,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        BenchCommand::Run(arguments) => arguments.settings().and_then(|settings| run(settings, &arguments)),
        BenchCommand::Commands(arguments) => commands::run(&arguments),
        BenchCommand::Fairness(arguments) => fairness::run(&arguments),
        BenchCommand::Copies(arguments) => copies::run(&arguments),
        BenchCommand::Pace(arguments) => pace::run(&arguments),
        BenchCommand::Aims(arguments) => aims::run(&arguments.folder),
        BenchCommand::Rotation(arguments) => rotation::run(&arguments),
        BenchCommand::Revocation(arguments) => revocation::run(&arguments),
        BenchCommand::Defences(arguments) => defences::run(&arguments),
        BenchCommand::Logins(arguments) => logins::run(&arguments),
        BenchCommand::Trust(arguments) => trust::run(&arguments),
        BenchCommand::Files(arguments) => files::run(&arguments),
        BenchCommand::Stores(arguments) => stores::run(&arguments),
        BenchCommand::Active(arguments) => active::run(&arguments),
        BenchCommand::Lazy(arguments) => lazy::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = error.to_string();
            let mut cause = error.source();
            while let Some(error) = cause {
                text = format!("{text}: {error}");
                cause = error.source();
            }
            eprintln!("sealstone-bench: {text}");
            ExitCode::FAILURE
        }
    }
}

fn run(settings: Settings, arguments: &settings::Run) -> Outcome {
    let mut machine = MachineInfo::look();
    let folder = arguments.stage.scratch()?;
    eprintln!("starting the device and the metadata server {} times each", settings.starts);
    let starts = daemon::measure_starts(&settings, folder.path())?;
    let osd = Osd::new(&settings.binary, &folder.path().join("measured"))?;
    let client = DeviceClient::connect(&osd, &settings)?;
    let awake = if arguments.stage.let_sleep { None } else { CoreWaker::new() };
    machine.kept_awake = awake.is_some();
    if awake.is_none() {
        eprintln!("idle cores sleep: at depth 1 the time to wake one is most of what is measured");
    }
    let measured = measure::all(&settings, &osd, &client)?;
    drop(awake);
    let memory = MemoryUse {
        osd_idle_kib: starts.osd_idle_kib,
        mds_idle_kib: starts.mds_idle_kib,
        osd_peak_after_reads_kib: measured.peak_after_reads_kib,
        osd_peak_kib: measured.peak_kib,
    };
    drop(client);
    osd.stop()?;
    machine.look_again();
    let figures = statistics::of(&settings.grid, &measured.samples);
    let verdicts = targets::of(&figures, &memory, &starts);
    let findings =
        RunResults { machine, settings, figures, memory, starts, verdicts, samples: measured.samples };
    arguments.common.save(&findings)?;
    if let Some(folder) = &arguments.plots {
        plots::draw(folder, &findings.figures)?;
        overhead::draw(folder, &findings.figures)?;
        eprintln!("plots: {}", folder.display());
    }
    let text = match (arguments.algorithms, arguments.tls) {
        (true, _) => report::algorithms(&findings),
        (_, true) => report::tls(&findings),
        _ => report::text(&findings),
    };
    print!("{text}");
    Ok(())
}
