//! The runs: every workload, every contender, in turns.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::client::{Client, Turn};
use crate::contender::Contender;
use crate::daemon::Osd;
use crate::process::{own, usage};
use crate::settings::Settings;
use crate::workload::{Direction, Pattern, Workload, grid};
use crate::{Outcome, ceiling};

/// Before each turn, this part of a turn does not count.
const LEAD_IN: u32 = 5;

/// What one contender did in one workload of one run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) run: usize,
    pub(crate) contender: Contender,
    #[serde(flatten)]
    pub(crate) workload: Workload,
    pub(crate) operations: u64,
    pub(crate) seconds: f64,
    /// CPU seconds of the device; 0 for plain TCP.
    pub(crate) device_cpu_s: f64,
    /// CPU seconds of this process: the client, or both ends of plain TCP.
    pub(crate) client_cpu_s: f64,
}

impl Sample {
    /// MiB per second.
    pub(crate) fn rate(&self) -> f64 {
        self.mib() / self.seconds
    }

    /// Data moved, MiB.
    pub(crate) fn mib(&self) -> f64 {
        self.operations as f64 * self.workload.bytes as f64 / f64::from(1 << 20)
    }
}

/// All runs.
pub(crate) struct Measured {
    pub(crate) samples: Vec<Sample>,
    /// Peak resident memory of the device so far, KiB.
    pub(crate) peak_after_reads_kib: u64,
    pub(crate) peak_kib: u64,
}

/// Measures all. Reads come first: they shall not meet the writing back of what was written.
pub(crate) fn all(settings: &Settings, osd: &Osd, client: &Client) -> Outcome<Measured> {
    let mut samples = Vec::new();
    let mut peaks = [0; 2];
    for (direction, peak) in [Direction::Read, Direction::Write].into_iter().zip(&mut peaks) {
        for run in 0..settings.runs {
            let begin = Instant::now();
            for workload in grid().filter(|workload| workload.direction == direction) {
                if workload.name().contains(&settings.only) {
                    one(settings, osd, client, run, &workload, &mut samples)?;
                }
            }
            let seconds = begin.elapsed().as_secs();
            eprintln!("{}s: run {} of {}, {seconds} s", direction.name(), run + 1, settings.runs);
        }
        *peak = usage(osd.pid())?.peak_rss_kib;
    }
    let [peak_after_reads_kib, peak_kib] = peaks;
    Ok(Measured { samples, peak_after_reads_kib, peak_kib })
}

fn one(
    settings: &Settings,
    osd: &Osd,
    client: &Client,
    run: usize,
    workload: &Workload,
    samples: &mut Vec<Sample>,
) -> Outcome {
    let first = samples.len();
    // Plain TCP knows no offsets: once for both patterns.
    let contenders = settings
        .contenders
        .iter()
        .copied()
        .filter(|&contender| contender != Contender::Tcp || workload.pattern == Pattern::Sequential);
    samples.extend(contenders.map(|contender| Sample {
        run,
        contender,
        workload: *workload,
        operations: 0,
        seconds: 0.0,
        device_cpu_s: 0.0,
        client_cpu_s: 0.0,
    }));
    let samples = &mut samples[first..];
    let count = samples.len();
    for number in 0..settings.turns() {
        for place in 0..count {
            // Nobody is always the first, or always after the same one.
            let order = run + number;
            let index =
                if order.is_multiple_of(2) { place + order / 2 } else { 2 * count - place + order / 2 }
                    % count;
            let sample = &mut samples[index];
            let seed = (run * settings.turns() + number) as u64 + 2;
            // What the one before left behind, in caches and in TCP's mind, is not this one's merit.
            turn(client, sample, settings.turn() / LEAD_IN, seed)?;
            let before = (usage(osd.pid())?.cpu_s, own()?.cpu_s);
            let Turn { operations, time } = turn(client, sample, settings.turn(), seed * 0x9E37_79B9)?;
            let after = (usage(osd.pid())?.cpu_s, own()?.cpu_s);
            sample.operations += operations;
            sample.seconds += time.as_secs_f64();
            if sample.contender != Contender::Tcp {
                sample.device_cpu_s += after.0 - before.0;
            }
            sample.client_cpu_s += after.1 - before.1;
        }
    }
    if workload.direction == Direction::Write {
        client.flush()?;
    }
    Ok(())
}

fn turn(client: &Client, sample: &Sample, time: Duration, seed: u64) -> Outcome<Turn> {
    let workload = &sample.workload;
    match sample.contender.method() {
        Some(method) => client.turn(workload, method, time, seed),
        None => {
            let (operations, time) = ceiling::run(workload.direction, workload.bytes, workload.depth, time)?;
            Ok(Turn { operations, time })
        }
    }
}
