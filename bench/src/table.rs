//! Tables of results, beside values of a paper.

use serde::Serialize;

use crate::workload::median;

/// One table.
#[derive(Debug, Serialize)]
pub(crate) struct FigureTable {
    pub(crate) title: String,
    /// Values of the paper that the design documents quote.
    pub(crate) paper: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<FigureRow>,
    /// Rows that this machine cannot measure, with the reasons.
    pub(crate) left_out: Vec<String>,
}

/// One row: the medians of the rounds. A value that was not measured is not a number.
#[derive(Debug, Serialize)]
pub(crate) struct FigureRow {
    pub(crate) name: String,
    pub(crate) values: Vec<f64>,
}

impl FigureTable {
    pub(crate) fn new(title: &str, paper: &str, columns: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            paper: paper.to_owned(),
            columns: columns.iter().map(|column| (*column).to_owned()).collect(),
            rows: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Notes a row that cannot be measured.
    pub(crate) fn left_out(&mut self, name: &str, reason: &str) {
        self.left_out.push(format!("{name}: {reason}"));
    }

    /// Adds the medians of rows with one value for each column.
    pub(crate) fn add(&mut self, name: &str, rounds: &[Vec<f64>]) {
        let column = |at: usize| {
            median(&mut rounds.iter().filter_map(|round| round.get(at).copied()).collect::<Vec<_>>())
        };
        let values = (0..self.columns.len()).map(column).collect();
        self.rows.push(FigureRow { name: name.to_owned(), values });
    }

    /// Returns the value of a row in a column.
    pub(crate) fn value(&self, row: &str, column: &str) -> Option<f64> {
        let at = self.columns.iter().position(|name| name == column)?;
        let row = self.rows.iter().find(|found| found.name == row)?;
        row.values.get(at).copied().filter(|value| value.is_finite())
    }

    pub(crate) fn print(&self) {
        println!("{}\n  paper: {}", self.title, self.paper);
        print!("  {:26}", "");
        for column in &self.columns {
            print!(" {column:>15}");
        }
        println!();
        for row in &self.rows {
            print!("  {:26}", row.name);
            for value in &row.values {
                if value.is_finite() { print!(" {value:>15.3}") } else { print!(" {:>15}", "-") }
            }
            println!();
        }
        for reason in &self.left_out {
            println!("  not measured: {reason}");
        }
        println!();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_median_of_each_column() {
        let mut table = FigureTable::new("t", "p", &["a", "b"]);
        table.add("x", &[vec![3.0, 1.0], vec![1.0, 5.0], vec![2.0, 9.0]]);
        assert_eq!(table.rows[0].values, [2.0, 5.0]);
        assert_eq!((table.value("x", "b"), table.value("y", "b")), (Some(5.0), None));
    }
}
