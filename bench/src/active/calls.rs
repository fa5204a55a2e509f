//! Single calls: empty ones, cold starts, cancellation, and their effect on other clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sealstone_osd::function::{JobAction, JobState};

use super::figures::{MeasuredTable, ratio};
use super::{ActiveStage, FigureTable, JOB_TIMEOUT_MS};
use crate::Outcome;
use crate::process::usage;
use crate::targets::Verdict;
use crate::workload::median;

/// Aims of an empty call beyond the time of a command, in microseconds: p50 and p99.
const EMPTY_US: (f64, f64) = (20.0, 100.0);
/// Aim of a start of an engine, in milliseconds.
const COLD_MS: f64 = 2.0;
/// Aim from a cancellation until the process is reaped, in milliseconds.
const CANCEL_MS: f64 = 20.0;
/// Highest latency of other clients beside small jobs, of that without.
const OTHERS_MAX: f64 = 1.1;
/// Small jobs: bytes of each, and their interval.
const SMALL_JOB_BYTES: u64 = 64 << 10;
const SMALL_JOB_INTERVAL: Duration = Duration::from_millis(10);
/// Cold starts for each round.
const COLD_STARTS: usize = 5;
/// Time after which a device has stopped the threads of an idle engine, until its next call.
const IDLE: Duration = Duration::from_millis(30);
/// Reads of a client at one time, and their sizes.
const READS_IN_FLIGHT: u64 = 4;
const READ_BYTES: [usize; 2] = [4 << 10, 64 << 10];

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Returns the value at a fraction of the sorted ones.
pub(super) fn percentile(times: &mut [f64], percent: usize) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get((times.len() * percent / 100).min(times.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// An empty function in a warm engine, the status command beside it, and a new engine.
pub(super) fn empty_and_cold(stage: &ActiveStage) -> MeasuredTable {
    let device = stage.first()?;
    let mut table = FigureTable::new(
        "empty function, us",
        "415 us with the network; no cold start is quoted",
        &["p50", "p99", "CPU"],
    );
    let (mut warm, mut served, mut status, mut cold, mut first) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut engine_cpu, mut paused) = (Vec::new(), Vec::new());
    let (mut call_cpu, mut status_cpu, mut paused_cpu, mut cold_cpu) = (0.0, 0.0, 0.0, 0.0);
    let device_cpu = || Outcome::Ok(usage(device.osd.pid())?.cpu_s * 1e6);
    stage.runtime.block_on(async {
        let (_, reply) = device.run_empty(false).await?;
        let job = reply.header.job;
        for number in 0..stage.settings.calls {
            // In turns, so that other load affects both alike.
            let (call, reply) = device.run_empty(false).await?;
            let command = microseconds(device.job(job, JobAction::Status).await?.0);
            if number >= stage.settings.calls / 20 {
                warm.push(microseconds(call));
                served.push(reply.header.wall_us as f64);
                engine_cpu.push(reply.header.cpu_us as f64);
                status.push(command);
            }
        }
        let calls = stage.settings.calls;
        let begin = device_cpu()?;
        for _ in 0..calls {
            device.run_empty(false).await?;
        }
        let middle = device_cpu()?;
        for _ in 0..calls {
            device.job(job, JobAction::Status).await?;
        }
        (call_cpu, status_cpu) = ((middle - begin) / calls as f64, (device_cpu()? - middle) / calls as f64);
        let starts = stage.settings.rounds * COLD_STARTS;
        let begin = device_cpu()?;
        for _ in 0..starts {
            tokio::time::sleep(IDLE).await;
            paused.push(microseconds(device.run_empty(false).await?.0));
        }
        paused_cpu = (device_cpu()? - begin) / starts as f64;
        // An engine that received a secret is not used again.
        device.run_empty(true).await?;
        let begin = device_cpu()?;
        for _ in 0..starts {
            let (time, _) = device.run_empty(true).await?;
            cold.push(microseconds(time));
            first.push(microseconds(device.job(job, JobAction::Status).await?.0));
        }
        cold_cpu = (device_cpu()? - begin) / starts as f64 - status_cpu;
        Outcome::Ok(())
    })?;
    let mut row = |name: &str, values: (f64, f64), cpu| table.add(name, &[vec![values.0, values.1, cpu]]);
    let both = |times: &mut Vec<f64>| (percentile(times, 50), percentile(times, 99));
    let (warm, served) = (both(&mut warm), both(&mut served));
    let (status, cold) = (both(&mut status), both(&mut cold));
    let beyond = (warm.0 - status.0, warm.1 - status.1);
    let start_ms = (cold.0 - percentile(&mut first, 50)) / 1e3;
    row("warm engine", warm, call_cpu);
    row("of that in the engine", served, percentile(&mut engine_cpu, 50));
    row("status of a job", status, status_cpu);
    row("difference", beyond, call_cpu - status_cpu);
    row("engine idle for 30 ms", both(&mut paused), paused_cpu);
    row("new engine", cold, cold_cpu);
    let verdicts = vec![
        Verdict {
            aim: format!("empty function beyond its command: p50 {} us, p99 {} us", EMPTY_US.0, EMPTY_US.1),
            reached: beyond.0 <= EMPTY_US.0 && beyond.1 <= EMPTY_US.1,
            measured: format!("{:.1} and {:.1} us", beyond.0, beyond.1),
        },
        Verdict {
            aim: format!("cold start of a C function on the device: {COLD_MS} ms"),
            reached: start_ms <= COLD_MS,
            measured: format!("{start_ms:.1} ms"),
        },
    ];
    Ok((table, verdicts))
}

/// From the command that cancels until the engine is reaped, which ends the job.
pub(super) fn cancellation(stage: &ActiveStage) -> MeasuredTable {
    let device = stage.first()?;
    let mut table = FigureTable::new(
        "cancellation of an endless function, ms",
        "a timeout returns, the function continues; no value is quoted",
        &["until reaped"],
    );
    let rounds = stage.rounds(|_| {
        stage.runtime.block_on(async {
            let job = stage.running_job().await?;
            let begin = Instant::now();
            device.job(job, JobAction::Cancel).await?;
            let (_, reply) = device.job(job, JobAction::Wait { timeout_ms: JOB_TIMEOUT_MS }).await?;
            let time = begin.elapsed();
            if reply.header.state != JobState::Cancelled {
                return Err(format!("a cancelled job is {}", reply.header.state).into());
            }
            Ok(vec![time.as_secs_f64() * 1e3])
        })
    })?;
    table.add("cancel", &rounds);
    let time = median(&mut rounds.iter().map(|round| round[0]).collect::<Vec<_>>());
    let verdict = Verdict {
        aim: format!("cancel until the process is reaped: {CANCEL_MS} ms, of which 10 ms are its grace"),
        reached: time <= CANCEL_MS,
        measured: format!("{time:.1} ms"),
    };
    Ok((table, vec![verdict]))
}

/// Reads of a client, alone and beside small jobs of another one.
pub(super) fn other_clients(stage: &ActiveStage) -> MeasuredTable {
    let mut table = FigureTable::new(
        &format!("reads, {READS_IN_FLIGHT} in flight, beside a count of 64 KiB every 10 ms; latency in us"),
        "no value is quoted",
        &["alone, p50", "p99", "beside, p50", "p99", "p50, times", "p99, times", "jobs, 1/s"],
    );
    let window = Duration::from_secs_f64(stage.settings.window_s);
    let mut verdicts = Vec::new();
    for bytes in READ_BYTES {
        let name = format!("reads of {} KiB", bytes >> 10);
        let rounds = stage.rounds(|round| {
            let seed = round as u64 * READS_IN_FLIGHT + 1;
            let alone = || stage.runtime.block_on(reads(stage, window, seed, bytes));
            // The order alternates, since a machine is not equally fast all the time.
            let first = if round % 2 == 0 { Some(alone()?) } else { None };
            let (beside, jobs) = beside_jobs(stage, window, seed, bytes)?;
            let mut alone = first.map_or_else(alone, Outcome::Ok)?;
            let mut beside = beside;
            let (a50, a99) = (percentile(&mut alone, 50), percentile(&mut alone, 99));
            let (b50, b99) = (percentile(&mut beside, 50), percentile(&mut beside, 99));
            Ok(vec![a50, a99, b50, b99, b50 / a50, b99 / a99, jobs as f64 / stage.settings.window_s])
        })?;
        table.add(&name, &rounds);
        let (middle, tail) = (ratio(&rounds, 2, 0), ratio(&rounds, 3, 1));
        verdicts.push(Verdict {
            aim: format!("small jobs slow {name} by at most 10 %, p50 and p99"),
            reached: middle <= OTHERS_MAX && tail <= OTHERS_MAX,
            measured: format!("{middle:.2} and {tail:.2} times"),
        });
    }
    Ok((table, verdicts))
}

/// Reads while another client runs small jobs; returns the latencies and the number of jobs.
fn beside_jobs(stage: &ActiveStage, window: Duration, seed: u64, bytes: usize) -> Outcome<(Vec<f64>, u64)> {
    let stop = AtomicBool::new(false);
    let (reads, jobs) = stage.runtime.block_on(async {
        let reads = async {
            let times = reads(stage, window, seed, bytes).await;
            stop.store(true, Ordering::Relaxed);
            times
        };
        tokio::join!(reads, small_jobs(stage, &stop))
    });
    Ok((reads?, jobs?))
}

/// Returns the latencies of reads in microseconds.
async fn reads(stage: &ActiveStage, window: Duration, seed: u64, bytes: usize) -> Outcome<Vec<f64>> {
    let device = stage.first()?;
    let (until, length) = (Instant::now() + window, stage.settings.bytes);
    let lane = |number: u64| device.read_randomly(until, seed + number, length, bytes);
    let (a, b, c, d) = tokio::join!(lane(0), lane(1), lane(2), lane(3));
    Ok([a?, b?, c?, d?].concat())
}

/// Runs small jobs at a fixed rate until `stop` is set; returns how many.
async fn small_jobs(stage: &ActiveStage, stop: &AtomicBool) -> Outcome<u64> {
    let device = stage.first()?;
    let mut every = tokio::time::interval(SMALL_JOB_INTERVAL);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        every.tick().await;
        device.run("wordcount", SMALL_JOB_BYTES).await?;
        count += 1;
    }
    Ok(count)
}
