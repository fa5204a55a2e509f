//! Space of keys and versions, and the time from a write to its verification.

use std::sync::Arc;
use std::time::Duration;

use sealstone_block_protection::ProtectedBlock;
use serde_json::Value;

use super::device::{LevelDevice, unit_name};
use super::level::PLAIN;
use super::turn::{self, ClientTurn};
use super::{LazyStage, MeasuredPart, progress};
use crate::Outcome;
use crate::table::FigureTable;
use crate::targets::Verdict;
use crate::workload::{Direction, Pattern, Workload};

const MIB: f64 = (1 << 20) as f64;
/// Rate at which the server has processor time left.
const PACED_BYTES_PER_S: u64 = 64 << 20;
/// Time of the writes whose verification is observed.
const WINDOW: Duration = Duration::from_secs(5);
const WINDOW_QUICK: Duration = Duration::from_secs(2);
/// Longest time in which a write may be unverified, in milliseconds.
const WINDOW_MAX_MS: f64 = 1000.0;

fn number(status: &Value, key: &str) -> f64 {
    status[key].as_u64().map_or(f64::NAN, |number| number as f64)
}

/// Returns the growth of the store and the log of versions, in MiB per GiB of data: before and
/// after verification.
async fn space(device: &LevelDevice, block: ProtectedBlock, span: u64) -> Outcome<[f64; 3]> {
    let disk = Arc::new(device.connect(block).await?);
    let before = device.used_bytes()?;
    turn::fill(&disk, span).await?;
    turn::read_all(&disk, span).await?;
    let per_gib = |bytes: f64| bytes / MIB * f64::from(1 << 30) / span as f64;
    let stored = per_gib((device.used_bytes()?.saturating_sub(before)) as f64);
    if !device.level.is_lazily_authenticated() {
        return Ok([stored, f64::NAN, f64::NAN]);
    }
    // A flush verifies with paper+safe, so the log is read before it.
    let workload =
        Workload { direction: Direction::Write, pattern: Pattern::Sequential, bytes: 64 << 10, depth: 16 };
    let time = Duration::from_millis(100);
    let turn = ClientTurn { workload: &workload, time, span, seed: 2, bytes_per_s: 0 };
    turn::run_clients(&[disk], turn).await?;
    let status = device.status(block)?;
    let (log, unverified) = (number(&status, "log_bytes"), number(&status, "unverified"));
    let data = unverified * block.bytes() as f64;
    Ok([stored, log * 1024.0 / data, log / data])
}

/// Measures the space of keys and versions of each level.
pub(super) fn keys(stage: &LazyStage) -> MeasuredPart {
    let title = "space of keys and versions, for each GiB of data";
    let paper =
        "keys of 36 GB in blocks of 512 bytes: 1.1 GB, with 16 bytes for each block (31 MiB for each GB)";
    let columns = ["stored, MiB", "of S0, MiB", "log, MiB", "log of data"];
    let mut table = FigureTable::new(title, paper, &columns);
    let levels: Vec<_> = stage.levels().filter(|level| !level.is_end_to_end).collect();
    let bar = progress("keys", levels.len() * 2);
    for block in [ProtectedBlock::B512, ProtectedBlock::B4096] {
        let mut plain = f64::NAN;
        for level in &levels {
            bar.set_message(level.name);
            let name = format!("{} {}", level.name, unit_name(block));
            let folder = stage.folder.join(unit_name(block));
            std::fs::create_dir_all(&folder)?;
            let device = LevelDevice::start(&stage.binary, &folder, level)?;
            let span = stage.settings.span(block);
            let [stored, log, ratio] = stage.runtime.block_on(space(&device, block, span))?;
            device.stop()?;
            if level.name == PLAIN {
                plain = stored;
            }
            table.add(&name, &[vec![stored, stored - plain, log, ratio]]);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok((table, Vec::new()))
}

/// Writes for a while, and waits until all versions are verified. Returns p99 and maximum of the
/// window in milliseconds, and MiB/s.
async fn verified(device: &LevelDevice, stage: &LazyStage, bytes_per_s: u64) -> Outcome<[f64; 3]> {
    let block = ProtectedBlock::B4096;
    let disk = Arc::new(device.connect(block).await?);
    let time = if stage.settings.is_quick { WINDOW_QUICK } else { WINDOW };
    let workload =
        Workload { direction: Direction::Write, pattern: Pattern::Random, bytes: 64 << 10, depth: 16 };
    let span = stage.settings.span(block);
    let turn = ClientTurn { workload: &workload, time, span, seed: 2, bytes_per_s };
    let (bytes, seconds) = turn::run_clients(&[disk], turn).await?;
    // Not a flush, which would verify at once.
    let mut status = device.status(block)?;
    while number(&status, "unverified") > 0.0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        status = device.status(block)?;
    }
    Ok([number(&status, "window_p99_ms"), number(&status, "window_max_ms"), bytes as f64 / MIB / seconds])
}

/// Measures the time from a write to its verification.
pub(super) fn window(stage: &LazyStage) -> MeasuredPart {
    let title = "time from an acknowledged write to its verification by the server, random writes of 64 KiB";
    let paper = "garbage collection without a bound";
    let mut table = FigureTable::new(title, paper, &["p99, ms", "longest, ms", "MiB/s"]);
    let levels: Vec<_> =
        stage.levels().filter(|level| level.is_lazily_authenticated() && !level.is_paper_profile()).collect();
    let mut longest: Option<f64> = None;
    for (pace, name) in [(PACED_BYTES_PER_S, "64 MiB/s"), (0, "saturated")] {
        let folder = stage.folder.join(pace.to_string());
        std::fs::create_dir(&folder)?;
        for level in &levels {
            let device = LevelDevice::start(&stage.binary, &folder, level)?;
            let values = stage.runtime.block_on(verified(&device, stage, pace))?;
            device.stop()?;
            if pace > 0 {
                longest = Some(longest.map_or(values[1], |longest| longest.max(values[1])));
            }
            table.add(&format!("{}, {name}", level.name), &[values.to_vec()]);
        }
    }
    let verdict = longest.map(|longest| Verdict {
        aim: "unverified window never above 1 s while the server has processor time".to_owned(),
        reached: longest <= WINDOW_MAX_MS,
        measured: format!("longest {longest:.0} ms at 64 MiB/s"),
    });
    Ok((table, verdict.into_iter().collect()))
}
