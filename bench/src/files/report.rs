//! Computes results from samples, and compares them with the targets.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::rounds::{METADATA, SMALL, STREAM, ScenarioSample};
use super::{FileResults, depth, gluster, moosefs};
use crate::statistics::ContenderRatio;
use crate::targets::Verdict;
use crate::workload::median;

/// Names of the ceiling: libfuse's own example, or the packaged one if it cannot be built.
pub(crate) const CEILING: &str = "passthrough";
pub(crate) const CEILING_PACKAGED: &str = "bindfs";
/// Name of the Sealstone mount with the embedded store.
pub(crate) const OURS: &str = "sealstone";
/// Other file systems that are mounted by FUSE.
pub(crate) const PEERS: [&str; 2] = [gluster::NAME, moosefs::NAME];

/// Minimum rate of streams relative to the ceiling.
const STREAM_MIN: f64 = 0.7;
/// Minimum rate of metadata operations relative to the ceiling.
const METADATA_MIN: f64 = 0.3;
/// Minimum rate of metadata operations relative to each peer.
const PEERS_MIN: f64 = 2.0;

/// Whether it is Sealstone's or the disk, so that its failure ends the run.
pub(crate) fn is_ours(name: &str) -> bool {
    name.starts_with(OURS) || name == "library" || name == "disk"
}

/// Result of one file system in one workload.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Result {
    pub(crate) subject: String,
    /// Operations, entries or MiB per second, median over rounds.
    pub(crate) per_s: f64,
    /// CPU time of all processes, over all rounds, in microseconds per operation.
    pub(crate) cpu_us: f64,
    /// Ratio to the rate of the ceiling in the same round.
    pub(crate) to_ceiling: Option<ContenderRatio>,
    /// Ratio of Sealstone's rate to this one in the same round.
    pub(crate) ours_to_it: Option<ContenderRatio>,
}

/// Results of one workload.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FileWorkloadResults {
    pub(crate) workload: &'static str,
    pub(crate) clients: usize,
    pub(crate) results: Vec<Result>,
}

impl FileWorkloadResults {
    fn of(&self, subject: &str) -> Option<&Result> {
        self.results.iter().find(|result| result.subject == subject)
    }
}

/// Computes all results, in the order of measurement.
pub(crate) fn figures(samples: &[ScenarioSample]) -> Vec<FileWorkloadResults> {
    let mut figures: Vec<FileWorkloadResults> = Vec::new();
    for sample in samples {
        let known = figures
            .iter()
            .any(|figure| (figure.workload, figure.clients) == (sample.workload, sample.clients));
        if !known {
            let same = samples
                .iter()
                .filter(|other| (other.workload, other.clients) == (sample.workload, sample.clients));
            figures.push(figure(sample.workload, sample.clients, &same.collect::<Vec<_>>()));
        }
    }
    figures
}

fn figure(workload: &'static str, clients: usize, samples: &[&ScenarioSample]) -> FileWorkloadResults {
    let mut names: Vec<&str> = samples.iter().map(|sample| sample.subject.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let of = |name: &str| -> HashMap<usize, f64> {
        let own = samples.iter().filter(|sample| sample.subject == name);
        own.map(|sample| (sample.round, sample.per_s())).collect()
    };
    let ceiling = ceiling_among(&names);
    let ratio = |one: &str, other: &str| {
        let others = of(other);
        let ratios: Vec<f64> =
            of(one).iter().filter_map(|(round, rate)| Some(rate / others.get(round)?)).collect();
        (!ratios.is_empty()).then(|| ContenderRatio::of(ratios))
    };
    let results = names
        .iter()
        .map(|&name| {
            let own = || samples.iter().filter(|sample| sample.subject == name);
            let (operations, cpu_s) =
                own().fold((0, 0.0), |(all, cpu), sample| (all + sample.operations, cpu + sample.cpu_s));
            Result {
                subject: name.to_owned(),
                per_s: median(&mut own().map(|sample| sample.per_s()).collect::<Vec<_>>()),
                cpu_us: 1e6 * cpu_s / operations as f64,
                to_ceiling: ceiling.and_then(|ceiling| ratio(name, ceiling)),
                ours_to_it: ratio(OURS, name),
            }
        })
        .collect();
    FileWorkloadResults { workload, clients, results }
}

/// Returns the ceiling among these names: the built one, or the packaged one.
fn ceiling_among(names: &[&str]) -> Option<&'static str> {
    [CEILING, CEILING_PACKAGED].into_iter().find(|name| names.contains(name))
}

/// Returns the ceiling of all results; the packaged one if it was used in some.
fn ceiling_of(figures: &[FileWorkloadResults]) -> &'static str {
    let of = |figure: &FileWorkloadResults| {
        ceiling_among(&figure.results.iter().map(|result| result.subject.as_str()).collect::<Vec<_>>())
    };
    if figures.iter().filter_map(of).all(|name| name == CEILING) { CEILING } else { CEILING_PACKAGED }
}

/// Returns the verdicts.
pub(crate) fn verdicts(figures: &[FileWorkloadResults]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let streams = figures.iter().filter(|figure| STREAM.contains(&figure.workload));
    let streams = streams.filter_map(|figure| Some((to_ceiling(figure)?, workload_and_clients(figure))));
    let beside = ceiling_of(figures);
    verdicts.extend(least(&format!("streams through the mount: 70 % of {beside}'s"), streams, STREAM_MIN));
    let metadata = || figures.iter().filter(|figure| METADATA.contains(&figure.workload));
    let rates = metadata().filter_map(|figure| Some((to_ceiling(figure)?, workload_and_clients(figure))));
    let aim = format!("metadata rates, embedded store: 30 % of {beside}'s");
    verdicts.extend(least(&aim, rates, METADATA_MIN));
    for peer in PEERS {
        let rates = metadata().filter_map(|figure| {
            Some((figure.of(peer)?.ours_to_it.as_ref()?.median, workload_and_clients(figure)))
        });
        verdicts.extend(least(&format!("metadata rates: twice those of {peer}"), rates, PEERS_MIN));
    }
    verdicts
}

fn to_ceiling(figure: &FileWorkloadResults) -> Option<f64> {
    Some(figure.of(OURS)?.to_ceiling.as_ref()?.median)
}

fn workload_and_clients(figure: &FileWorkloadResults) -> String {
    match figure.clients {
        1 => format!("{}, 1 client", figure.workload),
        many => format!("{}, {many} clients", figure.workload),
    }
}

/// Returns the verdict of a target for several workloads; `None` if none was measured.
fn least(aim: &str, ratios: impl Iterator<Item = (f64, String)>, min: f64) -> Option<Verdict> {
    let mut ratios: Vec<_> = ratios.filter(|(ratio, _)| ratio.is_finite()).collect();
    ratios.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let enough = ratios.iter().filter(|(ratio, _)| *ratio >= min).count();
    let (worst, name) = ratios.first()?;
    Some(Verdict {
        aim: aim.to_owned(),
        reached: enough == ratios.len(),
        measured: format!("{enough} of {}; least {:.0} % ({name})", ratios.len(), 100.0 * worst),
    })
}

/// Formats tables, skipped file systems, and the verdicts.
pub(crate) fn text(findings: &FileResults) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, findings);
    text
}

fn write(text: &mut String, findings: &FileResults) -> std::fmt::Result {
    writeln!(text, "{}", findings.machine)?;
    writeln!(
        text,
        "medians of {} rounds; in brackets 95 % intervals of the ratio to the ceiling in the same round; CPU of servers \
         (without PostgreSQL and slapd), mount and clients together\n",
        findings.runs
    )?;
    for figure in &findings.figures {
        let unit = if figure.workload.starts_with("stream") { "MiB" } else { "operation" };
        let cold = if figure.workload == SMALL[1] || figure.workload.starts_with("stream read") {
            ", nothing in the page cache of the mount"
        } else {
            ""
        };
        let (rate, cpu) = (format!("{unit}s/s"), format!("CPU us/{unit}"));
        writeln!(text, "{}{cold}", workload_and_clients(figure))?;
        writeln!(text, "  {:24}{rate:>12}{:>24}{cpu:>18}", "", "of the ceiling, %")?;
        for result in &figure.results {
            let ratio = result.to_ceiling.as_ref().map_or("-".to_owned(), |ratio| {
                let [low, high] = ratio.interval;
                format!("{:.0} ({:.0}-{:.0})", 100.0 * ratio.median, 100.0 * low, 100.0 * high)
            });
            writeln!(
                text,
                "  {:24}{:>12.0}{ratio:>24}{:>18.0}",
                result.subject, result.per_s, result.cpu_us
            )?;
        }
        writeln!(text)?;
    }
    text.push_str(&depth::text(&findings.depths));
    for left in &findings.left_out {
        writeln!(text, "left out: {}: {}", left.name, left.reason)?;
    }
    for verdict in &findings.verdicts {
        writeln!(text, "{}", verdict.line(66))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(round: usize, subject: &str, workload: &'static str, operations: u64) -> ScenarioSample {
        ScenarioSample {
            round,
            subject: subject.to_owned(),
            workload,
            clients: 1,
            operations,
            seconds: 1.0,
            cpu_s: 0.5,
        }
    }

    #[test]
    fn aims_are_judged_by_ratios_within_a_round() {
        let mut samples = Vec::new();
        // A round in which the machine is slow is slow for all.
        for (round, speed) in [(0, 10), (1, 1)] {
            samples.push(sample(round, CEILING, "stat", 1000 * speed));
            samples.push(sample(round, OURS, "stat", 400 * speed));
            samples.push(sample(round, "moosefs", "stat", 250 * speed));
            samples.push(sample(round, CEILING, "stream write", 100 * speed));
            samples.push(sample(round, OURS, "stream write", 60 * speed));
        }
        let figures = figures(&samples);
        assert_eq!(figures.len(), 2);
        assert!((figures[0].of(OURS).unwrap().cpu_us - 1e6 / 4400.0).abs() < 1e-6);
        let verdicts = verdicts(&figures);
        let words: Vec<(&str, bool)> = verdicts
            .iter()
            .map(|verdict| (verdict.aim.split(' ').next().unwrap(), verdict.reached))
            .collect();
        assert_eq!(words, [("streams", false), ("metadata", true), ("metadata", false)]);
        assert!(verdicts[0].measured.contains("least 60 % (stream write, 1 client)"), "{verdicts:?}");
        assert!(verdicts[2].aim.contains("moosefs") && verdicts[2].measured.contains("160 %"));
    }

    #[test]
    fn packaged_passthrough_replaces_a_failed_build() {
        let samples = [sample(0, CEILING_PACKAGED, "stat", 100), sample(0, OURS, "stat", 50)];
        let figures = figures(&samples);
        assert!((to_ceiling(&figures[0]).unwrap() - 0.5).abs() < 1e-9);
        assert!(verdicts(&figures[..0]).is_empty());
    }
}
