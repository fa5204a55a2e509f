//! Curves: throughput of the levels by clients, and of protected streams by message size.

use std::fs;
use std::path::Path;

use plotters::prelude::*;

use super::channel::SIZES;
use super::throughput::LevelResults;
use crate::Outcome;
use crate::plots::{Curve, panel};
use crate::table::FigureTable;

/// Pixels of a panel.
const PANEL: (u32, u32) = (600, 480);

/// Draws all results into `folder`: a file for each direction and pattern, and one for the streams.
pub(super) fn draw(folder: &Path, levels: &LevelResults, tables: &[FigureTable]) -> Outcome {
    fs::create_dir_all(folder)?;
    for (name, panels) in levels.curves() {
        save(&folder.join(format!("lazy-{name}.svg")), "clients", &panels)?;
    }
    if let Some(table) = tables.iter().find(|table| table.title.starts_with("Figure 2")) {
        let curve = |row: &crate::table::FigureRow| -> Curve {
            let sizes = SIZES.map(|bytes| bytes as f64);
            (row.name.clone(), sizes.into_iter().zip(row.values.iter().copied()).collect())
        };
        let panels = [("stream, MB/s".to_owned(), table.rows.iter().map(curve).collect())];
        save(&folder.join("lazy-stream.svg"), "bytes", &panels)?;
    }
    Ok(())
}

fn save(file: &Path, x: &str, panels: &[(String, Vec<Curve>)]) -> Outcome {
    let width = PANEL.0 * u32::try_from(panels.len())?;
    let draw = || -> Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::new(file, (width, PANEL.1)).into_drawing_area();
        root.fill(&WHITE)?;
        for (area, (title, curves)) in root.split_evenly((1, panels.len())).iter().zip(panels) {
            panel(area, title, x, curves)?;
        }
        root.present()?;
        Ok(())
    };
    draw().map_err(|error| format!("{}: {error}", file.display()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_plot_has_curve_for_each_row() {
        let folder = tempfile::tempdir().unwrap();
        let mut table = FigureTable::new("Figure 2: x", "", &["a", "b", "c", "d", "e", "f"]);
        table.add("TCP", &[vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]);
        table.add("S2-5", &[vec![1.0, 1.0, 2.0, 2.0, 3.0, 3.0]]);
        draw(folder.path(), &LevelResults::default(), &[table]).unwrap();
        let text = fs::read_to_string(folder.path().join("lazy-stream.svg")).unwrap();
        assert!(text.contains("TCP") && text.contains("S2-5"));
    }
}
