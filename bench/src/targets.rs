//! The targets, and whether they were reached.

use serde::Serialize;

use crate::contender::Contender;
use crate::daemon::StartTimes;
use crate::statistics::{MemoryUse, Result as FigureResult, WorkloadResults};
use crate::workload::{Direction, Pattern};

/// Minimum rate of CAPKEY and CMDRSP relative to NOSEC.
const METHOD_RATIO_MIN: f64 = 0.97;
/// Size from which that applies, in bytes.
const METHOD_BYTES_MIN: usize = 64 << 10;
/// Size of the sequential reads without protection, in bytes.
const CEILING_BYTES: usize = 1 << 20;
/// Minimum rate of those reads relative to plain TCP.
const CEILING_RATIO_MIN: f64 = 0.5;
/// Maximum device CPU of a protected read relative to an unprotected one.
const READ_CPU_MAX: f64 = 1.05;
/// Maximum resident memory of an idle daemon, in KiB.
const IDLE_KIB_MAX: u64 = 64 << 10;
/// Maximum time until a daemon is ready, in seconds.
const READY_S_MAX: f64 = 1.0;

/// One target.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) aim: String,
    pub(crate) reached: bool,
    /// Measured value.
    pub(crate) measured: String,
}

impl Verdict {
    /// Returns its line in a report, with the aim padded to `width`.
    pub(crate) fn line(&self, width: usize) -> String {
        let word = if self.reached { "reached" } else { "not reached" };
        format!("{word:12} {:width$} {}", self.aim, self.measured)
    }
}

pub(crate) fn of(figures: &[WorkloadResults], memory: &MemoryUse, starts: &StartTimes) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for contender in [Contender::CapKey, Contender::CmdRsp] {
        let results = || {
            figures
                .iter()
                .filter(|figure| figure.workload.bytes >= METHOD_BYTES_MIN)
                .filter_map(|figure| Some((figure.of(contender)?, figure.name.clone())))
        };
        let aim = |by| format!("{} at 64 KiB and above: 97 % of NOSEC{by}", contender.name());
        let by_time = results().map(|(result, name)| (result.to_nosec.median, name)).collect();
        verdicts.extend(least(aim(""), by_time, METHOD_RATIO_MIN));
        let by_cpu = results().map(|(result, name)| (result.to_nosec_by_cpu, name)).collect();
        verdicts.extend(least(aim(", by CPU time"), by_cpu, METHOD_RATIO_MIN));
    }
    for (direction, aim, min) in [
        (Direction::Read, "ALLDATA, sequential reads at 64 KiB and above: 75 % of NOSEC", 0.75),
        (Direction::Write, "ALLDATA, sequential writes at 64 KiB and above: 65 % of NOSEC", 0.65),
    ] {
        let ratios =
            large(figures, direction).map(|(own, figure)| (own.to_nosec.median, figure.name.clone()));
        verdicts.extend(least(aim.into(), ratios.collect(), min));
    }
    // Here more is worse: the ratio is inverted, so that the worst is the minimum.
    for (beside, aim) in [
        (Contender::NoSec, "ALLDATA, the same reads: NOSEC needs 95 % of its device CPU"),
        // A hashing client takes caches and memory from the device, whatever the device does.
        (Contender::NoSecHashed, "the same, beside NOSEC whose client hashes too"),
    ] {
        let cpu = large(figures, Direction::Read).filter_map(|(own, figure)| {
            let other = figure.of(beside)?;
            Some((other.device_cpu_s_per_gib / own.device_cpu_s_per_gib, figure.name.clone()))
        });
        verdicts.extend(least(aim.into(), cpu.collect(), 1.0 / READ_CPU_MAX));
    }
    let reads = figures.iter().filter(|figure| {
        let workload = &figure.workload;
        (workload.direction, workload.pattern, workload.bytes)
            == (Direction::Read, Pattern::Sequential, CEILING_BYTES)
    });
    let ratios =
        reads.filter_map(|figure| Some((figure.of(Contender::NoSec)?.to_tcp.median, figure.name.clone())));
    verdicts.extend(least(
        "sequential 1 MiB reads, NOSEC: half of plain TCP".into(),
        ratios.collect(),
        CEILING_RATIO_MIN,
    ));
    for (who, idle_kib, ready_s) in [
        ("device", memory.osd_idle_kib, starts.osd_ready_s),
        ("metadata server", memory.mds_idle_kib, starts.mds_ready_s),
    ] {
        verdicts.push(Verdict {
            aim: format!("idle {who}: under 64 MiB"),
            reached: idle_kib < IDLE_KIB_MAX,
            measured: format!("{:.1} MiB", idle_kib as f64 / 1024.0),
        });
        verdicts.push(Verdict {
            aim: format!("{who}: ready in under 1 s"),
            reached: ready_s < READY_S_MAX,
            measured: format!("{:.0} ms", ready_s * 1000.0),
        });
    }
    verdicts
}

/// Returns ALLDATA in large sequential workloads.
fn large(
    figures: &[WorkloadResults],
    direction: Direction,
) -> impl Iterator<Item = (&FigureResult, &WorkloadResults)> {
    figures
        .iter()
        .filter(move |figure| {
            let workload = &figure.workload;
            workload.bytes >= METHOD_BYTES_MIN
                && (workload.direction, workload.pattern) == (direction, Pattern::Sequential)
        })
        .filter_map(|figure| Some((figure.of(Contender::AllData)?, figure)))
}

/// Returns the verdict of a target for several workloads; `None` if none was measured.
fn least(aim: String, mut ratios: Vec<(f64, String)>, min: f64) -> Option<Verdict> {
    // There is no ratio if the other side was not measured.
    ratios.retain(|(ratio, _)| ratio.is_finite());
    ratios.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let (worst, name) = ratios.first()?;
    let middle = ratios[ratios.len() / 2].0;
    let enough = ratios.iter().filter(|(ratio, _)| *ratio >= min).count();
    Some(Verdict {
        aim,
        reached: enough == ratios.len(),
        measured: format!(
            "{enough} of {} workloads; median {:.1} %, least {:.1} % ({name})",
            ratios.len(),
            100.0 * middle,
            100.0 * worst
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One workload below the target is enough to miss it, and is named.
    #[test]
    fn the_worst_workload_decides() {
        let ratios = vec![(0.99, "a".to_owned()), (0.9, "b".to_owned()), (1.0, "c".to_owned())];
        let verdict = least("aim".into(), ratios.clone(), 0.97).unwrap();
        assert!(!verdict.reached && verdict.measured.contains("90.0 % (b)"), "{verdict:?}");
        assert!(least("aim".into(), ratios, 0.9).unwrap().reached);
        assert!(least("aim".into(), vec![(f64::NAN, "d".to_owned())], 0.9).is_none());
    }
}
