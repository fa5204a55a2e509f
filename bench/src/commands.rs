//! Latency of single commands, and memory of the device for idle connections and cold objects.

use std::path::Path;

use serde::Serialize;
use tokio::runtime::Builder;

use crate::latency::CommandLatency;
use crate::machine::{CoreWaker, MachineInfo};
use crate::objects::{self, DeviceMemory, ListTimes, ReadBesideTcp};
use crate::settings::Commands;
use crate::{Outcome, keys};

/// Threads of the client, as in the real one.
const WORKERS: usize = 2;

/// Target values of the commands.
const SET_KEY_WORKING_US: f64 = 300.0;
const READ_OF_TCP: f64 = 1.15;
const READ_MORE_US: f64 = 15.0;
const IDLE_CONNECTION_BYTES: f64 = 65_536.0;
const COLD_OBJECT_BYTES: f64 = 300.0;

/// Measurements of the OBS paper, in microseconds.
const PAPER: [(&str, f64); 4] = [
    ("SET KEY root", 2962.0),
    ("SET KEY partition", 1922.0),
    ("SET KEY working", 1398.0),
    ("SET MASTER KEY", 28_700.0),
];

#[derive(Serialize)]
struct CommandGoal {
    aim: String,
    measured: String,
    reached: bool,
}

#[derive(Serialize)]
struct CommandResults {
    machine: MachineInfo,
    samples: usize,
    rows: Vec<CommandLatency>,
    listing: ListTimes,
    read: ReadBesideTcp,
    held: DeviceMemory,
    aims: Vec<CommandGoal>,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Commands) -> Outcome {
    if arguments.samples < 100 || arguments.samples > 1_000_000 {
        return Err("--samples is not between 100 and 1000000".into());
    }
    if arguments.connections == 0 || arguments.objects == 0 || arguments.queried == 0 {
        return Err("--connections, --objects and --queried are at least 1".into());
    }
    let binary = arguments.common.binary()?;
    let mut machine = MachineInfo::look();
    let folder = arguments.stage.scratch()?;
    let memory = tempfile::tempdir_in(&arguments.memory.memory_folder)?;
    let runtime = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let awake = if arguments.stage.let_sleep { None } else { CoreWaker::new() };
    machine.kept_awake = awake.is_some();
    let keys =
        |place: &Path, name| keys::measure(&runtime, &binary, &place.join("keys"), name, arguments.samples);
    let mut rows = keys(memory.path(), "in memory")?;
    rows.extend(keys(folder.path(), "on disk")?);
    let measured = objects::measure(&runtime, &binary, &folder.path().join("objects"), arguments)?;
    drop(awake);
    machine.look_again();
    rows.extend(measured.rows);
    let aims = aims(&rows, &measured.read, &measured.held);
    let findings = CommandResults {
        machine,
        samples: arguments.samples,
        rows,
        listing: measured.listing,
        read: measured.read,
        held: measured.held,
        aims,
    };
    arguments.common.save(&findings)?;
    print(&findings);
    Ok(())
}

fn aims(rows: &[CommandLatency], read: &ReadBesideTcp, held: &DeviceMemory) -> Vec<CommandGoal> {
    let aim = |aim: &str, measured: String, reached| CommandGoal { aim: aim.to_owned(), measured, reached };
    let mut aims = Vec::new();
    if let Some(row) = rows.iter().find(|row| row.name == "SET KEY working, in memory") {
        let reached = row.median_us < SET_KEY_WORKING_US;
        aims.push(aim("SET KEY working in less than 300 us without fsync", us(row.median_us), reached));
    }
    let most = READ_OF_TCP * read.tcp_us + READ_MORE_US;
    aims.push(aim(
        "4 KiB read under CMDRSP, depth 1: at most 1.15 times plain TCP and 15 us",
        format!("{} beside {}: at most {}", us(read.read_us), us(read.tcp_us), us(most)),
        read.read_us <= most,
    ));
    aims.push(aim(
        "an idle connection in less than 64 KiB",
        format!("{:.1} KiB", held.bytes_per_idle_connection / 1024.0),
        held.bytes_per_idle_connection < IDLE_CONNECTION_BYTES,
    ));
    aims.push(aim(
        "a cold object in less than 300 bytes of memory",
        format!("{:.1} bytes", held.bytes_per_cold_object),
        held.bytes_per_cold_object < COLD_OBJECT_BYTES,
    ));
    aims
}

fn us(value: f64) -> String {
    format!("{value:.1} us")
}

fn print(findings: &CommandResults) {
    println!("{}", findings.machine);
    println!("one device, one client, loopback, depth 1\n");
    println!(
        "{:34} {:>8} {:>11} {:>11} {:>11}  paper, us",
        "", "samples", "median, us", "p99, us", "least, us"
    );
    for row in &findings.rows {
        let paper = PAPER.iter().find(|(name, _)| row.name.starts_with(name));
        println!(
            "{:34} {:>8} {:>11.1} {:>11.1} {:>11.1}  {}",
            row.name,
            row.samples,
            row.median_us,
            row.p99_us,
            row.least_us,
            paper.map_or(String::new(), |(_, us)| us.to_string())
        );
    }
    let listing = &findings.listing;
    println!(
        "\nLIST of {} objects: {:.2} s, {:.0} ids a second",
        listing.objects,
        listing.seconds,
        listing.objects as f64 / listing.seconds
    );
    println!("4 KiB read under CMDRSP: {} of device CPU\n", us(findings.read.device_cpu_us));
    for aim in &findings.aims {
        let word = if aim.reached { "reached" } else { "not reached" };
        println!("{word:12} {:74} {}", aim.aim, aim.measured);
    }
}
