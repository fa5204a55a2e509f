//! Computes results from samples: medians over turns, ratios within each round.
//!
//! A round is one turn of each contender, in random order, within a fraction of a second, so that a
//! slowdown of the machine affects all. The median of the ratios of many rounds comes with its 95 %
//! interval, by order statistics, which only assumes that rounds are independent. Two results with
//! overlapping intervals may be equal.

use std::collections::HashMap;

use serde::Serialize;

use crate::contender::Contender;
use crate::workload::{Workload, median};

/// Result of one contender in one turn.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TurnSample {
    pub(crate) run: usize,
    /// Round of this run: a round has one turn of each contender.
    pub(crate) round: usize,
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

impl TurnSample {
    /// Returns MiB per second.
    pub(crate) fn rate(&self) -> f64 {
        self.mib() / self.seconds
    }

    /// Returns the data moved, in MiB.
    pub(crate) fn mib(&self) -> f64 {
        self.operations as f64 * self.workload.bytes as f64 / f64::from(1 << 20)
    }
}

/// Result of one contender in one workload.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Result {
    pub(crate) contender: Contender,
    /// Median over turns.
    pub(crate) mib_per_s: f64,
    pub(crate) operations_per_s: f64,
    /// Ratio of the rate to NOSEC's in the same round.
    pub(crate) to_nosec: ContenderRatio,
    /// Ratio of the rate to plain TCP's in the same round.
    pub(crate) to_tcp: ContenderRatio,
    /// Ratio to the same method in plain text, for contenders inside TLS.
    pub(crate) to_plain: Option<ContenderRatio>,
    /// Bytes per CPU second of device and client together, relative to NOSEC, over all runs. Other
    /// load affects it less than the rates.
    pub(crate) to_nosec_by_cpu: f64,
    /// CPU seconds per GiB, over all runs.
    pub(crate) device_cpu_s_per_gib: f64,
    pub(crate) client_cpu_s_per_gib: f64,
}

/// Ratio of two contenders over many rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct ContenderRatio {
    /// Rounds in which both took part.
    pub(crate) rounds: usize,
    pub(crate) median: f64,
    /// Interval of half of the rounds.
    pub(crate) quartiles: [f64; 2],
    /// 95 % confidence interval of the median.
    pub(crate) interval: [f64; 2],
}

impl ContenderRatio {
    pub(crate) fn of(mut ratios: Vec<f64>) -> Self {
        ratios.sort_by(f64::total_cmp);
        let rounds = ratios.len();
        let at = |place: f64| ratios.get(place as usize).copied().unwrap_or(f64::NAN);
        let last = rounds.saturating_sub(1) as f64;
        // The number of ratios below the true median is binomial with p = 1/2.
        let outside = ((rounds as f64 - 1.96 * (rounds as f64).sqrt()) / 2.0).floor().max(0.0);
        Self {
            rounds,
            quartiles: [at((last / 4.0).floor()), at((last * 0.75).ceil())],
            interval: [at(outside), at(last - outside)],
            median: median(&mut ratios),
        }
    }
}

/// Results of one workload.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WorkloadResults {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) workload: Workload,
    pub(crate) results: Vec<Result>,
}

impl WorkloadResults {
    pub(crate) fn of(&self, contender: Contender) -> Option<&Result> {
        self.results.iter().find(|result| result.contender == contender)
    }
}

/// Resident memory in KiB.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct MemoryUse {
    pub(crate) osd_idle_kib: u64,
    pub(crate) mds_idle_kib: u64,
    pub(crate) osd_peak_after_reads_kib: u64,
    pub(crate) osd_peak_kib: u64,
}

/// Computes all results, in the order of the grid.
pub(crate) fn of(grid: &[Workload], samples: &[TurnSample]) -> Vec<WorkloadResults> {
    grid.iter()
        .copied()
        .filter_map(|workload| {
            let results: Vec<Result> = Contender::EVERY
                .into_iter()
                .filter_map(|contender| result(samples, &workload, contender))
                .collect();
            (!results.is_empty()).then(|| WorkloadResults { name: workload.name(), workload, results })
        })
        .collect()
}

fn result(samples: &[TurnSample], workload: &Workload, contender: Contender) -> Option<Result> {
    // Plain TCP was measured once for both patterns.
    let of = |contender: Contender| {
        samples.iter().filter(move |sample| {
            let same = if contender == Contender::Tcp {
                sample.workload.ignoring_pattern() == workload.ignoring_pattern()
            } else {
                sample.workload == *workload
            };
            sample.contender == contender && same
        })
    };
    let own: Vec<&TurnSample> = of(contender).collect();
    if own.is_empty() {
        return None;
    }
    let ratio_to = |other: Contender| {
        let others: HashMap<(usize, usize), f64> =
            of(other).map(|sample| ((sample.run, sample.round), sample.rate())).collect();
        let pairs =
            own.iter().filter_map(|sample| Some(sample.rate() / others.get(&(sample.run, sample.round))?));
        ContenderRatio::of(pairs.collect())
    };
    let mib_per_s = median(&mut own.iter().map(|sample| sample.rate()).collect::<Vec<_>>());
    let gib = own.iter().map(|sample| sample.mib()).sum::<f64>() / 1024.0;
    let cpu_s_per_gib = |contender: Contender| {
        let (cpu_s, mib) = of(contender).fold((0.0, 0.0), |(cpu_s, mib), sample| {
            (cpu_s + sample.device_cpu_s + sample.client_cpu_s, mib + sample.mib())
        });
        cpu_s * 1024.0 / mib
    };
    Some(Result {
        contender,
        mib_per_s,
        operations_per_s: mib_per_s * f64::from(1 << 20) / workload.bytes as f64,
        to_nosec: ratio_to(Contender::NoSec),
        to_tcp: ratio_to(Contender::Tcp),
        to_plain: contender.in_plain_text().map(ratio_to),
        to_nosec_by_cpu: cpu_s_per_gib(Contender::NoSec) / cpu_s_per_gib(contender),
        device_cpu_s_per_gib: own.iter().map(|sample| sample.device_cpu_s).sum::<f64>() / gib,
        client_cpu_s_per_gib: own.iter().map(|sample| sample.client_cpu_s).sum::<f64>() / gib,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that is slow in one round is slow for all contenders: ratios are unaffected.
    #[test]
    fn ratios_are_taken_within_a_round() {
        let all: Vec<Workload> = crate::workload::grid().collect();
        let workload = all[0];
        let sample = |round, contender, operations| TurnSample {
            run: 0,
            round,
            contender,
            workload,
            operations,
            seconds: 1.0,
            device_cpu_s: 0.5,
            client_cpu_s: 0.25,
        };
        let mut samples = Vec::new();
        for (round, operations) in [(0, 1000), (1, 500), (2, 100)] {
            samples.push(sample(round, Contender::Tcp, operations * 4));
            samples.push(sample(round, Contender::NoSec, operations * 2));
            samples.push(sample(round, Contender::AllData, operations));
        }
        let figures = of(&all, &samples);
        assert!((figures[0].of(Contender::AllData).unwrap().to_nosec_by_cpu - 0.5).abs() < 1e-9);
        assert_eq!(figures.len(), 2, "plain TCP stands for both patterns");
        let result = figures[0].of(Contender::AllData).unwrap();
        assert!((result.to_nosec.median - 0.5).abs() < 1e-9 && (result.to_tcp.median - 0.25).abs() < 1e-9);
        assert_eq!((result.to_nosec.rounds, result.to_nosec.interval), (3, [0.5, 0.5]));
        assert!((result.operations_per_s - 500.0).abs() < 1e-6);
    }

    /// More rounds give a narrower interval.
    #[test]
    fn interval_narrows_and_contains_the_median() {
        let ratio = |rounds: u32| {
            ContenderRatio::of((0..rounds).map(|at| f64::from(at) / f64::from(rounds - 1)).collect())
        };
        let (few, many) = (ratio(9), ratio(401));
        let width = |ratio: &ContenderRatio| ratio.interval[1] - ratio.interval[0];
        assert!(width(&many) < width(&few) / 4.0, "{few:?} {many:?}");
        assert!(many.interval[0] < 0.5 && many.interval[1] > 0.5);
        assert!((many.quartiles[0] - 0.25).abs() < 0.01 && (many.quartiles[1] - 0.75).abs() < 0.01);
        assert!(ContenderRatio::of(Vec::new()).median.is_nan());
        assert_eq!(ratio(2).interval, [0.0, 1.0]);
    }
}
