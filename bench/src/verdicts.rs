//! The aims, and whether they were reached.

use serde::Serialize;

use crate::contender::Contender;
use crate::daemon::Starts;
use crate::figures::{Figure, Memory, Result as FigureResult};
use crate::workload::{Direction, Pattern};

/// CAPKEY and CMDRSP give at least this part of NOSEC ...
const METHOD_RATIO_MIN: f64 = 0.97;
/// ... from this size on, in bytes.
const METHOD_BYTES_MIN: usize = 64 << 10;
/// Sequential reads of this size, in bytes, without protection ...
const CEILING_BYTES: usize = 1 << 20;
/// ... reach at least this part of plain TCP.
const CEILING_RATIO_MIN: f64 = 0.5;
/// A protected read costs the device at most so many times what an open one does.
const READ_CPU_MAX: f64 = 1.05;
/// An idle daemon has less resident memory, in KiB.
const IDLE_KIB_MAX: u64 = 64 << 10;
/// A daemon is ready within, in seconds.
const READY_S_MAX: f64 = 1.0;

/// One aim.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) aim: String,
    pub(crate) reached: bool,
    /// What was measured.
    pub(crate) measured: String,
}

pub(crate) fn of(figures: &[Figure], memory: &Memory, starts: &Starts) -> Vec<Verdict> {
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
    // More is worse here: the ratio is turned round, so that the worst is the least.
    for (beside, aim) in [
        (Contender::NoSec, "ALLDATA, the same reads: NOSEC needs 95 % of its device CPU"),
        // A client that hashes takes caches and memory from the device, whatever the device does.
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

/// ALLDATA in large sequential workloads.
fn large(figures: &[Figure], direction: Direction) -> impl Iterator<Item = (&FigureResult, &Figure)> {
    figures
        .iter()
        .filter(move |figure| {
            let workload = &figure.workload;
            workload.bytes >= METHOD_BYTES_MIN
                && (workload.direction, workload.pattern) == (direction, Pattern::Sequential)
        })
        .filter_map(|figure| Some((figure.of(Contender::AllData)?, figure)))
}

/// An aim that every one of several workloads has to reach; none if none was measured.
fn least(aim: String, mut ratios: Vec<(f64, String)>, min: f64) -> Option<Verdict> {
    // No ratio where the other side was not measured.
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

    /// One workload below the aim is enough to miss it, and is named.
    #[test]
    fn the_worst_workload_decides() {
        let ratios = vec![(0.99, "a".to_owned()), (0.9, "b".to_owned()), (1.0, "c".to_owned())];
        let verdict = least("aim".into(), ratios.clone(), 0.97).unwrap();
        assert!(!verdict.reached && verdict.measured.contains("90.0 % (b)"), "{verdict:?}");
        assert!(least("aim".into(), ratios, 0.9).unwrap().reached);
        assert!(least("aim".into(), vec![(f64::NAN, "d".to_owned())], 0.9).is_none());
    }
}
