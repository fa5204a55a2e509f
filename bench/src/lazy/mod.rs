//! Protection of block units: the measurements of the LAZY paper's Figures 2 and 6 and Tables 3
//! and 4 on this machine.
//!
//! Does: runs clients against real devices, one process for each level, and prints tables beside
//! the paper's values. M-lazy and E2E are measured too, which the paper does not have.
//! Does not: report failures by its exit code.
//! Contract: compared items take turns in every round, and a ratio compares the items of one round.
//! The text of the paper is not available: a table names the values of the paper that the design
//! documents quote, and no other. S1-1u and S2-1u are stand-ins in user space for IPsec.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use sealstone_block_protection::ProtectedBlock;
use serde::Serialize;
use tokio::runtime::{Builder, Runtime};

use crate::Outcome;
use crate::machine::{CoreWaker, MachineInfo};
use crate::settings::{Common, Stage};
use crate::table::FigureTable;
use crate::targets::Verdict;

mod channel;
mod device;
mod file_system;
mod level;
mod plots;
mod shared_disk;
mod storage;
mod throughput;
mod turn;

use level::{BenchLevel, LEVELS};

/// Threads of the clients.
const WORKERS: usize = 2;
/// Defaults of a normal and of a quick measurement.
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 1;
const TURN: Duration = Duration::from_millis(400);
const TURN_QUICK: Duration = Duration::from_millis(100);
const SPAN_MIB: u64 = 64;
const SPAN_MIB_QUICK: u64 = 8;
const SIZES: [usize; 3] = [512, 8 << 10, 64 << 10];
const SIZES_QUICK: [usize; 1] = [64 << 10];
const CLIENTS: [usize; 4] = [1, 2, 4, 8];
const CLIENTS_QUICK: [usize; 2] = [1, 8];
/// Maximum number of clients: their sessions are open at the same time.
const CLIENTS_MAX: usize = 16;
/// Limits of the used part of a unit, in MiB.
const SPAN_MIB_MAX: u64 = 1024;
/// Largest request.
const SIZE_MAX: usize = 1 << 20;
/// The used part of the unit with blocks of 512 bytes is smaller by this factor.
const SMALL_SPAN_DIVISOR: u64 = 4;

#[derive(Args)]
pub(crate) struct Lazy {
    /// Fewer rounds, sizes and clients: about a minute, less precise.
    #[arg(long)]
    quick: bool,
    /// Rounds; results are their medians [default: 5, quick: 1].
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Milliseconds of one turn [default: 400, quick: 100].
    #[arg(long, value_name = "MS")]
    turn: Option<u64>,
    /// Request sizes in bytes, as in `512,65536`; powers of two from 512 to 1048576
    /// [default: 512,8192,65536, quick: 65536].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    sizes: Vec<usize>,
    /// Numbers of clients, up to 16 [default: 1,2,4,8, quick: 1,8].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    clients: Vec<usize>,
    /// Only these levels, as in `S0,S1-1u,S1-2,S2-5+safe,M-lazy,E2E` [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    levels: Vec<String>,
    /// Used part of each unit in MiB, up to 1024 [default: 64, quick: 8].
    #[arg(long, value_name = "MIB")]
    mib: Option<u64>,
    /// Only these parts: levels, channel, shared, files, keys, window [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    only: Vec<LazyPart>,
    /// A `sealstone` that was built without AES instructions, measured as well: build it with
    /// RUSTFLAGS='--cfg aes_backend="soft"'.
    #[arg(long, value_name = "PATH")]
    software_aes: Option<PathBuf>,
    /// Draw curves into this folder.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    stage: Stage,
}

/// One part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LazyPart {
    /// Figure 6: throughput and processor time of each level.
    Levels,
    /// Figure 2: throughput of a protected stream by record size.
    Channel,
    /// Table 3: two initiators on one unit.
    Shared,
    /// Table 4: dbench on a file system on the unit.
    Files,
    /// Space of keys and versions.
    Keys,
    /// Time from a write to its verification.
    Window,
}

/// Options with defaults filled in.
#[derive(Clone, Debug, Serialize)]
struct LazySettings {
    rounds: usize,
    turn_s: f64,
    sizes: Vec<usize>,
    clients: Vec<usize>,
    levels: Vec<&'static str>,
    span_bytes: u64,
    is_quick: bool,
}

impl LazySettings {
    /// Returns the used bytes of the unit with these blocks.
    const fn span(&self, block: ProtectedBlock) -> u64 {
        match block {
            ProtectedBlock::B512 => self.span_bytes / SMALL_SPAN_DIVISOR,
            ProtectedBlock::B4096 => self.span_bytes,
        }
    }
}

impl Lazy {
    fn settings(&self) -> Outcome<LazySettings> {
        let pick = |usual, quick| if self.quick { quick } else { usual };
        let list = |given: &[usize], usual: &[usize], quick: &[usize]| match (given, self.quick) {
            ([], false) => usual.to_vec(),
            ([], true) => quick.to_vec(),
            _ => given.to_vec(),
        };
        let sizes = list(&self.sizes, &SIZES, &SIZES_QUICK);
        let is_size = |bytes: &usize| (512..=SIZE_MAX).contains(bytes) && bytes.is_power_of_two();
        if !sizes.iter().all(is_size) {
            return Err(format!("--sizes are powers of two from 512 to {SIZE_MAX}").into());
        }
        let clients = list(&self.clients, &CLIENTS, &CLIENTS_QUICK);
        if !clients.iter().all(|clients| (1..=CLIENTS_MAX).contains(clients)) {
            return Err(format!("--clients are 1 to {CLIENTS_MAX}").into());
        }
        let mib = self.mib.unwrap_or(pick(SPAN_MIB, SPAN_MIB_QUICK));
        if !(SPAN_MIB_QUICK..=SPAN_MIB_MAX).contains(&mib) {
            return Err(format!("--mib is {SPAN_MIB_QUICK} to {SPAN_MIB_MAX}").into());
        }
        let most = |list: &[usize]| list.iter().copied().max().unwrap_or(1) as u64;
        if most(&sizes) * most(&clients) > mib << 20 {
            return Err("--mib is too small: each client needs a part of at least one request".into());
        }
        let turn = self.turn.map_or(if self.quick { TURN_QUICK } else { TURN }, Duration::from_millis);
        if !(Duration::from_millis(10)..=Duration::from_secs(60)).contains(&turn) {
            return Err("--turn is 10 to 60000".into());
        }
        let all = || LEVELS.iter().map(|level| level.name);
        let mut levels = Vec::new();
        for name in &self.levels {
            let known = BenchLevel::named(name).ok_or_else(|| {
                format!("no level `{name}`; there are {}", all().collect::<Vec<_>>().join(", "))
            })?;
            levels.push(known.name);
        }
        Ok(LazySettings {
            rounds: self.rounds.unwrap_or(if self.quick { ROUNDS_QUICK } else { ROUNDS }).max(1),
            turn_s: turn.as_secs_f64(),
            sizes,
            clients,
            levels: if levels.is_empty() { all().collect() } else { levels },
            span_bytes: mib << 20,
            is_quick: self.quick,
        })
    }

    fn has(&self, part: LazyPart) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

/// Settings, program and folder of one part.
struct LazyStage {
    settings: LazySettings,
    runtime: Runtime,
    binary: PathBuf,
    folder: PathBuf,
}

impl LazyStage {
    /// Creates the folder, which must not exist.
    fn new(settings: &LazySettings, binary: &Path, folder: PathBuf) -> Outcome<Self> {
        std::fs::create_dir(&folder)?;
        let runtime = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
        Ok(Self { settings: settings.clone(), runtime, binary: binary.to_owned(), folder })
    }

    /// Returns the selected levels.
    fn levels(&self) -> impl Iterator<Item = &'static BenchLevel> {
        self.settings.levels.iter().filter_map(|name| BenchLevel::named(name))
    }
}

/// All results.
#[derive(Serialize)]
struct LazyResults {
    machine: MachineInfo,
    settings: LazySettings,
    levels: throughput::LevelResults,
    /// The levels with a device that has no AES instructions.
    software_aes: throughput::LevelResults,
    tables: Vec<FigureTable>,
    verdicts: Vec<Verdict>,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Lazy) -> Outcome {
    let settings = arguments.settings()?;
    let mut machine = MachineInfo::look();
    let binary = arguments.common.binary()?;
    let scratch = arguments.stage.scratch()?;
    let awake = if arguments.stage.let_sleep { None } else { CoreWaker::new() };
    machine.kept_awake = awake.is_some();
    let stage = |name: &str, binary: &Path| LazyStage::new(&settings, binary, scratch.path().join(name));
    let (mut tables, mut verdicts) = (Vec::new(), Vec::new());
    let mut levels = throughput::LevelResults::default();
    let mut software_aes = throughput::LevelResults::default();
    if arguments.has(LazyPart::Channel) {
        let (channel, judged) = channel::measure(&settings)?;
        tables.push(channel);
        verdicts.extend(judged);
    }
    if arguments.has(LazyPart::Levels) {
        levels = throughput::measure(&stage("levels", &binary)?)?;
        tables.extend(levels.tables());
        verdicts.extend(levels.verdicts());
        if let Some(software) = &arguments.software_aes {
            software_aes = throughput::measure(&stage("software", software)?)?;
            tables.extend(throughput::hardware_tables(&levels, &software_aes));
        }
    }
    let parts: [(LazyPart, &str, MeasurePart); 4] = [
        (LazyPart::Shared, "shared", shared_disk::measure),
        (LazyPart::Files, "files", file_system::measure),
        (LazyPart::Keys, "keys", storage::keys),
        (LazyPart::Window, "window", storage::window),
    ];
    for (part, name, measure) in parts {
        if arguments.has(part) {
            let (table, judged) = measure(&stage(name, &binary)?)?;
            tables.push(table);
            verdicts.extend(judged);
        }
    }
    drop(awake);
    machine.look_again();
    if let Some(folder) = &arguments.plots {
        plots::draw(folder, &levels, &tables)?;
        eprintln!("plots: {}", folder.display());
    }
    let results = LazyResults { machine, settings, levels, software_aes, tables, verdicts };
    arguments.common.save(&results)?;
    print(&results);
    Ok(())
}

/// Measures one part.
type MeasurePart = fn(&LazyStage) -> MeasuredPart;
type MeasuredPart = Outcome<(FigureTable, Vec<Verdict>)>;

fn print(results: &LazyResults) {
    println!("{}", results.machine);
    println!(
        "block units, loopback, CHAP without TLS; medians of {} rounds; clients in one process, each level with a device of \
         its own. S1-1u and S2-1u are stand-ins for IPsec: records of 16 KiB in user space. The text of the paper is not \
         available: its values stand where the design documents quote them.\n",
        results.settings.rounds
    );
    results.tables.iter().for_each(FigureTable::print);
    for verdict in &results.verdicts {
        println!("{}", verdict.line(80));
    }
}

/// Returns a progress bar on a terminal.
fn progress(what: &'static str, steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{prefix:8} [{bar:30}] {pos}/{len} {eta:>4} {msg}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.with_prefix(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Only {
        #[command(flatten)]
        lazy: Lazy,
    }

    fn settings(arguments: &[&str]) -> Outcome<LazySettings> {
        let all = [&["bench"], arguments].concat();
        <Only as clap::Parser>::try_parse_from(all)?.lazy.settings()
    }

    #[test]
    fn options_select_sizes_clients_and_levels() {
        let usual = settings(&[]).unwrap();
        assert_eq!((usual.sizes.len(), usual.clients.len(), usual.levels.len()), (3, 4, LEVELS.len()));
        let chosen =
            settings(&["--sizes", "512,65536", "--clients", "3", "--levels", "S0,S2-5+safe"]).unwrap();
        assert_eq!(
            (chosen.sizes, chosen.clients, chosen.levels),
            (vec![512, 65_536], vec![3], vec!["S0", "S2-5+safe"])
        );
        let quick = settings(&["--quick"]).unwrap();
        assert_eq!((quick.rounds, quick.sizes), (1, vec![65_536]));
    }

    #[test]
    fn options_out_of_range_are_refused() {
        for bad in [
            ["--sizes", "500"],
            ["--sizes", "2097152"],
            ["--clients", "0"],
            ["--clients", "17"],
            ["--mib", "4096"],
            ["--turn", "1"],
            ["--only", "nothing"],
        ] {
            assert!(settings(&bad).is_err(), "{bad:?}");
        }
        let too_small = ["--mib", "8", "--sizes", "1048576", "--clients", "16"];
        assert!(settings(&too_small).unwrap_err().to_string().contains("--mib is too small"));
        assert!(settings(&["--levels", "S9"]).unwrap_err().to_string().contains("S0, S1-1u"));
    }
}
