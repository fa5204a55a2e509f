//! Two initiators on one unit, with nested strided writes as in BTIO: the paper's Table 3.
//!
//! Does: writes the cells of an array from two sessions, flushes each time step, and reads all
//! steps back in both sessions.
//! Contract: each initiator writes its own cells only, so each block must have the bytes of its one
//! writer afterwards.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use sealstone_block_protection::ProtectedBlock;
use tokio::task::JoinSet;

use super::device::{BenchDisk, LevelDevice};
use super::{LazyStage, MeasuredPart, progress};
use crate::Outcome;
use crate::table::FigureTable;
use crate::targets::Verdict;

/// The array: planes of rows of cells. Cells of a row belong to the initiators in turns.
const PLANES: u64 = 64;
const ROWS: u64 = 20;
const CELLS: u64 = INITIATORS as u64;
const CELL: u64 = 4096;
const INITIATORS: usize = 2;
/// Bytes of one time step: 10 MiB, as the array of BTIO's class A.
const STEP: u64 = PLANES * ROWS * CELLS * CELL;
const STEPS: u64 = 20;
const STEPS_QUICK: u64 = 2;
/// Requests in flight of each initiator.
const DEPTH: usize = 16;
/// Bytes of a read of the verification.
const READ: u64 = 64 << 10;
/// Bytes of a stamp: step, cell and writer.
const STAMP: usize = 24;

/// Returns the writer of a cell.
const fn writer_of(plane: u64, row: u64, cell: u64) -> usize {
    ((plane + row + cell) % INITIATORS as u64) as usize
}

/// Returns the content of a cell: its stamp, repeated.
fn content(step: u64, index: u64, writer: usize) -> Bytes {
    let mut stamp = [0; STAMP];
    stamp[..8].copy_from_slice(&(step + 1).to_be_bytes());
    stamp[8..16].copy_from_slice(&index.to_be_bytes());
    stamp[16..].copy_from_slice(&(writer as u64 + 1).to_be_bytes());
    let mut content = stamp.repeat((CELL as usize).div_ceil(STAMP));
    content.truncate(CELL as usize);
    content.into()
}

/// Returns the cells of an initiator in one step: offset and content.
fn cells(step: u64, initiator: usize) -> impl Iterator<Item = (u64, Bytes)> {
    (0..PLANES).flat_map(move |plane| {
        (0..ROWS).flat_map(move |row| {
            (0..CELLS).filter(move |cell| writer_of(plane, row, *cell) == initiator).map(move |cell| {
                let index = (plane * ROWS + row) * CELLS + cell;
                (step * STEP + index * CELL, content(step, index, initiator))
            })
        })
    })
}

/// Writes the cells of one initiator in all steps, with a flush after each step.
async fn write_steps(disk: Arc<BenchDisk>, steps: u64, initiator: usize) -> Outcome {
    for step in 0..steps {
        let mut tasks = JoinSet::new();
        for (offset, bytes) in cells(step, initiator) {
            if tasks.len() >= DEPTH
                && let Some(ended) = tasks.join_next().await
            {
                ended??;
            }
            let disk = Arc::clone(&disk);
            tasks.spawn(async move { disk.write(offset, bytes).await });
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        disk.flush().await?;
    }
    Ok(())
}

/// Reads all steps; returns the number of cells that do not have the bytes of their writer.
async fn wrong_cells(disk: &BenchDisk, steps: u64) -> Outcome<u64> {
    let mut wrong = 0;
    let mut buffer = vec![0; READ as usize];
    for offset in (0..steps * STEP).step_by(READ as usize) {
        buffer = disk.read(offset, buffer).await?;
        for (at, found) in (offset / CELL..).zip(buffer.chunks_exact(CELL as usize)) {
            let (step, index) = (at / (STEP / CELL), at % (STEP / CELL));
            let (plane, row, cell) = (index / CELLS / ROWS, index / CELLS % ROWS, index % CELLS);
            wrong += u64::from(found != content(step, index, writer_of(plane, row, cell)));
        }
    }
    Ok(wrong)
}

/// Results of one level: MiB/s of writes, MiB/s of reads, server CPU seconds per GiB, wrong cells.
async fn run(device: &LevelDevice, steps: u64) -> Outcome<[f64; 4]> {
    let mut disks = Vec::new();
    for _ in 0..INITIATORS {
        disks.push(Arc::new(device.connect(ProtectedBlock::B4096).await?));
    }
    let (begin, used) = (Instant::now(), device.cpu_s()?);
    let mut tasks = JoinSet::new();
    for (initiator, disk) in disks.iter().enumerate() {
        tasks.spawn(write_steps(Arc::clone(disk), steps, initiator));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let bytes = (steps * STEP) as f64;
    let written = bytes / f64::from(1 << 20) / begin.elapsed().as_secs_f64();
    let server = (device.cpu_s()? - used) * f64::from(1 << 30) / bytes;
    let (begin, mut wrong) = (Instant::now(), 0);
    for disk in &disks {
        wrong += wrong_cells(disk, steps).await?;
    }
    let read = bytes * INITIATORS as f64 / f64::from(1 << 20) / begin.elapsed().as_secs_f64();
    Ok([written, read, server, wrong as f64])
}

/// Measures all levels, one after the other.
pub(super) fn measure(stage: &LazyStage) -> MeasuredPart {
    let steps = if stage.settings.is_quick { STEPS_QUICK } else { STEPS };
    let title =
        format!("Table 3: two initiators write {steps} steps of an array of 10 MiB in cells of 4 KiB");
    let columns = ["written, MiB/s", "read, MiB/s", "server s/GiB", "wrong cells"];
    let mut table = FigureTable::new(&title, "BTIO; the design documents quote no value", &columns);
    let mut wrong = Vec::new();
    let bar = progress("shared", stage.settings.levels.len());
    for level in stage.levels() {
        bar.set_message(level.name);
        if level.is_shared() {
            let device = LevelDevice::start(&stage.binary, &stage.folder, level)?;
            let values = stage.runtime.block_on(run(&device, steps))?;
            device.stop()?;
            table.add(level.name, &[values.to_vec()]);
            if values[3] > 0.0 {
                wrong.push(format!("{}: {}", level.name, values[3]));
            }
        } else {
            table.left_out(level.name, "one client has the lease of a disk");
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut verdicts = Vec::new();
    if !table.rows.is_empty() {
        verdicts.push(Verdict {
            aim: "two initiators on one unit: every block has the bytes of its writer".to_owned(),
            reached: wrong.is_empty(),
            measured: if wrong.is_empty() {
                format!("{} levels, {} blocks each", table.rows.len(), steps * STEP / CELL)
            } else {
                format!("wrong cells: {}", wrong.join(", "))
            },
        });
    }
    Ok((table, verdicts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_has_one_writer() {
        let mut offsets: Vec<u64> =
            (0..INITIATORS).flat_map(|initiator| cells(3, initiator)).map(|(offset, _)| offset).collect();
        offsets.sort_unstable();
        let expected: Vec<u64> = (0..STEP / CELL).map(|at| 3 * STEP + at * CELL).collect();
        assert_eq!(offsets, expected);
        let (first, second) = (cells(0, 0).next().unwrap(), cells(0, 1).next().unwrap());
        assert_eq!((first.0, second.0), (0, CELL), "neighbours have different writers");
        assert_ne!(first.1, second.1);
    }
}
