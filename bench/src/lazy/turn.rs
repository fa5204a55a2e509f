//! One turn of one level: clients that read or write for a while.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use tokio::task::JoinSet;

use super::device::{BenchDisk, LevelDevice};
use crate::Outcome;
use crate::process::{own_whole_cpu_s, tick_s};
use crate::workload::{Direction, Offsets, Workload};

/// Result of one level in one turn.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LevelSample {
    pub(super) round: usize,
    pub(super) level: &'static str,
    pub(super) workload: Workload,
    pub(super) clients: usize,
    pub(super) bytes: u64,
    /// Time until the last reply.
    pub(super) seconds: f64,
    /// CPU seconds of the device, the flush after writes included.
    pub(super) server_cpu_s: f64,
    pub(super) client_cpu_s: f64,
}

impl LevelSample {
    pub(super) fn mib_per_s(&self) -> f64 {
        self.bytes as f64 / f64::from(1 << 20) / self.seconds
    }

    pub(super) fn gib(&self) -> f64 {
        self.bytes as f64 / f64::from(1 << 30)
    }
}

/// A workload of several clients, each in its own part of the unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientTurn<'a> {
    pub(super) workload: &'a Workload,
    pub(super) time: Duration,
    /// Bytes of the unit that are used, by all clients together.
    pub(super) span: u64,
    pub(super) seed: u64,
    /// Maximum bytes of all clients together in a second; none if 0.
    pub(super) bytes_per_s: u64,
}

/// Runs requests until the time is over. Returns their bytes and the time until the last reply.
pub(super) async fn run_clients(disks: &[Arc<BenchDisk>], turn: ClientTurn<'_>) -> Outcome<(u64, f64)> {
    let (workload, bytes_per_s) = (*turn.workload, turn.bytes_per_s);
    let size = workload.bytes as u64;
    let (part, done) = (turn.span / disks.len() as u64 / size * size, Arc::new(AtomicU64::new(0)));
    let payload = Bytes::from((0..workload.bytes).map(|at| (at / 7) as u8).collect::<Vec<_>>());
    let (begin, end) = (Instant::now(), Instant::now() + turn.time);
    let mut tasks = JoinSet::new();
    for (client, disk) in disks.iter().enumerate() {
        let first = client as u64 * part;
        let seed = (turn.seed << 16) | ((client as u64) << 1);
        let offsets = Arc::new(Mutex::new(Offsets::new(&workload, part, seed)));
        for _ in 0..workload.depth {
            let (disk, offsets, done) = (Arc::clone(disk), Arc::clone(&offsets), Arc::clone(&done));
            let payload = payload.clone();
            let mut buffer = vec![0; workload.bytes];
            tasks.spawn(async move {
                // At least one request, however short the time is.
                loop {
                    let next = offsets.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let offset = first + next.unwrap_or(0);
                    match workload.direction {
                        Direction::Read => buffer = disk.read(offset, buffer).await?,
                        Direction::Write => disk.write(offset, payload.clone()).await?,
                    }
                    let bytes = done.fetch_add(size, Ordering::Relaxed) + size;
                    if bytes_per_s > 0 {
                        let due = begin + Duration::from_secs_f64(bytes as f64 / bytes_per_s as f64);
                        tokio::time::sleep_until(due.into()).await;
                    }
                    if Instant::now() >= end {
                        return Outcome::Ok(());
                    }
                }
            });
        }
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok((done.load(Ordering::Relaxed), begin.elapsed().as_secs_f64()))
}

/// Runs a turn of a level and measures it. Writes end with a flush, which is not part of their
/// time. CPU times are at least a tick, so that each has a ratio.
pub(super) async fn measure(
    device: &LevelDevice,
    disks: &[Arc<BenchDisk>],
    turn: ClientTurn<'_>,
    round: usize,
) -> Outcome<LevelSample> {
    let before = (device.cpu_s()?, own_whole_cpu_s()?);
    let (bytes, seconds) = run_clients(disks, turn).await?;
    if turn.workload.direction == Direction::Write {
        for disk in disks {
            disk.flush().await?;
        }
    }
    let after = (device.cpu_s()?, own_whole_cpu_s()?);
    Ok(LevelSample {
        round,
        level: device.level.name,
        workload: *turn.workload,
        clients: disks.len(),
        bytes,
        seconds,
        server_cpu_s: (after.0 - before.0).max(tick_s()),
        client_cpu_s: (after.1 - before.1).max(tick_s()),
    })
}

/// Writes the first bytes of a disk once, in requests of 64 KiB.
pub(super) async fn fill(disk: &Arc<BenchDisk>, span: u64) -> Outcome {
    const REQUEST: u64 = 64 << 10;
    let payload = Bytes::from((0..REQUEST).map(|at| (at / 11) as u8).collect::<Vec<_>>());
    let mut tasks = JoinSet::new();
    for offset in (0..span).step_by(REQUEST as usize) {
        if tasks.len() >= 16
            && let Some(ended) = tasks.join_next().await
        {
            ended??;
        }
        let (disk, payload) = (Arc::clone(disk), payload.clone());
        tasks.spawn(async move { disk.write(offset, payload).await });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    disk.flush().await
}

/// Reads the first bytes of a disk once. With the paper's profile, this commits them.
pub(super) async fn read_all(disk: &BenchDisk, span: u64) -> Outcome {
    const REQUEST: u64 = 256 << 10;
    let mut buffer = vec![0; REQUEST as usize];
    for offset in (0..span).step_by(REQUEST as usize) {
        buffer.resize((span - offset).min(REQUEST) as usize, 0);
        buffer = disk.read(offset, buffer).await?;
    }
    disk.flush().await
}
