//! Cost of check values over data by size of the command: the curves, and their crossings.
//!
//! Does: draws one SVG for reads and one for writes, aligned and unaligned side by side. The upper
//! part is the device's CPU time above NOSEC, the lower part the lost throughput. Crossings are
//! marked with their size.
//! Does not: measure.
//! Truth: docs/reference/figures.md, "Plots".

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::Outcome;
use crate::contender::Contender;
use crate::statistics::WorkloadResults;
use crate::workload::{Direction, Pattern};

/// Pixels of a plot.
const SIZE: (u32, u32) = (1200, 900);
/// Pixels of a mark.
const MARK: i32 = 5;

/// Pairs whose curves are compared: stored digests with the MAC over all bytes by the same hash,
/// and with each other.
pub(crate) const PAIRS: [(Contender, Contender); 5] = [
    (Contender::AllDataF4, Contender::AllData01),
    (Contender::AllDataF5, Contender::AllData01),
    (Contender::AllDataF5, Contender::AllDataF4),
    (Contender::AllData, Contender::AllDataF1),
    (Contender::AllDataLt, Contender::AllDataF1),
];

/// The drawn cost, in percent of NOSEC's.
#[derive(Clone, Copy)]
enum RelativeCost {
    /// CPU time of the device above NOSEC's.
    Cpu,
    /// Throughput below NOSEC's.
    Throughput,
}

impl RelativeCost {
    const fn title(self) -> &'static str {
        match self {
            Self::Cpu => "device CPU above NOSEC, %",
            Self::Throughput => "throughput below NOSEC, %",
        }
    }

    fn of(self, figure: &WorkloadResults, contender: Contender) -> Option<f64> {
        let own = figure.of(contender)?;
        let cost = match self {
            Self::Cpu => own.device_cpu_s_per_gib / figure.of(Contender::NoSec)?.device_cpu_s_per_gib - 1.0,
            Self::Throughput => 1.0 - own.to_nosec.median,
        };
        cost.is_finite().then_some(100.0 * cost)
    }
}

/// A size at which two contenders cost the same, and that cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CostCrossing {
    /// Bytes of the command.
    pub(crate) bytes: f64,
    pub(crate) cost: f64,
    /// Whether the first of both is cheaper above it.
    pub(crate) falls: bool,
}

/// Returns the crossings of two curves over the same ascending sizes: straight lines between
/// points, sizes in octaves.
pub(crate) fn crossings(points: &[(f64, f64, f64)]) -> Vec<CostCrossing> {
    let cross = |pair: &[(f64, f64, f64)]| {
        let &[(low, a, b), (high, c, d)] = pair else { return None };
        let (before, after) = (a - b, c - d);
        if (before < 0.0) == (after < 0.0) {
            return None;
        }
        let part = before / (before - after);
        Some(CostCrossing {
            bytes: low * (high / low).powf(part),
            cost: a + part * (c - a),
            falls: after < 0.0,
        })
    };
    points.windows(2).filter_map(cross).collect()
}

/// Returns the costs of two contenders by size, where both were measured.
fn both(
    figures: &[&WorkloadResults],
    cost: RelativeCost,
    (one, other): (Contender, Contender),
) -> Vec<(f64, f64, f64)> {
    let mut points: Vec<_> = figures
        .iter()
        .filter_map(|figure| {
            Some((figure.workload.bytes as f64, cost.of(figure, one)?, cost.of(figure, other)?))
        })
        .collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    points
}

fn of_kind(figures: &[WorkloadResults], direction: Direction, pattern: Pattern) -> Vec<&WorkloadResults> {
    let fits = |figure: &&WorkloadResults| {
        (figure.workload.direction, figure.workload.pattern) == (direction, pattern)
    };
    figures.iter().filter(fits).collect()
}

const ALIGNMENTS: [(Pattern, &str); 2] =
    [(Pattern::Sequential, "aligned"), (Pattern::Unaligned, "unaligned")];

/// Describes the crossings of the device's CPU time.
pub(crate) fn crossing_lines(figures: &[WorkloadResults]) -> Vec<String> {
    let mut lines = Vec::new();
    for direction in [Direction::Read, Direction::Write] {
        for (pattern, alignment) in ALIGNMENTS {
            for pair in PAIRS {
                for crossing in
                    crossings(&both(&of_kind(figures, direction, pattern), RelativeCost::Cpu, pair))
                {
                    let (below, above) = if crossing.falls { pair } else { (pair.1, pair.0) };
                    lines.push(format!(
                        "{} {alignment}: {} costs the device less than {} from {} on",
                        direction.name(),
                        below.name(),
                        above.name(),
                        size(crossing.bytes)
                    ));
                }
            }
        }
    }
    lines
}

fn size(bytes: f64) -> String {
    if bytes < 1024.0 { format!("{bytes:.0} B") } else { format!("{:.1} KiB", bytes / 1024.0) }
}

/// Draws `overhead-read.svg` and `overhead-write.svg` into an existing folder.
pub(crate) fn draw(folder: &Path, figures: &[WorkloadResults]) -> Outcome {
    for direction in [Direction::Read, Direction::Write] {
        if figures.iter().any(|figure| figure.workload.direction == direction) {
            let file = folder.join(format!("overhead-{}.svg", direction.name()));
            plot(&file, direction, figures).map_err(|error| format!("{}: {error}", file.display()))?;
        }
    }
    Ok(())
}

fn plot(
    file: &Path,
    direction: Direction,
    figures: &[WorkloadResults],
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let areas = root.split_evenly((2, 2));
    let kinds = [RelativeCost::Cpu, RelativeCost::Throughput]
        .into_iter()
        .flat_map(|cost| ALIGNMENTS.into_iter().map(move |(pattern, alignment)| (cost, pattern, alignment)));
    for (area, (cost, pattern, alignment)) in areas.iter().zip(kinds) {
        let title = format!("{}, {alignment}: {}", direction.name(), cost.title());
        panel(area, &title, cost, &of_kind(figures, direction, pattern))?;
    }
    root.present()?;
    Ok(())
}

fn panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    cost: RelativeCost,
    figures: &[&WorkloadResults],
) -> Result<(), Box<dyn std::error::Error>> {
    let all = || Contender::ALGORITHMS.into_iter().filter(|&contender| contender != Contender::NoSec);
    let curve = |contender| {
        let points = both(figures, cost, (contender, contender));
        points.into_iter().map(|(bytes, percent, _)| (bytes, percent)).collect::<Vec<_>>()
    };
    let curves: Vec<_> = all().map(|contender| (contender, curve(contender))).collect();
    let points = || curves.iter().flat_map(|(_, points)| points);
    let (least, most) = points().fold((f64::MAX, 1.0_f64), |(low, high), p| (low.min(p.0), high.max(p.0)));
    let (bottom, top) = points().fold((0.0_f64, 10.0_f64), |(low, high), p| (low.min(p.1), high.max(p.1)));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(50)
        .build_cartesian_2d((least.min(most / 2.0)..most * 1.1).log_scale(), bottom * 1.1..top * 1.1)?;
    chart.configure_mesh().x_desc("bytes").draw()?;
    for (index, (contender, points)) in curves.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        chart
            .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?
            .label(contender.name())
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color));
    }
    for pair in PAIRS {
        for crossing in crossings(&both(figures, cost, pair)) {
            let at = (crossing.bytes, crossing.cost);
            let words = EmptyElement::at(at)
                + Circle::new((0, 0), MARK, BLACK.stroke_width(1))
                + Text::new(size(crossing.bytes), (MARK, -3 * MARK), ("sans-serif", 11));
            chart.draw_series(std::iter::once(words))?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics;
    use crate::statistics::TurnSample;
    use crate::workload::algorithm_grid;

    /// Digests cost the same for each command, a MAC over all bytes grows with their number: they
    /// cross.
    #[test]
    fn curves_cross_where_they_cost_the_same() {
        let found = crossings(&[(4096.0, 8.0, 4.0), (16_384.0, 8.0, 12.0), (65_536.0, 8.0, 36.0)]);
        assert_eq!(found, [CostCrossing { bytes: 8192.0, cost: 8.0, falls: true }]);
        assert!(crossings(&[(1.0, 1.0, 2.0), (2.0, 2.0, 3.0)]).is_empty());
    }

    #[test]
    fn crossings_are_drawn_and_listed() {
        let mut samples = Vec::new();
        let grid: Vec<_> = algorithm_grid().collect();
        for workload in &grid {
            for contender in Contender::ALGORITHMS {
                let kib = workload.bytes as f64 / 1024.0;
                let device_cpu_s = 10.0
                    + match contender {
                        Contender::NoSec => 0.0,
                        Contender::AllData01 | Contender::AllDataF1 => kib,
                        _ => 12.0,
                    };
                samples.push(TurnSample {
                    run: 0,
                    round: 0,
                    contender,
                    workload: *workload,
                    operations: 1000,
                    seconds: 1.0 + device_cpu_s / 100.0,
                    device_cpu_s,
                    client_cpu_s: 0.0,
                });
            }
        }
        let figures = statistics::of(&grid, &samples);
        let lines = crossing_lines(&figures);
        assert!(
            lines.contains(
                &"read aligned: ALLDATA-F4H costs the device less than ALLDATA-01H from 11.3 KiB on"
                    .to_owned()
            ),
            "{lines:?}"
        );
        let folder = tempfile::tempdir().unwrap();
        draw(folder.path(), &figures).unwrap();
        for name in ["overhead-read.svg", "overhead-write.svg"] {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
            assert!(text.starts_with("<svg") && text.matches("<circle").count() >= 4, "{name}");
        }
    }
}
