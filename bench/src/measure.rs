//! The measurement: every workload, every contender, in turns.

use std::time::{Duration, Instant};

use crate::client::{DeviceClient, TurnResult};
use crate::contender::Contender;
use crate::daemon::Osd;
use crate::process::{own, usage};
use crate::settings::Settings;
use crate::statistics::TurnSample;
use crate::workload::{Direction, Pattern, Workload};
use crate::{Outcome, ceiling};

/// Fraction of a turn before each turn that does not count.
const LEAD_IN: u32 = 5;

/// Results of all runs.
pub(crate) struct MeasuredRuns {
    pub(crate) samples: Vec<TurnSample>,
    /// Peak resident memory of the device so far, in KiB.
    pub(crate) peak_after_reads_kib: u64,
    pub(crate) peak_kib: u64,
}

/// Measures everything. Reads come first, so that write-back does not affect them.
pub(crate) fn all(settings: &Settings, osd: &Osd, client: &DeviceClient) -> Outcome<MeasuredRuns> {
    let mut samples = Vec::new();
    let mut peaks = [0; 2];
    for (direction, peak) in [Direction::Read, Direction::Write].into_iter().zip(&mut peaks) {
        for run in 0..settings.runs {
            let begin = Instant::now();
            for workload in settings.grid.iter().filter(|workload| workload.direction == direction) {
                if settings.wants(workload) {
                    one(settings, osd, client, run, workload, &mut samples)?;
                }
            }
            let seconds = begin.elapsed().as_secs();
            eprintln!("{}s: run {} of {}, {seconds} s", direction.name(), run + 1, settings.runs);
        }
        *peak = usage(osd.pid())?.peak_rss_kib;
    }
    let [peak_after_reads_kib, peak_kib] = peaks;
    Ok(MeasuredRuns { samples, peak_after_reads_kib, peak_kib })
}

fn one(
    settings: &Settings,
    osd: &Osd,
    client: &DeviceClient,
    run: usize,
    workload: &Workload,
    samples: &mut Vec<TurnSample>,
) -> Outcome {
    // Plain TCP has no offsets: once for both patterns.
    let mut order: Vec<Contender> = settings
        .contenders
        .iter()
        .copied()
        .filter(|&contender| contender != Contender::Tcp || workload.pattern == Pattern::Sequential)
        .collect();
    for round in 0..settings.turns() {
        let seed = (run * settings.turns() + round) as u64 + 2;
        // A random order, so that no contender is always first, or always after the same one.
        shuffle(&mut order, seed);
        for &contender in &order {
            // A warm-up, so that caches and TCP state of the previous contender do not count.
            turn(client, contender, workload, settings.turn() / LEAD_IN, seed)?;
            let before = (usage(osd.pid())?.cpu_s, own()?.cpu_s);
            let done = turn(client, contender, workload, settings.turn(), seed * 0x9E37_79B9)?;
            let after = (usage(osd.pid())?.cpu_s, own()?.cpu_s);
            let device_cpu_s = if contender == Contender::Tcp { 0.0 } else { after.0 - before.0 };
            samples.push(TurnSample {
                run,
                round,
                contender,
                workload: *workload,
                operations: done.operations,
                seconds: done.time.as_secs_f64(),
                device_cpu_s,
                client_cpu_s: after.1 - before.1,
            });
        }
    }
    if workload.direction == Direction::Write {
        client.flush()?;
    }
    Ok(())
}

fn turn(
    client: &DeviceClient,
    contender: Contender,
    workload: &Workload,
    time: Duration,
    seed: u64,
) -> Outcome<TurnResult> {
    match contender.method() {
        Some(_) => client.turn(workload, contender, time, seed),
        None => {
            let (operations, time) = ceiling::run(workload.direction, workload.bytes, workload.depth, time)?;
            Ok(TurnResult { operations, time })
        }
    }
}

/// Shuffles (Fisher and Yates) with a generator seeded by `seed`, so that a run can be repeated.
pub(crate) fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for last in (1..items.len()).rev() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let drawn = state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
        items.swap(last, drawn as usize % (last + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each contender follows each other one about equally often, and has each position.
    #[test]
    fn no_order_is_preferred() {
        let mut places = [[0; 5]; 5];
        let mut order = [0, 1, 2, 3, 4];
        for seed in 2..2002 {
            shuffle(&mut order, seed);
            for (place, &who) in order.iter().enumerate() {
                places[who][place] += 1;
            }
        }
        assert!(places.iter().flatten().all(|count| (300..500).contains(count)), "{places:?}");
    }
}
