//! Active storage: the measurements of the ASF paper's Figures 4 to 13 on this machine.
//!
//! Does: runs C functions in the real confined engine, on real devices, beside the same code at the
//! client, and prints one table for each group of figures.
//! Does not: report failures by its exit code.
//! Contract: compared items take turns in every round, and a ratio compares the items of one round.
//! The text of the paper is not available: a table names the values of the paper that the design
//! documents quote, and no other.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use sealstone_osd::function::{JobAction, JobState};
use serde::Serialize;
use tokio::runtime::{Builder, Runtime};

use crate::Outcome;
use crate::machine::{CoreWaker, MachineInfo};
use crate::settings::{Common, Stage};
use crate::table::FigureTable;
use crate::targets::Verdict;

mod calls;
mod device;
mod engine;
mod figures;
mod languages;
mod rpc;

use device::ActiveDevice;
use rpc::BuiltFunctions;

/// Threads of the client, as in the real one.
const WORKERS: usize = 2;
/// Defaults of a normal and of a quick measurement.
const ROUNDS: usize = 9;
const ROUNDS_QUICK: usize = 3;
const CALLS: usize = 2000;
const CALLS_QUICK: usize = 100;
const MIB: u64 = 64;
const MIB_QUICK: u64 = 8;
const COUNT_MIB: u64 = 256;
const DEVICES: usize = 8;
const DEVICES_QUICK: usize = 2;
const WINDOW: Duration = Duration::from_millis(1000);
const WINDOW_QUICK: Duration = Duration::from_millis(250);
/// Maximum data of a kernel: a run has 10 s of CPU time.
const MIB_MAX: u64 = 1024;
/// Longest wait for an endless job to start or to end.
const JOB_TIMEOUT_MS: u32 = 10_000;

#[derive(Args)]
pub(crate) struct Active {
    /// Fewer rounds and less data: under a minute, less precise.
    #[arg(long)]
    quick: bool,
    /// Rounds; results are their medians [default: 9, quick: 3].
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// MiB that each function processes, up to 1024 [default: 64, quick: 8].
    #[arg(long, value_name = "MIB")]
    mib: Option<u64>,
    /// MiB that are counted on the device and at the client, up to 1024 [default: 256, quick: 8].
    #[arg(long, value_name = "MIB")]
    count_mib: Option<u64>,
    /// Largest number of devices, up to 8 [default: 8, quick: 2].
    #[arg(long, value_name = "N")]
    devices: Option<usize>,
    /// Only these tables, as in `calls,starts` [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    stage: Stage,
}

/// Measures one table.
type MeasureTable = fn(&ActiveStage) -> figures::MeasuredTable;

/// The tables with their names for `--only`.
const TABLES: [(&str, MeasureTable); 11] = [
    ("aes", figures::local_against_active),
    ("devices", figures::several_devices),
    ("calls", figures::direct_against_calls),
    ("engine", figures::client_against_engine),
    ("count", figures::count_against_get),
    ("java", languages::c_against_java),
    ("python", languages::python),
    ("starts", languages::starts),
    ("empty", calls::empty_and_cold),
    ("cancel", calls::cancellation),
    ("others", calls::other_clients),
];

/// Options with defaults filled in.
#[derive(Clone, Copy, Debug, Serialize)]
struct ActiveSettings {
    rounds: usize,
    calls: usize,
    bytes: u64,
    count_bytes: u64,
    devices: usize,
    window_s: f64,
}

impl Active {
    /// Returns the tables to measure.
    fn selected(&self) -> Outcome<Vec<(&'static str, MeasureTable)>> {
        if let Some(unknown) = self.only.iter().find(|name| TABLES.iter().all(|(table, _)| table != name)) {
            let names: Vec<&str> = TABLES.iter().map(|(name, _)| *name).collect();
            return Err(format!("no table `{unknown}`; there are {}", names.join(", ")).into());
        }
        let is_selected = |name: &str| self.only.is_empty() || self.only.iter().any(|only| only == name);
        Ok(TABLES.into_iter().filter(|(name, _)| is_selected(name)).collect())
    }

    fn settings(&self) -> Outcome<ActiveSettings> {
        let pick = |usual, quick| if self.quick { quick } else { usual };
        let mib = self.mib.unwrap_or(pick(MIB, MIB_QUICK));
        let count_mib = self.count_mib.unwrap_or(pick(COUNT_MIB, MIB_QUICK));
        if ![mib, count_mib].iter().all(|mib| (4..=MIB_MAX).contains(mib)) {
            return Err(format!("--mib and --count-mib are between 4 and {MIB_MAX}").into());
        }
        let devices = self.devices.unwrap_or(if self.quick { DEVICES_QUICK } else { DEVICES });
        if !(1..=DEVICES).contains(&devices) {
            return Err(format!("--devices is between 1 and {DEVICES}").into());
        }
        Ok(ActiveSettings {
            rounds: self.rounds.unwrap_or(if self.quick { ROUNDS_QUICK } else { ROUNDS }).max(1),
            calls: if self.quick { CALLS_QUICK } else { CALLS },
            bytes: mib << 20,
            count_bytes: count_mib << 20,
            devices,
            window_s: if self.quick { WINDOW_QUICK } else { WINDOW }.as_secs_f64(),
        })
    }
}

/// All results.
#[derive(Debug, Serialize)]
struct ActiveResults {
    machine: MachineInfo,
    settings: ActiveSettings,
    tables: Vec<FigureTable>,
    verdicts: Vec<Verdict>,
}

/// The stage of all measurements.
struct ActiveStage {
    settings: ActiveSettings,
    runtime: Runtime,
    /// The first one has all data, the others their share of it.
    devices: Vec<ActiveDevice>,
    built: BuiltFunctions,
    programs: PathBuf,
    folder: PathBuf,
    /// A plain file with the data, and its bytes.
    file: PathBuf,
    data: Bytes,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Active) -> Outcome {
    let settings = arguments.settings()?;
    let selected = arguments.selected()?;
    let mut machine = MachineInfo::look();
    let binary = arguments.common.binary()?;
    let programs = binary.parent().ok_or("the daemon is in no folder")?.to_owned();
    // Without it nothing can be measured.
    drop(engine::zygote(&programs, sealstone_sandbox::EngineKind::C)?);
    let scratch = arguments.stage.scratch()?;
    let folder = scratch.path().to_owned();
    let built = BuiltFunctions::build(&folder)?;
    let data = text(usize::try_from(settings.bytes.max(settings.count_bytes))?);
    let file = folder.join("data");
    std::fs::write(&file, &data)?;
    let code = Bytes::from(std::fs::read(&built.module)?);
    let runtime = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    eprintln!("starting {} devices", settings.devices);
    let mut devices = Vec::new();
    for index in 0..settings.devices {
        // Device 1 to N - 1 process at most this share, when N devices work.
        let share = if index == 0 { data.len() } else { data.len() / (index + 1).next_power_of_two() };
        let share = data.slice(..share);
        let name = format!("active{index}");
        devices.push(runtime.block_on(ActiveDevice::start(&binary, &folder, &name, &code, &share))?);
    }
    let awake = if arguments.stage.let_sleep { None } else { CoreWaker::new() };
    machine.kept_awake = awake.is_some();
    let stage = ActiveStage { settings, runtime, devices, built, programs, folder, file, data };
    let mut tables = Vec::new();
    let mut verdicts = Vec::new();
    for (_, measure) in selected {
        let (table, verdict) = measure(&stage)?;
        eprintln!("{}", table.title);
        tables.push(table);
        verdicts.extend(verdict);
    }
    drop(awake);
    let ActiveStage { devices, runtime, .. } = stage;
    for device in devices {
        drop(device.client);
        device.osd.stop()?;
    }
    drop(runtime);
    machine.look_again();
    let results = ActiveResults { machine, settings, tables, verdicts };
    arguments.common.save(&results)?;
    print(&results);
    Ok(())
}

fn print(results: &ActiveResults) {
    println!("{}", results.machine);
    println!(
        "C functions in the confined engine, CMDRSP, loopback; medians of {} rounds. The text of the paper is not \
         available: its values stand where the design documents quote them.\n",
        results.settings.rounds
    );
    results.tables.iter().for_each(FigureTable::print);
    for verdict in &results.verdicts {
        println!("{}", verdict.line(62));
    }
}

/// Returns text in lines of 128 bytes, the same in each run.
fn text(length: usize) -> Bytes {
    let mut state = 1_u32;
    let line = |number: usize| -> [u8; 128] {
        std::array::from_fn(|at| match at {
            127 => b'\n',
            0..=8 if number.is_multiple_of(16) => b"sealstone"[at],
            _ => {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                b"etaoin shrdlucmfwypvbgk "[(state >> 24) as usize % 24]
            }
        })
    };
    (0..length / 128).flat_map(line).collect::<Vec<u8>>().into()
}

impl ActiveStage {
    /// Returns the folder of the engine programs.
    fn programs(&self) -> &Path {
        &self.programs
    }

    fn first(&self) -> Outcome<&ActiveDevice> {
        Ok(self.devices.first().ok_or("no device")?)
    }

    /// Returns the results of all rounds.
    fn rounds(&self, mut round: impl FnMut(usize) -> Outcome<Vec<f64>>) -> Outcome<Vec<Vec<f64>>> {
        (0..self.settings.rounds).map(&mut round).collect()
    }

    /// Starts an endless job on the first device and waits until it runs.
    async fn running_job(&self) -> Outcome<sealstone_osd::function::JobId> {
        let device = self.first()?;
        let job = device.start_loop().await?;
        let deadline = std::time::Instant::now() + Duration::from_millis(JOB_TIMEOUT_MS.into());
        while device.job(job, JobAction::Status).await?.1.header.state != JobState::Running {
            if std::time::Instant::now() > deadline {
                return Err("a job does not start".into());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_known_lines() {
        let bytes = text(128 * 64);
        assert_eq!(bytes.len(), 128 * 64);
        assert_eq!(bytes.chunks(128).filter(|line| line.starts_with(b"sealstone")).count(), 4);
        assert!(bytes.chunks(128).all(|line| line[127] == b'\n'));
    }

    #[test]
    fn only_selects_tables_by_name() {
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            active: Active,
        }
        let only = |list: &str| {
            let parsed = <Only as clap::Parser>::parse_from(["bench", "--only", list]);
            parsed.active.selected().map(|tables| tables.iter().map(|(name, _)| *name).collect::<Vec<_>>())
        };
        assert_eq!(only("starts,calls").unwrap(), ["calls", "starts"]);
        assert!(only("nothing").unwrap_err().to_string().contains("aes, devices"));
    }
}
