//! Curves: cost of each algorithm at the device by size of the command, measured and in the paper's
//! model.
//!
//! Does: draws one SVG for each direction and alignment: left the model in compressions of SHA-1,
//! right the CPU time above NOSEC.
//! Does not: measure.
//! Truth: docs/design/security.md 5.6 (model, Figures 6 and 7).

use std::fs;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use sealstone_digest::paper::AdHash;
use sealstone_digest::paper::cost::{COMPRESSION, complement, compressions, direct};
use sealstone_digest::{CoverPart, DigestCover, Profile};

use crate::Outcome;
use crate::contender::Contender;
use crate::statistics::WorkloadResults;
use crate::workload::{Direction, OFF, Pattern};

/// Pixels of a plot.
const SIZE: (u32, u32) = (1200, 480);
/// One curve: its name, and cost by bytes of the command.
pub(crate) type Curve = (String, Vec<(f64, f64)>);

/// Draws all results into `folder`.
pub(crate) fn draw(folder: &Path, figures: &[WorkloadResults]) -> Outcome {
    fs::create_dir_all(folder)?;
    for direction in [Direction::Read, Direction::Write] {
        for (pattern, alignment) in [(Pattern::Sequential, "aligned"), (Pattern::Unaligned, "unaligned")] {
            let of = |figure: &&WorkloadResults| {
                (figure.workload.direction, figure.workload.pattern) == (direction, pattern)
            };
            let measured: Vec<&WorkloadResults> = figures.iter().filter(of).collect();
            if measured.is_empty() {
                continue;
            }
            let file = folder.join(format!("{}-{alignment}.svg", direction.name()));
            let start = if pattern == Pattern::Unaligned { OFF } else { 0 };
            let title = format!("{}, {alignment}", direction.name());
            plot(&file, &title, &model(direction, start), &above_nosec(&measured))
                .map_err(|error| format!("{}: {error}", file.display()))?;
        }
    }
    Ok(())
}

fn plot(
    file: &Path,
    title: &str,
    model: &[Curve],
    measured: &[Curve],
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let panels = root.split_evenly((1, 2));
    let [left, right] = &panels[..] else { return Err("two panels".into()) };
    panel(left, &format!("{title}: model, device, SHA-1 compressions"), "bytes", model)?;
    panel(right, &format!("{title}: measured, device CPU above NOSEC, us a command"), "bytes", measured)?;
    root.present()?;
    Ok(())
}

/// Draws curves with logarithmic axes, and a legend.
pub(crate) fn panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    x: &str,
    curves: &[Curve],
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let (low, high) =
        points().fold((f64::MAX, 1.0_f64), |(low, high), point| (low.min(point.0), high.max(point.0)));
    // A single position needs an axis too.
    let high = high.max(2.0 * low.min(high));
    let top = points().fold(1.0_f64, |top, point| top.max(point.1));
    let bottom = 0.1_f64.min(top / 10.0);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d((low.min(high)..high).log_scale(), (bottom..top * 1.2).log_scale())?;
    chart.configure_mesh().x_desc(x).draw()?;
    for (index, (name, points)) in curves.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let drawn = points.iter().map(|(x, y)| (*x, y.max(bottom)));
        chart
            .draw_series(LineSeries::new(drawn, color.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

/// Returns the CPU time of the device for one command above NOSEC's, in microseconds.
pub(crate) fn device_us(figure: &WorkloadResults, contender: Contender) -> Option<f64> {
    let gib = figure.workload.bytes as f64 / f64::from(1 << 30);
    let own = figure.of(contender)?.device_cpu_s_per_gib;
    let nosec = figure.of(Contender::NoSec)?.device_cpu_s_per_gib;
    Some((own - nosec) * gib * 1e6)
}

fn above_nosec(figures: &[&WorkloadResults]) -> Vec<Curve> {
    let all = Contender::ALGORITHMS.into_iter().filter(|&contender| contender != Contender::NoSec);
    all.map(|contender| {
        let points = figures
            .iter()
            .filter_map(|figure| Some((figure.workload.bytes as f64, device_us(figure, contender)?)));
        (contender.name().to_owned(), points.collect())
    })
    .filter(|(_, points): &Curve| !points.is_empty())
    .collect()
}

/// Returns the paper's formulas for a command of each size at offset `start` of an object.
fn model(direction: Direction, start: u64) -> Vec<Curve> {
    let sizes = || (9..=20).flat_map(|power| [1_u64 << power, 3 << (power - 1)]);
    let curve = |name: &str, cost: &dyn Fn(u64) -> f64| -> Curve {
        (name.to_owned(), sizes().map(|bytes| (bytes as f64, cost(bytes))).collect())
    };
    vec![
        curve("HMAC", &|bytes| compressions(bytes) as f64),
        curve("stored SHA-1", &|bytes| stored(direction, start, bytes)),
        curve("incremental, 256-byte blocks", &|bytes| incremental(direction, start, bytes)),
    ]
}

/// Splits a command into units, with the offset of each part in its unit; the object continues
/// behind it.
fn parts(profile: Profile, start: u64, bytes: u64) -> Vec<(bool, u64, u64)> {
    let unit = profile.unit_bytes();
    DigestCover::new(profile, start, bytes, u64::MAX)
        .parts()
        .map(|part| {
            let whole = matches!(part, CoverPart::Whole { .. });
            let range = part.range();
            (whole, range.start % unit, range.end - range.start)
        })
        .collect()
}

/// Cost of stored SHA-1 digests: for a read its edges, for a write all its bytes, and the rest of
/// partly written units.
fn stored(direction: Direction, start: u64, bytes: u64) -> f64 {
    let unit = Profile::Sha1.unit_bytes();
    let parts = parts(Profile::Sha1, start, bytes);
    let list = compressions(20 * parts.len() as u64);
    let cost = |&(whole, within, length): &(bool, u64, u64)| match (direction, whole) {
        (Direction::Read, true) => 0,
        (Direction::Read, false) | (Direction::Write, true) => compressions(length),
        (Direction::Write, false) if within == 0 => compressions(length) + compressions(unit - length),
        (Direction::Write, false) => compressions(length) + compressions(unit),
    };
    (parts.iter().map(cost).sum::<u64>() + list) as f64
}

/// Cost of AdHash: for a read its edges, directly or by the outside; for a write all its bytes,
/// minus old and plus new blocks.
fn incremental(direction: Direction, start: u64, bytes: u64) -> f64 {
    let unit = Profile::AdHash256.unit_bytes();
    let parts = parts(Profile::AdHash256, start, bytes);
    let list = compressions(32 * parts.len() as u64) * COMPRESSION;
    let cost = |&(whole, within, length): &(bool, u64, u64)| {
        let come = direct(AdHash::A256, within, within + length);
        match (direction, whole) {
            (Direction::Read, true) => 0,
            (Direction::Read, false) => come.min(complement(AdHash::A256, unit, within, within + length)),
            (Direction::Write, true) => come,
            (Direction::Write, false) => {
                let block = AdHash::A256.block_bytes() as u64;
                let (from, to) = (within / block * block, (within + length).div_ceil(block) * block);
                let touched = 2 * direct(AdHash::A256, from, to);
                come + touched.min(direct(AdHash::A256, 0, unit))
            }
        }
    };
    (parts.iter().map(cost).sum::<u64>() + list) as f64 / COMPRESSION as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers in docs/design/security.md 5.6 for Figures 6 and 7.
    #[test]
    fn model_reproduces_the_papers_figures() {
        // Aligned 8 KiB: 128 compressions become one.
        assert_eq!(compressions(8192), 128);
        assert_eq!(stored(Direction::Read, 0, 8192), 1.0);
        assert_eq!(incremental(Direction::Read, 0, 8192), 1.0);
        // The peak of the saw-tooth.
        let peak = |cost: fn(Direction, u64, u64) -> f64| {
            (1..=8192).map(|bytes| cost(Direction::Read, 0, bytes)).fold(0.0, f64::max)
        };
        assert_eq!(peak(stored), 129.0);
        assert!(peak(incremental) / 129.0 <= 0.6, "{}", peak(incremental));
        // Offset 4000: stored digests win from 12 288 bytes on.
        let wins = |bytes| stored(Direction::Read, 4000, bytes) < compressions(bytes) as f64;
        assert!(!wins(8192) && wins(20_480));
        // A small write in the middle of a unit.
        assert!(stored(Direction::Write, 4000, 1024) > 2.0 * incremental(Direction::Write, 4000, 1024));
        // And where the incremental digest stops winning there.
        let still =
            |bytes| incremental(Direction::Write, 4000, bytes) < stored(Direction::Write, 4000, bytes);
        assert!(still(2048) && !(2048..16_384).all(still));
    }

    #[test]
    fn a_plot_is_a_file_with_its_curves() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plot.svg");
        let curves = model(Direction::Read, OFF);
        plot(&file, "title", &curves, &curves).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(
            text.starts_with("<svg")
                && text.contains("stored SHA-1")
                && text.matches("<polyline").count() >= 6
        );
    }
}
