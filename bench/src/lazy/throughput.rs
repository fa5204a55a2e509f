//! Throughput and processor time of every level: the paper's Figure 6.
//!
//! Contract: in each round the levels take turns in random order; a ratio compares turns of one
//! round. Reads come before writes, so that the paper's profile has no unverified versions to read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use sealstone_block_protection::ProtectedBlock;
use serde::Serialize;

use super::device::{BenchDisk, LevelDevice};
use super::level::{END_TO_END, LEVELS, MODERN, PLAIN};
use super::turn::{self, ClientTurn, LevelSample};
use super::{LazySettings, LazyStage};
use crate::Outcome;
use crate::measure::shuffle;
use crate::plots::Curve;
use crate::statistics::ContenderRatio;
use crate::table::FigureTable;
use crate::targets::Verdict;
use crate::workload::{Direction, Pattern, Workload, median};

/// Requests in flight of each client, as in the paper.
const DEPTH: usize = 16;
/// Size at which the levels are judged.
const JUDGED: usize = 64 << 10;
/// Maximum CPU of the server relative to the eager level.
const LAZY_MAC_CPU_MAX: f64 = 0.35;
const LAZY_CIPHER_MAC_CPU_MAX: f64 = 0.25;
/// Minimum throughput of end-to-end protection relative to none.
const END_TO_END_READ_MIN: f64 = 0.8;
const END_TO_END_WRITE_MIN: f64 = 0.7;
/// Maximum difference of the server's CPU with end-to-end protection.
const END_TO_END_CPU_MAX: f64 = 1.05;

/// Result of one level in one workload with some clients.
#[derive(Debug, Serialize)]
pub(super) struct LevelResult {
    pub(super) level: &'static str,
    pub(super) workload: String,
    #[serde(flatten)]
    pub(super) shape: Workload,
    pub(super) clients: usize,
    /// Median over rounds.
    pub(super) mib_per_s: f64,
    /// Ratio to the rate of S0 in the same round.
    pub(super) to_plain: ContenderRatio,
    /// CPU seconds per GiB, over all rounds.
    pub(super) server_cpu_s_per_gib: f64,
    pub(super) client_cpu_s_per_gib: f64,
}

/// All results of the comparison.
#[derive(Debug, Default, Serialize)]
pub(super) struct LevelResults {
    pub(super) results: Vec<LevelResult>,
    pub(super) samples: Vec<LevelSample>,
}

/// Returns the block size of the unit for requests of this size.
const fn block_for(bytes: usize) -> ProtectedBlock {
    if bytes < 4096 { ProtectedBlock::B512 } else { ProtectedBlock::B4096 }
}

/// Returns the workloads in the order of measurement.
fn workloads(settings: &LazySettings) -> Vec<Workload> {
    let mut workloads = Vec::new();
    for direction in [Direction::Read, Direction::Write] {
        for pattern in [Pattern::Sequential, Pattern::Random] {
            for &bytes in &settings.sizes {
                workloads.push(Workload { direction, pattern, bytes, depth: DEPTH });
            }
        }
    }
    workloads
}

/// A device and the sessions of its clients.
struct LevelClients {
    device: LevelDevice,
    /// By the bytes of the unit's blocks.
    disks: BTreeMap<usize, Vec<Arc<BenchDisk>>>,
}

impl LevelClients {
    /// Starts a device, opens sessions and writes the blocks that are read.
    async fn start(stage: &LazyStage, device: LevelDevice) -> Outcome<Self> {
        let mut disks = BTreeMap::new();
        for block in [ProtectedBlock::B512, ProtectedBlock::B4096] {
            let is_used = stage.settings.sizes.iter().any(|bytes| block_for(*bytes) == block);
            if !is_used || (block == ProtectedBlock::B512 && device.level.is_end_to_end) {
                continue;
            }
            let most = stage.settings.clients.iter().copied().max().unwrap_or(1);
            let count = if device.level.is_shared() { most } else { 1 };
            let mut clients = Vec::new();
            for _ in 0..count {
                clients.push(Arc::new(device.connect(block).await?));
            }
            let span = stage.settings.span(block);
            turn::fill(&clients[0], span).await?;
            if device.level.is_paper_profile() {
                turn::read_all(&clients[0], span).await?;
            }
            disks.insert(block.bytes(), clients);
        }
        Ok(Self { device, disks })
    }

    /// Runs one turn; `None` if the level cannot run it.
    async fn turn(
        &self,
        settings: &LazySettings,
        workload: &Workload,
        clients: usize,
        round: usize,
    ) -> Outcome<Option<LevelSample>> {
        let block = block_for(workload.bytes);
        let Some(disks) = self.disks.get(&block.bytes()).and_then(|disks| disks.get(..clients)) else {
            return Ok(None);
        };
        let time = Duration::from_secs_f64(settings.turn_s);
        let span = settings.span(block);
        let turn = ClientTurn { workload, time: time / 8, span, seed: round as u64 + 2, bytes_per_s: 0 };
        turn::run_clients(disks, turn).await?;
        if workload.direction == Direction::Write {
            disks[0].flush().await?;
        }
        let sample = turn::measure(&self.device, disks, ClientTurn { time, ..turn }, round).await?;
        if workload.direction == Direction::Write && self.device.level.is_paper_profile() {
            // The log would fill up, and its verification would disturb the next turns.
            disks[0].unmap(0, span).await?;
        }
        Ok(Some(sample))
    }
}

/// Measures all workloads.
pub(super) fn measure(stage: &LazyStage) -> Outcome<LevelResults> {
    let settings = &stage.settings;
    let mut levels = Vec::new();
    for level in stage.levels() {
        let device = LevelDevice::start(&stage.binary, &stage.folder, level)?;
        levels.push(stage.runtime.block_on(LevelClients::start(stage, device))?);
    }
    let workloads = workloads(settings);
    let turns = workloads.len() * settings.clients.len() * settings.rounds * levels.len();
    let bar = super::progress("levels", turns);
    let samples = stage.runtime.block_on(turns_of(settings, &levels, &workloads, &bar))?;
    bar.finish_and_clear();
    for LevelClients { device, disks } in levels {
        drop(disks);
        device.stop()?;
    }
    let results = results(&samples);
    Ok(LevelResults { results, samples })
}

async fn turns_of(
    settings: &LazySettings,
    levels: &[LevelClients],
    workloads: &[Workload],
    bar: &ProgressBar,
) -> Outcome<Vec<LevelSample>> {
    let mut samples = Vec::new();
    let mut order: Vec<usize> = (0..levels.len()).collect();
    for workload in workloads {
        for &clients in &settings.clients {
            bar.set_message(format!("{}, {clients} clients", workload.name()));
            for round in 0..settings.rounds {
                shuffle(&mut order, round as u64 + 2);
                for &at in &order {
                    samples.extend(levels[at].turn(settings, workload, clients, round).await?);
                    bar.inc(1);
                }
            }
        }
    }
    Ok(samples)
}

/// Computes the results: workloads in the order of measurement, levels in their own.
fn results(samples: &[LevelSample]) -> Vec<LevelResult> {
    let place = |name: &str| LEVELS.iter().position(|level| level.name == name);
    let mut results = unsorted_results(samples);
    for cell in results.chunk_by_mut(|one, next| (one.shape, one.clients) == (next.shape, next.clients)) {
        cell.sort_by_key(|result| place(result.level));
    }
    results
}

fn unsorted_results(samples: &[LevelSample]) -> Vec<LevelResult> {
    let cell = |sample: &LevelSample| (sample.workload, sample.clients);
    let mut results: Vec<LevelResult> = Vec::new();
    for sample in samples {
        let is_known = |known: &LevelResult| {
            (known.shape, known.clients, known.level) == (sample.workload, sample.clients, sample.level)
        };
        if results.iter().any(is_known) {
            continue;
        }
        let of = |level: &'static str| {
            samples.iter().filter(move |other| cell(other) == cell(sample) && other.level == level)
        };
        let plain: BTreeMap<usize, f64> = of(PLAIN).map(|other| (other.round, other.mib_per_s())).collect();
        let ratios =
            of(sample.level).filter_map(|other| Some(other.mib_per_s() / plain.get(&other.round)?)).collect();
        let gib: f64 = of(sample.level).map(LevelSample::gib).sum();
        let rate = |value: fn(&LevelSample) -> f64| of(sample.level).map(value).sum::<f64>() / gib;
        results.push(LevelResult {
            level: sample.level,
            workload: sample.workload.name(),
            shape: sample.workload,
            clients: sample.clients,
            mib_per_s: median(&mut of(sample.level).map(LevelSample::mib_per_s).collect::<Vec<_>>()),
            to_plain: ContenderRatio::of(ratios),
            server_cpu_s_per_gib: rate(|sample| sample.server_cpu_s),
            client_cpu_s_per_gib: rate(|sample| sample.client_cpu_s),
        });
    }
    results
}

/// Results of all levels in one workload with some clients.
struct ComparedLevels<'a> {
    name: String,
    results: Vec<&'a LevelResult>,
}

impl ComparedLevels<'_> {
    fn of(&self, level: &str) -> Option<&LevelResult> {
        self.results.iter().copied().find(|result| result.level == level)
    }

    /// Returns one value of a level relative to another one.
    fn ratio(&self, level: &str, other: &str, value: fn(&LevelResult) -> f64) -> Option<f64> {
        Some(value(self.of(level)?) / value(self.of(other)?)).filter(|ratio| ratio.is_finite())
    }
}

const fn rate(result: &LevelResult) -> f64 {
    result.mib_per_s
}

const fn server_cpu(result: &LevelResult) -> f64 {
    result.server_cpu_s_per_gib
}

impl LevelResults {
    /// Returns the results of the judged size, by workload and clients.
    fn judged(&self, direction: Direction) -> Vec<ComparedLevels<'_>> {
        let mut all: BTreeMap<(String, usize), Vec<&LevelResult>> = BTreeMap::new();
        for result in self
            .results
            .iter()
            .filter(|result| result.shape.bytes == JUDGED && result.shape.direction == direction)
        {
            all.entry((result.workload.clone(), result.clients)).or_default().push(result);
        }
        let named = |((workload, clients), results): ((String, usize), _)| ComparedLevels {
            name: format!("{workload}, {clients} clients"),
            results,
        };
        all.into_iter().map(named).collect()
    }

    /// Returns a table for each workload and number of clients.
    pub(super) fn tables(&self) -> Vec<FigureTable> {
        let mut tables: Vec<FigureTable> = Vec::new();
        for result in &self.results {
            let title = format!("Figure 6: {}, {} clients", result.workload, result.clients);
            if tables.last().is_none_or(|table| table.title != title) {
                let columns = ["MiB/s", "of S0, %", "95 % from", "to", "server s/GiB", "client s/GiB"];
                tables.push(FigureTable::new(&title, paper_values(result), &columns));
            }
            let [low, high] = result.to_plain.interval;
            let values = [
                result.mib_per_s,
                100.0 * result.to_plain.median,
                100.0 * low,
                100.0 * high,
                result.server_cpu_s_per_gib,
                result.client_cpu_s_per_gib,
            ];
            if let Some(table) = tables.last_mut() {
                table.add(result.level, &[values.to_vec()]);
            }
        }
        tables
    }

    /// Returns curves of MiB/s by clients: for each direction and pattern, a panel for each size.
    pub(super) fn curves(&self) -> BTreeMap<String, Vec<(String, Vec<Curve>)>> {
        let mut files: BTreeMap<String, Vec<(String, Vec<Curve>)>> = BTreeMap::new();
        for result in &self.results {
            let direction = result.shape.direction.name();
            let order = if result.shape.pattern == Pattern::Random { "random" } else { "sequential" };
            let panels = files.entry(format!("{direction}-{order}")).or_default();
            let title = format!("{}, MiB/s", result.workload);
            if panels.last().is_none_or(|(last, _)| *last != title) {
                panels.push((title, Vec::new()));
            }
            let Some((_, curves)) = panels.last_mut() else { continue };
            let point = (result.clients as f64, result.mib_per_s);
            match curves.iter_mut().find(|(level, _)| level == result.level) {
                Some((_, points)) => points.push(point),
                None => curves.push((result.level.to_owned(), vec![point])),
            }
        }
        files
    }

    /// Returns the verdicts.
    pub(super) fn verdicts(&self) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for (direction, what) in [(Direction::Read, "reads"), (Direction::Write, "writes")] {
            let all = self.judged(direction);
            for safe in ["", "+safe"] {
                verdicts.extend(cpu_verdicts(&all, what, safe));
                verdicts.extend(order_verdicts(&all, what, safe));
            }
            verdicts.extend(modern_verdicts(&all, what));
            let minimum =
                if direction == Direction::Read { END_TO_END_READ_MIN } else { END_TO_END_WRITE_MIN };
            verdicts.extend(end_to_end_verdicts(&all, what, minimum));
        }
        verdicts
    }
}

/// Returns the values of the paper that the design documents quote.
const fn paper_values(result: &LevelResult) -> &'static str {
    match (result.shape.bytes, result.shape.direction) {
        (JUDGED, Direction::Read) => {
            "lazy against eager: S1-2 +46 % of S1-1, S2-5 +40 % of S2-1, with IPsec in the kernel"
        }
        _ => "the design documents quote no value",
    }
}

/// Returns what AES instructions of the device gain: the paper's levels with crypto hardware.
pub(super) fn hardware_tables(hardware: &LevelResults, software: &LevelResults) -> Vec<FigureTable> {
    const PAIRS: [(&str, &str, &str); 5] = [
        ("S2-1u", "S2-2", "S2-1"),
        ("S2-3", "S2-4", "S2-3"),
        ("S2-3+safe", "S2-4+safe", "S2-3+safe"),
        ("S2-5", "S2-6", "S2-5"),
        ("S2-5+safe", "S2-6+safe", "S2-5+safe"),
    ];
    let mut tables: Vec<FigureTable> = Vec::new();
    for result in &software.results {
        let Some((_, with, without)) = PAIRS.iter().find(|(level, ..)| *level == result.level) else {
            continue;
        };
        let is_same = |other: &&LevelResult| {
            (other.level, other.clients) == (result.level, result.clients) && other.shape == result.shape
        };
        let Some(fast) = hardware.results.iter().find(is_same) else { continue };
        let title =
            format!("AES instructions of the device: {}, {} clients", result.workload, result.clients);
        if tables.last().is_none_or(|table| table.title != title) {
            let paper =
                "S2-2, S2-4 and S2-6 have crypto hardware; here AES-NI. The client has AES-NI in all rows";
            tables.push(FigureTable::new(&title, paper, &["MiB/s", "server s/GiB", "client s/GiB"]));
        }
        let Some(table) = tables.last_mut() else { continue };
        for (name, row) in [(format!("{with} (AES-NI)"), fast), (format!("{without} (software)"), result)] {
            let values = vec![row.mib_per_s, row.server_cpu_s_per_gib, row.client_cpu_s_per_gib];
            table.add(&name, &[values]);
        }
    }
    tables
}

/// Judges values that must not exceed a limit.
fn at_most(aim: String, mut values: Vec<(f64, &str)>, limit: f64) -> Option<Verdict> {
    values.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let (most, name) = values.first()?;
    let fits = values.iter().filter(|(value, _)| *value <= limit).count();
    let measured = format!("{fits} of {}; most {most:.2} ({name})", values.len());
    Some(Verdict { aim, reached: fits == values.len(), measured })
}

fn cpu_verdicts(all: &[ComparedLevels<'_>], what: &str, safe: &str) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for (lazy, eager, limit) in
        [("S1-2", "S1-1u", LAZY_MAC_CPU_MAX), ("S2-5", "S2-1u", LAZY_CIPHER_MAC_CPU_MAX)]
    {
        let lazy = format!("{lazy}{safe}");
        let ratios = all
            .iter()
            .filter_map(|one| Some((one.ratio(&lazy, eager, server_cpu)?, one.name.as_str())))
            .collect();
        let aim = format!("{what} of 64 KiB: server CPU of {lazy} at most {limit} of {eager}");
        verdicts.extend(at_most(aim, ratios, limit));
    }
    let is_between = |one: &ComparedLevels<'_>| {
        let cpu = |level: &str| one.of(level).map(server_cpu);
        let middle = cpu(&format!("S2-3{safe}"))?;
        Some(cpu(&format!("S2-5{safe}"))? <= middle && middle <= cpu("S2-1u")?)
    };
    let aim = format!("{what} of 64 KiB: server CPU of S2-3{safe} between S2-5{safe} and S2-1u");
    verdicts.extend(holds(aim, all, is_between));
    verdicts
}

/// Judges a statement about each workload.
fn holds(
    aim: String,
    all: &[ComparedLevels<'_>],
    statement: impl Fn(&ComparedLevels<'_>) -> Option<bool>,
) -> Option<Verdict> {
    let judged: Vec<(bool, &str)> =
        all.iter().filter_map(|one| Some((statement(one)?, one.name.as_str()))).collect();
    let against: Vec<&str> = judged.iter().filter(|(holds, _)| !holds).map(|(_, name)| *name).collect();
    let measured = match against.as_slice() {
        [] => format!("{} of {}", judged.len(), judged.len()),
        [first, ..] => format!("{} of {}; not {first}", judged.len() - against.len(), judged.len()),
    };
    (!judged.is_empty()).then_some(Verdict { aim, reached: against.is_empty(), measured })
}

fn order_verdicts(all: &[ComparedLevels<'_>], what: &str, safe: &str) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let name = |level: &str| {
        let has_profile = !matches!(level, PLAIN | "S1-1u" | "S2-1u");
        if has_profile { format!("{level}{safe}") } else { level.to_owned() }
    };
    for (faster, slower) in [("S1-2", "S1-1u"), ("S2-5", "S2-3"), ("S2-3", "S2-1u"), (PLAIN, "S1-2")] {
        let (faster, slower) = (name(faster), name(slower));
        if !safe.is_empty() && !faster.ends_with(safe) && !slower.ends_with(safe) {
            continue;
        }
        let aim = format!("{what} of 64 KiB: throughput of {faster} above {slower}");
        verdicts.extend(holds(aim, all, |one| Some(one.ratio(&faster, &slower, rate)? > 1.0)));
    }
    for (lazy, eager) in [("S1-2", "S1-1u"), ("S2-5", "S2-1u")] {
        let lazy = name(lazy);
        verdicts.extend(gap_verdict(all, what, &lazy, eager));
    }
    verdicts
}

/// Judges whether the gain of a lazy level grows with the number of clients.
fn gap_verdict(all: &[ComparedLevels<'_>], what: &str, lazy: &str, eager: &str) -> Option<Verdict> {
    let gain = |clients: &str| -> Option<f64> {
        let gains: Vec<f64> = all
            .iter()
            .filter(|one| one.name.contains("sequential") && one.name.ends_with(clients))
            .filter_map(|one| one.ratio(lazy, eager, rate))
            .collect();
        gains.first().copied()
    };
    let (one, eight) = (gain(", 1 clients")?, gain(", 8 clients")?);
    Some(Verdict {
        aim: format!("{what} of 64 KiB, sequential: gain of {lazy} over {eager} grows from 1 to 8 clients"),
        reached: eight > one,
        measured: format!("{:+.0} % with 1, {:+.0} % with 8", 100.0 * (one - 1.0), 100.0 * (eight - 1.0)),
    })
}

/// Judges M-lazy by the limits of S2-5, of which it is the variant with today's algorithms.
fn modern_verdicts(all: &[ComparedLevels<'_>], what: &str) -> Vec<Verdict> {
    let eager = "S2-1u";
    let ratios = |value: fn(&LevelResult) -> f64| {
        all.iter().filter_map(move |one| Some((one.ratio(MODERN, eager, value)?, one.name.as_str())))
    };
    let limit = LAZY_CIPHER_MAC_CPU_MAX;
    let aim = format!("{what} of 64 KiB: server CPU of {MODERN} at most {limit} of {eager}");
    let cpu = at_most(aim, ratios(server_cpu).collect(), limit);
    let aim = format!("{what} of 64 KiB: throughput of {MODERN} above {eager}");
    let order = holds(aim, all, |one| Some(one.ratio(MODERN, eager, rate)? > 1.0));
    cpu.into_iter().chain(order).chain(gap_verdict(all, what, MODERN, eager)).collect()
}

fn end_to_end_verdicts(all: &[ComparedLevels<'_>], what: &str, minimum: f64) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let sequential = || all.iter().filter(|one| one.name.contains("sequential"));
    let rates: Vec<(f64, &str)> = sequential()
        .filter_map(|one| Some((one.of(END_TO_END)?.to_plain.median, one.name.as_str())))
        .filter(|(ratio, _)| ratio.is_finite())
        .collect();
    if let Some((ratio, _)) = rates.first() {
        verdicts.push(Verdict {
            aim: format!("{what} of 64 KiB, sequential: E2E at least {:.0} % of S0", 100.0 * minimum),
            reached: *ratio >= minimum,
            measured: format!("{:.1} %", 100.0 * ratio),
        });
    }
    let cpu = sequential()
        .filter_map(|one| Some((one.ratio(END_TO_END, PLAIN, server_cpu)?, one.name.as_str())))
        .collect();
    let aim = format!("{what} of 64 KiB, sequential: server CPU of E2E at most 1.05 of S0");
    verdicts.extend(at_most(aim, cpu, END_TO_END_CPU_MAX));
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(level: &'static str, clients: usize, mib: u64, server_cpu_s: f64) -> LevelSample {
        let workload = Workload {
            direction: Direction::Read,
            pattern: Pattern::Sequential,
            bytes: JUDGED,
            depth: DEPTH,
        };
        let bytes = mib << 20;
        let (round, seconds, client_cpu_s) = (0, 1.0, 1.0);
        LevelSample { round, level, workload, clients, bytes, seconds, server_cpu_s, client_cpu_s }
    }

    fn judged(samples: Vec<LevelSample>) -> Vec<Verdict> {
        LevelResults { results: results(&samples), samples }.verdicts()
    }

    #[test]
    fn levels_are_judged_by_order_and_gap() {
        let mut samples = Vec::new();
        for (clients, lazy) in [(1, 110), (8, 150)] {
            samples.push(sample("S0", clients, 200, 0.2));
            samples.push(sample("S1-1u", clients, 100, 0.4));
            samples.push(sample("S1-2", clients, lazy, 0.15));
        }
        let verdicts = judged(samples);
        let of = |text: &str| verdicts.iter().find(|verdict| verdict.aim.contains(text)).unwrap();
        assert!(of("throughput of S1-2 above S1-1u").reached);
        assert!(of("throughput of S0 above S1-2").reached);
        let gap = of("gain of S1-2");
        assert!(gap.reached && gap.measured.contains("+10 % with 1, +50 % with 8"), "{gap:?}");
        // 0.15 s of 110 MiB against 0.4 s of 100 MiB, and of 150 MiB.
        let cpu = of("server CPU of S1-2");
        assert!(cpu.reached && cpu.measured.contains("most 0.34"), "{cpu:?}");
        assert!(!verdicts.iter().any(|verdict| verdict.aim.contains("S2-3")), "not measured, not judged");
    }

    #[test]
    fn modern_level_is_judged_by_limits_of_lazy_decryption() {
        let mut samples = Vec::new();
        for (clients, lazy) in [(1, 150), (8, 120)] {
            samples.push(sample("S2-1u", clients, 100, 0.4));
            samples.push(sample("M-lazy", clients, lazy, 0.1));
        }
        let verdicts = judged(samples);
        let of = |text: &str| verdicts.iter().find(|verdict| verdict.aim.contains(text)).unwrap();
        // 0.1 s of 120 MiB against 0.4 s of 100 MiB, and of 150 MiB.
        let cpu = of("server CPU of M-lazy");
        assert!(cpu.reached && cpu.measured.contains("most 0.21"), "{cpu:?}");
        assert!(of("throughput of M-lazy above S2-1u").reached);
        let gap = of("gain of M-lazy");
        assert!(!gap.reached && gap.measured.contains("+50 % with 1, +20 % with 8"), "{gap:?}");
    }

    #[test]
    fn end_to_end_is_judged_against_plain_units() {
        let verdicts = judged(vec![sample("S0", 1, 100, 0.1), sample("E2E", 1, 79, 0.1)]);
        let of = |text: &str| verdicts.iter().find(|verdict| verdict.aim.contains(text)).unwrap();
        assert!(!of("E2E at least 80 %").reached);
        assert!(!of("server CPU of E2E").reached, "more CPU for each byte");
    }

    #[test]
    fn tables_have_row_for_each_level() {
        let samples = vec![sample("S0", 1, 100, 0.1), sample("S1-2", 1, 50, 0.1)];
        let results = LevelResults { results: results(&samples), samples };
        let tables = results.tables();
        assert_eq!((tables.len(), tables[0].rows.len()), (1, 2));
        assert_eq!(tables[0].value("S1-2", "of S0, %"), Some(50.0));
        assert!(tables[0].paper.contains("+46 %"));
    }
}
