//! From samples to figures: medians over runs, ratios within each run.

use serde::Serialize;

use crate::contender::Contender;
use crate::measure::Sample;
use crate::workload::{Workload, grid, median};

/// What came out for one contender in one workload.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Result {
    pub(crate) contender: Contender,
    /// Median over runs.
    pub(crate) mib_per_s: f64,
    pub(crate) operations_per_s: f64,
    /// Median over runs of the ratio to NOSEC in the same run.
    pub(crate) to_nosec: f64,
    /// Median over runs of the ratio to plain TCP in the same run.
    pub(crate) to_tcp: f64,
    /// Bytes per CPU second of device and client together, as part of those of NOSEC, over all runs. Other programs
    /// on the machine move it less than they move the rates.
    pub(crate) to_nosec_by_cpu: f64,
    /// CPU seconds per GiB, over all runs.
    pub(crate) device_cpu_s_per_gib: f64,
    pub(crate) client_cpu_s_per_gib: f64,
}

/// One workload.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) workload: Workload,
    pub(crate) results: Vec<Result>,
}

impl Figure {
    pub(crate) fn of(&self, contender: Contender) -> Option<&Result> {
        self.results.iter().find(|result| result.contender == contender)
    }
}

/// Resident memory, KiB.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Memory {
    pub(crate) osd_idle_kib: u64,
    pub(crate) mds_idle_kib: u64,
    pub(crate) osd_peak_after_reads_kib: u64,
    pub(crate) osd_peak_kib: u64,
}

/// All figures, in the order of the grid.
pub(crate) fn of(samples: &[Sample]) -> Vec<Figure> {
    grid()
        .filter_map(|workload| {
            let results: Vec<Result> = Contender::ALL
                .into_iter()
                .filter_map(|contender| result(samples, &workload, contender))
                .collect();
            (!results.is_empty()).then(|| Figure { name: workload.name(), workload, results })
        })
        .collect()
}

fn result(samples: &[Sample], workload: &Workload, contender: Contender) -> Option<Result> {
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
    let own: Vec<&Sample> = of(contender).collect();
    if own.is_empty() {
        return None;
    }
    let ratio_to = |other: Contender| {
        let mut ratios: Vec<f64> = own
            .iter()
            .filter_map(|sample| {
                Some(sample.rate() / of(other).find(|other| other.run == sample.run)?.rate())
            })
            .collect();
        median(&mut ratios)
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
        to_nosec_by_cpu: cpu_s_per_gib(Contender::NoSec) / cpu_s_per_gib(contender),
        device_cpu_s_per_gib: own.iter().map(|sample| sample.device_cpu_s).sum::<f64>() / gib,
        client_cpu_s_per_gib: own.iter().map(|sample| sample.client_cpu_s).sum::<f64>() / gib,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that is slow in one run is slow for all of them: ratios do not see it.
    #[test]
    fn ratios_are_taken_within_a_run() {
        let workload = grid().next().unwrap();
        let sample = |run, contender, operations| Sample {
            run,
            contender,
            workload,
            operations,
            seconds: 1.0,
            device_cpu_s: 0.5,
            client_cpu_s: 0.25,
        };
        let mut samples = Vec::new();
        for (run, operations) in [(0, 1000), (1, 500), (2, 100)] {
            samples.push(sample(run, Contender::Tcp, operations * 4));
            samples.push(sample(run, Contender::NoSec, operations * 2));
            samples.push(sample(run, Contender::AllData, operations));
        }
        let figures = of(&samples);
        assert!((figures[0].of(Contender::AllData).unwrap().to_nosec_by_cpu - 0.5).abs() < 1e-9);
        assert_eq!(figures.len(), 2, "plain TCP stands for both patterns");
        let result = figures[0].of(Contender::AllData).unwrap();
        assert!((result.to_nosec - 0.5).abs() < 1e-9 && (result.to_tcp - 0.25).abs() < 1e-9);
        assert!((result.operations_per_s - 500.0).abs() < 1e-6);
    }
}
